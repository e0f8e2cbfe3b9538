//! The interpreter's own reading of the packet inside an ICMP error: RFC 792 for IPv4, RFC 4443 §3 for IPv6.

use super::bytes::{Headers, Ip, TransportKind, number16};
use super::fields::read_bits;
use packet::FlowKey;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the key of the flow that an ICMP error is about, turned round; `None` if the packet is no ICMP
/// error, or if too little of a packet is inside.
pub(super) fn key_inside(bytes: &[u8], headers: &Headers, ip: &Ip, vni: Option<u32>) -> Option<FlowKey> {
    let transport = headers.transport?;
    let is_error = match (transport.kind, bytes[transport.start]) {
        // Destination unreachable, source quench, redirect, time exceeded, parameter problem.
        (TransportKind::Icmp, kind) => [3, 4, 5, 11, 12].contains(&kind),
        // Destination unreachable, packet too big, time exceeded, parameter problem.
        (TransportKind::Icmpv6, kind) => (1..5).contains(&kind),
        (TransportKind::Tcp | TransportKind::Udp, _) => false,
    };
    if !is_error {
        return None;
    }
    // What lies behind the datagram is padding.
    let inside = &bytes[transport.start + 8..ip.end];
    if ip.version == 4 { from_ipv4(inside, vni) } else { from_ipv6(inside, vni) }
}

fn from_ipv4(inside: &[u8], vni: Option<u32>) -> Option<FlowKey> {
    if inside.len() < 20 || inside[0] / 16 != 4 || inside[0] % 16 < 5 {
        return None;
    }
    let header_bytes = 4 * usize::from(inside[0] % 16);
    let payload = inside.get(header_bytes..)?;
    let address =
        |at: usize| IpAddr::V4(Ipv4Addr::new(inside[at], inside[at + 1], inside[at + 2], inside[at + 3]));
    let more_fragments = inside[6] & 0x20 != 0;
    let offset = number16(inside, 6)? % 0x2000;
    let (sport, dport) = ports(payload, inside[9], more_fragments || offset > 0)?;
    Some(FlowKey::new(address(16), address(12), inside[9], (dport, sport), vni))
}

fn from_ipv6(inside: &[u8], vni: Option<u32>) -> Option<FlowKey> {
    if inside.len() < 40 || inside[0] / 16 != 6 {
        return None;
    }
    let next_header = inside[6];
    // Hop-by-hop options, routing, fragment, authentication, destination options.
    let has_extension = [0, 43, 44, 51, 60].contains(&next_header);
    let address = |at: usize| Ipv6Addr::from_bits(read_bits(inside, 8 * at, 128));
    if has_extension || address(24).is_multicast() {
        return None;
    }
    let (sport, dport) = ports(&inside[40..], next_header, false)?;
    let (source, destination) = (IpAddr::V6(address(8)), IpAddr::V6(address(24)));
    Some(FlowKey::new(destination, source, next_header, (dport, sport), vni))
}

/// The ports of the packet inside, if its protocol has some and it is not a fragment.
fn ports(payload: &[u8], protocol: u8, is_fragment: bool) -> Option<(u16, u16)> {
    if is_fragment || (protocol != 6 && protocol != 17) {
        return Some((0, 0));
    }
    Some((number16(payload, 0)?, number16(payload, 2)?))
}
