//! Sketches in the format of Apache DataSketches, which its libraries for Java, C++, Python and Go read:
//! number of flows (HLL), quantiles (KLL), frequent items.
//!
//! The algorithms are those of Apache's own crate. HLL receives keys as their keyed hash, so its files merge
//! only with files of equal seeds; frequent items are written as text, and merge with any others.

use crate::estimate::{Estimate, MergeError};
use datasketches::common::{NumStdDev, SearchCriteria};
use datasketches::error::Error;
use datasketches::hll::{HllSketch, HllType, HllUnion};
use datasketches::kll::{KllFloat, KllSketch};

/// A file is not in the expected format.
#[derive(Debug, thiserror::Error)]
#[error("not a sketch of this kind: {0}")]
pub struct FormatError(#[from] Error);

/// Number of distinct keys: HyperLogLog (Flajolet, Fusy, Gandouet, Meunier: HyperLogLog, AofA 2007), with the
/// estimator of historic inverse probability. 2^12 registers: a relative standard error of 1.3 %, 1.6 % once
/// merged.
#[derive(Clone, Debug)]
pub struct Distinct(HllSketch);

/// Registers, as a power of two.
const REGISTERS: u8 = 12;

impl Default for Distinct {
    fn default() -> Distinct {
        Distinct(HllSketch::new(REGISTERS, HllType::Hll8).expect("between 4 and 21"))
    }
}

impl Distinct {
    /// Records a key by its 64-bit hash. Recording it again changes nothing.
    #[inline]
    pub fn update(&mut self, hash: u64) {
        self.0.update(hash);
    }

    /// Estimates the number of distinct keys, with bounds of three standard errors (99.7 %).
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        let (low, high) = (self.0.lower_bound(NumStdDev::Three), self.0.upper_bound(NumStdDev::Three));
        Estimate { value: self.0.estimate(), low, high, confidence: 0.997 }
    }

    /// Adds what another sketch, whose seed must be equal, has recorded.
    pub fn merge(&mut self, other: &Distinct) {
        let mut union = HllUnion::new(REGISTERS).expect("between 4 and 21");
        union.update(&self.0);
        union.update(&other.0);
        self.0 = union.to_sketch(HllType::Hll8);
    }

    /// Returns the number of bytes of memory, as the library estimates it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.estimated_size()
    }

    /// Writes the sketch in Apache's format.
    #[must_use]
    pub fn to_file(&self) -> Vec<u8> {
        self.0.serialize()
    }

    /// Reads Apache's format.
    ///
    /// # Errors
    /// The bytes are not in Apache's format, or are truncated.
    pub fn from_file(bytes: &[u8]) -> Result<Distinct, FormatError> {
        let read = HllSketch::deserialize(bytes)?;
        // The library accepts some sketches whose parts contradict each other, and then writes files that it
        // cannot read itself.
        HllSketch::deserialize(&read.serialize())?;
        Ok(Distinct(read))
    }
}

/// Quantiles of numbers: KLL (Karnin, Lang and Liberty: Optimal quantile approximation in streams, FOCS
/// 2016). The rank of a quantile is within 0.14 % of the requested one with probability 0.99.
#[derive(Clone, Debug)]
pub struct Quantiles(KllSketch<KllFloat<f64>>);

/// KLL's k, which determines its error and its memory. An update costs half as much as with k = 200, because
/// the lowest level, which is sorted whenever it is full, is larger.
const K: u16 = 2048;

impl Default for Quantiles {
    fn default() -> Quantiles {
        Quantiles(KllSketch::new(K).expect("between 8 and 65535"))
    }
}

impl Quantiles {
    /// Records a number; a number that is not finite is ignored.
    #[inline]
    pub fn update(&mut self, number: f64) {
        if number.is_finite()
            && let Ok(number) = KllFloat::<f64>::new(number)
        {
            self.0.update(number);
        }
    }

    /// How many numbers were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.n()
    }

    /// The number that a share (0 to 1) of all numbers do not exceed, with bounds; `None` without numbers.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Estimate> {
        let at = |share: f64| {
            let found = self.0.quantile(share.clamp(0.0, 1.0), SearchCriteria::Inclusive);
            found.ok().flatten().map(KllFloat::into_inner)
        };
        let error = if self.0.is_estimation_mode() { self.0.normalized_rank_error() } else { 0.0 };
        let (value, low, high) = (at(share)?, at(share - error)?, at(share + error)?);
        Some(Estimate { value, low, high, confidence: 0.99 })
    }

    /// Adds what another sketch has recorded.
    ///
    /// # Errors
    /// Never, for sketches of equal k, as all sketches created here are; those read from files may differ.
    pub fn merge(&mut self, other: &Quantiles) -> Result<(), MergeError> {
        self.0.merge(&other.0).map_err(|_| MergeError)
    }

    /// Writes the sketch in Apache's format (doubles).
    #[must_use]
    pub fn to_file(&self) -> Vec<u8> {
        self.0.serialize()
    }

    /// Reads Apache's format.
    ///
    /// # Errors
    /// The bytes are not in Apache's format, or are truncated.
    pub fn from_file(bytes: &[u8]) -> Result<Quantiles, FormatError> {
        let read = KllSketch::deserialize(bytes)?;
        // As for HLL: the parts must agree.
        KllSketch::<KllFloat<f64>>::deserialize(&read.serialize())?;
        Ok(Quantiles(read))
    }
}

/// Writes heavy keys that were counted elsewhere in Apache's format of frequent items (strings): each with
/// its guaranteed count, at least 1. `missing` is the most that any key, listed or not, may have counted
/// beyond its guaranteed count; `total` is the count of all keys.
#[must_use]
pub fn frequent_items(rows: &[(String, u64)], missing: u64, total: u64) -> Vec<u8> {
    // A map of 2^lg places holds three quarters of them.
    let lg = (rows.len() * 4 / 3 + 1).next_power_of_two().ilog2().max(3) as u8;
    let is_empty = rows.is_empty();
    let (longs, flags) = if is_empty { (1, EMPTY_FLAGS) } else { (4, 0) };
    let mut bytes = vec![longs, FREQUENT_VERSION, FREQUENT_FAMILY, lg, lg, flags, 0, 0];
    if is_empty {
        return bytes;
    }
    [rows.len() as u64, total, missing].into_iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    rows.iter().for_each(|(_, count)| bytes.extend(count.to_le_bytes()));
    for (text, _) in rows {
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// The head of a file of frequent items, as Apache DataSketches writes it: version, family, and the flags of
/// an empty sketch.
const FREQUENT_VERSION: u8 = 1;
const FREQUENT_FAMILY: u8 = 10;
const EMPTY_FLAGS: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeyHash, Seed};
    use datasketches::frequencies::{ErrorType, FrequentItemsSketch};
    use std::collections::BTreeSet;

    const SEED: Seed = Seed::new([1, 2]);

    #[test]
    fn distinct_keys_are_counted_merged_and_read_back() {
        let hash = KeyHash::new(&SEED);
        let (mut one, mut other) = (Distinct::default(), Distinct::default());
        (0..30_000_u64).for_each(|key| one.update(hash.hash(&[key])));
        (20_000..50_000_u64).for_each(|key| other.update(hash.hash(&[key])));
        assert!(one.estimate().holds(30_000.0));
        one.merge(&other);
        assert!(one.estimate().holds(50_000.0), "{:?}", one.estimate());
        let read = Distinct::from_file(&one.to_file()).unwrap();
        assert_eq!(read.estimate(), one.estimate());
        assert!(Distinct::from_file(&one.to_file()[..20]).is_err() && Distinct::from_file(&[]).is_err());
    }

    #[test]
    fn quantiles_are_within_their_ranks() {
        let (mut one, mut other) = (Quantiles::default(), Quantiles::default());
        assert!(one.quantile(0.5).is_none());
        one.update(f64::NAN);
        assert_eq!(one.count(), 0);
        for number in 0..10_000 {
            one.update(f64::from(number));
            other.update(f64::from(number + 10_000));
        }
        one.merge(&other).unwrap();
        for share in [0.01, 0.5, 0.99] {
            let quantile = one.quantile(share).unwrap();
            assert!(quantile.low <= quantile.value && quantile.value <= quantile.high);
            assert!((quantile.value / 20_000.0 - share).abs() < 0.03, "{share}: {quantile:?}");
        }
        let read = Quantiles::from_file(&one.to_file()).unwrap();
        assert_eq!((read.count(), read.quantile(0.5)), (20_000, one.quantile(0.5)));
        assert!(Quantiles::from_file(&one.to_file()[..30]).is_err());
    }

    #[test]
    fn keys_counted_elsewhere_are_frequent_items() {
        for count in [0_u64, 1, 6, 7, 1000] {
            let rows: Vec<(String, u64)> =
                (0..count).map(|key| (format!("key {key}"), 1 + key * 3)).collect();
            let file = frequent_items(&rows, 17, 9_000_000);
            let read = FrequentItemsSketch::<String>::deserialize(&file).unwrap();
            let expected: BTreeSet<(String, u64)> = rows.into_iter().collect();
            let found = read.frequent_items(ErrorType::NoFalseNegatives);
            assert!(found.iter().all(|row| row.upper_bound() - row.lower_bound() == 17));
            let found = found.iter().map(|row| (row.item().clone(), row.lower_bound())).collect();
            assert_eq!(expected, found);
        }
    }
}
