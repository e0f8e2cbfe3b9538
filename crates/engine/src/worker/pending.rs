//! Reservations on a worker: changes are reserved and committed in slices, between breaths.

use super::Worker;
use crate::batch::{Engine, Reservation};
use std::sync::mpsc::SyncSender;
use weir_program::change::{ChangeError, Changes};

/// Maximum number of entry changes that are reserved, committed or released between two breaths, so that no
/// frame waits for more. A batch of at most this size is committed in one go: no packet sees only part of it.
pub const CHANGES_PER_BREATH: usize = 64;

/// Maximum number of reservations that a worker has at a time.
pub const RESERVATIONS_MAX: usize = 16;

/// Where a worker's answer to a step of a proposal is sent.
pub type PendingAnswers = SyncSender<Result<(), ChangeError>>;

/// A reservation, its owner, and what is being done.
pub(super) struct Pending {
    owner: u64,
    reservation: Reservation,
    step: PendingStep,
}

enum PendingStep {
    Reserving(PendingAnswers),
    Reserved,
    Committing(PendingAnswers),
    /// Ends with this answer to the last asker, if there is one.
    Releasing(Option<PendingAnswers>, Result<(), ChangeError>),
}

impl Worker {
    /// Begins to reserve changes.
    pub(super) fn reserve(&mut self, owner: u64, changes: Changes, only_idle: bool, asker: PendingAnswers) {
        if self.pending.len() >= RESERVATIONS_MAX {
            return self.reply(&asker, Err(ChangeError::Busy { pipe: "*".into() }));
        }
        let reservation = Reservation::new(changes).only_idle(only_idle);
        let step = PendingStep::Reserving(asker);
        self.pending.push(Pending { owner, reservation, step });
    }

    /// Begins to commit what this owner has reserved.
    pub(super) fn commit(&mut self, owner: u64, asker: PendingAnswers) {
        let reserved = |one: &&mut Pending| one.owner == owner && matches!(one.step, PendingStep::Reserved);
        match self.pending.iter_mut().find(reserved) {
            Some(pending) => pending.step = PendingStep::Committing(asker),
            None => self.reply(&asker, Err(ChangeError::Unknown { what: "reservation".into() })),
        }
    }

    /// Begins to release what this owner has reserved. Anything that is already being committed stays.
    pub(super) fn release(&mut self, owner: u64, asker: PendingAnswers) {
        let has = |one: &&mut Pending| one.owner == owner && !matches!(one.step, PendingStep::Committing(_));
        match self.pending.iter_mut().find(has) {
            Some(pending) => pending.step = PendingStep::Releasing(Some(asker), Ok(())),
            None => self.reply(&asker, Ok(())),
        }
    }

    /// Begins to release every reservation that is not being committed, because another engine will replace
    /// this one. A waiting asker receives the answer that there is no such reservation.
    pub(super) fn give_up_reservations(&mut self) {
        for pending in &mut self.pending {
            let gone = Err(ChangeError::Unknown { what: "reservation".into() });
            match &pending.step {
                PendingStep::Reserving(asker) => {
                    pending.step = PendingStep::Releasing(Some(asker.clone()), gone)
                }
                PendingStep::Reserved => pending.step = PendingStep::Releasing(None, Ok(())),
                PendingStep::Committing(_) | PendingStep::Releasing(..) => {}
            }
        }
    }

    /// Works on reservations, handling at most `most` changes, and subtracts what it did from `most`.
    pub(super) fn carry_on(&mut self, most: &mut usize, now_ns: u64) {
        let mut at = 0;
        while at < self.pending.len() {
            let committed = self.pending[at].reservation.committed().1;
            let answer = self.pending[at].carry_on(&mut self.engine, most, now_ns);
            self.copy_committed(at, committed);
            let Some((asker, answer)) = answer else {
                at += 1;
                continue;
            };
            if !matches!(self.pending[at].step, PendingStep::Reserved) {
                // Dropped before the answer: the asker still holds the list, so this does not free it.
                self.pending.remove(at);
            }
            asker.into_iter().for_each(|asker| self.reply(&asker, answer.clone()));
        }
    }

    /// Makes the changes that a reservation has committed beyond the first `before` in the kernel, too.
    fn copy_committed(&mut self, at: usize, before: usize) {
        let (changes, committed) = self.pending[at].reservation.committed();
        if (self.kernel.is_some() || self.followed.is_some()) && committed > before {
            let changes = changes.clone();
            self.copy_changes(&changes[before..committed], changes.len());
        }
    }

    /// Returns true if there is work left for the next breath.
    pub(super) fn has_work(&self) -> bool {
        self.pending.iter().any(|one| !matches!(one.step, PendingStep::Reserved))
    }

    fn reply(&mut self, asker: &PendingAnswers, answer: Result<(), ChangeError>) {
        // The asker may no longer be waiting.
        let _ = asker.try_send(answer);
        self.outbox.signal = true;
    }
}

impl Pending {
    /// Works on the current step. Returns the answer when the step is done.
    fn carry_on(
        &mut self,
        engine: &mut Engine,
        most: &mut usize,
        now_ns: u64,
    ) -> Option<(Option<PendingAnswers>, Result<(), ChangeError>)> {
        let Pending { reservation, step, .. } = self;
        match step {
            PendingStep::Reserved => None,
            PendingStep::Reserving(asker) => {
                let asker = asker.clone();
                match engine.reserve(reservation, *most, now_ns) {
                    Ok(count) => {
                        *most -= count;
                        if !reservation.is_complete() {
                            return None;
                        }
                        *step = PendingStep::Reserved;
                        Some((Some(asker), Ok(())))
                    }
                    Err(why) => {
                        *step = PendingStep::Releasing(Some(asker), Err(why));
                        self.carry_on(engine, most, now_ns)
                    }
                }
            }
            PendingStep::Committing(asker) => match engine.commit(reservation, *most, now_ns) {
                Ok(count) => {
                    *most -= count;
                    reservation.is_done().then(|| (Some(asker.clone()), Ok(())))
                }
                Err(why) => {
                    engine.release(reservation, usize::MAX);
                    Some((Some(asker.clone()), Err(why)))
                }
            },
            PendingStep::Releasing(asker, answer) => {
                *most -= engine.release(reservation, *most);
                reservation.is_empty().then(|| (asker.clone(), answer.clone()))
            }
        }
    }
}
