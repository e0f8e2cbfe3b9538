//! Reads how the VIPs of a service are announced.

use super::announce::{ANNOUNCE, Announce, ICMP_ECHO, IcmpEcho, Routing};
use super::back_ends::VID_MAX;
use weir_config::Report;
use weir_config::raw::{Kind, Node};
use weir_config::section::{Section, number};

/// Reads which announcements and answers weir sends for the VIPs of a service.
pub(super) fn said(section: &Section<'_>, report: &mut Report) -> (Announce, Vec<u16>, IcmpEcho) {
    let announce = section.choice("announce", &ANNOUNCE, report).unwrap_or_default();
    let announce = routing(section, announce, report);
    let announce_vlans = section.get("announce_vlans").map_or(vec![0], |node| vlans(node, report));
    (announce, announce_vlans, section.choice("icmp_echo", &ICMP_ECHO, report).unwrap_or_default())
}

/// Reads when a service is announced by routes.
fn routing(section: &Section<'_>, announce: Announce, report: &mut Report) -> Announce {
    let Announce::Route(usual) = announce else {
        for key in ["min_up", "degraded_below"] {
            let Some(node) = section.get(key) else { continue };
            let message = format!("`{key}` has no effect: the service is not announced by a route");
            report.error_help(node.span, message, format!("write `announce: route`, or omit `{key}`"));
        }
        return announce;
    };
    let number = |key: &str, report: &mut Report| {
        section.get(key).and_then(|_| section.number(key, report)).map(|number| number as u32)
    };
    Announce::Route(Routing {
        min_up: number("min_up", report).unwrap_or(usual.min_up),
        degraded_below: number("degraded_below", report).unwrap_or(usual.degraded_below),
    })
}

/// A list of VLANs, where 0 means untagged.
fn vlans(node: &Node, report: &mut Report) -> Vec<u16> {
    let vlan = |node: &Node| number(node, "a VLAN", 0..=VID_MAX, report).map(|vlan| vlan as u16);
    several(node).iter().filter_map(vlan).collect()
}

/// The items of a list, or the single item that is not in a list.
pub(super) fn several(node: &Node) -> &[Node] {
    match &node.kind {
        Kind::List(list) => list,
        _ => std::slice::from_ref(node),
    }
}
