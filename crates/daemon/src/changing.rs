//! Changes in progress on the workers, several at a time, while the main thread continues. The caller that
//! begins one gets a ticket, with which it polls for the outcome.
//!
//! A worker refuses changes of a pipe while it makes other changes to the pipe. So changes wait here until
//! all earlier ones that concern one of their pipes have ended; all other changes run concurrently. The
//! removal of idle entries takes precedence over waiting changes, and no change begins during the removal.

use anyhow::{Result, anyhow};
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;
use tracing::warn;
use weir_engine::worker::{Aging, CHANGES_PER_BREATH, Command, Outcome, Proposal, Proposer};
use weir_program::PipeId;
use weir_program::change::{Change, ChangeError, Changes};

/// The maximum number of concurrent changes of clients, lower than what a worker admits
/// ([`weir_engine::worker::RESERVATIONS_MAX`]).
const OPEN_MAX: usize = 8;

/// How long a single worker may take, in nanoseconds.
const PATIENCE_NS: u64 = 10_000_000_000;

/// The number that identifies changes that were begun.
pub type Ticket = u64;

/// The outcome of changes: all workers made them, or none did; an error means that a worker does not answer.
pub type Ended = Result<ChangeResult>;

type ChangeResult = Result<(), ChangeError>;

/// Sends a worker a command. Returns the command if there is no room.
pub type Send<'a> = &'a mut dyn FnMut(usize, Command) -> Option<Command>;

/// Changes that wait or are in progress, and the removal of idle entries.
#[derive(Default)]
pub struct Changing {
    proposer: Proposer,
    aging: Aging,
    tickets: Ticket,
    waiting: VecDeque<(Ticket, Changes)>,
    open: Vec<Open>,
    ended: BTreeMap<Ticket, Ended>,
}

/// Changes that are in progress.
struct Open {
    ticket: Ticket,
    changes: Changes,
    way: ChangeMode,
}

enum ChangeMode {
    /// A few changes on a single worker, made at once.
    Alone {
        answer: Receiver<ChangeResult>,
        come: Option<ChangeResult>,
        until_ns: u64,
    },
    Proposed(Proposal),
}

impl Changing {
    /// Sets the number of workers from now on; no change may be in progress.
    pub fn set_workers(&mut self, workers: usize) {
        self.proposer.set_workers(workers);
        self.aging = Aging::default();
    }

    /// Begins changes, or queues them. Returns their ticket, with which the outcome must be
    /// [taken](Changing::take).
    pub fn begin(&mut self, changes: Changes, now_ns: u64, send: Send<'_>) -> Ticket {
        self.tickets += 1;
        self.waiting.push_back((self.tickets, changes));
        self.start(now_ns, send);
        self.tickets
    }

    /// Takes every step that is possible without waiting. `ages` is whether the program has entries that
    /// expire when idle.
    pub fn advance(&mut self, ages: bool, now_ns: u64, send: Send<'_>) {
        let Changing { proposer, open, ended, .. } = self;
        proposer.settle(send);
        open.retain_mut(|one| match one.look(proposer, now_ns, send) {
            Some(outcome) => {
                ended.insert(one.ticket, outcome);
                false
            }
            None => true,
        });
        if self.proposer.workers() > 1 && (ages || self.aging.is_removing()) {
            self.aging.look(&mut self.proposer, now_ns, send);
        }
        self.start(now_ns, send);
    }

    /// Returns the outcome once it is available.
    pub fn take(&mut self, ticket: Ticket) -> Option<Ended> {
        self.ended.remove(&ticket)
    }

    /// Forgets changes that still wait; started ones continue, and their outcome is discarded.
    pub fn forget(&mut self, ticket: Ticket) {
        self.waiting.retain(|one| one.0 != ticket);
    }

    /// Waits up to `most` for a worker's answer to these changes, or, if these have not started, to other
    /// changes.
    pub fn wait(&mut self, ticket: Ticket, most: Duration) {
        let own = self.open.iter().position(|one| one.ticket == ticket);
        match self.open.get_mut(own.unwrap_or(0)) {
            Some(one) => one.wait(most),
            None => std::thread::sleep(most),
        }
    }

    /// Returns true while changes are in progress or queued, or commands wait for room. A swap sent meanwhile
    /// would come before a change on one worker, and after that change on another.
    pub fn is_busy(&self) -> bool {
        let waits = !self.waiting.is_empty() || self.proposer.is_owing();
        waits || !self.open.is_empty() || self.aging.is_removing()
    }

    /// Returns when [`Changing::advance`] must be called for idle entries.
    pub fn wake_ns(&self) -> Option<u64> {
        (self.proposer.workers() > 1).then(|| self.aging.wake_ns())
    }

    /// Starts waiting changes in order, except those that have to wait for earlier changes of the same pipe.
    fn start(&mut self, now_ns: u64, send: Send<'_>) {
        if self.aging.is_removing() {
            return;
        }
        let mut taken: Vec<PipeId> = self.open.iter().flat_map(|one| one.changes.pipes()).copied().collect();
        for (ticket, changes) in std::mem::take(&mut self.waiting) {
            let free = !changes.pipes().iter().any(|pipe| taken.contains(pipe));
            taken.extend(changes.pipes());
            if !free || self.open.len() >= OPEN_MAX {
                self.waiting.push_back((ticket, changes));
                continue;
            }
            match self.way(&changes, now_ns, send) {
                Some(way) => self.open.push(Open { ticket, changes, way }),
                None => self.waiting.push_back((ticket, changes)),
            }
        }
    }

    /// Sends changes to the workers; `None` if there is no room for a command.
    fn way(&mut self, changes: &Changes, now_ns: u64, send: Send<'_>) -> Option<ChangeMode> {
        if self.proposer.workers() > 1 || changes.len() > CHANGES_PER_BREATH {
            return Some(ChangeMode::Proposed(self.proposer.propose(changes.clone(), now_ns, send)));
        }
        let change = match &**changes {
            [one] => one.clone(),
            _ => Change::Batch(changes.clone()),
        };
        let (asker, answer) = sync_channel(1);
        let until_ns = now_ns + PATIENCE_NS;
        let sent = send(0, Command::Change(Box::new(change), asker)).is_none();
        sent.then_some(ChangeMode::Alone { answer, come: None, until_ns })
    }
}

impl Open {
    fn look(&mut self, proposer: &mut Proposer, now_ns: u64, send: Send<'_>) -> Option<Ended> {
        let proposal = match &mut self.way {
            ChangeMode::Alone { answer, come, until_ns } => {
                let come = come.take().or_else(|| answer.try_recv().ok());
                let silent = || anyhow!("worker 0 does not answer; the request may still be carried out");
                return come.map(Ok).or_else(|| (now_ns >= *until_ns).then(|| Err(silent())));
            }
            ChangeMode::Proposed(proposal) => proposal,
        };
        Some(match proposer.look(proposal, now_ns, send)? {
            Outcome::Refused(why) => Ok(Err(why)),
            Outcome::Silent { worker } => {
                Err(anyhow!("worker {worker} does not answer; nothing was or will be changed"))
            }
            Outcome::Done { late } => {
                for worker in late {
                    warn!("worker {worker} has not yet confirmed a change, which it will make");
                }
                Ok(Ok(()))
            }
        })
    }

    fn wait(&mut self, most: Duration) {
        match &mut self.way {
            ChangeMode::Proposed(proposal) => proposal.wait(most),
            ChangeMode::Alone { answer, come, .. } => match answer.recv_timeout(most) {
                Ok(answer) => *come = Some(answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(most),
            },
        }
    }
}
