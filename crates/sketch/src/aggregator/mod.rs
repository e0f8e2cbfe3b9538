//! The aggregator: packets in, sums of packets out.
//!
//! Most packets belong to a flow that was seen a moment ago. They are counted in a row of sixteen keys, whose
//! tags share a cache line and are compared at once. Only a key that makes room for another moves on to the
//! sketches, with everything that it has counted. A sketch update that costs ten times as much as the look-up
//! is then paid by one packet in six (Zipf 1.1). Nothing is lost and nothing is estimated here: for each key,
//! the counts that leave the aggregator add up to those that entered it.
//!
//! The idea is that of Agg-Evict (Zhou, Alipourfard, Yu, Yang: Accelerating network measurement in software,
//! CCR 48(3), 2018). Rows are found by a keyed hash rather than by the key modulo the number of rows, because
//! untrusted hosts choose the addresses; a tag has 16 bits and the key itself is compared.
//!
//! Costs: three cache lines per packet, fetched in parallel for a batch of 64. When nearly every packet
//! evicts, the look-up costs more than it saves, so the [gate](Gate) passes packets on directly.

mod gate;
mod policy;
#[allow(unsafe_code, reason = "loads and compares vectors with SSE2, which the target guarantees")]
mod row;

pub use gate::Gate;
pub use policy::Policy;
pub use row::{Compare, Scalar, Vectors};

use crate::estimate::SizeError;
use crate::hash::{Item, KeyHash, Note, Seed, Update, below};
use crate::memory::table;
use policy::Replacement;
use row::{Line, SLOTS, tag_of};
use std::marker::PhantomData;
use weir_packet::{Bits, prefetch};

/// Packets whose memory fetches overlap.
pub const BATCH: usize = 64;

/// The counts of one key, and the key itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeyCounts<const W: usize, N> {
    key: [u64; W],
    packets: u64,
    bytes: u64,
    note: N,
}

impl<const W: usize, N: Note> KeyCounts<W, N> {
    #[inline(always)]
    fn add(&mut self, update: &Update<W, N>) {
        self.packets += update.packets;
        self.bytes += update.bytes;
        self.note.join(&update.note);
    }

    #[inline(always)]
    fn leave(&self, hash: &KeyHash) -> Evicted<W, N> {
        let KeyCounts { key, packets, bytes, note } = *self;
        Evicted { item: hash.item(key), packets, bytes, note }
    }
}

/// The counts of a key when it leaves the aggregator, with the hash that all sketches share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted<const W: usize, N = ()> {
    /// The key and its hash.
    pub item: Item<W>,
    /// The packets that the key had counted since it entered the aggregator.
    pub packets: u64,
    /// The bytes of these packets.
    pub bytes: u64,
    /// Further information about these packets.
    pub note: N,
}

/// The activity of an aggregator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AggregatorCounts {
    /// Updates that were given to the aggregator.
    pub updates: u64,
    /// Updates that found their key.
    pub hits: u64,
    /// Keys that were evicted to make room for others.
    pub evictions: u64,
    /// Updates that the gate passed on without storing their key.
    pub bypassed: u64,
}

/// Sixteen keys with their counts, stored after the line that locates them.
#[derive(Clone, Debug)]
#[repr(C)]
struct KeyRow<const W: usize, N> {
    line: Line,
    entries: [KeyCounts<W, N>; SLOTS],
}

impl<const W: usize, N: Note> KeyRow<W, N> {
    fn empty() -> KeyRow<W, N> {
        let entry = KeyCounts { key: [0; W], packets: 0, bytes: 0, note: N::default() };
        KeyRow { line: Line::EMPTY, entries: [entry; SLOTS] }
    }
}

/// Rows of sixteen keys with their counts, and a note for each key. `M` compares tags: [`Scalar`] exists to
/// be measured against [`Vectors`].
#[derive(Clone, Debug)]
pub struct Aggregator<const W: usize, M = Vectors, N = ()> {
    rows: Vec<KeyRow<W, N>>,
    replacement: Replacement,
    gate: Gate,
    hash: KeyHash,
    counts: AggregatorCounts,
    swept: usize,
    compare: PhantomData<M>,
}

/// Where a packet's key probably lies, judging by tags.
#[derive(Clone, Copy, Default)]
struct TagMatch {
    row: u32,
    /// [`SLOTS`] if no key of the row has the tag.
    slot: u16,
    tag: u16,
}

impl<const W: usize, N: Note> Aggregator<W, Vectors, N> {
    /// Creates an empty aggregator of at most `bytes` bytes.
    ///
    /// # Errors
    /// The memory is less than that of one row, or too much.
    pub fn with_bytes(bytes: usize, policy: Policy, gate: Gate, seed: &Seed) -> Result<Self, SizeError> {
        Self::comparing(bytes, policy, gate, seed)
    }
}

impl<const W: usize, M: Compare, N: Note> Aggregator<W, M, N> {
    /// Like [`Aggregator::with_bytes`], with the comparison that the type specifies.
    ///
    /// # Errors
    /// The memory is less than that of one row, or too much.
    pub fn comparing(bytes: usize, policy: Policy, gate: Gate, seed: &Seed) -> Result<Self, SizeError> {
        let rows = SizeError::check(bytes, Self::BYTES_PER_ROW)? / Self::BYTES_PER_ROW;
        Ok(Aggregator {
            rows: table(KeyRow::empty(), rows),
            replacement: Replacement::new(policy, rows),
            gate,
            hash: KeyHash::new(seed),
            counts: AggregatorCounts::default(),
            swept: 0,
            compare: PhantomData,
        })
    }

    /// Bytes of memory of each row of [`Aggregator::KEYS_PER_ROW`] keys.
    pub const BYTES_PER_ROW: usize = size_of::<KeyRow<W, N>>() + Replacement::BYTES_PER_ROW;

    /// Bytes of memory used by an aggregator that may use `bytes`.
    #[must_use]
    pub const fn bytes_for(bytes: usize) -> usize {
        bytes / Self::BYTES_PER_ROW * Self::BYTES_PER_ROW
    }

    /// Returns the number of bytes of memory of all rows.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rows.len() * Self::BYTES_PER_ROW
    }

    /// The number of keys in a row. A key is in the row that its hash selects.
    pub const KEYS_PER_ROW: usize = SLOTS;

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The packets in the aggregator's counts, computed by adding the counts up, for tests.
    #[must_use]
    pub fn packets(&self) -> u64 {
        let in_row = |row: &KeyRow<W, N>| row.line.taken().map(|slot| row.entries[slot].packets).sum::<u64>();
        self.rows.iter().map(in_row).sum()
    }

    /// Number of keys that fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.rows.len() * SLOTS
    }

    /// What the aggregator has done since it was created.
    #[must_use]
    pub fn counts(&self) -> AggregatorCounts {
        self.counts
    }

    /// The hash that produces [`Evicted::item`].
    #[must_use]
    pub fn key_hash(&self) -> &KeyHash {
        &self.hash
    }

    /// Counts updates, and appends the keys that made room for them to `out`: at most one for each update,
    /// so that a vector with that much room is never reallocated.
    #[inline]
    pub fn add(&mut self, updates: &[Update<W, N>], out: &mut Vec<Evicted<W, N>>) {
        for batch in updates.chunks(BATCH) {
            if self.gate.lets_in() {
                self.admit(u64::MAX >> (BATCH - batch.len()), |at| batch[at], out);
            } else {
                let hash = &self.hash;
                // As fast as without an aggregator: this is all that a closed gate costs.
                out.extend(batch.iter().map(|update| pass(hash, update)));
                self.counts.updates += batch.len() as u64;
                self.counts.bypassed += batch.len() as u64;
            }
        }
    }

    /// Like [`Aggregator::add`], for the packets of a batch that the bits of `list` select; `update` returns
    /// the update of each packet.
    #[inline]
    pub fn add_list(
        &mut self,
        list: u64,
        update: impl Fn(usize) -> Update<W, N>,
        out: &mut Vec<Evicted<W, N>>,
    ) {
        if self.gate.lets_in() {
            return self.admit(list, update, out);
        }
        self.counts.updates += u64::from(list.count_ones());
        self.counts.bypassed += u64::from(list.count_ones());
        out.extend(Bits(list).map(|at| pass(&self.hash, &update(at))));
    }

    /// Adds the updates of a batch that the gate has admitted.
    fn admit(&mut self, list: u64, update: impl Fn(usize) -> Update<W, N>, out: &mut Vec<Evicted<W, N>>) {
        let (length, evictions) = (list.count_ones(), self.counts.evictions);
        self.counts.updates += u64::from(length);
        self.add_widest(list, update, out);
        self.gate.saw(length, (self.counts.evictions - evictions) as u32);
    }

    /// Adds the updates of a batch, using instructions that not every x86-64 has if they are available: this
    /// saves a tenth of the instructions.
    #[inline(always)]
    #[allow(
        unsafe_code,
        reason = "code compiled for AVX2 may be called once the CPU was found to support \
        it"
    )]
    fn add_widest(
        &mut self,
        list: u64,
        update: impl Fn(usize) -> Update<W, N>,
        out: &mut Vec<Evicted<W, N>>,
    ) {
        #[cfg(target_arch = "x86_64")]
        {
            let has_bits = is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2");
            if has_bits && is_x86_feature_detected!("avx2") {
                // SAFETY: the lines above checked that the processor has what the function is compiled for.
                return unsafe { self.add_batch_avx2(list, update, out) };
            }
        }
        self.add_batch(list, update, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn add_batch_avx2(
        &mut self,
        list: u64,
        update: impl Fn(usize) -> Update<W, N>,
        out: &mut Vec<Evicted<W, N>>,
    ) {
        self.add_batch(list, update, out);
    }

    /// Adds the updates of a batch: rows are fetched, then entries, and then updates are counted in arrival
    /// order.
    #[inline(always)]
    fn add_batch(&mut self, list: u64, update: impl Fn(usize) -> Update<W, N>, out: &mut Vec<Evicted<W, N>>) {
        let mut places = [TagMatch::default(); BATCH];
        for at in Bits(list) {
            let place = self.place(&update(at).key);
            prefetch(&self.rows[place.row as usize].line);
            places[at] = place;
        }
        for at in Bits(list) {
            let place = &mut places[at];
            let row = &self.rows[place.row as usize];
            // Without a branch, which would often be mispredicted: a row that lacks the tag fetches in vain.
            let slots = row.line.with::<M>(place.tag) | 1 << SLOTS;
            place.slot = slots.trailing_zeros() as u16;
            prefetch(&row.entries[place.slot as usize % SLOTS]);
        }
        let mut elsewhere = 0;
        for at in Bits(list) {
            let (place, update) = (places[at], update(at));
            let KeyRow { line, entries } = &mut self.rows[place.row as usize];
            match entries.get_mut(usize::from(place.slot)) {
                Some(entry) if entry.key == update.key => {
                    entry.add(&update);
                    self.replacement.touch(line, place.row, place.slot, entry.packets);
                }
                _ => {
                    elsewhere += 1;
                    self.count_elsewhere(place, &update, out);
                }
            }
        }
        self.counts.hits += u64::from(list.count_ones() - elsewhere);
    }

    #[inline(always)]
    fn place(&self, key: &[u64; W]) -> TagMatch {
        // Sketches derive their places from the same bits under their own secrets.
        let bits = self.hash.hash(key);
        let row = below((bits >> 32) as u32, self.rows.len()) as u32;
        TagMatch { row, slot: 0, tag: tag_of(bits) }
    }

    /// Counts a key whose tag was not present, belonged to another key, or has moved since the rows were
    /// fetched.
    #[inline(never)]
    fn count_elsewhere(&mut self, place: TagMatch, update: &Update<W, N>, out: &mut Vec<Evicted<W, N>>) {
        let number = place.row as usize;
        let KeyRow { line, entries } = &mut self.rows[number];
        let mut with_tag = Bits(u64::from(line.with::<M>(place.tag)));
        if let Some(slot) = with_tag.find(|&slot| entries[slot].key == update.key) {
            entries[slot].add(update);
            self.counts.hits += 1;
            self.replacement.touch(line, place.row, slot as u16, entries[slot].packets);
            return;
        }
        let slot = match line.free::<M>() {
            Some(slot) => slot,
            None => {
                let slot = self.replacement.victim::<M>(line, number);
                self.counts.evictions += 1;
                out.push(entries[slot as usize].leave(&self.hash));
                slot
            }
        };
        let Update { key, packets, bytes, note } = *update;
        entries[slot as usize] = KeyCounts { key, packets, bytes, note };
        line.set(slot, place.tag);
        self.replacement.inserted(line, place.row, slot as u16, packets);
    }

    /// Takes all keys out of the next `rows` rows, and appends them to `out`: at most sixteen per row.
    /// Returns true when it has reached the last row; the next call begins at the first row again.
    pub fn sweep(&mut self, rows: usize, out: &mut Vec<Evicted<W, N>>) -> bool {
        // If nothing was ever admitted, the rows need not be fetched.
        if self.counts.updates == self.counts.bypassed {
            return true;
        }
        let end = (self.swept + rows).min(self.rows.len());
        for number in self.swept..end {
            let KeyRow { line, entries } = &mut self.rows[number];
            for slot in line.taken() {
                out.push(entries[slot].leave(&self.hash));
            }
            *line = Line::EMPTY;
            self.replacement.emptied(number);
        }
        let is_whole = end == self.rows.len();
        self.swept = if is_whole { 0 } else { end };
        is_whole
    }

    /// Takes all keys out at the end of an interval, row by row, and passes them to `give`.
    pub fn flush(&mut self, mut give: impl FnMut(&Evicted<W, N>)) {
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

/// Passes an update on without counting it.
#[inline(always)]
fn pass<const W: usize, N: Note>(hash: &KeyHash, update: &Update<W, N>) -> Evicted<W, N> {
    let Update { key, packets, bytes, note } = *update;
    Evicted { item: hash.item(key), packets, bytes, note }
}

#[cfg(test)]
mod tests;
