//! hash -> bucket -> target.
//!
//! A group maps a flow's hash to one of its buckets, and the bucket names the target, so that few flows move
//! when the set of targets changes. There are two ways to fill the buckets. Maglev ([`crate::maglev`]) is a
//! pure function of the set of targets: every node of a fleet computes the same buckets without
//! communicating, and a change of the set moves little more than it must. The rings of other systems are pure
//! functions, too ([`crate::katran`], [`crate::glb`]). Wants-count ([`fill_wants`]) starts from the present
//! buckets and moves as few as possible. Its result depends on history, so it is meant for the members and
//! paths of a single host.
//!
//! Which bucket a hash falls into is part of the specification, because all nodes must agree: `bucket =
//! ((hash >> 32) * size) >> 32`. A group with its own seed uses [`seeded`] instead of the hash, so that
//! groups in sequence choose independently. In [`crate::given`] the caller fills the buckets.
//!
//! Costs: 2 bytes per bucket; a pick is a multiplication and a load.

use std::collections::VecDeque;

/// The target of a bucket in a group without live targets.
pub const NO_TARGET: u16 = u16::MAX;

/// The largest number of targets in a group: target numbers are `u16`, and the last one means "none".
pub const TARGETS_MAX: usize = NO_TARGET as usize;

/// The largest number of buckets in a group: enough for a Maglev prime above 2^16.
pub const BUCKETS_MAX: usize = 1 << 20;

/// The buckets of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    slots: Vec<u16>,
}

impl Buckets {
    /// Wraps buckets filled by [`crate::fill_maglev`] or [`fill_wants`].
    #[must_use]
    pub fn new(slots: Vec<u16>) -> Buckets {
        Buckets { slots }
    }

    /// Returns the bucket of a hash; 0 if there are no buckets.
    #[inline(always)]
    #[must_use]
    pub fn bucket(&self, hash: u64) -> usize {
        // The product of two 32-bit numbers cannot overflow, and no Vec<u16> here is longer than that.
        (((hash >> 32) * self.slots.len() as u64) >> 32) as usize
    }

    /// Returns the target of a hash, or [`NO_TARGET`].
    #[inline(always)]
    #[must_use]
    pub fn pick(&self, hash: u64) -> u16 {
        self.slots.get(self.bucket(hash)).copied().unwrap_or(NO_TARGET)
    }

    /// Returns the targets of all buckets.
    #[inline(always)]
    #[must_use]
    pub fn slots(&self) -> &[u16] {
        &self.slots
    }

    /// Assigns a target to one bucket. `bucket` must be below the size.
    pub fn set(&mut self, bucket: usize, target: u16) {
        self.slots[bucket] = target;
    }
}

/// Derives the hash that picks buckets in a group with this seed. Part of the specification.
#[inline]
#[must_use]
pub fn seeded(hash: u64, seed: u64) -> u64 {
    finalize(hash ^ seed)
}

/// Widens a 32-bit hash, such as a NIC's, to 64 bits: both halves hold it, so that the upper half picks a
/// bucket. Part of the specification.
#[inline(always)]
#[must_use]
pub fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

/// The finalizer of splitmix64. Part of the specification.
#[inline]
pub(crate) fn finalize(word: u64) -> u64 {
    let word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// Fills `size` buckets (at most [`BUCKETS_MAX`]) by weight, changing as few of `previous` as possible; also
/// returns how many differ from it.
///
/// A live target (weight above 0) wants `size * weight / total` buckets; the remainder goes to the largest
/// fractions (among equal fractions, first to the target that has more buckets already, then to the lower
/// number). A bucket changes its target only if the target is dead or has more than it wants. If the size
/// differs from that of `previous`, all buckets count as moved.
#[must_use]
pub fn fill_wants(previous: Option<&[u16]>, weights: &[u32], size: usize) -> (Vec<u16>, usize) {
    let size = size.min(BUCKETS_MAX);
    let weights = &weights[..weights.len().min(TARGETS_MAX)];
    let mut slots =
        previous.filter(|slots| slots.len() == size).map_or_else(|| vec![NO_TARGET; size], <[u16]>::to_vec);
    let before = slots.clone();
    let mut wants = wants(weights, &held(&slots, weights.len()), size);
    for slot in &mut slots {
        match wants.get_mut(usize::from(*slot)) {
            Some(want) if *want > 0 => *want -= 1,
            _ => *slot = NO_TARGET,
        }
    }
    let mut hungry: VecDeque<(u16, usize)> = (0..).zip(wants).filter(|entry| entry.1 > 0).collect();
    for slot in slots.iter_mut().filter(|slot| **slot == NO_TARGET) {
        let Some((target, want)) = hungry.pop_front() else { break };
        *slot = target;
        if want > 1 {
            hungry.push_back((target, want - 1));
        }
    }
    let moved = before.iter().zip(&slots).filter(|(before, after)| before != after).count();
    (slots, moved)
}

/// Counts the buckets that each target has.
pub(crate) fn held(slots: &[u16], targets: usize) -> Vec<usize> {
    let mut held = vec![0; targets];
    for &slot in slots {
        if let Some(count) = held.get_mut(usize::from(slot)) {
            *count += 1;
        }
    }
    held
}

/// Computes how many buckets each target wants: the whole part of its share, and one more for each of the
/// largest remainders.
pub(crate) fn wants(weights: &[u32], held: &[usize], size: usize) -> Vec<usize> {
    let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
    if total == 0 {
        return vec![0; weights.len()];
    }
    let share = |weight: u32| (size as u64 * u64::from(weight) / total) as usize;
    let remainder = |weight: u32| size as u64 * u64::from(weight) % total;
    let mut wants: Vec<usize> = weights.iter().map(|&weight| share(weight)).collect();
    let mut order: Vec<usize> = (0..weights.len()).filter(|&at| weights[at] > 0).collect();
    order.sort_by_key(|&at| (u64::MAX - remainder(weights[at]), held[at] <= wants[at], at));
    let missing = size - wants.iter().sum::<usize>();
    for &at in order.iter().take(missing) {
        wants[at] += 1;
    }
    wants
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pick_never_leaves_the_buckets() {
        assert_eq!(Buckets::default().pick(u64::MAX), NO_TARGET);
        let buckets = Buckets::new((0..251).collect());
        assert_eq!((buckets.pick(0), buckets.pick(u64::MAX)), (0, 250));
        assert_eq!(buckets.pick(1 << 63), 125);
    }

    #[test]
    fn nobody_alive_means_no_target() {
        assert_eq!(fill_wants(None, &[0, 0], 4), (vec![NO_TARGET; 4], 0));
        assert_eq!(fill_wants(Some(&[0, 1, 0, 1]), &[0, 0], 4), (vec![NO_TARGET; 4], 4));
        assert_eq!(fill_wants(None, &[1], 0), (vec![], 0));
    }

    #[test]
    fn wants_without_history_take_turns() {
        assert_eq!(fill_wants(None, &[1, 0, 2], 6), (vec![0, 2, 0, 2, 2, 2], 6));
    }

    #[test]
    fn equal_shares_move_nothing_for_a_remainder() {
        // Three targets share four buckets: the target that has two may keep them.
        assert_eq!(fill_wants(Some(&[2, 2, 0, 1]), &[5, 5, 5], 4), (vec![2, 2, 0, 1], 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn wants_are_met_and_the_fewest_move(
            previous in prop::option::of(prop::collection::vec(prop_oneof![0_u16..9, Just(NO_TARGET)], 64)),
            weights in prop::collection::vec(prop_oneof![Just(0_u32), 1_u32..5, any::<u32>()], 0..8),
        ) {
            let (slots, moved) = fill_wants(previous.as_deref(), &weights, 64);
            prop_assert_eq!(fill_wants(Some(&slots), &weights, 64), (slots.clone(), 0),
                "filled buckets stay");
            let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
            if total == 0 {
                prop_assert!(slots.iter().all(|&slot| slot == NO_TARGET));
                return Ok(());
            }
            let (counts, before) = (held(&slots, weights.len()), held(previous.as_deref().unwrap_or(&[]),
                weights.len()));
            prop_assert_eq!(counts.iter().sum::<usize>(), 64);
            let (mut least, mut spare_rounds) = (0, 0);
            for (at, &weight) in weights.iter().enumerate() {
                let floor = (64 * u64::from(weight) / total) as usize;
                prop_assert!(counts[at] == floor || counts[at] == floor + 1, "balance within one bucket");
                prop_assert!(weight > 0 || counts[at] == 0);
                least += before[at].min(counts[at]);
                spare_rounds += counts[at] - floor;
            }
            // Only buckets of dead targets and of targets with more than they want move, each of them once.
            prop_assert_eq!(moved, 64 - least);
            // A target that got one of the remainders has at least as large a fraction as the targets that
            // did not.
            let fraction = |at: usize| 64 * u64::from(weights[at]) % total;
            let floor = |at: usize| (64 * u64::from(weights[at]) / total) as usize;
            let winners = (0..weights.len()).filter(|&at| counts[at] > floor(at)).map(fraction).min();
            let losers = (0..weights.len()).filter(|&at| counts[at] == floor(at)).map(fraction).max();
            prop_assert!(spare_rounds == 0 || losers.is_none() || winners >= losers);
        }
    }
}
