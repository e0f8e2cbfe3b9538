//! `weir bench xenoflow`: the experiments of XenoFlow's thesis on this machine, compared with its figures.
//!
//! XenoFlow consists of two entries that match the masked source address and rewrite a MAC address. weir runs
//! the same program in several settings:
//! - on memory ports, the rate and the bandwidth of a core by payload length (`rate.rs`), and other ways to
//!   write the program (`ways.rs`), also in test runs of the kernel;
//! - as written by `weir import xenoflow`, between two veth pairs, latency and loss of the load itself
//!   (`load.rs`, `far.rs`), with the thesis's four distributions of clients;
//! - the same between a client and two back ends at a switch, the round trip of DNS queries under load
//!   (`trip.rs`), and rivals in the same place (`rivals.rs`, `bed.rs`).
//!
//! Theirs runs on the switch of a BlueField-3, an ASIC; ours on one core. Only shapes can be compared:
//! whether the rate depends on the payload, whether latency depends on load and distribution, and where loss
//! begins.

mod bed;
mod far;
mod figures;
mod load;
mod ovs;
mod plots;
mod program;
mod rate;
mod rivals;
mod thesis;
mod trip;
mod ways;

use crate::peers::Setting;
use crate::source::use_core;
use anyhow::Result;
use serde_json::{Value, json};
use std::fmt::Display;
use std::path::PathBuf;

pub use far::{Far, GeneratorOptions, generator, run as far};

/// How thoroughly to measure.
#[derive(clap::Args)]
pub struct XenoFlowOptions {
    /// A short run: few rounds, short turns, half of the loads. The results are rough.
    #[arg(long)]
    quick: bool,
    /// Also write a plot for each figure of the thesis, as SVG files, to this directory.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// End with one JSON object: `figures` and `sections` by the thesis's numbers, `rivals`, and the
    /// thesis's claims in `thesis`.
    #[arg(long)]
    pub json: bool,
}

/// The notice printed before any number.
const WHAT: &str = "theirs: a switch in hardware (BlueField-3), read from the thesis; ours: one core of this \
                    machine, in software. Compare shapes, not heights.";

/// Measures, prints tables, writes plots, and returns the JSON.
pub fn run(options: &XenoFlowOptions, say: impl Fn(&dyn Display) -> Result<()>) -> Result<Value> {
    say(&WHAT)?;
    // Before anything is pinned to a core.
    let (quick, setting) = (options.quick, Setting::new(0, false));
    let rate = rate::run(quick, &say)?;
    let ways = ways::run(quick, &say)?;
    let load = load::run(setting, quick, &say)?;
    let (trip, rivals) = in_bed(setting, quick, &say)?;
    let figures = figures::json(&rate, &load, &trip);
    let results = json!({
        "what": WHAT, "figures": figures, "sections": ways, "rivals": rivals, "rate": rate, "load": load,
        "thesis": thesis::json(),
    });
    if let Some(directory) = &options.svg {
        std::fs::create_dir_all(directory)?;
        plots::save(&results, directory)?;
    }
    Ok(results)
}

/// Measures round trips and rivals; if that is impossible, the first result says why, and there are no
/// rivals.
fn in_bed(
    setting: Setting,
    quick: bool,
    say: &impl Fn(&dyn Display) -> Result<()>,
) -> Result<(Value, Vec<Value>)> {
    let missing = bed::missing();
    let why = if !rustix::process::geteuid().is_root() {
        "network namespaces and AF_XDP need root".to_string()
    } else if !missing.is_empty() {
        format!("missing: {}; `./setup` installs what labs need", missing.join(", "))
    } else if setting.core == setting.other {
        "the worker needs a core of its own".to_string()
    } else {
        use_core(setting.other)?;
        let mut bed = bed::Bed::new(setting)?;
        let most = trip::most(&mut bed, quick)?;
        let trip = trip::run(&mut bed, most, quick, say)?;
        return Ok((trip, rivals::run(&mut bed, most, quick, say)?));
    };
    say(&format_args!("DNS round trip and rivals: not measured: {why}"))?;
    Ok((json!({ "why": why }), Vec::new()))
}
