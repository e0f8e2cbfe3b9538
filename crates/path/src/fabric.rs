//! The configuration of the paths of tunnels.

use crate::scheme::Scheme;
use crate::wire::Secret;
use std::net::IpAddr;

/// Tunnels to watch, with settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// Its name.
    pub name: String,
    /// The kernel's interface through which encapsulated frames leave.
    pub uplink: String,
    /// Underlay addresses of remote nodes.
    pub peers: Vec<IpAddr>,
    /// Our own underlay address; by default the source address of the route to the peer.
    pub local: Option<IpAddr>,
    /// How a path is chosen: ECMP, DOCA-AR or adaptive.
    pub scheme: Scheme,
    /// The UDP port of VXLAN.
    pub vxlan_port: u16,
    /// The first and the last source port that may be used.
    pub sources: [u16; 2],
    /// The DSCP of the data, and hence of probes.
    pub dscp: u8,
    /// The rate of one path, in bits per second.
    pub rate: u64,
    /// The maximum number of flows that are kept.
    pub flows: u32,
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
