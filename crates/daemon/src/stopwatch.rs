//! Times a worker's breaths with the one clock reading that every breath needs anyway: the end of a breath is
//! the start of the next.
//!
//! Wall time blames weir for the time that other programs and the host take on the core, so processor time is
//! measured as well. Its clock costs a system call. It is therefore read only after a long breath, and
//! otherwise once in a while. The difference between the wall time and the processor time since the previous
//! reading is time that was taken from the thread, most likely in the long breath.

use rustix::time::{ClockId, clock_gettime};
use weir_app::clock::Clock;

/// The minimum wall time of a breath, in nanoseconds, for its processor time to be measured.
const LONG_NS: u64 = 16_384;

/// How often the processor clock is read if no breath is long, in nanoseconds: time taken from the thread in
/// short breaths must not be subtracted from the next long one.
const READ_EVERY_NS: u64 = 1_000_000;

/// Measures the breaths of the thread that created it.
pub struct Stopwatch<Wall = Clock, Processor = fn() -> u64> {
    wall: Wall,
    processor: Processor,
    began_ns: u64,
    /// The readings of both clocks when they were last compared.
    read_ns: (u64, u64),
}

/// A clock that shows nanoseconds.
pub trait Ticks {
    /// Returns the time.
    fn now_ns(&self) -> u64;
}

impl Ticks for Clock {
    fn now_ns(&self) -> u64 {
        Clock::now_ns(self)
    }
}

impl Stopwatch {
    /// Starts the first breath of this thread.
    pub fn start(clock: Clock) -> Stopwatch {
        Stopwatch::with(clock, thread_ns)
    }
}

impl<Wall: Ticks, Processor: Fn() -> u64> Stopwatch<Wall, Processor> {
    fn with(wall: Wall, processor: Processor) -> Stopwatch<Wall, Processor> {
        let mut stopwatch = Stopwatch { wall, processor, began_ns: 0, read_ns: (0, 0) };
        stopwatch.begin();
        stopwatch
    }

    /// Returns when the current breath began, in nanoseconds of the wall clock.
    pub fn began_ns(&self) -> u64 {
        self.began_ns
    }

    /// Starts a breath now, after a sleep that belongs to none.
    pub fn begin(&mut self) {
        self.began_ns = self.wall.now_ns();
        self.read_ns = (self.began_ns, (self.processor)());
    }

    /// Ends a breath and starts the next. Returns its wall time and processor time, in nanoseconds.
    pub fn lap(&mut self) -> (u64, u64) {
        let now_ns = self.wall.now_ns();
        let wall_ns = now_ns.saturating_sub(self.began_ns);
        self.began_ns = now_ns;
        let since_ns = now_ns.saturating_sub(self.read_ns.0);
        let long = wall_ns >= LONG_NS;
        if !long && since_ns < READ_EVERY_NS {
            return (wall_ns, wall_ns);
        }
        let processor_ns = (self.processor)();
        let taken_ns = since_ns.saturating_sub(processor_ns.saturating_sub(self.read_ns.1));
        self.read_ns = (now_ns, processor_ns);
        (wall_ns, if long { wall_ns.saturating_sub(taken_ns) } else { wall_ns })
    }
}

/// Processor time of this thread.
fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Clocks controlled by a test.
    #[derive(Default)]
    struct Clocks {
        wall_ns: Cell<u64>,
        processor_ns: Cell<u64>,
        readings: Cell<u32>,
    }

    impl Clocks {
        fn pass(&self, wall_ns: u64, processor_ns: u64) {
            self.wall_ns.set(self.wall_ns.get() + wall_ns);
            self.processor_ns.set(self.processor_ns.get() + processor_ns);
        }

        fn stopwatch(&self) -> Stopwatch<&Clocks, impl Fn() -> u64> {
            let processor = || {
                self.readings.set(self.readings.get() + 1);
                self.processor_ns.get()
            };
            Stopwatch::with(self, processor)
        }
    }

    impl Ticks for &Clocks {
        fn now_ns(&self) -> u64 {
            self.wall_ns.get()
        }
    }

    #[test]
    fn what_others_had_of_the_core_is_not_processor_time() {
        let clocks = Clocks::default();
        let mut stopwatch = clocks.stopwatch();
        clocks.pass(4_000_000, 30_000);
        assert_eq!(stopwatch.lap(), (4_000_000, 30_000));
        clocks.pass(300_000, 300_000);
        assert_eq!(stopwatch.lap(), (300_000, 300_000));
    }

    #[test]
    fn the_processor_clock_is_read_after_a_long_breath_and_once_in_a_while() {
        let clocks = Clocks::default();
        let mut stopwatch = clocks.stopwatch();
        for _ in 0..150 {
            clocks.pass(10_000, 10_000);
            assert_eq!(stopwatch.lap(), (10_000, 10_000));
        }
        assert_eq!(clocks.readings.get(), 2, "one at the start, one after a millisecond");
        clocks.pass(LONG_NS, LONG_NS);
        stopwatch.lap();
        assert_eq!(clocks.readings.get(), 3);
    }

    #[test]
    fn a_breath_that_lost_the_core_before_does_not_excuse_a_later_one() {
        let clocks = Clocks::default();
        let mut stopwatch = clocks.stopwatch();
        // A long breath of which others took half, and one that used all its time itself.
        clocks.pass(100_000, 50_000);
        assert_eq!(stopwatch.lap(), (100_000, 50_000));
        clocks.pass(400_000, 400_000);
        assert_eq!(stopwatch.lap(), (400_000, 400_000));
    }

    #[test]
    fn sleep_belongs_to_no_breath() {
        let clocks = Clocks::default();
        let mut stopwatch = clocks.stopwatch();
        clocks.pass(10_000_000, 5_000);
        stopwatch.begin();
        assert_eq!(stopwatch.began_ns(), 10_000_000);
        clocks.pass(50_000, 50_000);
        assert_eq!(stopwatch.lap(), (50_000, 50_000));
        assert_eq!(stopwatch.began_ns(), 10_050_000);
    }
}
