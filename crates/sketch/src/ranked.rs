//! The keys with the largest counts, as a heap with the smallest on top, and an index from key to place: the
//! basis of Space-Saving, and of finding heavy keys alongside a sketch.
//!
//! Everything lies in three vectors that never grow. A key that is too light is refused after one comparison
//! with the top of the heap.

use crate::estimate::Estimate;
use crate::hash::Item;

/// A heavy key and its size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Top<const W: usize> {
    /// The key: `W` words of 64 bits.
    pub key: [u64; W],
    /// The estimate of its count, with bounds.
    pub size: Estimate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RankedNode {
    count: u64,
    slot: u32,
}

/// A place of the index: a slot's number plus 1, or 0, and the lower half of its key's hash. Thanks to the
/// hash, probing past other keys, or moving them back, does not read those keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct IndexSlot {
    slot: u32,
    tag: u32,
}

/// A bounded number of keys with their counts.
#[derive(Clone, Debug)]
pub struct Ranked<const W: usize> {
    heap: Vec<RankedNode>,
    items: Vec<Item<W>>,
    /// The place in the heap of each slot's node: stored separately from the keys, so that moving nodes
    /// touches little memory.
    nodes: Vec<u32>,
    /// By hash, with linear probing.
    index: Vec<IndexSlot>,
    capacity: usize,
}

impl<const W: usize> Ranked<W> {
    /// Creates an empty ranking for `capacity` keys; the capacity is clamped to 1 to 2^28.
    pub fn new(capacity: usize) -> Ranked<W> {
        let capacity = capacity.clamp(1, 1 << 28);
        Ranked {
            heap: Vec::with_capacity(capacity),
            items: Vec::with_capacity(capacity),
            nodes: Vec::with_capacity(capacity),
            index: vec![IndexSlot::default(); index_len(capacity)],
            capacity,
        }
    }

    /// The number of bytes of memory for `capacity` keys.
    pub const fn bytes_for(capacity: usize) -> usize {
        capacity * (size_of::<RankedNode>() + size_of::<Item<W>>() + size_of::<u32>())
            + index_len(capacity) * size_of::<IndexSlot>()
    }

    /// Returns the number of bytes of memory, which depends only on the capacity.
    pub fn bytes(&self) -> usize {
        Self::bytes_for(self.capacity)
    }

    /// Returns true if a new key must replace an old one.
    pub fn is_full(&self) -> bool {
        self.heap.len() == self.capacity
    }

    /// The least count, or 0 while there is room.
    #[inline(always)]
    pub fn least(&self) -> u64 {
        if self.is_full() { self.heap[0].count } else { 0 }
    }

    /// Fetches what [`Ranked::find`] reads first.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        weir_packet::prefetch(&self.index[hash as usize & (self.index.len() - 1)]);
    }

    /// Fetches what [`Ranked::find`] and [`Ranked::count`] read next, for the first slot with such a hash.
    /// Returns the slot.
    #[inline(always)]
    pub fn prefetch_item(&self, hash: u64) -> Option<u32> {
        let slot = self.index[hash as usize & (self.index.len() - 1)].slot.checked_sub(1)?;
        weir_packet::prefetch(&self.items[slot as usize]);
        weir_packet::prefetch(&self.nodes[slot as usize]);
        Some(slot)
    }

    /// Returns the slot of a key.
    #[inline]
    pub fn find(&self, item: &Item<W>) -> Option<u32> {
        let mask = self.index.len() - 1;
        let mut place = item.hash as usize & mask;
        loop {
            let entry = self.index[place];
            let slot = entry.slot.checked_sub(1)?;
            if entry.tag == item.hash as u32 && self.items[slot as usize] == *item {
                return Some(slot);
            }
            place = (place + 1) & mask;
        }
    }

    /// Returns the count of a slot.
    #[inline]
    pub fn count(&self, slot: u32) -> u64 {
        self.heap[self.nodes[slot as usize] as usize].count
    }

    /// Writes the count of a slot.
    #[inline]
    pub fn set(&mut self, slot: u32, count: u64) {
        let node = self.nodes[slot as usize] as usize;
        let before = std::mem::replace(&mut self.heap[node].count, count);
        if count > before { self.sink(node) } else { self.rise(node) }
    }

    /// Adds a key that is not present, while there is room, and returns its slot.
    pub fn insert(&mut self, item: Item<W>, count: u64) -> u32 {
        debug_assert!(!self.is_full() && self.find(&item).is_none());
        let (slot, node) = (self.items.len() as u32, self.heap.len());
        self.items.push(item);
        self.nodes.push(node as u32);
        self.heap.push(RankedNode { count, slot });
        self.enter(slot);
        self.rise(node);
        slot
    }

    /// Replaces the key with the least count, and returns the old key's slot, which it reuses.
    #[inline]
    pub fn replace_least(&mut self, item: Item<W>, count: u64) -> u32 {
        let slot = self.heap[0].slot;
        self.leave(slot);
        self.items[slot as usize] = item;
        self.enter(slot);
        self.set(slot, count);
        slot
    }

    /// Sets the count of a key if it is present, or enters it if it is heavier than the lightest.
    #[inline(always)]
    pub fn offer(&mut self, item: &Item<W>, count: u64) {
        if count > self.least() {
            self.take(item, count);
        }
    }

    #[inline(never)]
    fn take(&mut self, item: &Item<W>, count: u64) {
        match self.find(item) {
            Some(slot) => self.set(slot, count),
            None if self.is_full() => _ = self.replace_least(*item, count),
            None => _ = self.insert(*item, count),
        }
    }

    /// All keys with their counts and slots, in unspecified order.
    pub fn iter(&self) -> impl Iterator<Item = (&Item<W>, u64, u32)> {
        self.heap.iter().map(|node| (&self.items[node.slot as usize], node.count, node.slot))
    }

    /// Removes all keys and keeps the memory.
    pub fn clear(&mut self) {
        self.heap.clear();
        self.items.clear();
        self.nodes.clear();
        self.index.fill(IndexSlot::default());
    }

    /// Joins the keys of another ranking: all counts are queried again, and the largest stay.
    pub fn join(&mut self, other: &Ranked<W>, count: impl Fn(&Item<W>) -> u64) {
        let items: Vec<Item<W>> = self.iter().chain(other.iter()).map(|(item, ..)| *item).collect();
        self.clear();
        for item in items {
            self.offer(&item, count(&item));
        }
    }

    /// The keys whose size is `least` or more, the heaviest first; ties are ordered by key.
    pub fn top(&self, size: impl Fn(&Item<W>) -> Estimate, least: f64) -> Vec<Top<W>> {
        let sizes = self.iter().map(|(item, ..)| Top { key: item.key, size: size(item) });
        sorted(sizes.filter(|top| top.size.value >= least).collect())
    }

    /// Moves a node towards the top until its parent is not heavier.
    #[inline]
    fn rise(&mut self, mut node: usize) {
        let moving = self.heap[node];
        while node > 0 && self.heap[(node - 1) / 2].count > moving.count {
            self.put(node, self.heap[(node - 1) / 2]);
            node = (node - 1) / 2;
        }
        self.put(node, moving);
    }

    /// Moves a node towards the bottom until its children are not lighter.
    #[inline]
    fn sink(&mut self, mut node: usize) {
        let moving = self.heap[node];
        loop {
            let left = 2 * node + 1;
            let Some(mut lighter) = self.heap.get(left).copied() else { break };
            let right = self.heap.get(left + 1).copied().unwrap_or(lighter);
            // A choice that no processor can predict, and therefore made without a branch.
            let is_right = right.count < lighter.count;
            lighter.count = if is_right { right.count } else { lighter.count };
            lighter.slot = if is_right { right.slot } else { lighter.slot };
            if lighter.count >= moving.count {
                break;
            }
            self.put(node, lighter);
            node = left + usize::from(is_right);
        }
        self.put(node, moving);
    }

    #[inline(always)]
    fn put(&mut self, place: usize, node: RankedNode) {
        self.heap[place] = node;
        self.nodes[node.slot as usize] = place as u32;
    }

    /// Writes a slot into the index.
    #[inline]
    fn enter(&mut self, slot: u32) {
        let mask = self.index.len() - 1;
        let hash = self.items[slot as usize].hash;
        let mut place = hash as usize & mask;
        while self.index[place].slot != 0 {
            place = (place + 1) & mask;
        }
        self.index[place] = IndexSlot { slot: slot + 1, tag: hash as u32 };
    }

    /// Removes a slot from the index, and moves back those that it had displaced.
    #[inline]
    fn leave(&mut self, slot: u32) {
        let mask = self.index.len() - 1;
        let mut hole = self.items[slot as usize].hash as usize & mask;
        while self.index[hole].slot != slot + 1 {
            hole = (hole + 1) & mask;
        }
        let mut place = hole;
        loop {
            place = (place + 1) & mask;
            let entry = self.index[place];
            if entry.slot == 0 {
                break;
            }
            // The entry may move into the hole unless its home lies between the hole and its present place,
            // going around the circle.
            let distance = place.wrapping_sub(entry.tag as usize) & mask;
            if distance >= place.wrapping_sub(hole) & mask {
                self.index[hole] = entry;
                hole = place;
            }
        }
        self.index[hole] = IndexSlot::default();
    }
}

/// Half of the index or more is empty, so that probes are short.
const fn index_len(capacity: usize) -> usize {
    (2 * capacity).next_power_of_two()
}

/// Sorts heavy keys: the heaviest first, ties are ordered by key.
pub fn sorted<const W: usize>(mut top: Vec<Top<W>>) -> Vec<Top<W>> {
    top.sort_by(|one, other| {
        other.size.value.total_cmp(&one.size.value).then_with(|| one.key.cmp(&other.key))
    });
    top
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn it_is_a_map_that_knows_its_least(
            capacity in 1_usize..20, bits in 0_u32..8, steps in prop::collection::vec((0_u64..40, 1_u64..50),
            0..300),
        ) {
            let mut ranked = Ranked::<1>::new(capacity);
            let mut twin: HashMap<u64, u64> = HashMap::new();
            for (key, count) in steps {
                // Hashes of few bits, so that probes collide.
                let item = Item { key: [key], hash: (key * 7) & ((1 << bits) - 1) };
                match ranked.find(&item) {
                    Some(slot) => {
                        ranked.set(slot, count);
                        *twin.get_mut(&key).unwrap() = count;
                    }
                    None if ranked.is_full() => {
                        let least = ranked.least();
                        prop_assert_eq!(Some(&least), twin.values().min());
                        let slot = ranked.replace_least(item, count);
                        prop_assert_eq!(ranked.count(slot), count);
                        let keys: Vec<u64> = ranked.iter().map(|(item, ..)| item.key[0]).collect();
                        let gone: Vec<u64> = twin.keys().copied().filter(|key| !keys.contains(key)).collect();
                        prop_assert_eq!(gone.len(), 1);
                        prop_assert_eq!(twin.remove(&gone[0]), Some(least));
                        twin.insert(key, count);
                    }
                    None => {
                        ranked.insert(item, count);
                        twin.insert(key, count);
                    }
                }
                let counts: HashMap<u64, u64> =
                    ranked.iter().map(|(item, count, _)| (item.key[0], count)).collect();
                prop_assert_eq!(&counts, &twin);
            }
            for key in 0..40 {
                let item = Item { key: [key], hash: (key * 7) & ((1 << bits) - 1) };
                let slot = ranked.find(&item);
                prop_assert_eq!(slot.map(|slot| ranked.count(slot)), twin.get(&key).copied());
            }
        }
    }
}
