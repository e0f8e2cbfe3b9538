//! Tunnels: the UDP ports that identify them and to which they are sent.

use crate::diagnostic::Report;
use crate::key::{Key, Shape};
use crate::raw::Node;
use crate::schema::Schema;
use crate::section::{Section, pairs, position};
use serde_json::{Map, Value, json};
use weir_packet::{TunnelKind, TunnelPorts};

const KEYS: &[Key] = crate::keys! { needed "port": Shape::Number(1, 65535), "the UDP destination port"; };

/// Reads `tunnels: { vxlan: { port: 4789 } }`; omitted kinds keep the ports assigned by IANA.
#[must_use]
pub fn read(node: &Node, report: &mut Report) -> TunnelPorts {
    let mut ports = TunnelPorts::default();
    let mut given = Vec::new();
    for (word, span, node) in pairs(node, report) {
        let kinds = TunnelKind::ALL.iter().filter(|kind| kind.is_udp());
        let words = kinds.clone().map(|kind| kind.word());
        let at = position("there is no UDP tunnel", (word, span), words, report);
        let Some(&kind) = at.and_then(|at| kinds.clone().nth(at)) else { continue };
        let section = Section::read(node, KEYS, report);
        let Some(node) = section.needed("port", report) else { continue };
        let Some(port) = section.number("port", report) else { continue };
        ports.set(kind, port as u16);
        given.push((kind, node.span));
    }
    for (kind, span) in given {
        let port = ports.of(kind);
        let other = TunnelKind::ALL.iter().find(|other| **other != kind && ports.of(**other) == port);
        if let Some(other) = other {
            report.error(span, format!("port {port} is also the port of `{other}`"));
            break;
        }
    }
    ports
}

/// The schema of `tunnels`.
pub fn schema(schema: &mut Schema) -> Value {
    let kinds = TunnelKind::ALL.iter().filter(|kind| kind.is_udp());
    let properties: Map<_, _> = kinds.map(|kind| (kind.word().to_string(), schema.map(KEYS))).collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}
