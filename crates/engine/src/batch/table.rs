//! The five tables behind one face: which entry does each packet of a list hit?

use crate::batch::acl::AclTable;
use crate::batch::basic::BasicTable;
use crate::batch::group::{GroupTable, Meeting};
use crate::batch::load::{KEY_WORDS_MAX, KeyPlan};
use crate::batch::packets::Packets;
use crate::batch::rows::{EntryRow, Slab};
use crate::program::{HashInput, Learn};
use packet::{Batch, Bits, DropReason, KeySource, TableHash, select_hash, widest};
use std::collections::HashMap;
use table::{Decision, FlowDelta, FlowTable, Lpm, NO_TARGET, seeded, spread};

/// No row.
pub const NO_ROW: u32 = u32::MAX;

/// A pipe's table.
#[derive(Debug)]
pub enum Table {
    Basic(Box<BasicTable>),
    Hash(HashTable),
    Flow(Box<FlowPipe>),
    Lpm(LpmTable),
    Acl(Box<AclTable>),
}

/// HASH: bucket to target to row.
#[derive(Debug)]
pub struct HashTable {
    pub input: HashInput,
    pub plan: KeyPlan,
    pub group: usize,
    pub slab: Slab,
    pub row_of: Vec<u32>,
    /// Packets dealt out in turn.
    pub turns: u64,
}

/// FLOW: the flow table and the rows its decisions name.
#[derive(Debug)]
pub struct FlowPipe {
    pub source: KeySource,
    pub learn: Learn,
    pub timeout_ms: u32,
    pub table: FlowTable,
    pub hash: TableHash,
    pub slab: Slab,
    pub default_row: u32,
    pub row_of: Vec<u32>,
    /// Flows given by configuration or at run time: their rows.
    pub own: HashMap<packet::FlowKey, u32>,
    pub unflowed_full: u64,
    pub deltas: Vec<FlowDelta>,
}

/// LPM: prefix to row.
#[derive(Debug)]
pub struct LpmTable {
    pub plan: KeyPlan,
    pub lpm: Lpm,
    pub slab: Slab,
}

/// What a look-up needs to know of the rest of the program.
pub struct Around<'a> {
    pub groups: &'a mut [GroupTable],
    pub seed: u64,
    pub now_ms: u32,
    pub now_ns: u64,
    /// False while explaining: buckets that are given are not met.
    pub live: bool,
}

impl Table {
    /// Row numbers given out so far.
    #[must_use]
    pub fn rows(&self) -> u32 {
        match self {
            Table::Basic(table) => table.rows(),
            Table::Hash(table) => table.slab.rows.len() as u32,
            Table::Flow(table) => table.slab.rows.len() as u32,
            Table::Lpm(table) => table.slab.rows.len() as u32,
            Table::Acl(table) => table.slab.rows.len() as u32,
        }
    }

    /// The entry in a row; one that has gone looks configured.
    #[must_use]
    pub fn row(&self, at: u32) -> EntryRow {
        let slab = match self {
            Table::Basic(table) => return table.row(at),
            Table::Hash(table) => &table.slab,
            Table::Flow(table) => &table.slab,
            Table::Lpm(table) => &table.slab,
            Table::Acl(table) => &table.slab,
        };
        slab.rows[at as usize]
    }
}

impl HashTable {
    /// Rows of the packets whose bucket has a target with an entry. Those without the hashed fields miss.
    #[inline(never)]
    pub fn lookup(
        &mut self,
        batch: &Batch,
        packets: &Packets,
        list: u64,
        around: &mut Around<'_>,
        rows: &mut [u32; 64],
        failed: &mut impl FnMut(usize, DropReason),
    ) -> u64 {
        let able = self.plan.able(packets, list);
        let mut made = [0; 64];
        let hashes = match &self.input {
            HashInput::Select(source) => &packets.keys(*source).select,
            HashInput::Fields(_) => {
                self.hash_fields(batch, packets, able, around.seed, &mut made);
                &made
            }
            HashInput::Rss => {
                received_hashes(batch, packets, able, &mut made);
                &made
            }
            HashInput::RoundRobin => return self.deal(batch, able, around, rows, failed),
        };
        let (now_ns, live) = (around.now_ns, around.live);
        let group = &mut around.groups[self.group];
        if let Some(buckets) = group.plain() {
            return self.rows(able, rows, failed, |slot| buckets.pick(hashes[slot]));
        }
        if let Some((given, seed)) = group.given().filter(|_| live) {
            // What kind of group it is has been asked once; a packet costs a hash, one of 64 side by side, and two loads.
            let mut own = [0; 64];
            widest(|| {
                for (own, hash) in own.iter_mut().zip(hashes) {
                    *own = seeded(*hash, seed);
                }
            });
            return self.rows(able, rows, failed, |slot| {
                given.meet(given.buckets().bucket(own[slot]), batch.frame(slot).len(), now_ns)
            });
        }
        self.rows(able, rows, failed, |slot| {
            group.meet(hashes[slot], Meeting { bytes: batch.frame(slot).len(), now_ns, live })
        })
    }

    /// Rows of the packets of `list`, which take the buckets in turn.
    fn deal(
        &mut self,
        batch: &Batch,
        list: u64,
        around: &mut Around<'_>,
        rows: &mut [u32; 64],
        failed: &mut impl FnMut(usize, DropReason),
    ) -> u64 {
        let (now_ns, live) = (around.now_ns, around.live);
        let held = &mut around.groups[self.group].held;
        let size = held.buckets().slots().len().max(1) as u64;
        let mut turn = self.turns;
        let hits = self.rows(list, rows, failed, |slot| {
            let bucket = (turn % size) as usize;
            turn += 1;
            held.meet(bucket, Meeting { bytes: batch.frame(slot).len(), now_ns, live })
        });
        if live {
            self.turns = turn;
        }
        hits
    }

    /// Rows of the targets of `list`; those without one have no target.
    #[inline(always)]
    fn rows(
        &self,
        list: u64,
        rows: &mut [u32; 64],
        failed: &mut impl FnMut(usize, DropReason),
        mut target: impl FnMut(usize) -> u16,
    ) -> u64 {
        let mut hits = list;
        for slot in Bits(list) {
            rows[slot] = target_row(&self.row_of, target(slot));
            if rows[slot] == NO_ROW {
                hits &= !(1 << slot);
                failed(slot, DropReason::NoTarget);
            }
        }
        hits
    }

    fn hash_fields(&self, batch: &Batch, packets: &Packets, list: u64, seed: u64, hashes: &mut [u64; 64]) {
        let mut keys = [[0; KEY_WORDS_MAX]; 64];
        self.plan.gather(batch, packets, list, &mut keys);
        for slot in Bits(list) {
            hashes[slot] = select_hash(seed, &keys[slot][..self.plan.words]);
        }
    }
}

/// The hashes that the NIC delivered with the frames of `list`, and the select hashes of those that came without.
fn received_hashes(batch: &Batch, packets: &Packets, list: u64, hashes: &mut [u64; 64]) {
    let select = &packets.keys(KeySource::Outer).select;
    for slot in Bits(list) {
        let hash = batch.frame(slot).hash();
        hashes[slot] = if hash == 0 { select[slot] } else { spread(hash) };
    }
}

#[inline(always)]
fn target_row(row_of: &[u32], target: u16) -> u32 {
    row_of.get(usize::from(target)).copied().unwrap_or(NO_ROW)
}

impl FlowPipe {
    /// Rows of known flows and of those learnt now; counts packets in their flows.
    #[inline(never)]
    pub fn lookup(
        &mut self,
        batch: &Batch,
        packets: &Packets,
        list: u64,
        around: &Around<'_>,
        rows: &mut [u32; 64],
        failed: &mut impl FnMut(usize, DropReason),
    ) -> u64 {
        let keys = packets.keys(self.source);
        let able = list & keys.known;
        let mut flows = [0; 64];
        let mut hits = self.table.lookup_batch(&keys.key, &keys.table, able, &mut flows);
        let known = hits;
        if self.learn != Learn::Nothing {
            // In arrival order: what one packet learns, the next one finds.
            for slot in Bits(able & !known) {
                hits |= u64::from(self.learn_one(packets, slot, around, &mut flows, rows, failed)) << slot;
            }
        }
        for slot in Bits(known) {
            rows[slot] = self.row_of_flow(flows[slot], packets, slot, around);
            if rows[slot] == NO_ROW {
                hits &= !(1 << slot);
                failed(slot, DropReason::NoTarget);
            }
        }
        for slot in Bits(hits) {
            if flows[slot] != NO_ROW {
                let length = batch.frame(slot).len() as u32;
                self.deltas.extend(self.table.count(flows[slot], length, around.now_ms));
            }
        }
        hits
    }

    /// The same without learning or counting.
    pub fn peek(&self, packets: &Packets, slot: usize, around: &Around<'_>) -> Result<Option<u32>, DropReason> {
        let keys = packets.keys(self.source);
        if keys.known & 1 << slot == 0 {
            return Ok(None);
        }
        let row = match self.table.get(keys.table[slot], &keys.key[slot]) {
            Some(flow) => self.row_of_flow(flow, packets, slot, around),
            None if self.learn == Learn::Nothing => return Ok(None),
            None => self.decide(packets, slot, around).map_or(NO_ROW, |(_, row)| row),
        };
        if row == NO_ROW { Err(DropReason::NoTarget) } else { Ok(Some(row)) }
    }

    #[inline]
    fn row_of_flow(&self, flow: u32, packets: &Packets, slot: usize, around: &Around<'_>) -> u32 {
        match self.table.flow(flow).map(table::Flow::decision) {
            Some(Decision::Pinned(row)) => row,
            Some(Decision::Group(_)) => self.follow(self.group(), packets, slot, around),
            Some(Decision::Cached(_)) | None => NO_ROW,
        }
    }

    /// The one group a FLOW pipe has: what `Decision::Group` means here, whatever its number in the program.
    fn group(&self) -> usize {
        match self.learn {
            Learn::Pin(group) | Learn::Follow(group) => group.index(),
            Learn::Nothing | Learn::Default => usize::MAX,
        }
    }

    #[inline]
    fn follow(&self, group: usize, packets: &Packets, slot: usize, around: &Around<'_>) -> u32 {
        let hash = packets.keys(self.source).select[slot];
        target_row(&self.row_of, around.groups.get(group).map_or(NO_TARGET, |group| group.pick(hash)))
    }

    /// What a packet of a new flow decides, and the row it means now.
    fn decide(&self, packets: &Packets, slot: usize, around: &Around<'_>) -> Option<(Decision, u32)> {
        let (decision, row) = match self.learn {
            Learn::Nothing => return None,
            Learn::Default => (Decision::Pinned(self.default_row), self.default_row),
            Learn::Pin(group) => {
                let row = self.follow(group.index(), packets, slot, around);
                (Decision::Pinned(row), row)
            }
            Learn::Follow(group) => (Decision::Group(0), self.follow(group.index(), packets, slot, around)),
        };
        (row != NO_ROW).then_some((decision, row))
    }

    fn learn_one(
        &mut self,
        packets: &Packets,
        slot: usize,
        around: &Around<'_>,
        flows: &mut [u32; 64],
        rows: &mut [u32; 64],
        failed: &mut impl FnMut(usize, DropReason),
    ) -> bool {
        let keys = packets.keys(self.source);
        let (hash, key) = (keys.table[slot], &keys.key[slot]);
        if let Some(flow) = self.table.get(hash, key) {
            flows[slot] = flow;
            rows[slot] = self.row_of_flow(flow, packets, slot, around);
            if rows[slot] == NO_ROW {
                failed(slot, DropReason::NoTarget);
            }
            return rows[slot] != NO_ROW;
        }
        let Some((decision, row)) = self.decide(packets, slot, around) else {
            failed(slot, DropReason::NoTarget);
            return false;
        };
        rows[slot] = row;
        flows[slot] = match self.table.learn(hash, key, decision, around.now_ms) {
            Ok(flow) => flow,
            Err(table::Full) => {
                self.unflowed_full += 1;
                NO_ROW
            }
        };
        true
    }
}

impl LpmTable {
    /// Rows of the longest prefixes.
    #[inline(never)]
    pub fn lookup(&self, batch: &Batch, packets: &Packets, list: u64, rows: &mut [u32; 64]) -> u64 {
        let able = self.plan.able(packets, list);
        let mut addresses = [0u128; 64];
        if self.plan.words == 1 {
            let mut keys = [[0; 1]; 64];
            self.plan.gather(batch, packets, able, &mut keys);
            for slot in Bits(able) {
                addresses[slot] = u128::from(keys[slot][0]);
            }
        } else {
            let mut keys = [[0; 2]; 64];
            self.plan.gather(batch, packets, able, &mut keys);
            for slot in Bits(able) {
                addresses[slot] = u128::from(keys[slot][0]) << 64 | u128::from(keys[slot][1]);
            }
        }
        self.lpm.lookup_batch(&addresses, able, rows)
    }
}
