//! Maglev (NSDI'16 §3.4): buckets as a pure function of the set of back ends.
//!
//! Every node of a fleet computes the same table without communicating, and a change of the set moves little
//! more than it must. docs/design/maglev.md specifies this function, with the hash of names and of flows, so
//! that a program in another language builds the same table; tests/vectors holds the expected results.
//!
//! Costs: about size * ln(size) buckets are visited.

use crate::bucket::{BUCKETS_MAX, NO_TARGET, TARGETS_MAX, finalize};

/// The largest weight; larger ones are reduced to it.
const WEIGHT_MAX: u32 = 0xffff;

/// A back end, as Maglev sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaglevTarget {
    /// A hash of the back end's name, equal on all nodes and across restarts.
    pub id: u64,
    /// The back end's share of the buckets relative to the others, at most 65535; 0 means dead.
    pub weight: u32,
}

/// Fills `size` buckets (a prime, well above the number of targets) with positions in `targets`.
///
/// Which target (by id) gets which bucket depends on the set only, not on the order of the list. Each bucket
/// in turn is taken by the target with the least `(2 * taken + 1) / weight`, where `taken` counts the buckets
/// it already has; among equals, by the target with the lower id. It takes the next free bucket of its
/// permutation. With equal weights, targets take turns in the order of their ids, as in the paper. With other
/// weights, this is the apportionment of Webster and Sainte-Laguë: a target's number of buckets differs from
/// its exact share by at most one half plus its proportional share of half a bucket for each target, that is,
/// by at most 1 %, or one bucket, if there are 100 buckets for each target.
///
/// Targets beyond [`TARGETS_MAX`] get no buckets; a size above [`BUCKETS_MAX`] is reduced to that number.
#[must_use]
pub fn fill_maglev(targets: &[MaglevTarget], size: usize) -> Vec<u16> {
    let size = size.min(BUCKETS_MAX);
    let mut slots = vec![NO_TARGET; size];
    let mut live: Vec<(u16, &MaglevTarget)> = (0..=u16::MAX).zip(targets.iter().take(TARGETS_MAX)).collect();
    live.retain(|(_, target)| target.weight > 0);
    live.sort_by_key(|(_, target)| (target.id, target.weight));
    let mut walks: Vec<MaglevPermutation> =
        live.iter().map(|(at, target)| MaglevPermutation::new(*at, target.id, size)).collect();
    let weights: Vec<u64> = live.iter().map(|(_, target)| u64::from(target.weight.min(WEIGHT_MAX))).collect();
    let turns = turns(&weights, size);
    for turn in turns.iter().cycle().take(size) {
        walks[usize::from(*turn)].take(&mut slots);
    }
    slots
}

/// Returns the targets that take the buckets, one after another, by position in `weights`. The order is
/// cyclic: it repeats once every target has taken as many buckets as its weight, divided by the common
/// divisor.
fn turns(weights: &[u64], size: usize) -> Vec<u16> {
    let divisor = weights.iter().fold(0, |divisor, &weight| greatest_divisor(weight, divisor)).max(1);
    let total = weights.iter().sum::<u64>() / divisor;
    let count = total.min(size as u64);
    // By this time, at least `count` are taken: a target may be behind its share by half a bucket.
    let until = 2 * (count + weights.len() as u64);
    let mut due = Vec::new();
    for (order, weight) in (0..=u16::MAX).zip(weights.iter().map(|weight| weight / divisor)) {
        let odd = (0..).map(|taken| 2 * taken + 1).take_while(|odd| odd * total <= until * weight);
        // Fractions whose denominators have 16 bits differ by 2^-32 at least, or not at all: these integers
        // are in the same order.
        due.extend(odd.map(|odd| ((odd << 33) / weight, order)));
    }
    due.sort_unstable();
    due.into_iter().take(count as usize).map(|(_, order)| order).collect()
}

/// A target's progress through its permutation of the buckets, `offset + n * skip mod size`.
struct MaglevPermutation {
    target: u16,
    next: usize,
    skip: usize,
}

impl MaglevPermutation {
    fn new(target: u16, id: u64, size: usize) -> MaglevPermutation {
        let range = size.max(1) as u64;
        let skip = finalize(id ^ SKIP) % (range - 1).max(1) + 1;
        let next = (finalize(id ^ OFFSET) % range) as usize;
        MaglevPermutation { target, next, skip: coprime(skip, range) as usize }
    }

    /// Takes the next free bucket; there must be one.
    fn take(&mut self, slots: &mut [u16]) {
        loop {
            let at = self.next;
            // Both are below the size. A division would take most of the time of filling a table.
            let next = at + self.skip;
            self.next = if next < slots.len() { next } else { next - slots.len() };
            if slots[at] == NO_TARGET {
                slots[at] = self.target;
                return;
            }
        }
    }
}

/// Separates the two hashes of an id. Part of the specification.
const OFFSET: u64 = 0x6F66_6673_6574_0000;
const SKIP: u64 = 0x736B_6970_0000_0000;

/// Returns the largest number up to `skip` that is coprime to `size`: `skip` itself if `size` is prime.
/// Otherwise the permutation would not visit all buckets.
fn coprime(skip: u64, size: u64) -> u64 {
    (1..=skip).rev().find(|&skip| greatest_divisor(skip, size) == 1).unwrap_or(1)
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::held;
    use proptest::prelude::*;

    fn targets(count: u64) -> Vec<MaglevTarget> {
        (0..count).map(|n| MaglevTarget { id: finalize(n), weight: 1 }).collect()
    }

    #[test]
    fn nobody_alive_means_no_target() {
        assert_eq!(fill_maglev(&[], 7), [NO_TARGET; 7]);
        assert_eq!(fill_maglev(&[MaglevTarget { id: 1, weight: 0 }], 7), [NO_TARGET; 7]);
        assert_eq!(fill_maglev(&targets(3), 0), []);
    }

    /// Fills each bucket individually, as the specification describes it.
    fn obvious(targets: &[MaglevTarget], size: usize) -> Vec<u16> {
        let mut order: Vec<usize> = (0..targets.len()).filter(|&at| targets[at].weight > 0).collect();
        order.sort_by_key(|&at| targets[at].id);
        let mut slots = vec![NO_TARGET; size];
        for _ in 0..size {
            // Strictly less: of equal targets, the first one stays.
            let earlier = |best: usize, at: usize| {
                let taken = |at: usize| slots.iter().filter(|&&slot| usize::from(slot) == at).count() as u64;
                let odd = |at: usize| u128::from(2 * taken(at) + 1);
                let weight = |at: usize| u128::from(targets[at].weight);
                if odd(at) * weight(best) < odd(best) * weight(at) { at } else { best }
            };
            let Some(at) = order.iter().copied().reduce(earlier) else { break };
            MaglevPermutation::new(at as u16, targets[at].id, size).take(&mut slots);
        }
        slots
    }

    /// The share of the other targets' buckets that move when one of `all` is removed: the worst case over
    /// some of them.
    fn moved(all: &[MaglevTarget], size: usize) -> f64 {
        let before = fill_maglev(all, size);
        let gone = |gone: usize| {
            let mut fewer = all.to_vec();
            fewer[gone].weight = 0;
            let after = fill_maglev(&fewer, size);
            let kept = |bucket: &usize| usize::from(before[*bucket]) != gone;
            let others: Vec<usize> = (0..size).filter(kept).collect();
            let moved = others.iter().filter(|&&bucket| before[bucket] != after[bucket]).count();
            moved as f64 / others.len() as f64
        };
        (0..all.len()).step_by(9).map(gone).fold(0.0, f64::max)
    }

    #[test]
    fn the_removal_of_one_of_100_moves_at_most_2_percent_of_the_others_buckets() {
        let mut all = targets(100);
        let equal = moved(&all, 65_537);
        assert!(equal <= 0.02, "{equal}");
        // The default number of buckets of a service with this many back ends.
        let equal = moved(&all, 10_007);
        assert!(equal <= 0.02, "{equal}");
        all.iter_mut().enumerate().for_each(|(at, target)| target.weight = 1 + at as u32 % 7);
        let unequal = moved(&all, 65_537);
        assert!(unequal <= 0.03, "{unequal}");
    }

    /// The pseudocode of NSDI'16, section 3.4, for equal weights.
    fn paper(targets: &[MaglevTarget], size: usize) -> Vec<u16> {
        let (mut next, mut entry, mut n) = (vec![0; targets.len()], vec![NO_TARGET; size], 0);
        let permutation = |i: usize, j: usize| -> usize {
            let (offset, skip) = (
                finalize(targets[i].id ^ OFFSET) as usize % size,
                finalize(targets[i].id ^ SKIP) as usize % (size - 1) + 1,
            );
            (offset + j * skip) % size
        };
        loop {
            for i in 0..targets.len() {
                while entry[permutation(i, next[i])] != NO_TARGET {
                    next[i] += 1;
                }
                entry[permutation(i, next[i])] = i as u16;
                next[i] += 1;
                n += 1;
                if n == size {
                    return entry;
                }
            }
        }
    }

    #[test]
    fn equal_weights_are_the_paper() {
        for count in [1, 2, 3, 50, 250, 251, 300] {
            let mut all = targets(count);
            all.sort_by_key(|target| target.id);
            assert_eq!(fill_maglev(&all, 251), paper(&all, 251), "{count} targets");
            all.iter_mut().for_each(|target| target.weight = 9);
            assert_eq!(fill_maglev(&all, 251), paper(&all, 251), "{count} targets of weight 9");
        }
    }

    #[test]
    fn the_most_targets_that_there_can_be_get_a_bucket_each() {
        let counts = held(&fill_maglev(&targets(65_536), 65_537), 65_536);
        assert_eq!((counts.iter().max(), counts[65_535]), (Some(&2), 0), "the last one is too many");
    }

    /// Other nodes may run another version, so the function must not change by accident.
    #[test]
    fn the_function_is_pinned() {
        let mut three = targets(3);
        assert_eq!(fill_maglev(&three, 13), [0, 1, 2, 1, 2, 1, 0, 2, 0, 1, 2, 1, 0]);
        three[1].weight = 4;
        assert_eq!(held(&fill_maglev(&three, 13), 3), [2, 9, 2]);
    }

    /// Every target's exact share, in buckets.
    fn shares(weights: &[u32], size: usize) -> Vec<f64> {
        let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
        weights.iter().map(|&weight| size as f64 * f64::from(weight) / total).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn the_set_decides_not_the_order_of_the_list(
            mut list in prop::collection::btree_map(any::<u64>(), 0_u32..20, 0..12)
                .prop_map(|set| set.into_iter().map(|(id, weight)| MaglevTarget { id,
                    weight }).collect::<Vec<_>>()),
            size in prop_oneof![Just(251_usize), 1_usize..300],
            rotation in 0_usize..12,
        ) {
            let names = |list: &[MaglevTarget]| -> Vec<Option<u64>> {
                fill_maglev(list, size).iter().map(|&slot| list.get(usize::from(slot)).map(|target|
                    target.id)).collect()
            };
            let before = names(&list);
            let rotation = rotation % list.len().max(1);
            list.rotate_left(rotation);
            prop_assert_eq!(&before, &names(&list));
            list.retain(|target| target.weight > 0);
            prop_assert_eq!(&before, &names(&list));
        }

        #[test]
        fn it_is_what_the_specification_says(
            weights in prop::collection::vec(prop_oneof![0_u32..9, any::<u16>().prop_map(u32::from)], 0..9),
        ) {
            let target = |(n, &weight): (u64, &u32)| MaglevTarget { id: finalize(n), weight };
            let list: Vec<_> = (0..).zip(&weights).map(target).collect();
            prop_assert_eq!(fill_maglev(&list, 61), obvious(&list, 61));
        }

        #[test]
        fn weights_are_exact_to_1_percent_with_100_buckets_for_each_target(
            (weights, size) in (1_usize..12).prop_flat_map(|count| (
                prop::collection::vec(prop_oneof![1_u32..50, 1_u32..65_536], count),
                prop::sample::select(vec![1_009_usize, 1_301, 2_503, 16_381]),
            )),
        ) {
            prop_assume!(size >= 100 * weights.len());
            let list: Vec<_> = (0..).zip(&weights).map(|(id, &weight)| MaglevTarget { id, weight }).collect();
            let counts = held(&fill_maglev(&list, size), list.len());
            for (count, share) in counts.iter().zip(shares(&weights, size)) {
                // A bucket cannot be split.
                let allowed = (share / 100.0).max(1.0);
                prop_assert!((*count as f64 - share).abs() <= allowed, "{} for {}", count, share);
            }
        }
    }
}
