//! `weir lab lb`: connections and flows through a load balancer, while everything behind it changes.
//!
//! Two clients, the weir node and four back ends with real servers (nginx, nsd), with IPv4 and IPv6. In each
//! phase something happens: a back end is added, drained, killed, or comes back, weights change, the
//! configuration is replaced, or weir is restarted, killed, or taken over by a successor. Only the
//! connections of a back end that dies may break. Then each mode gets a turn.
//!
//! There are two kinds of clients: persistent flows, which live through all phases and record who answers
//! them, to detect flows that break or move (`questions.rs`); and `wrk`, `dnsperf` and `curl`, which run in
//! each phase (`clients.rs`).

mod bed;
mod clients;
mod configuration;
mod modes;
mod network;
mod phases;
pub mod questions;
pub mod servers;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::Interrupt;
use crate::phase::outcome;
use crate::screen::Screen;
use crate::session;
use bed::LbBed;
use configuration::LabMode;
use phases::Stage;
use weir_bed::namespace;

/// Programs that the lab runs, besides the clients.
const NEEDED: [&str; 5] = ["ip", "bridge", "ethtool", "nsd", "nginx"];

/// The options of `weir lab lb`.
#[derive(clap::Args)]
pub struct LbOptions {
    /// How packets are sent to back ends.
    #[arg(long, value_enum, default_value_t = LabMode::L2)]
    mode: LabMode,
    /// How long each phase continues after its event, in seconds.
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// Number of times the configuration is replaced in the reload phase; at least twice, so that the weights
    /// of the previous phase do not remain.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(2..=10_000))]
    reloads: u32,
    /// Number of persistent TCP connections, and of persistent UDP flows, per client and IP version.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(4..=100))]
    flows: u32,
    /// Skip the run through all modes at the end.
    #[arg(long)]
    no_modes: bool,
    #[command(flatten)]
    common: session::SessionOptions,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().map_err(|_| "expected a number of seconds, such as 2".to_string())?;
    if (0.2..=600.0).contains(&seconds) { Ok(seconds) } else { Err("write 0.2 to 600".to_string()) }
}

/// Runs the lab. Succeeds if every phase succeeds.
pub fn run(options: &LbOptions) -> Result<ExitCode> {
    let needed = [NEEDED.as_slice(), &clients::NEEDED].concat();
    session::check_means("lb", &namespace::missing(&needed), "./setup")?;
    session::run(&options.common, |interrupt, screen| {
        let done = perform(options, interrupt, screen)?;
        let mut outcome = outcome(done, ["All phases succeeded.", "Some phases failed."]);
        outcome.json["mode"] = json!(options.mode.word());
        Ok(outcome)
    })
}

fn perform(options: &LbOptions, interrupt: &Interrupt, screen: &mut Screen) -> Result<Vec<Value>> {
    let mut run = options.common.begin()?;
    let bed = LbBed::start(&mut run, options, interrupt)?;
    screen.say(&format!(
        "two clients -- switch -- weir, four back ends ({}): {} persistent connections and flows; wrk, \
         dnsperf, curl",
        options.mode.word(),
        bed.flows()
    ));
    let (phase, reloads) = (Duration::from_secs_f64(options.seconds), options.reloads);
    let mut stage = Stage { bed, run, interrupt, screen, phase, reloads, name: String::new() };
    let mut done = Vec::new();
    for (name, perform) in phases::ALL {
        stage.name = name.to_owned();
        let phase = perform(&mut stage)?;
        stage.screen.say(&phase.text(name));
        done.push(phase.json(name));
    }
    if options.no_modes {
        return Ok(done);
    }
    stage.bed.end_flows(&mut stage.run)?;
    for mode in LabMode::ALL {
        for (name, phase) in modes::perform(&mut stage, mode)? {
            stage.screen.say(&phase.text(&name));
            done.push(phase.json(&name));
        }
    }
    Ok(done)
}
