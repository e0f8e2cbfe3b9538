//! The flows of the cache, to be read.

use aya::maps::{Array, Map, MapData, MapError};
use std::net::Ipv4Addr;

/// Flows of a set.
pub(super) const WAYS: usize = 4;
/// Words of `struct way`, of 8 bytes, and where its fields are.
const WAY: usize = 36;
const SEND: usize = 3;
const RECEIVE: usize = SEND + HALF;
const POD: usize = (RECEIVE + HALF) * 8 + 4;
const HEADERS: usize = POD + 4;
const PEER: usize = HEADERS + 64 + 16;
const BORN: usize = 30;
const USED: usize = 31;
const PACKETS: usize = 32;
const BYTES: usize = 34;
/// Words of `struct half`, and where its fields are: four stamps and times, two numbers, a tuple.
const HALF: usize = 7;
const FLAGS: usize = 4 * 8 + 4;
const TO: usize = 5 * 8;
/// Words of `struct set`.
pub(super) const SET: usize = 1 + WAYS * WAY;
/// The outer destination address in the headers, in bytes.
const NODE: usize = HEADERS + 30;
/// Bits of the flags of `struct half`.
const USABLE: u32 = 1;
const TRANSLATED: u32 = 2;
const LOCAL: u32 = 4;
/// Words of `struct gone`.
pub(super) const GONE: usize = 9;

/// The addresses and ports of a frame, in its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OverlayTuple {
    /// Source and destination.
    pub addresses: [Ipv4Addr; 2],
    /// Their ports.
    pub ports: [u16; 2],
    /// The protocol of IP.
    pub protocol: u8,
}

impl OverlayTuple {
    /// Returns the tuple of an answer.
    #[must_use]
    pub fn reversed(&self) -> OverlayTuple {
        let ([a, b], [c, d]) = (self.addresses, self.ports);
        OverlayTuple { addresses: [b, a], ports: [d, c], ..*self }
    }

    /// Returns the bytes of `struct tuple`.
    #[must_use]
    pub fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let [source, destination] = self.addresses.map(|address| address.octets());
        bytes[..4].copy_from_slice(&source);
        bytes[4..8].copy_from_slice(&destination);
        bytes[8..10].copy_from_slice(&self.ports[0].to_be_bytes());
        bytes[10..12].copy_from_slice(&self.ports[1].to_be_bytes());
        bytes[12..].copy_from_slice(&u32::from(self.protocol).to_ne_bytes());
        bytes
    }

    pub(super) fn new(bytes: &[u8; 16]) -> OverlayTuple {
        let address = |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
        let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        OverlayTuple {
            addresses: [address(0), address(4)],
            ports: [port(8), port(10)],
            protocol: u32::from_ne_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as u8,
        }
    }
}

/// A flow as its pod sees it, for both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OverlayKey {
    /// The pod, and the one that it talks to.
    pub addresses: [Ipv4Addr; 2],
    /// Their ports.
    pub ports: [u16; 2],
    /// The VNI.
    pub vni: u32,
    /// The protocol of IP.
    pub protocol: u8,
}

/// A flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlayFlow {
    /// What tells it apart.
    pub key: OverlayKey,
    /// When what it sends was learnt, and what it receives, on the clock `CLOCK_MONOTONIC`, in nanoseconds; 0
    /// if it was not, or is void.
    pub learnt_ns: [u64; 2],
    /// The stamps when each was learnt: global, policy, and of the remote node or the pod.
    pub stamps: [[u64; 3]; 2],
    /// Which stamp the last of them is of.
    pub stamp_of: [u32; 2],
    /// Whether the flow's own frames are found by this key; otherwise they are by the one before NAT, and
    /// this is there for the other direction.
    pub is_usable: [bool; 2],
    /// What NAT makes of what it sends, and of what it receives.
    pub translated: [Option<OverlayTuple>; 2],
    /// The interface of the other pod, if that is on this node.
    pub peer: Option<u32>,
    /// The remote node; not set before what it sends was learnt.
    pub node: Ipv4Addr,
    /// The headers in front of what it sends, as the kernel wrote them.
    pub headers: [u8; 64],
    /// The index of the pod's interface.
    pub pod: u32,
    /// When the first direction was learnt, on the same clock.
    pub born_ns: u64,
    /// When its last frame took the short way, on the same clock.
    pub used_ns: u64,
    /// Packets sent and received by the short way.
    pub packets: [u64; 2],
    /// Their bytes, from the inner IP header on.
    pub bytes: [u64; 2],
}

impl OverlayKey {
    /// Returns the bytes of `struct key`.
    #[must_use]
    pub fn bytes(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        let [local, remote] = self.addresses;
        bytes[..4].copy_from_slice(&local.octets());
        bytes[4..8].copy_from_slice(&remote.octets());
        bytes[8..10].copy_from_slice(&self.ports[0].to_be_bytes());
        bytes[10..12].copy_from_slice(&self.ports[1].to_be_bytes());
        bytes[12..16].copy_from_slice(&self.vni.to_ne_bytes());
        bytes[16..].copy_from_slice(&u64::from(self.protocol).to_ne_bytes());
        bytes
    }

    fn new(bytes: &[u8; 24]) -> OverlayKey {
        let address = |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
        let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        OverlayKey {
            addresses: [address(0), address(4)],
            ports: [port(8), port(10)],
            vni: u32::from_ne_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]),
            protocol: u64::from_ne_bytes(*bytes.last_chunk().expect("8 bytes")) as u8,
        }
    }
}

/// Reads flows.
pub struct OverlayFlows(Array<MapData, [u64; SET]>);

impl OverlayFlows {
    pub(super) fn new(map: Map) -> Result<OverlayFlows, MapError> {
        Ok(OverlayFlows(Array::try_from(map)?))
    }

    /// Returns all flows. A system call for each set of four.
    #[must_use]
    pub fn read(&self) -> Vec<OverlayFlow> {
        /// `BPF_F_LOCK`: with the set's lock, so that no flow is half another.
        const LOCK: u64 = 4;
        let sets = (0..self.0.len()).filter_map(|at| self.0.get(&at, LOCK).ok());
        let ways =
            |set: [u64; SET]| set[1..].as_chunks::<WAY>().0.iter().filter_map(flow).collect::<Vec<_>>();
        sets.flat_map(ways).collect()
    }
}

/// A flow that has made room for another, or whose connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlayGone {
    /// What tells it apart.
    pub key: OverlayKey,
    /// When the first direction was learnt, on the clock `CLOCK_MONOTONIC`, in nanoseconds.
    pub born_ns: u64,
    /// When its last frame took the short way.
    pub used_ns: u64,
    /// Packets sent and received by the short way.
    pub packets: [u64; 2],
    /// Their bytes, from the inner IP header on.
    pub bytes: [u64; 2],
}

impl OverlayGone {
    /// Reads `struct gone`.
    pub(super) fn new(bytes: &[u8; GONE * 8]) -> OverlayGone {
        let word = |at: usize| {
            let bytes = bytes[at * 8..].first_chunk().expect("within the structure");
            u64::from_ne_bytes(*bytes)
        };
        OverlayGone {
            key: OverlayKey::new(bytes.first_chunk().expect("24 bytes")),
            born_ns: word(3),
            used_ns: word(4),
            packets: [word(5), word(6)],
            bytes: [word(7), word(8)],
        }
    }
}

fn flow(way: &[u64; WAY]) -> Option<OverlayFlow> {
    let mut bytes = [0; WAY * 8];
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(way) {
        *bytes = word.to_ne_bytes();
    }
    let key = OverlayKey::new(bytes.first_chunk()?);
    let number = |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    let halves = [SEND, RECEIVE];
    let flags = halves.map(|at| number(at * 8 + FLAGS));
    let to = |at: usize| bytes[at * 8 + TO..].first_chunk().map(OverlayTuple::new);
    let translated =
        [0, 1].map(|at| to(halves[at]).filter(|_| flags[at] & (USABLE | TRANSLATED) == USABLE | TRANSLATED));
    (key.protocol != 0).then_some(OverlayFlow {
        key,
        learnt_ns: halves.map(|at| way[at]),
        stamps: halves.map(|at| [way[at + 1], way[at + 2], way[at + 3]]),
        stamp_of: halves.map(|at| number((at + 4) * 8)),
        is_usable: flags.map(|flags| flags & USABLE != 0),
        translated,
        peer: (flags[0] & LOCAL != 0).then(|| number(PEER)),
        node: Ipv4Addr::from(number(NODE).to_ne_bytes()),
        headers: *bytes.get(HEADERS..)?.first_chunk()?,
        pod: number(POD),
        born_ns: way[BORN],
        used_ns: way[USED],
        packets: [way[PACKETS], way[PACKETS + 1]],
        bytes: [way[BYTES], way[BYTES + 1]],
    })
}
