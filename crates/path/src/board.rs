//! What the thread that watches paths tells, and the app shows.

use crate::paths::Fit;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Events that are kept.
pub const EVENTS: usize = 64;

/// What is known of all tunnels of an app.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Why the programs are not at the uplink; `None` if they are.
    pub obstacle: Option<String>,
    /// What the programs have counted, by name.
    pub counts: Vec<(&'static str, u64)>,
    /// The remote nodes, in the order of the configuration.
    pub nodes: Vec<NodeTold>,
    /// What happened last, the latest last.
    pub events: VecDeque<Event>,
    /// When this was written last, in nanoseconds since 1970.
    pub now_ns: u64,
    /// Somebody waits for the flows.
    pub wants_flows: bool,
    /// The flows, if somebody waited for them.
    pub flows: Option<Vec<FlowRow>>,
}

/// A remote node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeTold {
    /// Its underlay address.
    pub address: IpAddr,
    /// How much is known: one sentence.
    pub state: String,
    /// The length of large probes, from the IP header on; 0 if none are sent.
    pub large_bytes: u16,
    /// Its paths, by number.
    pub paths: Vec<PathTold>,
}

/// A path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathTold {
    /// Its source port.
    pub port: u16,
    /// Another port that leads there.
    pub spare: Option<u16>,
    /// The routers on it; `None` for one that does not answer.
    pub hops: Vec<Option<IpAddr>>,
    /// Its state: a word.
    pub state: String,
    /// Why it has it: a few words.
    pub why: String,
    /// How long it has had that state, in nanoseconds.
    pub for_ns: u64,
    /// How long frames wait on it beyond its least delay, in nanoseconds.
    pub queue_ns: u64,
    /// The time from the probe to its answer, in nanoseconds.
    pub round_trip_ns: u64,
    /// Probes lost, of those in `probes`.
    pub lost: u32,
    /// Probes over which loss is judged.
    pub probes: u32,
    /// The share of marked probes.
    pub marked: f64,
    /// Its share of new flows, out of 1024.
    pub weight: u32,
    /// Packets sent on it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Flows that began on it.
    pub new_flows: u64,
    /// Flows that came from another path: after a pause, a failure, a rehash by the kernel, or because theirs
    /// was congested.
    pub moves: [u64; 4],
    /// Flows on it that the kernel gave another port.
    pub rehashed: u64,
    /// What is known of large frames on it.
    pub large: Fit,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in nanoseconds since 1970.
    pub at_ns: u64,
    /// What, in a sentence.
    pub what: String,
}

/// A flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRow {
    /// The remote node.
    pub peer: IpAddr,
    /// The VNI; 0 if the tunnel's header is what tells flows apart.
    pub vni: u32,
    /// Source and destination.
    pub addresses: [IpAddr; 2],
    /// Their ports, 0 if there are none.
    pub ports: [u16; 2],
    /// The protocol's number.
    pub protocol: u8,
    /// Its path.
    pub path: u32,
    /// The source port that it is sent from.
    pub port: u16,
    /// Packets sent.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How often it has changed its path.
    pub moves: u32,
    /// How long it has sent nothing, in nanoseconds.
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
}
