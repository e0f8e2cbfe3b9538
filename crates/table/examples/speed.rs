//! Measures the tables: `cargo run --release -p table --example speed [name]` prints nanoseconds per item and
//! millions of items per second.
//!
//! Keys are visited in random order, so that each look-up in a large table misses the caches. An item is a
//! look-up, an insertion, or a packet.

use std::hint::black_box;
use std::time::Instant;
use weir_packet::FlowKey;
use weir_packet::random::Random;
use weir_table::*;

const MILLION: usize = 1 << 20;

/// How often a measurement is repeated.
const RUNS: usize = 30;

/// Runs `work`, which returns how many items it processed. Returns the nanoseconds per item of the best run,
/// because other programs use this machine too.
fn measure(mut work: impl FnMut() -> usize) -> f64 {
    let runs = (0..RUNS).map(|_| {
        let start = Instant::now();
        let items = work();
        start.elapsed().as_nanos() as f64 / items as f64
    });
    runs.fold(f64::MAX, f64::min)
}

fn print(name: &str, nanoseconds: f64) {
    println!("{name:<50} {nanoseconds:>8.2} ns {:>9.1} M/s", 1000.0 / nanoseconds);
}

fn time(name: &str, work: impl FnMut() -> usize) {
    print(name, measure(work));
}

/// Derives a key from a number, cheaply enough to do so between look-ups: on a data path, keys are in the
/// first-level cache too.
fn key<const W: usize>(number: u64) -> [u64; W] {
    std::array::from_fn(|word| number ^ word as u64)
}

/// Hashes the key derived from a number.
fn hash(number: u64) -> u64 {
    Random::new(number).bits()
}

/// Passes batches of keys and hashes of random numbers below `range` to `work`. The cost of producing them is
/// measured first and subtracted.
fn time_batches<K>(
    name: &str,
    range: usize,
    key: impl Fn(u64) -> K,
    mut work: impl FnMut(&[K; 64], &[u64; 64]),
) {
    let mut random = Random::new(9);
    let mut run = |work: &mut dyn FnMut(&[K; 64], &[u64; 64])| {
        measure(|| {
            for _ in 0..MILLION / 4 / 64 {
                let numbers: [u64; 64] = std::array::from_fn(|_| random.below(range as u64));
                work(black_box(&std::array::from_fn(|i| key(numbers[i]))), black_box(&numbers.map(hash)));
            }
            MILLION / 4
        })
    };
    let making = run(&mut |_, _| ());
    print(name, run(&mut work) - making);
}

fn exact<const W: usize>(entries: usize) {
    let mut table = Exact::with_capacity(entries);
    let fill = |table: &mut Exact<W, u64>, range: std::ops::Range<usize>| {
        for n in range {
            table.insert(hash(n as u64), key(n as u64), 0).expect("room");
        }
    };
    time(&format!("exact W={W} {entries}: insert up to capacity"), || {
        table = Exact::with_capacity(entries);
        fill(&mut table, 0..entries);
        entries
    });
    let mut rows = [0; 64];
    for (percent, range) in [(100, entries), (50, 2 * entries)] {
        time_batches(
            &format!("exact W={W} {entries}: lookup, {percent}% hit"),
            range,
            key,
            |keys, hashes| {
                hashes.iter().for_each(|&hash| table.prefetch_bucket(hash));
                black_box(table.lookup_batch(keys, hashes, u64::MAX, &mut rows));
            },
        );
    }
    time(&format!("exact W={W} {entries}: remove one, insert one"), || {
        for n in 0..entries as u64 {
            let (_, data) = table.remove(hash(n), &key(n)).expect("there");
            table.insert(hash(n), key(n), data).expect("room");
        }
        entries
    });
}

fn small() {
    let mut table = Small::<2>::new();
    (0..4).for_each(|n| _ = table.insert([n, n]));
    let keys = std::array::from_fn(|i| [i as u64 % 5, i as u64 % 5]);
    time("small W=2 4 keys: lookup, 80% hit", || {
        for _ in 0..MILLION / 64 {
            black_box(table.lookup_batch(black_box(&keys), u64::MAX));
        }
        MILLION
    });
}

/// A visitor that finds no flow old enough to be removed.
struct Young;

impl Visitor for Young {
    fn judge(&self, _row: u32, flow: &Flow, _table: &FlowTable) -> SweepVerdict {
        if flow.idle(0) >= 1 << 30 { SweepVerdict::Goes(DeltaReason::Aged) } else { SweepVerdict::Stays }
    }

    fn accept(&mut self, _row: u32, _flow: &Flow, _fate: SweepVerdict) -> bool {
        true
    }
}

fn flow(flows: usize) {
    let mut table = FlowTable::with_capacity(flows);
    let key = |n: u64| FlowKey(key(n));
    time(&format!("flow {flows}: learn up to capacity"), || {
        table = FlowTable::with_capacity(flows);
        for n in 0..flows as u64 {
            table.learn(hash(n), &key(n), Decision::Pinned(1), 0).expect("room");
        }
        flows
    });
    let mut rows = [0; 64];
    time_batches(&format!("flow {flows}: lookup"), flows, key, |keys, hashes| {
        black_box(table.lookup_batch(keys, hashes, (u64::MAX, 0), &mut rows));
    });
    time_batches(&format!("flow {flows}: lookup, count, decision"), flows, key, |keys, hashes| {
        assert_eq!(table.lookup_batch(keys, hashes, (u64::MAX, 0), &mut rows), u64::MAX);
        for row in rows {
            black_box(table.count(row, 100, 1));
            black_box(table.flow(row).map(Flow::decision));
        }
    });
    time(&format!("flow {flows}: age, none idle"), || {
        let mut visited = 0;
        while visited < flows {
            visited += table.sweep((64, 0), |_| 0, &mut Young) as usize;
        }
        visited
    });
}

fn bucket() {
    let targets: Vec<MaglevTarget> = (0..100).map(|id| MaglevTarget { id, weight: 1 }).collect();
    time("bucket: maglev fill, 100 targets, 65537 buckets", || black_box(fill_maglev(&targets, 65537)).len());
    let (slots, _) = fill_wants(None, &[1; 100], 65536);
    let mut weights = [1; 100];
    weights[7] = 0;
    time("bucket: wants fill, 1 of 100 fails, 65536 buckets", || {
        black_box(fill_wants(Some(&slots), &weights, 65536)).0.len()
    });
    let buckets = Buckets::new(fill_maglev(&targets, 65537));
    let mut random = Random::new(3);
    let hashes: Vec<u64> = (0..MILLION).map(|_| random.bits()).collect();
    time("bucket: pick of 65537", || {
        hashes.iter().for_each(|&hash| _ = black_box(buckets.pick(hash)));
        MILLION
    });
}

/// Prefixes in the unicast space: 60 % are /24, the others /16 to /32; for IPv6, /32 to /64 in 2000::/3.
fn prefixes(width: Width, count: usize, random: &mut Random) -> Vec<(u128, u8)> {
    (0..count)
        .map(|_| match width {
            Width::V4 => {
                let length = if random.below(10) < 6 { 24 } else { 16 + random.below(17) as u8 };
                (u128::from(random.bits() as u32 & u32::MAX << (32 - length)), length)
            }
            Width::V6 => {
                let length = [32, 40, 44, 48, 48, 48, 56, 64][random.below(8) as usize];
                (u128::from(random.bits() >> 3 | 1 << 61) << 64 & u128::MAX << (128 - length), length)
            }
        })
        .collect()
}

fn lpm(width: Width, count: usize) {
    let mut random = Random::new(4);
    let prefixes = prefixes(width, count, &mut random);
    let mut table = Lpm::with_capacity(width, count);
    time(&format!("lpm {width:?} {count}: insert"), || {
        table = Lpm::with_capacity(width, count + 1);
        prefixes.iter().for_each(|&(prefix, length)| _ = table.insert(prefix, length, 1));
        count
    });
    println!("    {} nodes of 64 B", table.nodes());
    let mut run = |name: &str, table: &Lpm, inside: bool| {
        let batches: Vec<[u128; 64]> = (0..MILLION / 64)
            .map(|_| {
                std::array::from_fn(|_| {
                    let (prefix, length) = prefixes[random.below(count as u64) as usize];
                    let host = u128::from(random.bits()) << 64 | u128::from(random.bits());
                    let host = host
                        & !u128::MAX.checked_shr(128 - u32::from(width.bits())).unwrap_or(0).wrapping_neg();
                    let behind =
                        u128::MAX.checked_shr(u32::from(length) + 128 - u32::from(width.bits())).unwrap_or(0);
                    if inside { prefix | host & behind } else { host }
                })
            })
            .collect();
        let mut values = [0; 64];
        time(&format!("lpm {width:?} {count}: lookup, {name}"), || {
            for addresses in &batches {
                black_box(table.lookup_batch(addresses, u64::MAX, &mut values));
            }
            MILLION
        });
    };
    run("inside the prefixes", &table, true);
    run("anywhere", &table, false);
    let high = 1_u128 << (width.bits() - 3);
    time(&format!("lpm {width:?} {count}: a /3 in and out"), || {
        table.insert(high, 3, 9).expect("room");
        table.remove(high, 3);
        1
    });
}

fn acl(rules: u32, masks: usize) {
    let mut random = Random::new(5);
    let masks: Vec<[u64; 5]> = (0..masks)
        .map(|n| {
            [
                0,
                0xFFFF_FFFF & 0xFFFF_FFFF << (n % 3 * 8),
                0,
                0xFFFF_FFFF & 0xFFFF_FFFF << (n / 3 * 4),
                0xFF << 24 | 0xFFFF << (32 * (n as u64 & 1)),
            ]
        })
        .collect();
    let mut table = Acl::with_capacity(rules as usize, 99);
    let keys: Vec<[u64; 5]> = (0..rules).map(|_| std::array::from_fn(|_| random.bits())).collect();
    for (id, key) in (0..).zip(&keys) {
        let mask = masks[random.below(masks.len() as u64) as usize];
        let priority = random.below(1000) as u32;
        table.insert(Rule { id, priority, key: *key, mask, ..Rule::default() }).expect("room");
    }
    let name = format!("acl {rules} rules, {} masks: lookup", table.tuples());
    for (what, hit) in [("hit", true), ("miss", false)] {
        let batches: Vec<[[u64; 5]; 64]> = (0..256)
            .map(|_| {
                std::array::from_fn(|_| {
                    if hit {
                        keys[random.below(keys.len() as u64) as usize]
                    } else {
                        std::array::from_fn(|_| random.bits())
                    }
                })
            })
            .collect();
        let mut ids = [0; 64];
        time(&format!("{name}, {what}"), || {
            for keys in &batches {
                black_box(table.lookup_batch(keys, u64::MAX, &mut ids));
            }
            batches.len() * 64
        });
    }
}

fn meter() {
    let (single, two) =
        (MeterSecond::Excess { ebs: 15_000 }, MeterSecond::Peak { pir: 2_000_000_000, pbs: 30_000 });
    for (name, second) in [("single rate", single), ("two rates", two)] {
        let unit = MeterUnit::Bytes;
        let config = MeterConfig { unit, cir: 1_000_000_000, cbs: 15_000, second, colour_aware: false };
        let mut meter = Meter::new(config).expect("a good configuration");
        time(&format!("meter {name}: one meter, packets one by one"), || {
            (0..MILLION as u64).for_each(|n| _ = black_box(meter.color(n * 50, 100, Color::Green)));
            MILLION
        });
    }
}

fn main() {
    let only = std::env::args().nth(1).unwrap_or_default();
    let run = |name: &str| name.starts_with(&only);
    if run("exact") {
        exact::<2>(MILLION);
        exact::<5>(MILLION);
        exact::<2>(10_000);
        exact::<5>(10_000);
    }
    if run("small") {
        small();
    }
    if run("flow") {
        flow(MILLION);
        flow(10_000);
    }
    if run("bucket") {
        bucket();
    }
    if run("lpm") {
        lpm(Width::V4, 10_000);
        lpm(Width::V4, 500_000);
        lpm(Width::V6, 10_000);
    }
    if run("acl") {
        acl(100, 8);
        acl(10_000, 8);
        acl(1000, 20);
    }
    if run("meter") {
        meter();
    }
}
