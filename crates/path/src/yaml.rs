//! Reads `path` apps from the configuration: those at an uplink of the kernel, and what they share with those
//! at a port of weir (`port/yaml.rs`).

use super::port::{self, PathPort, PathPortApp};
use super::{Exchange, Fabric};
use crate::fabric::{ECHO_DSCP, ECHO_VXLAN_PORT, Reflect, UPLINKS_MAX};
use crate::scheme::{PORTS, Scheme};
use crate::settings::ONE_SIDED_PROBE_NS;
use crate::tunnel::{PathTunnel, TunnelType};
use crate::wire::Secret;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::sync::Arc;
use weir_app::App;
use weir_app::kind::{Apps, Configured, Scope};
use weir_app::task::{Publisher, TaskApp, Wanted};
use weir_config::raw::{Kind, Node};
use weir_config::section::{Section, list, parsed, text, words};
use weir_config::{Key, Report, Shape, Span, TakeRule};
use weir_packet::KeySource;

const NS_PER_MS: u64 = 1_000_000;
/// The shortest and the longest time between two probes of a path.
const PROBE: [u64; 2] = [NS_PER_MS, 10_000 * NS_PER_MS];
/// The maximum number of peers per app: each path of each peer has its own counters.
pub(super) const PEERS_MAX: usize = 256;
/// The minimum number of ports among which paths can be found.
const SOURCES_LEAST: u16 = 32;

/// The keys of both forms; `only` says which form has a key.
pub(super) const KEYS: &[Key] = weir_config::keys! {
    needed "name": Shape::Name, "its name";
    "uplink": Shape::Either(&[Shape::Text, Shape::List(&Shape::Text)]),
        "the kernel interface through which tunnels leave, or several; or `port`" only "uplink";
    "port": Shape::Name, "the weir port through which tunnels leave; or `uplink`" only "port";
    needed "peers": Shape::List(&Shape::Ip), "underlay addresses of remote nodes; IPv4 only with `port`";
    "local": Shape::Ip, "our underlay address; with `uplink` by default that of the route to the peer";
    "scheme": Shape::Words(|| words(&SCHEMES)), "how a path is chosen" or "adaptive";
    "reflect": Shape::Words(|| words(&REFLECTS)), "how peers send probes back" or "weir" only "uplink";
    "tunnel": Shape::Words(|| words(&TunnelType::WORDS)), "the type of the tunnels" or "vxlan" only "uplink";
    "tunnel_port": Shape::Number(1, 65_535), "the UDP port of the tunnels, by default that of their type"
        only "uplink";
    "vxlan_port": Shape::Number(1, 65_535), "the same as `tunnel_port`, for VXLAN" only "uplink";
    "sources": Shape::Text, "the UDP source ports that may be used" or "49152-65535";
    "ports": Shape::List(&Shape::Number(1, 65_535)), "the UDP source ports that are paths" only "port";
    "input": Shape::Name, "the port or bond where tunnel traffic enters and leaves" only "port";
    "root": Shape::Name, "the pipe that frames from the fabric enter, instead of `input`" only "port";
    "mac": Shape::Mac, "the MAC address of probes, by default the port's" only "port";
    "next_hop": Shape::Mac, "the MAC address of the next hop to peers" only "port";
    "headers": Shape::Words(|| words(&HEADERS)), "the headers that tell flows apart" or "inner" only "port";
    "idle_gap": Shape::Time, "a bucket idle for this long may move; by default from `rate`" only "port";
    "idle_timeout": Shape::Time, "a flow idle for longer counts as new" or "10s";
    "dscp": Shape::Number(0, 63), "the DSCP of encapsulated frames, and so of probes" or "0";
    "rate": Shape::Number(1, 1_000_000), "the rate of one path, in Mbit/s" or "10000";
    "flows": Shape::Number(1, 1 << 22), "how many flows are kept" or "65536";
    "probe": Shape::Map(PROBE_KEYS), "how often paths are probed";
    "key": Shape::Text, "32 hexadecimal digits, the same on all nodes: only nodes that know them get answers";
};
const PROBE_KEYS: &[Key] = weir_config::keys! {
    "interval": Shape::Time, "the time between two probes of a path in use (`one_sided`: 1s)" or "10ms";
    "idle_interval": Shape::Time, "the same for a node that gets no traffic" or "1s";
    "discover": Shape::Time, "how often paths are rediscovered" or "15s";
    "answers": Shape::Number(1, 1_000_000), "how many probes of a peer are answered per second" or "5000";
};
const SCHEMES: [(&str, Scheme); 6] = [
    ("ecmp", Scheme::Ecmp),
    ("doca_ar", Scheme::DocaAr),
    ("adaptive", Scheme::Adaptive),
    ("one_sided", Scheme::OneSided),
    ("letflow", Scheme::LetFlow),
    ("spray", Scheme::Spray),
];
const REFLECTS: [(&str, Reflect); 2] = [("weir", Reflect::Weir), ("openflow", Reflect::OpenFlow)];
/// The schemes available at a port.
pub(super) const PORT_SCHEMES: [(&str, Scheme); 3] = [SCHEMES[0], SCHEMES[1], SCHEMES[2]];
pub(super) const HEADERS: [(&str, KeySource); 2] = [("inner", KeySource::Inner), ("outer", KeySource::Outer)];

/// The path apps of a configuration.
#[derive(Debug)]
pub(super) struct PathApps {
    fabrics: Vec<Wanted<Fabric>>,
    pub ports: Vec<PathPort>,
}

impl Configured for PathApps {
    fn take(&self) -> Vec<TakeRule> {
        self.ports.iter().flat_map(PathPort::take).collect()
    }

    fn running(&self) -> Vec<Box<dyn App>> {
        let app = |one: &Wanted<Fabric>| -> Box<dyn App> { Box::new(TaskApp::new(one.clone())) };
        // Threads at uplinks outlive a configuration.
        let alone = self.fabrics.is_empty();
        let exchange = if alone { Exchange::default() } else { Exchange::of_process() };
        let at_port = |one: &PathPort| -> Box<dyn App> { Box::new(PathPortApp::new(one.clone(), &exchange)) };
        self.fabrics.iter().map(app).chain(self.ports.iter().map(at_port)).collect()
    }
}

/// Returns the tunnels of a configuration that are watched at uplinks.
#[must_use]
pub fn fabrics(apps: &Apps) -> Vec<Wanted<Fabric>> {
    apps.of::<PathApps>().map(|all| all.fabrics.clone()).unwrap_or_default()
}

/// Reads the path apps; apps at ports are written into the program if nothing is wrong.
pub(super) fn read(items: &[&Node], scope: &mut Scope<'_>) -> Arc<dyn Configured> {
    let before = scope.report.errors();
    let mut all = PathApps { fabrics: Vec::new(), ports: Vec::new() };
    for item in items {
        let section = Section::read(item, KEYS, &mut Report::default());
        if section.get("port").is_some() {
            at_port(item, &mut all, scope);
        } else {
            at_uplink(item, &mut all, scope);
        }
    }
    if scope.report.errors() == before {
        all.ports.iter().for_each(|one| one.write(scope.program));
    }
    Arc::new(all)
}

fn at_port(item: &Node, all: &mut PathApps, scope: &mut Scope<'_>) {
    let Some((one, section)) = port::read(item, scope) else { return };
    if let Some(other) = all.ports.iter().find(|other| other.port == one.port) {
        let message = format!("`{}` already uses the port `{}`", other.name, one.port_name);
        scope.report.error_help(span_of(&section, "port"), message, "add the peers there");
    } else if all.is_new(&one.name, &section, scope) {
        all.ports.push(one);
    }
}

fn at_uplink(item: &Node, all: &mut PathApps, scope: &mut Scope<'_>) {
    let Some((fabric, section)) = fabric(item, scope) else { return };
    let shared = |other: &Wanted<Fabric>| {
        let uplink = fabric.uplinks.iter().find(|uplink| other.task.uplinks.contains(uplink))?;
        Some((other.task.name.clone(), uplink))
    };
    if let Some((other, uplink)) = all.fabrics.iter().find_map(shared) {
        let message = format!("`{other}` already uses the uplink `{uplink}`");
        scope.report.error_help(span_of(&section, "uplink"), message, "add the peers there");
    } else if all.is_new(&fabric.name, &section, scope) {
        all.fabrics.push(Wanted { task: fabric, board: Publisher::default() });
    }
}

impl PathApps {
    fn is_new(&self, name: &str, section: &Section<'_>, scope: &mut Scope<'_>) -> bool {
        let mut names = self.fabrics.iter().map(|one| &one.task.name);
        let taken = names.any(|other| other == name) || self.ports.iter().any(|other| other.name == name);
        if taken {
            let message = format!("two path apps are called `{name}`");
            scope.report.error(span_of(section, "name"), message);
        }
        !taken
    }
}

/// The place of a key's value, or of the section.
pub(super) fn span_of(section: &Section<'_>, key: &str) -> Span {
    section.get(key).map_or(section.span, |node| node.span)
}

/// Reads the section of an app with `form`, `uplink` or `port`; the keys of the other form are errors.
pub(super) fn section<'a>(node: &'a Node, form: &str, report: &mut Report) -> Section<'a> {
    let section = Section::read(node, KEYS, report);
    refuse_others(&section, KEYS, form, report);
    section
}

/// Keys that only the other form has are errors.
fn refuse_others(section: &Section<'_>, keys: &[Key], form: &str, report: &mut Report) {
    for key in keys {
        let (Some(node), Some(other)) = (section.get(key.word), key.only.filter(|only| *only != form)) else {
            continue;
        };
        report.error(node.span, format!("`{}` goes with `{other}`, not with `{form}`", key.word));
    }
}

/// Reads a path app; `None` if it cannot be used, and the report says why.
fn fabric<'a>(node: &'a Node, scope: &mut Scope<'_>) -> Option<(Fabric, Section<'a>)> {
    let before = scope.report.errors();
    let section = section(node, "uplink", scope.report);
    let name = scope.name(&section).filter(|_| scope.name_is_free(&section));
    let report = &mut *scope.report;
    let uplinks = uplinks(&section, report);
    let peers = addresses::<IpAddr>(&section, "an IP address", report);
    let local = local(&section, &peers, report);
    let scheme = section.choice("scheme", &SCHEMES, report);
    if scheme == Some(Scheme::DocaAr) && peers.iter().any(IpAddr::is_ipv6) {
        let message = "`doca_ar` exists for comparison, and only for IPv4";
        report.error_help(span_of(&section, "scheme"), message, "use another scheme, or IPv4 peers");
    }
    if scheme == Some(Scheme::OneSided) {
        one_sided(&section, &peers, report);
    }
    let reflect = section.choice("reflect", &REFLECTS, report);
    let sources = sources(&section, report);
    if uplinks.as_ref().is_some_and(|uplinks| uplinks.len() > 1) {
        over_several(&section, [scheme == Some(Scheme::DocaAr), reflect == Some(Reflect::OpenFlow)], report);
    }
    let secret = section.get("key").and_then(|node| secret(node, report));
    let tunnel = tunnel(&section, report);
    let mut number = |key| section.number(key, report).unwrap_or(1);
    let [dscp, rate, flows] = ["dscp", "rate", "flows"].map(&mut number);
    if let (Some(Reflect::OpenFlow), Some(tunnel)) = (reflect, tunnel) {
        by_openflow(&section, &peers, tunnel, dscp, report);
    }
    let probe = probe(&section, "uplink", report);
    let idle_timeout_ns = section.time("idle_timeout", report);
    if report.errors() > before {
        return None;
    }
    let [probe_ns, idle_ns, discover_ns, answers] = probe;
    let fabric = Fabric {
        name: name?,
        uplinks: uplinks?,
        peers,
        local,
        scheme: scheme?,
        reflect: reflect?,
        tunnel: tunnel?,
        sources: sources?,
        dscp: dscp as u8,
        rate: rate * 1_000_000,
        flows: flows as u32,
        idle_timeout_ns,
        probe_ns,
        idle_ns,
        discover_ns,
        answers: answers as u32,
        secret,
    };
    Some((fabric, section))
}

/// Refuses what has no meaning with `one_sided`.
fn one_sided(section: &Section<'_>, peers: &[IpAddr], report: &mut Report) {
    if peers.iter().any(IpAddr::is_ipv6) {
        let message = "`one_sided` asks routers over IPv4 only";
        report.error_help(span_of(section, "scheme"), message, "use `adaptive`, or IPv4 peers");
    }
    if let Some(key) = section.get("key") {
        let message = "with `one_sided`, peers neither send nor answer probes, so a `key` signs nothing";
        report.error_help(key.span, message, "remove it, or use `adaptive` if weir runs on the peers, too");
    }
    if let Some(reflect) = section.get("reflect") {
        let message = "with `one_sided`, nothing sends probes back";
        report.error_help(reflect.span, message, "remove it, or use `adaptive`");
    }
    let Some(node) = section.get("probe") else { return };
    let probe = Section::read(node, PROBE_KEYS, &mut Report::default());
    for key in ["answers", "idle_interval"] {
        let Some(node) = probe.get(key) else { continue };
        let message = format!(
            "`{key}` has no effect with `one_sided`: routers are asked about a path every `interval`"
        );
        report.error_help(node.span, message, "remove it");
    }
    if let Some(interval) = probe.get("interval")
        && probe.time("interval", &mut Report::default()) < ONE_SIDED_PROBE_NS
    {
        let message = "routers may answer only once a second, as Linux's do";
        report.error_help(interval.span, message, "write at least 1s, which is the default of `one_sided`");
    }
}

/// Checks what the rules of an OpenFlow switch take for granted.
fn by_openflow(section: &Section<'_>, peers: &[IpAddr], tunnel: PathTunnel, dscp: u64, report: &mut Report) {
    if tunnel.of != TunnelType::Vxlan {
        let message = format!("`reflect: openflow` recognises probes of VXLAN, not of {}", tunnel.of);
        report.error_help(span_of(section, "tunnel"), message, "use `reflect: weir`, with weir on the peers");
        return;
    }
    if let Some(peer) = peers.iter().find(|peer| peer.is_ipv6()) {
        let message = format!("`reflect: openflow` is for IPv4, and {peer} is not");
        report.error_help(span_of(section, "peers"), message, "write another app for it, at another uplink");
    }
    if tunnel.port != ECHO_VXLAN_PORT {
        let message = format!("`reflect: openflow` sends probes to port {ECHO_VXLAN_PORT}");
        report.error_help(span_of(section, port_key(section)), message, "the tunnels must use it, too");
    }
    if dscp == u64::from(ECHO_DSCP) {
        let message = format!("the switch would send data with the DSCP {ECHO_DSCP} back, too");
        report.error_help(
            span_of(section, "dscp"),
            message,
            "give tunnels another one: probes have their own",
        );
    }
}

/// The key of the tunnels' port: `vxlan_port` is the name that `tunnel_port` had when all tunnels were VXLAN.
fn port_key(section: &Section<'_>) -> &'static str {
    if section.get("vxlan_port").is_some() { "vxlan_port" } else { "tunnel_port" }
}

/// The type and the UDP port of the tunnels.
fn tunnel(section: &Section<'_>, report: &mut Report) -> Option<PathTunnel> {
    let of = section.choice("tunnel", &TunnelType::WORDS, report)?;
    if let Some(old) = section.get("vxlan_port") {
        if of != TunnelType::Vxlan {
            let message = format!("`vxlan_port` is the port of VXLAN, but the tunnels are {of}");
            report.error_help(old.span, message, "write `tunnel_port`");
        } else if section.get("tunnel_port").is_some() {
            report.error_help(old.span, "`tunnel_port` already says this", "remove `vxlan_port`");
        }
    }
    let key = port_key(section);
    let port = match section.get(key) {
        Some(_) => section.number(key, report)? as u16,
        None => of.standard_port(),
    };
    Some(PathTunnel { of, port })
}

/// Checks what several uplinks require.
fn over_several(section: &Section<'_>, [is_doca_ar, is_openflow]: [bool; 2], report: &mut Report) {
    if section.get("local").is_none() {
        let message = "with several uplinks, the source address of the tunnels does not follow from routes";
        report.error_help(span_of(section, "uplink"), message, "write it as `local`");
    }
    for (key, is_it) in [("scheme", is_doca_ar), ("reflect", is_openflow)] {
        if is_it {
            let message = format!("this `{key}` is for one uplink");
            report.error_help(
                span_of(section, key),
                message,
                "write one app for each uplink, each with its own peers",
            );
        }
    }
}

/// The uplinks: one, or a list.
fn uplinks(section: &Section<'_>, report: &mut Report) -> Option<Vec<String>> {
    let node = section.needed("uplink", report)?;
    let Kind::List(all) = &node.kind else { return Some(vec![uplink(node, report)?]) };
    if all.is_empty() || all.len() > UPLINKS_MAX {
        report.error(node.span, format!("name 1 to {UPLINKS_MAX} uplinks"));
        return None;
    }
    let mut uplinks = Vec::new();
    for node in all {
        let one = uplink(node, report)?;
        if uplinks.contains(&one) {
            report.error(node.span, format!("`{one}` is listed twice"));
        }
        uplinks.push(one);
    }
    Some(uplinks)
}

fn uplink(node: &Node, report: &mut Report) -> Option<String> {
    let uplink = text(node, "the name of an interface", report)?;
    if uplink.is_empty() || uplink.len() > 15 || uplink.contains(['/', ' ']) {
        report.error(node.span, "not a valid interface name: use 1 to 15 characters, without `/` and spaces");
        return None;
    }
    Some(uplink.to_string())
}

/// Our address, which must have the IP version of all peers.
fn local(section: &Section<'_>, peers: &[IpAddr], report: &mut Report) -> Option<IpAddr> {
    let node = section.get("local")?;
    let local = parsed::<IpAddr>(node, "an IP address", report)?;
    if let Some(other) = peers.iter().find(|peer| peer.is_ipv4() != local.is_ipv4()) {
        let message = format!("{local} cannot send to {other}: they have different IP versions");
        let help = "omit `local`: it is then taken from the route to each peer";
        report.error_help(node.span, message, help);
    }
    Some(local)
}

/// The peers of an app at a port.
pub(super) fn peers(section: &Section<'_>, report: &mut Report) -> Vec<Ipv4Addr> {
    addresses(section, "an IPv4 address", report)
}

/// Returns false for an address that no remote node can have; a link-local address would need the link's
/// name.
fn is_of_a_node(address: IpAddr) -> bool {
    let is_special = match address {
        IpAddr::V4(address) => address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local() || address.to_ipv4_mapped().is_some(),
    };
    !(is_special || address.is_unspecified() || address.is_multicast() || address.is_loopback())
}

fn addresses<A>(section: &Section<'_>, what: &str, report: &mut Report) -> Vec<A>
where
    A: FromStr + Copy + PartialEq + Display + Into<IpAddr>,
{
    let Some(node) = section.needed("peers", report) else { return Vec::new() };
    let (mut peers, before) = (Vec::new(), report.errors());
    let items = list(node, "peers", report);
    for item in items {
        let Some(peer) = parsed::<A>(item, what, report) else { continue };
        if !is_of_a_node(peer.into()) {
            report.error(item.span, format!("{peer} cannot be the address of a remote node"));
        } else if peers.contains(&peer) {
            report.error(item.span, format!("{peer} is listed twice"));
        } else {
            peers.push(peer);
        }
    }
    if peers.len() > PEERS_MAX {
        report.error(node.span, format!("there are {} peers, but the limit is {PEERS_MAX}", peers.len()));
    } else if items.is_empty() && report.errors() == before {
        report.error(node.span, "no peers: name the underlay address of at least one remote node");
    }
    peers
}

/// Reads a range of ports such as `49152-65535`.
pub(super) fn sources(section: &Section<'_>, report: &mut Report) -> Option<[u16; 2]> {
    let Some(node) = section.get("sources") else { return Some([*PORTS.start(), *PORTS.end()]) };
    let range = text(node, "a range of ports", report)?;
    let ends = range.split_once('-').and_then(|(first, last)| {
        Some([first.trim().parse::<u16>().ok()?, last.trim().parse::<u16>().ok()?])
    });
    match ends {
        Some([first, last]) if first > 0 && last >= first && last - first >= SOURCES_LEAST - 1 => ends,
        Some(_) => {
            let help = format!("write the lower port first, and at least {SOURCES_LEAST} ports");
            report.error_help(node.span, "this range of ports cannot be used", help);
            None
        }
        None => {
            report.error_help(node.span, "this is not a range of ports", "write it as 49152-65535");
            None
        }
    }
}

pub(super) fn secret(node: &Node, report: &mut Report) -> Option<Secret> {
    let digits = text(node, "32 hexadecimal digits", report)?;
    let half = |range| digits.get(range).and_then(|half| u64::from_str_radix(half, 16).ok());
    let is_plain = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    match (half(0..16), half(16..32)) {
        (Some(first), Some(second)) if is_plain => Some(Secret([first, second])),
        _ => {
            let help = "generate one with `openssl rand -hex 16`, and quote it";
            report.error_help(node.span, "a key has 32 hexadecimal digits", help);
            None
        }
    }
}

/// Reads the times between probes and discoveries, and how many probes are answered.
pub(super) fn probe(section: &Section<'_>, form: &str, report: &mut Report) -> [u64; 4] {
    let empty = Node { span: section.span, kind: Kind::Map(Vec::new()) };
    let node = section.get("probe").unwrap_or(&empty);
    let probe = Section::read(node, PROBE_KEYS, report);
    refuse_others(&probe, PROBE_KEYS, form, report);
    let [least, most] = PROBE;
    let times = ["interval", "idle_interval", "discover"].map(|key| {
        let time = probe.time(key, report);
        let most = if key == "interval" { most } else { u64::MAX };
        if !(least..=most).contains(&time) {
            let span = probe.get(key).map_or(section.span, |node| node.span);
            report.error_help(
                span,
                format!("`{key}` is out of range"),
                "write at least 1 ms; `interval` at most 10 s",
            );
        }
        time
    });
    let answers = probe.number("answers", report).unwrap_or(1);
    [times[0], times[1].max(times[0]), times[2], answers]
}
