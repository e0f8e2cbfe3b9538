//! Reads services from the configuration, and back ends from XenoFlow's.

use super::{BackEnd, By, Lb, Problem, Service, SourceMac, health};
use crate::kind::{Configured, Scope};
use config::attachment::Attachment;
use config::ports::{PortKind, mac, protocol};
use config::raw::{self, Kind, Node};
use config::section::{Section, list, name, parsed, text, words};
use config::sets::{MAGLEV_SIZE, WEIGHT_MAX};
use config::{Key, Report, Shape};
use engine::check::MAGLEV_MAX;
use engine::program::{Forward, PortId};
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

pub(super) const SERVICE: &[Key] = config::keys! {
    needed "name": Shape::Name, "what it is called";
    needed "port": Shape::Either(&[Shape::Name, Shape::List(&Shape::Name)]),
        "the port (or list of ports) where its packets arrive";
    "out": Shape::Name, "the port where the back ends are, by default that which a packet came in by";
    needed "service": Shape::Map(ADDRESS), "`{ vip, protocol, port }`";
    needed "by": Shape::Text, "`5-tuple`, `source` or `src/MASK`";
    "size": Shape::Number(1, MAGLEV_MAX as u64), "how many buckets, a prime" or "65537";
    needed "back_ends": Shape::List(&Shape::Map(BACK_END)), "who answers";
    "check": Shape::Map(health::CHECK), "how each back end is checked, unless it says otherwise";
    "fail": Shape::Words(|| words(&health::FAIL)), "who gets packets when no back end is up" or "all";
    "source_mac": Shape::Either(&[Shape::Words(|| vec!["auto"]), Shape::Mac]),
        "the source MAC address of packets to back ends" or "auto";
};
const ADDRESS: &[Key] = config::keys! {
    needed "vip": Shape::Ip, "the address clients know";
    needed "protocol": Shape::Words(|| vec!["tcp", "udp"]), "tcp or udp";
    needed "port": Shape::Number(1, 65535), "the port clients know";
};
const BACK_END: &[Key] = config::keys! {
    needed "name": Shape::Name, "what it is called";
    needed "mac": Shape::Mac, "its MAC address";
    "weight": Shape::Number(0, WEIGHT_MAX), "its share of the buckets; 0 gets none" or "1";
    "address": Shape::Ip, "its own IP address, where it is checked";
    "check": Shape::Map(health::CHECK), "how it is checked: these keys instead of the service's";
};
const XENOFLOW: &[Key] = config::keys! {
    needed "backends": Shape::List(&Shape::Map(XENOFLOW_BACK_END)), "the list of back ends";
};
const XENOFLOW_BACK_END: &[Key] = config::keys! {
    needed "name": Shape::Name, "what it is called";
    needed "mac_address": Shape::Mac, "its MAC address";
};

/// Reads the services; writes them if nothing is wrong.
pub(super) fn read(items: &[&Node], scope: &mut Scope<'_>) -> Arc<dyn Configured> {
    let before = scope.report.errors();
    let services: Vec<(&Node, Service)> =
        items.iter().filter_map(|item| Some((*item, service(item, scope)?))).collect();
    let health = health::read(&services, scope.report);
    let lb = Lb { services: services.into_iter().map(|(_, service)| service).collect(), health };
    for (origin, problem) in lb.problems() {
        scope.report.error(scope.report.span_of(origin), problem.to_string());
    }
    name_is_free(&lb, scope);
    if scope.report.errors() == before && !lb.services.is_empty() {
        lb.write(scope.program, scope.attachments);
        receives(&lb, scope);
        addresses_known(&lb, scope);
    }
    Arc::new(lb)
}

/// The pipe that the services share has a name that no other pipe can have.
fn name_is_free(lb: &Lb, scope: &mut Scope<'_>) {
    let taken = scope.program.pipe_named(super::NAME).filter(|_| !lb.services.is_empty());
    if let Some(pipe) = taken {
        let at = scope.report.span_of(scope.program.pipes[pipe.index()].origin);
        let message =
            format!("a pipe is called `{}`, which is the name of the pipe that the app writes", super::NAME);
        scope.report.error(at, message);
    }
}

/// Everything that the services' ports belong to must let another app have its frames.
fn receives(lb: &Lb, scope: &mut Scope<'_>) {
    for below in lb.below(scope.attachments) {
        if let Some(closed) = &below.closed {
            let message = format!("{}, not to {}", closed.why, super::NAME);
            scope.report.error_help(scope.report.span_of(below.origin), message, closed.help);
        }
    }
}

/// The source address of what is sent to back ends is that of the port it leaves by, where it is known here.
fn addresses_known(lb: &Lb, scope: &mut Scope<'_>) {
    for service in &lb.services {
        let Some(out) = &service.out else { continue };
        let xdp = matches!(scope.ports[out.lead.index()].kind, PortKind::Xdp(_));
        if service.source_mac == SourceMac::Auto && service.ports != out.ports && xdp && out.mac.is_none() {
            let message = format!(
                "the MAC address of port `{}` is not known here: frames will carry the one they were sent \
                    to, unless you \
                 write `source_mac` or the port's `mac`",
                out.name
            );
            scope.report.warning(scope.report.span_of(service.origin), message);
        }
    }
}

/// A service; `None` if it cannot be used, which the report says.
fn service(node: &Node, scope: &mut Scope<'_>) -> Option<Service> {
    let before = scope.report.errors();
    let section = Section::read(node, SERVICE, scope.report);
    let called = scope.name(&section);
    let ports = section.needed("port", scope.report);
    let ports = ports.and_then(|node| ports_named(node, scope));
    let out = match section.get("out") {
        Some(node) => scope.attachment(node),
        None => back_out(ports.as_deref(), scope),
    };
    let report = &mut *scope.report;
    let address = section.needed("service", report).and_then(|node| address(node, report));
    let by = section.needed("by", report).and_then(|node| by(node, report));
    let size = section.number("size", report);
    let back_ends = section.needed("back_ends", report).map(|node| back_ends(node, report));
    let source_mac = section.get("source_mac").map_or(Some(SourceMac::Auto), |node| source_mac(node, report));
    let origin = report.origin(section.get("name").unwrap_or(node).span);
    if report.errors() > before || out.as_ref().is_some_and(|out| !out.is_usable()) {
        return None;
    }
    let (vip, protocol, dport) = address?;
    let size = size.map_or(MAGLEV_SIZE, |size| size as u32);
    let (ports, back_ends, source_mac) = (ports?, back_ends?, source_mac?);
    Some(Service {
        name: called?,
        ports,
        out,
        vip,
        protocol,
        dport,
        by: by?,
        size,
        back_ends,
        source_mac,
        origin,
    })
}

/// The ports of what is named. `None`: one of them has errors, which are reported.
fn ports_named(node: &Node, scope: &mut Scope<'_>) -> Option<Vec<PortId>> {
    let nodes = match &node.kind {
        Kind::List(list) => list.as_slice(),
        _ => std::slice::from_ref(node),
    };
    let mut ports = Vec::new();
    for named in nodes.iter().filter_map(|node| scope.attachment(node)) {
        if !named.is_usable() {
            return None;
        }
        ports.extend(named.ports);
    }
    Some(ports)
}

/// Where a service without `out` sends: out of the port a packet came in by, which needs no attachment; but
/// by whichever of its ports where it came in by an attachment that has several.
fn back_out(ports: Option<&[PortId]>, scope: &Scope<'_>) -> Option<Attachment> {
    let below = scope.attachments.with(*ports?.first()?)?;
    (below.to != Forward::Port(below.lead) && Some(below.ports.as_slice()) == ports).then(|| below.clone())
}

fn address(node: &Node, report: &mut Report) -> Option<(IpAddr, u8, u16)> {
    let section = Section::read(node, ADDRESS, report);
    let vip = section.needed("vip", report);
    let vip = vip.and_then(|node| parsed::<IpAddr>(node, "an IP address", report));
    let protocol = section.needed("protocol", report).and_then(|node| protocol(node, report));
    let port = section.needed("port", report).and_then(|_| section.number("port", report));
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
    let section = Section::read(node, BACK_END, report);
    let name = named(&section, report);
    let mac = section.needed("mac", report).and_then(|node| mac(node, report));
    let weight = section.number("weight", report);
    let span = section.get("name").unwrap_or(node).span;
    Some(BackEnd { name: name?, mac: mac?, weight: weight? as u32, origin: report.origin(span) })
}

fn source_mac(node: &Node, report: &mut Report) -> Option<SourceMac> {
    match text(node, "`auto` or a MAC address", report)? {
        "auto" => Some(SourceMac::Auto),
        _ => mac(node, report).map(SourceMac::Fixed),
    }
}

fn named(section: &Section, report: &mut Report) -> Option<String> {
    let node = section.needed("name", report)?;
    name(text(node, "a name", report)?, node.span, report).map(str::to_string)
}

/// The back ends of XenoFlow's `backends.json`: `{"backends": [{"name": .., "mac_address": ..}]}`.
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
        let Some(name) = name else { continue };
        if !names.insert(name.clone()) {
            report.error(
                section.get("name").unwrap_or(node).span,
                format!("two back ends are called `{name}`"),
            );
        }
        back_ends.extend(mac.map(|mac| BackEnd { name, mac, weight: 1, origin: Default::default() }));
    }
    if back_ends.is_empty() && report.errors() == 0 {
        report.error(node.span, "there are no back ends");
    }
    back_ends
}
