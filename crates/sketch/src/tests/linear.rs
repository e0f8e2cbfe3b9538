//! Aggregated and single packets leave the same bits in every linear sketch.

use super::*;

/// A sketch after updates.
fn after<S>(mut sketch: S, updates: &[Evicted<2>], update: impl Fn(&mut S, &Evicted<2>)) -> S {
    updates.iter().for_each(|evicted| update(&mut sketch, evicted));
    sketch
}

/// Asserts that a sketch is equal after both.
fn assert_same<S: PartialEq + std::fmt::Debug>(
    sketch: impl Fn() -> S,
    [one, other]: [&[Evicted<2>]; 2],
    update: impl Fn(&mut S, &Evicted<2>),
) {
    assert!(after(sketch(), one, &update) == after(sketch(), other, &update));
}

fn assert_same_counts(both: [&[Evicted<2>]; 2]) {
    let count_min = || CountMin::<u32, 4>::with_bytes(2000, &SEED).unwrap();
    assert_same(count_min, both, |sketch, e| _ = sketch.update(e.item.hash, e.packets));
    let bytes = || CountMin::<u64, 3>::with_bytes(2000, &SEED).unwrap();
    assert_same(bytes, both, |sketch, e| _ = sketch.update(e.item.hash, e.bytes));
    let count_sketch = || CountSketch::<i32, 5>::with_bytes(2000, &SEED).unwrap();
    assert_same(count_sketch, both, |sketch, e| _ = sketch.update(e.item.hash, e.packets));
    let mrac = || Mrac::<u32>::with_bytes(2000, &SEED).unwrap();
    assert_same(mrac, both, |sketch, e| sketch.update(e.item.hash, e.packets));
    let reversible = || Reversible::<4, 1>::with_bytes(100_000, &SEED).unwrap();
    assert_same(reversible, both, |sketch, e| sketch.update(source(&e.item.key), e.packets));
    let wide = || Reversible::<8, 2, u64>::with_bytes(100_000, &SEED).unwrap();
    assert_same(wide, both, |sketch, e| sketch.update(e.item.key[0], e.bytes));
}

fn assert_same_sets(both: [&[Evicted<2>]; 2]) {
    let linear = || LinearCounting::with_bytes(1000, &SEED).unwrap();
    assert_same(linear, both, |sketch, e| sketch.update(e.item.hash));
    let flajolet_martin = || FlajoletMartin::with_bytes(256, &SEED).unwrap();
    assert_same(flajolet_martin, both, |sketch, e| sketch.update(e.item.hash));
    let two_level = || TwoLevel::<4, 1>::with_bytes(50_000, &SEED).unwrap();
    assert_same(two_level, both, |sketch, e| sketch.update(source(&e.item.key), e.item.hash));
}

fn assert_same_tables(both: [&[Evicted<2>]; 2]) {
    let [one, other] = both.map(|updates| {
        let univmon = UnivMon::<2>::with_bytes(40_000, 5, 16, &SEED).unwrap();
        after(univmon, updates, |sketch, e| sketch.update(&e.item, e.packets)).counters()
    });
    assert!(one == other);
    let radars = both.map(|updates| {
        let radar = FlowRadar::<2>::with_bytes(1 << 20, &SEED).unwrap();
        after(radar, updates, |sketch, e| sketch.update(&e.item, e.packets))
    });
    // With room for every flow, the filter mistakes none, and all is equal.
    assert!(radars[0] == radars[1]);
    let [one, other] = both.map(|updates| {
        let radar = FlowRadar::<2>::with_bytes(12_000, &SEED).unwrap();
        after(radar, updates, |sketch, e| sketch.update(&e.item, e.packets)).packets()
    });
    assert!(one == other);
}

#[test]
fn aggregation_leaves_no_trace() {
    for number in 0..100 {
        let packets = packets(&stream(number, 4000));
        let policy = Policy::ALL[number as usize % 4];
        let (single, aggregated) = (items(&packets), aggregated(&packets, policy));
        let both = [&single[..], &aggregated[..]];
        assert_same_counts(both);
        assert_same_sets(both);
        assert_same_tables(both);
    }
}

#[test]
fn the_order_of_packets_leaves_no_trace() {
    let packets = packets(&stream(7, 4000));
    let single = items(&packets);
    let mut reversed = single.clone();
    reversed.reverse();
    let both = [&single[..], &reversed[..]];
    assert_same_counts(both);
    assert_same_sets(both);
    assert_same_tables(both);
}
