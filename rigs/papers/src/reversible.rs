//! The reversible sketch: which addresses send much more, or much less, than in the last interval.
//!
//! Schweller, Gupta, Parsons and Chen, IMC 2004: a k-ary sketch (Krishnamurthy, Sen, Zhang and Chen, IMC
//! 2003) whose columns come from modular hashing ([`crate::modular`]), so that the addresses behind columns
//! with a large change can be found without a list of candidates.
//!
//! Costs: four counters per packet; with the addresses' tables, 8 KiB, in the first-level cache.

use crate::count_sketch::majority_fails;
use crate::modular::{BITS_MAX, COLUMNS_MAX, Columns, Modular, ROWS, Reversed};
use weir_sketch::aggregator::Evicted;
use weir_sketch::counter::{Counter, merge, signed};
use weir_sketch::estimate::{Estimate, MergeError, SizeError};
use weir_sketch::hash::Seed;
use weir_sketch::memory::{in_chunks, table};

/// The share of the least change from which a column is considered: in some rows, the changes of other
/// addresses cancel part of an address's change; the median over all rows decides afterwards.
const COLUMN_SHARE: f64 = 0.5;

/// A change of one address.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AddressChange {
    /// The address, or its upper 64 bits (see [`weir_sketch::key::source_number`]).
    pub number: u64,
    /// How much it has grown; negative if it has shrunk.
    pub change: Estimate,
}

/// The changes that were found.
#[derive(Clone, Debug, PartialEq)]
pub struct Changes {
    /// The changes, the largest first.
    pub changes: Vec<AddressChange>,
    /// False if there were too many and some were omitted.
    pub is_complete: bool,
}

/// Numbers of `Q` bytes (4 or 8), counted in `4 * L` rows: `<4, 1>` for IPv4, `<8, 2>` for 64 bits of IPv6.
#[derive(Clone, Debug, PartialEq)]
pub struct Reversible<const Q: usize = 4, const L: usize = 1, C = u32> {
    counters: Vec<C>,
    modular: Modular<Q, L>,
    columns: usize,
}

impl<const Q: usize, const L: usize, C: Counter> Reversible<Q, L, C> {
    const LANES: usize = ROWS * L;

    /// Creates an empty sketch of at most `bytes` bytes: a power of two of columns, 65,536 at most, as the
    /// memory allows.
    ///
    /// # Errors
    /// The memory is less than that of 2^Q columns, or too much.
    pub fn with_bytes(bytes: usize, seed: &Seed) -> Result<Self, SizeError> {
        let tables = Q * 256 * size_of::<[u64; L]>();
        let bytes_for = |bits: u32| tables + ((Self::LANES * size_of::<C>()) << bits);
        let least = Q as u32;
        let bytes = SizeError::check(bytes, bytes_for(least))?;
        let bits = (least..=BITS_MAX).rev().find(|bits| bytes_for(*bits) <= bytes).unwrap_or(least);
        let modular = Modular::new(bits, seed);
        let columns = modular.columns();
        Ok(Reversible { counters: table(C::default(), Self::LANES * columns), modular, columns })
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.counters.len() * size_of::<C>() + self.modular.bytes()
    }

    /// The place of a number's counter in a row.
    #[inline(always)]
    fn place(&self, columns: &[u64; L], row: usize) -> usize {
        row * self.columns + Modular::<Q, L>::column(columns, row)
    }

    /// Counts a number.
    #[inline(always)]
    pub fn update(&mut self, number: u64, count: u64) {
        self.update_at(&self.modular.columns_of(number), count);
    }

    /// Counts the packets of many keys; `number` returns the number of a key.
    #[inline]
    pub fn add<const W: usize>(&mut self, updates: &[Evicted<W>], number: impl Fn(&[u64; W]) -> u64) {
        let find = |sketch: &Self, one: &Evicted<W>| {
            let columns = sketch.modular.columns_of(number(&one.item.key));
            for row in 0..Self::LANES {
                weir_packet::prefetch(&sketch.counters[sketch.place(&columns, row)]);
            }
            Columns(columns)
        };
        in_chunks(self, updates, find, |sketch, one, columns| sketch.update_at(&columns.0, one.packets));
    }

    #[inline(always)]
    fn update_at(&mut self, columns: &[u64; L], count: u64) {
        for row in 0..Self::LANES {
            let place = self.place(columns, row);
            self.counters[place].add(signed(count));
        }
    }

    /// The numbers that have changed by `least` or more since another sketch.
    ///
    /// # Errors
    /// Seeds or sizes differ.
    pub fn changes(&self, before: &Self, least: u64) -> Result<Changes, MergeError> {
        MergeError::unless(self.modular == before.modular)?;
        let pairs = self.counters.iter().zip(&before.counters);
        let differences: Vec<i64> = pairs.map(|(now, then)| now.get() - then.get()).collect();
        let (mut numbers, mut is_complete) = (Vec::new(), true);
        for sign in [1, -1] {
            let found = self.reverse(&differences, sign, least);
            numbers.extend(found.numbers);
            is_complete &= found.is_complete;
        }
        let sum: i64 = differences[..self.columns].iter().sum();
        let error = 4.0 * deviation(&differences, self.columns, sum);
        let mut changes: Vec<AddressChange> = numbers
            .into_iter()
            .map(|number| AddressChange { number, change: self.change(number, &differences, sum, error) })
            .filter(|change| change.change.value.abs() >= least as f64)
            .collect();
        changes.sort_by(|one, other| {
            let sizes = other.change.value.abs().total_cmp(&one.change.value.abs());
            sizes.then(one.number.cmp(&other.number))
        });
        Ok(Changes { changes, is_complete })
    }

    /// The numbers whose columns have all changed in the direction of `sign`, by [`COLUMN_SHARE`] of `least`
    /// or more. Growth and shrinkage are searched separately: what has grown is in no column that has shrunk,
    /// so half as many columns are mistaken for each other.
    fn reverse(&self, differences: &[i64], sign: i64, least: u64) -> Reversed {
        let least = (least as f64 * COLUMN_SHARE).ceil().max(1.0) as i64;
        let mut is_complete = true;
        let rows = differences.chunks_exact(self.columns).map(|row| {
            let mut heavy: Vec<usize> = (0..row.len()).filter(|at| row[*at] * sign >= least).collect();
            heavy.sort_by_key(|at| std::cmp::Reverse(row[*at] * sign));
            is_complete &= heavy.len() <= COLUMNS_MAX;
            heavy.truncate(COLUMNS_MAX);
            heavy
        });
        let heavy: Vec<Vec<usize>> = rows.collect();
        let mut found = self.modular.reverse(&heavy);
        found.is_complete &= is_complete;
        found
    }

    /// The estimate of a k-ary sketch: in each row, the column's difference minus what all other keys add on
    /// average; over the rows, the median.
    fn change(&self, number: u64, differences: &[i64], sum: i64, error: f64) -> Estimate {
        let columns = self.modular.columns_of(number);
        let width = self.columns as f64;
        let mut rows: Vec<f64> = (0..Self::LANES)
            .map(|row| {
                let seen = differences[self.place(&columns, row)] as f64;
                (seen - sum as f64 / width) / (1.0 - 1.0 / width)
            })
            .collect();
        rows.sort_by(f64::total_cmp);
        let value = f64::midpoint(rows[Self::LANES / 2 - 1], rows[Self::LANES / 2]);
        let confidence = 1.0 - majority_fails(Self::LANES as u32, 1.0 / 16.0);
        Estimate { value, low: value - error, high: value + error, confidence }
    }

    /// Adds the counts of another sketch.
    ///
    /// # Errors
    /// Seeds or sizes differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        MergeError::unless(self.modular == other.modular)?;
        merge(&mut self.counters, &other.counters);
        Ok(())
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.counters.fill(C::default());
    }
}

/// The standard deviation of an estimate in one row, sqrt(F2/(K - 1)), from the median row.
fn deviation(differences: &[i64], columns: usize, sum: i64) -> f64 {
    let width = columns as f64;
    let mut rows: Vec<f64> = differences
        .chunks_exact(columns)
        .map(|row| row.iter().map(|difference| (*difference as f64).powi(2)).sum())
        .collect();
    rows.sort_by(f64::total_cmp);
    let squares = rows[rows.len() / 2];
    let second_moment = width / (width - 1.0) * squares - (sum as f64).powi(2) / (width - 1.0);
    (second_moment.max(0.0) / (width - 1.0)).sqrt()
}
