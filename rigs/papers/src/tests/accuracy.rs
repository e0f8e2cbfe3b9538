//! Estimates compared with the truth, on streams as large as an interval.

use super::*;
use weir_sketch::accuracy::{Found, are, relative_error, wmre};
use weir_sketch::traffic::Zipf;

const FLOWS: u64 = 60_000;
const PACKETS: usize = 600_000;

fn zipf(skew: f64, seed: u64) -> Vec<Update<2>> {
    packets(&Zipf::new(FLOWS, skew, seed).take(PACKETS).collect::<Vec<_>>())
}

#[test]
fn heavy_hitters_at_600_kb() {
    let packets = zipf(1.1, 1);
    let truth = exact(&packets);
    let least = PACKETS as u64 * 2 / 10_000;
    let heavy: Vec<[u64; 2]> = truth.heavier(least).into_iter().map(|(key, _)| key).collect();
    let mut count_min = HeavyHitters::<2>::with_bytes(600_000, 4096, &SEED).unwrap();
    let mut univmon = UnivMon::<2>::with_bytes(600_000, 6, 512, &SEED).unwrap();
    let mut summary = SpaceSaving::<2>::with_bytes(600_000).unwrap();
    for e in aggregated(&packets, Policy::SecondChance) {
        count_min.update(&e.item, e.packets);
        univmon.update(&e.item, e.packets);
        summary.update(&e.item, e.packets);
    }
    let f1 = |top: Vec<Top<2>>| {
        let keys = top.into_iter().filter(|top| top.size.value >= least as f64).map(|top| top.key);
        Found::new(heavy.iter().copied(), keys).f1()
    };
    let found = [f1(count_min.heavier(least)), f1(summary.heavier(least)), f1(univmon.heavier(least))];
    assert!(found[0] >= 0.99 && found[1] >= 0.99 && found[2] >= 0.9, "{found:?}");
    let sizes = |top: Vec<Top<2>>| {
        are(top.into_iter().map(|top| (truth.get(&top.key).packets as f64, top.size.value)))
    };
    let errors = [sizes(count_min.heavier(least)), sizes(summary.top(100))];
    assert!(errors.iter().all(|error| *error < 0.02), "{errors:?}");
}

#[test]
fn distribution_entropy_and_cardinality() {
    for skew in [0.6, 1.0, 1.3] {
        let packets = zipf(skew, 2);
        let truth = exact(&packets);
        let mut mrac = Mrac::<u32>::with_bytes(600_000, &SEED).unwrap();
        let mut univmon = UnivMon::<2>::with_bytes(2_000_000, 9, 1000, &SEED).unwrap();
        for e in items(&packets) {
            mrac.update(e.item.hash, 1);
            univmon.update(&e.item, 1);
        }
        let distribution = mrac.distribution();
        let error = wmre(&truth.distribution(), &distribution.sizes);
        let flows: f64 = distribution.sizes.iter().map(|(_, flows)| flows).sum();
        let total: f64 = distribution.sizes.iter().map(|(size, flows)| *size as f64 * flows).sum();
        let entropies =
            [distribution.entropy(), univmon.entropy()].map(|e| relative_error(truth.entropy(), e));
        let cardinality = relative_error(truth.len() as f64, univmon.cardinality());
        println!(
            "skew {skew}: WMRE {error:.4}, RE of entropy {entropies:?}, of cardinality {cardinality:.4}"
        );
        assert!(error < 0.2, "{skew}: WMRE {error}");
        assert!(distribution.flows.holds(truth.len() as f64));
        assert!(relative_error(truth.len() as f64, flows) < 0.02, "{flows} of {}", truth.len());
        assert!(relative_error(PACKETS as f64, total) < 0.02, "{total}");
        assert!(entropies[0] < 0.01 && entropies[1] < 0.05, "{entropies:?}");
        assert!(cardinality < 0.15, "{cardinality}");
    }
}

/// All nine on flows of both IP versions, behind the aggregator: the questions that each is meant to answer.
#[test]
fn all_nine_answer_about_both_versions_of_ip() {
    let five = Projection::new(KeyKind::FiveTuple);
    let flow = |number| Update::packet(five.of(&traffic::flow_key(number)), 100);
    let mut packets: Vec<Update<5>> = Zipf::new(20_000, 1.1, 6).take(200_000).map(flow).collect();
    let spreader = |n: u16| {
        let dst = std::net::Ipv6Addr::new(0x2001, 0xdb8, 9, 9, 0, 0, 1, n);
        let src = std::net::Ipv6Addr::new(0x2001, 0xdb8, 7, 7, 0, 0, 0, 1);
        five.of(&weir_packet::FlowKey::new(src.into(), dst.into(), 6, (1, 2), None))
    };
    packets.extend((0..2000).map(|n| Update::packet(spreader(n), 60)));
    let mut truth = Exact::<5>::default();
    packets.iter().for_each(|packet| truth.add(packet));
    let mut nine = Nine::<5, 8, 2>::with_bytes(&NineBytes::PAPER_V6, &SEED).unwrap();
    let empty = nine.reversible.clone();
    let mut aggregator = Aggregator::with_bytes(100_000, Policy::MinCount, Gate::default(), &SEED).unwrap();
    let mut out = Vec::new();
    for burst in packets.chunks(32) {
        aggregator.add(burst, &mut out);
    }
    aggregator.flush(|evicted| out.push(*evicted));
    nine.add(&out, key::source_number);
    let (heaviest, size) = truth.heavier(1)[0];
    let keys = [nine.count_min.heavier(1000)[0].key, nine.space_saving.top(1)[0].key];
    assert!(keys.iter().chain([&nine.univmon.heavier(1000)[0].key]).all(|key| *key == heaviest));
    let decoded = nine.flow_radar.decode(aggregator.key_hash());
    assert!(decoded.is_exact && decoded.flows.len() == truth.len());
    let flows = truth.len() as f64;
    assert!(nine.linear_counting.estimate().holds(flows) && nine.mrac.flows().holds(flows));
    assert!(nine.flajolet_martin.estimate().holds(flows));
    let changes = nine.reversible.changes(&empty, 1900).unwrap().changes;
    let number = key::source_number(&spreader(0));
    assert!(changes[0].change.holds(size as f64) && changes.iter().any(|change| change.number == number));
    let spreaders = nine.two_level.spreaders(1000).spreaders;
    assert_eq!(spreaders.len(), 1);
    assert!(spreaders[0].number == number && spreaders[0].spread.holds(2000.0));
    assert_eq!(key::number_text(number), "2001:db8:7:7::/64");
}

#[test]
fn univmon_finds_changes() {
    let (before, mut now) = (zipf(1.0, 3), zipf(1.0, 4));
    let grown = traffic::five_tuple(1 << 40);
    now.extend((0..3000).map(|_| Update::packet(grown, 100)));
    let sketches = [&before, &now].map(|packets| {
        let mut univmon = UnivMon::<2>::with_bytes(600_000, 6, 512, &SEED).unwrap();
        items(packets).iter().for_each(|e| univmon.update(&e.item, 1));
        univmon
    });
    let changes = sketches[1].changes(&sketches[0], 2000).unwrap();
    assert_eq!(changes[0].key, grown);
    assert!(changes[0].size.holds(3000.0), "{:?}", changes[0]);
    let truth = exact(&now).changed(&exact(&before), 2000);
    assert!(Found::new(truth, changes.iter().map(|top| top.key)).f1() > 0.8);
}

/// 78,642 flows and 351 heavy ones, more than 256 keys can name, and more flows than eight levels halve away.
#[test]
fn univmon_counts_flows_that_its_levels_suffice_for() {
    const KEYS: usize = 400;
    let flows = Zipf::new(600_000, 1.1, 1).take(524_288).collect::<Vec<_>>();
    let packets = packets(&flows);
    let (truth, least) = (exact(&packets), 105);
    let flows = truth.len() as f64;
    let items = items(&packets);
    let errors = |levels| {
        let of_seed = |number| {
            let seed = Seed::new([number, 7]);
            let hash = KeyHash::new(&seed);
            let mut univmon = UnivMon::<2>::with_bytes(600_000, levels, KEYS, &seed).unwrap();
            items.iter().for_each(|one| univmon.update(&hash.item(one.item.key), one.packets));
            let heavy = truth.heavier(least).into_iter().map(|(key, _)| key);
            let f1 = Found::new(heavy, univmon.heavier(least).into_iter().map(|top| top.key)).f1();
            let entropy = relative_error(truth.entropy(), univmon.entropy());
            [relative_error(flows, univmon.cardinality()), entropy, f1]
        };
        let all: [[f64; 3]; 4] = [0, 1, 2, 3].map(of_seed);
        std::array::from_fn(|error| all.iter().map(|errors| errors[error]).sum::<f64>() / 4.0)
    };
    let [cardinality, entropy, f1] = errors(UnivMon::<2>::levels_for(truth.len() as u64, KEYS));
    assert!(cardinality < 0.1 && entropy < 0.03 && f1 > 0.95, "{cardinality} {entropy} {f1}");
    let [cardinality, ..] = errors(7);
    assert!(cardinality > 0.3, "with too few levels, what the last one evicts is not counted: {cardinality}");
    let levels = [(0, 10), (5, 10), (10, 10), (78_642, 400), (u64::MAX / 4, 1)];
    let levels = levels.map(|(flows, keys)| UnivMon::<2>::levels_for(flows, keys));
    assert_eq!(levels, [1, 1, 2, 10, 32]);
}

/// Changes of 84 addresses among 590,000 in all, most of which are noise of sampling. Columns come in powers
/// of two, not of sixteen, so that the memory is used.
#[test]
fn heavy_changes_at_600_kb() {
    let mut sketches = Vec::new();
    let mut counts = std::collections::HashMap::new();
    for (sign, shift) in [(-1, 0), (1, 40)] {
        let mut sketch = Reversible::<4, 1>::with_bytes(600_000, &SEED).unwrap();
        assert!(sketch.bytes() > 500_000);
        for flow in Zipf::new(600_000, 1.1, 1 + shift).take(524_288) {
            let address = traffic::address(if flow < 160 { flow ^ shift } else { flow });
            *counts.entry(address).or_insert(0_i64) += sign;
            sketch.update(address, 1);
        }
        sketches.push(sketch);
    }
    let sum: u64 = counts.values().map(|change| change.unsigned_abs()).sum();
    let least = sum / 2000;
    let truth = counts.iter().filter(|(_, change)| change.unsigned_abs() >= least).map(|(at, _)| *at);
    let found = sketches[1].changes(&sketches[0], least).unwrap();
    let f1 = Found::new(truth, found.changes.iter().map(|change| change.number)).f1();
    assert!(found.is_complete && f1 > 0.95, "{f1}");
}
