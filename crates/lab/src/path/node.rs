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
    /// By the kernel, as a hash of the inner flow, once for all.
    Ecmp,
    /// The same, and anew whenever the flow's retransmission timer expires: Linux's default.
    EcmpRehash,
    /// By the first answer to four probes, before the first packet leaves: DOCA-AR.
    DocaAr,
    /// By what probes in the background say, and anew for a flowlet: weir's own.
    Adaptive,
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Scheme; 4] = [Scheme::Ecmp, Scheme::EcmpRehash, Scheme::DocaAr, Scheme::Adaptive];

    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Ecmp => "ecmp",
            Scheme::EcmpRehash => "ecmp_rehash",
            Scheme::DocaAr => "doca_ar",
            Scheme::Adaptive => "adaptive",
        }
    }

    /// Its name in a configuration.
    fn key(self) -> &'static str {
        match self {
            Scheme::Ecmp | Scheme::EcmpRehash => "ecmp",
            Scheme::DocaAr => "doca_ar",
            Scheme::Adaptive => "adaptive",
        }
    }

    /// Whether the kernel gives a flow another hash when its retransmission timer expires.
    fn rehashes(self) -> bool {
        matches!(self, Scheme::EcmpRehash | Scheme::Adaptive)
    }
}

/// The daemons at both ends.
pub struct Nodes {
    a: Weir,
    b: Weir,
    scheme: Scheme,
    rate_mbit: u32,
}

impl Nodes {
    /// Starts both.
    pub fn start(run: &mut Run, topology: &Topology, scheme: Scheme, interrupt: &Interrupt) -> Result<Nodes> {
        let rate_mbit = topology.rate_mbit;
        topology.set_rehash(scheme.rehashes())?;
        let start = |program: &str| topology.a.preferred(program);
        let a = Weir::start(run, "weir-a", start, &configuration(B, scheme, rate_mbit), interrupt)?;
        let start = |program: &str| topology.b.preferred(program);
        let b = Weir::start(run, "weir-b", start, &configuration(A, scheme, rate_mbit), interrupt)?;
        let nodes = Nodes { a, b, scheme, rate_mbit };
        nodes.wait_for_paths(interrupt)?;
        Ok(nodes)
    }

    /// Has both choose by another scheme.
    pub fn choose_by(&mut self, topology: &Topology, scheme: Scheme, interrupt: &Interrupt) -> Result<()> {
        if scheme == self.scheme {
            return Ok(());
        }
        topology.set_rehash(scheme.rehashes())?;
        self.a.reload(&configuration(B, scheme, self.rate_mbit))?;
        self.b.reload(&configuration(A, scheme, self.rate_mbit))?;
        self.scheme = scheme;
        self.wait_for_paths(interrupt)
    }

    /// Waits until both have found the four paths, if the scheme looks for them.
    pub fn wait_for_paths(&self, interrupt: &Interrupt) -> Result<()> {
        if self.scheme != Scheme::Adaptive {
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
        scheme.key()
    )
}
