//! The batch engine: a compiled program that carries up to 64 frames at a time through its pipes.
//!
//! Pipes run in an order in which every forward points onward, each on the list of packets that reached it: look up all,
//! then count all, then act on all, then forward all. A list is a mask, so however packets came to a pipe they are met
//! in the order of their arrival, and where batches are cut makes no difference.
//!
//! Promises: no allocation, lock, log or system call while a batch is processed. The same results as
//! [`crate::interpreter`], which shares none of this code.

pub(crate) mod compile;
mod entries;
pub(crate) mod group;
pub(crate) mod load;
mod mend;
pub(crate) mod packets;
mod pipe;
pub(crate) mod rows;
mod steps;
mod swap;
mod tees;
mod tunnel;

use crate::change::{Change, ChangeError};
use crate::check::Shape;
use crate::pipes::Making;
use crate::program::{CounterId, Entry, Forward, Group, PipeId, PortId, Program};
use crate::snapshot::{BucketReport, Count, EntrySnapshot, FlowSnapshot, PipeSnapshot, Snapshot};
use crate::verdict::{Copied, Verdict};
use ::table::{FlowDelta, Meter, Patience};
pub use compile::CompileError;
use compile::CompiledPipe;
use group::{GroupTable, Meeting};
use packet::{Batch, Bits, DropReason, FlowKey, KeySource, SelectIpv4, TableHash};
use packets::{Packets, Reading};
pub use swap::SwapReport;
pub use tees::Tees;

/// Every flow and run-time entry is looked at for its age about once in so long, whatever the table's size and the breaths' pace.
const AGE_SWEEP_MS: u64 = 1_000;

/// Rows looked at in one breath at most: 50 microseconds of a worker that has slept.
const AGE_ROWS_MAX: u64 = 16_384;

/// Flow deltas that wait to be taken; aging stops when there are so many, and nothing is lost.
pub(crate) const DELTAS_MAX: usize = 4096;

/// Moves of a group's buckets looked at in one breath at most: a packet that meets a bucket looks for itself.
const MOVES_PER_TICK: usize = 1024;

/// The pipe of a flow delta whose pipe is no longer there.
pub const GONE: PipeId = PipeId(u16::MAX);

/// What became of a batch: one mask per way out.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Packets for each port, by its number.
    pub transmit: Vec<u64>,
    /// Packets for the host's stack at the port they came in by.
    pub kernel: u64,
    /// Packets for each app, by its number.
    pub apps: Vec<u64>,
    /// Packets that were dropped; `reasons` says why.
    pub dropped: u64,
    /// Reasons of the dropped.
    pub reasons: Vec<DropReason>,
    /// Packets in the masks of several ports: a copy for each, and the frame itself for the last.
    pub flooded: u64,
    /// Copies for apps of packets that went on.
    pub tees: Tees,
}

impl Outcome {
    fn new(program: &Program) -> Outcome {
        Outcome {
            transmit: vec![0; program.ports.len()],
            kernel: 0,
            apps: vec![0; program.apps.len()],
            dropped: 0,
            reasons: vec![DropReason::Policy; 64],
            flooded: 0,
            tees: Tees::new(program),
        }
    }

    fn clear(&mut self) {
        self.transmit.fill(0);
        // glibc fills nothing by a store under an empty mask, and where an empty list points to that is an assist of
        // hundreds of cycles.
        if !self.apps.is_empty() {
            self.apps.fill(0);
        }
        self.kernel = 0;
        self.dropped = 0;
        self.flooded = 0;
        self.tees.clear();
    }

    #[inline(always)]
    pub(crate) fn drop(&mut self, slot: usize, reason: DropReason) {
        self.dropped |= 1 << slot;
        self.reasons[slot & 63] = reason;
    }

    /// What became of one packet; `input` is where it came in.
    #[must_use]
    pub fn verdict(&self, slot: usize, input: PortId) -> Verdict {
        let bit = 1 << slot;
        let port = self.transmit.iter().rposition(|list| list & bit != 0);
        let app = self.apps.iter().position(|list| list & bit != 0);
        match (port, app) {
            (Some(port), _) => Verdict::Transmit(PortId(port as u16)),
            (None, Some(app)) => Verdict::App(crate::program::AppId(app as u16)),
            (None, None) if self.kernel & bit != 0 => Verdict::Kernel(input),
            (None, None) => Verdict::Drop(self.reasons[slot & 63]),
        }
    }

    /// Copies of one packet, whose bytes are these now.
    #[must_use]
    pub fn copies(&self, slot: usize, bytes: &[u8]) -> Vec<Copied> {
        let tees = self.tees.of(slot).map(|(app, bytes)| Copied { to: Verdict::App(app), bytes: bytes.to_vec() });
        let mut copies: Vec<Copied> = tees.collect();
        if self.flooded & 1 << slot != 0 {
            let ports = (0..).map(PortId).zip(&self.transmit).filter(|(_, list)| *list & 1 << slot != 0);
            let flood = ports.map(|(port, _)| Copied { to: Verdict::Transmit(port), bytes: bytes.to_vec() });
            copies.extend(flood);
            // The last one is the frame itself.
            copies.pop();
        }
        copies
    }
}

/// What pipes share while a batch goes through them.
#[derive(Debug)]
struct Walk {
    packets: Box<Packets>,
    reading: Reading,
    groups: Vec<GroupTable>,
    /// Where the targets of each group go.
    targets: Vec<Vec<Forward>>,
    counters: Vec<Count>,
    meters: Vec<Meter>,
    /// Packets that wait for each pipe.
    lists: Vec<u64>,
    outcome: Outcome,
    now_ns: u64,
    now_ms: u32,
    /// False while explaining: nothing is counted, learnt or metered.
    live: bool,
}

/// A compiled program with its state.
#[derive(Debug)]
pub struct Engine {
    /// The program without its entries: names, shapes, groups.
    program: Program,
    /// What entries at run time must not break.
    shape: Shape,
    pipes: Vec<CompiledPipe>,
    order: Vec<usize>,
    /// The first pipe of type FLOW: a batch's keys are looked up ahead of it.
    flows: Option<usize>,
    walk: Walk,
    ticked_ms: u32,
    /// Deltas of flows that did not survive a swap.
    departed: Vec<(PipeId, FlowDelta)>,
}

impl Engine {
    /// Compiles a program and enters its entries. `hash` is the process's secret.
    ///
    /// # Errors
    /// What the check would have said; see [`CompileError`].
    pub fn new(program: &Program, hash: TableHash) -> Result<Engine, CompileError> {
        let making = Making { program, hash, secret: hash.hash(&[0]) };
        let pipes: Result<Vec<_>, _> = program.pipes.iter().map(|one| compile::pipe(one, making)).collect();
        let shape = Shape::of(program);
        let (walk, order) = (walk(program, hash)?, compile::order(program, &shape)?);
        let pipes = pipes?;
        let flows = order.iter().copied().find(|&at| pipes[at].table.flows().is_some());
        let names = program.without_entries();
        let mut engine =
            Engine { program: names, shape, pipes, order, flows, walk, ticked_ms: 0, departed: Vec::new() };
        for (at, pipe) in program.pipes.iter().enumerate() {
            for (number, entry) in pipe.entries.iter().enumerate() {
                let change = engine.enter(PipeId(at as u16), entry, 0);
                change.map_err(|why| compile::refused(pipe, number, &why))?;
            }
        }
        Ok(engine)
    }

    /// The program, its pipes without entries.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Does the program keep flow state, which lives on one worker?
    #[inline]
    #[must_use]
    pub fn has_flows(&self) -> bool {
        self.pipes.iter().any(|pipe| pipe.table.flows().is_some())
    }

    /// Carries the packets of `list`, which came in by `input`, through the program. The frames stay in the batch, rewritten; the outcome
    /// says where they go.
    pub fn process(&mut self, batch: &mut Batch, list: u64, input: PortId, now_ns: u64) -> &Outcome {
        self.walk.live = true;
        self.run(batch, list, input, now_ns)
    }

    /// The same, but nothing is counted, learnt or metered. The frames are rewritten all the same.
    pub fn probe(&mut self, batch: &mut Batch, input: PortId, now_ns: u64) -> &Outcome {
        self.walk.live = false;
        self.run(batch, batch.mask(), input, now_ns)
    }

    fn run(&mut self, batch: &mut Batch, list: u64, input: PortId, now_ns: u64) -> &Outcome {
        let walk = &mut self.walk;
        walk.start(now_ns, input);
        let Some(root) = self.program.ports.get(input.index()).and_then(|port| port.root) else {
            walk.drop_list(list, DropReason::Policy);
            return &walk.outcome;
        };
        let outcome = &mut walk.outcome;
        // The flow table's lines come while keys are made and other pipes run.
        let flows = self.flows.and_then(|at| self.pipes[at].table.flows());
        let ahead = |source, hash| {
            if let Some(flows) = flows.filter(|flows| flows.source == source) {
                flows.table.prefetch_bucket(hash);
            }
        };
        let good = walk.packets.read(batch, list, &walk.reading, ahead, |slot, reason| outcome.drop(slot, reason));
        walk.lists[root.index()] = good;
        for &at in &self.order {
            let list = std::mem::take(&mut walk.lists[at]);
            if list != 0 {
                self.pipes[at].run(walk, batch, list);
            }
        }
        &walk.outcome
    }

    /// Takes the outcome of the last batch out, to be given back before the next one.
    #[inline]
    pub fn take_outcome(&mut self) -> Outcome {
        std::mem::take(&mut self.walk.outcome)
    }

    /// Gives an outcome back, so that its lists need not be allocated again.
    #[inline]
    pub fn give_outcome(&mut self, outcome: Outcome) {
        self.walk.outcome = outcome;
    }

    /// Totals of every pipe.
    #[must_use]
    pub fn pipe_reports(&self) -> Vec<crate::worker::PipeReport> {
        self.pipes.iter().map(CompiledPipe::report).collect()
    }

    /// Applies one change between batches.
    ///
    /// # Errors
    /// Nothing has changed then.
    pub fn apply(&mut self, change: &Change, now_ns: u64) -> Result<(), ChangeError> {
        let now_ms = (now_ns / 1_000_000) as u32;
        match change {
            Change::Add { pipe, entry } => self.enter(*pipe, entry, now_ms),
            Change::Update { pipe, entry } => {
                self.shape.admits(&self.program, *pipe, entry)?;
                self.pipe_mut(*pipe)?.update(entry)
            }
            Change::Remove { pipe, key } => self.pipe_mut(*pipe)?.remove(key),
            Change::SetWeight { group, target, weight } => {
                change.fits_groups(&self.program)?;
                let declared = &mut self.program.groups[group.index()];
                declared.targets[usize::from(*target)].weight = *weight;
                let table = &mut self.walk.groups[group.index()];
                *table = GroupTable::new(declared, Some(table.slots()));
                Ok(())
            }
            Change::MoveBuckets { group, moves, idle_gap_ns, wait_max_ns } => {
                change.fits_groups(&self.program)?;
                let patience = Patience { idle_gap_ns: *idle_gap_ns, wait_max_ns: *wait_max_ns };
                self.walk.groups[group.index()].give(moves, patience, now_ns);
                Ok(())
            }
        }
    }

    fn enter(&mut self, pipe: PipeId, entry: &Entry, now_ms: u32) -> Result<(), ChangeError> {
        self.shape.admits(&self.program, pipe, entry)?;
        self.pipe_mut(pipe)?.enter(entry, now_ms)
    }

    fn pipe_mut(&mut self, pipe: PipeId) -> Result<&mut CompiledPipe, ChangeError> {
        self.pipes.get_mut(pipe.index()).ok_or_else(|| ChangeError::Unknown { what: "pipe".into() })
    }

    /// Ages a slice in proportion to the time since the last one: part of every breath, at most once a millisecond.
    pub fn tick(&mut self, now_ns: u64) {
        let now_ms = (now_ns / 1_000_000) as u32;
        let elapsed_ms = now_ms.wrapping_sub(self.ticked_ms);
        if elapsed_ms == 0 {
            return;
        }
        self.ticked_ms = now_ms;
        self.walk.groups.iter_mut().for_each(|group| group.settle(MOVES_PER_TICK, now_ns));
        for pipe in &mut self.pipes {
            let rows = age_rows(pipe.capacity, elapsed_ms);
            pipe.age_flows(rows, now_ms, DELTAS_MAX);
            pipe.age_entries(rows, now_ms);
        }
    }

    /// Ages everything at once.
    pub fn age(&mut self, now_ns: u64) {
        let now_ms = (now_ns / 1_000_000) as u32;
        self.walk.groups.iter_mut().for_each(|group| group.settle(usize::MAX, now_ns));
        for pipe in &mut self.pipes {
            // To the last row from where the last breath stopped, and then from the first.
            for _ in 0..2 {
                pipe.age_flows(u32::MAX, now_ms, usize::MAX);
                pipe.age_entries(u32::MAX, now_ms);
            }
        }
    }

    /// Takes the flow deltas that wait, with the pipe each came from ([`GONE`]: one of an earlier program), while `sink`
    /// accepts them.
    pub fn take_deltas(&mut self, mut sink: impl FnMut(PipeId, FlowDelta) -> bool) {
        let gone = self.departed.iter().take_while(|(pipe, delta)| sink(*pipe, *delta)).count();
        self.departed.drain(..gone);
        for (at, pipe) in self.pipes.iter_mut().enumerate() {
            let Some(flows) = pipe.table.flows_mut() else { continue };
            let taken = flows.deltas.iter().take_while(|delta| sink(PipeId(at as u16), **delta)).count();
            flows.deltas.drain(..taken);
        }
    }

    /// Everything that was counted.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            pipes: self.pipes.iter().map(pipe_snapshot).collect(),
            counters: self.walk.counters.clone(),
            buckets: self.bucket_reports(),
        }
    }

    /// What was counted without listing entries and flows: cheap whatever the tables' sizes.
    #[must_use]
    pub fn counters(&self) -> Vec<Count> {
        self.walk.counters.clone()
    }

    /// A shared counter.
    #[must_use]
    pub fn counter(&self, id: CounterId) -> Count {
        self.walk.counters.get(id.index()).copied().unwrap_or_default()
    }

    /// Entries of a pipe as they could be written again, with their counts.
    #[must_use]
    pub fn entries(&self, pipe: PipeId) -> Vec<(Entry, Count)> {
        let pipe = self.pipes.get(pipe.index());
        let all = pipe.map(CompiledPipe::entries).unwrap_or_default().into_iter();
        all.map(|(entry, row)| (entry, Count { packets: row.packets, bytes: row.bytes })).collect()
    }

    /// One live flow of a FLOW pipe.
    #[must_use]
    pub fn flow(&self, pipe: PipeId, key: &FlowKey) -> Option<FlowSnapshot> {
        self.pipes.get(pipe.index())?.table.flows()?.snapshot(key)
    }

    /// Up to `limit` live flows of a FLOW pipe, and how many there are.
    #[must_use]
    pub fn flows(&self, pipe: PipeId, limit: usize) -> (Vec<FlowSnapshot>, usize) {
        let flows = self.pipes.get(pipe.index()).and_then(|pipe| pipe.table.flows());
        flows.map_or_else(Default::default, |flows| (flows.snapshots().take(limit).collect(), flows.table.len()))
    }

    /// The buckets of every group, targets by their position.
    #[must_use]
    pub fn buckets(&self) -> Vec<Vec<u16>> {
        self.walk.groups.iter().map(|group| group.slots().to_vec()).collect()
    }

    /// How many packets each pipe has dealt out in turn.
    #[must_use]
    pub fn turns(&self) -> Vec<u64> {
        self.pipes.iter().map(|pipe| pipe.table.turns()).collect()
    }

    /// The same, with what those that are given have counted.
    #[must_use]
    pub fn bucket_reports(&self) -> Vec<BucketReport> {
        self.walk.groups.iter().map(GroupTable::report).collect()
    }
}

fn walk(program: &Program, hash: TableHash) -> Result<Walk, CompileError> {
    let meters: Result<Vec<Meter>, CompileError> =
        program.meters.iter().map(|meter| compile::meter(&meter.name, &meter.config)).collect();
    let forwards = |group: &Group| group.targets.iter().map(|target| target.forward).collect();
    let reading = Reading {
        depth: program.depth(),
        seed: program.select_seed,
        select: SelectIpv4::new(program.select_seed),
        hash,
        uses_meta: uses_metadata(program),
    };
    Ok(Walk {
        packets: Box::new(Packets::new(program.key_use(KeySource::Outer), program.key_use(KeySource::Inner))),
        reading,
        groups: program.groups.iter().map(|group| GroupTable::new(group, None)).collect(),
        targets: program.groups.iter().map(forwards).collect(),
        counters: vec![Count::default(); program.counters.len()],
        meters: meters?,
        lists: vec![0; program.pipes.len()],
        outcome: Outcome::new(program),
        now_ns: 0,
        now_ms: 0,
        live: true,
    })
}

/// Does anything write or colour metadata? If not it need not be cleared.
fn uses_metadata(program: &Program) -> bool {
    use crate::program::Operation;
    let written = |operation: &Operation| match operation {
        Operation::Set(field, _) | Operation::Add(field, _) | Operation::Copy { to: field, .. } => {
            field.meta_word().is_some()
        }
        _ => false,
    };
    let templates = || program.pipes.iter().flat_map(|pipe| &pipe.templates);
    !program.meters.is_empty() || templates().flat_map(|template| &template.operations).any(written)
}

impl Walk {
    fn start(&mut self, now_ns: u64, input: PortId) {
        self.outcome.clear();
        self.packets.input = input;
        self.now_ns = now_ns;
        self.now_ms = (now_ns / 1_000_000) as u32;
    }

    #[inline]
    fn drop_list(&mut self, list: u64, reason: DropReason) {
        for slot in Bits(list) {
            self.outcome.drop(slot, reason);
        }
    }

    /// Sends a list on its way; `reason` is that of a `drop`.
    #[inline]
    fn forward(&mut self, batch: &Batch, forward: Forward, list: u64, reason: DropReason) {
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
            // Nobody looks at the buckets.
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
            let target = self.groups[group].meet(self.packets.outer.select[slot], meeting);
            match self.targets[group].get(usize::from(target)) {
                None | Some(Forward::Group(_)) => self.outcome.drop(slot, DropReason::NoTarget),
                Some(&forward) => self.forward(batch, forward, 1 << slot, reason),
            }
        }
    }
}

/// Rows of a table of `capacity` flows to look at after `elapsed_ms`.
fn age_rows(capacity: u32, elapsed_ms: u32) -> u32 {
    (u64::from(capacity) * u64::from(elapsed_ms)).div_ceil(AGE_SWEEP_MS).min(AGE_ROWS_MAX) as u32
}

fn pipe_snapshot(pipe: &CompiledPipe) -> PipeSnapshot {
    let entries = pipe.entries().into_iter().map(|(entry, row)| EntrySnapshot {
        key: crate::change::EntryKey::of(&entry),
        run_time: row.is_run_time(),
        hits: Count { packets: row.packets, bytes: row.bytes },
        last_hit_ms: (row.packets > 0).then_some(u64::from(row.last)),
    });
    let flows = pipe.table.flows();
    PipeSnapshot {
        misses: pipe.misses,
        entries: entries.collect(),
        flows: flows.map(|flows| flows.snapshots().collect()).unwrap_or_default(),
        unflowed_full: flows.map_or(0, |flows| flows.unflowed_full),
        turns: pipe.table.turns(),
    }
}
