//! The comparison: the same messages by every scheme, many times, in random order.
//!
//! A run sends one message over each of some flows at once; what counts is the time of the last one
//! (`MaxFCT`, as DOCA-AR's authors have it), and the times of all flows. The schemes take turns, so that a
//! machine that is slow for a while is slow for all of them.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::elephant::Elephant;
use super::messages::Messages;
use super::node::{Nodes, Scheme};
use super::topology::{LINKS, Topology};
use crate::Interrupt;
use crate::run::Run;
use crate::stream::{Stream, outages_ms};

/// How long the elephant runs before flows begin: its queue is full then, and a prober has noticed.
const SETTLE: Duration = Duration::from_millis(1200);
/// The pause between runs, in which queues empty.
const PAUSE: Duration = Duration::from_millis(100);
/// Packets per second of the stream while links are cut: one of each flow every 5 ms.
const STREAM_RATE: u32 = 3200;
/// How long the stream runs before a link is cut, and how long the link is.
const LEAD: Duration = Duration::from_millis(500);
/// How long connections are opened, each time.
const CONNECTING: Duration = Duration::from_millis(1000);
/// Samples of a bootstrap.
const RESAMPLES: usize = 1000;

/// How large messages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regime {
    /// So large that ten flows without elephant take 27 ms, as DOCA-AR's did on links of 40 Gbit/s: the times
    /// compare with those of retransmission timers.
    Time,
    /// 5 MB, as DOCA-AR's.
    Size,
}

impl Regime {
    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Regime::Time => "time",
            Regime::Size => "size",
        }
    }

    /// Bytes of a message where links carry so many Mbit/s.
    fn bytes(self, rate_mbit: u32) -> usize {
        match self {
            // 5 MB at 15.4 Gbit/s, which the hosts of DOCA-AR's measurements reached.
            Regime::Time => 325 * rate_mbit as usize,
            Regime::Size => 5_000_000,
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// How large messages are.
    pub regime: Regime,
    /// Flows at once.
    pub flows: usize,
    /// Whether an elephant fills one of the links.
    pub elephant: bool,
}

/// What is compared.
pub struct Plan {
    /// Mbit/s that a link carries.
    pub rate_mbit: u32,
    /// What the elephant offers, in percent of that.
    pub elephant_percent: u32,
    /// Runs of each scheme in each cell.
    pub runs: usize,
    /// What is measured.
    pub cells: Vec<Cell>,
    /// The schemes; the first is what others are compared with.
    pub schemes: Vec<Scheme>,
    /// Determines the order of runs.
    pub seed: u64,
}

/// The network with everything that runs in it.
pub struct Bed {
    topology: Topology,
    elephant: Elephant,
    messages: Messages,
    nodes: Nodes,
}

/// A run.
struct Sample {
    cell: Cell,
    scheme: Scheme,
    flows: Vec<Duration>,
}

impl Bed {
    /// Sets it up; `run` removes it.
    pub fn start(run: &mut Run, plan: &Plan, interrupt: &Interrupt) -> Result<Bed> {
        let topology = Topology::build(run, plan.rate_mbit)?;
        let offered = plan.rate_mbit * plan.elephant_percent / 100;
        let elephant = Elephant::start(run, &topology, offered)?;
        let messages = Messages::start(run, &topology)?;
        let nodes = Nodes::start(run, &topology, plan.schemes[0], interrupt)?;
        Ok(Bed { topology, elephant, messages, nodes })
    }

    /// Compares, telling `say` about every run. Returns a row for each cell and scheme.
    pub fn compare(
        &mut self,
        run: &mut Run,
        plan: &Plan,
        interrupt: &Interrupt,
        say: &mut dyn FnMut(&str),
    ) -> Result<Vec<Row>> {
        let (mut samples, mut random) = (Vec::new(), Random(plan.seed));
        for number in 0..plan.runs {
            let mut schemes = plan.schemes.clone();
            random.shuffle(&mut schemes);
            for scheme in schemes {
                self.nodes.choose_by(&self.topology, scheme, interrupt)?;
                for elephant in [false, true] {
                    let mut cells: Vec<Cell> =
                        plan.cells.iter().copied().filter(|cell| cell.elephant == elephant).collect();
                    random.shuffle(&mut cells);
                    for sample in self.samples(run, (&cells, scheme, elephant), interrupt)? {
                        say(&sample.text(number + 1, plan.runs));
                        samples.push(sample);
                    }
                }
            }
        }
        Ok(rows(plan, &samples))
    }

    /// Takes a run of each cell, all with the elephant or all without.
    fn samples(
        &mut self,
        run: &mut Run,
        (cells, scheme, elephant): (&[Cell], Scheme, bool),
        interrupt: &Interrupt,
    ) -> Result<Vec<Sample>> {
        let mut samples = Vec::new();
        if elephant && !cells.is_empty() {
            self.elephant.go_on(run);
            interrupt.sleep(SETTLE)?;
        }
        for &cell in cells {
            interrupt.sleep(PAUSE)?;
            let bytes = cell.regime.bytes(self.topology.rate_mbit);
            let flows = self.messages.send(run, cell.flows, bytes, interrupt)?;
            samples.push(Sample { cell, scheme, flows });
        }
        self.elephant.hold(run);
        Ok(samples)
    }

    /// Makes the links drop everything, one after the other, `cuts` times in all, under a stream of UDP
    /// flows.
    /// Returns for each flow that lost packets how long it did, in milliseconds.
    pub fn cut(&mut self, run: &mut Run, cuts: usize, interrupt: &Interrupt) -> Result<Vec<f64>> {
        self.nodes.choose_by(&self.topology, Scheme::Adaptive, interrupt)?;
        let mut outages = Vec::new();
        for number in 0..cuts {
            let stream = Stream::start(run, self.topology.ends(), STREAM_RATE, interrupt)?;
            interrupt.sleep(LEAD)?;
            self.topology.blackhole(number % LINKS)?;
            interrupt.sleep(LEAD)?;
            self.topology.mend()?;
            self.nodes.wait_for_paths(interrupt)?;
            let (sent, received) = stream.end(run, interrupt)?;
            outages.extend(outages_ms(&sent, &received));
        }
        Ok(sorted(outages))
    }

    /// Opens connections with weir and without, in turns. Returns the rate with it over the rate without, the
    /// median of `rounds`.
    pub fn new_flows(&mut self, run: &mut Run, rounds: usize, interrupt: &Interrupt) -> Result<f64> {
        let mut ratios = Vec::new();
        for _ in 0..rounds {
            self.nodes.choose_by(&self.topology, Scheme::Adaptive, interrupt)?;
            let with = self.messages.connect(run, CONNECTING)?;
            self.nodes.stop(run)?;
            let without = self.messages.connect(run, CONNECTING)?;
            self.nodes = Nodes::start(run, &self.topology, Scheme::Adaptive, interrupt)?;
            ratios.push(with as f64 / without.max(1) as f64);
        }
        Ok(at(&sorted(ratios), 0.5))
    }

    /// Stops the daemons, which must end with success.
    pub fn stop(self, run: &mut Run) -> Result<()> {
        self.nodes.stop(run)
    }
}

impl Sample {
    fn max_ms(&self) -> f64 {
        ms(self.flows.iter().max().copied().unwrap_or_default())
    }

    fn text(&self, number: usize, runs: usize) -> String {
        let Cell { regime, flows, elephant } = self.cell;
        let elephant = if elephant { "with elephant" } else { "no elephant" };
        let (scheme, max) = (self.scheme.name(), self.max_ms());
        format!("run {number}/{runs}: {scheme:<12} {flows} flows, {}, {elephant}: {max:.1} ms", regime.name())
    }
}

/// What came of a scheme in a cell.
pub struct Row {
    /// What was measured.
    pub cell: Cell,
    /// The scheme.
    pub scheme: Scheme,
    /// The time of the last flow of each run in milliseconds, sorted.
    pub max_ms: Vec<f64>,
    /// The time of each flow in milliseconds, sorted.
    pub flow_ms: Vec<f64>,
    /// The first scheme's median over this one's, and where it lies in 95 % of resampled runs.
    pub gain: f64,
    /// The lower and the upper end of that.
    pub gain_interval: (f64, f64),
}

fn rows(plan: &Plan, samples: &[Sample]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for &cell in &plan.cells {
        let first = rows.len();
        for &scheme in &plan.schemes {
            let of = || samples.iter().filter(move |sample| sample.cell == cell && sample.scheme == scheme);
            let max_ms = sorted(of().map(Sample::max_ms).collect());
            let flow_ms = sorted(of().flat_map(|sample| sample.flows.iter().copied().map(ms)).collect());
            rows.push(Row { cell, scheme, max_ms, flow_ms, gain: 1.0, gain_interval: (1.0, 1.0) });
        }
        let base = rows[first].max_ms.clone();
        for row in &mut rows[first + 1..] {
            row.gain = at(&base, 0.5) / at(&row.max_ms, 0.5);
            row.gain_interval = bootstrap(&base, &row.max_ms, plan.seed);
        }
    }
    rows
}

impl Row {
    /// The heading of the rows' table.
    #[must_use]
    pub fn heading() -> String {
        let times = ["min", "median", "average", "p99", "max", "flow p99"].map(|name| format!("{name:>9}"));
        let times: String = times.concat();
        format!("regime flows  elephant scheme       runs {times}    gain  95 %")
    }

    /// The row of a table; times in milliseconds.
    #[must_use]
    pub fn text(&self) -> String {
        let Cell { regime, flows, elephant } = self.cell;
        let (all, (low, high)) = (&self.max_ms, self.gain_interval);
        let [min, median, p99, max] = [0.0, 0.5, 0.99, 1.0].map(|part| at(all, part));
        let times = [min, median, average(all), p99, max, at(&self.flow_ms, 0.99)];
        let times = times.map(|time| format!("{time:>9.1}")).concat();
        let (regime, scheme, runs) = (regime.name(), self.scheme.name(), all.len());
        let elephant = if elephant { "yes" } else { "no" };
        let gain = format!("{:>7.2}  {low:.2} - {high:.2}", self.gain);
        format!("{regime:<6} {flows:>5}  {elephant:<8} {scheme:<12} {runs:>4} {times} {gain}")
    }

    /// The row for programs. This format is stable.
    #[must_use]
    pub fn json(&self, elephant_percent: u32) -> Value {
        let all = &self.max_ms;
        json!({
            "regime": self.cell.regime.name(),
            "flows": self.cell.flows,
            "elephant": if self.cell.elephant { elephant_percent } else { 0 },
            "scheme": self.scheme.name(),
            "runs": all.len(),
            "maxfct_ms": {
                "min": at(all, 0.0), "median": at(all, 0.5), "average": average(all), "p99": at(all, 0.99),
                "max": at(all, 1.0),
            },
            "flow_fct_p99_ms": at(&self.flow_ms, 0.99),
            "gain_over_ecmp": self.gain,
            "gain_interval": [self.gain_interval.0, self.gain_interval.1],
        })
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the value below which a part of the sorted values lies; NaN if there is none.
pub fn at(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1) as f64;
    sorted.get((last * part).round() as usize).copied().unwrap_or(f64::NAN)
}

fn average(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns where 95 % of the ratios of medians lie when the runs are drawn again, with replacement.
fn bootstrap(base: &[f64], other: &[f64], seed: u64) -> (f64, f64) {
    let mut random = Random(seed);
    let mut median = |values: &[f64]| {
        at(&sorted(values.iter().map(|_| values[random.below(values.len())]).collect()), 0.5)
    };
    let ratios = sorted((0..RESAMPLES).map(|_| median(base) / median(other)).collect());
    (at(&ratios, 0.025), at(&ratios, 0.975))
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: Cell = Cell { regime: Regime::Time, flows: 2, elephant: true };

    fn plan() -> Plan {
        Plan {
            rate_mbit: 200,
            elephant_percent: 200,
            runs: 3,
            cells: vec![CELL],
            schemes: vec![Scheme::Ecmp, Scheme::Adaptive],
            seed: 1,
        }
    }

    fn samples(scheme: Scheme, times: [u64; 3]) -> Vec<Sample> {
        let sample = |max| Sample {
            cell: CELL,
            scheme,
            flows: vec![Duration::from_millis(1), Duration::from_millis(max)],
        };
        times.into_iter().map(sample).collect()
    }

    #[test]
    fn the_gain_is_the_first_schemes_median_over_anothers() {
        let mut all = samples(Scheme::Adaptive, [30, 10, 20]);
        all.extend(samples(Scheme::Ecmp, [100, 400, 900]));
        let rows = rows(&plan(), &all);
        let ecmp = &rows[0];
        assert_eq!((ecmp.gain, ecmp.max_ms.as_slice()), (1.0, &[100.0, 400.0, 900.0][..]));
        let adaptive = &rows[1];
        assert_eq!(
            (adaptive.gain, adaptive.flow_ms.as_slice()),
            (20.0, &[1.0, 1.0, 1.0, 10.0, 20.0, 30.0][..])
        );
        let (low, high) = adaptive.gain_interval;
        assert!((100.0 / 30.0..20.0).contains(&low) && high > 20.0 && high <= 90.0, "{low} {high}");
        assert_eq!(adaptive.json(200)["maxfct_ms"]["average"], 20.0);
    }

    #[test]
    fn equal_seeds_shuffle_equally_and_lose_nothing() {
        let order = |seed| {
            let mut items: Vec<u32> = (0..50).collect();
            Random(seed).shuffle(&mut items);
            items
        };
        assert_eq!(order(7), order(7));
        assert_ne!(order(7), order(8));
        let mut items = order(7);
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<u32>>());
    }
}
