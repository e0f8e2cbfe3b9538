//! The flow table: entries written by packets.
//!
//! A row is one cache line: key, decision, counters, first and last time. A frame's counters are updated
//! right after the look-up that fetched the line, so measuring every flow costs a few arithmetic
//! instructions. The index is that of [`crate::exact`]. The line has no room for the key's hash, so callers
//! that remove rows supply the hash function.
//!
//! Promises: deltas + live counters = frames counted, always. Only [`FlowTable::remove`], [`FlowTable::age`]
//! and [`FlowTable::flush`] remove an entry; the first returns its [`FlowDelta`], the others pass it to a
//! sink and keep the entry if the sink refuses. Learning a key again does not change its entry.
//!
//! Costs: 64 bytes per row and 9.3 bytes of index, resident as used. The caller supplies times in
//! milliseconds, which wrap after 49 days; an entry whose time is in the future counts as young.

use crate::store::{Record, Store, same};
use crate::{Full, InsertError};
use packet::{Bits, FlowKey};

/// The largest index in a [`Decision`]: 30 bits, beside two bits for its kind.
pub const DECISION_MAX: u32 = (1 << 30) - 1;

/// Counters have 48 bits: at 100 Gb/s the bytes of one flow overflow after six hours, which costs one delta.
pub const COUNTER_MAX: u64 = (1 << 48) - 1;

/// Time differences from here on are negative: the entry was used after `now` was read.
const FUTURE: u32 = 1 << 31;

/// The decision taken for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// State: keep this target, whatever becomes of the set from which it was picked.
    Pinned(u32),
    /// Follow the buckets of this group.
    Group(u32),
    /// A slot of the side slab, valid as long as its stamps are.
    Cached(u32),
}

impl Decision {
    /// Packs the kind into the upper two bits (0 means a row without a flow) and the index below. `None` if
    /// it does not fit.
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

/// Why a delta was produced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeltaReason {
    /// No frame arrived within the timeout.
    Aged,
    /// The flow made room for another one.
    Evicted,
    /// The flow was removed by a rule change, a command or a shutdown.
    Removed,
    /// A counter was about to overflow; the flow lives on.
    Overflow,
}

/// What a flow has counted since its last delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "frames were counted in it"]
pub struct FlowDelta {
    /// Key of the flow.
    pub key: FlowKey,
    /// Decision taken for the flow.
    pub decision: Decision,
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// When the flow was learnt or its last delta was produced, in milliseconds.
    pub first: u32,
    /// When its last packet was counted, in milliseconds.
    pub last: u32,
    /// Why the delta was produced.
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
        Flow {
            key,
            decision,
            first: now,
            last: now,
            packets_low: 0,
            bytes_low: 0,
            packets_high: 0,
            bytes_high: 0,
        }
    }

    /// Returns the key.
    #[inline]
    #[must_use]
    pub fn key(&self) -> &FlowKey {
        &self.key
    }

    /// Returns the decision.
    #[inline]
    #[must_use]
    pub fn decision(&self) -> Decision {
        Decision::unpack(self.decision)
    }

    /// Returns the number of packets since the last delta.
    #[inline]
    #[must_use]
    pub fn packets(&self) -> u64 {
        u64::from(self.packets_high) << 32 | u64::from(self.packets_low)
    }

    /// Returns the number of bytes since the last delta.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.bytes_high) << 32 | u64::from(self.bytes_low)
    }

    /// When the flow was learnt or its last delta was produced, in milliseconds.
    #[inline]
    #[must_use]
    pub fn first(&self) -> u32 {
        self.first
    }

    /// When the last packet was counted, in milliseconds.
    #[inline]
    #[must_use]
    pub fn last(&self) -> u32 {
        self.last
    }

    /// Milliseconds since the last packet; 0 if that is in the future.
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

    /// Takes the delta of a flow one of whose counters is full; its counters restart from zero.
    #[cold]
    fn rebase(&mut self, now: u32) -> FlowDelta {
        let delta = self.delta(DeltaReason::Overflow);
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

/// A table of flows, see the [module](self).
#[derive(Debug)]
pub struct FlowTable {
    store: Store<Flow>,
    age_next: u32,
}

impl FlowTable {
    /// Creates an empty table for `flows` flows (at most 2^30).
    #[must_use]
    pub fn with_capacity(flows: usize) -> FlowTable {
        FlowTable { store: Store::with_capacity(flows), age_next: 0 }
    }

    /// Returns the number of flows that fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.store.capacity()
    }

    /// Returns the number of flows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Returns true if there are no flows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory allocated; how much of it is resident depends on use.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.store.bytes()
    }

    /// Looks up the packets of `mask`. Returns the mask of hits; `rows` holds their rows, its other elements
    /// are unspecified.
    #[inline]
    #[must_use]
    pub fn lookup_batch(
        &self,
        keys: &[FlowKey; 64],
        hashes: &[u64; 64],
        mask: u64,
        rows: &mut [u32; 64],
    ) -> u64 {
        for i in Bits(mask) {
            self.store.prefetch(hashes[i]);
        }
        self.store.lookup_batch(keys, hashes, mask, rows)
    }

    /// Returns the row of a key.
    #[inline]
    #[must_use]
    pub fn get(&self, hash: u64, key: &FlowKey) -> Option<u32> {
        self.store.get(hash, key)
    }

    /// Returns a row if it is live.
    #[inline]
    #[must_use]
    pub fn flow(&self, row: u32) -> Option<&Flow> {
        self.store.row(row).filter(|flow| flow.is_live())
    }

    /// Iterates over live rows in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Flow)> {
        self.store.iter()
    }

    /// Prefetches the cache line where the look-up of a hash begins.
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) {
        self.store.prefetch(hash);
    }

    /// Inserts a flow with zero counters. A key that exists keeps its row, decision and counters.
    ///
    /// # Errors
    /// There is no room, or the decision's index exceeds [`DECISION_MAX`].
    pub fn learn(&mut self, hash: u64, key: &FlowKey, decision: Decision, now: u32) -> Result<u32, Full> {
        if let Some(row) = self.get(hash, key) {
            return Ok(row);
        }
        let decision = decision.pack().ok_or(Full)?;
        self.store.insert_new(hash, Flow::new(*key, decision, now))
    }

    /// Inserts a flow of another table together with its counters.
    ///
    /// # Errors
    /// There is no room, or the key exists: the new flow's counters would be lost.
    pub fn adopt(&mut self, hash: u64, flow: &Flow) -> Result<u32, InsertError> {
        self.store.insert(hash, *flow)
    }

    /// Counts a packet of `bytes` bytes. A counter that would overflow restarts, and the previous counts are
    /// returned. A packet for a row that is not live is not counted.
    #[inline]
    #[must_use]
    pub fn count(&mut self, row: u32, bytes: u32, now: u32) -> Option<FlowDelta> {
        let flow = self.live_mut(row)?;
        let mut delta = None;
        if flow.packets() == COUNTER_MAX || flow.bytes() + u64::from(bytes) > COUNTER_MAX {
            delta = Some(flow.rebase(now));
        }
        flow.set_counters(flow.packets() + 1, flow.bytes() + u64::from(bytes));
        flow.last = now;
        delta
    }

    /// Changes the decision of a flow. Returns false if the row is not live or the index exceeds
    /// [`DECISION_MAX`].
    pub fn pin(&mut self, row: u32, decision: Decision) -> bool {
        let (Some(flow), Some(decision)) = (self.live_mut(row), decision.pack()) else { return false };
        flow.decision = decision;
        true
    }

    /// Removes a flow. `hash` must be the function used to learn it; otherwise the flow stays and the result
    /// is `None`, as for a row that is not live.
    #[must_use = "frames were counted in it"]
    pub fn remove(
        &mut self,
        row: u32,
        reason: DeltaReason,
        hash: impl Fn(&FlowKey) -> u64,
    ) -> Option<FlowDelta> {
        let flow = self.flow(row)?;
        let (hash, delta) = (hash(&flow.key), flow.delta(reason));
        self.store.remove(hash, row)?;
        Some(delta)
    }

    /// Visits the next `rows` rows, starting where the last call stopped and ending at the last row, and
    /// removes the flows that have been idle for `timeout` milliseconds or longer (a timeout of 2^31 or more
    /// never expires). Stops at a flow whose delta the sink refuses, and starts there the next time. Returns
    /// the number of rows visited. A row without a flow costs a look at one bit.
    pub fn age(
        &mut self,
        rows: u32,
        now: u32,
        timeout: u32,
        hash: impl Fn(&FlowKey) -> u64,
        mut sink: impl FnMut(FlowDelta) -> bool,
    ) -> u32 {
        let start = if self.age_next < self.store.used() { self.age_next } else { 0 };
        self.age_next = start.saturating_add(rows).min(self.store.used());
        let mut next = start;
        while let Some(row) = self.store.first_live(next..self.age_next) {
            let idle = self.flow(row).is_some_and(|flow| flow.idle(now) >= timeout);
            if idle && !self.remove_into(row, DeltaReason::Aged, &hash, &mut sink) {
                self.age_next = row;
                break;
            }
            next = row + 1;
        }
        self.age_next - start
    }

    /// Removes all flows until the sink refuses a delta; another call continues. Returns true when no flow is
    /// left.
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

    /// Removes a row if the sink accepts its delta. A flow to which the hash does not lead stays and counts
    /// as done: the caller supplied another function than it learnt the flow with, and stopping here would
    /// stop for ever.
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
    fn a_full_table_refuses_new_flows_and_keeps_known_ones() {
        for flows in [1, 8, 1000] {
            let mut table = table_with(flows);
            let new = key(flows);
            assert_eq!(table.learn(hash(&new), &new, Decision::Group(1), 5), Err(Full));
            assert_eq!(table.learn(hash(&key(0)), &key(0), Decision::Group(1), 5), Ok(0));
            assert!(table.remove(0, DeltaReason::Evicted, hash).is_some());
            assert!(table.learn(hash(&new), &new, Decision::Group(1), 5).is_ok());
        }
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
        Flush { room: u32 },
        Crank { flow: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            20 => (0_u64..60, 0_u32..2000).prop_map(|(flow, bytes)| Step::Frame { flow, bytes }),
            2 => (0_u64..60).prop_map(|flow| Step::Remove { flow }),
            2 => (0_u32..80, 0_u32..30, 0_u32..9).prop_map(|(rows, timeout, room)| Step::Age { rows, timeout,
                room }),
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
            let first = table.iter().next().map(|(row, _)| row).ok_or(Full)?;
            deltas.take(table.remove(first, DeltaReason::Evicted, hash).unwrap());
            learn(table)
        });
        let Ok(row) = row else { return false };
        if let Some(delta) = table.count(row, bytes, now) {
            deltas.take(delta);
        }
        true
    }

    /// Brings a flow's counters close to overflow, and counts that as frames.
    fn crank(table: &mut FlowTable, key: FlowKey, frames: &mut Sum) {
        let Some(row) = table.get(hash(&key), &key) else { return };
        let flow = table.live_mut(row).unwrap();
        let (packets, bytes) =
            (COUNTER_MAX - flow.packets(), (COUNTER_MAX - 100).saturating_sub(flow.bytes()));
        flow.set_counters(flow.packets() + packets, flow.bytes() + bytes);
        frames.add(key, packets, bytes);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        #[test]
        fn deltas_and_live_counters_are_the_frames(capacity in 0_usize..50,
            steps in prop::collection::vec(step(), 1..400)) {
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
