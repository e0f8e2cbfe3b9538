//! Hand-over between workers: frames of a flow that belongs to another worker are passed to that worker, in
//! parcels.
//!
//! Rings are created only for programs that keep flows. When a swap brings new rings, both ends use the old
//! ones until they are empty, so that nothing in flight is lost.

use super::outbox::Outbox;
use crate::batch::Share;
use crate::parcel::{Arrived, PARCEL_BYTES, PARCEL_MEMORY, ParcelReceiver, ParcelSender, parcels};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use weir_packet::{BATCH, Batch, Bits, DropReason};
use weir_program::PortId;

/// Memory of all rings together, in bytes: 16 workers stay below it.
pub const HAND_OVER_MEMORY: usize = 64 << 20;

/// Parcels of a ring with few workers: over a thousand short frames, for the time that a worker is not
/// scheduled.
const PARCELS_MAX: usize = 64;

/// Parcels of a ring with very many workers: one being filled, one in flight, one being unpacked.
const PARCELS_MIN: usize = 3;

/// Wakes a sleeping worker.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// Whether a worker sleeps, and how it is woken.
#[derive(Default)]
struct Sleeper {
    asleep: AtomicBool,
    wake: OnceLock<Arc<Wake>>,
}

impl Sleeper {
    /// Wakes the worker, if it sleeps, after something has been sent to it.
    fn knock(&self) {
        // A sleeping worker has looked into its rings after announcing its sleep: either it sees the parcel
        // there, or this side sees that it sleeps.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed)
            && self.asleep.swap(false, Ordering::Relaxed)
            && let Some(wake) = self.wake.get()
        {
            wake();
        }
    }
}

impl fmt::Debug for Sleeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bed").field("asleep", &self.asleep).finish_non_exhaustive()
    }
}

/// The ring to another worker.
#[derive(Debug)]
struct Outgoing {
    ring: ParcelSender,
    bed: Arc<Sleeper>,
}

impl Outgoing {
    /// Sends what the breath has collected.
    fn flush(&mut self) {
        if self.ring.flush() {
            self.bed.knock();
        }
    }
}

/// Rings to and from the other workers.
#[derive(Debug, Default)]
pub struct HandOver {
    /// This worker's number.
    own: usize,
    /// By worker number; the worker's own is empty.
    to: Vec<Option<Outgoing>>,
    from: Vec<ParcelReceiver>,
    /// How many of `from` belong to the current rings; the others are from before a swap.
    present: usize,
    /// Rings from before a swap, until they are empty.
    leaving: Vec<Outgoing>,
    bed: Arc<Sleeper>,
    /// Frames handed to others.
    pub(super) given: u64,
    /// Frames taken from others.
    pub(super) taken: u64,
}

/// Returns the number of parcels in each ring, given the number of workers.
#[must_use]
pub fn parcels_per_ring(workers: usize) -> usize {
    let rings = (workers * workers.saturating_sub(1)).max(1);
    (HAND_OVER_MEMORY / PARCEL_MEMORY / rings).clamp(PARCELS_MIN, PARCELS_MAX)
}

impl HandOver {
    /// Returns the number of this worker.
    pub fn own(&self) -> usize {
        self.own
    }

    /// Creates rings between all pairs of workers; none if there is only one worker.
    #[must_use]
    pub fn between(workers: usize) -> Vec<HandOver> {
        HandOver::of_capacity(workers, parcels_per_ring(workers))
    }

    /// The same with rings of `capacity` parcels.
    #[must_use]
    pub fn of_capacity(workers: usize, capacity: usize) -> Vec<HandOver> {
        let mut all = HandOver::none(workers);
        for from in 0..workers {
            for to in (0..workers).filter(|&to| to != from) {
                let (ring, receiver) = parcels(capacity);
                let bed = all[to].bed.clone();
                all[from].to[to] = Some(Outgoing { ring, bed });
                all[to].from.push(receiver);
                all[to].present += 1;
            }
        }
        all
    }

    /// Returns the state of workers between which nothing is handed over.
    #[must_use]
    pub fn none(workers: usize) -> Vec<HandOver> {
        let alone = |own| HandOver { own, to: (0..workers).map(|_| None).collect(), ..HandOver::default() };
        (0..workers).map(alone).collect()
    }

    /// Replaces the rings that the worker had; frames that are still in them are delivered.
    pub(super) fn succeed(&mut self, old: HandOver) {
        (self.given, self.taken) = (old.given, old.taken);
        self.leaving.extend(old.leaving.into_iter().chain(old.to.into_iter().flatten()));
        // Older frames first: flows keep their order.
        self.from.splice(0..0, old.from);
        if let Some(wake) = old.bed.wake.get() {
            self.wake_by(wake.clone());
        }
    }

    /// Sets how this worker is woken.
    pub(super) fn wake_by(&self, wake: Arc<Wake>) {
        // It is set once: these rings have been given to no other worker.
        let _ = self.bed.wake.set(wake);
    }

    /// Announces whether the worker sleeps. After it has announced that it sleeps, it must look into its
    /// rings once more.
    pub(super) fn set_asleep(&self, asleep: bool) {
        self.bed.asleep.store(asleep, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Returns the number of rings from other workers.
    pub(super) fn sources(&self) -> usize {
        self.from.len()
    }

    /// Returns the number of workers.
    pub(super) fn workers(&self) -> usize {
        self.to.len().max(1)
    }

    /// Returns which worker this is, if workers hand frames over to each other.
    pub(super) fn share(&self) -> Option<Share> {
        (self.present > 0).then_some(Share { own: self.own, workers: self.to.len() })
    }

    /// Hands the frames of `list` over to the workers in `owners`, by slot. `input` is the port's number for
    /// the other workers; `ports` are the ports of fragments.
    pub(super) fn give(
        &mut self,
        batch: &mut Batch,
        list: u64,
        owners: &[usize; BATCH],
        outbox: &mut Outbox,
        input: u32,
        ports: impl Fn(usize) -> Option<[u8; 4]>,
    ) {
        for slot in Bits(list) {
            let frame = batch.take(slot);
            let (bytes, hash, front) = (frame.bytes(), frame.hash(), frame.front().copied());
            let packed = Arrived { bytes, hash, input, ports: ports(slot), front };
            let Some(Some(to)) = self.to.get_mut(owners[slot]) else {
                outbox.ledger.drop_one(DropReason::HandOverFull);
                outbox.pools.give(frame);
                continue;
            };
            if to.ring.push(packed) {
                self.given += 1;
            } else {
                let oversize = frame.len() > PARCEL_BYTES;
                outbox.ledger.drop_one(if oversize {
                    DropReason::Oversize
                } else {
                    DropReason::HandOverFull
                });
            }
            outbox.pools.give(frame);
        }
    }

    /// Sends what this breath has collected for others, and drops old rings that are empty.
    pub(super) fn flush(&mut self) {
        self.to.iter_mut().flatten().for_each(Outgoing::flush);
        if !self.leaving.is_empty() {
            self.leaving.iter_mut().for_each(Outgoing::flush);
            self.leaving.retain(|old| old.ring.held() > 0);
        }
    }

    /// Sends everything, even if much is already in flight: no more frames will follow.
    pub(super) fn finish(&mut self) {
        for to in self.to.iter_mut().flatten().chain(&mut self.leaving) {
            if to.ring.send() {
                to.bed.knock();
            }
        }
    }

    /// Returns true while frames wait for more frames to fill their parcel.
    pub(super) fn is_waiting(&self) -> bool {
        self.to.iter().flatten().chain(&self.leaving).any(|to| to.ring.is_open())
    }

    /// Returns a ring from another worker.
    pub(super) fn source(&mut self, at: usize) -> &mut ParcelReceiver {
        &mut self.from[at]
    }

    /// Reports to the senders which frames have been taken since the last time, and forgets old rings that
    /// are empty.
    pub(super) fn taken(&mut self, frames: usize) {
        self.taken += frames as u64;
        self.from.iter_mut().for_each(ParcelReceiver::done);
        if self.from.len() > self.present {
            self.from.retain_mut(|ring| !ring.is_finished());
        }
    }

    /// Returns the number of frames handed to others but not yet taken.
    pub(super) fn held(&self) -> u64 {
        self.to.iter().flatten().chain(&self.leaving).map(|to| to.ring.held()).sum()
    }

    /// Discards the frames that other workers have handed over. Returns their number.
    pub(super) fn drain(&mut self) -> u64 {
        let mut frames = 0;
        for ring in &mut self.from {
            while ring.peek().is_some() {
                ring.take();
                frames += 1;
            }
        }
        self.taken(frames);
        frames as u64
    }
}

/// Numbers of ports that stay the same across swaps and are equal on all workers, so that a frame handed over
/// by one worker before a swap and taken by another after it still belongs to the same port.
#[derive(Clone, Debug)]
pub(super) struct PortNumbers {
    /// By the port's position in the program.
    numbers: Vec<u32>,
    next: u32,
}

impl PortNumbers {
    pub fn new(ports: usize) -> PortNumbers {
        PortNumbers { numbers: (0..ports as u32).collect(), next: ports as u32 }
    }

    /// Follows a swap: `kept[n]` is what port `n` was before, if it existed.
    pub fn follow(&mut self, kept: impl Iterator<Item = Option<usize>>) {
        let old = std::mem::take(&mut self.numbers);
        for at in kept {
            let number = at.and_then(|at| old.get(at).copied()).unwrap_or(self.next);
            self.next = self.next.max(number + 1);
            self.numbers.push(number);
        }
    }

    /// Returns true if the number belongs to a port of a future program.
    pub fn is_to_come(&self, number: u32) -> bool {
        number >= self.next
    }

    /// Returns the number of a port.
    pub fn of(&self, port: PortId) -> u32 {
        self.numbers.get(port.index()).copied().unwrap_or(u32::MAX)
    }

    /// Returns the port with a number, if it exists.
    pub fn port(&self, number: u32) -> Option<PortId> {
        self.numbers.iter().position(|&one| one == number).map(|at| PortId(at as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_workers_have_rings_of_64_mib_at_most_and_two_have_more_each() {
        let memory = |workers: usize| workers * (workers - 1) * parcels_per_ring(workers) * PARCEL_MEMORY;
        assert!(memory(16) <= HAND_OVER_MEMORY, "{}", memory(16));
        assert!((2..=16).all(|workers| memory(workers) <= HAND_OVER_MEMORY));
        assert_eq!((parcels_per_ring(1), parcels_per_ring(2)), (PARCELS_MAX, PARCELS_MAX));
        assert!(parcels_per_ring(16) >= 8 && parcels_per_ring(1000) == PARCELS_MIN);
    }

    #[test]
    fn a_port_keeps_its_number_when_others_come_and_go() {
        let mut numbers = PortNumbers::new(3);
        numbers.follow([Some(2), None, Some(0)].into_iter());
        let now = |numbers: &PortNumbers| [0, 1, 2].map(|at| numbers.of(PortId(at)));
        assert_eq!(now(&numbers), [2, 3, 0]);
        numbers.follow([None, Some(0), Some(1)].into_iter());
        assert_eq!(now(&numbers), [4, 2, 3]);
        assert_eq!((numbers.port(2), numbers.port(0)), (Some(PortId(1)), None));
    }
}
