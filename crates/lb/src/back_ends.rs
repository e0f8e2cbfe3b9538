//! Reads back ends: those of services, and XenoFlow's.

use super::health;
use super::service::{BackEnd, Mode, State};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use weir_app::kind::Scope;
use weir_config::attachment::Attachment;
use weir_config::ports::mac;
use weir_config::raw::{self, Kind, Node};
use weir_config::section::{Section, list, name, parsed, text, words};
use weir_config::sets::WEIGHT_MAX;
use weir_config::{Key, Report, Shape};

pub(super) const BACK_END: &[Key] = weir_config::keys! {
    needed "name": Shape::Name, "its name";
    "mac": Shape::Mac,
        "the destination MAC address of frames for it: its own, or that of the next-hop router; by default \
         that of `gateway`, `ip` or `address` is resolved";
    "gateway": Shape::Ip, "the next-hop router, without `mac`; by default taken from the host's routes";
    "out": Shape::Name, "the port it is behind, if not the service's `out`";
    "weight": Shape::Number(0, WEIGHT_MAX),
        "its share of new flows; with 0 it only keeps existing ones" or "1";
    "state": Shape::Words(|| words(&STATES)), "whether it gets new flows, and keeps existing ones" or "up";
    "mode": Shape::Words(|| Mode::WORDS.to_vec()), "how packets are sent to it" or "l2";
    "address": Shape::Ip,
        "its own IP address, used for checks and to identify it in the rings of other systems; by default \
         `ip`";
    "server_id": Shape::Text,
        "its server ID in QUIC connection IDs, in hexadecimal, where the service has `quic`";
    "check": Shape::Overrides(health::CHECK), "how it is checked; these keys override the service's";
    "ip": Shape::Ip, "the address that packets are sent to; with `l2`, its own, the same as `address`";
    "port": Shape::Number(1, 65535), "the port that packets are sent to, if different (nat, full_nat)";
    "vlan": Shape::Number(0, VID_MAX),
        "the VLAN tag of frames for it; by default tags stay unchanged";
    "vni": Shape::Number(0, (1 << 24) - 1), "the network's identifier (vxlan)";
    "inner_mac": Shape::Mac, "the destination MAC address in the tunnel (vxlan)";
};
/// The highest VLAN identifier (IEEE 802.1Q; 4095 is reserved).
pub(super) const VID_MAX: u64 = 4094;
/// The mode of a back end whose flows are rejected, and the keys that it does not have.
const REJECT: &str = "reject";
const NOT_REJECTED: [&str; 8] = ["mac", "gateway", "out", "address", "server_id", "check", "ip", "vlan"];
/// The states that can be configured.
const STATES: [(&str, State); 3] =
    [("up", State::Up), ("draining", State::Draining), ("maintenance", State::Maintenance)];
const XENOFLOW: &[Key] = weir_config::keys! {
    needed "backends": Shape::List(&Shape::Map(XENOFLOW_BACK_END)), "the list of back ends";
};
const XENOFLOW_BACK_END: &[Key] = weir_config::keys! {
    needed "name": Shape::Name, "its name";
    needed "mac_address": Shape::Mac, "its MAC address";
    "weight": Shape::Number(1, WEIGHT_MAX), "its share of clients, which only weir reads" or "1";
};

/// Reads a list of back ends.
pub(super) fn read(node: &Node, scope: &mut Scope<'_>) -> Arc<[BackEnd]> {
    let mut outs = Outs::new();
    list(node, "back ends", scope.report).iter().filter_map(|node| back_end(node, &mut outs, scope)).collect()
}

/// The attachments named by back ends of a list.
type Outs = HashMap<String, Arc<Attachment>>;

/// A back end's attachment, if it has its own. The outer `None` means that its attachment has an error, which
/// is reported.
fn out(section: &Section<'_>, outs: &mut Outs, scope: &mut Scope<'_>) -> Option<Option<Arc<Attachment>>> {
    let Some(node) = section.get("out") else { return Some(None) };
    if let Kind::Scalar(name) = &node.kind
        && let Some(known) = outs.get(name)
    {
        return Some(Some(Arc::clone(known)));
    }
    let named = Arc::new(scope.attachment(node).filter(Attachment::is_usable)?);
    outs.insert(named.name.clone(), Arc::clone(&named));
    Some(Some(named))
}

fn back_end(node: &Node, outs: &mut Outs, scope: &mut Scope<'_>) -> Option<BackEnd> {
    let section = Section::read(node, BACK_END, scope.report);
    let out = out(&section, outs, scope);
    let report = &mut *scope.report;
    let name = named(&section, report);
    let weight = section.number("weight", report);
    let state = section.choice("state", &STATES, report);
    let mode = mode(&section, report);
    let vlan = section.get("vlan").map(|_| section.number("vlan", report));
    let address = address(&section, mode, report);
    let server_id = section.get("server_id").and_then(|node| weir_config::quic::server_id(node, report));
    let station = station(&section, node, mode.and_then(|mode| mode.ip()).or(address), report);
    let span = section.get("name").unwrap_or(node).span;
    let ((mac, resolve), origin) = (station?, report.origin(span));
    let (name, weight, mode, state) = (name?, weight? as u32, mode?, state?);
    let vlan = vlan.map_or(Some(None), |vlan| vlan.map(|vlan| Some(vlan as u16)))?;
    let out = out?;
    Some(BackEnd { name, mac, resolve, mode, out, vlan, server_id, weight, state, address, origin })
}

/// The back end's own address, if it differs from the address that packets are sent to. With `l2`, `ip` is
/// this address.
fn address(section: &Section<'_>, mode: Option<Mode>, report: &mut Report) -> Option<IpAddr> {
    let mut read = |key| section.get(key).and_then(|node| parsed::<IpAddr>(node, "an IP address", report));
    let (ip, address) = (if mode == Some(Mode::L2) { read("ip") } else { None }, read("address"));
    if let (Some(ip), Some(address), Some(node)) = (ip, address, section.get("ip"))
        && ip != address
    {
        let message = format!("with `mode: l2`, `ip` and `address` ({address}) mean the same");
        report.error_help(node.span, message, "omit one of them");
    }
    address.or(ip)
}

/// The MAC address to which frames for a back end are sent, or else the IP address to resolve it from.
fn station(
    section: &Section<'_>,
    node: &Node,
    own: Option<IpAddr>,
    report: &mut Report,
) -> Option<([u8; 6], Option<IpAddr>)> {
    if section.get("mode").is_some_and(|mode| mode.is(REJECT)) {
        return Some(([0; 6], None));
    }
    let gateway = section.get("gateway");
    if let Some(fixed) = section.get("mac") {
        if let Some(node) = gateway {
            report.error_help(node.span, "`mac` already says where frames are sent", "omit one of them");
        }
        return Some((mac(fixed, report)?, None));
    }
    let read = gateway.map(|node| parsed::<IpAddr>(node, "an IP address", report));
    // If the gateway cannot be read, the error is already in the report.
    let Some(resolve) = read.map_or(own, |gateway| gateway) else {
        if gateway.is_none() {
            let message = "a back end needs `mac`, or `ip` so that its MAC address can be resolved";
            report.error(section.get("name").unwrap_or(node).span, message);
        }
        return None;
    };
    if resolve.is_unspecified() || resolve.is_multicast() || resolve.is_loopback() {
        let at = gateway.or(section.get("ip")).or(section.get("address")).unwrap_or(node);
        report.error(at.span, format!("{resolve} has no MAC address: it is not the address of a host"));
        return None;
    }
    Some(([0; 6], Some(resolve)))
}

/// Reads how packets are sent to a back end; `None` if there is an error, which is reported.
fn mode(section: &Section<'_>, report: &mut Report) -> Option<Mode> {
    let choices: Vec<(&str, &str)> = Mode::WORDS.iter().map(|word| (*word, *word)).collect();
    let word = section.choice("mode", &choices, report)?;
    let before = report.errors();
    let only = [("port", &["nat", "full_nat"][..]), ("vni", &["vxlan"])];
    for (key, modes) in only.into_iter().chain([("inner_mac", &["vxlan"][..])]) {
        if let Some(node) = section.get(key).filter(|_| !modes.contains(&word)) {
            let message = format!("`{key}` has no effect in `mode: {word}`");
            report.error_help(node.span, message, format!("it is of {}", modes.join(", ")));
        }
    }
    if word == "l2" {
        return (report.errors() == before).then_some(Mode::L2);
    }
    if word == REJECT {
        for node in NOT_REJECTED.iter().filter_map(|key| section.get(key)) {
            let message = "packets to a back end with `mode: reject` are sent nowhere";
            report.error_help(node.span, message, "omit this key");
        }
        return (report.errors() == before).then_some(Mode::Reject);
    }
    let ip = section.needed("ip", report).and_then(|node| parsed::<IpAddr>(node, "an IP address", report));
    let port = section.get("port").and_then(|_| section.number("port", report)).map(|port| port as u16);
    let mut vxlan = |ip| {
        let _ = section.needed("vni", report);
        let vni = section.get("vni").and_then(|_| section.number("vni", report))? as u32;
        let inner_mac = section.needed("inner_mac", report).and_then(|node| mac(node, report))?;
        Some(Mode::Vxlan { ip, vni, inner_mac })
    };
    let mode = match word {
        "ipip" => Some(Mode::Ipip(ip?)),
        "gue" => Some(Mode::Gue(ip?)),
        "gue1" => Some(Mode::BareGue(ip?)),
        "gre" => Some(Mode::Gre(ip?)),
        "nat" => Some(Mode::Nat { ip: ip?, port }),
        "full_nat" => Some(Mode::FullNat { ip: ip?, port }),
        "vxlan" => vxlan(ip?),
        // `choice` accepts only `Mode::WORDS`, and the words without an address have returned.
        other => unreachable!("`{other}` is not in `Mode::WORDS`"),
    };
    mode.filter(|_| report.errors() == before)
}

fn named(section: &Section, report: &mut Report) -> Option<String> {
    let node = section.needed("name", report)?;
    name(text(node, "a name", report)?, node.span, report).map(str::to_string)
}

/// The back ends of XenoFlow's `backends.json`: `{"backends": [{"name": .., "mac_address": ..}]}`. weir also
/// reads a `weight`.
#[must_use]
pub fn xenoflow(text: &str, report: &mut Report) -> Vec<BackEnd> {
    let Some(document) = raw::parse(text, report) else { return Vec::new() };
    let section = Section::read(&document, XENOFLOW, report);
    let Some(node) = section.needed("backends", report) else { return Vec::new() };
    let (mut back_ends, mut names) = (Vec::new(), HashSet::new());
    for node in list(node, "back ends", report) {
        let section = Section::read(node, XENOFLOW_BACK_END, report);
        let name = named(&section, report);
        let mac = section.needed("mac_address", report).and_then(|node| mac(node, report));
        let weight = section.number("weight", report);
        let Some(name) = name else { continue };
        if !names.insert(name.clone()) {
            report.error(
                section.get("name").unwrap_or(node).span,
                format!("two back ends are called `{name}`"),
            );
        }
        let back_end = |(mac, weight)| BackEnd { weight, ..BackEnd::new(name, mac) };
        back_ends.extend(mac.zip(weight.map(|weight| weight as u32)).map(back_end));
    }
    if back_ends.is_empty() && report.errors() == 0 {
        report.error(node.span, "there are no back ends");
    }
    back_ends
}
