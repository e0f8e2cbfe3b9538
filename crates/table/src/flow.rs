//! The flow table: entries that packets write.
//!
//! A row is one cache line: key, decision, counters, first and last time. The counters of a frame are touched right after
//! the look-up that fetched the line, so measuring every flow costs a few arithmetic instructions. The index is that of
//! [`crate::exact`]; the key's hash is not stored (the line is full), so whoever removes rows brings the hash function.
//!
//! Promises: deltas + live counters = frames counted, always. Nothing takes an entry away but [`FlowTable::remove`],
//! [`FlowTable::age`] and [`FlowTable::flush`]; the first returns its [`FlowDelta`], the others hand it to a sink and
//! keep the entry when the sink refuses. A key that is learnt twice stays as it was first learnt.
//!
//! Costs: 64 bytes a row and 9.3 bytes of index, resident as used. Times are the caller's milliseconds, wrapping after 49
//! days; an entry that seems to come from the future is young.

use crate::store::{Record, Store, same};
use crate::{Full, InsertError};
use packet::{Bits, FlowKey};
use std::ops::Range;

/// Largest index in a [`Decision`]: 30 bits, beside two bits that say which kind.
pub const DECISION_MAX: u32 = (1 << 30) - 1;

/// Counters hold 48 bits: at 100 Gb/s the bytes of one flow overflow after six hours, which costs one delta.
pub const COUNTER_MAX: u64 = (1 << 48) - 1;

/// Time differences from here on are negative ones: an entry was touched after `now` was read.
const FUTURE: u32 = 1 << 31;

/// What was decided for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// State: this target, whatever becomes of the set it was picked from.
    Pinned(u32),
    /// Follows the buckets of this group.
    Group(u32),
    /// A slot of the side slab, valid while its stamps are.
    Cached(u32),
}

impl Decision {
    /// Kind in the upper two bits (0 is left for rows without a flow), index below. `None` if it does not fit.
    fn pack(self) -> Option<u32> {
        let (kind, index) = match self {
            Decision::Pinned(target) => (1, target),
            Decision::Group(group) => (2, group),
            Decision::Cached(slot) => (3, slot),
        };
        (index <= DECISION_MAX).then_some(kind << 30 | index)
    }

    #[inline(always)]
    fn unpack(packed: u32) -> Decision {
        let index = packed & DECISION_MAX;
        match packed >> 30 {
            1 => Decision::Pinned(index),
            2 => Decision::Group(index),
            _ => Decision::Cached(index),
        }
    }
}

/// Why a delta was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeltaReason {
    /// No frame came for the timeout.
    Aged,
    /// It made room for another flow.
    Evicted,
    /// Somebody removed it: a rule change, a command, the end.
    Removed,
    /// A counter was full; the flow lives on.
    Overflow,
    /// The measurement interval ended; the flow lives on.
    Interval,
}

/// What a flow counted since the last delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "frames were counted in it"]
pub struct FlowDelta {
    /// Whose.
    pub key: FlowKey,
    /// What was decided for it.
    pub decision: Decision,
    /// Packets counted.
    pub packets: u64,
    /// Bytes counted.
    pub bytes: u64,
    /// When it was learnt, or when the last delta was made.
    pub first: u32,
    /// When the last packet was counted.
    pub last: u32,
    /// Why now.
    pub reason: DeltaReason,
}

/// A row of the flow table: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Flow {
    key: FlowKey,
    decision: u32,
    first: u32,
    last: u32,
    packets_low: u32,
    bytes_low: u32,
    packets_high: u16,
    bytes_high: u16,
}

const _: () = assert!(size_of::<Flow>() == 64);

impl Flow {
    fn new(key: FlowKey, decision: u32, now: u32) -> Flow {
        Flow { key, decision, first: now, last: now, packets_low: 0, bytes_low: 0, packets_high: 0, bytes_high: 0 }
    }

    /// Whose row it is.
    #[inline]
    #[must_use]
    pub fn key(&self) -> &FlowKey {
        &self.key
    }

    /// What was decided.
    #[inline]
    #[must_use]
    pub fn decision(&self) -> Decision {
        Decision::unpack(self.decision)
    }

    /// Packets since the last delta.
    #[inline]
    #[must_use]
    pub fn packets(&self) -> u64 {
        u64::from(self.packets_high) << 32 | u64::from(self.packets_low)
    }

    /// Bytes since the last delta.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.bytes_high) << 32 | u64::from(self.bytes_low)
    }

    /// When it was learnt, or when the last delta was made.
    #[inline]
    #[must_use]
    pub fn first(&self) -> u32 {
        self.first
    }

    /// When the last packet was counted.
    #[inline]
    #[must_use]
    pub fn last(&self) -> u32 {
        self.last
    }

    /// Milliseconds since the last packet; 0 if that lies ahead.
    #[inline]
    #[must_use]
    pub fn idle(&self, now: u32) -> u32 {
        let idle = now.wrapping_sub(self.last);
        if idle < FUTURE { idle } else { 0 }
    }

    #[inline(always)]
    fn is_live(&self) -> bool {
        self.decision != 0
    }

    #[inline(always)]
    fn set_counters(&mut self, packets: u64, bytes: u64) {
        (self.packets_low, self.packets_high) = (packets as u32, (packets >> 32) as u16);
        (self.bytes_low, self.bytes_high) = (bytes as u32, (bytes >> 32) as u16);
    }

    fn delta(&self, reason: DeltaReason) -> FlowDelta {
        FlowDelta {
            key: self.key,
            decision: self.decision(),
            packets: self.packets(),
            bytes: self.bytes(),
            first: self.first,
            last: self.last,
            reason,
        }
    }

    /// The delta of a flow that lives on: its counters start from zero.
    #[cold]
    fn rebase(&mut self, now: u32, reason: DeltaReason) -> FlowDelta {
        let delta = self.delta(reason);
        self.set_counters(0, 0);
        self.first = now;
        delta
    }
}

impl Record for Flow {
    type Key = FlowKey;

    #[inline(always)]
    fn key(&self) -> &FlowKey {
        &self.key
    }

    #[inline(always)]
    fn has(&self, key: &FlowKey) -> bool {
        same(&self.key.0, &key.0)
    }

    fn vacant(next: u32) -> Flow {
        Flow::new(FlowKey([0; 5]), 0, next)
    }

    fn next_vacant(&self) -> u32 {
        self.first
    }
}

/// The flow table.
#[derive(Debug)]
pub struct FlowTable {
    store: Store<Flow>,
    age_next: u32,
    report_next: u32,
}

impl FlowTable {
    /// An empty table for so many flows (at most 2^30).
    #[must_use]
    pub fn with_capacity(flows: usize) -> FlowTable {
        FlowTable { store: Store::with_capacity(flows), age_next: 0, report_next: 0 }
    }

    /// Flows that fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.store.capacity()
    }

    /// Flows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory asked for; what is resident follows use.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.store.bytes()
    }

    /// Looks up the packets of `mask`. Where the bit of the answer is set, `rows` has the row; other words of `rows` are
    /// unspecified.
    #[inline]
    #[must_use]
    pub fn lookup_batch(&self, keys: &[FlowKey; 64], hashes: &[u64; 64], mask: u64, rows: &mut [u32; 64]) -> u64 {
        for i in Bits(mask) {
            self.store.prefetch(hashes[i]);
        }
        self.store.lookup_batch(keys, hashes, mask, rows)
    }

    /// The row of a key.
    #[inline]
    #[must_use]
    pub fn get(&self, hash: u64, key: &FlowKey) -> Option<u32> {
        self.store.get(hash, key)
    }

    /// A live row.
    #[inline]
    #[must_use]
    pub fn flow(&self, row: u32) -> Option<&Flow> {
        self.store.row(row).filter(|flow| flow.is_live())
    }

    /// All live rows, in order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Flow)> {
        self.store.iter()
    }

    /// Asks for the cache line where the look-up of a hash begins.
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) {
        self.store.prefetch(hash);
    }

    /// Enters a flow that has counted nothing yet. A key that is there keeps its row, decision and counters.
    ///
    /// # Errors
    /// No room, or the decision's index is above [`DECISION_MAX`].
    pub fn learn(&mut self, hash: u64, key: &FlowKey, decision: Decision, now: u32) -> Result<u32, Full> {
        if let Some(row) = self.get(hash, key) {
            return Ok(row);
        }
        let decision = decision.pack().ok_or(Full)?;
        self.store.insert_new(hash, Flow::new(*key, decision, now))
    }

    /// Enters a flow of another table with all that it has counted.
    ///
    /// # Errors
    /// No room. A key that is there keeps its row, and the flow's counters would be lost: an error too.
    pub fn adopt(&mut self, hash: u64, flow: &Flow) -> Result<u32, InsertError> {
        self.store.insert(hash, *flow)
    }

    /// Counts a packet of `bytes` bytes. A counter that would overflow starts anew, and what it had is returned. A packet
    /// of a row that is not live is not counted.
    #[inline]
    #[must_use]
    pub fn count(&mut self, row: u32, bytes: u32, now: u32) -> Option<FlowDelta> {
        let flow = self.live_mut(row)?;
        let mut delta = None;
        if flow.packets() == COUNTER_MAX || flow.bytes() + u64::from(bytes) > COUNTER_MAX {
            delta = Some(flow.rebase(now, DeltaReason::Overflow));
        }
        flow.set_counters(flow.packets() + 1, flow.bytes() + u64::from(bytes));
        flow.last = now;
        delta
    }

    /// Changes the decision of a flow. False if the row is not live or the index is above [`DECISION_MAX`].
    pub fn pin(&mut self, row: u32, decision: Decision) -> bool {
        let (Some(flow), Some(decision)) = (self.live_mut(row), decision.pack()) else { return false };
        flow.decision = decision;
        true
    }

    /// Removes a flow. `hash` is the function whose values it was learnt with; with another the flow stays, and the
    /// answer is `None` as for a row that is not live.
    #[must_use = "frames were counted in it"]
    pub fn remove(&mut self, row: u32, reason: DeltaReason, hash: impl Fn(&FlowKey) -> u64) -> Option<FlowDelta> {
        let flow = self.flow(row)?;
        let (hash, delta) = (hash(&flow.key), flow.delta(reason));
        self.store.remove(hash, row)?;
        Some(delta)
    }

    /// Whom to evict so that a hash can be learnt: the flow idle for longest among those that share its two buckets, or
    /// any flow if there is none. `None` in an empty table.
    #[must_use]
    pub fn victim(&self, hash: u64, now: u32) -> Option<u32> {
        let idlest = self.store.neighbours(hash).max_by_key(|(row, flow)| (flow.idle(now), u32::MAX - row));
        idlest.map(|(row, _)| row).or_else(|| self.store.first_live(0..self.store.used()))
    }

    /// Visits the next `rows` rows, from where the last call stopped but not beyond the last row, and removes the flows
    /// idle for `timeout` or longer (timeouts from 2^31 never end). Stops at a flow whose delta the sink refuses, and
    /// begins with it next time. Returns how many rows were visited. Rows without a flow cost one bit each.
    pub fn age(
        &mut self,
        rows: u32,
        now: u32,
        timeout: u32,
        hash: impl Fn(&FlowKey) -> u64,
        mut sink: impl FnMut(FlowDelta) -> bool,
    ) -> u32 {
        let slice = self.slice(self.age_next, rows);
        self.age_next = slice.end;
        let mut next = slice.start;
        while let Some(row) = self.store.first_live(next..slice.end) {
            let idle = self.flow(row).is_some_and(|flow| flow.idle(now) >= timeout);
            if idle && !self.remove_into(row, DeltaReason::Aged, &hash, &mut sink) {
                self.age_next = row;
                break;
            }
            next = row + 1;
        }
        self.age_next - slice.start
    }

    /// Visits the next `rows` rows as [`FlowTable::age`] does, and reports what their flows counted since their last
    /// delta; they live on. True when the last row was reached: the next call begins with the first.
    pub fn report(&mut self, rows: u32, now: u32, mut sink: impl FnMut(FlowDelta) -> bool) -> bool {
        let slice = self.slice(self.report_next, rows);
        self.report_next = slice.end;
        let mut next = slice.start;
        while let Some(row) = self.store.first_live(next..slice.end) {
            next = row + 1;
            let Some(flow) = self.live_mut(row).filter(|flow| flow.packets() > 0) else { continue };
            if !sink(flow.delta(DeltaReason::Interval)) {
                self.report_next = row;
                break;
            }
            let _accepted = flow.rebase(now, DeltaReason::Interval);
        }
        self.report_next == self.store.used()
    }

    /// The rows to visit: from `next` on, or from the start if that is the end.
    fn slice(&self, next: u32, rows: u32) -> Range<u32> {
        let start = if next < self.store.used() { next } else { 0 };
        start..start.saturating_add(rows).min(self.store.used())
    }

    /// Removes all flows, until the sink refuses a delta; the next call goes on. True when none is left.
    pub fn flush(
        &mut self,
        reason: DeltaReason,
        hash: impl Fn(&FlowKey) -> u64,
        mut sink: impl FnMut(FlowDelta) -> bool,
    ) -> bool {
        let mut next = 0;
        while let Some(row) = self.store.first_live(next..self.store.used()) {
            if !self.remove_into(row, reason, &hash, &mut sink) {
                return false;
            }
            next = row + 1;
        }
        self.is_empty()
    }

    /// Removes a row if the sink takes its delta. A flow that the hash does not lead to stays, and counts as done: the
    /// caller brought another function than it learnt with, and stopping here would stop for ever.
    fn remove_into(
        &mut self,
        row: u32,
        reason: DeltaReason,
        hash: &impl Fn(&FlowKey) -> u64,
        sink: &mut impl FnMut(FlowDelta) -> bool,
    ) -> bool {
        let Some(flow) = self.flow(row) else { return true };
        let (hash, delta) = (hash(&flow.key), flow.delta(reason));
        if !self.store.leads_to(hash, row) {
            return true;
        }
        let accepted = sink(delta);
        if accepted {
            self.store.remove(hash, row);
        }
        accepted
    }

    #[inline(always)]
    fn live_mut(&mut self, row: u32) -> Option<&mut Flow> {
        self.store.row_mut(row).filter(|flow| flow.is_live())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::mix;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn key(number: u64) -> FlowKey {
        FlowKey([0, number, 0, 7, number << 48])
    }

    fn hash(key: &FlowKey) -> u64 {
        key.0.iter().fold(3, |state, &word| mix(state, word))
    }

    fn table_with(flows: u64) -> FlowTable {
        let mut table = FlowTable::with_capacity(flows as usize);
        for n in 0..flows {
            assert_eq!(table.learn(hash(&key(n)), &key(n), Decision::Pinned(n as u32), 0), Ok(n as u32));
        }
        table
    }

    #[test]
    fn decisions_of_thirty_bits_come_back() {
        let mut table = table_with(1);
        for index in [0, 1, DECISION_MAX] {
            for decision in [Decision::Pinned(index), Decision::Group(index), Decision::Cached(index)] {
                assert!(table.pin(0, decision));
                assert_eq!(table.flow(0).unwrap().decision(), decision);
            }
        }
        assert!(!table.pin(0, Decision::Group(DECISION_MAX + 1)));
        assert!(!table.pin(1, Decision::Group(0)));
    }

    #[test]
    fn a_full_table_refuses_until_its_victim_goes() {
        for flows in [1, 8, 1000] {
            let mut table = table_with(flows);
            let (new, now) = (key(flows), 5);
            assert_eq!(table.learn(hash(&new), &new, Decision::Group(1), now), Err(Full));
            assert_eq!(table.learn(hash(&key(0)), &key(0), Decision::Group(1), now), Ok(0), "known flows stay");
            let victim = table.victim(hash(&new), now).unwrap();
            let delta = table.remove(victim, DeltaReason::Evicted, hash).unwrap();
            assert_eq!(delta.decision, Decision::Pinned(victim));
            assert!(table.learn(hash(&new), &new, Decision::Group(1), now).is_ok());
        }
    }

    #[test]
    fn a_victim_is_found_in_crowded_buckets_too() {
        let mut table = FlowTable::with_capacity(1000);
        let taken =
            (0..100).take_while(|&n| table.learn(9 << 32, &key(n), Decision::Group(0), n as u32).is_ok()).count();
        assert!(taken <= 16);
        let victim = table.victim(9 << 32, 100).unwrap();
        assert_eq!(victim, 0, "the idlest");
        assert!(table.remove(victim, DeltaReason::Evicted, |_| 9 << 32).is_some());
        assert!(table.learn(9 << 32, &key(200), Decision::Group(0), 0).is_ok());
    }

    #[test]
    fn counters_overflow_into_a_delta() {
        let mut table = table_with(1);
        table.live_mut(0).unwrap().set_counters(COUNTER_MAX, 10);
        let delta = table.count(0, 60, 9).unwrap();
        assert_eq!((delta.packets, delta.bytes, delta.reason), (COUNTER_MAX, 10, DeltaReason::Overflow));
        assert_eq!((table.flow(0).unwrap().packets(), table.flow(0).unwrap().bytes()), (1, 60));
        table.live_mut(0).unwrap().set_counters(3, COUNTER_MAX - 59);
        assert_eq!(table.count(0, 60, 9).map(|delta| delta.bytes), Some(COUNTER_MAX - 59));
        table.live_mut(0).unwrap().set_counters(3, COUNTER_MAX - 60);
        assert_eq!(table.count(0, 60, 9), None);
        assert_eq!(table.flow(0).unwrap().bytes(), COUNTER_MAX);
    }

    #[test]
    fn time_wraps_and_the_future_is_young() {
        let mut table = table_with(1);
        assert_eq!(table.count(0, 1, u32::MAX - 1), None);
        assert_eq!(table.flow(0).unwrap().idle(3), 5);
        assert_eq!(table.flow(0).unwrap().idle(u32::MAX - 100), 0);
    }

    #[test]
    fn aging_stops_where_the_sink_is_full_and_goes_on_there() {
        let mut table = table_with(100);
        let mut room = 30;
        let mut taken = Vec::new();
        let mut sink = |delta: FlowDelta| {
            room -= 1;
            if room >= 0 {
                taken.push(delta.key);
            }
            room >= 0
        };
        assert_eq!(table.age(20, 10, 10, hash, &mut sink), 20);
        assert_eq!(table.age(20, 10, 10, hash, &mut sink), 10);
        assert_eq!(table.age(20, 10, 10, hash, &mut sink), 0);
        assert_eq!(table.len(), 70);
        assert_eq!(table.age(1000, 10, 10, hash, |_| true), 70);
        assert!(table.is_empty());
        assert_eq!(taken, (0..30).map(key).collect::<Vec<_>>());
    }

    #[test]
    fn another_hash_function_removes_nothing() {
        let mut table = table_with(500);
        let wrong = |key: &FlowKey| !hash(key);
        assert_eq!(table.remove(0, DeltaReason::Removed, wrong), None);
        assert!(!table.flush(DeltaReason::Removed, wrong, |_| true));
        assert_eq!(table.len(), 500);
        assert!(table.flush(DeltaReason::Removed, hash, |_| true));
    }

    #[test]
    fn churn_at_design_load_never_refuses() {
        const FLOWS: u64 = 5_000;
        let mut table = table_with(FLOWS);
        for n in FLOWS..11 * FLOWS {
            let row = table.get(hash(&key(n - FLOWS)), &key(n - FLOWS)).unwrap();
            assert!(table.remove(row, DeltaReason::Removed, hash).is_some());
            assert_eq!(table.learn(hash(&key(n)), &key(n), Decision::Group(0), 0), Ok(row));
        }
        assert_eq!(table.len(), FLOWS as usize);
    }

    #[test]
    fn a_flow_costs_less_than_eighty_bytes() {
        assert!(FlowTable::with_capacity(1_000_000).bytes() < 74_000_000);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Frame { flow: u64, bytes: u32 },
        Remove { flow: u64 },
        Age { rows: u32, timeout: u32, room: u32 },
        Report { rows: u32, room: u32 },
        Flush { room: u32 },
        Crank { flow: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            20 => (0_u64..60, 0_u32..2000).prop_map(|(flow, bytes)| Step::Frame { flow, bytes }),
            2 => (0_u64..60).prop_map(|flow| Step::Remove { flow }),
            2 => (0_u32..80, 0_u32..30, 0_u32..9).prop_map(|(rows, timeout, room)| Step::Age { rows, timeout, room }),
            1 => (0_u32..80, 0_u32..9).prop_map(|(rows, room)| Step::Report { rows, room }),
            1 => (0_u32..9).prop_map(|room| Step::Flush { room }),
            2 => (0_u64..60).prop_map(|flow| Step::Crank { flow }),
        ]
    }

    /// Frames and bytes per flow.
    #[derive(Default)]
    struct Sum(HashMap<FlowKey, (u64, u64)>);

    impl Sum {
        fn add(&mut self, key: FlowKey, packets: u64, bytes: u64) {
            let entry = self.0.entry(key).or_default();
            *entry = (entry.0 + packets, entry.1 + bytes);
        }

        fn take(&mut self, delta: FlowDelta) {
            self.add(delta.key, delta.packets, delta.bytes);
        }
    }

    /// A sink with room for a few deltas.
    fn sink(sum: &mut Sum, mut room: u32) -> impl FnMut(FlowDelta) -> bool {
        move |delta| {
            let accepted = room > 0;
            if accepted {
                room -= 1;
                sum.take(delta);
            }
            accepted
        }
    }

    fn frame(table: &mut FlowTable, key: FlowKey, bytes: u32, now: u32, deltas: &mut Sum) -> bool {
        let learn = |table: &mut FlowTable| table.learn(hash(&key), &key, Decision::Group(0), now);
        let row = learn(table).or_else(|Full| {
            let victim = table.victim(hash(&key), now).ok_or(Full)?;
            deltas.take(table.remove(victim, DeltaReason::Evicted, hash).unwrap());
            learn(table)
        });
        let Ok(row) = row else { return false };
        if let Some(delta) = table.count(row, bytes, now) {
            deltas.take(delta);
        }
        true
    }

    /// Brings a flow's counters near their end, and counts that as frames.
    fn crank(table: &mut FlowTable, key: FlowKey, frames: &mut Sum) {
        let Some(row) = table.get(hash(&key), &key) else { return };
        let flow = table.live_mut(row).unwrap();
        let (packets, bytes) = (COUNTER_MAX - flow.packets(), (COUNTER_MAX - 100).saturating_sub(flow.bytes()));
        flow.set_counters(flow.packets() + packets, flow.bytes() + bytes);
        frames.add(key, packets, bytes);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        #[test]
        fn deltas_and_live_counters_are_the_frames(capacity in 0_usize..50, steps in prop::collection::vec(step(), 1..400)) {
            let mut table = FlowTable::with_capacity(capacity);
            let (mut frames, mut deltas) = (Sum::default(), Sum::default());
            for (now, step) in (u32::MAX - 200..=u32::MAX).chain(0..).zip(steps) {
                match step {
                    Step::Frame { flow, bytes } => {
                        if frame(&mut table, key(flow), bytes, now, &mut deltas) {
                            frames.add(key(flow), 1, u64::from(bytes));
                        } else {
                            prop_assert_eq!(capacity, 0);
                        }
                    }
                    Step::Remove { flow } => {
                        if let Some(row) = table.get(hash(&key(flow)), &key(flow)) {
                            deltas.take(table.remove(row, DeltaReason::Removed, hash).unwrap());
                        }
                    }
                    Step::Age { rows, timeout, room } => {
                        prop_assert!(table.age(rows, now, timeout, hash, sink(&mut deltas, room)) <= rows);
                    }
                    Step::Report { rows, room } => {
                        table.report(rows, now, sink(&mut deltas, room));
                    }
                    Step::Flush { room } => {
                        let empty = table.flush(DeltaReason::Removed, hash, sink(&mut deltas, room));
                        prop_assert_eq!(empty, table.is_empty());
                    }
                    Step::Crank { flow } => crank(&mut table, key(flow), &mut frames),
                }
                prop_assert!(table.len() <= capacity);
                prop_assert_eq!(table.iter().count(), table.len());
            }
            for (_, flow) in table.iter() {
                deltas.add(*flow.key(), flow.packets(), flow.bytes());
            }
            deltas.0.retain(|_, sum| *sum != (0, 0));
            prop_assert_eq!(deltas.0, frames.0);
        }
    }
}
