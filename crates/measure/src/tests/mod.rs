//! A measurement against exact counts, on streams of many shapes.

use crate::queries::tops;
use crate::sketches::Sketch;
use crate::{Answer, FlowRecord, KeyKind, Query, Report, Seed, Settings, Summary};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_packet::random::Random;
use weir_packet::{FlowKey, Observed};
use weir_sketch::traffic::Zipf;
use weir_sketch::{Mrac, SpreadSketch};

const SEED: Seed = Seed::new([11, 12]);

/// A flow by its number: some are IPv6, some inside tunnels.
pub(crate) fn flow(number: u64) -> FlowKey {
    let low = number as u32;
    let end = |bits: u32| match number % 5 {
        0 => IpAddr::V6(Ipv6Addr::from_bits(0x2001_0db8_u128 << 96 | u128::from(bits))),
        _ => IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | bits & 0xff_ffff)),
    };
    let id = number.is_multiple_of(7).then_some(low % 3);
    FlowKey::new(end(low % 100), end(low / 3), 6 + 11 * (low % 2) as u8, (1024 + low as u16 % 500, 443), id)
}

/// A stream of single packets and sums.
pub(crate) fn records(flows: u64, skew: f64, packets: usize, seed: u64) -> Vec<FlowRecord> {
    let (mut random, mut now) = (Random::new(seed), 1_000_000_000);
    let one = |number: u64| {
        now += random.below(2000);
        let packets = if random.below(4) == 0 { 1 + random.below(50) } else { 1 };
        let size = 60 + random.below(1441);
        FlowRecord {
            key: flow(number),
            packets,
            bytes: packets * size,
            first_ns: now,
            last_ns: now + packets - 1,
            observed: Observed::default(),
        }
    };
    Zipf::new(flows, skew, seed).take(packets).map(one).collect()
}

fn small() -> Settings {
    Settings { keys: 256, exact_memory: 1 << 30, packet_bytes_max: 1514, ..Settings::default() }
}

/// Checks that values with certain bounds are within them. Returns how many of the other estimates are
/// outside their bounds, and the number of all of these.
fn check(report: &Report) -> (u64, u64) {
    let lists = || tops().filter_map(|(_, row, _)| report.answers.list(row.field));
    let spreaders = match report.answers.get("spreaders") {
        Some(Answer::Spreaders(rows)) => rows.as_slice(),
        _ => &[],
    };
    for list in lists() {
        for row in &list.rows {
            let (packets, bytes) = (row.exact_packets.unwrap(), row.exact_bytes.unwrap());
            assert!(row.packets - row.bound <= packets && packets <= row.packets, "{row:?}");
            assert!(row.bytes <= bytes && bytes <= row.bytes + row.bytes_bound, "{row:?}");
        }
    }
    assert!(report.changes.iter().all(|row| !row.change.misses()), "{:?}", report.changes);
    let entropies = lists().filter_map(|list| list.entropy.as_ref());
    let spreads = spreaders.iter().map(|row| &row.destinations);
    let numbers = [&report.flows, &report.sources, &report.destinations];
    let all: Vec<_> = numbers.into_iter().chain(entropies).chain(spreads).collect();
    (all.iter().filter(|one| one.misses()).count() as u64, all.len() as u64)
}

#[test]
fn estimates_are_within_their_bounds_in_intervals_and_in_all() {
    let (mut missed, mut expected) = (0, 0);
    for (seed, flows, skew) in
        [(1, 200, 0.0), (2, 5000, 0.8), (3, 20_000, 1.1), (4, 20_000, 1.5), (5, 3, 1.0)]
    {
        let mut summary = Summary::new(&small(), SEED);
        let records = records(flows, skew, 30_000, seed);
        let mut sum = (0, 0);
        for part in records.chunks(9000) {
            part.iter().for_each(|record| summary.add(record));
            summary.add_unflowed("not_ip", 3, 180, part[0].first_ns);
            let interval = summary.close(part[0].first_ns, part[part.len() - 1].last_ns);
            assert!(interval.exact_ended.is_none() && interval.shed.is_empty());
            let (missing, all) = check(&interval);
            (missed, expected) = (missed + missing, expected + all);
            sum = (sum.0 + interval.packets, sum.1 + interval.bytes);
        }
        let report = summary.report();
        assert_eq!((report.packets, report.bytes), sum);
        let truth = records.iter().map(|record| record.packets).sum::<u64>() + 12;
        assert_eq!(report.packets, truth);
        assert_eq!((report.unflowed[0].packets, report.unflowed[0].bytes), (12, 720));
        let (missing, all) = check(&report);
        (missed, expected) = (missed + missing, expected + all);
        let Some(Answer::Quantiles(quantiles)) = report.answers.get("packet_bytes") else { panic!() };
        assert!(quantiles[0].value.estimate >= 60.0 && quantiles[6].value.estimate <= 1500.0);
    }
    // Bounds of 99.7 and of 95 percent.
    assert!(expected > 150 && missed * 50 < expected, "{missed} of {expected}");
}

#[test]
fn what_does_not_fit_is_shed_in_order_and_said() {
    let (all, order) = (Settings::default(), Query::shed_order());
    assert_eq!(all.fit().1, []);
    for count in 0..=order.len() {
        let memory = all.bytes_of(&order[count..]);
        let settings = Settings { memory, ..Settings::default() };
        let mut summary = Summary::new(&settings, SEED);
        records(100, 1.0, 500, 1).iter().for_each(|record| summary.add(record));
        let report = summary.report();
        assert_eq!(report.shed, order[..count]);
        assert_eq!(report.answers.get("spreaders").is_none(), count >= 1);
        assert_eq!(report.answers.list("top_flows").is_none(), count == order.len());
        assert!(report.packets >= 500 && report.memory == memory);
    }
    let mut summary = Summary::new(&all, SEED);
    assert_eq!(summary.shed_next(), Some(Query::SPREADERS));
    records(100, 1.0, 500, 1).iter().for_each(|record| summary.add(record));
    assert_eq!(summary.close(0, 1).shed, [Query::SPREADERS]);
    assert_eq!(summary.report().answers.get("spreaders"), None);
    while summary.shed_next().is_some() {}
    assert_eq!(summary.report().shed.len(), order.len());
}

#[test]
fn exact_counting_ends_when_its_memory_does() {
    let settings = Settings { exact_memory: 384 * 1000, ..Settings::default() };
    let mut summary = Summary::new(&settings, SEED);
    (0..1000).for_each(|number| summary.add(&FlowRecord { key: flow(number), ..records(1, 0.0, 1, 1)[0] }));
    assert_eq!(summary.report().flows.exact, Some(1000.0));
    summary.add(&FlowRecord { key: flow(5000), ..records(1, 0.0, 1, 1)[0] });
    let report = summary.report();
    assert!(report.flows.exact.is_none() && report.top[0].exact_packets.is_none());
    assert!(report.exact_ended.unwrap().contains("after 1000 flows"));
}

#[test]
fn flows_are_what_settings_say() {
    let of = |settings: Settings| {
        let mut summary = Summary::new(&settings, SEED);
        for (src, port, id) in [("10.0.0.1", 1, None), ("10.0.0.2", 2, None), ("10.0.0.2", 2, Some(5))] {
            let key = FlowKey::new(src.parse().unwrap(), "10.9.9.9".parse().unwrap(), 6, (port, 80), id);
            summary.add(&FlowRecord {
                key,
                packets: 1,
                bytes: 60,
                first_ns: 0,
                last_ns: 0,
                observed: Observed::default(),
            });
        }
        let report = summary.report();
        report.top.iter().map(|row| (row.key.clone(), row.packets)).collect::<Vec<_>>()
    };
    assert_eq!(of(Settings::default()).len(), 3);
    let across = of(Settings { tunnels_apart: false, ..Settings::default() });
    assert_eq!(across[0], ("tcp 10.0.0.2:2 > 10.9.9.9:80".to_string(), 2));
    let pairs =
        of(Settings { flow: KeyKind::Pair, prefixes: (24, 64), tunnels_apart: false, ..Settings::default() });
    assert_eq!(pairs, [("10.0.0.0/24 > 10.9.9.0/24".to_string(), 3)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Linear parts are equal bit by bit; top lists stay within their bounds.
    #[test]
    fn merging_equals_one_stream(flows in 1_u64..3000, cut in 0_usize..3000, seed in 0_u64..1000) {
        let records = records(flows, 1.0, 3000, seed);
        let settings = Settings { exact_memory: 0, ..small() };
        let mut whole = Summary::new(&settings, SEED);
        let mut parts = [Summary::new(&settings, SEED), Summary::new(&settings, SEED)];
        for (at, record) in records.iter().enumerate() {
            whole.add(record);
            parts[usize::from(at >= cut)].add(record);
        }
        whole.close(0, 1);
        let [mut one, mut other] = parts;
        one.close(0, 1);
        other.close(0, 1);
        one.merge(other).unwrap();
        prop_assert_eq!(linear(&one), linear(&whole));
        prop_assert_eq!(one.all.totals.flowed, whole.all.totals.flowed);
        prop_assert_eq!(one.all.totals.span_ns, whole.all.totals.span_ns);
        for (place, ..) in tops() {
            let (Some(one), Some(whole)) = (one.all.top(place), whole.all.top(place)) else { panic!() };
            prop_assert_eq!(one.total(), whole.total());
            for row in whole.iter() {
                let merged = one.get(&weir_sketch::KeyHash::new(&SEED).item(row.key)).packets();
                let truth = row.packets();
                prop_assert!(merged.low <= truth.high && truth.low <= merged.high);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// The sketch files of an interval of eight nodes, merged, equal the sketch of all packets: linear parts
    /// bit by bit, top lists within their bounds, and every packet is in the account.
    #[test]
    fn eight_nodes_merged_equal_one(flows in 1_u64..4000, skew in 0.0_f64..1.5, seed in 0_u64..1000) {
        let records = records(flows, skew, 8000, seed);
        let settings = Settings { exact_memory: 0, ..small() };
        let mut whole = Summary::new(&settings, SEED);
        let mut exact = Summary::new(&Settings { keys: 1 << 16, ..settings.clone() }, SEED);
        let mut nodes: [Summary; 8] = std::array::from_fn(|_| Summary::new(&settings, SEED));
        let mut random = Random::new(seed);
        for record in &records {
            whole.add(record);
            exact.add(record);
            nodes[random.below(8) as usize].add(record);
        }
        for (at, node) in nodes.iter_mut().enumerate() {
            for (reason, packets) in [("arp", 1), ("not_ip", at as u64)].into_iter().filter(|one| one.1 > 0) {
                whole.add_skipped(reason, packets, 60 * packets);
                node.add_skipped(reason, packets, 60 * packets);
            }
        }
        let files = nodes.each_mut().map(Summary::interval_file);
        let reports = nodes.map(|mut node| node.close(0, 1));
        let mut all = files.iter().map(|file| Summary::read(&file[..]).unwrap());
        let mut merged = all.next().unwrap();
        all.for_each(|other| merged.merge(other).unwrap());
        whole.gather();
        exact.gather();
        prop_assert_eq!(linear(&merged), linear(&whole));
        prop_assert_eq!(&merged.all.totals.flowed, &whole.all.totals.flowed);
        prop_assert_eq!(&merged.all.totals.unflowed, &whole.all.totals.unflowed);
        let report = merged.interval_report([0, 1], None);
        prop_assert_eq!(report.packets, reports.iter().map(|one| one.packets).sum::<u64>());
        let unflowed: u64 = report.unflowed.iter().map(|one| one.packets).sum();
        let flowed: u64 = records.iter().map(|record| record.packets).sum();
        prop_assert_eq!((report.packets, unflowed), (flowed + unflowed, 8 + 28));
        let hash = weir_sketch::KeyHash::new(&SEED);
        for (place, ..) in tops() {
            let (Some(merged), Some(exact)) = (merged.all.top(place), exact.all.top(place)) else { panic!() };
            prop_assert_eq!(merged.total().packets, flowed);
            for truth in exact.iter() {
                prop_assert_eq!(truth.error, 0);
                let row = merged.get(&hash.item(truth.key));
                let (packets, bytes) = (row.packets(), row.bytes(1514));
                prop_assert!(packets.low <= truth.packets as f64 && truth.packets as f64 <= packets.high);
                prop_assert!(bytes.low <= truth.bytes as f64 && truth.bytes as f64 <= bytes.high);
            }
        }
    }
}

#[test]
fn measurements_of_other_seeds_or_settings_are_not_merged() {
    let mut summary = Summary::new(&small(), SEED);
    assert!(summary.merge(Summary::new(&small(), Seed::new([1, 1]))).is_err());
    assert!(summary.merge(Summary::new(&Settings { keys: 512, ..small() }, SEED)).is_err());
    assert!(summary.merge(Summary::new(&Settings { prefixes: (24, 64), ..small() }, SEED)).is_err());
    assert!(summary.merge(Summary::new(&Settings { top: 3, ..small() }, SEED)).is_ok());
}

/// The parts that do not depend on the order of records.
fn linear(summary: &Summary) -> (Vec<&Mrac>, Vec<&SpreadSketch<5>>) {
    let (mut sizes, mut spreads) = (Vec::new(), Vec::new());
    for sketch in summary.all.answers.iter().flatten() {
        match sketch {
            Sketch::Sizes(one) => sizes.push(one),
            Sketch::Spread(one) => spreads.push(one),
            Sketch::Top(_) | Sketch::Quantiles(_) => (),
        }
    }
    (sizes, spreads)
}

fn saved(summary: &mut Summary) -> Vec<u8> {
    let mut bytes = Vec::new();
    summary.write(&mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_saved_is_read_again() {
    for settings in
        [small(), Settings { memory: 6 << 20, keys: 64, ..small() }, Settings { queries: vec![], ..small() }]
    {
        let mut summary = Summary::new(&Settings { exact_memory: 0, ..settings }, SEED);
        records(5000, 1.0, 20_000, 3).iter().for_each(|record| summary.add(record));
        summary.add_unflowed("arp", 3, 180, 5);
        let bytes = saved(&mut summary);
        let mut read = Summary::read(&bytes[..]).unwrap();
        assert!(linear(&read) == linear(&summary));
        let (one, other) = (summary.report(), read.report());
        assert_eq!(one.top, other.top);
        assert_eq!((one.flows, one.packets), (other.flows, other.packets));
        for field in ["flow_sizes", "spreaders", "packet_bytes"] {
            assert_eq!(one.answers.get(field), other.answers.get(field));
        }
        assert_eq!(one.unflowed, other.unflowed);
        read.merge(summary).unwrap();
        assert_eq!(read.report().packets, 2 * other.packets);
    }
}

#[test]
fn what_is_not_a_sketch_file_is_refused() {
    let mut summary = Summary::new(&Settings { exact_memory: 0, ..small() }, SEED);
    records(500, 1.0, 2000, 3).iter().for_each(|record| summary.add(record));
    let bytes = saved(&mut summary);
    let error = |bytes: &[u8]| Summary::read(bytes).map(|_| ()).unwrap_err().to_string();
    assert!(error(b"").contains("not a sketch file") && error(&[7; 100]).contains("not a sketch file"));
    let mut other = bytes.clone();
    other[8] = 9;
    assert!(error(&other).contains("version 9"));
    for cut in [16, 17, 100, bytes.len() / 2, bytes.len() - 1] {
        assert!(error(&bytes[..cut]).contains("damaged"), "{cut}");
    }
    let mut random = Random::new(3);
    for _ in 0..300 {
        let mut other = bytes.clone();
        let at = 16 + random.below(bytes.len() as u64 - 16) as usize;
        other[at] ^= 1 << random.below(8);
        assert!(error(&other).contains("damaged"));
        // With a valid checksum it is refused or read, but never panics.
        let right = crate::file::checksum(&other[16..]);
        other[12..16].copy_from_slice(&right.to_le_bytes());
        if let Ok(mut read) = Summary::read(&other[..]) {
            read.report();
        }
    }
}

#[test]
fn numbers_of_a_file_overflow_no_sum() {
    let mut summary = Summary::new(&Settings { exact_memory: 0, ..small() }, SEED);
    records(500, 1.0, 2000, 3).iter().for_each(|record| summary.add(record));
    let (unflowed, kept) = (["arp", "lldp"], saved(&mut summary));
    for (reason, packets) in unflowed.into_iter().zip(1..) {
        summary.add_unflowed(reason, packets, 60 * packets, 5);
    }
    let mut bytes = saved(&mut summary);
    let (original, mut read) = (bytes.clone(), 0);
    assert!(bytes.len() > kept.len());
    // Tests every byte of the totals, and a sample of the rest.
    for at in (16..120).chain((120..bytes.len() - 8).step_by(2003)) {
        for number in [0, u64::MAX, (1 << 56) - 1] {
            bytes.copy_from_slice(&original);
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
            let right = crate::file::checksum(&bytes[16..]);
            bytes[12..16].copy_from_slice(&right.to_le_bytes());
            let Ok(mut one) = Summary::read(&bytes[..]) else { continue };
            one.merge(Summary::read(&bytes[..]).unwrap()).unwrap();
            let again = Summary::read(&saved(&mut one)[..]).unwrap();
            one.merge(again).unwrap();
            one.report();
            read += 1;
        }
    }
    assert!(read > 40, "{read} were read");
}
