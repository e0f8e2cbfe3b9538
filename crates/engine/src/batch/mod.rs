//! The batch engine: a compiled program, and the code that runs up to 64 frames at a time through its pipes.
//!
//! Pipes run in an order in which every forward leads onward, each pipe on the list of packets that have
//! reached it: first all lookups, then all counting, then all actions, then all forwards. A list is a bit
//! mask, so a pipe always meets packets in order of arrival, and it makes no difference where batches are
//! cut.
//!
//! Guarantees: processing a batch does not allocate, lock, log or make system calls, and its results are
//! those of [`weir_oracle`], which shares none of this code.

mod age;
mod ahead;
pub(crate) mod compile;
pub(crate) mod compile_error;
pub(crate) mod count;
mod entries;
pub(crate) mod group;
mod icmp_error;
mod kernel;
mod length;
pub(crate) mod load;
mod mend;
mod outcome;
pub(crate) mod packets;
mod pipe;
mod report;
mod reserve;
mod resize;
pub(crate) mod rows;
pub(crate) mod steps;
mod succession;
mod swap;
mod takeover;
mod tees;
mod tunnel;
mod walk;

use crate::aggregate::Aggregate;
use crate::pipes::Making;
use crate::pipes::flow::Flows;
use compile::CompiledPipe;
pub use compile_error::CompileError;
pub use outcome::BatchOutcome;
use packets::Reading;
pub use reserve::Reservation;
pub use resize::Moved;
use std::sync::Arc;
use succession::{Staging, Succession};
use swap::GroupNames;
pub use swap::SwapReport;
pub use takeover::{DecidedFor, FlowPage, FlowStock, TakenOver};
pub use tees::Tees;
pub(crate) use walk::Walk;
use weir_packet::fragment::{DatagramId, FragmentPart};
use weir_packet::{Batch, Bits, DropReason, TableHash};
use weir_program::buckets::{BucketTable, GroupTables};
use weir_program::change::{Change, ChangeError, EntryKey};
use weir_program::check::{Shape, Uses, all_fit, owners_of};
use weir_program::owner::{Owners, Owning, Side, Spread, Steering};
use weir_program::snapshot::{Count, FlowAccount};
use weir_program::{CounterId, Entry, PipeId, PortId, Program};
use weir_table::Patience;

/// Which of the workers this is.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Its number.
    pub own: usize,
    /// The number of workers.
    pub workers: usize,
}

impl Share {
    /// The only worker.
    pub const ALONE: Share = Share { own: 0, workers: 1 };
}

/// A compiled program and its state.
#[derive(Debug)]
pub struct Engine {
    /// The program without its entries: names, shapes, groups.
    program: Program,
    /// The properties that entries added at run time must preserve.
    shape: Shape,
    /// The program's groups by name, for when this engine takes over from another.
    group_names: GroupNames,
    pipes: Vec<CompiledPipe>,
    order: Vec<usize>,
    /// The first FLOW pipe, whose table is prefetched for each batch.
    flows: Option<usize>,
    /// How the worker that a frame belongs to is found, by port.
    owners: Vec<Option<Owning>>,
    /// How flows are spread over workers.
    steering: Steering,
    walk: Walk,
    ticked_ms: u32,
    /// Which program this is, counted from 1.
    generation: u64,
    /// Flows of previous programs, which leave as their deltas are accepted.
    #[allow(clippy::vec_box, reason = "they were boxed earlier, and are moved between two breaths")]
    leaving: Vec<Box<Flows>>,
    /// Sums of previous programs, likewise.
    #[allow(clippy::vec_box, reason = "they were boxed earlier, and are moved between two breaths")]
    left_sums: Vec<Box<Aggregate>>,
    /// The progress of taking over from another engine, before and after the takeover.
    staging: Option<Staging>,
    succession: Option<Box<Succession>>,
    /// Engines of removed workers from which counts of entries still have to be taken over.
    #[allow(clippy::vec_box, reason = "they were boxed earlier, and are moved between two breaths")]
    estates: Vec<Box<Engine>>,
    /// Whether another engine is taking over: no entry expires then.
    still: bool,
    /// Where packets that met FLOW pipes of previous programs were counted.
    past: FlowAccount,
    /// The number of bucket tables that were filled here because a change of weight came without them.
    filled: u64,
    /// Whether other workers have replicas of the entries.
    shared: bool,
    /// Whether a program in the kernel has a copy of the entries.
    is_copied: bool,
    /// Entries that have expired here, but not in the kernel's copy.
    expired: Vec<(PipeId, EntryKey)>,
}

impl Engine {
    /// Compiles a program, fills its buckets, and adds its entries. `hash` is the secret of the process.
    ///
    /// # Errors
    /// The program has problems that the check would have reported; see [`CompileError`].
    pub fn new(program: &Program, hash: TableHash) -> Result<Engine, CompileError> {
        Engine::with_tables(program, hash, &GroupTables::new(program))
    }

    /// Compiles a program with these buckets, and adds its entries.
    ///
    /// # Errors
    /// The program has problems that the check would have reported; see [`CompileError`].
    pub fn with_tables(
        program: &Program,
        hash: TableHash,
        tables: &GroupTables,
    ) -> Result<Engine, CompileError> {
        let making = Making { program, hash, secret: hash.hash(&[0]) };
        let pipes: Result<Vec<_>, _> = program.pipes.iter().map(|one| compile::pipe(one, making)).collect();
        let shape = Shape::of(program);
        let (walk, order) = (Walk::new(program, hash, tables)?, compile::order(program, &shape)?);
        let mut pipes = pipes?;
        for (at, pipe) in (0..).zip(&mut pipes) {
            if let Some(flows) = pipe.table.flows_mut() {
                flows.count_in(tables.census(PipeId(at)));
            }
        }
        let flows = order.iter().copied().find(|&at| pipes[at].table.flows().is_some());
        let names = program.without_entries();
        let mut engine = Engine {
            group_names: GroupNames::of(&names.groups),
            program: names,
            shape,
            pipes,
            order,
            flows,
            owners: Vec::new(),
            steering: hash.into(),
            walk,
            ticked_ms: 0,
            generation: 1,
            leaving: Vec::new(),
            left_sums: Vec::new(),
            staging: None,
            succession: None,
            estates: Vec::new(),
            still: false,
            past: FlowAccount::default(),
            filled: 0,
            shared: false,
            is_copied: false,
            expired: Vec::new(),
        };
        for (at, pipe) in program.pipes.iter().enumerate() {
            // The check of the program has already validated where its entries lead.
            let entered = all_fit(program, PipeId(at as u16), |entry| engine.pipes[at].enter(entry, 0));
            entered.map_err(|(number, why)| compile::refused(pipe, number, &why))?;
        }
        engine.find_owners();
        Ok(engine)
    }

    /// Sets how flows are spread over workers, the same on all of them, before there are any flows. Engines
    /// that take over from this one inherit it.
    pub fn steer(&mut self, steering: Steering) {
        self.steering = steering;
    }

    /// Returns what determines the worker that a frame belongs to, for use outside of workers.
    #[must_use]
    pub fn owners(&self, steering: Steering, workers: usize) -> Owners {
        let Reading { depth, tunnels, follows, .. } = self.walk.reading;
        let (ports, pools) = (self.owners.clone(), self.program.nat_pools.clone());
        Owners { ports, pools, depth, tunnels, follows, steering, workers }
    }

    /// Determines how the worker that a frame belongs to is found, with the current entries.
    fn find_owners(&mut self) {
        self.owners = owners_of(&self.program, &self.shape, &uses(&self.pipes)).0;
    }

    /// The program; its pipes have no entries.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Whether the program keeps flow state, so that each flow must stay on one worker.
    #[inline]
    #[must_use]
    pub fn has_flows(&self) -> bool {
        self.flows.is_some()
    }

    /// Whether fragments have the ports of their datagram, which must be set before they are processed.
    #[inline]
    #[must_use]
    pub fn follows(&self) -> bool {
        self.walk.reading.follows
    }

    /// Returns the secret hash of the tables.
    #[must_use]
    pub fn table_hash(&self) -> TableHash {
        self.walk.reading.hash
    }

    /// Finds the frames of `list`, received on `input`, that belong to a worker other than this one, and
    /// calls `found` with the slot and the worker of each. Returns their mask. The other frames must be
    /// processed next.
    ///
    /// Fragments without ports belong to the worker that learns the ports of their datagram; if that is this
    /// worker, they are in the second mask, and their ports must be set before they are processed.
    pub fn of_others(
        &mut self,
        batch: &mut Batch,
        list: u64,
        input: PortId,
        share: Share,
        mut found: impl FnMut(usize, usize),
    ) -> (u64, u64) {
        let Share { own, workers } = share;
        let owning = self.owners.get(input.index()).and_then(Option::as_ref);
        let follows = self.follows() && self.has_root(input);
        if !follows && (owning.is_none() || workers <= 1) {
            return (0, 0);
        }
        if let Some(Owning::Ahead(pipes)) = owning
            && workers > 1
        {
            let pipes = Arc::clone(pipes);
            return self.look_ahead(&pipes, batch, list, input, share, found);
        }
        let owner =
            owning.and_then(|owning| if let Owning::Same(owner) = owning { Some(*owner) } else { None });
        let (Walk { packets, reading, .. }, steering) = (&mut self.walk, &self.steering);
        let all = packets.find(batch, list, reading);
        let untold = packets.untold(all);
        if workers <= 1 {
            return (0, untold);
        }
        let spread = Spread { steering, workers };
        let mut others = 0;
        if let Some(owner) = owner {
            let pools = &self.program.nat_pools;
            for slot in Bits(all & !untold) {
                let (bytes, ports) = (batch.frame(slot).bytes(), packets.ports_of(slot));
                let worker = owner.of(bytes, &packets.headers[slot], ports, Side::Client, pools, spread);
                if let Some(worker) = worker.filter(|worker| *worker != own) {
                    found(slot, worker);
                    others |= 1 << slot;
                }
            }
        }
        others |= packets.untold_of_others(batch, untold, own, spread, found);
        packets.forget_headers(others);
        (others, untold & !others)
    }

    /// Finds the fragments of `list` whose ports must be set before they are processed, as
    /// [`Engine::of_others`] does.
    pub fn fragments(&mut self, batch: &mut Batch, list: u64, input: PortId) -> u64 {
        self.of_others(batch, list, input, Share::ALONE, |_, _| ()).1
    }

    /// Returns the worker of a fragment, received on `input`, whose ports were set; `None` if it does not
    /// belong to a FLOW pipe.
    #[must_use]
    pub fn owner_of_told(
        &mut self,
        batch: &mut Batch,
        slot: usize,
        input: PortId,
        workers: usize,
    ) -> Option<usize> {
        match self.owners.get(input.index())?.as_ref()? {
            Owning::Same(owner) => {
                let packets = &self.walk.packets;
                let (headers, ports) = (&packets.headers[slot], packets.ports_of(slot));
                let spread = Spread { steering: &self.steering, workers };
                let pools = &self.program.nat_pools;
                owner.of(batch.frame(slot).bytes(), headers, ports, Side::Client, pools, spread)
            }
            Owning::Ahead(pipes) => {
                let (pipes, mut worker) = (Arc::clone(pipes), None);
                // No worker has this number, so every worker counts as another one.
                let every = Share { own: usize::MAX, workers };
                self.look_ahead(&pipes, batch, 1 << slot, input, every, |_, owner| worker = Some(owner));
                worker
            }
        }
    }

    /// Returns the datagram of a fragment that [`Engine::of_others`] found, and which part of it the fragment
    /// carries.
    #[must_use]
    pub fn piece(&self, batch: &Batch, slot: usize) -> Option<(DatagramId, FragmentPart)> {
        self.walk.packets.piece(batch, slot)
    }

    /// Sets the ports of the datagram for the frame in a slot of the next batch, which is a fragment of it.
    pub fn set_datagram_ports(&mut self, slot: usize, ports: [u8; 4]) {
        self.walk.packets.set_datagram_ports(slot, ports);
    }

    /// Forgets the ports that were set: the batch is not processed.
    pub fn forget_ports(&mut self) {
        self.walk.packets.forget();
    }

    /// Returns the ports that were set.
    #[must_use]
    pub fn told_ports(&self, slot: usize) -> Option<[u8; 4]> {
        self.walk.packets.told_ports(slot)
    }

    fn has_root(&self, input: PortId) -> bool {
        self.program.ports.get(input.index()).is_some_and(|port| port.root.is_some())
    }

    /// Runs the packets of `list`, received on `input`, through the program. The frames are rewritten in the
    /// batch; the outcome says where each one goes.
    pub fn process(&mut self, batch: &mut Batch, list: u64, input: PortId, now_ns: u64) -> &mut BatchOutcome {
        self.walk.live = true;
        self.run(batch, list, input, now_ns)
    }

    /// Does the same without counting, learning or metering. Frames are still rewritten.
    pub fn probe(&mut self, batch: &mut Batch, input: PortId, now_ns: u64) -> &BatchOutcome {
        self.walk.live = false;
        self.run(batch, batch.mask(), input, now_ns)
    }

    fn run(&mut self, batch: &mut Batch, list: u64, input: PortId, now_ns: u64) -> &mut BatchOutcome {
        let walk = &mut self.walk;
        walk.start(now_ns, input);
        let Some(root) = self.program.ports.get(input.index()).and_then(|port| port.root) else {
            walk.packets.forget();
            walk.drop_list(list, DropReason::Policy);
            return &mut walk.outcome;
        };
        let outcome = &mut walk.outcome;
        // The cache lines of the flow table arrive while keys are made and other pipes run.
        let flows = self.flows.and_then(|at| self.pipes[at].table.flows());
        let ahead = |source, hash| {
            if let Some(flows) = flows.filter(|flows| flows.source == source) {
                flows.prefetch(hash);
            }
        };
        let good =
            walk.packets.read(batch, list, &walk.reading, ahead, |slot, reason| outcome.drop(slot, reason));
        // Likewise the flows themselves, while the pipes in front of theirs run.
        if let Some(at) = self.flows.filter(|at| *at != root.index())
            && let Some(flows) = self.pipes[at].table.flows_mut()
        {
            flows.look_ahead(&walk.packets, good);
        }
        walk.lists[root.index()] = good;
        for &at in &self.order {
            let list = std::mem::take(&mut walk.lists[at]);
            if list != 0 {
                self.pipes[at].run(walk, batch, list);
            }
        }
        debug_assert!(walk.lists.iter().all(|list| *list == 0), "pipes only lead to later ones");
        debug_assert_eq!(walk.outcome.leaving(), Some(list), "every packet has exactly one exit");
        &mut walk.outcome
    }

    /// Applies one change between batches.
    ///
    /// # Errors
    /// The change is not possible; in this case, nothing has changed.
    pub fn apply(&mut self, change: &Change, now_ns: u64) -> Result<(), ChangeError> {
        let now_ms = (now_ns / 1_000_000) as u32;
        match change {
            Change::Add { pipe, entry } => {
                let opens = self.opens(*pipe, entry);
                self.enter(*pipe, entry, now_ms)?;
                if opens {
                    self.find_owners();
                }
                Ok(())
            }
            Change::Update { pipe, entry } => {
                self.admits(*pipe, entry)?;
                let opens = self.opens(*pipe, entry);
                self.free_pipe(*pipe)?.update(entry)?;
                if opens {
                    self.find_owners();
                }
                Ok(())
            }
            Change::Remove { pipe, key } => self.free_pipe(*pipe)?.remove(key),
            Change::Batch(changes) => self.apply_batch(changes, now_ns),
            Change::SetWeight { group, .. } | Change::SetWeights { group, .. } => {
                change.fits_groups(&self.program.groups)?;
                let declared = &mut self.program.groups[group.index()];
                for (target, weight) in change.weights().iter().flat_map(|(_, weights)| weights.iter()) {
                    declared.set_weight(usize::from(*target), *weight);
                }
                self.walk.targets[group.index()] = Arc::clone(&declared.targets);
                let held = &mut self.walk.groups[group.index()];
                held.publish(&Arc::new(BucketTable::fill(declared, Some(held.slots()))));
                self.filled += 1;
                Ok(())
            }
            Change::Publish { group, targets, table } => {
                change.fits_groups(&self.program.groups)?;
                let declared = &mut self.program.groups[group.index()];
                declared.targets = Arc::clone(targets);
                declared.size = table.buckets().slots().len() as u32;
                self.walk.targets[group.index()] = Arc::clone(targets);
                self.walk.groups[group.index()].publish(table);
                Ok(())
            }
            Change::NameCounters(names) => self.name_counters(names),
            Change::MoveBuckets { group, moves, idle_gap_ns, wait_max_ns } => {
                change.fits_groups(&self.program.groups)?;
                let patience = Patience { idle_gap_ns: *idle_gap_ns, wait_max_ns: *wait_max_ns };
                self.walk.groups[group.index()].give(moves, patience, now_ns);
                Ok(())
            }
        }
    }

    fn name_counters(&mut self, names: &[(CounterId, String)]) -> Result<(), ChangeError> {
        let known = self.program.counters.len();
        if names.iter().any(|(id, _)| id.index() >= known) {
            return Err(ChangeError::Unknown { what: "counter".into() });
        }
        for (id, name) in names {
            self.program.counters[id.index()].clone_from(name);
            self.walk.counters[id.index()] = Count::default();
        }
        Ok(())
    }

    fn enter(&mut self, pipe: PipeId, entry: &Entry, now_ms: u32) -> Result<(), ChangeError> {
        self.admits(pipe, entry)?;
        self.free_pipe(pipe)?.enter(entry, now_ms)
    }

    /// Returns whether an entry opens a path that may lead to a FLOW pipe.
    fn opens(&self, pipe: PipeId, entry: &Entry) -> bool {
        let uses = self.pipes.get(pipe.index()).map(|pipe| &pipe.actions.uses);
        let new = |forward| uses.is_some_and(|uses| !uses.has_lead((forward, entry.template)));
        self.has_flows() && entry.forward.is_some_and(new)
    }

    /// Checks that an entry may be added to the current ones.
    fn admits(&self, pipe: PipeId, entry: &Entry) -> Result<(), ChangeError> {
        self.shape.admits(&self.program, &uses(&self.pipes), pipe, entry)
    }

    /// Returns a pipe that is not reserved.
    fn free_pipe(&mut self, pipe: PipeId) -> Result<&mut CompiledPipe, ChangeError> {
        let pipe = self.pipe_mut(pipe)?;
        match pipe.held {
            Some(_) => Err(ChangeError::Busy { pipe: pipe.shape.name.clone() }),
            None => Ok(pipe),
        }
    }

    fn pipe_mut(&mut self, pipe: PipeId) -> Result<&mut CompiledPipe, ChangeError> {
        self.pipes.get_mut(pipe.index()).ok_or_else(|| ChangeError::Unknown { what: "pipe".into() })
    }
}

/// Returns what the entries of each pipe lead to and use.
fn uses(pipes: &[CompiledPipe]) -> Vec<&Uses> {
    pipes.iter().map(|pipe| &pipe.actions.uses).collect()
}
