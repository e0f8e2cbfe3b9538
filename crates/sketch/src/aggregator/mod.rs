//! The aggregator: packets in, sums of packets out.
//!
//! Most packets belong to a flow that was seen a moment ago. They are counted in a row of sixteen keys, a
//! cache line of tags compared at once, and only a key that makes room for another goes on to the sketches,
//! with all that it has counted. A sketch update that costs ten times as much as the look-up is then paid by
//! one packet in six (Zipf 1.1). Nothing is lost and nothing is estimated here: what leaves the aggregator
//! adds up to what came in, key by key.
//!
//! The idea is that of Agg-Evict (Zhou, Alipourfard, Yu, Yang: Accelerating network measurement in
//! software, CCR 48(3), 2018). Rows are found by a keyed hash rather than by the key modulo the number of
//! rows, because addresses are chosen by strangers; a tag has 16 bits and the key itself is compared.
//!
//! Costs: three cache lines for a packet, fetched side by side for a batch of 64. Where nearly every packet
//! evicts, the look-up is a loss, so the [gate](Gate) turns to handing packets on.

mod gate;
mod policy;
#[allow(unsafe_code, reason = "loads and compares vectors by SSE2, which the target has")]
mod row;

pub use gate::Gate;
pub use policy::Policy;
pub use row::{Compare, Scalar, Vectors};

use crate::estimate::SizeError;
use crate::hash::{Item, KeyHash, Seed, Update, below};
use crate::memory::table;
use packet::prefetch;
use policy::Replacement;
use row::{Row, SLOTS, tag_of};
use std::marker::PhantomData;

/// Packets whose memory fetches overlap.
pub const BATCH: usize = 64;

/// The count of one key, and what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry<const W: usize> {
    key: [u64; W],
    packets: u64,
    bytes: u64,
}

/// What a key has counted when it leaves the aggregator, with the hash that all sketches share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted<const W: usize> {
    /// The key and its hash.
    pub item: Item<W>,
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// What an aggregator has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AggregatorCounts {
    /// Updates that came in.
    pub updates: u64,
    /// Updates that found their key.
    pub hits: u64,
    /// Keys that made room for others.
    pub evictions: u64,
    /// Updates that the gate handed on.
    pub bypassed: u64,
}

/// Rows of sixteen keys with their counts. Tags are compared by `M`: [`Scalar`] is there to be measured
/// beside [`Vectors`].
#[derive(Clone, Debug)]
pub struct Aggregator<const W: usize, M = Vectors> {
    rows: Vec<Row>,
    entries: Vec<Entry<W>>,
    replacement: Replacement,
    gate: Gate,
    hash: KeyHash,
    counts: AggregatorCounts,
    swept: usize,
    compare: PhantomData<M>,
}

/// Where a packet's key lies, as far as tags tell.
#[derive(Clone, Copy, Default)]
struct Place {
    row: u32,
    /// Index of the entry with this tag, or `NOWHERE`.
    entry: u32,
    /// 16 bits; three equal fields are cleared in the widest stores.
    tag: u32,
}

const NOWHERE: u32 = u32::MAX;

impl<const W: usize> Aggregator<W> {
    /// Creates an empty aggregator of at most `bytes` bytes.
    ///
    /// # Errors
    /// The memory is less than that of one row, or too much.
    pub fn with_bytes(bytes: usize, policy: Policy, gate: Gate, seed: &Seed) -> Result<Self, SizeError> {
        Self::comparing(bytes, policy, gate, seed)
    }
}

impl<const W: usize, M: Compare> Aggregator<W, M> {
    /// Like [`Aggregator::with_bytes`], with the comparison that the type names.
    ///
    /// # Errors
    /// The memory is less than that of one row, or too much.
    pub fn comparing(bytes: usize, policy: Policy, gate: Gate, seed: &Seed) -> Result<Self, SizeError> {
        let rows = SizeError::check(bytes, Self::BYTES_PER_ROW)? / Self::BYTES_PER_ROW;
        Ok(Aggregator {
            rows: table(Row::EMPTY, rows),
            entries: table(Entry { key: [0; W], packets: 0, bytes: 0 }, rows * SLOTS),
            replacement: Replacement::new(policy, rows),
            gate,
            hash: KeyHash::new(seed),
            counts: AggregatorCounts::default(),
            swept: 0,
            compare: PhantomData,
        })
    }

    /// Bytes of memory of each row of [`Aggregator::KEYS_PER_ROW`] keys.
    pub const BYTES_PER_ROW: usize =
        size_of::<Row>() + SLOTS * size_of::<Entry<W>>() + Replacement::BYTES_PER_ROW;

    /// Bytes of memory of an aggregator that may have `bytes`.
    #[must_use]
    pub const fn bytes_for(bytes: usize) -> usize {
        bytes / Self::BYTES_PER_ROW * Self::BYTES_PER_ROW
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rows.len() * Self::BYTES_PER_ROW
    }

    /// Keys of a row.
    pub const KEYS_PER_ROW: usize = SLOTS;

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Packets in its counts, by adding them up: for tests.
    #[must_use]
    pub fn packets(&self) -> u64 {
        let in_row = |(number, row): (usize, &Row)| -> u64 {
            row.taken().map(|slot| self.entries[number * SLOTS + slot].packets).sum()
        };
        self.rows.iter().enumerate().map(in_row).sum()
    }

    /// Number of keys that there is room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// What it has done since it was created.
    #[must_use]
    pub fn counts(&self) -> AggregatorCounts {
        self.counts
    }

    /// The hash by which [`Evicted::item`] is made.
    #[must_use]
    pub fn key_hash(&self) -> &KeyHash {
        &self.hash
    }

    /// Counts updates, and appends the keys that made room for them to `out`: at most one for each update,
    /// so that a vector with that much room is never reallocated.
    #[inline]
    pub fn add(&mut self, updates: &[Update<W>], out: &mut Vec<Evicted<W>>) {
        for batch in updates.chunks(BATCH) {
            self.counts.updates += batch.len() as u64;
            if self.gate.lets_in() {
                let evictions = self.counts.evictions;
                self.add_batch(batch, out);
                self.gate.saw(batch.len() as u32, (self.counts.evictions - evictions) as u32);
            } else {
                self.counts.bypassed += batch.len() as u64;
                for update in batch {
                    let item = self.hash.item(update.key);
                    out.push(Evicted { item, packets: update.packets, bytes: update.bytes });
                }
            }
        }
    }

    /// Adds at most [`BATCH`] updates: rows are fetched, then entries, then counted in the order of arrival.
    #[inline]
    fn add_batch(&mut self, batch: &[Update<W>], out: &mut Vec<Evicted<W>>) {
        let mut places = [Place::default(); BATCH];
        for (place, update) in places.iter_mut().zip(batch) {
            *place = self.place(&update.key);
            prefetch(&self.rows[place.row as usize]);
        }
        for place in &mut places[..batch.len()] {
            let tags = &self.rows[place.row as usize];
            let found = tags.first::<M>(place.tag as u16);
            // A key that is not there takes the place of another, whose counts are read then.
            let slot = found.unwrap_or_else(|| match tags.free::<M>() {
                Some(slot) => slot,
                None => self.replacement.next::<M>(tags, place.row as usize),
            });
            let entry = place.row * SLOTS as u32 + slot;
            prefetch(&self.entries[entry as usize]);
            place.entry = if found.is_some() { entry } else { NOWHERE };
        }
        for (place, update) in places.iter().zip(batch) {
            self.count(place, update, out);
        }
    }

    #[inline(always)]
    fn place(&self, key: &[u64; W]) -> Place {
        // Sketches derive their places from the same bits under secrets of their own.
        let bits = self.hash.hash(key);
        let row = below((bits >> 32) as u32, self.rows.len()) as u32;
        Place { row, entry: NOWHERE, tag: u32::from(tag_of(bits)) }
    }

    #[inline(always)]
    fn count(&mut self, place: &Place, update: &Update<W>, out: &mut Vec<Evicted<W>>) {
        if let Some(entry) = self.entries.get_mut(place.entry as usize)
            && entry.key == update.key
        {
            entry.packets += update.packets;
            entry.bytes += update.bytes;
            self.counts.hits += 1;
            let row = &mut self.rows[place.row as usize];
            self.replacement.touch(row, place.row as usize, place.entry % SLOTS as u32, update.packets);
            return;
        }
        self.count_elsewhere(place, update, out);
    }

    /// Counts a key whose tag was not there, was another key's, or has moved since the entry was guessed.
    #[inline(never)]
    fn count_elsewhere(&mut self, place: &Place, update: &Update<W>, out: &mut Vec<Evicted<W>>) {
        let number = place.row as usize;
        let first = number * SLOTS;
        let row = &mut self.rows[number];
        let entries = &mut self.entries[first..first + SLOTS];
        let found = row.all::<M>(place.tag as u16).find(|&slot| entries[slot].key == update.key);
        if let Some(slot) = found {
            entries[slot].packets += update.packets;
            entries[slot].bytes += update.bytes;
            self.counts.hits += 1;
            self.replacement.touch(row, number, slot as u32, update.packets);
            return;
        }
        let slot = match row.free::<M>() {
            Some(slot) => slot,
            None => {
                let slot = self.replacement.victim::<M>(row, number);
                self.counts.evictions += 1;
                let Entry { key, packets, bytes } = entries[slot as usize];
                out.push(Evicted { item: self.hash.item(key), packets, bytes });
                slot
            }
        };
        let Update { key, packets, bytes } = *update;
        entries[slot as usize] = Entry { key, packets, bytes };
        row.set(slot, place.tag as u16);
        self.replacement.inserted(row, number, slot, packets);
    }

    /// Takes all keys out of the next `rows` rows, and appends them to `out`: sixteen for each row at most.
    /// Returns true when that was the last row; the next call begins at the first one again.
    pub fn sweep(&mut self, rows: usize, out: &mut Vec<Evicted<W>>) -> bool {
        let end = (self.swept + rows).min(self.rows.len());
        for number in self.swept..end {
            let row = &mut self.rows[number];
            for slot in row.taken() {
                let Entry { key, packets, bytes } = self.entries[number * SLOTS + slot];
                out.push(Evicted { item: self.hash.item(key), packets, bytes });
            }
            *row = Row::EMPTY;
            self.replacement.emptied(number);
        }
        let is_whole = end == self.rows.len();
        self.swept = if is_whole { 0 } else { end };
        is_whole
    }

    /// Takes all keys out, row by row, and hands them to `give`: the end of an interval.
    pub fn flush(&mut self, mut give: impl FnMut(&Evicted<W>)) {
        let mut out = Vec::with_capacity(SLOTS);
        self.swept = 0;
        loop {
            let is_whole = self.sweep(1, &mut out);
            out.drain(..).for_each(|evicted| give(&evicted));
            if is_whole {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
