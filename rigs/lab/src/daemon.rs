//! The weir of the DNS lab: its configurations, and the counters that the lab uses.

use anyhow::Result;
use serde_json::Value;

use super::Interrupt;
use super::topology::{BackEnd, INTERFACE, Topology, VIP};
use super::weir::Weir;
use weir_bed::Run;

/// Name of the measured service in the configuration.
const SERVICE: &str = "dns";

/// A running daemon.
pub struct Daemon {
    weir: Weir,
    back_ends: Vec<&'static str>,
}

/// Frames and bytes sent to a back end.
#[derive(Clone, PartialEq)]
pub struct Counted {
    /// Name of the back end.
    pub name: &'static str,
    /// Frames.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A snapshot of the daemon's counters.
#[derive(Clone, PartialEq)]
pub struct Snapshot {
    /// The ledger, as weir prints it.
    pub ledger: Value,
    /// Frames received by each worker.
    pub received_by_worker: Value,
    /// Frames sent to the back ends.
    pub back_ends: Vec<Counted>,
}

impl Snapshot {
    /// Returns a count of the ledger; 0 if it is missing.
    pub fn frames(&self, name: &str) -> u64 {
        self.ledger[name].as_u64().unwrap_or(0)
    }

    /// Frames dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.ledger["dropped"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum()
    }

    /// Returns the number of frames sent to any back end.
    pub fn packets(&self) -> u64 {
        self.back_ends.iter().map(|back_end| back_end.packets).sum()
    }
}

impl Daemon {
    /// Starts the daemon with a configuration and waits until it answers.
    pub fn start(
        run: &mut Run,
        topology: &Topology,
        configuration: &str,
        interrupt: &Interrupt,
    ) -> Result<Daemon> {
        let weir =
            Weir::start(run, "weir", |program| topology.weir.command(program), configuration, interrupt)?;
        Ok(Daemon { weir, back_ends: topology.back_ends.iter().map(|at| at.name).collect() })
    }

    /// Reads its counters.
    pub fn snapshot(&self, run: &mut Run) -> Result<Snapshot> {
        let answer = match self.weir.show("all") {
            Ok(answer) => answer,
            Err(error) => {
                self.weir.still_runs(run)?;
                return Err(error.context("weir does not answer"));
            }
        };
        Ok(Snapshot {
            ledger: answer["ledger"].clone(),
            received_by_worker: answer["received_by_worker"].clone(),
            back_ends: back_ends(&answer, &self.back_ends),
        })
    }

    /// Replaces its configuration. Returns when all workers have applied it.
    pub fn reload(&self, configuration: &str) -> Result<()> {
        self.weir.reload(configuration)
    }

    /// Stops it with SIGTERM. Fails unless it exits successfully.
    pub fn stop(&self, run: &mut Run) -> Result<()> {
        self.weir.stop(run)
    }
}

/// Extracts the counters of the service's back ends.
fn back_ends(answer: &Value, names: &[&'static str]) -> Vec<Counted> {
    let counters = answer["counters"].as_array().map(Vec::as_slice).unwrap_or_default();
    let count = |name: &'static str| {
        let is_its = |counter: &&Value| counter["name"] == format!("lb/{SERVICE}/{name}");
        let counter = counters.iter().find(is_its).unwrap_or(&Value::Null);
        let of = |what: &str| counter[what].as_u64().unwrap_or(0);
        Counted { name, packets: of("packets"), bytes: of("bytes") }
    };
    names.iter().copied().map(count).collect()
}

/// Returns the lab's configuration: one service with `back_ends`.
pub fn configuration(back_ends: &[BackEnd], workers: u32) -> String {
    format!(
        "workers: {workers}\nports: {{ p0: {{ xdp: {INTERFACE} }} }}\napps:\n{}",
        balancer(SERVICE, "udp", back_ends)
    )
}

/// Returns another configuration for reloads: without the last back end, and with a second service, so that
/// pipes and entries differ.
pub fn other_configuration(back_ends: &[BackEnd], workers: u32) -> String {
    let fewer = &back_ends[..back_ends.len() - 1];
    configuration(fewer, workers) + &balancer("dns-tcp", "tcp", back_ends)
}

fn balancer(name: &str, protocol: &str, back_ends: &[BackEnd]) -> String {
    let mut text = format!(
        "  - lb:\n      name: {name}\n      port: p0\n      \
         service: {{ vip: {VIP}, protocol: {protocol}, port: 53 }}\n      by: 5-tuple\n      \
         source_mac: auto\n      back_ends:\n"
    );
    for back_end in back_ends {
        text += &format!("        - {{ name: {}, mac: \"{}\", weight: 1 }}\n", back_end.name, back_end.mac);
    }
    text
}
