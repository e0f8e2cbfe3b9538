//! The configuration of the paths of tunnels.

use crate::scheme::Scheme;
use crate::tunnel::PathTunnel;
use crate::wire::Secret;
use std::net::IpAddr;

/// The ToS byte by which the rules of DOCA-AR recognise probes, as DSCP (CS1).
pub const ECHO_DSCP: u8 = 8;
/// The UDP port of the tunnels whose probes these rules send back.
pub const ECHO_VXLAN_PORT: u16 = 4789;
/// The UDP port to which these rules send probes back.
pub const ECHO_PORT: u16 = 4788;

/// The maximum number of uplinks of an app.
pub const UPLINKS_MAX: usize = 4;

/// How the peers send probes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reflect {
    /// They run weir, which answers.
    #[default]
    Weir,
    /// A switch in front of them has DOCA-AR's rule: UDP to [`ECHO_VXLAN_PORT`] with [`ECHO_DSCP`] goes back
    /// out of the port on which it came, to the sender's MAC address and [`ECHO_PORT`]. IP addresses stay.
    OpenFlow,
}

/// Tunnels to watch, with settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// Its name.
    pub name: String,
    /// The kernel's interfaces through which encapsulated frames leave; at most [`UPLINKS_MAX`].
    pub uplinks: Vec<String>,
    /// Underlay addresses of remote nodes.
    pub peers: Vec<IpAddr>,
    /// Our own underlay address; by default the source address of the route to the peer.
    pub local: Option<IpAddr>,
    /// How a path is chosen: ECMP, DOCA-AR or adaptive.
    pub scheme: Scheme,
    /// How the peers send probes back.
    pub reflect: Reflect,
    /// The type and the UDP port of the tunnels.
    pub tunnel: PathTunnel,
    /// The first and the last source port that may be used.
    pub sources: [u16; 2],
    /// The DSCP of the data, and hence of probes.
    pub dscp: u8,
    /// The rate of one path, in bits per second.
    pub rate: u64,
    /// The maximum number of flows that are kept.
    pub flows: u32,
    /// After this time without a packet, a flow is forgotten, in nanoseconds.
    pub idle_timeout_ns: u64,
    /// How often each path of a peer in use is probed, in nanoseconds.
    pub probe_ns: u64,
    /// How often the paths of other peers are probed, in nanoseconds.
    pub idle_ns: u64,
    /// How often paths are rediscovered, in nanoseconds.
    pub discover_ns: u64,
    /// The maximum number of answered probes per peer and second.
    pub answers: u32,
    /// The secret that authenticates probes; `None` if none is configured.
    pub secret: Option<Secret>,
}

impl Fabric {
    /// The name of the uplink with this number, if there are several; a single one need not be named.
    #[must_use]
    pub fn one_of_several(&self, uplink: usize) -> Option<String> {
        self.uplinks.get(uplink).filter(|_| self.uplinks.len() > 1).cloned()
    }

    /// The DSCP of its probes: that of the data, so that they meet the same queues, unless a switch
    /// recognises probes by another.
    #[must_use]
    pub fn probe_dscp(&self) -> u8 {
        match self.reflect {
            Reflect::Weir => self.dscp,
            Reflect::OpenFlow => ECHO_DSCP,
        }
    }
}
