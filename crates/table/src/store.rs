//! Rows under an [`Index`]: what [`crate::exact`], [`crate::flow`] and [`crate::acl`] share.
//!
//! Rows lie in one dense slab and never move, so a row number is good until its row is removed. Key and data are one
//! record: the line fetched to compare the key brings the data. Free rows are chained through themselves; one bit a row
//! says which live. Rows become resident as they are first used.

use crate::index::{Index, ROWS_MAX};
use crate::{Full, InsertError};
use packet::{Bits, prefetch};
use std::ops::Range;

/// What can be a row.
pub(crate) trait Record {
    /// What it is found by.
    type Key;
    /// The key of this row.
    fn key(&self) -> &Self::Key;
    /// Whether this is the row of a key.
    fn has(&self, key: &Self::Key) -> bool;
    /// A free row that remembers the next free one.
    fn vacant(next: u32) -> Self;
    /// What [`Record::vacant`] was given.
    fn next_vacant(&self) -> u32;
}

/// Equality without branches; the derived one calls `bcmp` for five words.
#[inline(always)]
pub(crate) fn same<const W: usize>(a: &[u64; W], b: &[u64; W]) -> bool {
    (0..W).fold(0, |differs, word| differs | (a[word] ^ b[word])) == 0
}

/// A row is compared so many packets after it was asked for: enough to hide the memory's latency.
const LAG: usize = 16;

/// Ends the chain of free rows.
const NO_ROW: u32 = u32::MAX;

/// Rows with their index.
#[derive(Debug)]
pub(crate) struct Store<R> {
    index: Index,
    rows: Vec<R>,
    live: Vec<u64>,
    vacant: u32,
    length: usize,
    capacity: usize,
}

impl<R: Record> Store<R> {
    pub(crate) fn with_capacity(capacity: usize) -> Store<R> {
        let capacity = capacity.min(ROWS_MAX);
        let rows = Vec::with_capacity(capacity);
        packet::advise_huge(&rows);
        Store {
            index: Index::with_rows(capacity),
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

    /// Rows ever used: the numbers of all live rows are below.
    pub(crate) fn used(&self) -> u32 {
        self.rows.len() as u32
    }

    /// Bytes of memory asked for; what is resident follows use.
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

    #[inline]
    pub(crate) fn get(&self, hash: u64, key: &R::Key) -> Option<u32> {
        self.index.find(hash, |row| self.is_row(row, |record| record.has(key)))
    }

    /// See [`crate::Exact::lookup_batch`].
    #[inline(always)]
    pub(crate) fn lookup_batch(&self, keys: &[R::Key; 64], hashes: &[u64; 64], mask: u64, rows: &mut [u32; 64]) -> u64 {
        self.find_batch(hashes, mask, rows, |i, record| record.has(&keys[i]))
    }

    /// The rows of the hashes in `mask` for which `is_it` holds.
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

    /// Another key has the same tag: look on behind it.
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

    /// Inserts a record whose key is known not to be there.
    pub(crate) fn insert_new(&mut self, hash: u64, record: R) -> Result<u32, Full> {
        if self.length == self.capacity {
            return Err(Full);
        }
        let row = if self.vacant == NO_ROW { self.used() } else { self.vacant };
        self.index.insert(hash, row)?;
        match self.rows.get_mut(row as usize) {
            Some(place) => {
                self.vacant = place.next_vacant();
                *place = record;
            }
            None => self.rows.push(record),
        }
        self.live[row as usize / 64] |= 1 << (row % 64);
        self.length += 1;
        Ok(row)
    }

    /// Removes a live row; `hash` must be that of its key.
    pub(crate) fn remove(&mut self, hash: u64, row: u32) -> Option<R> {
        if !self.is_live(row) || !self.index.remove(hash, row) {
            return None;
        }
        self.live[row as usize / 64] &= !(1 << (row % 64));
        self.length -= 1;
        let vacant = R::vacant(std::mem::replace(&mut self.vacant, row));
        Some(std::mem::replace(&mut self.rows[row as usize], vacant))
    }

    /// Live rows in order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &R)> {
        let rows = self.live.iter().enumerate().flat_map(|(word, &bits)| Bits(bits).map(move |bit| word * 64 + bit));
        rows.map(|row| (row as u32, &self.rows[row]))
    }

    /// The first live row of `rows`.
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

    /// True when a row would be found by a hash.
    pub(crate) fn leads_to(&self, hash: u64, row: u32) -> bool {
        self.index.find(hash, |found| found == row).is_some()
    }

    /// Rows that share a bucket with a hash, at most 16.
    pub(crate) fn neighbours(&self, hash: u64) -> impl Iterator<Item = (u32, &R)> {
        self.index.neighbours(hash).filter_map(|row| Some((row, self.row(row)?)))
    }

    /// Asks for a row.
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
