//! Exact match: key -> row.
//!
//! A cuckoo index (`index.rs`: two buckets of eight 32-bit tags, one cache line each) over a dense slab of rows. A batch
//! is looked up in stages: prefetch the buckets of all, compare tags and prefetch the rows, compare keys. The miss rate,
//! the fill and the history of the table hardly change the cost; its size in cache lines does.
//!
//! Promises: a row number stays valid until its row is removed. `capacity()` rows fit when hashes are well mixed (tested
//! for every small capacity; the index is then 87.5 % full and could take 98 %); beyond that, or when more than 16 keys
//! share one hash, insertion is refused. All 64 bits of the hash are used, so shard by another hash, not by bits of this
//! one.
//!
//! Costs: 9.3 bytes a row besides the row itself, resident as used.

use crate::InsertError;
use crate::store::{Record, Store};

/// Key and data, side by side so that they arrive together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Row<const W: usize, T> {
    /// What the row is found by.
    pub key: [u64; W],
    /// What the caller keeps there.
    pub data: T,
}

impl<const W: usize, T: Default> Record for Row<W, T> {
    type Key = [u64; W];

    #[inline(always)]
    fn key(&self) -> &[u64; W] {
        &self.key
    }

    fn vacant(next: u32) -> Self {
        const { assert!(W > 0, "a key has at least one word") };
        Row { key: [u64::from(next); W], data: T::default() }
    }

    fn next_vacant(&self) -> u32 {
        self.key[0] as u32
    }
}

/// A table of `[u64; W]` keys.
#[derive(Debug)]
pub struct Exact<const W: usize, T> {
    store: Store<Row<W, T>>,
}

impl<const W: usize, T: Default> Exact<W, T> {
    /// An empty table for so many rows (at most 2^30).
    #[must_use]
    pub fn with_capacity(rows: usize) -> Exact<W, T> {
        Exact { store: Store::with_capacity(rows) }
    }

    /// Rows that fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.store.capacity()
    }

    /// Rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory asked for; what is resident follows use.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.store.bytes()
    }

    /// Enters a key and says in which row.
    ///
    /// # Errors
    /// The key is there already, or there is no room for it.
    pub fn insert(&mut self, hash: u64, key: [u64; W], data: T) -> Result<u32, InsertError> {
        self.store.insert(hash, Row { key, data })
    }

    /// The row of a key.
    #[inline]
    #[must_use]
    pub fn get(&self, hash: u64, key: &[u64; W]) -> Option<u32> {
        self.store.get(hash, key)
    }

    /// Removes a key; its row number may be used again from now on.
    pub fn remove(&mut self, hash: u64, key: &[u64; W]) -> Option<(u32, T)> {
        let row = self.get(hash, key)?;
        Some((row, self.store.remove(hash, row)?.data))
    }

    /// A row by its number; `None` if it was never used. A removed row has default data and a meaningless key.
    #[inline]
    #[must_use]
    pub fn row(&self, row: u32) -> Option<&Row<W, T>> {
        self.store.row(row)
    }

    /// The data of a row.
    #[inline]
    #[must_use]
    pub fn data(&self, row: u32) -> Option<&T> {
        self.store.row(row).map(|row| &row.data)
    }

    /// The data of a row, to be changed.
    #[inline]
    #[must_use]
    pub fn data_mut(&mut self, row: u32) -> Option<&mut T> {
        self.store.row_mut(row).map(|row| &mut row.data)
    }

    /// True from the insertion of a row until its removal.
    #[inline]
    #[must_use]
    pub fn is_live(&self, row: u32) -> bool {
        self.store.is_live(row)
    }

    /// All live rows, in order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u64; W], &T)> {
        self.store.iter().map(|(number, row)| (number, &row.key, &row.data))
    }

    /// Asks for the cache line where the look-up of a hash begins.
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) {
        self.store.prefetch(hash);
    }

    /// Looks up the packets of `mask`. Where the bit of the answer is set, `rows` has the row; other words of `rows` are
    /// unspecified.
    #[inline]
    #[must_use]
    pub fn lookup_batch(&self, keys: &[[u64; W]; 64], hashes: &[u64; 64], mask: u64, rows: &mut [u32; 64]) -> u64 {
        self.store.lookup_batch(keys, hashes, mask, rows)
    }
}
