//! `weir bench path`: path selection schemes, in the network of `weir lab path`.
//!
//! The table is that of DOCA-AR's authors: 10 and 50 flows, with and without an elephant, here with 30 runs
//! of each scheme in random order, on hosts with and without rehashing of flows after timeouts. Then links
//! are cut under a stream of UDP flows, which the kernel never reroutes by itself; connections are opened
//! with and without weir; and a host loads a program with very many entries.

mod paper;

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};
use weir_bed::Run;
use weir_lab::Interrupt;
use weir_lab::path::{
    Cell, ComparisonBed, ComparisonPlan, ELEPHANT_PERCENT, ElephantStarts, Identity, PathScheme, RATE_MBIT,
    Regime, Reload, Row, Sample, Scheme, add_samples, at, check_means, read_samples,
};
use weir_lab::screen::Screen;

/// The options of `weir bench path`.
#[derive(clap::Args)]
pub struct PathOptions {
    /// Runs of each scheme in each cell. 0: only the runs in --samples.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(0..=1000))]
    runs: u32,
    /// Runs of `doca_ar`, whose share of slow runs takes hundreds of runs to measure. Default: as many as
    /// others.
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=1000))]
    faithful_runs: Option<u32>,
    /// Message size: such that ten take 27 ms, or 5 MB, which take a hundred times as long and add an
    /// elephant that starts after them.
    #[arg(long, value_enum, default_value = "time")]
    regime: Regimes,
    /// Number of concurrent flows.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 50],
          value_parser = clap::value_parser!(u32).range(1..=200))]
    flows: Vec<u32>,
    /// Only these schemes; ecmp is the baseline for the others.
    #[arg(long, value_delimiter = ',', default_value = "ecmp,doca_ar,adaptive,one_sided",
          value_parser = scheme)]
    scheme: Vec<Scheme>,
    /// The elephant's rate, in percent of a link.
    #[arg(long, default_value_t = ELEPHANT_PERCENT, value_parser = clap::value_parser!(u32).range(1..=400))]
    elephant: u32,
    /// Append the runs to this file, and include those already in it: a comparison of hours can be done in
    /// pieces.
    #[arg(long)]
    samples: Option<PathBuf>,
    /// How often a link is cut.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1000))]
    cuts: u32,
    /// How often connections are opened with and without weir; the median is reported.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100))]
    rounds: u32,
    /// Entries of a program that a host loads while flows continue; 0: none.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(0..=4_000_000))]
    entries: u32,
    /// Determines the order of runs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// End with one JSON object.
    #[arg(long)]
    json: bool,
}

/// The message sizes to measure.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Regimes {
    Time,
    Size,
    Both,
}

fn scheme(name: &str) -> Result<Scheme, String> {
    let names = Scheme::ALL.map(Scheme::name).join(", ");
    let found = Scheme::ALL.into_iter().find(|scheme| scheme.name() == name);
    found.ok_or_else(|| format!("it is not one of {names}"))
}

/// The number of rounds after which rows are printed each time.
const ROUNDS_PER_TABLE: usize = 5;

/// Results besides the rows.
#[derive(Default)]
struct Beside {
    failover_ms: Option<(f64, f64)>,
    new_flows_ratio: Option<f64>,
    reload: Option<Reload>,
}

/// Measures, and prints the table; if interrupted or on failure, prints what was measured so far.
pub fn run(options: &PathOptions) -> Result<()> {
    let plan = plan(options);
    let mut screen = Screen::new(options.json);
    let mut samples = match &options.samples {
        Some(file) => read_samples(file, plan.conditions())?,
        None => Vec::new(),
    };
    let mut beside = Beside::default();
    let measured = measure(options, &plan, &mut screen, &mut samples, &mut beside);
    let rows = print_rows(&plan, &mut screen, &samples);
    let identities = Identity::of(&rows);
    identities.iter().for_each(|identity| screen.say(&identity.text()));
    paper::text(&rows).iter().for_each(|line| screen.say(line));
    if options.json {
        weir_lab::screen::line(results(options, &rows, &identities, &beside))?;
    }
    measured
}

/// Prints the rows of the samples.
fn print_rows(plan: &ComparisonPlan, screen: &mut Screen, samples: &[Sample]) -> Vec<Row> {
    let rows = Row::of(&plan.cells, &plan.arms, samples, plan.seed);
    screen.say(&Row::heading());
    rows.iter().for_each(|row| screen.say(&row.text()));
    rows
}

/// Performs the measurements that need the network.
fn measure(
    options: &PathOptions,
    plan: &ComparisonPlan,
    screen: &mut Screen,
    samples: &mut Vec<Sample>,
    beside: &mut Beside,
) -> Result<()> {
    let runs = options.runs + options.faithful_runs.unwrap_or_default();
    if runs + options.cuts + options.rounds + options.entries == 0 {
        return Ok(());
    }
    check_means()?;
    let interrupt = Interrupt::on_signals()?;
    let mut run = Run::begin(false)?;
    let mut bed = ComparisonBed::start(&mut run, plan, &interrupt)?;
    let mut round = 1;
    bed.compare(&mut run, plan, &interrupt, &mut |number, taken| {
        if number != round && round.is_multiple_of(ROUNDS_PER_TABLE) {
            print_rows(plan, screen, samples);
        }
        round = number;
        let say = |sample: &Sample| screen.live(&[format!("  run {number}: {}", sample.text())]);
        taken.iter().for_each(say);
        keep(options.samples.as_deref(), &taken, plan)?;
        samples.extend(taken);
        Ok(())
    })?;
    if options.cuts > 0 {
        let outages = bed.cut(&mut run, options.cuts as usize, &interrupt)?;
        let (p50, p99) = (at(&outages, 0.5), at(&outages, 0.99));
        let (flows, cuts) = (outages.len(), options.cuts);
        screen.say(&format!(
            "a link is cut: {flows} flows in {cuts} cuts moved within {p50:.1} ms (p99 {p99:.1})"
        ));
        beside.failover_ms = Some((p50, p99));
    }
    if options.rounds > 0 {
        let ratio = bed.new_flows(&mut run, options.rounds as usize, &interrupt)?;
        screen.say(&format!("connections per second, ratio with/without weir: {ratio:.3}"));
        beside.new_flows_ratio = Some(ratio);
    }
    if options.entries > 0 {
        let reload = bed.reload(&mut run, options.entries, &interrupt)?;
        screen.say(&reload.text());
        beside.reload = Some(reload);
    }
    bed.stop(&mut run)
}

/// Saves samples as soon as they are taken, so that an interrupted comparison can be continued.
fn keep(file: Option<&Path>, taken: &[Sample], plan: &ComparisonPlan) -> Result<()> {
    file.map_or(Ok(()), |file| add_samples(file, taken, plan.conditions()))
}

fn plan(options: &PathOptions) -> ComparisonPlan {
    use ElephantStarts::{After, Before, Never};
    let regimes: &[(Regime, &[ElephantStarts])] = match options.regime {
        Regimes::Time => &[(Regime::Time, &[Never, Before])],
        Regimes::Size => &[(Regime::Size, &[Never, Before, After])],
        Regimes::Both => &[(Regime::Time, &[Never, Before]), (Regime::Size, &[Never, Before, After])],
    };
    let mut cells = Vec::new();
    for (regime, starts) in regimes {
        for &flows in &options.flows {
            let cell = |elephant: &_| Cell { regime: *regime, flows: flows as usize, elephant: *elephant };
            cells.extend(starts.iter().map(cell));
        }
    }
    let arm = |scheme: &Scheme| [false, true].map(|rehash| PathScheme { scheme: *scheme, rehash });
    ComparisonPlan {
        rate_mbit: RATE_MBIT,
        elephant_percent: options.elephant,
        runs: options.runs as usize,
        faithful_runs: options.faithful_runs.unwrap_or(options.runs) as usize,
        cells,
        arms: options.scheme.iter().flat_map(arm).collect(),
        seed: options.seed,
    }
}

fn results(options: &PathOptions, rows: &[Row], identities: &[Identity], beside: &Beside) -> Value {
    let paper = paper::json(rows);
    let rows: Vec<Value> = rows.iter().map(|row| row.json(options.elephant)).collect();
    let identities: Vec<Value> = identities.iter().map(Identity::json).collect();
    let failover = beside.failover_ms.map(|(p50, p99)| json!({ "p50": p50, "p99": p99 }));
    json!({
        "rows": rows,
        "identities": identities,
        "paper": paper,
        "failover_ms": failover,
        "new_flows_ratio": beside.new_flows_ratio,
        "reload": beside.reload.map(Reload::json),
    })
}
