//! The pipes that choose a back end and send packets to it. Services share them: metadata chooses a service's
//! group, and each way of choosing has one pipe with entries for the back ends of all services that choose
//! this way.

use super::NAME;
use super::actions::Action;
use super::service::{BackEnd, By, Mode, Service};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use weir_packet::{Field, KeySource};
use weir_program::builder::ProgramBuilder;
use weir_program::{
    Fill, FlowState, GroupChoice, HashInput, Learn, NatPool, NatPoolId, NewFlows, Origin, OwnedBy, Pipe,
    Timeouts,
};

/// The metadata that carries the number of a service's group.
pub(super) const META: u8 = 0;

/// The maximum number of pipes that keep flows, one for each set of timeouts.
pub(super) const TIMEOUTS_MAX: usize = 8;

/// A pipe that chooses back ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Chooser {
    /// By flow: flows stay with their back end, and their addresses are not changed.
    Flows(Timeouts),
    /// By flow: flows stay with their back end, and their addresses may be translated.
    Translated(Translated),
    /// Each packet is assigned by its 5-tuple.
    Hash,
    /// Each packet is assigned by its source address; true means IPv6.
    Source(bool),
    /// Each packet is assigned by its source address and destination port; true means IPv6.
    SourcePort(bool),
    /// Each packet is assigned by the bits of its IPv4 source address under this mask.
    SourceBits(u32),
    /// ICMP errors, assigned like the client's packets that they are about, where the source address chooses.
    Errors(ErrorsBy),
}

/// The field of the packet inside an ICMP error that chooses, as the source address does for a client's
/// packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ErrorsBy {
    /// The client's address; true means IPv6.
    Source(bool),
    /// The client's address and the service's port; true means IPv6.
    SourcePort(bool),
    /// The bits of the client's IPv4 address under this mask.
    SourceBits(u32),
}

/// A table of flows and their answers, which return through weir.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Translated {
    /// With new destinations, of IPv6 or IPv4.
    Destination(bool),
    /// With new sources as well, from this pool.
    Both(NatPoolId, bool),
}

impl Translated {
    /// Returns the table of a service's flows, if they are translated.
    pub fn of(service: &Service) -> Option<Translated> {
        let any = |nat: fn(&BackEnd) -> bool| service.back_ends.iter().any(nat);
        match service.nat_pool {
            Some(pool) => Some(Translated::Both(pool, service.has(true))),
            None => any(|one| one.mode.is_nat()).then(|| Translated::Destination(service.has(true))),
        }
    }
}

impl Translated {
    /// Whether its flows use IPv6.
    pub fn is_ipv6(self) -> bool {
        let (Translated::Destination(ipv6) | Translated::Both(_, ipv6)) = self;
        ipv6
    }
}

impl Chooser {
    /// Returns the pipe for packets of a service, of IPv6 or IPv4.
    pub fn of(service: &Service, ipv6: bool) -> Chooser {
        match (service.by, Translated::of(service)) {
            (By::FiveTuple, Some(translated)) if !service.stateless => Chooser::Translated(translated),
            (By::FiveTuple, None) if !service.stateless => Chooser::Flows(service.timeouts),
            (By::FiveTuple, _) => Chooser::Hash,
            (By::Source, _) => Chooser::Source(ipv6),
            (By::SourcePort, _) => Chooser::SourcePort(ipv6),
            (By::SourceBits(mask), _) => Chooser::SourceBits(mask),
        }
    }

    /// Returns the pipe for ICMP errors about packets of a service. An error has the flow key of the packet
    /// that it is about (pipes.md M9), but a different source address.
    pub fn of_errors(service: &Service, ipv6: bool) -> Chooser {
        match Chooser::of(service, ipv6) {
            Chooser::Source(ipv6) => Chooser::Errors(ErrorsBy::Source(ipv6)),
            Chooser::SourcePort(ipv6) => Chooser::Errors(ErrorsBy::SourcePort(ipv6)),
            Chooser::SourceBits(mask) => Chooser::Errors(ErrorsBy::SourceBits(mask)),
            by_key => by_key,
        }
    }

    /// Returns the pipes for packets of a service and for ICMP errors about them.
    pub fn all_of(service: &Service, ipv6: bool) -> Vec<Chooser> {
        let mut all = vec![Chooser::of(service, ipv6), Chooser::of_errors(service, ipv6)];
        all.dedup();
        all
    }

    /// Returns its name, which does not depend on other services: a flow survives a reload if the new program
    /// has a pipe of that name.
    pub fn name(self, program: &ProgramBuilder) -> String {
        self.name_in(&program.nat_pools)
    }

    /// Returns the same, given the program's NAT pools.
    pub fn name_in(self, nat_pools: &[NatPool]) -> String {
        let family = |ipv6| if ipv6 { "v6" } else { "v4" };
        match self {
            Chooser::Flows(timeouts) => format!("{NAME}/flows{}", differences(timeouts)),
            Chooser::Translated(Translated::Destination(ipv6)) => format!("{NAME}/nat/{}", family(ipv6)),
            Chooser::Translated(Translated::Both(pool, _)) => {
                format!("{NAME}/full_nat/{}", nat_pools[pool.index()].name)
            }
            Chooser::Hash => format!("{NAME}/hash"),
            Chooser::Source(ipv6) => format!("{NAME}/source/{}", family(ipv6)),
            Chooser::SourcePort(ipv6) => format!("{NAME}/source+dport/{}", family(ipv6)),
            Chooser::SourceBits(mask) => format!("{NAME}/src/{}", Ipv4Addr::from_bits(mask)),
            Chooser::Errors(by) => {
                let packets = match by {
                    ErrorsBy::Source(ipv6) => Chooser::Source(ipv6),
                    ErrorsBy::SourcePort(ipv6) => Chooser::SourcePort(ipv6),
                    ErrorsBy::SourceBits(mask) => Chooser::SourceBits(mask),
                };
                format!("{}/errors", packets.name_in(nat_pools))
            }
        }
    }

    /// Returns the pipe without actions and entries.
    pub fn blank(self, program: &ProgramBuilder, flows: u32, timeouts: Timeouts) -> Pipe {
        let name = self.name(program);
        let choice = GroupChoice::ByMeta(META);
        let hash = |fields: Vec<Field>| {
            let fields = fields.into_iter().map(|field| (field, field.max())).collect();
            Pipe::hash(name.clone(), HashInput::Fields(fields), choice)
        };
        let source = |ipv6| if ipv6 { Field::Ipv6Src } else { Field::Ipv4Src };
        let client = |ipv6| if ipv6 { Field::ErrorV6Dst } else { Field::ErrorV4Dst };
        let pinned = || Pipe::flow(name.clone(), Learn::Pin(choice)).timeouts(timeouts).capacity(flows);
        match self {
            Chooser::Flows(_) => pinned(),
            // Answers come from a different address than the one clients send to, and go to the same client.
            Chooser::Translated(Translated::Destination(_)) => pinned().reverse(true).owner(OwnedBy::Client),
            Chooser::Translated(Translated::Both(pool, _)) => pinned().reverse(true).nat(pool),
            Chooser::Hash => Pipe::hash(name, HashInput::Select(KeySource::Outer), choice),
            Chooser::Source(ipv6) => hash(vec![source(ipv6)]),
            Chooser::SourcePort(ipv6) => hash(vec![source(ipv6), Field::L4Dport]),
            Chooser::SourceBits(mask) => {
                Pipe::basic(name).per_entry(Field::Meta0).per_entry_bits(Field::Ipv4Src, mask.into())
            }
            Chooser::Errors(ErrorsBy::Source(ipv6)) => hash(vec![client(ipv6)]),
            Chooser::Errors(ErrorsBy::SourcePort(ipv6)) => hash(vec![client(ipv6), Field::ErrorSport]),
            Chooser::Errors(ErrorsBy::SourceBits(mask)) => {
                Pipe::basic(name).per_entry(Field::Meta0).per_entry_bits(client(false), mask.into())
            }
        }
    }

    /// Returns the blank pipe, placed in front of this one, that finds back ends by server IDs in QUIC
    /// connection IDs.
    pub fn quic(self, program: &ProgramBuilder) -> Pipe {
        let name = self.name(program);
        let name = format!("{NAME}/quic{}", name.strip_prefix(NAME).unwrap_or_default());
        Pipe::hash(name, HashInput::Quic, GroupChoice::ByMeta(META))
    }

    /// Returns its actions, whether or not they are used. The action for answers is the last one.
    pub fn actions(self) -> Vec<Action> {
        match self {
            Chooser::Translated(Translated::Destination(ipv6)) => {
                Action::direct(true).into_iter().chain(Action::translating(ipv6, false)).collect()
            }
            Chooser::Translated(Translated::Both(_, ipv6)) => Action::translating(ipv6, true),
            Chooser::Flows(_) | Chooser::Hash => Action::direct(true),
            _ => Action::direct(false),
        }
    }
}

/// Whether the back ends of a service can be changed in place. They cannot if they also have entries
/// elsewhere, if clients are remembered with the places of their back ends, or if their entries lead to an
/// app, whose number differs between programs.
pub(super) fn can_grow(service: &Service) -> bool {
    let is_plain = service.by == By::FiveTuple && !service.stateless && service.quic.is_none();
    let forgets = service.affinity.is_none_or(|affinity| affinity.timeout_ns == 0);
    let is_set = service.fill == Fill::Maglev && service.new_flows != NewFlows::RoundRobin;
    let is_movable = |one: &BackEnd| one.vlan.is_none() && one.mode != Mode::Reject;
    is_plain && forgets && is_set && service.back_ends.iter().all(is_movable)
}

/// Returns how the timeouts differ from the defaults, as part of a name.
fn differences(timeouts: Timeouts) -> String {
    let usual = super::service::timeouts(false);
    let mut name = String::new();
    for state in FlowState::ALL.into_iter().filter(|state| timeouts.ns(*state) != usual.ns(*state)) {
        let (before, ms) = (if name.is_empty() { "/" } else { "," }, timeouts.ns(state) / 1_000_000);
        let _ = write!(name, "{before}{}={ms}ms", state.word());
    }
    name
}

/// Returns the distinct timeouts of flows, each with the first service that uses them.
pub(super) fn timeouts(services: &[Service]) -> Vec<(Timeouts, Origin)> {
    let mut all: Vec<(Timeouts, Origin)> = Vec::new();
    for service in services.iter().filter(|service| service.is_sticky()) {
        let kept = Translated::of(service).is_none();
        if kept && !all.iter().any(|(timeouts, _)| *timeouts == service.timeouts) {
            all.push((service.timeouts, service.origin));
        }
    }
    all
}

/// Returns the value of metadata that chooses the group of the service at this position. Numbers are assigned
/// from the top down, because configurations that assign their own numbers start from the bottom.
pub(super) fn number(at: usize) -> u16 {
    u16::MAX - at as u16
}
