//! The workers' clock: CLOCK_MONOTONIC, counted from the last full hour of the wall clock before the daemon's
//! start. So times in milliseconds fit into 32 bits, and periods that divide an hour begin at the same
//! moments on all nodes. A daemon that takes over continues with its predecessor's clock.

use rustix::time::{ClockId, clock_gettime};
use std::time::UNIX_EPOCH;

/// An hour in nanoseconds.
const HOUR_NS: u64 = 3_600_000_000_000;

/// Time since the full hour before the daemon's start.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// When the clock was 0, in nanoseconds of CLOCK_MONOTONIC; negative if that was before the host's start.
    origin_ns: i64,
    /// When the daemon started, in nanoseconds of this clock.
    started_ns: u64,
}

impl Clock {
    /// Creates the clock of a daemon that starts now.
    #[must_use]
    pub fn start() -> Clock {
        let started_ns = since_1970_ns() % HOUR_NS;
        Clock { origin_ns: monotonic_ns() as i64 - started_ns as i64, started_ns }
    }

    /// Returns the clock that was 0 at `origin_ns` nanoseconds of CLOCK_MONOTONIC, of a daemon that started
    /// when it was `started_ns`.
    #[must_use]
    pub fn since(origin_ns: i64, started_ns: u64) -> Clock {
        Clock { origin_ns, started_ns }
    }

    /// Returns when the clock was 0, in nanoseconds of CLOCK_MONOTONIC; negative if that was before the
    /// host's start.
    #[must_use]
    pub fn origin_ns(self) -> i64 {
        self.origin_ns
    }

    /// Returns when the daemon started, in nanoseconds of this clock.
    #[must_use]
    pub fn started_ns(self) -> u64 {
        self.started_ns
    }

    /// Returns the time now, in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.at(monotonic_ns())
    }

    /// Returns the time at `monotonic_ns` nanoseconds of CLOCK_MONOTONIC; 0 if that was before the clock's
    /// origin.
    #[must_use]
    pub fn at(&self, monotonic_ns: u64) -> u64 {
        u64::try_from(monotonic_ns as i64 - self.origin_ns).unwrap_or(0)
    }

    /// Returns the nanoseconds since the daemon's start.
    #[must_use]
    pub fn uptime_ns(&self) -> u64 {
        self.now_ns().saturating_sub(self.started_ns)
    }
}

/// Returns the nanoseconds of CLOCK_MONOTONIC, which eBPF programs use as well.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the nanoseconds since 1970.
#[must_use]
pub fn since_1970_ns() -> u64 {
    UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_began_at_a_full_hour_even_if_the_host_did_not_run_then() {
        let clock = Clock::start();
        let past_hour_ns = (since_1970_ns() % HOUR_NS).abs_diff(clock.now_ns() % HOUR_NS);
        assert!(past_hour_ns.min(HOUR_NS - past_hour_ns) < 100_000_000, "{past_hour_ns}");
        assert!(clock.uptime_ns() < HOUR_NS / 2 && clock.now_ns() >= clock.started_ns());
        let early = Clock::since(-1_000, 1_005);
        assert_eq!((early.at(0), early.at(7)), (1_000, 1_007));
        assert_eq!(Clock::since(10, 0).at(3), 0);
    }
}
