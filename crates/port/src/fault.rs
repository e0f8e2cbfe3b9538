//! A wrapper that behaves like a bad cable: it loses, duplicates, truncates, corrupts, delays and reorders
//! the frames of another port, at separate rates for each direction.
//!
//! Promises: equal seeds, rates and frames give equal faults, wherever batches are cut. Every frame consumes
//! the same number of random values, so that changing one rate does not change which frames the other faults
//! hit. Every frame is accounted for:
//! - When receiving, faults happen on the cable, before `received` is counted: a lost frame is `lost_before`,
//!   a duplicated frame is received twice, a late frame has not arrived yet (`receive_late`).
//! - When transmitting, faults happen after weir has sent the frame: a lost frame is `transmitted` (and
//!   `transmit_lost`), the duplicate is not `transmitted` (but `transmit_duplicated`), a late frame is
//!   `held`. A late frame that the inner port refuses stays late.
//!
//! The worker passes the time to `set_time`. A delay counted in frames ends after that number of other frames
//! have passed, or after [`PATIENCE_NS`], so that the last frame arrives too. Frames for the host's stack are
//! not touched. Memory is bounded by [`LATE_MAX`]. For tests and labs only: the random numbers alone cost
//! about 20 ns per frame.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use weir_packet::random::Random;
use weir_packet::{
    BATCH, Batch, Bits, DropReason, Frame, Leave, PoolId, Pools, Port, PortStatistics, Remark,
};

/// The largest number of late frames per direction (a millisecond at 4 Mpps). Beyond it, frames pass in time
/// and are counted.
pub const LATE_MAX: usize = 4096;

/// How long a frame waits to be overtaken: long compared with the gaps in traffic, but too short for a person
/// to notice.
pub const PATIENCE_NS: u64 = 10_000_000;

/// Configuration of a [`FaultPort`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Faults of received frames.
    pub receive: Rates,
    /// Faults of transmitted frames.
    pub transmit: Rates,
}

/// How often each fault happens, in parts per million of frames; 1,000,000 or more means always. Faults are
/// independent of each other, except that a lost frame has no others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// The frame is lost.
    pub loss_ppm: u32,
    /// The frame arrives twice.
    pub duplication_ppm: u32,
    /// The frame is truncated to a random shorter length, which may be 0.
    pub truncation_ppm: u32,
    /// One random bit of the frame is flipped.
    pub corruption_ppm: u32,
    /// The frame arrives later, by `delay`.
    pub delay_ppm: u32,
    /// Length of the delay.
    pub delay: Delay,
    /// The next frame overtakes the frame.
    pub reordering_ppm: u32,
}

/// Length of a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// A number of nanoseconds.
    Ns(u64),
    /// The number of frames that overtake the delayed one; 0 counts as 1.
    Frames(u32),
}

impl Default for Delay {
    fn default() -> Delay {
        Delay::Ns(0)
    }
}

/// Returns true with this probability, in millionths.
fn happens(dice: &mut Random, ppm: u32) -> bool {
    dice.below(1_000_000) < u64::from(ppm)
}

/// What happens to a frame.
enum FrameFate {
    Lost,
    Late(Lateness, Due),
    Passes,
}

/// Why a frame is late. Each reason has its own list, in which frames are due in the order of arrival.
#[derive(Clone, Copy, Debug)]
enum Lateness {
    Delayed,
    Overtaken,
}

/// When a late frame is due: at this time, or once the total number of frames that have passed reaches this
/// one.
#[derive(Clone, Copy, Debug)]
struct Due {
    ns: u64,
    passed: u64,
}

struct Late {
    frame: Frame,
    due: Due,
}

/// How often each fault happened.
#[derive(Clone, Copy, Debug, Default)]
struct FaultCounts {
    lost: u64,
    duplicated: u64,
    /// A frame was not duplicated because there was no free frame or no slot for its duplicate.
    unduplicated: u64,
    truncated: u64,
    corrupted: u64,
    delayed: u64,
    reordered: u64,
    /// A frame was not delayed because too many frames were late already.
    undelayed: u64,
}

/// One direction of the cable.
struct CableDirection {
    dice: Random,
    rates: Rates,
    overtaken: VecDeque<Late>,
    delayed: VecDeque<Late>,
    /// Frames that passed in time.
    passed: u64,
    counts: FaultCounts,
}

impl CableDirection {
    fn new(seed: u64, rates: Rates) -> CableDirection {
        // With room for a refused batch, so that nothing is allocated later.
        let list = |ppm: u32| VecDeque::with_capacity(if ppm == 0 { 0 } else { LATE_MAX + BATCH });
        CableDirection {
            dice: Random::new(seed),
            rates,
            overtaken: list(rates.delay_ppm | rates.reordering_ppm),
            delayed: list(rates.delay_ppm),
            passed: 0,
            counts: FaultCounts::default(),
        }
    }

    /// Continues with new random numbers and rates.
    fn change(&mut self, seed: u64, rates: Rates) {
        let CableDirection { overtaken, delayed, passed, counts, .. } =
            std::mem::replace(self, CableDirection::new(seed, rates));
        (self.passed, self.counts) = (passed, counts);
        self.overtaken.extend(overtaken);
        self.delayed.extend(delayed);
    }

    /// Number of late frames.
    fn late(&self) -> usize {
        self.overtaken.len() + self.delayed.len()
    }

    /// Decides the fate of a frame, and truncates and corrupts it. The second value is true if it is
    /// duplicated.
    fn decide(&mut self, frame: &mut Frame, now_ns: u64) -> (FrameFate, bool) {
        let rates = self.rates;
        let lost = happens(&mut self.dice, rates.loss_ppm);
        let twice = happens(&mut self.dice, rates.duplication_ppm);
        let cut = happens(&mut self.dice, rates.truncation_ppm);
        let corrupt = happens(&mut self.dice, rates.corruption_ppm);
        let delay = happens(&mut self.dice, rates.delay_ppm);
        let reorder = happens(&mut self.dice, rates.reordering_ppm);
        let (length, bit) = (self.dice.below(frame.len() as u64), self.dice.bits());
        if lost {
            self.counts.lost += 1;
            return (FrameFate::Lost, false);
        }
        if cut && !frame.is_empty() {
            frame.resize(length as u16).expect("shorter than it was");
            self.counts.truncated += 1;
        }
        if corrupt && !frame.is_empty() {
            let bit = (bit % (frame.len() as u64 * 8)) as usize;
            frame.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
            self.counts.corrupted += 1;
        }
        (self.lateness(delay, reorder, now_ns), twice)
    }

    fn lateness(&mut self, delay: bool, reorder: bool, now_ns: u64) -> FrameFate {
        if !delay && !reorder {
            return FrameFate::Passes;
        }
        if self.late() >= LATE_MAX {
            self.counts.undelayed += 1;
            return FrameFate::Passes;
        }
        let behind =
            |frames: u64| Due { ns: now_ns.saturating_add(PATIENCE_NS), passed: self.passed + frames };
        if !delay {
            self.counts.reordered += 1;
            return FrameFate::Late(Lateness::Overtaken, behind(1));
        }
        self.counts.delayed += 1;
        let due = match self.rates.delay {
            Delay::Ns(delay_ns) => Due { ns: now_ns.saturating_add(delay_ns), passed: u64::MAX },
            Delay::Frames(frames) => behind(u64::from(frames.max(1))),
        };
        FrameFate::Late(Lateness::Delayed, due)
    }

    /// Copies `frame` within its pool.
    fn duplicate(&mut self, pools: &mut Pools, frame: &Frame) -> Option<Frame> {
        let pool = pools.get_mut(frame.pool()).expect("a frame is in a pool of its worker");
        let mut second = pool.take();
        if let Some(copy) = &mut second
            && copy.fill(frame.bytes()).is_err()
        {
            pool.give(copy.take());
            second = None;
        }
        if let Some(copy) = &mut second {
            copy.set_hash(frame.hash());
        }
        match &second {
            Some(_) => self.counts.duplicated += 1,
            None => self.counts.unduplicated += 1,
        }
        second
    }

    fn keep(&mut self, frame: Frame, lateness: Lateness, due: Due) {
        let list = match lateness {
            Lateness::Delayed => &mut self.delayed,
            Lateness::Overtaken => &mut self.overtaken,
        };
        list.push_back(Late { frame, due });
    }

    /// Puts back a late frame that could not pass; it will be the first to pass next time.
    fn take_back(&mut self, frame: Frame) {
        self.overtaken.push_front(Late { frame, due: Due { ns: 0, passed: 0 } });
    }

    /// Takes the first of the late frames that are due.
    fn due(&mut self, now_ns: u64) -> Option<Frame> {
        let passed = self.passed;
        let is_due = |late: &mut Late| late.due.ns <= now_ns || late.due.passed <= passed;
        [&mut self.overtaken, &mut self.delayed]
            .into_iter()
            .find_map(|list| list.pop_front_if(is_due))
            .map(|late| late.frame)
    }

    /// Returns the latest time at which the next late frame is due.
    fn next_ns(&self) -> Option<u64> {
        [self.overtaken.front(), self.delayed.front()].into_iter().flatten().map(|late| late.due.ns).min()
    }

    fn return_frames(&mut self, pools: &mut Pools) -> u64 {
        let count = self.late() as u64;
        self.overtaken.drain(..).chain(self.delayed.drain(..)).for_each(|late| pools.give(late.frame));
        count
    }
}

/// A port behind a bad cable.
pub struct FaultPort {
    inner: Box<dyn Port>,
    incoming: CableDirection,
    outgoing: CableDirection,
    now_ns: u64,
    /// The frames that the inner port received last.
    arrived: Batch,
    /// Frames that have passed the faults and wait for room in the worker's batch: at most two batches and
    /// the late frames.
    ready: VecDeque<Frame>,
    leaving: Leaving,
    received: u64,
    received_bytes: u64,
    lost_at_close: u64,
}

/// Where a frame in [`Leaving`] came from, and returns to if the inner port refuses it.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Slot(usize),
    Duplicate,
    Late,
}

/// Frames on their way to the inner port, in the order in which they leave.
struct Leaving {
    batch: Batch,
    origins: [Origin; BATCH],
}

impl Leaving {
    fn push(&mut self, frame: Frame, origin: Origin) {
        self.origins[self.batch.len()] = origin;
        self.batch.push(frame).expect("a full batch was sent");
    }
}

impl FaultPort {
    /// Wraps `inner`. Frames in both directions suffer `faults`; the seed determines which frames do.
    #[must_use]
    pub fn new(inner: Box<dyn Port>, faults: Faults) -> FaultPort {
        // Frames that the inner port received before count as received.
        let before = inner.statistics();
        // Each direction has its own random numbers, so that traffic one way does not change the faults of
        // the other.
        let mut seeds = Random::new(faults.seed);
        FaultPort {
            inner,
            incoming: CableDirection::new(seeds.bits(), faults.receive),
            outgoing: CableDirection::new(seeds.bits(), faults.transmit),
            now_ns: 0,
            arrived: Batch::new(),
            ready: VecDeque::with_capacity(4 * BATCH),
            leaving: Leaving { batch: Batch::new(), origins: [Origin::Duplicate; BATCH] },
            received: before.received - before.oversize,
            received_bytes: before.received_bytes,
            lost_at_close: 0,
        }
    }

    /// Changes the faults. Frames that are already late stay late.
    pub fn change(&mut self, faults: Faults) {
        let mut seeds = Random::new(faults.seed);
        self.incoming.change(seeds.bits(), faults.receive);
        self.outgoing.change(seeds.bits(), faults.transmit);
    }

    /// Receives from the inner port and moves frames through the faults into `ready`.
    fn arrive(&mut self, pools: &mut Pools) {
        self.inner.receive(pools, &mut self.arrived);
        for slot in Bits(self.arrived.mask()) {
            let mut frame = self.arrived.take(slot);
            let (fate, twice) = self.incoming.decide(&mut frame, self.now_ns);
            let second = if twice { self.incoming.duplicate(pools, &frame) } else { None };
            match fate {
                FrameFate::Lost => pools.give(frame),
                FrameFate::Late(lateness, due) => self.incoming.keep(frame, lateness, due),
                FrameFate::Passes => self.make_ready(frame),
            }
            if let Some(second) = second {
                self.make_ready(second);
            }
        }
        self.arrived.clear();
    }

    fn make_ready(&mut self, frame: Frame) {
        self.incoming.passed += 1;
        self.ready.push_back(frame);
        self.late_make_ready();
    }

    fn late_make_ready(&mut self) {
        while let Some(frame) = self.incoming.due(self.now_ns) {
            self.ready.push_back(frame);
        }
    }

    /// Appends a frame to the leaving frames, and sends them when they fill a batch, followed by the late
    /// frames now due.
    fn leave(&mut self, pools: &mut Pools, batch: &mut Batch, frame: Frame, origin: Origin) -> u64 {
        self.leaving.push(frame, origin);
        self.outgoing.passed += 1;
        let mut accepted = self.send_full(pools, batch);
        // At most as many as are late now: a refused one becomes late again, and must not be retried
        // endlessly.
        for _ in 0..self.outgoing.late() {
            let Some(frame) = self.outgoing.due(self.now_ns) else { break };
            self.leaving.push(frame, Origin::Late);
            accepted |= self.send_full(pools, batch);
        }
        accepted
    }

    fn send_full(&mut self, pools: &mut Pools, batch: &mut Batch) -> u64 {
        if self.leaving.batch.space() == 0 { self.send(pools, batch) } else { 0 }
    }

    /// Passes the leaving frames to the inner port, and returns refused frames to their origin. Returns the
    /// mask of the worker's frames that it accepted.
    fn send(&mut self, pools: &mut Pools, batch: &mut Batch) -> u64 {
        let all = self.leaving.batch.mask();
        if all == 0 {
            return 0;
        }
        let taken = self.inner.transmit(pools, &mut self.leaving.batch, all);
        let mut accepted = 0;
        for place in Bits(taken) {
            if let Origin::Slot(slot) = self.leaving.origins[place] {
                accepted |= 1 << slot;
            }
        }
        // Backwards, so that late frames return to the front of the list in their order.
        for place in (0..self.leaving.batch.len()).rev().filter(|place| taken >> place & 1 == 0) {
            let frame = self.leaving.batch.take(place);
            match self.leaving.origins[place] {
                Origin::Slot(slot) => *batch.frame_mut(slot) = frame,
                Origin::Late => self.outgoing.take_back(frame),
                Origin::Duplicate => {
                    pools.give(frame);
                    self.outgoing.counts.duplicated -= 1;
                    self.outgoing.counts.unduplicated += 1;
                }
            }
        }
        self.leaving.batch.clear();
        accepted
    }

    /// Gives up all frames on the cable. Returns how many weir had sent.
    fn return_frames(&mut self, pools: &mut Pools) -> u64 {
        self.lost_at_close += self.ready.len() as u64 + self.incoming.return_frames(pools);
        self.ready.drain(..).for_each(|frame| pools.give(frame));
        self.outgoing.return_frames(pools)
    }

    /// Number of frames on the cable towards weir.
    fn receive_late(&self) -> u64 {
        (self.ready.len() + self.incoming.late()) as u64
    }
}

impl Port for FaultPort {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn pool(&self) -> Option<PoolId> {
        self.inner.pool()
    }

    fn receive(&mut self, pools: &mut Pools, batch: &mut Batch) {
        self.late_make_ready();
        if self.ready.len() < batch.space() {
            self.arrive(pools);
        }
        while batch.space() > 0
            && let Some(frame) = self.ready.pop_front()
        {
            self.received += 1;
            self.received_bytes += frame.len() as u64;
            batch.push(frame).expect("the loop checked for space");
        }
    }

    fn transmit(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        let mut accepted = 0;
        for slot in Bits(list) {
            let mut frame = batch.take(slot);
            let (fate, twice) = self.outgoing.decide(&mut frame, self.now_ns);
            let second = if twice { self.outgoing.duplicate(pools, &frame) } else { None };
            match fate {
                FrameFate::Lost => pools.give(frame),
                FrameFate::Late(lateness, due) => self.outgoing.keep(frame, lateness, due),
                FrameFate::Passes => accepted |= self.leave(pools, batch, frame, Origin::Slot(slot)),
            }
            // Whether a passing frame is accepted is known only when it is sent.
            if !matches!(fate, FrameFate::Passes) {
                accepted |= 1 << slot;
            }
            if let Some(second) = second {
                accepted |= self.leave(pools, batch, second, Origin::Duplicate);
            }
        }
        accepted | self.send(pools, batch)
    }

    fn flush(&mut self, pools: &mut Pools) {
        let mut none = Batch::new();
        for _ in 0..self.outgoing.late() {
            let Some(frame) = self.outgoing.due(self.now_ns) else { break };
            self.leaving.push(frame, Origin::Late);
            self.send_full(pools, &mut none);
        }
        self.send(pools, &mut none);
        self.inner.flush(pools);
    }

    fn statistics(&self) -> PortStatistics {
        let mut statistics = self.inner.statistics();
        // Oversize frames were received and dropped by the inner port and never reached the faults.
        statistics.received = self.received + statistics.oversize;
        statistics.received_bytes = self.received_bytes;
        statistics.lost_before += self.incoming.counts.lost + self.lost_at_close;
        // Weir sent the lost frames but not the duplicates, which the inner port has sent or still holds.
        let sent = statistics.transmitted + self.outgoing.counts.lost;
        let seconds = self.outgoing.counts.duplicated.min(sent);
        statistics.transmitted = sent - seconds;
        statistics.held -= (self.outgoing.counts.duplicated - seconds).min(statistics.held);
        statistics.held += self.outgoing.late() as u64;
        statistics
    }

    fn extra_statistics(&self) -> Vec<(&'static str, u64)> {
        let (receive, transmit) = (&self.incoming.counts, &self.outgoing.counts);
        let mut all = self.inner.extra_statistics();
        all.extend([
            ("receive_lost", receive.lost),
            ("receive_duplicated", receive.duplicated),
            ("receive_unduplicated", receive.unduplicated),
            ("receive_truncated", receive.truncated),
            ("receive_corrupted", receive.corrupted),
            ("receive_delayed", receive.delayed),
            ("receive_reordered", receive.reordered),
            ("receive_undelayed", receive.undelayed),
            ("receive_late", self.receive_late()),
            ("transmit_lost", transmit.lost),
            ("transmit_duplicated", transmit.duplicated),
            ("transmit_unduplicated", transmit.unduplicated),
            ("transmit_truncated", transmit.truncated),
            ("transmit_corrupted", transmit.corrupted),
            ("transmit_delayed", transmit.delayed),
            ("transmit_reordered", transmit.reordered),
            ("transmit_undelayed", transmit.undelayed),
        ]);
        all
    }

    fn refuses(&self, length: usize) -> Option<DropReason> {
        self.inner.refuses(length)
    }

    fn remarks(&self) -> Vec<Remark> {
        self.inner.remarks()
    }

    fn mode(&self) -> String {
        let some = [self.incoming.rates, self.outgoing.rates] != [Rates::default(); 2];
        if some { format!("{} with faults", self.inner.mode()) } else { self.inner.mode() }
    }

    /// Always `None`, because frames may wait here without the inner port's knowledge.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn exhausted(&self) -> bool {
        self.inner.exhausted() && self.receive_late() == 0
    }

    fn has_kernel_path(&self) -> bool {
        self.inner.has_kernel_path()
    }

    fn to_kernel(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        self.inner.to_kernel(pools, batch, list)
    }

    /// Includes the time at which a late frame is due to leave, so that replay runs the worker then.
    fn next_arrival_ns(&self) -> Option<u64> {
        let ready = (!self.ready.is_empty()).then_some(self.now_ns);
        let late = [self.incoming.next_ns(), self.outgoing.next_ns()];
        [ready, self.inner.next_arrival_ns()].into_iter().chain(late).flatten().min()
    }

    fn set_time(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.inner.set_time(now_ns);
    }

    fn close(&mut self, pools: &mut Pools) -> u64 {
        self.return_frames(pools) + self.inner.close(pools)
    }

    fn leave(&mut self, pools: &mut Pools) -> Leave {
        match self.inner.leave(pools) {
            Leave::Closed(dropped) => Leave::Closed(dropped + self.return_frames(pools)),
            other => other,
        }
    }
}
