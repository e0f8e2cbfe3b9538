//! FlowRadar: every flow with its exact count, decoded from a table that is not much larger than the flows
//! themselves.
//!
//! Li, Miao, Kim and Yu: FlowRadar: a better NetFlow for data centers, NSDI 2016. A flow is new if a Bloom
//! filter does not know it. A new flow is XORed into a cell of each of three parts of the table, and each of
//! its packets is counted there. A cell with a single flow reveals the flow and its count; removing the flow
//! from its other cells leaves more cells with a single flow, until the table is empty (like an invertible
//! Bloom look-up table). That succeeds up to 0.818 flows per cell (three-hash threshold), here up to
//! [`FlowRadar::capacity`].
//!
//! The filter is blocked (Putze, Sanders and Singler, 2007): its eight bits of a flow lie in one cache line.
//! It has 64 bits for each flow that can be decoded, and then mistakes a new flow for an old one with
//! probability 3e-7. The packets of such a flow are counted in cells that do not contain it, which decoding
//! detects: the result says whether it is exact.
//!
//! Packet counts and filter do not depend on how packets were aggregated before; which flows the filter
//! mistakes does. Two tables can be merged if no flow is in both, because equal flows cancel.

use weir_sketch::aggregator::Evicted;
use weir_sketch::estimate::{MergeError, SizeError};
use weir_sketch::hash::{Item, KeyHash, Lanes, Purpose, Seed, below};
use weir_sketch::memory::{in_chunks, table};

/// Parts of the table: three have the highest threshold.
const PARTS: usize = 3;

/// Bits of the filter for each flow at capacity.
const FILTER_BITS: usize = 64;

/// Words of a block of the filter: a cache line.
const BLOCK: usize = 8;

/// Flows per cell up to which decoding practically always succeeds: the threshold is 0.818 for an infinite
/// table, and small tables reach it only on average.
const LOAD: f64 = 0.75;

/// Cells of a table below which [`LOAD`] is not reached.
const CELLS_MIN: usize = 300;

/// A cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell<const W: usize> {
    /// XOR of its flows.
    flows: [u64; W],
    packets: u64,
    count: u32,
}

impl<const W: usize> Cell<W> {
    const EMPTY: Cell<W> = Cell { flows: [0; W], packets: 0, count: 0 };
}

/// A line of the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
struct Block([u64; BLOCK]);

/// What was decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded<const W: usize> {
    /// Flows with their packets, in unspecified order.
    pub flows: Vec<([u64; W], u64)>,
    /// All flows and their exact counts were found. If not, those found are true flows, and their counts may
    /// be too large.
    pub is_exact: bool,
    /// Flows known to be missing.
    pub missing: u64,
}

/// A table of flows and a filter.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowRadar<const W: usize> {
    cells: Vec<Cell<W>>,
    /// Number of cells in each part.
    width: usize,
    filter: Vec<Block>,
    cell_lanes: Lanes,
    filter_lanes: Lanes,
}

impl<const W: usize> FlowRadar<W> {
    /// Creates an empty table of at most `bytes` bytes.
    ///
    /// # Errors
    /// The memory is too little for 300 cells, or too much.
    pub fn with_bytes(bytes: usize, seed: &Seed) -> Result<Self, SizeError> {
        let per_cell = size_of::<Cell<W>>() as f64 + LOAD * (FILTER_BITS / 8) as f64;
        let least = (CELLS_MIN as f64 * per_cell) as usize + 2 * size_of::<Block>();
        let bytes = SizeError::check(bytes, least)?;
        let width = ((bytes - size_of::<Block>()) as f64 / per_cell) as usize / PARTS;
        let blocks = (bytes - PARTS * width * size_of::<Cell<W>>()) / size_of::<Block>();
        Ok(FlowRadar {
            cells: table(Cell::EMPTY, PARTS * width),
            width,
            filter: table(Block([0; BLOCK]), blocks),
            cell_lanes: Lanes::new(seed, Purpose::FlowRadar, 0),
            filter_lanes: Lanes::new(seed, Purpose::FlowRadar, 1),
        })
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.cells.len() * size_of::<Cell<W>>() + self.filter.len() * size_of::<Block>()
    }

    /// Number of flows that can be decoded.
    #[must_use]
    pub fn capacity(&self) -> usize {
        (self.cells.len() as f64 * LOAD) as usize
    }

    #[inline(always)]
    fn places(&self, hash: u64) -> [usize; PARTS] {
        let lanes = self.cell_lanes.rows::<PARTS>(hash);
        std::array::from_fn(|part| part * self.width + below(lanes[part], self.width))
    }

    #[inline(always)]
    fn block(&self, hash: u64) -> usize {
        below((self.filter_lanes.bits(hash, 0) >> 32) as u32, self.filter.len())
    }

    /// Counts packets of a flow.
    #[inline(always)]
    pub fn update(&mut self, item: &Item<W>, packets: u64) {
        self.update_at(item, packets, self.places(item.hash), self.block(item.hash));
    }

    /// Counts the packets of many flows.
    #[inline]
    pub fn add(&mut self, updates: &[Evicted<W>]) {
        let find = |radar: &Self, one: &Evicted<W>| {
            let (places, block) = (radar.places(one.item.hash), radar.block(one.item.hash));
            weir_packet::prefetch(&radar.filter[block]);
            places.iter().for_each(|place| weir_packet::prefetch(&radar.cells[*place]));
            (places, block)
        };
        in_chunks(self, updates, find, |radar, one, (places, block)| {
            radar.update_at(&one.item, one.packets, places, block);
        });
    }

    #[inline(always)]
    fn update_at(&mut self, item: &Item<W>, packets: u64, places: [usize; PARTS], block: usize) {
        if self.is_new(item.hash, block) {
            for place in places {
                let cell = &mut self.cells[place];
                exclusive_or(&mut cell.flows, &item.key);
                cell.count += 1;
            }
        }
        for place in places {
            let cell = &mut self.cells[place];
            cell.packets = cell.packets.wrapping_add(packets);
        }
    }

    /// Enters a hash into the filter, a bit in each word of its line, and returns true if one was not set.
    #[inline(always)]
    fn is_new(&mut self, hash: u64, block: usize) -> bool {
        let bits = self.filter_lanes.bits(hash, 1);
        let mut is_new = 0;
        for (word, filter) in self.filter[block].0.iter_mut().enumerate() {
            let bit = 1 << (bits >> (6 * word) & 63);
            is_new |= bit & !*filter;
            *filter |= bit;
        }
        is_new != 0
    }

    /// Decodes the table; `hash` is the one that produced the [`Item`]s.
    #[must_use]
    pub fn decode(&self, hash: &KeyHash) -> Decoded<W> {
        let mut cells = self.cells.clone();
        let mut single: Vec<usize> = (0..cells.len()).filter(|place| cells[*place].count == 1).collect();
        let mut flows = Vec::new();
        while let Some(place) = single.pop() {
            let Cell { flows: key, packets, count } = cells[place];
            let places = self.places(hash.hash(&key));
            // A cell whose flow does not lead to it holds what another table or secret put there.
            if count != 1 || !places.contains(&place) {
                continue;
            }
            flows.push((key, packets));
            for place in places {
                let cell = &mut cells[place];
                exclusive_or(&mut cell.flows, &key);
                cell.packets = cell.packets.wrapping_sub(packets);
                cell.count = cell.count.wrapping_sub(1);
                if cell.count == 1 {
                    single.push(place);
                }
            }
        }
        let missing = cells.iter().map(|cell| u64::from(cell.count)).sum::<u64>() / PARTS as u64;
        Decoded { flows, is_exact: cells.iter().all(|cell| *cell == Cell::EMPTY), missing }
    }

    /// Adds another table with other flows. A flow that is in both makes decoding inexact, which the result
    /// reports.
    ///
    /// # Errors
    /// Seeds or sizes differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        let alike = self.cells.len() == other.cells.len() && self.filter.len() == other.filter.len();
        MergeError::unless(alike && self.cell_lanes == other.cell_lanes)?;
        for (cell, other) in self.cells.iter_mut().zip(&other.cells) {
            exclusive_or(&mut cell.flows, &other.flows);
            cell.packets = cell.packets.wrapping_add(other.packets);
            cell.count += other.count;
        }
        for (block, other) in self.filter.iter_mut().zip(&other.filter) {
            block.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
        }
        Ok(())
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.cells.fill(Cell::EMPTY);
        self.filter.fill(Block([0; BLOCK]));
    }

    /// The packets of every cell, which the filter does not influence.
    #[cfg(test)]
    pub(crate) fn packets(&self) -> Vec<u64> {
        self.cells.iter().map(|cell| cell.packets).collect()
    }
}

#[inline(always)]
fn exclusive_or<const W: usize>(words: &mut [u64; W], others: &[u64; W]) {
    for (word, other) in words.iter_mut().zip(others) {
        *word ^= other;
    }
}
