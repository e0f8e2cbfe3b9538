//! Reads services from the configuration, and the settings that they share.

use super::announce::{ANNOUNCE, Announce, Answered, ICMP_ECHO};
use super::announce_yaml::{said, several};
use super::app::FLOWS;
use super::back_ends::{self, BACK_END, VID_MAX};
use super::collisions::collisions;
use super::expiry::{self, IDLE, TIMEOUTS};
use super::health::Guarded;
use super::service::{ALL_PORTS, Address, BackEnd, By, MTU, Mss, Service, SourceMac, Sources};
use super::sources::{self, FROM, ServiceSource, SourceBoards, is_template};
use super::specs::Specs;
use super::widths::measured;
use super::{Lb, Problem, clients, health};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use weir_app::kind::{Configured, Scope};
use weir_config::affinity;
use weir_config::attachment::Attachment;
use weir_config::fills::{self, FILLS, GLB_KEYS, KATRAN_KEYS};
use weir_config::ports::{PortKind, Xdp, mac};
use weir_config::quic::{self, QUIC};
use weir_config::raw::{Kind, Node};
use weir_config::section::{Section, named, number, pairs, text, words};
use weir_config::sets::default_size;
use weir_config::{Key, Report, Shape};
use weir_packet::{Field, PROTOCOL_TCP, PROTOCOL_UDP};
use weir_program::check::{CAPACITY_MAX, MAGLEV_MAX};
use weir_program::{Affinity, Fill, Forward, NatPool, NatPoolId, NewFlows, PortId, Program};

pub(super) const SERVICE: &[Key] = weir_config::keys! {
    "name": Shape::Name, "the name of the service";
    "port": Shape::Either(&[Shape::Name, Shape::List(&Shape::Name)]),
        "the port (or list of ports) where its packets arrive";
    "out": Shape::Name, "the port behind which the back ends are; by default the one where a packet arrived";
    "service": Shape::Either(&[Shape::Map(ADDRESS), Shape::List(&Shape::Map(ADDRESS))]),
        "`{ vip, protocol, port }`, or a list of these";
    "clients": Shape::Either(&[Shape::Prefix, Shape::List(&Shape::Prefix)]),
        "the prefixes of the clients that are served; by default all";
    "by": Shape::Text, "`5-tuple`, `source`, `source + dport` or `src/MASK`" or "5-tuple";
    "affinity": affinity::SHAPE,
        "whether the client's address, or a prefix of it, selects the back end of new connections";
    "stateless": Shape::Boolean, "whether packets are assigned one by one, without flows" or "false";
    "timeouts": Shape::Map(TIMEOUTS), "how long an idle flow is kept, by its state";
    "idle": Shape::Words(|| words(&IDLE)),
        "what happens to a TCP connection whose flow expires: nothing, or both ends are reset"
        or "forget";
    "scheduler": Shape::Words(|| SCHEDULERS.to_vec()),
        "how back ends are chosen: by weir's Maglev, by the ring of another system, in turn, or by the \
         number of connections of each back end" or "maglev";
    "katran": Shape::Map(KATRAN_KEYS), "the flags of the VIP, with `scheduler: katran` or `katran_v2`";
    "glb": Shape::Map(GLB_KEYS), "parameters of the forwarding table, with `scheduler: glb`";
    "quic": Shape::Map(QUIC),
        "how server IDs of back ends are encoded in QUIC connection IDs, so that clients may migrate";
    "size": Shape::Number(1, MAGLEV_MAX as u64),
        "the number of buckets, a prime; by default it depends on the number of back ends";
    "back_ends": Shape::Either(&[Shape::Name, Shape::List(&Shape::Map(BACK_END))]),
        "the servers: a list, or the name of one of the `pools`";
    "from": Shape::Map(FROM),
        "what lists the services, or the back ends of this one, instead: Kubernetes objects, or DNS";
    "check": Shape::Map(health::CHECK), "how each back end is checked, unless it overrides this";
    "fail": Shape::Words(|| words(&health::FAIL)), "what happens to packets when no back end is up" or "all";
    "passive": Shape::Map(health::PASSIVE),
        "when back ends stop getting new flows because they leave SYNs unanswered; by default never";
    "source_mac": Shape::Either(&[Shape::Words(|| vec!["auto"]), Shape::Mac]),
        "the source MAC address of packets to back ends" or "auto";
    "source": Shape::Either(&[Shape::Prefix, Shape::List(&Shape::Prefix)]),
        "the source address of tunnels to back ends, or a prefix from which flows take theirs; at most one \
         per IP version";
    "mtu": Shape::Number(MTU_MIN, MTU_MAX),
        "the path MTU to the back ends; by default that of their port, if known" or "1500";
    "mss": Shape::Either(&[Shape::Words(|| vec!["auto"]), Shape::Number(MSS_MIN, MTU_MAX)]),
        "the limit on TCP segment sizes: `auto` is what fits the path to every back end";
    "nat_pool": Shape::Name, "the NAT pool from which connections to `full_nat` back ends get their source";
    "announce": Shape::Words(|| words(&ANNOUNCE)),
        "who announces its VIPs: weir by ARP and neighbour discovery (the default if it has TCP), or \
         routers by a route";
    "min_up": Shape::Number(0, NUMBER_MAX),
        "with `announce: route`, how many back ends must serve; with 0, checks do not matter" or "1";
    "degraded_below": Shape::Number(1, NUMBER_MAX),
        "with `announce: route`, the number of serving back ends below which other nodes are preferred";
    "announce_vlans": Shape::Either(&[Shape::Number(0, VID_MAX), Shape::List(&Shape::Number(0, VID_MAX))]),
        "the VLANs in which weir announces its VIPs with gratuitous ARP; 0 means untagged" or "0";
    "icmp_echo": Shape::Words(|| words(&ICMP_ECHO)),
        "who answers pings to its VIPs: weir (the default if it announces them) or a back end";
    "flows": Shape::Number(2, CAPACITY_MAX as u64),
        "how many flows all services together may have; in an item without `service`" or "262144";
    "pools": Shape::Named(&Shape::List(&Shape::Map(BACK_END))),
        "back ends that services share, by name; in an item without `service`";
    "persist": Shape::Boolean,
        "whether changes at run time survive a restart; in an item without `service`" or "false";
};
/// The largest number of back ends that can be required.
const NUMBER_MAX: u64 = 65_535;
/// The smallest MTU that every host must support (RFC 791 §3.1). Below, the length of the longest IP packet.
const MTU_MIN: u64 = 576;
const MTU_MAX: u64 = 65_535;
/// The default segment size of a host (RFC 9293 §3.7.1), which fits the smallest MTU.
const MSS_MIN: u64 = 536;
const ADDRESS: &[Key] = weir_config::keys! {
    needed "vip": Shape::Either(&[Shape::Prefix, Shape::List(&Shape::Prefix)]),
        "the address clients connect to, a prefix, or a list of them";
    needed "protocol": Shape::Words(|| words(&PROTOCOLS)), "tcp, udp or both";
    needed "port": Shape::Either(&[Shape::Text, Shape::List(&Shape::Text)]),
        "the port clients connect to, a range such as 8000-8099, `all`, or a list of them";
};
const PROTOCOLS: [(&str, &[u8]); 3] =
    [("tcp", &[PROTOCOL_TCP]), ("udp", &[PROTOCOL_UDP]), ("both", &[PROTOCOL_TCP, PROTOCOL_UDP])];
/// The values of `scheduler`: how buckets are filled, and how new flows are assigned.
const SCHEDULERS: [&str; 6] = ["maglev", "round_robin", "least_connections", "katran", "katran_v2", "glb"];
/// Keys of the settings that services share.
const SHARED: [&str; 3] = ["flows", "pools", "persist"];

/// The settings that services share.
#[derive(Default)]
struct Shared {
    flows: Option<u32>,
    persist: bool,
    pools: HashMap<String, Arc<[BackEnd]>>,
    /// NAT pools by name.
    nat_pools: HashMap<String, NatPoolId>,
}

impl Shared {
    /// Returns the settings of a program with these NAT pools.
    fn of(nat_pools: &[NatPool]) -> Shared {
        let pools = (0..).zip(nat_pools);
        let nat_pools = pools.map(|(at, pool)| (pool.name.clone(), NatPoolId(at))).collect();
        Shared { nat_pools, ..Shared::default() }
    }
}

/// Reads the services, and writes them if there are no errors.
pub(super) fn read(items: &[&Node], scope: &mut Scope<'_>) -> Arc<dyn Configured> {
    let before = scope.report.errors();
    let nat_pools = scope.program.nat_pools.clone();
    let mut shared = Shared::of(&nat_pools);
    items.iter().for_each(|item| share(item, &mut shared, scope));
    let services = items.iter().filter(|item| !is_shared(item) && !is_template(item));
    let services: Vec<(&Node, Service)> =
        services.filter_map(|item| Some((*item, service(item, &shared, scope)?))).collect();
    let templates = templates(items, &shared, scope);
    let pools = items.iter().filter(|item| is_shared(item)).filter_map(|item| health::value(item, "pools"));
    let health = health::read(&services, &pools.collect::<Vec<_>>(), scope.report);
    let nodes: Vec<&Node> = services.iter().map(|(node, _)| *node).collect();
    let services: Vec<Service> = services.into_iter().map(|(_, service)| service).collect();
    let (flows, persist) = (shared.flows.unwrap_or(FLOWS), shared.persist);
    let checks = super::probes::sources(&services, &health.services);
    let sources = [checks, super::pools::answered(&services, &nat_pools)].concat();
    let answered = Arc::new(Answered::of((&services, &sources), scope.attachments, scope.ports));
    let specs =
        Specs::of(items.iter().copied().filter(|item| !is_shared(item) && !is_template(item)), scope.report);
    let (is_there, specs) = (!items.is_empty(), Arc::new(specs));
    let mut lb =
        Lb { services, flows, nat_pools, health, answered, persist, is_there, specs, sources: templates };
    for (origin, problem) in lb.problems() {
        let says = match &problem {
            Problem::ServiceTwice { first } => {
                format!("{problem}; it is {}", lb.place_of(first, scope.report))
            }
            _ => problem.to_string(),
        };
        scope.report.error(scope.report.span_of(origin), says);
    }
    name_is_free(&lb, scope);
    sources_are_free(&lb, scope);
    if scope.report.errors() == before && !lb.services.is_empty() {
        lb.write(scope.program, scope.attachments);
        lb.health.find(&lb.services, scope.program);
        lb.health.neighbours = super::Neighbours::of(&lb.services, &lb.health.services, scope.ports);
        can_be_resolved(&lb, scope);
        receives(&lb, scope);
        addresses_known(&lb, scope);
        stays_silent(&lb, &nodes, scope);
        too_narrow(&lb, &nodes, scope);
        warn_partial_interfaces(&lb, scope);
        for (origin, says) in super::pools::tight(&lb.services, &lb.nat_pools, lb.flows) {
            scope.report.warning(scope.report.span_of(origin), says);
        }
        for one in collisions(&lb.services) {
            scope.report.warning(scope.report.span_of(one.second.origin), one.to_string());
        }
    }
    Arc::new(lb)
}

/// Reads a single service and its health checks, given the room for flows; `None` if it has errors, or needs
/// settings that services share.
pub(super) fn alone(node: &Node, flows: u32, scope: &mut Scope<'_>) -> Option<(Service, Arc<Guarded>)> {
    if is_shared(node) || is_template(node) {
        return None;
    }
    let nat_pools = scope.program.nat_pools.clone();
    let service = service(node, &Shared::of(&nat_pools), scope)?;
    let services = [(node, service)];
    let mut health = health::read(&services, &[], scope.report);
    let [(_, service)] = services;
    let lb = Lb { services: vec![service], flows, nat_pools, ..Lb::default() };
    addresses_known(&lb, scope);
    let is_fine = scope.report.errors() == 0 && lb.problems().is_empty();
    let guarded = health.services.pop().filter(|_| is_fine)?;
    Some((lb.services.into_iter().next()?, guarded))
}

/// Whether an item holds shared settings, perhaps none, rather than a service.
fn is_shared(item: &Node) -> bool {
    let Kind::Map(map) = &item.kind else { return false };
    if map.is_empty() {
        return true;
    }
    let has = |word: &str| map.iter().any(|(key, _)| key.is(word));
    SHARED.iter().any(|key| has(key)) && !has("service") && !has("name")
}

/// Reads the settings that services share.
fn share(item: &Node, shared: &mut Shared, scope: &mut Scope<'_>) {
    if !is_shared(item) {
        return;
    }
    let report = &mut *scope.report;
    let section = Section::read(item, SERVICE, report);
    for key in SERVICE.iter().filter(|key| !SHARED.contains(&key.word)) {
        if let Some(node) = section.get(key.word) {
            report.error(node.span, format!("`{}` belongs to a service: name one here", key.word));
        }
    }
    if let Some(node) = section.get("flows") {
        if shared.flows.is_some() {
            report.error(node.span, "`flows` appears twice, but services share one table");
        }
        shared.flows = section.number("flows", report).map(|flows| flows as u32);
    }
    shared.persist |= section.boolean("persist", report);
    for (name, span, node) in section.get("pools").map(|node| pairs(node, report)).unwrap_or_default() {
        let Some(name) = weir_config::section::name(name, span, scope.report) else { continue };
        let read = back_ends::read(node, scope);
        if shared.pools.insert(name.to_string(), read).is_some() {
            scope.report.error(span, format!("two pools are called `{name}`"));
        }
    }
}

/// Reads the items that are filled in by sources.
fn templates(items: &[&Node], shared: &Shared, scope: &mut Scope<'_>) -> SourceBoards {
    let mut all: Vec<ServiceSource> = Vec::new();
    let mut names = HashSet::new();
    for item in items.iter().filter(|item| is_template(item)) {
        let Some((source, sample)) = sources::read(item, scope.report) else { continue };
        // Its program is not written; only its errors count.
        if let Some(service) = service(&sample, shared, scope) {
            let _ = health::read(&[(&sample, service)], &[], scope.report);
        }
        if !names.insert(source.name.clone()) {
            scope.report.error(item.span, format!("two sources are called `{}`", source.name));
        }
        all.push(source);
    }
    SourceBoards::of(all)
}

/// Checks that the name of the services' common pipe is free.
fn name_is_free(lb: &Lb, scope: &mut Scope<'_>) {
    let taken = scope.program.pipe_named(super::NAME).filter(|_| !lb.services.is_empty());
    if let Some(pipe) = taken {
        let at = scope.report.span_of(scope.program.pipes[pipe.index()].origin);
        let message =
            format!("a pipe is called `{}`, the name of the pipe that the app generates", super::NAME);
        scope.report.error(at, message);
    }
}

/// Checks that the source addresses of checks are not used otherwise.
fn sources_are_free(lb: &Lb, scope: &mut Scope<'_>) {
    let mut unique = HashSet::new();
    for source in lb.sources().iter().filter(|source| unique.insert(source.address)) {
        if let Some(message) = super::probes::taken(source, &lb.services) {
            let help = "write another `from` in `check`; weir announces that address as it announces VIPs";
            scope.report.error_help(scope.report.span_of(source.origin), message, help);
        }
    }
}

/// Checks that whatever the services' ports belong to, such as a bond, passes its frames on to other apps.
fn receives(lb: &Lb, scope: &mut Scope<'_>) {
    for below in lb.below(scope.attachments) {
        if let Some(closed) = &below.closed {
            let message = format!("{}, not to {}", closed.why, super::NAME);
            scope.report.error_help(scope.report.span_of(below.origin), message, closed.help);
        }
    }
}

/// Checks that back ends without `mac`, which the host resolves, are behind one of its interfaces.
fn can_be_resolved(lb: &Lb, scope: &mut Scope<'_>) {
    for service in &lb.services {
        let port = |one: &BackEnd| &scope.ports[service.lead(one).index()];
        let is_foreign = |one: &&BackEnd| {
            let resolved =
                matches!(port(one).kind, PortKind::Xdp(_)) && !matches!(service.by, By::SourceBits(_));
            one.resolve.is_some() && !resolved
        };
        let Some(first) = service.back_ends.iter().find(is_foreign) else { continue };
        let port = port(first);
        let (span, name) = (scope.report.span_of(first.origin), &first.name);
        let message = match service.by {
            By::SourceBits(_) => format!("back end `{name}` needs `mac`, because of `by: src/MASK`"),
            _ => format!("back end `{name}` needs `mac`: the host has no neighbours at port `{}`", port.name),
        };
        scope.report.error(span, message);
    }
}

/// Checks that the source address of packets to back ends is known where needed: it is the address of the
/// port through which they leave. The daemon knows the address of an interface; for a tunnel through any
/// other kind of port, there is no address to copy.
fn addresses_known(lb: &Lb, scope: &mut Scope<'_>) {
    for service in lb.services.iter().filter(|service| service.source_mac == SourceMac::Auto) {
        service.ways().into_iter().for_each(|way| address_known(service, way, scope));
    }
}

/// Checks that the source address is known for one of the paths to a service's back ends.
fn address_known(service: &Service, way: Option<&Attachment>, scope: &mut Scope<'_>) {
    let port = &scope.ports[way.map_or(service.ports[0], |way| way.lead).index()];
    let known = way.map_or(port.mac, |way| way.mac);
    let tunnels = service.back_ends.iter().any(|one| one.mode.is_tunnel() && service.way(one) == way);
    let elsewhere = way.is_some_and(|way| service.ports != way.ports);
    if known.is_some() || !(tunnels || elsewhere) {
        return;
    }
    let xdp = matches!(port.kind, PortKind::Xdp(_));
    let name = way.map_or(&port.name, |way| &way.name);
    let says = format!("the MAC address of port `{name}` is not known here");
    let span = scope.report.span_of(service.origin);
    if xdp && !tunnels {
        let message = format!(
            "{says}: frames will use their original destination MAC address as their source, unless you \
             write `source_mac` or the port's `mac`"
        );
        scope.report.warning(span, message);
    } else if tunnels && !xdp {
        let message = format!("{says}, but tunnels need one: write `source_mac` or the port's `mac`");
        scope.report.error(span, message);
    }
}

/// Warns about services with TCP whose VIPs are not announced: if the host has them, stopping weir resets
/// connections. Also warns about ports at which announcing is impossible.
fn stays_silent(lb: &Lb, nodes: &[&Node], scope: &mut Scope<'_>) {
    let announced: HashSet<IpAddr> = lb.answered.vips.iter().map(|one| one.vip).collect();
    for (service, node) in lb.services.iter().zip(nodes) {
        let unknown = service
            .ports
            .iter()
            .map(|port| &scope.ports[port.index()])
            .find(|port| matches!(port.kind, PortKind::Dpdk { .. }) && port.mac.is_none());
        let vip = service.hosts().find(|vip| !announced.contains(vip));
        if let (true, Some(vip), Some(port)) = (service.announces(), vip, unknown) {
            let message = format!(
                "{vip} is not announced at port `{}`, whose MAC address is not known: write its `mac`",
                port.name
            );
            scope.report.warning(scope.report.span_of(service.origin), message);
        }
        if let Some(vlans) = health::value(node, "announce_vlans").filter(|_| !service.announces()) {
            let help = "write `announce: arp`, or omit `announce_vlans`";
            scope.report.error_help(vlans.span, format!("`{}` announces nothing", service.name), help);
        }
        let Some(vip) = vip.filter(|_| service.announce == Announce::Never && service.has_tcp()) else {
            continue;
        };
        let span =
            health::value(node, "announce").map_or(scope.report.span_of(service.origin), |node| node.span);
        let message = format!(
            "if the host has {vip}, it resets the connections of `{}` whenever weir is not running: write \
             `arp`, unless {vip} is routed here",
            service.name
        );
        scope.report.warning(span, message);
    }
}

/// The packet length that every IPv6 path must carry (RFC 8200 §5).
const IPV6_MTU: u16 = 1280;

/// Warns about tunnels that carry less than every IPv6 path must carry: clients may send packets of that
/// length regardless of ICMP errors (RFC 8201 §4).
fn too_narrow(lb: &Lb, nodes: &[&Node], scope: &mut Scope<'_>) {
    for (service, node) in lb.services.iter().zip(nodes).filter(|(service, _)| service.has(true)) {
        let tunnels = service.back_ends.iter().filter(|one| one.mode.is_tunnel());
        let Some(narrowest) = tunnels.min_by_key(|one| service.fits(one)) else { continue };
        let fits = service.fits(narrowest);
        if fits >= IPV6_MTU {
            continue;
        }
        let span = health::value(node, "mtu").map_or(scope.report.span_of(service.origin), |node| node.span);
        let message = format!(
            "IPv6 packets to back end `{}` may have {fits} bytes, but clients may always send {IPV6_MTU}: \
             the path to it needs an MTU of {} (RFC 8200 §5)",
            narrowest.name,
            service.mtu.saturating_add(IPV6_MTU - fits)
        );
        scope.report.warning(span, message);
    }
}

/// Warns about VIPs at interfaces of which weir has only some queues: requests for them may arrive on any
/// queue.
fn warn_partial_interfaces(lb: &Lb, scope: &mut Scope<'_>) {
    for speaker in &lb.answered.speakers {
        let port = &scope.ports[speaker.port.index()];
        let PortKind::Xdp(Xdp { queues: Some(queues), .. }) = &port.kind else { continue };
        let has_more = port.nic.as_ref().is_none_or(|nic| nic.rx_queues as usize > queues.len());
        let first = lb.answered.vips.iter().find(|one| one.port == speaker.port);
        if let Some(first) = first.filter(|_| has_more) {
            let message = format!(
                "port `{}` does not use all queues of its interface: ARP requests, neighbour solicitations \
                 and pings for {} that arrive on other queues get no answer, unless `ethtool -X` directs \
                 them here",
                speaker.name, first.vip
            );
            scope.report.warning(scope.report.span_of(first.origin), message);
        }
    }
}

/// Reads a service; `None` if it cannot be used, and the report says why.
fn service(node: &Node, shared: &Shared, scope: &mut Scope<'_>) -> Option<Service> {
    let before = scope.report.errors();
    let section = Section::read(node, SERVICE, scope.report);
    let called = scope.name(&section);
    let ports = section.needed("port", scope.report);
    let ports = ports.and_then(|node| ports_named(node, scope));
    let out = back_out(&section, ports.as_deref(), scope);
    let report = &mut *scope.report;
    let addresses = section.needed("service", report).map(|node| addresses(node, report));
    let clients = clients::read(&section, report);
    let by = section.get("by").map_or(Some(By::FiveTuple), |node| by(node, report));
    let stateless = section.boolean("stateless", report);
    let chosen = chosen(&section, (by, stateless), report);
    let quic = section.get("quic").and_then(|node| quic::configs(node, report));
    let size = section.get("size").and_then(|_| section.number("size", report));
    let back_ends = section.needed("back_ends", report);
    let back_ends = back_ends.and_then(|node| who_answers(node, shared, scope));
    let report = &mut *scope.report;
    let expiry = expiry::read(&section, (by, stateless), back_ends.as_deref().unwrap_or_default(), report);
    let source_mac = section.get("source_mac").map_or(Some(SourceMac::Auto), |node| source_mac(node, report));
    let source = section.get("source").map(|node| sources(node, report)).unwrap_or_default();
    let nat_pool = section.get("nat_pool").and_then(|node| nat_pool(node, shared, report));
    let (mss, (announce, announce_vlans, icmp_echo)) = (mss(&section, report), said(&section, report));
    refuse_shared(&section, report);
    if report.errors() > before || out.as_ref().is_some_and(|out| !out.is_usable()) {
        return None;
    }
    let (back_ends, (fill, new_flows, affinity)) = (back_ends?, chosen?);
    let size = size.map_or_else(|| default_size(fill, Some(1), back_ends.len()), |size| size as u32);
    let (name, ports, addresses, by, source_mac) = (called?, ports?, addresses?, by?, source_mac?);
    let service = Service {
        name,
        ports,
        out,
        addresses,
        clients,
        by,
        stateless,
        timeouts: expiry.0,
        resets_idle: expiry.1,
        fill,
        new_flows,
        affinity,
        quic,
        size,
        source_mac,
        source,
        mtu: MTU,
        limited: false,
        back_ends,
        mss,
        nat_pool,
        announce,
        announce_vlans,
        icmp_echo,
        origin: report.origin(section.get("name").unwrap_or(node).span),
    };
    measured(service, &section, scope)
}

/// Reports keys that do not belong to a single service.
fn refuse_shared(section: &Section<'_>, report: &mut Report) {
    for key in SHARED {
        if let Some(node) = section.get(key) {
            let message = format!("all services share `{key}`: write it in its own item");
            report.error_help(node.span, message, "- lb: { flows: 1_000_000 }");
        }
    }
}

/// The value to which the MSS of a service's connections is clamped.
fn mss(section: &Section<'_>, report: &mut Report) -> Option<Mss> {
    match &section.get("mss")?.kind {
        Kind::Scalar(text) if text == "auto" => Some(Mss::Auto),
        _ => {
            let node = section.get("mss")?;
            let mss = number(node, "`mss`, if it is not `auto`,", MSS_MIN..=MTU_MAX, report);
            mss.map(|mss| Mss::Fixed(mss as u16))
        }
    }
}

/// How the back ends of a service are chosen: how the buckets of its group are filled, how its new flows are
/// assigned, and whether clients keep their back end.
fn chosen(
    section: &Section<'_>,
    (by, stateless): (Option<By>, bool),
    report: &mut Report,
) -> Option<(Fill, NewFlows, Option<Affinity>)> {
    let scheduler = scheduler(section, (by, stateless), report);
    let Some(node) = section.get("affinity") else { return scheduler.map(|(fill, new)| (fill, new, None)) };
    let affinity = affinity::read(node, report);
    if scheduler.is_some_and(|scheduler| scheduler != (Fill::Maglev, NewFlows::Hash)) {
        let message =
            "with `affinity`, the client's address selects the back end, so `scheduler` has no effect";
        report.error_help(node.span, message, "omit `scheduler`");
    }
    if by.is_some_and(|by| by != By::FiveTuple) {
        report.error_help(node.span, "`by` already selects the back end of each packet", "omit `by`");
    }
    if stateless && affinity.is_some_and(|affinity| affinity.timeout_ns != 0) {
        let message = "without flows, clients are not remembered";
        report.error_help(node.span, message, "omit `timeout` or `stateless`");
    }
    scheduler.map(|(fill, new_flows)| (fill, new_flows, affinity))
}

/// How the buckets of a service's group are filled, and how its new flows are assigned.
fn scheduler(
    section: &Section<'_>,
    (by, stateless): (Option<By>, bool),
    report: &mut Report,
) -> Option<(Fill, NewFlows)> {
    let by_hash = FILLS.into_iter().filter(|(word, _)| SCHEDULERS.contains(word));
    let mut choices: Vec<(&str, (Fill, NewFlows))> =
        by_hash.map(|(word, fill)| (word, (fill, NewFlows::Hash))).collect();
    choices.push(("round_robin", (Fill::Maglev, NewFlows::RoundRobin)));
    choices.push(("least_connections", (Fill::Maglev, NewFlows::LeastFlows)));
    let (fill, new_flows) = section.choice("scheduler", &choices, report)?;
    let fill = fills::settings(fill, section, true, report);
    let keeps = !stateless && by.is_none_or(|by| by == By::FiveTuple);
    if let Some(node) = section.get("scheduler").filter(|_| new_flows != NewFlows::Hash && !keeps) {
        let key = if stateless { "stateless" } else { "by" };
        let message = format!("this scheduler assigns flows, but with `{key}` none are kept");
        report.error_help(node.span, message, format!("omit `{key}`"));
    }
    if let Some(node) =
        section.get("affinity").filter(|_| (fill, new_flows) != (Fill::Maglev, NewFlows::Hash))
    {
        let message =
            "with `affinity`, the client's address selects the back end, so `scheduler` has no effect";
        report.error_help(node.span, message, "omit `scheduler`");
    }
    if let Some(node) = section.get("scheduler").filter(|_| fill.fixed_size().is_some()) {
        if let Some(size) = section.get("size") {
            report.error(size.span, "the size of another system's ring is fixed");
        }
        if by.is_some_and(|by| by != By::FiveTuple) {
            report.error_help(
                node.span,
                "another system's ring is looked up by that system's hash",
                "omit `by`",
            );
        }
    }
    Some((fill, new_flows))
}

/// The back ends of a service: its own, or those of a pool.
fn who_answers(node: &Node, shared: &Shared, scope: &mut Scope<'_>) -> Option<Arc<[BackEnd]>> {
    let Kind::Scalar(name) = &node.kind else { return Some(back_ends::read(node, scope)) };
    let pool = shared.pools.get(name).cloned();
    if pool.is_none() {
        let mut names: Vec<&str> = shared.pools.keys().map(String::as_str).collect();
        names.sort_unstable();
        let message = format!("there is no pool of back ends `{name}`");
        scope.report.error_help(node.span, message, weir_config::suggestion(name, names));
    }
    pool
}

fn nat_pool(node: &Node, shared: &Shared, report: &mut Report) -> Option<NatPoolId> {
    let mut names: Vec<&str> = shared.nat_pools.keys().map(String::as_str).collect();
    names.sort_unstable();
    let at = named("NAT pool", node, names.iter().copied(), report)?;
    shared.nat_pools.get(names[at]).copied()
}

/// The named ports. `None` if one of them has errors, which are reported.
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

/// Where a service sends: to its `out`, or out of the port on which a packet arrived, which needs no
/// attachment, or, if it arrived on an attachment with several ports, out of any of these.
fn back_out(section: &Section<'_>, ports: Option<&[PortId]>, scope: &mut Scope<'_>) -> Option<Attachment> {
    if let Some(node) = section.get("out") {
        return scope.attachment(node);
    }
    let below = scope.attachments.with(*ports?.first()?)?;
    (below.to != Forward::Port(below.lead) && Some(below.ports.as_slice()) == ports).then(|| below.clone())
}

/// The destinations that clients send to: every pair of an address and a port.
fn addresses(node: &Node, report: &mut Report) -> Vec<Address> {
    let mut all = Vec::new();
    for node in several(node) {
        let section = Section::read(node, ADDRESS, report);
        let vips = section.needed("vip", report).map(several).unwrap_or_default();
        let vips: Vec<(IpAddr, u8)> =
            vips.iter().filter_map(|node| weir_config::ports::address_prefix(node, report)).collect();
        let _ = section.needed("protocol", report);
        let protocols = section.choice("protocol", &PROTOCOLS, report).unwrap_or_default();
        let ports = section.needed("port", report).map(several).unwrap_or_default();
        let ports: Vec<(u16, u16)> = ports.iter().filter_map(|node| ports_of(node, report)).collect();
        for (vip, prefix) in vips {
            for protocol in protocols {
                let one = |ports: &(u16, u16)| Address { vip, prefix, protocol: *protocol, ports: *ports };
                all.extend(ports.iter().map(one));
            }
        }
    }
    all
}

/// A port, a range of ports, or all of them.
fn ports_of(node: &Node, report: &mut Report) -> Option<(u16, u16)> {
    let text = text(node, "a port, a range of ports, or `all`", report)?;
    if text == "all" {
        return Some(ALL_PORTS);
    }
    let read = weir_config::value::range(Field::L4Dport, text, &Program::default());
    let read = read.and_then(|ports| match ports {
        (0, _) => Err("a port is a number from 1 to 65535".to_string()),
        ports => Ok(ports),
    });
    read.map_err(|why| report.error(node.span, why)).ok()
}

/// The source addresses of tunnels, or prefixes of them, one per IP version: the address, and how many bits
/// of it vary by flow.
pub(super) fn sources(node: &Node, report: &mut Report) -> Sources {
    let (mut v4, mut v6) = (None, None);
    for node in several(node) {
        let Some(text) = text(node, "an IP address, or a prefix", report) else { continue };
        let field = if text.contains(':') { Field::Ipv6Src } else { Field::Ipv4Src };
        let twice = match weir_config::value::source(field, text) {
            Ok((address, bits)) if field == Field::Ipv4Src => {
                v4.replace((Ipv4Addr::from_bits(address as u32), bits)).is_some()
            }
            Ok((address, bits)) => v6.replace((Ipv6Addr::from_bits(address), bits)).is_some(),
            Err(why) => {
                report.error(node.span, why);
                false
            }
        };
        if twice {
            report.error(node.span, "write at most one source address per IP version");
        }
    }
    (v4, v6)
}

/// How packets find their back end.
fn by(node: &Node, report: &mut Report) -> Option<By> {
    let words = text(node, "`5-tuple`, `source`, `source + dport` or `src/MASK`", report)?;
    words.parse().map_err(|problem: Problem| report.error(node.span, problem.to_string())).ok()
}

fn source_mac(node: &Node, report: &mut Report) -> Option<SourceMac> {
    match text(node, "`auto` or a MAC address", report)? {
        "auto" => Some(SourceMac::Auto),
        _ => mac(node, report).map(SourceMac::Fixed),
    }
}
