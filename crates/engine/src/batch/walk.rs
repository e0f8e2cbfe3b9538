//! State shared by the pipes while a batch passes through them, and how a list leaves a pipe.

use super::compile;
use super::compile_error::CompileError;
use super::group::{GroupNumbers, GroupTable, Meeting};
use super::outcome::BatchOutcome;
use super::packets::{Packets, Reading};
use std::sync::Arc;
use weir_packet::{Batch, Bits, DropReason, KeySource, SelectIpv4, TableHash};
use weir_program::buckets::GroupTables;
use weir_program::snapshot::Count;
use weir_program::{Fill, Forward, GroupId, PortId, Program, Target};
use weir_table::Meter;

/// State shared by the pipes while a batch passes through them.
#[derive(Debug)]
pub(crate) struct Walk {
    pub packets: Box<Packets>,
    pub reading: Reading,
    pub groups: Vec<GroupTable>,
    pub numbers: GroupNumbers,
    /// The groups with given buckets, by position: out of thousands of groups, only these have moves.
    pub given: Vec<u16>,
    /// The targets of each group.
    pub targets: Vec<Arc<[Target]>>,
    pub counters: Vec<Count>,
    pub meters: Vec<Meter>,
    /// Packets waiting for each pipe.
    pub lists: Vec<u64>,
    pub outcome: BatchOutcome,
    pub now_ns: u64,
    pub now_ms: u32,
    /// False while explaining, when nothing is counted, learnt or metered.
    pub live: bool,
}

impl Walk {
    /// Looks at up to `most` pending moves of each group, and carries out those that are due.
    pub fn settle(&mut self, most: usize, now_ns: u64) {
        let Walk { given, groups, .. } = self;
        given.iter().for_each(|&at| groups[usize::from(at)].settle(most, now_ns));
    }

    pub(super) fn new(
        program: &Program,
        hash: TableHash,
        tables: &GroupTables,
    ) -> Result<Walk, CompileError> {
        let meters: Result<Vec<Meter>, CompileError> =
            program.meters.iter().map(|meter| compile::meter(&meter.name, &meter.config)).collect();
        let reading = Reading {
            depth: program.depth(),
            tunnels: program.tunnels,
            seed: program.select_seed,
            select: SelectIpv4::new(program.select_seed),
            hash,
            uses_meta: uses_metadata(program),
            follows: program.follows(),
        };
        Ok(Walk {
            packets: Box::new(Packets::new(
                program.key_use(KeySource::Outer),
                program.key_use(KeySource::Inner),
            )),
            reading,
            groups: (0..)
                .map(GroupId)
                .zip(&program.groups)
                .map(|(id, group)| GroupTable::new(group, tables.table(id), program.select_seed))
                .collect(),
            numbers: GroupNumbers::new(program),
            given: (0..)
                .zip(&program.groups)
                .filter(|(_, one)| one.fill == Fill::Given)
                .map(|(at, _)| at)
                .collect(),
            targets: program.groups.iter().map(|group| Arc::clone(&group.targets)).collect(),
            counters: vec![Count::default(); program.counters.len()],
            meters: meters?,
            lists: vec![0; program.pipes.len()],
            outcome: BatchOutcome::new(program),
            now_ns: 0,
            now_ms: 0,
            live: true,
        })
    }

    pub(super) fn start(&mut self, now_ns: u64, input: PortId) {
        self.outcome.clear();
        self.packets.input = input;
        self.now_ns = now_ns;
        self.now_ms = (now_ns / 1_000_000) as u32;
    }

    #[inline]
    pub(crate) fn drop_list(&mut self, list: u64, reason: DropReason) {
        for slot in Bits(list) {
            self.outcome.drop(slot, reason);
        }
    }

    /// Forwards a list; `reason` applies if the forward is `drop`.
    #[inline]
    pub(crate) fn forward(&mut self, batch: &Batch, forward: Forward, list: u64, reason: DropReason) {
        match forward {
            Forward::Port(port) => self.outcome.transmit[port.index()] |= list,
            Forward::InputPort => self.outcome.transmit[self.packets.input.index()] |= list,
            Forward::Pipe(pipe) => self.lists[pipe.index()] |= list,
            Forward::App(app) => self.outcome.apps[app.index()] |= list,
            Forward::Tee { app, next } => {
                for slot in Bits(list) {
                    self.outcome.tees.push(slot, app, batch.frame(slot).bytes());
                }
                self.lists[next.index()] |= list;
            }
            Forward::Flood(group) => self.flood(group.index(), list),
            Forward::Kernel => self.outcome.kernel |= list,
            Forward::Group(group) => self.forward_by_bucket(batch, group.index(), list, reason),
            Forward::Drop | Forward::PerEntry => self.drop_list(list, reason),
        }
    }

    /// Sends a list out of every port that a target with a bucket leads to.
    fn flood(&mut self, group: usize, list: u64) {
        if list == 0 {
            // Nothing reads the buckets.
            return;
        }
        let ports = self.groups[group].flood(&self.targets[group], self.now_ns, self.live);
        if ports == 0 {
            return self.drop_list(list, DropReason::NoTarget);
        }
        for port in Bits(ports) {
            self.outcome.transmit[port] |= list;
        }
        if !ports.is_power_of_two() {
            self.outcome.flooded |= list;
        }
    }

    fn forward_by_bucket(&mut self, batch: &Batch, group: usize, list: u64, reason: DropReason) {
        for slot in Bits(list) {
            let meeting = Meeting { bytes: batch.frame(slot).len(), now_ns: self.now_ns, live: self.live };
            let keys = &self.packets.outer;
            let hash = keys.select(slot, &self.reading);
            let target = self.groups[group].meet(hash, (keys, slot), meeting);
            match self.targets[group].get(usize::from(target)).map(|target| target.forward) {
                None | Some(Forward::Group(_)) => {
                    self.groups[group].without_target(slot, &mut self.outcome);
                }
                Some(forward) => self.forward(batch, forward, 1 << slot, reason),
            }
        }
    }
}

/// Whether anything writes or colours metadata; otherwise it need not be cleared.
fn uses_metadata(program: &Program) -> bool {
    use weir_program::Operation;
    let written = |operation: &Operation| match operation {
        Operation::Set(field, _) | Operation::Add(field, _) | Operation::Copy { to: field, .. } => {
            field.meta_word().is_some()
        }
        _ => false,
    };
    let templates = || program.pipes.iter().flat_map(|pipe| &pipe.templates);
    !program.meters.is_empty() || templates().flat_map(|template| &template.operations).any(written)
}
