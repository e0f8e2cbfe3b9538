//! `weir bench pipes`: weir's programs compared with the same programs on DPDK's own match-action pipeline
//! (SWX), on the same virtual devices: from a looped recording (`net_pcap`) to nowhere (`net_null`).
//!
//! SWX compiles a program to C and runs it in DPDK's example `pipeline`, which Debian does not package: `SWX`
//! names the built program, `.../examples/pipeline/build/pipeline`. Both take turns on one core, with the
//! other one suspended. A rate is frames sent divided by the processor time of the sending thread.

mod programs;
mod swx;

use super::dpdk::{HUGE_MIB, TURN, arm, obstacle, record};
use super::peers::{Forwarder, Setting};
use super::selection::Selection;
use anyhow::{Result, bail};
use programs::{ALL, Program};
use serde_json::{Value, json};
use std::fmt::Display;
use swx::Swx;
use weir_bed::Run;
use weir_lab::Interrupt;
use weir_lab::spread::ResultSpread;
use weir_port::huge_pages::HugePages;

/// The environment variable that names the built example.
const VARIABLE: &str = "SWX";

/// Rounds whose median is reported, after an uncounted warm-up round.
const ROUNDS: usize = 5;

/// Flows of the recording, one frame each.
const FLOWS: u32 = 10_000;

/// Measures the programs named by `only` (all when empty), and reports each; returns `None`, and prints the
/// reason, if that is impossible.
pub fn run(only: &[String], say: impl Fn(&dyn Display) -> Result<()>) -> Result<Option<Vec<Value>>> {
    let only = Selection::new(only, ALL.iter().map(|program| program.name))?;
    let path = std::env::var_os(VARIABLE);
    let binary = path.as_ref().and_then(|path| std::fs::canonicalize(path).ok().filter(|_| !path.is_empty()));
    let why = obstacle().or_else(|| binary.is_none().then(|| format!("{VARIABLE} does not name a program")));
    let (None, Some(binary)) = (&why, binary) else {
        say(&format_args!("pipes: not measured, {}", why.unwrap_or_default()))?;
        return Ok(None);
    };
    let interrupt = Interrupt::on_signals()?;
    let pages = HugePages::reserve(HUGE_MIB as usize + swx::MEBIBYTES as usize);
    if !pages.enough {
        bail!("not enough huge pages are available");
    }
    say(&"net_pcap to net_null: Mpps of processor time, median (min - max)")?;
    let mut rows = Vec::new();
    for program in ALL {
        if only.has(program.name) {
            rows.push(measure(&program, &binary, &interrupt, &say)?);
        }
    }
    Ok(Some(rows))
}

fn measure(
    program: &Program,
    binary: &std::path::Path,
    interrupt: &Interrupt,
    say: &impl Fn(&dyn Display) -> Result<()>,
) -> Result<Value> {
    let mut run = Run::begin(false)?;
    let setting = Setting::new(HUGE_MIB, true);
    let recording = record(run.folder(), FLOWS)?;
    let devices =
        [format!("net_pcap0,rx_pcap={},infinite_rx=1", recording.display()), "net_null0,no-rx=1".to_string()];
    let mut command = arm(&setting, &devices)?;
    command.args(["--program", program.name, "--flows", &FLOWS.to_string()]);
    let mut weir = Forwarder::weir(&mut run, "weir", &mut command)?;
    let mut swx = Swx::start(&mut run, binary, program, FLOWS, &setting, &devices, interrupt)?;
    let mut rates = [const { Vec::new() }; 2];
    let mut ratios = Vec::new();
    for round in 0..=ROUNDS {
        let theirs = swx.turn(&mut run, TURN, interrupt)?;
        let ours = weir.turn(&run, TURN, interrupt)?;
        if round > 0 {
            rates.iter_mut().zip([ours, theirs]).for_each(|(rates, turn)| rates.push(turn.mpps()));
            ratios.push(ours.mpps() / theirs.mpps());
        }
    }
    weir.stop(&mut run)?;
    let ([ours, theirs], ratio) = (rates.map(ResultSpread::of), ResultSpread::of(ratios).median);
    let name = program.name;
    say(&format_args!(
        "{name:<9} weir {:.2} ({:.2} - {:.2})  SWX {:.2} ({:.2} - {:.2})  weir / SWX {ratio:.2}",
        ours.median, ours.min, ours.max, theirs.median, theirs.min, theirs.max
    ))?;
    let mut row = json!({ "name": name, "flows": FLOWS, "ratio": ratio });
    ResultSpread::put(Some(ours), "weir", &mut row);
    ResultSpread::put(Some(theirs), "swx", &mut row);
    Ok(row)
}
