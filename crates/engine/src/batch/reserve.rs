//! Changes in two steps: all of them are reserved and then committed, which cannot fail. With several
//! workers, every worker reserves before the first commits, so a change is made by all of them or by none.
//!
//! A reservation validates each change against the current entries and against what its earlier changes add;
//! what they remove still counts. It holds what the commit needs: the rows of actions, room in the tables
//! (for entries of flows even against flows that packets write meanwhile), and the pipes themselves: until
//! the reservation ends, no other change of their entries is made and nothing in them ages.
//!
//! Both steps can be done in slices, so that a worker forwards packets between them.

use super::Engine;
use super::compile::CompiledPipe;
use weir_program::change::{Change, ChangeError, Changes, EntryKey};
use weir_program::{Entry, PipeId};

/// Marks the absence of an action row.
const NO_ACTION: u32 = u32::MAX;

/// Changes that are being reserved, reserved, or being carried out.
#[derive(Debug, Default)]
pub struct Reservation {
    changes: Changes,
    /// For each change that is reserved, the row of its entry's action.
    actions: Vec<u32>,
    /// How many changes have been committed.
    done: usize,
    /// Whether only idle entries are removed.
    only_idle: bool,
    /// Whether an entry opens a path that may lead to a FLOW pipe.
    opens: bool,
    /// The reserved pipes, and for each whether one of its entries will be removed.
    pipes: Vec<(PipeId, bool)>,
}

impl Reservation {
    /// Begins a reservation for these changes.
    #[must_use]
    pub fn new(changes: Changes) -> Reservation {
        Reservation { actions: Vec::with_capacity(changes.len()), changes, ..Reservation::default() }
    }

    /// Refuses to remove entries that are not idle when they are reserved.
    #[must_use]
    pub fn only_idle(self, only_idle: bool) -> Reservation {
        Reservation { only_idle, ..self }
    }

    /// Returns true if all changes are reserved.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.actions.len() == self.changes.len()
    }

    /// Returns true if nothing is reserved but not yet committed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.actions.len() == self.done
    }

    /// Returns the changes, and how many of them have been committed.
    #[must_use]
    pub fn committed(&self) -> (&Changes, usize) {
        (&self.changes, self.done)
    }

    /// Returns true if all changes have been committed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done == self.changes.len()
    }
}

impl Engine {
    /// Reserves up to `most` further changes at time `now_ns`. Returns how many were reserved.
    ///
    /// # Errors
    /// One of the changes is impossible ([`ChangeError::At`], with its position); the reservation must then
    /// be released.
    pub fn reserve(
        &mut self,
        reservation: &mut Reservation,
        most: usize,
        now_ns: u64,
    ) -> Result<usize, ChangeError> {
        let only_idle = reservation.only_idle.then_some((now_ns / 1_000_000) as u32);
        let changes = reservation.changes.clone();
        let from = reservation.actions.len();
        let to = from.saturating_add(most).min(changes.len());
        for (index, change) in changes.iter().enumerate().take(to).skip(from) {
            if let Change::Add { pipe, entry } | Change::Update { pipe, entry } = change {
                reservation.opens |= self.opens(*pipe, entry);
            }
            let action = self.reserve_one(change, &mut reservation.pipes, only_idle);
            reservation.actions.push(action.map_err(|why| ChangeError::At { index, why: Box::new(why) })?);
        }
        Ok(to - from)
    }

    fn reserve_one(
        &mut self,
        change: &Change,
        pipes: &mut Vec<(PipeId, bool)>,
        only_idle: Option<u32>,
    ) -> Result<u32, ChangeError> {
        let (Change::Add { pipe, .. } | Change::Update { pipe, .. } | Change::Remove { pipe, .. }) = change
        else {
            change.fits_groups(&self.program.groups)?;
            return Ok(NO_ACTION);
        };
        if let Change::Add { entry, .. } | Change::Update { entry, .. } = change {
            self.admits(*pipe, entry)?;
        }
        let at = match pipes.iter().position(|(own, _)| own == pipe) {
            Some(at) => at,
            None => {
                self.free_pipe(*pipe)?.held = Some(0);
                pipes.push((*pipe, false));
                pipes.len() - 1
            }
        };
        let removes = &mut pipes[at].1;
        let compiled = self.pipe_mut(*pipe)?;
        match change {
            Change::Add { entry, .. } => compiled.reserve_add(entry, *removes),
            Change::Update { entry, .. } => compiled.prepare_update(entry),
            Change::Remove { key, .. } => {
                *removes = true;
                if only_idle.is_some_and(|now_ms| !compiled.is_idle(key, now_ms)) {
                    return Err(ChangeError::InUse { pipe: compiled.shape.name.clone() });
                }
                compiled.table.find(key).map(|_| NO_ACTION).ok_or_else(|| compiled.not_found())
            }
            _ => Ok(NO_ACTION),
        }
    }

    /// Commits up to `most` further changes of a complete reservation, and ends it after the last one.
    /// Returns how many.
    ///
    /// # Errors
    /// There are none, unless the reservation belongs to another engine or something was changed in spite of
    /// the reservation.
    pub fn commit(
        &mut self,
        reservation: &mut Reservation,
        most: usize,
        now_ns: u64,
    ) -> Result<usize, ChangeError> {
        let now_ms = (now_ns / 1_000_000) as u32;
        let changes = reservation.changes.clone();
        let from = reservation.done;
        if from == 0 && reservation.opens {
            // All of its paths are known by now, though none is open.
            self.find_owners();
        }
        let to = from.saturating_add(most).min(reservation.actions.len());
        for (change, &action) in changes[from..to].iter().zip(&reservation.actions[from..to]) {
            reservation.done += 1;
            match change {
                Change::Add { pipe, entry } => self.pipe_mut(*pipe)?.enter_with(entry, action, now_ms)?,
                Change::Update { pipe, entry } => self.pipe_mut(*pipe)?.update_with(entry, action)?,
                Change::Remove { pipe, key } => self.pipe_mut(*pipe)?.remove(key)?,
                other => self.apply(other, now_ns)?,
            }
        }
        if reservation.is_done() {
            self.let_go(reservation);
        }
        Ok(to - from)
    }

    /// Releases up to `most` of the changes that are reserved but not committed, the last one first, and ends
    /// the reservation once none is left. Returns how many were released.
    pub fn release(&mut self, reservation: &mut Reservation, most: usize) -> usize {
        let left = reservation.actions.len() - reservation.done;
        for _ in 0..left.min(most) {
            let Some(action) = reservation.actions.pop().filter(|&action| action != NO_ACTION) else {
                continue;
            };
            let change = &reservation.changes[reservation.actions.len()];
            if let Change::Add { pipe, .. } | Change::Update { pipe, .. } = change
                && let Ok(pipe) = self.pipe_mut(*pipe)
            {
                pipe.actions.release(action);
            }
        }
        if left <= most {
            self.let_go(reservation);
        }
        left.min(most)
    }

    /// Releases everything that a reservation holds.
    fn let_go(&mut self, reservation: &mut Reservation) {
        for (pipe, _) in reservation.pipes.drain(..) {
            if let Ok(pipe) = self.pipe_mut(pipe) {
                pipe.held = None;
                pipe.table.let_go();
            }
        }
    }

    /// Applies all changes or none.
    pub(super) fn apply_batch(&mut self, changes: &Changes, now_ns: u64) -> Result<(), ChangeError> {
        let mut reservation = Reservation::new(changes.clone());
        if let Err(why) = self.reserve(&mut reservation, usize::MAX, now_ns) {
            self.release(&mut reservation, usize::MAX);
            return Err(why);
        }
        self.commit(&mut reservation, usize::MAX, now_ns).map(|_| ())
    }
}

impl CompiledPipe {
    /// Holds room for an entry. Returns the row of its action.
    fn reserve_add(&mut self, entry: &Entry, beside: bool) -> Result<u32, ChangeError> {
        if self.table.find(&EntryKey::of(entry)).is_some() {
            return Err(ChangeError::Exists { pipe: self.shape.name.clone() });
        }
        let held = self.held.unwrap_or_default();
        self.table.hold(entry, self.capacity, held, beside).map_err(|refusal| self.refused(refusal))?;
        self.held = Some(held + 1);
        Ok(self.actions.intern(entry, &self.wide, &self.plans))
    }
}
