//! The tables behind a common interface: a key leads to the number of a row.
//!
//! The compiled pipe has a slab of rows, which assigns a number when an entry is inserted and takes it back
//! when it is removed, so a table stores no counts, ages or actions. Only BASIC keeps the rows itself, next
//! to its keys: with a million entries every cache line counts (an eighth of the rate). Every type must
//! provide what [`each_type`] calls: `find`, `len` and `lookup`, and be listed in `insert` and `remove`.

use super::acl::AclTable;
use super::basic::BasicTable;
use super::flow::{Flows, Renumbering};
use super::hash::HashTable;
use super::lookup::{Hits, Lookup, Refusal};
use super::lpm::LpmTable;
use crate::batch::rows::{EntryRow, Rows, Slab};
use weir_program::Entry;
use weir_program::change::EntryKey;

/// A pipe's table.
#[derive(Debug)]
pub enum Table {
    Basic(Box<BasicTable>),
    Hash(HashTable),
    Flow(Box<Flows>),
    Lpm(LpmTable),
    Acl(Box<AclTable>),
}

/// Runs `$body` with the table of the type in use.
macro_rules! each_type {
    ($table:expr, $one:ident => $body:expr) => {
        match $table {
            Table::Basic($one) => $body,
            Table::Hash($one) => $body,
            Table::Flow($one) => $body,
            Table::Lpm($one) => $body,
            Table::Acl($one) => $body,
        }
    };
}

impl Table {
    /// Inserts an entry with its row.
    ///
    /// # Errors
    /// The entry is refused, for this reason; in this case, nothing has changed.
    pub fn insert(
        &mut self,
        slab: &mut Slab,
        entry: &Entry,
        row: EntryRow,
        now_ms: u32,
    ) -> Result<(), Refusal> {
        let at = slab.next();
        match self {
            Table::Basic(table) => return table.insert(entry, row),
            Table::Hash(table) => table.insert(entry, at)?,
            Table::Flow(table) => table.insert(entry, at, now_ms)?,
            Table::Lpm(table) => table.insert(entry, at)?,
            Table::Acl(table) => table.insert(entry, at)?,
        }
        slab.insert(row, entry);
        Ok(())
    }

    /// Holds room for an entry that will be inserted later, in addition to `held` others. `beside` says that
    /// an entry is removed before that, along with its flows, whose places other flows may take.
    ///
    /// # Errors
    /// The entry would be refused, for this reason.
    pub fn hold(&mut self, entry: &Entry, capacity: u32, held: u32, beside: bool) -> Result<(), Refusal> {
        let full = self.len() + held as usize >= capacity as usize;
        match self {
            // A row for each target.
            Table::Hash(_) => Ok(()),
            Table::Flow(table) => table.hold(entry, beside),
            _ if full => Err(Refusal::Full),
            Table::Basic(_) => Ok(()),
            Table::Lpm(table) => table.hold(entry),
            Table::Acl(table) => table.hold(entry),
        }
    }

    /// Releases all held room.
    pub fn let_go(&mut self) {
        match self {
            Table::Flow(table) => table.let_go(),
            Table::Lpm(table) => table.let_go(),
            Table::Acl(table) => table.let_go(),
            Table::Basic(_) | Table::Hash(_) => {}
        }
    }

    /// Returns the row of an entry.
    #[must_use]
    pub fn find(&self, key: &EntryKey) -> Option<u32> {
        each_type!(self, table => table.find(key))
    }

    /// Removes an entry and returns its row.
    pub fn remove(&mut self, slab: &mut Slab, key: &EntryKey) -> Option<EntryRow> {
        let at = match self {
            Table::Basic(table) => return table.remove(key),
            Table::Hash(table) => table.remove(key),
            Table::Flow(table) => table.remove(key),
            Table::Lpm(table) => table.remove(key),
            Table::Acl(table) => table.remove(key),
        };
        at.map(|at| slab.remove(at))
    }

    /// Returns how many places may contain entries: the rows or, where the order of insertion counts, the
    /// rule numbers in that order.
    #[must_use]
    pub fn places(&self, slab: &Slab) -> u32 {
        match self {
            Table::Basic(table) => table.rows_used(),
            Table::Acl(table) => table.numbers_used(),
            _ => slab.used(),
        }
    }

    /// Returns the entry in a place, and its row.
    #[must_use]
    pub fn at_place(&self, slab: &Slab, place: u32) -> Option<(EntryKey, u32)> {
        match self {
            Table::Basic(table) => Some((table.key(place)?, place)),
            Table::Acl(table) => {
                let row = table.row_of(place)?;
                let key = slab.key(row)?;
                table.has_number(&key, place).then_some((key, row))
            }
            _ => Some((slab.key(place)?, place)),
        }
    }

    /// Returns the row in a place, whether or not there is an entry.
    #[must_use]
    pub fn row_at(&self, place: u32) -> u32 {
        if let Table::Acl(table) = self { table.row_of(place).unwrap_or_default() } else { place }
    }

    /// Returns how often entries were moved to other places.
    #[must_use]
    pub fn renumbered(&self) -> u32 {
        if let Table::Acl(table) = self { table.renumbered } else { 0 }
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        each_type!(self, table => table.len())
    }

    /// Looks up the packets of a list.
    #[inline]
    pub fn lookup(&mut self, look: &mut Lookup<'_>) -> Hits {
        each_type!(self, table => table.lookup(look))
    }

    /// Takes over state other than entries and counts from the table of the pipe's predecessor. `now` maps
    /// the decisions of flows. Returns how many flows were lost.
    pub fn inherit(&mut self, old: &mut Table, now: Option<Renumbering>, now_ms: u32) -> usize {
        match (self, old) {
            (Table::Hash(new), Table::Hash(old)) => new.inherit(old),
            (Table::Flow(new), Table::Flow(old)) => {
                return now.map_or(0, |now| new.inherit(old, now, now_ms));
            }
            _ => {}
        }
        0
    }

    /// Returns the flows of a FLOW pipe.
    #[inline]
    #[must_use]
    pub fn flows(&self) -> Option<&Flows> {
        if let Table::Flow(flows) = self { Some(flows) } else { None }
    }

    /// Returns the flows of a FLOW pipe for modification.
    #[inline]
    pub fn flows_mut(&mut self) -> Option<&mut Flows> {
        if let Table::Flow(flows) = self { Some(flows) } else { None }
    }

    /// Takes the flows out of a FLOW pipe that will not run again.
    pub fn take_flows(&mut self) -> Option<Box<Flows>> {
        let Table::Flow(flows) = self else { return None };
        let empty = Box::new(flows.without_flows());
        Some(std::mem::replace(flows, empty))
    }

    /// Returns how many packets a HASH pipe has distributed in turn.
    #[must_use]
    pub fn turns(&self) -> u64 {
        if let Table::Hash(table) = self { table.turns } else { 0 }
    }
}
