//! UnivMon: one sketch for many questions: heavy hitters, changes, entropy, cardinality, any sum of a
//! function of flow sizes.
//!
//! Liu, Manousis, Vorsanger, Sekar and Braverman: One sketch to rule them all: rethinking network flow
//! monitoring with UnivMon, SIGCOMM 2016. Level 0 sees all keys, and each further level sees half of the keys
//! of the one before. A level is a count sketch with its heaviest keys. A sum Σ g(f) over all keys is
//! computed from the last level upwards: each level's sum is twice the next level's, corrected by its own
//! heavy keys. The sum exists for every g that grows no faster than the square.
//!
//! Levels are nested, and updated as far as a key is sampled: 2 levels on average. Counters do not depend on
//! how packets were aggregated before. Which keys are remembered may depend on it, if keys are about equally
//! heavy. The paper proves polylogarithmic memory for a relative error, without constants, so a sum has no
//! bound here; sizes and changes have those of [`CountSketch`].

use crate::count_sketch::CountSketch;
use weir_sketch::aggregator::Evicted;
use weir_sketch::counter::Counter;
use weir_sketch::estimate::{MergeError, SizeError};
use weir_sketch::hash::{Item, Lanes, Purpose, Seed};
use weir_sketch::memory::CHUNK;
use weir_sketch::ranked::{Ranked, Top, sorted};

/// A level: a sketch and its heaviest keys.
#[derive(Clone, Debug)]
struct SketchLevel<const W: usize, C> {
    sketch: CountSketch<C>,
    top: Ranked<W>,
}

/// A key and its signed size.
type Size<const W: usize> = (Item<W>, f64);

/// Levels of count sketches.
#[derive(Clone, Debug)]
pub struct UnivMon<const W: usize, C = i32> {
    levels: Vec<SketchLevel<W, C>>,
    lanes: Lanes,
    total: u64,
}

impl<const W: usize, C: Counter> UnivMon<W, C> {
    /// Creates an empty sketch of at most `bytes` bytes with `levels` levels (1 to 32), which remember `keys`
    /// keys each. Every level sees half of the keys of the one before, and has half of its memory, but not
    /// less than a 64th of the total.
    ///
    /// [`UnivMon::levels_for`] returns how many levels a number of flows needs. With fewer, the keys that the
    /// last level does not remember are missing from every sum, doubled once per level.
    ///
    /// # Errors
    /// The memory is too little for the keys, or too much.
    pub fn with_bytes(bytes: usize, levels: usize, keys: usize, seed: &Seed) -> Result<Self, SizeError> {
        let levels = levels.clamp(1, 32);
        let tops = levels * Ranked::<W>::bytes_for(keys);
        let bytes = SizeError::check(bytes, tops + 1024 * levels)? - tops;
        let weights = (0..levels).map(|level| 1.0 / (1_u64 << level.min(5)) as f64);
        let weights: Vec<f64> = weights.collect();
        let sum: f64 = weights.iter().sum();
        let level = |(level, weight): (usize, &f64)| {
            let bytes = (bytes as f64 * weight / sum) as usize;
            Ok(SketchLevel { sketch: CountSketch::part(bytes, seed, level as u64)?, top: Ranked::new(keys) })
        };
        let levels = weights.iter().enumerate().map(level).collect::<Result<_, SizeError>>()?;
        Ok(UnivMon { levels, lanes: Lanes::new(seed, Purpose::UnivMon, 0), total: 0 })
    }

    /// Returns the number of levels that `flows` flows need, so that the last level sees at most half as many
    /// flows as it remembers keys.
    #[must_use]
    pub fn levels_for(flows: u64, keys: usize) -> usize {
        let halvings = (2 * flows).div_ceil(keys.max(1) as u64).next_power_of_two().ilog2();
        (1 + halvings as usize).clamp(1, 32)
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.levels.iter().map(|level| level.sketch.bytes() + level.top.bytes()).sum()
    }

    /// The total count of all keys.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The last level that sees a key.
    #[inline(always)]
    fn depth(&self, hash: u64) -> usize {
        (self.lanes.bits(hash, 0).trailing_ones() as usize).min(self.levels.len() - 1)
    }

    /// Counts a key.
    #[inline(always)]
    pub fn update(&mut self, item: &Item<W>, count: u64) {
        self.total += count;
        let depth = self.depth(item.hash);
        for level in &mut self.levels[..=depth] {
            let size = level.sketch.update(item.hash, count);
            level.top.offer(item, size.max(0).cast_unsigned());
        }
    }

    /// Counts the packets of many keys, level by level.
    #[inline]
    pub fn add(&mut self, updates: &[Evicted<W>]) {
        for chunk in updates.chunks(CHUNK) {
            let mut depths = [0; CHUNK];
            for (depth, one) in depths.iter_mut().zip(chunk) {
                self.total += one.packets;
                *depth = self.depth(one.item.hash);
            }
            let (mut seen, mut from) = ([(0, 0); CHUNK], [0; CHUNK]);
            for (number, level) in self.levels.iter_mut().enumerate() {
                let mut count = 0;
                for (at, one) in chunk.iter().enumerate() {
                    (seen[count], from[count]) = ((one.item.hash, one.packets), at);
                    count += usize::from(depths[at] >= number);
                }
                if count == 0 {
                    break;
                }
                let SketchLevel { sketch, top } = level;
                sketch.add_chunk(&seen[..count], |at, size| {
                    top.offer(&chunk[from[at]].item, size.max(0).cast_unsigned());
                });
            }
        }
    }

    /// The keys with a size of `least` or more, the heaviest first.
    #[must_use]
    pub fn heavier(&self, least: u64) -> Vec<Top<W>> {
        let SketchLevel { sketch, top } = &self.levels[0];
        let deviation = sketch.deviation();
        top.top(|item| sketch.estimate(item.hash, deviation), least as f64)
    }

    /// Number of distinct keys.
    #[must_use]
    pub fn cardinality(&self) -> f64 {
        self.sum(|_| 1.0)
    }

    /// Entropy of the packets' keys, in bits: log2 N - Σ f·log2 f / N.
    #[must_use]
    pub fn entropy(&self) -> f64 {
        if self.total == 0 {
            return 0.0;
        }
        let total = self.total as f64;
        (total.log2() - self.sum(|size| size * size.log2()) / total).max(0.0)
    }

    /// Σ g(f) over all keys, f being their sizes, at least 1.
    #[must_use]
    pub fn sum(&self, g: impl Fn(f64) -> f64) -> f64 {
        let sizes = |level: &SketchLevel<W, C>| -> Vec<Size<W>> {
            level.top.iter().map(|(item, ..)| (*item, level.sketch.size(item.hash) as f64)).collect()
        };
        self.sum_over(self.levels.iter().map(sizes), |size| g(size.max(1.0)))
    }

    /// From the last level upwards: twice the next one's sum, plus g of the heavy keys that it does not see,
    /// minus g of the ones that it does see.
    fn sum_over(
        &self,
        levels: impl DoubleEndedIterator<Item = Vec<Size<W>>> + ExactSizeIterator,
        g: impl Fn(f64) -> f64,
    ) -> f64 {
        let last = self.levels.len() - 1;
        levels.enumerate().rev().fold(0.0, |below, (number, sizes)| {
            if number == last {
                return sizes.iter().map(|(_, size)| g(*size)).sum();
            }
            let correction = |(item, size): &Size<W>| {
                let is_seen_below = self.depth(item.hash) > number;
                if is_seen_below { -g(*size) } else { g(*size) }
            };
            (2.0 * below + sizes.iter().map(correction).sum::<f64>()).max(0.0)
        })
    }

    /// The keys that have changed by `least` or more since another sketch, the largest change first. The
    /// candidates are the heavy keys of both.
    ///
    /// # Errors
    /// Seeds or sizes differ.
    pub fn changes(&self, before: &Self, least: u64) -> Result<Vec<Top<W>>, MergeError> {
        self.check(before)?;
        let difference = self.levels[0].sketch.since(&before.levels[0].sketch)?;
        let error = 8.0_f64.sqrt() * difference.deviation();
        let both = self.levels[0].top.iter().chain(before.levels[0].top.iter());
        let mut items: Vec<Item<W>> = both.map(|(item, ..)| *item).collect();
        items.sort_unstable_by_key(|item| item.key);
        items.dedup();
        let change = |item: Item<W>| {
            let value = difference.size(item.hash) as f64;
            let mut size = difference.estimate(item.hash, 0.0);
            (size.value, size.low, size.high) = (value, value - error, value + error);
            Top { key: item.key, size }
        };
        let changes = items.into_iter().map(change);
        let mut changes = sorted(changes.filter(|top| top.size.value.abs() >= least as f64).collect());
        changes.sort_by(|one, other| other.size.value.abs().total_cmp(&one.size.value.abs()));
        Ok(changes)
    }

    fn check(&self, other: &Self) -> Result<(), MergeError> {
        MergeError::unless(self.levels.len() == other.levels.len() && self.lanes == other.lanes)
    }

    /// Adds the counts of another sketch.
    ///
    /// # Errors
    /// Seeds or sizes differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        self.check(other)?;
        for (level, other) in self.levels.iter_mut().zip(&other.levels) {
            let SketchLevel { sketch, top } = level;
            sketch.merge(&other.sketch)?;
            top.join(&other.top, |item| sketch.size(item.hash).max(0).cast_unsigned());
        }
        self.total += other.total;
        Ok(())
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        for level in &mut self.levels {
            level.sketch.clear();
            level.top.clear();
        }
        self.total = 0;
    }

    /// The counters of all levels, which do not depend on which keys are remembered.
    #[cfg(test)]
    pub(crate) fn counters(&self) -> Vec<CountSketch<C>> {
        self.levels.iter().map(|level| level.sketch.clone()).collect()
    }
}
