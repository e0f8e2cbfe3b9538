//! `quic`: how server IDs are encoded in QUIC connection IDs (draft-ietf-quic-load-balancers). `quic` is a
//! key of groups and of the load balancer.

use crate::diagnostic::Report;
use crate::key::{Key, Shape};
use crate::raw::Node;
use crate::section::{Section, list, text};
use std::sync::Arc;
use weir_program::{QuicConfig, ServerId};

/// Keys of `quic`.
pub const QUIC: &[Key] = crate::keys! {
    needed "configs": Shape::List(&Shape::Map(CONFIG)),
        "the configurations that servers use; several during a key rotation";
};
const CONFIG: &[Key] = crate::keys! {
    needed "id": Shape::Number(0, 6), "the number in the first three bits of a connection ID";
    needed "server_id_length": Shape::Number(1, 15), "octets of a server ID";
    needed "nonce_length": Shape::Number(4, 18), "octets of a nonce; at most 19 together with the server ID";
    "key": Shape::Text, "the key, 32 hexadecimal digits; without one, server IDs are not encrypted";
};

/// Reads the configurations; `None` if there is an error, which is reported.
#[must_use]
pub fn configs(node: &Node, report: &mut Report) -> Option<Arc<[QuicConfig]>> {
    let before = report.errors();
    let section = Section::read(node, QUIC, report);
    let all = section.needed("configs", report).map(|node| list(node, "configurations", report));
    let mut read: Vec<QuicConfig> = Vec::new();
    for node in all.unwrap_or_default() {
        let Some(config) = config(node, report) else { continue };
        if let Err(why) = config.decoder() {
            report.error(node.span, why.to_string());
        }
        if read.iter().any(|other| other.id == config.id) {
            report.error(node.span, format!("two configurations have the number {}", config.id));
        }
        read.push(config);
    }
    if read.is_empty() && report.errors() == before {
        report.error(node.span, "there is no configuration, so no connection ID carries a server ID");
    }
    (report.errors() == before).then(|| read.into())
}

fn config(node: &Node, report: &mut Report) -> Option<QuicConfig> {
    let before = report.errors();
    let section = Section::read(node, CONFIG, report);
    for key in ["id", "server_id_length", "nonce_length"] {
        let _ = section.needed(key, report);
    }
    let mut number = |key: &str| section.get(key).and_then(|_| section.number(key, report));
    let (id, server_id, nonce) = (number("id"), number("server_id_length"), number("nonce_length"));
    let key = section.get("key").and_then(|node| {
        let octets = octets(node, "a key", report)?;
        let key = <[u8; 16]>::try_from(octets.as_slice());
        key.map_err(|_| report.error(node.span, "a key has 32 hexadecimal digits")).ok()
    });
    if report.errors() > before {
        return None;
    }
    Some(QuicConfig { id: id? as u8, server_id: server_id? as u8, nonce: nonce? as u8, key })
}

/// Reads a server ID; `None` if there is an error, which is reported.
#[must_use]
pub fn server_id(node: &Node, report: &mut Report) -> Option<ServerId> {
    let octets = octets(node, "a server ID", report)?;
    let id = ServerId::new(&octets).filter(|_| (1..=15).contains(&octets.len()));
    if id.is_none() {
        report.error(node.span, format!("a server ID has 1 to 15 octets, this one {}", octets.len()));
    }
    id
}

fn octets(node: &Node, what: &str, report: &mut Report) -> Option<Vec<u8>> {
    let digits = text(node, what, report)?;
    let read = |at: usize| digits.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let whole = digits.len() % 2 == 0 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let octets: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(read).collect();
    let octets = octets.filter(|_| whole);
    if octets.is_none() {
        report.error(node.span, format!("{what} is an even number of hexadecimal digits"));
    }
    octets
}
