//! The workers as the control plane sees them: threads that take commands between breaths.

use super::clock::Clock;
use super::doorbell::Doorbell;
use anyhow::{Context, Result, anyhow};
use engine::change::{Change, ChangeError};
use engine::worker::{Command, Report, Worker};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Commands that may wait for a worker, frames of apps among them.
pub const COMMANDS: usize = 256;

/// How long a worker may take to answer: a swap of a million entries takes a fraction of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Breaths without a frame before a worker sleeps: the next frame of a burst is cheaper awake.
const BREATHS_AWAKE: u32 = 32;

/// How long a worker sleeps at most: it still ticks (ages, refills) a hundred times a second.
const SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The same with a port that cannot wake it, and while an app's frame waits for room in one.
const SHORT_SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Where a worker's commands come from, and the file descriptor that wakes it.
pub struct Mailbox {
    /// Commands.
    pub commands: Receiver<Command>,
    /// Written to when there are some.
    pub wake: Arc<OwnedFd>,
}

/// A running worker.
struct Running {
    commands: SyncSender<Command>,
    wake: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

/// All workers.
#[derive(Default)]
pub struct Fleet {
    workers: Vec<Running>,
}

/// The two ends of a worker's mail.
pub fn mailbox() -> Result<(SyncSender<Command>, Mailbox)> {
    let (sender, commands) = sync_channel(COMMANDS);
    let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).context("eventfd")?;
    Ok((sender, Mailbox { commands, wake: Arc::new(wake) }))
}

impl Fleet {
    /// Starts a worker on its own thread; `make` runs there, so that what is bound to a thread is bound to the right one.
    /// What it returns beside the worker lives on that thread, and longer than the worker.
    pub fn start<Kept>(
        &mut self,
        core: Option<u16>,
        busy: bool,
        clock: Clock,
        doorbell: Doorbell,
        make: impl FnOnce(Receiver<Command>) -> Result<(Kept, Worker)> + Send + 'static,
    ) -> Result<()> {
        let (commands, mailbox) = mailbox()?;
        let wake = mailbox.wake.clone();
        let (started, ready) = sync_channel(1);
        let name = format!("weir-worker-{}", self.workers.len());
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let made = core.map_or(Ok(()), pin).and_then(|()| make(mailbox.commands));
            match made {
                Ok((kept, mut worker)) => {
                    let _ = started.send(Ok(()));
                    run(&mut worker, &mailbox.wake, busy, clock, &doorbell);
                    drop(worker);
                    drop(kept);
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            }
        })?;
        ready.recv().context("a worker ended before it began")??;
        self.workers.push(Running { commands, wake, thread });
        Ok(())
    }

    /// How many workers there are.
    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// Asks one worker.
    pub fn ask<T>(&self, worker: usize, command: impl FnOnce(SyncSender<T>) -> Command) -> Result<T> {
        let (answer, receive) = sync_channel(1);
        self.send(worker, command(answer))?;
        receive.recv_timeout(PATIENCE).map_err(|_| anyhow!("worker {worker} does not answer"))
    }

    /// Asks all workers the same; answers in their order. All have been asked before the first answer is waited for.
    pub fn ask_all<T>(&self, command: impl Fn(usize, SyncSender<T>) -> Command) -> Result<Vec<T>> {
        let mut answers = Vec::new();
        for worker in 0..self.workers.len() {
            let (answer, receive) = sync_channel(1);
            self.send(worker, command(worker, answer))?;
            answers.push(receive);
        }
        let wait = |(worker, receive): (usize, Receiver<T>)| {
            receive.recv_timeout(PATIENCE).map_err(|_| anyhow!("worker {worker} does not answer"))
        };
        answers.into_iter().enumerate().map(wait).collect()
    }

    /// Applies a change on all workers; done when all have it. Replicas are alike, so all refuse or none.
    pub fn change(&self, change: &Change) -> Result<Result<(), ChangeError>> {
        let answers = self.ask_all(|_, answer| Command::Change(Box::new(change.clone()), answer))?;
        Ok(answers.into_iter().find(Result::is_err).unwrap_or(Ok(())))
    }

    /// Gives a worker a command if it has room for one; says whether it has.
    pub fn offer(&self, worker: usize, command: Command) -> bool {
        let Some(running) = self.workers.get(worker) else { return false };
        let taken = running.commands.try_send(command).is_ok();
        running.wake();
        taken
    }

    /// Stops all workers; their last accounts. First none of them receives or hands over any more: what lies between two is
    /// then dropped by the one it was for, and counted once.
    pub fn stop(self) -> Result<Vec<Report>> {
        self.ask_all(|_, answer| Command::Quiesce(answer))?;
        let reports = self.ask_all(|_, answer| Command::Stop(answer))?;
        for worker in self.workers {
            worker.thread.join().map_err(|_| anyhow!("a worker panicked"))?;
        }
        Ok(reports)
    }

    fn send(&self, worker: usize, command: Command) -> Result<()> {
        let running = self.workers.get(worker).context("no such worker")?;
        running.commands.send(command).map_err(|_| anyhow!("worker {worker} has ended"))?;
        running.wake();
        Ok(())
    }
}

impl Running {
    fn wake(&self) {
        // A full counter wakes as well.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// Breathes until it is told to stop; sleeps when there is nothing to do. Rings when it has done something for apps.
fn run(worker: &mut Worker, wake: &OwnedFd, busy: bool, clock: Clock, doorbell: &Doorbell) {
    let mut quiet = 0;
    while !worker.is_stopped() {
        quiet = if worker.breathe(clock.now_ns()) > 0 { 0 } else { quiet + 1 };
        if worker.take_signal() {
            doorbell.ring();
        }
        if quiet > BREATHS_AWAKE && !busy {
            sleep(worker, wake);
        }
    }
}

fn sleep(worker: &Worker, wake: &OwnedFd) {
    let ports = worker.ports();
    let mut waits: Vec<PollFd<'_>> = vec![PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN)];
    let ready = ports.iter().filter_map(|port| port.readiness());
    waits.extend(ready.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    // Nothing comes any more from a port that is exhausted.
    let all_wake = ports.iter().all(|port| port.readiness().is_some() || port.exhausted()) && !worker.is_waiting();
    let timeout = if all_wake { SLEEP } else { SHORT_SLEEP };
    // Interrupted or not: the next breath looks.
    let _ = poll(&mut waits, Some(&timeout));
    let mut count = [0; 8];
    let _ = rustix::io::read(wake, &mut count);
}

fn pin(core: u16) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(usize::from(core));
    rustix::thread::sched_setaffinity(None, &set)
        .with_context(|| format!("core {core} cannot be used: is it there, and allowed to this process?"))
}
