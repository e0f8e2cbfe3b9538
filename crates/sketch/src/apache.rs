//! Sketches in the format of Apache DataSketches, which its libraries for Java, C++, Python and Go read:
//! number of flows (HLL), quantiles (KLL), frequent items.
//!
//! The algorithms are those of Apache's own crate. HLL receives keys as their keyed hash, so its files merge
//! only with files of equal seeds; frequent items are written as text, and merge with any others.

use crate::estimate::{Estimate, MergeError};
use crate::hash::{Item, KEY_WORDS_MAX};
use crate::key::Projection;
use crate::ranked::{Top, sorted};
use datasketches::codec::{SketchBytes, SketchSlice};
use datasketches::common::{NumStdDev, SearchCriteria};
use datasketches::error::{Error, ErrorKind};
use datasketches::frequencies::{ErrorType, FrequentItemValue, FrequentItemsSketch};
use datasketches::hll::{HllSketch, HllType, HllUnion};
use datasketches::kll::{KllFloat, KllSketch};
use std::hash::{Hash, Hasher};

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
    /// Records a key.
    #[inline]
    pub fn update(&mut self, hash: u64) {
        self.0.update(hash);
    }

    /// Number of distinct keys.
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

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.estimated_size()
    }

    /// Writes it in Apache's format.
    #[must_use]
    pub fn to_file(&self) -> Vec<u8> {
        self.0.serialize()
    }

    /// Reads Apache's format.
    ///
    /// # Errors
    /// The bytes are not in that format, or are truncated.
    pub fn from_file(bytes: &[u8]) -> Result<Distinct, FormatError> {
        let read = HllSketch::deserialize(bytes)?;
        // The library accepts some sketches whose parts disagree, and then writes what it cannot read itself.
        HllSketch::deserialize(&read.serialize())?;
        Ok(Distinct(read))
    }
}

/// Quantiles of numbers: KLL (Karnin, Lang and Liberty: Optimal quantile approximation in streams, FOCS
/// 2016). The rank of a quantile is within 0.14 % of the requested one with probability 0.99.
#[derive(Clone, Debug)]
pub struct Quantiles(KllSketch<KllFloat<f64>>);

/// KLL's k, which determines its error and its memory. An update costs half as much as with k = 200: the
/// lowest level, which is sorted whenever it is full, is then not so small.
const K: u16 = 2048;

impl Default for Quantiles {
    fn default() -> Quantiles {
        Quantiles(KllSketch::new(K).expect("between 8 and 65535"))
    }
}

impl Quantiles {
    /// Records a number; one that is not finite is ignored.
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

    /// Writes it in Apache's format (doubles).
    #[must_use]
    pub fn to_file(&self) -> Vec<u8> {
        self.0.serialize()
    }

    /// Reads Apache's format.
    ///
    /// # Errors
    /// The bytes are not in that format, or are truncated.
    pub fn from_file(bytes: &[u8]) -> Result<Quantiles, FormatError> {
        let read = KllSketch::deserialize(bytes)?;
        // As for HLL: the parts must agree.
        KllSketch::<KllFloat<f64>>::deserialize(&read.serialize())?;
        Ok(Quantiles(read))
    }
}

/// A key, its keyed hash, and how it is written.
#[derive(Clone, Debug)]
struct Named {
    item: Item<KEY_WORDS_MAX>,
    projection: Projection,
}

impl PartialEq for Named {
    fn eq(&self, other: &Named) -> bool {
        self.item == other.item
    }
}

impl Eq for Named {}

impl Hash for Named {
    /// Feeds the keyed hash, since the map's own has a public seed.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.item.hash);
    }
}

impl FrequentItemValue for Named {
    fn serialize_size(named: &Named) -> usize {
        String::serialize_size(&named.projection.text(&named.item.key))
    }

    fn serialize_value(&self, bytes: &mut SketchBytes) {
        self.projection.text(&self.item.key).serialize_value(bytes);
    }

    fn deserialize_value(_: &mut SketchSlice<'_>) -> Result<Named, Error> {
        Err(Error::new(ErrorKind::InvalidArgument, "text is read as text"))
    }
}

/// Frequent items (Anderson et al.: A high-performance algorithm for identifying frequent items in data
/// streams, IMC 2017): a map that subtracts its median when it is full. A size is between the bounds, and
/// these are at most 3.5·N/map apart.
#[derive(Clone, Debug)]
pub struct Frequent {
    sketch: FrequentItemsSketch<Named>,
    projection: Projection,
}

/// Frequent items read from a file: text and sizes.
#[derive(Clone, Debug)]
pub struct FrequentText(FrequentItemsSketch<String>);

impl Frequent {
    /// Creates an empty map of 2^`power` places (3 to 26); three quarters of them are used.
    #[must_use]
    pub fn new(projection: Projection, power: u8) -> Frequent {
        let places = 1 << power.clamp(3, 26);
        Frequent { sketch: FrequentItemsSketch::new(places).expect("a power of two"), projection }
    }

    /// Counts a key.
    #[inline]
    pub fn update(&mut self, item: &Item<KEY_WORDS_MAX>, count: u64) {
        self.sketch.update_with_count(Named { item: *item, projection: self.projection }, count);
    }

    /// All keys that may be heavier than the error of the sketch, the heaviest first.
    #[must_use]
    pub fn top(&self) -> Vec<Top<KEY_WORDS_MAX>> {
        let rows = self.sketch.frequent_items(ErrorType::NoFalseNegatives);
        let top = rows.iter().map(|row| {
            let size = certain(row.estimate(), row.lower_bound(), row.upper_bound());
            Top { key: row.item().item.key, size }
        });
        sorted(top.collect())
    }

    /// Writes it in Apache's format (strings).
    #[must_use]
    pub fn to_file(&self) -> Vec<u8> {
        self.sketch.serialize()
    }
}

impl FrequentText {
    /// Reads Apache's format (strings).
    ///
    /// # Errors
    /// The bytes are not in that format, or are truncated.
    pub fn from_file(bytes: &[u8]) -> Result<FrequentText, FormatError> {
        Ok(FrequentText(FrequentItemsSketch::deserialize(bytes)?))
    }

    /// Adds the counts of another sketch.
    pub fn merge(&mut self, other: &FrequentText) {
        self.0.merge(&other.0);
    }

    /// All keys that may be heavier than the error of the sketch, the heaviest first.
    #[must_use]
    pub fn top(&self) -> Vec<(String, Estimate)> {
        let rows = self.0.frequent_items(ErrorType::NoFalseNegatives);
        let size = |row: &datasketches::frequencies::Row<String>| {
            (row.item().clone(), certain(row.estimate(), row.lower_bound(), row.upper_bound()))
        };
        let mut top: Vec<(String, Estimate)> = rows.iter().map(size).collect();
        top.sort_by(|one, other| other.1.value.total_cmp(&one.1.value).then_with(|| one.0.cmp(&other.0)));
        top
    }

    /// Writes it in Apache's format (strings).
    #[must_use]
    pub fn to_file(&self) -> Vec<u8> {
        self.0.serialize()
    }
}

/// Writes heavy keys that were counted elsewhere in Apache's format of frequent items (strings): each with
/// its guaranteed count, at least 1. No key, listed or not, has more than `missing` beyond that; `total` is
/// the count of all keys.
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

fn certain(value: u64, low: u64, high: u64) -> Estimate {
    Estimate { value: value as f64, low: low as f64, high: high as f64, confidence: 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeyKind;
    use crate::{KeyHash, Seed, traffic};

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
            let read = FrequentText::from_file(&frequent_items(&rows, 17, 9_000_000)).unwrap();
            let mut expected: Vec<(String, u64)> =
                rows.into_iter().filter(|(_, low)| low + 17 > 17).collect();
            expected.reverse();
            let found: Vec<(String, u64)> =
                read.top().into_iter().map(|(text, size)| (text, size.low as u64)).collect();
            assert_eq!(found, expected);
            assert!(read.top().iter().all(|(_, size)| size.high - size.low == 17.0));
        }
    }

    #[test]
    fn frequent_items_are_written_as_text() {
        let (hash, projection) = (KeyHash::new(&SEED), Projection::new(KeyKind::Source));
        let mut frequent = Frequent::new(projection, 6);
        for flow in traffic::Zipf::new(1000, 1.3, 5).take(20_000) {
            let key = projection.of(&traffic::flow_key(flow));
            frequent.update(&hash.item(key), 1);
        }
        let top = frequent.top();
        assert_eq!(top[0].key, projection.of(&traffic::flow_key(0)));
        let mut read = FrequentText::from_file(&frequent.to_file()).unwrap();
        let texts: Vec<String> = top.iter().map(|top| projection.text(&top.key)).collect();
        let read_texts: Vec<String> = read.top().into_iter().map(|(text, _)| text).collect();
        let as_set = |texts: &[String]| texts.iter().cloned().collect::<std::collections::BTreeSet<_>>();
        assert_eq!(as_set(&read_texts), as_set(&texts));
        assert_eq!((&read.top()[0].0, read.top()[0].1), (&texts[0], top[0].size));
        let once = read.top()[0].1.value;
        read.merge(&read.clone());
        assert!(read.top()[0].1.value >= 2.0 * once);
        assert!(FrequentText::from_file(&frequent.to_file()[..40]).is_err());
    }
}
