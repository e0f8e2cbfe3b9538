//! Longest prefix match over IPv4 or IPv6 addresses.
//!
//! A multibit trie: a root of up to 2^16 entries, then nodes of 16 entries, each four address bits and one
//! cache line. An entry is empty, points to a node, or holds the rule that wins there: a shorter prefix is
//! written into every entry where it wins, so a look-up never has to go back. A batch descends level by
//! level, all its packets together, and prefetches the nodes of the next level.
//!
//! Why not poptrie: its nodes are a third of the size, but each step needs a population count (a dozen
//! instructions on processors without one) and each change rebuilds packed arrays. Here a change writes
//! entries in place.
//!
//! Promises: `capacity()` prefixes of any length fit (with IPv6, as long as [`NODES_MAX`] nodes suffice), and
//! a refused insertion changes nothing. A removal frees every node that is no longer needed.
//!
//! Costs: one step per node, that is (length - root bits) / 4 steps for the longest prefix near the address.
//! A change writes all entries below its prefix, a few nanoseconds each, so short prefixes of large tables
//! are slow to change (milliseconds); the default route writes none. Memory: 64 bytes per node, resident as
//! used, at most (width - root bits) / 4 nodes per prefix, besides the root and 47 bytes per prefix.

use crate::{Exact, InsertError, mix::mix};
use thiserror::Error;
use weir_packet::{Bits, prefetch};

/// Address bits per node: 16 entries of 4 bytes fill a cache line.
const STRIDE: u32 = 4;

/// The largest root: 2^16 entries, 256 KB.
const ROOT_BITS_MAX: u32 = 16;

/// The largest number of nodes: one gigabyte if all of them are used.
pub const NODES_MAX: usize = 1 << 24;

/// The entry that only the default route covers, and also the slot of the default route's value.
const DEFAULT: u32 = 0;

/// Marks an entry that points to a node; the others are value slots: 0 for the default route, otherwise rule
/// number + 1.
const NODE: u32 = 1 << 31;

/// Address family of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// 32 bits, in the low bits of a key.
    V4,
    /// 128 bits.
    V6,
}

impl Width {
    /// Bits in an address.
    #[must_use]
    pub fn bits(self) -> u8 {
        match self {
            Width::V4 => 32,
            Width::V6 => 128,
        }
    }
}

/// Why a prefix was not inserted.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LpmError {
    /// The table has as many prefixes or nodes as it can hold.
    #[error("{}", crate::Full)]
    Full,
    /// The prefix is longer than an address.
    #[error("a prefix of {0} bits is longer than an address")]
    Length(u8),
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct TrieNode([u32; 1 << STRIDE]);

/// Root and nodes, found by the entry that points to them; the root is `None`.
#[derive(Debug)]
struct Trie {
    root_bits: u32,
    root: Vec<u32>,
    nodes: Vec<TrieNode>,
    vacant: u32,
    live: usize,
    limit: usize,
}

/// Position of an entry: in the root or in a node, and its index there.
#[derive(Clone, Copy)]
struct EntryPosition {
    node: Option<u32>,
    at: u32,
}

/// A table of prefixes.
#[derive(Debug)]
pub struct Lpm {
    width: Width,
    trie: Trie,
    /// (high half of the address, low half, length) of every prefix; its row is the rule number.
    rules: Exact<3, ()>,
    /// The default route's value, then the others by rule number. Separate from the rules because look-ups
    /// need nothing else.
    values: Vec<u32>,
    /// Prefix lengths, in the same order: they decide which prefix wins an entry.
    lengths: Vec<u8>,
    /// All ones if there is a default route, which is written into no entry because it would be in most of
    /// them.
    default: u64,
}

impl Lpm {
    /// Creates an empty table for `prefixes` prefixes.
    #[must_use]
    pub fn with_capacity(width: Width, prefixes: usize) -> Lpm {
        let rules = Exact::with_capacity(prefixes);
        let prefixes = rules.capacity();
        let mut table = Lpm {
            width,
            trie: Trie::new(width, prefixes),
            rules,
            values: Vec::with_capacity(prefixes + 1),
            lengths: Vec::with_capacity(prefixes + 1),
            default: 0,
        };
        table.set_slot(DEFAULT, 0, 0);
        table
    }

    /// Returns the number of prefixes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Returns true if there are no prefixes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the number of nodes in use.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.trie.live
    }

    /// Returns how many nodes can still be added.
    #[must_use]
    pub fn nodes_left(&self) -> usize {
        self.trie.limit - self.trie.live
    }

    /// Returns how many nodes the insertion of a prefix would add now.
    #[must_use]
    pub fn nodes_for(&self, prefix: u128, length: u8) -> usize {
        let clean = self.clean(prefix, length);
        clean.map_or(0, |prefix| self.trie.nodes_needed(prefix, u32::from(length)))
    }

    /// Inserts a prefix, or replaces its value and returns the old one. Bits of `prefix` beyond `length` are
    /// ignored.
    ///
    /// # Errors
    /// The length exceeds the address width, or there is no room.
    pub fn insert(&mut self, prefix: u128, length: u8, value: u32) -> Result<Option<u32>, LpmError> {
        let prefix = self.clean(prefix, length).ok_or(LpmError::Length(length))?;
        let length = u32::from(length);
        if self.trie.nodes_needed(prefix, length) > self.trie.limit - self.trie.live {
            return Err(LpmError::Full);
        }
        let key = rule_key(prefix, length);
        let rule = match self.rules.insert(rule_hash(&key), key, ()) {
            Err(InsertError::Full) => return Err(LpmError::Full),
            Err(InsertError::Exists(rule)) => {
                let slot = slot_of(rule, length);
                return Ok(Some(std::mem::replace(&mut self.values[slot as usize], value)));
            }
            Ok(rule) => rule,
        };
        let slot = slot_of(rule, length);
        self.set_slot(slot, length as u8, value);
        if slot == DEFAULT {
            self.default = u64::MAX;
            return Ok(None);
        }
        let lengths = &self.lengths;
        let loses = |entry: u32| u32::from(lengths[entry as usize]) < length;
        self.trie.paint(prefix, length, &|entry| if loses(entry) { slot } else { entry });
        Ok(None)
    }

    /// Removes a prefix and returns its value.
    pub fn remove(&mut self, prefix: u128, length: u8) -> Option<u32> {
        let prefix = self.clean(prefix, length)?;
        let length = u32::from(length);
        let key = rule_key(prefix, length);
        let slot = slot_of(self.rules.get(rule_hash(&key), &key)?, length);
        if slot == DEFAULT {
            self.default = 0;
        } else {
            let shorter = self.covering(prefix, length);
            self.trie.paint(prefix, length, &|entry| if entry == slot { shorter } else { entry });
            self.trie.prune(prefix, length);
        }
        self.rules.remove(rule_hash(&key), &key);
        Some(self.values[slot as usize])
    }

    /// Returns the value of exactly this prefix.
    #[must_use]
    pub fn get(&self, prefix: u128, length: u8) -> Option<u32> {
        let key = rule_key(self.clean(prefix, length)?, u32::from(length));
        let rule = self.rules.get(rule_hash(&key), &key)?;
        Some(self.values[slot_of(rule, u32::from(length)) as usize])
    }

    /// Iterates over all prefixes as (prefix, length, value), in unspecified order.
    pub fn iter(&self) -> impl Iterator<Item = (u128, u8, u32)> {
        let down = 128 - u32::from(self.width.bits());
        self.rules.iter().map(move |(rule, &[high, low, length], ())| {
            let prefix = u128::from(high) << 64 | u128::from(low);
            (prefix >> down, length as u8, self.values[slot_of(rule, length as u32) as usize])
        })
    }

    /// Looks up the addresses of `mask`. Returns the mask of hits; `values` holds their values, its other
    /// elements are unspecified.
    #[inline]
    #[must_use]
    pub fn lookup_batch(&self, addresses: &[u128; 64], mask: u64, values: &mut [u32; 64]) -> u64 {
        let mut inner = 0;
        for i in Bits(mask) {
            values[i] = self.trie.root[self.trie.root_index(self.align(addresses[i]))];
            inner |= self.trie.touch(values[i]) << i;
        }
        let mut depth = self.trie.root_bits;
        while inner != 0 {
            for i in Bits(inner) {
                let node = &self.trie.nodes[(values[i] ^ NODE) as usize];
                values[i] = node.0[nibble(self.align(addresses[i]), depth)];
                inner ^= (1 ^ self.trie.touch(values[i])) << i;
            }
            depth += STRIDE;
        }
        let mut hits = self.default & mask;
        for i in Bits(mask) {
            hits |= u64::from(values[i] != DEFAULT) << i;
            values[i] = self.values[values[i] as usize];
        }
        hits
    }

    /// Shifts an address so that its first bit is the highest of the word.
    #[inline(always)]
    fn align(&self, address: u128) -> u128 {
        match self.width {
            Width::V4 => u128::from(address as u32) << 96,
            Width::V6 => address,
        }
    }

    /// Aligns a prefix and clears the bits beyond its length; `None` if the length exceeds the width.
    fn clean(&self, prefix: u128, length: u8) -> Option<u128> {
        (length <= self.width.bits()).then(|| cut(self.align(prefix), u32::from(length)))
    }

    /// Returns the value slot that wins where a prefix of this length has been removed.
    fn covering(&self, prefix: u128, length: u32) -> u32 {
        let shorter = (1..length).rev().find_map(|length| {
            let key = rule_key(cut(prefix, length), length);
            self.rules.get(rule_hash(&key), &key).map(|rule| slot_of(rule, length))
        });
        shorter.unwrap_or(DEFAULT)
    }

    fn set_slot(&mut self, slot: u32, length: u8, value: u32) {
        let slot = slot as usize;
        let slots = self.values.len().max(slot + 1);
        self.values.resize(slots, 0);
        self.lengths.resize(slots, 0);
        (self.values[slot], self.lengths[slot]) = (value, length);
    }
}

impl Trie {
    fn new(width: Width, prefixes: usize) -> Trie {
        // Two to sixteen times as many root entries as prefixes, so that most look-ups end in the root or one
        // node below it.
        let root_bits = (prefixes.max(1).ilog2() + STRIDE).next_multiple_of(STRIDE).min(ROOT_BITS_MAX);
        let levels = (u32::from(width.bits()) - root_bits) / STRIDE;
        let limit = prefixes.saturating_mul(levels as usize).min(NODES_MAX);
        Trie {
            root_bits,
            root: vec![DEFAULT; 1 << root_bits],
            nodes: Vec::with_capacity(limit),
            vacant: NODE,
            live: 0,
            limit,
        }
    }

    #[inline(always)]
    fn root_index(&self, address: u128) -> usize {
        ((address >> 64) as u64 >> (64 - self.root_bits)) as usize
    }

    /// Prefetches the node that an entry points to. Returns 1 if there is one, otherwise 0.
    #[inline(always)]
    fn touch(&self, entry: u32) -> u64 {
        if let Some(node) = self.nodes.get((entry ^ NODE) as usize) {
            prefetch(node);
        }
        u64::from(entry >> 31)
    }

    fn entry(&self, place: EntryPosition) -> u32 {
        match place.node {
            None => self.root[place.at as usize],
            Some(node) => self.nodes[node as usize].0[place.at as usize],
        }
    }

    fn set(&mut self, place: EntryPosition, entry: u32) {
        match place.node {
            None => self.root[place.at as usize] = entry,
            Some(node) => self.nodes[node as usize].0[place.at as usize] = entry,
        }
    }

    /// Iterates over the entries on the way to the end of a prefix of this length, including the last entry,
    /// as far as there are nodes. Each entry comes with the depth in bits after it.
    fn walk(&self, prefix: u128, length: u32) -> impl Iterator<Item = (EntryPosition, u32)> {
        let first = (EntryPosition { node: None, at: self.root_index(prefix) as u32 }, self.root_bits);
        std::iter::successors(Some(first), move |&(place, depth)| {
            let entry = self.entry(place);
            let deeper = entry & NODE != 0 && depth < length;
            deeper.then(|| {
                (EntryPosition { node: Some(entry ^ NODE), at: nibble(prefix, depth) as u32 }, depth + STRIDE)
            })
        })
    }

    /// Number of nodes that an insertion would add.
    fn nodes_needed(&self, prefix: u128, length: u32) -> usize {
        let depth = self.walk(prefix, length).last().map_or(0, |step| step.1);
        length.saturating_sub(depth).div_ceil(STRIDE) as usize
    }

    /// Applies `brush` to every entry below a prefix, adding nodes on the way.
    fn paint(&mut self, prefix: u128, length: u32, brush: &impl Fn(u32) -> u32) {
        let mut place = EntryPosition { node: None, at: self.root_index(prefix) as u32 };
        let mut depth = self.root_bits;
        while depth < length {
            let entry = self.entry(place);
            let node = if entry & NODE == 0 { self.add_node(entry) } else { entry ^ NODE };
            self.set(place, node | NODE);
            place = EntryPosition { node: Some(node), at: nibble(prefix, depth) as u32 };
            depth += STRIDE;
        }
        for at in place.at..place.at + (1 << (depth - length)) {
            let place = EntryPosition { at, ..place };
            match self.entry(place) {
                entry if entry & NODE == 0 => self.set(place, brush(entry)),
                entry => self.paint_node(entry, brush),
            }
        }
    }

    fn paint_node(&mut self, node: u32, brush: &impl Fn(u32) -> u32) {
        let at = (node ^ NODE) as usize;
        let mut entries = self.nodes[at].0;
        for entry in &mut entries {
            if *entry & NODE == 0 {
                *entry = brush(*entry);
            } else {
                self.paint_node(*entry, brush);
            }
        }
        self.nodes[at].0 = entries;
    }

    /// Removes the nodes on the way to a prefix whose entries are all equal, from the last one up.
    fn prune(&mut self, prefix: u128, length: u32) {
        let path: Vec<EntryPosition> = self.walk(prefix, length).map(|step| step.0).collect();
        for &place in path.iter().rev() {
            let entry = self.entry(place);
            if entry & NODE == 0 {
                continue;
            }
            let entries = self.nodes[(entry ^ NODE) as usize].0;
            if entries[0] & NODE != 0 || entries.iter().any(|&other| other != entries[0]) {
                return;
            }
            self.set(place, entries[0]);
            self.free_node(entry);
        }
    }

    /// Adds a node whose 16 entries all equal the entry that it replaces.
    fn add_node(&mut self, entry: u32) -> u32 {
        let node = TrieNode([entry; 1 << STRIDE]);
        self.live += 1;
        if self.vacant == NODE {
            self.nodes.push(node);
            let at = self.nodes.len() as u32 - 1;
            assert!(at < NODE, "an entry marks nodes by a bit above their numbers");
            return at;
        }
        let at = self.vacant;
        self.vacant = std::mem::replace(&mut self.nodes[at as usize], node).0[0];
        at
    }

    fn free_node(&mut self, entry: u32) {
        debug_assert!(entry & NODE != 0 && self.live > 0, "only a node is freed");
        self.nodes[(entry ^ NODE) as usize].0[0] = std::mem::replace(&mut self.vacant, entry ^ NODE);
        self.live -= 1;
    }
}

/// Four bits of an aligned address at `depth`, a multiple of four.
#[inline(always)]
fn nibble(address: u128, depth: u32) -> usize {
    let half = if depth < 64 { (address >> 64) as u64 } else { address as u64 };
    (half >> (60 - depth % 64)) as usize & ((1 << STRIDE) - 1)
}

/// The first `length` bits of an aligned address.
fn cut(address: u128, length: u32) -> u128 {
    address & !u128::MAX.checked_shr(length).unwrap_or(0)
}

fn rule_key(prefix: u128, length: u32) -> [u64; 3] {
    [(prefix >> 64) as u64, prefix as u64, u64::from(length)]
}

/// Hashes a rule's key. The operator chooses prefixes, so no secret is needed.
fn rule_hash(key: &[u64; 3]) -> u64 {
    key.iter().fold(0, |state, &word| mix(state, word))
}

/// Returns the value slot of a rule.
fn slot_of(rule: u32, length: u32) -> u32 {
    if length == 0 { DEFAULT } else { rule + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    impl Lpm {
        /// Returns the value of the longest prefix that contains an address.
        fn lookup(&self, address: u128) -> Option<u32> {
            let address = self.align(address);
            let mut entry = self.trie.root[self.trie.root_index(address)];
            let mut depth = self.trie.root_bits;
            while entry & NODE != 0 {
                entry = self.trie.nodes[(entry ^ NODE) as usize].0[nibble(address, depth)];
                depth += STRIDE;
            }
            (entry != DEFAULT || self.default != 0).then(|| self.values[entry as usize])
        }
    }

    fn v4(text: &str) -> (u128, u8) {
        let (address, length) = text.split_once('/').unwrap_or((text, "32"));
        let address: std::net::Ipv4Addr = address.parse().unwrap();
        (u128::from(address.to_bits()), length.parse().unwrap())
    }

    #[test]
    fn the_longest_prefix_wins() {
        let mut table = Lpm::with_capacity(Width::V4, 10);
        for (value, text) in
            (0..).zip(["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.3/32"])
        {
            let (prefix, length) = v4(text);
            assert_eq!(table.insert(prefix, length, value), Ok(None));
        }
        let find = |table: &Lpm, text: &str| table.lookup(v4(text).0);
        assert_eq!(find(&table, "10.1.2.3"), Some(4));
        assert_eq!(find(&table, "10.1.2.4"), Some(3));
        assert_eq!(find(&table, "10.1.3.4"), Some(2));
        assert_eq!(find(&table, "10.2.3.4"), Some(1));
        assert_eq!(find(&table, "11.2.3.4"), Some(0));
        assert_eq!(
            table.insert(v4("10.1.2.77").0, 24, 33),
            Ok(Some(3)),
            "bits behind the length are ignored"
        );
        assert_eq!(find(&table, "10.1.2.4"), Some(33));
        assert_eq!(table.remove(v4("10.1.2.0").0, 24), Some(33));
        assert_eq!(find(&table, "10.1.2.4"), Some(2));
        assert_eq!(find(&table, "10.1.2.3"), Some(4));
        assert_eq!(table.remove(v4("10.1.2.3").0, 32), Some(4));
        assert_eq!(table.remove(v4("10.1.2.3").0, 32), None);
    }

    #[test]
    fn a_full_table_refuses_and_changes_nothing() {
        for width in [Width::V4, Width::V6] {
            let mut table = Lpm::with_capacity(width, 100);
            let bits = width.bits();
            let nth = |n: u32| u128::from(n.wrapping_mul(0x9E37_79B9)) << (bits - 32) | u128::from(n);
            for n in 0..100 {
                assert_eq!(table.insert(nth(n), bits, n), Ok(None), "host routes far apart need most nodes");
            }
            let nodes = table.nodes();
            assert_eq!(table.insert(nth(100), bits, 0), Err(LpmError::Full));
            assert_eq!(table.insert(0, bits + 1, 0), Err(LpmError::Length(bits + 1)));
            assert_eq!((table.len(), table.nodes(), table.lookup(nth(100))), (100, nodes, None));
            for n in 0..100 {
                assert_eq!(table.remove(nth(n), bits), Some(n));
            }
            assert_eq!((table.len(), table.nodes()), (0, 0), "every node is freed");
        }
    }

    #[test]
    fn a_table_of_none_finds_none() {
        let mut table = Lpm::with_capacity(Width::V6, 0);
        assert_eq!(table.insert(0, 0, 1), Err(LpmError::Full));
        assert_eq!(table.lookup(0), None);
        assert_eq!(table.remove(0, 0), None);
    }

    /// Looks at every prefix.
    fn scan(twin: &BTreeMap<(u8, u128), u32>, bits: u8, address: u128) -> Option<u32> {
        let has = |length: u8, prefix: u128| length == 0 || (address ^ prefix) >> (bits - length) == 0;
        twin.iter().rev().find(|((length, prefix), _)| has(*length, *prefix)).map(|entry| *entry.1)
    }

    /// Addresses that differ in few bits, so that prefixes nest.
    fn address(bits: u8) -> impl Strategy<Value = u128> {
        let middle = bits / 2 - 2;
        (0_u128..4, 0_u128..16, 0_u128..8)
            .prop_map(move |(high, mid, low)| high << (bits - 2) | mid << middle | low)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn it_finds_what_a_scan_finds(
            (wide, steps, probes) in any::<bool>().prop_flat_map(|wide| {
                let bits = if wide { 128 } else { 32 };
                let length = prop_oneof![0..=bits, Just(bits), Just(0)];
                let steps = prop::collection::vec((0_u8..4, address(bits), length), 1..200);
                (Just(wide), steps, prop::collection::vec(address(bits), 64))
            }),
            mask: u64,
            capacity in 1_usize..60,
        ) {
            let width = if wide { Width::V6 } else { Width::V4 };
            let bits = width.bits();
            let (mut table, mut twin) = (Lpm::with_capacity(width, capacity), BTreeMap::new());
            for (value, (operation, address, length)) in (0..).zip(steps) {
                let prefix = address & !(u128::MAX.checked_shr(128 - u32::from(bits - length)).unwrap_or(0));
                if operation == 0 {
                    prop_assert_eq!(table.remove(address, length), twin.remove(&(length, prefix)));
                } else if twin.len() < capacity || twin.contains_key(&(length, prefix)) {
                    prop_assert_eq!(table.insert(address, length, value), Ok(twin.insert((length, prefix),
                        value)));
                } else {
                    prop_assert_eq!(table.insert(address, length, value), Err(LpmError::Full));
                }
                prop_assert_eq!(table.get(address, length), twin.get(&(length, prefix)).copied());
            }
            let (addresses, mut values) = (std::array::from_fn(|i| probes[i]), [0; 64]);
            let hits = table.lookup_batch(&addresses, mask, &mut values);
            for i in 0..64 {
                let expected = scan(&twin, bits, addresses[i]);
                prop_assert_eq!(table.lookup(addresses[i]), expected);
                let batch = (hits >> i & 1 == 1).then_some(values[i]);
                prop_assert_eq!(batch, expected.filter(|_| mask >> i & 1 == 1));
            }
            let listed: BTreeMap<_, _> = table.iter().map(|(prefix, length, value)| ((length, prefix),
                value)).collect();
            prop_assert_eq!(&listed, &twin);
            for &(length, prefix) in twin.keys() {
                table.remove(prefix, length);
            }
            prop_assert_eq!((table.len(), table.nodes()), (0, 0));
        }
    }
}
