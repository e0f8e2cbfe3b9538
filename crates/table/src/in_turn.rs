//! The order in which new flows go to targets in turn (weighted round robin).
//!
//! A target of weight w has the places (2k + 1) / 2w in the interval from 0 to 1, for each k below w. The
//! ascending order of all places is the order of turns; if places are equal, the target with the lower number
//! comes first. Each target thus has exactly its share of every round, and its turns are as far apart as
//! possible: for the weights 3 and 1 the order is 0, 0, 1, 0, and never three in a row followed by the
//! fourth.
//!
//! Costs: 2 bytes for each turn of a round; filling a round takes a sort.

use crate::bucket::{TARGETS_MAX, wants};

/// Returns the targets in the order of their turns, at most `most` of them, for these weights. Weights are
/// divided by their common divisor. If there are still more than `most` turns, each target has as many turns
/// as it would want buckets if there were `most` of them ([`crate::fill_wants`] without history). Empty if no
/// target has a weight.
#[must_use]
pub fn in_turn(weights: &[u32], most: usize) -> Vec<u16> {
    let weights = &weights[..weights.len().min(TARGETS_MAX)];
    let common = weights.iter().fold(0, |common, &weight| gcd(common, weight));
    if common == 0 {
        return Vec::new();
    }
    let total = weights.iter().map(|weight| u64::from(weight / common)).sum::<u64>();
    let turns: Vec<u64> = if total <= most as u64 {
        weights.iter().map(|weight| u64::from(weight / common)).collect()
    } else {
        wants(weights, &vec![0; weights.len()], most).into_iter().map(|turns| turns as u64).collect()
    };
    let places = |(target, of): (u16, u64)| (0..of).map(move |at| (2 * at + 1, of, target));
    let mut places: Vec<(u64, u64, u16)> = (0..).zip(turns).flat_map(places).collect();
    // Both parts of a fraction are below 2^21, so products do not overflow.
    places.sort_unstable_by(|one, other| (one.0 * other.1, one.2).cmp(&(other.0 * one.1, other.2)));
    places.into_iter().map(|(.., target)| target).collect()
}

fn gcd(one: u32, other: u32) -> u32 {
    if other == 0 { one } else { gcd(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn turns_are_interleaved() {
        assert_eq!(in_turn(&[1, 1, 1], 251), [0, 1, 2]);
        assert_eq!(in_turn(&[10, 0, 20, 10], 251), [2, 0, 3, 2]);
        assert_eq!(in_turn(&[3, 1], 251), [0, 0, 1, 0]);
        assert_eq!(in_turn(&[0, 0], 251), [0_u16; 0]);
        assert_eq!(in_turn(&[], 251), [0_u16; 0]);
    }

    #[test]
    fn more_turns_than_there_may_be_are_shared_like_buckets() {
        let turns = in_turn(&[1000, 999, 1], 200);
        let count = |target| turns.iter().filter(|&&one| one == target).count();
        assert_eq!([count(0), count(1), count(2)], [100, 100, 0]);
    }

    proptest! {
        /// At each position in the interval, every target is within half a turn of its share, and their total
        /// is within half a turn per target.
        #[test]
        fn no_target_is_ever_far_ahead_or_behind(
            weights in prop::collection::vec(0_u32..20, 1..12),
        ) {
            let turns = in_turn(&weights, 1000);
            let total: u32 = weights.iter().sum();
            prop_assert_eq!(turns.is_empty(), total == 0);
            let mut had = vec![0_u32; weights.len()];
            for (at, &target) in turns.iter().enumerate() {
                had[usize::from(target)] += 1;
                for (had, weight) in had.iter().zip(&weights) {
                    let due = f64::from(*weight) * (at + 1) as f64 / f64::from(total);
                    let slack = weights.len() as f64 / 2.0 + 1.0;
                    prop_assert!((f64::from(*had) - due).abs() <= slack, "{had} of {due}");
                }
            }
            let rounds = turns.len() as u32;
            for (target, weight) in (0..).zip(&weights) {
                let count = turns.iter().filter(|&&one| one == target).count() as u32;
                prop_assert_eq!(count * total, weight * rounds, "a round has exact shares");
            }
        }
    }
}
