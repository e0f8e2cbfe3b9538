//! Exact match: keys have one to eight words, with separate code for each width.
//!
//! A handful of entries is searched linearly, a larger number by hash. The switch depends on the number of
//! entries and is not visible outside.

use crate::batch::compile_error::{CompileError, fields};
use crate::batch::count::{Counting, Numbers};
use crate::batch::load::{KEY_WORDS_MAX, KeyPlan};
use crate::batch::rows::{EntryRow, Rows};
use crate::pipes::lookup::{FEW_MAX, Hits, Lookup, Refusal};
use weir_packet::{Bits, TableHash};
use weir_program::change::EntryKey;
use weir_program::{Criterion, Entry, EntryMatch, Pipe};
use weir_table::{Exact, InsertError, Small};

/// Entries with keys of `W` words.
#[derive(Debug)]
pub struct Basic<const W: usize> {
    plan: KeyPlan,
    hash: TableHash,
    pub exact: Exact<W, EntryRow>,
    /// A copy of the keys while they are few, and their rows.
    small: Option<(Small<W>, [u32; FEW_MAX])>,
    /// The packets' keys; words without a field stay zero.
    keys: Box<[[u64; W]; 64]>,
}

impl<const W: usize> Basic<W> {
    fn new(plan: KeyPlan, hash: TableHash, capacity: usize) -> Basic<W> {
        let small = Some((Small::new(), [0; FEW_MAX]));
        Basic { plan, hash, exact: Exact::with_capacity(capacity), small, keys: Box::new([[0; W]; 64]) }
    }

    fn lookup(&mut self, look: &mut Lookup<'_>) -> Hits {
        let list = self.plan.able(look.packets, look.list);
        self.plan.gather(look.batch, look.packets, list, &mut self.keys);
        if let Some((small, row_of)) = &self.small {
            let hits = small.lookup_batch(&self.keys, list);
            return Hits::Few(std::array::from_fn(|at| (row_of[at], hits[at])));
        }
        let mut hashes = [0; 64];
        for slot in Bits(list) {
            hashes[slot] = self.hash.hash(&self.keys[slot]);
            // The first bucket is prefetched while the other keys are hashed.
            self.exact.prefetch_bucket(hashes[slot]);
        }
        Hits::Each(self.exact.lookup_batch(&self.keys, &hashes, list, look.rows))
    }

    fn key(&self, matches: &[EntryMatch]) -> [u64; W] {
        let mut key = [0; W];
        for (at, one) in matches.iter().enumerate() {
            if let EntryMatch::Value(value) = one {
                self.plan.put(at, *value, &mut key);
            }
        }
        key
    }

    fn matches(&self, key: &[u64; W]) -> Vec<EntryMatch> {
        (0..self.plan.places.len()).map(|at| EntryMatch::Value(self.plan.get(at, key))).collect()
    }

    fn insert(&mut self, matches: &[EntryMatch], row: EntryRow) -> Result<(), Refusal> {
        let key = self.key(matches);
        self.exact.insert(self.hash.hash(&key), key, row).map_err(|error| match error {
            InsertError::Full => Refusal::Full,
            InsertError::Exists(_) => Refusal::Exists,
        })?;
        self.mirror();
        Ok(())
    }

    fn find(&self, matches: &[EntryMatch]) -> Option<u32> {
        let key = self.key(matches);
        self.exact.get(self.hash.hash(&key), &key)
    }

    fn remove(&mut self, matches: &[EntryMatch]) -> Option<EntryRow> {
        let key = self.key(matches);
        let (_, row) = self.exact.remove(self.hash.hash(&key), &key)?;
        self.mirror();
        Some(row)
    }

    fn key_of(&self, row: u32) -> Option<EntryKey> {
        let words = self.exact.is_live(row).then(|| self.exact.row(row).key)?;
        Some(EntryKey { matches: self.matches(&words), priority: 0 })
    }

    /// Returns the row of the entry whose key is in `row` of another table with the same plan.
    fn find_like(&self, other: &Basic<W>, row: u32) -> Option<u32> {
        let key = &other.exact.row(row).key;
        self.exact.get(self.hash.hash(key), key)
    }

    /// Copies the keys to the small table while they are few.
    fn mirror(&mut self) {
        if self.exact.len() > FEW_MAX {
            self.small = None;
            return;
        }
        let (mut small, mut row_of) = (Small::new(), [0; FEW_MAX]);
        for (row, key, _) in self.exact.iter() {
            if let Ok(at) = small.insert(*key) {
                row_of[at as usize] = row;
            }
        }
        self.small = Some((small, row_of));
    }
}

/// A BASIC table of any width.
#[derive(Debug)]
pub enum BasicTable {
    One(Basic<1>),
    Two(Basic<2>),
    Three(Basic<3>),
    Five(Basic<5>),
    Eight(Basic<KEY_WORDS_MAX>),
}

/// Runs `$body` with the table of the width in use.
macro_rules! each_width {
    ($table:expr, $one:ident => $body:expr) => {
        match $table {
            BasicTable::One($one) => $body,
            BasicTable::Two($one) => $body,
            BasicTable::Three($one) => $body,
            BasicTable::Five($one) => $body,
            BasicTable::Eight($one) => $body,
        }
    };
}

impl BasicTable {
    /// Creates an empty table for the entries of a pipe.
    ///
    /// # Errors
    /// The pipe's keys are too wide, or this type does not support one of its criteria.
    pub fn new(pipe: &Pipe, hash: TableHash) -> Result<BasicTable, CompileError> {
        let plan = KeyPlan::new(&fields(pipe, |criterion| match criterion {
            Criterion::PerEntry { mask } => Some(mask),
            _ => None,
        })?);
        let capacity = pipe.capacity as usize;
        Ok(match plan.words {
            0 | 1 => BasicTable::One(Basic::new(plan, hash, capacity)),
            2 => BasicTable::Two(Basic::new(plan, hash, capacity)),
            3 => BasicTable::Three(Basic::new(plan, hash, capacity)),
            4 | 5 => BasicTable::Five(Basic::new(plan, hash, capacity)),
            6..=KEY_WORDS_MAX => BasicTable::Eight(Basic::new(plan, hash, capacity)),
            _ => return Err(CompileError::KeyTooWide(pipe.name.clone())),
        })
    }

    /// Inserts an entry with its row.
    pub fn insert(&mut self, entry: &Entry, row: EntryRow) -> Result<(), Refusal> {
        each_width!(self, table => table.insert(&entry.matches, row))
    }

    /// Returns the row of an entry.
    #[must_use]
    pub fn find(&self, key: &EntryKey) -> Option<u32> {
        each_width!(self, table => table.find(&key.matches))
    }

    /// Removes an entry and returns its row.
    pub fn remove(&mut self, key: &EntryKey) -> Option<EntryRow> {
        each_width!(self, table => table.remove(&key.matches))
    }

    /// Returns a row.
    #[must_use]
    pub fn row(&self, at: u32) -> &EntryRow {
        each_width!(self, table => table.exact.at(at))
    }

    /// Returns a row for modification.
    pub fn row_mut(&mut self, at: u32) -> &mut EntryRow {
        each_width!(self, table => table.exact.at_mut(at))
    }

    /// Counts the packets of a list in their rows. Returns their actions.
    #[inline(always)]
    pub fn count<N: Numbers>(&mut self, counting: Counting<'_, N>) -> N {
        each_width!(self, table => counting.run(&mut table.exact))
    }

    /// Number of rows ever used.
    #[inline]
    #[must_use]
    pub fn rows_used(&self) -> u32 {
        each_width!(self, table => table.exact.used())
    }

    /// Returns the key of a row; `None` if it is not in use.
    #[must_use]
    pub fn key(&self, row: u32) -> Option<EntryKey> {
        each_width!(self, table => table.key_of(row))
    }

    /// Whether a row is in use.
    #[must_use]
    pub fn is_live(&self, row: u32) -> bool {
        each_width!(self, table => table.exact.is_live(row))
    }

    /// Returns the row of the entry with the key that `other`, a table for the same fields and masks, has in
    /// `row`.
    #[must_use]
    pub fn find_like(&self, other: &BasicTable, row: u32) -> Option<u32> {
        match (self, other) {
            (BasicTable::One(own), BasicTable::One(other)) => own.find_like(other, row),
            (BasicTable::Two(own), BasicTable::Two(other)) => own.find_like(other, row),
            (BasicTable::Three(own), BasicTable::Three(other)) => own.find_like(other, row),
            (BasicTable::Five(own), BasicTable::Five(other)) => own.find_like(other, row),
            (BasicTable::Eight(own), BasicTable::Eight(other)) => own.find_like(other, row),
            _ => None,
        }
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        each_width!(self, table => table.exact.len())
    }

    /// Returns the packets that have an entry.
    #[inline]
    pub fn lookup(&mut self, look: &mut Lookup<'_>) -> Hits {
        each_width!(self, table => table.lookup(look))
    }
}
