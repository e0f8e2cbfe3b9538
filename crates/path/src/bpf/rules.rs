//! The settings of the programs.

use crate::fabric::UPLINKS_MAX;
use crate::tunnel::PathTunnel;

/// Which frames get another source port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steer {
    /// No frames: only the skb hash is invalidated, so that routers in network namespaces see the outer
    /// header.
    #[default]
    Ecmp,
    /// Each tunnel header keeps the port that user space pinned for it; the first frame waits for that.
    DocaAr,
    /// Each inner flow takes a path of its peer.
    Adaptive,
    /// Each flowlet of an inner flow leaves from a random port of [`PathSettings::sources`].
    LetFlow,
    /// Each frame leaves from a random port.
    Spray,
}

/// The settings of both programs. There is no `Debug`, because they contain a secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PathSettings {
    /// Which frames get another source port.
    pub steer: Steer,
    /// The tunnels whose frames are recognised.
    pub tunnel: PathTunnel,
    /// The first and the last source port of frames that may take any path, such as answers while no path is
    /// known; in ascending order.
    pub sources: [u16; 2],
    /// Answers to a peer, per second; not 0.
    pub answers: u32,
    /// The burst of answers that is allowed.
    pub answers_burst: u32,
    /// A pinned port is forgotten after a pause of this length, in milliseconds.
    pub pinned_ms: u32,
    /// A flow that pauses for longer than this, in microseconds, may take another path.
    pub gap_us: u32,
    /// Such a flow takes the other path if it gains more than this, in nanoseconds.
    pub noise_ns: u32,
    /// A flow that has sent more bytes than this leaves a congested path without a pause.
    pub reroute_bytes: u32,
    /// Such a flow leaves if it gains more than this plus a quarter of its path's score, in nanoseconds.
    pub gain_ns: u32,
    /// The flow is not considered again within this time, in microseconds.
    pub hold_us: u32,
    /// Time in which a path sends 1024 bytes, in nanoseconds.
    pub drain_ns: u32,
    /// The half-life of recently sent bytes, in microseconds; not 0.
    pub half_life_us: u32,
    /// The UDP port to which probes come back unchanged from a switch; 0 if peers answer them.
    pub echo_port: u16,
    /// If there are several uplinks: the indexes of their interfaces; otherwise zeros.
    pub uplinks: [u32; UPLINKS_MAX],
    /// How many peers there are over each uplink.
    pub peers: u32,
    /// The VNI of probes.
    pub probe_vni: u32,
    /// The secret that authenticates probes.
    pub secret: [u64; 2],
}
