//! Reads path apps at ports from the configuration.

use super::config::{Discovery, PathPort, Peer};
use crate::icmp::{IN_TRANSIT, TIME_EXCEEDED};
use crate::paths::PATHS_MAX;
use crate::scheme::Scheme;
use crate::settings::Settings;
use crate::yaml;
use std::net::Ipv4Addr;
use weir_app::kind::Scope;
use weir_config::attachment::Attachment;
use weir_config::ports::{PortConfig, mac};
use weir_config::raw::Node;
use weir_config::section::{Section, list, named, number, parsed};
use weir_config::{Frames, IpRule, Report, TakeRule};
use weir_packet::{PROTOCOL_ICMP, PROTOCOL_UDP, TunnelKind};
use weir_program::{Forward, PipeId};

impl PathPort {
    /// Returns the frames that its ports take from the kernel. With an `input`, the two ports are bridged;
    /// without one, the app takes frames that are encapsulated for us.
    pub fn take(&self) -> Vec<TakeRule> {
        let Some(input) = &self.input else {
            let dport = Some((self.vxlan_port, self.vxlan_port));
            let (dst, protocol) = (self.local.into(), Some(PROTOCOL_UDP));
            let tunnels = IpRule { dst, prefix: 32, protocol, dport, fragments: false };
            // For ICMP, type and code are in the place of a port.
            let expired = u16::from(TIME_EXCEEDED) << 8 | u16::from(IN_TRANSIT);
            let expired =
                IpRule { protocol: Some(PROTOCOL_ICMP), dport: Some((expired, expired)), ..tunnels };
            let rules = [tunnels].into_iter().chain(self.discovery.map(|_| expired));
            return rules.map(|rule| TakeRule { port: self.port, frames: Frames::Ip(rule) }).collect();
        };
        let ports = input.ports.iter().copied().chain([self.port]);
        ports.map(|port| TakeRule { port, frames: Frames::All }).collect()
    }
}

/// Reads a path app at a port; `None` if it cannot be used, and the report says why.
pub fn read<'a>(node: &'a Node, scope: &mut Scope<'_>) -> Option<(PathPort, Section<'a>)> {
    let before = scope.report.errors();
    let section = yaml::section(node, "port", scope.report);
    let name = scope.name(&section).filter(|_| scope.name_is_free(&section));
    let port = section.needed("port", scope.report).and_then(|node| fabric_port(node, scope));
    let (input, root) = inward(&section, port.as_ref(), scope);
    let lead = port.as_ref().and_then(|port| scope.ports.get(port.lead.index()));
    let mtu = lead.and_then(PortConfig::mtu).unwrap_or_default();
    let vxlan_port = scope.program.tunnels.of(TunnelKind::Vxlan);
    let report = &mut *scope.report;
    let local = section.need("local", "our underlay address, with `port`", report);
    let local = local.and_then(|node| parsed::<Ipv4Addr>(node, "an IPv4 address", report));
    let own = own_mac(&section, port.as_ref(), report);
    let peers = peers(&section, report);
    let scheme = section.choice("scheme", &yaml::PORT_SCHEMES, report);
    let key = section.choice("headers", &yaml::HEADERS, report);
    let sources = yaml::sources(&section, report).unwrap_or([0; 2]);
    let ports = ports(&section, sources, report);
    let (settings, [idle_ns, discover_ns, answers]) = settings(&section, report);
    let secret = section.get("key").and_then(|node| yaml::secret(node, report));
    let [dscp, flows] = ["dscp", "flows"].map(|key| section.number(key, report).unwrap_or(1));
    let idle_timeout_ns = section.time("idle_timeout", report);
    if report.errors() > before {
        return None;
    }
    let origin = report.origin(section.get("name").unwrap_or(node).span);
    let port = port?;
    let one = PathPort {
        name: name?,
        port: port.lead,
        port_name: port.name,
        input,
        root,
        local: local?,
        mac: own?,
        peers,
        scheme: scheme?,
        key: key?,
        ports,
        discovery: (section.get("ports").is_none() && scheme == Some(Scheme::Adaptive))
            .then_some(Discovery { sources, every_ns: discover_ns }),
        idle_ns,
        vxlan_port,
        dscp: dscp as u8,
        mtu,
        settings,
        flows: flows as u32,
        idle_timeout_ns,
        answers: answers as u32,
        secret,
        origin,
    };
    Some((one, section))
}

/// Probes leave through the same port as the data, so there can be only one.
fn fabric_port(node: &Node, scope: &mut Scope<'_>) -> Option<Attachment> {
    let port = scope.attachment(node).filter(Attachment::is_usable)?;
    if port.to != Forward::Port(port.lead) {
        let message = format!(
            "`{}` is a {}: probes would leave through a different interface than the data",
            port.name, port.kind
        );
        scope.report.error_help(node.span, message, "name a port");
        return None;
    }
    Some(port)
}

/// Where frames from the fabric go.
fn inward(
    section: &Section<'_>,
    port: Option<&Attachment>,
    scope: &mut Scope<'_>,
) -> (Option<Attachment>, Option<PipeId>) {
    if let (Some(_), Some(node)) = (section.get("input"), section.get("root")) {
        scope.report.error(node.span, "frames from the fabric go to `input` or to a `root`, not both");
    }
    let input = section.get("input").and_then(|node| {
        let input = scope.attachment(node).filter(Attachment::is_usable)?;
        if let Some(closed) = &input.closed {
            scope.report.error_help(node.span, closed.why.clone(), closed.help);
        } else if port.is_some_and(|port| input.ports.contains(&port.lead)) {
            scope.report.error(node.span, format!("`{}` is already the port towards the fabric", input.name));
        }
        Some(input)
    });
    let root = section.get("root").and_then(|node| {
        let names = scope.program.pipes.iter().map(|pipe| pipe.name.as_str());
        named("pipe", node, names, scope.report).map(|at| PipeId(at as u16))
    });
    (input, root)
}

fn own_mac(section: &Section<'_>, port: Option<&Attachment>, report: &mut Report) -> Option<[u8; 6]> {
    if let Some(node) = section.get("mac") {
        return mac(node, report);
    }
    let port = port?;
    if port.mac.is_none() {
        let message = format!("the MAC address of port `{}` is not known here", port.name);
        report.error_help(
            yaml::span_of(section, "port"),
            message,
            "write `mac`: it is the source MAC \
            address of probes",
        );
    }
    port.mac
}

fn peers(section: &Section<'_>, report: &mut Report) -> Vec<Peer> {
    let next_hop = section.need("next_hop", "the MAC address of the next hop to peers", report);
    let next_hop = next_hop.and_then(|node| mac(node, report)).unwrap_or_default();
    let addresses = yaml::peers(section, report);
    addresses.into_iter().map(|address| Peer { address, mac: next_hop }).collect()
}

/// The ports used as paths: by default as many as possible, spread evenly over those that may be used, until
/// discovery has found the paths.
fn ports(section: &Section<'_>, [first, last]: [u16; 2], report: &mut Report) -> Vec<u16> {
    let Some(node) = section.get("ports") else {
        let step = (last - first) / PATHS_MAX as u16 + 1;
        return (0..PATHS_MAX as u16).map(|at| first + at * step).filter(|port| *port <= last).collect();
    };
    if let Some(sources) = section.get("sources") {
        report.error(sources.span, "`ports` lists the ports that are paths, so `sources` has no effect");
    }
    let items = list(node, "ports", report);
    let mut ports = Vec::new();
    for item in items {
        let Some(port) = number(item, "a UDP port", 1..=65_535, report).map(|port| port as u16) else {
            continue;
        };
        if ports.contains(&port) {
            report.error(item.span, format!("{port} is listed twice"));
        }
        ports.push(port);
    }
    if !(1..=PATHS_MAX).contains(&items.len()) {
        report.error(node.span, format!("write 1 to {PATHS_MAX} ports"));
    }
    ports
}

/// Reads the settings that depend on the rate, the intervals at which idle paths are probed and paths are
/// discovered, and the number of probes that are answered.
fn settings(section: &Section<'_>, report: &mut Report) -> (Settings, [u64; 3]) {
    let [probe_ns, others @ ..] = yaml::probe(section, "port", report);
    let mut settings = Settings::of_rate(section.number("rate", report).unwrap_or(1) * 1_000_000);
    (settings.probe_ns, settings.lost_after_ns) = (probe_ns, probe_ns);
    if section.get("idle_gap").is_some() {
        settings.flowlet_ns = section.time("idle_gap", report);
    }
    (settings, others)
}
