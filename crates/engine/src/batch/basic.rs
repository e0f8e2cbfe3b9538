//! BASIC: exact match under the pipe's one mask. Keys of one to eight words, each width its own code.
//!
//! A handful of entries is compared with each; more are found by hash. Which one it is changes with the number of
//! entries and nothing else notices.

use crate::batch::load::{KEY_WORDS_MAX, KeyPlan};
use crate::batch::packets::Packets;
use crate::batch::rows::EntryRow;
use packet::{Batch, Bits, TableHash};
use table::{Exact, InsertError, Small};

/// Up to so many entries are compared one by one: cheaper than a hash.
pub const SMALL_MAX: usize = 4;

/// The packets that hit each of a few entries: a row and its list.
pub type Few = [(u32, u64); SMALL_MAX];

/// Entries with keys of `W` words.
#[derive(Debug)]
pub struct Basic<const W: usize> {
    plan: KeyPlan,
    hash: TableHash,
    exact: Exact<W, EntryRow>,
    /// A copy of the keys while they are few, and their rows in `exact`.
    small: Option<(Small<W>, [u32; SMALL_MAX])>,
    /// The packets' keys; words that no field lies in are zero from the start.
    keys: Box<[[u64; W]; 64]>,
}

impl<const W: usize> Basic<W> {
    fn new(plan: KeyPlan, hash: TableHash, capacity: usize) -> Basic<W> {
        let small = Some((Small::new(), [0; SMALL_MAX]));
        Basic { plan, hash, exact: Exact::with_capacity(capacity), small, keys: Box::new([[0; W]; 64]) }
    }

    /// Who hits what, while entries are few.
    fn few(&mut self, batch: &Batch, packets: &Packets, list: u64) -> Option<Few> {
        let (small, row_of) = self.small.as_ref()?;
        let list = self.plan.able(packets, list);
        self.plan.gather(batch, packets, list, &mut self.keys);
        let hits = small.lookup_batch(&self.keys, list);
        Some(std::array::from_fn(|at| (row_of[at], hits[at])))
    }

    fn lookup(&mut self, batch: &Batch, packets: &Packets, list: u64, rows: &mut [u32; 64]) -> u64 {
        if let Some(few) = self.few(batch, packets, list) {
            for (row, hits) in few {
                Bits(hits).for_each(|slot| rows[slot] = row);
            }
            return few.iter().fold(0, |all, (_, hits)| all | hits);
        }
        let list = self.plan.able(packets, list);
        self.plan.gather(batch, packets, list, &mut self.keys);
        let mut hashes = [0; 64];
        for slot in Bits(list) {
            hashes[slot] = self.hash.hash(&self.keys[slot]);
            // The first bucket comes while the other keys are hashed.
            self.exact.prefetch_bucket(hashes[slot]);
        }
        self.exact.lookup_batch(&self.keys, &hashes, list, rows)
    }

    fn key(&self, values: &[u128]) -> [u64; W] {
        let mut key = [0; W];
        for (at, &value) in values.iter().enumerate() {
            self.plan.put(at, value, &mut key);
        }
        key
    }

    fn values(&self, key: &[u64; W]) -> Vec<u128> {
        (0..self.plan.places.len()).map(|at| self.plan.get(at, key)).collect()
    }

    fn insert(&mut self, values: &[u128], row: EntryRow) -> Result<u32, InsertError> {
        let key = self.key(values);
        let row = self.exact.insert(self.hash.hash(&key), key, row)?;
        self.mirror();
        Ok(row)
    }

    fn find(&self, values: &[u128]) -> Option<u32> {
        let key = self.key(values);
        self.exact.get(self.hash.hash(&key), &key)
    }

    fn remove(&mut self, values: &[u128]) -> Option<EntryRow> {
        let key = self.key(values);
        let (_, row) = self.exact.remove(self.hash.hash(&key), &key)?;
        self.mirror();
        Some(row)
    }

    /// Copies the keys to the small table while they are few.
    fn mirror(&mut self) {
        if self.exact.len() > SMALL_MAX {
            self.small = None;
            return;
        }
        let (mut small, mut row_of) = (Small::new(), [0; SMALL_MAX]);
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
    Eight(Basic<8>),
}

macro_rules! each_width {
    ($self:expr, $table:ident => $body:expr) => {
        match $self {
            BasicTable::One($table) => $body,
            BasicTable::Two($table) => $body,
            BasicTable::Three($table) => $body,
            BasicTable::Five($table) => $body,
            BasicTable::Eight($table) => $body,
        }
    };
}

impl BasicTable {
    /// A table for keys of this plan; `None` when they are too wide.
    #[must_use]
    pub fn new(plan: KeyPlan, hash: TableHash, capacity: usize) -> Option<BasicTable> {
        Some(match plan.words {
            0 | 1 => BasicTable::One(Basic::new(plan, hash, capacity)),
            2 => BasicTable::Two(Basic::new(plan, hash, capacity)),
            3 => BasicTable::Three(Basic::new(plan, hash, capacity)),
            4 | 5 => BasicTable::Five(Basic::new(plan, hash, capacity)),
            6..=KEY_WORDS_MAX => BasicTable::Eight(Basic::new(plan, hash, capacity)),
            _ => return None,
        })
    }

    /// The packets of `list` that hit each entry, while these are few.
    #[inline]
    pub fn few(&mut self, batch: &Batch, packets: &Packets, list: u64) -> Option<Few> {
        each_width!(self, table => table.few(batch, packets, list))
    }

    /// Rows of the packets of `list` that have an entry; the mask of those.
    #[inline]
    pub fn lookup(&mut self, batch: &Batch, packets: &Packets, list: u64, rows: &mut [u32; 64]) -> u64 {
        each_width!(self, table => table.lookup(batch, packets, list, rows))
    }

    /// Counts the hits and finds their actions.
    #[inline]
    pub fn count(&mut self, batch: &Batch, hits: u64, rows: &[u32; 64], now_ms: u32, action: &mut [u32; 64]) {
        each_width!(self, table => for slot in Bits(hits) {
            action[slot] = table.exact.data_mut(rows[slot]).hit(batch.frame(slot).len(), now_ms);
        });
    }

    /// The actions of the hits, counting nothing.
    pub fn peek(&self, hits: u64, rows: &[u32; 64], action: &mut [u32; 64]) {
        each_width!(self, table => for slot in Bits(hits) {
            action[slot] = table.exact.data(rows[slot]).action();
        });
    }

    /// Adds an entry.
    pub fn insert(&mut self, values: &[u128], row: EntryRow) -> Result<u32, InsertError> {
        each_width!(self, table => table.insert(values, row))
    }

    /// The row of an entry.
    #[must_use]
    pub fn find(&self, values: &[u128]) -> Option<u32> {
        each_width!(self, table => table.find(values))
    }

    /// Row numbers that may have been given out.
    #[must_use]
    pub fn rows(&self) -> u32 {
        each_width!(self, table => table.exact.capacity() as u32)
    }

    /// A row; one that has gone has default data.
    #[must_use]
    pub fn row(&self, row: u32) -> EntryRow {
        each_width!(self, table => if table.exact.is_live(row) { *table.exact.data(row) } else { EntryRow::default() })
    }

    /// A row, to be changed.
    pub fn row_mut(&mut self, row: u32) -> &mut EntryRow {
        each_width!(self, table => table.exact.data_mut(row))
    }

    /// Takes an entry out.
    pub fn remove(&mut self, values: &[u128]) -> Option<EntryRow> {
        each_width!(self, table => table.remove(values))
    }

    /// All entries: the values of the matched fields, and the row.
    #[must_use]
    pub fn entries(&self) -> Vec<(Vec<u128>, EntryRow)> {
        each_width!(self, table => table.exact.iter().map(|(_, key, row)| (table.values(key), *row)).collect())
    }

    /// Entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        each_width!(self, table => table.exact.len())
    }
}
