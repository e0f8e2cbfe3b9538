//! Space-Saving: the heaviest keys, each with its largest possible overestimate.
//!
//! Metwally, Agrawal and El Abbadi: Efficient computation of frequent and top-k elements in data streams,
//! ICDT 2005; with counts above 1 as Cormode and Hadjieleftheriou describe it (VLDB 2008). A key that is not
//! present replaces the lightest key and inherits its count as an error. A count is never less than the
//! truth, nor more than the truth plus its error, and no error exceeds N/k: both are certain. Every key
//! heavier than N/k is present.
//!
//! Aggregated and single packets lead to different states, both within these bounds.

use weir_sketch::estimate::{Estimate, MergeError, SizeError};
use weir_sketch::hash::Item;
use weir_sketch::ranked::{Ranked, Top, sorted};

/// Up to k keys with counts and errors.
#[derive(Clone, Debug)]
pub struct SpaceSaving<const W: usize> {
    ranked: Ranked<W>,
    /// The error of each slot.
    errors: Vec<u64>,
    total: u64,
}

impl<const W: usize> SpaceSaving<W> {
    /// Creates an empty summary of at most `bytes` bytes.
    ///
    /// # Errors
    /// The memory is too little for one key, or too much.
    pub fn with_bytes(bytes: usize) -> Result<Self, SizeError> {
        let bytes_for = |keys: usize| Ranked::<W>::bytes_for(keys) + keys * size_of::<u64>();
        let bytes = SizeError::check(bytes, bytes_for(1))?;
        let (mut keys, mut too_many) = (1, bytes);
        while keys + 1 < too_many {
            let middle = usize::midpoint(keys, too_many);
            if bytes_for(middle) <= bytes { keys = middle } else { too_many = middle }
        }
        Ok(SpaceSaving::with_keys(keys))
    }

    /// Creates an empty summary for `keys` keys (at least 1).
    #[must_use]
    pub fn with_keys(keys: usize) -> Self {
        SpaceSaving { ranked: Ranked::new(keys), errors: Vec::with_capacity(keys), total: 0 }
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.ranked.bytes() + self.errors.capacity() * size_of::<u64>()
    }

    /// The total count of all keys.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Counts a key.
    #[inline]
    pub fn update(&mut self, item: &Item<W>, count: u64) {
        self.total += count;
        self.add(item, count, 0);
    }

    fn add(&mut self, item: &Item<W>, count: u64, error: u64) {
        if let Some(slot) = self.ranked.find(item) {
            self.ranked.set(slot, self.ranked.count(slot) + count);
            self.errors[slot as usize] += error;
        } else if self.ranked.is_full() {
            let least = self.ranked.least();
            let slot = self.ranked.replace_least(*item, least + count);
            self.errors[slot as usize] = least + error;
        } else {
            self.ranked.insert(*item, count);
            self.errors.push(error);
        }
    }

    /// The size of a key and its bounds; a key that is not present is no heavier than the lightest.
    #[must_use]
    pub fn estimate(&self, item: &Item<W>) -> Estimate {
        match self.ranked.find(item) {
            Some(slot) => self.of_slot(slot),
            None => Estimate { value: 0.0, low: 0.0, high: self.ranked.least() as f64, confidence: 1.0 },
        }
    }

    fn of_slot(&self, slot: u32) -> Estimate {
        let count = self.ranked.count(slot);
        let low = (count - self.errors[slot as usize]) as f64;
        Estimate { value: count as f64, low, high: count as f64, confidence: 1.0 }
    }

    /// The heaviest keys, in order.
    #[must_use]
    pub fn top(&self, keys: usize) -> Vec<Top<W>> {
        let all = self.ranked.iter().map(|(item, _, slot)| Top { key: item.key, size: self.of_slot(slot) });
        let mut top = sorted(all.collect());
        top.truncate(keys);
        top
    }

    /// The keys whose size may be `least` or more, in order: every key of at least that size is among them.
    #[must_use]
    pub fn heavier(&self, least: u64) -> Vec<Top<W>> {
        let mut top = self.top(usize::MAX);
        top.retain(|top| top.size.high >= least as f64);
        top
    }

    /// Adds another summary (Agarwal, Cormode, Huang, Phillips, Wei, Yi: Mergeable summaries, PODS 2012). A
    /// key that is missing from one summary may have had as much there as that summary's lightest key. The
    /// error of the whole stays below N/k.
    ///
    /// # Errors
    /// The numbers of keys differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        MergeError::unless(self.errors.capacity() == other.errors.capacity())?;
        let (least, other_least) = (self.ranked.least(), other.ranked.least());
        let mut all: Vec<(Item<W>, u64, u64)> = Vec::with_capacity(2 * self.errors.capacity());
        for (item, count, slot) in self.ranked.iter() {
            let (more, error) = match other.ranked.find(item) {
                Some(there) => (other.ranked.count(there), other.errors[there as usize]),
                None => (other_least, other_least),
            };
            all.push((*item, count + more, self.errors[slot as usize] + error));
        }
        for (item, count, slot) in other.ranked.iter() {
            if self.ranked.find(item).is_none() {
                all.push((*item, count + least, other.errors[slot as usize] + least));
            }
        }
        all.sort_unstable_by(|one, other| other.1.cmp(&one.1).then(one.0.key.cmp(&other.0.key)));
        self.ranked.clear();
        self.errors.clear();
        for (item, count, error) in all.into_iter().take(self.errors.capacity()) {
            self.ranked.insert(item, count);
            self.errors.push(error);
        }
        self.total += other.total;
        Ok(())
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.ranked.clear();
        self.errors.clear();
        self.total = 0;
    }
}
