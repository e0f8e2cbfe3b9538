//! One pipe on one list: look up, count, act, forward.

use crate::batch::Walk;
use crate::batch::basic::{Few, SMALL_MAX};
use crate::batch::compile::CompiledPipe;
use crate::batch::packets::Packets;
use crate::batch::rows::EntryRow;
use crate::batch::steps::Site;
use crate::batch::table::{Around, Table};
use crate::program::Forward;
use crate::snapshot::Count;
use packet::{Batch, Bits, DropReason};
use table::meter::Color;

impl CompiledPipe {
    /// Carries the packets of `list` through this pipe.
    pub(super) fn run(&mut self, walk: &mut Walk, batch: &mut Batch, list: u64) {
        let Walk { packets, outcome, reading, .. } = walk;
        let list = packets.refresh(batch, list, reading, |slot, reason| outcome.drop(slot, reason));
        let passed = self.guards.pass(batch, packets, list);
        // A meter wants its packets in the order in which they came, whatever they hit.
        if !self.metered
            && let Some(few) = self.table.few(batch, packets, passed)
        {
            return self.run_few(walk, batch, list, few);
        }
        let mut rows = [0; 64];
        let mut action = [0; 64];
        let (hits, failed) = self.look_up(walk, batch, passed, &mut rows);
        if !self.metered
            && let Some(few) = self.table.few_of(&rows, hits)
        {
            return self.run_few(walk, batch, list & !failed, few);
        }
        let misses = list & !hits & !failed;
        if misses != 0 {
            self.miss(walk, batch, misses);
        }
        if hits == 0 {
            return;
        }
        if walk.live {
            self.hits += u64::from(hits.count_ones());
            self.table.count(batch, hits, &rows, walk.now_ms, &mut action);
        } else {
            self.table.peek(hits, &rows, &mut action);
        }
        let hits = self.monitor(walk, batch, hits, &action);
        let done = self.act(walk, batch, hits, &action);
        let done = self.make_keys(walk, batch, done);
        self.send(walk, batch, done, &action);
    }

    /// The same when few entries share the packets: what an entry says is then found once for all that hit it.
    fn run_few(&mut self, walk: &mut Walk, batch: &mut Batch, list: u64, few: Few) {
        let hits = few.iter().fold(0, |all, (_, hits)| all | hits);
        if list != hits {
            self.miss(walk, batch, list & !hits);
        }
        for (row, hits) in few {
            if hits != 0 {
                self.hit_all(walk, batch, row, hits);
            }
        }
    }

    /// Counts, acts and forwards for the packets that hit one entry.
    fn hit_all(&mut self, walk: &mut Walk, batch: &mut Batch, row: u32, hits: u64) {
        let Some(row) = self.table.few_mut(row) else { return };
        let action = row.action();
        let does = self.actions.rows[action as usize];
        if walk.live {
            let bytes = Bits(hits).map(|slot| batch.frame(slot).len() as u64).sum();
            let count = Count { packets: u64::from(hits.count_ones()), bytes };
            row.hit_all(count, walk.now_ms);
            self.hits += count.packets;
            if let Some(counter) = does.counter {
                walk.counters[counter.index()].add(count);
            }
        }
        let Walk { packets, outcome, reading, .. } = walk;
        let mut site = Site { batch, packets, action: &action, reading };
        let plan = &self.plans[usize::from(does.template)];
        let done = plan.run(&mut site, &self.actions, hits, |slot, reason| outcome.drop(slot, reason));
        let done = self.make_keys(walk, batch, done);
        walk.forward(batch, does.forward, done, DropReason::Policy);
    }

    /// Rows of the hits, and which packets were dropped on the way.
    fn look_up(&mut self, walk: &mut Walk, batch: &Batch, list: u64, rows: &mut [u32; 64]) -> (u64, u64) {
        let Walk { packets, outcome, groups, now_ns, live, .. } = walk;
        let mut around = Around { groups, seed: walk.reading.seed, now_ms: walk.now_ms, now_ns: *now_ns, live: *live };
        let mut failed = 0;
        let mut fail = |slot: usize, reason: DropReason| {
            failed |= 1 << slot;
            outcome.drop(slot, reason);
        };
        let hits = match &mut self.table {
            Table::Basic(table) => table.lookup(batch, packets, list, rows),
            Table::Hash(table) => table.lookup(batch, packets, list, &mut around, rows, &mut fail),
            Table::Flow(table) if walk.live => table.lookup(batch, packets, list, &around, rows, &mut fail),
            Table::Flow(table) => {
                let mut hits = 0;
                for slot in Bits(list) {
                    match table.peek(packets, slot, &around) {
                        Ok(None) => {}
                        Ok(Some(row)) => {
                            rows[slot] = row;
                            hits |= 1 << slot;
                        }
                        Err(reason) => fail(slot, reason),
                    }
                }
                hits
            }
            Table::Lpm(table) => table.lookup(batch, packets, list, rows),
            Table::Acl(table) => table.lookup(batch, packets, list, rows),
        };
        (hits, failed)
    }

    fn miss(&mut self, walk: &mut Walk, batch: &Batch, misses: u64) {
        if walk.live {
            for slot in Bits(misses) {
                self.misses.one(batch.frame(slot).len());
            }
        }
        walk.forward(batch, self.miss, misses, DropReason::Miss);
    }

    /// Shared counters and meters; the mask of those not dropped by them.
    fn monitor(&self, walk: &mut Walk, batch: &Batch, hits: u64, action: &[u32; 64]) -> u64 {
        if self.counted && walk.live {
            for slot in Bits(hits) {
                if let Some(counter) = self.actions.rows[action[slot] as usize].counter {
                    walk.counters[counter.index()].one(batch.frame(slot).len());
                }
            }
        }
        if !self.metered {
            return hits;
        }
        let mut passed = hits;
        for slot in Bits(hits) {
            let Some(meter) = self.actions.rows[action[slot] as usize].meter else { continue };
            let color = meter_packet(walk, meter.index(), batch.frame(slot).len() as u32, slot);
            walk.packets.color[slot] = color as u8;
            if color == Color::Red && self.drop_red {
                passed &= !(1 << slot);
                walk.outcome.drop(slot, DropReason::Metered);
            }
        }
        passed
    }

    /// Carries out the actions; the mask of those that did not fail.
    fn act(&self, walk: &mut Walk, batch: &mut Batch, hits: u64, action: &[u32; 64]) -> u64 {
        let Walk { packets, outcome, reading, .. } = walk;
        let mut site = Site { batch, packets, action, reading };
        let mut fail = |slot, reason| outcome.drop(slot, reason);
        if let [plan] = &self.plans[..] {
            return plan.run(&mut site, &self.actions, hits, &mut fail);
        }
        let mut done = 0;
        for (template, plan) in self.plans.iter().enumerate() {
            let named = |slot: usize| usize::from(self.actions.rows[action[slot] as usize].template) == template;
            let list = Bits(hits).filter(|&slot| named(slot)).fold(0, |list, slot| list | 1 << slot);
            done |= plan.run(&mut site, &self.actions, list, &mut fail);
        }
        done
    }

    /// Flow keys and hashes from the new bytes, where the pipe wants them; the mask of those whose headers were found.
    fn make_keys(&self, walk: &mut Walk, batch: &Batch, list: u64) -> u64 {
        if !self.rehash {
            return list;
        }
        let Walk { packets, outcome, reading, .. } = walk;
        let list = packets.refresh(batch, list, reading, |slot, reason| outcome.drop(slot, reason));
        packets.make_keys(batch, list, reading);
        list
    }

    fn send(&self, walk: &mut Walk, batch: &Batch, list: u64, action: &[u32; 64]) {
        if self.forward != Forward::PerEntry {
            return walk.forward(batch, self.forward, list, DropReason::Policy);
        }
        for slot in Bits(list) {
            let forward = self.actions.rows[action[slot] as usize].forward;
            walk.forward(batch, forward, 1 << slot, DropReason::Policy);
        }
    }
}

#[inline]
fn meter_packet(walk: &mut Walk, meter: usize, size: u32, slot: usize) -> Color {
    let incoming = match walk.packets.color[slot] {
        0 => Color::Green,
        1 => Color::Yellow,
        _ => Color::Red,
    };
    let (meter, now_ns) = (&mut walk.meters[meter], walk.now_ns);
    if walk.live { meter.color(now_ns, size, incoming) } else { meter.peek(now_ns, size, incoming) }
}

impl Table {
    /// The packets that hit each entry, where entries are few.
    #[inline]
    fn few(&mut self, batch: &Batch, packets: &Packets, list: u64) -> Option<Few> {
        match self {
            Table::Basic(table) => table.few(batch, packets, list),
            _ => None,
        }
    }

    /// The same of rows that were looked up one by one: those of a group with few targets.
    #[inline]
    fn few_of(&self, rows: &[u32; 64], hits: u64) -> Option<Few> {
        let Table::Hash(table) = self else { return None };
        let count = table.slab.rows.len();
        (count <= SMALL_MAX).then(|| {
            std::array::from_fn(|row| if row < count { (row as u32, having(rows, row as u32) & hits) } else { (0, 0) })
        })
    }

    /// One of few entries.
    fn few_mut(&mut self, row: u32) -> Option<&mut EntryRow> {
        match self {
            Table::Basic(table) => Some(table.row_mut(row)),
            Table::Hash(table) => table.slab.rows.get_mut(row as usize),
            _ => None,
        }
    }

    #[inline]
    fn count(&mut self, batch: &Batch, hits: u64, rows: &[u32; 64], now_ms: u32, action: &mut [u32; 64]) {
        match self {
            Table::Basic(table) => table.count(batch, hits, rows, now_ms, action),
            Table::Hash(table) => count(&mut table.slab.rows, batch, hits, rows, now_ms, action),
            Table::Flow(table) => count(&mut table.slab.rows, batch, hits, rows, now_ms, action),
            Table::Lpm(table) => count(&mut table.slab.rows, batch, hits, rows, now_ms, action),
            Table::Acl(table) => count(&mut table.slab.rows, batch, hits, rows, now_ms, action),
        }
    }

    fn peek(&self, hits: u64, rows: &[u32; 64], action: &mut [u32; 64]) {
        let slab = match self {
            Table::Basic(table) => return table.peek(hits, rows, action),
            Table::Hash(table) => &table.slab,
            Table::Flow(table) => &table.slab,
            Table::Lpm(table) => &table.slab,
            Table::Acl(table) => &table.slab,
        };
        for slot in Bits(hits) {
            action[slot] = slab.rows[rows[slot] as usize].action();
        }
    }
}

/// The slots that have this row.
#[inline(always)]
fn having(rows: &[u32; 64], row: u32) -> u64 {
    rows.iter().rev().fold(0, |mask, &one| mask << 1 | u64::from(one == row))
}

#[inline(always)]
fn count(slab: &mut [EntryRow], batch: &Batch, hits: u64, rows: &[u32; 64], now_ms: u32, action: &mut [u32; 64]) {
    for slot in Bits(hits) {
        action[slot] = slab[rows[slot] as usize].hit(batch.frame(slot).len(), now_ms);
    }
}
