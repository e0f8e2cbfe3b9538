//! The target of a new flow, where the flow's group does not leave the choice to the hash: sentences M24 to
//! M26; and what is known about flows.

use super::Interpreter;
use super::effect::{Effect, Why};
use super::flow_row::FlowRow;
use super::lookup::{mixed, row_key};
use super::packet::Packet;
use super::reopen::is_for;
use super::source::{FlowSource, FlowsAt};
use super::state::{NS_PER_MS, PipeState, is_over};
use super::trace::Pick;
use std::net::IpAddr;
use weir_packet::{FlowKey, KeySource, select_hash};
use weir_program::nat::Binding;
use weir_program::snapshot::{FlowSnapshot, KeptOperations};
use weir_program::{FlowState, Group, GroupId, NewFlows, PipeId, PipeKind, Timeouts};

/// The protocol number of TCP.
const TCP: u8 = 6;
/// The maximum number of targets in a group of which all are compared.
const SMALL: usize = 16;

impl Interpreter {
    /// Picks the target of a flow that begins now.
    pub(super) fn pick_new(
        &self,
        id: PipeId,
        group: GroupId,
        packet: &Packet,
        key: FlowKey,
        at: FlowsAt<'_>,
    ) -> Pick {
        // The check excludes buckets that move with time here.
        let by_hash = self.pick(group, select_hash(self.program.select_seed, &key.0), Some(key), 0);
        if let Some(pick) = self.recall(id, &by_hash, at) {
            return pick;
        }
        let PipeKind::Flow { key: source, timeouts, .. } = self.program.pipes[id.index()].kind else {
            return by_hash;
        };
        if self.is_not_first(id, packet, key, source, timeouts, at) {
            return by_hash;
        }
        let declared = &self.program.groups[group.index()];
        let named = |target: u16| {
            let target = declared.targets.get(usize::from(target)).map(|one| (target, one.name.clone()));
            Pick { target, ..by_hash.clone() }
        };
        match declared.new_flows {
            NewFlows::Hash => by_hash,
            NewFlows::RoundRobin => {
                let round = round(declared);
                if round.is_empty() {
                    return Pick { target: None, ..by_hash };
                }
                let from_hash = (u128::from(by_hash.hash >> 32) * round.len() as u128) >> 32;
                let turn = at.flows.turn(id, group).unwrap_or(from_hash as u64) % round.len() as u64;
                Pick { turn: Some(turn), bucket: turn as usize, ..named(round[turn as usize]) }
            }
            NewFlows::LeastFlows => {
                let first = by_hash.target.as_ref().map(|(target, _)| usize::from(*target));
                let candidates =
                    first.map_or_else(Vec::new, |first| self.candidates(group, first, by_hash.hash));
                let flows = |target: usize| at.flows.flows_of(id, group, target as u16);
                // The load that each target would have, as a fraction: among equals, `min_by` takes the
                // first.
                let load = |&target: &usize| Some((flows(target) + 1, declared.targets.get(target)?.weight));
                let able = candidates.into_iter().filter(|at| load(at).is_some_and(|(_, weight)| weight > 0));
                let best = able.min_by(|one, other| {
                    let (one, other) = (load(one).unwrap_or_default(), load(other).unwrap_or_default());
                    (u128::from(one.0) * u128::from(other.1)).cmp(&(u128::from(other.0) * u128::from(one.1)))
                });
                match best {
                    Some(best) => Pick { fewest: Some(flows(best)), ..named(best as u16) },
                    None => Pick { target: None, ..by_hash },
                }
            }
        }
    }

    /// Returns the candidates among which a flow takes the target with the fewest flows: all targets of a
    /// small group, or two of a large one.
    fn candidates(&self, group: GroupId, first: usize, hash: u64) -> Vec<usize> {
        let count = self.program.groups[group.index()].targets.len();
        if count <= SMALL {
            return (0..count).map(|step| (first + step) % count).collect();
        }
        let slots = &self.buckets[group.index()];
        let other = (u128::from(mixed(hash) >> 32) * slots.len() as u128) >> 32;
        vec![first, usize::from(slots[other as usize])]
    }

    /// Picks the target that the source of a packet went to last: sentence M31.
    pub(super) fn recall(
        &self,
        id: PipeId,
        by_hash: &Pick,
        FlowsAt { flows, now_ns }: FlowsAt<'_>,
    ) -> Option<Pick> {
        let (group, (source, _)) = (by_hash.group, by_hash.source?);
        let declared = &self.program.groups[group.index()];
        let target = flows.recalled(id, group, source, now_ns)?;
        let choice = self.program.pipes[id.index()].kind.group()?;
        let has_entry = self.pipes[id.index()].row_of(&row_key(choice, group, target)).is_some();
        let is_live = self.buckets[group.index()].contains(&target);
        let named = (target, declared.targets.get(usize::from(target))?.name.clone());
        (has_entry && is_live).then(|| Pick { remembered: true, target: Some(named), ..by_hash.clone() })
    }

    /// Returns the effect that the target of a new flow's source is remembered.
    pub(super) fn remembers(&self, pipe: PipeId, pick: Option<&Pick>) -> Option<Effect> {
        let Pick { group, source: Some((source, _)), target: Some((target, _)), .. } = pick? else {
            return None;
        };
        let remembers = self.program.groups[group.index()].remembers();
        let effect = Effect::Remember { pipe, group: *group, source: *source, target: *target };
        remembers.then_some(effect)
    }

    /// Whether a packet may not be the first of its flow, although the flow is unknown.
    fn is_not_first(
        &self,
        id: PipeId,
        packet: &Packet,
        key: FlowKey,
        source: KeySource,
        timeouts: Timeouts,
        FlowsAt { flows, now_ns }: FlowsAt<'_>,
    ) -> bool {
        let has_syn = packet.segment(source).is_some_and(|segment| segment.flags & 2 == 2);
        let was_full = flows.full_ms(id).is_some_and(|full_ms| {
            !is_over((now_ns / NS_PER_MS).saturating_sub(full_ms), timeouts.ns(FlowState::Stream))
        });
        was_full || key.protocol() == TCP && !has_syn
    }
}

impl FlowSource for Interpreter {
    fn flow(&self, pipe: PipeId, key: &FlowKey) -> Option<FlowSnapshot> {
        let (state, by_state) = (&self.pipes[pipe.index()], self.by_state(pipe));
        state.flows.get(key).map(|flow| state.seen(key, flow, by_state))
    }

    fn kept(&self, pipe: PipeId, key: &FlowKey) -> Option<KeptOperations> {
        self.pipes[pipe.index()].flows.get(key).map(|flow| flow.kept.clone())
    }

    fn next_binding(&self, pipe: PipeId, key: &FlowKey, freed: Option<Binding>) -> Option<Binding> {
        self.pipes[pipe.index()].nat.next(key, freed)
    }

    fn has_room(&self, pipe: PipeId, flows: usize) -> bool {
        let capacity = self.program.pipes[pipe.index()].capacity as usize;
        self.pipes[pipe.index()].flows.len() + flows <= capacity
    }

    fn turn(&self, pipe: PipeId, group: GroupId) -> Option<u64> {
        self.pipes[pipe.index()].new_flow_turns.get(&group).copied()
    }

    fn flows_of(&self, pipe: PipeId, group: GroupId, target: u16) -> u64 {
        let one = self.program.pipes[pipe.index()].kind.group() == Some(group.into());
        let is_there = |flow: &&FlowRow| is_for(flow.decision, one, (group, target));
        self.pipes[pipe.index()].flows.values().filter(is_there).count() as u64
    }

    fn recalled(&self, pipe: PipeId, group: GroupId, source: IpAddr, now_ns: u64) -> Option<u16> {
        let timeout_ns = self.program.groups[group.index()].affinity?.timeout_ns;
        let &(target, last_ms) = self.pipes[pipe.index()].sources.get(&(group, source))?;
        // Times count in steps of 1024 ms.
        let steps = now_ns / NS_PER_MS / 1024 - last_ms / 1024;
        (timeout_ns != 0 && steps <= timeout_ns.div_ceil(NS_PER_MS).div_ceil(1024)).then_some(target)
    }

    fn full_ms(&self, pipe: PipeId) -> Option<u64> {
        self.pipes[pipe.index()].full_ms
    }
}

/// Returns the targets of a group in the order of their turns: the next target is always the one whose next
/// turn is due first.
fn round(group: &Group) -> Vec<u16> {
    let weights: Vec<u64> = group.targets.iter().map(|target| target.weight.into()).collect();
    let mut common = 0;
    for &weight in &weights {
        let (mut one, mut other) = (common, weight);
        while other != 0 {
            (one, other) = (other, one % other);
        }
        common = one;
    }
    if common == 0 {
        return Vec::new();
    }
    let mut turns: Vec<u64> = weights.iter().map(|weight| weight / common).collect();
    let (size, total) = (u64::from(group.size), weights.iter().sum::<u64>());
    if turns.iter().sum::<u64>() > size {
        turns = weights.iter().map(|weight| size * weight / total).collect();
        while turns.iter().sum::<u64>() < size {
            // The target with the largest deficit gets one more turn. A target that has gained one has no
            // deficit.
            let lacks = |at: &usize| (size * weights[*at]) as i128 - (turns[*at] * total) as i128;
            let most = (0..weights.len()).rev().max_by_key(lacks).unwrap_or_default();
            turns[most] += 1;
        }
    }
    let mut had = vec![0; turns.len()];
    let mut round = Vec::new();
    while round.len() < turns.iter().sum::<u64>() as usize {
        // The k-th turn of n is due at (2k + 1) / 2n of the round.
        let waits = (0..turns.len()).filter(|&at| had[at] < turns[at]);
        let due = |at: usize, of: usize| u128::from(2 * had[at] + 1) * u128::from(turns[of]);
        let Some(next) = waits.min_by(|&one, &other| due(one, other).cmp(&due(other, one))) else { break };
        round.push(next as u16);
        had[next] += 1;
    }
    round
}

impl PipeState {
    /// Counts a packet that no flow counts.
    pub(super) fn leave_out(&mut self, why: Why, now_ms: u64) {
        let unflowed = &mut self.unflowed;
        match why {
            Why::NoKey => unflowed.no_key += 1,
            Why::NoGroup => unflowed.no_group += 1,
            Why::Unknown => unflowed.unknown += 1,
            Why::IcmpError => unflowed.icmp_error += 1,
            Why::NoTarget => unflowed.no_target += 1,
            Why::Full => (unflowed.full, self.full_ms) = (unflowed.full + 1, Some(now_ms)),
            Why::NoNatPort => unflowed.no_nat_port += 1,
            Why::AnswersTaken => unflowed.answers_taken += 1,
        }
    }
}
