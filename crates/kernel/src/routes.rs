//! The table of an LPM pipe over a field of 32 bits: three levels of slots, by the first 16, the next 8 and
//! the last 8 bits, and the entries' records, in one array that is mapped into memory.
//!
//! A slot has the place of the record of the longest prefix that contains the slot's values, or refers to a
//! block of 256 slots of the next level where longer prefixes begin. So a packet reads at most three slots. A
//! change writes the slots of its prefix one by one, so each packet sees either the old entry or the new one.
//! A block is filled before a slot refers to it, and is freed when no longer prefix needs it.
//!
//! In the worst case, when all prefixes are far apart, the blocks take 2 KiB of memory for each entry. So
//! larger pipes, and those over other fields, use the kernel's trie.

use crate::layout;
use crate::sys::{Map, MapKind, Memory};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::Ordering;
use weir_program::{EntryMatch, Pipe};

/// The room for entries above which pipes use the kernel's trie.
const ROOM_MAX: u32 = 1 << 14;

/// Added to the place of a block.
pub const BLOCK: u32 = 1;

/// Slots of the first level, and of a block.
const FIRST: usize = 1 << 16;
const SLOTS: usize = 1 << 8;

/// Bytes of a slot.
pub const SLOT: usize = 4;

/// The layout of a table: the first level, the blocks, the records.
#[derive(Clone, Copy, Debug)]
pub struct RouteShape {
    blocks: usize,
    records: usize,
    record: usize,
}

impl RouteShape {
    /// Lays out a table with room for `room` entries; `None` if the pipe uses the kernel's trie.
    pub fn new(pipe: &Pipe, room: u32) -> Option<RouteShape> {
        let is_for = pipe.varying().next().is_some_and(|one| one.field.spec().bits == 32);
        // There are more blocks and records than needed, so that their places are not reused at once.
        let (blocks, records) = (2 * room as usize + 8, room as usize + 8);
        let shape = RouteShape { blocks, records, record: layout::record_bytes(pipe) };
        (is_for && room <= ROOM_MAX).then_some(shape)
    }

    fn first_record(&self) -> usize {
        (FIRST + self.blocks * SLOTS) * SLOT
    }

    /// The place of the last block.
    pub fn last_block(&self) -> usize {
        (FIRST + (self.blocks - 1) * SLOTS) * SLOT
    }

    /// The place of the last record.
    pub fn last_record(&self) -> usize {
        self.first_record() + (self.records - 1) * self.record
    }

    fn bytes(&self) -> usize {
        self.first_record() + self.records * self.record
    }
}

/// A prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Prefix {
    value: u32,
    length: u8,
}

impl Prefix {
    fn of(matches: &[EntryMatch]) -> Prefix {
        match *matches {
            [EntryMatch::Prefix { value, length }] => Prefix { value: value as u32, length }.shorter(length),
            _ => unreachable!("the entries of LPM pipes have a prefix"),
        }
    }

    fn shorter(self, length: u8) -> Prefix {
        let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        Prefix { value: self.value & mask, length }
    }
}

/// A table of prefixes, in the memory of a map that the program in the kernel reads.
#[derive(Debug)]
pub struct RouteTable {
    shape: RouteShape,
    memory: Memory,
    /// The record of each prefix.
    prefixes: HashMap<Prefix, u32>,
    /// The length of the prefix of each record.
    lengths: Vec<u8>,
    /// How many prefixes need a block, by the values that the block is for.
    users: HashMap<Prefix, u32>,
    /// Places that are not in use; the first one has been free for the longest time.
    free_records: VecDeque<u32>,
    free_blocks: VecDeque<u32>,
}

impl RouteTable {
    /// Creates an empty table.
    ///
    /// # Errors
    /// The kernel has no memory; the error contains the number of bytes.
    pub fn new(shape: RouteShape) -> Result<(Map, RouteTable), (usize, io::Error)> {
        let bytes = shape.bytes();
        let map = Map::create(MapKind::Array, 4, bytes, 1).map_err(|error| (bytes, error))?;
        let memory = map.memory().map_err(|error| (bytes, error))?;
        let record = |at| (shape.first_record() + at * shape.record) as u32;
        let block = |at| ((FIRST + at * SLOTS) * SLOT) as u32;
        let table = RouteTable {
            shape,
            memory,
            prefixes: HashMap::new(),
            lengths: vec![0; shape.records],
            users: HashMap::new(),
            free_records: (0..shape.records).map(record).collect(),
            free_blocks: (0..shape.blocks).map(block).collect(),
        };
        Ok((map, table))
    }

    fn slot(&self, at: u32) -> u32 {
        self.memory.half(at as usize).load(Ordering::Relaxed)
    }

    fn set_slot(&self, at: u32, to: u32) {
        self.memory.half(at as usize).store(to, Ordering::Release);
    }

    /// Whether the prefix of a record is longer than `than`. Record 0 means that there is none.
    fn is_longer(&self, record: u32, than: u8) -> bool {
        record != 0 && self.lengths[(record as usize - self.shape.first_record()) / self.shape.record] > than
    }

    /// Adds an entry, or replaces the one with the same prefix.
    ///
    /// # Errors
    /// There is no room for the entry.
    pub fn put(&mut self, matches: &[EntryMatch], record: &[u8]) -> io::Result<()> {
        let prefix = Prefix::of(matches);
        let full = || io::Error::from_raw_os_error(libc::E2BIG);
        let place = self.free_records.pop_front().ok_or_else(full)?;
        self.memory.write(place as usize, record);
        self.lengths[(place as usize - self.shape.first_record()) / self.shape.record] = prefix.length;
        let old = self.prefixes.insert(prefix, place);
        if old.is_none() {
            self.need_blocks(prefix);
        }
        self.write(prefix, place, |table, present| !table.is_longer(present, prefix.length));
        self.free_records.extend(old);
        Ok(())
    }

    /// Removes an entry: the longest shorter prefix takes its place.
    ///
    /// # Errors
    /// There is no such entry.
    pub fn remove(&mut self, matches: &[EntryMatch]) -> io::Result<()> {
        let prefix = Prefix::of(matches);
        let found = self.prefixes.remove(&prefix);
        let old = found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        let shorter = (0..prefix.length).rev().find_map(|length| self.prefixes.get(&prefix.shorter(length)));
        let to = shorter.copied().unwrap_or(0);
        self.write(prefix, to, |_, present| present == old);
        self.give_blocks_back(prefix);
        self.free_records.push_back(old);
        Ok(())
    }

    /// Ensures that the blocks that a prefix needs exist and that slots refer to them.
    fn need_blocks(&mut self, prefix: Prefix) {
        for length in levels(prefix) {
            *self.users.entry(prefix.shorter(length)).or_default() += 1;
            let at = self.slot_of(prefix, length);
            let present = self.slot(at);
            if present & BLOCK == 0 {
                let block = self.free_blocks.pop_front().expect("each entry needs two at most");
                (0..SLOTS as u32).for_each(|slot| self.set_slot(block + slot * SLOT as u32, present));
                self.set_slot(at, block | BLOCK);
            }
        }
    }

    /// Frees the blocks that only this prefix needed, the last one first. All their slots are equal.
    fn give_blocks_back(&mut self, prefix: Prefix) {
        for length in levels(prefix).rev() {
            let users = self.users.get_mut(&prefix.shorter(length)).expect("the prefix is one of them");
            *users -= 1;
            if *users == 0 {
                self.users.remove(&prefix.shorter(length));
                let at = self.slot_of(prefix, length);
                let block = self.slot(at) & !BLOCK;
                self.set_slot(at, self.slot(block));
                self.free_blocks.push_back(block);
            }
        }
    }

    /// The slot for the first 16, 24 or 32 bits of a value.
    fn slot_of(&self, prefix: Prefix, length: u8) -> u32 {
        let mut at = (prefix.value >> 16) * SLOT as u32;
        for bits in (24..=length).step_by(8) {
            let block = self.slot(at) & !BLOCK;
            at = block + (prefix.value >> (32 - bits) & 0xff) * SLOT as u32;
        }
        at
    }

    /// Writes those slots of a prefix whose records are to be replaced, including slots in blocks.
    fn write(&self, prefix: Prefix, to: u32, is_replaced: impl Fn(&RouteTable, u32) -> bool + Copy) {
        let level = prefix.length.max(16).next_multiple_of(8);
        let first = self.slot_of(prefix, level);
        for slot in 0..1_u32 << (level - prefix.length) {
            self.write_slot(first + slot * SLOT as u32, to, is_replaced);
        }
    }

    fn write_slot(&self, at: u32, to: u32, is_replaced: impl Fn(&RouteTable, u32) -> bool + Copy) {
        let present = self.slot(at);
        if present & BLOCK != 0 {
            let block = present & !BLOCK;
            (0..SLOTS as u32).for_each(|slot| self.write_slot(block + slot * SLOT as u32, to, is_replaced));
        } else if is_replaced(self, present) {
            self.set_slot(at, to);
        }
    }
}

/// The numbers of bits after which a prefix needs a block.
fn levels(prefix: Prefix) -> impl DoubleEndedIterator<Item = u8> {
    [16, 24].into_iter().filter(move |length| prefix.length > *length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_packet::Field;
    use weir_packet::random::Random;

    /// The record that a packet to an address hits.
    fn look_up(table: &RouteTable, address: u32) -> u32 {
        let mut at = (address >> 16) * SLOT as u32;
        for shift in [8, 0] {
            let slot = table.slot(at);
            if slot & BLOCK == 0 {
                return slot;
            }
            at = (slot & !BLOCK) + (address >> shift & 0xff) * SLOT as u32;
        }
        table.slot(at)
    }

    #[test]
    fn packets_meet_the_longest_prefix_after_each_change_and_blocks_come_back() {
        let pipe = Pipe::lpm("pipe", Field::Ipv4Dst);
        let shape = RouteShape::new(&pipe, 200).unwrap();
        let (_map, mut table) = match RouteTable::new(shape) {
            Ok(table) => table,
            Err((_, error)) => {
                assert!(std::env::var_os("CI").is_none(), "CI runs as root: {error}");
                return eprintln!("skipped: {error}");
            }
        };
        let record = vec![0; shape.record];
        let mut random = Random::new(9);
        let one = |prefix: Prefix| [EntryMatch::Prefix { value: prefix.value.into(), length: prefix.length }];
        // Few values, so that prefixes contain each other.
        let address = |random: &mut Random| 0x0a00_0000 | random.bits() as u32 & 0x0103_0303;
        let mut all: Vec<Prefix> = Vec::new();
        for _ in 0..4000 {
            let length = [0, 8, 15, 16, 17, 23, 24, 25, 31, 32][random.below(10) as usize];
            let prefix = Prefix { value: address(&mut random), length }.shorter(length);
            if let Some(at) = all.iter().position(|one| *one == prefix)
                && random.below(2) == 0
            {
                all.swap_remove(at);
                table.remove(&one(prefix)).unwrap();
            } else if all.contains(&prefix) || all.len() < 150 {
                all.retain(|one| *one != prefix);
                all.push(prefix);
                table.put(&one(prefix), &record).unwrap();
            }
            let address = address(&mut random);
            let contains = |one: &&Prefix| Prefix { value: address, length: 32 }.shorter(one.length) == **one;
            let longest = all.iter().filter(contains).max_by_key(|one| one.length);
            let expected = longest.map_or(0, |prefix| table.prefixes[prefix]);
            assert_eq!(look_up(&table, address), expected, "{address:08x}");
        }
        assert!(table.free_blocks.len() < shape.blocks);
        for prefix in all {
            table.remove(&one(prefix)).unwrap();
        }
        assert!(table.remove(&[EntryMatch::Prefix { value: 1, length: 32 }]).is_err());
        assert_eq!((table.free_blocks.len(), table.free_records.len()), (shape.blocks, shape.records));
        assert!((0..FIRST as u32).all(|slot| table.slot(slot * SLOT as u32) == 0));
    }
}
