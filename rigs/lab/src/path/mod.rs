//! `weir lab path`: messages through a VXLAN tunnel over four equal links, one of them filled by an elephant,
//! with several schemes. It reproduces the measurement of DOCA-AR's authors (github.com/markchen7788/doca_ar)
//! on one machine.
//!
//! `weir bench path` runs the same comparison with all cells, and reports more about it.

mod cell;
mod comparison;
pub mod elephant;
mod identities;
pub mod messages;
mod node;
mod rows;
mod statistics;
mod topology;

pub use cell::{Cell, ElephantStarts, Regime, Sample, add_samples, read_samples};
pub use comparison::{ComparisonBed, ComparisonPlan, Reload};
pub use identities::Identity;
pub use node::{PathScheme, Scheme};
pub use rows::Row;
pub use statistics::at;

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use crate::session::{self, LabOutcome};
use weir_bed::namespace;

/// Programs that the lab runs.
const NEEDED: [&str; 5] = ["ip", "ethtool", "nft", "tc", "chrt"];
/// Mbit/s of a link: what two slow cores can carry besides the elephant.
pub const RATE_MBIT: u32 = 200;
/// The elephant's rate, in percent of a link. A link is full at 100, but a flow on it would then be nearly as
/// fast as elsewhere, because Linux recovers from single losses immediately.
pub const ELEPHANT_PERCENT: u32 = 200;

/// The options of `weir lab path`.
#[derive(clap::Args)]
pub struct PathOptions {
    /// Runs per scheme.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Number of concurrent flows.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=200))]
    flows: u32,
    /// Mbit/s of a link; the elephant sends twice as much.
    #[arg(long, default_value_t = RATE_MBIT, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Entries of a program that a host loads afterwards, while flows continue; 0: none.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(0..=4_000_000))]
    entries: u32,
    /// Also compare weir on host a alone, with routers that answer once a second: finding the paths then
    /// takes half a minute.
    #[arg(long)]
    one_sided: bool,
    #[command(flatten)]
    common: session::SessionOptions,
}

/// Fails if the comparison cannot be run.
///
/// # Errors
/// The user is not root, or programs are missing.
pub fn check_means() -> Result<()> {
    session::check_means("path", &namespace::missing(&NEEDED), "./setup")
}

/// Runs the lab.
pub fn run(options: &PathOptions) -> Result<ExitCode> {
    check_means()?;
    let flows = options.flows as usize;
    let cell = |elephant| Cell { regime: Regime::Time, flows, elephant };
    let arm = |scheme, rehash| PathScheme { scheme, rehash };
    let alone = options.one_sided.then(|| arm(Scheme::OneSided, true));
    let arms =
        [arm(Scheme::Ecmp, false), arm(Scheme::Ecmp, true), arm(Scheme::DocaAr, false), PathScheme::OURS];
    let plan = ComparisonPlan {
        rate_mbit: options.rate,
        elephant_percent: ELEPHANT_PERCENT,
        runs: options.runs as usize,
        faithful_runs: options.runs as usize,
        cells: vec![cell(ElephantStarts::Never), cell(ElephantStarts::Before)],
        arms: arms.into_iter().chain(alone).collect(),
        seed: 1,
    };
    session::run(&options.common, |interrupt, screen| {
        let mut run = options.common.begin()?;
        screen.say("host a == VXLAN, over four links between two routers == host b");
        if !topology::has_seeds() {
            screen.say(
                "this kernel has no net.ipv4.fib_multipath_hash_seed (Linux 6.11): both routers hash alike",
            );
        }
        let mut bed = ComparisonBed::start(&mut run, &plan, interrupt)?;
        let mut samples = Vec::new();
        bed.compare(&mut run, &plan, interrupt, &mut |number, taken| {
            taken.iter().for_each(|sample| screen.live(&[format!("  run {number}: {}", sample.text())]));
            samples.extend(taken);
            Ok(())
        })?;
        let rows = Row::of(&plan.cells, &plan.arms, &samples, plan.seed);
        screen.say(&Row::heading());
        rows.iter().for_each(|row| screen.say(&row.text()));
        let reload = match options.entries {
            0 => None,
            entries => Some(bed.reload(&mut run, entries, interrupt)?),
        };
        reload.iter().for_each(|reload| screen.say(&reload.text()));
        if !options.common.keep {
            bed.stop(&mut run)?;
        }
        let rows: Vec<_> = rows.iter().map(|row| row.json(ELEPHANT_PERCENT)).collect();
        let text = "Times are until the last flow has finished, in milliseconds.".into();
        Ok(LabOutcome {
            ok: true,
            text,
            json: json!({ "ok": true, "rows": rows, "reload": reload.map(Reload::json) }),
            kept: None,
        })
    })
}
