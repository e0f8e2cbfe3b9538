//! The assignment of buckets, case by case; `twin` compares it with its rules under random events.

mod twin;

use super::*;
use weir_packet::random::Random;

fn up(size: u32, weights: &[u32]) -> Assignment {
    let members: Vec<(u16, u32)> = (1..).zip(weights.iter().copied()).collect();
    let mut assignment = Assignment::new(size, &members);
    for (member, _) in members {
        assignment.set_up(member, true);
    }
    // The first moves are carried out.
    assignment.settle(|_| false);
    assignment
}

fn count(assignment: &Assignment, member: u16) -> usize {
    assignment.slots().iter().filter(|&&slot| slot == member).count()
}

fn counts(assignment: &Assignment, members: std::ops::RangeInclusive<u16>) -> Vec<usize> {
    members.map(|member| count(assignment, member)).collect()
}

fn buckets(moves: &[Move]) -> Vec<u32> {
    moves.iter().map(|entry| entry.bucket).collect()
}

fn of(slots: &[u16], member: u16) -> Vec<u32> {
    (0..).zip(slots).filter(|slot| *slot.1 == member).map(|slot| slot.0).collect()
}

/// A datapath that carries out moves literally: immediate ones at once, the others once notified that the
/// bucket is idle.
struct Path {
    slots: Vec<u16>,
    waiting: BTreeMap<u32, u16>,
}

impl Path {
    fn new(assignment: &Assignment) -> Path {
        Path { slots: assignment.slots().to_vec(), waiting: BTreeMap::new() }
    }

    fn take(&mut self, moves: &[Move]) {
        for entry in moves {
            self.waiting.remove(&entry.bucket);
            match entry.when {
                When::Now => self.slots[entry.bucket as usize] = entry.to,
                When::Idle => drop(self.waiting.insert(entry.bucket, entry.to)),
            }
        }
    }

    fn idle(&mut self, bucket: u32) {
        if let Some(to) = self.waiting.remove(&bucket) {
            self.slots[bucket as usize] = to;
        }
    }
}

#[test]
fn the_first_member_up_gets_everything_and_the_next_ones_their_homes() {
    let mut assignment = Assignment::new(256, &[(1, 1), (2, 1)]);
    assert_eq!(assignment.slots(), [NO_TARGET; 256]);
    let moves = assignment.set_up(2, true);
    assert!(moves.iter().all(|entry| entry.to == 2 && entry.when == When::Now));
    assert_eq!(moves.len(), 256);
    let moves = assignment.set_up(1, true);
    assert!(moves.iter().all(|entry| entry.to == 1 && entry.when == When::Idle));
    assert_eq!(moves.len(), 128);
    assert_eq!(assignment.set_up(1, true), []);
}

/// B1: 256 buckets over 3 members differ by one at most, so each of 256 flows that meet one bucket each, too.
#[test]
fn three_members_share_256_buckets() {
    assert_eq!(counts(&up(256, &[1, 1, 1]), 1..=3), [86, 85, 85]);
}

#[test]
fn a_failed_member_loses_its_buckets_at_once_and_no_other_does() {
    let mut assignment = up(256, &[1, 1, 1, 1]);
    let before = assignment.slots().to_vec();
    let moves = assignment.set_up(2, false);
    assert_eq!(buckets(&moves), of(&before, 2));
    assert!(moves.iter().all(|entry| entry.when == When::Now && entry.to != 2));
    // Case (a): from n to n-1 at most 1/n and one bucket.
    assert!(moves.len() <= 256 / 4 + 1);
    assert_eq!(counts(&assignment, 1..=4), [86, 0, 85, 85]);
}

/// Case (a), in both directions, and no other member's bucket moves.
#[test]
fn a_member_more_or_less_moves_its_share() {
    for n in 1..=16 {
        let mut assignment = up(256, &vec![7; n]);
        let newcomer = n as u16 + 1;
        let moves = assignment.add(newcomer, 7, true);
        assert!(moves.len() <= 256 / (n + 1) + 1, "{} moves to {n} members", moves.len());
        assert!(moves.iter().all(|entry| entry.to == newcomer && entry.when == When::Idle));
        let before = assignment.slots().to_vec();
        let moves = assignment.remove(newcomer);
        assert_eq!(buckets(&moves), of(&before, newcomer));
        assert!(moves.iter().all(|entry| entry.when == When::Idle));
    }
}

/// Case (c).
#[test]
fn a_hundred_flaps_leave_the_table_as_it_was() {
    let mut assignment = up(256, &[1, 1, 3, 2]);
    let before = assignment.slots().to_vec();
    for flap in 0..100 {
        let lost = assignment.set_up(3, false);
        let back = assignment.set_up(3, true);
        assert_eq!(assignment.slots(), before, "flap {flap}");
        assert_eq!(buckets(&lost), buckets(&back));
        assert!(back.iter().all(|entry| entry.to == 3 && entry.when == When::Idle));
    }
}

/// Another member is down, and the flapping member has stand-in buckets of it.
#[test]
fn a_flap_of_a_stand_in_leaves_the_table_as_it_was() {
    let mut assignment = up(256, &[5, 1, 1, 1]);
    let all = assignment.slots().to_vec();
    assignment.set_up(1, false);
    let one = assignment.slots().to_vec();
    for _ in 0..100 {
        assignment.set_up(2, false);
        assignment.set_up(3, false);
        assignment.set_up(3, true);
        assignment.set_up(2, true);
        assert_eq!(assignment.slots(), one);
    }
    assignment.set_up(1, true);
    assert_eq!(assignment.slots(), all);
}

/// The members come back in an order other than LIFO: balanced in between, and the same in the end.
#[test]
fn members_that_return_in_any_order_get_their_part() {
    let mut assignment = up(240, &[1; 4]);
    let all = assignment.slots().to_vec();
    assignment.set_up(1, false);
    assignment.set_up(2, false);
    assignment.set_up(3, false);
    assert_eq!(counts(&assignment, 1..=4), [0, 0, 0, 240]);
    assignment.set_up(1, true);
    assert_eq!(counts(&assignment, 1..=4), [120, 0, 0, 120]);
    assignment.set_up(2, true);
    assert_eq!(counts(&assignment, 1..=4), [80, 80, 0, 80]);
    assignment.set_up(3, true);
    assert_eq!(assignment.slots(), all);
}

#[test]
fn without_living_members_the_last_is_remembered() {
    let mut assignment = up(16, &[1, 1]);
    let all = assignment.slots().to_vec();
    assignment.set_up(1, false);
    assert_eq!(assignment.set_up(2, false), []);
    assert_eq!(assignment.slots(), [2; 16]);
    let moves = assignment.set_up(1, true);
    assert_eq!(moves.len(), 16);
    assert!(moves.iter().all(|entry| entry.to == 1 && entry.when == When::Now));
    assignment.set_up(2, true);
    assert_eq!(assignment.slots(), all);
}

#[test]
fn the_last_member_leaves_no_target_behind() {
    let mut assignment = up(4, &[1]);
    let moves = assignment.remove(1);
    assert!(moves.iter().all(|entry| entry.to == NO_TARGET && entry.when == When::Now));
    assert_eq!(moves.len(), 4);
    assert_eq!(assignment.add(9, 1, true).len(), 4);
    assert_eq!(assignment.slots(), [9; 4]);
}

#[test]
fn removing_a_member_that_is_down_moves_nothing() {
    let mut assignment = up(256, &[1, 2, 3, 4]);
    assignment.set_up(3, false);
    assignment.set_up(1, false);
    let before = assignment.slots().to_vec();
    assert_eq!(assignment.remove(3), []);
    assert_eq!(assignment.slots(), before);
    // Of the rest, a seventh has its home on the member that may return: 256 * 1 / (1 + 2 + 4).
    assert_eq!(assignment.set_up(1, true).len(), 37);
}

#[test]
fn weights_of_zero_take_nothing_and_do_not_panic() {
    let mut assignment = up(8, &[0, 0]);
    assert_eq!(assignment.slots(), [NO_TARGET; 8]);
    assert_eq!(assignment.migrate(0, 1), Err(MoveRefusal::NotLiving(1)));
    assert_eq!(assignment.set_weight(1, 4).len(), 8);
    assert_eq!(assignment.set_weight(2, 0), []);
    // The last member with a weight is remembered.
    assert_eq!(assignment.set_weight(1, 0), []);
    assert_eq!(assignment.slots(), [1; 8]);
    assert_eq!(assignment.set_weight(2, 1).len(), 8);
    assert_eq!(assignment.slots(), [2; 8]);
    assert!(Assignment::new(0, &[(1, 1)]).slots().is_empty());
}

/// A planned drain: the member works, so its flows may finish their bursts.
#[test]
fn weight_zero_drains_a_member_when_idle() {
    let mut assignment = up(256, &[1, 1, 1]);
    let before = assignment.slots().to_vec();
    let moves = assignment.set_weight(2, 0);
    let mut moved = buckets(&moves);
    moved.sort_unstable();
    assert_eq!(moved, of(&before, 2));
    assert!(moves.iter().all(|entry| entry.when == When::Idle));
    assert_eq!(counts(&assignment, 1..=3), [128, 0, 128]);
}

#[test]
fn an_unchanged_set_moves_nothing() {
    let mut assignment = up(256, &[1, 2, 3]);
    assert_eq!(assignment.set_weight(2, 2), []);
    assert_eq!(assignment.add(2, 2, true), []);
    assert_eq!(assignment.add(NO_TARGET, 2, true), []);
    assert_eq!(assignment.remove(9), []);
    assert_eq!(assignment.set_up(9, true), []);
    assert_eq!(assignment.set_up(9, false), []);
    assert_eq!(assignment.set_weight(9, 1), []);
}

#[test]
fn another_size_is_another_table() {
    let mut assignment = up(256, &[1, 3]);
    let moves = assignment.resize(1024);
    assert_eq!(moves.len(), 1024);
    assert!(moves.iter().all(|entry| entry.when == When::Now));
    assert_eq!(counts(&assignment, 1..=2), [256, 768]);
}

#[test]
fn what_was_migrated_stays_through_flaps_and_removals() {
    let mut assignment = up(256, &[1, 1, 1]);
    let bucket = of(assignment.slots(), 1)[0];
    let moved = assignment.migrate(bucket, 3).unwrap();
    assert_eq!(moved, [Move { bucket, to: 3, when: When::Idle }]);
    assert_eq!(assignment.migrate(bucket, 3), Ok(vec![]));
    let before = assignment.slots().to_vec();
    assignment.set_up(3, false);
    assignment.set_up(1, false);
    assignment.set_up(3, true);
    assignment.set_up(1, true);
    assert_eq!(assignment.slots(), before);
    assignment.remove(2);
    assert_eq!(assignment.slots()[bucket as usize], 3);
    assert_eq!(assignment.migrate(256, 1), Err(MoveRefusal::NoBucket(256)));
    assert_eq!(assignment.migrate(0, 2), Err(MoveRefusal::NoMember(2)));
}

/// Buckets that a rebalance moved away on purpose do not return when a member comes or goes.
#[test]
fn a_rebalance_is_not_undone_by_numbers() {
    let mut assignment = up(240, &[1, 1]);
    let away: Vec<(u32, u16)> = of(assignment.slots(), 1)[..60].iter().map(|&bucket| (bucket, 2)).collect();
    assert_eq!(assignment.rebalance(away).len(), 60);
    assert_eq!(counts(&assignment, 1..=2), [60, 180]);
    let moves = assignment.add(3, 1, true);
    assert!(moves.iter().all(|entry| entry.to == 3));
    // Each of the two gives up the same number of buckets, because both carried their share of the load.
    assert_eq!(counts(&assignment, 1..=3), [20, 140, 80]);
    assignment.remove(3);
    assert_eq!(counts(&assignment, 1..=2), [60, 180]);
}

/// The buckets of a failed member are spread by weight, not given to the member that a rebalance left with
/// the fewest.
#[test]
fn what_is_lost_after_a_rebalance_is_spread_by_weight() {
    let mut assignment = up(240, &[1, 1, 2]);
    let away: Vec<(u32, u16)> = of(assignment.slots(), 1)[..40].iter().map(|&bucket| (bucket, 2)).collect();
    assignment.rebalance(away);
    assignment.settle(|_| false);
    assert_eq!(counts(&assignment, 1..=3), [20, 100, 120]);
    assignment.set_up(2, false);
    assert_eq!(counts(&assignment, 1..=3), [20 + 33, 0, 120 + 67]);
}

#[test]
fn a_stand_in_may_be_rebalanced_and_goes_home_all_the_same() {
    let mut assignment = up(240, &[1, 1, 1]);
    let all = assignment.slots().to_vec();
    assignment.set_up(1, false);
    let bucket = *of(&all, 1).iter().find(|&&bucket| assignment.slots()[bucket as usize] == 2).unwrap();
    assignment.migrate(bucket, 3).unwrap();
    assert_eq!(assignment.slots()[bucket as usize], 3);
    assignment.set_up(1, true);
    assert_eq!(assignment.slots(), all);
}

/// A member returns, and fails again before its buckets have come back to it, or after only some have.
#[test]
fn moves_that_still_wait_are_taken_back() {
    let mut assignment = up(256, &[1, 1, 1]);
    let mut path = Path::new(&assignment);
    path.take(&assignment.set_up(2, false));
    let down = path.slots.clone();
    path.take(&assignment.set_up(2, true));
    let first = *path.waiting.first_key_value().unwrap().0;
    path.idle(first);
    path.take(&assignment.set_up(2, false));
    assert!(path.waiting.is_empty());
    assert_eq!(path.slots, down);
    assert_eq!(assignment.slots(), down);
}

/// A member that is being drained fails before everything has left it.
#[test]
fn a_leaver_that_fails_is_left_at_once() {
    let mut assignment = up(256, &[1, 1, 1]);
    let mut path = Path::new(&assignment);
    path.take(&assignment.remove(2));
    for bucket in of(&path.slots, 2).split_off(20) {
        path.idle(bucket);
    }
    assignment.settle(|bucket| path.waiting.contains_key(&bucket));
    let moves = assignment.set_up(2, false);
    assert_eq!(moves.len(), 20);
    path.take(&moves);
    assert_eq!(path.slots, assignment.slots());
    assert_eq!(assignment.set_up(2, false), [], "said once");
}

#[test]
fn an_active_backup_bond_follows_its_active_member_at_once() {
    let mut assignment = Assignment::new(1, &[(1, 1), (2, 1)]);
    for active in [2, 1, 2, 1, 1] {
        let before = assignment.slots()[0];
        let moves = assignment.set_only(Some(active));
        let wanted = Move { bucket: 0, to: active, when: When::Now };
        assert_eq!(moves, if before == active { vec![] } else { vec![wanted] });
        assert_eq!(assignment.slots(), [active]);
    }
    assert_eq!(assignment.set_only(None), []);
    assert_eq!(assignment.set_only(Some(1)), []);
}

/// B14: 32 buckets by weights 5, 10, 25, 60, 0, and how 1000 flows spread over them.
#[test]
fn buckets_follow_weights() {
    let assignment = up(32, &[5, 10, 25, 60, 0]);
    assert_eq!(counts(&assignment, 1..=5), [2, 3, 8, 19, 0]);
    let mut hits = [0; 6];
    for flow in 0..1000 {
        hits[usize::from(assignment.slots()[random(flow) as usize % 32])] += 1;
    }
    assert!(hits[1] >= 40 && hits[2] >= 80 && hits[3] >= 200 && hits[4] >= 500 && hits[5] == 0, "{hits:?}");
    assert_eq!(counts(&up(256, &[5, 10, 25, 60, 0]), 1..=5), [13, 26, 64, 153, 0]);
}

fn random(seed: u64) -> u64 {
    Random::new(seed).bits() >> 20
}

/// B15: the standard deviation stays below 12.5 % of the mean.
#[test]
fn equal_weights_are_even_from_2_to_64_members() {
    for n in 2..=64_u16 {
        let counts = counts(&up(256, &vec![100; usize::from(n)]), 1..=n);
        let mean = 256.0 / f64::from(n);
        let variance = counts.iter().map(|&count| (count as f64 - mean).powi(2)).sum::<f64>() / f64::from(n);
        assert!(variance.sqrt() <= 0.125 * mean, "{n}: {counts:?}");
    }
}

/// B16: insert and remove by weights, 5/6 of 16 is 7.27/8.73.
#[test]
fn shares_are_exact_after_insert_and_remove() {
    let mut assignment = up(16, &[5, 6]);
    assert_eq!(counts(&assignment, 1..=2), [7, 9]);
    let moves = assignment.add(3, 5, true);
    assert_eq!(counts(&assignment, 1..=3), [5, 6, 5]);
    assert_eq!(moves.len(), 5);
    assert_eq!(assignment.remove(3).len(), 5);
    assert_eq!(counts(&assignment, 1..=2), [7, 9]);
}

/// B17: 1:1000 gives the light member a bucket if there are enough of them, and none otherwise.
#[test]
fn extreme_weights_are_defined() {
    assert_eq!(counts(&up(1024, &[1, 1000]), 1..=2), [1, 1023]);
    let mut assignment = up(256, &[1, 1000]);
    assert_eq!(counts(&assignment, 1..=2), [0, 256]);
    assignment.set_up(2, false);
    assert_eq!(counts(&assignment, 1..=2), [256, 0]);
    assert_eq!(counts(&up(65536, &[u32::MAX, u32::MAX, 1]), 1..=3), [32768, 32768, 0]);
}

/// Case (f).
#[test]
fn speeds_of_1_and_4_share_the_buckets_1_to_4() {
    let [slow, fast] = [10_000_000_000, 40_000_000_000].map(weight_of_speed);
    let assignment = up(256, &[slow, fast]);
    let ratio = count(&assignment, 2) as f64 / count(&assignment, 1) as f64;
    assert!((ratio / 4.0 - 1.0).abs() < 0.05, "{ratio}");
    assert_eq!([0, 999_999, 2_500_000, u64::MAX].map(weight_of_speed), [1, 1, 2, u32::MAX]);
}
