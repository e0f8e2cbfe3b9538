//! How long breaths take. A frame that arrives while a worker handles others waits for the end of the breath,
//! so the few slow breaths matter: a histogram shows them, whereas an average would not.
//!
//! The caller measures, because only it has clocks: `cli/daemon/stopwatch.rs`.

/// Bits of a time that distinguish the buckets of an octave: eight buckets, each an eighth of its octave
/// wide.
const STEP_BITS: u32 = 3;

/// Bits of a time that are ignored: the buckets below 2^10 ns are 2^7 ns wide.
const UNIT_BITS: u32 = 7;

/// Octaves above those narrow buckets: up to 2^27 ns, 134 ms. Longer times are in the last bucket.
const OCTAVES: usize = 17;

/// Number of buckets.
const BUCKETS: usize = (OCTAVES + 1) << STEP_BITS;

/// The minimum duration, in nanoseconds, of a breath that handled nothing for it to be counted: such a breath
/// has aged a slice, for example, and kept the next frame waiting. Counting shorter ones would only hide the
/// breaths that had work.
pub const LONG_NS: u64 = 16_384;

/// Durations, in buckets whose width is at most an eighth of the durations they hold. Recording one costs a
/// few instructions and no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    count: u64,
    total_ns: u64,
    longest_ns: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: [0; BUCKETS], count: 0, total_ns: 0, longest_ns: 0 }
    }
}

impl Histogram {
    /// Adds a duration in nanoseconds.
    pub fn record(&mut self, ns: u64) {
        self.buckets[bucket(ns)] += 1;
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.longest_ns = self.longest_ns.max(ns);
    }

    /// Adds what another histogram holds.
    pub fn add(&mut self, other: &Histogram) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(sum, count)| *sum += count);
        self.count += other.count;
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    /// Returns the number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of all durations, in nanoseconds.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// Returns the longest duration, in nanoseconds.
    #[must_use]
    pub fn longest_ns(&self) -> u64 {
        self.longest_ns
    }

    /// Returns the duration in nanoseconds that `share` of all (from 0 to 1) do not exceed: the upper limit
    /// of its bucket, hence at most an eighth too large, and never more than the longest. 0 if there are
    /// none.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let wanted = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (limit_ns, count) in self.limits() {
            seen += count;
            if seen >= wanted {
                return limit_ns.min(self.longest_ns);
            }
        }
        self.longest_ns
    }

    /// Returns the buckets that hold something, from short to long: the exclusive upper limit in nanoseconds
    /// (`u64::MAX` for the last bucket), and how many durations there are.
    pub fn limits(&self) -> impl Iterator<Item = (u64, u64)> {
        let held = self.buckets.into_iter().enumerate().filter(|(_, count)| *count > 0);
        held.map(|(at, count)| (limit_ns(at), count))
    }
}

/// Returns the bucket of a duration.
fn bucket(ns: u64) -> usize {
    let units = ns >> UNIT_BITS;
    if units < 1 << STEP_BITS {
        return units as usize;
    }
    let octave = units.ilog2() - STEP_BITS;
    let step = (units >> octave) as usize - (1 << STEP_BITS);
    ((octave as usize + 1) << STEP_BITS | step).min(BUCKETS - 1)
}

/// Returns the lowest duration above a bucket.
fn limit_ns(bucket: usize) -> u64 {
    let next = bucket + 1;
    if next == BUCKETS {
        return u64::MAX;
    }
    let (octave, step) = (next >> STEP_BITS, (next & ((1 << STEP_BITS) - 1)) as u64);
    let units = if octave == 0 { step } else { (step + (1 << STEP_BITS)) << (octave - 1) };
    units << UNIT_BITS
}

/// The breaths of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breaths {
    /// Elapsed time, including the time that other programs and the host took from the core.
    pub wall: Histogram,
    /// The part of this that is processor time of the worker's own thread.
    pub processor: Histogram,
}

impl Breaths {
    /// Adds a breath that handled `handled` frames and commands, by its wall time and its processor time in
    /// nanoseconds. A breath that handled nothing counts only if it was long.
    pub fn record(&mut self, handled: usize, wall_ns: u64, processor_ns: u64) {
        if handled > 0 || processor_ns >= LONG_NS {
            self.wall.record(wall_ns);
            self.processor.record(processor_ns);
        }
    }

    /// Adds the breaths of another worker.
    pub fn add(&mut self, other: &Breaths) {
        self.wall.add(&other.wall);
        self.processor.add(&other.processor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_at_most_an_eighth_of_what_it_holds() {
        let mut last = 0;
        for ns in (0..30).flat_map(|bits| [(1u64 << bits) - 1, 1 << bits, (1 << bits) + (1 << bits) / 3]) {
            let at = bucket(ns);
            let limit = limit_ns(at);
            assert!(ns < limit, "{ns} is below the limit of its bucket");
            if at + 1 < BUCKETS {
                assert!(limit - ns <= (ns / 8).max(128), "{ns}: {limit}");
            }
            assert!(at == 0 || ns >= limit_ns(at - 1), "{ns} is not in the bucket before");
            last = last.max(at);
        }
        assert_eq!(last, BUCKETS - 1);
        assert!((0..BUCKETS - 1).all(|at| limit_ns(at) < limit_ns(at + 1)));
    }

    #[test]
    fn quantiles_are_limits_of_buckets_and_at_most_the_longest() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_ns(0.9999), 0);
        (0..9_999).for_each(|_| histogram.record(1_000));
        histogram.record(3_000_000);
        assert_eq!((histogram.quantile_ns(0.5), histogram.quantile_ns(0.9999)), (1_024, 1_024));
        assert_eq!((histogram.quantile_ns(1.0), histogram.longest_ns()), (3_000_000, 3_000_000));
        histogram.record(3_000_000);
        assert_eq!(histogram.quantile_ns(0.9999), 3_000_000);
        assert_eq!((histogram.count(), histogram.total_ns()), (10_001, 9_999_000 + 6_000_000));
    }

    #[test]
    fn what_is_longer_than_the_last_limit_is_known_by_the_longest() {
        let mut histogram = Histogram::default();
        histogram.record(u64::MAX);
        assert_eq!(histogram.limits().collect::<Vec<_>>(), [(u64::MAX, 1)]);
        assert_eq!(histogram.quantile_ns(0.5), u64::MAX);
    }

    #[test]
    fn the_breaths_of_two_workers_add_up() {
        let (mut one, mut other) = (Breaths::default(), Breaths::default());
        one.record(1, 5_000, 2_000);
        other.record(64, 9_000, 9_000);
        one.add(&other);
        assert_eq!((one.wall.count(), one.wall.total_ns(), one.wall.longest_ns()), (2, 14_000, 9_000));
        assert_eq!((one.processor.count(), one.processor.total_ns()), (2, 11_000));
    }

    #[test]
    fn an_idle_breath_counts_only_if_it_was_long() {
        let mut breaths = Breaths::default();
        breaths.record(0, LONG_NS, LONG_NS - 1);
        assert_eq!(breaths.wall.count(), 0);
        breaths.record(0, LONG_NS, LONG_NS);
        breaths.record(1, 100, 100);
        assert_eq!((breaths.wall.count(), breaths.processor.count()), (2, 2));
    }
}
