//! The entries of a pipe as written, in packed form: a program may have a million of them, and an [`Entry`]
//! with its vectors takes some 250 bytes, whereas an entry of two numbers packs into about 20.
//!
//! An entry is a run of bytes: its key (matches and priority), then the rest, with variable-length numbers.
//! Lists are read from the front and written at the back. A copy of a list shares its memory until one of the
//! two changes, so programs and plans are cheap to copy.

use crate::change::EntryKey;
use crate::{AppId, CounterId, Entry, EntryMatch, Forward, GroupId, MeterId, Origin, PipeId, PortId};
use std::fmt;
use std::sync::Arc;
use weir_packet::FlowKey;

/// Bytes of a key that are stored inline: enough for an IPv6 prefix.
const KEY_IN_PLACE: usize = 22;

/// The key of an entry, packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackedKey {
    /// A length and the bytes of the key; the length is 0 if there is no entry.
    InPlace(u8, [u8; KEY_IN_PLACE]),
    /// A longer key.
    Long(Box<[u8]>),
}

impl Default for PackedKey {
    fn default() -> PackedKey {
        PackedKey::InPlace(0, [0; KEY_IN_PLACE])
    }
}

impl PackedKey {
    /// Packs the key of an entry.
    pub fn of(entry: &Entry) -> PackedKey {
        let mut bytes = Vec::with_capacity(KEY_IN_PLACE);
        pack_key(entry, &mut bytes);
        let mut short = [0; KEY_IN_PLACE];
        match short.get_mut(..bytes.len()) {
            Some(place) => {
                place.copy_from_slice(&bytes);
                PackedKey::InPlace(bytes.len() as u8, short)
            }
            None => PackedKey::Long(bytes.into()),
        }
    }

    /// Returns the key; `None` if there is no entry.
    pub fn unpack(&self) -> Option<EntryKey> {
        let bytes = match self {
            PackedKey::InPlace(0, _) => return None,
            PackedKey::InPlace(length, bytes) => &bytes[..usize::from(*length)],
            PackedKey::Long(bytes) => bytes,
        };
        let mut entry = Entry::default();
        Bytes(bytes).key(&mut entry);
        Some(EntryKey { matches: entry.matches, priority: entry.priority })
    }
}

/// The entries of a pipe, in the order in which they were written.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EntryList {
    packed: Arc<Packed>,
}

#[derive(Clone, Default, PartialEq, Eq)]
struct Packed {
    bytes: Vec<u8>,
    length: usize,
    /// The flags of all entries.
    flags: u8,
    /// The place of each entry in the configuration; empty if no entry has one.
    origins: Vec<u32>,
}

/// Bits of the byte after the key that say what follows.
const HAS_TEMPLATE: u8 = 1;
const HAS_VALUES: u8 = 1 << 1;
const HAS_FORWARD: u8 = 1 << 2;
const HAS_COUNTER: u8 = 1 << 3;
const HAS_METER: u8 = 1 << 4;
const IS_RUN_TIME: u8 = 1 << 5;

impl EntryList {
    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packed.length
    }

    /// Returns true if there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that the entries take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.packed.bytes.capacity() + self.packed.origins.capacity() * size_of::<u32>()
    }

    /// Appends an entry.
    pub fn push(&mut self, entry: &Entry) {
        let Packed { bytes, length, flags, origins } = Arc::make_mut(&mut self.packed);
        *flags |= pack(entry, bytes);
        if entry.origin != Origin::default() || !origins.is_empty() {
            origins.resize(*length, 0);
            origins.push(entry.origin.0);
        }
        *length += 1;
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        *self = EntryList::default();
    }

    /// Releases memory reserved for further entries.
    pub fn shrink(&mut self) {
        let packed = Arc::make_mut(&mut self.packed);
        packed.bytes.shrink_to_fit();
        packed.origins.shrink_to_fit();
    }

    /// Iterates over copies of the entries. For large lists, [`EntryList::cursor`] is cheaper.
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        Iter(self.cursor())
    }

    /// Returns a reader that unpacks the entries one by one into the same buffer.
    #[must_use]
    pub fn cursor(&self) -> Cursor<'_> {
        let Packed { bytes, origins, .. } = &*self.packed;
        Cursor { bytes: Bytes(bytes), origins, key: &[], entry: Entry::default() }
    }

    /// Iterates over the forwards of entries that have their own, with the places of these entries; costs
    /// nothing if none has.
    pub fn forwards(&self) -> impl Iterator<Item = (Forward, Origin)> + '_ {
        self.having(HAS_FORWARD, |entry| Some((entry.forward?, entry.origin)))
    }

    /// Iterates over the counters that entries name; costs nothing if none does.
    pub fn counters(&self) -> impl Iterator<Item = CounterId> + '_ {
        self.having(HAS_COUNTER, |entry| entry.counter)
    }

    /// Iterates over the meters that entries name, with the places of these entries; costs nothing if none
    /// does.
    pub fn meters(&self) -> impl Iterator<Item = (MeterId, Origin)> + '_ {
        self.having(HAS_METER, |entry| Some((entry.meter?, entry.origin)))
    }

    fn having<T>(&self, flag: u8, of: fn(&Entry) -> Option<T>) -> impl Iterator<Item = T> {
        let mut entries = (self.packed.flags & flag != 0).then(|| self.cursor());
        std::iter::from_fn(move || entries.as_mut()?.next().map(of)).flatten()
    }

    /// Retains the entries for which `keep` returns true and lets it change them, without unpacking all at
    /// once.
    pub fn retain(&mut self, mut keep: impl FnMut(&mut Entry) -> bool) {
        let mut kept = EntryList::default();
        let mut entries = self.cursor();
        while entries.next().is_some() {
            if keep(&mut entries.entry) {
                kept.push(&entries.entry);
            }
        }
        kept.shrink();
        *self = kept;
    }

    /// Edits the entries as an unpacked list, which temporarily takes more memory.
    pub fn edit<T>(&mut self, change: impl FnOnce(&mut Vec<Entry>) -> T) -> T {
        let mut entries: Vec<Entry> = self.iter().collect();
        let result = change(&mut entries);
        *self = entries.into_iter().collect();
        result
    }
}

impl fmt::Debug for EntryList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Extend<Entry> for EntryList {
    fn extend<I: IntoIterator<Item = Entry>>(&mut self, entries: I) {
        entries.into_iter().for_each(|entry| self.push(&entry));
    }
}

impl FromIterator<Entry> for EntryList {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> EntryList {
        let mut list = EntryList::default();
        list.extend(entries);
        list
    }
}

impl From<Vec<Entry>> for EntryList {
    fn from(entries: Vec<Entry>) -> EntryList {
        entries.into_iter().collect()
    }
}

impl<'a> IntoIterator for &'a EntryList {
    type Item = Entry;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Iterates over copies of the entries.
#[derive(Debug)]
pub struct Iter<'a>(Cursor<'a>);

impl Iterator for Iter<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        self.0.next().cloned()
    }
}

/// Reads the entries one after the other, without allocating for each.
#[derive(Debug)]
pub struct Cursor<'a> {
    bytes: Bytes<'a>,
    origins: &'a [u32],
    key: &'a [u8],
    entry: Entry,
}

impl<'a> Cursor<'a> {
    /// Returns the next entry.
    #[expect(clippy::should_implement_trait, reason = "an iterator could not lend its entry")]
    pub fn next(&mut self) -> Option<&Entry> {
        if self.bytes.0.is_empty() {
            return None;
        }
        let start = self.bytes.0;
        self.bytes.key(&mut self.entry);
        self.key = &start[..start.len() - self.bytes.0.len()];
        self.bytes.rest(&mut self.entry);
        (self.entry.origin, self.origins) = match self.origins {
            [origin, others @ ..] => (Origin(*origin), others),
            [] => (Origin::default(), self.origins),
        };
        Some(&self.entry)
    }

    /// Returns the packed key of the entry that was returned last; equal keys are equal bytes.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        self.key
    }
}

fn pack_key(entry: &Entry, bytes: &mut Vec<u8>) {
    bytes.push(entry.matches.len() as u8);
    entry.matches.iter().for_each(|one| pack_match(*one, bytes));
    number(entry.priority.into(), bytes);
}

/// Appends an entry. Returns its flags.
fn pack(entry: &Entry, bytes: &mut Vec<u8>) -> u8 {
    pack_key(entry, bytes);
    let flag = |flag: u8, has: bool| if has { flag } else { 0 };
    let flags = flag(HAS_TEMPLATE, entry.template != 0)
        | flag(HAS_VALUES, !entry.values.is_empty())
        | flag(HAS_FORWARD, entry.forward.is_some())
        | flag(HAS_COUNTER, entry.counter.is_some())
        | flag(HAS_METER, entry.meter.is_some())
        | flag(IS_RUN_TIME, entry.run_time);
    bytes.push(flags);
    if entry.template != 0 {
        short(entry.template, bytes);
    }
    if !entry.values.is_empty() {
        short(entry.values.len() as u16, bytes);
        entry.values.iter().for_each(|value| number(*value, bytes));
    }
    if let Some(forward) = entry.forward {
        pack_forward(forward, bytes);
    }
    entry.counter.iter().for_each(|id| short(id.0, bytes));
    entry.meter.iter().for_each(|id| short(id.0, bytes));
    flags
}

fn pack_match(one: EntryMatch, bytes: &mut Vec<u8>) {
    match one {
        EntryMatch::Value(value) => {
            bytes.push(0);
            number(value, bytes);
        }
        EntryMatch::Prefix { value, length } => {
            bytes.extend([1, length]);
            number(value, bytes);
        }
        EntryMatch::Masked { value, mask } => {
            bytes.push(2);
            number(value, bytes);
            number(mask, bytes);
        }
        EntryMatch::Range { first, last } => {
            bytes.push(3);
            short(first, bytes);
            short(last, bytes);
        }
        EntryMatch::Any => bytes.push(4),
        EntryMatch::Target(target) => {
            bytes.push(5);
            short(target, bytes);
        }
        EntryMatch::Flow(FlowKey(words)) => {
            bytes.push(6);
            words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        }
        EntryMatch::Default => bytes.push(7),
        EntryMatch::Member { group, target } => {
            bytes.push(8);
            short(group.0, bytes);
            short(target, bytes);
        }
    }
}

fn pack_forward(forward: Forward, bytes: &mut Vec<u8>) {
    let (tag, id) = match forward {
        Forward::Port(id) => (0, Some(id.0)),
        Forward::Pipe(id) => (1, Some(id.0)),
        Forward::Group(id) => (2, Some(id.0)),
        Forward::App(id) => (3, Some(id.0)),
        Forward::Tee { app, .. } => (4, Some(app.0)),
        Forward::Flood(id) => (5, Some(id.0)),
        Forward::InputPort => (6, None),
        Forward::Kernel => (7, None),
        Forward::Drop => (8, None),
        Forward::PerEntry => (9, None),
    };
    bytes.push(tag);
    id.iter().for_each(|id| short(*id, bytes));
    if let Forward::Tee { next, .. } = forward {
        short(next.0, bytes);
    }
}

/// Appends a number: its length in bytes, then the bytes, lowest first.
fn number(value: u128, bytes: &mut Vec<u8>) {
    let length = (128 - value.leading_zeros()).div_ceil(8) as usize;
    bytes.push(length as u8);
    bytes.extend(&value.to_le_bytes()[..length]);
}

fn short(value: u16, bytes: &mut Vec<u8>) {
    bytes.extend(value.to_le_bytes());
}

/// The bytes still to be read. They were written here, so there are never too few.
#[derive(Debug)]
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn key(&mut self, entry: &mut Entry) {
        entry.matches.clear();
        for _ in 0..self.byte() {
            let one = self.one_match();
            entry.matches.push(one);
        }
        entry.priority = self.number() as u32;
    }

    fn rest(&mut self, entry: &mut Entry) {
        let flags = self.byte();
        let has = |flag: u8| flags & flag != 0;
        entry.template = if has(HAS_TEMPLATE) { self.short() } else { 0 };
        entry.values.clear();
        for _ in 0..if has(HAS_VALUES) { self.short() } else { 0 } {
            let value = self.number();
            entry.values.push(value);
        }
        entry.forward = has(HAS_FORWARD).then(|| self.forward());
        entry.counter = has(HAS_COUNTER).then(|| CounterId(self.short()));
        entry.meter = has(HAS_METER).then(|| MeterId(self.short()));
        entry.run_time = has(IS_RUN_TIME);
    }

    fn one_match(&mut self) -> EntryMatch {
        match self.byte() {
            0 => EntryMatch::Value(self.number()),
            1 => EntryMatch::Prefix { length: self.byte(), value: self.number() },
            2 => EntryMatch::Masked { value: self.number(), mask: self.number() },
            3 => EntryMatch::Range { first: self.short(), last: self.short() },
            4 => EntryMatch::Any,
            5 => EntryMatch::Target(self.short()),
            6 => EntryMatch::Flow(FlowKey(std::array::from_fn(|_| u64::from_le_bytes(self.take())))),
            7 => EntryMatch::Default,
            8 => EntryMatch::Member { group: GroupId(self.short()), target: self.short() },
            other => unreachable!("no match is packed as {other}"),
        }
    }

    fn forward(&mut self) -> Forward {
        match self.byte() {
            0 => Forward::Port(PortId(self.short())),
            1 => Forward::Pipe(PipeId(self.short())),
            2 => Forward::Group(GroupId(self.short())),
            3 => Forward::App(AppId(self.short())),
            4 => Forward::Tee { app: AppId(self.short()), next: PipeId(self.short()) },
            5 => Forward::Flood(GroupId(self.short())),
            6 => Forward::InputPort,
            7 => Forward::Kernel,
            8 => Forward::Drop,
            9 => Forward::PerEntry,
            other => unreachable!("no forward is packed as {other}"),
        }
    }

    fn number(&mut self) -> u128 {
        let length = usize::from(self.byte()).min(size_of::<u128>()).min(self.0.len());
        let (digits, others) = self.0.split_at(length);
        self.0 = others;
        let mut bytes = [0; size_of::<u128>()];
        bytes[..length].copy_from_slice(digits);
        u128::from_le_bytes(bytes)
    }

    fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn byte(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((taken, others)) = self.0.split_first_chunk() else {
            self.0 = &[];
            return [0; N];
        };
        self.0 = others;
        *taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_oracle::arbitrary::Choices;

    fn number(random: &mut Choices) -> u128 {
        let value = u128::from(random.bits()) << 64 | u128::from(random.bits());
        value >> random.below(129).min(127)
    }

    fn entry(random: &mut Choices) -> Entry {
        let short = |random: &mut Choices| random.bits() as u16;
        let one_match = |random: &mut Choices| match random.below(9) {
            0 => EntryMatch::Value(number(random)),
            1 => EntryMatch::Prefix { value: number(random), length: random.below(129) as u8 },
            2 => EntryMatch::Masked { value: number(random), mask: number(random) },
            3 => EntryMatch::Range { first: short(random), last: short(random) },
            4 => EntryMatch::Any,
            5 => EntryMatch::Target(short(random)),
            6 => EntryMatch::Flow(FlowKey(std::array::from_fn(|_| random.bits()))),
            7 => EntryMatch::Member { group: GroupId(short(random)), target: short(random) },
            _ => EntryMatch::Default,
        };
        let forward = match random.below(11) {
            0 => Some(Forward::Port(PortId(short(random)))),
            1 => Some(Forward::Pipe(PipeId(short(random)))),
            2 => Some(Forward::Group(GroupId(short(random)))),
            3 => Some(Forward::App(AppId(short(random)))),
            4 => Some(Forward::Tee { app: AppId(short(random)), next: PipeId(short(random)) }),
            5 => Some(Forward::Flood(GroupId(short(random)))),
            6 => Some(Forward::InputPort),
            7 => Some(Forward::Kernel),
            8 => Some(Forward::Drop),
            9 => Some(Forward::PerEntry),
            _ => None,
        };
        Entry {
            matches: (0..random.below(4)).map(|_| one_match(random)).collect(),
            priority: random.bits() as u32 >> random.below(32),
            template: random.below(3) as u16,
            values: (0..random.below(3)).map(|_| number(random)).collect(),
            forward,
            counter: (random.below(2) == 0).then(|| CounterId(short(random))),
            meter: (random.below(2) == 0).then(|| MeterId(short(random))),
            run_time: random.below(2) == 0,
            origin: Origin(random.below(3) as u32),
        }
    }

    #[test]
    fn what_is_packed_is_unpacked() {
        let mut random = Choices::from_seed(1);
        for count in 0..200 {
            let entries: Vec<Entry> = (0..count % 20).map(|_| entry(&mut random)).collect();
            let list: EntryList = entries.iter().cloned().collect();
            assert_eq!((list.len(), list.iter().collect::<Vec<_>>()), (entries.len(), entries));
        }
    }

    #[test]
    fn keys_are_equal_bytes_if_and_only_if_they_are_equal() {
        let mut random = Choices::from_seed(2);
        let mut entries: Vec<Entry> = (0..100).map(|_| entry(&mut random)).collect();
        let again: Vec<Entry> = entries.iter().map(|one| Entry { template: 9, ..one.clone() }).collect();
        entries.extend(again);
        let list: EntryList = entries.iter().cloned().collect();
        let mut cursor = list.cursor();
        let mut keys = Vec::new();
        while cursor.next().is_some() {
            keys.push(cursor.key());
        }
        for (one, key) in entries.iter().zip(&keys) {
            for (other, other_key) in entries.iter().zip(&keys) {
                let same = (&one.matches, one.priority) == (&other.matches, other.priority);
                assert_eq!(same, key == other_key, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_packed_key_is_unpacked() {
        let mut random = Choices::from_seed(3);
        assert_eq!((PackedKey::default().unpack(), size_of::<PackedKey>()), (None, 24));
        for _ in 0..1000 {
            let entry = entry(&mut random);
            assert_eq!(PackedKey::of(&entry).unpack(), Some(EntryKey::of(&entry)));
        }
    }

    #[test]
    fn an_entry_of_two_numbers_takes_some_tens_of_bytes() {
        let entry = |at: u32| Entry {
            matches: vec![EntryMatch::Value(u128::from(0x0a00_0000 + at))],
            values: vec![0x0200_0000_0000 + u128::from(at)],
            origin: Origin(at + 1),
            ..Entry::default()
        };
        let mut list: EntryList = (0..1000).map(entry).collect();
        list.shrink();
        assert!(list.bytes() <= 24_000, "{}", list.bytes());
    }

    #[test]
    fn a_copy_is_not_changed_with_its_original() {
        let mut list: EntryList = [Entry::on(1_u32)].into_iter().collect();
        let copy = list.clone();
        list.push(&Entry::on(2_u32));
        list.edit(|entries| entries[0].template = 3);
        assert_eq!((list.len(), copy.len(), copy.iter().next().map(|one| one.template)), (2, 1, Some(0)));
    }
}
