//! Entries of a compiled pipe: inserted, updated, removed, aged, listed. Never on the packet path.

use crate::batch::compile::CompiledPipe;
use crate::batch::rows::{EntryRow, RUN_TIME, Rows};
use crate::pipes::flow::{Ages, Flows};
use crate::pipes::lookup::Refusal;
use crate::pipes::table::Table;
use crate::worker::PipeReport;
use weir_program::change::{ChangeError, EntryKey};
use weir_program::snapshot::{Count, FlowAccount, Page, Seen, is_later};
use weir_program::{Entry, EntryMatch};

/// Why an entry of a pipe whose flows keep values cannot get another action.
pub const OTHER_ACTION: &str = "flows keep values of its action: remove the entry and add it with the other \
    action";

impl CompiledPipe {
    /// Inserts an entry that fits the pipe.
    ///
    /// # Errors
    /// The pipe is full or already has an entry with this key; nothing has changed then.
    pub fn enter(&mut self, entry: &Entry, now_ms: u32) -> Result<(), ChangeError> {
        let action = self.actions.intern(entry, &self.wide, &self.plans);
        self.enter_with(entry, action, now_ms)
    }

    /// The same, with the row of the entry's action, which is released if the entry is refused.
    pub fn enter_with(&mut self, entry: &Entry, action: u32, now_ms: u32) -> Result<(), ChangeError> {
        let flag = if entry.run_time { RUN_TIME } else { 0 };
        let row = EntryRow { packets: 0, bytes: 0, last: now_ms, action: action | flag };
        self.table.insert(&mut self.slab, entry, row, now_ms).map_err(|refusal| {
            self.actions.release(action);
            self.refused(refusal)
        })?;
        if let Some(sums) = &mut self.sums
            && let Some(row) = self.table.find(&EntryKey::of(entry))
        {
            sums.targets.set(row, &entry.matches);
        }
        if let Some(changed) = &mut self.settling {
            changed.entry(EntryKey::of(entry)).or_insert(false);
        }
        Ok(())
    }

    /// Replaces template, values, forward, counter and meter of the entry with the same key.
    ///
    /// # Errors
    /// The pipe has no such entry.
    pub fn update(&mut self, entry: &Entry) -> Result<(), ChangeError> {
        let action = self.prepare_update(entry)?;
        self.update_with(entry, action)
    }

    /// Returns the row for the new action of an entry, which has not been applied yet.
    pub fn prepare_update(&mut self, entry: &Entry) -> Result<u32, ChangeError> {
        let at = self.table.find(&EntryKey::of(entry)).ok_or_else(|| self.not_found())?;
        if self.table.flows().is_some_and(|flows| !flows.admits_template(at, entry.template)) {
            return Err(self.refused(Refusal::Unfit(OTHER_ACTION.into())));
        }
        Ok(self.actions.intern(entry, &self.wide, &self.plans))
    }

    /// Updates an entry with the row of its new action, which is released if there is no such entry.
    pub fn update_with(&mut self, entry: &Entry, action: u32) -> Result<(), ChangeError> {
        let Some(at) = self.table.find(&EntryKey::of(entry)) else {
            self.actions.release(action);
            return Err(self.not_found());
        };
        if let Some(flows) = self.table.flows_mut() {
            flows.set_entry(at, entry);
        }
        self.give(at, action);
        self.slab.set_counter(at, entry.counter);
        Ok(())
    }

    /// Gives an entry another action.
    fn give(&mut self, at: u32, action: u32) {
        let row = self.row_mut(at);
        let old = row.action();
        row.action = action | (row.action & RUN_TIME);
        self.actions.release(old);
    }

    /// Removes an entry.
    ///
    /// # Errors
    /// The pipe has no such entry.
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

    /// Returns the entry in a place, with its counts. Places are in listing order, and an entry keeps its
    /// place as long as nothing is inserted or removed.
    #[must_use]
    pub fn entry_in(&self, place: u32) -> Option<(Entry, EntryRow)> {
        let (key, at) = self.table.at_place(&self.slab, place)?;
        let row = *self.row(at);
        let entry = self.actions.entry(row, &self.wide);
        let counter = self.slab.counter(at).or(entry.counter);
        Some((Entry { matches: key.matches, priority: key.priority, counter, ..entry }, row))
    }

    /// Returns how many places may contain entries.
    #[must_use]
    pub fn places(&self) -> u32 {
        self.table.places(&self.slab)
    }

    /// Returns true if a place may contain a run-time entry; this is cheap.
    #[must_use]
    pub fn is_run_time(&self, place: u32) -> bool {
        self.row(self.table.row_at(place)).is_run_time()
    }

    /// Returns the entries in up to `most` places from `from` on.
    #[must_use]
    pub fn page(&self, from: u32, most: u32, now_ms: u32) -> Page {
        let end = from.saturating_add(most).min(self.places());
        let one = |(entry, _): (Entry, EntryRow)| {
            let seen = self.seen(&EntryKey::of(&entry), now_ms).unwrap_or_default();
            (entry, seen)
        };
        let entries = (from..end).filter_map(|place| self.entry_in(place)).map(one).collect();
        let next = (end < self.places()).then_some(end);
        Page { entries, next, renumbered: self.table.renumbered() }
    }

    /// Returns the totals.
    #[must_use]
    pub fn report(&self) -> PipeReport {
        let entries = self.table.len();
        let mut report = PipeReport { hits: self.hits, misses: self.misses, entries, ..Default::default() };
        report.flows = self.table.flows().map_or(0, Flows::live);
        report.account = self.account();
        report.nat_used = self.table.flows().and_then(Flows::nat_used).unwrap_or_default();
        report
    }

    /// Returns where the packets of flows were counted.
    #[must_use]
    pub fn account(&self) -> FlowAccount {
        let sums = self.sums.as_ref().map(|sums| sums.account);
        self.table.flows().map(|flows| flows.account).or(sums).unwrap_or_default()
    }

    /// Takes over the counts of the same entry in the predecessor.
    pub fn inherit(&mut self, key: &EntryKey, from: EntryRow) -> bool {
        let Some(at) = self.table.find(key) else { return false };
        let row = self.row_mut(at);
        (row.packets, row.bytes, row.last) = (from.packets, from.bytes, from.last);
        true
    }

    /// Removes up to `most` of the run-time entries in the next `rows` places that have been idle for longer
    /// than the pipe's timeout. Returns them.
    pub fn age_entries(&mut self, rows: u32, now_ms: u32, most: usize) -> Vec<EntryKey> {
        let idle = self.idle_entries(rows, now_ms, most);
        for key in &idle {
            // It existed a moment ago, so this cannot fail.
            let _ = self.remove(key);
        }
        idle
    }

    /// Adds what a replica has counted for an entry since the last time.
    pub fn add_hits(&mut self, key: &EntryKey, count: Count, now_ms: u32) {
        self.hits += count.packets;
        if let Some(at) = self.table.find(key) {
            self.row_mut(at).hit(count, now_ms);
        }
    }

    /// Returns up to `most` idle run-time entries. The next call continues after them.
    pub fn idle_entries(&mut self, rows: u32, now_ms: u32, most: usize) -> Vec<EntryKey> {
        let mut idle = Vec::new();
        let Some(least) = self.entry_timeouts_ms().min().filter(|_| self.ages()) else { return idle };
        let end = self.places();
        let start = if self.aged < end { self.aged } else { 0 };
        let stop = start.saturating_add(rows).min(end);
        self.aged = start;
        while self.aged < stop && idle.len() < most {
            let row = self.row(self.table.row_at(self.aged));
            // A removed row looks like a configured one.
            if row.is_run_time() && now_ms.wrapping_sub(row.last) > least {
                let found = self.table.at_place(&self.slab, self.aged);
                idle.extend(found.map(|(key, _)| key).filter(|key| self.is_idle(key, now_ms)));
            }
            self.aged += 1;
        }
        idle
    }

    /// Returns whether entries may expire: not while a reservation has the pipe, and not until the counts of
    /// a previous program's entries, which include when each was last hit, have been taken over.
    fn ages(&self) -> bool {
        self.held.is_none() && self.settling.is_none()
    }

    /// Returns whether a run-time entry has been idle for longer than one of its timeouts.
    pub fn is_idle(&self, key: &EntryKey, now_ms: u32) -> bool {
        let row = self.table.find(key).map(|at| *self.row(at)).filter(EntryRow::is_run_time);
        let old = |row: EntryRow| {
            let over = |timeout| timeout != 0 && now_ms.wrapping_sub(row.last) > timeout;
            over(self.idle_timeout_ms) || over(self.flow_timeout_ms(key))
        };
        self.settling.is_none() && row.is_some_and(old)
    }

    /// Returns what an entry has counted, and when a packet last hit it.
    pub fn seen(&self, key: &EntryKey, now_ms: u32) -> Option<Seen> {
        let row = self.row(self.table.find(key)?);
        let count = Count { packets: row.packets, bytes: row.bytes };
        let idle = self.is_idle(key, now_ms);
        Some(Seen { count, last_ms: row.last, idle })
    }

    /// Makes an entry as young as its replica on another worker.
    pub fn rejuvenate(&mut self, key: &EntryKey, last_ms: u32) {
        let Some(at) = self.table.find(key) else { return };
        let row = self.row_mut(at);
        if is_later(last_ms, row.last) {
            row.last = last_ms;
        }
    }

    /// Returns the timeout of an entry's flow, which also applies to the entry. With a single worker, an
    /// entry leaves together with its flow.
    fn flow_timeout_ms(&self, key: &EntryKey) -> u32 {
        match (self.table.flows(), key.matches.first()) {
            (Some(flows), Some(EntryMatch::Flow(flow))) if self.shared => flows.timeout_ms(flow),
            _ => 0,
        }
    }

    /// Iterates over the timeouts of the pipe's run-time entries.
    fn entry_timeouts_ms(&self) -> impl Iterator<Item = u32> {
        let flows = self.table.flows().filter(|_| self.shared);
        let flows = flows.map(Flows::timeouts_ms).into_iter().flatten();
        flows.chain([self.idle_timeout_ms]).filter(|timeout| *timeout != 0)
    }

    /// Returns the ages at which flows currently expire.
    #[must_use]
    pub fn present_ages(&self) -> Ages {
        self.table.flows().map(Flows::present_ages).unwrap_or_default()
    }

    /// Removes idle and removed flows in the next rows of the flow table. `slice` is the number of rows and
    /// the time in milliseconds; `ages` are the ages at which flows expire. Flows with a configured entry
    /// start over.
    pub fn age_flows(&mut self, slice: (u32, u32), ages: &Ages) {
        let Some(flows) = self.table.flows_mut().filter(|_| self.held.is_none()) else { return };
        let slab = &self.slab;
        // Other workers may have packets for a flow whose entry is shared.
        let stays = |at: u32| self.shared || !slab.at(at).is_run_time();
        let gone = flows.age(slice, ages, stays);
        gone.into_iter().for_each(|at| self.actions.release(self.slab.remove(at).action()));
    }

    /// Returns a row.
    pub fn row(&self, at: u32) -> &EntryRow {
        if let Table::Basic(table) = &self.table { table.row(at) } else { self.slab.at(at) }
    }

    /// Returns a row for modification.
    pub fn row_mut(&mut self, at: u32) -> &mut EntryRow {
        if let Table::Basic(table) = &mut self.table { table.row_mut(at) } else { self.slab.at_mut(at) }
    }

    /// Number of rows ever used; the numbers of all rows are below it.
    #[inline]
    pub fn rows_used(&self) -> u32 {
        if let Table::Basic(table) = &self.table { table.rows_used() } else { self.slab.used() }
    }

    /// Returns the number of milliseconds until the next flow or run-time entry expires, if no packet hits
    /// it.
    pub fn rest_ms(&self, now_ms: u32) -> Option<u32> {
        let timeout = self.idle_timeout_ms;
        let used = if timeout == 0 { 0 } else { self.rows_used() };
        let rows = (0..used).map(|at| self.row(at)).filter(|row| row.is_run_time());
        let rests = rows.map(|row| timeout.saturating_add(1).saturating_sub(now_ms.wrapping_sub(row.last)));
        rests.chain(self.table.flows().and_then(|flows| flows.rest_ms(now_ms))).min()
    }

    /// Iterates over the shortest timeouts that the pipe's flows and run-time entries may have.
    pub fn timeouts_ms(&self) -> impl Iterator<Item = u32> {
        let flows = self.table.flows().map(Flows::least_timeouts_ms).into_iter().flatten();
        flows.chain([self.idle_timeout_ms]).filter(|timeout| *timeout != 0)
    }

    pub fn not_found(&self) -> ChangeError {
        ChangeError::NotFound { pipe: self.shape.name.clone() }
    }

    pub fn refused(&self, refusal: Refusal) -> ChangeError {
        let pipe = self.shape.name.clone();
        match refusal {
            Refusal::Full => ChangeError::Full { pipe, capacity: self.capacity },
            Refusal::Exists => ChangeError::Exists { pipe },
            Refusal::Unfit(why) => ChangeError::Unfit { pipe, why },
        }
    }
}
