//! The workers, as seen by the control plane: threads that execute commands between iterations ("breaths").

use super::changing::{Changing, Ended, Ticket};
use super::doorbell::Doorbell;
use super::load::PAGE_MAX;
use super::stopwatch::Stopwatch;
use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_app::clock::Clock;
use weir_app::priority;
use weir_engine::worker::{BUCKETS_AT_ONCE, Command, Report, Worker};
use weir_port::numa::Preferred;
use weir_program::change::{Change, Changes, EntryKey};
use weir_program::snapshot::{BucketReport, Page};
use weir_program::{GroupId, PipeId};

/// The maximum number of commands queued for a worker, including frames of apps.
pub const COMMANDS: usize = 256;

/// How long a worker may take to answer; a swap of a million entries takes a fraction of this.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often changes are polled while an answer is outstanding.
const LOOK: Duration = Duration::from_millis(1);

/// Breaths without a frame before a worker sleeps: while it is awake, the next frame of a burst is cheaper.
const BREATHS_AWAKE: u32 = 32;

/// The longest sleep of a worker: it still ticks (ageing, refills) a hundred times per second.
const SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The longest sleep with a port that cannot wake the worker, or while an app's frame waits for room in a
/// port.
const SHORT_SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The receiving end of a worker's commands, and the file descriptor that wakes it.
pub struct Mailbox {
    /// The commands.
    pub commands: Receiver<Command>,
    /// Written to when there are commands.
    pub wake: Arc<OwnedFd>,
}

/// A running worker.
struct RunningWorker {
    commands: SyncSender<Command>,
    wake: Arc<OwnedFd>,
    /// How many frames and commands it has handled.
    handled: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    /// The thread; `None` for a handle that only queries the worker.
    thread: Option<JoinHandle<()>>,
}

/// A thread on its core that has no worker yet. It ends when this is dropped.
pub struct Recruit {
    orders: SyncSender<WorkerTask>,
    running: RunningWorker,
    mailbox: Mailbox,
}

/// The function that a thread without a worker will run.
type WorkerTask = Box<dyn FnOnce() + Send>;

/// All workers, and the changes in progress on them.
#[derive(Default)]
pub struct Fleet {
    workers: Workers,
    changing: Changing,
}

/// The outcome of offering a command to a worker.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Offered {
    /// The worker has the command.
    Taken,
    /// There is no room for the command now.
    Full,
    /// The worker has ended.
    Ended,
}

/// Handles to all workers, for threads that query them.
#[derive(Default)]
pub struct Workers(Vec<RunningWorker>);

impl Deref for Fleet {
    type Target = Workers;

    fn deref(&self) -> &Workers {
        &self.workers
    }
}

/// Creates the two ends of a worker's command channel.
pub fn mailbox() -> Result<(SyncSender<Command>, Mailbox)> {
    let (sender, commands) = sync_channel(COMMANDS);
    let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).context("eventfd")?;
    Ok((sender, Mailbox { commands, wake: Arc::new(wake) }))
}

impl Fleet {
    /// Starts a worker on its own thread. `make` runs on that thread, so that anything bound to a thread is
    /// bound to the right one. Whatever it returns besides the worker lives on that thread and outlives the
    /// worker.
    pub fn start<Kept>(
        &mut self,
        (core, node): (Option<u16>, Option<u32>),
        pace: (bool, Clock),
        doorbell: Doorbell,
        make: impl FnOnce(Receiver<Command>) -> Result<(Kept, Worker)> + Send + 'static,
    ) -> Result<()> {
        let recruit = Recruit::start(self.workers.len(), core, node)?;
        self.enlist(recruit, pace, doorbell, make)?;
        self.changing.set_workers(self.workers.len());
        Ok(())
    }

    /// Starts a worker on an existing thread. Until [`Fleet::dismiss`], the number of workers is in
    /// transition.
    pub fn enlist<Kept>(
        &mut self,
        recruit: Recruit,
        (busy, clock): (bool, Clock),
        doorbell: Doorbell,
        make: impl FnOnce(Receiver<Command>) -> Result<(Kept, Worker)> + Send + 'static,
    ) -> Result<()> {
        let Recruit { orders, running, mailbox } = recruit;
        let (counter, ended) = (running.handled.clone(), running.ended.clone());
        let (started, ready) = sync_channel(1);
        let work = move || match make(mailbox.commands) {
            Ok((kept, mut worker)) => {
                let _ = started.send(Ok(()));
                let wake = mailbox.wake.clone();
                worker.wake_by(Box::new(move || ring(&wake)));
                run(&mut worker, (&mailbox.wake, busy), clock, &doorbell, &counter);
                drop(worker);
                drop(kept);
                ended.store(true, Ordering::Release);
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        };
        orders.send(Box::new(work)).map_err(|_| anyhow!("a worker's thread has ended"))?;
        ready.recv().context("a worker ended before it started")??;
        self.workers.0.push(running);
        Ok(())
    }

    /// Forgets workers that have ended, keeping the first `stay`, on which changes are made from then on.
    pub fn dismiss(&mut self, stay: usize) {
        self.workers.0.truncate(stay);
        self.changing.set_workers(stay);
    }

    /// Begins changes without waiting: [`Fleet::outcome`] returns the outcome.
    pub fn begin(&mut self, changes: Changes, clock: Clock) -> Ticket {
        self.changing.begin(changes, clock.now_ns(), &mut sender(&self.workers.0))
    }

    /// Advances changes as far as possible without waiting. If the program has entries that expire (`ages`),
    /// removes those that are idle on all workers. A single worker removes its idle entries itself.
    pub fn advance_changes(&mut self, ages: bool, clock: Clock) {
        self.changing.advance(ages, clock.now_ns(), &mut sender(&self.workers.0));
    }

    /// Returns the outcome of changes once it is available; only once.
    pub fn outcome(&mut self, ticket: Ticket) -> Option<Ended> {
        self.changing.take(ticket)
    }

    /// Makes a change on all workers, or on none, and waits for it.
    pub fn change(&mut self, change: &Change, clock: Clock) -> Ended {
        self.change_all(Changes::of(change.clone()), clock)
    }

    /// Makes changes on all workers, or on none, and waits for them.
    pub fn change_all(&mut self, changes: Changes, clock: Clock) -> Ended {
        let ticket = self.begin(changes, clock);
        let until = Instant::now() + PATIENCE;
        loop {
            self.advance_changes(false, clock);
            if let Some(ended) = self.outcome(ticket) {
                return ended;
            }
            if Instant::now() >= until {
                self.changing.forget(ticket);
                bail!("the workers have not answered");
            }
            self.changing.wait(ticket, LOOK);
        }
    }

    /// Returns true while workers make changes, or changes are queued.
    pub fn is_changing(&self) -> bool {
        self.changing.is_busy()
    }

    /// Returns when [`Fleet::advance_changes`] must be called for idle entries.
    pub fn wake_ns(&self) -> Option<u64> {
        self.changing.wake_ns()
    }

    /// Closes all ports. First, all workers stop receiving and handing over, so that frames between two
    /// workers are dropped by the receiver and counted once. A program in the kernel continues to handle
    /// frames.
    pub fn close_ports(&self) -> Result<()> {
        self.ask_all(|_, answer| Command::Quiesce(answer))?;
        self.ask_all(|_, answer| Command::ClosePorts(answer)).map(drop)
    }

    /// Closes all ports, stops all workers and returns their last reports.
    pub fn stop(self) -> Result<Vec<Report>> {
        self.ask_all(|_, answer| Command::Quiesce(answer))?;
        let reports = self.ask_all(|_, answer| Command::Stop(answer))?;
        for worker in self.workers.0 {
            worker.thread.map_or(Ok(()), JoinHandle::join).map_err(|_| anyhow!("a worker panicked"))?;
        }
        Ok(reports)
    }
}

impl Recruit {
    /// Starts the thread of worker `worker` on this core, with memory of this NUMA node.
    pub fn start(worker: usize, core: Option<u16>, node: Option<u32>) -> Result<Recruit> {
        let (commands, mailbox) = mailbox()?;
        let (orders, order) = sync_channel::<WorkerTask>(1);
        let (placed, ready) = sync_channel(1);
        let work = move || {
            priority::ordinary();
            let place = core.map_or(Ok(()), pin);
            let is_placed = place.is_ok();
            // Memory that it touches first, such as further rows of tables.
            let _near = Preferred::of(node);
            let _ = placed.send(place);
            if let Some(work) = order.recv().ok().filter(|_| is_placed) {
                work();
            }
        };
        let thread = std::thread::Builder::new().name(format!("weir-worker-{worker}")).spawn(work)?;
        ready.recv().context("a worker ended before it started")??;
        let (wake, handled, ended) = (mailbox.wake.clone(), Arc::default(), Arc::default());
        let running = RunningWorker { commands, wake, handled, ended, thread: Some(thread) };
        Ok(Recruit { orders, running, mailbox })
    }
}

impl Workers {
    /// Returns handles to the same workers for another thread.
    pub fn questioner(&self) -> Workers {
        let one = |running: &RunningWorker| RunningWorker {
            commands: running.commands.clone(),
            wake: running.wake.clone(),
            handled: running.handled.clone(),
            ended: running.ended.clone(),
            thread: None,
        };
        Workers(self.0.iter().map(one).collect())
    }

    /// Returns the number of workers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns how many frames and commands all workers have handled.
    pub fn handled(&self) -> u64 {
        self.0.iter().map(|running| running.handled.load(Ordering::Relaxed)).sum()
    }

    /// Sends a command to all workers and returns the answers, in the order of workers. All commands are sent
    /// before the first answer is awaited.
    pub fn ask_all<T>(&self, command: impl Fn(usize, SyncSender<T>) -> Command) -> Result<Vec<T>> {
        let mut answers = Vec::new();
        for worker in 0..self.0.len() {
            let (answer, receive) = sync_channel(1);
            self.send(worker, command(worker, answer))?;
            answers.push(receive);
        }
        let wait = |(worker, receive): (usize, Receiver<T>)| {
            receive.recv_timeout(PATIENCE).map_err(|_| anyhow!("worker {worker} does not answer"))
        };
        answers.into_iter().enumerate().map(wait).collect()
    }

    fn ask_one<T>(&self, worker: usize, command: impl FnOnce(SyncSender<T>) -> Command) -> Result<T> {
        let (answer, receive) = sync_channel(1);
        self.send(worker, command(answer))?;
        receive.recv_timeout(PATIENCE).map_err(|_| anyhow!("worker {worker} does not answer"))
    }

    /// Returns entries of a pipe from a place on, up to `limit` and a page more, with the counts of all
    /// workers. They are fetched in pages, so that no worker is blocked for long.
    pub fn entries(&self, pipe: PipeId, from: u32, limit: usize) -> Result<Page> {
        let mut all = Page { next: Some(from), ..Page::default() };
        while let Some(from) = all.next.filter(|_| all.entries.len() < limit) {
            let page = self.ask_one(0, |answer| Command::Page(pipe, from, PAGE_MAX, answer))?;
            let keys: Vec<_> = page.entries.iter().map(|(entry, _)| (pipe, EntryKey::of(entry))).collect();
            let keys = Arc::new(keys);
            let seen = |worker| self.ask_one(worker, |answer| Command::Seen(keys.clone(), answer));
            let others = (1..self.0.len()).map(seen).collect::<Result<Vec<_>>>()?;
            for (at, (entry, mut seen)) in page.entries.into_iter().enumerate() {
                let known = others.iter().filter_map(|other| other.get(at).copied().flatten());
                known.for_each(|one| seen.add(one));
                all.entries.push((entry, seen));
            }
            all.next = page.next;
        }
        Ok(all)
    }

    /// Returns the buckets of a group in every worker. They are fetched in parts, so that no worker is
    /// blocked for long; changes made meanwhile may only appear in later parts.
    pub fn buckets(&self, group: GroupId) -> Result<Vec<BucketReport>> {
        let part = |from| self.ask_all(|_, answer| Command::Buckets(group, from, answer));
        let mut all = part(0)?;
        while all.iter().any(|one| one.slots.len().is_multiple_of(BUCKETS_AT_ONCE) && !one.slots.is_empty()) {
            let from = all[0].slots.len();
            let parts = part(from)?;
            let done = parts.iter().all(|part| part.slots.is_empty());
            all.iter_mut().zip(parts).for_each(|(one, part)| one.append(part));
            if done {
                break;
            }
        }
        Ok(all)
    }

    /// Returns true if a worker has ended.
    pub fn has_ended(&self, worker: usize) -> bool {
        let Some(running) = self.0.get(worker) else { return true };
        running.ended.load(Ordering::Acquire)
    }

    /// Sends a worker a command if it has room for one. Returns true if it was sent.
    pub fn offer(&self, worker: usize, command: Command) -> bool {
        self.try_offer(worker, command) == Offered::Taken
    }

    /// Like [`Workers::offer`], but distinguishes a full worker from one that has ended.
    pub fn try_offer(&self, worker: usize, command: Command) -> Offered {
        let Some(running) = self.0.get(worker) else { return Offered::Ended };
        let offered = match running.commands.try_send(command) {
            Ok(()) => Offered::Taken,
            Err(TrySendError::Full(_)) => Offered::Full,
            Err(TrySendError::Disconnected(_)) => Offered::Ended,
        };
        running.wake();
        offered
    }

    /// Sends a command to one worker, waiting for room if there is none.
    pub fn send(&self, worker: usize, command: Command) -> Result<()> {
        let running = self.0.get(worker).context("no such worker")?;
        running.commands.send(command).map_err(|_| anyhow!("worker {worker} has ended"))?;
        running.wake();
        Ok(())
    }
}

impl RunningWorker {
    fn wake(&self) {
        ring(&self.wake);
    }
}

/// Wakes the worker that waits on `wake`.
fn ring(wake: &OwnedFd) {
    // A full counter wakes the reader, too.
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
}

/// Returns the function with which changes are sent; it does not block.
fn sender(workers: &[RunningWorker]) -> impl FnMut(usize, Command) -> Option<Command> {
    |worker, command| {
        let running = &workers[worker];
        let sent = running.commands.try_send(command);
        running.wake();
        sent.err().map(|(TrySendError::Full(command) | TrySendError::Disconnected(command))| command)
    }
}

/// Breathes until stopped, and sleeps when there is nothing to do. Rings the doorbell after doing something
/// for apps. Adds what it handles to `counter`.
fn run(
    worker: &mut Worker,
    (wake, busy): (&OwnedFd, bool),
    clock: Clock,
    doorbell: &Doorbell,
    counter: &AtomicU64,
) {
    let (mut quiet, mut all) = (0, 0);
    let mut stopwatch = Stopwatch::start(clock);
    while !worker.is_stopped() {
        // Frames that other workers hand over from here on wake this worker; this breath finds the frames
        // handed over before.
        let drowsy = quiet >= BREATHS_AWAKE && !busy;
        if drowsy {
            worker.set_asleep(true);
        }
        let handled = worker.breathe(stopwatch.began_ns());
        quiet = if handled > 0 { 0 } else { quiet + 1 };
        all += handled as u64;
        counter.store(all, Ordering::Relaxed);
        if worker.take_signal() {
            doorbell.ring();
        }
        let (wall_ns, processor_ns) = stopwatch.lap();
        worker.record_breath(handled, wall_ns, processor_ns);
        if drowsy {
            if handled == 0 {
                sleep(worker, wake);
                stopwatch.begin();
            }
            worker.set_asleep(false);
        }
    }
}

fn sleep(worker: &Worker, wake: &OwnedFd) {
    let ports = worker.ports();
    let mut waits: Vec<PollFd<'_>> = vec![PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN)];
    let ready = ports.iter().filter_map(|port| port.readiness());
    waits.extend(ready.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    // A port that is exhausted will never wake the worker.
    let all_wake =
        ports.iter().all(|port| port.readiness().is_some() || port.exhausted()) && !worker.is_waiting();
    let timeout = if all_wake { SLEEP } else { SHORT_SLEEP };
    // Whether or not poll was interrupted, the next breath checks.
    let _ = poll(&mut waits, Some(&timeout));
    let mut count = [0; 8];
    let _ = rustix::io::read(wake, &mut count);
}

fn pin(core: u16) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(usize::from(core));
    rustix::thread::sched_setaffinity(None, &set)
        .with_context(|| format!("core {core} cannot be used: does it exist, and may this process use it?"))
}
