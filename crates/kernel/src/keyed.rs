//! The table of a BASIC pipe: an index by key, and the entries' records, in one array that is mapped into
//! memory.
//!
//! A key is packed into as few words as its fields' masks allow. If the key has only a few bits, the index
//! has a slot for each value of the key. Otherwise, a hash of the key selects [`PROBES`] slots, one of which
//! may be the key's. A slot has the record's place and, if slots are found by hash, a tag; the record is
//! followed by its key. So a packet that hits usually reads one slot and one record.
//!
//! A slot is one word, so packets see either the old entry or the new one. The place of a record that was
//! replaced is reused as late as possible, because a packet may be reading it.

use crate::layout;
use crate::sys::{Map, MapKind, Memory};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use weir_packet::Field;
use weir_program::{EntryMatch, Pipe};

/// The number of slots that a key's hash leads to. With at most a quarter of all slots in use, a million
/// random keys all find a slot.
pub const PROBES: usize = 16;

/// The maximum number of bits of a key for which each value of the key has a slot.
const DIRECT_BITS: u32 = 12;

/// Multiplies words of keys: odd, and without a pattern.
pub const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Distinguishes the tag from that of an empty slot.
pub const TAG: u64 = 1;

/// The maximum number of bytes of a table: the verifier accepts no larger offsets into a map's value.
const BYTES_MAX: usize = 1 << 29;

/// Where a field's value is in a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPart {
    /// The field of the packet that is compared.
    pub field: Field,
    /// The bits of the field that are compared.
    pub mask: u128,
    /// The lowest bit of the field that is compared; lower bits are left out.
    pub low: u32,
    /// The field's word in the key; a field that needs two also has the next word.
    pub word: usize,
    /// Where the field begins in the word.
    pub shift: u32,
}

impl KeyPart {
    /// Whether the field takes two words.
    pub fn is_wide(&self) -> bool {
        layout::value_bytes(self.field) == 16
    }
}

/// How a table is laid out.
#[derive(Clone, Debug)]
pub struct KeyShape {
    /// The fields.
    pub parts: Vec<KeyPart>,
    /// The words of a key.
    pub words: usize,
    /// The number of slots in the index, without those after the last place that a hash leads to: a power of
    /// two.
    pub slots: usize,
    /// Whether each key has a slot.
    pub is_direct: bool,
    /// Bytes of a record without its key.
    record: usize,
    records: usize,
}

impl KeyShape {
    /// Lays out a table with room for `room` entries.
    pub fn new(pipe: &Pipe, room: usize) -> KeyShape {
        let (mut parts, mut word, mut bits) = (Vec::new(), 0, 0);
        for one in pipe.varying() {
            let (field, mask) = (one.field, layout::mask(one));
            let low = mask.trailing_zeros() % 128;
            let wide = layout::value_bytes(field) == 16;
            let width = if wide { 128 } else { 128 - (mask >> low).leading_zeros() };
            // A field of which no bit is compared has a word, too.
            if bits == 64 || bits > 0 && bits + width > 64 {
                (word, bits) = (word + 1, 0);
            }
            parts.push(KeyPart { field, mask, low: if wide { 0 } else { low }, word, shift: bits });
            (word, bits) = if wide { (word + 2, 0) } else { (word, bits + width) };
        }
        let behind = |part: &KeyPart| part.word + if part.is_wide() { 2 } else { 1 };
        let words = parts.iter().map(behind).max().unwrap_or(1);
        let is_direct = word == 0 && bits <= DIRECT_BITS;
        let slots = if is_direct { 1 << bits } else { (4 * room.max(1)).next_power_of_two() };
        // More than needed, so that a record's place is not reused at once.
        let records = room + room / 8 + 8;
        KeyShape { parts, words, slots, is_direct, record: layout::record_bytes(pipe), records }
    }

    /// Packs the values of an entry.
    pub fn key(&self, matches: &[EntryMatch]) -> Vec<u64> {
        let mut key = vec![0; self.words];
        for (part, one) in self.parts.iter().zip(matches) {
            let EntryMatch::Value(value) = *one else {
                unreachable!("the entries of BASIC pipes have values")
            };
            let value = value & part.mask;
            if part.is_wide() {
                key[part.word] = (value >> 64) as u64;
                key[part.word + 1] = value as u64;
            } else {
                key[part.word] |= ((value >> part.low) as u64) << part.shift;
            }
        }
        key
    }

    /// Bytes of the index, in front of the records.
    pub fn index(&self) -> usize {
        8 * (self.slots + if self.is_direct { 0 } else { PROBES })
    }

    /// Where a record has its key.
    pub fn key_offset(&self) -> usize {
        self.record
    }

    /// Bytes of a record with its key.
    fn stride(&self) -> usize {
        self.record + if self.is_direct { 0 } else { 8 * self.words }
    }

    /// The place of the last record.
    pub fn last_record(&self) -> usize {
        self.index() + (self.records - 1) * self.stride()
    }

    fn bytes(&self) -> usize {
        self.index() + self.records * self.stride()
    }

    /// The first slot in which a key may be, the number of such slots, and the slot's tag.
    fn slots_of(&self, key: &[u64]) -> (usize, usize, u64) {
        if self.is_direct {
            return (key.first().map_or(0, |word| *word as usize), 1, 0);
        }
        let hash = key.iter().fold(0, |hash: u64, word| {
            let product = (hash ^ word).wrapping_mul(FACTOR);
            product ^ product >> 32
        });
        (hash as usize & (self.slots - 1), PROBES, hash >> 32 | TAG)
    }
}

/// A hash table from keys to records, in the memory of a map that the program in the kernel reads.
#[derive(Debug)]
pub struct KeyTable {
    shape: KeyShape,
    memory: Memory,
    /// Places of records that are not in use; the first one has been free for the longest time.
    free: VecDeque<u32>,
}

impl KeyTable {
    /// Creates an empty table.
    ///
    /// # Errors
    /// The kernel has no memory; the error contains the number of bytes.
    pub fn new(shape: KeyShape) -> Result<(Map, KeyTable), (usize, io::Error)> {
        let bytes = shape.bytes();
        if bytes > BYTES_MAX {
            return Err((bytes, io::Error::other("more than an array can have")));
        }
        let map = Map::create(MapKind::Array, 4, bytes, 1).map_err(|error| (bytes, error))?;
        let memory = map.memory().map_err(|error| (bytes, error))?;
        let place = |at| (shape.index() + at * shape.stride()) as u32;
        let free = (0..shape.records).map(place).collect();
        Ok((map, KeyTable { shape, memory, free }))
    }

    /// Returns the slot of a key, and the place of its record.
    fn find(&self, key: &[u64]) -> Option<(usize, u32)> {
        let (first, count, tag) = self.shape.slots_of(key);
        (first..first + count).find_map(|slot| {
            let word = self.memory.word(8 * slot).load(Ordering::Relaxed);
            let place = word as u32;
            let is_it = place != 0 && word >> 32 == tag && (self.shape.is_direct || self.has(place, key));
            is_it.then_some((slot, place))
        })
    }

    fn has(&self, place: u32, key: &[u64]) -> bool {
        let first = place as usize + self.shape.key_offset();
        (0..).zip(key).all(|(at, word)| self.memory.word(first + 8 * at).load(Ordering::Relaxed) == *word)
    }

    /// Returns the place at which the entry with these values counts.
    pub fn count_of(&self, matches: &[EntryMatch]) -> Option<u32> {
        let (_, place) = self.find(&self.shape.key(matches))?;
        let first = self.memory.word(place as usize).load(Ordering::Relaxed).to_ne_bytes();
        Some(u32::from_ne_bytes(first[..4].try_into().expect("4 bytes")))
    }

    /// Adds an entry, or replaces the one with the same values.
    ///
    /// # Errors
    /// There is no room for the entry.
    pub fn put(&mut self, matches: &[EntryMatch], record: &[u8]) -> io::Result<()> {
        let key = self.shape.key(matches);
        let (first, count, tag) = self.shape.slots_of(&key);
        let old = self.find(&key);
        let is_empty = |slot: &usize| self.memory.word(8 * slot).load(Ordering::Relaxed) == 0;
        let slot = old.map(|(slot, _)| slot).or_else(|| (first..first + count).find(is_empty));
        let full = || io::Error::from_raw_os_error(libc::E2BIG);
        let slot = slot.ok_or_else(full)?;
        let place = self.free.pop_front().ok_or_else(full)?;
        self.memory.write(place as usize, record);
        if !self.shape.is_direct {
            let key: Vec<u8> = key.iter().flat_map(|word| word.to_ne_bytes()).collect();
            self.memory.write(place as usize + self.shape.key_offset(), &key);
        }
        self.memory.word(8 * slot).store(tag << 32 | u64::from(place), Ordering::Release);
        self.free.extend(old.map(|(_, place)| place));
        Ok(())
    }

    /// Removes an entry.
    ///
    /// # Errors
    /// There is no such entry.
    pub fn remove(&mut self, matches: &[EntryMatch]) -> io::Result<()> {
        let found = self.find(&self.shape.key(matches));
        let (slot, place) = found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        self.memory.word(8 * slot).store(0, Ordering::Release);
        self.free.push_back(place);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use weir_packet::random::Random;

    const ROOM: u32 = 1000;

    /// A record whose hits are counted at a place.
    fn record(pipe: &Pipe, place: u32) -> Vec<u8> {
        let mut record = place.to_ne_bytes().to_vec();
        record.resize(layout::record_bytes(pipe), 7);
        record
    }

    /// Two words: 32 bits, then 16 and 32.
    fn pipe() -> Pipe {
        let fields = [Field::Ipv4Src, Field::UdpDport, Field::Ipv4Dst];
        fields.into_iter().fold(Pipe::basic("pipe"), Pipe::per_entry)
    }

    #[test]
    fn keys_are_packed_into_few_words() {
        let shape = KeyShape::new(&pipe(), 16);
        assert_eq!((shape.words, shape.is_direct, shape.slots), (2, false, 64));
        let key = shape.key(&[1, 2, 3].map(EntryMatch::Value));
        assert_eq!(key, [1 | 2 << 32, 3]);
        let few = Pipe::basic("few").per_entry_bits(Field::Ipv4Src, 0xf0).per_entry(Field::Ipv4Ttl);
        let shape = KeyShape::new(&few, 16);
        assert_eq!((shape.words, shape.is_direct, shape.slots), (1, true, 1 << 12));
        assert_eq!(shape.key(&[0x50, 9].map(EntryMatch::Value)), [5 | 9 << 4]);
    }

    #[test]
    fn a_table_has_what_was_put_in_last() {
        let pipe = pipe();
        let (_map, mut table) = match KeyTable::new(KeyShape::new(&pipe, ROOM as usize)) {
            Ok(table) => table,
            Err((_, error)) => {
                assert!(std::env::var_os("CI").is_none(), "CI runs as root: {error}");
                return eprintln!("skipped: {error}");
            }
        };
        let (mut random, mut expected) = (Random::new(5), HashMap::new());
        let key = |at: u64| [at, at % 7, at % 11].map(|value| EntryMatch::Value(value.into()));
        for place in 0..10 * ROOM {
            let at = random.below(2 * u64::from(ROOM));
            if random.below(3) == 0 {
                assert_eq!(table.remove(&key(at)).is_ok(), expected.remove(&at).is_some(), "{at}");
            } else if expected.len() < ROOM as usize || expected.contains_key(&at) {
                table.put(&key(at), &record(&pipe, place)).unwrap();
                expected.insert(at, place);
            }
        }
        for at in 0..2 * u64::from(ROOM) {
            assert_eq!(table.count_of(&key(at)), expected.get(&at).copied(), "{at}");
        }
        assert!(expected.len() > ROOM as usize / 2, "{}", expected.len());
    }
}
