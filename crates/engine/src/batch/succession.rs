//! A swap in slices: a worker switches to a program of a million entries without a long breath.
//!
//! The new engine was compiled elsewhere, with the entries of its configuration.
//! 1. [`Engine::stage`] enters the run-time entries of the running engine into the new one, a limited number
//!    at a time. Until that is done, no entry changes and none expires.
//! 2. [`Engine::take_over`] happens in one go. It moves everything whose cost does not depend on the number
//!    of entries or flows: shared counters, meters, buckets, tables of flows. From then on the whole new
//!    program is in effect.
//! 3. [`Engine::settle`] adds the counts of the old entries to those of their heirs, a limited number at a
//!    time. Until that is done, the old engine is kept, listing entries returns the sums, and no run-time
//!    entry of a pipe expires, because its heir does not know yet when it was last hit.
//!
//! The old engine is returned at the end, because freeing it takes too long for a worker. The result is that
//! of [`Engine::inherit`], which does everything at once.

use super::swap::{NameMatch, date_one, enter_again, heirs, renumber_one, renumbering};
use super::{Engine, SwapReport};
use crate::batch::compile::CompiledPipe;
use crate::batch::rows::EntryRow;
use crate::pipes::flow::{Flows, Renumbering};
use crate::pipes::table::Table;
use std::collections::HashMap;
use weir_packet::Field;
use weir_program::change::EntryKey;
use weir_program::{Entry, PipeId};

/// The number of empty places that may be visited for each entry that a slice may handle: a visit costs a few
/// nanoseconds, an entry a few hundred.
const LOOKS_PER_ENTRY: u32 = 32;

/// How far the run-time entries of the running engine have been entered.
#[derive(Debug)]
pub(super) struct Staging {
    heirs: Vec<Option<PipeId>>,
    at: usize,
    place: u32,
    /// Where the decisions of flows lead, by old pipe.
    numbers: Vec<Option<Renumbering>>,
    /// The next new pipe and number, of pipes without a predecessor.
    new: usize,
    number: u32,
}

impl Staging {
    fn new(heirs: Vec<Option<PipeId>>) -> Staging {
        let numbers = heirs.iter().map(|_| None).collect();
        Staging { heirs, at: 0, place: 0, numbers, new: 0, number: 0 }
    }
}

/// An old engine whose counts are being taken over.
#[derive(Debug)]
pub(super) struct Succession {
    old: Box<Engine>,
    /// The heir of each pipe of the old engine, and how many entries (of pipes without an heir) and flows
    /// were lost there.
    heirs: Vec<Option<PipeId>>,
    lost_at_once: Vec<(usize, usize)>,
    /// The next pipe and place, and how many entries of the pipe have been lost so far.
    at: usize,
    place: u32,
    lost: usize,
    report: SwapReport,
}

/// What a slice may still do.
struct Slice {
    entries: u32,
    looks: u32,
}

impl Slice {
    fn new(entries: u32) -> Slice {
        Slice { entries, looks: entries.saturating_mul(LOOKS_PER_ENTRY) }
    }

    fn is_over(&self) -> bool {
        self.entries == 0 || self.looks == 0
    }
}

impl Engine {
    /// Enters up to `most` run-time entries of `old`, which continues to run, into this engine. Returns true
    /// once everything is ready for [`Engine::take_over`].
    pub fn stage(&mut self, old: &mut Engine, most: u32, now_ns: u64) -> bool {
        old.still = true;
        let names = NameMatch::new(&old.program, &self.program, (&self.shape, &self.group_names));
        let mut staging = self.staging.take().unwrap_or_else(|| Staging::new(heirs(&names)));
        let mut slice = Slice::new(most);
        let (now_ms, generation) = ((now_ns / 1_000_000) as u32, (old.generation + 1) as u8);
        while staging.at < old.pipes.len() && !slice.is_over() {
            let from = &old.pipes[staging.at];
            let heir = staging.heirs[staging.at];
            let Some(id) = heir.filter(|_| staging.place < from.places()) else {
                let heir = heir.map(|id| &self.pipes[id.index()]);
                if heir.is_some_and(|heir| staging.renumber(from, heir, &names, generation)) {
                    slice.entries -= 1;
                } else {
                    (staging.at, staging.place) = (staging.at + 1, 0);
                    slice.looks -= 1;
                }
                continue;
            };
            let place = staging.place;
            staging.place += 1;
            slice.looks -= 1;
            if from.is_run_time(place) {
                slice.entries -= 1;
                stage_one((id, &mut self.pipes), from, place, &names, now_ms);
            }
        }
        let mut done = staging.at == old.pipes.len();
        while done && staging.new < self.pipes.len() {
            done = !slice.is_over();
            if done {
                slice.entries -= 1;
                staging.date(&mut self.pipes, generation);
            }
        }
        self.staging = Some(staging);
        done
    }

    /// Takes over from `old`, whose run-time entries were [staged](Engine::stage). Both engines must have
    /// been created with the same secret.
    pub fn take_over(&mut self, mut old: Box<Engine>, now_ns: u64) {
        let now_ms = (now_ns / 1_000_000) as u32;
        let staged = self.staging.take();
        self.steering = old.steering;
        self.share_entries(old.shared);
        self.inherit_shared(&old);
        self.inherit_buckets(&old);
        self.inherit_flow_records(&mut old);
        let generation = self.generation as u8;
        let Engine { program, pipes, shape, group_names, leaving, left_sums, .. } = self;
        let former = &mut *old;
        let names = NameMatch::new(&former.program, program, (shape, group_names));
        let Staging { heirs, mut numbers, .. } = staged.unwrap_or_else(|| Staging::new(heirs(&names)));
        let (mut lost_at_once, mut report) = (Vec::new(), SwapReport::default());
        for ((from, heir), now) in former.pipes.iter_mut().zip(&heirs).zip(&mut numbers) {
            lost_at_once.push(match heir {
                Some(id) => {
                    let heir = &mut pipes[id.index()];
                    (heir.hits, heir.misses) = (from.hits, from.misses);
                    let now = now.take().or_else(|| renumbering(from, heir, &names, generation));
                    let lost = heir.table.inherit(&mut from.table, now, now_ms);
                    heir.inherit_sums(from);
                    report.flows_kept += heir.table.flows().map_or(0, Flows::live);
                    heir.settling = Some(HashMap::new());
                    (0, lost)
                }
                None => (from.table.len(), from.table.flows().map_or(0, Flows::live)),
            });
            leaving.extend(from.table.take_flows().filter(|flows| !flows.account.is_empty()));
            left_sums.extend(from.sums.take().filter(|sums| !sums.account.is_empty()));
        }
        let succession = Succession { old, heirs, lost_at_once, at: 0, place: 0, lost: 0, report };
        self.succession = Some(Box::new(succession));
        // Run-time entries may open paths.
        self.find_owners();
    }

    /// Begins to take over the entry counts of a removed worker's engine, if there is one and nothing else is
    /// being taken over. That engine ran the same program.
    pub(super) fn settle_next_estate(&mut self) {
        if self.succession.is_some() {
            return;
        }
        let Some(old) = self.estates.pop() else { return };
        self.pipes.iter_mut().for_each(|pipe| pipe.settling = Some(HashMap::new()));
        let heirs: Vec<_> = (0..self.pipes.len()).map(|at| Some(PipeId(at as u16))).collect();
        let lost_at_once = vec![(0, 0); heirs.len()];
        let report = SwapReport::default();
        let succession = Succession { old, heirs, lost_at_once, at: 0, place: 0, lost: 0, report };
        self.succession = Some(Box::new(succession));
    }

    /// Whether counts of an old engine remain to be [settled](Engine::settle).
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.succession.is_some()
    }

    /// Takes over the counts of up to `most` entries of the old engine. When all are done, returns that
    /// engine and what the swap kept and removed.
    pub fn settle(&mut self, most: u32) -> Option<(SwapReport, Box<Engine>)> {
        let mut succession = self.succession.take()?;
        let mut slice = Slice::new(most);
        let Succession { old, heirs, lost_at_once, at, place, lost, report } = &mut *succession;
        let old: &Engine = old;
        let names = NameMatch::new(&old.program, &self.program, (&self.shape, &self.group_names));
        while *at < old.pipes.len() && !slice.is_over() {
            let from = &old.pipes[*at];
            slice.looks -= 1;
            match heirs[*at] {
                Some(id) if *place < from.places() => {
                    let kept = settle_one(&mut self.pipes[id.index()], from, *place, &names);
                    slice.entries -= u32::from(kept.is_some());
                    report.entries_kept += usize::from(kept == Some(true));
                    *lost += usize::from(kept == Some(false));
                    *place += 1;
                }
                heir => {
                    heir.into_iter().for_each(|id| self.pipes[id.index()].settling = None);
                    let (entries, flows) = (*lost + lost_at_once[*at].0, lost_at_once[*at].1);
                    if (entries, flows) != (0, 0) {
                        report.removed.push((from.shape.name.clone(), entries, flows));
                    }
                    (*at, *place, *lost) = (*at + 1, 0, 0);
                }
            }
        }
        if *at < old.pipes.len() {
            self.succession = Some(succession);
            return None;
        }
        let Succession { old, report, .. } = *succession;
        self.settle_next_estate();
        Some((report, old))
    }

    /// Adds to a pipe's entries the counts that they have yet to inherit.
    pub(super) fn add_unsettled(&self, pipe: usize, entries: &mut [(Entry, EntryRow)]) {
        let Some(succession) = &self.succession else { return };
        let Some(changed) = self.pipes.get(pipe).and_then(|pipe| pipe.settling.as_ref()) else { return };
        let Some(at) = succession.heirs.iter().position(|heir| *heir == Some(PipeId(pipe as u16))) else {
            return;
        };
        let names = NameMatch::new(&succession.old.program, &self.program, (&self.shape, &self.group_names));
        let from = &succession.old.pipes[at];
        let start = if at == succession.at { succession.place } else { 0 };
        let rest = (start..from.places()).filter_map(|place| {
            let (entry, row) = from.entry_in(place)?;
            let key =
                EntryKey { matches: names.matches(&entry.matches, &from.shape)?, ..EntryKey::of(&entry) };
            Some((key, row))
        });
        let rest: HashMap<EntryKey, EntryRow> = rest.filter(|(key, _)| !changed.contains_key(key)).collect();
        for (entry, row) in entries {
            rest.get(&EntryKey::of(entry)).into_iter().for_each(|from| row.add(from));
        }
    }
}

impl Staging {
    /// Finds where one decision of the next pipe's flows leads in the new program. Returns false if nothing
    /// was left to do.
    fn renumber(
        &mut self,
        from: &CompiledPipe,
        heir: &CompiledPipe,
        names: &NameMatch<'_>,
        generation: u8,
    ) -> bool {
        let (Some(new), Some(old)) = (heir.table.flows(), from.table.flows()) else { return false };
        let now = self.numbers[self.at].get_or_insert_with(|| new.renumbering(old));
        renumber_one(from, heir, now, names, generation)
    }

    /// Sets the generation for one decision of the flows of pipes without a predecessor.
    fn date(&mut self, pipes: &mut [CompiledPipe], generation: u8) {
        let inherits = self.heirs.contains(&Some(PipeId(self.new as u16)));
        if !inherits && date_one(&mut pipes[self.new], self.number, generation) {
            self.number += 1;
        } else {
            (self.new, self.number) = (self.new + 1, 0);
        }
    }
}

fn stage_one(
    (id, pipes): (PipeId, &mut [CompiledPipe]),
    from: &CompiledPipe,
    place: u32,
    names: &NameMatch<'_>,
    now_ms: u32,
) {
    let Some((entry, row)) = from.entry_in(place) else { return };
    let Some(matches) = names.matches(&entry.matches, &from.shape) else { return };
    let key = EntryKey { matches, priority: entry.priority };
    if pipes[id.index()].table.find(&key).is_none() {
        let row = EntryRow { packets: 0, bytes: 0, ..row };
        // If it cannot be entered, it will be found missing when counts are settled.
        let _ = enter_again((id, pipes), &entry, key, names, now_ms, row);
    }
}

/// Takes over the counts of the entry in a place. Returns whether it has an heir; `None` if there is no
/// entry.
fn settle_one(
    heir: &mut CompiledPipe,
    from: &CompiledPipe,
    place: u32,
    names: &NameMatch<'_>,
) -> Option<bool> {
    let unchanged = heir.settling.as_ref().is_none_or(HashMap::is_empty);
    let by_port = || from.shape.varying().any(|one| one.field == Field::InputPort);
    if let (Table::Basic(new), Table::Basic(old)) = (&heir.table, &from.table)
        && unchanged
        && !by_port()
    {
        if !old.is_live(place) {
            return None;
        }
        let at = new.find_like(old, place);
        at.into_iter().for_each(|at| heir.row_mut(at).add(from.row(place)));
        return Some(at.is_some());
    }
    let (entry, row) = from.entry_in(place)?;
    let Some(matches) = names.matches(&entry.matches, &from.shape) else { return Some(false) };
    let key = EntryKey { matches, priority: entry.priority };
    // An entry that has been removed since had an heir, and an entry that has been added since is not one.
    if let Some(&had) = heir.settling.as_ref().and_then(|changed| changed.get(&key)) {
        return Some(had);
    }
    let at = heir.table.find(&key);
    at.into_iter().for_each(|at| heir.row_mut(at).add(&row));
    Some(at.is_some())
}
