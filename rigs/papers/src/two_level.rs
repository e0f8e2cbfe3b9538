//! TwoLevel: which sources talk to many destinations (super-spreaders), or which destinations are talked to
//! by many sources.
//!
//! As measured by OpenSketch (Yu, Jose and Miao: Software defined traffic measurement with OpenSketch, NSDI
//! 2013), and as run by Agg-Evict: a reversible sketch whose cells are small bitmaps finds the sources, and a
//! Count-Min whose cells are larger bitmaps shows how many destinations they have. A pair sets one bit in a
//! cell of every row; many packets of it set the same bits, so only different destinations count.
//!
//! The bitmaps of the second level are multiresolution bitmaps (Estan, Varghese and Fisk: Bitmap algorithms
//! for counting active flows on high-speed links, IMC 2003): eight components of 64 bits, each for half of
//! the keys that the one before leaves. They count up to [`COUNT_MAX`] destinations with a relative standard
//! error of [`ERROR`]; beyond that, they only report that there are more.

use crate::modular::{BITS_MAX, COLUMNS_MAX, Columns, Modular, ROWS};
use weir_sketch::aggregator::Evicted;
use weir_sketch::estimate::{Estimate, MergeError, SizeError};
use weir_sketch::hash::{Lanes, Purpose, Seed, below};
use weir_sketch::memory::{in_chunks, table};
use weir_sketch::mrac::linear_count;

/// Rows of the second level.
const SECOND_ROWS: usize = 3;

/// Components of a bitmap.
const COMPONENTS: usize = 8;

/// The number of set bits up to which a component counts well: beyond that, the next one does.
const FILLED: u32 = 54;

/// The relative standard error of a bitmap.
pub const ERROR: f64 = 0.14;

/// The most destinations that a bitmap counts; above, the last component is nearly full.
pub const COUNT_MAX: f64 = 12_000.0;

/// The first level's share of the memory: 1 / 4.
const FIRST_SHARE: usize = 4;

/// A multiresolution bitmap: a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
struct Bitmap([u64; COMPONENTS]);

impl Bitmap {
    const EMPTY: Bitmap = Bitmap([0; COMPONENTS]);

    #[inline(always)]
    fn add(&mut self, bits: u64) {
        let component = (bits >> 32).trailing_zeros().min(COMPONENTS as u32 - 1);
        self.0[component as usize] |= 1 << (bits & 63);
    }

    /// Number of distinct keys.
    fn count(&self) -> f64 {
        let is_filled = |component: &&u64| component.count_ones() > FILLED;
        let base = self.0[..COMPONENTS - 1].iter().take_while(is_filled).count();
        let counted = |component: &u64| linear_count(64.0, f64::from(component.count_zeros().max(1)));
        self.0[base..].iter().map(counted).sum::<f64>() * (1_u64 << base) as f64
    }
}

/// A source with many destinations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spreader {
    /// The address, or its upper 64 bits (see [`weir_sketch::key::source_number`]).
    pub number: u64,
    /// Number of distinct destinations.
    pub spread: Estimate,
}

/// The super-spreaders that were found.
#[derive(Clone, Debug, PartialEq)]
pub struct Spreaders {
    /// The sources, those with most destinations first.
    pub spreaders: Vec<Spreader>,
    /// False if there were too many and some were omitted.
    pub is_complete: bool,
}

/// Sources of `Q` bytes (4 or 8), in `4 * L` rows of the first level.
#[derive(Clone, Debug, PartialEq)]
pub struct TwoLevel<const Q: usize = 4, const L: usize = 1> {
    modular: Modular<Q, L>,
    columns: usize,
    /// Bitmaps of 64 bits.
    first: Vec<u64>,
    width: usize,
    second: Vec<Bitmap>,
    lanes: Lanes,
    bit_lanes: Lanes,
}

impl<const Q: usize, const L: usize> TwoLevel<Q, L> {
    const FIRST_ROWS: usize = ROWS * L;

    /// Creates an empty sketch of at most `bytes` bytes.
    ///
    /// # Errors
    /// The memory is less than 2^Q columns of the first level need, or too much.
    pub fn with_bytes(bytes: usize, seed: &Seed) -> Result<Self, SizeError> {
        let tables = Q * 256 * size_of::<[u64; L]>();
        let bytes_for = |bits: u32| tables + ((Self::FIRST_ROWS * size_of::<u64>()) << bits);
        let bytes = SizeError::check(bytes, bytes_for(Q as u32) + SECOND_ROWS * size_of::<Bitmap>())?;
        let fits = |bits: &u32| bytes_for(*bits) <= bytes / FIRST_SHARE;
        let bits = (Q as u32..=BITS_MAX).rev().find(fits).unwrap_or(Q as u32);
        let modular = Modular::new(bits, seed);
        let columns = modular.columns();
        let width = (bytes - bytes_for(bits)) / (SECOND_ROWS * size_of::<Bitmap>());
        Ok(TwoLevel {
            modular,
            columns,
            first: table(0, Self::FIRST_ROWS * columns),
            width,
            second: table(Bitmap::EMPTY, SECOND_ROWS * width),
            lanes: Lanes::new(seed, Purpose::TwoLevel, 0),
            bit_lanes: Lanes::new(seed, Purpose::TwoLevel, 1),
        })
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let first = self.first.len() * size_of::<u64>() + self.modular.bytes();
        first + self.second.len() * size_of::<Bitmap>()
    }

    #[inline(always)]
    fn places(&self, number: u64) -> [usize; SECOND_ROWS] {
        let lanes = self.lanes.rows::<SECOND_ROWS>(self.bit_lanes.bits(number, 1));
        std::array::from_fn(|row| row * self.width + below(lanes[row], self.width))
    }

    /// Records a source (a number, see [`weir_sketch::key::source_number`]) and the hash of source and
    /// destination.
    #[inline(always)]
    pub fn update(&mut self, source: u64, pair_hash: u64) {
        self.update_at(&self.modular.columns_of(source), self.places(source), pair_hash);
    }

    /// Records the pairs of many keys; `source` returns a key's source, and its hash is that of the pair.
    #[inline]
    pub fn add<const W: usize>(&mut self, updates: &[Evicted<W>], source: impl Fn(&[u64; W]) -> u64) {
        let find = |sketch: &Self, one: &Evicted<W>| {
            let source = source(&one.item.key);
            let columns = sketch.modular.columns_of(source);
            for row in 0..Self::FIRST_ROWS {
                weir_packet::prefetch(&sketch.first[sketch.first_place(&columns, row)]);
            }
            let places = sketch.places(source);
            places.iter().for_each(|place| weir_packet::prefetch(&sketch.second[*place]));
            (Columns(columns), places)
        };
        in_chunks(self, updates, find, |sketch, one, (columns, places)| {
            sketch.update_at(&columns.0, places, one.item.hash);
        });
    }

    #[inline(always)]
    fn first_place(&self, columns: &[u64; L], row: usize) -> usize {
        row * self.columns + Modular::<Q, L>::column(columns, row)
    }

    #[inline(always)]
    fn update_at(&mut self, columns: &[u64; L], places: [usize; SECOND_ROWS], pair_hash: u64) {
        let bits = self.bit_lanes.bits(pair_hash, 0);
        for row in 0..Self::FIRST_ROWS {
            let place = self.first_place(columns, row);
            self.first[place] |= 1 << (bits >> 58);
        }
        for place in places {
            self.second[place].add(bits);
        }
    }

    /// Number of destinations of a source. Other sources in the same cells make it larger; their contribution
    /// is estimated from the mean of all cells, and bounds allow for it.
    #[must_use]
    pub fn spread(&self, source: u64) -> Estimate {
        let beside = self.mean_spread();
        self.spread_beside(source, beside)
    }

    fn spread_beside(&self, source: u64, beside: f64) -> Estimate {
        let counts = self.places(source).map(|place| self.second[place].count());
        let value = counts.into_iter().fold(f64::INFINITY, f64::min);
        let low = (value * (1.0 - 3.0 * ERROR) - std::f64::consts::E * beside - 1.0).max(0.0);
        let high = if value > COUNT_MAX { f64::INFINITY } else { value * (1.0 + 3.0 * ERROR) + 1.0 };
        Estimate { value, low, high, confidence: 0.95 }
    }

    /// The mean number of pairs in a cell of the second level.
    fn mean_spread(&self) -> f64 {
        let row = &self.second[..self.width];
        row.iter().map(Bitmap::count).sum::<f64>() / self.width as f64
    }

    /// The sources with at least `least` destinations.
    #[must_use]
    pub fn spreaders(&self, least: u64) -> Spreaders {
        let heavy: Vec<Vec<usize>> =
            self.first.chunks_exact(self.columns).map(|row| fullest(row, least)).collect();
        let is_whole = heavy.iter().all(|columns| columns.len() <= COLUMNS_MAX);
        let heavy: Vec<Vec<usize>> =
            heavy.into_iter().map(|row| row.into_iter().take(COLUMNS_MAX).collect()).collect();
        let found = self.modular.reverse(&heavy);
        let beside = self.mean_spread();
        let all = found.numbers.into_iter();
        let mut spreaders: Vec<Spreader> = all
            .map(|number| Spreader { number, spread: self.spread_beside(number, beside) })
            .filter(|spreader| spreader.spread.value >= least as f64)
            .collect();
        spreaders.sort_by(|one, other| {
            other.spread.value.total_cmp(&one.spread.value).then(one.number.cmp(&other.number))
        });
        Spreaders { spreaders, is_complete: found.is_complete && is_whole }
    }

    /// Adds what another sketch has recorded.
    ///
    /// # Errors
    /// Seeds or sizes differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        MergeError::unless(self.width == other.width && self.modular == other.modular)?;
        for (word, other) in self.first.iter_mut().zip(&other.first) {
            *word |= other;
        }
        for (bitmap, other) in self.second.iter_mut().zip(&other.second) {
            bitmap.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
        }
        Ok(())
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.first.fill(0);
        self.second.fill(Bitmap::EMPTY);
    }
}

/// The columns of a row that are at least as full as `least` destinations would make them, the fullest first.
/// A column with `n` destinations has 64·(1 - e^(-n/64)) bits on average, and three standard deviations less
/// with probability 1/700.
fn fullest(row: &[u64], least: u64) -> Vec<usize> {
    let load = least as f64 / 64.0;
    let mean = 64.0 * -(-load).exp_m1();
    let variance = 64.0 * (-load).exp() * (1.0 - (1.0 + load) * (-load).exp());
    let bits = (mean - 3.0 * variance.max(0.0).sqrt()).max(1.0);
    let mut full: Vec<usize> =
        (0..row.len()).filter(|column| f64::from(row[*column].count_ones()) >= bits).collect();
    full.sort_by_key(|column| row[*column].count_zeros());
    full
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_packet::random::Random;

    #[test]
    fn a_bitmap_counts_within_its_error() {
        let mut random = Random::new(5);
        for count in [1, 10, 50, 100, 300, 1000, 3000, 7000, 12_000] {
            let mut squares = 0.0;
            for _ in 0..200 {
                let mut bitmap = Bitmap::EMPTY;
                (0..count).for_each(|_| bitmap.add(random.bits()));
                squares += (bitmap.count() / f64::from(count) - 1.0).powi(2);
            }
            let error = (squares / 200.0_f64).sqrt();
            assert!(error < ERROR * 1.1, "{count}: {error}");
        }
    }
}
