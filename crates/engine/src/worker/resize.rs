//! The number of workers changes: all workers pause while flows move to the worker that they belong to from
//! then on.
//!
//! 1. A worker creates replicas of its engine for new workers ([`Command::Replicate`]), in slices, while it
//!    forwards packets.
//! 2. Every worker gets its part in an [`Assembly`]. It stops receiving and sends what it has collected for
//!    others. Once all workers have done so, no more frames can arrive: each worker handles the frames that
//!    others have handed over, and lends its engine. The last worker redistributes the flows
//!    ([`Engine::redistribute`]), in time proportional to the number of flows that move.
//! 3. Each worker takes its engine back and continues with new rings. New workers start.
//! 4. A removed worker closes its ports, and its counts go to the first worker ([`Command::Inherit`]), so
//!    that no reported count decreases.
//!
//! Guarantees: no frame is handled from the moment when the first engine is lent until the last flow has
//! moved; frames that arrive meanwhile wait in the ports. From the time a worker gets its part in the
//! assembly until the change has ended, it executes no command.

#![allow(clippy::vec_box, reason = "engines are moved between threads in their boxes")]

use super::hand_over::PortNumbers;
use super::report::{Handed, PortReport};
use super::{HandOver, Report, Worker};
use crate::batch::{Engine, Moved};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use weir_packet::{DropReason, Leave, PortStatistics};
use weir_program::PortId;
use weir_program::owner::Steering;

/// Breaths for which a removed worker tries to send frames of apps that wait for room.
const LAST_TRIES: u32 = 1_000;

/// Entries handled for a replica in one breath: when idle, and when busy.
const ENTRIES: [u32; 2] = [256, 16];

/// State that the workers share while their number changes.
#[derive(Debug)]
pub struct Assembly {
    /// How many workers there were, and how many there will be.
    before: usize,
    after: usize,
    steering: Steering,
    /// The number of workers that no longer hand anything over.
    silent: AtomicUsize,
    places: Mutex<ResizePlaces>,
    done: AtomicBool,
}

#[derive(Debug)]
struct ResizePlaces {
    /// The engines by worker; those of new workers are there from the beginning.
    engines: Vec<Option<Box<Engine>>>,
    lent: usize,
    numbers: Option<PortNumbers>,
    moved: Moved,
}

impl Assembly {
    /// Begins a change from `before` workers to `before` plus the number of `replicas`, or to the first
    /// `after` of them. After the change, `steering` spreads flows over the workers.
    #[must_use]
    pub fn new((before, after): (usize, usize), replicas: Vec<Box<Engine>>, steering: Steering) -> Assembly {
        let old = (0..before).map(|_| None);
        let engines = old.chain(replicas.into_iter().map(Some)).collect();
        let places = ResizePlaces { engines, lent: 0, numbers: None, moved: Moved::default() };
        Assembly {
            before,
            after,
            steering,
            silent: AtomicUsize::new(0),
            places: Mutex::new(places),
            done: AtomicBool::new(false),
        }
    }

    /// Returns what happened to the flows, once everything is done.
    #[must_use]
    pub fn moved(&self) -> Moved {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).moved
    }

    fn all_are_silent(&self) -> bool {
        self.silent.load(Ordering::Acquire) == self.before
    }

    /// Lends an engine. The worker that lends the last one redistributes the flows.
    fn lend(&self, own: usize, engine: Engine, numbers: &PortNumbers) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.engines[own] = Some(Box::new(engine));
        places.lent += 1;
        if own == 0 {
            places.numbers = Some(numbers.clone());
        }
        if places.lent < self.before {
            return;
        }
        let mut engines: Vec<Box<Engine>> = places.engines.drain(..).flatten().collect();
        places.moved = Engine::redistribute(&mut engines, self.after, self.steering);
        places.engines = engines.into_iter().map(Some).collect();
        self.done.store(true, Ordering::Release);
    }

    /// Returns a worker's engine and the numbers of the ports; `None` for a removed worker.
    fn take_back(&self, own: usize) -> Option<(Box<Engine>, Option<PortNumbers>)> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = places.numbers.clone();
        Some((places.engines.get_mut(own)?.take()?, numbers))
    }
}

/// A worker's part in the change.
#[derive(Debug)]
pub struct Part {
    /// What all workers share.
    pub assembly: Arc<Assembly>,
    /// The worker's number.
    pub own: usize,
    /// The worker's rings after the change.
    pub hand_over: HandOver,
    /// An engine without a program, which the worker holds while its own is lent.
    pub stand_in: Option<Box<Engine>>,
    /// The number of the program.
    pub generation: u64,
    /// Notified when the worker continues; a removed worker then begins to close its ports.
    pub resumed: SyncSender<()>,
    /// Receives the counts of a removed worker, at its end.
    pub estate: SyncSender<Box<RetiredState>>,
}

/// What a removed worker leaves behind.
#[derive(Debug)]
pub struct RetiredState {
    /// The worker's last report, without what its engine had counted.
    pub report: Report,
    /// The counts of the worker's ports.
    pub ports: Vec<PortReport>,
    /// Frames taken from others and handed to others.
    pub handed: Handed,
}

/// How far a worker has progressed.
#[derive(Debug, Default)]
pub(super) enum Resizing {
    #[default]
    None,
    /// The worker has announced that it no longer hands anything over.
    Silent(Box<Part>),
    /// The worker has lent its engine.
    Lent(Box<Part>),
    /// The worker is being removed and closes its ports; the list has `true` for each port that is closed.
    Leaving(SyncSender<Box<RetiredState>>, Vec<bool>, u32),
}

impl Resizing {
    /// Whether commands must wait.
    pub fn holds_commands(&self) -> bool {
        !matches!(self, Resizing::None)
    }
}

/// Engines that become replicas.
#[derive(Debug)]
pub(super) struct Replicas {
    made: Vec<Box<Engine>>,
    left: Vec<Box<Engine>>,
    asker: SyncSender<Vec<Box<Engine>>>,
}

/// The counts of a port whose queues on removed workers are closed.
#[derive(Clone, Debug, Default)]
pub(super) struct PastPort {
    statistics: PortStatistics,
    extra: Vec<(&'static str, u64)>,
}

impl PastPort {
    fn add(&mut self, other: &PortReport) {
        self.statistics.add(&other.statistics);
        for (name, count) in &other.extra {
            match self.extra.iter_mut().find(|(one, _)| one == name) {
                Some((_, sum)) => *sum += count,
                None => self.extra.push((name, *count)),
            }
        }
    }

    /// Returns the counts that all ports have, to be added to.
    pub fn statistics_mut(&mut self) -> &mut PortStatistics {
        &mut self.statistics
    }

    /// Adds the counts to those of the worker's own queue.
    pub fn add_to(&self, report: &mut PortReport) {
        let mut sum = self.clone();
        sum.add(report);
        (report.statistics, report.extra) = (sum.statistics, sum.extra);
    }
}

impl Worker {
    /// Creates a worker that receives nothing until it gets its part in an [`Assembly`], or
    /// [`Command::Receive`].
    #[must_use]
    pub fn dormant(mut self) -> Worker {
        self.quiet = true;
        self
    }

    /// Begins to make replicas of the engine, which must not change until they are in use.
    pub(super) fn begin_replicas(&mut self, left: Vec<Box<Engine>>, asker: SyncSender<Vec<Box<Engine>>>) {
        self.replicas = Some(Replicas { made: Vec::new(), left, asker });
    }

    /// Continues making replicas. Returns true as long as there is something to do.
    pub(super) fn mind_replicas(&mut self, idle: bool, now_ns: u64) -> bool {
        let Some(mut replicas) = self.replicas.take() else { return false };
        let most = ENTRIES[usize::from(!idle)];
        if let Some(mut engine) = replicas.left.pop() {
            if engine.stage(&mut self.engine, most, now_ns) {
                engine.replicate(&self.engine);
                replicas.made.push(engine);
            } else {
                replicas.left.push(engine);
            }
            self.replicas = Some(replicas);
            return true;
        }
        let lost = replicas.asker.try_send(replicas.made);
        if let Err(TrySendError::Full(engines) | TrySendError::Disconnected(engines)) = lost {
            self.leaving.dispose(Box::new(engines));
        }
        self.outbox.signal = true;
        false
    }

    /// Takes part in a change of the number of workers.
    pub(super) fn begin_resize(&mut self, part: Box<Part>, now_ns: u64) {
        self.leave_kernel(now_ns);
        if part.own >= part.assembly.before {
            self.resizing = Resizing::Lent(part);
            return;
        }
        self.quiet = true;
        self.hand_over.finish();
        part.assembly.silent.fetch_add(1, Ordering::AcqRel);
        self.resizing = Resizing::Silent(part);
    }

    /// Takes a breath while the number of workers changes. Returns false if no such change is in progress.
    pub(super) fn breathe_resizing(&mut self, now_ns: u64) -> bool {
        match std::mem::take(&mut self.resizing) {
            Resizing::None => return false,
            Resizing::Silent(part) => {
                // Everything handed over before the last worker fell silent is seen in this iteration.
                let last = part.assembly.all_are_silent();
                self.send_waiting(now_ns);
                while self.take_handed_over(now_ns) > 0 {}
                self.resizing = if last { self.lend(part) } else { Resizing::Silent(part) };
            }
            Resizing::Lent(part) if part.assembly.done.load(Ordering::Acquire) => self.go_on(*part),
            Resizing::Lent(part) => self.resizing = Resizing::Lent(part),
            Resizing::Leaving(asker, closed, tries) => self.close_down(asker, closed, tries, now_ns),
        }
        self.outbox.flush();
        true
    }

    fn lend(&mut self, mut part: Box<Part>) -> Resizing {
        self.send_deltas();
        if let Some(stand_in) = part.stand_in.take() {
            let engine = std::mem::replace(&mut self.engine, *stand_in);
            part.assembly.lend(part.own, engine, &self.numbers);
        }
        Resizing::Lent(part)
    }

    fn go_on(&mut self, part: Part) {
        let Part { assembly, own, mut hand_over, generation, resumed, estate, .. } = part;
        hand_over.succeed(std::mem::take(&mut self.hand_over));
        self.hand_over = hand_over;
        match assembly.take_back(own) {
            Some((engine, numbers)) => {
                let stand_in = std::mem::replace(&mut self.engine, *engine);
                self.leaving.dispose(Box::new(stand_in));
                if own >= assembly.before {
                    self.generation = generation;
                    self.numbers = numbers.unwrap_or_else(|| PortNumbers::new(self.outbox.ports.len()));
                }
                self.quiet = false;
                self.mind_program();
                // They may belong to other workers now.
                self.fragments.look_again();
            }
            None => {
                let given_up = self.fragments.give_up();
                self.outbox.ledger.drop_many(DropReason::PortRemoved, given_up);
                let closed = vec![false; self.outbox.ports.len()];
                self.resizing = Resizing::Leaving(estate, closed, 0);
            }
        }
        let _ = resumed.try_send(());
        self.outbox.signal = true;
    }

    /// Closes the ports of a removed worker, one step per breath, and ends.
    fn close_down(
        &mut self,
        asker: SyncSender<Box<RetiredState>>,
        mut closed: Vec<bool>,
        tries: u32,
        now_ns: u64,
    ) {
        self.send_waiting(now_ns);
        self.mind_leaving();
        if !self.waiting.is_empty() && tries < LAST_TRIES {
            self.resizing = Resizing::Leaving(asker, closed, tries + 1);
            return;
        }
        let given_up = self.waiting.give_up(DropReason::Stopped);
        self.outbox.ledger.dropped[DropReason::Stopped as usize] += given_up;
        for (at, closed) in closed.iter_mut().enumerate().filter(|(_, closed)| !**closed) {
            match self.outbox.ports[at].leave(&mut self.outbox.pools) {
                Leave::Later => {}
                Leave::Give(burden) => self.leaving.dispose(burden),
                Leave::Closed(dropped) => {
                    self.outbox.ledger.dropped[DropReason::PortRemoved as usize] += dropped;
                    *closed = true;
                }
            }
        }
        if closed.contains(&false) || !self.leaving.is_empty() {
            self.resizing = Resizing::Leaving(asker, closed, tries);
            return;
        }
        (self.closed, self.stopped) = (true, true);
        let named = |at: usize| PortReport {
            statistics: self.outbox.ports[at].statistics(),
            extra: self.outbox.ports[at].extra_statistics(),
            ..PortReport::default()
        };
        let ports = (0..self.outbox.ports.len()).map(named).collect();
        let estate = RetiredState { report: self.report(), ports, handed: self.handed() };
        let _ = asker.try_send(Box::new(estate));
        self.outbox.signal = true;
    }

    /// Takes over the counts of a removed worker.
    pub(super) fn inherit(&mut self, estate: &RetiredState) {
        let RetiredState { report, ports, handed } = estate;
        self.outbox.ledger.add(&report.ledger);
        self.outbox.pool_copies += report.pool_copies;
        self.outbox.tee_missed += report.tee_missed;
        self.hand_over.taken += handed.taken;
        self.hand_over.given += handed.given;
        self.breaths += report.breaths;
        self.unread.0 += report.deltas;
        self.unread.1 += report.deltas_left;
        self.past_ports.resize_with(self.outbox.ports.len(), PastPort::default);
        self.past_ports.iter_mut().zip(ports).for_each(|(sum, port)| sum.add(port));
    }

    /// Reorders what removed workers' ports had counted: `kept[n]` is the current number of the new port `n`.
    pub(super) fn reorder_past_ports(&mut self, kept: &[Option<usize>]) {
        let of = |at: &Option<usize>| at.and_then(|at| self.past_ports.get(at).cloned()).unwrap_or_default();
        self.past_ports = kept.iter().map(of).collect();
    }

    /// Returns what removed workers' queues of a port had counted.
    pub(super) fn past_port(&self, port: PortId) -> Option<&PastPort> {
        self.past_ports.get(port.index())
    }
}
