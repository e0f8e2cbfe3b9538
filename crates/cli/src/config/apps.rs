//! Apps: what each is told, with names resolved.

use super::bond;
use ::config::ports::{PortConfig, mac, protocol};
use ::config::raw::{Kind, Node};
use ::config::section::{Section, list, name, number, pairs, text};
use ::config::sets::{MAGLEV_SIZE, WEIGHT_MAX};
use ::config::{Report, Span, suggestion};
use apps::App;
use apps::bond::{Bond, BondApp, Inward};
use apps::external::External;
use apps::lb::{BackEnd, By, Lb, Out, Problem, Service, SourceMac};
use engine::builder::ProgramBuilder;
use engine::check::MAGLEV_MAX;
use engine::program::{PortId, Program};
use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;

/// The apps of a configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Apps {
    /// The load balancer.
    pub lb: Lb,
    /// Bonds, on which others may stand.
    pub bonds: Vec<Bond>,
    /// Apps outside weir, none of which has a client yet.
    pub external: Vec<External>,
}

impl Apps {
    /// Those that go on while the program runs.
    #[must_use]
    pub fn running(&self) -> Vec<Box<dyn App>> {
        let bonds = self.bonds.iter().map(|bond| -> Box<dyn App> { Box::new(BondApp::new(bond.clone())) });
        let external = self.external.iter().map(|external| -> Box<dyn App> { Box::new(external.clone()) });
        bonds.chain(external).collect()
    }

    /// The bond that a port is a member or the inside of.
    #[must_use]
    pub fn bond_of(&self, port: PortId) -> Option<&Bond> {
        self.bonds.iter().find(|bond| bond.inward == Inward::Port(port) || bond.ports().contains(&port))
    }
}

/// Names of the apps there are.
const APPS: [&str; 3] = ["lb", "bond", "external"];

/// Reads the list of apps. Those that frames are forwarded to become names of the program; `control` is the daemon's own
/// socket.
#[must_use]
pub fn read(
    node: &Node,
    ports: &[PortConfig],
    control: &Path,
    program: &mut ProgramBuilder,
    report: &mut Report,
) -> Apps {
    let mut apps = Apps { bonds: bonds(node, ports, program, report), ..Apps::default() };
    for item in list(node, "apps", report) {
        for (app, span, told) in pairs(item, report) {
            match app {
                "lb" => apps.lb.services.extend(service(told, &apps.bonds, program, report)),
                "bond" => {}
                "external" => {
                    let external = external(told, program, report);
                    let taken =
                        apps.external.iter().map(|other| (other.socket.as_path(), format!("app `{}`", other.name)));
                    let taken: Vec<_> = taken.chain([(control, "the daemon".to_string())]).collect();
                    if let Some(external) = external.and_then(|external| alone(external, told, &taken, report)) {
                        program.app(&external.name);
                        apps.external.push(external);
                    }
                }
                _ => report.error_help(span, format!("there is no app `{app}`"), suggestion(app, APPS)),
            }
        }
    }
    for (origin, problem) in apps.lb.problems() {
        report.error(report.span_of(origin), problem.to_string());
    }
    apps
}

/// The bonds, written into the program before all else: other apps name them as they name ports.
fn bonds(node: &Node, ports: &[PortConfig], program: &mut ProgramBuilder, report: &mut Report) -> Vec<Bond> {
    let before = report.errors();
    let mut bonds: Vec<Bond> = Vec::new();
    let mut called: Vec<&Node> = Vec::new();
    let silent = &mut Report::default();
    for item in list(node, "apps", silent) {
        for (_, _, told) in pairs(item, silent).into_iter().filter(|(app, ..)| *app == "bond") {
            let section = Section::of(told, &["name"], &mut Report::default());
            let own = section.get("name");
            if let Some(node) = own.filter(|node| called.iter().any(|other| other.kind == node.kind)) {
                report.error(node.span, "two bonds are called so");
            } else if own.is_none() || name_is_free(&section, program, report) {
                called.extend(own);
                bonds.extend(bond::read(told, ports, program, report));
            }
        }
    }
    for (origin, problem) in apps::bond::problems(&bonds) {
        report.error(report.span_of(origin), problem.to_string());
    }
    if report.errors() == before {
        bonds.iter().for_each(|bond| _ = bond.write(program));
    } else {
        called.into_iter().for_each(|node| bond::stand_in(node, program, report));
    }
    bonds
}

/// Bytes of a unix socket's path at most: `sun_path` less its zero byte.
const SOCKET_PATH_MAX: usize = 107;

/// An app outside weir; `None` if it cannot be used, which the report says.
fn external(node: &Node, program: &Program, report: &mut Report) -> Option<External> {
    let section = Section::of(node, &["name", "socket"], report);
    let name = named(&section, report).filter(|_| name_is_free(&section, program, report));
    let socket = section.need("socket", "the unix socket where its clients connect", report);
    let socket = socket.and_then(|node| socket_path(node, report));
    let origin = report.origin(section.get("name").unwrap_or(node).span);
    Some(External::new(name?, socket?.into(), origin))
}

/// A socket is one app's.
fn alone(external: External, node: &Node, taken: &[(&Path, String)], report: &mut Report) -> Option<External> {
    let Some((_, who)) = taken.iter().find(|(path, _)| *path == external.socket) else { return Some(external) };
    let section = Section::of(node, &["name", "socket"], &mut Report::default());
    let span = section.get("socket").unwrap_or(node).span;
    report.error(span, format!("this is the socket of {who} already: every app has one of its own"));
    None
}

/// What frames are forwarded to by name must be one thing.
fn name_is_free(section: &Section, program: &Program, report: &mut Report) -> bool {
    let Some(node) = section.get("name") else { return false };
    let Kind::Scalar(name) = &node.kind else { return false };
    let takers = [
        ("a port", program.port_named(name).is_some()),
        ("a pipe", program.pipe_named(name).is_some()),
        ("a group", program.group_named(name).is_some()),
        ("another app", program.apps.contains(name)),
        ("the load balancer's pipe", name == apps::lb::NAME),
    ];
    let taker = takers.into_iter().find(|(_, taken)| *taken);
    if let Some((what, _)) = taker {
        report
            .error(node.span, format!("`{name}` is the name of {what} already: `forward: {name}` would be ambiguous"));
    }
    taker.is_none()
}

fn socket_path<'a>(node: &'a Node, report: &mut Report) -> Option<&'a str> {
    let path = text(node, "a path", report)?;
    let wrong = if path.is_empty() || path.ends_with('/') {
        "names no file".to_string()
    } else if path.len() > SOCKET_PATH_MAX {
        format!("has {} bytes and a socket's path {SOCKET_PATH_MAX} at most", path.len())
    } else if path.contains('\0') {
        "has a zero byte in it".to_string()
    } else {
        return Some(path);
    };
    report.error_help(node.span, format!("the path {wrong}"), "such as /run/weir/slow_path.sock");
    None
}

const SERVICE: &[&str] = &["name", "port", "out", "service", "by", "size", "back_ends", "source_mac"];

/// A service; `None` if it cannot be used, which the report says.
fn service(node: &Node, bonds: &[Bond], program: &Program, report: &mut Report) -> Option<Service> {
    let before = report.errors();
    let section = Section::of(node, SERVICE, report);
    let called = named(&section, report);
    let ports = section.need("port", "the port (or list of ports) where its packets arrive", report);
    let ports = ports.and_then(|node| ports_named(node, bonds, program, report));
    let out = match section.get("out") {
        Some(node) => out_named(node, bonds, program, report),
        // Back out of the bond it came in by, by whichever member.
        None => bonds.iter().find(|bond| Some(bond.ports()) == ports).and_then(|bond| by_bond(bond, program)),
    };
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
    let (ports, back_ends, source_mac) = (ports?, back_ends?, source_mac?);
    Some(Service { name: called?, ports, out, vip, protocol, dport, by: by?, size, back_ends, source_mac, origin })
}

fn named(section: &Section, report: &mut Report) -> Option<String> {
    let node = section.need("name", "what it is called", report)?;
    name(text(node, "a name", report)?, node.span, report).map(str::to_string)
}

/// Ports; a bond stands for its members. `None`: one of them is a bond that has errors, which were told.
fn ports_named(node: &Node, bonds: &[Bond], program: &Program, report: &mut Report) -> Option<Vec<PortId>> {
    let nodes = match &node.kind {
        Kind::List(list) => list.as_slice(),
        _ => std::slice::from_ref(node),
    };
    let mut ports = Vec::new();
    for node in nodes {
        match (bonds.iter().find(|bond| node.is(&bond.name)), &node.kind) {
            (Some(bond), _) => ports.extend(bond.ports()),
            (None, Kind::Scalar(name)) if bond::is_one(name, program) => return None,
            (None, _) => ports.extend(port_named(node, program, report)),
        }
    }
    Some(ports)
}

fn out_named(node: &Node, bonds: &[Bond], program: &Program, report: &mut Report) -> Option<Out> {
    match (bonds.iter().find(|bond| node.is(&bond.name)), &node.kind) {
        (Some(bond), _) => by_bond(bond, program),
        (None, Kind::Scalar(name)) if bond::is_one(name, program) => None,
        (None, _) => port_named(node, program, report).map(Out::Port),
    }
}

fn by_bond(bond: &Bond, program: &Program) -> Option<Out> {
    program.pipe_named(&bond.name).map(|pipe| Out::Bond { pipe, mac: bond.mac() })
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
    let vip = vip.and_then(|node| ::config::section::parsed::<IpAddr>(node, "an IP address", report));
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
