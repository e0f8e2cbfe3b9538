//! The aggregator in front of a solution, or none.

use super::counter::Counter;
use serde_json::{Value, json};
use weir_measure::{SolutionError, SolutionSettings};
use weir_sketch::{
    Aggregator, AggregatorCounts, BATCH, Evicted, Gate, KeyHash, Policy, Scalar, Seed, Update, Vectors,
};

/// Packets of a burst, as in the paper.
const BURST: usize = 32;

/// Bytes of an aggregator whose KV arrays are not given.
const BYTES: usize = 1 << 20;

/// The word for no aggregator.
const NONE: &str = "none";

/// How keys reach the solution.
enum FrontWay {
    /// Every packet is counted.
    Alone,
    Vectors(Aggregator<5>),
    Scalar(Aggregator<5, Scalar>),
}

/// Collects packets to bursts, and gives the solution what leaves the aggregator.
pub struct Front {
    way: FrontWay,
    policy: Option<Policy>,
    kvs: usize,
    hash: KeyHash,
    burst: Vec<Update<5>>,
    out: Vec<Evicted<5>>,
}

impl Front {
    /// Creates the aggregator that was asked for. It switches itself off from `pays_below` evictions per
    /// packet on.
    pub fn new(settings: &SolutionSettings, pays_below: f64, seed: Seed) -> Result<Front, SolutionError> {
        let policy = match settings.aggregator.as_deref() {
            None => Some(Policy::MinCount),
            Some(NONE) => None,
            Some(word) => Some(find(word)?),
        };
        if policy.is_none() {
            reject(settings)?;
        }
        let per_row = Aggregator::<5>::BYTES_PER_ROW;
        let kvs = settings.kvs.unwrap_or(BYTES / per_row);
        let bytes = kvs.saturating_mul(per_row);
        let gate = if settings.always_on { Gate::always_open() } else { Gate::new(pays_below) };
        let wrong = |_| {
            let most = weir_sketch::BYTES_MAX / per_row;
            let why = format!("an aggregator has 1 to {most} KV arrays");
            SolutionError { key: "kvs", value: Some(kvs.to_string()), why }
        };
        let way = match policy {
            None => FrontWay::Alone,
            Some(policy) if settings.simd => {
                let aggregator = Aggregator::<5, Vectors>::comparing(bytes, policy, gate, &seed);
                FrontWay::Vectors(aggregator.map_err(wrong)?)
            }
            Some(policy) => {
                FrontWay::Scalar(Aggregator::comparing(bytes, policy, gate, &seed).map_err(wrong)?)
            }
        };
        Ok(Front {
            way,
            policy,
            kvs,
            hash: KeyHash::new(&seed),
            burst: Vec::with_capacity(BURST),
            out: Vec::with_capacity(2 * BATCH),
        })
    }

    /// Counts a packet, or several of a flow.
    pub fn add(&mut self, update: Update<5>, counter: &mut Counter) {
        self.burst.push(update);
        if self.burst.len() == BURST {
            self.pass(counter);
        }
    }

    fn pass(&mut self, counter: &mut Counter) {
        match &mut self.way {
            FrontWay::Alone => {
                let item = |one: &Update<5>| Evicted {
                    item: self.hash.item(one.key),
                    packets: one.packets,
                    bytes: one.bytes,
                    note: (),
                };
                self.out.extend(self.burst.iter().map(item));
            }
            FrontWay::Vectors(aggregator) => aggregator.add(&self.burst, &mut self.out),
            FrontWay::Scalar(aggregator) => aggregator.add(&self.burst, &mut self.out),
        }
        self.burst.clear();
        if self.out.len() >= BATCH {
            counter.add(&self.out, &self.hash);
            self.out.clear();
        }
    }

    /// Gives the solution everything that is left.
    pub fn flush(&mut self, counter: &mut Counter) {
        self.pass(counter);
        match &mut self.way {
            FrontWay::Alone => (),
            FrontWay::Vectors(aggregator) => aggregator.flush(|one| self.out.push(*one)),
            FrontWay::Scalar(aggregator) => aggregator.flush(|one| self.out.push(*one)),
        }
        counter.add(&self.out, &self.hash);
        self.out.clear();
    }

    fn counts(&self) -> AggregatorCounts {
        match &self.way {
            FrontWay::Alone => AggregatorCounts::default(),
            FrontWay::Vectors(aggregator) => aggregator.counts(),
            FrontWay::Scalar(aggregator) => aggregator.counts(),
        }
    }

    /// Describes it, and what it has done with its input, `what`; null without an aggregator.
    pub fn json(&self, what: &str) -> Value {
        let Some(policy) = self.policy else { return Value::Null };
        let AggregatorCounts { updates, hits, evictions, bypassed } = self.counts();
        json!({
            "policy": policy.word(), "kvs": self.kvs, "simd": matches!(self.way, FrontWay::Vectors(_)),
            what: updates, "hits": hits, "evictions": evictions, "bypassed": bypassed,
        })
    }
}

fn find(word: &str) -> Result<Policy, SolutionError> {
    let found = Policy::ALL.into_iter().find(|policy| policy.word() == word);
    let known = || Policy::ALL.map(Policy::word).join(", ");
    found.ok_or_else(|| SolutionError {
        key: "aggregator",
        value: Some(word.to_string()),
        why: format!("expected {}, or {NONE}", known()),
    })
}

/// Rejects parameters of an aggregator where there is none.
fn reject(settings: &SolutionSettings) -> Result<(), SolutionError> {
    let given =
        [("kvs", settings.kvs.is_some()), ("simd", !settings.simd), ("always_on", settings.always_on)];
    let Some((key, _)) = given.into_iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
    let all = Policy::ALL.map(Policy::word).join(", ");
    let why = format!("this is about an aggregator, and there is none: its policy is one of {all}");
    Err(SolutionError { key, value: None, why })
}
