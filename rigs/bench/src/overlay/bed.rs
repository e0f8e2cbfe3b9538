//! The test bed of the arms: three networks of `weir lab overlay` side by side, one without a cache, one with
//! the caches of mode `oncache`, and one with weir's. The arm `host` is between two nodes of the first
//! network.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use weir_bed::Namespace;
use weir_bed::{Run, Started};
use weir_lab::Interrupt;
use weir_lab::overlay::topology::{BRIDGE, Cluster, TUNNEL, UPLINK, Underlay, node, pod};
use weir_lab::weir::{Weir, program};

use super::load::{PORT, PORT_LAST};

/// The arms, in column order.
pub const ARMS: [&str; 4] = ["host", "vxlan", "oncache", "weir"];
/// Indices of arms.
pub const HOST: usize = 0;
pub const VXLAN: usize = 1;
pub const ONCACHE: usize = 2;
pub const WEIR: usize = 3;

/// The app's name.
const APP: &str = "pods";
/// How long an expected event may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// The names of weir's daemons, and of the processes that load the other caches.
const DAEMONS: [&str; 2] = ["weir-n1", "weir-n2"];
const CACHES: [&str; 2] = ["oncache-n1", "oncache-n2"];

/// The assignment of processors: for clients, for servers, for everything else.
#[derive(Clone, Copy)]
pub struct Processors {
    pub ask: usize,
    pub answer: usize,
    pub other: usize,
}

/// The test bed.
pub struct OverlayBed {
    /// The clients, by arm.
    pub arms: Vec<Asker>,
    /// weir's daemons, by node.
    pub daemons: Vec<Weir>,
}

impl OverlayBed {
    /// Sets up the test bed; `run` removes it.
    pub fn start(run: &mut Run, processors: Processors, interrupt: &Interrupt) -> Result<OverlayBed> {
        // Without a cache, with mode `oncache`, with weir.
        let network = |prefix| Cluster::build(run, prefix, Underlay::default());
        let networks = [network("v-")?, network("o-")?, network("")?];
        for network in &networks {
            for node in &network.nodes {
                let of = |protocol: &str| {
                    format!("add rule inet guard forward {protocol} dport {PORT}-{PORT_LAST} accept\n")
                };
                node.input("nft", &["-f", "-"], &of("udp"))?;
            }
        }
        for at in 0..2 {
            cache(run, &networks[1], at, processors.other)?;
        }
        let daemon = |at| daemon(run, &networks[2], at, processors.other, interrupt);
        let daemons = (0..2).map(daemon).collect::<Result<Vec<_>>>()?;
        let mut arms = Vec::new();
        for (at, name) in ARMS.iter().enumerate() {
            let network = &networks[at.saturating_sub(1)];
            let (from, to, address) = match at {
                0 => (&network.nodes[0], &network.nodes[1], node(1)),
                _ => (&network.pods[0][0], &network.pods[1][0], pod(1, 0)),
            };
            answer(run, name, to, processors.answer)?;
            arms.push(Asker::start(run, name, from, &address, processors.ask)?);
        }
        let bed = OverlayBed { arms, daemons };
        for daemon in &bed.daemons {
            let works = || {
                let shown = daemon.app(APP, "show")?;
                Ok(shown["obstacle"].is_null()
                    && shown["pods"].as_array().is_some_and(|pods| !pods.is_empty()))
            };
            if !interrupt.wait(PATIENCE, works)? {
                bail!("weir's programs are not active: {}", daemon.app(APP, "show")?);
            }
        }
        Ok(bed)
    }

    /// Returns the status of a node's cache.
    pub fn show(&self, at: usize) -> Result<Value> {
        self.daemons[at].app(APP, "show")
    }
}

/// Starts weir on a node.
fn daemon(run: &mut Run, network: &Cluster, at: usize, cpu: usize, interrupt: &Interrupt) -> Result<Weir> {
    let configuration = format!(
        "apps:\n  - overlay: {{ name: {APP}, tunnel: {TUNNEL}, uplink: {UPLINK}, bridge: {BRIDGE} }}\n"
    );
    let start = |program: &str| {
        let mut command = network.nodes[at].command("taskset");
        command.args(["--cpu-list", &cpu.to_string(), program]);
        command
    };
    Weir::start(run, DAEMONS[at], start, &configuration, interrupt)
}

/// Loads mode `oncache` on a node, with the rule that marks established flows: it sets the second bit of the
/// type of service, next to the first, with which the cache has marked a miss.
fn cache(run: &mut Run, network: &Cluster, at: usize, cpu: usize) -> Result<()> {
    let rule = "table inet oncache {\n chain forward {\n type filter hook forward priority 10;\n \
                ct state established ip dscp 1 ip dscp set 3\n }\n}\n";
    network.nodes[at].input("nft", &["-f", "-"], rule)?;
    let mut command = network.nodes[at].command(&program()?);
    command.args(["bench", "overlay-end", "--cpu", &cpu.to_string(), "cache"]);
    command.args(["--uplink", UPLINK, "--pod", "vp1", "--address", &pod(at, 0)]);
    ready(run, CACHES[at], &mut command).map(drop)
}

fn answer(run: &mut Run, arm: &str, at: &Namespace, cpu: usize) -> Result<()> {
    let mut command = at.command(&program()?);
    command.args(["bench", "overlay-end", "--cpu", &cpu.to_string(), "answer"]);
    ready(run, &format!("answer-{arm}"), &mut command).map(drop)
}

/// Starts a process and waits until it reports that it is ready.
fn ready(run: &mut Run, name: &str, command: &mut std::process::Command) -> Result<Started> {
    let started = run.start(name, command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let mut lines = BufReader::new(run.child(started).stdout.take().context("no output")?);
    let mut said = String::new();
    lines.read_line(&mut said)?;
    if said.trim() != "ready" {
        bail!("{name} did not start: {}", run.last_words(name));
    }
    Ok(started)
}

/// The client of an arm.
pub struct Asker {
    role: String,
    input: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Asker {
    fn start(run: &mut Run, arm: &str, at: &Namespace, address: &str, cpu: usize) -> Result<Asker> {
        let role = format!("ask-{arm}");
        let mut command = at.command(&program()?);
        command.args(["bench", "overlay-end", "--cpu", &cpu.to_string(), "ask", address]);
        let started = run.start(&role, command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let child = run.child(started);
        let input = child.stdin.take().context("no input")?;
        let lines = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Asker { role, input, lines })
    }

    /// Executes an order on the client, and returns the result.
    pub fn order(&mut self, run: &Run, order: &str) -> Result<Value> {
        writeln!(self.input, "{order}")?;
        let mut answer = String::new();
        self.lines.read_line(&mut answer)?;
        serde_json::from_str(&answer)
            .with_context(|| format!("{} cannot do `{order}`: {}", self.role, run.last_words(&self.role)))
    }
}
