//! Estimates beside the truth, on streams as large as an interval.

use super::*;
use crate::accuracy::{Found, are, relative_error, wmre};
use crate::traffic::Zipf;

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
