//! Reading the flows of the cache.

use super::shared::{v44, v46, v64, v66};
use super::versions::{OverlayIp, WAYS};
use aya::maps::{Array, Map, MapData, MapError};
use std::net::IpAddr;
use std::ops::Range;

/// The addresses and ports of a frame, in its own direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OverlayTuple {
    /// Source and destination, of the same IP version.
    pub addresses: [IpAddr; 2],
    /// Source and destination port; 0 if the protocol has none.
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

    /// Reads `struct tuple`.
    pub(super) fn read(bytes: &[u8], ip: OverlayIp) -> Option<OverlayTuple> {
        Some(match ip {
            OverlayIp::V4 => v44::Tuple::of(bytes.first_chunk()?).into(),
            OverlayIp::V6 => v66::Tuple::of(bytes.first_chunk()?).into(),
        })
    }
}

/// A flow as its pod sees it, for both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OverlayKey {
    /// The pod and its peer; of the same IP version.
    pub addresses: [IpAddr; 2],
    /// The port of the pod, and that of its peer; 0 if the protocol has none.
    pub ports: [u16; 2],
    /// The VNI of the overlay, 24 bits.
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
        match self.ip() {
            OverlayIp::V4 => v44::Key::from(self).bytes().to_vec(),
            OverlayIp::V6 => v66::Key::from(self).bytes().to_vec(),
        }
    }

    /// Returns the tuple of the frames that its pod sends.
    #[must_use]
    pub fn sent(&self) -> OverlayTuple {
        OverlayTuple { addresses: self.addresses, ports: self.ports, protocol: self.protocol }
    }
}

fn version(addresses: [IpAddr; 2]) -> OverlayIp {
    if addresses.iter().all(IpAddr::is_ipv4) { OverlayIp::V4 } else { OverlayIp::V6 }
}

/// A flow of the cache, as the eBPF programs store it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayFlow {
    /// The addresses and ports of the flow, as its pod sees them.
    pub key: OverlayKey,
    /// When the flow's sending and receiving direction were learnt, in nanoseconds of `CLOCK_MONOTONIC`; 0 if
    /// a direction was not learnt or is void.
    pub learnt_ns: [u64; 2],
    /// The stamps at the time each direction was learnt: global, policy, and that of the remote node or the
    /// pod.
    pub stamps: [[u64; 3]; 2],
    /// The index of the third of these stamps, which identifies the remote node or the pod.
    pub stamp_of: [u32; 2],
    /// Whether the flow's own frames are found by this key. Otherwise they are found by the key before NAT,
    /// and this entry exists for the other direction.
    pub is_usable: [bool; 2],
    /// The tuples after NAT of the frames that the pod sends, and of those that it receives.
    pub translated: [Option<OverlayTuple>; 2],
    /// The interface of the other pod, if that pod is on this node.
    pub peer: Option<u32>,
    /// The remote node; unspecified until the sending direction was learnt.
    pub node: IpAddr,
    /// The headers in front of the packets that the pod sends, as the kernel wrote them: 64 bytes, or 84 with
    /// outer IPv6.
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
    /// The flow made room for another one.
    MadeRoom,
    /// Its connection has ended.
    Ended,
    /// The flow was idle for too long.
    Idle,
    /// The flow has not ended: these are its counts so far.
    Alive,
    /// The programs are being detached.
    Stopped,
}

/// The counts of a flow since it was learnt or last reported them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlayGone {
    /// The addresses and ports of the flow, as its pod saw them.
    pub key: OverlayKey,
    /// When it was learnt or last reported its counts, in nanoseconds of `CLOCK_MONOTONIC`; 0 if the flow had
    /// already reported its final counts, and these come from frames that were still in flight.
    pub born_ns: u64,
    /// When its last frame took the fast path.
    pub used_ns: u64,
    /// Packets sent and received on the fast path.
    pub packets: [u64; 2],
    /// Their bytes, as on the pod's wire.
    pub bytes: [u64; 2],
    /// The tuple of the frames that the pod received, as the pod saw them.
    pub received: OverlayTuple,
    /// Why the counts are reported.
    pub why: OverlayEnd,
}

impl OverlayGone {
    /// Reads `struct gone`.
    pub(super) fn read(bytes: &[u8], pods: OverlayIp) -> Option<OverlayGone> {
        Some(match pods {
            OverlayIp::V4 => v44::Gone::of(bytes.first_chunk()?).into(),
            OverlayIp::V6 => v66::Gone::of(bytes.first_chunk()?).into(),
        })
    }
}

/// Reads flows.
pub struct OverlayFlows(Vec<FlowReader>);

/// Reads the flows of one IP version.
pub(super) struct FlowReader {
    /// The IP versions of pods and of nodes.
    pub versions: [OverlayIp; 2],
    pub map: Map,
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
    /// Returns the flows in some sets, and how many sets there are.
    fn read(&self, sets: Range<u32>) -> (Vec<OverlayFlow>, u32) {
        use OverlayIp::{V4, V6};
        let all = match self.versions {
            [V4, V4] => self.sets(sets, |set| v44::Set::of(set).ways.map(v44::Way::flow)),
            [V4, V6] => self.sets(sets, |set| v46::Set::of(set).ways.map(v46::Way::flow)),
            [V6, V4] => self.sets(sets, |set| v64::Set::of(set).ways.map(v64::Way::flow)),
            [V6, V6] => self.sets(sets, |set| v66::Set::of(set).ways.map(v66::Way::flow)),
        };
        all.unwrap_or_default()
    }

    fn sets<const BYTES: usize>(
        &self,
        sets: Range<u32>,
        flows: impl Fn(&[u8; BYTES]) -> [Option<OverlayFlow>; WAYS],
    ) -> Result<(Vec<OverlayFlow>, u32), MapError> {
        /// `BPF_F_LOCK`: with the set's lock, so that no flow is read half changed.
        const LOCK: u64 = 4;
        let map = Array::<&MapData, [u8; BYTES]>::try_from(&self.map)?;
        let some = (sets.start..sets.end.min(map.len())).filter_map(|at| map.get(&at, LOCK).ok());
        Ok((some.flat_map(|set| flows(&set)).flatten().collect(), map.len()))
    }
}
