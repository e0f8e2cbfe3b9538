//! The subject of an ICMP error: the packet quoted inside it, with its header and at least eight more bytes
//! (RFC 792, RFC 4443 §3).
//!
//! Such an error belongs to the flow of that packet, and comes from the packet's destination or from a router
//! on the way there. It is therefore identified by the packet's addresses and ports, reversed.

use crate::flow_key::IPV4_MARK;
use crate::headers::{Base, Layer, Level};
use crate::parse::{PROTOCOL_TCP, PROTOCOL_UDP};

/// ICMP messages that quote a packet: destination unreachable, source quench, redirect, time exceeded,
/// parameter problem.
const ICMP: [u8; 5] = [3, 4, 5, 11, 12];

/// ICMPv6 messages that quote a packet: destination unreachable, packet too big, time exceeded, parameter
/// problem.
const ICMPV6: std::ops::RangeInclusive<u8> = 1..=4;

/// Bytes before the quoted packet.
const HEADER: usize = 8;

/// Where the packet quoted in an ICMP error lies: offsets from the frame's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inside {
    /// The packet's IPv4 or IPv6 header.
    pub ip: usize,
    /// The header or data that follows the IP header.
    pub transport: usize,
    /// The end of the quoted part.
    pub end: usize,
    /// The protocol that the packet carries.
    pub protocol: u8,
    /// Whether the packet is IPv4.
    pub is_ipv4: bool,
    /// Whether the packet is a fragment, which has no ports.
    pub fragment: bool,
    /// Whether the packet is a fragment other than the first.
    pub later: bool,
}

/// Finds the packet inside the ICMP error at this level; `None` if this is not an ICMP error, if too little
/// is quoted, or if it quotes an IPv6 packet that has extension headers or a multicast destination.
#[must_use]
pub fn inside_icmp_error(frame: &[u8], level: &Level) -> Option<Inside> {
    let (l3, l4) = (level.at(Base::L3), level.at(Base::L4));
    if !level.layers.has(Layer::Icmp) && !level.layers.has(Layer::Icmpv6) {
        return None;
    }
    let kind = *frame.get(l4)?;
    if level.layers.has(Layer::Icmp) && ICMP.contains(&kind) {
        let end = l3 + usize::from(be16(frame, l3 + 2)?);
        ipv4(frame.get(..end)?, l4 + HEADER)
    } else if level.layers.has(Layer::Icmpv6) && ICMPV6.contains(&kind) {
        let end = l3 + 40 + usize::from(be16(frame, l3 + 4)?);
        ipv6(frame.get(..end)?, l4 + HEADER)
    } else {
        None
    }
}

/// RFC 791 §3.1. A fragment has no ports.
fn ipv4(frame: &[u8], ip: usize) -> Option<Inside> {
    let header: &[u8; 20] = frame.get(ip..)?.first_chunk()?;
    let length = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != 4 || length < header.len() {
        return None;
    }
    let fragment = be16(header, 6)?;
    Inside {
        ip,
        transport: ip + length,
        end: frame.len(),
        protocol: header[9],
        is_ipv4: true,
        fragment: fragment & 0x3fff != 0,
        later: fragment & 0x1fff != 0,
    }
    .with_ports(frame)
}

/// RFC 8200 §3. Extension headers inside are not followed. A multicast address cannot be a source, so a
/// packet to one cannot be reversed.
fn ipv6(frame: &[u8], ip: usize) -> Option<Inside> {
    let header: &[u8; 40] = frame.get(ip..)?.first_chunk()?;
    let protocol = header[6];
    if header[0] >> 4 != 6 || header[24] == 0xff || matches!(protocol, 0 | 43 | 44 | 51 | 60) {
        return None;
    }
    let (transport, end) = (ip + header.len(), frame.len());
    Inside { ip, transport, end, protocol, is_ipv4: false, fragment: false, later: false }.with_ports(frame)
}

impl Inside {
    /// Returns true if the packet has ports.
    #[must_use]
    pub fn has_ports(&self) -> bool {
        !self.fragment && matches!(self.protocol, PROTOCOL_TCP | PROTOCOL_UDP)
    }

    /// Returns the packet if it has no ports, or if the quoted part includes them.
    fn with_ports(self, frame: &[u8]) -> Option<Inside> {
        let there = if self.has_ports() { 4 } else { 0 };
        (self.transport + there <= frame.len()).then_some(self)
    }
}

/// The packet inside an ICMP error, reversed.
pub(crate) struct Reported {
    /// Source and destination, two words each, as in a flow key.
    pub addresses: [u64; 4],
    /// Source and destination port; 0 without ports.
    pub ports: (u16, u16),
    pub protocol: u8,
}

/// Returns the packet inside the ICMP error at this level; `None` where [`inside_icmp_error`] finds nothing.
pub(crate) fn reported(frame: &[u8], level: &Level) -> Option<Reported> {
    let inside = inside_icmp_error(frame, level)?;
    let word =
        |at: usize| frame.get(inside.ip + at..inside.ip + at + 8)?.try_into().map(u64::from_be_bytes).ok();
    let addresses = if inside.is_ipv4 {
        let pair: u64 = word(12)?;
        [IPV4_MARK, pair & 0xffff_ffff, 0, pair >> 32]
    } else {
        [word(24)?, word(32)?, word(8)?, word(16)?]
    };
    let port = |at: usize| if inside.has_ports() { be16(frame, inside.transport + at) } else { Some(0) };
    Some(Reported { addresses, ports: (port(2)?, port(0)?), protocol: inside.protocol })
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
}
