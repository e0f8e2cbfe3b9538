//! A worker: one core, its queues of the ports, its pools, its replica of the tables. One turn of it is a breath.
//!
//! ```text
//!   frames of apps that wait for room in a port         (before data takes it)
//!   receive -> program -> transmit, port by port        (inhale, walk, exhale)
//!   frames handed over by other workers, frames of apps (the same walk)
//!   flush, tick, commands                               (between breaths: entries, swaps, questions)
//! ```
//!
//! Promises: every frame ends in exactly one count of the ledger. On the way of a packet there is no allocation, no lock,
//! no log and no system call but the ports'. Commands come by a bounded channel and are answered one by one; answering
//! may allocate, forwarding does not.

use crate::batch::{Engine, Outcome, SwapReport};
use crate::change::{Change, ChangeError};
use crate::program::{AppId, Entry, PipeId, PortId};
use crate::ring::{CARRIER_BYTES, CarrierReceiver, CarrierSender};
pub use crate::snapshot::BucketReport;
use crate::snapshot::{Count, FlowSnapshot, Snapshot};
use crate::verdict::{Copied, Verdict};
use crate::waiting::{Waiter, Waiting};
use packet::{
    Batch, Bits, Depth, DropReason, FlowKey, Frame, KeySource, Ledger, Pool, PoolId, Pools, Port, PortStatistics,
    parse, select_hash,
};
use std::sync::mpsc::{Receiver, SyncSender};
use table::FlowDelta;

/// Commands answered between two breaths at most, so that a flood of them cannot hold up frames.
const COMMANDS_PER_BREATH: usize = 16;

/// What a worker is asked between breaths. Each carries where the answer goes; nobody waits if that is gone.
#[derive(Debug)]
pub enum Command {
    /// Take over with this program, compiled with the same secret.
    Swap(Box<Engine>, Rewiring, SyncSender<SwapReport>),
    /// Change an entry or a weight.
    Change(Box<Change>, SyncSender<Result<(), ChangeError>>),
    /// Send these bytes, as from an app. Answered when they have been sent: a frame for a port whose ring is full waits.
    Inject(Inject, SyncSender<Injected>),
    /// Ledger, ports, counters.
    Report(SyncSender<Report>),
    /// Everything that was counted, entry by entry and flow by flow.
    Snapshot(SyncSender<Snapshot>),
    /// Entries of a pipe.
    Entries(PipeId, SyncSender<Vec<(Entry, Count)>>),
    /// So many flows of a pipe.
    Flows(PipeId, usize, SyncSender<(Vec<FlowSnapshot>, usize)>),
    /// One flow.
    Flow(PipeId, FlowKey, SyncSender<Option<FlowSnapshot>>),
    /// What the engine would do with a frame, without counting it.
    Probe(PortId, Vec<u8>, SyncSender<Option<Probe>>),
    /// Receive nothing from now on, and so hand nothing over. All workers are asked this before the first is stopped.
    Quiesce(SyncSender<()>),
    /// Give every frame back and end.
    Stop(SyncSender<Report>),
}

/// What a swap joins anew, by the new program's numbers.
#[derive(Debug, Default)]
pub struct Rewiring {
    /// `ports[n]`: which of the present ports is port `n` now.
    pub ports: Vec<usize>,
    /// Rings to the apps. New ones, so that whoever empties the old ones knows which program's numbers their frames bear.
    pub punts: Vec<CarrierSender>,
}

/// What became of an injected frame: it was sent or went through the program, or why not.
pub type Injected = Result<(), DropReason>;

/// What became of one try to send a frame.
enum Sent {
    Yes,
    /// There is no room at this moment.
    NotNow,
    Never(DropReason),
}

/// A frame that an app sends.
#[derive(Clone, Debug)]
pub struct Inject {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Out of this port; `None`: through the program, as if it had come in by `input`.
    pub output: Option<PortId>,
    /// Where it pretends to have come in.
    pub input: PortId,
}

/// What the engine would do with a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Where it would go.
    pub verdict: Verdict,
    /// Its bytes then.
    pub bytes: Vec<u8>,
    /// Copies that would leave it on the way.
    pub copies: Vec<Copied>,
    /// Packets that each pipe of the program had dealt out in turn before it.
    pub turns: Vec<u64>,
}

/// A worker's own account.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Frames.
    pub ledger: Ledger,
    /// Ports in the program's order.
    pub ports: Vec<PortReport>,
    /// Shared counters in the program's order.
    pub counters: Vec<Count>,
    /// Per pipe: entries or flows held, hits, misses.
    pub pipes: Vec<PipeReport>,
    /// Buckets of every group. Counts are this worker's alone, and sum up; so may slots differ while moves wait.
    pub buckets: Vec<BucketReport>,
    /// Breaths taken.
    pub breaths: u64,
    /// Frames copied because a port wants another pool's memory.
    pub pool_copies: u64,
    /// Frames handed to other workers.
    pub handed_over: u64,
    /// Flow deltas taken by the collector.
    pub deltas: u64,
    /// Copies that a pipe wanted to give to an app whose ring had no room; the packets themselves went on.
    pub tee_missed: u64,
}

/// A pipe's totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipeReport {
    /// Entries.
    pub entries: usize,
    /// Live flows (FLOW).
    pub flows: usize,
    /// Packets that hit an entry.
    pub hits: u64,
    /// Packets that missed.
    pub misses: Count,
    /// Packets not counted in a flow because the table was full (FLOW).
    pub unflowed_full: u64,
}

/// A port's account.
#[derive(Clone, Debug, Default)]
pub struct PortReport {
    /// Name.
    pub name: String,
    /// How it runs.
    pub mode: String,
    /// Counters all ports have.
    pub statistics: PortStatistics,
    /// Counters only this kind has.
    pub extra: Vec<(&'static str, u64)>,
}

/// Rings to and from the other workers, by their number; none at the worker's own.
#[derive(Debug, Default)]
pub struct HandOver {
    /// This worker's number.
    pub own: usize,
    /// To the others.
    pub to: Vec<Option<CarrierSender>>,
    /// From the others.
    pub from: Vec<CarrierReceiver>,
}

/// One core's share of the data plane.
pub struct Worker {
    ports: Vec<Box<dyn Port>>,
    pools: Pools,
    engine: Engine,
    batch: Box<Batch>,
    ledger: Ledger,
    /// Rings to the apps, by their number.
    punts: Vec<CarrierSender>,
    hand_over: HandOver,
    /// Frames of apps that wait for room in a port.
    waiting: Waiting,
    commands: Option<Receiver<Command>>,
    deltas: Option<SyncSender<(PipeId, FlowDelta)>>,
    breaths: u64,
    pool_copies: u64,
    handed_over: u64,
    handed_in: u64,
    deltas_sent: u64,
    tee_missed: u64,
    /// Frames of which a copy is being sent.
    originals: Box<Batch>,
    /// The control plane has something to look at.
    signal: bool,
    quiet: bool,
    stopped: bool,
}

impl Worker {
    /// A worker for these ports, in the program's order, opened on these pools.
    #[must_use]
    pub fn new(engine: Engine, ports: Vec<Box<dyn Port>>, pools: Pools) -> Worker {
        Worker {
            ports,
            pools,
            engine,
            batch: Box::default(),
            ledger: Ledger::default(),
            punts: Vec::new(),
            hand_over: HandOver::default(),
            waiting: Waiting::default(),
            commands: None,
            deltas: None,
            breaths: 0,
            pool_copies: 0,
            handed_over: 0,
            handed_in: 0,
            deltas_sent: 0,
            tee_missed: 0,
            originals: Box::default(),
            signal: false,
            quiet: false,
            stopped: false,
        }
    }

    /// Where commands come from.
    #[must_use]
    pub fn with_commands(mut self, commands: Receiver<Command>) -> Worker {
        self.commands = Some(commands);
        self
    }

    /// Where frames for apps go.
    #[must_use]
    pub fn with_punts(mut self, punts: Vec<CarrierSender>) -> Worker {
        self.punts = punts;
        self
    }

    /// Rings to and from the other workers.
    #[must_use]
    pub fn with_hand_over(mut self, hand_over: HandOver) -> Worker {
        self.hand_over = hand_over;
        self
    }

    /// Where flow deltas go; without it they are taken and counted only.
    #[must_use]
    pub fn with_deltas(mut self, deltas: SyncSender<(PipeId, FlowDelta)>) -> Worker {
        self.deltas = Some(deltas);
        self
    }

    /// The compiled program and its state.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The same, to be changed between breaths by whoever owns the worker.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The ports.
    #[must_use]
    pub fn ports(&self) -> &[Box<dyn Port>] {
        &self.ports
    }

    /// The ports, for whoever drives virtual time.
    pub fn ports_mut(&mut self) -> &mut [Box<dyn Port>] {
        &mut self.ports
    }

    /// True after [`Command::Stop`].
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// True when frames were given to apps, or injected ones answered, since this was last asked: time to wake whoever
    /// drives the apps.
    pub fn take_signal(&mut self) -> bool {
        std::mem::take(&mut self.signal)
    }

    /// True while injected frames wait for room: the worker must not sleep for long.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// One breath at time `now_ns`. Returns how many frames and commands were handled: after 0 a worker may sleep.
    pub fn breathe(&mut self, now_ns: u64) -> usize {
        self.send_waiting(now_ns);
        let mut handled = 0;
        for at in 0..self.ports.len() {
            self.ports[at].set_time(now_ns);
            if self.quiet {
                continue;
            }
            self.ports[at].receive(&mut self.pools, &mut self.batch);
            handled += self.batch.len();
            if !self.batch.is_empty() {
                let list = self.hand_over_others(PortId(at as u16));
                self.walk(PortId(at as u16), list, now_ns);
            }
        }
        handled += self.take_handed_over(now_ns);
        for port in &mut self.ports {
            port.flush(&mut self.pools);
        }
        self.engine.tick(now_ns);
        self.send_deltas();
        self.breaths += 1;
        handled + self.obey(now_ns)
    }

    /// Carries the packets of `list` through the program and sends them on.
    fn walk(&mut self, input: PortId, list: u64, now_ns: u64) {
        self.engine.process(&mut self.batch, list, input, now_ns);
        self.deliver(input);
    }

    /// Sends the frames of the batch where the engine's outcome says.
    fn deliver(&mut self, input: PortId) {
        let mut outcome = self.engine.take_outcome();
        for slot in Bits(outcome.dropped) {
            self.ledger.drop_one(outcome.reasons[slot]);
            self.pools.give(self.batch.take(slot));
        }
        for (port, &list) in outcome.transmit.iter().enumerate() {
            if list & outcome.flooded != 0 {
                self.transmit_copies(port, list, &outcome);
            } else if list != 0 {
                self.transmit(port, list);
            }
        }
        if outcome.kernel != 0 {
            self.give_to_kernel(input, outcome.kernel);
        }
        if !outcome.tees.is_empty() {
            self.punt_with_copies(input, &mut outcome);
        }
        for (app, &list) in outcome.apps.iter().enumerate() {
            self.punt(AppId(app as u16), input, list);
        }
        self.engine.give_outcome(outcome);
        self.batch.clear();
    }

    fn transmit(&mut self, port: usize, list: u64) {
        // With one pool there is nothing to look at, and a look at every frame costs five per cent of a short program.
        let wanted = self.ports[port].pool().filter(|_| !self.pools.is_single());
        let list = wanted.map_or(list, |pool| self.move_to_pool(pool, list));
        let accepted = self.ports[port].transmit(&mut self.pools, &mut self.batch, list);
        let refused = list & !accepted;
        if refused != 0 {
            let longest = self.ports[port].frame_max();
            let too_long = |slot: &usize| self.batch.frame(*slot).len() > longest;
            let oversize = Bits(refused).filter(too_long).fold(0, |list, slot| list | 1 << slot);
            self.drop_list(oversize, DropReason::Oversize);
            self.drop_list(refused & !oversize, DropReason::TransmitFull);
        }
    }

    /// Sends copies of those frames of a port's list that go out of a later port too, and the others themselves, all
    /// in the order of their arrival.
    fn transmit_copies(&mut self, port: usize, list: u64, outcome: &Outcome) {
        let later = outcome.transmit[port + 1..].iter().fold(0, |all, list| all | list);
        let (mut sent, mut copied) = (list, list & outcome.flooded & later);
        for slot in Bits(copied) {
            self.ledger.copied += 1;
            match self.copy_for(port, slot) {
                Ok(copy) => {
                    let original = std::mem::replace(self.batch.frame_mut(slot), copy);
                    *self.originals.frame_mut(slot) = original;
                }
                Err(reason) => {
                    self.ledger.drop_one(reason);
                    sent &= !(1 << slot);
                    copied &= !(1 << slot);
                }
            }
        }
        self.transmit(port, sent);
        for slot in Bits(copied) {
            *self.batch.frame_mut(slot) = self.originals.take(slot);
        }
    }

    /// A copy of a frame, in memory that the port can send from.
    fn copy_for(&mut self, port: usize, slot: usize) -> Result<Frame, DropReason> {
        let frame = self.batch.frame(slot);
        let pool = self.ports[port].pool().unwrap_or(frame.pool());
        let copy = self.pools.get_mut(pool).and_then(Pool::take);
        let mut copy = copy.ok_or(DropReason::PoolEmpty)?;
        if copy.fill(frame.bytes()).is_err() {
            self.pools.give(copy);
            return Err(DropReason::Oversize);
        }
        Ok(copy)
    }

    /// Hands apps the copies of packets that went on, and the packets that are for apps, in the order of their arrival.
    fn punt_with_copies(&mut self, input: PortId, outcome: &mut Outcome) {
        outcome.tees.sort();
        let punted = outcome.apps.iter().fold(0, |all, list| all | list);
        for slot in Bits(outcome.tees.slots() | punted) {
            for (app, bytes) in outcome.tees.of(slot) {
                let ring = self.punts.get_mut(app.index());
                let sent = u64::from(ring.is_some_and(|ring| ring.send(bytes, input, app)));
                self.ledger.copied += sent;
                self.ledger.to_app += sent;
                self.tee_missed += 1 - sent;
                self.signal |= sent != 0;
            }
            let own = outcome.apps.iter().position(|list| list & 1 << slot != 0);
            own.into_iter().for_each(|app| self.punt(AppId(app as u16), input, 1 << slot));
        }
        outcome.apps.fill(0);
    }

    /// Copies frames that lie in another pool's memory; those that cannot be are dropped.
    fn move_to_pool(&mut self, pool: PoolId, list: u64) -> u64 {
        let mut moved = list;
        for slot in Bits(list) {
            if self.batch.frame(slot).pool() == pool {
                continue;
            }
            let copy = self.pools.get_mut(pool).and_then(Pool::take);
            let Some(mut copy) = copy else {
                moved &= !(1 << slot);
                self.drop_list(1 << slot, DropReason::PoolEmpty);
                continue;
            };
            if copy.fill(self.batch.frame(slot).bytes()).is_err() {
                moved &= !(1 << slot);
                self.pools.give(copy);
                self.drop_list(1 << slot, DropReason::Oversize);
                continue;
            }
            self.pool_copies += 1;
            self.pools.give(std::mem::replace(self.batch.frame_mut(slot), copy));
        }
        moved
    }

    fn give_to_kernel(&mut self, input: PortId, list: u64) {
        let accepted = self.ports[input.index()].to_kernel(&mut self.pools, &mut self.batch, list);
        self.drop_list(list & !accepted, DropReason::NoKernelPath);
    }

    fn punt(&mut self, app: AppId, input: PortId, list: u64) {
        self.signal |= list != 0;
        for slot in Bits(list) {
            let frame = self.batch.take(slot);
            let ring = self.punts.get_mut(app.index());
            if ring.is_some_and(|ring| ring.send(frame.bytes(), input, app)) {
                self.ledger.to_app += 1;
            } else {
                self.ledger.drop_one(not_sent(&frame, DropReason::AppFull));
            }
            self.pools.give(frame);
        }
    }

    fn drop_list(&mut self, list: u64, reason: DropReason) {
        for slot in Bits(list) {
            self.ledger.drop_one(reason);
            self.pools.give(self.batch.take(slot));
        }
    }

    /// Hands frames of flows that live on another worker over to it; the mask of those that stay. A program without
    /// flow state leaves every frame where it came in.
    fn hand_over_others(&mut self, input: PortId) -> u64 {
        let workers = self.hand_over.to.len();
        let mut own = self.batch.mask();
        if workers < 2 || !self.engine.has_flows() {
            return own;
        }
        for slot in Bits(own) {
            let owner = owner(self.batch.frame(slot).bytes(), workers).unwrap_or(self.hand_over.own);
            let Some(Some(ring)) = self.hand_over.to.get_mut(owner) else { continue };
            own &= !(1 << slot);
            let frame = self.batch.take(slot);
            if ring.send_hashed(frame.bytes(), frame.hash(), input, AppId(0)) {
                self.handed_over += 1;
            } else {
                self.ledger.drop_one(not_sent(&frame, DropReason::HandOverFull));
            }
            self.pools.give(frame);
        }
        own
    }

    /// Carries frames that other workers handed over through the program, up to a batch from each.
    fn take_handed_over(&mut self, now_ns: u64) -> usize {
        let mut handled = 0;
        for at in 0..self.hand_over.from.len() {
            for _ in 0..packet::BATCH {
                let Some(carrier) = self.hand_over.from[at].receive() else { break };
                handled += 1;
                self.handed_in += 1;
                match self.originate(carrier.bytes(), None) {
                    Ok(()) => {
                        self.batch.frame_mut(0).set_hash(carrier.hash);
                        self.walk(carrier.input, 1, now_ns);
                    }
                    Err(reason) => self.ledger.drop_one(reason),
                }
                self.hand_over.from[at].done(carrier);
            }
        }
        handled
    }

    /// Makes these bytes the only frame of the batch, which is empty between two walks.
    fn originate(&mut self, bytes: &[u8], pool: Option<PoolId>) -> Injected {
        let frame = self.frame_of(bytes, pool)?;
        self.batch.push(frame).map_err(|frame| {
            self.pools.give(frame);
            DropReason::PoolEmpty
        })
    }

    /// A frame of these bytes, in this pool's memory or else in that of the first.
    fn frame_of(&mut self, bytes: &[u8], pool: Option<PoolId>) -> Result<Frame, DropReason> {
        let pool = pool.unwrap_or(self.pools.first().id());
        let mut frame = self.pools.get_mut(pool).and_then(Pool::take).ok_or(DropReason::PoolEmpty)?;
        if frame.fill(bytes).is_err() {
            self.pools.give(frame);
            return Err(DropReason::Oversize);
        }
        Ok(frame)
    }

    /// A frame that an app sends. Out of a port it waits for room, behind those that wait there already.
    fn inject(&mut self, inject: Inject, answer: SyncSender<Injected>, now_ns: u64) {
        self.ledger.originated += 1;
        let waiter = Waiter { inject, answer };
        let Some(port) = waiter.inject.output else {
            let injected = self.inject_through(&waiter.inject, now_ns);
            return self.answer(waiter, injected);
        };
        let sent = if self.waiting.at(port) > 0 { Sent::NotNow } else { self.send(&waiter.inject.bytes, port) };
        match sent {
            Sent::Yes => self.answer(waiter, Ok(())),
            Sent::Never(reason) => self.answer(waiter, Err(reason)),
            Sent::NotNow => {
                if let Err(waiter) = self.waiting.push(waiter) {
                    self.answer(waiter, Err(DropReason::TransmitFull));
                }
            }
        }
    }

    /// Through the program, on the worker where its flow lives.
    fn inject_through(&mut self, inject: &Inject, now_ns: u64) -> Injected {
        if inject.input.index() >= self.ports.len() {
            return Err(DropReason::Policy);
        }
        self.originate(&inject.bytes, None)?;
        match self.hand_over_others(inject.input) {
            0 => self.batch.clear(),
            list => self.walk(inject.input, list, now_ns),
        }
        Ok(())
    }

    /// Tries those that wait again, in the order in which they came; where one finds no room, no later one of its port
    /// is tried.
    fn send_waiting(&mut self, now_ns: u64) {
        let mut full = 0_u64;
        for _ in 0..self.waiting.len() {
            let Some(waiter) = self.waiting.pop() else { return };
            let port = waiter.inject.output.unwrap_or_default();
            if full & 1 << (port.0 & 63) != 0 {
                self.waiting.put_back(waiter);
                continue;
            }
            if let Some(port) = self.ports.get_mut(port.index()) {
                port.set_time(now_ns);
            }
            match self.send(&waiter.inject.bytes, port) {
                Sent::Yes => self.answer(waiter, Ok(())),
                Sent::Never(reason) => self.answer(waiter, Err(reason)),
                Sent::NotNow => {
                    full |= 1 << (port.0 & 63);
                    self.waiting.put_back(waiter);
                }
            }
        }
    }

    /// Sends one frame, if there is room for it now.
    fn send(&mut self, bytes: &[u8], port: PortId) -> Sent {
        let at = port.index();
        let Some(wanted) = self.ports.get(at).map(|port| port.pool()) else { return Sent::Never(DropReason::Policy) };
        match self.originate(bytes, wanted) {
            Ok(()) => {}
            Err(DropReason::PoolEmpty) => return Sent::NotNow,
            Err(reason) => return Sent::Never(reason),
        }
        if self.ports[at].transmit(&mut self.pools, &mut self.batch, 1) != 0 {
            self.batch.clear();
            return Sent::Yes;
        }
        let frame = self.batch.take(0);
        let too_long = frame.len() > self.ports[at].frame_max();
        self.pools.give(frame);
        self.batch.clear();
        if too_long { Sent::Never(DropReason::Oversize) } else { Sent::NotNow }
    }

    /// Answers whoever injected a frame; one that was not sent is dropped.
    fn answer(&mut self, waiter: Waiter, injected: Injected) {
        if let Err(reason) = injected {
            self.ledger.drop_one(reason);
        }
        self.signal = true;
        waiter.tell(injected);
    }

    fn send_deltas(&mut self) {
        let (deltas, sent) = (&self.deltas, &mut self.deltas_sent);
        self.engine.take_deltas(|pipe, delta| {
            let taken = deltas.as_ref().is_none_or(|deltas| deltas.try_send((pipe, delta)).is_ok());
            *sent += u64::from(taken);
            taken
        });
    }

    /// Answers a few commands; how many.
    fn obey(&mut self, now_ns: u64) -> usize {
        for obeyed in 0..COMMANDS_PER_BREATH {
            let Some(Ok(command)) = self.commands.as_ref().map(Receiver::try_recv) else { return obeyed };
            self.obey_one(command, now_ns);
        }
        COMMANDS_PER_BREATH
    }

    /// Answers one command. Whoever asked may have gone; then the answer is lost and nothing else.
    fn obey_one(&mut self, command: Command, now_ns: u64) {
        match command {
            Command::Swap(engine, rewiring, answer) => {
                let _ = answer.try_send(self.swap(*engine, rewiring, now_ns));
            }
            Command::Change(change, answer) => {
                let _ = answer.try_send(self.engine.apply(&change, now_ns));
            }
            Command::Inject(inject, answer) => self.inject(inject, answer, now_ns),
            Command::Report(answer) => {
                let _ = answer.try_send(self.report());
            }
            Command::Snapshot(answer) => {
                let _ = answer.try_send(self.engine.snapshot());
            }
            Command::Entries(pipe, answer) => {
                let _ = answer.try_send(self.engine.entries(pipe));
            }
            Command::Flows(pipe, limit, answer) => {
                let _ = answer.try_send(self.engine.flows(pipe, limit));
            }
            Command::Flow(pipe, key, answer) => {
                let _ = answer.try_send(self.engine.flow(pipe, &key));
            }
            Command::Probe(input, bytes, answer) => {
                let _ = answer.try_send(self.probe(input, &bytes, now_ns));
            }
            Command::Quiesce(answer) => {
                self.quiet = true;
                let _ = answer.try_send(());
            }
            Command::Stop(answer) => {
                self.stop();
                let _ = answer.try_send(self.report());
            }
        }
    }

    fn swap(&mut self, mut engine: Engine, rewiring: Rewiring, now_ns: u64) -> SwapReport {
        let report = engine.inherit(&mut self.engine, now_ns);
        self.engine = engine;
        let Rewiring { ports, punts } = rewiring;
        self.punts = punts;
        self.waiting.renumber(&ports).into_iter().for_each(|waiter| self.answer(waiter, Err(DropReason::Stopped)));
        let mut old: Vec<Option<Box<dyn Port>>> = std::mem::take(&mut self.ports).into_iter().map(Some).collect();
        self.ports = ports.iter().filter_map(|&at| old.get_mut(at).and_then(Option::take)).collect();
        old.into_iter().flatten().for_each(|port| self.retire(port));
        report
    }

    /// A port that the program no longer has: it closes, and what it counted stays in the account.
    fn retire(&mut self, mut port: Box<dyn Port>) {
        self.ledger.dropped[DropReason::Stopped as usize] += port.close(&mut self.pools);
        add_port(&mut self.ledger, &port.statistics());
    }

    fn probe(&mut self, input: PortId, bytes: &[u8], now_ns: u64) -> Option<Probe> {
        let mut frame = self.pools.first().take()?;
        let mut batch = Batch::new();
        let probe = frame.fill(bytes).ok().and_then(|()| batch.push(frame.take()).ok()).map(|()| {
            let turns = self.engine.turns();
            let outcome = self.engine.probe(&mut batch, input, now_ns);
            let bytes = batch.frame(0).bytes().to_vec();
            Probe { verdict: outcome.verdict(0, input), copies: outcome.copies(0, &bytes), bytes, turns }
        });
        self.pools.give(frame);
        self.pools.give(batch.take(0));
        probe
    }

    /// Takes every frame back from the ports; what they held, what waited and what other workers had handed over is
    /// dropped as `stopped`.
    fn stop(&mut self) {
        let mut stopped = self.waiting.give_up(DropReason::Stopped);
        for ring in &mut self.hand_over.from {
            while let Some(carrier) = ring.receive() {
                stopped += 1;
                self.handed_in += 1;
                ring.done(carrier);
            }
        }
        self.ledger.dropped[DropReason::Stopped as usize] += stopped;
        for port in &mut self.ports {
            self.ledger.dropped[DropReason::Stopped as usize] += port.close(&mut self.pools);
        }
        self.stopped = true;
    }

    /// The worker's account at this moment.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut ledger = self.ledger.clone();
        let mut ports = Vec::new();
        for (port, declared) in self.ports.iter().zip(&self.engine.program().ports) {
            let statistics = port.statistics();
            add_port(&mut ledger, &statistics);
            ports.push(PortReport {
                name: declared.name.clone(),
                mode: port.mode(),
                statistics,
                extra: port.extra_statistics(),
            });
        }
        ledger.held += self.waiting.len() as u64;
        // What lies between two workers is held by the one that sent it; when all stop, the other drops it.
        if !self.stopped {
            ledger.held += self.hand_over.to.iter().flatten().map(CarrierSender::held).sum::<u64>();
        }
        Report {
            ledger,
            ports,
            counters: self.engine.counters(),
            pipes: self.engine.pipe_reports(),
            buckets: self.engine.bucket_reports(),
            breaths: self.breaths,
            pool_copies: self.pool_copies,
            handed_over: self.handed_over,
            deltas: self.deltas_sent,
            tee_missed: self.tee_missed,
        }
    }

    /// Frames this worker took over from others and gave to others: their difference is what its own ledger lacks.
    #[must_use]
    pub fn handed(&self) -> (u64, u64) {
        (self.handed_in, self.handed_over)
    }
}

/// Why a ring did not take a frame.
fn not_sent(frame: &Frame, full: DropReason) -> DropReason {
    if frame.len() > CARRIER_BYTES { DropReason::Oversize } else { full }
}

/// Adds what a port has counted.
fn add_port(ledger: &mut Ledger, statistics: &PortStatistics) {
    ledger.received += statistics.received;
    ledger.transmitted += statistics.transmitted;
    ledger.to_kernel += statistics.to_kernel;
    ledger.held += statistics.held;
    ledger.dropped[DropReason::Oversize as usize] += statistics.oversize;
}

/// Which worker a flow lives on: the same for both directions and for all fragments of a datagram. `None` without IP.
fn owner(bytes: &[u8], workers: usize) -> Option<usize> {
    let headers = parse(bytes, Depth::L4).ok()?;
    let FlowKey([src_hi, src_lo, dst_hi, dst_lo, rest]) = FlowKey::of(bytes, &headers, KeySource::Outer)?;
    let (sport, dport, protocol) = (rest >> 48, rest >> 32 & 0xffff, rest >> 24 & 0xff);
    // An IPv4 source carries the mark; let both ends look alike.
    let source = [if src_hi == packet::IPV4_MARK { 0 } else { src_hi }, src_lo, sport];
    let target = [dst_hi, dst_lo, dport];
    let (low, high) = if source <= target { (source, target) } else { (target, source) };
    let words = [low[0], low[1], low[2], high[0], high[1], high[2], protocol];
    Some(((select_hash(0, &words) >> 32) as usize * workers) >> 32)
}
