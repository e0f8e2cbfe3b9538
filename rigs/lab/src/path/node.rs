//! weir at both ends of the tunnel, each with a `path` app, and the schemes to compare. With `one_sided`,
//! only host a has an app: host b and its tunnel are the kernel's alone.

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::topology::{A, B, LINKS, PORT, Topology, UPLINK};
use crate::Interrupt;
use crate::weir::Weir;
use weir_bed::Run;

/// The app's name in both configurations.
const APP: &str = "fabric";
/// The key with which both nodes sign probes.
const KEY: &str = "00112233445566778899aabbccddeeff";
/// How long path discovery may take, and how long if routers answer once a second: a survey takes 15 s, and
/// one in 25 misses a link.
const PATIENCE: Duration = Duration::from_secs(20);
const PATIENCE_ONE_SIDED: Duration = Duration::from_secs(90);

/// How outer source ports are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// By the kernel, from a hash of the inner flow.
    Ecmp,
    /// By the first answer to four probes, before the first packet leaves: DOCA-AR.
    DocaAr,
    /// By the results of background probes, and again for each flowlet: weir's own scheme.
    Adaptive,
    /// The same while host b is unmodified: from what TCP connections reveal and routers answer.
    OneSided,
    /// A random port for each flowlet (LetFlow).
    LetFlow,
    /// A random port for each frame.
    Spray,
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Scheme; 6] =
        [Scheme::Ecmp, Scheme::DocaAr, Scheme::Adaptive, Scheme::OneSided, Scheme::LetFlow, Scheme::Spray];

    /// The name in results and in a configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Ecmp => "ecmp",
            Scheme::DocaAr => "doca_ar",
            Scheme::Adaptive => "adaptive",
            Scheme::OneSided => "one_sided",
            Scheme::LetFlow => "letflow",
            Scheme::Spray => "spray",
        }
    }
}

/// A scheme, with the host setting that matters for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathScheme {
    /// How ports are chosen.
    pub scheme: Scheme,
    /// Whether the kernel gives a TCP flow another hash, and so another port, when its retransmission timer
    /// expires (`net.core.txrehash`): Linux's default.
    pub rehash: bool,
}

impl PathScheme {
    /// weir's own scheme, on hosts with default settings.
    pub const OURS: PathScheme = PathScheme { scheme: Scheme::Adaptive, rehash: true };

    /// The name in tables.
    #[must_use]
    pub fn name(self) -> String {
        format!("{}{}", self.scheme.name(), if self.rehash { " rehash" } else { "" })
    }
}

/// The daemons at both ends.
pub struct Nodes {
    a: Weir,
    b: Weir,
    arm: PathScheme,
    rate_mbit: u32,
}

impl Nodes {
    /// Starts both daemons.
    pub fn start(
        run: &mut Run,
        topology: &Topology,
        arm: PathScheme,
        interrupt: &Interrupt,
    ) -> Result<Nodes> {
        let rate_mbit = topology.rate_mbit;
        topology.set_rehash(arm.rehash)?;
        topology.set_icmp_limits(arm.scheme == Scheme::OneSided)?;
        let start = |program: &str| topology.a.preferred(program);
        let a = Weir::start(run, "weir-a", start, &configuration(B, arm.scheme, rate_mbit), interrupt)?;
        let start = |program: &str| topology.b.preferred(program);
        let b = Weir::start(run, "weir-b", start, &configuration_of_b(arm.scheme, rate_mbit), interrupt)?;
        let nodes = Nodes { a, b, arm, rate_mbit };
        nodes.wait_for_paths(interrupt)?;
        Ok(nodes)
    }

    /// Switches both daemons to another scheme and host setting.
    pub fn choose_by(&mut self, topology: &Topology, arm: PathScheme, interrupt: &Interrupt) -> Result<()> {
        if arm.rehash != self.arm.rehash {
            topology.set_rehash(arm.rehash)?;
        }
        if arm.scheme != self.arm.scheme {
            self.a.reload(&configuration(B, arm.scheme, self.rate_mbit))?;
            topology.set_icmp_limits(arm.scheme == Scheme::OneSided)?;
            self.b.reload(&configuration_of_b(arm.scheme, self.rate_mbit))?;
        }
        self.arm = arm;
        self.wait_for_paths(interrupt)
    }

    /// Waits until both daemons have found the four paths, if the scheme uses discovery.
    pub fn wait_for_paths(&self, interrupt: &Interrupt) -> Result<()> {
        let (is_one_sided, patience) = match self.arm.scheme {
            Scheme::Adaptive => (false, PATIENCE),
            Scheme::OneSided => (true, PATIENCE_ONE_SIDED),
            Scheme::Ecmp | Scheme::DocaAr | Scheme::LetFlow | Scheme::Spray => return Ok(()),
        };
        let found = |weir: &Weir| -> Result<usize> {
            let shown = weir.app(APP, "show")?;
            let paths = shown["nodes"][0]["paths"].as_array().map(Vec::as_slice).unwrap_or_default();
            // A path that has lost one probe in a hundred, because this machine was busy, is used anyway.
            let is_used = |path: &&Value| path["state"] != "new" && path["state"] != "failed";
            Ok(paths.iter().filter(is_used).count())
        };
        let all = || Ok(found(&self.a)? == LINKS && (is_one_sided || found(&self.b)? == LINKS));
        if !interrupt.wait(patience, all)? {
            let of_b = if is_one_sided { Value::Null } else { self.b.app(APP, "show")? };
            bail!("weir has not found {LINKS} paths: {} {of_b}", self.a.app(APP, "show")?);
        }
        Ok(())
    }

    /// Loads another program on a, with `entries` entries that nothing hits; 0: none, as at the start.
    /// Returns when its workers have applied it.
    pub fn load(&self, entries: u32) -> Result<()> {
        let mut text = configuration(B, self.arm.scheme, self.rate_mbit);
        if entries > 0 {
            add_entries(&mut text, entries);
        }
        self.a.reload(&text)
    }

    /// Returns a's counts of flow moves.
    pub fn moves(&self) -> Result<Moves> {
        let shown = self.a.app(APP, "show")?;
        let steered = shown["counts"]["path_steered"].as_u64().context("frames are not counted")?;
        let paths = shown["nodes"][0]["paths"].as_array().context("paths are not shown")?;
        let sum = |kind: &str| paths.iter().filter_map(|path| path["moves"][kind].as_u64()).sum::<u64>();
        let [after_failure, after_rehash, without_gap] =
            ["after_failure", "after_rehash", "without_gap"].map(sum);
        Ok(Moves { steered, forced: after_failure + after_rehash + without_gap, without_gap })
    }

    /// Stops both daemons.
    pub fn stop(&self, run: &mut Run) -> Result<()> {
        self.a.stop(run)?;
        self.b.stop(run)
    }
}

/// A node's counts of flow moves since its programs were loaded.
#[derive(Clone, Copy, Debug)]
pub struct Moves {
    /// Frames that were assigned a port.
    pub steered: u64,
    /// Moves because a path failed or was congested, or because the kernel gave a flow another port: all
    /// moves except those after a pause of the flow.
    pub forced: u64,
    /// Of these, moves off a path that worked, while packets of the flow could be in flight there.
    pub without_gap: u64,
}

/// Adds a port without traffic, whose pipe has `entries` entries.
fn add_entries(text: &mut String, entries: u32) {
    let _ = write!(
        text,
        "ports:\n  line: {{ mem: {{ flows: 1, frames: 0 }}, root: exact }}\npipes:\n  exact:\n    \
         type: basic\n    match: {{ ipv4.src: per_entry }}\n    capacity: {entries}\n    forward: drop\n    \
         miss: drop\n    entries:\n"
    );
    for number in 0..entries {
        let address = Ipv4Addr::from_bits(0x0a00_0000 + number);
        let _ = writeln!(text, "      - {{ match: {{ ipv4.src: {address} }} }}");
    }
}

fn configuration(peer: &str, scheme: Scheme, rate_mbit: u32) -> String {
    let key = if scheme == Scheme::OneSided { String::new() } else { format!("      key: \"{KEY}\"\n") };
    format!(
        "apps:\n  - path:\n      name: {APP}\n      uplink: {UPLINK}\n      peers: [{peer}]\n      \
         vxlan_port: {PORT}\n      scheme: {}\n      rate: {rate_mbit}\n{key}",
        scheme.name()
    )
}

/// The configuration of b; with `one_sided`, weir has nothing to do there.
fn configuration_of_b(scheme: Scheme, rate_mbit: u32) -> String {
    if scheme == Scheme::OneSided { "apps: []\n".into() } else { configuration(A, scheme, rate_mbit) }
}
