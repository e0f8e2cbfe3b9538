//! One pipe applied to one list: look up, count, act, forward.

use crate::batch::Walk;
use crate::batch::compile::CompiledPipe;
use crate::batch::count::{Counting, Numbers, Shared};
use crate::batch::rows::{ActionOf, Rows};
use crate::batch::steps::{DirectorRows, Site};
use crate::pipes::flow::Flows;
use crate::pipes::lookup::{Hits, Lookup};
use crate::pipes::table::Table;
use weir_packet::{Batch, Bits, DropReason};
use weir_program::Forward;
use weir_table::meter::Color;

impl CompiledPipe {
    /// Runs the packets of `list` through this pipe. Not inlined, because it would take registers from the
    /// parser.
    #[inline(never)]
    pub(super) fn run(&mut self, walk: &mut Walk, batch: &mut Batch, list: u64) {
        let Walk { packets, outcome, reading, .. } = walk;
        let list = packets.refresh(batch, list, reading, |slot, reason| outcome.drop(slot, reason));
        let passed = self.guards.pass(batch, packets, list);
        let mut rows = [0; 64];
        let (hits, failed) = self.look_up(walk, batch, passed, &mut rows);
        let hits = if self.sums.is_some() && walk.live {
            self.sum_up(walk, batch, passed, hits, &mut rows)
        } else {
            hits
        };
        debug_assert_eq!((hits.all() | failed) & !passed, 0, "only packets that were looked up hit or fail");
        debug_assert_eq!(hits.all() & failed, 0, "a packet takes one way");
        let misses = list & !hits.all() & !failed;
        if misses != 0 {
            self.miss(walk, batch, misses);
        }
        match hits {
            // A meter must see its packets in order of arrival, whatever they hit.
            Hits::Few(few) if !self.metered => {
                few.iter()
                    .filter(|(_, hits)| *hits != 0)
                    .for_each(|(row, hits)| self.hit(walk, batch, *hits, row));
            }
            hits if hits.all() != 0 => {
                let hits = hits.by_packet(&mut rows);
                self.hit(walk, batch, hits, &rows);
            }
            _ => {}
        }
    }

    /// Sums up the packets of a list by flow, with their targets where known.
    #[inline(never)]
    fn sum_up(&mut self, walk: &Walk, batch: &Batch, list: u64, hits: Hits, rows: &mut [u32; 64]) -> Hits {
        let Some(sums) = &mut self.sums else { return hits };
        let found = (batch, &*walk.packets);
        if !sums.has_targets() {
            sums.count(found, list, walk.now_ms, None);
            return hits;
        }
        let all = hits.all();
        let hits = Hits::Each(hits.by_packet(rows));
        sums.count(found, list, walk.now_ms, Some((all, rows)));
        hits
    }

    /// Returns which packets hit, and which were dropped along the way.
    #[inline]
    fn look_up(&mut self, walk: &mut Walk, batch: &Batch, list: u64, rows: &mut [u32; 64]) -> (Hits, u64) {
        let mut look = Lookup {
            batch,
            packets: &walk.packets,
            list,
            slab: &self.slab,
            groups: &mut walk.groups,
            numbers: &walk.numbers,
            reading: &walk.reading,
            now_ms: walk.now_ms,
            now_ns: walk.now_ns,
            live: walk.live,
            outcome: &mut walk.outcome,
            rows,
            failed: 0,
        };
        let hits = self.table.lookup(&mut look);
        (hits.by_row(look.rows, self.rows_used() as usize), look.failed)
    }

    /// Counts packets that hit, carries out their actions and forwards them. Either all hit the same row,
    /// whose entry is then looked up once, or each hits its own.
    fn hit(&mut self, walk: &mut Walk, batch: &mut Batch, hits: u64, rows: &impl Numbers) {
        let lengths = (self.counted && walk.live).then(|| lengths(batch, hits));
        let actions = self.count(walk, batch, hits, rows);
        actions.prefetch(hits, &self.actions);
        let passed = if self.metered { self.meter(walk, batch, hits, &actions) } else { hits };
        let done = self.act(walk, batch, passed, &actions);
        let done = self.make_keys(walk, batch, done);
        debug_assert_eq!(done & !hits, 0, "only packets that hit are sent on");
        if let Some(lengths) = lengths
            && hits != done
        {
            self.count_out(walk, hits & !done, rows, &actions, &lengths);
        }
        self.send(walk, batch, done, &actions);
    }

    /// Subtracts packets that were not sent on from shared counters. `lengths` are the lengths that were
    /// counted.
    #[cold]
    fn count_out<N: Numbers>(
        &self,
        walk: &mut Walk,
        lost: u64,
        rows: &impl Numbers,
        actions: &N,
        lengths: &[u32; 64],
    ) {
        for slot in Bits(lost) {
            let own = if let Table::Basic(_) = self.table { None } else { self.slab.counter(rows.of(slot)) };
            let counter = own.or_else(|| self.actions.rows[actions.of(slot) as usize].counter);
            if let Some(counter) = counter {
                let count = &mut walk.counters[counter.index()];
                count.packets -= 1;
                count.bytes -= u64::from(lengths[slot]);
            }
        }
    }

    /// Counts packets in their entries and in shared counters. Returns their actions.
    #[inline(always)]
    fn count<N: Numbers>(&mut self, walk: &mut Walk, batch: &Batch, hits: u64, rows: &N) -> N {
        if !walk.live {
            return rows.tally(batch, hits, |row, _| self.row(row).action());
        }
        self.hits += u64::from(hits.count_ones());
        let shared =
            self.counted.then(|| Shared { actions: &self.actions.rows, counters: &mut walk.counters });
        let counting = Counting { batch, list: hits, rows, now_ms: walk.now_ms, shared };
        match &mut self.table {
            Table::Basic(table) => table.count(counting),
            _ => counting.run(&mut self.slab),
        }
    }

    fn miss(&mut self, walk: &mut Walk, batch: &Batch, misses: u64) {
        if walk.live {
            for slot in Bits(misses) {
                self.misses.one(batch.frame(slot).len());
            }
        }
        walk.forward(batch, self.miss, misses, DropReason::Miss);
    }

    /// Colours packets. Returns the mask of the packets that were not dropped because of their colour.
    fn meter(&self, walk: &mut Walk, batch: &Batch, hits: u64, actions: &impl ActionOf) -> u64 {
        let mut passed = hits;
        for slot in Bits(hits) {
            let Some(meter) = self.actions.rows[actions.of(slot) as usize].meter else { continue };
            let color = meter_packet(walk, meter.index(), batch.frame(slot).len() as u32, slot);
            walk.packets.color[slot] = color as u8;
            if color == Color::Red && self.drop_red {
                passed &= !(1 << slot);
                walk.outcome.drop(slot, DropReason::Metered);
            }
        }
        passed
    }

    /// Carries out the actions. Returns the mask of the packets for which they succeeded.
    #[inline]
    fn act(&self, walk: &mut Walk, batch: &mut Batch, hits: u64, actions: &impl Numbers) -> u64 {
        let Walk { packets, outcome, reading, groups, numbers, .. } = walk;
        let director = DirectorRows { pipe: &self.shape.kind, groups, numbers };
        let mut site = Site { batch, packets, action: actions, reading, director };
        let mut too_long = 0_u64;
        let mut fail = |slot: usize, reason| match reason {
            DropReason::TooLong if self.too_long.is_some() => too_long |= 1 << slot,
            reason => outcome.drop(slot, reason),
        };
        let done = self.act_on(&mut site, hits, actions, &mut fail);
        if let Some(app) = self.too_long.filter(|_| too_long != 0) {
            outcome.punt_too_long(too_long, app, &packets.limit);
        }
        done
    }

    /// Carries out the actions; failures are reported to `fail`.
    #[inline(always)]
    fn act_on<N: Numbers>(
        &self,
        site: &mut Site<'_, N>,
        hits: u64,
        actions: &N,
        fail: &mut impl FnMut(usize, DropReason),
    ) -> u64 {
        let template = |action: u32| usize::from(self.actions.rows[action as usize].template);
        let kept = self.table.flows().and_then(Flows::kept);
        let of_all = || self.actions.uses.only_lead().map(|(_, template)| usize::from(template));
        let only = if self.plans.len() == 1 { Some(0) } else { actions.same().map(template) };
        let only = only.or_else(of_all);
        if let Some(only) = only {
            return self.plans[only].run(site, (&self.actions, kept), hits, fail);
        }
        let (mut rest, mut done) = (hits, 0);
        while rest != 0 {
            let (at, list) = alike(rest, |slot| template(actions.of(slot)));
            done |= self.plans[at].run(site, (&self.actions, kept), list, &mut *fail);
            rest &= !list;
        }
        done
    }

    /// Recomputes flow keys and hashes from the new bytes if the pipe requests that. Returns the mask of
    /// packets whose headers were parsed.
    fn make_keys(&self, walk: &mut Walk, batch: &Batch, list: u64) -> u64 {
        if !self.rehash {
            return list;
        }
        let Walk { packets, outcome, reading, .. } = walk;
        let list = packets.refresh(batch, list, reading, |slot, reason| outcome.drop(slot, reason));
        packets.make_keys(batch, list, reading);
        list
    }

    #[inline]
    fn send(&self, walk: &mut Walk, batch: &Batch, list: u64, actions: &impl Numbers) {
        let forward = |action: u32| self.actions.rows[action as usize].forward;
        let of_all = || self.actions.uses.only_lead().map(|(forward, _)| forward);
        let all = match self.forward {
            Forward::PerEntry => actions.same().map(forward).or_else(of_all),
            forward => Some(forward),
        };
        if let Some(all) = all {
            return walk.forward(batch, all, list, DropReason::Policy);
        }
        let mut rest = list;
        while rest != 0 {
            let (to, list) = alike(rest, |slot| forward(actions.of(slot)));
            walk.forward(batch, to, list, DropReason::Policy);
            rest &= !list;
        }
    }
}

/// The lengths of the packets of a list.
#[inline(always)]
fn lengths(batch: &Batch, list: u64) -> [u32; 64] {
    let mut lengths = [0; 64];
    Bits(list).for_each(|slot| lengths[slot] = batch.frame(slot).len() as u32);
    lengths
}

/// Returns what `of` yields for the first packet of a list, which must not be empty, and all packets for
/// which it yields the same. Most lists have few distinct values, so iterating by value is less work than
/// iterating by packet.
#[inline(always)]
fn alike<T: PartialEq>(list: u64, of: impl Fn(usize) -> T) -> (T, u64) {
    debug_assert_ne!(list, 0);
    let first = of(list.trailing_zeros() as usize & 63);
    let alike = Bits(list).fold(0, |alike, slot| alike | u64::from(of(slot) == first) << slot);
    (first, alike)
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
