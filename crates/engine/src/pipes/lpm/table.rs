//! Prefix to row.

use crate::batch::compile_error::{CompileError, fields};
use crate::batch::load::KeyPlan;
use crate::pipes::lookup::{Hits, Lookup, Refusal};
use weir_packet::Bits;
use weir_program::change::EntryKey;
use weir_program::{Criterion, Entry, EntryMatch, Pipe};
use weir_table::{Lpm, LpmError, Width};

/// The prefixes of a pipe.
#[derive(Debug)]
pub struct LpmTable {
    plan: KeyPlan,
    lpm: Lpm,
    /// Nodes held for entries that will be inserted later.
    held: usize,
}

impl LpmTable {
    /// Creates an empty table.
    ///
    /// # Errors
    /// The pipe matches no field, several fields, or one that is not an address matched by prefix.
    pub fn new(pipe: &Pipe) -> Result<LpmTable, CompileError> {
        let fields = fields(pipe, |criterion| (criterion == Criterion::Prefix).then_some(u128::MAX))?;
        let [(field, _)] = fields[..] else { return Err(CompileError::Prefix(pipe.name.clone())) };
        let width = match field.spec().bits {
            32 => Width::V4,
            128 => Width::V6,
            _ => return Err(CompileError::Criterion { pipe: pipe.name.clone(), field }),
        };
        let plan = KeyPlan::unpacked(&[(field, u128::MAX)]);
        Ok(LpmTable { plan, lpm: Lpm::with_capacity(width, pipe.capacity as usize), held: 0 })
    }

    /// Inserts an entry whose row is `row`.
    pub fn insert(&mut self, entry: &Entry, row: u32) -> Result<(), Refusal> {
        let EntryMatch::Prefix { value, length } = entry.matches[0] else {
            return Err(Refusal::Unfit("an lpm entry matches a prefix".into()));
        };
        if self.lpm.get(value, length).is_some() {
            return Err(Refusal::Exists);
        }
        self.lpm.insert(value, length, row).map(|_| ()).map_err(|error| match error {
            LpmError::Full => Refusal::Full,
            LpmError::Length(_) => Refusal::Unfit(error.to_string()),
        })
    }

    /// Holds room for an entry that is inserted later.
    pub fn hold(&mut self, entry: &Entry) -> Result<(), Refusal> {
        let EntryMatch::Prefix { value, length } = entry.matches[0] else {
            return Err(Refusal::Unfit("an lpm entry matches a prefix".into()));
        };
        let nodes = self.held + self.lpm.nodes_for(value, length);
        if nodes > self.lpm.nodes_left() {
            return Err(Refusal::Full);
        }
        self.held = nodes;
        Ok(())
    }

    /// Releases all held room.
    pub fn let_go(&mut self) {
        self.held = 0;
    }

    /// Returns the row of an entry.
    #[must_use]
    pub fn find(&self, key: &EntryKey) -> Option<u32> {
        let EntryMatch::Prefix { value, length } = *key.matches.first()? else { return None };
        self.lpm.get(value, length)
    }

    /// Removes an entry and returns its row.
    pub fn remove(&mut self, key: &EntryKey) -> Option<u32> {
        let EntryMatch::Prefix { value, length } = *key.matches.first()? else { return None };
        self.lpm.remove(value, length)
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lpm.len()
    }

    /// Returns the packets that a prefix matches.
    #[inline(never)]
    pub fn lookup(&mut self, look: &mut Lookup<'_>) -> Hits {
        let able = self.plan.able(look.packets, look.list);
        let mut addresses = [0u128; 64];
        if self.plan.words == 1 {
            let mut keys = [[0; 1]; 64];
            self.plan.gather(look.batch, look.packets, able, &mut keys);
            for slot in Bits(able) {
                addresses[slot] = u128::from(keys[slot][0]);
            }
        } else {
            let mut keys = [[0; 2]; 64];
            self.plan.gather(look.batch, look.packets, able, &mut keys);
            for slot in Bits(able) {
                addresses[slot] = u128::from(keys[slot][0]) << 64 | u128::from(keys[slot][1]);
            }
        }
        Hits::Each(self.lpm.lookup_batch(&addresses, able, look.rows))
    }
}
