//! A client reuses the port of a connection that has ended for another connection (RFC 1122 §4.2.2.13). Its
//! SYN ends the flow, so that the new connection is a separate one: a back end is chosen for it, and it is
//! counted (pipes.md C15).
//!
//! The packet that ends a connection may be in the same batch as the SYN that follows. Such a batch is
//! handled packet by packet, because states change as packets are counted; all other batches cost a
//! comparison.

use super::Flows;
use crate::pipes::lookup::Lookup;
use weir_packet::Bits;
use weir_program::Learn;
use weir_program::owner::Side;
use weir_table::{Decision, DeltaReason, Flow, FlowState};

/// For a probe, the rows of the flows that its packet would end. They still exist, but the new flow does not
/// see them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ending {
    row: Option<u32>,
    other: Option<u32>,
}

impl Ending {
    /// Whether the flow of a row would end.
    pub fn has(self, row: u32) -> bool {
        self.row == Some(row) || self.other == Some(row)
    }

    /// Returns how many flows would end.
    pub fn flows(self) -> usize {
        usize::from(self.row.is_some()) + usize::from(self.other.is_some())
    }

    /// Returns the row of the flow that packets began.
    pub fn row(self) -> Option<u32> {
        self.row
    }
}

impl Flows {
    /// Whether a packet of a batch may open a connection because it meets a flow that has ended by then.
    /// `known` are the packets of `able` whose flows were found when the batch arrived.
    #[inline]
    pub(super) fn may_reopen(&self, (able, known): (u64, u64), flows: &[u32; 64], look: &Lookup<'_>) -> bool {
        let keys = look.packets.keys(self.source);
        let opening = able & keys.opens;
        if opening == 0 || !self.by_state || self.learn == Learn::Nothing {
            return false;
        }
        let is_repeated = |slot: usize, before: u64| {
            Bits(able & !known & before).any(|earlier| keys.table[earlier] == keys.table[slot])
        };
        Bits(opening).any(|slot| {
            let before = (1 << slot) - 1;
            let closes_before = able & keys.closes & before != 0;
            match known >> slot & 1 == 1 {
                true => closes_before || self.has_ended(flows[slot]),
                false => closes_before && is_repeated(slot, before),
            }
        })
    }

    /// Handles all packets of a batch in order of arrival, each after the one before was counted. Returns
    /// those that have a row.
    #[cold]
    pub(super) fn one_by_one(&mut self, able: u64, look: &mut Lookup<'_>, flows: &mut [u32; 64]) -> u64 {
        let packets = look.packets;
        let keys = packets.keys(self.source);
        let mut hits = 0;
        for slot in Bits(able) {
            if keys.opens >> slot & 1 == 1
                && let Some(at) = self.table.get(keys.table[slot], &keys.key[slot])
                && self.has_ended(at)
            {
                self.reopen(at, hits, flows);
            }
            let hit = u64::from(self.learn_one(slot, look, flows)) << slot;
            self.meet(hit, flows, look);
            hits |= hit;
        }
        hits
    }

    /// Whether the connection of a flow has ended, as far as can be seen, so that a SYN opens another one. If
    /// answers are learnt, both directions are seen; otherwise the only visible one must have closed.
    pub(super) fn has_ended(&self, at: u32) -> bool {
        let Some(flow) = self.table.flow(at).filter(|flow| self.is_alive(flow)) else { return false };
        let has_ended = match flow.state().together(self.other_direction(at).map(Flow::state)) {
            FlowState::TcpFin | FlowState::TcpRst => true,
            FlowState::TcpHalfClosed => !self.reverse,
            FlowState::Single | FlowState::Stream | FlowState::TcpSyn | FlowState::TcpEstablished => false,
        };
        has_ended && self.side_of(flow) == Side::Client && !self.own.contains_key(flow.key())
    }

    /// Ends the flow of a row, and that of its answers, if there is room for both deltas; otherwise the SYN
    /// joins the flow. The packets of `done` have been handled, but their actions have not run, so they keep
    /// what those flows kept.
    fn reopen(&mut self, at: u32, done: u64, flows: &[u32; 64]) {
        let ending = self.ending_with(at);
        if self.deltas.len() + ending.flows() > self.room {
            return;
        }
        if let Some(values) = &mut self.values {
            Bits(done).filter(|&slot| ending.has(flows[slot])).for_each(|slot| values.set_apart(slot));
        }
        for row in [ending.row, ending.other].into_iter().flatten() {
            self.clear(row, DeltaReason::Reopened);
        }
    }

    /// Returns the flows that end together with the flow of a row.
    pub(super) fn ending_with(&self, at: u32) -> Ending {
        let is_alive = |row: &u32| self.table.flow(*row).is_some_and(|flow| self.is_alive(flow));
        Ending { row: Some(at), other: self.other_row(at).filter(is_alive) }
    }

    /// Returns how many live flows a target has. `target` is its number over all groups.
    #[inline]
    pub(super) fn flows_of_target(&self, target: u32) -> u32 {
        let active = self.decided.census().active(target);
        let Some(flow) = self.ending.row().and_then(|row| self.table.flow(row)) else { return active };
        let ends = match flow.decision() {
            Decision::Pinned(number) => self.decided.belonging(number).is_some_and(|of| of.target == target),
            Decision::Group(_) | Decision::Cached(_) => false,
        };
        active.saturating_sub(u32::from(ends))
    }

    /// Whether the flow of a row is live and stays so.
    pub(super) fn stays(&self, at: u32) -> bool {
        let is_alive = self.table.flow(at).is_some_and(|flow| self.is_alive(flow));
        is_alive && !self.ending.has(at)
    }
}
