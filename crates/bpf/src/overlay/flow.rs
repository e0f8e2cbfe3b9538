//! The flows of the cache, to be read.

use aya::maps::{Array, Map, MapData, MapError};
use std::net::Ipv4Addr;

/// Flows of a set.
pub(super) const WAYS: usize = 4;
/// Words of `struct way`, of 8 bytes, and where its fields are.
const WAY: usize = 29;
const SEND: usize = 3;
const RECEIVE: usize = SEND + 5;
const POD: usize = RECEIVE + 5;
const HEADERS: usize = POD + 1;
const USED: usize = 24;
const PACKETS: usize = 25;
const BYTES: usize = 27;
/// Words of `struct set`.
pub(super) const SET: usize = 1 + WAYS * WAY;
/// The outer destination address in the headers, in bytes.
const NODE: usize = HEADERS * 8 + 30;

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
    /// The remote node; not set before what it sends was learnt.
    pub node: Ipv4Addr,
    /// The headers in front of what it sends, as the kernel wrote them.
    pub headers: [u8; 64],
    /// The index of the pod's interface.
    pub pod: u32,
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

fn flow(way: &[u64; WAY]) -> Option<OverlayFlow> {
    let mut bytes = [0; WAY * 8];
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(way) {
        *bytes = word.to_ne_bytes();
    }
    let key = OverlayKey::new(bytes.first_chunk()?);
    let half = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    (key.protocol != 0).then_some(OverlayFlow {
        key,
        learnt_ns: [way[SEND], way[RECEIVE]],
        node: Ipv4Addr::from(half(NODE)?.to_ne_bytes()),
        headers: *bytes.get(HEADERS * 8..)?.first_chunk()?,
        pod: half(POD * 8 + 4)?,
        used_ns: way[USED],
        packets: [way[PACKETS], way[PACKETS + 1]],
        bytes: [way[BYTES], way[BYTES + 1]],
    })
}
