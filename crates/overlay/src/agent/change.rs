//! How a message of the kernel affects the cache.

use crate::bpf::OverlayTuple;
use std::net::IpAddr;

/// Why something was invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    Address,
    Connection,
    Forwarding,
    Link,
    Lost,
    Neighbour,
    Policy,
    Route,
    Rule,
}

impl Cause {
    /// The name of the cause in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Address => "address",
            Cause::Connection => "connection",
            Cause::Forwarding => "forwarding",
            Cause::Link => "link",
            Cause::Lost => "lost",
            Cause::Neighbour => "neighbour",
            Cause::Policy => "policy",
            Cause::Route => "route",
            Cause::Rule => "rule",
        }
    }
}

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Something that any flow may depend on.
    All(Cause),
    /// The rules of nftables.
    Policy,
    /// Everything that flows with this remote node depend on.
    Node(IpAddr, Cause),
    /// Everything that flows of this pod depend on, by the index of its interface.
    Pod(u32, Cause),
    /// A remote node has become known.
    NodeCame(IpAddr),
    /// A pod's interface has appeared.
    PodCame(u32, String),
    /// A pod's interface is gone, or has left the bridge.
    PodLeft(u32),
    /// A connection has ended: the tuples of its frames, before and after NAT, in both directions.
    Ended(Vec<OverlayTuple>),
    /// The tunnel device, the uplink or the bridge was replaced.
    Restart,
}
