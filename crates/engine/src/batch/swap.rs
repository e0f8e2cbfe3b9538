//! A new program takes over the state of the old one: the shape is swapped, entries are state.
//!
//! The new engine is compiled elsewhere, with the entries of its configuration. Here it inherits: counts of
//! entries with equal keys in pipes of equal shape, run-time entries of such pipes, their flows, and counters
//! by name. Entries and flows that do not survive are counted per pipe, and removed flows emit their deltas.

use crate::batch::compile::CompiledPipe;
use crate::batch::group::BucketFilling;
use crate::batch::rows::EntryRow;
use crate::batch::{Engine, uses};
use crate::pipes::flow::{Flows, Renumbering};
use std::collections::HashMap;
use weir_packet::Field;
use weir_program::change::EntryKey;
use weir_program::check::Shape;
use weir_program::{
    CounterId, Criterion, Entry, EntryMatch, Forward, Group, GroupId, Match, MeterId, Operation, Pipe,
    PipeId, PortId, Program, Target,
};

/// What a swap kept and removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwapReport {
    /// Pipes of the old program that lost something: name, entries removed, flows removed.
    pub removed: Vec<(String, usize, usize)>,
    /// Entries whose counts continue.
    pub entries_kept: usize,
    /// Flows that continue.
    pub flows_kept: usize,
}

impl Engine {
    /// Takes over the state of `old` at once, in time proportional to the number of entries: for callers that
    /// are not workers. Workers do the same in slices ([`Engine::stage`]). Both must have been created with
    /// the same secret.
    pub fn inherit(&mut self, old: &mut Engine, now_ns: u64) -> SwapReport {
        let mut report = SwapReport::default();
        self.share_entries(old.shared);
        self.inherit_shared(old);
        self.inherit_buckets(old);
        self.inherit_flow_records(old);
        let generation = self.generation as u8;
        let Engine { program, pipes, shape, group_names, leaving, left_sums, .. } = self;
        let names = NameMatch::new(&old.program, program, (shape, group_names));
        let mut met = vec![false; pipes.len()];
        for from in &mut old.pipes {
            let lost = match pipes.iter().position(|pipe| names.same_shape(&from.shape, &pipe.shape)) {
                Some(heir) => {
                    let id = PipeId(heir as u16);
                    met[heir] = true;
                    let times = (generation, (now_ns / 1_000_000) as u32);
                    inherit_pipe((id, pipes), from, &names, &mut report, times)
                }
                None => (from.table.len(), from.table.flows().map_or(0, Flows::live)),
            };
            if lost != (0, 0) {
                report.removed.push((from.shape.name.clone(), lost.0, lost.1));
            }
            leaving.extend(from.table.take_flows().filter(|flows| !flows.account.is_empty()));
            left_sums.extend(from.sums.take().filter(|sums| !sums.account.is_empty()));
        }
        for pipe in pipes.iter_mut().zip(met).filter_map(|(pipe, met)| (!met).then_some(pipe)) {
            (0..).take_while(|&number| date_one(pipe, number, generation)).for_each(drop);
        }
        self.steering = old.steering;
        // Run-time entries may open paths.
        self.find_owners();
        report
    }

    /// Takes over the flow records that previous programs have left behind, and numbers this program.
    pub(super) fn inherit_flow_records(&mut self, old: &mut Engine) {
        self.generation = old.generation + 1;
        self.past = old.past;
        self.leaving.append(&mut old.leaving);
        self.left_sums.append(&mut old.left_sums);
        let flows = self.pipes.iter_mut().filter_map(|pipe| pipe.table.flows_mut());
        flows.for_each(|flows| flows.set_generation(self.generation as u8));
        let sums = self.pipes.iter_mut().filter_map(|pipe| pipe.sums.as_mut());
        sums.for_each(|sums| sums.set_generation(self.generation as u8));
    }

    /// Takes over shared counters by name, and meters by name if their numbers are unchanged.
    pub(super) fn inherit_shared(&mut self, old: &Engine) {
        let mut places = Places::of(&self.program.counters, String::as_str);
        for (before, (name, count)) in old.program.counters.iter().zip(&old.walk.counters).enumerate() {
            if let Some(at) = places.find(name, before) {
                self.walk.counters[at] = *count;
            }
        }
        let mut places = Places::of(&self.program.meters, |meter| &meter.name);
        for (before, (meter, state)) in old.program.meters.iter().zip(&old.walk.meters).enumerate() {
            if let Some(at) =
                places.find(&meter.name, before).filter(|&at| self.program.meters[at].config == meter.config)
            {
                self.walk.meters[at] = state.clone();
            }
        }
    }

    /// Takes over given buckets. All other buckets were filled elsewhere
    /// ([`weir_program::buckets::GroupTables::succeed`]).
    pub(super) fn inherit_buckets(&mut self, old: &Engine) {
        let mut groups = Places::of(&old.program.groups, |group| &group.name);
        for &at in &self.walk.given {
            let at = usize::from(at);
            let group = &self.program.groups[at];
            let Some(from) = groups.find(&group.name, at) else { continue };
            let before = &old.program.groups[from];
            if before.size != group.size {
                continue;
            }
            let mut targets = Places::of(&group.targets, |target| &target.name);
            let heir = |(at, target): (usize, &Target)| targets.find(&target.name, at).map(|at| at as u16);
            let heirs: Vec<Option<u16>> = before.targets.iter().enumerate().map(heir).collect();
            let now_is = |slot: u16| heirs.get(usize::from(slot)).copied().flatten();
            let (new, old) = (&mut self.walk.groups[at], &old.walk.groups[from]);
            if let (BucketFilling::Given(new), BucketFilling::Given(old)) = (&mut new.held, &old.held) {
                new.inherit(old, now_is);
            }
        }
    }
}

/// Finds items of a program by name. Most stay where they were, and a map is only built if one does not.
struct Places<'a, T> {
    all: &'a [T],
    name: fn(&T) -> &str,
    map: Option<HashMap<&'a str, usize>>,
}

impl<'a, T> Places<'a, T> {
    fn of(all: &'a [T], name: fn(&T) -> &str) -> Places<'a, T> {
        Places { all, name, map: None }
    }

    /// Returns the position of the item named `wanted`, which was at `before` in another program.
    fn find(&mut self, wanted: &str, before: usize) -> Option<usize> {
        let name = self.name;
        if self.all.get(before).is_some_and(|one| name(one) == wanted) {
            return Some(before);
        }
        let all = self.all;
        let map = || all.iter().enumerate().map(|(at, one)| (name(one), at)).collect();
        self.map.get_or_insert_with(map).get(wanted).copied()
    }
}

/// Returns the position of the wanted item, searching from `start` in both directions: when n targets are
/// inserted, the targets behind them move by n places, so most are found in n steps.
fn nearest<T>(all: &[T], start: usize, wanted: impl Fn(&T) -> bool) -> Option<usize> {
    let start = start.min(all.len());
    let (before, after) = all.split_at(start);
    let (mut before, mut after) = (before.iter().rev().enumerate(), after.iter().enumerate());
    loop {
        match (after.next(), before.next()) {
            (None, None) => return None,
            (Some((at, one)), _) if wanted(one) => return Some(start + at),
            (_, Some((at, one))) if wanted(one) => return Some(start - 1 - at),
            _ => {}
        }
    }
}

/// Returns, for each old pipe, the pipe of the new program with the same name and shape.
pub(super) fn heirs(names: &NameMatch<'_>) -> Vec<Option<PipeId>> {
    let mut pipes = Places::of(&names.new.pipes, |pipe| &pipe.name);
    let heir = |(before, old): (usize, &Pipe)| {
        let at = pipes.find(&old.name, before)?;
        names.same_shape(old, &names.new.pipes[at]).then_some(PipeId(at as u16))
    };
    names.old.pipes.iter().enumerate().map(heir).collect()
}

fn inherit_pipe(
    (id, pipes): (PipeId, &mut [CompiledPipe]),
    from: &mut CompiledPipe,
    names: &NameMatch<'_>,
    report: &mut SwapReport,
    (generation, now_ms): (u8, u32),
) -> (usize, usize) {
    let at = id.index();
    (pipes[at].hits, pipes[at].misses) = (from.hits, from.misses);
    let mut lost = 0;
    for (entry, row) in from.entries() {
        let kept = names.matches(&entry.matches, &from.shape).is_some_and(|matches| {
            let key = EntryKey { matches, priority: entry.priority };
            pipes[at].inherit(&key, row)
                || entry.run_time && enter_again((id, pipes), &entry, key, names, now_ms, row)
        });
        if kept {
            report.entries_kept += 1;
        } else {
            lost += 1;
        }
    }
    let now = renumbering(from, &pipes[at], names, generation);
    let heir = &mut pipes[at];
    let flows_lost = heir.table.inherit(&mut from.table, now, now_ms);
    heir.inherit_sums(from);
    report.flows_kept += heir.table.flows().map_or(0, Flows::live);
    (lost, flows_lost)
}

impl CompiledPipe {
    /// Continues the sums of the predecessor.
    pub(super) fn inherit_sums(&mut self, from: &mut CompiledPipe) {
        if let (Some(new), Some(old)) = (&mut self.sums, &mut from.sums) {
            new.inherit(old);
        }
    }
}

/// Finds where the decisions of a pipe's flows lead in its heir.
pub(super) fn renumbering(
    from: &CompiledPipe,
    heir: &CompiledPipe,
    names: &NameMatch<'_>,
    generation: u8,
) -> Option<Renumbering> {
    let mut now = heir.table.flows()?.renumbering(from.table.flows()?);
    while renumber_one(from, heir, &mut now, names, generation) {}
    Some(now)
}

/// Finds where one decision of a pipe's flows leads in its heir. Returns false if nothing was left to do.
pub(super) fn renumber_one(
    from: &CompiledPipe,
    heir: &CompiledPipe,
    now: &mut Renumbering,
    names: &NameMatch<'_>,
    generation: u8,
) -> bool {
    let row_now = |row: u32| {
        let key = from.slab.key(row)?;
        let matches = names.matches(&key.matches, &from.shape)?;
        heir.table.find(&EntryKey { matches, ..key })
    };
    let (Some(new), Some(old)) = (heir.table.flows(), from.table.flows()) else { return false };
    new.renumber(old, now, generation, row_now)
}

/// Sets the generation for one decision of the flows of a pipe without a predecessor. Returns false if there
/// is no decision with this number.
pub(super) fn date_one(pipe: &mut CompiledPipe, number: u32, generation: u8) -> bool {
    pipe.table.flows_mut().is_some_and(|flows| flows.date(number, generation))
}

/// Inserts a run-time entry with its counts. Returns false if that is impossible.
pub(super) fn enter_again(
    (id, pipes): (PipeId, &mut [CompiledPipe]),
    entry: &Entry,
    key: EntryKey,
    names: &NameMatch<'_>,
    now_ms: u32,
    row: EntryRow,
) -> bool {
    let Some(entry) = names.entry(entry, key.clone()) else { return false };
    let admitted = names.shape.admits(names.new, &uses(pipes), id, &entry).is_ok();
    let heir = &mut pipes[id.index()];
    admitted && heir.enter(&entry, now_ms).is_ok() && heir.inherit(&key, row)
}

/// Returns the name of the group whose targets a pipe has entries for, if there is only one.
fn group_of<'a>(program: &'a Program, pipe: &Pipe) -> Option<&'a str> {
    Some(&program.groups[pipe.kind.group()?.one()?.index()].name)
}

/// Returns the name of the NAT pool that a pipe's flows take from.
fn pool_of<'a>(program: &'a Program, pipe: &Pipe) -> Option<&'a str> {
    Some(&program.nat_pools.get(pipe.nat?.index())?.name)
}

/// Two programs, matched by name.
pub(super) struct NameMatch<'a> {
    old: &'a Program,
    new: &'a Program,
    /// The shape of the new program, which entries must not violate.
    shape: &'a Shape,
    group_names: &'a GroupNames,
}

/// The groups of a program in the order of their names. A worker finds a group by name in a few steps,
/// without building a list, because there may be thousands of groups.
#[derive(Debug)]
pub(super) struct GroupNames {
    sorted: Vec<GroupId>,
}

impl GroupNames {
    /// Sorts the groups.
    pub fn of(groups: &[Group]) -> GroupNames {
        let mut sorted: Vec<GroupId> = (0..groups.len()).map(|at| GroupId(at as u16)).collect();
        sorted.sort_by_key(|id| &groups[id.index()].name);
        GroupNames { sorted }
    }

    fn find(&self, groups: &[Group], name: &str) -> Option<GroupId> {
        let at = self.sorted.binary_search_by_key(&name, |id| &groups[id.index()].name);
        at.ok().map(|at| self.sorted[at])
    }
}

impl<'a> NameMatch<'a> {
    pub fn new(
        old: &'a Program,
        new: &'a Program,
        (shape, group_names): (&'a Shape, &'a GroupNames),
    ) -> NameMatch<'a> {
        NameMatch { old, new, shape, group_names }
    }

    /// Returns true if an entry of `old` means the same in `new`: equal name, type, match fields, masks and
    /// action shape; and for flows, the same worker.
    fn same_shape(&self, old: &Pipe, new: &Pipe) -> bool {
        let operations = |pipe: &Pipe| -> Vec<(String, Vec<Operation>)> {
            let bare = Operation::without_constants;
            pipe.templates
                .iter()
                .map(|one| (one.name.clone(), one.operations.iter().map(bare).collect()))
                .collect()
        };
        let matches = |pipe: &Pipe, renumber: &dyn Fn(&Match) -> Option<Criterion>| -> Option<Vec<_>> {
            pipe.matches.iter().map(|one| Some((one.field, renumber(one)?))).collect()
        };
        let kept = matches(old, &|one| self.criterion(one));
        old.name == new.name
            && old.kind.shape() == new.kind.shape()
            && old.owner == new.owner
            && pool_of(self.old, old) == pool_of(self.new, new)
            && group_of(self.old, old) == group_of(self.new, new)
            && kept.is_some()
            && kept == matches(new, &|one| Some(one.criterion))
            && operations(old) == operations(new)
            && (old.forward == Forward::PerEntry) == (new.forward == Forward::PerEntry)
    }

    /// Returns an old pipe's criterion for a field, with the new number of a port; `None` if the port is
    /// gone.
    fn criterion(&self, one: &Match) -> Option<Criterion> {
        match one.criterion {
            Criterion::Const { value, mask } if one.field == Field::InputPort && mask != 0 => {
                Some(Criterion::Const { value: self.port_number(value)?, mask })
            }
            other => Some(other),
        }
    }

    /// Returns what an old entry matches, with the new numbers of targets and ports; `None` if its target or
    /// port is gone.
    pub fn matches(&self, matches: &[EntryMatch], shape: &Pipe) -> Option<Vec<EntryMatch>> {
        let mut fields = shape.varying();
        let renumber = |one: &EntryMatch| match (*one, fields.next()) {
            (EntryMatch::Target(target), _) => {
                let group = shape.kind.group()?.one()?;
                self.target(group, target).map(|(_, target)| EntryMatch::Target(target))
            }
            (EntryMatch::Member { group, target }, _) => {
                self.target(group, target).map(|(group, target)| EntryMatch::Member { group, target })
            }
            (other, Some(of)) if of.field == Field::InputPort => self.port_match(other, of.criterion),
            (other, _) => Some(other),
        };
        matches.iter().map(renumber).collect()
    }

    /// Returns what an old entry matches `port` with. The check has made sure that this is a whole port.
    fn port_match(&self, one: EntryMatch, criterion: Criterion) -> Option<EntryMatch> {
        Some(match one {
            EntryMatch::Value(value) if criterion != (Criterion::PerEntry { mask: 0 }) => {
                EntryMatch::Value(self.port_number(value)?)
            }
            EntryMatch::Masked { value, mask } if mask != 0 => {
                EntryMatch::Masked { value: self.port_number(value)?, mask }
            }
            EntryMatch::Range { first, .. } => {
                let port = self.port(PortId(first))?.0;
                EntryMatch::Range { first: port, last: port }
            }
            any => any,
        })
    }

    fn port_number(&self, old: u128) -> Option<u128> {
        Some(self.port(PortId(u16::try_from(old).ok()?))?.0.into())
    }

    fn port(&self, old: PortId) -> Option<PortId> {
        self.new.port_named(&self.old.ports.get(old.index())?.name)
    }

    /// Returns an old entry with the numbers of the new program; `None` if the new program lacks something
    /// that the entry names.
    fn entry(&self, entry: &Entry, key: EntryKey) -> Option<Entry> {
        let mut entry = Entry { matches: key.matches, ..entry.clone() };
        if let Some(forward) = entry.forward {
            entry.forward = Some(self.forward(forward)?);
        }
        if let Some(counter) = entry.counter {
            entry.counter = Some(self.counter(counter)?);
        }
        if let Some(meter) = entry.meter {
            entry.meter = Some(self.meter(meter)?);
        }
        Some(entry)
    }

    /// Returns the current numbers of an old target and its group.
    pub fn target(&self, group: GroupId, target: u16) -> Option<(GroupId, u16)> {
        let old = self.old.groups.get(group.index())?;
        let name = &old.targets.get(usize::from(target))?.name;
        let group = self.group(group)?;
        let new = &self.new.groups[group.index()].targets;
        nearest(new, usize::from(target), |one| one.name == *name).map(|at| (group, at as u16))
    }

    fn group(&self, old: GroupId) -> Option<GroupId> {
        let name = &self.old.groups.get(old.index())?.name;
        if self.new.groups.get(old.index()).is_some_and(|one| one.name == *name) {
            return Some(old);
        }
        self.group_names.find(&self.new.groups, name)
    }

    fn forward(&self, forward: Forward) -> Option<Forward> {
        Some(match forward {
            Forward::Port(id) => Forward::Port(self.port(id)?),
            Forward::Pipe(id) => Forward::Pipe(self.pipe(id)?),
            Forward::Group(id) => Forward::Group(self.group(id)?),
            Forward::Flood(id) => Forward::Flood(self.group(id)?),
            Forward::App(id) => {
                let at = self.new.apps.iter().position(|app| *app == self.old.apps[id.index()])?;
                Forward::App(weir_program::AppId(at as u16))
            }
            other => other,
        })
    }

    fn pipe(&self, id: PipeId) -> Option<PipeId> {
        self.new.pipe_named(&self.old.pipes.get(id.index())?.name)
    }

    fn counter(&self, id: CounterId) -> Option<CounterId> {
        Places::of(&self.new.counters, String::as_str)
            .find(&self.old.counters[id.index()], id.index())
            .map(|at| CounterId(at as u16))
    }

    fn meter(&self, id: MeterId) -> Option<MeterId> {
        Places::of(&self.new.meters, |meter| &meter.name)
            .find(&self.old.meters[id.index()].name, id.index())
            .map(|at| MeterId(at as u16))
    }
}
