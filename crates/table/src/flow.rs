//! The flow table: entries written by packets.
//!
//! A row is one cache line: key, decision, counters, first and last time. A frame's counters are updated
//! right after the look-up that fetched the line, so measuring every flow costs a few arithmetic
//! instructions. The index is that of [`crate::exact`]. The line has no room for the key's hash, so callers
//! that remove rows supply the hash function.
//!
//! Promises: functions that reset or remove a flow's counts ([`FlowTable::remove`], [`FlowTable::sweep`],
//! [`FlowTable::give`]) first pass the flow to a sink, and change nothing if the sink refuses it. The counts
//! that sinks accepted plus the live counters therefore always equal the frames counted. Learning a key again
//! does not change its entry.
//!
//! Costs: 64 bytes per row, resident as used, and 9.3 bytes of index. The caller supplies times in
//! milliseconds, which wrap after 49 days; an entry whose time is in the future counts as young.

mod elsewhere;
mod hand_on;
mod resume;
mod seen;

use crate::delta::{BYTES_MAX, Belonging, DeltaReason, FlowDelta, PACKETS_MAX};
use crate::state::FlowState;
use crate::store::{Record, Store, same};
use crate::{Full, InsertError};
pub use elsewhere::CountedElsewhere;
pub use resume::Resumed;
pub use seen::HEARD_MAX;
use seen::Marks;
use weir_packet::{Bits, FlowKey};

/// The largest index in a [`Decision`]: 30 bits, beside two bits for its kind.
pub const DECISION_MAX: u32 = (1 << 30) - 1;

/// Time differences of this value and above are negative: the entry was used after `now` was read.
const FUTURE: u32 = 1 << 31;

/// The decision taken for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// Keep this target, whatever happens to the set from which it was picked.
    Pinned(u32),
    /// Follow the buckets of this group.
    Group(u32),
    /// A slot of the side slab, valid as long as its stamps are.
    Cached(u32),
}

impl Decision {
    /// Packs the kind into the upper two bits (0 means a row without a flow) and the index below. `None` if
    /// the index does not fit.
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

/// The outcome of counting a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// The packet is counted in the row.
    Yes,
    /// The packet is counted in the row, and one of the row's counters is more than half full: it is time for
    /// a delta.
    High,
    /// The packet is not counted: a counter is full, or the row is not live.
    No,
}

/// A row of the flow table: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Flow {
    key: FlowKey,
    decision: u32,
    first: u32,
    last: u32,
    packets: u32,
    bytes_low: u32,
    bytes_high: u8,
    state: FlowState,
    /// The highest byte of the last TCP sequence number.
    seq: u8,
    marks: Marks,
}

const _: () = assert!(size_of::<Flow>() == 64);

impl Flow {
    fn new(key: FlowKey, decision: u32, now: u32) -> Flow {
        Flow {
            key,
            decision,
            first: now,
            last: now,
            packets: 0,
            bytes_low: 0,
            bytes_high: 0,
            state: FlowState::Single,
            seq: 0,
            marks: Marks::default(),
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
        u64::from(self.packets)
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

    /// Whether the flow has counts, all of them from before `start`.
    #[inline]
    #[must_use]
    pub fn counted_before(&self, start: u32) -> bool {
        self.packets != 0 && self.last.wrapping_sub(start) >= FUTURE
    }

    /// Whether the flow has reported counts and continues.
    #[inline]
    #[must_use]
    pub fn has_given(&self) -> bool {
        self.marks.has(Marks::GAVE)
    }

    /// The flow's state, if it is tracked ([`FlowTable::see`]).
    #[inline]
    #[must_use]
    pub fn state(&self) -> FlowState {
        self.state
    }

    /// Returns a delta without counts, which states that the flow exists.
    pub fn first_delta(&self, of: Belonging) -> FlowDelta {
        FlowDelta::new(self.key, (0, 0), (self.first, self.last), of, DeltaReason::First)
    }

    /// Returns the flow's counts as a delta.
    pub fn delta(&self, of: Belonging, reason: DeltaReason) -> FlowDelta {
        FlowDelta::new(self.key, (self.packets(), self.bytes()), (self.first, self.last), of, reason)
    }

    #[inline(always)]
    fn is_live(&self) -> bool {
        self.decision != 0
    }

    #[inline(always)]
    fn set_bytes(&mut self, bytes: u64) {
        (self.bytes_low, self.bytes_high) = (bytes as u32, (bytes >> 32) as u8);
    }

    #[inline(always)]
    fn is_high(&self) -> bool {
        self.packets >> 31 != 0 || self.bytes_high >> 7 != 0
    }

    /// Restarts as another flow with the same key.
    pub(crate) fn begin(&mut self, now: u32) {
        (self.first, self.last) = (now, now);
        (self.state, self.seq, self.marks) = (FlowState::Single, 0, Marks::default());
    }

    fn restart(&mut self, now: u32) {
        self.packets = 0;
        self.marks.set(Marks::GAVE);
        self.set_bytes(0);
        self.first = now;
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
    pub(crate) store: Store<Flow>,
    pub(crate) sweep_next: u32,
}

impl FlowTable {
    /// Creates an empty table for `flows` flows (at most 2^30).
    #[must_use]
    pub fn with_capacity(flows: usize) -> FlowTable {
        FlowTable { store: Store::with_capacity(flows), sweep_next: 0 }
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
    /// are unspecified. For the packets of `guessed`, `rows` holds what [`FlowTable::guess_batch`] left
    /// there; its content does not change the result.
    #[inline]
    #[must_use]
    pub fn lookup_batch(
        &self,
        keys: &[FlowKey; 64],
        hashes: &[u64; 64],
        (mask, guessed): (u64, u64),
        rows: &mut [u32; 64],
    ) -> u64 {
        if mask & guessed != 0 {
            return self.store.lookup_guessed(keys, hashes, (mask, guessed), rows);
        }
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

    /// Finds the likely rows of the hashes in `mask`, whose buckets have been prefetched, and prefetches
    /// them, for a look-up that will follow. Returns the mask of those that have one.
    #[inline]
    #[must_use]
    pub fn guess_batch(&self, hashes: &[u64; 64], mask: u64, rows: &mut [u32; 64]) -> u64 {
        self.store.guess_batch(hashes, mask, rows)
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

    /// Counts a packet of `bytes` bytes.
    #[inline]
    pub fn count(&mut self, row: u32, bytes: u32, now: u32) -> Counted {
        let Some(flow) = self.live_mut(row) else { return Counted::No };
        let total = flow.bytes() + u64::from(bytes);
        if flow.packets() == PACKETS_MAX || total > BYTES_MAX {
            return Counted::No;
        }
        flow.packets += 1;
        flow.set_bytes(total);
        flow.last = now;
        if flow.is_high() { Counted::High } else { Counted::Yes }
    }

    /// Passes a flow to a sink if its first packet has not been reported. This repeats with each call until
    /// the sink accepts the flow.
    #[inline]
    pub fn report_first(&mut self, row: u32, sink: impl FnOnce(&Flow) -> bool) {
        if let Some(flow) = self.live_mut(row).filter(|flow| !flow.marks.has(Marks::RECORDED))
            && sink(flow)
        {
            flow.marks.set(Marks::RECORDED);
        }
    }

    /// Passes a flow's counts to a sink. If the sink accepts them, the flow's counters restart. Returns
    /// whether it did.
    pub fn give(&mut self, row: u32, now: u32, sink: impl FnOnce(&Flow) -> bool) -> bool {
        let given = self.live_mut(row).filter(|flow| sink(flow));
        given.map(|flow| flow.restart(now)).is_some()
    }

    /// Whether a flow has to report its counts before it counts another packet: because the counts are from
    /// before `start`, or cover `packets` packets. A flow without counts is dated `now`.
    #[inline]
    pub fn is_due(&mut self, row: u32, (start, packets): (u32, u32), now: u32) -> bool {
        let Some(flow) = self.live_mut(row) else { return false };
        if flow.packets == 0 {
            flow.first = now;
        }
        flow.packets >= packets || flow.counted_before(start)
    }

    /// Changes the decision of a flow. Returns false if the row is not live or the index exceeds
    /// [`DECISION_MAX`].
    pub fn pin(&mut self, row: u32, decision: Decision) -> bool {
        let (Some(flow), Some(decision)) = (self.live_mut(row), decision.pack()) else { return false };
        flow.decision = decision;
        true
    }

    /// Removes a flow if the sink accepts it; returns whether the flow was removed. `hash` must be the
    /// function used to learn it; otherwise the flow stays, as for a row that is not live.
    pub fn remove(
        &mut self,
        row: u32,
        hash: impl Fn(&FlowKey) -> u64,
        sink: impl FnOnce(&Flow) -> bool,
    ) -> bool {
        let Some(flow) = self.flow(row) else { return false };
        let hash = hash(&flow.key);
        let goes = self.store.leads_to(hash, row) && sink(flow);
        if goes {
            self.store.remove(hash, row);
        }
        goes
    }

    #[inline(always)]
    pub(crate) fn live_mut(&mut self, row: u32) -> Option<&mut Flow> {
        self.store.row_mut(row).filter(|flow| flow.is_live())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::mix;
    use crate::sweep::{SweepVerdict, Visitor};
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn key(number: u64) -> FlowKey {
        FlowKey([0, number, 0, 7, number << 48])
    }

    fn hash(key: &FlowKey) -> u64 {
        key.0.iter().fold(3, |state, &word| mix(state, word))
    }

    /// A visitor made of a judgement and a sink.
    struct With<J, S>(J, S);

    impl<J: Fn(&Flow) -> SweepVerdict, S: FnMut(&Flow) -> bool> Visitor for With<J, S> {
        fn judge(&self, _row: u32, flow: &Flow, _table: &FlowTable) -> SweepVerdict {
            self.0(flow)
        }

        fn accept(&mut self, _row: u32, flow: &Flow, _fate: SweepVerdict) -> bool {
            self.1(flow)
        }
    }

    fn aged(is: bool) -> SweepVerdict {
        if is { SweepVerdict::Goes(DeltaReason::Aged) } else { SweepVerdict::Stays }
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
            assert!(table.remove(0, hash, |_| true));
            assert!(table.learn(hash(&new), &new, Decision::Group(1), 5).is_ok());
        }
    }

    #[test]
    fn a_counter_that_is_half_full_asks_for_a_delta_and_a_full_one_counts_no_more() {
        let mut table = table_with(1);
        let set = |table: &mut FlowTable, packets: u64, bytes| {
            let flow = table.live_mut(0).unwrap();
            flow.packets = packets as u32;
            flow.set_bytes(bytes);
        };
        set(&mut table, PACKETS_MAX / 2 - 1, 0);
        assert_eq!([0; 2].map(|_| table.count(0, 60, 9)), [Counted::Yes, Counted::High]);
        set(&mut table, PACKETS_MAX - 1, 10);
        assert_eq!([0; 2].map(|_| table.count(0, 60, 9)), [Counted::High, Counted::No]);
        set(&mut table, 0, BYTES_MAX / 2 - 60);
        assert_eq!([0; 2].map(|_| table.count(0, 60, 9)), [Counted::Yes, Counted::High]);
        set(&mut table, 3, BYTES_MAX - 60);
        assert_eq!([0; 2].map(|_| table.count(0, 60, 9)), [Counted::High, Counted::No]);
        assert!(!table.give(0, 10, |_| false));
        assert_eq!((table.flow(0).unwrap().packets(), table.flow(0).unwrap().bytes()), (4, BYTES_MAX));
        assert!(table.give(0, 10, |flow| flow.packets() == 4));
        assert_eq!((table.flow(0).unwrap().packets(), table.flow(0).unwrap().first()), (0, 10));
        assert_eq!(table.count(1, 60, 9), Counted::No);
    }

    #[test]
    fn time_wraps_and_the_future_is_young() {
        let mut table = table_with(1);
        assert_eq!(table.count(0, 1, u32::MAX - 1), Counted::Yes);
        assert_eq!(table.flow(0).unwrap().idle(3), 5);
        assert_eq!(table.flow(0).unwrap().idle(u32::MAX - 100), 0);
    }

    #[test]
    fn a_sweep_stops_where_the_sink_is_full_and_goes_on_there() {
        let mut table = table_with(100);
        let mut room = 30;
        let mut taken = Vec::new();
        let sink = |flow: &Flow| {
            room -= 1;
            if room >= 0 {
                taken.push(*flow.key());
            }
            room >= 0
        };
        let mut old = With(|flow: &Flow| aged(flow.idle(10) >= 10), sink);
        assert_eq!(table.sweep((20, 10), hash, &mut old), 20);
        assert_eq!(table.sweep((20, 10), hash, &mut old), 10);
        assert_eq!(table.sweep((20, 10), hash, &mut old), 0);
        assert_eq!(table.len(), 70);
        assert_eq!(table.sweep((1000, 10), hash, &mut With(|_: &Flow| aged(true), |_: &Flow| true)), 70);
        assert!(table.is_empty());
        assert_eq!(taken, (0..30).map(key).collect::<Vec<_>>());
    }

    #[test]
    fn another_hash_function_removes_nothing() {
        let mut table = table_with(500);
        let wrong = |key: &FlowKey| !hash(key);
        assert!(!table.remove(0, wrong, |_| unreachable!("it would count twice")));
        let mut none = With(|_: &Flow| aged(true), |_: &Flow| unreachable!("it would count twice"));
        assert_eq!(table.sweep((500, 0), wrong, &mut none), 500);
        assert_eq!(table.len(), 500);
        table.sweep((500, 0), hash, &mut With(|_: &Flow| aged(true), |_: &Flow| true));
        assert!(table.is_empty());
    }

    #[test]
    fn churn_at_design_load_never_refuses() {
        const FLOWS: u64 = 5_000;
        let mut table = table_with(FLOWS);
        for n in FLOWS..11 * FLOWS {
            let row = table.get(hash(&key(n - FLOWS)), &key(n - FLOWS)).unwrap();
            assert!(table.remove(row, hash, |_| true));
            assert_eq!(table.learn(hash(&key(n)), &key(n), Decision::Group(0), 0), Ok(row));
        }
        assert_eq!(table.len(), FLOWS as usize);
    }

    #[test]
    fn a_flow_costs_less_than_eighty_bytes() {
        assert!(FlowTable::with_capacity(1_000_000).bytes() < 74_000_000);
    }

    #[derive(Clone, Debug)]
    enum ScanStep {
        Frame { flow: u64, bytes: u32 },
        Remove { flow: u64 },
        Age { rows: u32, timeout: u32, room: u32 },
        Restart { rows: u32, room: u32 },
        Crank { flow: u64 },
    }

    fn step() -> impl Strategy<Value = ScanStep> {
        prop_oneof![
            20 => (0_u64..60, 0_u32..2000).prop_map(|(flow, bytes)| ScanStep::Frame { flow, bytes }),
            2 => (0_u64..60).prop_map(|flow| ScanStep::Remove { flow }),
            2 => (0_u32..80, 0_u32..30, 0_u32..9).prop_map(|(rows, timeout, room)| {
                ScanStep::Age { rows, timeout, room }
            }),
            1 => (0_u32..80, 0_u32..9).prop_map(|(rows, room)| ScanStep::Restart { rows, room }),
            2 => (0_u64..60).prop_map(|flow| ScanStep::Crank { flow }),
        ]
    }

    /// Frames and bytes per flow.
    #[derive(Default)]
    struct FlowTotals(HashMap<FlowKey, (u64, u64)>);

    impl FlowTotals {
        fn add(&mut self, key: FlowKey, packets: u64, bytes: u64) {
            let entry = self.0.entry(key).or_default();
            *entry = (entry.0 + packets, entry.1 + bytes);
        }

        fn take(&mut self, flow: &Flow) -> bool {
            self.add(*flow.key(), flow.packets(), flow.bytes());
            true
        }
    }

    /// A sink with room for a few flows.
    fn sink(sum: &mut FlowTotals, mut room: u32) -> impl FnMut(&Flow) -> bool {
        move |flow| {
            let accepted = room > 0 && sum.take(flow);
            room = room.saturating_sub(1);
            accepted
        }
    }

    fn frame(table: &mut FlowTable, key: FlowKey, bytes: u32, now: u32, deltas: &mut FlowTotals) -> bool {
        let learn = |table: &mut FlowTable| table.learn(hash(&key), &key, Decision::Group(0), now);
        let row = learn(table).or_else(|Full| {
            let first = table.iter().next().map(|(row, _)| row).ok_or(Full)?;
            assert!(table.remove(first, hash, |flow| deltas.take(flow)));
            learn(table)
        });
        let Ok(row) = row else { return false };
        if table.count(row, bytes, now) == Counted::High {
            table.give(row, now, |flow| deltas.take(flow));
        }
        true
    }

    /// Brings a flow's counters close to overflow, and counts that as frames.
    fn crank(table: &mut FlowTable, key: FlowKey, frames: &mut FlowTotals) {
        let Some(row) = table.get(hash(&key), &key) else { return };
        let flow = table.live_mut(row).unwrap();
        let high = (PACKETS_MAX / 2).saturating_sub(flow.packets());
        let bytes = (BYTES_MAX / 2).saturating_sub(flow.bytes());
        flow.packets += high as u32;
        flow.set_bytes(flow.bytes() + bytes);
        frames.add(key, high, bytes);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        #[test]
        fn deltas_and_live_counters_are_the_frames(capacity in 0_usize..50,
            steps in prop::collection::vec(step(), 1..400)) {
            let mut table = FlowTable::with_capacity(capacity);
            let (mut frames, mut deltas) = (FlowTotals::default(), FlowTotals::default());
            for (now, step) in (u32::MAX - 200..=u32::MAX).chain(0..).zip(steps) {
                match step {
                    ScanStep::Frame { flow, bytes } => {
                        if frame(&mut table, key(flow), bytes, now, &mut deltas) {
                            frames.add(key(flow), 1, u64::from(bytes));
                        } else {
                            prop_assert_eq!(capacity, 0);
                        }
                    }
                    ScanStep::Remove { flow } => {
                        if let Some(row) = table.get(hash(&key(flow)), &key(flow)) {
                            prop_assert!(table.remove(row, hash, |flow| deltas.take(flow)));
                        }
                    }
                    ScanStep::Age { rows, timeout, room } => {
                        let old = |flow: &Flow| aged(flow.idle(now) >= timeout);
                        let mut visitor = With(old, sink(&mut deltas, room));
                        prop_assert!(table.sweep((rows, now), hash, &mut visitor) <= rows);
                    }
                    ScanStep::Restart { rows, room } => {
                        let all = |_: &Flow| SweepVerdict::Restarts(DeltaReason::Stopped);
                        table.sweep((rows, now), hash, &mut With(all, sink(&mut deltas, room)));
                    }
                    ScanStep::Crank { flow } => crank(&mut table, key(flow), &mut frames),
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
