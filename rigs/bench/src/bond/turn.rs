//! The result of an arm's turn.

use std::time::Duration;

/// Frames that fit one of the two rings between members and sink.
pub const RING: u64 = 1 << RING_BITS;
pub const RING_BITS: u32 = 14;

/// Counters at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Frames that the members accepted.
    pub transmitted: u64,
    /// Frames that were dropped because a ring, of a member or a machine, was full.
    pub dropped: u64,
    /// Frames that the sink received.
    pub arrived: u64,
    /// Processor time of the forwarding thread. On an idle machine this equals elapsed time; on a busy one it
    /// excludes the core's time spent on other programs.
    pub busy: Duration,
    /// How far the processor time may be off, as the counters were read meanwhile.
    pub doubt: Duration,
}

/// How far readings may be off, as a share of the turn's time.
const DOUBT_MAX: f64 = 0.02;

/// The difference between two readings.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Million frames accepted by the members per second of processor time.
    pub mpps: f64,
    /// Share of the frames that were dropped.
    pub dropped: f64,
    /// Why the counters before and after are inconsistent, if they are.
    pub doubt: Option<Doubt>,
}

/// Why the rate of a turn is not credible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The counters took too long to read, so the time of the reading is too uncertain.
    Slow,
    /// The sink has received fewer frames than the members claim to have sent.
    Apart,
    /// The members have accepted nothing.
    Idle,
}

impl Turn {
    /// Computes a turn from the counters before and after.
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
        // The same readings are precise enough for a turn of twice the duration.
        let busy = Duration::from_millis(1000);
        assert_eq!(doubt(&Reading { busy, transmitted: 8_000_000, arrived: 8_000_000, ..slow }), None);
    }
}
