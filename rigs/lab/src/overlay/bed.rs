//! The network with everything that runs in it.

use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::Value;

use super::talk::Talk;
use super::topology::{Cluster, NODES, PORT, TUNNEL, UPLINK, Underlay, pod};
use crate::Interrupt;
use crate::weir::{self, Weir};
use weir_bed::Run;

/// The app's name.
const APP: &str = "pods";
/// How long an expected event may take.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The lab's nodes have their pods at the ports of this bridge.
pub const AT_BRIDGE: &str = "bridge: cni0";
/// Flow capacity of each node.
pub const ROOM: u64 = 64;
/// The names of daemons.
const NAMES: [&str; NODES] = ["weir-n1", "weir-n2", "weir-n3"];

/// The network.
pub struct OverlayBed {
    pub topology: Cluster,
    pub daemons: Vec<Weir>,
    /// The end that answers in the first pod of the second node.
    pub answers: Talk,
    /// Number of asking ends started so far.
    asked: usize,
    /// How many times slower this machine is than usual.
    slowdown: u32,
}

impl OverlayBed {
    /// Sets up the network; `run` removes it.
    pub fn start(run: &mut Run, underlay: Underlay, interrupt: &Interrupt) -> Result<OverlayBed> {
        let topology = Cluster::build(run, "", underlay)?;
        let daemons = (0..NODES)
            .map(|at| daemon(&topology, run, (at, AT_BRIDGE, &[]), interrupt))
            .collect::<Result<_>>()?;
        let answers = Talk::answer(run, &topology.pods[1][0], &format!("0.0.0.0:{PORT}"), 21)?;
        let bed = OverlayBed { topology, daemons, answers, asked: 0, slowdown: interrupt.slowdown() };
        bed.answers.started(interrupt)?;
        for at in 0..NODES {
            bed.wait_for_work(at, interrupt)?;
        }
        Ok(bed)
    }

    /// Restarts the daemon of a node.
    pub fn restart(&mut self, run: &mut Run, at: usize, interrupt: &Interrupt) -> Result<()> {
        self.restart_with(run, at, &[], interrupt)
    }

    /// Restarts the daemon of a node for pods at other interfaces: `bridge: NAME`, or `pods: START*`.
    pub fn restart_for(&mut self, run: &mut Run, at: usize, pods: &str, interrupt: &Interrupt) -> Result<()> {
        self.daemons[at] = daemon(&self.topology, run, (at, pods, &[]), interrupt)?;
        self.wait_for_work(at, interrupt)
    }

    /// Restarts the daemon of a node with environment variables.
    pub fn restart_with(
        &mut self,
        run: &mut Run,
        at: usize,
        variables: &[(&str, &str)],
        interrupt: &Interrupt,
    ) -> Result<()> {
        self.daemons[at] = daemon(&self.topology, run, (at, AT_BRIDGE, variables), interrupt)?;
        self.wait_for_work(at, interrupt)
    }

    /// Waits until a node's programs are active.
    pub fn wait_for_work(&self, at: usize, interrupt: &Interrupt) -> Result<()> {
        let works = || {
            let shown = self.show(at)?;
            Ok(shown["obstacle"].is_null() && shown["pods"].as_array().is_some_and(|pods| !pods.is_empty()))
        };
        if !interrupt.wait(PATIENCE, works)? {
            bail!("the programs are not active on {}: {}", NAMES[at], self.show(at)?);
        }
        Ok(())
    }

    /// Returns the status of a node's cache.
    pub fn show(&self, at: usize) -> Result<Value> {
        self.daemons[at].app(APP, "show")
    }

    /// Cleans up a node's leftovers, and returns the report. Fails if anything remains.
    pub fn cleanup(&self, at: usize) -> Result<Value> {
        let said = self.topology.nodes[at].output(&weir::program()?, &["overlay", "cleanup", "--json"])?;
        Ok(serde_json::from_str(&said)?)
    }

    /// Changes the MTU of the uplinks of the first two nodes, both at once: until both have the new MTU,
    /// frames from one may be too long for the other.
    pub fn set_mtu(&self, mtu: u32) -> Result<()> {
        let set = |at: usize| self.topology.nodes[at].ip(&format!("link set {UPLINK} mtu {mtu}\n"));
        thread::scope(|scope| {
            let other = scope.spawn(|| set(1));
            set(0)?;
            other.join().expect("a thread that runs `ip` does not panic")
        })
    }

    /// Returns true if an interface of a node has a `clsact` qdisc. While a daemon runs, it has one if weir
    /// attaches its programs as filters (on a kernel without tcx), or if the lab has added one.
    pub fn has_clsact(&self, at: usize, interface: &str) -> Result<bool> {
        let shown = self.topology.nodes[at].output("tc", &["qdisc", "show", "dev", interface])?;
        Ok(shown.contains("clsact"))
    }

    /// Flushes the connection tracking table of a node.
    pub fn forget_connections(&self, at: usize) -> Result<()> {
        self.topology.nodes[at].output(&weir::program()?, &["lab", "talk", "forget"]).map(drop)
    }

    /// Returns the flows that a node's cache knows.
    pub fn flows(&self, at: usize) -> Result<Value> {
        self.daemons[at].app(APP, "flows")
    }

    /// Returns how a node's cache explains a flow, given its ends and protocol.
    pub fn explain(&self, at: usize, flow: &str) -> Result<Value> {
        self.daemons[at].app(APP, &format!("explain {flow}"))
    }

    /// Returns how many frames of a node took the fast path, sent and received.
    pub fn fast(&self, at: usize) -> Result<[u64; 2]> {
        let shown = self.show(at)?;
        let of = |direction: &str| shown["frames"][direction]["fast"].as_u64().unwrap_or_default();
        Ok([of("sent"), of("received")])
    }

    /// Starts asking the first pod of the second node, from the first pod of the first node.
    pub fn ask(&mut self, run: &mut Run, arguments: &[&str]) -> Result<Talk> {
        self.ask_from(run, [0, 0], &format!("{}:{PORT}", pod(1, 0)), arguments)
    }

    /// Starts asking an address, from a pod given by node and number.
    pub fn ask_from(&mut self, run: &mut Run, at: [usize; 2], to: &str, arguments: &[&str]) -> Result<Talk> {
        self.asked += 1;
        let role = format!("ask-{}", self.asked);
        let [node, pod] = at;
        let slowdown = self.slowdown.to_string();
        let arguments = [&["--slowdown", &slowdown, to], arguments].concat();
        Talk::ask(run, &role, &self.topology.pods[node][pod], &arguments)
    }

    /// Waits until `more` further frames from a node's pods have taken the fast path.
    pub fn wait_for_sent(&self, at: usize, more: u64, interrupt: &Interrupt) -> Result<bool> {
        let [before, _] = self.fast(at)?;
        interrupt.wait(PATIENCE, || Ok(self.fast(at)?[0] >= before + more))
    }

    /// Waits until `more` further frames have taken the fast path at a node, in both directions.
    pub fn wait_for_fast(&self, at: usize, more: u64, interrupt: &Interrupt) -> Result<bool> {
        let before = self.fast(at)?;
        let grown = || {
            let now = self.fast(at)?;
            Ok(now.iter().zip(before).all(|(now, before)| *now >= before + more))
        };
        interrupt.wait(PATIENCE, grown)
    }

    /// Waits until an end has answered `more` further requests.
    pub fn wait_for_answers(&self, talk: &Talk, more: u64, interrupt: &Interrupt) -> Result<bool> {
        let before = talk.of("answered");
        interrupt.wait(PATIENCE, || Ok(talk.of("answered") >= before + more))
    }
}

/// Returns a node's configuration, given where its pods are.
pub fn configuration(pods: &str) -> String {
    format!(
        "apps:\n  - overlay: {{ name: {APP}, tunnel: {TUNNEL}, uplink: {UPLINK}, {pods}, \
         flows: {ROOM} }}\n"
    )
}

/// Starts a node's daemon, given where its pods are and its environment variables.
fn daemon(
    topology: &Cluster,
    run: &mut Run,
    (at, pods, variables): (usize, &str, &[(&str, &str)]),
    interrupt: &Interrupt,
) -> Result<Weir> {
    let configuration = configuration(pods);
    let start = |program: &str| {
        let mut command = topology.nodes[at].command(program);
        command.envs(variables.iter().copied());
        command
    };
    Weir::start(run, NAMES[at], start, &configuration, interrupt)
}
