//! Count-Min: the size of any flow, never too small.
//!
//! Cormode and Muthukrishnan: An improved data stream summary: the count-min sketch and its applications, J.
//! Algorithms 55(1), 2005. `D` rows of counters; a key adds to one counter in each row, and its size is the
//! least of these. With w counters in a row and N counted in all, the estimate is not less than the truth,
//! and more than the truth + e·N/w with probability e^-D at most.

use weir_sketch::aggregator::Evicted;
use weir_sketch::counter::{Counter, merge, signed};
use weir_sketch::estimate::{Estimate, MergeError, SizeError};
use weir_sketch::hash::{Item, Lanes, Purpose, Seed, below};
use weir_sketch::memory::{in_chunks, table};
use weir_sketch::ranked::{Ranked, Top};

/// The places of one update: places in a table, one for each row.
#[derive(Clone, Copy)]
pub(crate) struct Places<const D: usize>(pub(crate) [u32; D]);

impl<const D: usize> Default for Places<D> {
    fn default() -> Places<D> {
        Places([0; D])
    }
}

/// `D` rows of counters.
#[derive(Clone, Debug, PartialEq)]
pub struct CountMin<C = u32, const D: usize = 4> {
    counters: Vec<C>,
    width: usize,
    total: u64,
    lanes: Lanes,
}

impl<C: Counter, const D: usize> CountMin<C, D> {
    /// Creates an empty sketch of at most `bytes` bytes.
    ///
    /// # Errors
    /// The memory is less than one counter for each row, or too much.
    pub fn with_bytes(bytes: usize, seed: &Seed) -> Result<Self, SizeError> {
        let row = D * size_of::<C>();
        let width = SizeError::check(bytes, row)? / row;
        let lanes = Lanes::new(seed, Purpose::CountMin, 0);
        Ok(CountMin { counters: table(C::default(), D * width), width, total: 0, lanes })
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.counters.len() * size_of::<C>()
    }

    /// Number of counters in a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
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

    /// Fetches the counters of a hash, and returns their places.
    #[inline(always)]
    fn fetched(&self, hash: u64) -> Places<D> {
        let (lanes, mut places) = (self.lanes.rows::<D>(hash), Places::default());
        for (row, lane) in lanes.into_iter().enumerate() {
            let place = row * self.width + below(lane, self.width);
            weir_packet::prefetch(&self.counters[place]);
            places.0[row] = place as u32;
        }
        places
    }

    /// Counts a key, and returns its current estimate.
    #[inline(always)]
    pub fn update(&mut self, hash: u64, count: u64) -> u64 {
        let places = self.fetched(hash);
        self.update_at(&places, count)
    }

    /// Counts the packets of many keys.
    #[inline]
    pub fn add<const W: usize>(&mut self, updates: &[Evicted<W>]) {
        in_chunks(
            self,
            updates,
            |sketch, one| sketch.fetched(one.item.hash),
            |sketch, one, places| _ = sketch.update_at(&places, one.packets),
        );
    }

    #[inline(always)]
    fn update_at(&mut self, places: &Places<D>, count: u64) -> u64 {
        self.total += count;
        let mut least = i64::MAX;
        for place in places.0 {
            let counter = &mut self.counters[place as usize];
            counter.add(signed(count));
            least = least.min(counter.get());
        }
        least.cast_unsigned()
    }

    /// The size of a key.
    #[must_use]
    pub fn size(&self, hash: u64) -> u64 {
        let sizes = self.places(hash).map(|place| self.counters[place].get());
        sizes.into_iter().min().unwrap_or(0).cast_unsigned()
    }

    /// The size of a key, and its bounds.
    #[must_use]
    pub fn estimate(&self, hash: u64) -> Estimate {
        let value = self.size(hash) as f64;
        let error = std::f64::consts::E * self.total as f64 / self.width as f64;
        Estimate { value, low: (value - error).max(0.0), high: value, confidence: 1.0 - (-(D as f64)).exp() }
    }

    /// Adds the counts of another sketch.
    ///
    /// # Errors
    /// Seeds or sizes differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        MergeError::unless(self.width == other.width && self.lanes == other.lanes)?;
        merge(&mut self.counters, &other.counters);
        self.total += other.total;
        Ok(())
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.counters.fill(C::default());
        self.total = 0;
    }
}

/// Count-Min with the keys whose size was largest when they were counted: heavy hitters.
///
/// A key is compared with the lightest of the `keys` whenever it is counted, so at the end the `keys` largest
/// estimates are present. A key is missing only if the sketch overestimates `keys` others beyond its size.
#[derive(Clone, Debug)]
pub struct HeavyHitters<const W: usize, C = u32, const D: usize = 4> {
    sketch: CountMin<C, D>,
    top: Ranked<W>,
}

impl<const W: usize, C: Counter, const D: usize> HeavyHitters<W, C, D> {
    /// Creates an empty sketch of at most `bytes` bytes, which remembers `keys` keys.
    ///
    /// # Errors
    /// The memory is too little for the keys and one counter in each row, or too much.
    pub fn with_bytes(bytes: usize, keys: usize, seed: &Seed) -> Result<Self, SizeError> {
        let top = Ranked::<W>::bytes_for(keys);
        let bytes = SizeError::check(bytes, top + D * size_of::<C>())?;
        Ok(HeavyHitters { sketch: CountMin::with_bytes(bytes - top, seed)?, top: Ranked::new(keys) })
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.sketch.bytes() + self.top.bytes()
    }

    /// The sketch, which can estimate the size of any key.
    #[must_use]
    pub fn sketch(&self) -> &CountMin<C, D> {
        &self.sketch
    }

    /// Counts a key.
    #[inline(always)]
    pub fn update(&mut self, item: &Item<W>, count: u64) {
        let size = self.sketch.update(item.hash, count);
        self.top.offer(item, size);
    }

    /// Counts the packets of many keys.
    #[inline]
    pub fn add(&mut self, updates: &[Evicted<W>]) {
        in_chunks(
            self,
            updates,
            |heavy, one| heavy.sketch.fetched(one.item.hash),
            |heavy, one, places| {
                let size = heavy.sketch.update_at(&places, one.packets);
                heavy.top.offer(&one.item, size);
            },
        );
    }

    /// The keys with a size of at least `least`, the heaviest first.
    #[must_use]
    pub fn heavier(&self, least: u64) -> Vec<Top<W>> {
        self.top.top(|item| self.sketch.estimate(item.hash), least as f64)
    }

    /// Adds the counts of another sketch; keys that either remembers stay if they are among the heaviest.
    ///
    /// # Errors
    /// Seeds or sizes differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        self.sketch.merge(&other.sketch)?;
        self.top.join(&other.top, |item| self.sketch.size(item.hash));
        Ok(())
    }
}
