//! Count sketch: the size of any flow, without bias, with an error that depends only on the tail.
//!
//! Charikar, Chen and Farach-Colton: Finding frequent items in data streams, ICALP 2002. `D` rows of signed
//! counters; a key adds its count with its own sign, and its size is the median over the rows. In one row,
//! the error exceeds sqrt(8·F2/w) with probability 1/8 (Chebyshev), F2 being the sum of the squares of all
//! sizes, which the sketch estimates, too.

use crate::count_min::Places;
use weir_sketch::counter::{Counter, merge, signed};
use weir_sketch::estimate::{Estimate, MergeError, SizeError};
use weir_sketch::hash::{Lanes, Purpose, Seed, below};
use weir_sketch::memory::{CHUNK, table};

/// `D` rows of signed counters.
#[derive(Clone, Debug, PartialEq)]
pub struct CountSketch<C = i32, const D: usize = 5> {
    counters: Vec<C>,
    width: usize,
    lanes: Lanes,
}

impl<C: Counter, const D: usize> CountSketch<C, D> {
    /// Creates an empty sketch of at most `bytes` bytes.
    ///
    /// # Errors
    /// The memory is less than one counter for each row, or too much.
    pub fn with_bytes(bytes: usize, seed: &Seed) -> Result<Self, SizeError> {
        CountSketch::part(bytes, seed, 0)
    }

    /// Creates the sketch as one of several parts of another sketch.
    pub(crate) fn part(bytes: usize, seed: &Seed, part: u64) -> Result<Self, SizeError> {
        let row = D * size_of::<C>();
        let width = SizeError::check(bytes, row)? / row;
        let lanes = Lanes::new(seed, Purpose::CountSketch, part);
        Ok(CountSketch { counters: table(C::default(), D * width), width, lanes })
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.counters.len() * size_of::<C>()
    }

    /// The counter of each row, and 0 or -1: the lowest bit of a lane, which hardly affects its position.
    #[inline(always)]
    fn places(&self, hash: u64) -> [(usize, i64); D] {
        let lanes = self.lanes.rows::<D>(hash);
        std::array::from_fn(|row| {
            (row * self.width + below(lanes[row], self.width), -i64::from(lanes[row] & 1))
        })
    }

    /// Fetches the counters of a hash, and returns their places, doubled, with the signs in the lowest bits.
    #[inline(always)]
    fn fetched(&self, hash: u64) -> Places<D> {
        let (lanes, mut places) = (self.lanes.rows::<D>(hash), Places::default());
        for (row, lane) in lanes.into_iter().enumerate() {
            let place = row * self.width + below(lane, self.width);
            weir_packet::prefetch(&self.counters[place]);
            places.0[row] = (place as u32) << 1 | lane & 1;
        }
        places
    }

    /// Counts a key, and returns its current estimate.
    #[inline(always)]
    pub fn update(&mut self, hash: u64, count: u64) -> i64 {
        let places = self.fetched(hash);
        self.update_at(&places, count)
    }

    /// Counts up to [`CHUNK`] keys, whose places are found first, and passes the size of each to `sized`.
    #[inline(always)]
    pub(crate) fn add_chunk(&mut self, chunk: &[(u64, u64)], mut sized: impl FnMut(usize, i64)) {
        let mut places = [Places::default(); CHUNK];
        for (place, (hash, _)) in places.iter_mut().zip(chunk) {
            *place = self.fetched(*hash);
        }
        for (at, (_, count)) in chunk.iter().enumerate() {
            sized(at, self.update_at(&places[at], *count));
        }
    }

    #[inline(always)]
    fn update_at(&mut self, places: &Places<D>, count: u64) -> i64 {
        let (count, mut sizes) = (signed(count), [0; D]);
        for (size, place) in sizes.iter_mut().zip(places.0) {
            let sign = -i64::from(place & 1);
            let counter = &mut self.counters[(place >> 1) as usize];
            counter.add((count ^ sign) - sign);
            *size = (counter.get() ^ sign) - sign;
        }
        median(sizes)
    }

    /// The size of a key; for small keys it may be negative.
    #[must_use]
    pub fn size(&self, hash: u64) -> i64 {
        median(self.places(hash).map(|(place, sign)| (self.counters[place].get() ^ sign) - sign))
    }

    /// The size of a key, and its bounds; [`CountSketch::deviation`] is passed because it reads everything.
    #[must_use]
    pub fn estimate(&self, hash: u64, deviation: f64) -> Estimate {
        let value = (self.size(hash) as f64).max(0.0);
        let error = 8.0_f64.sqrt() * deviation;
        let (low, high) = ((value - error).max(0.0), value + error);
        Estimate { value, low, high, confidence: 1.0 - majority_fails(D as u32, 1.0 / 8.0) }
    }

    /// The standard deviation of a size in one row: sqrt(F2/w).
    #[must_use]
    pub fn deviation(&self) -> f64 {
        (self.second_moment() / self.width as f64).sqrt()
    }

    /// F2: the sum of the squares of all sizes (Alon, Matias and Szegedy, 1996).
    #[must_use]
    pub fn second_moment(&self) -> f64 {
        let mut rows: Vec<f64> = self
            .counters
            .chunks_exact(self.width)
            .map(|row| row.iter().map(|counter| (counter.get() as f64).powi(2)).sum())
            .collect();
        rows.sort_by(f64::total_cmp);
        rows[rows.len() / 2]
    }

    /// Adds what another sketch has counted.
    ///
    /// # Errors
    /// Seeds or sizes differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        MergeError::unless(self.width == other.width && self.lanes == other.lanes)?;
        merge(&mut self.counters, &other.counters);
        Ok(())
    }

    /// The changes since another sketch, as a sketch.
    ///
    /// # Errors
    /// Seeds or sizes differ.
    pub fn since(&self, before: &Self) -> Result<CountSketch<i64, D>, MergeError> {
        MergeError::unless(self.width == before.width && self.lanes == before.lanes)?;
        let pairs = self.counters.iter().zip(&before.counters);
        let counters = pairs.map(|(now, then)| now.get() - then.get()).collect();
        Ok(CountSketch { counters, width: self.width, lanes: self.lanes })
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.counters.fill(C::default());
    }
}

/// The probability that at least half of `rows` fail, each with probability `p`.
pub(crate) fn majority_fails(rows: u32, p: f64) -> f64 {
    let mut ways = 1.0;
    let mut sum = 0.0;
    for failing in 0..=rows {
        if failing >= rows.div_ceil(2) {
            sum += ways * p.powi(failing as i32) * (1.0 - p).powi((rows - failing) as i32);
        }
        ways = ways * f64::from(rows - failing) / f64::from(failing + 1);
    }
    sum
}

/// Returns the median; the mean of the middle two for an even number. Sorts its input, which is short.
#[inline(always)]
fn median<const D: usize>(mut values: [i64; D]) -> i64 {
    if D == 5 {
        return median_of_five(values[0], values[1], values[2], values[3], values[4]);
    }
    values.sort_unstable();
    if D % 2 == 1 { values[D / 2] } else { i64::midpoint(values[D / 2 - 1], values[D / 2]) }
}

/// The median of five without branches: it is the median of the fifth number, the larger of two pairs'
/// minima, and the smaller of their maxima.
#[inline(always)]
fn median_of_five(a: i64, b: i64, c: i64, d: i64, e: i64) -> i64 {
    let low = a.min(b).max(c.min(d));
    let high = a.max(b).min(c.max(d));
    let (low, high) = (low.min(high), low.max(high));
    e.clamp(low, high)
}

#[cfg(test)]
mod tests {
    use super::median;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_median_is_in_the_middle(values in prop::array::uniform5(-20_i64..20)) {
            let mut sorted = values;
            sorted.sort_unstable();
            prop_assert_eq!(median(values), sorted[2]);
            let [a, b, c, d, _] = values;
            let mut four = [a, b, c, d];
            let mut three = [a, b, c];
            three.sort_unstable();
            prop_assert_eq!(median([a, b, c]), three[1]);
            four.sort_unstable();
            prop_assert_eq!(median([a, b, c, d]), i64::midpoint(four[1], four[2]));
        }
    }

    #[test]
    fn a_majority_fails_as_the_binomial_says() {
        assert!((super::majority_fails(3, 0.5) - 0.5).abs() < 1e-12);
        assert!((super::majority_fails(5, 0.125) - 0.016_052).abs() < 1e-5);
    }
}
