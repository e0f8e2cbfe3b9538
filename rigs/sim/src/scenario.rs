//! The inputs of a simulation run.

use crate::fabric::{Fault, Shape};
use crate::loads::Load;
use crate::tcp::{Behaviour, DATA_BYTES, HEADER_BYTES};
use std::fmt;
use std::str::FromStr;
use weir_path::scheme::Scheme;

/// One of our schemes, or one that only switches can implement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// One of the schemes for hosts.
    Host(Scheme),
    /// Our scheme, with a path chosen for each packet.
    AdaptiveCells,
    /// Flowlets go to the path with the shortest queues, which every leaf knows instantly: an ideal that
    /// CONGA (SIGCOMM'14) approximates.
    CongaLike,
}

impl Contender {
    /// The scheme that hosts use.
    #[must_use]
    pub fn scheme(self) -> Scheme {
        match self {
            Contender::Host(scheme) => scheme,
            Contender::AdaptiveCells => Scheme::Adaptive,
            Contender::CongaLike => Scheme::Ecmp,
        }
    }

    /// Returns true if hosts need to know paths.
    #[must_use]
    pub fn knows_paths(self) -> bool {
        self.scheme().knows_paths()
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contender::Host(scheme) => write!(f, "{scheme}"),
            Contender::AdaptiveCells => f.write_str("adaptive_cells"),
            Contender::CongaLike => f.write_str("conga_like"),
        }
    }
}

impl FromStr for Contender {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Contender> {
        match name {
            "adaptive_cells" => Ok(Contender::AdaptiveCells),
            "conga_like" => Ok(Contender::CongaLike),
            _ => match name.parse() {
                Ok(scheme) => Ok(Contender::Host(scheme)),
                Err(error) => Err(anyhow::anyhow!("{error}; or adaptive_cells or conga_like")),
            },
        }
    }
}

/// The inputs of a simulation run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The numbers of leaves, spines and hosts, and the rates of their links.
    pub shape: Shape,
    /// The faults of the fabric during the run.
    pub faults: Vec<Fault>,
    /// The distribution from which the sizes of flows are drawn.
    pub load: Load,
    /// Load in percent of the capacity of the leaves' links to the spines (or to the hosts, if those are
    /// slower), including all headers and acknowledgements.
    pub percent: f64,
    /// How paths are chosen.
    pub contender: Contender,
    /// The seed of all random decisions.
    pub seed: u64,
    /// Flows to simulate, at least 1.
    pub flows: u32,
    /// How TCP senders react to marks and losses.
    pub tcp: Behaviour,
    /// Time between two probes of a path in use, ns.
    pub probe_ns: u64,
    /// The gap that starts a new flowlet, ns; `None` derives it from the link rate.
    pub flowlet_ns: Option<u64>,
}

impl Scenario {
    /// Mean time between two arrivals in the whole fabric, ns.
    #[must_use]
    pub fn gap_ns(&self) -> f64 {
        let shape = &self.shape;
        let up = (f64::from(shape.spines) * shape.rate).min(f64::from(shape.hosts) * shape.host_rate);
        let bytes_per_ns = up * f64::from(shape.leaves) * self.percent / 100.0 / 8.0;
        // The cost on the wire of a data packet and its acknowledgement, which travels in the other direction
        // alongside the data of other flows.
        let wire = f64::from(DATA_BYTES + 2 * HEADER_BYTES) / f64::from(DATA_BYTES);
        self.load.mean() * wire / bytes_per_ns
    }
}
