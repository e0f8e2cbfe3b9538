//! The schemes that place flows: ours, and those it is compared with.

use std::fmt;
use std::str::FromStr;

/// How a flow's path is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// The port is a hash of the flow and never changes.
    Ecmp,
    /// DOCA-AR as published: four probes from ports sp to sp + 3; the port of the first echo within 50 ms is
    /// used for the lifetime of the flow.
    DocaAr,
    /// Ours: the better of two paths by delay, marks, loss and local bytes; flowlets; cautious moves.
    Adaptive,
    /// Ours for unmodified remote nodes: the same choice, from what the tunnels' own TCP connections reveal
    /// and routers answer; flows never move within a burst.
    OneSided,
    /// A random port for each flowlet (LetFlow, NSDI'17).
    LetFlow,
    /// Flowlets are assigned to paths by weights that echoed marks reduce (CLOVE-ECN, CoNEXT'17).
    Clove,
    /// A random port after a number of rounds with marks, or a timeout, like the kernel's PLB (SIGCOMM'22).
    PlbLike,
    /// A random port for each packet.
    Spray,
}

impl Scheme {
    /// All schemes that the simulator knows: none of its hosts is unmodified, so `OneSided` is not among
    /// them.
    pub const ALL: [Scheme; 7] = [
        Scheme::Ecmp,
        Scheme::DocaAr,
        Scheme::Adaptive,
        Scheme::LetFlow,
        Scheme::Clove,
        Scheme::PlbLike,
        Scheme::Spray,
    ];

    /// Its name in configurations and results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Ecmp => "ecmp",
            Scheme::DocaAr => "doca_ar",
            Scheme::Adaptive => "adaptive",
            Scheme::OneSided => "one_sided",
            Scheme::LetFlow => "letflow",
            Scheme::Clove => "clove",
            Scheme::PlbLike => "plb_like",
            Scheme::Spray => "spray",
        }
    }

    /// Returns true if it needs [`crate::paths::Paths`]: discovered ports, probes or echoes.
    #[must_use]
    pub fn knows_paths(self) -> bool {
        matches!(self, Scheme::Adaptive | Scheme::OneSided | Scheme::Clove)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No scheme has this name.
#[derive(Debug, thiserror::Error)]
#[error("no scheme is named `{0}`: use ecmp, doca_ar, adaptive, letflow, clove, plb_like or spray")]
pub struct UnknownScheme(String);

impl FromStr for Scheme {
    type Err = UnknownScheme;

    fn from_str(name: &str) -> Result<Scheme, UnknownScheme> {
        Scheme::ALL
            .into_iter()
            .find(|scheme| scheme.name() == name)
            .ok_or_else(|| UnknownScheme(name.to_string()))
    }
}

/// The range for random source ports: like the kernel's VXLAN, the ephemeral ports (RFC 7348, section 5).
pub const PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;

/// Returns the port that a hash or a random number maps to.
#[must_use]
pub fn port_of(word: u64) -> u16 {
    let count = u64::from(PORTS.end() - PORTS.start()) + 1;
    PORTS.start() + (word >> 32) as u16 % count as u16
}

/// DOCA-AR: the number of probes for a new flow, from the flow's port upwards.
pub const DOCA_PROBES: u16 = 4;

/// DOCA-AR: after this time without an echo, the flow keeps its own port, ns.
pub const DOCA_TIMEOUT_NS: u64 = 50_000_000;

/// DOCA-AR: a flow that is idle for this time is forgotten, ns.
pub const DOCA_IDLE_NS: u64 = 10_000_000_000;

/// DOCA-AR: the ports that are probed for a flow.
#[must_use]
pub fn doca_ports(port: u16) -> [u16; DOCA_PROBES as usize] {
    std::array::from_fn(|at| port.wrapping_add(at as u16))
}
