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
use super::lpm::LpmTable;
use crate::batch::Outcome;
use crate::batch::group::{GroupNumbers, GroupTable};
use crate::batch::packets::{Packets, Reading};
use crate::batch::rows::{EntryRow, Rows, Slab};
use weir_packet::{Batch, Bits, DropReason};
use weir_program::change::EntryKey;
use weir_program::{Entry, GroupChoice, GroupId};

/// Marks the absence of a row.
pub const NO_ROW: u32 = u32::MAX;

/// Up to this many entries, a list is divided by entry, so that each entry's action is looked up once rather
/// than for every packet.
pub const FEW_MAX: usize = 4;

/// The packets that hit each of a few entries: a row and its list.
pub type Few = [(u32, u64); FEW_MAX];

/// A pipe's table.
#[derive(Debug)]
pub enum Table {
    Basic(Box<BasicTable>),
    Hash(HashTable),
    Flow(Box<Flows>),
    Lpm(LpmTable),
    Acl(Box<AclTable>),
}

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

/// Runs `$body` with the rows of a compiled pipe: those of its BASIC table, or those of its slab.
macro_rules! with_rows {
    ($pipe:ident [& $($mutable:ident)?], $rows:ident => $body:expr) => {
        match &$($mutable)? $pipe.table {
            crate::pipes::table::Table::Basic(table) => {
                crate::pipes::basic::each_width!(&$($mutable)? **table, table => {
                    let $rows = &$($mutable)? table.exact;
                    $body
                })
            }
            _ => {
                let $rows = &$($mutable)? $pipe.slab;
                $body
            }
        }
    };
}
pub(crate) use with_rows;

/// Why an entry was refused, before the pipe's name is added.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    Full,
    Exists,
    Unfit(String),
}

/// A look-up: the packets, what a table may know about the rest of the program, and the results.
pub struct Lookup<'a> {
    pub batch: &'a Batch,
    pub packets: &'a Packets,
    /// The packets to look up.
    pub list: u64,
    /// The rows that the table's keys lead to.
    pub slab: &'a Slab,
    pub groups: &'a mut [GroupTable],
    pub numbers: &'a GroupNumbers,
    pub reading: &'a Reading,
    pub now_ms: u32,
    pub now_ns: u64,
    /// False while explaining: nothing is learnt or counted, and given buckets do not count.
    pub live: bool,
    pub outcome: &'a mut Outcome,
    /// The row hit by each packet, where the result says so.
    pub rows: &'a mut [u32; 64],
    /// Packets dropped on the way.
    pub failed: u64,
}

/// Which packets hit.
#[derive(Clone, Copy, Debug)]
pub enum Hits {
    /// These packets, with their rows in [`Lookup::rows`].
    Each(u64),
    /// These packets, grouped by row.
    Few(Few),
}

impl Table {
    /// Inserts an entry with its row.
    ///
    /// # Errors
    /// Why it was refused; nothing has changed then.
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
    /// an entry is removed before that, along with its flows, whose places others may take.
    ///
    /// # Errors
    /// Why it would be refused then.
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

impl Lookup<'_> {
    /// Finds the group that each packet of `list` picks from, by its position. Returns the packets that have
    /// one.
    #[inline]
    pub fn choose(&self, choice: Option<GroupChoice>, list: u64, chosen: &mut [u16; 64]) -> u64 {
        let Some(choice) = choice else { return list };
        if let Some(group) = self.common(choice, list) {
            *chosen = [group.0; 64];
            return list;
        }
        let mut able = 0;
        if let GroupChoice::ByMeta(word) = choice {
            for slot in Bits(list) {
                if let Some(group) = self.numbers.group(self.meta(slot, word)) {
                    chosen[slot] = group.0;
                    able |= 1 << slot;
                }
            }
        }
        able
    }

    /// Returns the group that all packets of `list` pick from, if there is one: even with many services, most
    /// batches of a busy service have no other.
    #[inline]
    pub fn common(&self, choice: GroupChoice, list: u64) -> Option<GroupId> {
        let word = match choice {
            GroupChoice::One(group) => return Some(group),
            GroupChoice::ByMeta(word) => word,
        };
        let number = self.meta(list.trailing_zeros() as usize & 63, word);
        let differ = Bits(list).fold(0, |differ, slot| differ | self.meta(slot, word) ^ number);
        if differ == 0 { self.numbers.group(number) } else { None }
    }

    #[inline(always)]
    fn meta(&self, slot: usize, word: u8) -> u32 {
        self.packets.meta[slot][usize::from(word) & 3]
    }

    /// Drops packets whose flow can neither be learnt nor be translated without being learnt.
    #[cold]
    pub fn untranslated(&mut self, list: u64, reason: DropReason) {
        self.failed |= list;
        Bits(list).for_each(|slot| self.outcome.drop(slot, reason));
    }

    /// Drops packets whose group has no target for them, or whose target has no entry, or sends them to the
    /// app that their group names. `chosen` has the groups, if the pipe picks from any.
    #[inline]
    pub fn without_target(&mut self, list: u64, chosen: Option<&[u16; 64]>) {
        self.failed |= list;
        for slot in Bits(list) {
            let group = chosen.and_then(|chosen| self.groups.get(usize::from(chosen[slot])));
            match group {
                Some(group) => group.without_target(slot, self.outcome),
                None => self.outcome.drop(slot, DropReason::NoTarget),
            }
        }
    }
}

impl Hits {
    /// Returns all packets that hit.
    #[inline]
    #[must_use]
    pub fn all(&self) -> u64 {
        match self {
            Hits::Each(hits) => *hits,
            Hits::Few(few) => few.iter().fold(0, |all, (_, hits)| all | hits),
        }
    }

    /// Groups the packets by row if a pipe of `count` rows has few rows.
    #[inline]
    #[must_use]
    pub fn by_row(self, rows: &[u32; 64], count: usize) -> Hits {
        let Hits::Each(hits) = self else { return self };
        if count > FEW_MAX {
            return self;
        }
        Hits::Few(std::array::from_fn(|row| {
            if row < count { (row as u32, having(rows, row as u32) & hits) } else { (0, 0) }
        }))
    }

    /// Converts to rows by packet. Returns the packets that hit.
    #[inline]
    pub fn by_packet(self, rows: &mut [u32; 64]) -> u64 {
        if let Hits::Few(few) = self {
            for (row, hits) in few {
                Bits(hits).for_each(|slot| rows[slot] = row);
            }
        }
        self.all()
    }
}

/// Returns the slots that have this row.
#[inline(always)]
fn having(rows: &[u32; 64], row: u32) -> u64 {
    rows.iter().rev().fold(0, |mask, &one| mask << 1 | u64::from(one == row))
}
