//! NAT pools: addresses and ports for flows.

use crate::diagnostic::{Report, Span};
use crate::key::{Key, Shape};
use crate::raw::{Kind, Node};
use crate::section::{Section, list, name, text};
use crate::value;
use std::net::{Ipv4Addr, Ipv6Addr};
use weir_packet::Field;
use weir_program::{NatPool, NatPrefix, Origin, Program};

/// Keys of a NAT pool.
pub const NAT_POOL: &[Key] = crate::keys! {
    needed "addresses": Shape::Either(&[Shape::Prefix, Shape::List(&Shape::Prefix)]),
        "the addresses that flows get: a prefix, every address of which is used, or a list of them";
    "ports": Shape::Text, "the ports that flows get: the first and the last; at least 64" or "1024-65535";
};

/// Reads a NAT pool.
#[must_use]
pub fn pool(called: &str, span: Span, node: &Node, report: &mut Report) -> Option<NatPool> {
    let name = name(called, span, report)?.to_string();
    let section = Section::read(node, NAT_POOL, report).at(span);
    let addresses = section.needed("addresses", report)?;
    let nodes = match &addresses.kind {
        Kind::List(_) => list(addresses, "prefixes", report),
        _ => std::slice::from_ref(addresses),
    };
    let before = report.errors();
    let prefixes: Vec<NatPrefix> = nodes.iter().filter_map(|node| prefix(node, report)).collect();
    let (first, last) = match section.get("ports") {
        Some(node) => ports(node, report)?,
        None => (1024, 65_535),
    };
    // Findings about the addresses are reported at their place.
    let origin = if report.errors() > before { Origin::default() } else { report.origin(addresses.span) };
    (report.errors() == before).then_some(NatPool { name, prefixes, first, last, origin })
}

fn prefix(node: &Node, report: &mut Report) -> Option<NatPrefix> {
    let text = text(node, "an address or a prefix", report)?;
    let field = if text.contains(':') { Field::Ipv6Src } else { Field::Ipv4Src };
    let read = value::prefix(field, text, &Program::default());
    let (bits, length) = read.map_err(|why| report.error(node.span, why)).ok()?;
    let first = match field {
        Field::Ipv4Src => Ipv4Addr::from_bits(bits as u32).into(),
        _ => Ipv6Addr::from_bits(bits).into(),
    };
    Some(NatPrefix { first, length })
}

fn ports(node: &Node, report: &mut Report) -> Option<(u16, u16)> {
    let text = text(node, "the first and the last port, such as 1024-65535", report)?;
    let (first, last) = value::range(Field::L4Sport, text, &Program::default())
        .map_err(|why| report.error(node.span, why))
        .ok()?;
    Some((first, last))
}
