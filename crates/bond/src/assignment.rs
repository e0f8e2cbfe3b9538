//! Which member owns each bucket of a bond, and which buckets an event moves.
//!
//! Moving a bucket may reorder its flows, so a bucket moves only if it must:
//!
//! - A member fails: its buckets move at once, and no others. They are spread by weight over the live
//!   members.
//! - A member returns: the buckets whose home it is move to it, and its share of those whose home is still
//!   down. Nothing moves between two other members. If nothing else happened meanwhile, the table is exactly
//!   what it was before the failure.
//! - A member is added, or its weight changes: buckets move to it or from it, until no member is more than
//!   one bucket from the share of its weight. (Only for that condition, with uneven weights, may a bucket
//!   move between two others.)
//! - A member is removed: its buckets move. Of the buckets whose home it is, but which have a stand-in
//!   because it is down, only as many move as homes need to be within one bucket of the shares. No other
//!   buckets move.
//! - A rebalance or the operator names buckets: these move.
//!
//! For this, every bucket has a *home*: the member that has it while all members are up. Homes are
//! apportioned by largest remainder over all configured members, up or down. They change when members are
//! added or removed, by weight and by rebalance, never by a link. A bucket whose home is down has a
//! *stand-in*.
//!
//! A move away from a working member waits until its bucket is idle ([`When::Idle`]); any other move is
//! immediate. A waiting bucket stays on its old member for a while; if that member fails too, the move is
//! ordered again, as immediate.
//!
//! An active-backup bond has one bucket, and only its active member counts as up here: see
//! [`Assignment::set_only`].
//!
//! Costs: an event visits every bucket a few times and, for each bucket that moves, every member.

use std::collections::BTreeMap;
use weir_table::NO_TARGET;

#[cfg(test)]
mod tests;

/// When a move takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum When {
    /// At once: the bucket's member does not work.
    Now,
    /// When the bucket is idle, or has waited long enough: its member still works.
    Idle,
}

/// A bucket changes its member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    /// The bucket, below the size of the bond.
    pub bucket: u32,
    /// The new member, or [`NO_TARGET`] if the last member was removed.
    pub to: u16,
    /// When to move.
    pub when: When,
}

/// Why a requested move is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveRefusal {
    /// The bond has fewer buckets.
    #[error("there is no bucket {0}")]
    NoBucket(u32),
    /// There is no such member.
    #[error("there is no member {0}")]
    NoMember(u16),
    /// The member is down, or its weight is 0.
    #[error("member {0} is down or takes no buckets")]
    NotLiving(u16),
}

/// Returns the weight of a link by its speed in bit/s: its Mbit/s, at least 1.
#[must_use]
pub fn weight_of_speed(speed_bps: u64) -> u32 {
    u32::try_from(speed_bps / 1_000_000).unwrap_or(u32::MAX).max(1)
}

/// Which member owns each bucket.
#[derive(Clone, Debug)]
pub struct Assignment {
    members: BTreeMap<u16, AssignedMember>,
    /// The intended member of each bucket.
    slots: Vec<u16>,
    buckets: Vec<AssignedBucket>,
    /// The members that failed one after the other without any other event in between, and the buckets of
    /// each.
    failed: Vec<(u16, Vec<u32>)>,
}

#[derive(Clone, Debug)]
struct AssignedMember {
    weight: u32,
    up: bool,
    /// Homes that rebalances added to its share (or took from it, if negative).
    shift: i64,
}

impl AssignedMember {
    fn lives(&self) -> bool {
        self.up && self.weight > 0
    }
}

#[derive(Clone, Debug)]
struct AssignedBucket {
    home: u16,
    /// Members that the bucket was ordered to leave when idle, and on which it may still be.
    leaving: Vec<u16>,
}

impl Assignment {
    /// Creates `size` buckets, and members with their weights, all of them down.
    #[must_use]
    pub fn new(size: u32, members: &[(u16, u32)]) -> Assignment {
        let members = members
            .iter()
            .filter(|&&(number, _)| number != NO_TARGET)
            .map(|&(number, weight)| (number, AssignedMember { weight, up: false, shift: 0 }))
            .collect();
        let mut assignment =
            Assignment { members, slots: Vec::new(), buckets: Vec::new(), failed: Vec::new() };
        assignment.resize(size);
        assignment
    }

    /// Returns the intended member of each bucket. If all members are down, a bucket stays with its last
    /// member.
    #[must_use]
    pub fn slots(&self) -> &[u16] {
        &self.slots
    }

    /// Returns the member that has this bucket while all members are up.
    #[must_use]
    pub fn home(&self, bucket: u32) -> Option<u16> {
        self.buckets.get(bucket as usize).map(|bucket| bucket.home).filter(|&home| home != NO_TARGET)
    }

    /// Adds a member. An existing member is not changed.
    pub fn add(&mut self, member: u16, weight: u32, up: bool) -> Vec<Move> {
        if member == NO_TARGET || self.members.contains_key(&member) {
            return Vec::new();
        }
        self.members.insert(member, AssignedMember { weight, up, shift: 0 });
        self.apportion(member)
    }

    /// Changes a weight; a member with weight 0 loses all buckets.
    pub fn set_weight(&mut self, member: u16, weight: u32) -> Vec<Move> {
        match self.members.get_mut(&member) {
            Some(found) if found.weight != weight => {
                found.weight = weight;
                found.shift = if weight == 0 { 0 } else { found.shift };
                self.apportion(member)
            }
            _ => Vec::new(),
        }
    }

    /// Removes a member as planned. It must stay in the program until its moves are carried out.
    pub fn remove(&mut self, member: u16) -> Vec<Move> {
        let Some(removed) = self.members.remove(&member) else { return Vec::new() };
        let before = self.slots.clone();
        self.failed.clear();
        for slot in self.slots.iter_mut().filter(|slot| **slot == member) {
            *slot = NO_TARGET;
        }
        self.rehome(member);
        self.place();
        self.moves(&before, removed.up.then_some(member))
    }

    /// Marks a member as up or down.
    pub fn set_up(&mut self, member: u16, up: bool) -> Vec<Move> {
        let changed = match self.members.get_mut(&member) {
            Some(found) => std::mem::replace(&mut found.up, up) != up && found.weight > 0,
            None => false,
        };
        match (up, changed) {
            (true, true) => self.rise(member),
            (true, false) => Vec::new(),
            (false, true) => self.fall(member),
            (false, false) => self.hasten(member),
        }
    }

    /// Stops using a member that still works: its buckets leave it when idle. A later [`Assignment::set_up`]
    /// with `false` makes them leave at once.
    pub fn leave(&mut self, member: u16) -> Vec<Move> {
        let Some(found) = self.members.get_mut(&member) else { return Vec::new() };
        if !std::mem::replace(&mut found.up, false) || found.weight == 0 {
            return Vec::new();
        }
        let before = self.fail(member);
        self.moves(&before, Some(member))
    }

    /// Returns true if any member can have buckets. If none can, all buckets are where they last were.
    #[must_use]
    pub fn has_living(&self) -> bool {
        self.members.values().any(AssignedMember::lives)
    }

    /// Makes `active` the only member that is up, as an active-backup bond requires.
    pub fn set_only(&mut self, active: Option<u16>) -> Vec<Move> {
        let others: Vec<u16> =
            self.members.keys().copied().filter(|&member| Some(member) != active).collect();
        let mut moves = active.map_or_else(Vec::new, |member| self.set_up(member, true));
        for member in others {
            let later = self.set_up(member, false);
            moves.retain(|earlier| later.iter().all(|later| later.bucket != earlier.bucket));
            moves.extend(later);
        }
        moves
    }

    /// Replaces the buckets with `size` new ones that have no members, because a table of another size has
    /// nothing in common with the old one.
    pub fn resize(&mut self, size: u32) -> Vec<Move> {
        self.slots = vec![NO_TARGET; size as usize];
        self.buckets = vec![AssignedBucket { home: NO_TARGET, leaving: Vec::new() }; size as usize];
        self.failed.clear();
        for member in self.members.values_mut() {
            member.shift = 0;
        }
        let before = self.slots.clone();
        self.settle_homeless();
        self.place();
        self.moves(&before, None)
    }

    /// Moves a bucket on request. The new member becomes its home, unless its home is down and will reclaim
    /// it.
    pub fn migrate(&mut self, bucket: u32, member: u16) -> Result<Vec<Move>, MoveRefusal> {
        let from = *self.slots.get(bucket as usize).ok_or(MoveRefusal::NoBucket(bucket))?;
        if !self.members.get(&member).ok_or(MoveRefusal::NoMember(member))?.lives() {
            return Err(MoveRefusal::NotLiving(member));
        }
        if from == member {
            return Ok(Vec::new());
        }
        let before = self.slots.clone();
        self.failed.clear();
        let home = &mut self.buckets[bucket as usize].home;
        if *home == from {
            *home = member;
            self.shift(from, -1);
            self.shift(member, 1);
        }
        self.slots[bucket as usize] = member;
        Ok(self.moves(&before, None))
    }

    /// Moves the buckets of a rebalance, except buckets that can no longer be moved.
    pub fn rebalance(&mut self, wanted: impl IntoIterator<Item = (u32, u16)>) -> Vec<Move> {
        wanted
            .into_iter()
            .filter_map(|(bucket, member)| self.migrate(bucket, member).ok())
            .flatten()
            .collect()
    }

    /// Updates which buckets have a pending move, according to `waits`. All others are where they should be.
    pub fn settle(&mut self, waits: impl Fn(u32) -> bool) {
        for (at, bucket) in (0..).zip(&mut self.buckets) {
            if !waits(at) {
                bucket.leaving.clear();
            }
        }
    }

    fn shift(&mut self, member: u16, by: i64) {
        if let Some(member) = self.members.get_mut(&member) {
            member.shift += by;
        }
    }

    /// Returns true if this member is up and takes buckets.
    #[must_use]
    pub fn lives(&self, member: u16) -> bool {
        self.members.get(&member).is_some_and(AssignedMember::lives)
    }

    fn fall(&mut self, member: u16) -> Vec<Move> {
        let before = self.fail(member);
        let mut moves = self.moves(&before, None);
        moves.extend(self.hasten(member));
        moves
    }

    /// Gives the buckets of a failed member to others. Returns the previous member of each bucket.
    fn fail(&mut self, member: u16) -> Vec<u16> {
        let before = self.slots.clone();
        self.failed
            .push((member, (0..).zip(&before).filter(|slot| *slot.1 == member).map(|slot| slot.0).collect()));
        self.place();
        before
    }

    fn rise(&mut self, member: u16) -> Vec<Move> {
        let before = self.slots.clone();
        match self.failed.pop() {
            Some((last, had)) if last == member => {
                for bucket in had {
                    self.slots[bucket as usize] = member;
                }
            }
            _ => {
                self.failed.clear();
                self.place();
                self.level_stand_ins(member, false);
            }
        }
        self.moves(&before, None)
    }

    /// Recomputes homes after this member was added or changed its weight.
    fn apportion(&mut self, member: u16) -> Vec<Move> {
        let before = self.slots.clone();
        self.failed.clear();
        self.settle_homeless();
        let homes = self.ledger_of_homes(|_| true).level(member, true);
        self.set_homes(&homes);
        self.place();
        self.level_stand_ins(member, true);
        self.moves(&before, None)
    }

    fn set_homes(&mut self, homes: &[(u32, u16)]) {
        for &(bucket, home) in homes {
            self.buckets[bucket as usize].home = home;
        }
    }

    /// Gives a home to every bucket without one.
    fn settle_homeless(&mut self) {
        let mut ledger = self.ledger_of_homes(|_| false);
        for (at, bucket) in (0..).zip(&mut self.buckets).filter(|entry| entry.1.home == NO_TARGET) {
            bucket.home = ledger.give(at, |_| true).unwrap_or(NO_TARGET);
        }
    }

    /// Finds new homes for the buckets of a removed member. A bucket with a stand-in stays there or gets a
    /// home that is down; it moves to a third member that is up only if homes would otherwise be more than
    /// one bucket from the shares.
    fn rehome(&mut self, removed: u16) {
        let mut ledger = self.ledger_of_homes(|home| home == removed);
        let members = &self.members;
        for (at, (bucket, &slot)) in (0..).zip(self.buckets.iter_mut().zip(&self.slots)) {
            if bucket.home == removed {
                let fits = |member: u16| slot == NO_TARGET || member == slot || !members[&member].lives();
                bucket.home = ledger.give(at, fits).unwrap_or(NO_TARGET);
            }
        }
        self.set_homes(&ledger.even_out());
    }

    /// Puts every bucket on its home if that member is live. Otherwise the bucket stays if it can, or returns
    /// to a member on which it may still be, or goes to the member that has the fewest buckets for its
    /// weight. If no member is live, nothing changes.
    fn place(&mut self) {
        let mut free = Vec::new();
        for at in 0..self.slots.len() {
            let bucket = &self.buckets[at];
            if self.lives(bucket.home) {
                self.slots[at] = bucket.home;
            } else if !self.lives(self.slots[at]) {
                match bucket.leaving.iter().rev().find(|member| self.lives(**member)) {
                    Some(&member) => self.slots[at] = member,
                    None => free.push(at),
                }
            }
        }
        let mut ledger = self.ledger_of_slots();
        for at in free {
            self.slots[at] = ledger.give(at as u32, |_| true).unwrap_or(self.slots[at]);
        }
    }

    /// Gives `member` its share of the buckets whose home is down; with `all`, also evens out these buckets
    /// among the other members.
    fn level_stand_ins(&mut self, member: u16, all: bool) {
        for (bucket, to) in self.ledger_of_slots().level(member, all) {
            self.slots[bucket as usize] = to;
        }
    }

    /// Counts homes, and finds the homes that can change.
    fn ledger_of_homes(&self, movable: impl Fn(u16) -> bool) -> Ledger {
        let mut ledger = Ledger::new(self.members.iter(), self.slots.len());
        for (at, bucket) in (0..).zip(&self.buckets) {
            ledger.count(bucket.home, movable(bucket.home).then_some(at));
        }
        ledger
    }

    /// Counts the buckets of live members; only stand-ins can be replaced.
    fn ledger_of_slots(&self) -> Ledger {
        let mut ledger = Ledger::new(self.members.iter().filter(|entry| entry.1.lives()), self.slots.len());
        for (at, (&slot, bucket)) in (0..).zip(self.slots.iter().zip(&self.buckets)) {
            ledger.count(slot, (!self.lives(bucket.home)).then_some(at));
        }
        ledger
    }

    /// Returns the differences from `before`. Buckets leave a member that still works, or that is removed as
    /// planned, when they are idle.
    fn moves(&mut self, before: &[u16], leaver: Option<u16>) -> Vec<Move> {
        let mut moves = Vec::new();
        for (bucket, (&from, &to)) in
            (0_u32..).zip(before.iter().zip(&self.slots)).filter(|entry| entry.1.0 != entry.1.1)
        {
            let works = leaver == Some(from) || self.members.get(&from).is_some_and(|member| member.up);
            let leaving = &mut self.buckets[bucket as usize].leaving;
            let when = if works && to != NO_TARGET { When::Idle } else { When::Now };
            match when {
                When::Now => leaving.clear(),
                When::Idle => {
                    leaving.retain(|&member| member != from && member != to);
                    leaving.push(from);
                }
            }
            moves.push(Move { bucket, to, when });
        }
        moves
    }

    /// Makes immediate the pending moves away from a member that has failed.
    fn hasten(&mut self, member: u16) -> Vec<Move> {
        let mut moves = Vec::new();
        for (bucket, (entry, &to)) in (0_u32..).zip(self.buckets.iter_mut().zip(&self.slots)) {
            if to != member && entry.leaving.contains(&member) {
                entry.leaving.clear();
                moves.push(Move { bucket, to, when: When::Now });
            }
        }
        moves
    }
}

/// The number of buckets that each of several members has in excess of its share. A bucket counts as `unit`,
/// the sum of the weights, so that all shares are whole numbers.
///
/// If no two members are more than a unit apart, the shares are rounded by largest remainder: if a member
/// with fraction f is rounded up and one with fraction g is rounded down, the first has 1 - f too much and
/// the second g too little, and 1 - f + g <= 1.
struct Ledger {
    unit: i128,
    /// One line for each member, ordered by number.
    lines: Vec<MemberOrder>,
}

struct MemberOrder {
    member: u16,
    weight: u32,
    surplus: i128,
    /// The buckets that the member can give away.
    movable: Vec<u32>,
}

impl Ledger {
    /// Creates the state in which no member has any of `size` buckets.
    fn new<'a>(members: impl Iterator<Item = (&'a u16, &'a AssignedMember)> + Clone, size: usize) -> Ledger {
        let unit: i128 = members.clone().map(|entry| i128::from(entry.1.weight)).sum();
        let shared = size as i128 - members.clone().map(|entry| i128::from(entry.1.shift)).sum::<i128>();
        let line = |(&member, &AssignedMember { weight, shift, .. }): (&u16, &AssignedMember)| {
            let surplus = -i128::from(shift) * unit - shared * i128::from(weight);
            MemberOrder { member, weight, surplus, movable: Vec::new() }
        };
        Ledger { unit, lines: members.map(line).collect() }
    }

    fn line(&self, member: u16) -> Option<usize> {
        self.lines.binary_search_by_key(&member, |line| line.member).ok()
    }

    /// Counts one more bucket for a member.
    fn count(&mut self, member: u16, movable: Option<u32>) {
        if let Some(line) = self.line(member) {
            self.lines[line].surplus += self.unit;
            self.lines[line].movable.extend(movable);
        }
    }

    /// Gives a bucket to the member that has the fewest buckets for its weight, among those that `fits`
    /// admits.
    fn give(&mut self, bucket: u32, fits: impl Fn(u16) -> bool) -> Option<u16> {
        let member = self.lines[self.poorest(fits)?].member;
        self.count(member, Some(bucket));
        Some(member)
    }

    fn poorest(&self, fits: impl Fn(u16) -> bool) -> Option<usize> {
        let fit = |at: &usize| self.lines[*at].weight > 0 && fits(self.lines[*at].member);
        (0..self.lines.len()).filter(fit).min_by_key(|&at| self.lines[at].surplus)
    }

    fn richest(&self) -> Option<usize> {
        let able = |at: &usize| !self.lines[*at].movable.is_empty();
        (0..self.lines.len()).rev().filter(able).max_by_key(|&at| self.lines[at].surplus)
    }

    /// Moves the fewest buckets that bring `member` to its share; with `all`, followed by
    /// [`Ledger::even_out`]. Later moves of a bucket replace earlier ones.
    fn level(&mut self, member: u16, all: bool) -> Vec<(u32, u16)> {
        let mut moves = Vec::new();
        if let Some(own) = self.line(member) {
            if self.lines[own].surplus < 0 {
                while self.lines[own].surplus < 0 && self.pass(self.richest(), Some(own), &mut moves) {}
            } else {
                while self.lines[own].surplus > 0 && self.pass(Some(own), self.poorest(|_| true), &mut moves)
                {
                }
            }
        }
        if all {
            moves.extend(self.even_out());
        }
        moves
    }

    /// Moves buckets until every member is within one bucket of its share.
    fn even_out(&mut self) -> Vec<(u32, u16)> {
        let mut moves = Vec::new();
        while self.is_uneven() && self.pass(self.richest(), self.poorest(|_| true), &mut moves) {}
        moves
    }

    fn is_uneven(&self) -> bool {
        self.lines.iter().any(|line| line.surplus.abs() > self.unit)
    }

    /// Moves one bucket if these two members are more than one bucket apart.
    fn pass(&mut self, from: Option<usize>, to: Option<usize>, moves: &mut Vec<(u32, u16)>) -> bool {
        let (Some(from), Some(to)) = (from, to) else { return false };
        if self.lines[from].surplus - self.lines[to].surplus <= self.unit {
            return false;
        }
        let Some(bucket) = self.lines[from].movable.pop() else { return false };
        self.lines[from].surplus -= self.unit;
        self.lines[to].surplus += self.unit;
        self.lines[to].movable.push(bucket);
        moves.push((bucket, self.lines[to].member));
        true
    }
}
