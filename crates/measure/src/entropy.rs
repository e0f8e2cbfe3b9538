//! The entropy of packets' keys, computed from the heaviest keys and the number of all keys, with bounds that
//! follow from theirs.
//!
//! With sizes f that add up to N, the entropy is log2 N - S / N, where S is the sum of f·log2 f: a packet
//! contributes the logarithm of its key's size. S is smallest if the uncertain packets are spread over as
//! many keys as possible, and largest if they are concentrated in the heaviest possible keys.

use weir_sketch::{Estimate, TopCounts};

/// f·log2 f.
fn term(size: f64) -> f64 {
    if size > 0.0 { size * size.log2() } else { 0.0 }
}

/// Returns the entropy in bits of everything that a summary has counted, over `keys` keys. `None` without
/// packets.
pub(crate) fn entropy(top: &TopCounts<5>, keys: Estimate) -> Option<Estimate> {
    let total = top.total().packets as f64;
    if total == 0.0 {
        return None;
    }
    let (mut certain, mut sum) = (0.0, 0.0);
    // For each known key, how many more packets it may have, and its size including those.
    let mut open: Vec<(u64, u64)> = Vec::new();
    let mut most = 0.0;
    for row in top.iter() {
        let low = row.packets - row.error;
        certain += low as f64;
        sum += term(low as f64);
        most += low as f64 * (row.packets as f64).log2();
        if row.error > 0 {
            open.push((row.packets, row.error));
        }
    }
    let rest = (total - certain).max(0.0);
    if rest == 0.0 {
        return Some(Estimate::exact((total.log2() - sum / total).max(0.0)));
    }
    let unknown = |keys: f64| (keys - top.len() as f64).max(1.0);
    let spread = |keys: f64| rest * (rest / keys).max(1.0).log2();
    let bits = |sum: f64| (total.log2() - sum / total).clamp(0.0, keys.high.max(1.0).log2());
    let high = bits(sum + spread(unknown(keys.high) + open.len() as f64));
    let low = bits(most + heaviest(rest, open, top.missing()));
    // Not `clamp`, which panics if a forged file's numbers contradict each other.
    let value = bits(sum + spread(unknown(keys.value))).min(high).max(low);
    Some(Estimate { value, low, high, confidence: keys.confidence })
}

/// The maximum contribution of `rest` packets: in the keys with open packets, heaviest first, and then in
/// keys of `missing` packets.
fn heaviest(mut rest: f64, mut open: Vec<(u64, u64)>, missing: u64) -> f64 {
    open.sort_unstable_by(|one, other| other.cmp(one));
    let mut most = 0.0;
    for (packets, error) in open {
        let more = rest.min(error as f64);
        most += more * (packets as f64).log2();
        rest -= more;
    }
    most + rest * (missing.max(1) as f64).log2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_sketch::{Exact, KeyHash, Seed, Update};

    proptest! {
        #[test]
        fn the_truth_is_within_bounds(
            keys in 1_usize..30, updates in prop::collection::vec((0_u64..60, 1_u64..100), 1..300),
        ) {
            let hash = KeyHash::new(&Seed::new([1, 2]));
            let (mut top, mut exact) = (TopCounts::new(keys), Exact::<5>::default());
            for (number, packets) in updates {
                // Squares yield a few heavy keys.
                let key = [number * number / 60, 0, 0, 0, 0];
                top.update(&hash.item(key), packets, 0);
                exact.add(&Update { key, packets, bytes: 0, note: () });
            }
            let found = entropy(&top, Estimate::exact(exact.len() as f64)).unwrap();
            let truth = exact.entropy();
            prop_assert!(found.low - 1e-9 <= truth && truth <= found.high + 1e-9, "{found:?} {truth}");
            if exact.len() <= keys {
                prop_assert!((found.value - truth).abs() < 1e-9 && found.high - found.low < 1e-9);
            }
        }
    }

    #[test]
    fn nothing_has_no_entropy() {
        assert_eq!(entropy(&TopCounts::new(4), Estimate::exact(0.0)), None);
    }
}
