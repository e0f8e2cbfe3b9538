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

use anyhow::{Result, bail};
use serde_json::json;

use crate::namespace;
use crate::session::{self, Outcome};
use bed::Bed;

/// Programs that the lab runs.
const NEEDED: [&str; 7] = ["ip", "bridge", "nft", "tc", "ethtool", "nfcapd", "nfdump"];

/// Exists with the module `br_netfilter`, without which no rule sees what pods of one bridge send each other.
const BRIDGED: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";

/// The options of `weir lab overlay`.
#[derive(clap::Args)]
pub struct Options {
    /// Only phases whose names begin so, separated by commas.
    #[arg(long, alias = "phase", value_delimiter = ',')]
    phases: Vec<String>,
    #[command(flatten)]
    common: session::Options,
}

/// Runs the lab.
pub fn run(options: &Options) -> Result<ExitCode> {
    session::check_means("overlay", &namespace::missing(&NEEDED), "./setup")?;
    if !std::fs::exists(BRIDGED).unwrap_or(false) {
        bail!("rules of nftables do not see bridged frames here: run `modprobe br_netfilter` first");
    }
    session::run(&options.common, |interrupt, screen| {
        let mut run = options.common.begin()?;
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
