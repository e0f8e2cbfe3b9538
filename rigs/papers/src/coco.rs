//! CocoSketch: the size of any part of a key, chosen after the fact.
//!
//! Zhang, Liu, Wang, Yang, Li, Li, Chen, Li, Cui and Chen: CocoSketch: high-performance sketch-based
//! measurement over arbitrary partial key query, SIGCOMM 2021 (the software variant). `D` rows of buckets
//! with a key and a count. A key that is in none of its buckets is added to the lightest of them, and
//! replaces that bucket's key with probability count / bucket. Every size is then unbiased, for whole keys
//! and, added up, for any part of them: sources, prefixes, ports.
//!
//! The buckets' counts add up exactly to everything that was counted. Which keys the buckets have is random,
//! so aggregated and single packets lead to different states, and the paper's bound is on the variance: that
//! of the sum of a part is at most (its size)·(N - its size)/w, w being the buckets of a row.

use std::collections::HashMap;
use weir_packet::random::Random;
use weir_sketch::estimate::{Estimate, MergeError, SizeError};
use weir_sketch::hash::{Item, KeyHash, Lanes, Purpose, Seed, below};
use weir_sketch::memory::table;

/// A key and a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bucket<const W: usize> {
    key: [u64; W],
    count: u64,
}

/// `D` rows of buckets.
#[derive(Clone, Debug)]
pub struct Coco<const W: usize, const D: usize = 2> {
    buckets: Vec<Bucket<W>>,
    width: usize,
    total: u64,
    lanes: Lanes,
    random: Random,
}

impl<const W: usize, const D: usize> Coco<W, D> {
    /// Creates an empty sketch of at most `bytes` bytes.
    ///
    /// # Errors
    /// The memory is less than one bucket in each row, or too much.
    pub fn with_bytes(bytes: usize, seed: &Seed) -> Result<Self, SizeError> {
        let row = D * size_of::<Bucket<W>>();
        let width = SizeError::check(bytes, row)? / row;
        Ok(Coco {
            buckets: table(Bucket { key: [0; W], count: 0 }, D * width),
            width,
            total: 0,
            lanes: Lanes::new(seed, Purpose::Coco, 0),
            random: Random::new(seed.word(Purpose::Coco, 1 << 30)),
        })
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket<W>>()
    }

    /// The total count of all keys.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    #[inline(always)]
    fn places(&self, hash: u64) -> [usize; D] {
        let lanes = self.lanes.rows::<D>(hash);
        std::array::from_fn(|row| row * self.width + below(lanes[row], self.width))
    }

    /// Fetches the buckets of a hash.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        for place in self.places(hash) {
            weir_packet::prefetch(&self.buckets[place]);
        }
    }

    /// Counts a key.
    #[inline]
    pub fn update(&mut self, item: &Item<W>, count: u64) {
        self.total += count;
        let places = self.places(item.hash);
        let mut lightest = places[0];
        for place in places {
            let bucket = &mut self.buckets[place];
            if bucket.key == item.key && bucket.count > 0 {
                bucket.count += count;
                return;
            }
            if bucket.count < self.buckets[lightest].count {
                lightest = place;
            }
        }
        let bucket = &mut self.buckets[lightest];
        bucket.count += count;
        if self.random.below(bucket.count) < count {
            bucket.key = item.key;
        }
    }

    /// The sizes of parts of keys, the largest first; ties are ordered by part.
    #[must_use]
    pub fn parts<K: Ord + std::hash::Hash + Copy>(
        &self,
        part: impl Fn(&[u64; W]) -> K,
    ) -> Vec<(K, Estimate)> {
        let mut sums: HashMap<K, u64> = HashMap::new();
        for bucket in self.buckets.iter().filter(|bucket| bucket.count > 0) {
            *sums.entry(part(&bucket.key)).or_default() += bucket.count;
        }
        let mut parts: Vec<(K, u64)> = sums.into_iter().collect();
        parts.sort_unstable_by(|one, other| other.1.cmp(&one.1).then(one.0.cmp(&other.0)));
        parts.into_iter().map(|(part, size)| (part, self.bounded(size as f64))).collect()
    }

    /// Two standard deviations on either side; Chebyshev gives 0.75, experience 0.95.
    fn bounded(&self, size: f64) -> Estimate {
        let rest = (self.total as f64 - size).max(0.0);
        let error = 2.0 * (size.max(1.0) * rest / self.width as f64).sqrt();
        Estimate { value: size, low: (size - error).max(0.0), high: size + error, confidence: 0.75 }
    }

    /// Adds the counts of another sketch: of two keys in one bucket, one stays, at random in proportion to
    /// their counts.
    ///
    /// # Errors
    /// Seeds or sizes differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        MergeError::unless(self.width == other.width && self.lanes == other.lanes)?;
        for (bucket, other) in self.buckets.iter_mut().zip(&other.buckets) {
            bucket.count += other.count;
            if bucket.count > 0 && self.random.below(bucket.count) < other.count {
                bucket.key = other.key;
            }
        }
        self.total += other.total;
        Ok(())
    }

    /// The size of a key: 0 if no bucket holds it.
    #[must_use]
    pub fn size(&self, hash: &KeyHash, key: &[u64; W]) -> u64 {
        let places = self.places(hash.hash(key));
        places
            .map(|place| self.buckets[place])
            .iter()
            .filter(|bucket| bucket.key == *key)
            .map(|b| b.count)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_sketch::traffic::{Zipf, five_tuple};

    #[test]
    fn parts_are_unbiased_and_add_up() {
        let flows: Vec<u64> = Zipf::new(20_000, 1.0, 3).take(50_000).collect();
        let part = |key: &[u64; 2]| key[0] >> 62;
        let mut truth = [0_u64; 4];
        flows.iter().for_each(|flow| truth[part(&five_tuple(*flow)) as usize] += 1);
        let mut mean = [0.0; 4];
        for number in 0..40 {
            let seed = Seed::new([number, 9]);
            let hash = KeyHash::new(&seed);
            let mut halves = [0, 1].map(|_| Coco::<2>::with_bytes(24_000, &seed).unwrap());
            for (at, flow) in flows.iter().enumerate() {
                halves[at % 2].update(&hash.item(five_tuple(*flow)), 1);
            }
            let [mut whole, other] = halves;
            whole.merge(&other).unwrap();
            let parts = whole.parts(part);
            assert_eq!(parts.iter().map(|(_, size)| size.value).sum::<f64>(), 50_000.0);
            for (part, size) in parts {
                mean[part as usize] += size.value / 40.0;
            }
            let heaviest = whole.size(&hash, &five_tuple(0));
            assert!(heaviest > 3000 && heaviest < 8000, "{heaviest}");
        }
        for (truth, mean) in truth.iter().zip(mean) {
            assert!((*truth as f64 / mean - 1.0).abs() < 0.02, "{truth} {mean}");
        }
    }
}
