//! SpreadSketch: which keys talk to many peers (super-spreaders); keys are whole addresses of either family.
//!
//! Tang, Huang and Lee: SpreadSketch: toward invertible and network-wide detection of superspreaders, INFOCOM
//! 2020. Three rows of buckets, each with a counter of distinct pairs and a candidate: the key whose pair had
//! the highest level so far, a level being geometric in the pair's hash. A key is the candidate of its bucket
//! with a probability equal to its share of the bucket's pairs. A key's spread is the least of its three
//! counters.
//!
//! A counter is a HyperLogLog of 128 registers, with the estimator of Ertl (New cardinality estimation
//! algorithms for HyperLogLog sketches, 2017), which needs no ranges and no correction tables. Of two pairs
//! with the same level, the smaller key is the candidate. The state thus depends neither on the order nor on
//! the frequency of pairs, and merged sketches equal the sketch of a single stream, bit for bit.

use crate::estimate::{Estimate, MergeError, SizeError};
use crate::hash::{Item, Lanes, Purpose, Seed, below};
use crate::memory::table;

/// Rows of buckets.
const ROWS: usize = 3;

/// Registers of a counter, as a power of two.
const REGISTER_BITS: u32 = 7;

/// The number of registers.
pub const REGISTERS: usize = 1 << REGISTER_BITS;

/// The largest rank of a register: 64 - 7 bits, plus one.
const RANK_MAX: usize = 64 - REGISTER_BITS as usize + 1;

/// The relative standard error of a counter: 1.04 / sqrt(128).
pub const ERROR: f64 = 0.092;

/// A counter of distinct pairs, and the candidate for the key with most pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
struct Bucket<const W: usize> {
    registers: [u8; REGISTERS],
    key: [u64; W],
    /// The highest level of a pair plus 1; 0 in an empty bucket.
    level: u8,
}

impl<const W: usize> Bucket<W> {
    const EMPTY: Bucket<W> = Bucket { registers: [0; REGISTERS], key: [0; W], level: 0 };

    #[inline(always)]
    fn add(&mut self, key: &[u64; W], place: usize, rank: u8, level: u8) {
        let register = &mut self.registers[place];
        *register = (*register).max(rank);
        if level >= self.level {
            self.propose(key, level);
        }
    }

    #[inline]
    fn propose(&mut self, key: &[u64; W], level: u8) {
        if level > self.level || level == self.level && *key < self.key {
            (self.key, self.level) = (*key, level);
        }
    }

    /// Number of distinct pairs.
    fn count(&self) -> f64 {
        if self.level == 0 {
            return 0.0;
        }
        let mut counts = [0_u32; RANK_MAX + 1];
        self.registers.iter().for_each(|rank| counts[usize::from(*rank).min(RANK_MAX)] += 1);
        let all = REGISTERS as f64;
        let mut sum = all * tau(1.0 - f64::from(counts[RANK_MAX]) / all);
        for count in counts[1..RANK_MAX].iter().rev() {
            sum = 0.5 * (sum + f64::from(*count));
        }
        sum += all * sigma(f64::from(counts[0]) / all);
        all * all / (2.0 * std::f64::consts::LN_2 * sum)
    }
}

/// x + Σ x^(2^k)·2^(k-1): the contribution of empty registers, which matters for small counts.
fn sigma(mut x: f64) -> f64 {
    if x >= 1.0 {
        return f64::INFINITY;
    }
    let (mut weight, mut sum) = (1.0, x);
    loop {
        x *= x;
        let before = sum;
        sum += x * weight;
        weight += weight;
        if sum <= before {
            return sum;
        }
    }
}

/// (1 - x - Σ (1 - x^(2^-k))²·2^-k) / 3: the contribution of full registers, which matters for huge counts.
fn tau(mut x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return 0.0;
    }
    let (mut weight, mut sum) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = sum;
        weight *= 0.5;
        sum -= (1.0 - x).powi(2) * weight;
        if sum >= before {
            return sum / 3.0;
        }
    }
}

/// A key with many distinct peers, such as a source that contacts many destinations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread<const W: usize> {
    /// The key: `W` words of 64 bits.
    pub key: [u64; W],
    /// The estimate of the number of distinct peers, with bounds.
    pub spread: Estimate,
}

/// Rows of buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct SpreadSketch<const W: usize> {
    buckets: Vec<Bucket<W>>,
    width: usize,
    lanes: Lanes,
    pair_lanes: Lanes,
}

impl<const W: usize> SpreadSketch<W> {
    /// Creates an empty sketch of at most `bytes` bytes.
    ///
    /// # Errors
    /// The memory is less than one bucket in each row, or too much.
    pub fn with_bytes(bytes: usize, seed: &Seed) -> Result<Self, SizeError> {
        let row = ROWS * size_of::<Bucket<W>>();
        let width = SizeError::check(bytes, row)? / row;
        Ok(SpreadSketch {
            buckets: table(Bucket::EMPTY, ROWS * width),
            width,
            lanes: Lanes::new(seed, Purpose::Spread, 0),
            pair_lanes: Lanes::new(seed, Purpose::Spread, 1),
        })
    }

    /// Returns the number of bytes of the buckets, at most those given at creation.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket<W>>()
    }

    #[inline(always)]
    fn places(&self, hash: u64) -> [usize; ROWS] {
        let lanes = self.lanes.rows::<ROWS>(hash);
        std::array::from_fn(|row| row * self.width + below(lanes[row], self.width))
    }

    /// Fetches what [`SpreadSketch::update`] writes first.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        self.places(hash).into_iter().for_each(|place| weir_packet::prefetch(&self.buckets[place]));
    }

    /// Records that a key talks to a peer: the key, and the hash of both.
    #[inline]
    pub fn update(&mut self, key: &Item<W>, pair_hash: u64) {
        let bits = self.pair_lanes.bits(pair_hash, 0);
        let place = bits as usize % REGISTERS;
        let rank = 1 + (bits >> REGISTER_BITS | 1 << (u64::BITS - REGISTER_BITS)).trailing_zeros() as u8;
        let level = 1 + self.pair_lanes.bits(pair_hash, 1).leading_zeros() as u8;
        for bucket in self.places(key.hash) {
            self.buckets[bucket].add(&key.key, place, rank, level);
        }
    }

    /// The keys with `least` peers or more, those with most first; ties are ordered by key. A key with a
    /// hundredth of the pairs of one of its buckets is missed with probability 0.97; one with half of them in
    /// each bucket, with probability 1/8.
    #[must_use]
    pub fn spreaders(&self, least: f64, hash: impl Fn(&[u64; W]) -> u64) -> Vec<Spread<W>> {
        let counts: Vec<f64> = self.buckets.iter().map(Bucket::count).collect();
        let beside = counts[..self.width].iter().sum::<f64>() / self.width as f64;
        let large =
            self.buckets.iter().zip(&counts).filter(|(bucket, count)| bucket.level > 0 && **count >= least);
        let mut keys: Vec<[u64; W]> = large.map(|(bucket, _)| bucket.key).collect();
        keys.sort_unstable();
        keys.dedup();
        let spread = |key: &[u64; W]| self.places(hash(key)).map(|place| counts[place]);
        let spread = |key: &[u64; W]| spread(key).into_iter().fold(f64::INFINITY, f64::min);
        let all = keys.into_iter().map(|key| Spread { key, spread: bounded(spread(&key), beside) });
        let mut spreaders: Vec<Spread<W>> = all.filter(|one| one.spread.value >= least).collect();
        spreaders.sort_by(|one, other| {
            other.spread.value.total_cmp(&one.spread.value).then(one.key.cmp(&other.key))
        });
        spreaders
    }

    /// Adds what another sketch has recorded.
    ///
    /// # Errors
    /// Seeds or sizes differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        MergeError::unless(self.width == other.width && self.lanes == other.lanes)?;
        for (bucket, other) in
            self.buckets.iter_mut().zip(&other.buckets).filter(|(_, other)| other.level > 0)
        {
            bucket
                .registers
                .iter_mut()
                .zip(&other.registers)
                .for_each(|(one, other)| *one = (*one).max(*other));
            bucket.propose(&other.key, other.level);
        }
        Ok(())
    }

    /// The non-empty buckets, for a file: place, registers, candidate, level.
    pub fn filled(&self) -> impl Iterator<Item = (u32, &[u8; REGISTERS], &[u64; W], u8)> {
        let all = self.buckets.iter().enumerate().filter(|(_, bucket)| bucket.level > 0);
        all.map(|(place, bucket)| (place as u32, &bucket.registers, &bucket.key, bucket.level))
    }

    /// Fills a bucket as returned by [`SpreadSketch::filled`]. Returns false if no sketch of this size can
    /// have it.
    #[must_use]
    pub fn fill(&mut self, place: u32, registers: &[u8; REGISTERS], key: &[u64; W], level: u8) -> bool {
        let ranks_exist = registers.iter().all(|rank| usize::from(*rank) <= RANK_MAX);
        let Some(bucket) = self.buckets.get_mut(place as usize) else { return false };
        *bucket = Bucket { registers: *registers, key: *key, level };
        ranks_exist && level > 0
    }

    /// Empties all buckets and keeps the memory and the hash functions.
    pub fn clear(&mut self) {
        self.buckets.fill(Bucket::EMPTY);
    }
}

/// The least of three counters that share their buckets with others: these add e times the mean or more with
/// probability e^-3; the counter itself errs by three standard errors with probability 1/370.
fn bounded(value: f64, beside: f64) -> Estimate {
    let low = (value * (1.0 - 3.0 * ERROR) - std::f64::consts::E * beside - 1.0).max(0.0);
    Estimate { value, low, high: value * (1.0 + 3.0 * ERROR) + 1.0, confidence: 0.95 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyHash;
    use weir_packet::random::Random;

    const SEED: Seed = Seed::new([3, 4]);

    #[test]
    fn a_counter_counts_within_its_error() {
        let mut random = Random::new(5);
        for count in [1, 10, 100, 1000, 10_000, 100_000] {
            let (mut squares, mut sum) = (0.0, 0.0);
            for run in 0..100 {
                let mut sketch = SpreadSketch::<1>::with_bytes(1000, &Seed::new([run, 1])).unwrap();
                (0..count).for_each(|_| sketch.update(&Item { key: [1], hash: 1 }, random.bits()));
                let error = sketch.buckets[sketch.places(1)[0]].count() / f64::from(count) - 1.0;
                squares += error.powi(2);
                sum += error;
            }
            let error = (squares / 100.0_f64).sqrt();
            assert!(error < ERROR * 1.3 && (sum / 100.0).abs() < 0.03, "{count}: {error} {sum}");
        }
    }

    /// Keys 0 to 9 have 2000, 1800, ... peers; thousands of keys have a few.
    fn pairs() -> Vec<(u64, u64)> {
        let heavy = (0..10_u64).flat_map(|key| (0..2000 - 200 * key).map(move |other| (key, other)));
        heavy.chain((0..20_000).map(|number| (1000 + number % 7000, number))).collect()
    }

    fn sketch(pairs: &[(u64, u64)]) -> SpreadSketch<2> {
        let hash = KeyHash::new(&SEED);
        let mut sketch = SpreadSketch::with_bytes(1 << 20, &SEED).unwrap();
        for (key, other) in pairs {
            sketch.update(&hash.item([*key, 0]), hash.hash(&[*key, *other]));
        }
        sketch
    }

    #[test]
    fn spreaders_are_found_within_bounds() {
        let hash = KeyHash::new(&SEED);
        let found = sketch(&pairs()).spreaders(150.0, |key| hash.hash(key));
        let keys: std::collections::BTreeSet<u64> = found.iter().map(|one| one.key[0]).collect();
        assert_eq!(keys, (0..10).collect());
        for one in found {
            let truth = 2000 - 200 * one.key[0];
            assert!(one.spread.holds(truth as f64), "{one:?}: {truth}");
        }
    }

    #[test]
    fn order_and_repetition_leave_no_trace_and_merging_equals_one_stream() {
        let pairs = pairs();
        let whole = sketch(&pairs);
        let turned: Vec<_> = pairs.iter().rev().chain(&pairs[..500]).copied().collect();
        assert!(whole == sketch(&turned));
        let mut merged = sketch(&pairs[..9000]);
        assert!(merged != whole);
        merged.merge(&sketch(&pairs[5000..])).unwrap();
        assert!(merged == whole);
        merged.clear();
        assert!(merged.spreaders(0.0, |_| 0).is_empty());
        let other = SpreadSketch::with_bytes(1 << 19, &SEED).unwrap();
        assert!(merged.merge(&other).is_err());
    }
}
