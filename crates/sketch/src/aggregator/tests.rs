use super::*;
use crate::exact::Exact;
use crate::traffic::{Flood, Zipf};
use proptest::prelude::*;

const SEED: Seed = Seed::new([3, 5]);

fn aggregator(rows: usize, policy: Policy, gate: Gate) -> Aggregator<2> {
    let bytes = rows * Aggregator::<2>::BYTES_PER_ROW;
    Aggregator::with_bytes(bytes, policy, gate, &SEED).expect("one row or more")
}

fn updates(numbers: impl IntoIterator<Item = u64>) -> Vec<Update<2>> {
    numbers.into_iter().map(|number| Update::packet([number, !number], 64 + number % 1400)).collect()
}

/// The total output of an aggregator that receives updates in pieces of some size.
fn through(aggregator: &mut Aggregator<2>, updates: &[Update<2>], piece: usize) -> Vec<Evicted<2>> {
    let mut out = Vec::with_capacity(updates.len() + aggregator.capacity());
    for piece in updates.chunks(piece) {
        aggregator.add(piece, &mut out);
    }
    aggregator.flush(|evicted| out.push(*evicted));
    out
}

fn sums(evicted: &[Evicted<2>]) -> Exact<2> {
    let mut exact = Exact::default();
    for Evicted { item, packets, bytes, .. } in evicted {
        exact.add(&Update { key: item.key, packets: *packets, bytes: *bytes, note: () });
    }
    exact
}

fn exact(updates: &[Update<2>]) -> Exact<2> {
    let mut exact = Exact::default();
    updates.iter().for_each(|update| exact.add(update));
    exact
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_comes_out_adds_up_to_what_went_in(
        numbers in prop::collection::vec(0_u64..200, 0..2000),
        rows in 1_usize..4, policy in 0_usize..4, piece in 1_usize..100, closes: bool,
    ) {
        let gate = Gate::new(if closes { 0.0 } else { f64::INFINITY });
        let mut aggregator = aggregator(rows, Policy::ALL[policy], gate);
        let updates = updates(numbers);
        let out = through(&mut aggregator, &updates, piece);
        prop_assert_eq!(sums(&out), exact(&updates));
        let counts = aggregator.counts();
        prop_assert_eq!(counts.updates, updates.len() as u64);
        prop_assert!(counts.hits + counts.evictions + counts.bypassed <= counts.updates);
        prop_assert!(out.iter().all(|evicted| evicted.item.hash
            == aggregator.key_hash().hash(&evicted.item.key)));
        prop_assert_eq!(through(&mut aggregator, &[], 1), []);
    }

    #[test]
    fn the_comparison_is_invisible(
        numbers in prop::collection::vec(0_u64..200, 0..2000), policy in 0_usize..4,
    ) {
        let (updates, policy) = (updates(numbers), Policy::ALL[policy]);
        let mut vectors = aggregator(2, policy, Gate::default());
        let bytes = 2 * Aggregator::<2>::BYTES_PER_ROW;
        let mut scalar = Aggregator::<2, Scalar>::comparing(bytes, policy, Gate::default(), &SEED)
            .expect("two rows");
        let [mut one, mut other] = [Vec::new(), Vec::new()];
        for piece in updates.chunks(50) {
            vectors.add(piece, &mut one);
            scalar.add(piece, &mut other);
        }
        vectors.flush(|evicted| one.push(*evicted));
        scalar.flush(|evicted| other.push(*evicted));
        prop_assert_eq!(one, other);
    }

    #[test]
    fn batches_are_invisible(numbers in prop::collection::vec(0_u64..200, 0..2000), policy in 0_usize..4) {
        let updates = updates(numbers);
        let [one, many] = [1, 64].map(|piece| {
            through(&mut aggregator(2, Policy::ALL[policy], Gate::always_open()), &updates, piece)
        });
        prop_assert_eq!(one, many);
    }
}

#[test]
fn bytes_are_within_what_was_given() {
    for bytes in [1000, 100_000, 1 << 20] {
        let aggregator = Aggregator::<5>::with_bytes(bytes, Policy::Lru, Gate::default(), &SEED).unwrap();
        assert!(aggregator.bytes() <= bytes && aggregator.bytes() + 1000 > bytes * 9 / 10);
    }
    assert!(Aggregator::<5>::with_bytes(900, Policy::Lru, Gate::default(), &SEED).is_err());
}

#[test]
fn a_sweep_in_slices_gives_every_key_once() {
    let updates = updates(0..100);
    let mut aggregator = aggregator(40, Policy::Grr, Gate::always_open());
    let mut out = Vec::new();
    aggregator.add(&updates, &mut out);
    let mut slices = 1;
    while !aggregator.sweep(7, &mut out) {
        slices += 1;
    }
    assert_eq!((slices, sums(&out)), (6, exact(&updates)));
}

#[test]
fn the_policies_that_look_at_hits_evict_less_than_those_that_do_not() {
    let keys: Vec<u64> = Zipf::new(100_000, 1.1, 1).take(400_000).collect();
    let updates = updates(keys);
    let evictions = Policy::ALL.map(|policy| {
        let mut aggregator = aggregator(500, policy, Gate::always_open());
        let mut out = Vec::with_capacity(updates.len());
        aggregator.add(&updates, &mut out);
        aggregator.counts().evictions
    });
    let [grr, lru, second_chance, min_count] = evictions;
    assert!(lru < grr && second_chance < grr && min_count < grr, "{evictions:?}");
}

#[test]
fn the_gate_closes_under_a_flood_and_opens_after_it() {
    let mut aggregator = aggregator(500, Policy::SecondChance, Gate::default());
    let mut out = Vec::with_capacity(1 << 20);
    let uniform = updates(Zipf::new(1_000_000, 0.0, 1).take(300_000));
    aggregator.add(&uniform, &mut out);
    assert!(!aggregator.gate.is_open());
    let counts = aggregator.counts();
    assert!(counts.bypassed > counts.updates * 85 / 100, "{counts:?}");
    out.clear();
    let skewed = updates(Zipf::new(100_000, 1.3, 1).take(2_000_000));
    aggregator.add(&skewed, &mut out);
    assert!(aggregator.gate.is_open());
    let flood = updates(Flood::new(Zipf::new(100_000, 1.3, 1), 0.9, 5).take(300_000));
    aggregator.add(&flood, &mut out);
    assert!(!aggregator.gate.is_open());
}

#[test]
fn dear_sketches_keep_the_gate_open() {
    let uniform = updates(Zipf::new(20_000, 0.0, 1).take(100_000));
    for (gate, is_open) in [(Gate::for_costs(20.0, 30.0), false), (Gate::for_costs(20.0, 400.0), true)] {
        let mut aggregator = aggregator(500, Policy::MinCount, gate);
        let mut out = Vec::with_capacity(uniform.len());
        aggregator.add(&uniform, &mut out);
        let share = aggregator.counts().evictions as f64 / aggregator.counts().updates as f64;
        assert_eq!(aggregator.gate.is_open(), is_open, "{share}");
    }
}

/// A sketch that is hardly dearer than a look-up never pays for one, also where nothing is evicted.
#[test]
fn what_never_pays_is_never_on() {
    for gate in [Gate::new(0.0), Gate::new(-2.0), Gate::for_costs(20.0, 22.0)] {
        let mut aggregator = aggregator(500, Policy::MinCount, gate);
        let few = updates((0..100_000).map(|number| number % 100));
        let mut out = Vec::with_capacity(few.len());
        aggregator.add(&few, &mut out);
        let counts = aggregator.counts();
        assert_eq!((counts.bypassed, counts.hits), (few.len() as u64, 0), "{gate:?}");
        assert_eq!(sums(&out), exact(&few));
    }
}

/// Keys that fill one row of an aggregator with a known seed are spread over the rows of another one.
#[test]
fn keys_chosen_for_a_known_seed_do_not_help_against_another() {
    let known = aggregator(1000, Policy::Lru, Gate::always_open());
    let hostile: Vec<u64> = (0..2_000_000).filter(|n| known.place(&[*n, !n]).row == 17).collect();
    assert!(hostile.len() > 1500);
    let bytes = known.bytes();
    let secret = Aggregator::<2>::with_bytes(bytes, Policy::Lru, Gate::always_open(), &Seed::new([3, 6]));
    let mut secret = secret.unwrap();
    let evictions = [known, secret.clone()].map(|mut aggregator| {
        let mut out = Vec::with_capacity(hostile.len());
        aggregator.add(&updates(hostile.iter().copied()), &mut out);
        aggregator.counts().evictions
    });
    assert!(evictions[0] > 1400 && evictions[1] == 0, "{evictions:?}");
    let out = through(&mut secret, &updates(hostile.iter().copied()), 64);
    assert_eq!(out.len(), hostile.len());
}

/// A million keys chosen so that a known seed puts them into one row in sixteen: with that seed they thrash,
/// with a secret one they cost no more evictions than a million other keys.
#[test]
fn a_million_chosen_keys_cost_no_more_than_others() {
    const KEYS: u64 = 1_000_000;
    const PACKETS: usize = 500_000;
    let known = aggregator(1808, Policy::MinCount, Gate::always_open());
    let is_chosen = |n: &u64| known.place(&[*n, !n]).row < 1808 / 16;
    let chosen: Vec<u64> = (0..17 * KEYS).filter(is_chosen).take(KEYS as usize).collect();
    assert_eq!(chosen.len() as u64, KEYS);
    let evictions = |seed: Seed, keys: &dyn Fn(u64) -> u64| {
        let gate = Gate::always_open();
        let mut aggregator = Aggregator::<2>::with_bytes(known.bytes(), Policy::MinCount, gate, &seed)
            .expect("as large as the other");
        let mut out = Vec::with_capacity(PACKETS);
        aggregator.add(&updates(Zipf::new(KEYS, 1.1, 1).take(PACKETS).map(keys)), &mut out);
        aggregator.counts().evictions
    };
    let others = evictions(Seed::new([3, 6]), &|number| number);
    let secret = evictions(Seed::new([3, 6]), &|number| chosen[number as usize]);
    let thrashing = evictions(SEED, &|number| chosen[number as usize]);
    assert!(secret < others * 11 / 10, "{secret}, and {others} for keys that were not chosen");
    assert!(thrashing > others * 3 / 2, "{thrashing}: chosen keys do no harm even to the seed they target");
}
