//! Sweeps: visits to the flows of a table, one slice at a time, and what happens to the flows.

use crate::delta::DeltaReason;
use crate::flow::{Flow, FlowTable};
use std::ops::Range;
use weir_packet::FlowKey;

/// What a sweep does with a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepVerdict {
    /// The flow stays as it is.
    Stays,
    /// The flow leaves the table.
    Goes(DeltaReason),
    /// The flow reports its counts and continues.
    Gives(DeltaReason),
    /// The flow reports its counts and restarts.
    Restarts(DeltaReason),
}

/// Visits the flows of a table, see [`crate::FlowTable::sweep`].
pub trait Visitor {
    /// Returns what to do with the flow of a row of `table`.
    fn judge(&self, row: u32, flow: &Flow, table: &FlowTable) -> SweepVerdict;

    /// Accepts the counts of a flow that reports, leaves or restarts. If it refuses them, the flow stays.
    fn accept(&mut self, row: u32, flow: &Flow, fate: SweepVerdict) -> bool;
}

impl FlowTable {
    /// Returns the rows that the next sweep visits, if it visits `rows` rows.
    #[must_use]
    pub fn next_rows(&self, rows: u32) -> Range<u32> {
        let start = if self.sweep_next < self.store.used() { self.sweep_next } else { 0 };
        start..start.saturating_add(rows).min(self.store.used())
    }

    /// Visits the next `rows` rows, starting where the last call stopped and ending at the last row. Carries
    /// out the visitor's verdict on each flow, provided that the visitor accepts the flow's counts. Stops at
    /// a flow whose counts are refused, and starts there the next time. Returns the number of rows visited. A
    /// row without a flow only costs reading one bit. A flow that cannot be found by the given hash stays:
    /// the caller learnt it with a different hash function, and a sweep that stopped there would stop every
    /// later sweep as well.
    pub fn sweep(
        &mut self,
        (rows, now): (u32, u32),
        hash: impl Fn(&FlowKey) -> u64,
        visitor: &mut impl Visitor,
    ) -> u32 {
        let start = self.next_rows(rows).start;
        self.sweep_next = self.sweep_from((start, rows, now), hash, visitor);
        self.sweep_next - start
    }

    /// Visits up to `rows` rows like [`FlowTable::sweep`], for a caller that keeps the position: starts at
    /// row `start` and returns where to continue. [`FlowTable::is_end`] returns true when all rows have been
    /// visited.
    pub fn sweep_from(
        &mut self,
        (start, rows, now): (u32, u32, u32),
        hash: impl Fn(&FlowKey) -> u64,
        visitor: &mut impl Visitor,
    ) -> u32 {
        let end = start.saturating_add(rows).min(self.store.used());
        let mut next = start;
        while let Some(row) = self.store.first_live(next..end) {
            let done = match self.flow(row).map_or(SweepVerdict::Stays, |flow| visitor.judge(row, flow, self))
            {
                SweepVerdict::Stays => true,
                fate @ SweepVerdict::Gives(_) => self.give(row, now, |flow| visitor.accept(row, flow, fate)),
                fate @ SweepVerdict::Restarts(_) => {
                    let done = self.give(row, now, |flow| visitor.accept(row, flow, fate));
                    self.live_mut(row).filter(|_| done).into_iter().for_each(|flow| flow.begin(now));
                    done
                }
                fate @ SweepVerdict::Goes(_) => {
                    let mut refused = false;
                    self.remove(row, &hash, |flow| {
                        refused = !visitor.accept(row, flow, fate);
                        !refused
                    });
                    !refused
                }
            };
            if !done {
                return row;
            }
            next = row + 1;
        }
        end.max(start)
    }

    /// Returns true if no row follows: a sweep that has reached this row has visited all.
    #[must_use]
    pub fn is_end(&self, row: u32) -> bool {
        row >= self.store.used()
    }
}
