//! Exact match: key -> row.
//!
//! A cuckoo index (`index.rs`: two buckets of eight 32-bit tags, one cache line each) over a dense slab of
//! rows. The caller prefetches a packet's bucket as it computes the hash. The look-up compares tags,
//! prefetches the row, and compares the row's key 16 packets later, so that memory fetches overlap with
//! computation. Looking up all packets stage by stage instead costs a quarter of the rate with a million
//! rows. Miss rate, load and history of the table hardly change the cost; the number of cache lines it
//! occupies does.
//!
//! Promises: a row number stays valid until its row is removed. `capacity()` rows fit if hashes are well
//! mixed (tested for every small capacity; the index is then 87.5 % full and could take 98 %). Beyond that,
//! or with more than 16 keys that share one hash, insertion is refused. All 64 bits of the hash are used, so
//! keys must be distributed over workers by a different hash, not by bits of this one.
//!
//! Costs: 9.3 bytes per row besides the row itself. Rows become resident as used, a large index at once.

use crate::InsertError;
use crate::store::{Record, Store, same};

const NEVER_GIVEN: &str = "a row number that this table gave out";

/// Key and data, side by side so that they arrive in the cache together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ExactRow<const W: usize, T> {
    /// The key of the row.
    pub key: [u64; W],
    /// The caller's data.
    pub data: T,
}

impl<const W: usize, T: Default> Record for ExactRow<W, T> {
    type Key = [u64; W];

    #[inline(always)]
    fn key(&self) -> &[u64; W] {
        &self.key
    }

    #[inline(always)]
    fn has(&self, key: &[u64; W]) -> bool {
        same(&self.key, key)
    }

    fn vacant(next: u32) -> Self {
        const { assert!(W > 0, "a key has at least one word") };
        ExactRow { key: [u64::from(next); W], data: T::default() }
    }

    fn next_vacant(&self) -> u32 {
        self.key[0] as u32
    }
}

/// A table with keys of `W` words.
#[derive(Debug)]
pub struct Exact<const W: usize, T> {
    store: Store<ExactRow<W, T>>,
}

impl<const W: usize, T: Default> Exact<W, T> {
    /// Creates an empty table for `rows` rows (at most 2^30).
    #[must_use]
    pub fn with_capacity(rows: usize) -> Exact<W, T> {
        Exact { store: Store::with_capacity(rows) }
    }

    /// Returns the number of rows that fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.store.capacity()
    }

    /// Returns the number of rows in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Returns true if no row is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory allocated; how much of it is resident depends on use.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.store.bytes()
    }

    /// Inserts a key and returns its row.
    ///
    /// # Errors
    /// The key exists already, or there is no room for it.
    pub fn insert(&mut self, hash: u64, key: [u64; W], data: T) -> Result<u32, InsertError> {
        self.store.insert(hash, ExactRow { key, data })
    }

    /// Returns the row of a key.
    #[inline]
    #[must_use]
    pub fn get(&self, hash: u64, key: &[u64; W]) -> Option<u32> {
        self.store.get(hash, key)
    }

    /// Removes a key. Its row number may be reused from now on.
    pub fn remove(&mut self, hash: u64, key: &[u64; W]) -> Option<(u32, T)> {
        let row = self.get(hash, key)?;
        Some((row, self.store.remove(hash, row)?.data))
    }

    /// Returns a row by its number. A removed row has default data and a meaningless key.
    ///
    /// # Panics
    /// Panics if this table never returned the number, which is a bug of the caller.
    #[inline]
    #[must_use]
    pub fn row(&self, row: u32) -> &ExactRow<W, T> {
        self.store.row(row).expect(NEVER_GIVEN)
    }

    /// Returns the data of a row.
    ///
    /// # Panics
    /// Like [`Exact::row`].
    #[inline]
    #[must_use]
    pub fn data(&self, row: u32) -> &T {
        &self.row(row).data
    }

    /// Returns the data of a row for modification.
    ///
    /// # Panics
    /// Like [`Exact::row`].
    #[inline]
    #[must_use]
    pub fn data_mut(&mut self, row: u32) -> &mut T {
        &mut self.store.row_mut(row).expect(NEVER_GIVEN).data
    }

    /// Number of rows ever used; the numbers of all live rows are below it.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.store.used()
    }

    /// Returns true from the insertion of a row until its removal.
    #[inline]
    #[must_use]
    pub fn is_live(&self, row: u32) -> bool {
        self.store.is_live(row)
    }

    /// Iterates over live rows in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u64; W], &T)> {
        self.store.iter().map(|(number, row)| (number, &row.key, &row.data))
    }

    /// Prefetches the cache line where the look-up of a hash begins.
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) {
        self.store.prefetch(hash);
    }

    /// Looks up the packets of `mask`, whose buckets should have been [prefetched](Exact::prefetch_bucket).
    /// Returns the mask of hits; `rows` holds their rows, its other elements are unspecified.
    #[inline]
    #[must_use]
    pub fn lookup_batch(
        &self,
        keys: &[[u64; W]; 64],
        hashes: &[u64; 64],
        mask: u64,
        rows: &mut [u32; 64],
    ) -> u64 {
        self.store.lookup_batch(keys, hashes, mask, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::mix;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn hash(key: &[u64; 2]) -> u64 {
        mix(mix(7, key[0]), key[1])
    }

    fn key(number: u64) -> [u64; 2] {
        [number, !number]
    }

    #[test]
    fn a_full_table_refuses_and_keeps_what_it_has() {
        for capacity in [0, 1, 8, 9, 100, 5000] {
            let mut table = Exact::with_capacity(capacity as usize);
            for n in 0..capacity {
                assert_eq!(table.insert(hash(&key(n)), key(n), n), Ok(n as u32));
            }
            let more = key(capacity);
            assert_eq!(table.insert(hash(&more), more, 0), Err(InsertError::Full));
            assert_eq!(table.len(), capacity as usize);
            for n in 0..capacity {
                assert_eq!(table.insert(hash(&key(n)), key(n), 0), Err(InsertError::Exists(n as u32)));
                assert_eq!(*table.data(n as u32), n);
            }
        }
    }

    #[test]
    fn equal_hashes_are_refused_in_the_end() {
        let mut table = Exact::with_capacity(1000);
        let taken = (0..1000).filter(|&n| table.insert(42 << 32, key(n), ()).is_ok()).count();
        assert!(taken == 8 || taken == 16);
        for n in 0..1000 {
            assert_eq!(table.get(42 << 32, &key(n)), ((n as usize) < taken).then_some(n as u32));
        }
    }

    #[test]
    fn churn_at_design_load_never_refuses() {
        const CAPACITY: u64 = 10_000;
        let mut table = Exact::with_capacity(CAPACITY as usize);
        for n in 0..11 * CAPACITY {
            if n >= CAPACITY {
                let old = key(n - CAPACITY);
                assert_eq!(table.remove(hash(&old), &old).map(|(_, data)| data), Some(n - CAPACITY));
            }
            assert!(table.insert(hash(&key(n)), key(n), n).is_ok(), "{n}");
        }
        assert_eq!(table.len(), CAPACITY as usize);
    }

    #[test]
    fn memory_follows_the_design() {
        let table = Exact::<5, u64>::with_capacity(1_000_000);
        assert!(table.bytes() - 48_000_000 < 9_300_000, "{}", table.bytes());
    }

    /// Few keys and hashes of few bits, so that overflows, equal tags and reused rows all occur.
    fn step() -> impl Strategy<Value = (u8, u64)> {
        (0_u8..3, 0_u64..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        #[test]
        fn it_is_a_map(capacity in 0_usize..150, bits in 0_u32..64, steps in prop::collection::vec(step(),
            1..500)) {
            let hash = |key: &[u64; 2]| hash(key) & (u64::MAX >> bits).rotate_left(17);
            let mut table = Exact::with_capacity(capacity);
            let mut twin: HashMap<[u64; 2], (u32, u64)> = HashMap::new();
            for (at, (operation, number)) in (0..).zip(steps) {
                let key = key(number);
                if operation < 2 {
                    match table.insert(hash(&key), key, at) {
                        Ok(row) => prop_assert_eq!(twin.insert(key, (row, at)), None),
                        Err(InsertError::Exists(row)) => prop_assert_eq!(twin.get(&key).map(|entry| entry.0),
                            Some(row)),
                        Err(InsertError::Full) => prop_assert!(!twin.contains_key(&key)),
                    }
                } else {
                    prop_assert_eq!(table.remove(hash(&key), &key), twin.remove(&key));
                }
                prop_assert_eq!(table.len(), twin.len());
            }
            prop_assert!(table.iter().all(|(row, key, &data)| twin.get(key) == Some(&(row,
                data)) && table.is_live(row)));
            prop_assert_eq!(table.iter().count(), twin.len());
            for first in [0, 64, 128] {
                let keys = std::array::from_fn(|i| key(first + i as u64));
                let hashes = keys.map(|key| hash(&key));
                let (mut rows, mask) = ([0; 64], 0xFFFF_0FF0_F0F0_FFFF);
                let hits = table.lookup_batch(&keys, &hashes, mask, &mut rows);
                for i in 0..64 {
                    let expected = twin.get(&keys[i]).filter(|_| mask >> i & 1 == 1).map(|entry| entry.0);
                    prop_assert_eq!((hits >> i & 1 == 1).then_some(rows[i]), expected);
                }
            }
        }
    }
}
