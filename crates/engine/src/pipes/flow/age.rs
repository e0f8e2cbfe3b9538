//! Flows leave the table slice by slice: idle flows, removed flows, and all flows when the worker stops. A
//! flow stays until there is room for its delta.

use super::Flows;
use super::ages::{Ages, shortest_ms};
use super::decided::Decided;
use super::followed::Followed;
use super::nat::Bindings;
use super::observations::{Observations, known};
use super::pairs::Pairs;
use super::table::{belonging_of, depart};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use weir_packet::FlowKey;
use weir_program::snapshot::FlowAccount;
use weir_table::{
    Belonging, Decision, DeltaReason, Flow, FlowDelta, FlowState, FlowTable, SweepVerdict, Visitor,
};

/// The number of rows visited for a new flow while a full table holds flows that are already removed.
pub(super) const RECLAIM_ROWS: u32 = 64;

/// Numbers of a predecessor whose flows are counted in the census in one go: some 20 microseconds.
const COUNTED_AT_ONCE: usize = 4096;

impl Flows {
    /// Removes idle flows, and flows that are already removed, in the next `rows` rows of the flow table.
    /// Flows with their own entry start over if `stays` holds for their row; the rows of the others are
    /// returned. `ages` are the current ones. A connection that its app resets stays until the app has been
    /// notified.
    pub fn age(&mut self, (rows, now_ms): (u32, u32), ages: &Ages, stays: impl Fn(u32) -> bool) -> Vec<u32> {
        self.decided.count_some(COUNTED_AT_ONCE);
        self.decided.census().sources().into_iter().for_each(|sources| sources.clear_some(now_ms));
        self.sweep_next_rows(rows);
        let none_ages = self.timeouts_ms == [0; FlowState::ALL.len()] && self.followed.is_none();
        if none_ages && self.decided.removed() == 0 {
            return Vec::new();
        }
        let usual = Ages::all(self.timeouts_ms);
        // A flow expires when its timeout is exceeded, not when it is reached.
        let old = |ages: &Ages, flow: &Flow, other: Option<&Flow>| match ages.of(flow, other) {
            0 => false,
            timeout_ms => idle_of(flow, other, now_ms) > timeout_ms,
        };
        let (segments, hash) = (self.segments.take(), self.hash);
        let announced = RefCell::new(Vec::new());
        let is_announced = |one: (u32, &Flow), other: Option<(u32, &Flow)>| {
            let Some(segments) = &segments else { return false };
            let has = |(row, flow): &(u32, &Flow)| segments.has(*row, hash.hash(&flow.key().0));
            let found = [Some(one), other].into_iter().flatten().find(has);
            announced.borrow_mut().extend(found.map(|(row, _)| row));
            found.is_some()
        };
        let (expired, restarted) = self.visit((rows, now_ms), |(row, flow), beside, own| {
            let other = beside.map(|(_, other)| other);
            if !old(ages, flow, other) {
                return SweepVerdict::Stays;
            }
            match own.get(flow.key()) {
                None if is_established(flow, other)
                    && old(&usual, flow, other)
                    && is_announced((row, flow), beside) =>
                {
                    SweepVerdict::Stays
                }
                Some(_) if !old(&usual, flow, other) => SweepVerdict::Stays,
                Some(&row) if stays(row) => SweepVerdict::Restarts(DeltaReason::Aged),
                Some(_) | None => SweepVerdict::Goes(DeltaReason::Aged),
            }
        });
        self.segments = segments;
        announced.into_inner().into_iter().for_each(|row| self.announce(row, now_ms));
        if self.values.is_some() {
            for key in &restarted {
                let at = self.table.get(self.hash(key), key);
                let row = self.own.get(key).copied();
                at.zip(row).into_iter().for_each(|(at, row)| self.keep_bare(at, row));
            }
        }
        let gone = expired.into_iter().filter_map(|key| self.own.remove(&key)).collect::<Vec<u32>>();
        gone.iter().for_each(|&row| self.decided.remove(row));
        gone
    }

    /// Makes the flows in the next `rows` rows leave, for this reason. Returns true once none is left.
    pub fn end(&mut self, rows: u32, now_ms: u32, reason: DeltaReason) -> bool {
        self.visit((rows, now_ms), |_, _, _| SweepVerdict::Goes(reason));
        self.table.is_empty()
    }

    /// Makes flows that are already removed leave, in the next `rows` rows.
    pub fn leave_removed(&mut self, rows: u32) {
        self.visit((rows, 0), |_, _, _| SweepVerdict::Stays);
    }

    /// Searches a full table for flows that are already removed, and makes them leave. Returns true if the
    /// table then has room for `wanted` flows.
    #[cold]
    pub(super) fn reclaim(&mut self, wanted: usize) -> bool {
        let is_full = |flows: &Flows| flows.table.len() + wanted > flows.table.capacity();
        // A slice ends at the last row, so a small table may need another.
        for _ in 0..2 {
            if is_full(self) && self.decided.removed() != 0 {
                self.leave_removed(RECLAIM_ROWS);
            }
        }
        !is_full(self)
    }

    /// Returns the ages at which flows without an entry of their own currently expire.
    #[must_use]
    pub fn present_ages(&self) -> Ages {
        let capacity = self.table.capacity() as u64;
        let room = if self.by_state { capacity.saturating_sub(self.live() as u64) } else { capacity };
        Ages::present(self.timeouts_ms, (room, capacity))
    }

    /// Returns the shortest ages at which flows may expire, where they may expire at all.
    pub fn least_timeouts_ms(&self) -> impl Iterator<Item = u32> {
        shortest_ms(self.timeouts_ms, self.by_state)
    }

    /// Returns the ages at which flows expire, in milliseconds, by state; 0 if they stay.
    pub fn timeouts_ms(&self) -> [u32; FlowState::ALL.len()] {
        self.timeouts_ms
    }

    /// Returns the age at which a flow expires in its current state, in milliseconds; 0 if it stays. A flow
    /// that is not in the table is treated like one that has had no packet.
    pub fn timeout_ms(&self, key: &FlowKey) -> u32 {
        let flow = self.table.get(self.hash(key), key).and_then(|at| self.table.flow(at));
        self.timeouts_ms[flow.map_or(FlowState::Single, Flow::state) as usize]
    }

    /// Returns the number of milliseconds until the next flow expires, if no packet hits it.
    pub fn rest_ms(&self, now_ms: u32) -> Option<u32> {
        let (usual, present) = (Ages::all(self.timeouts_ms), self.present_ages());
        let rest = |(row, flow): (u32, &Flow)| {
            let (flow, other) = (&self.present(row, flow), self.present_other(row));
            let (is_own, other) = (self.own.contains_key(flow.key()), other.as_ref());
            let timeout = if is_own { usual } else { present }.of(flow, other);
            (timeout != 0).then(|| timeout.saturating_add(1).saturating_sub(idle_of(flow, other, now_ms)))
        };
        self.table.iter().filter_map(rest).min()
    }

    /// Visits rows: removed flows leave, and `judge`, which gets the rows of flows with an entry of their
    /// own, decides about all other flows. Returns the flows with an entry of their own that have expired,
    /// and those that start over.
    fn visit(
        &mut self,
        slice: (u32, u32),
        judge: impl Fn((u32, &Flow), Option<(u32, &Flow)>, &HashMap<FlowKey, u32>) -> SweepVerdict,
    ) -> (Vec<FlowKey>, Vec<FlowKey>) {
        let Flows { table, hash, decided, own, deltas, room, of, account, .. } = self;
        let Flows { nat, pairs, observed, followed, .. } = self;
        let mut leaving = FlowVisit {
            decided,
            own,
            deltas,
            room: *room,
            of: *of,
            account,
            judge,
            observed,
            followed: followed.as_deref_mut(),
            links: AgingUnits { nat: nat.as_deref_mut(), pairs: pairs.as_deref_mut() },
            others: Vec::new(),
            aged: Vec::new(),
            restarted: Vec::new(),
        };
        table.sweep(slice, |key| hash.hash(&key.0), &mut leaving);
        let FlowVisit { aged, restarted, others, .. } = leaving;
        for row in others {
            if self.table.flow(row).is_some_and(|flow| self.is_alive(flow)) {
                self.clear(row, DeltaReason::Aged);
            }
        }
        (aged, restarted)
    }

    /// Whether the other direction, with which the flow of a row ages, is live.
    pub(super) fn is_paired(&self, row: u32) -> bool {
        self.other_direction(row).is_some()
    }

    /// Returns the flow of the other direction, with which a flow ages as a unit.
    pub(super) fn other_direction(&self, row: u32) -> Option<&Flow> {
        live_one(&self.decided, self.other_row(row)?, &self.table)
    }

    /// Returns the row of the other direction, live or not.
    pub(super) fn other_row(&self, row: u32) -> Option<u32> {
        let nat = self.nat.as_deref().and_then(|nat| nat.other(row));
        nat.or_else(|| self.pairs.as_deref().and_then(|pairs| pairs.other(row)))
    }

    /// Called when a packet of one direction has reset the connection.
    #[cold]
    pub(super) fn reset_other(&mut self, row: u32) {
        let other = self.other_direction(row).filter(|other| other.heard() > 0);
        // A SYN was answered with a reset; if the SYN was retransmitted earlier, the flow is counted already.
        let opens = other.filter(|other| other.state() == FlowState::TcpSyn && other.heard() == 1);
        let is_first = self.table.flow(row).is_some_and(|flow| flow.heard() == 1);
        if let Some(Decision::Pinned(number)) = opens.filter(|_| is_first).map(Flow::decision) {
            self.decided.unanswered(number);
        }
        let has_packets = other.is_some();
        if let Some(other) = self.other_row(row).filter(|_| has_packets) {
            self.table.reset(other);
        }
    }
}

/// Returns the flow of a row, if it is live.
fn live_one<'a>(decided: &Decided, row: u32, table: &'a FlowTable) -> Option<&'a Flow> {
    table.flow(row).filter(|flow| decided.is_alive(flow))
}

/// Which flows age as a unit: flows that share a place in a NAT pool or form a pair.
struct AgingUnits<'a> {
    nat: Option<&'a mut Bindings>,
    pairs: Option<&'a mut Pairs>,
}

impl AgingUnits<'_> {
    fn other(&self, row: u32) -> Option<u32> {
        let nat = self.nat.as_ref().and_then(|nat| nat.other(row));
        nat.or_else(|| self.pairs.as_ref().and_then(|pairs| pairs.other(row)))
    }

    fn leave(&mut self, row: u32) {
        if let Some(nat) = &mut self.nat {
            nat.leave(row);
        }
        if let Some(pairs) = &mut self.pairs {
            pairs.part(row);
        }
    }
}

/// Whether a connection is established, as far as is known.
fn is_established(flow: &Flow, other: Option<&Flow>) -> bool {
    flow.state().together(other.map(Flow::state)) == FlowState::TcpEstablished
}

/// Returns how long both directions have been idle, in milliseconds.
fn idle_of(flow: &Flow, other: Option<&Flow>, now_ms: u32) -> u32 {
    let idle = flow.idle(now_ms);
    other.map_or(idle, |other| idle.min(other.idle(now_ms)))
}

/// A visit to flows, some of which leave.
struct FlowVisit<'a, Judge> {
    decided: &'a mut Decided,
    own: &'a HashMap<FlowKey, u32>,
    deltas: &'a mut VecDeque<FlowDelta>,
    room: usize,
    of: Belonging,
    account: &'a mut FlowAccount,
    judge: Judge,
    observed: &'a Option<Box<Observations>>,
    followed: Option<&'a mut Followed>,
    links: AgingUnits<'a>,
    /// Rows of flows that leave together with the flow of the other direction.
    others: Vec<u32>,
    /// Keys of expired flows with an entry of their own.
    aged: Vec<FlowKey>,
    /// Keys of flows that start over.
    restarted: Vec<FlowKey>,
}

impl<Judge> Visitor for FlowVisit<'_, Judge>
where
    Judge: Fn((u32, &Flow), Option<(u32, &Flow)>, &HashMap<FlowKey, u32>) -> SweepVerdict,
{
    fn judge(&self, row: u32, flow: &Flow, table: &FlowTable) -> SweepVerdict {
        match self.decided.is_alive(flow) {
            false => SweepVerdict::Goes(DeltaReason::Removed),
            true => {
                let live = |other| live_one(self.decided, other, table).map(|flow| (other, flow));
                (self.judge)((row, flow), self.links.other(row).and_then(live), self.own)
            }
        }
    }

    fn accept(&mut self, row: u32, flow: &Flow, fate: SweepVerdict) -> bool {
        let (SweepVerdict::Goes(reason) | SweepVerdict::Restarts(reason)) = fate else { return false };
        if fate == SweepVerdict::Restarts(reason) && flow.packets() == 0 {
            self.restarted.push(*flow.key());
            return true;
        }
        // Flows that age together leave together.
        let other = self.links.other(row).filter(|_| reason == DeltaReason::Aged);
        if self.deltas.len() + self.others.len() + usize::from(other.is_some()) >= self.room {
            return false;
        }
        let of = belonging_of(self.decided, flow, self.of);
        let delta = flow.delta(of, reason).observing(known(self.observed, row, flow).observed);
        self.account.give(&delta);
        self.deltas.push_back(delta);
        if fate == SweepVerdict::Restarts(reason) {
            self.restarted.push(*flow.key());
        } else {
            self.followed.iter_mut().for_each(|all| all.leave(row, flow.key(), of, reason));
            depart(self.decided, flow);
            self.others.extend(other);
            self.links.leave(row);
            if reason == DeltaReason::Aged && self.own.contains_key(flow.key()) {
                self.aged.push(*flow.key());
            }
        }
        true
    }
}
