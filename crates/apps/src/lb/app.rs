//! Writes services as pipes. All services share one table per address family that finds the service by input port,
//! address, protocol and port, and one that finds the fragments, which have no ports; each service has one pipe that
//! picks the back end, rewrites the MAC addresses and counts.

use super::config::{BackEnd, By, Out, Problem, Service, SourceMac, problems};
use config::TakeRule;
use engine::program::{
    CounterId, Criterion, Entry, EntryMatch, Fill, Forward, Group, GroupId, HashInput, Match, Monitor, Operation,
    Origin, Pipe, PipeId, PipeKind, PortId, Program, SharedUse, Target, Template, Value,
};
use packet::{Field, KeySource};
use std::net::IpAddr;

/// The load balancer of a program: all its services.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lb {
    /// The services, in the order in which they were written.
    pub services: Vec<Service>,
    /// Addresses that frames to a port may carry besides its own: those of the other members of its bond.
    pub also: Vec<(PortId, [u8; 6])>,
}

/// The pipe that all packets for the load balancer enter: what `root:` and `forward:` call it.
pub const NAME: &str = "lb";

/// Room for services that come at run time.
const CAPACITY: u32 = 1024;
/// The bit of a destination MAC address that says broadcast or multicast.
const GROUP_BIT: u128 = 1 << 40;

impl Lb {
    /// Everything wrong with the services; [`Lb::write`] must not be called then.
    #[must_use]
    pub fn problems(&self) -> Vec<(Origin, Problem)> {
        problems(&self.services)
    }

    /// Adds pipes, groups and counters to `program`, whose ports are known; `macs` are the ports' own addresses.
    /// Gives the pipe that packets enter: the root of a service's ports that have none.
    pub fn write(&self, program: &mut Program, macs: &[Option<[u8; 6]>]) -> Option<PipeId> {
        if self.services.is_empty() {
            return None;
        }
        let tables = self.tables(macs);
        let first = program.pipes.len();
        let services = first + tables.len();
        let miss = self.miss(program);
        for (at, table) in tables.into_iter().enumerate() {
            let last = first + at + 1 == services;
            let name = if at == 0 { NAME.to_string() } else { table.name() };
            let next = if last { miss } else { Forward::Pipe(PipeId((first + at + 1) as u16)) };
            program.pipes.push(table.pipe(name, self, services, next));
        }
        for service in &self.services {
            let pipe = balance(service, program, macs);
            program.pipes.push(pipe);
        }
        Some(PipeId(first as u16))
    }

    /// The ports that packets of services arrive on, each once.
    #[must_use]
    pub fn ports(&self) -> Vec<PortId> {
        let mut ports: Vec<PortId> = self.services.iter().flat_map(|service| service.ports.iter().copied()).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// What the services' ports take from the kernel.
    #[must_use]
    pub fn take(&self) -> Vec<TakeRule> {
        let mut rules = Vec::new();
        for service in &self.services {
            let (dst, protocol) = (service.vip, Some(service.protocol));
            let prefix = if dst.is_ipv4() { 32 } else { 128 };
            for &port in &service.ports {
                let rule = TakeRule { port, dst, prefix, protocol, dport: Some(service.dport), fragments: false };
                let fragments = TakeRule { dport: None, fragments: true, ..rule };
                rules.extend([rule, fragments].into_iter().filter(|rule| !rules.contains(rule)).collect::<Vec<_>>());
            }
        }
        rules
    }

    /// What is for no service goes to the kernel where every port can, else nowhere.
    fn miss(&self, program: &Program) -> Forward {
        let can = |port: &PortId| program.ports.get(port.index()).is_some_and(|port| port.kernel_path);
        if self.ports().iter().all(can) { Forward::Kernel } else { Forward::Drop }
    }

    fn tables(&self, macs: &[Option<[u8; 6]>]) -> Vec<Table> {
        let ports = self.ports();
        let mac = |port: &PortId| macs.get(port.index()).copied().flatten();
        let all: Option<Vec<(PortId, [u8; 6])>> = ports.iter().map(|port| mac(port).map(|mac| (*port, mac))).collect();
        let all = all.map(|own| own.into_iter().chain(self.also.iter().copied()).collect::<Vec<_>>());
        let mut tables = Vec::new();
        for fragments in [false, true] {
            for ipv6 in [false, true] {
                if self.services.iter().any(|service| service.vip.is_ipv6() == ipv6) {
                    tables.push(Table { ipv6, fragments, macs: all.clone() });
                }
            }
        }
        tables
    }
}

/// A table that finds services.
struct Table {
    ipv6: bool,
    fragments: bool,
    /// The ports' own addresses, if all are known: then only frames to them are looked at.
    macs: Option<Vec<(PortId, [u8; 6])>>,
}

impl Table {
    fn name(&self) -> String {
        let family = if self.ipv6 { "v6" } else { "v4" };
        if self.fragments { format!("{NAME}/fragments/{family}") } else { format!("{NAME}/{family}") }
    }

    fn pipe(&self, name: String, lb: &Lb, first_service: usize, miss: Forward) -> Pipe {
        let mut entries: Vec<Entry> = Vec::new();
        for (at, service) in lb.services.iter().enumerate().filter(|(_, service)| service.vip.is_ipv6() == self.ipv6) {
            let to = Forward::Pipe(PipeId((first_service + at) as u16));
            for port in &service.ports {
                for entry in self.entries(service, *port, to) {
                    // Fragments of several services on one address are those of the first.
                    if !entries.iter().any(|other| other.matches == entry.matches) {
                        entries.push(entry);
                    }
                }
            }
        }
        let capacity = CAPACITY.max(entries.len() as u32);
        Pipe { matches: self.matches(), forward: Forward::PerEntry, miss, capacity, entries, ..blank(name) }
    }

    fn matches(&self) -> Vec<Match> {
        let one = |field: Field, criterion: Criterion| Match { field, criterion, origin: Origin::default() };
        let per_entry = |field: Field| one(field, Criterion::PerEntry { mask: field.max() });
        // Frames to others, and broadcasts, are not ours to forward: on two ports of one switch they would circle.
        let ours = match self.macs {
            Some(_) => Criterion::PerEntry { mask: Field::EthDst.max() },
            None => Criterion::Const { value: 0, mask: GROUP_BIT },
        };
        let dst = if self.ipv6 { Field::Ipv6Dst } else { Field::Ipv4Dst };
        let last = if self.fragments {
            one(Field::IpFragment, Criterion::Const { value: 1, mask: 1 })
        } else {
            per_entry(Field::L4Dport)
        };
        vec![one(Field::EthDst, ours), per_entry(Field::InputPort), per_entry(dst), per_entry(Field::IpProtocol), last]
    }

    /// One for each address that frames to the port may carry.
    fn entries(&self, service: &Service, port: PortId, to: Forward) -> Vec<Entry> {
        match &self.macs {
            None => vec![self.entry(service, port, None, to)],
            Some(macs) => {
                let own = macs.iter().filter(|(one, _)| *one == port);
                own.map(|(_, mac)| self.entry(service, port, Some(number(*mac)), to)).collect()
            }
        }
    }

    fn entry(&self, service: &Service, port: PortId, mac: Option<u128>, to: Forward) -> Entry {
        let vip = match service.vip {
            IpAddr::V4(vip) => u128::from(vip.to_bits()),
            IpAddr::V6(vip) => vip.to_bits(),
        };
        let dport = (!self.fragments).then_some(u128::from(service.dport));
        let key = mac.into_iter().chain([u128::from(port.0), vip, u128::from(service.protocol)]).chain(dport);
        Entry {
            matches: key.map(EntryMatch::Value).collect(),
            forward: Some(to),
            origin: service.origin,
            ..Entry::default()
        }
    }
}

/// The pipe that picks a service's back end.
fn balance(service: &Service, program: &mut Program, macs: &[Option<[u8; 6]>]) -> Pipe {
    let counters: Vec<CounterId> =
        service.back_ends.iter().map(|back_end| counter(service, back_end, program)).collect();
    let base = Pipe {
        monitor: Monitor { counter: Some(SharedUse::PerEntry), ..Monitor::default() },
        templates: vec![rewrite(service, macs)],
        forward: service.out.map_or(Forward::InputPort, Out::forward),
        origin: service.origin,
        ..blank(format!("{NAME}/{}", service.name))
    };
    match service.by {
        By::SourceBits(mask) => by_bits(service, mask, &counters, base),
        By::FiveTuple => by_hash(service, HashInput::Select(KeySource::Outer), &counters, base, program),
        By::Source => {
            let field = if service.vip.is_ipv6() { Field::Ipv6Src } else { Field::Ipv4Src };
            by_hash(service, HashInput::Fields(vec![(field, field.max())]), &counters, base, program)
        }
    }
}

/// One shared counter a back end, whatever pipes lead to it.
fn counter(service: &Service, back_end: &BackEnd, program: &mut Program) -> CounterId {
    let name = format!("{NAME}/{}/{}", service.name, back_end.name);
    let at = program.counters.iter().position(|counter| *counter == name).unwrap_or_else(|| {
        program.counters.push(name);
        program.counters.len() - 1
    });
    CounterId(at as u16)
}

/// Source MAC: the address of the port that the packet leaves by. Where it leaves by the port it came in by, that is
/// the address it was sent to.
fn rewrite(service: &Service, macs: &[Option<[u8; 6]>]) -> Template {
    let known = match service.out {
        Some(Out::Port(out)) if service.ports != [out] => macs.get(out.index()).copied().flatten(),
        Some(Out::Bond { mac, .. }) => Some(mac),
        Some(Out::Port(_)) | None => None,
    };
    let fixed = match service.source_mac {
        SourceMac::Fixed(mac) => Some(mac),
        SourceMac::Auto => known,
    };
    let source = match fixed {
        Some(mac) => Operation::Set(Field::EthSrc, Value::Const(number(mac))),
        None => Operation::Copy { from: Field::EthDst, to: Field::EthSrc },
    };
    Template { name: "rewrite".to_string(), operations: vec![source, Operation::Set(Field::EthDst, Value::PerEntry)] }
}

fn by_hash(service: &Service, input: HashInput, counters: &[CounterId], base: Pipe, program: &mut Program) -> Pipe {
    let target = |back_end: &BackEnd| Target {
        name: back_end.name.clone(),
        weight: back_end.weight,
        forward: base.forward,
        origin: back_end.origin,
    };
    let targets = service.back_ends.iter().map(target).collect();
    let (name, origin) = (format!("{NAME}/{}", service.name), service.origin);
    program.groups.push(Group { name, fill: Fill::Maglev, size: service.size, seed: None, targets, origin });
    let group = GroupId((program.groups.len() - 1) as u16);
    let rows = service.back_ends.iter().zip(counters).enumerate();
    let entries = rows.map(|(at, (back_end, counter))| entry(EntryMatch::Target(at as u16), back_end, *counter));
    let entries: Vec<Entry> = entries.collect();
    Pipe { kind: PipeKind::Hash { input, group }, capacity: entries.len().max(1) as u32, entries, ..base }
}

/// An entry for every value of the masked bits, dealt to the back ends in turn, as many turns as their weight.
fn by_bits(service: &Service, mask: u32, counters: &[CounterId], base: Pipe) -> Pipe {
    let mask_wide = u128::from(mask);
    let rows: Vec<(&BackEnd, CounterId)> = service.back_ends.iter().zip(counters.iter().copied()).collect();
    let turns: Vec<&(&BackEnd, CounterId)> = turns(&rows);
    let deal = |(value, (back_end, counter)): (u32, &&(&BackEnd, CounterId))| {
        entry(EntryMatch::Value(u128::from(spread(value, mask))), back_end, *counter)
    };
    let entries: Vec<Entry> = (0..1 << mask.count_ones()).zip(turns.iter().cycle()).map(deal).collect();
    let criterion = Criterion::PerEntry { mask: mask_wide };
    let matches = vec![Match { field: Field::Ipv4Src, criterion, origin: service.origin }];
    Pipe { matches, capacity: entries.len().max(1) as u32, entries, ..base }
}

/// Everybody once, then those of weight 2 and more again, and so on: equal weights take turns.
fn turns<'a>(rows: &'a [(&'a BackEnd, CounterId)]) -> Vec<&'a (&'a BackEnd, CounterId)> {
    let most = rows.iter().map(|(back_end, _)| back_end.weight).max().unwrap_or(0).min(1 << super::BITS_MAX);
    (0..most).flat_map(|round| rows.iter().filter(move |(back_end, _)| back_end.weight > round)).collect()
}

/// The low bits of `value`, put where `mask` has its bits.
#[must_use]
pub fn spread(value: u32, mask: u32) -> u32 {
    let places = (0..32).filter(|bit| mask & 1 << bit != 0);
    places.enumerate().map(|(from, to)| (value >> from & 1) << to).sum()
}

fn entry(given: EntryMatch, back_end: &BackEnd, counter: CounterId) -> Entry {
    Entry {
        matches: vec![given],
        values: vec![number(back_end.mac)],
        counter: Some(counter),
        origin: back_end.origin,
        ..Entry::default()
    }
}

fn blank(name: String) -> Pipe {
    Pipe {
        name,
        kind: PipeKind::Basic,
        matches: Vec::new(),
        monitor: Monitor::default(),
        templates: vec![Template::default()],
        forward: Forward::Drop,
        miss: Forward::Drop,
        rehash: false,
        capacity: CAPACITY,
        entries: Vec::new(),
        origin: Origin::default(),
    }
}

fn number(mac: [u8; 6]) -> u128 {
    mac.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}
