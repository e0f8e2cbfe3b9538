//! Checks that take the service's own path. Packets sent by the socket of such a check are injected into the
//! program as frames to a group address that identifies the back end. This is not one of the ports' own
//! addresses, so the tables of services ignore it, and the frame reaches the pipe `lb/checks/v4` or `v6`,
//! where each such back end has an entry with the action of its mode. Answers are sent to the source address
//! of checks, which belongs to weir like a VIP, and `lb/checked/v4` or `v6` forwards them to the app.

use super::TOO_LONG;
use super::actions::{self, Action};
use super::announce::Source;
use super::health::Guarded;
use super::pipes::Pipes;
use super::service::{Service, SourceMac};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use weir_config::attachment::{Attachments, Mac};
use weir_config::{Frames, IpRule, TakeRule};
use weir_packet::{
    ETHER_IPV4, ETHER_IPV6, Field, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP, parse,
};
use weir_program::builder::ProgramBuilder;
use weir_program::{Entry, EntryMatch, Forward, Pipe, PipeId, PortId, Program};

/// The name under which answers to checks are forwarded.
pub(super) const CHECKED: &str = "lb/checked";
/// The pipes for packets of checks and for their answers, by IP version.
const CHECKS: [&str; 2] = ["lb/checks/v4", "lb/checks/v6"];
const ANSWERS: [&str; 2] = ["lb/checked/v4", "lb/checked/v6"];

/// Group addresses that nothing else uses: locally administered, then three bytes for the back end.
const STATIONS: u64 = 0x0377_6500_0000;
/// The bit of a destination MAC address that marks broadcast and multicast.
const GROUP_BIT: u128 = 1 << 40;

/// The kernel assigns sockets ports from 32768 to 60999; this larger range needs a single mask in XDP. All
/// other traffic to the address is left to the host, in case the host has the address after all.
const PORTS: (u16, u16) = (32_768, 65_535);

/// A back end that is checked along the service's own path.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// The service and its back end, by their positions in the services' health.
    pub at: (usize, usize),
    /// The port at which packets of its check are injected.
    pub input: PortId,
    /// Its entries, with the pipes that contain them.
    pub entries: Vec<(PipeId, Entry)>,
}

/// Returns the paths of a back end's checks, as source address and VIP, if the checks take the service's own
/// path.
fn ways(guarded: &Guarded, place: usize) -> &[(IpAddr, IpAddr)] {
    let watch = guarded.back_ends.get(place).and_then(|(.., watch)| watch.as_ref());
    watch.and_then(|watch| watch.check.via.as_ref()).map_or(&[], |via| &via.ways)
}

fn is_used(guarded: &Guarded) -> bool {
    (0..guarded.back_ends.len()).any(|place| !ways(guarded, place).is_empty())
}

/// Returns the services that have such checks, with their positions in `guarded`.
fn used<'a>(services: &'a [Service], guarded: &'a [Arc<Guarded>]) -> Vec<(usize, &'a Guarded, &'a Service)> {
    let used: Vec<(usize, &Arc<Guarded>)> =
        guarded.iter().enumerate().filter(|(_, guarded)| is_used(guarded)).collect();
    if used.is_empty() {
        return Vec::new();
    }
    let by_name: HashMap<&str, &Service> = services.iter().map(|one| (one.name.as_str(), one)).collect();
    let service = |(at, guarded): (usize, &'a Arc<Guarded>)| {
        let service = by_name.get(guarded.name.as_str()).copied()?;
        (!service.ports.is_empty()).then_some((at, &**guarded, service))
    };
    used.into_iter().filter_map(service).collect()
}

/// Returns the source addresses of checks, once per port.
pub(super) fn sources(services: &[Service], guarded: &[Arc<Guarded>]) -> Vec<Source> {
    let (mut all, mut seen) = (Vec::new(), HashSet::new());
    for (_, guarded, service) in used(services, guarded) {
        let back_ports = service.back_ports();
        for (address, _) in (0..guarded.back_ends.len()).flat_map(|place| ways(guarded, place)) {
            let new = back_ports.iter().filter(|port| seen.insert((**port, *address)));
            all.extend(new.map(|port| Source { port: *port, address: *address, origin: service.origin }));
        }
    }
    all
}

/// Returns the rules with which ports take the answers from the kernel: packets to L4 ports that sockets use,
/// ICMP, and fragments.
pub(super) fn take(source: &Source) -> [TakeRule; 5] {
    let (dst, prefix) = (source.address, if source.address.is_ipv6() { 128 } else { 32 });
    let icmp = if dst.is_ipv6() { PROTOCOL_ICMPV6 } else { PROTOCOL_ICMP };
    let rule = |protocol, dport, fragments| {
        let frames = Frames::Ip(IpRule { dst, prefix, protocol: Some(protocol), dport, fragments });
        TakeRule { port: source.port, frames }
    };
    [
        rule(PROTOCOL_TCP, Some(PORTS), false),
        rule(PROTOCOL_UDP, Some(PORTS), false),
        rule(icmp, None, false),
        rule(PROTOCOL_TCP, None, true),
        rule(PROTOCOL_UDP, None, true),
    ]
}

/// Returns the back ends that are checked along the service's own path. Their entries are looked up in the
/// program, if there already is one.
pub(super) fn find(services: &[Service], guarded: &[Arc<Guarded>], program: &Program) -> Vec<Probe> {
    let mut all = Vec::new();
    for (at, guarded, service) in used(services, guarded) {
        let input = |place: usize| service.lead(&service.back_ends[place]);
        let places = (0..guarded.back_ends.len()).filter(|place| !ways(guarded, *place).is_empty());
        all.extend(places.map(|place| Probe { at: (at, place), input: input(place), entries: Vec::new() }));
    }
    if all.is_empty() {
        return all;
    }
    for (id, pipe) in (0..).zip(&program.pipes).filter(|(_, pipe)| is_checks(pipe)) {
        let mut entries = pipe.entries.cursor();
        while let Some(entry) = entries.next() {
            if let Some(probe) = number(entry).and_then(|at| all.get_mut(at)) {
                probe.entries.push((PipeId(id), entry.clone()));
            }
        }
    }
    all
}

/// Whether a pipe has the entries of back ends that are checked along the service's own path.
pub(super) fn is_checks(pipe: &Pipe) -> bool {
    CHECKS.contains(&pipe.name.as_str())
}

/// Returns the number of the back end that an entry belongs to.
pub(super) fn number(entry: &Entry) -> Option<usize> {
    let EntryMatch::Value(station) = entry.matches.first()? else { return None };
    (*station).checked_sub(STATIONS.into()).map(|at| at as usize)
}

/// Adds the pipes for packets of checks, in front of the destination of packets that belong to no service.
/// Returns the first pipe.
pub(super) fn write(
    (services, guarded): (&[Service], &[Arc<Guarded>]),
    attachments: &Attachments,
    pipes: &Pipes,
    program: &mut ProgramBuilder,
    miss: Forward,
) -> Forward {
    let probes = find(services, guarded, &Program::default());
    if probes.is_empty() {
        return miss;
    }
    let by_name: HashMap<&str, &Service> = services.iter().map(|one| (one.name.as_str(), one)).collect();
    let addresses: HashSet<IpAddr> = sources(services, guarded).iter().map(|one| one.address).collect();
    let mut next = miss;
    for ipv6 in [true, false] {
        let mut own: Vec<IpAddr> = addresses.iter().copied().filter(|one| one.is_ipv6() == ipv6).collect();
        if own.is_empty() {
            continue;
        }
        own.sort_unstable();
        let dst = if ipv6 { Field::Ipv6Dst } else { Field::Ipv4Dst };
        let app = program.app(CHECKED);
        let answers = Pipe::basic(ANSWERS[usize::from(ipv6)]).constant_bits(Field::EthDst, 0, GROUP_BIT);
        let answers = answers.per_entry(dst).entries(own.into_iter().map(Entry::on));
        next = Forward::Pipe(program.pipe(answers.forward(Forward::App(app)).miss(next)));

        // A check's packet is for one particular back end, so it does not pick a row.
        let (mut actions, mut entries) = (Action::direct(false), Vec::new());
        for (at, probe) in probes.iter().enumerate() {
            let guarded = &guarded[probe.at.0];
            let Some(service) = by_name.get(guarded.name.as_str()) else { continue };
            for (_, vip) in ways(guarded, probe.at.1).iter().filter(|(_, vip)| vip.is_ipv6() == ipv6) {
                let given = Entry::on(EntryMatch::Value(u128::from(STATIONS) + at as u128)).and(*vip).matches;
                entries.push(entry((service, probe), (attachments, pipes), &actions, given));
            }
        }
        only_used(&mut actions, &mut entries);
        let templates: Vec<_> = actions.into_iter().map(Action::template).collect();
        let checks = Pipe::basic(CHECKS[usize::from(ipv6)]).per_entry(Field::EthDst).per_entry(dst);
        let too_long = program.apps.iter().any(|app| app == TOO_LONG).then(|| program.app(TOO_LONG));
        let checks = Pipe { too_long, ..checks.actions(templates) };
        next = Forward::Pipe(program.pipe(checks.forward(Forward::PerEntry).miss(next).entries(entries)));
    }
    next
}

/// Returns the entry of a back end.
fn entry(
    (service, probe): (&Service, &Probe),
    (attachments, pipes): (&Attachments, &Pipes),
    actions: &[Action],
    given: Vec<EntryMatch>,
) -> Entry {
    let back_end = &service.back_ends[probe.at.1];
    let of_port = attachments.at(probe.input.index()).and_then(|port| port.mac);
    // There is no client frame from which addresses could be copied.
    let own: Option<Mac> = actions::own_mac((service, back_end), true, of_port);
    let own = SourceMac::Fixed(own.unwrap_or_default());
    let service = Service { source_mac: own, addresses: Vec::new(), ..service.clone() };
    let to = service.way_out(back_end);
    let tags = pipes.tags.as_ref().filter(|_| back_end.vlan.is_some());
    let (out, led) = tags.map_or((0, to), |tags| (tags.number(to), Forward::Pipe(tags.packets)));
    let led = if back_end.resolve.is_some() { Forward::Drop } else { led };
    let mut entry = actions::entry((&service, back_end), (of_port, out), actions, EntryMatch::Any).to(led);
    entry.matches = given;
    entry
}

/// Returns the frame for a packet sent by the check of a back end, given by its position.
pub(super) fn frame(at: usize, packet: &[u8]) -> Option<Vec<u8>> {
    let ethertype = match packet.first()? >> 4 {
        4 => ETHER_IPV4,
        6 => ETHER_IPV6,
        _ => return None,
    };
    let station = (STATIONS + at as u64).to_be_bytes();
    Some([&station[2..], &[0; 6], &ethertype.to_be_bytes(), packet].concat())
}

/// Returns the packet in a frame that was forwarded to the app.
pub(super) fn packet(frame: &[u8]) -> Option<Vec<u8>> {
    let headers = parse(frame, weir_packet::Depth::L3).ok()?;
    Some(frame.get(headers.outer().at(weir_packet::Base::L3)..)?.to_vec())
}

/// Explains what is wrong with a source address of checks, which must belong to weir alone.
pub(super) fn taken(source: &Source, services: &[Service]) -> Option<String> {
    let address = source.address;
    for service in services {
        if service.addresses.iter().any(|one| one.contains(address)) {
            return Some(format!(
                "checks cannot be sent from {address}, a VIP of service `{}`",
                service.name
            ));
        }
        let is_it = |one: &&super::BackEnd| one.mode.ip() == Some(address) || one.address == Some(address);
        if let Some(back_end) = service.back_ends.iter().find(is_it) {
            let name = &back_end.name;
            return Some(format!("checks cannot be sent from {address}, which is back end `{name}`"));
        }
    }
    None
}

/// Removes the actions that no entry uses. Pipes without flows lose nothing when their actions change.
fn only_used(actions: &mut Vec<Action>, entries: &mut [Entry]) {
    let mut used: Vec<u16> = entries.iter().map(|entry| entry.template).collect();
    used.sort_unstable();
    used.dedup();
    *actions = used.iter().map(|at| actions[usize::from(*at)]).collect();
    for entry in entries {
        entry.template = used.iter().position(|at| *at == entry.template).unwrap_or_default() as u16;
    }
}
