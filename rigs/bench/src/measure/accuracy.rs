//! Accuracy and throughput: the estimates of 600 KB sketches for an interval, compared with the exact truth
//! and with the estimates of rivals for the same packets.

use super::front::{AGGREGATOR, POLICY};
use super::rivals::{KeeperArm, Key, keeper, rivals};
use super::round::{Aggregated, BURST, CountingMethod, Make, SEED, Sketch, measure};
use super::solutions::FIVE_TUPLES;
use super::stream::{Size, Traffic};
use anyhow::Result;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use weir_packet::random::Random;
use weir_papers::{
    Coco, CountMin, Elastic, FlajoletMartin, FlowRadar, HeavyHitters, LinearCounting, Reversible,
    SpaceSaving, TwoLevel, UnivMon,
};
use weir_sketch::accuracy::{Found, are, relative_error, wmre};
use weir_sketch::traffic::Zipf;
use weir_sketch::{Aggregator, Distinct, Evicted, Exact, Gate, Mrac, Top, Update};

/// Bytes of every sketch and every rival, as in the comparison of ElasticSketch's paper.
pub const BYTES: usize = 600_000;

/// Skew of the traffic.
const SKEW: f64 = 1.1;

/// Minimum share of all packets for a flow to count as heavy.
pub const HEAVY: f64 = 0.0002;

/// Heavy keys that a sketch remembers.
pub const KEYS: usize = 1024;

/// Minimum share of the sum of all changes for a change to count as heavy.
const HEAVY_CHANGE: f64 = 0.0005;

/// Minimum number of destinations for a source to count as a super-spreader.
const SPREADER: u64 = 1000;

/// The accuracy of a sketch or a rival for heavy flows, and its cost per packet.
pub struct Heavy {
    /// Its name.
    pub name: String,
    /// Whether it is a rival.
    pub is_rival: bool,
    /// How well the heavy flows were found: F1.
    pub f1: f64,
    /// Average relative error of the sizes of the truly heavy flows; a missing flow has an error of 1.
    pub are: f64,
    /// Nanoseconds per packet; behind the aggregator if it is used that way.
    pub ns: f64,
}

/// The packets of an interval, and the ground truth.
pub struct Interval {
    /// The packets.
    pub packets: Vec<Update<2>>,
    truth: Exact<2>,
    heavy: Vec<(Key, u64)>,
    least: u64,
}

impl Interval {
    fn new(packets: Vec<Update<2>>) -> Interval {
        let mut truth = Exact::default();
        packets.iter().for_each(|packet| truth.add(packet));
        let least = (packets.len() as f64 * HEAVY).ceil().max(1.0) as u64;
        let heavy = truth.heavier(least);
        Interval { packets, truth, heavy, least }
    }

    /// Returns F1 and ARE of a report; sizes below the threshold do not count as reported.
    pub fn judge(&self, reported: impl IntoIterator<Item = (Key, f64)>) -> (f64, f64) {
        let sizes: HashMap<Key, f64> = reported.into_iter().collect();
        let found = sizes.iter().filter(|(_, size)| **size >= self.least as f64).map(|(key, _)| *key);
        let f1 = Found::new(self.heavy.iter().map(|(key, _)| *key), found).f1();
        let size_of = |(key, size): &(Key, u64)| (*size as f64, sizes.get(key).copied().unwrap_or(0.0));
        (f1, are(self.heavy.iter().map(size_of)))
    }

    /// Returns the aggregator's output for the packets.
    fn aggregated(&self) -> Result<Vec<Evicted<2>>> {
        let mut aggregator = Aggregator::with_bytes(AGGREGATOR, POLICY, Gate::default(), &SEED)?;
        let mut out = Vec::new();
        self.packets.chunks(BURST).for_each(|burst| aggregator.add(burst, &mut out));
        aggregator.flush(|evicted| out.push(*evicted));
        Ok(out)
    }

    /// Returns the average relative error of the sizes of all flows.
    fn are_of_all(&self, size: impl Fn(&Key) -> f64) -> f64 {
        are(self.truth.iter().map(|(key, count)| (count.packets as f64, size(key))))
    }
}

/// Returns the interval in which heavy flows are searched.
pub fn interval(size: Size) -> Interval {
    Interval::new(Traffic::Zipf(SKEW).packets(size, 1, FIVE_TUPLES.of))
}

/// Our sketches that find heavy flows.
const OURS: [&str; 5] = ["count_min", "space_saving", "univmon", "elastic", "coco"];

/// Creates one of [`OURS`], empty, for measuring.
fn ours(name: &str) -> Result<Sketch<2>> {
    Ok(match name {
        "count_min" => {
            let mut sketch = HeavyHitters::<2>::with_bytes(BYTES, KEYS, &SEED)?;
            Box::new(move |keys| sketch.add(keys))
        }
        "space_saving" => {
            let mut sketch = SpaceSaving::<2>::with_bytes(BYTES)?;
            Box::new(move |keys| keys.iter().for_each(|one| sketch.update(&one.item, one.packets)))
        }
        "univmon" => {
            let mut sketch = univmon()?;
            Box::new(move |keys| sketch.add(keys))
        }
        "elastic" => {
            let mut sketch = Elastic::<2>::with_bytes(BYTES, &SEED)?;
            Box::new(move |keys| {
                keys.iter().for_each(|one| sketch.prefetch(one.item.hash));
                keys.iter().for_each(|one| sketch.update(&one.item, one.packets));
            })
        }
        _ => {
            let mut sketch = Coco::<2>::with_bytes(BYTES, &SEED)?;
            Box::new(move |keys| {
                keys.iter().for_each(|one| sketch.prefetch(one.item.hash));
                keys.iter().for_each(|one| sketch.update(&one.item, one.packets));
            })
        }
    })
}

/// Creates a UnivMon with a quarter more keys than there are heavy flows, and levels for as many flows as the
/// streams have.
fn univmon() -> Result<UnivMon<2>> {
    const KEYS: usize = 400;
    Ok(UnivMon::with_bytes(BYTES, UnivMon::<2>::levels_for(300_000, KEYS), KEYS, &SEED)?)
}

/// Returns the keys that one of [`OURS`] reports.
fn reported(name: &str, interval: &Interval, keys: &[Evicted<2>]) -> Result<Vec<(Key, f64)>> {
    let tops = |tops: Vec<Top<2>>| tops.into_iter().map(|top| (top.key, top.size.value)).collect();
    let least = interval.least;
    Ok(match name {
        "count_min" => {
            let mut sketch = HeavyHitters::<2>::with_bytes(BYTES, KEYS, &SEED)?;
            sketch.add(keys);
            tops(sketch.heavier(least))
        }
        "space_saving" => {
            let mut sketch = SpaceSaving::<2>::with_bytes(BYTES)?;
            keys.iter().for_each(|one| sketch.update(&one.item, one.packets));
            tops(sketch.heavier(least))
        }
        "univmon" => {
            let mut sketch = univmon()?;
            sketch.add(keys);
            tops(sketch.heavier(least))
        }
        "elastic" => {
            let mut sketch = Elastic::<2>::with_bytes(BYTES, &SEED)?;
            keys.iter().for_each(|one| sketch.update(&one.item, one.packets));
            tops(sketch.heavier(least))
        }
        _ => {
            let mut sketch = Coco::<2>::with_bytes(BYTES, &SEED)?;
            keys.iter().for_each(|one| sketch.update(&one.item, one.packets));
            sketch.parts(|key| *key).into_iter().map(|(key, size)| (key, size.value)).collect()
        }
    })
}

/// Measures heavy flows with all of our sketches, behind the aggregator, and with the crate `heavykeeper`.
pub fn heavy(interval: &Interval, rounds: usize) -> Result<Vec<Heavy>> {
    let keys = interval.aggregated()?;
    // Build each one once here, so that an impossible size is an error and not a panic in an arm.
    OURS.iter().try_for_each(|name| ours(name).map(drop))?;
    let mut arms: Vec<Make<'_, 2>> = Vec::new();
    for name in OURS {
        arms.push(Box::new(move || {
            let aggregator = Aggregator::with_bytes(AGGREGATOR, POLICY, Gate::default(), &SEED);
            let aggregator = aggregator.expect("it was created before");
            Box::new(Aggregated::new(aggregator, ours(name).expect("it was created before")))
        }));
    }
    let rivals = rivals();
    for &name in &rivals {
        arms.push(Box::new(move || {
            Box::new(KeeperArm(keeper(name, KEYS, BYTES))) as Box<dyn CountingMethod<2>>
        }));
    }
    let readings = measure(&interval.packets, rounds, &arms);
    let mut all = Vec::new();
    for (at, name) in OURS.into_iter().chain(rivals).enumerate() {
        let is_rival = at >= OURS.len();
        let reported = if is_rival {
            let mut rival = keeper(name, KEYS, BYTES);
            interval.packets.iter().for_each(|packet| rival.add(&packet.key));
            rival.list()
        } else {
            reported(name, interval, &keys)?
        };
        let (f1, are) = interval.judge(reported);
        all.push(Heavy { name: name.to_string(), is_rival, f1, are, ns: readings[at].ns.median });
    }
    Ok(all)
}

/// A metric of [`Heavy`]: name, value, and whether higher is better.
type Metric = (&'static str, fn(&Heavy) -> f64, bool);

const METRICS: [Metric; 3] =
    [("f1", |one| one.f1, true), ("are", |one| one.are, false), ("ns", |one| one.ns, false)];

/// Returns the rows in JSON: each of our sketches paired with each rival, and with none.
pub fn rows(heavy: &[Heavy]) -> Vec<Value> {
    let mut rows = Vec::new();
    for ours in heavy.iter().filter(|one| !one.is_rival) {
        for (metric, of, _) in METRICS {
            rows.push(row(&ours.name, &format!("heavy_hitters_{metric}"), of(ours), None));
            for rival in heavy.iter().filter(|one| one.is_rival) {
                let rival = Some((rival.name.as_str(), of(rival)));
                rows.push(row(&ours.name, &format!("heavy_hitters_{metric}"), of(ours), rival));
            }
        }
    }
    rows
}

/// Returns what a rival does better than each of our sketches, as sentences.
pub fn lost(heavy: &[Heavy]) -> Vec<String> {
    let mut lost = Vec::new();
    for rival in heavy.iter().filter(|one| one.is_rival) {
        for (metric, of, is_more_better) in METRICS {
            let beats = |ours: &&Heavy| {
                if is_more_better { of(rival) > of(ours) } else { of(rival) < of(ours) }
            };
            let beaten: Vec<String> = heavy
                .iter()
                .filter(|one| !one.is_rival)
                .filter(beats)
                .map(|ours| format!("{} ({:.4})", ours.name, of(ours)))
                .collect();
            if !beaten.is_empty() {
                let value = of(rival);
                lost.push(format!(
                    "{} is better in {metric} ({value:.4}) than {}",
                    rival.name,
                    beaten.join(", ")
                ));
            }
        }
    }
    lost
}

fn row(name: &str, metric: &str, value: f64, rival: Option<(&str, f64)>) -> Value {
    json!({
        "name": name, "metric": metric, "value": value,
        "rival": rival.map(|rival| rival.0), "rival_value": rival.map(|rival| rival.1),
    })
}

/// Measures every other question with the sketches that answer it; there are no rivals for these.
pub fn others(interval: &Interval, size: Size) -> Result<Vec<Value>> {
    let keys = interval.aggregated()?;
    let mut rows = sizes_of_all(interval, &keys)?;
    rows.extend(numbers(interval, &keys)?);
    rows.push(changes(size)?);
    rows.push(spreaders(size)?);
    Ok(rows)
}

/// Measures the sizes of all flows (most have one packet), and how many flows FlowRadar decodes.
fn sizes_of_all(interval: &Interval, keys: &[Evicted<2>]) -> Result<Vec<Value>> {
    let hash = weir_sketch::KeyHash::new(&SEED);
    let mut count_min = CountMin::<u32, 4>::with_bytes(BYTES, &SEED)?;
    let mut elastic = Elastic::<2>::with_bytes(BYTES, &SEED)?;
    let mut radar = FlowRadar::<2>::with_bytes(BYTES, &SEED)?;
    count_min.add(keys);
    radar.add(keys);
    keys.iter().for_each(|one| elastic.update(&one.item, one.packets));
    let count_min = interval.are_of_all(|key| count_min.size(hash.hash(key)) as f64);
    let elastic = interval.are_of_all(|key| elastic.estimate(&hash.item(*key)).value);
    let decoded = radar.decode(&hash).flows.len().min(interval.truth.len());
    Ok(vec![
        row("count_min", "all_flows_are", count_min, None),
        row("elastic", "all_flows_are", elastic, None),
        row("flow_radar", "decoded_share", decoded as f64 / interval.truth.len() as f64, None),
        row("flow_radar", "flows_that_fit", radar.capacity() as f64, None),
    ])
}

/// Measures the number of flows, the distribution of their sizes, and entropy.
fn numbers(interval: &Interval, keys: &[Evicted<2>]) -> Result<Vec<Value>> {
    let mut linear = LinearCounting::with_bytes(BYTES, &SEED)?;
    let mut martin = FlajoletMartin::with_bytes(BYTES.min(4096), &SEED)?;
    let mut mrac = Mrac::<u32>::with_bytes(BYTES, &SEED)?;
    let mut univmon = univmon()?;
    let mut distinct = Distinct::default();
    linear.add(keys);
    mrac.add(keys);
    univmon.add(keys);
    for one in keys {
        martin.update(one.item.hash);
        distinct.update(one.item.hash);
    }
    let (flows, entropy) = (interval.truth.len() as f64, interval.truth.entropy());
    let distribution = mrac.distribution();
    let flows_of = [
        ("linear_counting", linear.estimate().value),
        ("flajolet_martin", martin.estimate().value),
        ("mrac", mrac.flows().value),
        ("univmon", univmon.cardinality()),
        ("hyper_log_log", distinct.estimate().value),
    ];
    let mut rows = Vec::new();
    for (name, estimate) in flows_of {
        rows.push(row(name, "cardinality_re", relative_error(flows, estimate), None));
    }
    for (name, estimate) in [("mrac", distribution.entropy()), ("univmon", univmon.entropy())] {
        rows.push(row(name, "entropy_re", relative_error(entropy, estimate), None));
    }
    let error = wmre(&interval.truth.distribution(), &distribution.sizes);
    rows.push(row("mrac", "distribution_wmre", error, None));
    Ok(rows)
}

/// Measures heavy changes of sources between two intervals with different heavy flows.
fn changes(size: Size) -> Result<Value> {
    const SHIFT: u64 = 40;
    let source = |packet: &Update<2>| (FIVE_TUPLES.source)(&packet.key);
    let shifted = |flow: u64| if flow < 4 * SHIFT { flow ^ SHIFT } else { flow };
    let before = Zipf::new(size.flows, SKEW, 1).take(size.packets);
    let now = Zipf::new(size.flows, SKEW, 2).take(size.packets).map(shifted);
    let keys: Vec<Vec<Update<2>>> = [before.collect::<Vec<_>>(), now.collect()]
        .map(|flows| flows.into_iter().map(|flow| Update::packet((FIVE_TUPLES.of)(flow), 64)).collect())
        .into();
    let mut counts: HashMap<u64, i64> = HashMap::new();
    let mut sketches = Vec::new();
    for (packets, sign) in keys.iter().zip([-1, 1]) {
        let mut sketch = Reversible::<4, 1>::with_bytes(BYTES, &SEED)?;
        for packet in packets {
            *counts.entry(source(packet)).or_default() += sign;
            sketch.update(source(packet), 1);
        }
        sketches.push(sketch);
    }
    let sum: u64 = counts.values().map(|change| change.unsigned_abs()).sum();
    let least = (sum as f64 * HEAVY_CHANGE).ceil().max(1.0) as u64;
    let truth = counts.iter().filter(|(_, change)| change.unsigned_abs() >= least).map(|(source, _)| *source);
    let found = sketches[1].changes(&sketches[0], least)?.changes.into_iter().map(|change| change.number);
    Ok(row("reversible", "heavy_changes_f1", Found::new(truth, found).f1(), None))
}

/// Measures super-spreaders: sources of a Zipf distribution, where each packet goes to a different
/// destination.
fn spreaders(size: Size) -> Result<Value> {
    let mut sketch = TwoLevel::<4, 1>::with_bytes(BYTES, &SEED)?;
    let (mut random, hash) = (Random::new(3), weir_sketch::KeyHash::new(&SEED));
    let mut pairs: HashMap<u64, HashSet<u64>> = HashMap::new();
    for number in Zipf::new(size.flows / 10, SKEW, 4).take(size.packets / 4) {
        let (source, destination) = (weir_sketch::traffic::address(number), random.below(1 << 16));
        pairs.entry(source).or_default().insert(destination);
        sketch.update(source, hash.hash(&[source << 32 | destination]));
    }
    let spreads = |(_, destinations): &(&u64, &HashSet<u64>)| destinations.len() as u64 >= SPREADER;
    let truth = pairs.iter().filter(spreads).map(|(source, _)| *source);
    let found = sketch.spreaders(SPREADER).spreaders.into_iter().map(|spreader| spreader.number);
    Ok(row("two_level", "super_spreaders_f1", Found::new(truth, found).f1(), None))
}
