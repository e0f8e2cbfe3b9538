//! Given buckets: which target owns each, which packets have met it, and which moves are pending.

use super::Interpreter;
use super::trace::{Moving, Pick};
use std::collections::BTreeMap;
use weir_program::snapshot::{BucketReport, Count};
use weir_program::{Fill, GroupId};

/// The target of a bucket that has none.
const NOBODY: u16 = u16::MAX;

/// State of a group's buckets.
#[derive(Clone, Debug, Default)]
pub(super) struct GivenState {
    met: BTreeMap<usize, Met>,
    waiting: BTreeMap<usize, PendingMove>,
    moved: u64,
    moved_busy: u64,
}

/// State of one bucket.
#[derive(Clone, Copy, Debug)]
struct Met {
    count: Count,
    last_ns: u64,
}

/// A pending move.
#[derive(Clone, Copy, Debug)]
struct PendingMove {
    target: u16,
    idle_gap_ns: u64,
    until_ns: u64,
}

impl Interpreter {
    /// Returns the state of a bucket's move.
    pub(super) fn moving(&self, group: GroupId, bucket: usize, now_ns: u64) -> Moving {
        let state = &self.given[group.index()];
        let Some(waiting) = state.waiting.get(&bucket) else { return Moving::No };
        let rests = match state.met.get(&bucket) {
            Some(met) => now_ns.saturating_sub(met.last_ns) >= waiting.idle_gap_ns,
            None => true,
        };
        if rests || self.buckets[group.index()][bucket] == NOBODY {
            Moving::Rested
        } else if now_ns >= waiting.until_ns {
            Moving::Overdue
        } else {
            Moving::Waits
        }
    }

    /// Returns the target for a packet that meets the bucket now.
    pub(super) fn target_of(&self, group: GroupId, bucket: usize, now_ns: u64) -> u16 {
        match self.moving(group, bucket, now_ns) {
            Moving::No | Moving::Waits => self.buckets[group.index()].get(bucket).copied().unwrap_or(NOBODY),
            Moving::Rested | Moving::Overdue => self.given[group.index()].waiting[&bucket].target,
        }
    }

    /// Returns true if a packet that made this pick counts in its bucket.
    pub(super) fn counts(&self, pick: &Pick) -> bool {
        pick.server_id.is_none() && self.program.groups[pick.group.index()].fill == Fill::Given
    }

    /// Counts a packet that met a bucket.
    pub(super) fn meet(&mut self, group: GroupId, bucket: usize, bytes: usize, now_ns: u64) {
        self.settle(group, bucket, now_ns);
        let new = Met { count: Count::default(), last_ns: now_ns };
        let met = self.given[group.index()].met.entry(bucket).or_insert(new);
        met.count.one(bytes);
        met.last_ns = now_ns;
    }

    /// Assigns buckets to targets.
    pub(super) fn move_buckets(
        &mut self,
        group: GroupId,
        moves: &[(u32, u16)],
        idle_gap_ns: u64,
        wait_max_ns: u64,
    ) {
        let now_ns = self.clock_ns;
        for &(bucket, target) in moves {
            let bucket = bucket as usize;
            self.given[group.index()].waiting.remove(&bucket);
            if self.buckets[group.index()][bucket] != target {
                let until_ns = now_ns.saturating_add(wait_max_ns);
                let waiting = PendingMove { target, idle_gap_ns, until_ns };
                self.given[group.index()].waiting.insert(bucket, waiting);
                self.settle(group, bucket, now_ns);
            }
        }
    }

    /// Carries out every move that is due.
    pub(super) fn settle_all(&mut self, now_ns: u64) {
        (0..self.given.len()).for_each(|at| self.settle_group(GroupId(at as u16), now_ns));
    }

    /// Carries out every move of a group that is due.
    pub(super) fn settle_group(&mut self, group: GroupId, now_ns: u64) {
        let waiting: Vec<usize> = self.given[group.index()].waiting.keys().copied().collect();
        waiting.into_iter().for_each(|bucket| self.settle(group, bucket, now_ns));
    }

    /// Carries out the move of a bucket if it is due.
    fn settle(&mut self, group: GroupId, bucket: usize, now_ns: u64) {
        let moving = self.moving(group, bucket, now_ns);
        if matches!(moving, Moving::Rested | Moving::Overdue) {
            let state = &mut self.given[group.index()];
            if let Some(waiting) = state.waiting.remove(&bucket) {
                self.buckets[group.index()][bucket] = waiting.target;
                state.moved += 1;
                state.moved_busy += u64::from(moving == Moving::Overdue);
            }
        }
    }

    /// Returns the counts of every group's buckets.
    pub(super) fn bucket_reports(&self) -> Vec<BucketReport> {
        let report = |at: usize| {
            let (slots, state) = (self.buckets[at].clone(), &self.given[at]);
            if self.program.groups[at].fill != Fill::Given {
                return BucketReport { slots, ..BucketReport::default() };
            }
            let counts = || {
                (0..slots.len()).map(|bucket| state.met.get(&bucket).map(|met| met.count).unwrap_or_default())
            };
            BucketReport {
                packets: counts().map(|count| count.packets).collect(),
                bytes: counts().map(|count| count.bytes).collect(),
                moved: state.moved,
                moved_busy: state.moved_busy,
                pending: state.waiting.len(),
                slots,
            }
        };
        (0..self.buckets.len()).map(report).collect()
    }
}
