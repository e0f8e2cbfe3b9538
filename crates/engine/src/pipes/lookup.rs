//! Code that all types of tables share: how packets are looked up, which of them hit, and why an entry is
//! refused.

use crate::batch::BatchOutcome;
use crate::batch::group::{GroupNumbers, GroupTable};
use crate::batch::packets::{Packets, Reading};
use crate::batch::rows::Slab;
use weir_packet::{Batch, Bits, DropReason};
use weir_program::{GroupChoice, GroupId};

/// Marks the absence of a row.
pub const NO_ROW: u32 = u32::MAX;

/// The maximum number of entries for which a list is divided by entry, so that each entry's action is looked
/// up once rather than for every packet.
pub const FEW_MAX: usize = 4;

/// The packets that hit each of a few entries: a row and its list.
pub type Few = [(u32, u64); FEW_MAX];

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
    pub outcome: &'a mut BatchOutcome,
    /// The row hit by each packet, where the result says so.
    pub rows: &'a mut [u32; 64],
    /// Packets dropped on the way.
    pub failed: u64,
}

/// Which packets hit.
#[derive(Clone, Copy, Debug)]
pub enum Hits {
    /// A mask of packets, whose rows are in [`Lookup::rows`].
    Each(u64),
    /// Packets, grouped by row.
    Few(Few),
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
