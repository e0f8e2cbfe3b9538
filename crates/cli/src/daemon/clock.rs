//! The workers' clock: CLOCK_MONOTONIC, counted from the daemon's start, so that times fit where they are
//! stored in milliseconds.

use std::time::Instant;

/// Time since the daemon's start.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Creates a clock that starts now.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// Returns the nanoseconds since the start.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
