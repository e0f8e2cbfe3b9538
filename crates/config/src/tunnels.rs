//! Tunnels: the UDP ports by which they are recognised and to which they are sent.

use crate::diagnostic::{Report, suggestion};
use crate::raw::Node;
use crate::section::{Section, number, pairs};
use packet::{TunnelKind, TunnelPorts};

/// Reads `tunnels: { vxlan: { port: 4789 } }`; kinds that are not named keep the ports that IANA assigned.
#[must_use]
pub fn read(node: &Node, report: &mut Report) -> TunnelPorts {
    let mut ports = TunnelPorts::default();
    let mut given = Vec::new();
    for (word, span, node) in pairs(node, report) {
        let kind = TunnelKind::from_word(word).filter(|kind| kind.is_udp());
        let Some(kind) = kind else {
            let kinds = TunnelKind::ALL.iter().filter(|kind| kind.is_udp()).map(|kind| kind.word());
            report.error_help(span, format!("there is no UDP tunnel `{word}`"), suggestion(word, kinds));
            continue;
        };
        let section = Section::of(node, &["port"], report);
        let Some(node) = section.need("port", "the UDP destination port", report) else { continue };
        let Some(port) = number(node, "a UDP port", 1..=65535, report) else { continue };
        ports.set(kind, port as u16);
        given.push((kind, node.span));
    }
    for (kind, span) in given {
        let port = ports.of(kind);
        let other = TunnelKind::ALL.iter().find(|other| **other != kind && ports.of(**other) == port);
        if let Some(other) = other {
            report.error(span, format!("port {port} means `{other}` too"));
            break;
        }
    }
    ports
}
