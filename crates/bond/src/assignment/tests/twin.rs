//! The assignment against a naive model of its rules, under random events.

use super::*;
use proptest::prelude::*;
use weir_table::fill_wants;

#[derive(Clone, Copy, Debug)]
enum TwinEvent {
    Up(u16),
    Down(u16),
    Add(u16, u32, bool),
    Remove(u16),
    Weight(u16, u32),
}

/// The events of a seed, so that a failure is identified by one number: eight members, whose links change
/// more often than their configuration.
fn events(seed: u64, weight: fn(u64) -> u32) -> impl Iterator<Item = TwinEvent> {
    (0..10_000).map(move |at| {
        let word = random(seed.wrapping_mul(10_000).wrapping_add(at));
        let (member, weight) = ((word >> 8) as u16 % 8, weight(random(word)));
        match word % 11 {
            0..4 => TwinEvent::Up(member),
            4..8 => TwinEvent::Down(member),
            8 => TwinEvent::Add(member, weight, word & 1 << 30 == 0),
            9 => TwinEvent::Remove(member),
            _ => TwinEvent::Weight(member, weight),
        }
    })
}

/// A weight that is zero, small, medium or arbitrary.
fn any_weight(word: u64) -> u32 {
    let weight = (word >> 2) as u32;
    [0, weight % 6, weight % 1000, weight][word as usize % 4]
}

fn apply(assignment: &mut Assignment, event: TwinEvent) -> Vec<Move> {
    match event {
        TwinEvent::Up(member) => assignment.set_up(member, true),
        TwinEvent::Down(member) => assignment.set_up(member, false),
        TwinEvent::Add(member, weight, up) => assignment.add(member, weight, up),
        TwinEvent::Remove(member) => assignment.remove(member),
        TwinEvent::Weight(member, weight) => assignment.set_weight(member, weight),
    }
}

/// The rules at the top of the module, restated as plainly as possible: members as a list, shares as
/// fractions, everything recounted for every single bucket.
#[derive(Clone, Default)]
struct Twin {
    members: BTreeMap<u16, (u32, bool)>,
    /// The tables before each failure that was followed only by further failures and their ends.
    undo: Vec<(u16, Vec<u16>)>,
}

impl Twin {
    fn lives(&self, member: u16) -> bool {
        self.members.get(&member).is_some_and(|&(weight, up)| weight > 0 && up)
    }

    fn living(&self) -> Vec<u16> {
        self.members.keys().copied().filter(|&member| self.lives(member)).collect()
    }

    /// Buckets above the share, in fractions of the total weight of `among`.
    fn surplus(&self, table: &[u16], among: &[u16], member: u16) -> i128 {
        let weight = |member: &u16| i128::from(self.members[member].0);
        let whole: i128 = among.iter().map(weight).sum();
        of(table, member).len() as i128 * whole - table.len() as i128 * weight(&member)
    }

    /// The worst distance of any of `among` from its share, in buckets, rounded up.
    fn worst(&self, table: &[u16], among: &[u16]) -> i128 {
        let whole: i128 = among.iter().map(|member| i128::from(self.members[member].0)).sum();
        let parts = among.iter().map(|&member| self.surplus(table, among, member).abs()).max().unwrap_or(0);
        if whole == 0 { 0 } else { (parts + whole - 1) / whole }
    }

    /// No bucket placed by this event would have been better placed on another member.
    fn moves_are_level(&self, table: &[u16], among: &[u16], moves: &[(u32, u16)]) -> bool {
        let whole: i128 = among.iter().map(|member| i128::from(self.members[member].0)).sum();
        let poorest = among.iter().map(|&member| self.surplus(table, among, member)).min();
        moves.iter().all(|moved| self.surplus(table, among, moved.1) - poorest.unwrap_or(0) <= whole)
    }

    /// Members of equal weight have the same number of homes, within one bucket, in any history; and live
    /// members have the same number of buckets if all losses were failures.
    fn equals_are_even(&self, [slots, homes]: &[Vec<u16>; 2]) -> bool {
        let (all, living): (Vec<u16>, _) = (self.members.keys().copied().collect(), self.living());
        let failures = !living.is_empty() && living.len() + self.undo.len() == all.len();
        self.worst(homes, &all) <= 1 && (!failures || self.worst(slots, &living) <= 1)
    }

    /// Checks what an event did to the tables of slots and homes.
    fn check(
        &mut self,
        event: TwinEvent,
        moves: &[Move],
        before: [&[u16]; 2],
        after: [&[u16]; 2],
    ) -> Result<(), TestCaseError> {
        let changed = differences(before[0], after[0]);
        let said: Vec<(u32, u16)> = moves.iter().map(|entry| (entry.bucket, entry.to)).collect();
        prop_assert_eq!(&said, &changed, "moves are what changed");
        match event {
            TwinEvent::Down(member) => self.check_down(member, moves, before, after)?,
            TwinEvent::Up(member) => self.check_up(member, moves, before, after)?,
            TwinEvent::Remove(member) => self.check_remove(member, moves, before, after)?,
            TwinEvent::Add(member, weight, up) => {
                let known = self.members.get(&member).copied();
                self.members.insert(member, known.unwrap_or((weight, up)));
                match known {
                    Some(_) => prop_assert!(changed.is_empty()),
                    None => self.check_shares(member, before, after)?,
                }
            }
            TwinEvent::Weight(member, weight) => match self.members.get(&member) {
                Some(found) if found.0 != weight => {
                    self.members.get_mut(&member).unwrap().0 = weight;
                    self.check_shares(member, before, after)?;
                }
                _ => prop_assert!(changed.is_empty()),
            },
        }
        let living = self.living();
        prop_assert!(
            living.is_empty() || after[0].iter().all(|&slot| self.lives(slot)),
            "a bucket is on a dead member"
        );
        let is_home = |at: usize| !self.lives(after[1][at]) || after[0][at] == after[1][at];
        prop_assert!((0..after[0].len()).all(is_home), "a bucket is not at home");
        for entry in moves.iter().filter(|entry| entry.when == When::Idle) {
            let from = before[0][entry.bucket as usize];
            prop_assert!(
                matches!(event, TwinEvent::Remove(_)) || self.members[&from].1,
                "the dead are left at once"
            );
        }
        Ok(())
    }

    /// Required: the lost member's buckets move, if a live member can take them.
    fn check_down(
        &mut self,
        member: u16,
        moves: &[Move],
        before: [&[u16]; 2],
        after: [&[u16]; 2],
    ) -> Result<(), TestCaseError> {
        let lived = self.lives(member);
        if let Some(found) = self.members.get_mut(&member) {
            found.1 = false;
        }
        let living = self.living();
        let lost = if lived && !living.is_empty() { of(before[0], member) } else { vec![] };
        prop_assert_eq!(buckets(moves), lost);
        prop_assert!(moves.iter().all(|entry| entry.when == When::Now));
        prop_assert_eq!(before[1], after[1]);
        prop_assert!(self.moves_are_level(after[0], &living, &differences(before[0], after[0])));
        if lived {
            self.undo.push((member, before[0].to_vec()));
        }
        Ok(())
    }

    /// Required: everything is as before if nothing else happened. Otherwise the member's homes move, and
    /// then one stand-in after the other, from the member that has the most, as long as that brings the two
    /// closer. Nothing moves between others.
    fn check_up(
        &mut self,
        member: u16,
        moves: &[Move],
        before: [&[u16]; 2],
        after: [&[u16]; 2],
    ) -> Result<(), TestCaseError> {
        let lived = self.lives(member);
        let alone = self.living().is_empty();
        if let Some(found) = self.members.get_mut(&member) {
            found.1 = true;
        }
        prop_assert_eq!(before[1], after[1]);
        if lived || !self.lives(member) {
            prop_assert!(moves.is_empty());
            return Ok(());
        }
        prop_assert!(moves.iter().all(|entry| entry.to == member));
        match self.undo.pop() {
            Some((last, table)) if last == member => prop_assert_eq!(after[0], table),
            _ if alone => {
                self.undo.clear();
                prop_assert!(after[0].iter().all(|&slot| slot == member));
            }
            _ => {
                self.undo.clear();
                let living = self.living();
                let returned = |at: usize| if after[1][at] == member { member } else { before[0][at] };
                let mut table: Vec<u16> = (0..after[0].len()).map(returned).collect();
                while self.take_one(member, &living, &mut table, after[1]) {}
                let taken =
                    |table: &[u16]| living.iter().map(|&member| of(table, member).len()).collect::<Vec<_>>();
                prop_assert_eq!(taken(&table), taken(after[0]));
            }
        }
        Ok(())
    }

    fn take_one(&self, member: u16, living: &[u16], table: &mut [u16], homes: &[u16]) -> bool {
        let stands_in = |at: &usize| !self.lives(homes[*at]);
        let surplus = |holder: u16| self.surplus(table, living, holder);
        let whole: i128 = living.iter().map(|member| i128::from(self.members[member].0)).sum();
        // Among equal surpluses the lower number gives: `max_by_key` returns the last one, so the list is
        // reversed.
        let richest = living
            .iter()
            .rev()
            .copied()
            .filter(|&holder| (0..table.len()).any(|at| table[at] == holder && stands_in(&at)));
        let Some(richest) = richest.max_by_key(|&holder| surplus(holder)) else { return false };
        if surplus(member) >= 0 || surplus(richest) - surplus(member) <= whole {
            return false;
        }
        let at = (0..table.len()).find(|at| table[*at] == richest && stands_in(at)).unwrap();
        table[at] = member;
        true
    }

    /// Required: the removed member's buckets move, when idle if it worked; a stand-in moves only if homes
    /// would be uneven otherwise.
    fn check_remove(
        &mut self,
        member: u16,
        moves: &[Move],
        before: [&[u16]; 2],
        after: [&[u16]; 2],
    ) -> Result<(), TestCaseError> {
        let Some((_, up)) = self.members.remove(&member) else {
            prop_assert!(moves.is_empty());
            return Ok(());
        };
        self.undo.clear();
        let had = |entry: &&Move| before[0][entry.bucket as usize] == member;
        let (moved, stood_in): (Vec<Move>, Vec<Move>) = moves.iter().partition(had);
        prop_assert_eq!(buckets(&moved), of(before[0], member));
        prop_assert!(moved.iter().all(|entry| (entry.when == When::Idle) == (up && entry.to != NO_TARGET)));
        let mut modest = after[1].to_vec();
        for entry in &stood_in {
            prop_assert!(entry.when == When::Idle && before[1][entry.bucket as usize] == member);
            modest[entry.bucket as usize] = before[0][entry.bucket as usize];
        }
        let all: Vec<u16> = self.members.keys().copied().collect();
        prop_assert!(
            stood_in.is_empty() || self.worst(&modest, &all) > 1,
            "a stand-in was moved without need"
        );
        let rehomed: Vec<u32> = differences(before[1], after[1]).iter().map(|change| change.0).collect();
        prop_assert_eq!(rehomed, of(before[1], member));
        prop_assert!(!after[0].contains(&member) && !after[1].contains(&member));
        Ok(())
    }

    /// Required: the number of homes that move is the number that members have in excess of their shares, and
    /// afterwards no member is more than a bucket from its share.
    fn check_shares(
        &mut self,
        member: u16,
        before: [&[u16]; 2],
        after: [&[u16]; 2],
    ) -> Result<(), TestCaseError> {
        self.undo.clear();
        let all: Vec<u16> = self.members.keys().copied().collect();
        if all.iter().all(|member| self.members[member].0 == 0) {
            prop_assert_eq!(before, after);
            return Ok(());
        }
        prop_assert!(self.worst(after[1], &all) <= 1, "homes differ from the shares by more than a bucket");
        prop_assert!(all.iter().all(|member| self.members[member].0 > 0 || !after[1].contains(member)));
        let fewer = |member: &u16| of(before[1], *member).len().saturating_sub(of(after[1], *member).len());
        let homeless = of(before[1], NO_TARGET).len();
        let needed: usize = all.iter().map(fewer).sum::<usize>() + homeless;
        let moved = differences(before[1], after[1]);
        prop_assert_eq!(moved.len(), needed, "homes went round in circles");
        // A move between two others is allowed only if a member would otherwise be more than a bucket off.
        let mut modest = after[1].to_vec();
        for &(bucket, to) in &moved {
            let from = before[1][bucket as usize];
            if from != member && to != member && from != NO_TARGET {
                modest[bucket as usize] = from;
            }
        }
        prop_assert!(
            modest == after[1] || self.worst(&modest, &all) > 1,
            "unneeded moves between other members"
        );
        Ok(())
    }
}

fn differences(before: &[u16], after: &[u16]) -> Vec<(u32, u16)> {
    (0..)
        .zip(before.iter().zip(after))
        .filter(|slot| slot.1.0 != slot.1.1)
        .map(|slot| (slot.0, *slot.1.1))
        .collect()
}

fn homes(assignment: &Assignment) -> Vec<u16> {
    assignment.buckets.iter().map(|bucket| bucket.home).collect()
}

/// Checks each event against the model, and then lets all members return.
fn run(events: impl Iterator<Item = TwinEvent>, equal: bool) -> Result<(), TestCaseError> {
    let mut assignment = Assignment::new(32, &[]);
    let mut twin = Twin::default();
    let last = [TwinEvent::Add(8, 3, true)];
    for (at, event) in events.chain((0..8).map(TwinEvent::Up)).chain(last).enumerate() {
        let before = [assignment.slots().to_vec(), homes(&assignment)];
        let moves = sorted(apply(&mut assignment, event));
        assignment.settle(|_| false);
        let after = [assignment.slots().to_vec(), homes(&assignment)];
        let checked = twin.check(event, &moves, [&before[0], &before[1]], [&after[0], &after[1]]);
        checked.map_err(|error| TestCaseError::fail(format!("event {at}, {event:?}: {error}")))?;
        prop_assert!(!equal || twin.equals_are_even(&after), "event {at}, {event:?}: equal members differ");
    }
    let all: Vec<u16> = twin.members.keys().copied().collect();
    prop_assert_eq!(twin.living().len(), all.iter().filter(|member| twin.members[member].0 > 0).count());
    prop_assert!(twin.worst(assignment.slots(), &all) <= 1, "unbalanced at the end");
    Ok(())
}

fn sorted(mut moves: Vec<Move>) -> Vec<Move> {
    moves.sort_by_key(|entry| entry.bucket);
    moves
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ten_thousand_events_move_what_they_must(seed: u64) {
        run(events(seed, any_weight), false)?;
    }

    #[test]
    fn equal_members_are_never_more_than_a_bucket_apart(seed: u64) {
        run(events(seed, |_| 3), true)?;
    }
}

proptest! {
    #[test]
    fn a_fresh_table_is_what_wants_count_fills(weights in prop::collection::vec(prop_oneof![0_u32..5,
        any::<u32>()], 1..9)) {
        let assignment = up(256, &weights);
        let (twin, _) = fill_wants(None, &weights, 256);
        let counts = counts(&assignment, 1..=weights.len() as u16);
        for (at, &weight) in weights.iter().enumerate() {
            let filled = twin.iter().filter(|&&slot| usize::from(slot) == at).count();
            let others = weights.iter().enumerate().filter(|&(other, &same)| other != at && same ==
                weight).count();
            // Among equal remainders, a different one may be rounded up.
            prop_assert!(counts[at] == filled || others > 0 && counts[at].abs_diff(filled) == 1,
                "{counts:?} {twin:?}");
        }
    }
}
