//! Writes services as pipes. For each address family, all services share one table that finds the service by
//! input port, address, protocol and port, and one for fragments, which have no ports. Each service has a
//! pipe that picks the back end, rewrites the MAC addresses and counts.

use super::health::{Health, LbApp};
use super::service::{BackEnd, By, Problem, Service, SourceMac, problems};
use crate::App;
use crate::kind::Configured;
use config::attachment::{Attachment, Attachments, Mac};
use config::value::write_mac;
use config::{Frames, IpRule, TakeRule};
use engine::builder::{Number, ProgramBuilder};
use engine::program::{
    CounterId, Entry, EntryMatch, Fill, Forward, Group, HashInput, Operation, Origin, Pipe, PipeId, PipeKind,
    PortId, Program, SharedUse, Target, Template, Value as Given,
};
use engine::snapshot::Count;
use packet::{Field, KeySource};
use serde_json::{Value, json};
use std::collections::HashSet;

/// The load balancer of a program, with all its services.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lb {
    /// The services, in the order in which they were written.
    pub services: Vec<Service>,
    /// Their health.
    pub health: Health,
}

/// The pipe that all packets for the load balancer enter, used with `root:` and `forward:`.
pub const NAME: &str = "lb";

/// Capacity for services that are added at run time.
const CAPACITY: u32 = 1024;
/// The bit of a destination MAC address that marks broadcast and multicast.
const GROUP_BIT: u128 = 1 << 40;

impl Lb {
    /// Returns everything wrong with the services. If there is anything, [`Lb::write`] must not be called.
    #[must_use]
    pub fn problems(&self) -> Vec<(Origin, Problem)> {
        problems(&self.services)
    }

    /// Adds pipes, groups and counters to `program`, and directs frames from the services' attachments there.
    pub fn write(&self, program: &mut ProgramBuilder, attachments: &Attachments) {
        let tables = self.tables(attachments);
        let name = |(at, table): (usize, &Table)| if at == 0 { NAME.to_string() } else { table.name() };
        let named: Vec<Pipe> = tables.iter().enumerate().map(name).map(Pipe::basic).collect();
        let ids: Vec<PipeId> = named.iter().map(|pipe| program.pipe(pipe.clone())).collect();
        let scaled = self.services.iter().zip(self.health.scales());
        let services: Vec<PipeId> = scaled.map(|scaled| balance(scaled, program)).collect();
        let mut next = self.miss(program);
        for ((table, pipe), id) in tables.iter().zip(named).zip(&ids).rev() {
            program.define(*id, table.pipe(pipe, self, &services).miss(next));
            next = Forward::Pipe(*id);
        }
        for (root, below) in
            ids.first().into_iter().flat_map(|root| self.below(attachments).map(|below| (*root, below)))
        {
            below.lead(program, root);
        }
    }

    /// Returns what the services are attached to: their ports, or what those ports are members of.
    pub(super) fn below<'a>(&self, attachments: &'a Attachments) -> impl Iterator<Item = &'a Attachment> {
        let all: Vec<&Attachment> =
            self.ports().into_iter().filter_map(|port| attachments.with(port)).collect();
        let is_first =
            |(at, one): &(usize, &Attachment)| all[..*at].iter().all(|other| other.name != one.name);
        all.iter().copied().enumerate().filter(is_first).map(|(_, one)| one).collect::<Vec<_>>().into_iter()
    }

    /// Returns the ports on which packets of services arrive, each once.
    #[must_use]
    pub fn ports(&self) -> Vec<PortId> {
        let mut ports: Vec<PortId> =
            self.services.iter().flat_map(|service| service.ports.iter().copied()).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// Returns the forward for packets of no service: the kernel if every port has a kernel path, otherwise
    /// drop.
    fn miss(&self, program: &Program) -> Forward {
        let can = |port: &PortId| program.ports.get(port.index()).is_some_and(|port| port.kernel_path);
        if self.ports().iter().all(can) { Forward::Kernel } else { Forward::Drop }
    }

    fn tables(&self, attachments: &Attachments) -> Vec<Table> {
        let macs = |port: PortId| Some((port, attachments.macs(port)?));
        let all: Option<Vec<(PortId, Vec<Mac>)>> = self.ports().into_iter().map(macs).collect();
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

impl Configured for Lb {
    /// Takes the services' packets, and all their fragments, because only the first of them shows the port.
    fn take(&self) -> Vec<TakeRule> {
        let (mut rules, mut seen) = (Vec::new(), HashSet::new());
        for service in &self.services {
            let (dst, protocol) = (service.vip, Some(service.protocol));
            let prefix = if dst.is_ipv4() { 32 } else { 128 };
            let whole = IpRule {
                dst,
                prefix,
                protocol,
                dport: Some((service.dport, service.dport)),
                fragments: false,
            };
            let fragments = IpRule { dport: None, fragments: true, ..whole };
            for &port in &service.ports {
                let both = [whole, fragments].map(|rule| TakeRule { port, frames: Frames::Ip(rule) });
                rules.extend(both.into_iter().filter(|rule| seen.insert(*rule)));
            }
        }
        rules
    }

    fn running(&self) -> Vec<Box<dyn App>> {
        let app = || -> Box<dyn App> { Box::new(LbApp::new(self.health.clone())) };
        (!self.services.is_empty()).then(app).into_iter().collect()
    }

    /// Returns the back ends of every service, with their shared counters.
    fn table(&self, count: &dyn Fn(&str) -> Count) -> Value {
        let of = |service: &Service| {
            let row = |back_end: &BackEnd| {
                let count = count(&format!("{NAME}/{}/{}", service.name, back_end.name));
                let told = self.health.board.of(&service.name, &back_end.name);
                json!({
                    "service": service.name, "name": back_end.name, "mac": write_mac(back_end.mac.number()),
                    "weight": back_end.weight, "packets": count.packets, "bytes": count.bytes,
                    "health": told.health, "reason": told.reason,
                })
            };
            service.back_ends.iter().map(row).collect::<Vec<_>>()
        };
        self.services.iter().flat_map(of).collect()
    }
}

/// A table that finds services.
struct Table {
    ipv6: bool,
    fragments: bool,
    /// The addresses of frames to accept at each port, if the ports' own addresses are known.
    macs: Option<Vec<(PortId, Vec<Mac>)>>,
}

impl Table {
    fn name(&self) -> String {
        let family = if self.ipv6 { "v6" } else { "v4" };
        if self.fragments { format!("{NAME}/fragments/{family}") } else { format!("{NAME}/{family}") }
    }

    fn pipe(&self, blank: Pipe, lb: &Lb, pipes: &[PipeId]) -> Pipe {
        let mut entries: Vec<Entry> = Vec::new();
        let of_family = |service: &&Service| service.vip.is_ipv6() == self.ipv6;
        for (service, to) in lb.services.iter().zip(pipes).filter(|(service, _)| of_family(service)) {
            for port in &service.ports {
                for entry in self.entries(service, *port, *to) {
                    // Fragments for several services on one address go to the first of these.
                    if !entries.iter().any(|other| other.matches == entry.matches) {
                        entries.push(entry);
                    }
                }
            }
        }
        self.matching(blank).forward(Forward::PerEntry).capacity(CAPACITY).entries(entries)
    }

    fn matching(&self, pipe: Pipe) -> Pipe {
        // Frames for others, and broadcasts, must not be forwarded: with two ports on one switch they would
        // loop.
        let ours = match self.macs {
            Some(_) => pipe.per_entry(Field::EthDst),
            None => pipe.constant_bits(Field::EthDst, 0, GROUP_BIT),
        };
        let dst = if self.ipv6 { Field::Ipv6Dst } else { Field::Ipv4Dst };
        let whole = ours.per_entry(Field::InputPort).per_entry(dst).per_entry(Field::IpProtocol);
        if self.fragments { whole.constant(Field::IpFragment, 1) } else { whole.per_entry(Field::L4Dport) }
    }

    /// Returns an entry for each address of frames to accept at the port.
    fn entries(&self, service: &Service, port: PortId, to: PipeId) -> Vec<Entry> {
        let any = Entry::default().to(to).origin(service.origin);
        let own = |macs: &Vec<(PortId, Vec<Mac>)>| -> Vec<Entry> {
            let own = macs.iter().filter(|(one, _)| *one == port).flat_map(|(_, macs)| macs);
            own.map(|mac| any.clone().and(*mac)).collect()
        };
        let heads = self.macs.as_ref().map_or(vec![any.clone()], own);
        let whole = |head: Entry| {
            let entry = head.and(port).and(service.vip).and(service.protocol);
            if self.fragments { entry } else { entry.and(service.dport) }
        };
        heads.into_iter().map(whole).collect()
    }
}

/// Writes the pipe that picks a service's back end.
fn balance((service, scale): (&Service, u32), program: &mut ProgramBuilder) -> PipeId {
    let name = format!("{NAME}/{}", service.name);
    // One shared counter per back end, whichever pipes lead to it.
    let counter = |back_end: &BackEnd| program.counter(format!("{name}/{}", back_end.name));
    let counters: Vec<CounterId> = service.back_ends.iter().map(counter).collect();
    let base = Pipe::basic(name)
        .origin(service.origin)
        .counter(SharedUse::PerEntry)
        .actions([rewrite(service)])
        .forward(service.out.as_ref().map_or(Forward::InputPort, |out| out.to));
    let pipe = match service.by {
        By::SourceBits(mask) => by_bits(service, mask, &counters, base),
        By::FiveTuple => {
            by_hash((service, scale), HashInput::Select(KeySource::Outer), &counters, base, program)
        }
        By::Source => {
            let field = if service.vip.is_ipv6() { Field::Ipv6Src } else { Field::Ipv4Src };
            by_hash((service, scale), HashInput::Fields(vec![(field, field.max())]), &counters, base, program)
        }
    };
    program.pipe(pipe)
}

/// Returns the action. The source MAC address becomes that of the port through which the packet leaves. If
/// that is the port on which it arrived, it is the address to which the packet was sent.
fn rewrite(service: &Service) -> Template {
    let is_back = |out: &Attachment| out.to == Forward::Port(out.lead) && service.ports == [out.lead];
    let known = service.out.as_ref().filter(|out| !is_back(out)).and_then(|out| out.mac);
    let fixed = match service.source_mac {
        SourceMac::Fixed(mac) => Some(mac),
        SourceMac::Auto => known,
    };
    let source = match fixed {
        Some(mac) => Operation::Set(Field::EthSrc, mac.into()),
        None => Operation::Copy { from: Field::EthDst, to: Field::EthSrc },
    };
    Template::new("rewrite", [source, Operation::Set(Field::EthDst, Given::PerEntry)])
}

fn by_hash(
    (service, scale): (&Service, u32),
    input: HashInput,
    counters: &[CounterId],
    base: Pipe,
    program: &mut ProgramBuilder,
) -> Pipe {
    let target = |back_end: &BackEnd| {
        Target::new(&back_end.name, base.forward).weight(back_end.weight * scale).origin(back_end.origin)
    };
    let group = Group::new(&base.name, Fill::Maglev, service.size).origin(service.origin);
    let group = program.group(group.targets(service.back_ends.iter().map(target)));
    let rows = (0..).map(EntryMatch::Target).zip(service.back_ends.iter().zip(counters));
    let entries = rows.map(|(target, (back_end, counter))| entry(target, back_end, *counter));
    Pipe { kind: PipeKind::Hash { input, group: group.into() }, ..base }.entries(entries)
}

/// Adds an entry for every value of the masked bits, assigned to the back ends in turn, with as many turns as
/// their weight.
fn by_bits(service: &Service, mask: u32, counters: &[CounterId], base: Pipe) -> Pipe {
    let rows: Vec<(&BackEnd, CounterId)> = service.back_ends.iter().zip(counters.iter().copied()).collect();
    let turns: Vec<&(&BackEnd, CounterId)> = turns(&rows);
    let deal = |(value, (back_end, counter)): (u32, &&(&BackEnd, CounterId))| {
        entry(spread(value, mask), back_end, *counter)
    };
    let entries = (0..1 << mask.count_ones()).zip(turns.iter().cycle()).map(deal);
    base.per_entry_bits(Field::Ipv4Src, mask.into()).entries(entries)
}

/// Lists each back end once, then those of weight 2 and more again, and so on, so that equal weights
/// alternate.
fn turns<'a>(rows: &'a [(&'a BackEnd, CounterId)]) -> Vec<&'a (&'a BackEnd, CounterId)> {
    let most = rows.iter().map(|(back_end, _)| back_end.weight).max().unwrap_or(0).min(1 << super::BITS_MAX);
    (0..most).flat_map(|round| rows.iter().filter(move |(back_end, _)| back_end.weight > round)).collect()
}

/// Spreads the low bits of `value` over the bits set in `mask`.
#[must_use]
pub fn spread(value: u32, mask: u32) -> u32 {
    let places = (0..32).filter(|bit| mask & 1 << bit != 0);
    places.enumerate().map(|(from, to)| (value >> from & 1) << to).sum()
}

fn entry(given: impl Into<EntryMatch>, back_end: &BackEnd, counter: CounterId) -> Entry {
    Entry::on(given).value(back_end.mac).counter(counter).origin(back_end.origin)
}
