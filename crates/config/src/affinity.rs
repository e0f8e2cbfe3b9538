//! The part of a source address that is hashed: `affinity` of groups and services.

use crate::raw::{Kind, Node};
use crate::section::{Section, duration};
use crate::{Key, Report, Shape};
use weir_program::Affinity;

/// The whole address, or a prefix.
pub const SHAPE: Shape = Shape::Either(&[Shape::Words(|| vec![SOURCE]), Shape::Map(PREFIXES)]);

const SOURCE: &str = "source";
const PREFIXES: &[Key] = crate::keys! {
    "ipv4": Shape::Number(0, 32), "how many leading bits of an IPv4 address count" or "32";
    "ipv6": Shape::Number(0, 128), "how many leading bits of an IPv6 address count" or "128";
    "timeout": Shape::Time,
        "how long a client's target is remembered after its last connection, up to 10 days" or
        "0 s, which means never";
};

/// Reads `source`, or the lengths of prefixes.
pub fn read(node: &Node, report: &mut Report) -> Option<Affinity> {
    if let Kind::Scalar(word) = &node.kind {
        if word == SOURCE {
            return Some(Affinity::ADDRESS);
        }
        let help = "`affinity: source`, or prefixes such as `affinity: { ipv4: 24, ipv6: 56, timeout: 3h }`";
        report.error_help(node.span, format!("`affinity` cannot be `{word}`"), help);
        return None;
    }
    let (before, section) = (report.errors(), Section::read(node, PREFIXES, report));
    let mut bits = |word, all: u8| section.number(word, report).map_or(all, |bits| bits as u8);
    let read = Affinity { ipv4: bits("ipv4", 32), ipv6: bits("ipv6", 128), timeout_ns: 0 };
    let timeout = section.get("timeout").and_then(|node| duration(node, "`timeout`", report));
    let read = Affinity { timeout_ns: timeout.unwrap_or(0), ..read };
    (report.errors() == before).then_some(read)
}
