//! `weir bench xenoflow`: the experiments of XenoFlow's thesis on this machine, beside its figures.
//!
//! XenoFlow is two entries under a mask of the source address that rewrite a MAC address. weir runs the same:
//! on memory ports for the rate of a core, by length of payload (`rate.rs`); and as `weir import xenoflow`
//! writes it for a daemon on AF_XDP, between two veth pairs, for latency and loss by load (`load.rs`,
//! `far.rs`), with the thesis's four distributions of clients.
//!
//! Theirs is the switch of a BlueField-3, an ASIC; ours is one core. What can be compared are shapes: whether
//! the rate depends on the payload, latency on load and distribution, and where loss begins.

mod far;
mod load;
mod plots;
mod rate;
mod thesis;

use anyhow::Result;
use serde_json::{Value, json};
use std::fmt::Display;
use std::path::PathBuf;

pub use far::{Far, run as far};

/// How thoroughly is measured.
#[derive(clap::Args)]
pub struct Options {
    /// A short run: few rounds, short turns, half of the loads. What it finds is rough.
    #[arg(long)]
    quick: bool,
    /// Also plots, as SVG files in this directory: `rate`, `latency`, `loss`.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// End with one JSON object: `rate` and `load`, the thesis's figures in `thesis`.
    #[arg(long)]
    pub json: bool,
}

/// What is said before any number.
const WHAT: &str = "theirs: a switch in hardware (BlueField-3), read from the thesis; ours: one core of this \
                    machine, in software. Compare shapes, not heights.";

/// Measures, says tables, writes plots, and returns what the JSON holds.
pub fn run(options: &Options, say: impl Fn(&dyn Display) -> Result<()>) -> Result<Value> {
    say(&WHAT)?;
    let rate = rate::run(options.quick, &say)?;
    let load = load::run(options.quick, &say)?;
    let results = json!({ "what": WHAT, "rate": rate, "load": load, "thesis": thesis::json() });
    if let Some(directory) = &options.svg {
        std::fs::create_dir_all(directory)?;
        plots::save(&results, directory)?;
    }
    Ok(results)
}
