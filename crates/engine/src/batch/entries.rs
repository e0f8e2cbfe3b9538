//! Entries of a compiled pipe: inserted, updated, removed, aged, listed. Never on the packet path.

use crate::batch::compile::CompiledPipe;
use crate::batch::rows::{EntryRow, RUN_TIME, Rows};
use crate::change::{ChangeError, EntryKey};
use crate::pipes::flow::Flows;
use crate::pipes::table::{Refusal, with_rows};
use crate::program::Entry;
use crate::worker::PipeReport;

impl CompiledPipe {
    /// Inserts an entry that fits the pipe.
    ///
    /// # Errors
    /// The pipe is full, or has an entry with this key; nothing has changed then.
    pub fn enter(&mut self, entry: &Entry, now_ms: u32) -> Result<(), ChangeError> {
        let action = self.actions.intern(entry, &self.wide, &self.plans);
        let flag = if entry.run_time { RUN_TIME } else { 0 };
        let row = EntryRow { packets: 0, bytes: 0, last: now_ms, action: action | flag };
        self.table.insert(&mut self.slab, entry, row, now_ms).map_err(|refusal| {
            self.actions.release(action);
            self.refused(refusal)
        })
    }

    /// Replaces template, values, forward, counter and meter of the entry with the same key.
    ///
    /// # Errors
    /// There is no such entry.
    pub fn update(&mut self, entry: &Entry) -> Result<(), ChangeError> {
        let at = self.table.find(&EntryKey::of(entry)).ok_or_else(|| self.not_found())?;
        let action = self.actions.intern(entry, &self.wide, &self.plans);
        let row = self.row_mut(at);
        let old = row.action();
        row.action = action | (row.action & RUN_TIME);
        self.actions.release(old);
        Ok(())
    }

    /// Removes an entry.
    ///
    /// # Errors
    /// There is no such entry.
    pub fn remove(&mut self, key: &EntryKey) -> Result<(), ChangeError> {
        let row = self.table.remove(&mut self.slab, key).ok_or_else(|| self.not_found())?;
        self.actions.release(row.action());
        Ok(())
    }

    /// Returns every entry with its counts.
    #[must_use]
    pub fn entries(&self) -> Vec<(Entry, EntryRow)> {
        let all = self.table.keys().into_iter().map(|(key, at)| {
            let row = *self.row(at);
            let entry = self.actions.entry(row, &self.wide);
            (Entry { matches: key.matches, priority: key.priority, ..entry }, row)
        });
        all.collect()
    }

    /// Returns the totals.
    #[must_use]
    pub fn report(&self) -> PipeReport {
        let entries = self.table.len();
        let mut report = PipeReport { hits: self.hits, misses: self.misses, entries, ..Default::default() };
        if let Some(flows) = self.table.flows() {
            report.flows = flows.live();
            report.account = flows.account;
        }
        report
    }

    /// Takes over the counts of the same entry in the predecessor.
    pub fn inherit(&mut self, key: &EntryKey, from: EntryRow) -> bool {
        let Some(at) = self.table.find(key) else { return false };
        let row = self.row_mut(at);
        (row.packets, row.bytes, row.last) = (from.packets, from.bytes, from.last);
        true
    }

    /// Looks at the next `rows` rows for a run-time entry that no packet has hit for longer than the pipe's
    /// timeout. If there is one, it and all other such entries are removed.
    pub fn age_entries(&mut self, rows: u32, now_ms: u32) {
        let timeout = self.idle_timeout_ms;
        if timeout == 0 {
            return;
        }
        let end = self.rows_used();
        let start = if self.aged < end { self.aged } else { 0 };
        self.aged = start.saturating_add(rows).min(end);
        // A removed row looks like a configured one.
        let idle = |at: u32| {
            let row = self.row(at);
            row.is_run_time() && now_ms.wrapping_sub(row.last) > timeout
        };
        if !(start..self.aged).any(idle) {
            return;
        }
        let gone = self.table.keys().into_iter().filter(|&(_, at)| idle(at)).map(|(key, _)| key);
        for key in gone.collect::<Vec<EntryKey>>() {
            // It existed a moment ago, so this cannot fail.
            let _ = self.remove(&key);
        }
    }

    /// Removes idle and removed flows in the next `rows` rows of the flow table. Those with a configured
    /// entry start anew.
    pub fn age_flows(&mut self, rows: u32, now_ms: u32) {
        let Some(flows) = self.table.flows_mut() else { return };
        let slab = &self.slab;
        let gone = flows.age(rows, now_ms, |at| !slab.at(at).is_run_time());
        gone.into_iter().for_each(|at| self.actions.release(self.slab.remove(at).action()));
    }

    /// Returns a row.
    fn row(&self, at: u32) -> &EntryRow {
        with_rows!(self [&], rows => rows.at(at))
    }

    /// Returns a row for modification.
    fn row_mut(&mut self, at: u32) -> &mut EntryRow {
        with_rows!(self [&mut], rows => rows.at_mut(at))
    }

    /// Number of rows ever used; the numbers of all rows are below it.
    #[inline]
    pub fn rows_used(&self) -> u32 {
        with_rows!(self [&], rows => rows.used())
    }

    /// Returns in how many milliseconds the next flow or run-time entry goes if no packet hits it.
    pub fn rest_ms(&self, now_ms: u32) -> Option<u32> {
        let timeout = self.idle_timeout_ms;
        let used = if timeout == 0 { 0 } else { self.rows_used() };
        let rows = (0..used).map(|at| self.row(at)).filter(|row| row.is_run_time());
        let rests = rows.map(|row| timeout.saturating_add(1).saturating_sub(now_ms.wrapping_sub(row.last)));
        rests.chain(self.table.flows().and_then(|flows| flows.rest_ms(now_ms))).min()
    }

    /// Iterates over the timeouts of its flows and run-time entries.
    pub fn timeouts_ms(&self) -> impl Iterator<Item = u32> {
        let flows = self.table.flows().map_or(0, Flows::timeout_ms);
        [self.idle_timeout_ms, flows].into_iter().filter(|timeout| *timeout != 0)
    }

    fn not_found(&self) -> ChangeError {
        ChangeError::NotFound { pipe: self.shape.name.clone() }
    }

    fn refused(&self, refusal: Refusal) -> ChangeError {
        let pipe = self.shape.name.clone();
        match refusal {
            Refusal::Full => ChangeError::Full { pipe, capacity: self.capacity },
            Refusal::Exists => ChangeError::Exists { pipe },
            Refusal::Unfit(why) => ChangeError::Unfit { pipe, why },
        }
    }
}
