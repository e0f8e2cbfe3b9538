//! The workers' clock: CLOCK_MONOTONIC, counted from the daemon's start, so that times in milliseconds fit
//! into 32 bits. A daemon that takes over continues with its predecessor's clock.

use rustix::time::{ClockId, clock_gettime};
use std::time::UNIX_EPOCH;

/// Time since the daemon's start.
#[derive(Clone, Copy, Debug)]
pub struct Clock(u64);

impl Clock {
    /// Creates a clock that starts now.
    #[must_use]
    pub fn start() -> Clock {
        Clock(monotonic_ns())
    }

    /// Returns the clock that started at `origin_ns` nanoseconds of CLOCK_MONOTONIC.
    #[must_use]
    pub fn since(origin_ns: u64) -> Clock {
        Clock(origin_ns)
    }

    /// Returns when the clock started, in nanoseconds of CLOCK_MONOTONIC.
    #[must_use]
    pub fn origin_ns(self) -> u64 {
        self.0
    }

    /// Returns the nanoseconds since the start.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        monotonic_ns().saturating_sub(self.0)
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
