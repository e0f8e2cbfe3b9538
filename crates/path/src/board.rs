//! The state that the thread that watches paths publishes, for the app to show.

use crate::paths::Fit;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;

/// The state of all tunnels of an app.
#[derive(Clone, Debug, Default)]
pub struct PathsReport {
    /// The programs' counters, by name.
    pub counts: Vec<(&'static str, u64)>,
    /// The remote nodes, in the order of the configuration.
    pub nodes: Vec<NodeReport>,
}

/// Some of the flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowsPage {
    /// The flows of this page, in the order of the table.
    pub rows: Vec<FlowRow>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<u32>,
}

/// A remote node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeReport {
    /// Its underlay address.
    pub address: IpAddr,
    /// The uplink that the paths begin with, if there are several.
    pub uplink: Option<String>,
    /// What is known about the node, in one sentence.
    pub state: String,
    /// The length of large probes, including the IP header; 0 if none are sent.
    pub large_bytes: u16,
    /// Its paths, by number.
    pub paths: Vec<PathReport>,
}

/// The state of one path to a remote node, as it is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathReport {
    /// The UDP source port that leads along the path.
    pub port: u16,
    /// Another port that leads along the path.
    pub spare: Option<u16>,
    /// The routers on the path; `None` for a router that does not answer.
    pub hops: Vec<Option<IpAddr>>,
    /// Its state, in one word.
    pub state: String,
    /// The reason for its state, in a few words.
    pub why: String,
    /// How long the path has had that state, in nanoseconds.
    pub for_ns: u64,
    /// The queueing delay of frames above its minimum delay, in nanoseconds.
    pub queue_ns: u64,
    /// The time from the probe to its answer, in nanoseconds.
    pub round_trip_ns: u64,
    /// How many of the last `probes` probes were lost.
    pub lost: u32,
    /// Probes over which loss is judged.
    pub probes: u32,
    /// The share of probes that arrived with a congestion mark (CE), 0 to 1.
    pub marked: f64,
    /// The share of new flows that the path gets, from 0 to 1024, compared with a path without faults.
    pub weight: u32,
    /// Packets sent on it.
    pub packets: u64,
    /// The bytes of these packets.
    pub bytes: u64,
    /// Flows that began on it.
    pub new_flows: u64,
    /// Flows that moved here from another path: after a pause, a failure, a rehash by the kernel, or because
    /// the other path was congested.
    pub moves: [u64; 4],
    /// Flows on the path that the kernel moved to another port.
    pub rehashed: u64,
    /// What is known about large frames on the path.
    pub large: Fit,
    /// If the node is unmodified: what TCP connections have revealed, and the router that is asked.
    pub observed: Option<ObservedReport>,
}

/// What is known about a path to an unmodified node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedReport {
    /// The router that echo requests are sent to; `None` if no router is on this path alone.
    pub router: Option<IpAddr>,
    /// The shortest time from a segment to its acknowledgement in a few milliseconds, lately, in nanoseconds;
    /// 0 if there was none.
    pub round_trip_ns: u64,
    /// Segments of TCP connections that were sent on it.
    pub segments: u64,
    /// Of these, segments that were sent again.
    pub again: u64,
    /// Acknowledgements of new data.
    pub acknowledgements: u64,
}

/// The answer to `conntrack`.
#[derive(Serialize, Deserialize)]
pub(super) struct FlowList {
    pub name: String,
    /// How many flows there are; `None` as long as a client has not fetched all pages.
    pub count: Option<usize>,
    pub flows: Vec<FlowRow>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<u32>,
}

/// A flow, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowRow {
    /// The remote node.
    pub peer: IpAddr,
    /// The uplink through which the flow leaves, if there are several.
    pub uplink: Option<String>,
    /// The VNI; 0 if the tunnel's headers distinguish flows.
    pub vni: u32,
    /// The source address of the flow, inside the tunnel.
    pub source: IpAddr,
    /// The destination address of the flow, inside the tunnel.
    pub destination: IpAddr,
    /// The source's port, 0 if there is none.
    pub sport: u16,
    /// The destination's port.
    pub dport: u16,
    /// The protocol's number.
    pub protocol: u8,
    /// The number of the path that the flow takes.
    pub path: u32,
    /// The source port from which the flow is sent.
    pub port: u16,
    /// The number of packets that the flow has sent.
    pub packets: u64,
    /// The bytes of these packets.
    pub bytes: u64,
    /// How often the flow has changed paths.
    pub moves: u32,
    /// How long the flow has sent nothing, in milliseconds.
    pub idle_ms: u64,
    /// Its state, in one word.
    pub state: String,
    /// How it came to its path, in one word.
    pub decision: String,
}

impl fmt::Display for FlowRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FlowRow { peer, vni, source, destination, sport, dport, protocol, path, port, .. } = self;
        let FlowRow { packets, bytes, moves, idle_ms, state, decision, .. } = self;
        let over = self.uplink.as_ref().map(|uplink| format!(" over {uplink}")).unwrap_or_default();
        write!(
            f,
            "({vni} {source}:{sport} -> {destination}:{dport} protocol {protocol} by {peer}{over}) \
             => path {path} port {port}, {decision}: {packets} packets, {bytes} bytes, {moves} moves, \
             {state}, idle for {idle_ms} ms"
        )
    }
}
