//! What an ICMP error reports on: the packet inside it, of which the header and eight bytes at least are
//! there (RFC 792, RFC 4443 §3).
//!
//! Such an error belongs to the flow of that packet, and comes from the end that the packet went to or from a
//! router on the way there. So it is known by the packet's addresses and ports, turned round.

use crate::flow_key::IPV4_MARK;
use crate::headers::{Base, Layer, Level};
use crate::parse::{PROTOCOL_TCP, PROTOCOL_UDP};

/// ICMP messages with a packet inside: destination unreachable, source quench, redirect, time exceeded,
/// parameter problem.
const ICMP: [u8; 5] = [3, 4, 5, 11, 12];

/// ICMPv6 messages with a packet inside: destination unreachable, packet too big, time exceeded, parameter
/// problem.
const ICMPV6: std::ops::RangeInclusive<u8> = 1..=4;

/// Bytes in front of the packet inside.
const HEADER: usize = 8;

/// The packet inside an ICMP error, turned round.
pub(crate) struct Reported {
    /// Source and destination, two words each, as in a flow key.
    pub addresses: [u64; 4],
    /// Source and destination port; 0 without ports.
    pub ports: (u16, u16),
    pub protocol: u8,
}

/// Returns what is inside the ICMP error at this level; `None` if it is none, or if too little is inside.
pub(crate) fn reported(frame: &[u8], level: &Level) -> Option<Reported> {
    let (l3, l4) = (level.at(Base::L3), level.at(Base::L4));
    let kind = *frame.get(l4)?;
    if level.layers.has(Layer::Icmp) && ICMP.contains(&kind) {
        let end = l3 + usize::from(be16(frame, l3 + 2)?);
        ipv4(frame.get(l4 + HEADER..end)?)
    } else if level.layers.has(Layer::Icmpv6) && ICMPV6.contains(&kind) {
        let end = l3 + 40 + usize::from(be16(frame, l3 + 4)?);
        ipv6(frame.get(l4 + HEADER..end)?)
    } else {
        None
    }
}

/// RFC 791 §3.1. A fragment has no ports.
fn ipv4(packet: &[u8]) -> Option<Reported> {
    let header: &[u8; 20] = packet.first_chunk()?;
    let length = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != 4 || length < header.len() {
        return None;
    }
    let pair = u64::from_be_bytes(header[12..].try_into().ok()?);
    let whole = be16(header, 6)? & 0x3fff == 0;
    let ports = ports(packet.get(length..)?, header[9], whole)?;
    Some(Reported { addresses: [IPV4_MARK, pair & 0xffff_ffff, 0, pair >> 32], ports, protocol: header[9] })
}

/// RFC 8200 §3. Extension headers inside are not followed. A multicast address cannot be a source, so a
/// packet to one cannot be turned round.
fn ipv6(packet: &[u8]) -> Option<Reported> {
    let header: &[u8; 40] = packet.first_chunk()?;
    let word = |at: usize| header[at..at + 8].try_into().map(u64::from_be_bytes).ok();
    let protocol = header[6];
    if header[0] >> 4 != 6 || header[24] == 0xff || matches!(protocol, 0 | 43 | 44 | 51 | 60) {
        return None;
    }
    let ports = ports(&packet[header.len()..], protocol, true)?;
    Some(Reported { addresses: [word(24)?, word(32)?, word(8)?, word(16)?], ports, protocol })
}

/// Returns the ports behind an IP header, turned round.
fn ports(segment: &[u8], protocol: u8, whole: bool) -> Option<(u16, u16)> {
    if !whole || !matches!(protocol, PROTOCOL_TCP | PROTOCOL_UDP) {
        return Some((0, 0));
    }
    Some((be16(segment, 2)?, be16(segment, 0)?))
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
}
