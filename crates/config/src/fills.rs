//! How the buckets of a group are filled: weir's own methods, and those of other systems with their settings.

use crate::diagnostic::Report;
use crate::key::{Key, Shape};
use crate::raw::Node;
use crate::section::{Section, list, parsed, position, text, words};
use std::net::IpAddr;
use weir_program::{Fill, GlbHash, KatranHash, KatranVersion};

/// The default input of Katran's hash.
const KATRAN: KatranHash = KatranHash { any_port: false, no_sport: false, dport_only: false };
/// The GLB director's fill, which requires a seed and a key.
const GLB: Fill = Fill::Glb([0; 16], GlbHash { key: [0; 16], fields: GlbHash::SOURCE });

/// The words of `fill`.
pub const FILLS: [(&str, Fill); 6] = [
    ("maglev", Fill::Maglev),
    ("wants", Fill::Wants),
    ("given", Fill::Given),
    ("katran", Fill::Katran(KatranVersion::V1, KATRAN)),
    ("katran_v2", Fill::Katran(KatranVersion::V2, KATRAN)),
    ("glb", GLB),
];

/// Returns the word for a fill.
#[must_use]
pub fn word(fill: Fill) -> &'static str {
    let same = |other: &Fill| match (fill, other) {
        (Fill::Katran(one, _), Fill::Katran(other, _)) => one == *other,
        _ => std::mem::discriminant(&fill) == std::mem::discriminant(other),
    };
    FILLS.iter().find(|(_, other)| same(other)).map_or("maglev", |(word, _)| *word)
}

/// Keys of `katran`: the flags of a VIP that affect its hash.
pub const KATRAN_KEYS: &[Key] = crate::keys! {
    "any_port": Shape::Boolean,
        "whether the VIP has no port, so that the destination port is not hashed" or "false";
    "no_sport": Shape::Boolean, "Katran's NO_SPORT: the source port is not hashed" or "false";
    "dport_only": Shape::Boolean, "Katran's DPORT_HASH: only the destination port is hashed" or "false";
};

/// Keys of `glb`: the contents of a GLB director's forwarding table.
pub const GLB_KEYS: &[Key] = crate::keys! {
    needed "seed": Shape::Text, "the table's `seed`, 32 hexadecimal digits";
    "hash_key": Shape::Text, "the table's `hash_key`, 32 hexadecimal digits";
    "hash_fields": Shape::List(&Shape::Words(|| words(&FIELDS))),
        "which fields of a flow are hashed; by default only `src_addr`";
};

const FIELDS: [(&str, u8); 4] = [
    ("src_addr", GlbHash::SOURCE),
    ("dst_addr", GlbHash::DESTINATION),
    ("src_port", GlbHash::SOURCE_PORT),
    ("dst_port", GlbHash::DESTINATION_PORT),
];

/// Completes a fill with the settings of other systems, from a section with the keys `katran` and `glb`. A
/// GLB director's table needs a `hash_key` if the table distributes flows, but not if only its rows are
/// printed.
#[must_use]
pub fn settings(fill: Fill, section: &Section<'_>, needs_key: bool, report: &mut Report) -> Fill {
    let (katran, glb) = (section.get("katran"), section.get("glb"));
    let vain =
        [(katran, "katran", matches!(fill, Fill::Katran(..))), (glb, "glb", matches!(fill, Fill::Glb(..)))];
    for (node, word, _) in vain.iter().filter(|(.., used)| !used) {
        if let Some(node) = node {
            report.error(node.span, format!("`{word}` is for groups with `fill: {word}`"));
        }
    }
    match (fill, katran, glb) {
        (Fill::Katran(version, _), Some(node), _) => Fill::Katran(version, katran_hash(node, report)),
        (Fill::Glb(..), _, Some(node)) => self::glb(node, needs_key, report).unwrap_or(fill),
        (Fill::Glb(..), _, None) => {
            let help = "`glb: { seed: .., hash_key: .. }`, as in the forwarding table";
            report.error_help(section.span, "the director's rows need its table's seed", help);
            fill
        }
        (fill, ..) => fill,
    }
}

fn katran_hash(node: &Node, report: &mut Report) -> KatranHash {
    let section = Section::read(node, KATRAN_KEYS, report);
    KatranHash {
        any_port: section.boolean("any_port", report),
        no_sport: section.boolean("no_sport", report),
        dport_only: section.boolean("dport_only", report),
    }
}

fn glb(node: &Node, needs_key: bool, report: &mut Report) -> Option<Fill> {
    let section = Section::read(node, GLB_KEYS, report);
    let seed = section.needed("seed", report).and_then(|node| bytes(node, report));
    let key = match section.get("hash_key") {
        None if needs_key => {
            let _ = section.need("hash_key", "it selects the row of each flow", report);
            None
        }
        None => Some([0; 16]),
        Some(node) => bytes(node, report),
    };
    let fields = section.get("hash_fields").map_or(GlbHash::SOURCE, |node| fields(node, report));
    Some(Fill::Glb(seed?, GlbHash { key: key?, fields }))
}

fn fields(node: &Node, report: &mut Report) -> u8 {
    let mut set = 0;
    for node in list(node, "fields", report) {
        let Some(word) = text(node, "a field", report) else { continue };
        let known = FIELDS.iter().map(|(word, _)| *word);
        let at = position("there is no field to hash called", (word, node.span), known, report);
        set |= at.map_or(0, |at| FIELDS[at].1);
    }
    if set == 0 {
        report.error(node.span, "at least one field must be hashed");
    }
    set
}

/// Reads 16 bytes, in the format of the director's tables.
fn bytes(node: &Node, report: &mut Report) -> Option<[u8; 16]> {
    let what = "32 hexadecimal digits, as in the director's forwarding table";
    let digits = text(node, what, report)?;
    let good = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u128::from_str_radix(digits, 16).ok().filter(|_| good);
    if number.is_none() {
        report.error(node.span, format!("this is not {what}"));
    }
    number.map(u128::to_be_bytes)
}

/// Reads the address that identifies a target in other systems.
#[must_use]
pub fn address(node: &Node, report: &mut Report) -> Option<IpAddr> {
    parsed(node, "an IP address", report)
}
