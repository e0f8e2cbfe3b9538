//! What can be wrong with services.

use super::announce::{Announce, IcmpEcho};
use super::choosers::Translated;
use super::service::{Address, BITS_MAX, BackEnd, By, Mode, Service};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use thiserror::Error;
use weir_packet::{PROTOCOL_TCP, PROTOCOL_UDP};
use weir_program::{NatPool, Origin, ServerId};

/// What can be wrong with a service.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "every variant's sentence is its documentation, its fields are what the sentence names"
)]
pub enum Problem {
    #[error("two services are called `{name}`")]
    NameTwice { name: String },
    #[error(
        "service `{first}` already has this address, protocol and L4 port on the same port, and neither is \
         more specific"
    )]
    ServiceTwice { first: String },
    #[error("service `{name}` has `by: src/MASK`, so it needs a back end with a weight above 0")]
    NoBackEndAnswers { name: String },
    #[error("two back ends of service `{service}` are called `{name}`")]
    BackEndTwice { service: String, name: String },
    #[error("service `{name}` has no port to receive from")]
    NoPorts { name: String },
    #[error("service `{name}` has no address")]
    NoAddress { name: String },
    #[error("a service is TCP or UDP, not protocol {protocol}")]
    Protocol { protocol: u8 },
    #[error("{vip} cannot be the address of a service")]
    Vip { vip: IpAddr },
    #[error(
        "`{text}` is not `5-tuple`, `source`, `source + dport` or bits of the source address such as \
         `src/0.0.0.1`"
    )]
    By { text: String },
    #[error(
        "a source mask has 1 to {BITS_MAX} bits, this one has {bits}: each value of the bits becomes an \
        entry"
    )]
    SourceBits { bits: u32 },
    #[error(
        "the bits of `src/{mask}` have {values} values, but the back ends of service `{name}` need {turns} \
         (the sum of their weights): write `by: {instead}`"
    )]
    SurplusBits { name: String, mask: Ipv4Addr, values: u64, turns: u64, instead: String },
    #[error("`by: src/MASK` is for IPv4, but service `{name}` has an IPv6 address")]
    SourceBitsV6 { name: String },
    #[error("back end `{name}` has the address {vip} of service `{service}`: packets to it would loop back")]
    Loop { name: String, vip: IpAddr, service: String },
    #[error("back end `{name}` has the address of `{first}` in another mode: {one} there, {other} here")]
    TwoModes { name: String, first: String, one: &'static str, other: &'static str },
    #[error(
        "back end `{name}` needs a source address of {family} for its tunnel: write `source` in the service"
    )]
    NoSource { name: String, family: &'static str },
    #[error(
        "back end `{name}` has {own} but service `{service}` has {other}: {mode} cannot change the IP \
        version"
    )]
    OtherFamily { name: String, service: String, own: &'static str, other: &'static str, mode: &'static str },
    #[error("`mode: {mode}` needs flows, but `{key}` keeps none: use another mode for back end `{name}`")]
    NatWithoutFlows { name: String, mode: &'static str, key: &'static str },
    #[error("`quic` is for UDP, but service `{name}` has no UDP address")]
    QuicNotUdp { name: String },
    #[error(
        "`quic` finds back ends by server ID, `by: src/MASK` by the client's address: use only one of them"
    )]
    QuicSourceBits,
    #[error("with `quic`, back end `{name}` cannot be `{mode}`: that mode recognises answers by their flow")]
    QuicNat { name: String, mode: &'static str },
    #[error("back end `{name}` needs a `server_id`, because service `{service}` has `quic`")]
    NoServerId { name: String, service: String },
    #[error("back ends `{first}` and `{name}` have the same `server_id`")]
    ServerIdTwice { first: String, name: String },
    #[error(
        "the `server_id` of back end `{name}` has {octets} octets, but configuration {id} of service \
         `{service}` needs {wanted}"
    )]
    ServerIdLength { name: String, octets: usize, id: u8, service: String, wanted: u8 },
    #[error(
        "back end `{name}` needs a pool of new source addresses for clients: write `nat_pool` in the \
        service"
    )]
    NoPool { name: String },
    #[error("service `{name}` has a `nat_pool` but no back end with `mode: full_nat`")]
    PoolUnused { name: String },
    #[error("either all back ends of a service are `full_nat` or none: `{name}` is {mode}")]
    MixedPool { name: String, mode: &'static str },
    #[error("NAT pool `{pool}` and service `{service}` have addresses of different IP versions")]
    PoolFamily { pool: String, service: String },
    #[error(
        "NAT pool `{pool}` is too small: it has {places} pairs of address and port, but there can be \
         {connections} connections (`flows: {flows}`)"
    )]
    PoolSmall { pool: String, places: u64, connections: u64, flows: u32 },
    #[error(
        "services whose answers come back through weir share a flow table, but `{first}` has a different \
         `{what}`"
    )]
    OneTable { first: String, what: &'static str },
    #[error("{count} different `timeouts`, the limit is {most}: each needs its own flow table")]
    TooManyTimeouts { count: usize, most: usize },
    #[error(
        "service `{name}` has no VIP that is a single address: prefixes must be routed to weir, they are \
         not announced on a link"
    )]
    NothingToAnnounce { name: String },
    #[error("back end `{name}` gets no pings (`icmp_echo: forward`): `mode: {mode}` translates ports")]
    EchoTranslated { name: String, mode: &'static str },
    #[error(
        "back end `{name}` has a `vlan`, so it needs `mac`: the host has no neighbours in a VLAN of the port"
    )]
    VlanNeighbour { name: String },
    #[error("back ends get no pings (`icmp_echo: forward`) with `by: source + dport`: pings have no port")]
    EchoByPort,
}

/// The context in which services are checked.
pub struct Surroundings<'a> {
    /// The program's NAT pools.
    pub pools: &'a [NatPool],
    /// Room for flows in each table.
    pub flows: u32,
}

/// Whether packets to a back end of one of the services `of` would come back to any of `services`. Unless
/// addresses are translated, this is the only problem that a service's back ends may have because of other
/// services.
pub(super) fn has_loops(services: &[Service], of: &[Service]) -> bool {
    let mut list = Vec::new();
    loops(services, of, &mut list);
    !list.is_empty()
}

/// Returns everything wrong with `services`.
pub(super) fn problems(services: &[Service], around: &Surroundings<'_>) -> Vec<(Origin, Problem)> {
    let mut list = Vec::new();
    let mut names = HashSet::new();
    for service in services {
        let mut add = |problem| list.push((service.origin, problem));
        let name = || service.name.clone();
        if !names.insert(&service.name) {
            add(Problem::NameTwice { name: name() });
        }
        if service.ports.is_empty() {
            add(Problem::NoPorts { name: name() });
        }
        if service.addresses.is_empty() {
            add(Problem::NoAddress { name: name() });
        }
        addresses(service, &mut add);
        source_bits(service, &mut add);
        back_ends(service, &mut list);
        modes(service, &mut list);
        answered(service, &mut list);
        quic(service, &mut list);
        pool(service, around, &mut list);
    }
    overlaps(services, &mut list);
    loops(services, services, &mut list);
    one_way_back(services, &mut list);
    let kept = super::choosers::timeouts(services);
    if let Some((_, origin)) = kept.get(super::choosers::TIMEOUTS_MAX) {
        let (count, most) = (kept.len(), super::choosers::TIMEOUTS_MAX);
        list.push((*origin, Problem::TooManyTimeouts { count, most }));
    }
    list
}

fn is_station(address: IpAddr) -> bool {
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(broadcast || address.is_multicast() || address.is_unspecified() || address.is_loopback())
}

fn addresses(service: &Service, add: &mut impl FnMut(Problem)) {
    let mut reported = HashSet::new();
    for Address { vip, protocol, .. } in &service.addresses {
        if ![PROTOCOL_TCP, PROTOCOL_UDP].contains(protocol) && reported.insert(IpAddr::from([*protocol; 4])) {
            add(Problem::Protocol { protocol: *protocol });
        }
        if !is_station(*vip) && reported.insert(*vip) {
            add(Problem::Vip { vip: *vip });
        }
    }
}

/// Finds pairs of services that match the same packets although neither is more specific. Most services have
/// a single address and port and are found in a table; only the others are compared pairwise.
fn overlaps(services: &[Service], list: &mut Vec<(Origin, Problem)>) {
    let mut exact: HashMap<Address, Vec<usize>> = HashMap::new();
    let mut wide: Vec<(Address, usize)> = Vec::new();
    for (at, service) in services.iter().enumerate() {
        let together = |other: &usize| {
            *other != at && services[*other].ports.iter().any(|port| service.ports.contains(port))
        };
        let same =
            |address: &Address| exact.get(address).into_iter().flatten().copied().find(|of| together(of));
        let found = |address: &Address| {
            let collides = |(other, of): &&(Address, usize)| other.collides(address) && together(of);
            if address.is_exact() { None } else { wide.iter().find(collides).map(|(_, of)| *of) }
        };
        let first = service.addresses.iter().find_map(|address| same(address).or_else(|| found(address)));
        for address in &service.addresses {
            if address.is_exact() {
                exact.entry(*address).or_default().push(at);
            } else {
                wide.push((*address, at));
            }
        }
        if let Some(first) = first {
            let first = services[first].name.clone();
            list.push((service.origin, Problem::ServiceTwice { first }));
        }
    }
}

fn source_bits(service: &Service, add: &mut impl FnMut(Problem)) {
    let By::SourceBits(mask) = service.by else { return };
    let bits = mask.count_ones();
    if bits == 0 || bits > BITS_MAX {
        add(Problem::SourceBits { bits });
    } else if let Some(problem) = super::bits::surplus(service, mask) {
        add(problem);
    }
    if service.has(true) {
        add(Problem::SourceBitsV6 { name: service.name.clone() });
    }
}

fn back_ends(service: &Service, list: &mut Vec<(Origin, Problem)>) {
    let name = || service.name.clone();
    // A group without back ends only deserves a warning, which the program's check emits.
    let is_dealt = matches!(service.by, By::SourceBits(_));
    if is_dealt && service.back_ends.iter().all(|back_end| back_end.weight == 0) {
        list.push((service.origin, Problem::NoBackEndAnswers { name: name() }));
    }
    let mut names = HashSet::new();
    let mut ips: HashMap<IpAddr, &BackEnd> = HashMap::new();
    for back_end in &*service.back_ends {
        let own = || back_end.name.clone();
        if !names.insert(&back_end.name) {
            list.push((back_end.origin, Problem::BackEndTwice { service: name(), name: own() }));
        }
        if back_end.vlan.is_some() && back_end.resolve.is_some() {
            list.push((back_end.origin, Problem::VlanNeighbour { name: own() }));
        }
        let Some(ip) = back_end.mode.ip() else { continue };
        let first = *ips.entry(ip).or_insert(back_end);
        let (one, other) = (first.mode.word(), back_end.mode.word());
        if one != other {
            let first = first.name.clone();
            list.push((back_end.origin, Problem::TwoModes { name: own(), first, one, other }));
        }
    }
}

/// Finds back ends that the service cannot reach in their mode.
fn modes(service: &Service, list: &mut Vec<(Origin, Problem)>) {
    for back_end in &*service.back_ends {
        let Some(ip) = back_end.mode.ip() else { continue };
        let (name, mode) = (|| back_end.name.clone(), back_end.mode.word());
        let mut add = |problem| list.push((back_end.origin, problem));
        let (v4, v6) = service.source;
        if back_end.mode.is_tunnel() {
            if if ip.is_ipv6() { v6.is_none() } else { v4.is_none() } {
                add(Problem::NoSource { name: name(), family: family(ip.is_ipv6()) });
            }
        } else {
            let service_name = service.name.clone();
            if service.has(!ip.is_ipv6()) {
                let (own, other) = (family(ip.is_ipv6()), family(!ip.is_ipv6()));
                add(Problem::OtherFamily { name: name(), service: service_name, own, other, mode });
            }
            if !service.is_sticky() {
                let key = if service.stateless { "stateless" } else { "by" };
                add(Problem::NatWithoutFlows { name: name(), mode, key });
            }
        }
    }
}

/// Finds announcements and answers to pings that are configured but impossible.
fn answered(service: &Service, list: &mut Vec<(Origin, Problem)>) {
    let name = || service.name.clone();
    if service.announce == Announce::Arp && service.hosts().next().is_none() && !service.addresses.is_empty()
    {
        list.push((service.origin, Problem::NothingToAnnounce { name: name() }));
    }
    if service.icmp_echo != IcmpEcho::Forward {
        return;
    }
    if service.by == By::SourcePort {
        list.push((service.origin, Problem::EchoByPort));
    }
    if let Some(nat) = service.back_ends.iter().find(|back_end| back_end.mode.is_nat()) {
        let (name, mode) = (nat.name.clone(), nat.mode.word());
        list.push((nat.origin, Problem::EchoTranslated { name, mode }));
    }
}

/// Finds back ends that QUIC packets cannot select by server ID.
fn quic(service: &Service, list: &mut Vec<(Origin, Problem)>) {
    let Some(configs) = &service.quic else { return };
    if !service.addresses.iter().any(|address| address.protocol == PROTOCOL_UDP) {
        list.push((service.origin, Problem::QuicNotUdp { name: service.name.clone() }));
    }
    if let By::SourceBits(_) = service.by {
        list.push((service.origin, Problem::QuicSourceBits));
    }
    let mut seen: HashMap<ServerId, &BackEnd> = HashMap::new();
    for back_end in &*service.back_ends {
        let (name, service) = (back_end.name.clone(), service.name.clone());
        let mut add = |problem| list.push((back_end.origin, problem));
        if back_end.mode.is_nat() {
            add(Problem::QuicNat { name: name.clone(), mode: back_end.mode.word() });
        }
        let Some(server_id) = back_end.server_id else {
            add(Problem::NoServerId { name, service });
            continue;
        };
        let octets = server_id.as_bytes().len();
        if let Some(config) = configs.iter().find(|config| usize::from(config.server_id) != octets) {
            let (id, wanted) = (config.id, config.server_id);
            add(Problem::ServerIdLength { name: name.clone(), octets, id, service, wanted });
        }
        if let Some(first) = seen.insert(server_id, back_end) {
            add(Problem::ServerIdTwice { first: first.name.clone(), name });
        }
    }
}

fn family(ipv6: bool) -> &'static str {
    if ipv6 { "IPv6" } else { "IPv4" }
}

/// Checks the pool from which flows take the clients' new addresses.
fn pool(service: &Service, around: &Surroundings<'_>, list: &mut Vec<(Origin, Problem)>) {
    let is_full = |back_end: &&BackEnd| matches!(back_end.mode, Mode::FullNat { .. });
    let first = service.back_ends.iter().find(is_full);
    let pool = service.nat_pool.and_then(|id| around.pools.get(id.index()));
    match (first, pool) {
        (None, None) => {}
        (Some(full), None) => list.push((full.origin, Problem::NoPool { name: full.name.clone() })),
        (None, Some(_)) if service.back_ends.is_empty() => {}
        (None, Some(_)) => {
            list.push((service.origin, Problem::PoolUnused { name: service.name.clone() }));
        }
        (Some(_), Some(pool)) => {
            let suits = |one: &&BackEnd| is_full(one) || one.mode == Mode::Reject;
            if let Some(other) = service.back_ends.iter().find(|one| !suits(one)) {
                let (name, mode) = (other.name.clone(), other.mode.word());
                list.push((other.origin, Problem::MixedPool { name, mode }));
            }
            let name = || pool.name.clone();
            if service.has(pool.is_ipv4()) {
                let service_name = service.name.clone();
                let problem = Problem::PoolFamily { pool: name(), service: service_name };
                list.push((service.origin, problem));
            }
            let (places, flows) = (pool.places(), around.flows);
            // A connection takes two flows, including that of its answers.
            let connections = u64::from(flows / 2);
            if places < connections {
                let problem = Problem::PoolSmall { pool: name(), places, connections, flows };
                list.push((service.origin, problem));
            }
        }
    }
}

/// Finds back ends whose address is that of a service.
fn loops(services: &[Service], of: &[Service], list: &mut Vec<(Origin, Problem)>) {
    let mut hosts: HashMap<IpAddr, &Service> = HashMap::new();
    let mut prefixes: Vec<(Address, &Service)> = Vec::new();
    for service in services {
        for address in &service.addresses {
            if address.is_host() {
                hosts.entry(address.vip).or_insert(service);
            } else {
                prefixes.push((*address, service));
            }
        }
    }
    let mut reported = HashSet::new();
    for back_end in of.iter().flat_map(|service| &*service.back_ends) {
        let Some(vip) = back_end.mode.ip() else { continue };
        let prefix = || prefixes.iter().find(|(address, _)| address.contains(vip)).map(|(_, of)| *of);
        let Some(service) = hosts.get(&vip).copied().or_else(prefix) else { continue };
        // Services may share a list of back ends.
        if reported.insert((back_end.origin, &back_end.name)) {
            let (name, service) = (back_end.name.clone(), service.name.clone());
            list.push((back_end.origin, Problem::Loop { name, vip, service }));
        }
    }
}

/// All answers of a flow table must leave the same way.
fn one_way_back(services: &[Service], list: &mut Vec<(Origin, Problem)>) {
    let mut firsts: HashMap<Translated, &Service> = HashMap::new();
    for service in services {
        let Some(translated) = Translated::of(service) else { continue };
        let first = *firsts.entry(translated).or_insert(service);
        let (ports, timeouts) = (first.ports == service.ports, first.timeouts == service.timeouts);
        for (what, same) in [("port", ports), ("timeouts", timeouts)] {
            if !same {
                let problem = Problem::OneTable { first: first.name.clone(), what };
                list.push((service.origin, problem));
            }
        }
    }
}
