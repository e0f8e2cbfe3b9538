//! Bounds hold on random streams with the stated probability, and memory is as specified.

use super::*;

const STREAMS: u64 = 1000;
const PACKETS: usize = 3000;

/// Counts how often a bound held.
#[derive(Default)]
struct BoundCounts {
    held: f64,
    all: f64,
}

impl BoundCounts {
    fn note(&mut self, holds: bool) {
        self.held += f64::from(u8::from(holds));
        self.all += 1.0;
    }

    fn share(&self) -> f64 {
        self.held / self.all
    }
}

#[test]
fn sizes_hold_their_bounds() {
    let (mut count_min, mut count_sketch) = (BoundCounts::default(), BoundCounts::default());
    for number in 0..STREAMS {
        let packets = packets(&stream(number, PACKETS));
        let truth = exact(&packets);
        let seed = Seed::new([number, 1]);
        let hash = KeyHash::new(&seed);
        let mut one = CountMin::<u32, 4>::with_bytes(1600, &seed).unwrap();
        let mut other = CountSketch::<i32, 5>::with_bytes(2000, &seed).unwrap();
        for packet in &packets {
            let hash = hash.hash(&packet.key);
            assert_eq!(one.update(hash, 1), one.size(hash));
            assert_eq!(other.update(hash, 1), other.size(hash));
        }
        let deviation = other.deviation();
        for (key, count) in truth.iter() {
            let (hash, size) = (hash.hash(key), count.packets as f64);
            assert!(one.estimate(hash).value >= size);
            count_min.note(one.estimate(hash).holds(size));
            count_sketch.note(other.estimate(hash, deviation).holds(size));
        }
    }
    let sketch = CountMin::<u32, 4>::with_bytes(1600, &SEED).unwrap();
    assert!(count_min.share() >= sketch.estimate(0).confidence, "{}", count_min.share());
    assert!(count_sketch.share() >= 0.98, "{}", count_sketch.share());
}

#[test]
fn space_saving_is_certain() {
    for number in 0..STREAMS {
        let packets = packets(&stream(number, PACKETS));
        let truth = exact(&packets);
        let mut summary = SpaceSaving::with_keys(64);
        for e in aggregated(&packets, Policy::Lru) {
            summary.update(&e.item, e.packets);
        }
        let hash = KeyHash::new(&SEED);
        for (key, count) in truth.iter() {
            let estimate = summary.estimate(&hash.item(*key));
            assert!(estimate.holds(count.packets as f64), "{estimate:?} {count:?}");
            assert!(estimate.high - estimate.low <= PACKETS as f64 / 64.0);
        }
        let found = summary.heavier(PACKETS as u64 / 64 + 1);
        let heavy = truth.heavier(PACKETS as u64 / 64 + 1);
        assert!(heavy.iter().all(|(key, _)| found.iter().any(|top| top.key == *key)));
    }
}

#[test]
fn cardinalities_hold_their_bounds() {
    let (mut linear, mut flajolet_martin) = (BoundCounts::default(), BoundCounts::default());
    for number in 0..STREAMS {
        let seed = Seed::new([number, 2]);
        let hash = KeyHash::new(&seed);
        let keys = 1 + Random::new(number).below(1 << (number % 16));
        let mut one = LinearCounting::with_bytes(1000, &seed).unwrap();
        let mut other = FlajoletMartin::with_bytes(1024, &seed).unwrap();
        for key in 0..keys {
            for _ in 0..2 {
                one.update(hash.hash(&[key]));
                other.update(hash.hash(&[key]));
            }
        }
        linear.note(one.estimate().holds(keys as f64));
        flajolet_martin.note(other.estimate().holds(keys as f64));
    }
    assert!(linear.share() >= 0.98, "{}", linear.share());
    assert!(flajolet_martin.share() >= 0.98, "{}", flajolet_martin.share());
}

#[test]
fn flow_radar_decodes_exactly_up_to_its_capacity() {
    for number in 0..60 {
        let seed = Seed::new([number, 3]);
        let hash = KeyHash::new(&seed);
        let mut radar = FlowRadar::<2>::with_bytes(15_000 + 5000 * number as usize, &seed).unwrap();
        let flows = radar.capacity() as u64;
        let mut truth: Vec<([u64; 2], u64)> = Vec::new();
        for flow in 0..flows {
            let item = hash.item(traffic::five_tuple(flow + number));
            radar.update(&item, 1 + flow % 7);
            radar.update(&item, flow % 100);
            truth.push((item.key, 1 + flow % 7 + flow % 100));
        }
        let mut decoded = radar.decode(&hash);
        decoded.flows.sort_unstable();
        truth.sort_unstable();
        assert!(decoded.is_exact && decoded.missing == 0, "{number}: {} missing", decoded.missing);
        assert_eq!(decoded.flows, truth);
        for flow in flows..2 * flows {
            radar.update(&hash.item(traffic::five_tuple(flow + number)), 1);
        }
        let decoded = radar.decode(&hash);
        assert!(!decoded.is_exact && decoded.missing > 0);
    }
}

#[test]
fn heavy_changes_are_found_with_their_bounds() {
    let (mut bounds, mut found) = (BoundCounts::default(), BoundCounts::default());
    for number in 0..40 {
        let mut sketches =
            [0, 1].map(|_| Reversible::<4, 1>::with_bytes(2 << 20, &Seed::new([number, 4])).unwrap());
        let mut truth = [0, 1].map(|_| Exact::<1>::default());
        for (interval, (sketch, truth)) in sketches.iter_mut().zip(&mut truth).enumerate() {
            let changing = (0..10_u64).map(|n| (1_000_000 + n, 300 * (1 + (n + interval as u64) % 2)));
            let background = stream(number, 10_000).into_iter().map(|flow| (flow, 1));
            for (flow, packets) in changing.chain(background) {
                let address = traffic::address(flow);
                sketch.update(address, packets);
                truth.add(&Update { key: [address], packets, bytes: 0, note: () });
            }
        }
        let [before, now] = sketches;
        let changes = now.changes(&before, 250).unwrap();
        assert!(changes.is_complete);
        let expected = truth[1].changed(&truth[0], 250);
        assert_eq!(expected.len(), 10);
        for [address] in expected {
            let change = changes.changes.iter().find(|change| change.number == address);
            let difference =
                truth[1].get(&[address]).packets as f64 - truth[0].get(&[address]).packets as f64;
            found.note(change.is_some());
            if let Some(change) = change {
                bounds.note(change.change.holds(difference));
            }
        }
        assert!(changes.changes.len() <= 11, "{changes:?}");
    }
    assert!(found.share() > 0.98 && bounds.share() > 0.95, "{} {}", found.share(), bounds.share());
}

#[test]
fn spreaders_are_found_with_their_bounds() {
    let (mut bounds, mut found) = (BoundCounts::default(), BoundCounts::default());
    for number in 0..20 {
        let seed = Seed::new([number, 5]);
        let hash = KeyHash::new(&seed);
        let mut sketch = TwoLevel::<4, 1>::with_bytes(4 << 20, &seed).unwrap();
        let mut note =
            |source: u64, destination: u64| sketch.update(source, hash.hash(&[source, destination]));
        let spreads: Vec<(u64, u64)> = (1..=10).map(|n| (traffic::address(n), 200 * n * n)).collect();
        for (source, spread) in &spreads {
            (0..*spread).for_each(|destination| note(*source, destination));
        }
        for source in 100..3000 {
            // Many packets to few destinations are not a spread.
            (0..20).for_each(|n| note(traffic::address(source), n % 3));
        }
        let answer = sketch.spreaders(150);
        assert!(answer.is_complete);
        for (source, spread) in &spreads {
            let spreader = answer.spreaders.iter().find(|spreader| spreader.number == *source);
            found.note(spreader.is_some());
            if let Some(spreader) = spreader {
                bounds.note(spreader.spread.holds(*spread as f64));
            }
        }
        assert!(answer.spreaders.len() <= 10, "{answer:?}");
    }
    assert!(found.share() > 0.97 && bounds.share() > 0.95, "{} {}", found.share(), bounds.share());
}

#[test]
fn memory_is_within_what_was_given() {
    for bytes in [150_000, 600_000, 3_000_000] {
        let all = [
            CountMin::<u32, 4>::with_bytes(bytes, &SEED).unwrap().bytes(),
            HeavyHitters::<2>::with_bytes(bytes, 100, &SEED).unwrap().bytes(),
            CountSketch::<i32, 5>::with_bytes(bytes, &SEED).unwrap().bytes(),
            FlowRadar::<5>::with_bytes(bytes, &SEED).unwrap().bytes(),
            LinearCounting::with_bytes(bytes, &SEED).unwrap().bytes(),
            FlajoletMartin::with_bytes(bytes, &SEED).unwrap().bytes(),
            Mrac::<u32>::with_bytes(bytes, &SEED).unwrap().bytes(),
            TwoLevel::<4, 1>::with_bytes(bytes, &SEED).unwrap().bytes(),
            UnivMon::<2>::with_bytes(bytes, 8, 100, &SEED).unwrap().bytes(),
        ];
        for (at, used) in all.into_iter().enumerate() {
            assert!(used <= bytes && used > bytes * 9 / 10, "{at}: {used} of {bytes}");
        }
        // Their sizes are powers of two.
        let used = SpaceSaving::<2>::with_bytes(bytes).unwrap().bytes();
        assert!(used <= bytes && used > bytes / 2);
        assert!(Reversible::<4, 1>::with_bytes(bytes, &SEED).unwrap().bytes() <= bytes);
    }
    assert!(CountMin::<u32, 4>::with_bytes(15, &SEED).is_err());
    assert!(CountMin::<u32, 4>::with_bytes(BYTES_MAX + 1, &SEED).is_err());
}
