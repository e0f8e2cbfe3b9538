//! Flows in the form in which another process takes them over: they refer to names, because that process's
//! program has other numbers.

use super::compile::CompiledPipe;
use super::{Engine, Share};
use crate::pipes::flow::Record;
use crate::pipes::lookup::NO_ROW;
use std::collections::HashMap;
use weir_program::change::EntryKey;
use weir_program::nat::NatPool;
use weir_program::operation::Operation;
use weir_program::owner::{Side, Spread, worker};
use weir_program::{EntryMatch, GroupChoice, GroupId, PipeId, Program};

/// The entry that a flow was decided for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DecidedFor {
    /// The pipe's `default` entry.
    Default,
    /// The entry of this target of this group.
    Target {
        /// The group's name.
        group: String,
        /// The target's name.
        target: String,
    },
}

/// Some flows of a pipe, from one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowPage {
    /// The entries that the flows were decided for; the records contain positions in this list.
    pub entries: Vec<DecidedFor>,
    /// The records, one after another.
    pub records: Vec<u8>,
    /// The number of bytes of a record.
    pub length: usize,
    /// The row at which the next page begins; `None` after the last.
    pub next: Option<u32>,
}

/// The properties of a pipe's flows. Another process takes over flows only if its own pipe has the same ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowStock {
    /// The pipe's name.
    pub pipe: String,
    /// A description of the values that the pipe's flows keep, as text; empty if they keep none.
    pub keeps: String,
    /// Whether the pipe's flows take addresses and ports of a NAT pool.
    pub has_pool: bool,
}

/// What happened to another process's flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenOver {
    /// Flows that continue.
    pub flows: usize,
    /// Flows that ended because their entry is gone or there is no room for them.
    pub ended: usize,
    /// Records that could not be read.
    pub unreadable: usize,
}

impl TakenOver {
    /// Adds the flows of another page.
    pub fn add(&mut self, other: TakenOver) {
        self.flows += other.flows;
        self.ended += other.ended;
        self.unreadable += other.unreadable;
    }
}

impl Engine {
    /// Returns the FLOW pipes, and the properties of their flows.
    #[must_use]
    pub fn flow_stocks(&self) -> Vec<(PipeId, FlowStock)> {
        let stock = |(at, pipe): (usize, &CompiledPipe)| {
            let flows = pipe.table.flows()?;
            let keeps = if flows.kept_bytes() == 0 { String::new() } else { kept(pipe) };
            let has_pool = pipe.shape.nat.is_some();
            Some((PipeId(at as u16), FlowStock { pipe: pipe.shape.name.clone(), keeps, has_pool }))
        };
        self.pipes.iter().enumerate().filter_map(stock).collect()
    }

    /// Returns records of the flows of a pipe. `rows` is the first row and the number of rows. With
    /// `since_ms`, only the flows that were decided or reported counts since that time, in milliseconds, are
    /// included. Flows with an entry of their own are never included.
    #[must_use]
    pub fn flow_records(&self, pipe: PipeId, rows: (u32, u32), since_ms: Option<u32>) -> FlowPage {
        let Some(pipe) = self.pipes.get(pipe.index()) else { return FlowPage::default() };
        let Some(flows) = pipe.table.flows() else { return FlowPage::default() };
        let mut page = FlowPage { length: flows.record_length(), ..FlowPage::default() };
        let mut known: HashMap<u32, Option<u32>> = HashMap::new();
        let FlowPage { entries, records, .. } = &mut page;
        let entry = |row| {
            *known.entry(row).or_insert_with(|| {
                let decided = decided_for(&self.program, pipe, row)?;
                entries.push(decided);
                Some(entries.len() as u32 - 1)
            })
        };
        page.next = flows.write_records(rows, since_ms, entry, records);
        page
    }

    /// Continues the flows of another process that belong to this worker. The flows of the pipe must have the
    /// same [properties](FlowStock) as theirs. Flows that already exist here stay as they are.
    pub fn resume_flows(
        &mut self,
        pipe: PipeId,
        page: &FlowPage,
        Share { own, workers }: Share,
    ) -> TakenOver {
        let mut done = TakenOver::default();
        if pipe.index() >= self.pipes.len() {
            return done;
        }
        let rows = rows_of(self, pipe, &page.entries);
        let Engine { pipes, program, steering, .. } = self;
        let compiled = &mut pipes[pipe.index()];
        let (by, nat) = (compiled.shape.owner, compiled.shape.nat);
        let pool = nat.and_then(|id| program.nat_pools.get(id.index()));
        let spread = Spread { steering, workers };
        let Some(flows) = compiled.table.flows_mut().filter(|flows| flows.record_length() == page.length)
        else {
            return done;
        };
        for bytes in page.records.chunks(page.length) {
            let Some(record) = Record::read(bytes).filter(|_| bytes.len() == page.length) else {
                done.unreadable += 1;
                continue;
            };
            let of = record.entry.and_then(|entry| page.entries.get(entry as usize));
            let side = if of == Some(&DecidedFor::Default) { Side::Server } else { Side::Client };
            let owner = match pool {
                Some(pool) => NatPool::worker(pool.slice(&record.key), workers),
                None => worker(by, &record.key, side, spread),
            };
            if owner != own {
                continue;
            }
            let row = record.entry.and_then(|entry| rows.get(entry as usize).copied().flatten());
            let goes_on = flows.resume(&record, row);
            done.flows += usize::from(goes_on);
            done.ended += usize::from(!goes_on);
        }
        done
    }

    /// Called when all flows of another process have arrived.
    pub fn end_takeover(&mut self) {
        self.each_flows(|flows| flows.all_taken_in());
    }
}

/// Returns the entry that flows leading to a row were decided for; `None` if the entry has no meaning for
/// another process.
fn decided_for(program: &Program, pipe: &CompiledPipe, row: u32) -> Option<DecidedFor> {
    let key = pipe.slab.key(row).filter(|_| row != NO_ROW)?;
    let named = |group: GroupId, target: u16| {
        let group = program.groups.get(group.index())?;
        let target = group.targets.get(usize::from(target))?.name.clone();
        Some(DecidedFor::Target { group: group.name.clone(), target })
    };
    match *key.matches.first()? {
        EntryMatch::Default => Some(DecidedFor::Default),
        EntryMatch::Member { group, target } => named(group, target),
        EntryMatch::Target(target) => named(only_group(pipe)?, target),
        _ => None,
    }
}

/// Returns the group that a pipe picks from, unless metadata chooses it.
fn only_group(pipe: &CompiledPipe) -> Option<GroupId> {
    pipe.shape.kind.group().and_then(GroupChoice::one)
}

/// Returns the row of each entry in an engine's pipe; `None` for entries that it does not have.
fn rows_of(engine: &Engine, pipe: PipeId, entries: &[DecidedFor]) -> Vec<Option<u32>> {
    let compiled = &engine.pipes[pipe.index()];
    let groups: HashMap<&str, GroupId> =
        (0..).zip(&engine.program.groups).map(|(at, group)| (group.name.as_str(), GroupId(at))).collect();
    // Positions of targets, computed once for each group that is named.
    let mut targets: HashMap<GroupId, HashMap<&str, u16>> = HashMap::new();
    let mut row = |decided: &DecidedFor| {
        let matched = match decided {
            DecidedFor::Default => EntryMatch::Default,
            DecidedFor::Target { group, target } => {
                let group = *groups.get(group.as_str())?;
                let all = || {
                    let all = &engine.program.groups[group.index()].targets;
                    (0..).zip(all.iter()).map(|(at, target)| (target.name.as_str(), at)).collect()
                };
                let target = *targets.entry(group).or_insert_with(all).get(target.as_str())?;
                match only_group(compiled) {
                    Some(only) if only == group => EntryMatch::Target(target),
                    Some(_) => return None,
                    None => EntryMatch::Member { group, target },
                }
            }
        };
        compiled.table.find(&EntryKey { matches: vec![matched], priority: 0 })
    };
    entries.iter().map(&mut row).collect()
}

/// Returns what the flows of a pipe keep, as text that is equal where they keep the same: its actions without
/// their constants.
fn kept(pipe: &CompiledPipe) -> String {
    let operations = |operations: &[Operation]| -> Vec<Operation> {
        operations.iter().map(Operation::without_constants).collect()
    };
    let templates = pipe.shape.templates.iter();
    let all: Vec<_> = templates.map(|one| (&one.name, operations(&one.operations))).collect();
    format!("{all:?}")
}
