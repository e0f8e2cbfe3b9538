//! Rows below an [`Index`]: the common part of [`crate::exact`], [`crate::flow`] and [`crate::acl`].
//!
//! Rows are stored in one dense slab and never move, so a row number is valid until its row is removed. Key
//! and data are one record: the cache line fetched to compare the key brings the data along. Free rows form a
//! linked list through the rows themselves; a bitmap says which rows are live. Memory becomes resident as
//! rows are first used, and a little before (`packet::Frontier`).

use crate::index::{Index, ROWS_MAX};
use crate::{Full, InsertError};
use std::ops::Range;
use weir_packet::{Bits, Frontier, prefetch};

/// A type that can be stored as a row.
pub(crate) trait Record {
    /// Type of the key.
    type Key;
    /// Returns the key of this row.
    fn key(&self) -> &Self::Key;
    /// Returns true if this row has the key `key`.
    fn has(&self, key: &Self::Key) -> bool;
    /// Creates a free row that links to the next free row.
    fn vacant(next: u32) -> Self;
    /// Returns the link that [`Record::vacant`] was given.
    fn next_vacant(&self) -> u32;
}

/// Compares without branches; the derived `==` calls `bcmp` for five words.
#[inline(always)]
pub(crate) fn same<const W: usize>(a: &[u64; W], b: &[u64; W]) -> bool {
    (0..W).fold(0, |differs, word| differs | (a[word] ^ b[word])) == 0
}

/// How many packets lie between prefetching a row and comparing it: enough to hide the memory latency.
const LAG: usize = 16;

/// Marks the end of the list of free rows.
const NO_ROW: u32 = u32::MAX;

/// Rows and their index.
#[derive(Debug)]
pub(crate) struct Store<R> {
    index: Index,
    rows: Vec<R>,
    frontier: Frontier,
    live: Vec<u64>,
    vacant: u32,
    length: usize,
    capacity: usize,
}

impl<R: Record> Store<R> {
    pub(crate) fn with_capacity(capacity: usize) -> Store<R> {
        let capacity = capacity.min(ROWS_MAX);
        let rows = Vec::with_capacity(capacity);
        weir_packet::advise_huge(&rows);
        Store {
            index: Index::with_rows(capacity),
            frontier: Frontier::of(&rows),
            rows,
            live: vec![0; capacity.div_ceil(64)],
            vacant: NO_ROW,
            length: 0,
            capacity,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Number of rows ever used; the numbers of all live rows are below it.
    pub(crate) fn used(&self) -> u32 {
        self.rows.len() as u32
    }

    /// Bytes of memory allocated; how much of it is resident depends on use.
    pub(crate) fn bytes(&self) -> usize {
        self.index.bytes() + self.capacity * size_of::<R>() + self.live.len() * size_of::<u64>()
    }

    #[inline]
    pub(crate) fn is_live(&self, row: u32) -> bool {
        self.live.get(row as usize / 64).is_some_and(|word| word >> (row % 64) & 1 == 1)
    }

    #[inline]
    pub(crate) fn row(&self, row: u32) -> Option<&R> {
        self.rows.get(row as usize)
    }

    #[inline]
    pub(crate) fn row_mut(&mut self, row: u32) -> Option<&mut R> {
        self.rows.get_mut(row as usize)
    }

    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// Finds and prefetches the likely rows of the hashes in `mask`. Returns the mask of hashes that have
    /// one.
    #[inline]
    pub(crate) fn guess_batch(&self, hashes: &[u64; 64], mask: u64, rows: &mut [u32; 64]) -> u64 {
        let mut guessed = 0;
        for i in Bits(mask) {
            if let Some(row) = self.index.guess_home(hashes[i]) {
                self.touch(row);
                rows[i] = row;
                guessed |= 1 << i;
            }
        }
        guessed
    }

    #[inline]
    pub(crate) fn get(&self, hash: u64, key: &R::Key) -> Option<u32> {
        self.index.find(hash, |row| self.is_row(row, |record| record.has(key)))
    }

    /// See [`crate::Exact::lookup_batch`].
    #[inline(always)]
    pub(crate) fn lookup_batch(
        &self,
        keys: &[R::Key; 64],
        hashes: &[u64; 64],
        mask: u64,
        rows: &mut [u32; 64],
    ) -> u64 {
        self.find_batch(hashes, mask, rows, |i, record| record.has(&keys[i]))
    }

    /// Like [`Store::lookup_batch`]; the likely rows of `guessed` are in `rows`.
    #[inline(always)]
    pub(crate) fn lookup_guessed(
        &self,
        keys: &[R::Key; 64],
        hashes: &[u64; 64],
        (mask, guessed): (u64, u64),
        rows: &mut [u32; 64],
    ) -> u64 {
        let has = |i: usize, record: &R| record.has(&keys[i]);
        let is_it = |&i: &usize| self.is_row(rows[i], |record| has(i, record));
        let hits = Bits(mask & guessed).filter(is_it).fold(0, |hits, i| hits | 1 << i);
        if hits == mask { hits } else { hits | self.find_batch(hashes, mask & !hits, rows, has) }
    }

    /// Finds the rows of the hashes in `mask` for which `is_it` is true.
    #[inline(always)]
    pub(crate) fn find_batch(
        &self,
        hashes: &[u64; 64],
        mask: u64,
        rows: &mut [u32; 64],
        is_it: impl Fn(usize, &R) -> bool,
    ) -> u64 {
        let mut behind = Bits(mask);
        let (mut guessed, mut hits) = (0, 0);
        let compare = |i: usize, guessed: u64, row: u32| {
            u64::from(guessed >> i & 1 == 1 && self.is_row(row, |record| is_it(i, record))) << i
        };
        let mut away = 0;
        for (at, i) in Bits(mask).enumerate() {
            match self.index.guess_home(hashes[i]) {
                Some(row) => {
                    self.touch(row);
                    rows[i] = row;
                    guessed |= 1 << i;
                }
                None => away |= 1 << i,
            }
            if at >= LAG
                && let Some(i) = behind.next()
            {
                hits |= compare(i, guessed, rows[i]);
            }
        }
        for i in behind {
            hits |= compare(i, guessed, rows[i]);
        }
        if away != 0 {
            let mut found = 0;
            for i in Bits(away) {
                if let Some(row) = self.index.guess_other(hashes[i]) {
                    self.touch(row);
                    rows[i] = row;
                    found |= 1 << i;
                }
            }
            for i in Bits(found) {
                hits |= compare(i, found, rows[i]);
            }
            guessed |= found;
        }
        if hits != guessed {
            hits |= self.find_again(hashes, guessed ^ hits, rows, is_it);
        }
        hits
    }

    /// Continues the search after a row with an equal tag but a different key.
    #[cold]
    #[inline(never)]
    fn find_again(
        &self,
        hashes: &[u64; 64],
        mask: u64,
        rows: &mut [u32; 64],
        is_it: impl Fn(usize, &R) -> bool,
    ) -> u64 {
        let mut hits = 0;
        for i in Bits(mask) {
            if let Some(row) = self.index.find(hashes[i], |row| self.is_row(row, |record| is_it(i, record))) {
                rows[i] = row;
                hits |= 1 << i;
            }
        }
        hits
    }

    pub(crate) fn insert(&mut self, hash: u64, record: R) -> Result<u32, InsertError> {
        if let Some(row) = self.get(hash, record.key()) {
            return Err(InsertError::Exists(row));
        }
        Ok(self.insert_new(hash, record)?)
    }

    /// Inserts a record whose key must not be in the table.
    pub(crate) fn insert_new(&mut self, hash: u64, record: R) -> Result<u32, Full> {
        if self.length == self.capacity {
            return Err(Full);
        }
        debug_assert!(self.get(hash, record.key()).is_none(), "a key has one row");
        let row = if self.vacant == NO_ROW { self.used() } else { self.vacant };
        assert!(!self.is_live(row), "row {row} is in use");
        self.index.insert(hash, row)?;
        match self.rows.get_mut(row as usize) {
            Some(place) => {
                self.vacant = place.next_vacant();
                *place = record;
            }
            None => {
                self.rows.push(record);
                self.frontier.follow(&self.rows);
            }
        }
        self.live[row as usize / 64] |= 1 << (row % 64);
        self.length += 1;
        Ok(row)
    }

    /// Removes a live row; `hash` must be the hash of its key.
    pub(crate) fn remove(&mut self, hash: u64, row: u32) -> Option<R> {
        if !self.is_live(row) || !self.index.remove(hash, row) {
            return None;
        }
        self.live[row as usize / 64] &= !(1 << (row % 64));
        self.length -= 1;
        let vacant = R::vacant(std::mem::replace(&mut self.vacant, row));
        Some(std::mem::replace(&mut self.rows[row as usize], vacant))
    }

    /// Iterates over live rows in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &R)> {
        let used = self.live.iter().take(self.rows.len().div_ceil(64));
        let rows = used.enumerate().flat_map(|(word, &bits)| Bits(bits).map(move |bit| word * 64 + bit));
        rows.map(|row| (row as u32, &self.rows[row]))
    }

    /// Returns the first live row in `rows`.
    pub(crate) fn first_live(&self, rows: Range<u32>) -> Option<u32> {
        let mut from = rows.start;
        while from < rows.end {
            let bits = self.live.get(from as usize / 64)? >> (from % 64);
            if bits != 0 {
                return Some(from + bits.trailing_zeros()).filter(|row| rows.contains(row));
            }
            from = (from / 64 + 1) * 64;
        }
        None
    }

    /// Returns true if looking up `hash` can find `row`.
    pub(crate) fn leads_to(&self, hash: u64, row: u32) -> bool {
        self.index.find(hash, |found| found == row).is_some()
    }

    /// Prefetches a row.
    #[inline(always)]
    fn touch(&self, row: u32) {
        if let Some(record) = self.rows.get(row as usize) {
            prefetch(record);
        }
    }

    #[inline(always)]
    fn is_row(&self, row: u32, is_it: impl Fn(&R) -> bool) -> bool {
        self.rows.get(row as usize).is_some_and(is_it)
    }
}
