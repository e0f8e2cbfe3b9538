//! Entries as stored for the data path: a row of 24 bytes that is written on every hit, and the read-only
//! action row that it points to.
//!
//! Many entries have the same action (a million prefixes, eight next hops), so action rows are shared by
//! content: what is read stays in the L1 cache, and an entry costs its key and 24 bytes (32 where the table
//! does not hold the rows; then the row also holds the counter, because counters differ most between entries,
//! and the key if that is the target of a group). Values are stored in the form that the steps of the
//! template need, an encapsulation as the finished outer header, so that performing an action is a copy.

use crate::batch::steps::Plan;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use weir_packet::{Bits, Frontier, prefetch};
use weir_program::change::EntryKey;
use weir_program::check::Uses;
use weir_program::entry_list::PackedKey;
use weir_program::snapshot::{Count, is_later};
use weir_program::{CounterId, Entry, EntryMatch, Forward, GroupId, MeterId, SharedUse};
use weir_table::Exact;

/// Bit of [`EntryRow::action`]: the entry was added at run time.
pub const RUN_TIME: u32 = 1 << 31;

/// The maximum number of rows that are always in a near cache.
pub const NEAR_MAX: u32 = 1024;

/// The fields that a hit writes (counts and time), and the number of the action row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EntryRow {
    pub packets: u64,
    pub bytes: u64,
    /// When it was last hit or, before the first hit, inserted; in milliseconds of the worker's clock.
    pub last: u32,
    /// Number of the action row, and [`RUN_TIME`].
    pub action: u32,
}

impl EntryRow {
    /// Counts packets. Returns the number of the action row.
    #[inline(always)]
    pub fn hit(&mut self, count: Count, now_ms: u32) -> u32 {
        self.packets += count.packets;
        self.bytes += count.bytes;
        self.last = now_ms;
        self.action()
    }

    /// Returns the number of the action row, without counting.
    #[inline(always)]
    pub fn action(&self) -> u32 {
        self.action & !RUN_TIME
    }

    /// Adds the counts of the entry's predecessor, which was hit earlier.
    pub fn add(&mut self, former: &EntryRow) {
        if self.packets == 0 || is_later(former.last, self.last) {
            self.last = former.last;
        }
        self.packets += former.packets;
        self.bytes += former.bytes;
    }

    /// Returns true if the entry was added at run time.
    pub fn is_run_time(&self) -> bool {
        self.action & RUN_TIME != 0
    }
}

/// The action of an entry. If a pipe has one counter, meter or forward for all entries, the row repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActionRow {
    pub forward: Forward,
    pub template: u16,
    pub counter: Option<CounterId>,
    pub meter: Option<MeterId>,
    /// How many values the entry provides.
    pub given: u16,
}

/// The action rows of a pipe with their values, shared by content.
#[derive(Debug, Default)]
pub struct Actions {
    pub rows: Vec<ActionRow>,
    /// `stride` bytes for each row.
    pub values: Vec<u8>,
    pub stride: usize,
    /// The entries' per-entry values as given: `given` numbers for each row; a template uses the first few.
    own: Vec<u128>,
    given: usize,
    users: Vec<u32>,
    free: Vec<u32>,
    by_content: ByContent,
    /// The destinations and meters of the rows.
    pub uses: Uses,
}

/// Number of maps in [`ByContent`]: a map that grows moves only its own rows, so an insertion never takes
/// longer than moving a few thousand.
const MAPS: usize = 256;

/// Numbers of rows by the hash of their content. If several rows have the same hash, which is rare, only one
/// is listed; the others are not shared.
#[derive(Debug, Default)]
struct ByContent {
    maps: Vec<HashMap<u64, u32>>,
    secret: RandomState,
}

impl ByContent {
    fn hash(&self, row: ActionRow, own: &[u128]) -> u64 {
        self.secret.hash_one((row, own))
    }

    fn map(&mut self, hash: u64) -> &mut HashMap<u64, u32> {
        if self.maps.is_empty() {
            self.maps.resize_with(MAPS, HashMap::new);
        }
        &mut self.maps[hash as usize % MAPS]
    }
}

/// The action row of each packet in a list.
pub trait ActionOf {
    /// Returns the action row of the packet in a slot.
    fn of(&self, slot: usize) -> u32;
}

/// A row for each packet.
impl ActionOf for [u32; 64] {
    #[inline(always)]
    fn of(&self, slot: usize) -> u32 {
        self[slot & 63]
    }
}

/// One row for all packets: everything that depends on it is looked up once per list.
impl ActionOf for u32 {
    #[inline(always)]
    fn of(&self, _slot: usize) -> u32 {
        *self
    }
}

/// Settings of a pipe that apply to all its entries.
#[derive(Clone, Copy, Debug)]
pub struct PipeWide {
    pub forward: Forward,
    pub counter: Option<SharedUse<CounterId>>,
    /// Whether the entries' counters are stored next to their rows ([`Slab`]). Otherwise a million entries
    /// with eight next hops and a counter each would have a million action rows.
    pub apart: bool,
    pub meter: Option<SharedUse<MeterId>>,
}

impl PipeWide {
    fn resolve(&self, entry: &Entry) -> ActionRow {
        let forward =
            if self.forward == Forward::PerEntry { entry.forward.unwrap_or_default() } else { self.forward };
        ActionRow {
            forward,
            template: entry.template,
            counter: resolve(self.counter.filter(|_| !self.apart), entry.counter),
            meter: resolve(self.meter, entry.meter),
            given: entry.values.len() as u16,
        }
    }
}

fn resolve<Id>(pipe: Option<SharedUse<Id>>, entry: Option<Id>) -> Option<Id> {
    match pipe? {
        SharedUse::Pipe(id) => Some(id),
        SharedUse::PerEntry => entry,
    }
}

impl Actions {
    /// Creates an empty list for up to `entries` entries, for actions with these plans. Memory becomes
    /// resident as used.
    #[must_use]
    pub fn new(plans: &[Plan], given: usize, entries: usize) -> Actions {
        let stride = plans.iter().map(|plan| plan.stride).max().unwrap_or(0);
        Actions {
            rows: Vec::with_capacity(entries),
            values: Vec::with_capacity(entries.saturating_mul(stride)),
            own: Vec::with_capacity(entries.saturating_mul(given)),
            users: Vec::with_capacity(entries),
            stride,
            given,
            ..Actions::default()
        }
    }

    /// Returns the action row of `entry`, shared with entries that have the same action.
    pub fn intern(&mut self, entry: &Entry, wide: &PipeWide, plans: &[Plan]) -> u32 {
        let row = wide.resolve(entry);
        let hash = self.by_content.hash(row, &entry.values);
        let shared = self.by_content.map(hash).get(&hash).copied();
        if let Some(at) = shared.filter(|&at| self.rows[at as usize] == row && *self.own(at) == *entry.values)
        {
            self.users[at as usize] += 1;
            return at;
        }
        let at = self.place(row, entry, plans);
        if shared.is_none() {
            self.by_content.map(hash).insert(hash, at);
        }
        at
    }

    /// Returns the values that the entries of a row gave.
    fn own(&self, at: u32) -> &[u128] {
        let row = at as usize;
        &self.own[row * self.given..][..usize::from(self.rows[row].given)]
    }

    fn place(&mut self, row: ActionRow, entry: &Entry, plans: &[Plan]) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.rows.push(row);
            self.users.push(0);
            self.own.resize(self.rows.len() * self.given, 0);
            self.values.resize(self.rows.len() * self.stride, 0);
            (self.rows.len() - 1) as u32
        });
        let number = at as usize;
        assert_eq!(self.users[number], 0, "action row {at} is in use");
        assert!(entry.values.len() <= self.given, "more values would be those of the next row");
        self.rows[number] = row;
        self.users[number] = 1;
        self.uses.add(Some(row.forward), row.template, row.meter);
        self.own[number * self.given..][..entry.values.len()].copy_from_slice(&entry.values);
        let place = &mut self.values[number * self.stride..(number + 1) * self.stride];
        // The values of another entry may be left over here, and an outer header is written only where it is
        // not zero.
        place.fill(0);
        plans[usize::from(entry.template)].materialise(&entry.values, place);
        at
    }

    /// Prefetches what these rows' actions read, if there are many.
    #[inline]
    pub fn prefetch(&self, list: u64, actions: &impl ActionOf) {
        if self.rows.len() <= NEAR_MAX as usize {
            return;
        }
        for slot in Bits(list) {
            let at = actions.of(slot) as usize;
            self.values.get(at * self.stride).into_iter().for_each(prefetch);
            if self.uses.only_lead().is_none() {
                self.rows.get(at).into_iter().for_each(prefetch);
            }
        }
    }

    /// Returns the entry from which a row was made, without its matches.
    #[must_use]
    pub fn entry(&self, row: EntryRow, wide: &PipeWide) -> Entry {
        let action = self.rows[row.action() as usize];
        Entry {
            template: action.template,
            values: self.own(row.action()).to_vec(),
            forward: (wide.forward == Forward::PerEntry).then_some(action.forward),
            counter: action.counter.filter(|_| wide.counter == Some(SharedUse::PerEntry)),
            meter: action.meter.filter(|_| wide.meter == Some(SharedUse::PerEntry)),
            run_time: row.is_run_time(),
            ..Entry::default()
        }
    }

    /// Decrements the use count of a row, which is freed with the last entry.
    pub fn release(&mut self, at: u32) {
        let users = &mut self.users[at as usize];
        assert!(*users > 0, "action row {at} is released by an entry that does not use it");
        *users -= 1;
        if *users == 0 {
            let row = self.rows[at as usize];
            let hash = self.by_content.hash(row, self.own(at));
            let map = self.by_content.map(hash);
            if map.get(&hash) == Some(&at) {
                map.remove(&hash);
            }
            self.uses.remove(Some(row.forward), row.template, row.meter);
            self.free.push(at);
        }
    }
}

/// Rows by number.
pub trait Rows {
    /// Returns a row.
    fn at(&self, row: u32) -> &EntryRow;

    /// Returns a row for modification.
    fn at_mut(&mut self, row: u32) -> &mut EntryRow;

    /// Returns the counter of the entry in a row, if it is stored here rather than in its action row.
    #[inline(always)]
    fn counter(&self, _row: u32) -> Option<CounterId> {
        None
    }

    /// Prefetches a row, if the look-up has not already fetched it.
    #[inline(always)]
    fn prefetch(&self, _row: u32) {}

    /// Number of rows ever used; the numbers of all rows are below it.
    fn used(&self) -> u32;
}

/// The rows of a table of exact keys lie next to the keys, so that comparing a key brings its row into the
/// cache.
impl<const W: usize> Rows for Exact<W, EntryRow> {
    #[inline(always)]
    fn at(&self, row: u32) -> &EntryRow {
        self.data(row)
    }

    #[inline(always)]
    fn at_mut(&mut self, row: u32) -> &mut EntryRow {
        self.data_mut(row)
    }

    fn used(&self) -> u32 {
        Exact::used(self)
    }
}

/// The rows of a pipe whose table only maps keys to row numbers. The keys are stored here as well, but the
/// packet path does not read them.
#[derive(Debug, Default)]
pub struct Slab {
    rows: Vec<SlabRow>,
    frontier: Option<Frontier>,
    /// The keys that do not fit in rows.
    keys: Vec<PackedKey>,
    free: Vec<u32>,
    free_keys: Vec<u32>,
}

/// A row of a slab: half a cache line, so that no row spans two.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(32))]
struct SlabRow {
    row: EntryRow,
    /// The counter of its entry, if entries have counters.
    counter: Option<CounterId>,
    key: RowKey,
}

const _: () = assert!(size_of::<SlabRow>() == 32);

/// The key of a row's entry: a target of a group, of which there may be a million, or else the place where
/// the key is stored; 0 means that there is no key.
#[derive(Clone, Copy, Debug, Default)]
struct RowKey(u32);

impl RowKey {
    /// The bit of a key that is a target: below it are its group and, in the lowest bits, its position.
    const TARGET: u32 = 1 << 31;
    const POSITION_BITS: u32 = 15;

    /// Returns the key of an entry, if it fits.
    fn of(entry: &Entry) -> Option<RowKey> {
        let [EntryMatch::Member { group, target }] = entry.matches[..] else { return None };
        let (group, target) = (u32::from(group.0), u32::from(target));
        let fits = entry.priority == 0 && target >> RowKey::POSITION_BITS == 0;
        fits.then_some(RowKey(RowKey::TARGET | group << RowKey::POSITION_BITS | target))
    }

    /// Returns the target, if the key is one.
    fn target(self) -> Option<EntryMatch> {
        let group = GroupId((self.0 >> RowKey::POSITION_BITS) as u16);
        let target = (self.0 & ((1 << RowKey::POSITION_BITS) - 1)) as u16;
        (self.0 & RowKey::TARGET != 0).then_some(EntryMatch::Member { group, target })
    }

    /// Returns the place of the key, if it is stored elsewhere.
    fn elsewhere(self) -> Option<u32> {
        if self.0 & RowKey::TARGET == 0 { self.0.checked_sub(1) } else { None }
    }
}

impl Rows for Slab {
    #[inline(always)]
    fn at(&self, row: u32) -> &EntryRow {
        &self.rows[row as usize].row
    }

    #[inline(always)]
    fn at_mut(&mut self, row: u32) -> &mut EntryRow {
        &mut self.rows[row as usize].row
    }

    #[inline(always)]
    fn counter(&self, row: u32) -> Option<CounterId> {
        self.rows.get(row as usize)?.counter
    }

    #[inline(always)]
    fn prefetch(&self, row: u32) {
        self.rows.get(row as usize).into_iter().for_each(prefetch);
    }

    fn used(&self) -> u32 {
        self.rows.len() as u32
    }
}

impl Slab {
    /// Allocates memory for `rows` rows, which becomes resident as used.
    #[must_use]
    pub fn with_capacity(rows: usize) -> Slab {
        let (rows, keys) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
        weir_packet::advise_huge(&rows);
        Slab { frontier: Some(Frontier::of(&rows)), rows, keys, ..Slab::default() }
    }

    /// Returns the key of a row; `None` if it is not in use.
    #[must_use]
    pub fn key(&self, at: u32) -> Option<EntryKey> {
        let key = self.rows.get(at as usize)?.key;
        match key.target() {
            Some(target) => Some(EntryKey { matches: vec![target], priority: 0 }),
            None => self.keys.get(key.elsewhere()? as usize)?.unpack(),
        }
    }

    /// Returns the number of the next row: that of the row removed last, or a new one.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.rows.len() as u32)
    }

    /// Inserts the row of an entry at [`Slab::next`].
    pub fn insert(&mut self, row: EntryRow, entry: &Entry) {
        let key = RowKey::of(entry).unwrap_or_else(|| self.keep(PackedKey::of(entry)));
        let row = SlabRow { row, counter: entry.counter, key };
        match self.free.pop() {
            Some(at) => {
                let vacant = std::mem::replace(&mut self.rows[at as usize], row);
                debug_assert_eq!(vacant.key.0, 0, "a free row has no entry");
            }
            None => {
                self.rows.push(row);
                if let Some(frontier) = &mut self.frontier {
                    frontier.follow(&self.rows);
                }
            }
        }
    }

    /// Stores a key that does not fit in a row.
    fn keep(&mut self, key: PackedKey) -> RowKey {
        let at = self.free_keys.pop().unwrap_or_else(|| {
            self.keys.push(PackedKey::default());
            self.keys.len() as u32 - 1
        });
        self.keys[at as usize] = key;
        RowKey(at + 1)
    }

    /// Sets another counter for the entry of a row.
    pub fn set_counter(&mut self, at: u32, counter: Option<CounterId>) {
        self.rows.get_mut(at as usize).into_iter().for_each(|row| row.counter = counter);
    }

    /// Removes a row.
    pub fn remove(&mut self, at: u32) -> EntryRow {
        self.free.push(at);
        let row = std::mem::take(&mut self.rows[at as usize]);
        assert_ne!(row.key.0, 0, "a row is removed once, or two entries would share it later");
        if let Some(key) = row.key.elsewhere() {
            self.keys[key as usize] = PackedKey::default();
            self.free_keys.push(key);
        }
        row.row
    }
}
