//! Entries of a compiled pipe: inserted, updated, removed, aged, listed. Never on the packet path.

use crate::batch::compile::CompiledPipe;
use crate::batch::rows::{EntryRow, RUN_TIME, Rows};
use crate::change::{ChangeError, EntryKey};
use crate::pipes::flow::Flows;
use crate::pipes::table::{Refusal, with_rows};
use crate::program::Entry;
use crate::worker::PipeReport;

/// Idle run-time entries removed in one breath, at up to a microsecond each. Their rows stay where they are,
/// so the sweep goes on behind them.
const REMOVED_MAX: u32 = 64;

/// Why an entry of a pipe whose flows keep values cannot get another action.
pub const OTHER_ACTION: &str = "flows keep values of its action: remove it and add it with the other one";

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
        })?;
        if let Some(changed) = &mut self.settling {
            changed.entry(EntryKey::of(entry)).or_insert(false);
        }
        Ok(())
    }

    /// Replaces template, values, forward, counter and meter of the entry with the same key.
    ///
    /// # Errors
    /// There is no such entry.
    pub fn update(&mut self, entry: &Entry) -> Result<(), ChangeError> {
        let at = self.table.find(&EntryKey::of(entry)).ok_or_else(|| self.not_found())?;
        if let Some(flows) = self.table.flows_mut() {
            if !flows.admits_template(at, entry.template) {
                return Err(self.refused(Refusal::Unfit(OTHER_ACTION.into())));
            }
            flows.set_entry(at, entry);
        }
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
        if let Some(changed) = &mut self.settling {
            changed.entry(key.clone()).or_insert(true);
        }
        Ok(())
    }

    /// Returns every entry with its counts.
    #[must_use]
    pub fn entries(&self) -> Vec<(Entry, EntryRow)> {
        (0..self.places()).filter_map(|place| self.entry_in(place)).collect()
    }

    /// Returns the entry in a place, with its counts. Places are in the order in which entries are listed,
    /// and an entry keeps its place as long as nothing is inserted or removed.
    #[must_use]
    pub fn entry_in(&self, place: u32) -> Option<(Entry, EntryRow)> {
        let (key, at) = self.table.at_place(&self.slab, place)?;
        let row = *self.row(at);
        let entry = self.actions.entry(row, &self.wide);
        Some((Entry { matches: key.matches, priority: key.priority, ..entry }, row))
    }

    /// Returns how many places there are to look for entries.
    #[must_use]
    pub fn places(&self) -> u32 {
        self.table.places(&self.slab)
    }

    /// Returns true if there may be a run-time entry in a place; costs little.
    #[must_use]
    pub fn is_run_time(&self, place: u32) -> bool {
        self.row(self.table.row_at(place)).is_run_time()
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

    /// Looks at the next `rows` places for run-time entries that no packet has hit for longer than the pipe's
    /// timeout, and removes them: up to [`REMOVED_MAX`], unless everything is aged at once.
    pub fn age_entries(&mut self, rows: u32, now_ms: u32) {
        let timeout = self.idle_timeout_ms;
        if timeout == 0 || self.settling.is_some() {
            return;
        }
        let end = self.places();
        let start = if self.aged < end { self.aged } else { 0 };
        self.aged = start.saturating_add(rows).min(end);
        let mut room = if rows == u32::MAX { u32::MAX } else { REMOVED_MAX };
        for place in start..self.aged {
            // A removed row looks like a configured one.
            let row = self.row(self.table.row_at(place));
            if !row.is_run_time() || now_ms.wrapping_sub(row.last) <= timeout {
                continue;
            }
            if room == 0 {
                self.aged = place;
                return;
            }
            let Some((key, _)) = self.table.at_place(&self.slab, place) else { continue };
            room -= 1;
            // It is there, so this cannot fail.
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
    pub fn row(&self, at: u32) -> &EntryRow {
        with_rows!(self [&], rows => rows.at(at))
    }

    /// Returns a row for modification.
    pub fn row_mut(&mut self, at: u32) -> &mut EntryRow {
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
        let flows = self.table.flows().map(Flows::timeouts_ms).into_iter().flatten();
        flows.chain([self.idle_timeout_ms]).filter(|timeout| *timeout != 0)
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
