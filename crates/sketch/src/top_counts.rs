//! The heaviest keys with their packets and bytes: Space-Saving (Metwally, Agrawal, El Abbadi, ICDT 2005) by
//! packets, whose keys also count bytes.
//!
//! A key that replaces the lightest key inherits its packets as an error; the new key counts bytes from
//! zero. The packets that the key had counted before it was last replaced are at most the error, so its bytes
//! are bounded as well, given the largest packet of the stream. As long as no key was replaced, everything is
//! exact.

use crate::estimate::{Estimate, MergeError};
use crate::exact::Count;
use crate::hash::{Item, KeyHash};
use crate::ranked::Ranked;

/// The counts of a key, and the error: packets of other keys that it inherited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopCount<const W: usize> {
    /// The key: `W` words of 64 bits.
    pub key: [u64; W],
    /// An upper bound of the number of packets. The true number is at most `error` lower.
    pub packets: u64,
    /// How many of these packets may belong to other keys.
    pub error: u64,
    /// A lower bound of the number of bytes: those since the key was last inserted.
    pub bytes: u64,
}

impl<const W: usize> TopCount<W> {
    /// Packets: certain bounds, with the upper one as the value, as in Space-Saving.
    #[must_use]
    pub fn packets(&self) -> Estimate {
        let (low, high) = ((self.packets - self.error) as f64, self.packets as f64);
        Estimate { value: high, low, high, confidence: 1.0 }
    }

    /// Bytes, if no packet has more than `largest`: certain bounds, with the lower one as the value.
    #[must_use]
    pub fn bytes(&self, largest: u64) -> Estimate {
        let low = self.bytes as f64;
        let high = low + self.error as f64 * largest as f64;
        Estimate { value: low, low, high, confidence: 1.0 }
    }
}

/// A bounded number of keys with packets, bytes and errors.
#[derive(Clone, Debug)]
pub struct TopCounts<const W: usize> {
    ranked: Ranked<W>,
    /// Error and bytes of each slot.
    besides: Vec<[u64; 2]>,
    capacity: usize,
    total: Count,
    /// The most packets that an absent key may have, apart from the lightest key's.
    missing: u64,
}

impl<const W: usize> TopCounts<W> {
    /// Creates an empty summary for `keys` keys (1 to 2^28).
    #[must_use]
    pub fn new(keys: usize) -> TopCounts<W> {
        let capacity = keys.clamp(1, 1 << 28);
        let besides = Vec::with_capacity(capacity);
        TopCounts { ranked: Ranked::new(capacity), besides, capacity, total: Count::default(), missing: 0 }
    }

    /// The number of bytes of memory for `keys` keys.
    #[must_use]
    pub const fn bytes_for(keys: usize) -> usize {
        Ranked::<W>::bytes_for(keys) + keys * size_of::<[u64; 2]>()
    }

    /// The number of keys that fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of keys that are kept at the moment, at most [`TopCounts::capacity`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.besides.len()
    }

    /// Returns true if nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.besides.is_empty()
    }

    /// The total count of all keys.
    #[must_use]
    pub fn total(&self) -> Count {
        self.total
    }

    /// The most packets that an absent key can have; 0 while all keys are present.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.missing.max(self.ranked.least())
    }

    /// The most packets that a key left out by a merge can have: an argument of [`TopCounts::of_rows`].
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.missing
    }

    /// Fetches what [`TopCounts::update`] reads first.
    #[inline(always)]
    pub fn prefetch(&self, item: &Item<W>) {
        self.ranked.prefetch(item.hash);
    }

    /// Fetches what [`TopCounts::update`] reads next, once the first fetch has arrived.
    #[inline(always)]
    pub fn prefetch_row(&self, item: &Item<W>) {
        if let Some(slot) = self.ranked.prefetch_item(item.hash) {
            weir_packet::prefetch(&self.besides[slot as usize]);
        }
    }

    /// Adds packets and bytes to a key. If there is no room for a new key, it replaces the lightest one.
    #[inline]
    pub fn update(&mut self, item: &Item<W>, packets: u64, bytes: u64) {
        self.total.packets += packets;
        self.total.bytes += bytes;
        self.add(item, packets, 0, bytes);
    }

    fn add(&mut self, item: &Item<W>, packets: u64, error: u64, bytes: u64) {
        if let Some(slot) = self.ranked.find(item) {
            self.ranked.set(slot, self.ranked.count(slot) + packets);
            let [errors, counted] = &mut self.besides[slot as usize];
            *errors += error;
            *counted += bytes;
        } else if self.ranked.is_full() {
            let before = self.missing();
            let slot = self.ranked.replace_least(*item, before + packets);
            self.besides[slot as usize] = [before + error, bytes];
        } else {
            self.ranked.insert(*item, self.missing + packets);
            self.besides.push([self.missing + error, bytes]);
        }
    }

    /// The counts of a key. An absent key may have up to [`TopCounts::missing`] packets.
    #[must_use]
    pub fn get(&self, item: &Item<W>) -> TopCount<W> {
        match self.ranked.find(item) {
            Some(slot) => self.row(item.key, self.ranked.count(slot), slot),
            None => TopCount { key: item.key, packets: self.missing(), error: self.missing(), bytes: 0 },
        }
    }

    fn row(&self, key: [u64; W], packets: u64, slot: u32) -> TopCount<W> {
        let [error, bytes] = self.besides[slot as usize];
        TopCount { key, packets, error, bytes }
    }

    /// All keys, in unspecified order.
    pub fn iter(&self) -> impl Iterator<Item = TopCount<W>> + '_ {
        self.ranked.iter().map(|(item, packets, slot)| self.row(item.key, packets, slot))
    }

    /// The `keys` heaviest keys, ordered by guaranteed packets, then by packets, then by key.
    #[must_use]
    pub fn top(&self, keys: usize) -> Vec<TopCount<W>> {
        let mut rows: Vec<TopCount<W>> = self.iter().collect();
        let rank = |row: &TopCount<W>| (std::cmp::Reverse([row.packets - row.error, row.packets]), row.key);
        if keys < rows.len() {
            rows.select_nth_unstable_by_key(keys, rank);
            rows.truncate(keys);
        }
        rows.sort_unstable_by_key(rank);
        rows
    }

    /// Adds another summary (Agarwal, Cormode, Huang, Phillips, Wei, Yi: Mergeable summaries, PODS 2012). A
    /// key that is absent from one summary is assumed to have had as many packets there as an absent key can
    /// have.
    ///
    /// # Errors
    /// The numbers of keys differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        MergeError::unless(self.capacity == other.capacity)?;
        let total = Count {
            packets: self.total.packets.saturating_add(other.total.packets),
            bytes: self.total.bytes.saturating_add(other.total.bytes),
        };
        if other.missing() == 0 {
            // All its keys are present, so they are ordinary updates.
            for (item, packets, slot) in other.ranked.iter() {
                self.add(item, packets, 0, other.besides[slot as usize][1]);
            }
        } else {
            self.merge_full(other);
        }
        self.total = total;
        Ok(())
    }

    fn merge_full(&mut self, other: &Self) {
        let (missing, other_missing) = (self.missing(), other.missing());
        let mut all: Vec<(Item<W>, TopCount<W>)> = Vec::with_capacity(self.len() + other.len());
        for (item, packets, slot) in self.ranked.iter() {
            let (mut row, there) = (self.row(item.key, packets, slot), other.get(item));
            row.packets = row.packets.saturating_add(there.packets);
            row.error = row.error.saturating_add(there.error);
            row.bytes = row.bytes.saturating_add(there.bytes);
            all.push((*item, row));
        }
        for (item, packets, slot) in other.ranked.iter().filter(|(item, ..)| self.ranked.find(item).is_none())
        {
            let mut row = other.row(item.key, packets, slot);
            row.packets = row.packets.saturating_add(missing);
            row.error = row.error.saturating_add(missing);
            all.push((*item, row));
        }
        all.sort_unstable_by(|one, other| {
            other.1.packets.cmp(&one.1.packets).then(one.1.key.cmp(&other.1.key))
        });
        self.clear();
        self.missing = missing.saturating_add(other_missing);
        for (item, row) in all.into_iter().take(self.capacity) {
            self.ranked.insert(item, row.packets);
            self.besides.push([row.error, row.bytes]);
        }
    }

    /// Removes all keys and totals, and keeps the memory.
    pub fn clear(&mut self) {
        self.ranked.clear();
        self.besides.clear();
        self.total = Count::default();
        self.missing = 0;
    }

    /// Creates a summary from rows, as returned by [`TopCounts::iter`] and read from a file. `None` if there
    /// are too many, a key occurs twice, a row has no packets, or its error exceeds them.
    #[must_use]
    pub fn of_rows(
        keys: usize,
        rows: &[TopCount<W>],
        total: Count,
        missing: u64,
        hash: &KeyHash,
    ) -> Option<TopCounts<W>> {
        let mut top = TopCounts::new(keys);
        top.total = total;
        top.missing = missing;
        for row in rows {
            let item = hash.item(row.key);
            let is_possible = row.packets > 0 && row.error <= row.packets;
            if !is_possible || top.ranked.is_full() || top.ranked.find(&item).is_some() {
                return None;
            }
            top.ranked.insert(item, row.packets);
            top.besides.push([row.error, row.bytes]);
        }
        Some(top)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Exact, Seed, Update};
    use proptest::prelude::*;

    const LARGEST: u64 = 1500;

    fn count(keys: usize, updates: &[(u64, u64, u64)]) -> TopCounts<1> {
        let hash = KeyHash::new(&Seed::new([1, 2]));
        let mut top = TopCounts::new(keys);
        for (key, packets, size) in updates {
            top.update(&hash.item([*key]), *packets, packets * size);
        }
        top
    }

    fn check(top: &TopCounts<1>, truth: &Exact<1>) -> Result<(), TestCaseError> {
        let hash = KeyHash::new(&Seed::new([1, 2]));
        prop_assert_eq!(top.total(), truth.total());
        for (key, count) in truth.iter() {
            let row = top.get(&hash.item(*key));
            prop_assert!(row.packets().holds(count.packets as f64), "{:?} {:?}", row, count);
            prop_assert!(row.bytes(LARGEST).holds(count.bytes as f64), "{:?} {:?}", row, count);
        }
        if truth.len() <= top.capacity() {
            prop_assert!(top.iter().all(|row| truth.get(&row.key).packets == row.packets));
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn bounds_hold_and_few_keys_are_exact(
            keys in 1_usize..20,
            parts in prop::collection::vec(
                prop::collection::vec((0_u64..40, 1_u64..50, 60_u64..LARGEST), 0..200), 1..4),
        ) {
            let mut truth = Exact::<1>::default();
            let mut whole = TopCounts::new(keys);
            for part in &parts {
                for (key, packets, size) in part {
                    truth.add(&Update { key: [*key], packets: *packets, bytes: packets * size, note: () });
                }
                let part = count(keys, part);
                whole.merge(&part).unwrap();
            }
            check(&whole, &truth)?;
            let single = count(keys, &parts.concat());
            check(&single, &truth)?;
            let rows: Vec<TopCount<1>> = whole.iter().collect();
            let hash = KeyHash::new(&Seed::new([1, 2]));
            let read = TopCounts::of_rows(keys, &rows, whole.total(), whole.missing(), &hash).unwrap();
            check(&read, &truth)?;
            prop_assert_eq!(read.top(5), whole.top(5));
        }
    }

    #[test]
    fn rows_that_no_summary_has_are_refused() {
        let hash = KeyHash::new(&Seed::new([1, 2]));
        let row = |key: u64, packets, error| TopCount { key: [key], packets, error, bytes: 0 };
        let read = |rows: &[TopCount<1>]| TopCounts::of_rows(2, rows, Count::default(), 0, &hash);
        assert!(read(&[row(1, 5, 5), row(2, 1, 0)]).is_some());
        assert!(read(&[row(1, 5, 6)]).is_none());
        assert!(read(&[row(1, 5, 0), row(1, 5, 0)]).is_none());
        assert!(read(&[row(1, 5, 0), row(2, 5, 0), row(3, 5, 0)]).is_none());
    }
}
