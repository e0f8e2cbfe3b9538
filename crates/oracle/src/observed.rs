//! Facts about packets that a measurement needs, besides their number and bytes: sentence C14.

use super::bytes::{Headers, TransportKind, number16};
use super::effect::Effect;
use super::packet::Packet;
use weir_packet::{FlowKey, KeySource, NO_TARGET_OBSERVED, Observed};
use weir_program::snapshot::Count;
use weir_program::{EntryMatch, Group, GroupChoice, GroupId, PipeId, PipeKind, Program};
use weir_table::DeltaReason;

/// The sum over packets of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlowSum {
    pub hits: Count,
    pub observed: Observed,
}

/// A flow that has ended, with what it had counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its pipe.
    pub pipe: PipeId,
    /// Its key.
    pub key: FlowKey,
    /// What it counted.
    pub hits: Count,
    /// What was observed about its packets.
    pub observed: Observed,
    /// Why it ended.
    pub reason: DeltaReason,
}

impl Ended {
    pub(super) fn of(pipe: PipeId, (key, sum, reason): (FlowKey, FlowSum, DeltaReason)) -> Ended {
        Ended { pipe, key, hits: sum.hits, observed: sum.observed, reason }
    }
}

impl FlowSum {
    pub fn one(&mut self, bytes: usize, observed: &Observed) {
        if self.hits.packets == 0 {
            self.observed = *observed;
        } else {
            self.observed.octets += observed.octets;
            self.observed.flags |= observed.flags;
        }
        self.hits.one(bytes);
    }
}

impl Packet {
    /// Returns what a flow of a pipe counts for the packet.
    pub fn counts_in(&self, pipe: PipeId, key: FlowKey, source: KeySource) -> Effect {
        let (segment, observed) = (self.segment(source), self.observed(source));
        let newest = self.newest();
        Effect::Flow { pipe, key, bytes: self.bytes.len(), segment, observed, newest }
    }

    /// Returns what the packet adds to the record of the flow whose key is made from these headers.
    pub fn observed(&self, source: KeySource) -> Observed {
        let inside = self.headers.inner().filter(|inner| source == KeySource::Inner && inner.ip.is_some());
        let headers: &Headers = inside.unwrap_or(&self.headers);
        let Some(ip) = &headers.ip else { return Observed { input: self.input.0, ..Observed::default() } };
        let number = |at: usize| number16(&self.bytes, at).unwrap_or_default();
        let at = |kind| headers.transport_of(kind);
        let icmp = at(TransportKind::Icmp).or(at(TransportKind::Icmpv6)).map_or(0, number);
        let flags = at(TransportKind::Tcp).map_or(0, |tcp| number(tcp + 12) as u8);
        // The second byte of IPv4's header; for IPv6, the four bits after the version and the next four.
        let class = if ip.version == 4 { number(ip.start) as u8 } else { (number(ip.start) >> 4) as u8 };
        // After the TPID.
        let vlan = self.headers.tags.first().map_or(0, |tag| number(tag + 2) & 0xfff);
        let octets = (ip.end - ip.start) as u64;
        Observed { octets, vlan, icmp, flags, class, input: self.input.0, ..Observed::default() }
    }
}

/// The number of the target that a HASH pipe has sent a packet to, counted over all groups.
pub(super) fn target_of(program: &Program, kind: &PipeKind, matches: &[EntryMatch]) -> u32 {
    let PipeKind::Hash { group, .. } = kind else { return NO_TARGET_OBSERVED };
    let (group, target) = match (matches.first(), group) {
        (Some(EntryMatch::Target(target)), GroupChoice::One(GroupId(group))) => (*group, *target),
        (Some(EntryMatch::Member { group: GroupId(group), target }), _) => (*group, *target),
        _ => return NO_TARGET_OBSERVED,
    };
    let before: usize = program.groups.iter().take(group.into()).map(|one: &Group| one.targets.len()).sum();
    before as u32 + u32::from(target)
}
