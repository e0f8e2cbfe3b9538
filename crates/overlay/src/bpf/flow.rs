//! Reading the flows of the cache.

use super::layout::{GONE_TO, HALF_AT, HALF_FLAGS, HALF_TO, Layout, OverlayIp};
use aya::maps::{Array, Map, MapData, MapError};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

/// Flag bits of `struct half`.
const USABLE: u32 = 1;
const TRANSLATED: u32 = 2;
const LOCAL: u32 = 4;

/// The addresses and ports of a frame, in its own direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OverlayTuple {
    /// Source and destination, of the same IP version.
    pub addresses: [IpAddr; 2],
    /// Their ports.
    pub ports: [u16; 2],
    /// The protocol of IP.
    pub protocol: u8,
}

impl OverlayTuple {
    /// Returns the tuple of a reply.
    #[must_use]
    pub fn reversed(&self) -> OverlayTuple {
        let ([a, b], [c, d]) = (self.addresses, self.ports);
        OverlayTuple { addresses: [b, a], ports: [d, c], ..*self }
    }

    /// Returns the IP version of its addresses.
    #[must_use]
    pub fn ip(&self) -> OverlayIp {
        version(self.addresses)
    }

    /// Returns the bytes of `struct tuple`.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = begin(self.addresses, self.ports);
        bytes.extend(u32::from(self.protocol).to_ne_bytes());
        bytes
    }

    /// Reads `struct tuple`.
    pub(super) fn new(bytes: &[u8], ip: OverlayIp) -> Option<OverlayTuple> {
        let (addresses, ports, rest) = read(bytes, ip)?;
        Some(OverlayTuple { addresses, ports, protocol: u32::from_ne_bytes(*rest.first_chunk()?) as u8 })
    }
}

/// A flow as its pod sees it, for both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OverlayKey {
    /// The pod and its peer; of the same IP version.
    pub addresses: [IpAddr; 2],
    /// Their ports.
    pub ports: [u16; 2],
    /// The VNI.
    pub vni: u32,
    /// The protocol of IP.
    pub protocol: u8,
}

impl OverlayKey {
    /// Returns the IP version of its addresses.
    #[must_use]
    pub fn ip(&self) -> OverlayIp {
        version(self.addresses)
    }

    /// Returns the bytes of `struct key`.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = begin(self.addresses, self.ports);
        bytes.extend(self.vni.to_ne_bytes());
        bytes.extend(u64::from(self.protocol).to_ne_bytes());
        bytes
    }

    /// Returns the tuple of what its pod sends.
    #[must_use]
    pub fn sent(&self) -> OverlayTuple {
        OverlayTuple { addresses: self.addresses, ports: self.ports, protocol: self.protocol }
    }

    /// Reads `struct key`.
    fn new(bytes: &[u8], ip: OverlayIp) -> Option<OverlayKey> {
        let (addresses, ports, rest) = read(bytes, ip)?;
        let protocol = u64::from_ne_bytes(*rest.get(4..)?.first_chunk()?) as u8;
        Some(OverlayKey { addresses, ports, vni: u32::from_ne_bytes(*rest.first_chunk()?), protocol })
    }
}

fn version(addresses: [IpAddr; 2]) -> OverlayIp {
    if addresses.iter().all(IpAddr::is_ipv4) { OverlayIp::V4 } else { OverlayIp::V6 }
}

/// The common beginning of keys and tuples: addresses and ports as on the wire.
fn begin(addresses: [IpAddr; 2], ports: [u16; 2]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(48);
    let ip = version(addresses);
    for address in addresses {
        match address {
            IpAddr::V4(address) if ip == OverlayIp::V4 => bytes.extend(address.octets()),
            IpAddr::V4(address) => bytes.extend(address.to_ipv6_mapped().octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    bytes.extend(ports.map(u16::to_be_bytes).concat());
    bytes
}

/// Reads it, and returns the bytes that follow.
fn read(bytes: &[u8], ip: OverlayIp) -> Option<([IpAddr; 2], [u16; 2], &[u8])> {
    let (one, rest) = address(bytes, ip)?;
    let (other, rest) = address(rest, ip)?;
    let ([a, b, c, d], rest) = rest.split_first_chunk()?;
    Some(([one, other], [u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d])], rest))
}

/// Reads an address as on the wire, and returns the bytes that follow.
fn address(bytes: &[u8], ip: OverlayIp) -> Option<(IpAddr, &[u8])> {
    Some(match ip {
        OverlayIp::V4 => {
            let (four, rest) = bytes.split_first_chunk::<4>()?;
            (Ipv4Addr::from(*four).into(), rest)
        }
        OverlayIp::V6 => {
            let (all, rest) = bytes.split_first_chunk::<16>()?;
            (Ipv6Addr::from(*all).into(), rest)
        }
    })
}

/// A flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayFlow {
    /// Its key.
    pub key: OverlayKey,
    /// When its sending and its receiving direction were learnt, in nanoseconds of `CLOCK_MONOTONIC`; 0 if a
    /// direction was not learnt or is void.
    pub learnt_ns: [u64; 2],
    /// The stamps at the time each direction was learnt: global, policy, and that of the remote node or the
    /// pod.
    pub stamps: [[u64; 3]; 2],
    /// Whose stamp the last of them is.
    pub stamp_of: [u32; 2],
    /// Whether the flow's own frames are found by this key. Otherwise they are found by the key before NAT,
    /// and this entry exists for the other direction.
    pub is_usable: [bool; 2],
    /// The tuples after NAT of what it sends, and of what it receives.
    pub translated: [Option<OverlayTuple>; 2],
    /// The interface of the other pod, if that is on this node.
    pub peer: Option<u32>,
    /// The remote node; unspecified until the sending direction was learnt.
    pub node: IpAddr,
    /// The headers before what it sends, as the kernel wrote them: 64 bytes, or 84 with outer IPv6.
    pub headers: Vec<u8>,
    /// The index of the pod's interface.
    pub pod: u32,
    /// When the first direction was learnt or the flow last reported its counts, on the same clock.
    pub born_ns: u64,
    /// When its last frame took the fast path, on the same clock.
    pub used_ns: u64,
    /// Packets sent and received on the fast path since then.
    pub packets: [u64; 2],
    /// Their bytes, as on the pod's wire.
    pub bytes: [u64; 2],
}

/// Why a flow reports its counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverlayEnd {
    /// It made room for another flow.
    MadeRoom,
    /// Its connection has ended.
    Ended,
    /// It was idle for too long.
    Idle,
    /// It has not ended: these are its counts so far.
    Alive,
    /// The programs are being detached.
    Stopped,
}

/// What a flow has counted since it was learnt or last reported its counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlayGone {
    /// Its key.
    pub key: OverlayKey,
    /// When that was, in nanoseconds of `CLOCK_MONOTONIC`; 0 if the flow had already reported its final
    /// counts, and these come from frames that were still in flight.
    pub born_ns: u64,
    /// When its last frame took the fast path.
    pub used_ns: u64,
    /// Packets sent and received on the fast path.
    pub packets: [u64; 2],
    /// Their bytes, as on the pod's wire.
    pub bytes: [u64; 2],
    /// The tuple of what it received, as the pod saw it.
    pub received: OverlayTuple,
    /// Why it is reported.
    pub why: OverlayEnd,
}

impl OverlayGone {
    /// Reads `struct gone`.
    pub(super) fn new(bytes: &[u8], layout: &Layout) -> Option<OverlayGone> {
        let bytes = bytes.get(..layout.gone())?;
        let at = |at: usize| word(bytes, layout.key + at * 8);
        let key = OverlayKey::new(bytes, layout.pods)?;
        let to = OverlayTuple::new(bytes.get(layout.key + GONE_TO..)?, layout.pods)?;
        let [is_translated, why] = [8, 4].map(|back| number(bytes, layout.gone() - back));
        Some(OverlayGone {
            key,
            born_ns: at(0),
            used_ns: at(1),
            packets: [at(2), at(3)],
            bytes: [at(4), at(5)],
            received: if is_translated == 0 { key.sent().reversed() } else { to },
            why: [OverlayEnd::MadeRoom, OverlayEnd::Ended, OverlayEnd::Idle, OverlayEnd::Alive]
                .get(why as usize)
                .copied()
                .unwrap_or(OverlayEnd::Stopped),
        })
    }
}

/// A word at an offset; 0 if there is none.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_ne_bytes(*word))
}

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |number| u32::from_ne_bytes(*number))
}

/// Reads flows.
pub struct OverlayFlows(Vec<FlowReader>);

/// Reads the flows of one IP version.
pub(super) struct FlowReader {
    layout: Layout,
    map: Map,
}

impl OverlayFlows {
    pub(super) fn new(tables: Vec<FlowReader>) -> OverlayFlows {
        OverlayFlows(tables)
    }

    /// Returns all flows. This costs a system call for each set of four.
    #[must_use]
    pub fn read(&self) -> Vec<OverlayFlow> {
        self.page(0, u32::MAX).0
    }

    /// Returns the requested number of flows from this set and those that follow, one IP version after the
    /// other, and the set at which the next page begins.
    #[must_use]
    pub fn page(&self, from: u32, sets: u32) -> (Vec<OverlayFlow>, Option<u32>) {
        let end = from.saturating_add(sets);
        let (mut all, mut before) = (Vec::new(), 0u32);
        for table in &self.0 {
            let (mut some, count) = table.read(from.saturating_sub(before)..end.saturating_sub(before));
            all.append(&mut some);
            before = before.saturating_add(count);
        }
        (all, (end < before).then_some(end))
    }
}

impl FlowReader {
    pub fn new(layout: Layout, map: Map) -> FlowReader {
        FlowReader { layout, map }
    }

    /// Returns the flows in some sets, and how many sets there are.
    fn read(&self, sets: Range<u32>) -> (Vec<OverlayFlow>, u32) {
        const fn bytes(pods: OverlayIp, nodes: OverlayIp) -> usize {
            Layout::new(pods, nodes).set()
        }
        use OverlayIp::{V4, V6};
        let all = match (self.layout.pods, self.layout.nodes) {
            (V4, V4) => self.sets::<{ bytes(V4, V4) }>(sets),
            (V4, V6) => self.sets::<{ bytes(V4, V6) }>(sets),
            (V6, V4) => self.sets::<{ bytes(V6, V4) }>(sets),
            (V6, V6) => self.sets::<{ bytes(V6, V6) }>(sets),
        };
        all.unwrap_or_default()
    }

    fn sets<const BYTES: usize>(&self, sets: Range<u32>) -> Result<(Vec<OverlayFlow>, u32), MapError> {
        /// `BPF_F_LOCK`: with the set's lock, so that no flow is read half changed.
        const LOCK: u64 = 4;
        let map = Array::<&MapData, [u8; BYTES]>::try_from(&self.map)?;
        let some = (sets.start..sets.end.min(map.len())).filter_map(|at| map.get(&at, LOCK).ok());
        let ways = |set: [u8; BYTES]| {
            set[8..].chunks_exact(self.layout.way).filter_map(|way| self.flow(way)).collect::<Vec<_>>()
        };
        Ok((some.flat_map(ways).collect(), map.len()))
    }

    /// Reads `struct way`.
    fn flow(&self, way: &[u8]) -> Option<OverlayFlow> {
        let Layout { pods, nodes, halves, headers: [headers, length], born, .. } = self.layout;
        let key = OverlayKey::new(way, pods).filter(|key| key.protocol != 0)?;
        let flags = halves.map(|half| number(way, half + HALF_FLAGS));
        let to = |half: usize| OverlayTuple::new(way.get(half + HALF_TO..)?, pods);
        let is_translated = |at: usize| flags[at] & (USABLE | TRANSLATED) == USABLE | TRANSLATED;
        let headers = way.get(headers..headers + length)?;
        let at = |at: usize| word(way, born + at * 8);
        // A flow that is gone keeps its key.
        if at(0) == 0 {
            return None;
        }
        Some(OverlayFlow {
            key,
            learnt_ns: halves.map(|half| word(way, half)),
            stamps: halves.map(|half| [8, 16, 24].map(|at| word(way, half + at))),
            stamp_of: halves.map(|half| number(way, half + HALF_AT)),
            is_usable: flags.map(|flags| flags & USABLE != 0),
            translated: [0, 1].map(|at| to(halves[at]).filter(|_| is_translated(at))),
            peer: (flags[0] & LOCAL != 0).then(|| number(way, self.layout.peer)),
            node: destination(headers, nodes)?,
            headers: headers.to_vec(),
            pod: number(way, self.layout.pod),
            born_ns: at(0),
            used_ns: at(1),
            packets: [at(2), at(3)],
            bytes: [at(4), at(5)],
        })
    }
}

/// Returns the outer destination of headers.
fn destination(headers: &[u8], ip: OverlayIp) -> Option<IpAddr> {
    let at = match ip {
        OverlayIp::V4 => 30,
        OverlayIp::V6 => 38,
    };
    Some(address(headers.get(at..)?, ip)?.0)
}
