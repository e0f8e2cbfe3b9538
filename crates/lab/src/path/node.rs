//! weir at both ends of the tunnel, with an app `path` each, and the schemes that are compared.

use std::time::Duration;

use anyhow::{Result, bail};

use super::topology::{A, B, LINKS, PORT, Topology, UPLINK};
use crate::Interrupt;
use crate::run::Run;
use crate::weir::Weir;

/// The app's name in both configurations.
const APP: &str = "fabric";
/// What both sign probes with.
const KEY: &str = "00112233445566778899aabbccddeeff";
/// How long it may take to find the paths.
const PATIENCE: Duration = Duration::from_secs(20);

/// How outer source ports are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// By the kernel, as a hash of the inner flow.
    Ecmp,
    /// By the first answer to four probes, before the first packet leaves: DOCA-AR.
    DocaAr,
    /// By what probes in the background say, and anew for a flowlet: weir's own.
    Adaptive,
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Scheme; 3] = [Scheme::Ecmp, Scheme::DocaAr, Scheme::Adaptive];

    /// Its name in results and in a configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Ecmp => "ecmp",
            Scheme::DocaAr => "doca_ar",
            Scheme::Adaptive => "adaptive",
        }
    }
}

/// A scheme with the hosts' setting that matters for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arm {
    /// How ports are chosen.
    pub scheme: Scheme,
    /// Whether the kernel gives a TCP flow another hash, and so another port, when its retransmission timer
    /// expires (`net.core.txrehash`): Linux's default.
    pub rehash: bool,
}

impl Arm {
    /// weir's own, on hosts as they are.
    pub const OURS: Arm = Arm { scheme: Scheme::Adaptive, rehash: true };

    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> String {
        format!("{}{}", self.scheme.name(), if self.rehash { " rehash" } else { "" })
    }
}

/// The daemons at both ends.
pub struct Nodes {
    a: Weir,
    b: Weir,
    arm: Arm,
    rate_mbit: u32,
}

impl Nodes {
    /// Starts both.
    pub fn start(run: &mut Run, topology: &Topology, arm: Arm, interrupt: &Interrupt) -> Result<Nodes> {
        let rate_mbit = topology.rate_mbit;
        topology.set_rehash(arm.rehash)?;
        let start = |program: &str| topology.a.preferred(program);
        let a = Weir::start(run, "weir-a", start, &configuration(B, arm.scheme, rate_mbit), interrupt)?;
        let start = |program: &str| topology.b.preferred(program);
        let b = Weir::start(run, "weir-b", start, &configuration(A, arm.scheme, rate_mbit), interrupt)?;
        let nodes = Nodes { a, b, arm, rate_mbit };
        nodes.wait_for_paths(interrupt)?;
        Ok(nodes)
    }

    /// Has both choose by another scheme, on hosts with another setting.
    pub fn choose_by(&mut self, topology: &Topology, arm: Arm, interrupt: &Interrupt) -> Result<()> {
        if arm.rehash != self.arm.rehash {
            topology.set_rehash(arm.rehash)?;
        }
        if arm.scheme != self.arm.scheme {
            self.a.reload(&configuration(B, arm.scheme, self.rate_mbit))?;
            self.b.reload(&configuration(A, arm.scheme, self.rate_mbit))?;
        }
        self.arm = arm;
        self.wait_for_paths(interrupt)
    }

    /// Waits until both have found the four paths, if the scheme looks for them.
    pub fn wait_for_paths(&self, interrupt: &Interrupt) -> Result<()> {
        if self.arm.scheme != Scheme::Adaptive {
            return Ok(());
        }
        let found = |weir: &Weir| -> Result<usize> {
            let shown = weir.app(APP, "show")?;
            let paths = shown["nodes"][0]["paths"].as_array().map(Vec::as_slice).unwrap_or_default();
            Ok(paths.iter().filter(|path| path["state"] == "good").count())
        };
        let all = || Ok(found(&self.a)? == LINKS && found(&self.b)? == LINKS);
        if !interrupt.wait(PATIENCE, all)? {
            bail!("weir has not found {LINKS} good paths: {}", self.a.app(APP, "show")?);
        }
        Ok(())
    }

    /// Stops both.
    pub fn stop(&self, run: &mut Run) -> Result<()> {
        self.a.stop(run)?;
        self.b.stop(run)
    }
}

fn configuration(peer: &str, scheme: Scheme, rate_mbit: u32) -> String {
    format!(
        "apps:\n  - path:\n      name: {APP}\n      uplink: {UPLINK}\n      peers: [{peer}]\n      \
         vxlan_port: {PORT}\n      scheme: {}\n      rate: {rate_mbit}\n      \
         key: \"{KEY}\"\n",
        scheme.name()
    )
}
