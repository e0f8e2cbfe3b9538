//! `weir lab fleet`: connections through a fleet of nodes, while nodes and back ends come, go and die.
//!
//! A router spreads connections over four to eight nodes, each with weir and BIRD, in front of eight back
//! ends. In each phase something happens to a node or a back end (`phases.rs`). Nodes share nothing: where
//! back ends answer directly (`l2`, `ipip`), equal buckets are enough for a connection to survive a change of
//! its node. With `full_nat`, connections whose node changes break, and no others may. With `nat`, they
//! survive if back ends answer through the node that sent them the last packet, as they do here.
//!
//! Clients have long-lived connections and make short ones (`clients.rs`). Each phase begins with new
//! long-lived connections, so that all of them are where the buckets of that moment say.

mod bed;
pub mod clients;
mod configuration;
mod network;
mod node;
mod phases;
mod prediction;
mod probes;
mod router;
mod routing;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::Interrupt;
use crate::phase::{chosen, outcome};
use crate::screen::Screen;
use crate::session;
use bed::{FleetBed, FleetShape};
use clients::ClientLoad;
use configuration::{FleetMode, NodeState};
use network::Family;
use phases::{FleetInjection, FleetPhase, FleetStage};
use router::Ecmp;
use routing::RouteDaemon;
use weir_bed::namespace;

/// Programs that the lab runs.
const NEEDED: [&str; 6] = ["ip", "bridge", "ethtool", "nginx", "bird", "nft"];

/// The options of `weir lab fleet`.
#[derive(clap::Args)]
pub struct FleetOptions {
    /// How packets are sent to back ends, one run after another; all modes by default.
    #[arg(long, value_enum, value_delimiter = ',', num_args = 1..)]
    mode: Vec<FleetMode>,
    /// Number of nodes.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(3..=8))]
    nodes: u8,
    /// Number of back ends.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(4..=8))]
    back_ends: u8,
    /// How the router spreads packets; by default plain where any node can forward any connection, and
    /// resilient with full_nat.
    #[arg(long, value_enum)]
    ecmp: Option<Ecmp>,
    /// The route daemon of the router; nodes have BIRD.
    #[arg(long, value_enum, default_value_t = RouteDaemon::Bird)]
    router: RouteDaemon,
    /// Number of long-lived connections.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(20..=2000))]
    connections: u16,
    /// Short connections per second, each with one request.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(16..=10_000))]
    rate: u32,
    /// The version of IP of the service, its clients and its back ends.
    #[arg(long, value_enum, default_value = "4")]
    family: Family,
    /// Run only phases whose names start with one of these prefixes, separated by commas. A node that was
    /// killed is added again in any case.
    #[arg(long, alias = "phase", value_delimiter = ',', conflicts_with = "short")]
    phases: Vec<String>,
    /// What goes wrong on purpose; the lab must notice.
    #[arg(long, value_enum, hide = true)]
    inject: Option<FleetInjection>,
    /// How long each phase continues after its event, in seconds.
    #[arg(long, default_value_t = 4.0, value_parser = seconds)]
    seconds: f64,
    /// The least number of short connections while a node is drained, and while it is upgraded, which is
    /// repeated until then.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=10_000_000))]
    requests: u64,
    /// Three nodes, ipip and full_nat, and only the phases in which something happens to a node.
    #[arg(long, conflicts_with_all = ["mode", "nodes"])]
    short: bool,
    #[command(flatten)]
    common: session::SessionOptions,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().map_err(|_| "expected a number of seconds, such as 2".to_string())?;
    if (0.5..=600.0).contains(&seconds) { Ok(seconds) } else { Err("write 0.5 to 600".to_string()) }
}

impl FleetOptions {
    fn modes(&self) -> Vec<FleetMode> {
        match (self.short, self.mode.as_slice()) {
            (true, _) => vec![FleetMode::Ipip, FleetMode::FullNat],
            (false, []) => FleetMode::ALL.to_vec(),
            (false, modes) => modes.to_vec(),
        }
    }

    fn ecmp(&self, mode: FleetMode) -> Ecmp {
        let usual = match mode.state() {
            NodeState::Nothing | NodeState::Answers => Ecmp::Plain,
            NodeState::Translation => Ecmp::Resilient,
        };
        self.ecmp.unwrap_or(usual)
    }

    fn shape(&self, mode: FleetMode) -> FleetShape {
        let nodes = if self.short { 3 } else { usize::from(self.nodes) };
        let (back_ends, ecmp) = (usize::from(self.back_ends), self.ecmp(mode));
        FleetShape { nodes, back_ends, router: self.router, ecmp, mode, family: self.family }
    }

    /// Returns the phases to perform.
    fn phases(&self) -> Result<Vec<(&'static str, phases::Perform)>> {
        if self.short {
            return chosen(&phases::ALL, &phases::SHORT.map(str::to_owned));
        }
        let mut wanted = self.phases.clone();
        let [killed, added] = phases::TOGETHER;
        let wants = |name: &str| self.phases.iter().any(|one| name.starts_with(one));
        if wants(killed) || wants(added) {
            wanted.extend(phases::TOGETHER.map(str::to_owned));
        }
        chosen(&phases::ALL, &wanted)
    }

    /// How long a phase continues after its event.
    fn phase(&self) -> Duration {
        Duration::from_secs_f64(if self.short { self.seconds.min(2.0) } else { self.seconds })
    }
}

/// Runs the lab. Succeeds if every phase succeeds.
pub fn run(options: &FleetOptions) -> Result<ExitCode> {
    let phases = options.phases()?;
    let missing = [namespace::missing(&NEEDED), options.router.missing()].concat();
    session::check_means("fleet", &missing, "./setup")?;
    session::run(&options.common, |interrupt, screen| {
        let mut done = Vec::new();
        for mode in options.modes() {
            perform(options, (mode, &phases), interrupt, screen, &mut done)?;
        }
        let mut outcome = outcome(done, ["All phases succeeded.", "Some phases failed."]);
        outcome.json = json!({ "phases": outcome.json["phases"] });
        Ok(outcome)
    })
}

fn perform(
    options: &FleetOptions,
    (mode, phases): (FleetMode, &[(&'static str, phases::Perform)]),
    interrupt: &Interrupt,
    screen: &mut Screen,
    done: &mut Vec<Value>,
) -> Result<()> {
    let shape = options.shape(mode);
    let mut run = options.common.begin()?;
    screen.say(&format!(
        "{}, IPv{}: router ({}, {} ECMP) -- {} nodes -- {} back ends; {} long-lived connections, {} short \
         ones a second",
        mode.word(),
        shape.family.number(),
        shape.router.word(),
        shape.ecmp.word(),
        shape.nodes,
        shape.back_ends,
        options.connections,
        options.rate
    ));
    let bed = FleetBed::start(&mut run, shape, interrupt)?;
    let load = ClientLoad { connections: options.connections, rate: options.rate, pause_ms: 400 };
    let FleetOptions { requests, inject, .. } = *options;
    let (phase, used) = (options.phase(), (10_000, 0));
    let mut stage = FleetStage { bed, run, interrupt, screen, mode, load, phase, requests, used, inject };
    stage.screen.say(&FleetPhase::header());
    for (name, perform) in phases {
        let phase = perform(&mut stage)?;
        stage.screen.say(&phase.text(name));
        done.push(phase.json(name, mode));
    }
    Ok(())
}
