//! Changes that all workers make or none: reserved by every worker, then committed by every worker.
//!
//! Nothing here blocks. Commands go through a function that may have no room for one, and the driver of a
//! proposal polls it until it has an outcome.
//!
//! Guarantees: no worker begins to commit a change before all of them have reserved it. If one refuses, or
//! does not answer in time, all of them are ordered to release what they have reserved, even a late one: its
//! commands arrive in order, so it reserves and releases. Once all have reserved, the change is decided, and
//! every worker will make it as soon as it gets to it. Commands for which there was no room are kept and are
//! sent before any later ones.

use super::Command;
use super::pending::PendingAnswers;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::Duration;
use weir_program::change::{ChangeError, Changes};

/// How long workers may take to reserve a few changes, and then to commit them, in nanoseconds.
const PATIENCE_NS: u64 = 10_000_000_000;

/// How much longer they may take for each change, in nanoseconds: many times the cost, because a worker does
/// only a few between two breaths.
const PATIENCE_PER_CHANGE_NS: u64 = 20_000;

/// Sends a command to a worker. Returns it if there is no room.
pub type Send<'a> = &'a mut dyn FnMut(usize, Command) -> Option<Command>;

/// What happened to a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All workers have made the changes, except for the late ones, which still will.
    Done {
        /// Workers that have not confirmed in time.
        late: Vec<usize>,
    },
    /// No worker has made the changes or will.
    Refused(ChangeError),
    /// No worker has made the changes or will, because one worker has not answered.
    Silent {
        /// The worker.
        worker: usize,
    },
}

/// Makes proposals to a number of workers, one or several at a time.
#[derive(Debug, Default)]
pub struct Proposer {
    workers: usize,
    made: u64,
    /// Commands for which there was no room, and their workers.
    owed: Vec<(usize, Command)>,
}

/// Changes in transit to all workers.
#[derive(Debug)]
pub struct Proposal {
    owner: u64,
    changes: Changes,
    step: ProposalStep,
    /// The awaited answers, by worker.
    awaited: Vec<Option<Receiver<Result<(), ChangeError>>>>,
    until_ns: u64,
    /// Why the proposal failed.
    refused: Option<Outcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProposalStep {
    Reserving,
    Committing,
    Releasing,
}

impl Proposer {
    /// Creates a proposer for `workers` workers.
    #[must_use]
    pub fn new(workers: usize) -> Proposer {
        Proposer { workers, ..Proposer::default() }
    }

    /// Makes proposals to `workers` workers from now on; no proposal may be in progress.
    pub fn set_workers(&mut self, workers: usize) {
        self.workers = workers;
    }

    /// Returns the number of workers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Proposes changes to all workers, at time `now_ns`.
    pub fn propose(&mut self, changes: Changes, now_ns: u64, send: Send<'_>) -> Proposal {
        self.propose_if(changes, false, now_ns, send)
    }

    /// Like [`Proposer::propose`]; with `only_idle`, removals of entries that are in use anywhere are
    /// refused.
    pub(super) fn propose_if(
        &mut self,
        changes: Changes,
        only_idle: bool,
        now_ns: u64,
        send: Send<'_>,
    ) -> Proposal {
        self.made += 1;
        let owner = self.made;
        self.settle(send);
        let until_ns = deadline(&changes, now_ns);
        let mut proposal = Proposal {
            owner,
            changes,
            step: ProposalStep::Reserving,
            awaited: Vec::new(),
            until_ns,
            refused: None,
        };
        for worker in 0..self.workers {
            let (asker, answer) = sync_channel(1);
            let reserve = Command::Reserve(owner, proposal.changes.clone(), only_idle, asker);
            if self.is_owed(worker) || send(worker, reserve).is_some() {
                proposal.refused = Some(Outcome::Silent { worker });
                break;
            }
            proposal.awaited.push(Some(answer));
        }
        proposal
    }

    /// Collects answers and takes the next step. Returns the outcome, once.
    pub fn look(&mut self, proposal: &mut Proposal, now_ns: u64, send: Send<'_>) -> Option<Outcome> {
        self.settle(send);
        proposal.collect();
        let late: Vec<usize> = proposal.late().collect();
        let too_late = now_ns >= proposal.until_ns;
        match proposal.step {
            ProposalStep::Reserving => {
                if too_late && let Some(&worker) = late.first() {
                    proposal.refused.get_or_insert(Outcome::Silent { worker });
                }
                if proposal.refused.is_some() {
                    self.next(proposal, ProposalStep::Releasing, now_ns, send);
                } else if late.is_empty() {
                    self.next(proposal, ProposalStep::Committing, now_ns, send);
                }
                None
            }
            ProposalStep::Committing if late.is_empty() || too_late => {
                Some(proposal.refused.take().unwrap_or(Outcome::Done { late }))
            }
            // Silent workers are not waited for.
            ProposalStep::Releasing
                if late.is_empty() || too_late || !matches!(proposal.refused, Some(Outcome::Refused(_))) =>
            {
                Some(proposal.refused.take().unwrap_or(Outcome::Done { late }))
            }
            _ => None,
        }
    }

    /// Sends the next command to the workers, and waits for them again.
    fn next(&mut self, proposal: &mut Proposal, step: ProposalStep, now_ns: u64, send: Send<'_>) {
        let asked = proposal.awaited.len();
        proposal.awaited.clear();
        for worker in 0..asked {
            let (asker, answer) = sync_channel(1);
            let command = command(proposal.owner, step == ProposalStep::Committing, asker);
            let left = if self.is_owed(worker) { Some(command) } else { send(worker, command) };
            self.owed.extend(left.map(|command| (worker, command)));
            proposal.awaited.push(Some(answer));
        }
        proposal.step = step;
        proposal.until_ns = deadline(&proposal.changes, now_ns);
    }

    /// Returns true while commands wait for room.
    #[must_use]
    pub fn is_owing(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Sends commands that had no room, in order.
    pub fn settle(&mut self, send: Send<'_>) {
        for (worker, command) in std::mem::take(&mut self.owed) {
            let left = if self.is_owed(worker) { Some(command) } else { send(worker, command) };
            self.owed.extend(left.map(|command| (worker, command)));
        }
    }

    fn is_owed(&self, worker: usize) -> bool {
        self.owed.iter().any(|one| one.0 == worker)
    }
}

impl Proposal {
    /// Returns true once all workers have reserved the changes, so that each will make them.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        self.step == ProposalStep::Committing
    }

    /// Waits up to `most` for an answer, if one is awaited.
    pub fn wait(&mut self, most: Duration) {
        let Some((receiver, place)) =
            self.awaited.iter_mut().find_map(|one| one.take().map(|receiver| (receiver, one)))
        else {
            return;
        };
        match receiver.recv_timeout(most) {
            Ok(answer) => self.take(answer),
            Err(RecvTimeoutError::Timeout) => *place = Some(receiver),
            Err(RecvTimeoutError::Disconnected) => {
                // A worker that has ended: the deadline decides.
                *place = Some(receiver);
                std::thread::sleep(most);
            }
        }
    }

    /// Collects the answers that have arrived.
    fn collect(&mut self) {
        for at in 0..self.awaited.len() {
            let Some(receiver) = &self.awaited[at] else { continue };
            match receiver.try_recv() {
                Ok(answer) => {
                    self.awaited[at] = None;
                    self.take(answer);
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
            }
        }
    }

    fn take(&mut self, answer: Result<(), ChangeError>) {
        if let Err(why) = answer {
            self.refused.get_or_insert(Outcome::Refused(why));
        }
    }

    /// Iterates over the workers that have not answered.
    fn late(&self) -> impl Iterator<Item = usize> {
        self.awaited.iter().enumerate().filter(|(_, one)| one.is_some()).map(|(worker, _)| worker)
    }
}

fn command(owner: u64, commits: bool, asker: PendingAnswers) -> Command {
    if commits { Command::Commit(owner, asker) } else { Command::Release(owner, asker) }
}

fn deadline(changes: &Changes, now_ns: u64) -> u64 {
    now_ns + PATIENCE_NS + changes.len() as u64 * PATIENCE_PER_CHANGE_NS
}
