//! Apps: what each is told, with names resolved.

use super::diagnostic::{Report, Span, suggestion};
use super::ports::{mac, protocol};
use super::raw::{Kind, Node};
use super::section::{Section, list, name, number, pairs, text};
use super::sets::{MAGLEV_SIZE, WEIGHT_MAX};
use apps::lb::{BackEnd, By, Lb, Problem, Service, SourceMac};
use engine::check::MAGLEV_MAX;
use engine::program::{PortId, Program};
use std::collections::HashSet;
use std::net::IpAddr;

/// The apps of a configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Apps {
    /// The load balancer.
    pub lb: Lb,
}

/// Names of the apps there are.
const APPS: [&str; 1] = ["lb"];

/// Reads the list of apps.
#[must_use]
pub fn read(node: &Node, program: &Program, report: &mut Report) -> Apps {
    let mut apps = Apps::default();
    for item in list(node, "apps", report) {
        for (app, span, told) in pairs(item, report) {
            match app {
                "lb" => apps.lb.services.extend(service(told, program, report)),
                _ => report.error_help(span, format!("there is no app `{app}`"), suggestion(app, APPS)),
            }
        }
    }
    for (origin, problem) in apps.lb.problems() {
        report.error(report.span_of(origin), problem.to_string());
    }
    apps
}

const SERVICE: &[&str] = &["name", "port", "out", "service", "by", "size", "back_ends", "source_mac"];

/// A service; `None` if it cannot be used, which the report says.
fn service(node: &Node, program: &Program, report: &mut Report) -> Option<Service> {
    let before = report.errors();
    let section = Section::of(node, SERVICE, report);
    let called = named(&section, report);
    let ports = section.need("port", "the port (or list of ports) where its packets arrive", report);
    let ports = ports.map(|node| ports_named(node, program, report)).unwrap_or_default();
    let out = section.get("out").and_then(|node| port_named(node, program, report));
    let address = section.need("service", "`{ vip, protocol, port }`", report).and_then(|node| address(node, report));
    let by = section.need("by", "`5-tuple`, `source` or `src/MASK`", report).and_then(|node| by(node, report));
    let size = section.get("size").map(|node| number(node, "a group's size", 1..=u64::from(MAGLEV_MAX), report));
    let back_ends = section.need("back_ends", "who answers", report).map(|node| back_ends(node, report));
    let source_mac = section.get("source_mac").map_or(Some(SourceMac::Auto), |node| source_mac(node, report));
    let origin = report.origin(section.get("name").unwrap_or(node).span);
    if report.errors() > before {
        return None;
    }
    let (vip, protocol, dport) = address?;
    let size = size.flatten().map_or(MAGLEV_SIZE, |size| size as u32);
    let (back_ends, source_mac) = (back_ends?, source_mac?);
    Some(Service { name: called?, ports, out, vip, protocol, dport, by: by?, size, back_ends, source_mac, origin })
}

fn named(section: &Section, report: &mut Report) -> Option<String> {
    let node = section.need("name", "what it is called", report)?;
    name(text(node, "a name", report)?, node.span, report).map(str::to_string)
}

fn ports_named(node: &Node, program: &Program, report: &mut Report) -> Vec<PortId> {
    match &node.kind {
        Kind::List(list) => list.iter().filter_map(|node| port_named(node, program, report)).collect(),
        _ => port_named(node, program, report).into_iter().collect(),
    }
}

fn port_named(node: &Node, program: &Program, report: &mut Report) -> Option<PortId> {
    let name = text(node, "the name of a port", report)?;
    let port = program.port_named(name);
    if port.is_none() {
        let names: Vec<&str> = program.ports.iter().map(|port| port.name.as_str()).collect();
        report.error_help(node.span, format!("there is no port `{name}`"), suggestion(name, names));
    }
    port
}

fn address(node: &Node, report: &mut Report) -> Option<(IpAddr, u8, u16)> {
    let section = Section::of(node, &["vip", "protocol", "port"], report);
    let vip = section.need("vip", "the address clients know", report);
    let vip = vip.and_then(|node| super::section::parsed::<IpAddr>(node, "an IP address", report));
    let protocol = section.need("protocol", "tcp or udp", report).and_then(|node| protocol(node, report));
    let port = section.need("port", "the port clients know", report);
    let port = port.and_then(|node| number(node, "a port", 1..=65535, report));
    Some((vip?, protocol?, port? as u16))
}

/// How packets find their back end.
fn by(node: &Node, report: &mut Report) -> Option<By> {
    let words = text(node, "`5-tuple`, `source` or `src/MASK`", report)?;
    words.parse().map_err(|problem: Problem| report.error(node.span, problem.to_string())).ok()
}

fn back_ends(node: &Node, report: &mut Report) -> Vec<BackEnd> {
    list(node, "back ends", report).iter().filter_map(|node| back_end(node, report)).collect()
}

fn back_end(node: &Node, report: &mut Report) -> Option<BackEnd> {
    let section = Section::of(node, &["name", "mac", "weight"], report);
    let name = named(&section, report);
    let mac = section.need("mac", "its MAC address", report).and_then(|node| mac(node, report));
    let weight = section.get("weight").map_or(Some(1), |node| number(node, "a weight", 0..=WEIGHT_MAX, report));
    let span: Span = section.get("name").unwrap_or(node).span;
    Some(BackEnd { name: name?, mac: mac?, weight: weight? as u32, origin: report.origin(span) })
}

fn source_mac(node: &Node, report: &mut Report) -> Option<SourceMac> {
    match text(node, "`auto` or a MAC address", report)? {
        "auto" => Some(SourceMac::Auto),
        _ => mac(node, report).map(SourceMac::Fixed),
    }
}

/// The back ends of XenoFlow's `backends.json`: `{"backends": [{"name": .., "mac_address": ..}]}`.
#[must_use]
pub fn xenoflow(document: &Node, report: &mut Report) -> Vec<BackEnd> {
    let section = Section::of(document, &["backends"], report);
    let Some(node) = section.need("backends", "the list of back ends", report) else { return Vec::new() };
    let (mut back_ends, mut names) = (Vec::new(), HashSet::new());
    for node in list(node, "back ends", report) {
        let section = Section::of(node, &["name", "mac_address"], report);
        let name = named(&section, report);
        let mac = section.need("mac_address", "its MAC address", report).and_then(|node| mac(node, report));
        let Some(name) = name else { continue };
        if !names.insert(name.clone()) {
            report.error(section.get("name").unwrap_or(node).span, format!("two back ends are called `{name}`"));
        }
        back_ends.extend(mac.map(|mac| BackEnd { name, mac, weight: 1, origin: Default::default() }));
    }
    if back_ends.is_empty() && report.errors() == 0 {
        report.error(node.span, "there are no back ends");
    }
    back_ends
}
