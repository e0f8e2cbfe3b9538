//! A histogram of latencies, in bounded memory.
//!
//! Every power of two has 64 buckets of microseconds, so a percentile is at most 1.6 % too high, and exact
//! below 128 us.

const STEPS: u64 = 64;
const BUCKETS: usize = (STEPS * 27) as usize; // up to 2^32 us

/// A histogram of latencies in microseconds.
pub struct Latency {
    buckets: Box<[u64; BUCKETS]>,
    count: u64,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency { buckets: Box::new([0; BUCKETS]), count: 0 }
    }
}

impl Latency {
    /// Adds a latency.
    pub fn add(&mut self, us: u64) {
        self.buckets[bucket(us).min(BUCKETS - 1)] += 1;
        self.count += 1;
    }

    /// Returns the latency that `percent` of all latencies do not exceed; 0 if there are none.
    pub fn percentile(&self, percent: u64) -> u64 {
        let wanted = (self.count * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (index, &count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return highest(index);
            }
        }
        0
    }
}

fn bucket(us: u64) -> usize {
    let shift = (us / STEPS).checked_ilog2().unwrap_or(0);
    (u64::from(shift) * STEPS + (us >> shift)) as usize
}

/// Returns the highest latency in a bucket.
fn highest(index: usize) -> u64 {
    let index = index as u64;
    let shift = (index / STEPS).saturating_sub(1);
    ((index - shift * STEPS + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_falls_into_a_bucket_that_is_not_much_higher() {
        for us in (0..20_000).chain([65_535, 65_536, 1_000_000, 4_000_000_000]) {
            let high = highest(bucket(us));
            assert!(high >= us && high - us <= us / STEPS, "{us} is reported as {high}");
        }
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_list() {
        let mut latency = Latency::default();
        assert_eq!(latency.percentile(50), 0);
        (1..=100).for_each(|us| latency.add(us));
        assert_eq!((latency.percentile(50), latency.percentile(99), latency.percentile(100)), (50, 99, 100));
    }

    #[test]
    fn absurd_latencies_are_kept_in_the_last_bucket() {
        let mut latency = Latency::default();
        latency.add(u64::MAX);
        assert!(latency.percentile(50) >= 1 << 32 >> 1);
    }
}
