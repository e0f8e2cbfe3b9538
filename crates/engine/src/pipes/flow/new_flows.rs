//! Chooses the targets of new flows in turn, or by the number of flows that targets have, where their group
//! is configured for this.
//!
//! A connection must not be split. A packet that is not its first goes where the hash says, as the earlier
//! ones did if there was no room for their flow. For TCP, the flags show whether a packet is the first; for
//! other protocols, this depends on whether the table was full recently.

use super::Flows;
use crate::pipes::lookup::{Lookup, NO_ROW};
use crate::pipes::targets;
use weir_packet::PROTOCOL_TCP;
use weir_program::Learn;
use weir_program::buckets::Choice;
use weir_program::{NewFlows, Program};
use weir_table::{FlowState, NO_TARGET, seeded};

/// Marks a group of which no flow has had a turn yet.
const NOT_BEGUN: u64 = u64::MAX;

/// How targets are chosen for the flows of a pipe.
#[derive(Clone, Debug, Default)]
pub struct NewFlowState {
    /// Whether any group may choose targets other than by the hash.
    pub chooses: bool,
    /// The place of the next turn of each group, by its position; empty if no group has turns.
    turns: Vec<u64>,
    /// When the table last had no room for a flow.
    pub full_ms: Option<u32>,
}

impl NewFlowState {
    /// Creates the state for a pipe.
    pub fn new(program: &Program, learn: Learn) -> NewFlowState {
        let Learn::Pin(choice) = learn else { return NewFlowState::default() };
        let has = |wanted: fn(NewFlows) -> bool| {
            targets::groups(program, choice).any(|id| wanted(program.groups[id.index()].new_flows))
        };
        let turns = if has(|one| one == NewFlows::RoundRobin) { program.groups.len() } else { 0 };
        NewFlowState {
            chooses: has(|one| one != NewFlows::Hash),
            turns: vec![NOT_BEGUN; turns],
            full_ms: None,
        }
    }

    /// Returns the place of a group's next turn, out of `places`. The first one is where the hash says, so
    /// that workers do not all begin with the same target.
    fn turn(&self, group: usize, hash: u64, places: usize) -> usize {
        match self.turns.get(group) {
            Some(&NOT_BEGUN) | None => (((hash >> 32) * places as u64) >> 32) as usize,
            Some(turn) => (turn % places as u64) as usize,
        }
    }

    /// Returns the turns of all groups, by their positions: `None` where none was taken.
    #[must_use]
    pub fn turns(&self) -> Vec<Option<u64>> {
        self.turns.iter().map(|&turn| (turn != NOT_BEGUN).then_some(turn)).collect()
    }
}

impl Flows {
    /// Returns the row of the target that a packet's flow gets if it is learnt now; [`NO_ROW`] if there is
    /// none, or if metadata chooses no group.
    #[inline]
    pub(super) fn pick_new(&self, slot: usize, look: &Lookup<'_>) -> u32 {
        if let Some(row) = self.recall(slot, look) {
            return row;
        }
        if !self.new_flows.chooses || self.grouped >> slot & 1 == 0 || self.goes_by_hash(slot, look) {
            return self.pick(slot, look);
        }
        let keys = look.packets.keys(self.source);
        let at = usize::from(self.chosen[slot]);
        let Some(group) = look.groups.get(at) else { return NO_ROW };
        let hash = group.hash(keys.select(slot, look.reading));
        let target = match group.choice() {
            Choice::Hash => return self.pick(slot, look),
            Choice::Turns(turns) => match turns.len() {
                0 => NO_TARGET,
                places => turns[self.new_flows.turn(at, hash, places)],
            },
            Choice::Weights(weights) => {
                let buckets = group.held.buckets();
                let first = buckets.pick(hash);
                match weights.len() {
                    ..=NewFlows::FEW => self.least_of_all(at, weights, first),
                    _ => self.least(at, weights, [first, buckets.pick(seeded(hash, 0))]),
                }
            }
        };
        self.targets.row(at, target)
    }

    /// Returns the row of the target that the packet's source went to last, if that is remembered and the
    /// target accepts new flows.
    #[inline]
    pub(super) fn recall(&self, slot: usize, look: &Lookup<'_>) -> Option<u32> {
        let sources = self.decided.census().sources().filter(|_| self.grouped >> slot & 1 == 1)?;
        let at = usize::from(self.chosen[slot]);
        let group = look.groups.get(at)?;
        let source = look.packets.keys(self.source).key[slot].src();
        let number = sources.recall(at, source, look.now_ms)?;
        let target = number.checked_sub(*self.first_targets.get(at)?)?;
        let target = u16::try_from(target).ok().filter(|&target| group.is_live(target))?;
        Some(self.targets.row(at, target)).filter(|&row| row != NO_ROW)
    }

    /// Remembers the source of a packet whose flow was learnt for a number.
    #[inline]
    pub(super) fn remember(&self, slot: usize, number: u32, look: &Lookup<'_>) {
        let sources = self.decided.census().sources().filter(|_| self.grouped >> slot & 1 == 1);
        if let (Some(sources), Some(of)) = (sources, self.decided.belonging(number)) {
            let source = look.packets.keys(self.source).key[slot].src();
            sources.remember(self.chosen[slot].into(), source, of.target, look.now_ms);
        }
    }

    /// Whether the flow that a packet may begin goes where the hash says, regardless of its group's setting.
    fn goes_by_hash(&self, slot: usize, look: &Lookup<'_>) -> bool {
        let keys = look.packets.keys(self.source);
        if keys.key[slot].protocol() == PROTOCOL_TCP && !keys.seen[slot].is_syn() {
            return true;
        }
        self.new_flows.full_ms.is_some_and(|full_ms| {
            let timeout_ms = self.timeouts_ms[FlowState::Stream as usize];
            timeout_ms == 0 || look.now_ms.wrapping_sub(full_ms) <= timeout_ms
        })
    }

    /// Returns the least loaded of all targets; among equals, the first one from `first` on.
    fn least_of_all(&self, group: usize, weights: &[u32], first: u16) -> u16 {
        let count = weights.len() as u16;
        if first >= count {
            return NO_TARGET;
        }
        let all = (0..count).map(|step| ((usize::from(first) + usize::from(step)) % weights.len()) as u16);
        self.least(group, weights, all)
    }

    /// Returns the target with the fewest flows for its weight, counting the new flow; among equals, the
    /// first one.
    fn least(&self, group: usize, weights: &[u32], candidates: impl IntoIterator<Item = u16>) -> u16 {
        let start = self.first_targets.get(group).copied().unwrap_or_default();
        let mut best = (0, 0, NO_TARGET);
        for target in candidates {
            let weight = weights.get(usize::from(target)).copied().unwrap_or(0);
            if weight == 0 {
                continue;
            }
            let (flows, weight) =
                (u64::from(self.flows_of_target(start + u32::from(target))) + 1, u64::from(weight));
            if best.2 == NO_TARGET || flows * best.1 < best.0 * weight {
                best = (flows, weight, target);
            }
        }
        best.2
    }

    /// Called when the flow of a packet was learnt: the next flow of its group gets the next turn.
    #[inline]
    pub(super) fn took_turn(&mut self, slot: usize, look: &Lookup<'_>) {
        if self.new_flows.turns.is_empty() || self.goes_by_hash(slot, look) {
            return;
        }
        let at = usize::from(self.chosen[slot]);
        if self.grouped >> slot & 1 == 0 {
            return;
        }
        if let Some(group) = look.groups.get(at)
            && let Choice::Turns(turns) = group.choice()
            && !turns.is_empty()
        {
            let hash = group.hash(look.packets.keys(self.source).select(slot, look.reading));
            let turn = self.new_flows.turn(at, hash, turns.len()) as u64;
            if let Some(next) = self.new_flows.turns.get_mut(at) {
                *next = turn + 1;
            }
        }
    }
}
