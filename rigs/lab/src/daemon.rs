//! The weir of the DNS lab: its configurations, and the counters that the lab uses.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::Interrupt;
use super::page::NodePage;
use super::topology::{BackEnd, Executor, INTERFACE, Topology, WeirNode};
use super::weir::{self, Weir};
use weir_bed::Run;

/// Name of the measured service in the configuration.
const SERVICE: &str = "dns";

/// How long the kernel may take to get the program.
const COMPILED: Duration = Duration::from_secs(30);

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

/// Frames that the kernel handled, and those that it left to a worker, since it got the program.
#[derive(Clone, Default, PartialEq)]
pub struct KernelCounts {
    /// Frames that the kernel handled.
    pub decided: u64,
    /// Frames that the kernel left to a worker, by reason.
    pub given_up: BTreeMap<String, u64>,
}

impl KernelCounts {
    fn of(port: &Value) -> KernelCounts {
        let left = port["left"].as_object().into_iter().flatten();
        let given_up = left.map(|(reason, frames)| (reason.clone(), frames.as_u64().unwrap_or(0)));
        KernelCounts { decided: port["decided"].as_u64().unwrap_or(0), given_up: given_up.collect() }
    }

    /// Adds the counts of another program, which ran before or after this one.
    pub fn add(&mut self, other: &KernelCounts) {
        self.decided += other.decided;
        for (reason, frames) in &other.given_up {
            *self.given_up.entry(reason.clone()).or_default() += frames;
        }
    }

    /// Returns the number of frames that the kernel handled or left to a worker.
    pub fn frames(&self) -> u64 {
        self.decided + self.given_up.values().sum::<u64>()
    }

    /// Returns the counts as JSON.
    pub fn json(&self) -> Value {
        json!({ "decided": self.decided, "given_up": self.given_up })
    }
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
    /// Frames that the program in the kernel has seen.
    pub kernel: KernelCounts,
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
    /// Starts a node's daemon and waits until it answers and its executor is at work.
    pub fn start(
        run: &mut Run,
        topology: &Topology,
        node: &WeirNode,
        configuration: &str,
        interrupt: &Interrupt,
    ) -> Result<Daemon> {
        let name = node.executor.name();
        let page = node.page.as_ref();
        let command =
            page.map(|page| page.passed_to(&node.namespace.command(&weir::program()?))).transpose()?;
        let command = |program: &str| command.unwrap_or_else(|| node.namespace.command(program));
        let weir = Weir::start(run, name, command, configuration, interrupt)?;
        if node.executor == Executor::Kernel {
            weir.wait_for_kernel(COMPILED, run, interrupt)?;
        }
        Ok(Daemon { weir, back_ends: topology.back_ends.iter().map(|at| at.name).collect() })
    }

    /// Reads the daemon's counters.
    pub fn snapshot(&self, run: &mut Run) -> Result<Snapshot> {
        let answers = self.weir.show("all").and_then(|all| Ok((all, self.weir.show("kernel")?)));
        let (answer, kernel) = match answers {
            Ok(answers) => answers,
            Err(error) => {
                self.weir.still_runs(run)?;
                return Err(error.context("weir does not answer"));
            }
        };
        Ok(Snapshot {
            ledger: answer["ledger"].clone(),
            received_by_worker: answer["received_by_worker"].clone(),
            back_ends: back_ends(&answer, &self.back_ends),
            kernel: KernelCounts::of(&kernel["kernel"][0]),
        })
    }

    /// Replaces the daemon's configuration. Returns when all workers have applied it.
    pub fn reload(&self, configuration: &str) -> Result<()> {
        self.weir.reload(configuration)
    }

    /// Stops the daemon with SIGTERM. Fails unless it exits successfully.
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

/// Returns a node's configuration: one service with `back_ends`. The service keeps no flow state: each query
/// is a flow of its own, and the kernel follows only flows that a worker has seen.
pub fn configuration(node: &WeirNode, back_ends: &[BackEnd], workers: u32) -> String {
    let kernel = match node.executor {
        Executor::Engine => "off",
        Executor::Kernel => "require",
    };
    let control = node.page.as_ref().map(NodePage::control).unwrap_or_default();
    format!(
        "{control}workers: {workers}\nports: {{ p0: {{ xdp: {INTERFACE}, kernel: {kernel} }} }}\napps:\n{}",
        balancer(SERVICE, (node.vip, "udp"), back_ends)
    )
}

/// Returns another configuration for reloads: without the last back end, and with a second service, so that
/// pipes and entries differ.
pub fn other_configuration(node: &WeirNode, back_ends: &[BackEnd], workers: u32) -> String {
    let fewer = &back_ends[..back_ends.len() - 1];
    configuration(node, fewer, workers) + &balancer("dns-tcp", (node.vip, "tcp"), back_ends)
}

fn balancer(name: &str, (vip, protocol): (&str, &str), back_ends: &[BackEnd]) -> String {
    let mut text = format!(
        "  - lb:\n      name: {name}\n      port: p0\n      stateless: true\n      \
         service: {{ vip: {vip}, protocol: {protocol}, port: 53 }}\n      by: 5-tuple\n      \
         source_mac: auto\n      back_ends:\n"
    );
    for back_end in back_ends {
        text += &format!("        - {{ name: {}, mac: \"{}\", weight: 1 }}\n", back_end.name, back_end.mac);
    }
    text
}
