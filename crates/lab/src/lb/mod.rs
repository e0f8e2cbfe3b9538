//! `weir lab lb`: connections and flows through a load balancer, while everything behind it changes.
//!
//! The network is that of `weir lab dns`: a client, the weir node and three name servers, which answer over
//! TCP and UDP and say who they are. In each phase something happens: a back end is added, drained, killed,
//! or comes back, weights change, the configuration is replaced, another weir takes over. No connection may
//! break but those of a back end that dies.

mod bed;
mod phases;
pub mod questions;

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use crate::namespace;
use crate::run::Run;
use crate::session::{self, Outcome};
use bed::Bed;

/// Programs that the lab runs.
const NEEDED: [&str; 4] = ["ip", "bridge", "ethtool", "nsd"];

/// How packets are sent to back ends.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Mode {
    /// With other MAC addresses.
    L2,
    /// Through a tunnel, IP in IP, which `weir decap` takes off.
    Ipip,
}

impl Mode {
    fn word(self) -> &'static str {
        match self {
            Mode::L2 => "l2",
            Mode::Ipip => "ipip",
        }
    }
}

/// The options of `weir lab lb`.
#[derive(clap::Args)]
pub struct Options {
    /// How packets are sent to back ends.
    #[arg(long, value_enum, default_value_t = Mode::L2)]
    mode: Mode,
    /// How long each phase goes on after what happens in it.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// TCP connections, and UDP flows, that stay through all phases.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=400))]
    flows: u32,
    /// Print a JSON object on the last line.
    #[arg(long)]
    json: bool,
    /// Leave the namespaces and their processes for inspection; the next lab removes them.
    #[arg(long)]
    keep: bool,
}

/// Runs the lab. Succeeds if every phase is as it must be.
pub fn run(options: &Options) -> Result<ExitCode> {
    session::check_means("lb", &namespace::missing(&NEEDED), "./setup --for demo")?;
    session::run((options.keep, options.json), |interrupt, screen| {
        let (flows, mode) = (options.flows, options.mode.word());
        screen.say(&format!(
            "client -- switch -- weir, three servers ({mode}): {flows} TCP connections and {flows} UDP flows \
             that stay, and others that ask once"
        ));
        let mut run = Run::begin(options.keep)?;
        let mut bed = Bed::start(&mut run, options, interrupt)?;
        let mut done = Vec::new();
        for (name, perform) in phases::ALL {
            let phase = perform(&mut bed, &mut run, interrupt)?;
            screen.say(&phase.text(name));
            done.push((name, phase));
        }
        let ok = done.iter().all(|(_, phase)| phase.is_ok());
        let phases: Vec<Value> = done.iter().map(|(name, phase)| phase.json(name)).collect();
        let text = if ok { "All phases succeeded." } else { "Some phases failed." };
        Ok(Outcome { ok, text: text.into(), json: json!({ "ok": ok, "mode": mode, "phases": phases }) })
    })
}
