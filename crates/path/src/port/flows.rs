//! What happens to a flow whose first packet was copied to the app. The packet itself has already left.
//!
//! With `adaptive`, the flow gets its own choice of bucket: that of its hash, or one of a better path. With
//! `doca_ar`, four probes leave from the flow's port and the three above it, and the first one that is
//! answered determines the port. No other state is kept per flow, and this state only until the answer is
//! due.

use super::config::Keyed;
use super::pipes::SEED;
use crate::buckets::{PathBuckets, SIZE};
use crate::scheme::DOCA_TIMEOUT_NS;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use weir_packet::random::Random;
use weir_packet::{Depth, FlowKey, IPV4_MARK, KeySource, select_hash};
use weir_program::{Entry, EntryMatch};
use weir_table::bucket::Buckets;
use weir_table::seeded;

/// The maximum number of flows that may wait for an answer at a time; further ones keep their port.
pub const WAITING_MAX: usize = 4096;

/// A flow, as seen from its first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    pub key: FlowKey,
    pub peer: Ipv4Addr,
    /// The flow's present source port.
    pub port: u16,
}

impl Begun {
    /// Reads a frame; `None` if it is not in one of our tunnels.
    pub fn read(frame: &[u8], keyed: Keyed) -> Option<Begun> {
        let FlowKey([mark, _, _, destination, last]) = key(frame, KeySource::Outer)?;
        let peer = Ipv4Addr::from_bits(destination as u32);
        let key = key(if keyed.inside { inside(frame)? } else { frame }, keyed.source)?;
        (mark == IPV4_MARK).then_some(Begun { key, peer, port: (last >> 48) as u16 })
    }

    /// The entry that assigns it a number.
    pub fn entry(&self, number: u32) -> Entry {
        Entry::on(EntryMatch::Flow(self.key)).value(number).run_time()
    }
}

fn key(frame: &[u8], source: KeySource) -> Option<FlowKey> {
    let depth = if source == KeySource::Outer { Depth::L4 } else { Depth::Inner };
    FlowKey::of(frame, &weir_packet::parse(frame, depth).ok()?, source)
}

/// The content of the outer headers that weir adds: Ethernet, IPv4 without options, UDP, VXLAN.
fn inside(frame: &[u8]) -> Option<&[u8]> {
    (frame.get(12..15)? == [8, 0, 0x45]).then(|| frame.get(50..)).flatten()
}

/// How flows and numbers map to buckets (pipes.md M7). A number also identifies the remote node: that is
/// its upper half.
#[derive(Clone, Debug)]
pub struct Hashes {
    select_seed: u64,
    buckets: Buckets,
}

impl Hashes {
    /// The hashes of a program with this seed.
    pub fn new(select_seed: u64) -> Hashes {
        Hashes { select_seed, buckets: Buckets::new(vec![0; SIZE]) }
    }

    fn bucket(&self, words: &[u64]) -> usize {
        self.buckets.bucket(seeded(select_hash(self.select_seed, words), SEED))
    }

    /// The bucket of a flow.
    pub fn bucket_of(&self, key: &FlowKey) -> usize {
        self.bucket(&key.0)
    }

    /// A number of a node that hashes to this bucket. Each bucket has such a number among the first few
    /// hundred.
    pub fn number_of(&self, node: u16, bucket: usize) -> u32 {
        let numbers = (0..=u32::from(u16::MAX)).map(|low| u32::from(node) << 16 | low);
        let mut fit = numbers.filter(|number| self.bucket(&[u64::from(*number)]) == bucket);
        fit.next().unwrap_or_default()
    }

    /// The node of a number, and the bucket that it hashes to.
    pub fn place_of(&self, number: u32) -> (u16, usize) {
        ((number >> 16) as u16, self.bucket(&[u64::from(number)]))
    }
}

/// Returns a bucket that leads to a path: `own` if that one does.
pub fn bucket_to(path: u16, own: usize, buckets: &PathBuckets, random: &mut Random) -> usize {
    let slots = buckets.slots();
    if slots.get(own) == Some(&path) {
        return own;
    }
    let all: Vec<usize> = (0..slots.len()).filter(|at| slots[*at] == path).collect();
    all.get(random.below(all.len() as u64) as usize).copied().unwrap_or(own)
}

/// Flows that wait for the first answer to their probes.
#[derive(Clone, Debug, Default)]
pub struct Waiting {
    flows: BTreeMap<u32, Begun>,
    keys: BTreeSet<FlowKey>,
    due: VecDeque<(u64, u32)>,
    next: u32,
}

impl Waiting {
    /// Makes a flow wait; returns its number. `None` if it is already waiting, or too many are.
    pub fn add(&mut self, now_ns: u64, flow: Begun) -> Option<u32> {
        if self.flows.len() >= WAITING_MAX || !self.keys.insert(flow.key) {
            return None;
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.flows.insert(number, flow);
        self.due.push_back((now_ns + DOCA_TIMEOUT_NS, number));
        Some(number)
    }

    /// Returns true if this flow is waiting.
    pub fn has(&self, key: &FlowKey) -> bool {
        self.keys.contains(key)
    }

    /// Returns how many are waiting.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Removes a waiting flow; `None` if it was not waiting.
    pub fn take(&mut self, number: u32) -> Option<Begun> {
        let flow = self.flows.remove(&number)?;
        self.keys.remove(&flow.key);
        Some(flow)
    }

    /// Removes a flow whose deadline has passed.
    pub fn overdue(&mut self, now_ns: u64) -> Option<Begun> {
        while let Some(&(_, number)) = self.due.front().filter(|due| due.0 <= now_ns) {
            self.due.pop_front();
            if let Some(flow) = self.take(number) {
                return Some(flow);
            }
        }
        None
    }

    /// The next deadline.
    pub fn wake_ns(&self) -> Option<u64> {
        self.due.front().map(|due| due.0)
    }
}
