//! Prints what a packet costs in each solution, alone and behind the aggregator, on this machine. This is not
//! a rigorous benchmark; use `weir bench` for that. Arguments: skews of a Zipf distribution.
#![allow(clippy::print_stdout, reason = "an example")]

use std::time::Instant;
use weir_papers::*;
use weir_sketch::traffic::{Zipf, five_tuple};
use weir_sketch::*;

const FLOWS: u64 = 600_000;
const PACKETS: usize = 2 << 20;
const BURST: usize = 32;
const SEED: Seed = Seed::new([11, 22]);

/// Nanoseconds per packet: the best of three runs after a warm-up.
fn measure(packets: &[Update<2>], mut run: impl FnMut(&[Update<2>])) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..4 {
        let start = Instant::now();
        packets.chunks(BURST).for_each(&mut run);
        best = best.min(start.elapsed().as_nanos() as f64 / packets.len() as f64);
    }
    best
}

/// Bytes of the aggregator: `AGGREGATOR_KIB`, or a mebibyte.
fn aggregator_bytes() -> usize {
    let kib = std::env::var("AGGREGATOR_KIB").ok().and_then(|kib| kib.parse().ok());
    kib.unwrap_or(1024_usize) << 10
}

fn both(name: &str, packets: &[Update<2>], add: impl FnMut(&[Evicted<2>])) {
    both_with(name, Gate::default(), packets, add);
}

fn both_with(name: &str, gate: Gate, packets: &[Update<2>], mut add: impl FnMut(&[Evicted<2>])) {
    let hash = KeyHash::new(&SEED);
    let mut items = Vec::with_capacity(BURST);
    let pure = measure(packets, |burst| {
        items.clear();
        let item = |u: &Update<2>| {
            let Update { key, packets, bytes, note } = *u;
            Evicted { item: hash.item(key), packets, bytes, note }
        };
        items.extend(burst.iter().map(item));
        add(&items);
    });
    let mut out = Vec::with_capacity(2 * BATCH);
    let bytes = aggregator_bytes();
    let mut aggregator = Aggregator::with_bytes(bytes, Policy::MinCount, gate, &SEED).unwrap();
    let aggregated = measure(packets, |burst| {
        aggregator.add(burst, &mut out);
        if out.len() >= BATCH {
            add(&out);
            out.clear();
        }
    });
    let AggregatorCounts { updates, evictions, bypassed, .. } = aggregator.counts();
    let share = (evictions + bypassed) as f64 / updates as f64;
    println!("  {name:16} {pure:8.1} {aggregated:8.1}  {share:.3}");
}

fn policies(packets: &[Update<2>]) {
    for policy in Policy::ALL {
        let mut aggregator =
            Aggregator::with_bytes(aggregator_bytes(), policy, Gate::always_open(), &SEED).unwrap();
        let mut out = Vec::with_capacity(BATCH);
        let nanoseconds = measure(packets, |burst| {
            out.clear();
            aggregator.add(burst, &mut out);
        });
        let AggregatorCounts { updates, evictions, .. } = aggregator.counts();
        let share = evictions as f64 / updates as f64;
        println!("  aggregator alone, {:14} {nanoseconds:6.1} ns, {share:.3} evictions", policy.word());
    }
}

fn solutions(packets: &[Update<2>]) {
    const MIB: usize = 1 << 20;
    let source = |key: &[u64; 2]| key[0] >> 32;
    let mut count_min = CountMin::<u32, 4>::with_bytes(MIB, &SEED).unwrap();
    both("count-min", packets, |items| count_min.add(items));
    let mut heavy = HeavyHitters::<2>::with_bytes(MIB, 128, &SEED).unwrap();
    both("heavy hitters", packets, |items| heavy.add(items));
    let mut radar = FlowRadar::<2>::with_bytes(4 * MIB, &SEED).unwrap();
    both("flow radar", packets, |items| radar.add(items));
    let mut flajolet_martin = FlajoletMartin::with_bytes(512, &SEED).unwrap();
    both("fm", packets, |items| items.iter().for_each(|one| flajolet_martin.update(one.item.hash)));
    let mut linear = LinearCounting::with_bytes(MIB, &SEED).unwrap();
    both("linear counting", packets, |items| linear.add(items));
    let mut mrac = Mrac::<u32>::with_bytes(MIB, &SEED).unwrap();
    both("mrac", packets, |items| mrac.add(items));
    let mut reversible = Reversible::<4, 1>::with_bytes(MIB + (16 << 10), &SEED).unwrap();
    both("reversible", packets, |items| reversible.add(items, source));
    let mut saving = SpaceSaving::<2>::with_bytes(10 << 10).unwrap();
    both("space-saving", packets, |items| {
        items.iter().for_each(|one| saving.update(&one.item, one.packets));
    });
    let mut two_level = TwoLevel::<4, 1>::with_bytes(3 * MIB, &SEED).unwrap();
    both("two-level", packets, |items| two_level.add(items, source));
    let mut univmon = UnivMon::<2>::with_bytes(MIB, 14, 128, &SEED).unwrap();
    both("univmon", packets, |items| univmon.add(items));
}

fn main() {
    let skews: Vec<f64> = std::env::args().skip(1).filter_map(|skew| skew.parse().ok()).collect();
    let only_all = std::env::var_os("ONLY_ALL_NINE").is_some();
    for skew in if skews.is_empty() { vec![0.0, 0.8, 1.1, 1.5] } else { skews } {
        let flows = Zipf::new(FLOWS, skew, 1).take(PACKETS);
        let packets: Vec<Update<2>> = flows.map(|flow| Update::packet(five_tuple(flow), 64)).collect();
        println!("Zipf {skew}: ns per packet, alone and behind the aggregator, and evictions per packet");
        if !only_all {
            policies(&packets);
            solutions(&packets);
        }
        let mut nine: Nine<2> = Nine::with_bytes(&NineBytes::PAPER, &SEED).unwrap();
        // Updating all nine costs some fifteen times as much as a look-up.
        both_with("all nine", Gate::for_costs(22.0, 330.0), &packets, |items| {
            nine.add(items, |key| key[0] >> 32)
        });
    }
}
