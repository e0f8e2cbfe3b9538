//! Removes idle entries that several workers share: an entry is as old as its youngest replica.
//!
//! The first worker reports entries that are idle there; only those can be idle everywhere. The other workers
//! are asked about them. Entries that are idle everywhere are removed in one proposal, which any worker
//! refuses if a packet has hit an entry meanwhile. The remaining entries become as young on the first worker
//! as they are elsewhere, so that it does not report them again before they may have become idle.
//!
//! Nothing here waits; see [`super::proposal`].

use super::Command;
use super::pending::CHANGES_PER_BREATH;
use super::proposal::{Outcome, Proposal, Proposer, Send};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use weir_program::PipeId;
use weir_program::change::{Change, ChangeError, Changes, EntryKey};
use weir_program::snapshot::Seen;

/// How often idle entries are searched for, in nanoseconds. A worker looks at a slice of its rows each time.
const PERIOD_NS: u64 = 50_000_000;

/// How often to check for answers, in nanoseconds.
const LOOK_NS: u64 = 1_000_000;

/// How long a worker may take to answer, in nanoseconds, before it is asked again.
const PATIENCE_NS: u64 = 10_000_000_000;

type AgedKeys = Vec<(PipeId, EntryKey)>;

/// Removes idle entries.
#[derive(Debug, Default)]
pub struct Aging {
    step: AgingStep,
    /// When to search for idle entries or for answers next.
    wake_ns: u64,
    /// When the current step is given up.
    until_ns: u64,
    removed: u64,
}

#[derive(Debug, Default)]
enum AgingStep {
    #[default]
    Rest,
    /// The first worker searches for idle entries.
    Looking(Receiver<AgedKeys>),
    /// The other workers report what they know about these entries.
    Asking(Arc<AgedKeys>, Vec<AgingAnswer>),
    /// These entries are being removed.
    Removing(Changes, Proposal),
}

#[derive(Debug)]
enum AgingAnswer {
    Awaited(Receiver<Vec<Option<Seen>>>),
    Come(Vec<Option<Seen>>),
}

impl Aging {
    /// Returns when [`Aging::look`] must be called at the latest.
    #[must_use]
    pub fn wake_ns(&self) -> u64 {
        self.wake_ns
    }

    /// Returns true while entries are being removed.
    #[must_use]
    pub fn is_removing(&self) -> bool {
        matches!(self.step, AgingStep::Removing(..))
    }

    /// Returns how many entries have been removed.
    #[must_use]
    pub fn removed(&self) -> u64 {
        self.removed
    }

    /// Takes the next step, if possible.
    pub fn look(&mut self, proposer: &mut Proposer, now_ns: u64, send: Send<'_>) {
        let late = now_ns >= self.until_ns;
        if now_ns >= self.wake_ns && !matches!(self.step, AgingStep::Rest) {
            self.wake_ns = now_ns + LOOK_NS;
        }
        self.step = match std::mem::take(&mut self.step) {
            AgingStep::Rest if now_ns >= self.wake_ns => {
                let (asker, answer) = sync_channel(1);
                (self.wake_ns, self.until_ns) = (now_ns + LOOK_NS, now_ns + PATIENCE_NS);
                match send(0, Command::Idle(CHANGES_PER_BREATH, asker)) {
                    None => AgingStep::Looking(answer),
                    Some(_) => self.rest(now_ns),
                }
            }
            AgingStep::Looking(answer) => match answer.try_recv() {
                Ok(keys) if keys.is_empty() => self.rest(now_ns),
                Ok(keys) => self.ask(Arc::new(keys), proposer.workers(), now_ns, send),
                Err(TryRecvError::Empty) if !late => AgingStep::Looking(answer),
                Err(_) => self.rest(now_ns),
            },
            AgingStep::Asking(keys, mut answers) => {
                answers.iter_mut().for_each(AgingAnswer::look);
                if answers.iter().all(|one| matches!(one, AgingAnswer::Come(_))) {
                    self.judge(&keys, &answers, proposer, now_ns, send)
                } else if late {
                    self.rest(now_ns)
                } else {
                    AgingStep::Asking(keys, answers)
                }
            }
            AgingStep::Removing(changes, mut proposal) => match proposer.look(&mut proposal, now_ns, send) {
                None => AgingStep::Removing(changes, proposal),
                Some(Outcome::Done { .. }) => {
                    self.removed += changes.len() as u64;
                    // There may be more.
                    self.wake_ns = now_ns;
                    AgingStep::Rest
                }
                Some(Outcome::Refused(ChangeError::At { index, why }))
                    if !matches!(*why, ChangeError::Busy { .. }) =>
                {
                    let mut others = changes.to_vec();
                    others.remove(index);
                    self.remove(others, proposer, now_ns, send)
                }
                Some(_) => self.rest(now_ns),
            },
            AgingStep::Rest => AgingStep::Rest,
        };
    }

    fn rest(&mut self, now_ns: u64) -> AgingStep {
        self.wake_ns = now_ns + PERIOD_NS;
        AgingStep::Rest
    }

    fn ask(&mut self, keys: Arc<AgedKeys>, workers: usize, now_ns: u64, send: Send<'_>) -> AgingStep {
        let mut answers = Vec::new();
        for worker in 1..workers {
            let (asker, answer) = sync_channel(1);
            if send(worker, Command::Seen(keys.clone(), asker)).is_some() {
                return self.rest(now_ns);
            }
            answers.push(AgingAnswer::Awaited(answer));
        }
        self.until_ns = now_ns + PATIENCE_NS;
        AgingStep::Asking(keys, answers)
    }

    /// Removes the entries that are idle on all workers; all others become as young as their youngest
    /// replica.
    fn judge(
        &mut self,
        keys: &AgedKeys,
        answers: &[AgingAnswer],
        proposer: &mut Proposer,
        now_ns: u64,
        send: Send<'_>,
    ) -> AgingStep {
        let (mut idle, mut young) = (Vec::new(), Vec::new());
        for (at, (pipe, key)) in keys.iter().enumerate() {
            let seen = answers.iter().filter_map(|answer| answer.at(at)).reduce(|mut all, one| {
                all.add(one);
                all
            });
            match seen.filter(|seen| !seen.idle) {
                Some(seen) => young.push((*pipe, key.clone(), seen.last_ms)),
                None => idle.push(Change::Remove { pipe: *pipe, key: key.clone() }),
            }
        }
        if !young.is_empty() {
            // If there is no room for it, they are reported again.
            let _ = send(0, Command::Rejuvenate(young));
        }
        self.remove(idle, proposer, now_ns, send)
    }

    fn remove(
        &mut self,
        idle: Vec<Change>,
        proposer: &mut Proposer,
        now_ns: u64,
        send: Send<'_>,
    ) -> AgingStep {
        match Changes::new(idle) {
            Ok(changes) if !changes.is_empty() => {
                let proposal = proposer.propose_if(changes.clone(), true, now_ns, send);
                self.wake_ns = now_ns + LOOK_NS;
                AgingStep::Removing(changes, proposal)
            }
            _ => self.rest(now_ns),
        }
    }
}

impl AgingAnswer {
    fn look(&mut self) {
        if let AgingAnswer::Awaited(answer) = self
            && let Ok(come) = answer.try_recv()
        {
            *self = AgingAnswer::Come(come);
        }
    }

    fn at(&self, index: usize) -> Option<Seen> {
        if let AgingAnswer::Come(seen) = self { seen.get(index).copied().flatten() } else { None }
    }
}
