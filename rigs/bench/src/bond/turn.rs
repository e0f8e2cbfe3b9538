//! What a turn of an arm came to.

use std::time::Duration;

/// Frames that may lie in the rings between members and sink: two of them.
pub const RING: u64 = 1 << RING_BITS;
pub const RING_BITS: u32 = 14;

/// Counters at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Frames that the members took.
    pub transmitted: u64,
    /// Frames that were dropped on the way, as a member's ring was full.
    pub dropped: u64,
    /// Frames that the sink received.
    pub arrived: u64,
    /// Processor time of the thread that carries frames. On an idle machine that is the time that went by; on
    /// a busy one it leaves out what other programs had of the core.
    pub busy: Duration,
    /// How far it may be off, as the counters were read meanwhile.
    pub doubt: Duration,
}

/// Share of a turn's time by which its readings may be off.
const DOUBT_MAX: f64 = 0.02;

/// What happened between two readings.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Million frames that the members took, a second of processor time.
    pub mpps: f64,
    /// Share of the frames that were dropped instead.
    pub dropped: f64,
    /// Why the counters before and after do not belong together, if they do not.
    pub doubt: Option<Doubt>,
}

/// Why the rate of a turn cannot be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The counters took so long to read that it matters when they were read.
    Slow,
    /// The sink has not seen what the members say they have sent.
    Apart,
    /// The members have taken nothing.
    Idle,
}

impl Turn {
    /// From the counters before and after.
    pub fn between(before: &Reading, after: &Reading) -> Turn {
        let transmitted = after.transmitted - before.transmitted;
        let dropped = after.dropped - before.dropped;
        let arrived = after.arrived - before.arrived;
        let busy = (after.busy - before.busy).as_secs_f64();
        let slow = (before.doubt + after.doubt).as_secs_f64() > DOUBT_MAX * busy;
        let lost = arrived.abs_diff(transmitted) > 2 * RING + transmitted / 20;
        Turn {
            mpps: transmitted as f64 / busy / 1e6,
            dropped: dropped as f64 / (transmitted + dropped).max(1) as f64,
            doubt: (transmitted == 0)
                .then_some(Doubt::Idle)
                .or(slow.then_some(Doubt::Slow))
                .or(lost.then_some(Doubt::Apart)),
        }
    }
}

impl std::fmt::Display for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.2} ({:.2} %{})",
            self.mpps,
            100.0 * self.dropped,
            match self.doubt {
                None => "",
                Some(Doubt::Slow) => ", read too slowly",
                Some(Doubt::Apart) => ", sink behind",
                Some(Doubt::Idle) => ", nothing sent",
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(transmitted: u64, dropped: u64, arrived: u64, busy_ms: u64) -> Reading {
        Reading { transmitted, dropped, arrived, busy: Duration::from_millis(busy_ms), doubt: Duration::ZERO }
    }

    #[test]
    fn rates_are_over_processor_time_and_what_is_dropped_is_not_sent() {
        let turn = Turn::between(&reading(100, 0, 90, 10), &reading(4_000_100, 1_000_000, 4_000_000, 510));
        assert_eq!((turn.mpps, turn.dropped, turn.doubt), (8.0, 0.2, None));
    }

    #[test]
    fn readings_that_do_not_belong_together_are_noticed() {
        let (start, end) = (reading(0, 0, 0, 0), reading(4_000_000, 0, 4_000_000, 500));
        let doubt = |end: &Reading| Turn::between(&start, end).doubt;
        assert_eq!(doubt(&end), None);
        assert_eq!(doubt(&Reading { arrived: 3_000_000, ..end }), Some(Doubt::Apart));
        let slow = Reading { doubt: Duration::from_millis(11), ..end };
        assert_eq!(doubt(&slow), Some(Doubt::Slow));
        assert_eq!(
            doubt(&reading(0, 0, 0, 500)),
            Some(Doubt::Idle),
            "a rival that forwards nothing has no rate"
        );
        // The same readings are good enough for a turn of twice the time.
        let busy = Duration::from_millis(1000);
        assert_eq!(doubt(&Reading { busy, transmitted: 8_000_000, arrived: 8_000_000, ..slow }), None);
    }
}
