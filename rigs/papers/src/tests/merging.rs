//! Two sketches merged are the sketch of both streams, and unlike ones are refused.

use super::*;

const OTHER: Seed = Seed::new([1, 2]);

/// Counts one stream in two halves and as a whole, merges the halves, and returns both.
fn merged<S>(
    sketch: impl Fn() -> S,
    items: &[Evicted<2>],
    update: impl Fn(&mut S, &Evicted<2>),
    merge: impl Fn(&mut S, &S) -> Result<(), MergeError>,
) -> [S; 2] {
    let (mut first, mut second, mut whole) = (sketch(), sketch(), sketch());
    for (at, item) in items.iter().enumerate() {
        update(if at * 3 < items.len() { &mut first } else { &mut second }, item);
        update(&mut whole, item);
    }
    merge(&mut first, &second).expect("alike");
    [first, whole]
}

#[test]
fn merging_equals_one_stream() {
    for number in 0..30 {
        let items = items(&packets(&stream(number, 3000)));
        let [one, other] = merged(
            || CountMin::<u32, 4>::with_bytes(2000, &SEED).unwrap(),
            &items,
            |sketch, e| _ = sketch.update(e.item.hash, e.packets),
            CountMin::merge,
        );
        assert!(one == other);
        let [one, other] = merged(
            || CountSketch::<i64, 5>::with_bytes(2000, &SEED).unwrap(),
            &items,
            |sketch, e| _ = sketch.update(e.item.hash, e.bytes),
            CountSketch::merge,
        );
        assert!(one == other);
        let [one, other] = merged(
            || Mrac::<u32>::with_bytes(2000, &SEED).unwrap(),
            &items,
            |sketch, e| sketch.update(e.item.hash, e.packets),
            Mrac::merge,
        );
        assert!(one == other);
        let [one, other] = merged(
            || Reversible::<4, 1>::with_bytes(100_000, &SEED).unwrap(),
            &items,
            |sketch, e| sketch.update(source(&e.item.key), e.packets),
            Reversible::merge,
        );
        assert!(one == other);
        merging_sets_equals_one_stream(&items);
        merging_univmon_equals_one_stream(&items);
    }
}

fn merging_sets_equals_one_stream(items: &[Evicted<2>]) {
    let [one, other] = merged(
        || LinearCounting::with_bytes(1000, &SEED).unwrap(),
        items,
        |sketch, e| sketch.update(e.item.hash),
        LinearCounting::merge,
    );
    assert!(one == other);
    let [one, other] = merged(
        || FlajoletMartin::with_bytes(256, &SEED).unwrap(),
        items,
        |sketch, e| sketch.update(e.item.hash),
        FlajoletMartin::merge,
    );
    assert!(one == other);
    let [one, other] = merged(
        || TwoLevel::<4, 1>::with_bytes(50_000, &SEED).unwrap(),
        items,
        |sketch, e| sketch.update(source(&e.item.key), e.item.hash),
        TwoLevel::merge,
    );
    assert!(one == other);
}

fn merging_univmon_equals_one_stream(items: &[Evicted<2>]) {
    let [one, other] = merged(
        || UnivMon::<2>::with_bytes(40_000, 5, 16, &SEED).unwrap(),
        items,
        |sketch, e| sketch.update(&e.item, e.packets),
        UnivMon::merge,
    );
    assert!(one.counters() == other.counters());
    assert_eq!(one.total(), other.total());
}

#[test]
fn flow_radars_of_different_flows_merge() {
    let items = items(&packets(&stream(3, 3000)));
    let radar = || FlowRadar::<2>::with_bytes(1 << 18, &SEED).unwrap();
    let (mut first, mut second, mut whole) = (radar(), radar(), radar());
    for e in &items {
        let half = if e.item.hash % 2 == 0 { &mut first } else { &mut second };
        half.update(&e.item, e.packets);
        whole.update(&e.item, e.packets);
    }
    let once = first.clone();
    first.merge(&second).unwrap();
    assert!(first == whole);
    first.merge(&once).unwrap();
    assert!(!first.decode(&KeyHash::new(&SEED)).is_exact);
}

/// Even if the halves forgot keys, the bounds of the whole hold, and no heavy key is lost.
#[test]
fn merged_space_savings_keep_their_bounds() {
    for number in 0..50 {
        let packets = packets(&stream(number, 3000));
        let (truth, items) = (exact(&packets), items(&packets));
        let [merged, _] = merged(
            || SpaceSaving::<2>::with_keys(50),
            &items,
            |sketch, e| sketch.update(&e.item, e.packets),
            SpaceSaving::merge,
        );
        for e in &items {
            let size = truth.get(&e.item.key).packets as f64;
            let estimate = merged.estimate(&e.item);
            assert!(estimate.holds(size), "{estimate:?} {size}");
            assert!(estimate.high - estimate.low <= 3000.0 / 50.0 + 1.0, "{estimate:?}");
        }
        let heavy = truth.heavier(3000 / 50 + 1);
        let found = merged.top(50);
        assert!(heavy.iter().all(|(key, _)| found.iter().any(|top| top.key == *key)));
    }
}

#[test]
fn heavy_hitters_merge_with_their_keys() {
    let flows: Vec<u64> = traffic::Zipf::new(5000, 1.2, 4).take(20_000).collect();
    let packets = packets(&flows);
    let [merged, whole] = merged(
        || HeavyHitters::<2>::with_bytes(100_000, 64, &SEED).unwrap(),
        &items(&packets),
        |sketch, e| sketch.update(&e.item, e.packets),
        HeavyHitters::merge,
    );
    assert_eq!(merged.heavier(200), whole.heavier(200));
    assert!(!merged.heavier(200).is_empty());
}

#[test]
fn unlike_sketches_are_refused() {
    let linear = |bytes, seed| LinearCounting::with_bytes(bytes, seed).unwrap();
    assert!(linear(1000, &SEED).merge(&linear(1000, &OTHER)).is_err());
    assert!(linear(1000, &SEED).merge(&linear(2000, &SEED)).is_err());
    let count_min = |bytes, seed| CountMin::<u32, 4>::with_bytes(bytes, seed).unwrap();
    assert!(count_min(1000, &SEED).merge(&count_min(1000, &OTHER)).is_err());
    assert!(count_min(1000, &SEED).merge(&count_min(2000, &SEED)).is_err());
    let univmon = |levels, seed| UnivMon::<2>::with_bytes(100_000, levels, 16, seed).unwrap();
    assert!(univmon(5, &SEED).merge(&univmon(5, &OTHER)).is_err());
    assert!(univmon(5, &SEED).merge(&univmon(6, &SEED)).is_err());
    let reversible = |seed| Reversible::<4, 1>::with_bytes(100_000, seed).unwrap();
    assert!(reversible(&SEED).merge(&reversible(&OTHER)).is_err());
    let two_level = |seed| TwoLevel::<4, 1>::with_bytes(100_000, seed).unwrap();
    assert!(two_level(&SEED).merge(&two_level(&OTHER)).is_err());
    let radar = |seed| FlowRadar::<2>::with_bytes(100_000, seed).unwrap();
    assert!(radar(&SEED).merge(&radar(&OTHER)).is_err());
    assert!(SpaceSaving::<2>::with_keys(10).merge(&SpaceSaving::with_keys(11)).is_err());
}
