//! The configuration of a path app at a port, with names resolved.

use crate::scheme::Scheme;
use crate::settings::Settings;
use crate::wire::Secret;
use std::net::Ipv4Addr;
use weir_config::attachment::Attachment;
use weir_packet::KeySource;
use weir_program::{Origin, PipeId, PortId};

/// The configuration of an app for tunnels whose frames leave through a port of weir.
#[derive(Clone, Debug, PartialEq)]
pub struct PathPort {
    /// The app's name, which is also the name of the pipe that encapsulated frames enter.
    pub name: String,
    /// The port towards the fabric.
    pub port: PortId,
    /// The name of the port.
    pub port_name: String,
    /// The attachment from which encapsulated frames come; other apps and pipes may also forward to the app's
    /// name.
    pub input: Option<Attachment>,
    /// The pipe for frames from the fabric, if there is no `input`.
    pub root: Option<PipeId>,
    /// Our own underlay address.
    pub local: Ipv4Addr,
    /// The MAC address from which probes are sent.
    pub mac: [u8; 6],
    /// The remote nodes.
    pub peers: Vec<Peer>,
    /// How a path is chosen: ECMP, DOCA-AR or adaptive.
    pub scheme: Scheme,
    /// The headers of encapsulated frames that distinguish flows.
    pub key: KeySource,
    /// The UDP source ports used as paths until others are discovered; at most [`crate::paths::PATHS_MAX`].
    pub ports: Vec<u16>,
    /// How paths are discovered; with `None`, [`PathPort::ports`] are the paths.
    pub discovery: Option<Discovery>,
    /// The UDP port of VXLAN.
    pub vxlan_port: u16,
    /// The DSCP of the data, and hence of probes.
    pub dscp: u8,
    /// The largest packet that may leave through the port, including the IP header; 0 if unknown.
    pub mtu: u16,
    /// The settings that depend on the rate of a path.
    pub settings: Settings,
    /// The interval between probes of the paths to a node to which no data is sent, in nanoseconds.
    pub idle_ns: u64,
    /// How many flows keep their bucket or port.
    pub flows: u32,
    /// How long a flow may be idle before it counts as a new one, in nanoseconds.
    pub idle_timeout_ns: u64,
    /// The maximum number of answered probes per peer and second.
    pub answers: u32,
    /// The secret that authenticates probes; `None` if none is configured.
    pub secret: Option<Secret>,
    /// The app's position in the configuration.
    pub origin: Origin,
}

/// How paths are discovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discovery {
    /// The first and the last source port that may be used.
    pub sources: [u16; 2],
    /// The interval between two discoveries, in nanoseconds.
    pub every_ns: u64,
}

/// A remote node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its underlay address.
    pub address: Ipv4Addr,
    /// The MAC address of the next hop towards it.
    pub mac: [u8; 6],
}

/// The headers and keys that distinguish flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyed {
    /// The headers of frames as they were received, or as they are after `rehash`.
    pub source: KeySource,
    /// Whether pipes use the key of the encapsulated frame.
    pub rehash: bool,
    /// Whether the inner frames were received as such, because weir encapsulates them here, so that their key
    /// has no VNI.
    pub inside: bool,
}

impl PathPort {
    /// Returns the headers and keys that distinguish flows. Frames from `input` are already encapsulated;
    /// without one weir encapsulates them, and with several workers only the received headers determine the
    /// worker of a flow.
    #[must_use]
    pub fn keyed(&self) -> Keyed {
        let inside = self.input.is_none() && self.key == KeySource::Inner;
        let source = if inside { KeySource::Outer } else { self.key };
        Keyed { source, rehash: self.input.is_none() && !inside, inside }
    }
}
