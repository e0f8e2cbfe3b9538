//! Buckets that are told to move, and why.

use super::app::BondApp;
use super::assignment::{Move, When};
use super::links::Reason;
use crate::app::Action;
use engine::change::Change;
use engine::program::GroupId;
use packet::FlowKey;
use std::collections::{BTreeMap, BTreeSet};
use table::NO_TARGET;

/// Moves that `show bond` remembers.
const MOVES_REMEMBERED: usize = 32;

/// Buckets that were told to move.
#[derive(Clone, Debug)]
pub(super) struct Moved {
    pub at_ns: u64,
    pub buckets: Vec<u32>,
    /// The pinned flow, if it is that and no bucket.
    pub flow: Option<FlowKey>,
    pub to: u16,
    pub why: String,
}

impl BondApp {
    /// A member may be used, or no longer and why.
    pub(super) fn set_up(&mut self, now_ns: u64, id: u16, against: Option<Reason>, actions: &mut Vec<Action>) {
        if self.is_single() {
            return;
        }
        let assignment = &mut self.state.assignment;
        let (moves, why) = match against {
            None => (assignment.set_up(id, true), "a member is there"),
            // The link works: no bucket has to leave it in a hurry.
            Some(Reason::Operator) => (assignment.leave(id), super::show::reason(Reason::Operator)),
            Some(reason) => (assignment.set_up(id, false), super::show::reason(reason)),
        };
        self.order(now_ns, &moves, why, actions);
        match against {
            None => {}
            Some(Reason::Operator) => self.settle_pins(now_ns, why, actions),
            Some(_) => self.lose(id, actions),
        }
        self.start_or_stop_sending(actions);
    }

    /// A member that was left on purpose is of no use any more: what would have left it when idle leaves it now.
    pub(super) fn hasten(&mut self, now_ns: u64, id: u16, why: &str, actions: &mut Vec<Action>) {
        if self.state.disabled.contains(&id) && !self.is_single() {
            let moves = self.state.assignment.set_up(id, false);
            self.order(now_ns, &moves, why, actions);
            self.hasten_pins(id, actions);
        }
    }

    /// Everybody's state anew: the active member alone, or all that are enabled.
    pub(super) fn reassign(&mut self, now_ns: u64, why: &str, actions: &mut Vec<Action>) {
        let moves = if self.is_single() {
            self.state.assignment.set_only(self.state.links.active())
        } else {
            let enabled: BTreeSet<u16> = self.state.links.enabled().collect();
            let ids: Vec<u16> = self.state.ids.values().copied().collect();
            ids.into_iter().flat_map(|id| self.state.assignment.set_up(id, enabled.contains(&id))).collect()
        };
        self.order(now_ns, &moves, why, actions);
        self.unpin_all(why, actions);
        self.start_or_stop_sending(actions);
    }

    /// Orders moves of buckets, each later one in place of an earlier one of the same bucket. In the dark they are only
    /// noted.
    pub(super) fn order(&mut self, now_ns: u64, moves: &[Move], why: &str, actions: &mut Vec<Action>) {
        let moves = joined(moves);
        self.leave_alone(moves.iter().map(|one| one.bucket), actions);
        for when in [When::Now, When::Idle] {
            let list = moves.iter().filter(|one| one.when == when);
            let list: Vec<(u32, u16)> = list.map(|one| (one.bucket, self.target(one.to))).collect();
            if !list.is_empty() && self.state.sending {
                actions.push(self.move_buckets(list, when));
            }
        }
        self.state.moves_total += moves.len() as u64;
        let targets: BTreeSet<u16> = moves.iter().map(|one| one.to).collect();
        for to in targets {
            let buckets: Vec<u32> = moves.iter().filter(|one| one.to == to).map(|one| one.bucket).collect();
            self.remember(Moved { at_ns: now_ns, buckets, flow: None, to, why: why.to_string() });
        }
        self.follow_buckets(actions);
    }

    pub(super) fn remember(&mut self, moved: Moved) {
        if self.state.moves.len() == MOVES_REMEMBERED {
            self.state.moves.pop_front();
        }
        self.state.moves.push_back(moved);
    }

    pub(super) fn move_buckets(&self, list: Vec<(u32, u16)>, when: When) -> Action {
        self.move_of(self.numbers.group, list, when)
    }

    /// A move of a group's buckets.
    pub(super) fn move_of(&self, group: GroupId, list: Vec<(u32, u16)>, when: When) -> Action {
        let (idle_gap_ns, wait_max_ns) = match when {
            When::Now => (0, 0),
            When::Idle => (self.bond.idle_gap_ns, self.bond.idle_gap_max_ns),
        };
        Action::Change(Change::MoveBuckets { group, moves: list.into(), idle_gap_ns, wait_max_ns })
    }

    /// While no member may be used nothing is sent: a link may well work though LACP says no. With the first one that may
    /// be, every bucket is where it should.
    pub(super) fn start_or_stop_sending(&mut self, actions: &mut Vec<Action>) {
        let sending = self.state.assignment.has_living();
        if std::mem::replace(&mut self.state.sending, sending) == sending {
            return;
        }
        if sending {
            let targets = (0..).zip(self.state.assignment.slots());
            let list = targets.map(|(bucket, &id)| (bucket, self.target(id))).collect();
            actions.push(self.move_buckets(list, When::Now));
            self.follow_buckets(actions);
        } else {
            self.unpin_all("no member is left", actions);
            self.stop_sending(actions);
        }
    }

    /// Takes every bucket's target away.
    pub(super) fn stop_sending(&self, actions: &mut Vec<Action>) {
        let list = (0..self.bond.size()).map(|bucket| (bucket, NO_TARGET)).collect();
        actions.push(self.move_buckets(list, When::Now));
    }
}

/// One move for each bucket: the last, but at once if any was.
fn joined(moves: &[Move]) -> Vec<Move> {
    let mut joined = BTreeMap::<u32, Move>::new();
    for &one in moves {
        let earlier = joined.insert(one.bucket, one);
        if earlier.is_some_and(|earlier| earlier.when == When::Now) {
            joined.insert(one.bucket, Move { when: When::Now, ..one });
        }
    }
    joined.into_values().collect()
}
