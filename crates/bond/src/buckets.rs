//! The buckets of a bond: the member each is assigned to ([`Assignment`]), the ordered moves with their
//! reasons, and the traffic they have carried.

use super::assignment::{Assignment, Move, When};
use super::config::Bond;
use super::members::Members;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weir_app::Action;
use weir_packet::FlowKey;
use weir_program::GroupId;
use weir_program::change::Change;
use weir_program::snapshot::BucketReport;
use weir_table::NO_TARGET;

/// How many of the last moves `show bond` lists.
const MOVES_REMEMBERED: usize = 32;

/// The buckets of a bond.
pub(super) struct Buckets {
    /// The bond's group.
    pub group: GroupId,
    pub assignment: Assignment,
    /// The counters of the buckets when they were last read.
    pub report: BucketReport,
    /// Whether the buckets have targets, which they do while some member may be used.
    sending: bool,
    /// The last moves, oldest first.
    pub log: VecDeque<Moved>,
    /// Number of moves ordered.
    pub ordered: u64,
    /// How long a bucket that can wait must be idle before it moves, and after how long it moves at the
    /// latest.
    idle_gap_ns: (u64, u64),
}

/// A move that was ordered.
#[derive(Clone, Debug)]
pub(super) struct Moved {
    pub at_ns: u64,
    pub buckets: Vec<u32>,
    /// The pinned flow that moved; `None` if a bucket moved.
    pub flow: Option<FlowKey>,
    pub to: u16,
    pub why: String,
}

impl Buckets {
    /// The buckets of a bond that has no usable member yet.
    pub fn new(bond: &Bond, members: &Members) -> Buckets {
        let weights: Vec<(u16, u32)> =
            members.each().iter().map(|(id, _)| (*id, members.weight(*id))).collect();
        Buckets {
            group: GroupId::default(),
            assignment: Assignment::new(bond.size(), &weights),
            report: no_buckets(bond.size() as usize),
            sending: false,
            log: VecDeque::new(),
            ordered: 0,
            idle_gap_ns: (bond.idle_gap_ns, bond.idle_gap_max_ns),
        }
    }

    /// Sets the group's number and the configured timing of moves.
    pub fn bind(&mut self, bond: &Bond, group: GroupId) {
        self.group = group;
        self.idle_gap_ns = (bond.idle_gap_ns, bond.idle_gap_max_ns);
    }

    /// Whether the buckets have targets.
    pub fn is_sending(&self) -> bool {
        self.sending
    }

    /// Orders moves of buckets. A later move of a bucket replaces an earlier one. While nothing is sent,
    /// moves are only recorded.
    pub fn order(
        &mut self,
        now_ns: u64,
        moves: &[Move],
        why: &str,
        members: &Members,
        actions: &mut Vec<Action>,
    ) {
        for when in [When::Now, When::Idle] {
            let list = moves.iter().filter(|one| one.when == when);
            let list: Vec<(u32, u16)> = list.map(|one| (one.bucket, members.target(one.to))).collect();
            if !list.is_empty() && self.sending {
                actions.push(self.change(list, when));
            }
        }
        self.ordered += moves.len() as u64;
        let targets: BTreeSet<u16> = moves.iter().map(|one| one.to).collect();
        for to in targets {
            let buckets: Vec<u32> = moves.iter().filter(|one| one.to == to).map(|one| one.bucket).collect();
            self.remember(Moved { at_ns: now_ns, buckets, flow: None, to, why: why.to_string() });
        }
    }

    /// Records a move for the operator.
    pub fn remember(&mut self, moved: Moved) {
        if self.log.len() == MOVES_REMEMBERED {
            self.log.pop_front();
        }
        self.log.push_back(moved);
    }

    /// The action that moves buckets of the bond's group.
    pub fn change(&self, list: Vec<(u32, u16)>, when: When) -> Action {
        self.change_of(self.group, list, when)
    }

    /// The action that moves buckets of any group.
    pub fn change_of(&self, group: GroupId, list: Vec<(u32, u16)>, when: When) -> Action {
        let (idle_gap_ns, wait_max_ns) = match when {
            When::Now => (0, 0),
            When::Idle => self.idle_gap_ns,
        };
        Action::Change(Change::MoveBuckets { group, moves: list.into(), idle_gap_ns, wait_max_ns })
    }

    /// Updates whether anything is sent: nothing is while no member may be used, since a link may work
    /// although LACP forbids it. Returns whether that changed.
    pub fn update_sending(&mut self) -> bool {
        let sending = self.assignment.has_living();
        std::mem::replace(&mut self.sending, sending) != sending
    }

    /// Gives every bucket its target.
    pub fn start(&self, members: &Members, actions: &mut Vec<Action>) {
        let targets = (0..).zip(self.assignment.slots());
        let list = targets.map(|(bucket, &id)| (bucket, members.target(id))).collect();
        actions.push(self.change(list, When::Now));
    }

    /// Removes the target of every bucket.
    pub fn stop(&self, size: u32, actions: &mut Vec<Action>) {
        let list = (0..size).map(|bucket| (bucket, NO_TARGET)).collect();
        actions.push(self.change(list, When::Now));
    }
}

/// A report of `size` buckets that have carried nothing.
pub(super) fn no_buckets(size: usize) -> BucketReport {
    BucketReport { packets: vec![0; size], bytes: vec![0; size], ..BucketReport::default() }
}

/// Reduces moves to one per bucket: the last one, which is immediate if any of them was.
pub(super) fn joined(moves: &[Move]) -> Vec<Move> {
    let mut joined = BTreeMap::<u32, Move>::new();
    for &one in moves {
        let earlier = joined.insert(one.bucket, one);
        if earlier.is_some_and(|earlier| earlier.when == When::Now) {
            joined.insert(one.bucket, Move { when: When::Now, ..one });
        }
    }
    joined.into_values().collect()
}
