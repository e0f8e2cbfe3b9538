//! Flows that a program in the kernel follows: the kernel handles and counts their packets, and this table
//! keeps what is known about the flows.
//!
//! A flow is written to the kernel when a packet of it has been counted here. What the kernel has counted is
//! added to the flow's row before anything here reads the row, and at least once a second. When a flow leaves
//! the table, the kernel stops following it, and what it had counted until then leaves in a delta of its own.
//!
//! Costs: nothing for pipes that are not followed. Otherwise 4 bytes for each flow of the table, and for each
//! packet that comes here a look at what the kernel has counted for its flow.

use super::Flows;
use super::table::belonging_of;
use crate::pipes::lookup::{Lookup, NO_ROW};
use std::collections::HashMap;
use std::sync::Arc;
use weir_packet::{Bits, FlowKey};
use weir_program::replica::{FlowCounts, FlowLines, FlowMark, FlowReplica, FlowSlot};
use weir_program::{EntryMatch, GroupChoice, PipeId};
use weir_table::{
    Belonging, Counted, CountedElsewhere, Decision, DeltaReason, Flow, FlowDelta, NO_DELTA_TARGET,
};

/// In place of a slot: the kernel does not follow the flow.
const NONE: u32 = 0;
/// In place of a slot: the flow will be written to the kernel's table.
const WAITING: u32 = u32::MAX;
/// In place of a slot: there was no room for the flow, or its entry was not there yet. Writing it is tried
/// again after a while.
const REFUSED: u32 = u32::MAX - 1;

/// Which of a pipe's flows the kernel follows.
#[derive(Debug)]
pub struct Followed {
    pipe: PipeId,
    lines: Arc<dyn FlowLines>,
    /// The time by the kernel's clock when the engine's clock showed 0; negative if that was before the
    /// host's start.
    origin_ns: i64,
    /// By row: one more than the slot, or what else is known.
    slots: Vec<u32>,
    /// Rows of flows that will be written.
    fresh: Vec<u32>,
    /// Packets after which the kernel may handle the later packets of their flows.
    marks: Vec<FlowMark>,
    /// Slots of flows that have left the table and that the kernel still follows.
    leaving: Vec<FlowSlot>,
    /// Flows that have left the table, whose last counts are to come.
    left: HashMap<FlowSlot, LeftFlow>,
    /// Last counts for which there is no room yet.
    late: Vec<(LeftFlow, FlowCounts)>,
}

/// A flow that has left the table.
#[derive(Clone, Copy, Debug)]
struct LeftFlow {
    key: FlowKey,
    of: Belonging,
    reason: DeltaReason,
}

impl Followed {
    /// Returns the slot of the flow in a row.
    #[inline]
    fn slot(&self, row: u32) -> Option<FlowSlot> {
        match self.slots.get(row as usize).copied() {
            None | Some(NONE | WAITING | REFUSED) => None,
            Some(number) => Some(FlowSlot(number - 1)),
        }
    }

    /// Called when the flow of a row leaves the table, or must no longer be followed.
    pub fn leave(&mut self, row: u32, key: &FlowKey, of: Belonging, reason: DeltaReason) {
        if let Some(slot) = self.slot(row) {
            self.leaving.push(slot);
            self.left.insert(slot, LeftFlow { key: *key, of, reason });
        }
        if let Some(slot) = self.slots.get_mut(row as usize) {
            *slot = NONE;
        }
    }

    /// Returns the kernel's counts in the form of the engine's; `None` if there are none.
    fn counted(&self, counts: &FlowCounts) -> Option<CountedElsewhere> {
        let &FlowCounts { packets, bytes, last_ns, seq } = counts;
        let last = ((last_ns as i64 - self.origin_ns).max(0) / 1_000_000) as u32;
        (packets > 0).then_some(CountedElsewhere { packets, bytes, last, seq })
    }
}

impl Flows {
    /// Lets a program in the kernel follow flows, as flows of this pipe, from now on.
    pub fn follow(&mut self, pipe: PipeId, lines: Arc<dyn FlowLines>, now_ns: u64) {
        self.followed = Some(Box::new(Followed {
            pipe,
            origin_ns: lines.now_ns() as i64 - now_ns as i64,
            lines,
            slots: vec![NONE; self.table.capacity()],
            fresh: Vec::new(),
            marks: Vec::new(),
            leaving: Vec::new(),
            left: HashMap::new(),
            late: Vec::new(),
        }));
    }

    /// Called when the program in the kernel has stopped, and no longer counts anything.
    pub fn follow_no_longer(&mut self) {
        (0..self.capacity()).for_each(|row| self.sweep_row(row));
        let Some(mut followed) = self.followed.take() else { return };
        let lines = &followed.lines;
        followed.late.extend(followed.left.drain().map(|(slot, flow)| (flow, lines.sweep(slot))));
        for (flow, counts) in &followed.late {
            if let Some(counted) = followed.counted(counts) {
                self.push_late(flow, &counted);
            }
        }
    }

    /// Adds what the kernel has counted for the flow of a row.
    #[inline]
    pub(super) fn sweep_row(&mut self, row: u32) {
        let Some(followed) = &self.followed else { return };
        let Some(slot) = followed.slot(row) else { return };
        let Some(counted) = followed.counted(&followed.lines.sweep(slot)) else { return };
        self.account.met += counted.packets;
        self.account.live += counted.packets;
        match self.table.add(row, &counted, self.by_state) {
            Counted::Yes => {}
            Counted::High => self.relieve(row, counted.last),
            Counted::No => {
                self.account.live -= counted.packets;
                self.account.unflowed.delta += counted.packets;
            }
        }
    }

    /// Adds what the kernel has counted for the flow of a row, and for the flow that ages with it.
    #[inline]
    pub(super) fn sweep_both(&mut self, row: u32) {
        self.sweep_row(row);
        self.other_row(row).into_iter().for_each(|other| self.sweep_row(other));
    }

    /// Adds what the kernel has counted for the flows of packets, before they are looked at.
    #[inline]
    pub(super) fn sweep_flows(&mut self, known: u64, flows: &[u32; 64]) {
        if self.followed.is_some() {
            Bits(known).for_each(|slot| self.sweep_both(flows[slot]));
        }
    }

    /// Adds what the kernel has counted for the flows in the next rows that will be aged, and tries again to
    /// write flows that were refused.
    pub(super) fn sweep_next_rows(&mut self, rows: u32) {
        for row in self.table.next_rows(rows) {
            let Some(followed) = &mut self.followed else { return };
            match followed.slots.get_mut(row as usize) {
                Some(slot) if *slot == REFUSED => *slot = NONE,
                Some(slot) if *slot != NONE => self.sweep_both(row),
                Some(_) | None => {}
            }
        }
    }

    /// Returns a flow of the table with what the kernel has counted for it.
    pub(super) fn present(&self, row: u32, flow: &Flow) -> Flow {
        let mut flow = *flow;
        if let Some(followed) = &self.followed
            && let Some(slot) = followed.slot(row)
            && let Some(counted) = followed.counted(&followed.lines.peek(slot))
        {
            flow.add(&counted, self.by_state);
        }
        flow
    }

    /// Whether the kernel handles the packets of the flow in a row.
    pub(super) fn is_in_kernel(&self, row: u32) -> bool {
        let slot = |followed: &Followed| Some(followed.lines.is_active(followed.slot(row)?));
        self.followed.as_deref().and_then(slot).unwrap_or_default()
    }

    /// Returns the flow of the other direction with what the kernel has counted for it.
    pub(super) fn present_other(&self, row: u32) -> Option<Flow> {
        self.other_row(row).zip(self.other_direction(row)).map(|(row, flow)| self.present(row, flow))
    }

    /// Called when a packet has been counted in a flow: the kernel may follow the flow from now on, or may
    /// continue once the packet has been sent.
    #[inline(never)]
    pub(super) fn offer(&mut self, row: u32, slot: usize, look: &Lookup<'_>) {
        let (Some(followed), Some(flow)) = (&mut self.followed, self.table.flow(row)) else { return };
        if let Some(line) = followed.slot(row) {
            let front = look.batch.frame(slot).front();
            let mark = front.and_then(|front| followed.lines.read_mark(front));
            // What the kernel counts must lead to one state, because the engine does not see the packets.
            let is_plain = !self.by_state || flow.state().after_plain_packets().is_some();
            followed.marks.extend(mark.filter(|mark| mark.slot == line && is_plain));
            return;
        }
        let is_reported = !self.first || flow.is_reported();
        if is_reported
            && let Some(place) = followed.slots.get_mut(row as usize).filter(|place| **place == NONE)
            && !self.own.contains_key(flow.key())
        {
            *place = WAITING;
            followed.fresh.push(row);
        }
    }

    /// Called when a flow has got an entry of its own: the kernel no longer follows it.
    pub(super) fn follow_not(&mut self, row: u32) {
        self.sweep_row(row);
        let Flows { followed, table, decided, of, .. } = self;
        if let (Some(followed), Some(flow)) = (followed, table.flow(row)) {
            followed.leave(row, flow.key(), belonging_of(decided, flow, *of), DeltaReason::Overflow);
        }
    }

    /// Informs the kernel of flows that have left and of flows to follow, and takes the last counts of flows
    /// that left earlier. Adds to `marks` the packets after which the kernel may handle the later packets of
    /// their flows.
    pub fn tell_kernel(&mut self, replica: &mut dyn FlowReplica, marks: &mut Vec<FlowMark>) {
        let Some(followed) = &mut self.followed else { return };
        followed.leaving.drain(..).for_each(|slot| replica.remove_flow(slot));
        marks.append(&mut followed.marks);
        let fresh = std::mem::take(&mut followed.fresh);
        for &row in &fresh {
            self.write_to(replica, row);
        }
        if let Some(followed) = &mut self.followed {
            followed.fresh = fresh;
            followed.fresh.clear();
        }
        self.emit_late();
    }

    /// Writes the flow of a row, if it waits for that.
    fn write_to(&mut self, replica: &mut dyn FlowReplica, row: u32) {
        let decided = self.table.flow(row).and_then(|flow| self.entry_of(flow));
        let kept = self.kept_in(row).unwrap_or_default();
        let (Some(followed), Some(flow)) = (&mut self.followed, self.table.flow(row)) else { return };
        let Some(place) = followed.slots.get_mut(row as usize).filter(|place| **place == WAITING) else {
            return;
        };
        let slot = match (decided, flow.decision()) {
            (Some(matches), _) => replica.insert(followed.pipe, flow.key(), Some(&[matches]), &kept),
            (None, Decision::Group(_)) => replica.insert(followed.pipe, flow.key(), None, &kept),
            (None, Decision::Pinned(_) | Decision::Cached(_)) => None,
        };
        *place = slot.map_or(REFUSED, |slot| slot.0 + 1);
    }

    /// Returns the match of the entry that a flow was decided for.
    fn entry_of(&self, flow: &Flow) -> Option<EntryMatch> {
        let Decision::Pinned(number) = flow.decision() else { return None };
        match self.decided.row(number) {
            NO_ROW => return None,
            row if row == self.default_row => return Some(EntryMatch::Default),
            _ => {}
        }
        let of = self.decided.belonging(number).filter(|of| of.target != NO_DELTA_TARGET)?;
        let (group, target) = self.target_numbered(of.target);
        Some(match self.learn.group() {
            Some(GroupChoice::One(_)) => EntryMatch::Target(target),
            Some(GroupChoice::ByMeta(_)) | None => EntryMatch::Member { group, target },
        })
    }

    /// Takes the last counts of a flow that the kernel has stopped following. Returns false for a flow of
    /// another pipe.
    pub fn take_last(&mut self, slot: FlowSlot, counts: &FlowCounts) -> bool {
        let Some(followed) = &mut self.followed else { return false };
        let Some(flow) = followed.left.remove(&slot) else { return false };
        if counts.packets > 0 {
            followed.late.push((flow, *counts));
        }
        true
    }

    /// Emits last counts, as long as there is room for deltas.
    fn emit_late(&mut self) {
        while self.deltas.len() < self.room
            && let Some(followed) = &mut self.followed
            && let Some((flow, counts)) = followed.late.pop()
        {
            if let Some(counted) = followed.counted(&counts) {
                self.push_late(&flow, &counted);
            }
        }
    }

    fn push_late(&mut self, flow: &LeftFlow, counted: &CountedElsewhere) {
        let (counts, last) = ((counted.packets, counted.bytes), counted.last);
        let delta = FlowDelta::new(flow.key, counts, (last, last), flow.of, flow.reason);
        self.account.met += counted.packets;
        self.account.live += counted.packets;
        self.account.give(&delta);
        self.deltas.push_back(delta);
    }
}
