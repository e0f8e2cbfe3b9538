//! Measured flows: each reports what it has counted once per period, so that a consumer that adds up deltas
//! knows when they contain all packets of a period.
//!
//! A flow whose counts are from a previous period reports them before it counts the next packet, so no delta
//! has packets of two periods, unless there was no room for the first. The others report in slices. Once all
//! have, the pipe announces it in a separate delta after all others ([`DeltaReason::Swept`]).

use super::Flows;
use super::decided::Decided;
use super::observations::known;
use super::table::belonging_of;
use crate::unflowed::UnflowedReport;
use weir_program::Measured;
use weir_program::snapshot::Unflowed;
use weir_table::{DeltaReason, Flow, FlowDelta, FlowTable, SweepVerdict, Visitor};

/// Maximum time after the end of a period in which the flows are visited, in milliseconds: a quarter of the
/// period if that is shorter.
const SWEEP_MS: u64 = 250;

const NS_PER_MS: u64 = 1_000_000;

/// Maximum number of rows visited in one go: some 50 microseconds.
const ROWS_MAX: u64 = 16_384;

/// The progress of a pipe's measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Period {
    measured: Measured,
    /// When the current period began, in milliseconds: a multiple of its length.
    start_ms: u32,
    /// The row where visits continue.
    next: u32,
    /// Whether all flows have reported what they counted before `start_ms`, and that was announced.
    swept: bool,
    /// Whether `start_ms` was computed from a clock that does not wrap.
    aligned: bool,
    /// What is reported about packets in no flow.
    pub(super) unflowed: UnflowedReport,
}

impl Period {
    pub fn new(measured: Measured) -> Period {
        let (period_ms, packets) = (measured.period_ms.max(1), measured.packets.max(1));
        let measured = Measured { period_ms, packets, ..measured };
        let unflowed = UnflowedReport::default();
        Period { measured, start_ms: 0, next: 0, swept: false, aligned: false, unflowed }
    }

    /// Begins at a multiple of the length, counted by a clock that does not wrap; milliseconds wrap after 49
    /// days.
    fn align(&mut self, now_ns: u64) {
        if !self.aligned {
            let period_ms = u64::from(self.measured.period_ms);
            self.start_ms = (now_ns / NS_PER_MS / period_ms * period_ms) as u32;
            self.aligned = true;
        }
    }

    /// Advances to the period of `now_ms`; `unflowed` counts all packets in no flow so far.
    #[inline]
    pub fn reach(&mut self, now_ms: u32, unflowed: &Unflowed) {
        let since_ms = now_ms.wrapping_sub(self.start_ms);
        if since_ms >= self.measured.period_ms {
            let start_ms = self.start_ms.wrapping_add(since_ms - since_ms % self.measured.period_ms);
            *self = Period { start_ms, next: 0, swept: false, ..*self };
            self.unflowed.end(unflowed);
        }
    }
}

impl Flows {
    /// Makes a flow that is about to count a packet report its counts, if that is due and there is room.
    #[inline]
    pub(super) fn report_due(&mut self, at: u32, now_ms: u32) {
        let Some(Period { start_ms, measured, .. }) = self.period else { return };
        if self.table.is_due(at, (start_ms, measured.packets), now_ms) {
            self.give(at, now_ms, DeltaReason::Interval);
        }
    }

    /// Makes a flow report what it counted in a previous period, before it is refreshed without a packet.
    pub(super) fn report_former_counts(&mut self, at: u32, now_ms: u32) {
        if let Some(period) = &mut self.period {
            period.reach(now_ms, &self.account.unflowed);
            self.report_due(at, now_ms);
        }
    }

    /// Makes flows in the next rows report what they counted in previous periods, in proportion to the time
    /// since the last call, and announces when all have.
    pub fn sweep_period(&mut self, elapsed_ms: u32, now_ns: u64) {
        let Some(mut period) = self.period else { return };
        let now_ms = (now_ns / NS_PER_MS) as u32;
        period.align(now_ns);
        period.reach(now_ms, &self.account.unflowed);
        if !period.swept {
            let within_ms = (u64::from(period.measured.period_ms) / 4).clamp(1, SWEEP_MS);
            let rows = (self.table.capacity() as u64 * u64::from(elapsed_ms)).div_ceil(within_ms);
            period.next = self.report_former((period.next, rows.min(ROWS_MAX) as u32), period, now_ms);
            if self.table.is_end(period.next) && self.deltas.len() < self.room {
                let swept = FlowDelta::swept(period.start_ms, self.of);
                self.deltas.push_back(swept.with_unflowed(period.unflowed.take()));
                period.swept = true;
            }
        }
        self.period = Some(period);
    }

    /// Makes all flows report what they counted in previous periods.
    pub fn end_period(&mut self, now_ms: u32) {
        let Some(mut period) = self.period else { return };
        period.reach(now_ms, &self.account.unflowed);
        self.report_former((0, u32::MAX), period, now_ms);
        self.period = Some(period);
    }

    /// Visits flows from a row on; returns where to continue.
    fn report_former(&mut self, (start, rows): (u32, u32), period: Period, now_ms: u32) -> u32 {
        let Flows { table, hash, decided, deltas, room, of, account, observed: all, .. } = self;
        let (room, of, decided) = (*room, *of, &*decided);
        let give = |row: u32, flow: &Flow| {
            let accepted = deltas.len() < room;
            if accepted {
                let delta = flow.delta(belonging_of(decided, flow, of), DeltaReason::Interval);
                let delta = delta.observing(known(all, row, flow).observed);
                all.iter_mut().for_each(|all| all.give(row, flow));
                account.give(&delta);
                deltas.push_back(delta);
            }
            accepted
        };
        let mut giving = Giving { start_ms: period.start_ms, decided, give };
        table.sweep_from((start, rows, now_ms), |key| hash.hash(&key.0), &mut giving)
    }
}

/// A visit to flows that report counts from before a period.
struct Giving<'a, Give> {
    start_ms: u32,
    decided: &'a Decided,
    give: Give,
}

impl<Give: FnMut(u32, &Flow) -> bool> Visitor for Giving<'_, Give> {
    /// A flow that ended with its entry reports its counts when it leaves.
    fn judge(&self, _: u32, flow: &Flow, _: &FlowTable) -> SweepVerdict {
        match flow.counted_before(self.start_ms) && self.decided.is_alive(flow) {
            true => SweepVerdict::Gives(DeltaReason::Interval),
            false => SweepVerdict::Stays,
        }
    }

    fn accept(&mut self, row: u32, flow: &Flow, _: SweepVerdict) -> bool {
        (self.give)(row, flow)
    }
}
