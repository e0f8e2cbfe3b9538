//! A worker: one core, its queues of the ports, its pools, its replica of the tables. One iteration of its
//! loop is a breath.
//!
//! ```text
//!   frames of apps that wait for room in a port         (before data takes it)
//!   receive -> program -> transmit, port by port        (inhale, walk, exhale)
//!   fragments that waited for their datagram's first    (the same walk)
//!   frames handed over by other workers, frames of apps (the same walk)
//!   flush, tick, commands                               (between breaths: entries, swaps, queries)
//! ```
//!
//! Guarantees: every frame ends in exactly one count of the ledger. The packet path has no allocation, no
//! lock, no logging and no system calls except those of ports. Commands arrive on a bounded channel and are
//! executed one by one; executing a command may allocate, forwarding does not.

mod aging;
mod breaths;
mod commands;
mod dropped_flows;
mod followed;
mod fragments;
mod hand_over;
mod inject;
mod kernel;
mod leaving;
mod outbox;
mod pending;
mod proposal;
mod report;
mod resize;
mod swap;
mod waiting;

pub use aging::Aging;
pub use breaths::{Breaths, Histogram};
pub use commands::{BUCKETS_AT_ONCE, Command, FramePrediction, PortChange, Rewire, Rewiring, Swapped};
pub use dropped_flows::{DROPPED_FLOWS_MAX, DroppedFlows};
pub use hand_over::{HAND_OVER_MEMORY, HandOver, Wake, parcels_per_ring};
pub use kernel::NextCopy;
pub use leaving::Disposal;
pub use pending::{CHANGES_PER_BREATH, RESERVATIONS_MAX};
pub use proposal::{Outcome, Proposal, Proposer, Send};
pub use report::{Handed, PipeReport, PortReport, Report};
pub use resize::{Assembly, Part, RetiredState};
pub use waiting::{Inject, Injected, WAITING_MAX};
pub use weir_program::snapshot::BucketReport;

use crate::batch::Engine;
use crate::fragments::Fragments;
use crate::ring::{CarrierSender, DeltaSender};
use followed::FollowedFlows;
use hand_over::PortNumbers;
use kernel::Kernel;
use leaving::Leaving;
use outbox::Outbox;
use pending::Pending;
use resize::{PastPort, Replicas, Resizing};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;
use swap::Swaps;
use waiting::Waiting;
use weir_packet::{Batch, DropReason, Pools, Port};
use weir_program::PortId;

/// How long a stopping worker lets the collector read before it continues.
const PAUSE_TO_END: Duration = Duration::from_millis(1);

/// How many such pauses a stopping worker makes: five seconds in total, in which a collector reads many
/// millions of deltas.
const TURNS_TO_END: u32 = 5_000;

/// One core's share of the data plane.
pub struct Worker {
    engine: Engine,
    batch: Box<Batch>,
    outbox: Outbox,
    hand_over: HandOver,
    /// The numbers that identify the ports to other workers.
    numbers: PortNumbers,
    /// Frames of apps that wait for room in a port.
    waiting: Waiting,
    /// What is known about fragmented datagrams.
    fragments: Fragments,
    /// Ports that the program no longer has.
    leaving: Leaving,
    /// Changes that are reserved or being carried out.
    pending: Vec<Pending>,
    commands: Option<Receiver<Command>>,
    swaps: Swaps,
    resizing: Resizing,
    replicas: Option<Replicas>,
    /// Counts of the ports on workers that have been removed.
    past_ports: Vec<PastPort>,
    /// The program in the kernel, on the worker that keeps its tables.
    kernel: Option<Kernel>,
    /// Another copy of the same program, which replaces the present one when its tables are complete.
    next_kernel: Option<Kernel>,
    /// The flows of this worker that the program in the kernel follows.
    followed: Option<FollowedFlows>,
    deltas: Option<DeltaSender>,
    /// The number of the program.
    generation: u64,
    breaths: u64,
    breath_times: Breaths,
    /// Flow deltas without a reader, and their packets.
    unread: (u64, u64),
    quiet: bool,
    /// Whether the ports are closed.
    closed: bool,
    stopped: bool,
}

impl Worker {
    /// Creates a worker for these ports, in the program's order, opened on these pools.
    #[must_use]
    pub fn new(engine: Engine, ports: Vec<Box<dyn Port>>, pools: Pools) -> Worker {
        let fragments = Fragments::new(engine.table_hash());
        let mut worker = Worker {
            engine,
            numbers: PortNumbers::new(ports.len()),
            batch: Box::default(),
            outbox: Outbox::new(ports, pools),
            hand_over: HandOver::default(),
            waiting: Waiting::default(),
            fragments,
            leaving: Leaving::default(),
            pending: Vec::new(),
            commands: None,
            swaps: Swaps::default(),
            resizing: Resizing::default(),
            replicas: None,
            past_ports: Vec::new(),
            kernel: None,
            next_kernel: None,
            followed: None,
            deltas: None,
            generation: 1,
            breaths: 0,
            breath_times: Breaths::default(),
            unread: (0, 0),
            quiet: false,
            closed: false,
            stopped: false,
        };
        worker.mind_program();
        worker
    }

    /// Sets the channel for commands.
    #[must_use]
    pub fn with_commands(mut self, commands: Receiver<Command>) -> Worker {
        self.commands = Some(commands);
        self
    }

    /// Sets the rings to the apps.
    #[must_use]
    pub fn with_punts(mut self, punts: Vec<CarrierSender>) -> Worker {
        self.outbox.punts = punts;
        self
    }

    /// Sets the rings to and from the other workers.
    #[must_use]
    pub fn with_hand_over(mut self, hand_over: HandOver) -> Worker {
        self.hand_over = hand_over;
        self
    }

    /// Sets the ring for flow deltas; without it, they are only counted.
    #[must_use]
    pub fn with_deltas(mut self, deltas: DeltaSender) -> Worker {
        self.deltas = Some(deltas);
        self
    }

    /// Sets the destination for things that are slow to drop; without it, the worker itself drops them.
    #[must_use]
    pub fn with_disposal(mut self, disposal: Disposal) -> Worker {
        self.leaving.disposal = Some(disposal);
        self
    }

    /// Returns the compiled program and its state.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the engine for modification between breaths, by the owner of the worker.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Returns the ports.
    #[must_use]
    pub fn ports(&self) -> &[Box<dyn Port>] {
        &self.outbox.ports
    }

    /// Returns the ports, for a caller that drives virtual time.
    pub fn ports_mut(&mut self) -> &mut [Box<dyn Port>] {
        &mut self.outbox.ports
    }

    /// Returns the pools.
    #[must_use]
    pub fn pools(&self) -> &Pools {
        &self.outbox.pools
    }

    /// Returns true after [`Command::Stop`].
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Returns true if, since the last call, frames were passed to apps, injected frames were answered, or
    /// the program was replaced: the control plane must then be woken.
    pub fn take_signal(&mut self) -> bool {
        std::mem::take(&mut self.outbox.signal)
    }

    /// Returns true while injected frames wait for room, frames to hand over wait for their parcel, removed
    /// ports wait to be closed, or a swap waits for a copy in the kernel: the worker must not sleep for long.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        let hands_over = self.hand_over.is_waiting() || !self.leaving.is_empty();
        !self.waiting.is_empty() || hands_over || self.swaps.awaits_copy()
    }

    /// Sets how other workers wake this one when they hand it frames while it sleeps.
    pub fn wake_by(&mut self, wake: Wake) {
        self.hand_over.wake_by(Arc::new(wake));
    }

    /// Announces whether the worker sleeps. After it has announced that it sleeps, it must take one more
    /// breath before it sleeps: frames that were handed over before the announcement did not wake it.
    pub fn set_asleep(&self, asleep: bool) {
        self.hand_over.set_asleep(asleep);
    }

    /// Takes one breath at time `now_ns`. Returns how many frames and commands were handled; after 0 the
    /// worker may sleep.
    pub fn breathe(&mut self, now_ns: u64) -> usize {
        if self.breathe_resizing(now_ns) {
            return 1;
        }
        if self.closed {
            let obeyed = self.handle_commands(now_ns);
            return obeyed + usize::from(self.follow_kernel(true, now_ns));
        }
        self.send_waiting(now_ns);
        let mut handled = 0;
        for at in 0..self.outbox.ports.len() {
            let Outbox { ports, pools, .. } = &mut self.outbox;
            ports[at].set_time(now_ns);
            if self.quiet {
                continue;
            }
            ports[at].receive(pools, &mut self.batch);
            handled += self.batch.len();
            if !self.batch.is_empty() {
                let list = self.admit(PortId(at as u16), now_ns);
                self.walk(PortId(at as u16), list, now_ns);
                self.release_fragments(now_ns);
            }
        }
        handled += self.take_handed_over(now_ns);
        self.release_fragments(now_ns);
        self.expire_fragments(now_ns);
        if let Some(followed) = &mut self.followed {
            followed.tell_kernel(&mut self.engine);
        }
        self.outbox.flush();
        if let Some(followed) = &mut self.followed {
            followed.activate(&self.outbox.ports, now_ns);
        }
        self.hand_over.flush();
        self.mind_leaving();
        self.engine.tick(now_ns);
        let Worker { engine, outbox, .. } = self;
        engine.take_idle(|one| outbox.forward_idle(one));
        self.send_deltas();
        self.breaths += 1;
        let obeyed = self.handle_commands(now_ns);
        let swaps = self.continue_swap(handled == 0, now_ns);
        let replicas = self.mind_replicas(handled == 0, now_ns);
        let copies = self.follow_kernel(handled == 0, now_ns);
        handled + obeyed + usize::from(swaps) + usize::from(replicas) + usize::from(copies)
    }

    /// Adds the time of a breath to the worker's report, by the caller's clocks: how many frames and commands
    /// it handled, its wall time and its processor time in nanoseconds.
    pub fn record_breath(&mut self, handled: usize, wall_ns: u64, processor_ns: u64) {
        self.breath_times.record(handled, wall_ns, processor_ns);
    }

    /// Runs the packets of `list` through the program and sends them.
    fn walk(&mut self, input: PortId, list: u64, now_ns: u64) {
        let outcome = self.engine.process(&mut self.batch, list, input, now_ns);
        self.outbox.deliver(&mut self.batch, input, outcome);
    }

    /// Runs the frames that other workers handed over through the program: up to a batch from each, combined
    /// into batches that are as full as possible.
    fn take_handed_over(&mut self, now_ns: u64) -> usize {
        let (mut handled, mut input) = (0, None);
        for source in 0..self.hand_over.sources() {
            for _ in 0..weir_packet::BATCH {
                let Some(frame) = self.hand_over.source(source).peek() else { break };
                let (hash, number, ports, front) = (frame.hash, frame.input, frame.ports, frame.front);
                // The sender has taken over a program with a new port; this worker will shortly.
                if self.numbers.is_to_come(number) {
                    break;
                }
                if input != Some(number) || self.batch.len() == weir_packet::BATCH {
                    self.walk_handed_over(input, now_ns);
                    input = Some(number);
                }
                // The walk may not hold the ring's frame, so look at it again.
                let Some(frame) = self.hand_over.source(source).peek() else { break };
                match self.outbox.originate(&mut self.batch, frame.bytes, None) {
                    Ok(()) => {
                        let slot = self.batch.len() - 1;
                        self.batch.frame_mut(slot).set_hash(hash);
                        front.into_iter().for_each(|front| self.batch.frame_mut(slot).set_front(front));
                        ports.into_iter().for_each(|ports| self.engine.set_datagram_ports(slot, ports));
                    }
                    Err(reason) => self.outbox.ledger.drop_one(reason),
                }
                self.hand_over.source(source).take();
                handled += 1;
            }
        }
        if handled > 0 {
            self.walk_handed_over(input, now_ns);
            self.hand_over.taken(handled);
        }
        handled
    }

    /// Runs the batch of frames that arrived at the port with this number through the program.
    fn walk_handed_over(&mut self, number: Option<u32>, now_ns: u64) {
        if self.batch.is_empty() {
            return;
        }
        match number.and_then(|number| self.numbers.port(number)) {
            Some(input) => {
                let list = self.admit_handed_over(input, now_ns);
                self.walk(input, list, now_ns);
            }
            None => {
                self.engine.forget_ports();
                self.outbox.drop_all(&mut self.batch, DropReason::PortRemoved);
            }
        }
    }

    fn send_deltas(&mut self) {
        let (deltas, unread) = (&mut self.deltas, &mut self.unread);
        self.engine.take_deltas(|delta| match deltas {
            Some(ring) => ring.send(delta),
            None => {
                *unread = (unread.0 + 1, unread.1 + delta.packets());
                true
            }
        });
    }

    /// Sends the counts of all live flows to the collector, if there is one, and waits while it reads them.
    fn end_flows(&mut self) {
        let mut turns = 0;
        while self.deltas.as_ref().is_some_and(|ring| !ring.is_abandoned()) && turns < TURNS_TO_END {
            let all = self.engine.end_flows();
            self.send_deltas();
            if all && !self.engine.has_deltas() {
                break;
            }
            turns += 1;
            std::thread::sleep(PAUSE_TO_END);
        }
    }
}
