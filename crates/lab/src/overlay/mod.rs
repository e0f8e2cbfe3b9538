//! `weir lab overlay`: a cache in front of a container network with VXLAN, while what it depends on changes.
//!
//! Three nodes with two pods each, a daemon on each node, flows between pods; and then pods that move, rules
//! that forbid, neighbours with other addresses, daemons that die. In each phase requests are counted, and
//! those that another pod got than the one that the kernel's way leads to.

mod bed;
mod frames;
mod others;
mod phases;
mod records;
mod six;
mod storms;
pub mod talk;
pub mod topology;

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use crate::namespace;
use crate::run::Run;
use crate::session::{self, Outcome};
use bed::Bed;

/// Programs that the lab runs.
const NEEDED: [&str; 7] = ["ip", "bridge", "nft", "tc", "ethtool", "nfcapd", "nfdump"];

/// The options of `weir lab overlay`.
#[derive(clap::Args)]
pub struct Options {
    /// Only phases whose names begin so, separated by commas.
    #[arg(long, alias = "phase", value_delimiter = ',')]
    phases: Vec<String>,
    /// Print a JSON object on the last line.
    #[arg(long)]
    json: bool,
    /// Leave the namespaces and their processes for inspection; the next lab removes them.
    #[arg(long)]
    keep: bool,
}

/// Runs the lab.
pub fn run(options: &Options) -> Result<ExitCode> {
    session::check_means("overlay", &namespace::missing(&NEEDED), "./setup")?;
    session::run((options.keep, options.json), |interrupt, screen| {
        let mut run = Run::begin(options.keep)?;
        screen.say("three nodes with two pods each, VXLAN between nodes, a cache on each node");
        let mut bed = Bed::start(&mut run, interrupt)?;
        let wanted =
            |name: &str| options.phases.is_empty() || options.phases.iter().any(|one| name.starts_with(one));
        let mut done = Vec::new();
        for (name, perform) in phases::ALL.into_iter().filter(|(name, _)| wanted(name)) {
            let phase = perform(&mut bed, &mut run, interrupt)?;
            screen.say(&phase.text(name));
            done.push((name, phase));
        }
        let ok = done.iter().all(|(_, phase)| phase.ok);
        let phases: Vec<_> = done.iter().map(|(name, phase)| phase.json(name)).collect();
        let text = if ok { "all as it must be" } else { "not all is as it must be" }.into();
        Ok(Outcome { ok, text, json: json!({ "ok": ok, "phases": phases }) })
    })
}
