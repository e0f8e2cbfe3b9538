//! The state that the thread that maintains the cache publishes, for the app to show.

use super::explain::Pair;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The state of an overlay.
#[derive(Clone, Debug, Default)]
pub struct OverlayReport {
    /// How often the kernel sees a frame of each flow and direction, in nanoseconds. It is kept when programs
    /// are detached.
    pub refresh_ns: Option<u64>,
    /// Names of the pods' interfaces.
    pub pods: Vec<String>,
    /// The remote nodes.
    pub nodes: Vec<IpAddr>,
    /// The fates of frames sent by pods, and of frames received by the uplink, by name: frames seen, fast,
    /// dropped, and then the reasons why they were slow.
    pub frames: [Vec<(&'static str, u64)>; 2],
    /// Events of entries, by name.
    pub entries: Vec<(&'static str, u64)>,
    /// How often something invalidated entries, by cause.
    pub causes: BTreeMap<&'static str, u64>,
}

/// Flows that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowsWanted {
    /// A page, starting at this place in the table.
    From(u32),
    /// One flow.
    One(Pair),
}

/// Some of the flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowsPage {
    /// The flows of this page, in the order of the table.
    pub rows: Vec<FlowRow>,
    /// The place at which the next page begins; `None` after the last.
    pub next: Option<u32>,
    /// How often the kernel sees a frame of each flow and direction, in nanoseconds.
    pub refresh_ns: u64,
}

/// Addresses and ports after NAT: source and destination.
pub type Translated = ([IpAddr; 2], [u16; 2]);

/// A flow of the cache, in both directions, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRow {
    /// The pod and its peer.
    pub addresses: [IpAddr; 2],
    /// The port of the pod, and that of its peer; 0 if the protocol has none.
    pub ports: [u16; 2],
    /// The protocol's number.
    pub protocol: u8,
    /// The remote node.
    pub node: IpAddr,
    /// The name of the pod's interface.
    pub pod: String,
    /// The name of the other pod's interface, if it is on this node.
    pub peer: Option<String>,
    /// Whether the directions are known: sent and received.
    pub known: [bool; 2],
    /// Whether the entries for frames are found by these addresses; with NAT, one direction uses other
    /// addresses.
    pub usable: [bool; 2],
    /// The stamps at the time when each direction was learnt: that of all flows, that of the policy, and the
    /// direction's own.
    pub stamps: [[u64; 3]; 2],
    /// The current values of the same stamps.
    pub stamps_now: [[u64; 3]; 2],
    /// The age of each direction, in nanoseconds.
    pub age_ns: [u64; 2],
    /// The translation of each direction by NAT.
    pub translated: [Option<Translated>; 2],
    /// Packets sent and received by the fast path.
    pub packets: [u64; 2],
    /// The bytes of these packets, sent and received.
    pub bytes: [u64; 2],
    /// How long the flow has not used the fast path, in nanoseconds.
    pub idle_ns: u64,
}

impl OverlayReport {
    /// Returns a count of the frames that pods sent (0) or the uplink received (1); 0 if there is none.
    pub fn frames_of(&self, direction: usize, name: &str) -> u64 {
        self.frames[direction].iter().find(|(one, _)| *one == name).map_or(0, |(_, count)| *count)
    }

    /// Returns the share of eligible frames that took the fast path; `None` if there were none.
    pub fn hit_ratio(&self, direction: usize) -> Option<f64> {
        let fast = self.frames_of(direction, "fast");
        let missed: u64 = MISSES.iter().map(|name| self.frames_of(direction, name)).sum();
        (fast + missed > 0).then(|| fast as f64 / (fast + missed) as f64)
    }
}

/// Why an eligible frame did not take the fast path.
const MISSES: [&str; 11] = [
    "lease",
    "unknown",
    "half",
    "changed",
    "expired",
    "stale_global",
    "stale_policy",
    "stale_own",
    "stranger",
    "no_route",
    "no_room",
];
