//! Entries of a compiled pipe: entered, updated, taken out, aged, listed. Never on the path of a packet.

use crate::batch::acl::AclTable;
use crate::batch::compile::CompiledPipe;
use crate::batch::rows::{EntryRow, RUN_TIME};
use crate::batch::table::{NO_ROW, Table};
use crate::change::{ChangeError, EntryKey};
use crate::program::{Entry, EntryMatch};
use table::{AclError, Decision, DeltaReason, InsertError, LpmError};

/// Rule numbers are dealt anew when so many per entry of capacity have been used up.
const RULE_NUMBERS_PER_ENTRY: usize = 4;

/// Why an entry was not entered, before the pipe's name is put to it.
enum Refusal {
    Full,
    Exists,
    Unfit(String),
}

impl CompiledPipe {
    /// Enters an entry that fits the pipe.
    ///
    /// # Errors
    /// Full, or there already; nothing has changed then.
    pub fn enter(&mut self, entry: &Entry, now_ms: u32) -> Result<(), ChangeError> {
        let action = self.actions.intern(entry, &self.wide, &self.plans);
        let flag = if entry.run_time { RUN_TIME } else { 0 };
        let row = EntryRow { packets: 0, bytes: 0, last: now_ms, action: action | flag };
        self.insert(entry, row, now_ms).map_err(|refusal| {
            self.actions.release(action);
            self.refused(refusal)
        })
    }

    /// Gives the entry with the same key another template, values, forward, counter and meter.
    ///
    /// # Errors
    /// It is not there.
    pub fn update(&mut self, entry: &Entry) -> Result<(), ChangeError> {
        let key = EntryKey::of(entry);
        if self.row_mut(&key).is_none() {
            return Err(ChangeError::NotFound { pipe: self.shape.name.clone() });
        }
        let action = self.actions.intern(entry, &self.wide, &self.plans);
        let mut old = 0;
        if let Some(row) = self.row_mut(&key) {
            old = row.action();
            row.action = action | (row.action & RUN_TIME);
        }
        self.actions.release(old);
        Ok(())
    }

    /// Takes an entry out.
    ///
    /// # Errors
    /// It is not there.
    pub fn remove(&mut self, key: &EntryKey) -> Result<(), ChangeError> {
        let row = self.take(key).ok_or_else(|| ChangeError::NotFound { pipe: self.shape.name.clone() })?;
        self.actions.release(row.action());
        Ok(())
    }

    /// Every entry with its counts.
    #[must_use]
    pub fn entries(&self) -> Vec<(Entry, EntryRow)> {
        self.keys_and_rows()
            .into_iter()
            .map(|(key, row)| {
                let entry = self.actions.entry(row, &self.wide);
                (Entry { matches: key.matches, priority: key.priority, ..entry }, row)
            })
            .collect()
    }

    /// Totals.
    #[must_use]
    pub fn report(&self) -> crate::worker::PipeReport {
        let mut report = crate::worker::PipeReport { hits: self.hits, misses: self.misses, ..Default::default() };
        let targets = |row_of: &[u32]| row_of.iter().filter(|&&row| row != NO_ROW).count();
        report.entries = match &self.table {
            Table::Basic(table) => table.len(),
            Table::Hash(table) => targets(&table.row_of),
            Table::Flow(table) => targets(&table.row_of) + table.own.len() + usize::from(table.default_row != NO_ROW),
            Table::Lpm(table) => table.lpm.len(),
            Table::Acl(table) => table.len(),
        };
        if let Table::Flow(flow) = &self.table {
            report.flows = flow.table.len();
            report.unflowed_full = flow.unflowed_full;
        }
        report
    }

    /// Carries counts over from the same entry of a predecessor.
    pub fn inherit(&mut self, key: &EntryKey, from: EntryRow) -> bool {
        let Some(row) = self.row_mut(key) else { return false };
        (row.packets, row.bytes, row.last) = (from.packets, from.bytes, from.last);
        true
    }

    /// Looks at the next `rows` rows for run-time entries that no packet has hit for longer than the pipe's timeout. If
    /// there is one, it and all like it are removed.
    pub fn age_entries(&mut self, rows: u32, now_ms: u32) {
        let timeout = self.idle_timeout_ms;
        if timeout == 0 {
            return;
        }
        let end = self.table.rows();
        let start = if self.aged < end { self.aged } else { 0 };
        self.aged = start.saturating_add(rows).min(end);
        let idle = |row: &EntryRow| row.is_run_time() && now_ms.wrapping_sub(row.last) > timeout;
        if !(start..self.aged).any(|at| idle(&self.table.row(at))) {
            return;
        }
        let gone = self.keys_and_rows().into_iter().filter(|(_, row)| idle(row)).map(|(key, _)| key);
        for key in gone.collect::<Vec<EntryKey>>() {
            // It was there a moment ago.
            let _ = self.remove(&key);
        }
    }

    /// Removes idle flows among the next `rows` rows of the flow table; entries that are somebody's own and configured
    /// begin anew.
    pub fn age_flows(&mut self, rows: u32, now_ms: u32, room: usize) {
        let Table::Flow(flow) = &mut self.table else { return };
        if flow.timeout_ms == 0 {
            return;
        }
        let hash = flow.hash;
        let first_new = flow.deltas.len();
        let (table, deltas) = (&mut flow.table, &mut flow.deltas);
        // The table's timeout is met when reached, the pipe's when passed.
        table.age(
            rows,
            now_ms,
            flow.timeout_ms + 1,
            |key| hash.hash(&key.0),
            |delta| {
                let accepted = deltas.len() < room;
                if accepted {
                    deltas.push(delta);
                }
                accepted
            },
        );
        for at in first_new..flow.deltas.len() {
            let key = flow.deltas[at].key;
            let Some(&row) = flow.own.get(&key) else { continue };
            if flow.slab.rows[row as usize].is_run_time() {
                flow.own.remove(&key);
                let row = flow.slab.remove(row);
                self.actions.release(row.action());
            } else {
                // There is room: it was taken out a moment ago.
                let _ = flow.table.learn(hash.hash(&key.0), &key, Decision::Pinned(row), now_ms);
            }
        }
    }

    fn refused(&self, refusal: Refusal) -> ChangeError {
        let pipe = self.shape.name.clone();
        match refusal {
            Refusal::Full => ChangeError::Full { pipe, capacity: self.capacity },
            Refusal::Exists => ChangeError::Exists { pipe },
            Refusal::Unfit(why) => ChangeError::Unfit { pipe, why },
        }
    }

    fn insert(&mut self, entry: &Entry, row: EntryRow, now_ms: u32) -> Result<(), Refusal> {
        let capacity = self.capacity as usize;
        match &mut self.table {
            Table::Basic(table) => {
                let values = exact_values(&entry.matches);
                if table.len() >= capacity {
                    return Err(if table.find(&values).is_some() { Refusal::Exists } else { Refusal::Full });
                }
                table.insert(&values, row).map(|_| ()).map_err(|error| match error {
                    InsertError::Full => Refusal::Full,
                    InsertError::Exists(_) => Refusal::Exists,
                })
            }
            Table::Hash(table) => insert_target(&mut table.row_of, &mut table.slab, &entry.matches, row),
            Table::Flow(table) => match entry.matches[0] {
                EntryMatch::Default if table.default_row == NO_ROW => {
                    table.default_row = table.slab.insert(row);
                    Ok(())
                }
                EntryMatch::Default => Err(Refusal::Exists),
                EntryMatch::Flow(key) => {
                    if table.own.contains_key(&key) {
                        return Err(Refusal::Exists);
                    }
                    let at = table.slab.insert(row);
                    let hash = table.hash.hash(&key.0);
                    let learnt = table.table.learn(hash, &key, Decision::Pinned(at), now_ms);
                    let Ok(flow) = learnt else {
                        table.slab.remove(at);
                        return Err(Refusal::Full);
                    };
                    // A flow learnt before is taken over with what it has counted.
                    table.table.pin(flow, Decision::Pinned(at));
                    table.own.insert(key, at);
                    Ok(())
                }
                _ => insert_target(&mut table.row_of, &mut table.slab, &entry.matches, row),
            },
            Table::Lpm(table) => {
                let EntryMatch::Prefix { value, length } = entry.matches[0] else {
                    return Err(Refusal::Unfit("an lpm entry matches a prefix".into()));
                };
                if table.lpm.get(value, length).is_some() {
                    return Err(Refusal::Exists);
                }
                if table.lpm.len() >= capacity {
                    return Err(Refusal::Full);
                }
                let at = table.slab.insert(row);
                table.lpm.insert(value, length, at).map(|_| ()).map_err(|error| {
                    table.slab.remove(at);
                    match error {
                        LpmError::Full => Refusal::Full,
                        LpmError::Length(_) => Refusal::Unfit(error.to_string()),
                    }
                })
            }
            Table::Acl(table) => table.enter(entry, row, capacity),
        }
    }

    fn row_mut(&mut self, key: &EntryKey) -> Option<&mut EntryRow> {
        match &mut self.table {
            Table::Basic(table) => {
                let row = table.find(&exact_values(&key.matches))?;
                Some(table.row_mut(row))
            }
            Table::Hash(table) => {
                let row = target_row(&table.row_of, &key.matches)?;
                table.slab.rows.get_mut(row as usize)
            }
            Table::Flow(table) => {
                let row = match key.matches.first()? {
                    EntryMatch::Default => table.default_row,
                    EntryMatch::Flow(flow) => *table.own.get(flow)?,
                    _ => target_row(&table.row_of, &key.matches)?,
                };
                table.slab.rows.get_mut(row as usize)
            }
            Table::Lpm(table) => {
                let EntryMatch::Prefix { value, length } = *key.matches.first()? else { return None };
                let row = table.lpm.get(value, length)?;
                table.slab.rows.get_mut(row as usize)
            }
            Table::Acl(table) => {
                let row = table.row_of[table.number(key)?];
                table.slab.rows.get_mut(row as usize)
            }
        }
    }

    fn take(&mut self, key: &EntryKey) -> Option<EntryRow> {
        match &mut self.table {
            Table::Basic(table) => table.remove(&exact_values(&key.matches)),
            Table::Hash(table) => take_target(&mut table.row_of, &mut table.slab, &key.matches),
            Table::Flow(table) => match key.matches.first()? {
                EntryMatch::Default => {
                    let row = std::mem::replace(&mut table.default_row, NO_ROW);
                    let hash = table.hash;
                    table.forget_flows_of(row, |key| hash.hash(&key.0));
                    (row != NO_ROW).then(|| table.slab.remove(row))
                }
                EntryMatch::Flow(flow) => {
                    let row = table.own.remove(flow)?;
                    let hash = table.hash;
                    let at = table.table.get(hash.hash(&flow.0), flow)?;
                    let delta = table.table.remove(at, DeltaReason::Removed, |key| hash.hash(&key.0));
                    table.deltas.extend(delta);
                    Some(table.slab.remove(row))
                }
                _ => {
                    let row = target_row(&table.row_of, &key.matches)?;
                    let hash = table.hash;
                    table.forget_flows_of(row, |key| hash.hash(&key.0));
                    take_target(&mut table.row_of, &mut table.slab, &key.matches)
                }
            },
            Table::Lpm(table) => {
                let EntryMatch::Prefix { value, length } = *key.matches.first()? else { return None };
                let row = table.lpm.remove(value, length)?;
                Some(table.slab.remove(row))
            }
            Table::Acl(table) => {
                let number = table.number(key)?;
                table.remove_rule(number as u32).then(|| {
                    table.entries[number] = None;
                    table.slab.remove(table.row_of[number])
                })
            }
        }
    }

    fn keys_and_rows(&self) -> Vec<(EntryKey, EntryRow)> {
        let plain = |one: EntryMatch, row: EntryRow| (EntryKey { matches: vec![one], priority: 0 }, row);
        let targets = |row_of: &[u32], rows: &[EntryRow]| -> Vec<(EntryKey, EntryRow)> {
            let live = row_of.iter().enumerate().filter(|&(_, &row)| row != NO_ROW);
            live.map(|(target, &row)| plain(EntryMatch::Target(target as u16), rows[row as usize])).collect()
        };
        match &self.table {
            Table::Basic(table) => {
                let key = |values: Vec<u128>| values.into_iter().map(EntryMatch::Value).collect();
                let all = table.entries().into_iter();
                all.map(|(values, row)| (EntryKey { matches: key(values), priority: 0 }, row)).collect()
            }
            Table::Hash(table) => targets(&table.row_of, &table.slab.rows),
            Table::Flow(table) => {
                let mut all = targets(&table.row_of, &table.slab.rows);
                if table.default_row != NO_ROW {
                    all.push(plain(EntryMatch::Default, table.slab.rows[table.default_row as usize]));
                }
                let own = table.own.iter();
                all.extend(own.map(|(&key, &row)| plain(EntryMatch::Flow(key), table.slab.rows[row as usize])));
                all
            }
            Table::Lpm(table) => {
                let row = |at: u32| table.slab.rows[at as usize];
                let prefixes = table.lpm.iter();
                prefixes.map(|(value, length, at)| plain(EntryMatch::Prefix { value, length }, row(at))).collect()
            }
            Table::Acl(table) => {
                let live = table.entries.iter().enumerate().filter_map(|(at, entry)| Some((at, entry.as_ref()?)));
                live.map(|(at, (matches, priority))| {
                    let key = EntryKey { matches: matches.clone(), priority: *priority };
                    (key, table.slab.rows[table.row_of[at] as usize])
                })
                .collect()
            }
        }
    }
}

fn exact_values(matches: &[EntryMatch]) -> Vec<u128> {
    matches.iter().map(|one| if let EntryMatch::Value(value) = one { *value } else { 0 }).collect()
}

fn target_of(matches: &[EntryMatch]) -> Option<usize> {
    match matches.first()? {
        EntryMatch::Target(target) => Some(usize::from(*target)),
        _ => None,
    }
}

fn target_row(row_of: &[u32], matches: &[EntryMatch]) -> Option<u32> {
    row_of.get(target_of(matches)?).copied().filter(|&row| row != NO_ROW)
}

fn insert_target(
    row_of: &mut [u32],
    slab: &mut crate::batch::rows::Slab,
    matches: &[EntryMatch],
    row: EntryRow,
) -> Result<(), Refusal> {
    let place = target_of(matches).and_then(|target| row_of.get_mut(target));
    let place = place.ok_or_else(|| Refusal::Unfit("it names no target of the pipe's group".into()))?;
    if *place != NO_ROW {
        return Err(Refusal::Exists);
    }
    *place = slab.insert(row);
    Ok(())
}

fn take_target(row_of: &mut [u32], slab: &mut crate::batch::rows::Slab, matches: &[EntryMatch]) -> Option<EntryRow> {
    let place = row_of.get_mut(target_of(matches)?)?;
    let row = std::mem::replace(place, NO_ROW);
    (row != NO_ROW).then(|| slab.remove(row))
}

impl crate::batch::table::FlowPipe {
    /// Removes the flows whose decision names a row that is about to go.
    fn forget_flows_of(&mut self, row: u32, hash: impl Fn(&packet::FlowKey) -> u64) {
        let named = |flow: &table::Flow| flow.decision() == Decision::Pinned(row);
        let gone: Vec<u32> = self.table.iter().filter(|(_, flow)| named(flow)).map(|(at, _)| at).collect();
        for at in gone {
            let delta = self.table.remove(at, DeltaReason::Removed, &hash);
            self.deltas.extend(delta);
        }
    }
}

impl AclTable {
    fn number(&self, key: &EntryKey) -> Option<usize> {
        self.entries.iter().position(|entry| {
            entry.as_ref().is_some_and(|(matches, priority)| *matches == key.matches && *priority == key.priority)
        })
    }

    fn enter(&mut self, entry: &Entry, row: EntryRow, capacity: usize) -> Result<(), Refusal> {
        if self.number(&EntryKey::of(entry)).is_some() {
            return Err(Refusal::Exists);
        }
        if self.len() >= capacity {
            return Err(Refusal::Full);
        }
        if self.entries.len() > capacity * RULE_NUMBERS_PER_ENTRY {
            self.renumber();
        }
        let number = self.entries.len() as u32;
        self.insert_rule(number, entry.priority, &entry.matches).map_err(|error| match error {
            AclError::Full => Refusal::Full,
            other => Refusal::Unfit(other.to_string()),
        })?;
        self.row_of.push(self.slab.insert(row));
        self.entries.push(Some((entry.matches.clone(), entry.priority)));
        Ok(())
    }

    /// Deals rule numbers anew, in the order of the old ones. Every rule fitted before and fits again.
    fn renumber(&mut self) {
        let (entries, row_of) = (std::mem::take(&mut self.entries), std::mem::take(&mut self.row_of));
        for number in 0..entries.len() {
            self.remove_rule(number as u32);
        }
        for (entry, row) in entries.into_iter().zip(row_of).filter(|(entry, _)| entry.is_some()) {
            let Some((matches, priority)) = &entry else { continue };
            let number = self.entries.len() as u32;
            if self.insert_rule(number, *priority, matches).is_ok() {
                self.row_of.push(row);
                self.entries.push(entry);
            }
        }
    }
}
