//! `weir sim`: options, progress, plots.

use crate::fabric::{Fault, Shape};
use crate::loads::Load;
use crate::outcome::{Results, RunOutcome};
use crate::run::Run;
use crate::scenario::{Contender, Scenario};
use crate::tcp::Behaviour;
use crate::trace::Trace;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::io::{IsTerminal, Write, stderr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_path::scheme::Scheme;
use weir_plot::{Plot, Series};

/// The available simulations.
#[derive(clap::Subcommand)]
pub enum Sim {
    /// Simulate flows through a leaf-spine fabric, packet by packet, under several path selection schemes,
    /// and report how much longer they take than alone.
    Path(Box<PathOptions>),
    /// Merge results of runs with different seeds.
    Merge(Merge),
}

/// The parameters of a simulation.
#[derive(clap::Args)]
pub struct PathOptions {
    /// Schemes: ecmp, doca_ar, adaptive, letflow, clove, plb_like, spray, adaptive_cells,
    /// conga_like; all if none is given.
    scheme: Vec<Contender>,
    /// Loads, in percent of the capacity between leaves and spines.
    #[arg(long, value_delimiter = ',', default_value = "60")]
    load: Vec<f64>,
    /// Flow size distribution.
    #[arg(long, value_enum, default_value = "web_search")]
    sizes: Load,
    /// Flows per run.
    #[arg(long, default_value_t = 20_000)]
    flows: u32,
    /// The first seed. Equal seeds give byte-identical results.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(..1 << 63))]
    seed: u64,
    /// Number of consecutive seeds; the table shows their spread.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Leaf switches.
    #[arg(long, default_value_t = 8)]
    leaves: u32,
    /// Spine switches, and thus paths between two leaves.
    #[arg(long, default_value_t = 8)]
    spines: u32,
    /// Hosts per leaf.
    #[arg(long, default_value_t = 16)]
    hosts: u32,
    /// Rate of a host's link, Gbit/s.
    #[arg(long, default_value_t = 10.0)]
    host_rate: f64,
    /// Rate of a link between leaf and spine, Gbit/s.
    #[arg(long, default_value_t = 10.0)]
    rate: f64,
    /// Delay of a link, ns.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    delay: u64,
    /// Buffer of a switch port, bytes.
    #[arg(long, default_value_t = 500_000)]
    buffer: u64,
    /// Queue length from which switch ports mark packets, bytes.
    #[arg(long, default_value_t = 100_000)]
    mark: u64,
    /// Use TCP without ECN marks instead of DCTCP.
    #[arg(long)]
    reno: bool,
    /// The shortest retransmission timeout, us.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(10..=10_000_000))]
    timeout: u64,
    /// Time between two probes of a path in use, us.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(10..=10_000_000))]
    probe: u64,
    /// The gap that starts a new flowlet, us, instead of one derived from the link rate.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    gap: Option<u64>,
    /// Faults of the fabric: slow:LEAF-SPINE:PERCENT, cut:LEAF-SPINE, dead:LEAF-SPINE:MS, loss:SPINE:PERCENT,
    /// blackhole:SPINE:CLASSES. May be repeated.
    #[arg(long)]
    fault: Vec<Fault>,
    /// Write the results to this file, for `weir sim merge`.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Write the outcome of every flow to this file, as comma-separated values, one line per flow.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Write plots into this directory.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// End with one JSON object.
    #[arg(long)]
    json: bool,
}

/// Results to merge.
#[derive(clap::Args)]
pub struct Merge {
    /// Files written by `weir sim path --out`.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Write the merged results to this file.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Write plots into this directory.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// End with one JSON object.
    #[arg(long)]
    json: bool,
}

/// The sink for output lines.
type LineSink<'a> = &'a mut dyn FnMut(String) -> Result<()>;

/// Simulates or merges; prints a table through `line`, and progress to standard error.
///
/// # Errors
/// An option or a file is invalid, or a file cannot be written.
pub fn run(what: &Sim, line: LineSink) -> Result<()> {
    match what {
        Sim::Path(options) => simulate(options, line),
        Sim::Merge(options) => merge(options, line),
    }
}

fn simulate(options: &PathOptions, line: LineSink) -> Result<()> {
    let contenders = if options.scheme.is_empty() {
        let others = [Contender::AdaptiveCells, Contender::CongaLike];
        Scheme::ALL.into_iter().map(Contender::Host).chain(others).collect()
    } else {
        options.scheme.clone()
    };
    let mut groups = Vec::new();
    for load in &options.load {
        for contender in &contenders {
            // Check all scenarios before the first one runs.
            let scenario = options.scenario(*load, *contender);
            Run::new(&scenario)?;
            groups.push(scenario);
        }
    }
    let mut results = Results::default();
    let mut trace = options.trace.as_deref().map(Trace::create).transpose()?;
    line(HEAD.to_string())?;
    let runs = groups.len() * options.seeds as usize;
    for (at, group) in groups.iter().enumerate() {
        let mut merged: Option<RunOutcome> = None;
        for number in 0..options.seeds {
            let scenario = Scenario { seed: options.seed + number, ..group.clone() };
            let mut run = Run::new(&scenario)?;
            let number = at * options.seeds as usize + number as usize + 1;
            Progress { run: number, runs, began: Instant::now(), shown: Instant::now() }
                .follow(&scenario, &mut run);
            let outcome = run.outcome();
            ensure!(outcome.ledger.balances(), "packets went missing: {:?}", outcome.ledger);
            if let Some(trace) = &mut trace {
                trace.add(&scenario, &run)?;
            }
            results.add(&outcome)?;
            merged = Some(match merged {
                None => outcome,
                Some(merged) => merged.with(&outcome)?,
            });
        }
        merged.map_or(Ok(()), |merged| line(text(&merged)))?;
    }
    trace.map_or(Ok(()), Trace::end)?;
    finish(&results, options.out.as_deref(), options.svg.as_deref())?;
    if options.json { line(last_line(&results).to_string()) } else { Ok(()) }
}

impl PathOptions {
    fn scenario(&self, percent: f64, contender: Contender) -> Scenario {
        Scenario {
            shape: Shape {
                leaves: self.leaves,
                spines: self.spines,
                hosts: self.hosts,
                host_rate: self.host_rate,
                rate: self.rate,
                delay_ns: self.delay,
                buffer: self.buffer,
                mark: self.mark,
            },
            faults: self.fault.clone(),
            load: self.sizes,
            percent,
            contender,
            seed: self.seed,
            flows: self.flows,
            tcp: Behaviour { dctcp: !self.reno, timeout_min: self.timeout * 1000 },
            probe_ns: self.probe * 1000,
            flowlet_ns: self.gap.map(|gap| gap * 1000),
        }
    }
}

/// Events between two clock checks.
const EVENTS: u64 = 1 << 20;

/// Interval between two progress lines.
const LINES: Duration = Duration::from_secs(5);

struct Progress {
    run: usize,
    runs: usize,
    began: Instant,
    shown: Instant,
}

impl Progress {
    fn follow(mut self, scenario: &Scenario, run: &mut Run) {
        let mut events = 0;
        while run.advance(EVENTS) {
            events += EVENTS;
            if self.shown.elapsed() >= LINES {
                self.shown = Instant::now();
                let (left, flows) = run.left();
                let rate = events as f64 / self.began.elapsed().as_secs_f64() / 1e6;
                let end = if stderr().is_terminal() { "\r" } else { "\n" };
                let _ = write!(
                    stderr(),
                    "weir: run {} of {}: {} at {} %: {} of {flows} flows finished, {rate:.1} M events/s{end}",
                    self.run,
                    self.runs,
                    scenario.contender,
                    scenario.percent,
                    flows - left
                );
            }
        }
    }
}

const HEAD: &str = "load  scheme      slowdown p50    p95    p99   mean | mean of seeds  p99 of seeds | \
                    small p99  large p50 | unended  dropped  again %  probes %";

fn text(outcome: &RunOutcome) -> String {
    let slowdowns = &outcome.slowdowns;
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_string(), |value| format!("{value:.2}"));
    let quantile = |percent| number(slowdowns.all.quantile(percent));
    let spread = |figure| match outcome.spread(figure) {
        Some((least, most)) if outcome.seeds.len() > 1 => format!("{least:.2}-{most:.2}"),
        _ => "-".to_string(),
    };
    let percent = |count: u64| count as f64 * 100.0 / outcome.ledger.sent.max(1) as f64;
    format!(
        "{:>4}  {:<14} {:>9} {:>6} {:>6} {:>6} | {:>13} {:>13} | {:>9} {:>10} | {:>7} {:>8} {:>8.3} {:>9.3}",
        outcome.load,
        outcome.scheme,
        quantile(50.0),
        quantile(95.0),
        quantile(99.0),
        number(slowdowns.all.mean()),
        spread(|one| one.mean),
        spread(|one| one.p99),
        number(slowdowns.small.quantile(99.0)),
        number(slowdowns.large.quantile(50.0)),
        outcome.unended,
        outcome.ledger.dropped.values().sum::<u64>(),
        percent(outcome.ledger.again),
        percent(outcome.ledger.probes)
    )
}

fn merge(options: &Merge, line: LineSink) -> Result<()> {
    let mut results = Results::default();
    for file in &options.files {
        let name = file.display();
        let text = std::fs::read_to_string(file).with_context(|| format!("{name} cannot be read"))?;
        for outcome in Results::read(&text).with_context(|| name.to_string())?.outcomes {
            results.add(&outcome).with_context(|| name.to_string())?;
        }
    }
    let mut setting = "";
    for outcome in &results.outcomes {
        if outcome.setting != setting {
            setting = &outcome.setting;
            line(setting.to_string())?;
            line(HEAD.to_string())?;
        }
        line(text(outcome))?;
    }
    finish(&results, options.out.as_deref(), options.svg.as_deref())?;
    if options.json { line(last_line(&results).to_string()) } else { Ok(()) }
}

fn last_line(results: &Results) -> Value {
    let settings: Vec<&String> = results.outcomes.iter().map(|one| &one.setting).collect();
    let row = |outcome: &RunOutcome| {
        let mut row = outcome.row();
        if settings.iter().any(|setting| **setting != outcome.setting) {
            row["setting"] = json!(outcome.setting);
        }
        row
    };
    json!({ "rows": results.outcomes.iter().map(row).collect::<Vec<Value>>() })
}

fn finish(results: &Results, out: Option<&Path>, svg: Option<&Path>) -> Result<()> {
    if let Some(out) = out {
        let text = serde_json::to_string(results)? + "\n";
        std::fs::write(out, text).with_context(|| format!("{} cannot be written", out.display()))?;
    }
    let Some(directory) = svg else { return Ok(()) };
    std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let mut settings: Vec<&String> = results.outcomes.iter().map(|one| &one.setting).collect();
    settings.dedup();
    for (number, setting) in settings.iter().enumerate() {
        let outcomes: Vec<&RunOutcome> =
            results.outcomes.iter().filter(|one| one.setting == **setting).collect();
        for (name, value) in VALUES {
            let number = if settings.len() > 1 { format!("-{number}") } else { String::new() };
            plot_of(&outcomes, name, *value).save(directory, &format!("slowdown-{name}{number}"))?;
        }
    }
    Ok(())
}

/// The figure of an outcome to plot.
type ValueOf = fn(&RunOutcome) -> Option<f64>;

const VALUES: &[(&str, ValueOf)] = &[
    ("mean", |outcome| outcome.slowdowns.all.mean()),
    ("p99", |outcome| outcome.slowdowns.all.quantile(99.0)),
    ("small-p99", |outcome| outcome.slowdowns.small.quantile(99.0)),
    ("large-p50", |outcome| outcome.slowdowns.large.quantile(50.0)),
];

fn plot_of(outcomes: &[&RunOutcome], name: &str, value: ValueOf) -> Plot {
    let mut schemes: Vec<&str> = outcomes.iter().map(|outcome| outcome.scheme.as_str()).collect();
    schemes.sort_unstable();
    schemes.dedup();
    let series = |scheme: &&str| Series {
        name: (*scheme).to_string(),
        points: outcomes
            .iter()
            .filter(|outcome| outcome.scheme == *scheme)
            .filter_map(|outcome| Some((outcome.load, value(outcome)?)))
            .collect(),
        is_other: *scheme == "conga_like",
    };
    Plot {
        title: format!("flow completion time over that of a lone flow ({name})"),
        axes: ("load, %", "slowdown"),
        bars: Vec::new(),
        series: schemes.iter().map(series).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(subcommand)]
        sim: Sim,
    }

    /// Runs a command line and returns what it prints.
    fn lines(words: &[&str]) -> Vec<String> {
        let cli = Cli::parse_from([&["sim"], words].concat());
        let mut lines = Vec::new();
        run(&cli.sim, &mut |line| {
            lines.push(line);
            Ok(())
        })
        .expect("a run");
        lines
    }

    const SMALL: &[&str] = &["path", "ecmp", "adaptive", "--leaves", "2", "--hosts", "4", "--flows", "40"];

    #[test]
    fn several_seeds_are_what_merging_their_runs_gives_and_a_trace_has_every_flow() {
        let folder = std::env::temp_dir().join(format!("weir-sim-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = |name: &str| folder.join(name).to_str().expect("a name").to_string();
        let (one, other, trace) = (file("1.json"), file("2.json"), file("flows.csv"));
        for (seed, file) in [("5", &one), ("6", &other)] {
            lines(&[SMALL, &["--seeds", "1", "--seed", seed, "--out", file]].concat());
        }
        let merged = lines(&["merge", &one, &other, "--json"]);
        let together =
            lines(&[SMALL, &["--seeds", "2", "--seed", "5", "--json", "--trace", &trace]].concat());
        assert_eq!(merged.last(), together.last());
        let rows: Value = serde_json::from_str(merged.last().expect("a line")).expect("JSON");
        let [least, most] = [0, 1].map(|end| rows["rows"][0]["spread"]["mean"][end].as_f64());
        assert!(least < most && rows["rows"][0]["seeds"] == 2, "{rows}");
        let trace = std::fs::read_to_string(&trace).expect("a trace");
        let flows: Vec<Vec<&str>> = trace.lines().skip(1).map(|line| line.split(',').collect()).collect();
        assert_eq!(flows.len(), 2 * 2 * 40);
        let number = |text: &str| text.parse::<u64>().expect("a number");
        for flow in flows.iter().filter(|flow| !flow[10].is_empty()) {
            assert!(number(flow[10]) > number(flow[4]), "{flow:?}");
            assert!(number(flow[5]) / 4 != number(flow[6]) / 4 && number(flow[8]) < 8, "{flow:?}");
        }
        std::fs::remove_dir_all(&folder).expect("the folder");
    }
}
