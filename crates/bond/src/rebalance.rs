//! Which buckets move because some members carry more load than others.
//!
//! The default [`Rule`] is Open vSwitch's (`bond_rebalance`), number for number. At every interval, the bytes
//! of each bucket since the last time are added to its load; then buckets move from the member with the
//! highest load to the one with the lowest, as long as that helps; then all loads are halved, so that past
//! and present count equally. A run stops when the two loads differ by less than 1/32 or 100 000 bytes.
//! Buckets are chosen in descending order if they fit into half the difference; if none fits, the smallest is
//! chosen. The choice must bring the two loads closer by at least a tenth of that half. A bucket moves at
//! most once per run.
//!
//! Options beyond that: loads relative to capacity, so that members of 1 and 10 Gbit/s fill up at the same
//! time; buckets that move repeatedly within a run, so that eight members are even after one interval instead
//! of three if all load starts on one of them; and a budget of moves. A bucket that alone exceeds a member's
//! fair share is reported as an elephant: no move can help there, only a bucket of its own for its heavy flow
//! (`elephants.rs`), which a later run treats as a separate bucket.
//!
//! Nothing is moved here: a [`Plan`] lists the moves and their reasons, and [`Rebalance::plan`] is a dry run
//! that changes nothing.
//!
//! Costs: a run sorts the buckets; each of its steps visits all members and the buckets of one.

use std::cmp::Reverse;
use std::fmt;

#[cfg(test)]
mod tests;

/// Members are even if their loads differ by less than this fraction of the lower one.
const OVERLOAD_PART: u128 = 32;

/// Members are even if their loads differ by fewer bytes.
pub const OVERLOAD_BYTES: u64 = 100_000;

/// A choice of buckets must bring two members closer by at least this fraction of the load whose move would
/// make them equal.
const GAIN_PART: u128 = 10;

/// Limit on the steps of a run, per member and bucket: no run with real loads comes close, but every run must
/// end.
const STEPS_EACH: usize = 4;

const NS_PER_MS: u64 = 1_000_000;

/// How loads are balanced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Whether loads are relative to the capacity of their member.
    pub by_capacity: bool,
    /// Whether a bucket may move repeatedly within a run. Of such moves, only the first and the last member
    /// matter.
    pub moves_on: bool,
    /// The largest number of buckets that a run may move, if limited.
    pub budget: Option<usize>,
}

/// A member that can take buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// Its number.
    pub member: u16,
    /// Its capacity in any unit, the same for all members; 0 counts as 1.
    pub capacity: u32,
}

/// The input of a run.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Total bytes of each bucket since the beginning.
    pub totals: &'a [u64],
    /// The member of each bucket.
    pub slots: &'a [u16],
    /// The enabled members. Buckets of other members are not moved.
    pub carriers: &'a [Carrier],
}

/// The planned moves and their effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The moves, in the order in which they were found.
    pub moves: Vec<Shift>,
    /// The load of each member before the moves, in the order of [`View::carriers`].
    pub before: Vec<u64>,
    /// The load of each member after the moves.
    pub after: Vec<u64>,
    /// Buckets that are too heavy for any member.
    pub elephants: Vec<Elephant>,
}

/// A planned move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// The bucket.
    pub bucket: u32,
    /// The member that has the bucket.
    pub from: u16,
    /// The member that should get the bucket.
    pub to: u16,
    /// The reason.
    pub reason: Reason,
}

/// Why a bucket moves: the loads when it was chosen, in bytes as weighted by [`Rebalance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Load of the bucket.
    pub load: u64,
    /// Load of the member it leaves.
    pub from: u64,
    /// Load of the member it goes to.
    pub to: u64,
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reason { load, from, to } = self;
        write!(formatter, "{load} bytes from the fullest member, at {from}, to the emptiest, at {to}")
    }
}

/// A bucket that alone exceeds its member's fair share of the total load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elephant {
    /// The bucket.
    pub bucket: u32,
    /// Its load.
    pub load: u64,
    /// The fair share of the bucket's member, by capacity if the rule says so.
    pub fair: u64,
}

/// The load of each bucket, and the time of the next run.
#[derive(Clone, Debug)]
pub struct Rebalance {
    rule: Rule,
    /// In nanoseconds; 0 means never.
    interval_ns: u64,
    /// Time of the last run, or when counting began.
    last_ns: u64,
    seen: Vec<u64>,
    loads: Vec<u64>,
}

impl Rebalance {
    /// Creates a rebalance that counts from `totals` on. An interval of 0 ms means no automatic runs; one
    /// below 1000 ms means 1000 ms.
    #[must_use]
    pub fn new(rule: Rule, interval_ms: u32, now_ns: u64, totals: &[u64]) -> Rebalance {
        let loads = vec![0; totals.len()];
        Rebalance {
            rule,
            interval_ns: interval_ns(interval_ms),
            last_ns: now_ns,
            seen: totals.to_vec(),
            loads,
        }
    }

    /// Changes the rule from the next run on.
    pub fn set_rule(&mut self, rule: Rule) {
        self.rule = rule;
    }

    /// Changes the interval, counted from the last run. If there was no interval, counting starts now, from
    /// `totals`.
    pub fn set_interval(&mut self, interval_ms: u32, now_ns: u64, totals: &[u64]) {
        let was_off = self.interval_ns == 0;
        self.interval_ns = interval_ns(interval_ms);
        if was_off && self.interval_ns > 0 {
            *self = Rebalance::new(self.rule, interval_ms, now_ns, totals);
        }
    }

    /// Returns the milliseconds to the next run, negative if it is overdue; `None` if there will be none.
    #[must_use]
    pub fn remaining_ms(&self, now_ns: u64) -> Option<i64> {
        let next = self.wake_ns()?;
        let ms = (i128::from(next) - i128::from(now_ns)) / i128::from(NS_PER_MS);
        Some(ms as i64)
    }

    /// Returns when to call [`Rebalance::step`] next.
    #[must_use]
    pub fn wake_ns(&self) -> Option<u64> {
        (self.interval_ns > 0).then(|| self.last_ns.saturating_add(self.interval_ns))
    }

    /// Runs if it is time.
    pub fn step(&mut self, now_ns: u64, view: View<'_>) -> Option<Plan> {
        self.wake_ns().filter(|&next| next <= now_ns).map(|_| self.run(now_ns, view))
    }

    /// Runs now; the next run is one interval later.
    pub fn run(&mut self, now_ns: u64, view: View<'_>) -> Plan {
        self.last_ns = now_ns;
        self.loads = self.loads_at(view.totals);
        self.seen = view.totals.to_vec();
        let plan = plan(self.rule, &self.loads, view);
        for load in &mut self.loads {
            *load /= 2;
        }
        plan
    }

    /// Returns the plan of a run at this time.
    #[must_use]
    pub fn plan(&self, view: View<'_>) -> Plan {
        plan(self.rule, &self.loads_at(view.totals), view)
    }

    /// Transfers a fraction (`part` of `whole`) of a bucket's recorded load to another bucket, because its
    /// flow has moved there. Bytes since the last run stay where they were counted.
    pub fn hand_over(&mut self, from: u32, to: u32, (part, whole): (u64, u64)) {
        let Some(&load) = self.loads.get(from as usize) else { return };
        let moved = u128::from(load) * u128::from(part.min(whole)) / u128::from(whole.max(1));
        let moved = u64::try_from(moved).unwrap_or(load);
        if let Some(other) = self.loads.get_mut(to as usize) {
            *other = other.saturating_add(moved);
            self.loads[from as usize] -= moved;
        }
    }

    /// Returns the loads including the bytes since the last run. A total that has decreased starts over, as
    /// does a table whose size has changed.
    fn loads_at(&self, totals: &[u64]) -> Vec<u64> {
        if totals.len() != self.seen.len() {
            return vec![0; totals.len()];
        }
        let since = totals.iter().zip(&self.seen).map(|(total, seen)| total.saturating_sub(*seen));
        self.loads.iter().zip(since).map(|(load, since)| load.saturating_add(since)).collect()
    }
}

/// Converts an interval, with the same limits as OVS.
fn interval_ns(interval_ms: u32) -> u64 {
    match interval_ms {
        0 => 0,
        1..1000 => 1000 * NS_PER_MS,
        _ => u64::from(interval_ms) * NS_PER_MS,
    }
}

fn plan(rule: Rule, loads: &[u64], view: View<'_>) -> Plan {
    let mut run = RebalanceRun::new(rule, loads, view);
    let elephants = run.elephants(loads, view.slots);
    let before = run.loads();
    let steps = (run.lanes.len() + loads.len()) * STEPS_EACH;
    for _ in 0..steps {
        if !run.step() {
            break;
        }
    }
    Plan { before, after: run.loads(), moves: run.moves, elephants }
}

/// A run over members and their buckets.
struct RebalanceRun {
    rule: Rule,
    lanes: Vec<Lane>,
    moves: Vec<Shift>,
}

struct Lane {
    member: u16,
    capacity: u128,
    load: u128,
    /// Load and number of the buckets that can move from here: heaviest first, then by number.
    buckets: Vec<(u64, u32)>,
    /// False once no useful move from here remains.
    open: bool,
}

impl RebalanceRun {
    fn new(rule: Rule, loads: &[u64], view: View<'_>) -> RebalanceRun {
        let capacity =
            |carrier: &Carrier| if rule.by_capacity { u128::from(carrier.capacity.max(1)) } else { 1 };
        let lane = |carrier: &Carrier| {
            let of = |entry: &(u32, (&u64, &u16))| *entry.1.1 == carrier.member && *entry.1.0 > 0;
            let entries = (0..).zip(loads.iter().zip(view.slots)).filter(of);
            let mut buckets: Vec<(u64, u32)> = entries.map(|(bucket, (&load, _))| (load, bucket)).collect();
            buckets.sort_by_key(order);
            let load = buckets.iter().map(|bucket| u128::from(bucket.0)).sum();
            Lane { member: carrier.member, capacity: capacity(carrier), load, buckets, open: true }
        };
        RebalanceRun { rule, lanes: view.carriers.iter().map(lane).collect(), moves: Vec::new() }
    }

    fn loads(&self) -> Vec<u64> {
        self.lanes.iter().map(|lane| u64::try_from(lane.load).unwrap_or(u64::MAX)).collect()
    }

    /// Returns the buckets that exceed their member's fair share, unless everything is small.
    fn elephants(&self, loads: &[u64], slots: &[u16]) -> Vec<Elephant> {
        let load: u128 = self.lanes.iter().map(|lane| lane.load).sum();
        let capacity: u128 = self.lanes.iter().map(|lane| lane.capacity).sum();
        let mut found = Vec::new();
        for (bucket, (&own, &slot)) in
            (0..).zip(loads.iter().zip(slots)).filter(|entry| *entry.1.0 >= OVERLOAD_BYTES)
        {
            if let Some(lane) = self.lanes.iter().find(|lane| lane.member == slot) {
                let fair = u64::try_from(load * lane.capacity / capacity).unwrap_or(u64::MAX);
                if self.lanes.len() > 1 && own > fair {
                    found.push(Elephant { bucket, load: own, fair });
                }
            }
        }
        found
    }

    /// Balances two members. Returns false if nothing is left to do.
    fn step(&mut self) -> bool {
        let left = self.rule.budget.map_or(usize::MAX, |budget| budget.saturating_sub(self.moves.len()));
        let Some((from, to)) = self.extremes().filter(|_| left > 0) else { return false };
        let [full, empty] = [&self.lanes[from], &self.lanes[to]];
        let overload = (full.load * empty.capacity / full.capacity).saturating_sub(empty.load);
        if overload < empty.load / OVERLOAD_PART || overload < u128::from(OVERLOAD_BYTES) {
            return false;
        }
        let chosen = choose(full, empty, left);
        if chosen.is_empty() {
            self.lanes[from].open = false;
        }
        self.shift(from, to, &chosen);
        true
    }

    /// Returns the fullest member (the first among equals) and the emptiest (the last among equals) of those
    /// still considered.
    fn extremes(&self) -> Option<(usize, usize)> {
        let mut open: Vec<usize> = (0..self.lanes.len()).filter(|&at| self.lanes[at].open).collect();
        open.sort_by(|&a, &b| {
            let [first, second] = [&self.lanes[a], &self.lanes[b]];
            (second.load * first.capacity).cmp(&(first.load * second.capacity))
        });
        (open.len() > 1).then(|| (open[0], open[open.len() - 1]))
    }

    fn shift(&mut self, from: usize, to: usize, chosen: &[(u64, u32)]) {
        let [member, target] = [from, to].map(|lane| self.lanes[lane].member);
        let loads = [from, to].map(|lane| u64::try_from(self.lanes[lane].load).unwrap_or(u64::MAX));
        self.lanes[from].buckets.retain(|bucket| !chosen.contains(bucket));
        for &(load, bucket) in chosen {
            self.lanes[from].load -= u128::from(load);
            self.lanes[to].load += u128::from(load);
            self.note(Shift {
                bucket,
                from: member,
                to: target,
                reason: Reason { load, from: loads[0], to: loads[1] },
            });
        }
        if self.rule.moves_on {
            self.lanes[to].buckets.extend(chosen);
            self.lanes[to].buckets.sort_by_key(order);
        }
    }

    /// Records a move; a second move of the same bucket is merged with the first.
    fn note(&mut self, shift: Shift) {
        match self.moves.iter().position(|earlier| earlier.bucket == shift.bucket) {
            Some(at) if self.moves[at].from == shift.to => drop(self.moves.remove(at)),
            Some(at) => self.moves[at] = Shift { from: self.moves[at].from, ..shift },
            None => self.moves.push(shift),
        }
    }
}

fn order(bucket: &(u64, u32)) -> (Reverse<u64>, u32) {
    (Reverse(bucket.0), bucket.1)
}

/// Chooses at most `limit` buckets of `from` that bring it and `to` closer; none if that is impossible.
fn choose(from: &Lane, to: &Lane, limit: usize) -> Vec<(u64, u32)> {
    if from.buckets.len() < 2 {
        return Vec::new();
    }
    // Makes (from - ideal) / from.capacity equal to (to + ideal) / to.capacity.
    let ideal = (from.load * to.capacity - to.load * from.capacity) / (from.capacity + to.capacity);
    let (mut chosen, mut delta) = (Vec::new(), 0);
    for &bucket in &from.buckets {
        if delta + u128::from(bucket.0) <= ideal {
            chosen.push(bucket);
            delta += u128::from(bucket.0);
        }
        if ideal - delta < ideal / GAIN_PART || chosen.len() == limit {
            break;
        }
    }
    if let ([], Some(&smallest)) = (chosen.as_slice(), from.buckets.last()) {
        chosen.push(smallest);
        delta = u128::from(smallest.0);
    }
    // The amount by which the higher of the two levels decreases, with this choice and ideally. Between
    // members of equal capacity, the lower level increases by the same amount. Levels are scaled to `to`: its
    // load at the level of `from`.
    let level = |load: u128| load * to.capacity / from.capacity;
    let high = level(from.load - delta).max(to.load + delta);
    let (gain, best) = (level(from.load).saturating_sub(high), level(from.load) - level(from.load - ideal));
    // If the budget limits the choice, any improvement is enough.
    let enough = if chosen.len() == limit { 0 } else { best / GAIN_PART };
    if gain > 0 && gain >= enough { chosen } else { Vec::new() }
}
