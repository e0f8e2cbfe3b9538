//! Buckets assigned by the caller, where a move can wait until the bucket is unused.
//!
//! Flows share buckets, so moving a bucket while packets of a flow are in flight can reorder them. A move
//! therefore waits until the bucket has been idle for a while, or until the move has waited long enough. The
//! first access to the bucket carries out a move that is due. Only times decide which moves are due, so the
//! result does not depend on the order of accesses.
//!
//! Costs: 34 bytes per bucket; a packet loads and writes one row of 32 bytes. Only [`GivenBuckets::give`]
//! allocates, to record pending moves.

use crate::bucket::{Buckets, NO_TARGET};
use std::ops::Range;

/// Buckets with targets assigned by the caller, and their pending moves.
#[derive(Clone, Debug)]
pub struct GivenBuckets {
    buckets: Buckets,
    /// How many buckets each target has.
    shares: Vec<u32>,
    uses: Vec<Use>,
    /// Pending moves; `Use::waits` points here.
    moves: Vec<Move>,
    /// Where [`GivenBuckets::settle_some`] continues.
    next: usize,
    moved: u64,
    moved_busy: u64,
}

/// Counters of a bucket, and its pending move.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    packets: u64,
    bytes: u64,
    last_ns: u64,
    /// Position of the bucket's pending move, counted from 1; 0 if there is none.
    waits: u32,
}

/// A pending move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Move {
    bucket: u32,
    target: u16,
    gap_ns: u64,
    until_ns: u64,
}

/// How long a move waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The bucket moves once it has been idle this long, in nanoseconds; 0 means at once.
    pub idle_gap_ns: u64,
    /// The bucket moves after this long even if it is in use, in nanoseconds.
    pub wait_max_ns: u64,
}

impl GivenBuckets {
    /// Creates `size` buckets for `targets` targets, none of them assigned.
    #[must_use]
    pub fn new(size: usize, targets: usize) -> GivenBuckets {
        GivenBuckets {
            buckets: Buckets::new(vec![NO_TARGET; size]),
            shares: vec![0; targets],
            uses: vec![Use::default(); size],
            moves: Vec::new(),
            next: 0,
            moved: 0,
            moved_busy: 0,
        }
    }

    /// Returns the buckets as they are now.
    #[inline(always)]
    #[must_use]
    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    /// Returns true if a target has at least one bucket.
    #[must_use]
    pub fn has_any(&self, target: usize) -> bool {
        self.shares.get(target).is_some_and(|&share| share > 0)
    }

    /// Iterates over the packets and bytes seen by the buckets of a range, which must be within the size.
    pub fn counts(&self, range: Range<usize>) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.uses[range].iter().map(|one| (one.packets, one.bytes))
    }

    /// Returns how many moves were carried out.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Returns how many of those moves found the bucket in use.
    #[must_use]
    pub fn moved_busy(&self) -> u64 {
        self.moved_busy
    }

    /// Returns the number of pending moves.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.moves.len()
    }

    /// Assigns a bucket (below the size) to a target, or to [`NO_TARGET`]. This replaces the bucket's pending
    /// move, if any.
    pub fn give(&mut self, bucket: u32, target: u16, patience: Patience, now_ns: u64) {
        self.forget(bucket);
        if self.buckets.slots()[bucket as usize] == target {
            return;
        }
        let until_ns = now_ns.saturating_add(patience.wait_max_ns);
        self.moves.push(Move { bucket, target, gap_ns: patience.idle_gap_ns, until_ns });
        self.uses[bucket as usize].waits = self.moves.len() as u32;
        self.settle(bucket as usize, now_ns);
    }

    /// Counts a packet in a bucket, after carrying out the bucket's move if it is due. Returns the bucket's
    /// target.
    #[inline(always)]
    pub fn meet(&mut self, bucket: usize, bytes: usize, now_ns: u64) -> u16 {
        let Some(one) = self.uses.get(bucket) else { return NO_TARGET };
        if one.waits != 0 {
            self.settle(bucket, now_ns);
        }
        let one = &mut self.uses[bucket];
        one.packets += 1;
        one.bytes += bytes as u64;
        one.last_ns = now_ns;
        self.buckets.slots()[bucket]
    }

    /// Returns the target that [`GivenBuckets::meet`] would return, without changing anything.
    #[must_use]
    pub fn peek(&self, bucket: usize, now_ns: u64) -> u16 {
        let waits = self.uses.get(bucket).map_or(0, |one| one.waits);
        let due =
            self.moves.get((waits as usize).wrapping_sub(1)).filter(|one| self.due(one, now_ns).is_some());
        due.map_or_else(|| self.buckets.slots().get(bucket).copied().unwrap_or(NO_TARGET), |one| one.target)
    }

    /// Looks at the next `limit` pending moves, or at all of them if there are fewer, and carries out those
    /// that are due.
    pub fn settle_some(&mut self, limit: usize, now_ns: u64) {
        if limit >= self.moves.len() {
            // If this started in the middle, a move could be swapped to a place where it is looked at twice,
            // while another move is not looked at.
            self.next = 0;
        }
        for _ in 0..limit.min(self.moves.len()) {
            if self.next >= self.moves.len() {
                self.next = 0;
            }
            let Some(one) = self.moves.get(self.next) else { return };
            // A move that was carried out is replaced by the last one, which has not been looked at.
            self.next += usize::from(!self.settle(one.bucket as usize, now_ns));
        }
    }

    /// Takes over the state of buckets of the same size. `now_is` maps an old target number to the new one,
    /// or to `None` if the target is gone. A bucket whose target is gone moves at once: to the destination of
    /// its pending move, or else to the targets that have buckets, in turn.
    pub fn inherit(&mut self, old: &GivenBuckets, now_is: impl Fn(u16) -> Option<u16>) {
        let mut slots: Vec<u16> =
            old.buckets.slots().iter().map(|slot| now_is(*slot).unwrap_or(NO_TARGET)).collect();
        let mut heirs: Vec<u16> = slots.iter().copied().filter(|slot| *slot != NO_TARGET).collect();
        heirs.sort_unstable();
        heirs.dedup();
        let (mut uses, mut moves, mut moved) = (old.uses.clone(), Vec::new(), old.moved);
        uses.iter_mut().for_each(|one| one.waits = 0);
        let lost = |bucket: usize, slots: &[u16]| {
            old.buckets.slots()[bucket] != slots[bucket] && slots[bucket] == NO_TARGET
        };
        for one in &old.moves {
            let target = if one.target == NO_TARGET { Some(NO_TARGET) } else { now_is(one.target) };
            let (Some(target), bucket) = (target, one.bucket as usize) else { continue };
            if lost(bucket, &slots) {
                slots[bucket] = target;
                moved += 1;
                continue;
            }
            moves.push(Move { target, ..*one });
            uses[bucket].waits = moves.len() as u32;
        }
        let mut turn = heirs.iter().cycle();
        for bucket in 0..slots.len() {
            if lost(bucket, &slots) {
                moved += u64::from(!heirs.is_empty());
                slots[bucket] = turn.next().copied().unwrap_or(NO_TARGET);
            }
        }
        let mut shares = vec![0; self.shares.len()];
        for slot in &slots {
            shares.get_mut(usize::from(*slot)).into_iter().for_each(|share| *share += 1);
        }
        let (buckets, moved_busy) = (Buckets::new(slots), old.moved_busy);
        *self = GivenBuckets { buckets, shares, uses, moves, next: 0, moved, moved_busy };
    }

    /// Resets the counts of the buckets, for a replica whose counts are added to those of others.
    pub fn forget_counts(&mut self) {
        self.uses.iter_mut().for_each(|one| (one.packets, one.bytes) = (0, 0));
        (self.moved, self.moved_busy) = (0, 0);
    }

    /// Adds the counts of a replica of the same size.
    pub fn add_counts(&mut self, other: &GivenBuckets) {
        for (one, other) in self.uses.iter_mut().zip(&other.uses) {
            one.packets += other.packets;
            one.bytes += other.bytes;
        }
        self.moved += other.moved;
        self.moved_busy += other.moved_busy;
    }

    /// Carries out the move of a bucket if it is due. Returns true if it did.
    #[inline(never)]
    fn settle(&mut self, bucket: usize, now_ns: u64) -> bool {
        let waits = self.uses[bucket].waits as usize;
        let Some(&one) = self.moves.get(waits.wrapping_sub(1)) else { return false };
        debug_assert_eq!(one.bucket as usize, bucket, "`waits` leads to the bucket's own move");
        let Some(busy) = self.due(&one, now_ns) else { return false };
        let before = self.buckets.slots()[bucket];
        self.shares.get_mut(usize::from(before)).into_iter().for_each(|share| *share -= 1);
        self.shares.get_mut(usize::from(one.target)).into_iter().for_each(|share| *share += 1);
        self.buckets.set(bucket, one.target);
        self.moved += 1;
        self.moved_busy += u64::from(busy);
        self.forget(one.bucket);
        true
    }

    /// Returns whether the bucket is still in use if its move is due, and `None` if the move is not due.
    fn due(&self, one: &Move, now_ns: u64) -> Option<bool> {
        let used = &self.uses[one.bucket as usize];
        let rests = used.packets == 0 || now_ns.saturating_sub(used.last_ns) >= one.gap_ns;
        if rests || self.buckets.slots()[one.bucket as usize] == NO_TARGET {
            return Some(false);
        }
        (now_ns >= one.until_ns).then_some(true)
    }

    /// Removes a bucket's pending move.
    fn forget(&mut self, bucket: u32) {
        let waits = std::mem::take(&mut self.uses[bucket as usize].waits);
        if waits == 0 {
            return;
        }
        let removed = self.moves.swap_remove(waits as usize - 1);
        debug_assert_eq!(removed.bucket, bucket, "`waits` leads to the bucket's own move");
        if let Some(other) = self.moves.get(waits as usize - 1) {
            self.uses[other.bucket as usize].waits = waits;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const WAIT: Patience = Patience { idle_gap_ns: 10, wait_max_ns: 100 };
    const AT_ONCE: Patience = Patience { idle_gap_ns: 0, wait_max_ns: 0 };

    /// Four buckets of target 0, each met at time 0.
    fn met() -> GivenBuckets {
        let mut given = GivenBuckets::new(4, 3);
        (0..4).for_each(|bucket| given.give(bucket, 0, WAIT, 0));
        (0..4).for_each(|bucket| assert_eq!(given.meet(bucket, 60, 0), 0));
        given
    }

    #[test]
    fn a_bucket_without_a_target_or_never_met_moves_at_once() {
        let mut given = GivenBuckets::new(2, 2);
        given.meet(0, 60, 5);
        given.give(0, 1, WAIT, 6);
        given.give(1, 1, WAIT, 6);
        given.give(1, 0, WAIT, 6);
        assert_eq!((given.buckets().slots(), given.pending()), (&[1, 0][..], 0));
        assert_eq!((given.moved(), given.moved_busy()), (3, 0));
    }

    #[test]
    fn a_used_bucket_moves_when_it_has_rested_or_waited_long_enough() {
        let mut given = met();
        given.give(1, 1, WAIT, 5);
        assert_eq!((given.peek(1, 9), given.meet(1, 60, 9)), (0, 0), "nine is not ten");
        assert_eq!((given.peek(1, 19), given.meet(1, 60, 19)), (1, 1), "it moves before the packet is sent");
        given.meet(2, 60, 20);
        given.give(2, 1, WAIT, 20);
        for now_ns in (20..140).step_by(9) {
            assert_eq!(given.meet(2, 60, now_ns), u16::from(now_ns >= 120), "at {now_ns}");
        }
        assert_eq!((given.moved(), given.moved_busy()), (6, 1));
    }

    #[test]
    fn a_later_move_replaces_one_that_waits() {
        let mut given = met();
        given.give(3, 1, WAIT, 1);
        given.give(3, 2, AT_ONCE, 2);
        assert_eq!((given.buckets().slots()[3], given.pending()), (2, 0));
        given.give(0, 1, WAIT, 2);
        given.give(0, 0, WAIT, 3);
        assert_eq!((given.pending(), given.meet(0, 60, 1_000)), (0, 0), "where it is already: nothing waits");
    }

    #[test]
    fn a_look_at_all_moves_misses_none_wherever_the_last_one_ended() {
        let mut given = met();
        given.give(0, 1, WAIT, 1);
        given.give(1, 1, WAIT, 1);
        given.give(2, 1, Patience { idle_gap_ns: 1_000, wait_max_ns: 1_000 }, 1);
        given.settle_some(2, 2);
        given.settle_some(usize::MAX, 50);
        assert_eq!((given.buckets().slots(), given.pending()), (&[1, 1, 0, 0][..], 1));
    }

    #[test]
    fn an_heir_knows_targets_by_their_new_numbers_and_counts_on() {
        let mut old = met();
        old.give(0, 1, WAIT, 1);
        old.give(1, 2, WAIT, 1);
        let mut heir = GivenBuckets::new(4, 9);
        heir.inherit(&old, |target| [Some(7), Some(8), None].get(usize::from(target)).copied().flatten());
        assert_eq!(
            (heir.buckets().slots(), heir.pending()),
            (&[7; 4][..], 1),
            "target 2 is gone, and so is its move"
        );
        assert_eq!(heir.counts(0..4).map(|counts| counts.0).collect::<Vec<_>>(), [1; 4]);
        assert_eq!(heir.meet(0, 60, 50), 8);
        heir.inherit(&old, |target| (target == 1).then_some(3));
        heir.settle_some(usize::MAX, 2);
        assert_eq!(
            heir.buckets().slots(),
            [3, NO_TARGET, NO_TARGET, NO_TARGET],
            "without a target it moves immediately"
        );
    }

    /// An operation on the buckets.
    #[derive(Clone, Copy, Debug)]
    enum Act {
        Give(u32, u16, u64, u64),
        Meet(usize),
        Settle(usize),
        Wait(u64),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            (0_u32..4, 0_u16..3, 0_u64..6, 0_u64..20)
                .prop_map(|(bucket, to, gap, wait)| Act::Give(bucket, to, gap, wait)),
            (0_usize..4).prop_map(Act::Meet),
            (1_usize..5).prop_map(Act::Settle),
            (0_u64..8).prop_map(Act::Wait),
        ]
    }

    proptest! {
        /// Compares with a map-based twin that reconsiders a bucket's move at every operation on it.
        #[test]
        fn moves_are_those_of_a_naive_twin(acts in prop::collection::vec(act(), 0..80)) {
            let mut given = GivenBuckets::new(4, 3);
            let (mut now, mut slots) = (0, [NO_TARGET; 4]);
            let (mut last, mut waits) = (BTreeMap::<u32, u64>::new(), BTreeMap::<u32, (u16, u64,
                u64)>::new());
            let (mut moved, mut busy) = (0, 0);
            let mut settle = |bucket: u32, now: u64, slots: &mut [u16; 4], last: &BTreeMap<u32, u64>,
                              waits: &mut BTreeMap<u32, (u16, u64, u64)>| {
                let Some(&(to, gap, until)) = waits.get(&bucket) else { return };
                let rests = slots[bucket as usize] == NO_TARGET || last.get(&bucket).is_none_or(|last|
                    now - last >= gap);
                if rests || now >= until {
                    slots[bucket as usize] = to;
                    waits.remove(&bucket);
                    moved += 1;
                    busy += u64::from(!rests);
                }
            };
            for act in acts {
                match act {
                    Act::Give(bucket, to, idle_gap_ns, wait_max_ns) => {
                        given.give(bucket, to, Patience { idle_gap_ns, wait_max_ns }, now);
                        waits.remove(&bucket);
                        if slots[bucket as usize] != to {
                            waits.insert(bucket, (to, idle_gap_ns, now + wait_max_ns));
                            settle(bucket, now, &mut slots, &last, &mut waits);
                        }
                    }
                    Act::Meet(bucket) => {
                        settle(bucket as u32, now, &mut slots, &last, &mut waits);
                        prop_assert_eq!(given.peek(bucket, now), slots[bucket]);
                        prop_assert_eq!(given.meet(bucket, 1, now), slots[bucket]);
                        last.insert(bucket as u32, now);
                    }
                    Act::Settle(limit) if limit >= 4 => {
                        given.settle_some(limit, now);
                        (0..4).for_each(|bucket| settle(bucket, now, &mut slots, &last, &mut waits));
                    }
                    Act::Settle(_) => {}
                    Act::Wait(time) => now += time,
                }
                prop_assert_eq!(given.buckets().slots(), &slots[..]);
                prop_assert_eq!(given.pending(), waits.len());
                for target in 0..3 {
                    prop_assert_eq!(given.has_any(usize::from(target)), slots.contains(&target));
                }
            }
            prop_assert_eq!((given.moved(), given.moved_busy()), (moved, busy));
        }
    }
}
