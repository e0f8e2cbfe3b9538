//! What the thread that minds the cache tells, and the app shows.

use super::explain::Pair;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_app::RequestId;

/// Events that are kept.
pub const EVENTS: usize = 64;

/// What is known of an overlay.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Why the programs are not at work; `None` if they are.
    pub obstacle: Option<String>,
    /// Names of the pods' interfaces.
    pub pods: Vec<String>,
    /// The remote nodes.
    pub nodes: Vec<IpAddr>,
    /// What became of the frames that pods sent, and of those that the uplink received, by name: frames seen,
    /// fast, dropped, and then why they were slow.
    pub frames: [Vec<(&'static str, u64)>; 2],
    /// What became of entries, by name.
    pub entries: Vec<(&'static str, u64)>,
    /// How often something made entries void, by cause.
    pub causes: BTreeMap<&'static str, u64>,
    /// What happened last, the latest last.
    pub events: VecDeque<Event>,
    /// When this was written last, in nanoseconds since 1970.
    pub now_ns: u64,
    /// Requests that wait for flows.
    pub wanted: Vec<(RequestId, FlowsWanted)>,
    /// The flows that were read for them.
    pub read: Vec<(RequestId, FlowsPage)>,
}

/// Flows that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowsWanted {
    /// A page, from a place in the table on.
    From(u32),
    /// One flow.
    One(Pair),
}

/// Some of the flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowsPage {
    /// The flows.
    pub rows: Vec<FlowRow>,
    /// The place at which the next page begins; `None` after the last.
    pub next: Option<u32>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in nanoseconds since 1970.
    pub at_ns: u64,
    /// What, in a sentence.
    pub what: String,
}

/// Addresses and ports after NAT: source and destination.
pub type Translated = ([IpAddr; 2], [u16; 2]);

/// A flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRow {
    /// The pod, and the one that it talks to.
    pub addresses: [IpAddr; 2],
    /// Their ports.
    pub ports: [u16; 2],
    /// The protocol's number.
    pub protocol: u8,
    /// The remote node.
    pub node: IpAddr,
    /// The name of the pod's interface.
    pub pod: String,
    /// That of the other pod's, if it is on this node.
    pub peer: Option<String>,
    /// Whether what it sends is known, and what it receives.
    pub known: [bool; 2],
    /// Whether frames are found by these addresses; with NAT, one direction is by others.
    pub usable: [bool; 2],
    /// The stamps when each was learnt: of all flows, of policy, and its own.
    pub stamps: [[u64; 3]; 2],
    /// The same as they are now.
    pub stamps_now: [[u64; 3]; 2],
    /// How long ago each was learnt, in nanoseconds.
    pub age_ns: [u64; 2],
    /// What NAT makes of each.
    pub translated: [Option<Translated>; 2],
    /// Packets sent and received by the short way.
    pub packets: [u64; 2],
    /// Their bytes.
    pub bytes: [u64; 2],
    /// How long it has not used the short way, in nanoseconds.
    pub idle_ns: u64,
}

/// Where the thread puts what it knows, and the app finds it.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<Told>>);

impl Board {
    /// Returns what is there, for reading and writing. Nobody holds it for longer than a copy takes.
    pub fn look(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    /// Notes an event.
    pub fn note(&mut self, at_ns: u64, what: String) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(Event { at_ns, what });
        self.now_ns = self.now_ns.max(at_ns);
    }

    /// Returns a count of the frames that pods sent (0) or the uplink received (1); 0 if there is none.
    pub fn frames_of(&self, direction: usize, name: &str) -> u64 {
        self.frames[direction].iter().find(|(one, _)| *one == name).map_or(0, |(_, count)| *count)
    }

    /// Returns how many of the frames that could have taken the short way did; `None` if there was none.
    pub fn hit_ratio(&self, direction: usize) -> Option<f64> {
        let fast = self.frames_of(direction, "fast");
        let missed: u64 = MISSES.iter().map(|name| self.frames_of(direction, name)).sum();
        (fast + missed > 0).then(|| fast as f64 / (fast + missed) as f64)
    }
}

/// Why a frame that could have taken the short way did not.
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
