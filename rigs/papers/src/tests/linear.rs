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

/// Updates in batches leave the state that single updates leave, even where keys are remembered.
#[test]
fn batches_leave_no_trace() {
    for number in 0..20 {
        let updates = aggregated(&packets(&stream(number, 3000)), Policy::Grr);
        let mut bytes = NineBytes::PAPER;
        bytes.two_level = 200_000;
        let mut one = Nine::<2>::with_bytes(&bytes, &SEED).unwrap();
        let mut other = one.clone();
        let mut count_min = CountMin::<u32, 4>::with_bytes(2000, &SEED).unwrap();
        let mut count_min_in_batches = count_min.clone();
        for update in &updates {
            let Evicted { item, packets, .. } = update;
            one.count_min.update(item, *packets);
            one.flow_radar.update(item, *packets);
            one.flajolet_martin.update(item.hash);
            one.linear_counting.update(item.hash);
            one.mrac.update(item.hash, *packets);
            one.reversible.update(source(&item.key), *packets);
            one.space_saving.update(item, *packets);
            one.two_level.update(source(&item.key), item.hash);
            one.univmon.update(item, *packets);
            count_min.update(item.hash, *packets);
        }
        updates.chunks(70).for_each(|batch| other.add(batch, source));
        updates.chunks(70).for_each(|batch| count_min_in_batches.add(batch));
        assert!(count_min == count_min_in_batches);
        assert_eq!(one.count_min.heavier(0), other.count_min.heavier(0));
        assert!(one.flow_radar == other.flow_radar && one.mrac == other.mrac);
        assert!(one.linear_counting == other.linear_counting && one.reversible == other.reversible);
        assert!(one.flajolet_martin == other.flajolet_martin && one.two_level == other.two_level);
        assert_eq!(one.space_saving.top(1000), other.space_saving.top(1000));
        assert!(one.univmon.counters() == other.univmon.counters());
        assert_eq!(one.univmon.heavier(0), other.univmon.heavier(0));
        assert_eq!(one.univmon.entropy(), other.univmon.entropy());
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
