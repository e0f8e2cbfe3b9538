//! `weir bench path`: schemes by which flows are given to paths, in the network of `weir lab path`.
//!
//! The table is that of DOCA-AR's authors: 10 and 50 flows, with and without an elephant, here with 30 runs
//! of each scheme in random order. Then links are cut under a stream of UDP flows, which the kernel never
//! sends elsewhere by itself; and connections are opened with weir and without.

use anyhow::Result;
use lab::Interrupt;
use lab::path::{Bed, Cell, ELEPHANT_PERCENT, Plan, RATE_MBIT, Regime, Row, Scheme, at, check_means};
use lab::run::Run;
use lab::screen::Screen;
use serde_json::{Value, json};

/// Flows at once.
const FLOWS: [usize; 2] = [10, 50];

/// The options of `weir bench path`.
#[derive(clap::Args)]
pub struct Options {
    /// Runs of each scheme in each cell.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Also messages of 5 MB, which take a hundred times as long.
    #[arg(long)]
    size: bool,
    /// What the elephant offers, in percent of a link.
    #[arg(long, default_value_t = ELEPHANT_PERCENT, value_parser = clap::value_parser!(u32).range(1..=400))]
    elephant: u32,
    /// How often a link is cut.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1000))]
    cuts: u32,
    /// Determines the order of runs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// End with one JSON object.
    #[arg(long)]
    json: bool,
}

/// Rounds with weir and without, of which the median is reported.
const ROUNDS: usize = 5;

/// Measures, and prints the table.
pub fn run(options: &Options) -> Result<()> {
    check_means()?;
    let interrupt = Interrupt::on_signals()?;
    let (mut run, mut screen) = (Run::begin(false)?, Screen::new(options.json));
    let plan = plan(options);
    let mut bed = Bed::start(&mut run, &plan, &interrupt)?;
    let rows = bed.compare(&mut run, &plan, &interrupt, &mut |line| screen.live(&[format!("  {line}")]))?;
    screen.say(&Row::heading());
    rows.iter().for_each(|row| screen.say(&row.text()));
    let outages = bed.cut(&mut run, options.cuts as usize, &interrupt)?;
    let (p50, p99) = (at(&outages, 0.5), at(&outages, 0.99));
    let (flows, cuts) = (outages.len(), options.cuts);
    screen.say(&format!(
        "a link is cut: {flows} flows in {cuts} cuts were elsewhere after {p50:.1} ms (p99 {p99:.1})"
    ));
    let ratio = bed.new_flows(&mut run, ROUNDS, &interrupt)?;
    screen.say(&format!("connections per second, with weir over without: {ratio:.3}"));
    bed.stop(&mut run)?;
    if options.json {
        lab::screen::line(results(options, &rows, (p50, p99), ratio))?;
    }
    Ok(())
}

fn plan(options: &Options) -> Plan {
    let regimes = if options.size { &[Regime::Time, Regime::Size][..] } else { &[Regime::Time] };
    let cell = |regime, flows| [false, true].map(|elephant| Cell { regime, flows, elephant });
    let cells =
        regimes.iter().flat_map(|&regime| FLOWS.into_iter().flat_map(move |flows| cell(regime, flows)));
    Plan {
        rate_mbit: RATE_MBIT,
        elephant_percent: options.elephant,
        runs: options.runs as usize,
        cells: cells.collect(),
        schemes: Scheme::ALL.to_vec(),
        seed: options.seed,
    }
}

fn results(options: &Options, rows: &[Row], (p50, p99): (f64, f64), ratio: f64) -> Value {
    let rows: Vec<Value> = rows.iter().map(|row| row.json(options.elephant)).collect();
    json!({ "rows": rows, "failover_ms": { "p50": p50, "p99": p99 }, "new_flows_ratio": ratio })
}
