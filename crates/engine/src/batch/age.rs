//! Work between batches: ages flows and run-time entries, carries out moves of buckets, hands over flow
//! deltas.
//!
//! A single worker removes idle entries itself. With several workers none does: an entry is as old as its
//! youngest replica, so the control plane asks all of them (`worker/aging.rs`).

use super::Engine;
use super::compile::CompiledPipe;
use crate::aggregate::Aggregate;
use crate::pipes::flow::{Flows, IdleSegment};
use crate::ring::DELTAS_MAX;
use weir_program::PipeId;
use weir_program::change::EntryKey;
use weir_program::snapshot::Seen;
use weir_table::{DeltaReason, FlowDelta};

/// The time in which the age of every flow and run-time entry is checked about once, in milliseconds,
/// regardless of the table's size and the pace of breaths.
const AGE_SWEEP_MS: u64 = 1_000;

const NS_PER_MS: u64 = 1_000_000;

/// Maximum number of rows checked in one breath: 50 microseconds for a worker that has slept.
const AGE_ROWS_MAX: u64 = 16_384;

/// Maximum number of entries removed from a pipe in one breath, so that a million of them do not stall it.
const AGED_MAX: usize = 64;

/// Maximum number of flows that leave a pipe's table in one breath; each is a separate cache line in the
/// index. While more are idle, checking all ages takes longer.
const FLOWS_AGED_MAX: usize = 512;

/// Rows of sums of a previous program that are emitted in one breath: the same number as flows above.
const SUMS_ROWS: usize = FLOWS_AGED_MAX / 16;

/// Maximum number of moves checked per group in one breath; a packet that meets a bucket checks its move
/// anyway.
const MOVES_PER_TICK: usize = 1024;

impl Engine {
    /// Ages a slice in proportion to the time since the last one. Part of every breath, at most once per
    /// millisecond.
    pub fn tick(&mut self, now_ns: u64) {
        let now_ms = (now_ns / 1_000_000) as u32;
        let elapsed_ms = now_ms.wrapping_sub(self.ticked_ms);
        if elapsed_ms == 0 {
            return;
        }
        self.ticked_ms = now_ms;
        self.walk.settle(MOVES_PER_TICK, now_ns);
        for (at, pipe) in (0..).zip(&mut self.pipes) {
            let rows = age_rows(pipe.capacity, elapsed_ms);
            if let Some(flows) = pipe.table.flows_mut() {
                flows.set_room_for(FLOWS_AGED_MAX);
            }
            let ages = pipe.present_ages();
            pipe.age_flows((rows, now_ms), &ages);
            if let Some(flows) = pipe.table.flows_mut() {
                flows.set_room(DELTAS_MAX);
                flows.sweep_period(elapsed_ms, now_ns);
            }
            if let Some(sums) = &mut pipe.sums {
                sums.tick(elapsed_ms, now_ns);
            }
            if !self.still && !pipe.shared {
                // Targets have entries in addition to the flows that the capacity is for.
                let rows = age_rows(pipe.capacity.max(pipe.places()), elapsed_ms);
                let expired = pipe.age_entries(rows, now_ms, AGED_MAX);
                if self.is_copied {
                    self.expired.extend(expired.into_iter().map(|key| (PipeId(at), key)));
                }
            }
        }
        for flows in &mut self.leaving {
            flows.set_room_for(FLOWS_AGED_MAX);
            flows.end(age_rows(flows.capacity(), elapsed_ms), now_ms, DeltaReason::Removed);
            flows.set_room(DELTAS_MAX);
        }
        self.left_sums.iter_mut().for_each(|sums| _ = sums.end(SUMS_ROWS, DeltaReason::Removed));
        self.forget_drained();
    }

    /// Makes all removed flows leave at once.
    pub fn clear_removed(&mut self) {
        self.each_flows(|flows| flows.set_room(usize::MAX));
        self.each_flows(|flows| (0..2).for_each(|_| flows.leave_removed(u32::MAX)));
        for flows in &mut self.leaving {
            (0..2).for_each(|_| _ = flows.end(u32::MAX, 0, DeltaReason::Removed));
        }
        self.each_flows(|flows| flows.set_room(DELTAS_MAX));
    }

    /// Ages everything at once.
    pub fn age(&mut self, now_ns: u64) {
        let now_ms = (now_ns / 1_000_000) as u32;
        self.walk.settle(usize::MAX, now_ns);
        self.each_flows(|flows| flows.set_room(usize::MAX));
        for pipe in &mut self.pipes {
            // From where the last breath stopped to the last row, and then from the first. All flows go
            // before the entries, because removing an entry would remove its flows.
            let ages = pipe.present_ages();
            (0..2).for_each(|_| pipe.age_flows((u32::MAX, now_ms), &ages));
            (0..2).for_each(|_| drop(pipe.age_entries(u32::MAX, now_ms, usize::MAX)));
            if let Some(flows) = pipe.table.flows_mut() {
                flows.end_period(now_ms);
            }
            if let Some(sums) = &mut pipe.sums {
                sums.end(usize::MAX, DeltaReason::Interval);
            }
        }
        self.clear_removed();
    }

    /// Sets whether other workers have replicas of the entries.
    pub fn share_entries(&mut self, shared: bool) {
        self.shared = shared;
        self.pipes.iter_mut().for_each(|pipe| pipe.shared = shared);
    }

    /// Returns up to `most` run-time entries that have been idle here for longer than their timeout. Looks at
    /// one slice of the rows per call.
    pub fn idle_entries(&mut self, most: usize, now_ns: u64) -> Vec<(PipeId, EntryKey)> {
        let now_ms = (now_ns / NS_PER_MS) as u32;
        let mut idle = Vec::new();
        for (at, pipe) in self.pipes.iter_mut().enumerate() {
            let keys = pipe.idle_entries(AGE_ROWS_MAX as u32, now_ms, most - idle.len());
            idle.extend(keys.into_iter().map(|key| (PipeId(at as u16), key)));
        }
        idle
    }

    /// Returns what some entries have counted here, and when a packet last hit them.
    #[must_use]
    pub fn seen(&self, keys: &[(PipeId, EntryKey)], now_ns: u64) -> Vec<Option<Seen>> {
        let now_ms = (now_ns / NS_PER_MS) as u32;
        keys.iter().map(|(pipe, key)| self.pipes.get(pipe.index())?.seen(key, now_ms)).collect()
    }

    /// Makes entries as young as their replicas on other workers.
    pub fn rejuvenate(&mut self, keys: &[(PipeId, EntryKey, u32)]) {
        for (pipe, key, last_ms) in keys {
            if let Some(pipe) = self.pipes.get_mut(pipe.index()) {
                pipe.rejuvenate(key, *last_ms);
            }
        }
        self.clear_removed();
    }

    /// Makes flows leave the table because the worker stops, as long as there is room for their deltas.
    /// Returns true once all have left; otherwise the deltas must be taken first.
    pub fn end_flows(&mut self) -> bool {
        let now_ms = self.ticked_ms;
        let mut all = true;
        self.each_flows(|flows| {
            flows.end(u32::MAX, now_ms, DeltaReason::Stopped);
            all &= flows.end(u32::MAX, now_ms, DeltaReason::Stopped);
        });
        self.each_sums(|sums| all &= sums.end(usize::MAX, DeltaReason::Stopped));
        all
    }

    pub(super) fn each_sums(&mut self, each: impl FnMut(&mut Aggregate)) {
        let own = self.pipes.iter_mut().filter_map(|pipe| pipe.sums.as_deref_mut());
        own.chain(self.left_sums.iter_mut().map(Box::as_mut)).for_each(each);
    }

    pub(super) fn each_flows(&mut self, each: impl FnMut(&mut Flows)) {
        let own = self.pipes.iter_mut().filter_map(|pipe| pipe.table.flows_mut());
        own.chain(self.leaving.iter_mut().map(Box::as_mut)).for_each(each);
    }

    /// Drops flows of previous programs that have nothing left to report.
    fn forget_drained(&mut self) {
        let past = &mut self.past;
        self.leaving.retain(|flows| {
            let drained = flows.is_drained();
            if drained {
                past.add(&flows.account);
            }
            !drained
        });
        self.left_sums.retain(|sums| {
            let drained = sums.is_drained();
            if drained {
                past.add(&sums.account);
            }
            !drained
        });
    }

    /// Returns when the next flow or run-time entry expires if no packet hits it, in nanoseconds. Looks at
    /// all of them: for a caller that wants to sleep until then.
    #[must_use]
    pub fn next_age_ns(&self, now_ns: u64) -> Option<u64> {
        let now_ms = now_ns / NS_PER_MS;
        let rest_ms = self.pipes.iter().filter_map(|pipe| pipe.rest_ms(now_ms as u32)).min()?;
        Some((now_ms + u64::from(rest_ms)) * NS_PER_MS)
    }

    /// Returns the shortest timeout of the program: nothing learnt now expires earlier.
    #[must_use]
    pub fn least_timeout_ns(&self) -> Option<u64> {
        let least_ms = self.pipes.iter().flat_map(CompiledPipe::timeouts_ms).min()?;
        Some(u64::from(least_ms) * NS_PER_MS)
    }

    /// Returns true while deltas wait.
    pub fn has_deltas(&mut self) -> bool {
        let mut any = false;
        self.each_flows(|flows| any |= flows.has_deltas());
        self.each_sums(|sums| any |= sums.has_deltas());
        any
    }

    /// Passes the newest segments of connections that have been idle too long to `sink`, which leads to their
    /// apps, as long as it accepts them.
    pub fn take_idle(&mut self, mut sink: impl FnMut(&IdleSegment) -> bool) {
        let flows = self.pipes.iter_mut().filter_map(|pipe| pipe.table.flows_mut());
        flows.for_each(|flows| flows.take_idle(&mut sink));
    }

    /// Passes the waiting flow deltas to `sink`, as long as it accepts them.
    pub fn take_deltas(&mut self, mut sink: impl FnMut(FlowDelta) -> bool) {
        self.each_flows(|flows| flows.take_deltas(&mut sink));
        self.each_sums(|sums| sums.take_deltas(&mut sink));
    }
}

/// Returns how many rows of a table of `capacity` flows to check after `elapsed_ms`.
fn age_rows(capacity: u32, elapsed_ms: u32) -> u32 {
    (u64::from(capacity) * u64::from(elapsed_ms)).div_ceil(AGE_SWEEP_MS).min(AGE_ROWS_MAX) as u32
}
