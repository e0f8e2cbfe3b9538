//! What a solution answers, beside the exact truth.

use super::counter::{Counter, Solution};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::hash::Hash;
use weir_papers::Decoded;
use weir_sketch::accuracy::{Found, are, entropy, relative_error, wmre};
use weir_sketch::key::{number_text, source_number};
use weir_sketch::{Exact, KeyHash, Projection, Top, Update};

/// Minimum share of an interval's packets for a key to count as heavy.
const HEAVY: f64 = 0.001;

/// Minimum share of the packets of two intervals for a change to count as heavy.
const HEAVY_CHANGE: f64 = 0.0005;

/// Bytes of a key in the exact counts, with the free space of a map, in two intervals.
const KEY_BYTES: usize = 2 * 128;

/// A query, by its name in JSON, and its answer.
pub struct Answered {
    pub query: &'static str,
    pub value: Value,
}

/// The exact counts of an interval.
pub struct Truth {
    keys: Exact<5>,
    memory: usize,
}

impl Truth {
    /// Begins to count, with this memory limit in bytes.
    pub fn new(memory: usize) -> Truth {
        Truth { keys: Exact::default(), memory }
    }

    /// Counts a packet. Fails if the memory does not suffice.
    pub fn add(&mut self, update: &Update<5>) -> Result<(), String> {
        let most = self.memory / KEY_BYTES;
        self.keys.add(update);
        if self.keys.len() <= most {
            return Ok(());
        }
        let mebibytes = self.memory >> 20;
        Err(format!("exact counting stopped after {most} keys, all that fit into {mebibytes} MiB"))
    }

    fn changes(&self, before: &Truth) -> HashMap<[u64; 5], i64> {
        let mut changes: HashMap<[u64; 5], i64> = HashMap::new();
        for (truth, sign) in [(self, 1), (before, -1)] {
            for (key, count) in truth.keys.iter() {
                *changes.entry(*key).or_default() += sign * count.packets.cast_signed();
            }
        }
        changes
    }

    /// The number of destinations of each source.
    fn spreads(&self, counter: &Counter) -> HashMap<u64, u64> {
        let mut pairs: Vec<[u64; 5]> = self.keys.iter().map(|(key, _)| counter.pair(key)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let mut spreads = HashMap::new();
        for pair in pairs {
            *spreads.entry(source_number(&pair)).or_default() += 1;
        }
        spreads
    }
}

/// What is asked about an interval.
pub struct IntervalAsked<'a> {
    pub key: Projection,
    pub hash: &'a KeyHash,
    /// Rows of each list.
    pub top: usize,
    /// Destinations of a spreader.
    pub spread: u64,
    /// Packets of the interval, and of the one before.
    pub packets: u64,
    pub packets_before: u64,
}

/// The truth about an interval and, if there was one, about the interval before.
type Truths<'a> = Option<(&'a Truth, Option<&'a Truth>)>;

impl IntervalAsked<'_> {
    fn heavy_least(&self) -> u64 {
        ((self.packets as f64 * HEAVY).ceil() as u64).max(1)
    }

    fn change_least(&self) -> u64 {
        (((self.packets + self.packets_before) as f64 * HEAVY_CHANGE).ceil() as u64).max(1)
    }

    fn text(&self, key: &[u64; 5]) -> String {
        self.key.text(key)
    }
}

/// Answers everything that a solution answers.
pub fn answer(
    asked: &IntervalAsked<'_>,
    counter: &Counter,
    before: Option<&Counter>,
    truths: Truths<'_>,
) -> Vec<Answered> {
    let truth = truths.map(|(now, _)| now);
    match &counter.solution {
        Solution::CountMin(sketch) => vec![heavy(asked, tops(sketch.heavier(asked.heavy_least())), truth)],
        Solution::SpaceSaving(sketch) => vec![heavy(asked, tops(sketch.heavier(asked.heavy_least())), truth)],
        Solution::FlajoletMartin(sketch) => vec![cardinality(sketch.estimate().value, truth)],
        Solution::LinearCounting(sketch) => vec![cardinality(sketch.estimate().value, truth)],
        Solution::Mrac(sketch) => {
            let sizes = sketch.distribution();
            vec![
                cardinality(sketch.flows().value, truth),
                distribution(asked, &sizes.sizes, truth),
                entropy_of(sizes.entropy(), truth),
            ]
        }
        Solution::UnivMon(sketch) => {
            let before = before.map(|before| match &before.solution {
                Solution::UnivMon(before) => {
                    tops(sketch.changes(before, asked.change_least()).unwrap_or_default())
                }
                _ => unreachable!("both intervals have the same solution"),
            });
            vec![
                heavy(asked, tops(sketch.heavier(asked.heavy_least())), truth),
                cardinality(sketch.cardinality(), truth),
                entropy_of(sketch.entropy(), truth),
                changes_of_keys(asked, before, truths),
            ]
        }
        Solution::FlowRadar(sketch) => {
            let before = before.map(|before| match &before.solution {
                Solution::FlowRadar(before) => before.decode(asked.hash),
                _ => unreachable!("both intervals have the same solution"),
            });
            decoded(asked, (sketch.decode(asked.hash), sketch.capacity()), before.as_ref(), truths)
        }
        Solution::Reversible(sketch) => {
            let found = before.map(|before| match &before.solution {
                Solution::Reversible(before) => {
                    let changes = sketch.changes(before, asked.change_least());
                    let changes = changes.map(|found| found.changes).unwrap_or_default();
                    changes.into_iter().map(|one| (one.number, one.change.value)).collect()
                }
                _ => unreachable!("both intervals have the same solution"),
            });
            let truth = truths.and_then(|(now, before)| Some(by_source(&now.changes(before?))));
            vec![changes(asked, found, truth, |number| number_text(*number))]
        }
        Solution::TwoLevel(sketch) => {
            let found = sketch.spreaders(asked.spread).spreaders;
            let found = found.into_iter().map(|one| (one.number, one.spread.value)).collect();
            vec![spreaders(asked, found, truth.map(|truth| truth.spreads(counter)))]
        }
    }
}

/// The answers from FlowRadar's decoded flows, of an interval and of the one before; `room` is the number of
/// flows that can be decoded.
fn decoded(
    asked: &IntervalAsked<'_>,
    (decoded, room): (Decoded<5>, usize),
    before: Option<&Decoded<5>>,
    truths: Truths<'_>,
) -> Vec<Answered> {
    let truth = truths.map(|(now, _)| now);
    let mut sizes: HashMap<u64, f64> = HashMap::new();
    decoded.flows.iter().for_each(|(_, packets)| *sizes.entry(*packets).or_default() += 1.0);
    let mut sizes: Vec<(u64, f64)> = sizes.into_iter().collect();
    sizes.sort_unstable_by_key(|(size, _)| *size);
    let before = before.map(|before| differences(&decoded.flows, &before.flows));
    let flows = decoded.flows.len() as f64 + decoded.missing as f64;
    let found = decoded.flows.iter().map(|(key, packets)| (*key, *packets as f64)).collect();
    let value = json!({
        "flows": decoded.flows.len(), "missing": decoded.missing, "is_exact": decoded.is_exact,
        "room": room,
    });
    vec![
        Answered { query: "decoded", value },
        heavy(asked, found, truth),
        cardinality(flows, truth),
        distribution(asked, &sizes, truth),
        entropy_of(entropy(&sizes), truth),
        changes_of_keys(asked, before, truths),
    ]
}

/// The sources with many destinations.
fn spreaders(asked: &IntervalAsked<'_>, found: Sized<u64>, truth: Option<HashMap<u64, u64>>) -> Answered {
    let truth = truth.map(|truth| truth.into_iter().map(|(number, count)| (number, count as f64)).collect());
    let names = ["destinations", "spreaders"];
    list(names, asked.top, asked.spread, found, truth, |number| number_text(*number))
}

/// A list of keys with their estimates.
type Sized<K> = Vec<(K, f64)>;

fn tops(tops: Vec<Top<5>>) -> Sized<[u64; 5]> {
    tops.into_iter().map(|top| (top.key, top.size.value)).collect()
}

fn heavy(asked: &IntervalAsked<'_>, found: Sized<[u64; 5]>, truth: Option<&Truth>) -> Answered {
    let truth =
        truth.map(|truth| truth.keys.iter().map(|(key, count)| (*key, count.packets as f64)).collect());
    let names = ["packets", "heavy_hitters"];
    list(names, asked.top, asked.heavy_least(), found, truth, |key| asked.text(key))
}

fn changes_of_keys(
    asked: &IntervalAsked<'_>,
    found: Option<Sized<[u64; 5]>>,
    truths: Truths<'_>,
) -> Answered {
    let truth = truths.and_then(|(now, before)| {
        Some(now.changes(before?).into_iter().map(|(key, change)| (key, change as f64)).collect())
    });
    changes(asked, found, truth, |key| asked.text(key))
}

/// The changes since the interval before; null if there was none.
fn changes<K: Copy + Eq + Hash + Ord>(
    asked: &IntervalAsked<'_>,
    found: Option<Sized<K>>,
    truth: Option<HashMap<K, f64>>,
    text: impl Fn(&K) -> String,
) -> Answered {
    let names = ["change", "changes"];
    match found {
        Some(found) => list(names, asked.top, asked.change_least(), found, truth, text),
        None => Answered { query: names[1], value: Value::Null },
    }
}

/// The changes of sources.
fn by_source(changes: &HashMap<[u64; 5], i64>) -> HashMap<u64, f64> {
    let mut sources: HashMap<u64, f64> = HashMap::new();
    for (key, change) in changes {
        *sources.entry(source_number(key)).or_default() += *change as f64;
    }
    sources
}

/// The differences between the flows of two intervals.
fn differences(now: &[([u64; 5], u64)], before: &[([u64; 5], u64)]) -> Sized<[u64; 5]> {
    let mut changes: HashMap<[u64; 5], f64> = HashMap::new();
    for (flows, sign) in [(now, 1.0), (before, -1.0)] {
        flows.iter().for_each(|(key, packets)| *changes.entry(*key).or_default() += sign * *packets as f64);
    }
    changes.into_iter().collect()
}

/// The keys whose value is at least `least`, in either direction, the largest first; how well they were found
/// (F1), and the average relative error (ARE) of those that truly are. A key that is missing has an error of
/// 1. `what` names the value, and `query` the list.
fn list<K: Copy + Eq + Hash + Ord>(
    [what, query]: [&'static str; 2],
    top: usize,
    least: u64,
    found: Sized<K>,
    truth: Option<HashMap<K, f64>>,
    text: impl Fn(&K) -> String,
) -> Answered {
    let is_listed = |(_, value): &(K, f64)| value.abs() >= least as f64;
    let mut found: Sized<K> = found.into_iter().filter(is_listed).collect();
    found.sort_by(|one, other| other.1.abs().total_cmp(&one.1.abs()).then(one.0.cmp(&other.0)));
    let values: HashMap<K, f64> = found.iter().copied().collect();
    let row = |(key, value): &(K, f64)| {
        let exact = truth.as_ref().map(|truth| truth.get(key).copied().unwrap_or(0.0));
        json!({ "key": text(key), what: value, "exact": exact })
    };
    let quality = truth.as_ref().map(|truth| {
        let listed: Sized<K> = truth.iter().map(|(key, value)| (*key, *value)).filter(is_listed).collect();
        let f1 = Found::new(listed.iter().map(|(key, _)| *key), found.iter().map(|(key, _)| *key)).f1();
        let pair = |(key, value): &(K, f64)| (*value, values.get(key).copied().unwrap_or(0.0));
        (listed.len(), f1, are(listed.iter().map(pair)))
    });
    let rows: Vec<Value> = found.iter().take(top).map(row).collect();
    let value = json!({
        "least": least, "found": found.len(), "exact": quality.map(|quality| quality.0),
        "f1": quality.map(|quality| quality.1), "are": quality.map(|quality| quality.2), "rows": rows,
    });
    Answered { query, value }
}

/// A number, with its relative error.
fn number(query: &'static str, estimate: f64, exact: Option<f64>) -> Answered {
    let error = exact.map(|exact| relative_error(exact, estimate));
    Answered { query, value: json!({ "estimate": estimate, "exact": exact, "error": error }) }
}

fn cardinality(estimate: f64, truth: Option<&Truth>) -> Answered {
    number("cardinality", estimate, truth.map(|truth| truth.keys.len() as f64))
}

fn entropy_of(estimate: f64, truth: Option<&Truth>) -> Answered {
    number("entropy", estimate, truth.map(|truth| truth.keys.entropy()))
}

/// The number of flows of each size, with the weighted mean relative error (WMRE).
fn distribution(asked: &IntervalAsked<'_>, sizes: &[(u64, f64)], truth: Option<&Truth>) -> Answered {
    let exact = truth.map(|truth| truth.keys.distribution());
    let of = |size: u64| {
        let find = |sizes: &Vec<(u64, f64)>| {
            sizes.iter().find(|(other, _)| *other == size).map_or(0.0, |(_, flows)| *flows)
        };
        exact.as_ref().map(find)
    };
    let row = |(size, flows): &(u64, f64)| json!({ "packets": size, "flows": flows, "exact": of(*size) });
    let rows: Vec<Value> = sizes.iter().take(asked.top).map(row).collect();
    let error = exact.as_ref().map(|exact| wmre(exact, sizes));
    Answered { query: "distribution", value: json!({ "wmre": error, "rows": rows }) }
}
