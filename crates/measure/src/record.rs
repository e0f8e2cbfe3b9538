//! The input of a measurement: a number of packets of one flow, within a time span.

use weir_packet::{FlowKey, Observed, PROTOCOL_ICMP, PROTOCOL_ICMPV6};

/// Packets of one flow: a single one from a recording, or all packets of a flow delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// The flow.
    pub key: FlowKey,
    /// Number of packets, at least 1.
    pub packets: u64,
    /// The bytes of these packets, from the Ethernet header on, without the frame check sequence.
    pub bytes: u64,
    /// When the first of these packets arrived, in ns; the source determines the clock.
    pub first_ns: u64,
    /// When the last of these packets arrived, in ns of the same clock; not before `first_ns`.
    pub last_ns: u64,
    /// Further observations of these packets.
    pub observed: Observed,
}

impl FlowRecord {
    /// Type and code of the flow's first packet, if it is a flow of ICMP.
    #[must_use]
    pub fn icmp(&self) -> Option<u16> {
        let is_icmp = matches!(self.key.protocol(), PROTOCOL_ICMP | PROTOCOL_ICMPV6);
        is_icmp.then_some(self.observed.icmp)
    }
}
