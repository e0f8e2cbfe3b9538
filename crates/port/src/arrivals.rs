//! Traffic that arrives at its own rate, as from a wire: frames that a worker does not take in time are lost.
//! A bench can thus report what weir lost, without a second machine and without the kernel in between.
//!
//! The arrival clock stands still while the worker's thread is not running on its core: core time taken by
//! other programs and the host does not count as weir's loss. The clock is therefore meant for workers that
//! never sleep (`busy: true`).
#![forbid(unsafe_code)]

use crate::Generator;
use crate::zero_loss::{self, Trial};
use rustix::time::{ClockId, clock_gettime};
use weir_packet::{Batch, PoolId, Pools, Port, PortStatistics};

/// The maximum number of frames that wait for the worker, as in the receive ring of a NIC.
pub const RING: u64 = 4096;

/// If at least this time, in nanoseconds, lies between two breaths, the thread's CPU clock is read to find
/// out for how much of that time the thread was running.
const GAP_NS: u64 = 16_384;

/// The interval at which the CPU clock is read if there is no such gap, in nanoseconds.
const READ_EVERY_NS: u64 = 1_000_000;

/// How long frames first arrive as fast as they are taken, in nanoseconds: to warm up, and then to measure.
const WARM_UP_NS: u64 = 500_000_000;
const MEASURE_NS: u64 = 1_000_000_000;

/// The duration of a trial of a rate.
const TRIAL_NS: u64 = 250_000_000;

/// If the worker did not have its core for at least this long, in nanoseconds, losses are not attributed to
/// the worker: a NIC's ring would have filled up, and the caches have been evicted.
const DISTURBED_NS: u64 = 50_000;

/// How long losses are still not attributed to the worker once it has its core back, in nanoseconds of its
/// own time.
const DISTURBED_FOR_NS: u64 = 2_000_000;

/// How fast frames arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Frames arrive as fast as the worker takes them.
    Full,
    /// A number of frames per second.
    PerSecond(u64),
    /// A share of the highest rate without loss, which is determined first ([`crate::zero_loss`]).
    Share(f64),
}

/// How far the search for the highest rate without loss has come.
#[derive(Clone, Copy, Debug)]
enum Search {
    WarmUp {
        until_ns: u64,
    },
    Measure {
        since_ns: u64,
        received: u64,
    },
    /// The start of the trial, and the losses before it: those attributed to the worker, and those while it
    /// was disturbed.
    Trial {
        since_ns: u64,
        lost: [u64; 2],
        search: zero_loss::Search,
    },
    Found,
}

/// The port: it receives frames of a [`Generator`] at a pace, and discards transmitted frames.
pub struct Arrivals {
    inner: Generator,
    pace: Pace,
    search: Search,
    /// Frames per second; 0 means as fast as they are taken.
    rate: f64,
    /// The highest rate without loss, once found.
    lossless: f64,
    clock: OwnClock,
    /// The fraction of a frame that has arrived.
    fraction: f64,
    /// Frames that have arrived but have not been taken yet.
    waiting: u64,
    /// Frames still to be taken or lost, including those that wait.
    left: u64,
    lost: u64,
    /// The lost frames for which the worker is not to blame, because it did not have its core.
    lost_disturbed: u64,
    /// The time, on the worker's own clock, until which losses are not attributed to the worker.
    disturbed_until_ns: u64,
}

impl Arrivals {
    /// Creates a port on which `frames` frames (`u64::MAX`: unlimited) arrive at this pace.
    #[must_use]
    pub fn new(inner: Generator, pace: Pace, frames: u64) -> Arrivals {
        let (rate, search) = match pace {
            Pace::Full => (0.0, Search::Found),
            Pace::PerSecond(rate) => (rate as f64, Search::Found),
            Pace::Share(_) => (0.0, Search::WarmUp { until_ns: WARM_UP_NS }),
        };
        let clock = OwnClock::new(processor_ns as fn() -> u64);
        Arrivals {
            inner,
            pace,
            search,
            rate,
            lossless: 0.0,
            clock,
            fraction: 0.0,
            waiting: 0,
            left: frames,
            lost: 0,
            lost_disturbed: 0,
            disturbed_until_ns: 0,
        }
    }

    /// Lets the frames of `elapsed_ns` nanoseconds arrive.
    fn arrive(&mut self, elapsed_ns: u64) {
        if self.rate == 0.0 {
            self.waiting = RING.min(self.left);
            return;
        }
        self.fraction += elapsed_ns as f64 * self.rate / 1e9;
        let came = (self.fraction as u64).min(self.left - self.waiting);
        self.fraction -= came as f64;
        let room = RING - self.waiting;
        let lost = came.saturating_sub(room);
        self.lost += lost;
        if self.clock.now_ns < self.disturbed_until_ns {
            self.lost_disturbed += lost;
        }
        self.left -= lost;
        self.waiting += came.min(room);
    }

    fn search(&mut self, now_ns: u64) {
        match self.search {
            Search::WarmUp { until_ns } if now_ns >= until_ns => {
                let received = self.inner.statistics().received;
                self.search = Search::Measure { since_ns: now_ns, received };
            }
            Search::Measure { since_ns, received } if now_ns >= since_ns + MEASURE_NS => {
                let frames = self.inner.statistics().received - received;
                let ceiling = frames as f64 * 1e9 / (now_ns - since_ns) as f64;
                self.attempt(now_ns, zero_loss::Search::below(ceiling));
            }
            Search::Trial { since_ns, lost, search }
                if lost[0] < self.lost || now_ns >= since_ns + TRIAL_NS =>
            {
                self.judge(now_ns, lost, search);
            }
            _ => {}
        }
    }

    /// Ends a trial and begins the next one. `lost` is the number of frames that had been lost before the
    /// trial.
    fn judge(&mut self, now_ns: u64, lost: [u64; 2], mut search: zero_loss::Search) {
        let trial = match [self.lost - lost[0], self.lost_disturbed - lost[1]] {
            [0, _] => Trial::Carried,
            [all, disturbed] if all == disturbed => Trial::Disturbed,
            _ => Trial::Lost,
        };
        match (search.judge(trial), self.pace) {
            (None, _) => self.attempt(now_ns, search),
            (Some(lossless), Pace::Share(share)) if lossless > 0.0 => {
                (self.lossless, self.rate) = (lossless, lossless * share);
                self.search = Search::Found;
            }
            // The search begins again.
            _ => (self.rate, self.search) = (0.0, Search::WarmUp { until_ns: now_ns + WARM_UP_NS }),
        }
    }

    /// Tries the search's rate, starting with an empty ring.
    fn attempt(&mut self, now_ns: u64, search: zero_loss::Search) {
        (self.rate, self.waiting, self.fraction) = (search.rate(), 0, 0.0);
        self.search = Search::Trial { since_ns: now_ns, lost: [self.lost, self.lost_disturbed], search };
    }
}

impl Port for Arrivals {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn pool(&self) -> Option<PoolId> {
        self.inner.pool()
    }

    fn set_time(&mut self, now_ns: u64) {
        let taken_before_ns = self.clock.taken_ns;
        let elapsed_ns = self.clock.advance(now_ns);
        if self.clock.taken_ns - taken_before_ns >= DISTURBED_NS {
            self.disturbed_until_ns = self.clock.now_ns + DISTURBED_FOR_NS;
        }
        self.arrive(elapsed_ns);
        self.search(self.clock.now_ns);
    }

    fn receive(&mut self, pools: &mut Pools, batch: &mut Batch) {
        self.inner.set_left(self.waiting);
        let before = batch.len();
        self.inner.receive(pools, batch);
        let taken = (batch.len() - before) as u64;
        self.waiting -= taken;
        self.left -= taken;
    }

    fn transmit(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        self.inner.transmit(pools, batch, list)
    }

    fn flush(&mut self, pools: &mut Pools) {
        self.inner.flush(pools);
    }

    fn statistics(&self) -> PortStatistics {
        PortStatistics { lost_before: self.lost, ..self.inner.statistics() }
    }

    fn extra_statistics(&self) -> Vec<(&'static str, u64)> {
        let found = matches!(self.search, Search::Found);
        vec![
            ("rate", if found { self.rate as u64 } else { 0 }),
            ("rate_without_loss", if found { self.lossless as u64 } else { 0 }),
            ("core_lost_us", self.clock.taken_ns / 1000),
            ("lost_disturbed", self.lost_disturbed),
        ]
    }

    fn mode(&self) -> String {
        "traffic".to_owned()
    }

    fn exhausted(&self) -> bool {
        self.left == 0
    }
}

/// A clock that stands still while the thread does not have its core.
struct OwnClock<Processor = fn() -> u64> {
    processor: Processor,
    now_ns: u64,
    wall_ns: Option<u64>,
    /// The times on the wall clock and the CPU clock when they were last compared.
    read_ns: (u64, u64),
    /// Time in which the thread did not have its core.
    taken_ns: u64,
}

impl<Processor: Fn() -> u64> OwnClock<Processor> {
    fn new(processor: Processor) -> OwnClock<Processor> {
        OwnClock { processor, now_ns: 0, wall_ns: None, read_ns: (0, 0), taken_ns: 0 }
    }

    /// Takes the time on the wall clock. Returns how far this clock has advanced.
    fn advance(&mut self, wall_ns: u64) -> u64 {
        let Some(before_ns) = self.wall_ns.replace(wall_ns) else {
            self.read_ns = (wall_ns, (self.processor)());
            return 0;
        };
        let gap_ns = wall_ns.saturating_sub(before_ns);
        let since_ns = wall_ns.saturating_sub(self.read_ns.0);
        let mut taken_ns = 0;
        if gap_ns >= GAP_NS || since_ns >= READ_EVERY_NS {
            let processor_ns = (self.processor)();
            let had_ns = processor_ns.saturating_sub(self.read_ns.1);
            taken_ns = since_ns.saturating_sub(had_ns).min(gap_ns);
            self.read_ns = (wall_ns, processor_ns);
        }
        self.taken_ns += taken_ns;
        self.now_ns += gap_ns - taken_ns;
        gap_ns - taken_ns
    }
}

/// CPU time of this thread.
fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stream;
    use std::cell::Cell;
    use std::net::Ipv4Addr;

    fn port(pace: Pace, frames: u64) -> (Pools, Arrivals) {
        let mut pools = Pools::region(128);
        let pool = pools.first().id();
        let flow = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 1000, 53);
        let inner = Generator::new("line", &mut pools, pool, Stream::udp(60, [flow]), 0);
        (pools, Arrivals::new(inner, pace, frames))
    }

    /// Takes the waiting frames, up to a batch, and returns their number.
    fn take(pools: &mut Pools, port: &mut Arrivals) -> usize {
        let mut batch = Batch::new();
        port.receive(pools, &mut batch);
        let all = batch.mask();
        port.transmit(pools, &mut batch, all);
        batch.len().max(all.count_ones() as usize)
    }

    #[test]
    fn frames_arrive_at_their_rate_and_none_is_lost_if_they_are_taken() {
        let (mut pools, mut port) = port(Pace::PerSecond(1_000_000), 100);
        // The real CPU clock shows that the thread had all of the time.
        port.clock.processor = || u64::MAX / 2;
        let mut came = Vec::new();
        for step in 0..12 {
            port.set_time(step * 10_000);
            came.push(take(&mut pools, &mut port));
        }
        assert_eq!(came, [0, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 0]);
        assert_eq!((port.statistics().received, port.statistics().lost_before), (100, 0));
        assert!(port.exhausted());
    }

    #[test]
    fn no_more_frames_arrive_than_there_are_however_many_wait() {
        let (mut pools, mut port) = port(Pace::PerSecond(1_000_000), 100);
        // A frame arrives every microsecond, and the worker takes fewer than arrive.
        for _ in 0..10 {
            port.arrive(90_000);
            assert!(port.waiting <= port.left, "{} waiting, {} left", port.waiting, port.left);
            take(&mut pools, &mut port);
        }
        assert_eq!((port.statistics().received, port.statistics().lost_before), (100, 0));
        assert!(port.exhausted());
    }

    #[test]
    fn what_finds_no_room_in_the_ring_is_lost_and_counted() {
        let (mut pools, mut port) = port(Pace::PerSecond(1_000_000), u64::MAX);
        let processor = Cell::new(0);
        let mut clock = OwnClock::new(|| processor.get());
        clock.advance(0);
        processor.set(10_000_000);
        let elapsed_ns = clock.advance(10_000_000);
        assert_eq!(elapsed_ns, 10_000_000);
        port.arrive(elapsed_ns);
        assert_eq!((port.waiting, port.statistics().lost_before), (RING, 10_000 - RING));
        assert_eq!(take(&mut pools, &mut port), 64);
        assert_eq!(port.waiting, RING - 64);
    }

    #[test]
    fn the_clock_stands_still_without_the_core() {
        let processor = Cell::new(0);
        let mut clock = OwnClock::new(|| processor.get());
        assert_eq!(clock.advance(5_000_000), 0);
        // Other threads used the core for nine out of ten milliseconds.
        processor.set(1_000_000);
        assert_eq!(clock.advance(15_000_000), 1_000_000);
        processor.set(1_010_000);
        assert_eq!(clock.advance(15_010_000), 10_000, "too short to read the processor's clock");
        assert_eq!((clock.now_ns, clock.taken_ns), (1_010_000, 9_000_000));
    }

    #[test]
    fn what_is_lost_right_after_the_core_was_away_is_counted_apart() {
        let (mut pools, mut port) = port(Pace::PerSecond(1_000_000), u64::MAX);
        thread_local! { static HAD_NS: Cell<u64> = const { Cell::new(0) } }
        port.clock.processor = || HAD_NS.get();
        // A millisecond of the worker's own time, in at least as much wall time; nothing is taken meanwhile.
        let mut wall_ns = 0;
        let mut pass = |port: &mut Arrivals, wall: u64| {
            HAD_NS.set(HAD_NS.get() + 1_000_000);
            wall_ns += wall;
            port.set_time(wall_ns);
            (port.statistics().lost_before, port.lost_disturbed)
        };
        port.set_time(0);
        assert_eq!((0..4).map(|_| pass(&mut port, 1_000_000)).last(), Some((0, 0)));
        assert_eq!(pass(&mut port, 9_000_000), (904, 904));
        assert_eq!(pass(&mut port, 1_000_000), (1904, 1904));
        assert_eq!(pass(&mut port, 1_000_000), (2904, 1904), "long enough after it");
        take(&mut pools, &mut port);
    }

    #[test]
    fn a_share_is_of_the_highest_rate_without_loss() {
        let (mut pools, mut port) = port(Pace::Share(0.8), u64::MAX);
        port.clock.processor = || u64::MAX / 2;
        // A worker that takes 64 frames in 10 us, 6.4 million a second, until the rate is found.
        let mut now_ns = 0;
        while !matches!(port.search, Search::Found) {
            port.set_time(now_ns);
            take(&mut pools, &mut port);
            now_ns += 10_000;
            assert!(now_ns < 10_000_000_000, "the search terminates");
        }
        assert!((port.lossless / 6.4e6 - 1.0).abs() < 0.04, "{}", port.lossless);
        assert!((port.rate / port.lossless - 0.8).abs() < 1e-9);
    }
}
