//! The outcome of runs: slowdowns as histograms, so that results of many seeds can be merged exactly.

use crate::packet::Ledger;
use crate::scenario::Scenario;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The format of result files.
const FORMAT: u32 = 2;

/// Ratio of consecutive histogram class bounds: a class is 1 % wide, so quantiles are exact to half of that.
const WIDTH: f64 = 1.01;

/// Flows smaller than this are small, and flows of at least `LARGE` are large, in bytes (as in the papers'
/// reports).
const SMALL: u64 = 100_000;
const LARGE: u64 = 10_000_000;

/// Number of flows by slowdown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    count: u64,
    sum: f64,
    /// Class k holds slowdowns from 1.01^k.
    classes: BTreeMap<u32, u64>,
}

impl Histogram {
    /// Counts a value; a value below 1 counts as 1.
    pub fn add(&mut self, value: f64) {
        let value = value.max(1.0);
        self.count += 1;
        self.sum += value;
        *self.classes.entry((value.ln() / WIDTH.ln()) as u32).or_default() += 1;
    }

    fn merge(&mut self, other: &Histogram) {
        self.count += other.count;
        self.sum += other.sum;
        for (class, count) in &other.classes {
            *self.classes.entry(*class).or_default() += count;
        }
    }

    /// The mean; `None` if nothing was counted.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// The value that `percent` of all values do not exceed; `None` if nothing was counted.
    #[must_use]
    pub fn quantile(&self, percent: f64) -> Option<f64> {
        let rank = (self.count as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        let class = self.classes.iter().find(|(_, count)| {
            seen += **count;
            seen >= rank
        })?;
        Some(WIDTH.powf(f64::from(*class.0) + 0.5))
    }

    fn summary(&self) -> Value {
        let short = |value: Option<f64>| value.map(short);
        json!({
            "p50": short(self.quantile(50.0)),
            "p95": short(self.quantile(95.0)),
            "p99": short(self.quantile(99.0)),
            "mean": short(self.mean()),
        })
    }
}

fn short(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn short_pair(pair: Option<(f64, f64)>) -> Option<[f64; 2]> {
    pair.map(|(least, most)| [short(least), short(most)])
}

/// Slowdowns of all, small and large flows: the flow completion time divided by that of the same flow alone
/// in the fabric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slowdowns {
    /// Flows of every size.
    pub all: Histogram,
    /// Flows of less than 100 KB.
    pub small: Histogram,
    /// Flows of 10 MB or more.
    pub large: Histogram,
}

impl Slowdowns {
    /// Counts a flow.
    pub fn add(&mut self, bytes: u64, slowdown: f64) {
        self.all.add(slowdown);
        if bytes < SMALL {
            self.small.add(slowdown);
        } else if bytes >= LARGE {
            self.large.add(slowdown);
        }
    }
}

/// The slowdowns of one run, which show how much results depend on the seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfSeed {
    /// The seed of the run.
    pub seed: u64,
    /// The mean slowdown of all flows; `None` if none was counted.
    pub mean: Option<f64>,
    /// The 99th percentile of the slowdowns of all flows; `None` if none was counted.
    pub p99: Option<f64>,
}

/// The outcome of a run, or of several that differ only in their seeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunOutcome {
    /// Everything that must be equal for results to be merged, except the load and the scheme.
    pub setting: String,
    /// The load, in percent of the capacity of the fabric: see [`Scenario::percent`].
    pub load: f64,
    /// The name of the scheme that chose paths.
    pub scheme: String,
    /// The slowdowns for each seed.
    pub seeds: Vec<OfSeed>,
    /// Flows that started.
    pub flows: u64,
    /// Flows that did not finish.
    pub unended: u64,
    /// Simulated time of all runs, ns.
    pub time_ns: u64,
    /// The number of events that the simulator processed.
    pub events: u64,
    /// The packet ledger.
    pub ledger: Ledger,
    /// The flows' slowdowns.
    pub slowdowns: Slowdowns,
}

impl RunOutcome {
    /// The outcome of a run; `numbers`: time, events, unfinished flows.
    #[must_use]
    pub fn new(scenario: &Scenario, slowdowns: Slowdowns, ledger: Ledger, numbers: [u64; 3]) -> RunOutcome {
        let shape = &scenario.shape;
        let faults: Vec<String> = scenario.faults.iter().map(ToString::to_string).collect();
        let load = serde_json::to_value(scenario.load).unwrap_or_default();
        let setting = format!(
            "{} {}x{}x{} {}/{} Gbit/s {} ns buffer {} mark {} {} {} us probes {} us gap {} ns faults [{}]",
            load.as_str().unwrap_or_default(),
            shape.leaves,
            shape.spines,
            shape.hosts,
            shape.host_rate,
            shape.rate,
            shape.delay_ns,
            shape.buffer,
            shape.mark,
            if scenario.tcp.dctcp { "dctcp" } else { "reno" },
            scenario.tcp.timeout_min / 1000,
            scenario.probe_ns / 1000,
            scenario.flowlet_ns.unwrap_or(0),
            faults.join(" ")
        );
        let [time_ns, events, unended] = numbers;
        let (mean, p99) = (slowdowns.all.mean(), slowdowns.all.quantile(99.0));
        RunOutcome {
            setting,
            load: scenario.percent,
            scheme: scenario.contender.to_string(),
            seeds: vec![OfSeed { seed: scenario.seed, mean, p99 }],
            flows: u64::from(scenario.flows),
            unended,
            time_ns,
            events,
            ledger,
            slowdowns,
        }
    }

    /// Combines this outcome with that of another seed.
    ///
    /// # Errors
    /// The seeds are the same.
    pub fn with(mut self, other: &RunOutcome) -> Result<RunOutcome> {
        self.merge(other)?;
        Ok(self)
    }

    fn merge(&mut self, other: &RunOutcome) -> Result<()> {
        let is_here = |one: &&OfSeed| self.seeds.iter().any(|other| other.seed == one.seed);
        if let Some(OfSeed { seed, .. }) = other.seeds.iter().find(is_here) {
            anyhow::bail!("seed {seed} of {} at {} % appears twice", self.scheme, self.load);
        }
        self.seeds.extend_from_slice(&other.seeds);
        self.seeds.sort_unstable_by_key(|one| one.seed);
        self.flows += other.flows;
        self.unended += other.unended;
        self.time_ns += other.time_ns;
        self.events += other.events;
        self.ledger.add(&other.ledger);
        self.slowdowns.all.merge(&other.slowdowns.all);
        self.slowdowns.small.merge(&other.slowdowns.small);
        self.slowdowns.large.merge(&other.slowdowns.large);
        Ok(())
    }

    /// The minimum and maximum of a figure over the seeds; `None` if there is none.
    #[must_use]
    pub fn spread(&self, figure: fn(&OfSeed) -> Option<f64>) -> Option<(f64, f64)> {
        let all = || self.seeds.iter().filter_map(figure);
        Some((all().reduce(f64::min)?, all().reduce(f64::max)?))
    }

    /// The outcome as a row of the final JSON line.
    #[must_use]
    pub fn row(&self) -> Value {
        json!({
            "load": self.load,
            "scheme": self.scheme,
            "slowdown": self.slowdowns.all.summary(),
            "slowdown_small": self.slowdowns.small.summary(),
            "slowdown_large": self.slowdowns.large.summary(),
            "flows": self.flows,
            "unended": self.unended,
            "seeds": self.seeds.len(),
            "spread": {
                "mean": short_pair(self.spread(|one| one.mean)),
                "p99": short_pair(self.spread(|one| one.p99)),
            },
        })
    }
}

/// Results: outcomes of distinct settings, loads and schemes, sorted in that order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Results {
    weir_sim: u32,
    /// The outcomes.
    pub outcomes: Vec<RunOutcome>,
}

impl Results {
    /// Adds an outcome, merging it with those of other seeds if there are any.
    ///
    /// # Errors
    /// The same seed is already present.
    pub fn add(&mut self, outcome: &RunOutcome) -> Result<()> {
        self.weir_sim = FORMAT;
        let key = |one: &RunOutcome| (one.setting.clone(), (one.load * 1e6) as u64, one.scheme.clone());
        match self.outcomes.binary_search_by_key(&key(outcome), key) {
            Ok(at) => self.outcomes[at].merge(outcome),
            Err(at) => {
                self.outcomes.insert(at, outcome.clone());
                Ok(())
            }
        }
    }

    /// Reads a results file.
    ///
    /// # Errors
    /// The text is not a results file; the error says where.
    pub fn read(text: &str) -> Result<Results> {
        let results: Results = serde_json::from_str(text).context(
            "not a result file of `weir sim path \
            --out`",
        )?;
        let format = results.weir_sim;
        ensure!(format == FORMAT, "`weir_sim`: format {format} is not {FORMAT}");
        for (at, outcome) in results.outcomes.iter().enumerate() {
            ensure!(
                outcome.ledger.balances(),
                "outcome {at}: the packet counts do not add up: was the file \
                edited?"
            );
        }
        Ok(results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_to_a_percent() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|value| histogram.add(f64::from(value)));
        for percent in [50.0, 95.0, 99.0] {
            let found = histogram.quantile(percent).unwrap();
            assert!((found / (percent * 10.0) - 1.0).abs() < 0.01, "{percent}: {found}");
        }
        assert_eq!(histogram.mean(), Some(500.5));
        assert_eq!(Histogram::default().quantile(50.0), None);
    }

    #[test]
    fn bad_files_are_refused() {
        for (text, says) in [
            ("", "not a result file"),
            ("{}", "not a result file"),
            (r#"{"weir_sim":1,"outcomes":[]}"#, "format 1"),
        ] {
            let error = format!("{:#}", Results::read(text).unwrap_err());
            assert!(error.contains(says), "{error}");
        }
    }
}
