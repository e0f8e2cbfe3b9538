//! One pass over a frame's headers finds which ones there are and where, or why the frame is malformed.
//!
//! Parsing goes as deep as the program reads and no deeper, copies nothing and never panics. The result is
//! [`Headers`]. A fragment has no L4 layer, not even the first fragment: ports that only some packets of a
//! datagram carry must not determine where the datagram goes. A fragment has no tunnel either. (`fragment.rs`
//! is for callers that know the ports of all fragments.)

use crate::extension;
use crate::field::Depth;
use crate::headers::{Base, Headers, Layer, Layers, Level};
use crate::icmp_error::inside_icmp_error;
use crate::tunnel::{Inside, Unread};
use crate::{DropReason, TunnelKind, TunnelPorts};

/// EtherType of IPv4 (RFC 894).
pub const ETHER_IPV4: u16 = 0x0800;
/// EtherType of ARP (RFC 826).
pub const ETHER_ARP: u16 = 0x0806;
/// EtherType of IPv6 (RFC 2464).
pub const ETHER_IPV6: u16 = 0x86dd;
/// TPID of a C-VLAN tag (IEEE 802.1Q).
pub const ETHER_VLAN: u16 = 0x8100;
/// TPID of an S-VLAN tag (IEEE 802.1ad).
pub const ETHER_QINQ: u16 = 0x88a8;
/// Protocol number of ICMP for IPv4. This and the following are numbers assigned by IANA.
pub const PROTOCOL_ICMP: u8 = 1;
/// Protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// Protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// Protocol number of ICMPv6, as the last next-header value of an IPv6 packet.
pub const PROTOCOL_ICMPV6: u8 = 58;

/// The maximum number of extension headers that are followed. A frame with more is dropped: this bounds the
/// walk over a crafted chain.
pub const EXTENSION_HEADERS_MAX: usize = 8;

const ETHERNET: usize = 14;
const VLAN_TAG: usize = 4;
/// The length of the part with which every ARP packet starts. Below, the length of an ARP packet for IPv4
/// over Ethernet.
const ARP_MIN: usize = 8;
const ARP: usize = 28;
const IPV4_MIN: usize = 20;
const IPV6: usize = 40;
const TCP_MIN: usize = 20;
const UDP: usize = 8;
const ICMP: usize = 8;

/// Bytes of the shortest usual frame: Ethernet, IPv4, UDP.
const USUAL: usize = ETHERNET + IPV4_MIN + UDP;

/// Finds the headers of a frame down to `depth`, recognising tunnels by their standard ports.
///
/// # Errors
/// The drop reason of the first header that is truncated or contradicts itself.
#[inline]
pub fn parse(frame: &[u8], depth: Depth) -> Result<Headers, DropReason> {
    let mut headers = Headers::default();
    parse_into(frame, depth, &TunnelPorts::STANDARD, &mut headers).map(|()| headers)
}

/// Like [`parse`], but recognises tunnels by these ports, and writes the headers in place.
///
/// # Errors
/// Like [`parse`]; `headers` are then meaningless.
// Written in place and once: a `Headers` that passes through memory is written narrow and read wide, and that
// store-forwarding stall costs more than all the parsing. The slow path is not inlined: otherwise its stores,
// one per field, would be shared by the fast path, whose headers are almost all constants.
#[inline(always)]
pub fn parse_into(
    frame: &[u8],
    depth: Depth,
    ports: &TunnelPorts,
    headers: &mut Headers,
) -> Result<(), DropReason> {
    match usual(frame, depth, ports) {
        Some(usual) => *headers = usual,
        None => walk(frame, depth, ports, headers)?,
    }
    Ok(())
}

/// The layers of a level that starts with Ethernet.
const FRAME: u32 = Layer::Present as u32 | Layer::Ethernet as u32;

/// The usual frame, found by a few loads at fixed places: untagged, IPv4 without options, not a fragment and,
/// where ports are parsed, UDP or TCP without a tunnel. `None` means that [`walk`] must decide. A test
/// ensures that both find the same headers.
#[inline(always)]
fn usual(frame: &[u8], depth: Depth, ports: &TunnelPorts) -> Option<Headers> {
    let head: &[u8; USUAL] = frame.first_chunk()?;
    let be16 = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    // EtherType, version and header length in one comparison.
    let is_plain_ipv4 = be16(12) == ETHER_IPV4 && head[14] == 0x45;
    let total_length = usize::from(be16(16));
    let fits = total_length >= IPV4_MIN && ETHERNET + total_length <= frame.len();
    if !is_plain_ipv4 || !fits || be16(20) & 0x3fff != 0 {
        return None;
    }
    // From 0.0.0.1 to 223.255.255.255: other sources need the full check.
    let is_ordinary = number32(head, 26).wrapping_sub(1) < MULTICAST_V4 - 1;
    if !is_ordinary {
        return None;
    }
    let protocol = head[23];
    let mut layers = FRAME | Layer::Ipv4 as u32;
    if depth > Depth::L3 {
        let segment = total_length - IPV4_MIN;
        let (transport, fits) = match protocol {
            PROTOCOL_UDP if depth == Depth::Inner && ports.may_mean(be16(36)) => return None,
            PROTOCOL_UDP => (Layer::Udp as u32, (UDP..=segment).contains(&usize::from(be16(38)))),
            PROTOCOL_TCP => {
                let data_offset = usize::from(*frame.get(46)? >> 4) * 4;
                (Layer::Tcp as u32, (TCP_MIN..=segment).contains(&data_offset))
            }
            _ => return None,
        };
        if !fits {
            return None;
        }
        layers |= transport | Layer::Ports as u32;
    } else if depth == Depth::L2 {
        return None;
    }
    let at = [0, ETHERNET as u16, (ETHERNET + IPV4_MIN) as u16, 0];
    let outer = Level { layers: Layers(layers), at, ether_type: ETHER_IPV4, protocol };
    Some(Headers { levels: [outer, Level::default()], ..Headers::default() })
}

/// Parses any frame, header by header. Writes field by field in place. Values left there by an earlier frame
/// are meaningless, because their layers are not set.
#[inline(never)]
fn walk(frame: &[u8], depth: Depth, ports: &TunnelPorts, headers: &mut Headers) -> Result<(), DropReason> {
    headers.levels[1].layers = Layers::default();
    let outer = &mut headers.levels[0];
    let l3 = ethernet(frame, 0, outer)?;
    if depth > Depth::L2 {
        let mut payload = Payload::default();
        network(frame, l3, outer.ether_type, &mut payload)?;
        if depth > Depth::L3 {
            transport(frame, &mut payload)?;
        }
        outer.carries(&payload);
        outer.reads_error(frame);
        if depth == Depth::Inner {
            tunnel(frame, &payload, ports, headers)?;
        }
    }
    Ok(())
}

impl Level {
    /// Takes over the results for the payload of its L3 header.
    #[inline(always)]
    fn carries(&mut self, payload: &Payload) {
        self.protocol = payload.protocol;
        self.at[Base::L4 as usize] = payload.start as u16;
        self.layers.0 |= payload.layers.0;
    }

    /// Finds the packet inside an ICMP error.
    #[inline(always)]
    fn reads_error(&mut self, frame: &[u8]) {
        if self.layers.0 & (Layer::Icmp as u32 | Layer::Icmpv6 as u32) != 0 {
            self.reads_packet_inside(frame);
        }
    }

    #[inline(never)]
    fn reads_packet_inside(&mut self, frame: &[u8]) {
        let Some(inside) = inside_icmp_error(frame, self) else { return };
        self.layers.add(Layer::IcmpError);
        if inside.has_ports() {
            self.layers.add(Layer::ErrorPorts);
            self.at[Base::ErrorL4 as usize & 3] = inside.transport as u16;
        }
    }
}

/// Ethernet and at most two VLAN tags; returns where L3 starts.
#[inline(always)]
fn ethernet(frame: &[u8], start: usize, level: &mut Level) -> Result<usize, DropReason> {
    let mut at = start + ETHERNET;
    let mut ether_type = be16(frame, at - 2).ok_or(DropReason::MalformedEthernet)?;
    let mut layers = Layers(FRAME);
    for layer in [Layer::Vlan, Layer::SecondVlan] {
        if ether_type != ETHER_VLAN && ether_type != ETHER_QINQ {
            break;
        }
        ether_type = be16(frame, at + 2).ok_or(DropReason::MalformedEthernet)?;
        layers.add(layer);
        at += VLAN_TAG;
    }
    *level = Level { layers, at: [start as u16, at as u16, 0, 0], ether_type, protocol: 0 };
    Ok(at)
}

/// The first IPv4 multicast address (RFC 5771).
const MULTICAST_V4: u32 = 0xe000_0000;

/// The payload of an L3 header: its position, its protocol, and the layers met on the way; all 0 without L3.
///
/// Passed by `&mut` rather than in a `Result`, where the error's byte would overlay its fields and split
/// them.
#[derive(Default)]
struct Payload {
    start: usize,
    end: usize,
    protocol: u8,
    layers: Layers,
}

#[inline(always)]
fn network(frame: &[u8], at: usize, ether_type: u16, payload: &mut Payload) -> Result<(), DropReason> {
    match ether_type {
        ETHER_IPV4 => ipv4(frame, at, payload),
        ETHER_IPV6 => {
            // A separate variable, so that the walk over extension headers forces only this payload out of
            // registers.
            let mut found = Payload::default();
            let result = ipv6(frame, at, &mut found);
            *payload = found;
            result
        }
        ETHER_ARP => arp(frame, at, payload),
        _ => Ok(()),
    }
}

/// RFC 826, for IPv4 over Ethernet. ARP for anything else (see RFC 2390) is payload.
#[inline(always)]
fn arp(frame: &[u8], at: usize, payload: &mut Payload) -> Result<(), DropReason> {
    let header = frame.get(at..at + ARP_MIN).ok_or(DropReason::MalformedArp)?;
    if header[..6] != [0, 1, 8, 0, 6, 4] {
        return Ok(());
    }
    if frame.len() < at + ARP {
        return Err(DropReason::MalformedArp);
    }
    *payload = Payload { start: at + ARP, end: at + ARP, protocol: 0, layers: Layers(Layer::Arp as u32) };
    Ok(())
}

/// RFC 791 §3.1. Options are skipped; bytes beyond the total length are padding.
#[inline(always)]
fn ipv4(frame: &[u8], at: usize, payload: &mut Payload) -> Result<(), DropReason> {
    let header = frame.get(at..at + IPV4_MIN).ok_or(DropReason::MalformedIpv4)?;
    let header_length = usize::from(header[0] & 0x0f) * 4;
    let total_length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let fits = header_length >= IPV4_MIN && total_length >= header_length && at + total_length <= frame.len();
    if header[0] >> 4 != 4 || !fits {
        let is_unsegmented = header[0] >> 4 == 4 && header_length >= IPV4_MIN && total_length == 0;
        return Err(if is_unsegmented { DropReason::Ipv4LengthZero } else { DropReason::MalformedIpv4 });
    }
    let [source, destination] = [12, 16].map(|field| number32(header, field));
    if !may_send4(source, destination) {
        return Err(DropReason::MalformedIpv4);
    }
    let mut layers = Layers(Layer::Ipv4 as u32);
    // More fragments, or an offset: any fragment, including the first.
    if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        layers.add(Layer::Fragment);
    }
    *payload = Payload { start: at + header_length, end: at + total_length, protocol: header[9], layers };
    Ok(())
}

/// Whether a packet may have this pair of IPv4 addresses: neither a multicast address nor the limited
/// broadcast address is ever a source, and a host that has no address yet (DHCP, IGMP) sends only to
/// multicast or broadcast addresses (RFC 1112 §7.2, RFC 1122 §3.2.1.3).
#[inline(always)]
fn may_send4(source: u32, destination: u32) -> bool {
    !is_many4(source) && (source != 0 || is_many4(destination))
}

/// Whether an IPv4 address means more than one host: multicast (RFC 5771) or the limited broadcast address.
#[inline(always)]
fn is_many4(address: u32) -> bool {
    (MULTICAST_V4..0xf000_0000).contains(&address) || address == u32::MAX
}

#[inline(always)]
fn number32(header: &[u8], at: usize) -> u32 {
    header[at..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// RFC 8200 §3, §4.
fn ipv6(frame: &[u8], at: usize, payload: &mut Payload) -> Result<(), DropReason> {
    let header = frame.get(at..at + IPV6).ok_or(DropReason::MalformedIpv6)?;
    let end = at + IPV6 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    // A source is never multicast (RFC 4291 §2.7): flow keys rely on it to tell IPv4 from IPv6. A host with
    // an unspecified source sends to multicast addresses only, for router discovery or DAD (§2.5.2).
    let is_unspecified = header[8..24] == [0; 16];
    let may_send = header[8] != 0xff && (!is_unspecified || header[24] == 0xff);
    if header[0] >> 4 != 6 || end > frame.len() || !may_send {
        return Err(DropReason::MalformedIpv6);
    }
    *payload = Payload { start: at + IPV6, end, protocol: header[6], layers: Layers(Layer::Ipv6 as u32) };
    for _ in 0..EXTENSION_HEADERS_MAX {
        if !at_extension(payload) {
            return Ok(());
        }
        step_over(frame, payload)?;
    }
    if at_extension(payload) { Err(DropReason::TooManyExtensionHeaders) } else { Ok(()) }
}

/// Returns false if there is no extension header, or if parsing stops at a fragment.
#[inline(always)]
fn at_extension(payload: &Payload) -> bool {
    matches!(payload.protocol, 0 | 43 | 44 | 51 | 60) && !payload.layers.has(Layer::Fragment)
}

/// Skips one extension header.
fn step_over(frame: &[u8], payload: &mut Payload) -> Result<(), DropReason> {
    let header = frame.get(payload.start..payload.end).unwrap_or_default();
    let [next, length, third, fourth, ..] = *header else { return Err(DropReason::MalformedIpv6) };
    let bytes = extension::length(payload.protocol, length);
    if header.len() < bytes {
        return Err(DropReason::MalformedIpv6);
    }
    // RFC 6946: an atomic fragment (offset 0, no more) is a whole datagram.
    if payload.protocol == 44 && u16::from_be_bytes([third, fourth]) & 0xfff9 != 0 {
        payload.layers.add(Layer::Fragment);
    }
    payload.protocol = next;
    payload.start += bytes;
    Ok(())
}

/// Adds the L4 layers of a payload; a fragment has none.
#[inline(always)]
fn transport(frame: &[u8], payload: &mut Payload) -> Result<(), DropReason> {
    if payload.layers.has(Layer::Fragment) {
        return Ok(());
    }
    let segment = frame.get(payload.start..payload.end).unwrap_or_default();
    let (layers, fits, reason) = match payload.protocol {
        PROTOCOL_UDP => {
            (Layer::Udp as u32 | Layer::Ports as u32, udp_fits(segment), DropReason::MalformedUdp)
        }
        PROTOCOL_TCP => {
            (Layer::Tcp as u32 | Layer::Ports as u32, tcp_fits(segment), DropReason::MalformedTcp)
        }
        // ICMP belongs to IPv4 and ICMPv6 to IPv6; over the other version their numbers mean nothing.
        PROTOCOL_ICMP if payload.layers.has(Layer::Ipv4) => {
            (Layer::Icmp as u32, segment.len() >= ICMP, DropReason::MalformedIcmp)
        }
        PROTOCOL_ICMPV6 if payload.layers.has(Layer::Ipv6) => {
            (Layer::Icmpv6 as u32, segment.len() >= ICMP, DropReason::MalformedIcmp)
        }
        _ => return Ok(()),
    };
    payload.layers.0 |= layers;
    if fits { Ok(()) } else { Err(reason) }
}

/// RFC 768: the length counts the header; padding after the datagram is allowed, a shorter packet is not.
#[inline(always)]
fn udp_fits(segment: &[u8]) -> bool {
    let Some(header) = segment.first_chunk::<UDP>() else { return false };
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    (UDP..=segment.len()).contains(&length)
}

/// RFC 9293 §3.1: the data offset counts 32-bit words, at least 5.
#[inline(always)]
fn tcp_fits(segment: &[u8]) -> bool {
    let Some(header) = segment.first_chunk::<TCP_MIN>() else { return false };
    (TCP_MIN..=segment.len()).contains(&(usize::from(header[12] >> 4) * 4))
}

/// The tunnel in a payload, if the payload is a tunnel.
fn tunnel(
    frame: &[u8],
    payload: &Payload,
    ports: &TunnelPorts,
    headers: &mut Headers,
) -> Result<(), DropReason> {
    let Some((kind, at, end)) = carrier(frame, payload, ports) else { return Ok(()) };
    // The carrier's payload bounds the inner level.
    let frame = frame.get(..end).unwrap_or_default();
    let header = match kind.read(frame.get(at..).unwrap_or_default(), payload.protocol) {
        Ok(header) => header,
        Err(Unread::Unknown) => return Ok(()),
        Err(Unread::Malformed) => return Err(kind.spec().malformed),
    };
    let [outer, inner] = &mut headers.levels;
    outer.layers.0 |= Layers::of_tunnel(kind).0;
    headers.tunnel_at = at as u16;
    headers.tunnel_id = 0;
    if let Some(id) = header.id {
        outer.layers.add(Layer::TunnelId);
        outer.at[Base::TunnelId as usize] = (at + id.at) as u16;
        headers.tunnel_id = id.value;
    }
    let Some(inside) = header.inside else { return Ok(()) };
    inner_level(frame, at + header.length, inside, inner).map_err(|_| DropReason::MalformedInner)
}

/// The kind of the tunnel in a payload, where its header starts, and where its payload ends.
#[inline(always)]
fn carrier(frame: &[u8], payload: &Payload, ports: &TunnelPorts) -> Option<(TunnelKind, usize, usize)> {
    if payload.layers.has(Layer::Udp) {
        let kind = ports.kind(be16(frame, payload.start + 2)?)?;
        let length = usize::from(be16(frame, payload.start + 4)?);
        return Some((kind, payload.start + UDP, payload.start + length));
    }
    let kind = TunnelKind::of_protocol(payload.protocol).filter(|_| payload.layers.0 & IP != 0)?;
    (!payload.layers.has(Layer::Fragment)).then_some((kind, payload.start, payload.end))
}

/// Either version of IP.
const IP: u32 = Layer::Ipv4 as u32 | Layer::Ipv6 as u32;

/// The level inside a tunnel. Another tunnel inside it is payload.
#[inline(always)]
fn inner_level(frame: &[u8], start: usize, inside: Inside, level: &mut Level) -> Result<(), DropReason> {
    let l3 = match inside {
        Inside::Ethernet => ethernet(frame, start, level)?,
        Inside::Ipv4 | Inside::Ipv6 => {
            level.layers.add(Layer::Present);
            level.ether_type = inside.ether_type();
            level.at[Base::L3 as usize] = start as u16;
            start
        }
    };
    let mut payload = Payload::default();
    network(frame, l3, level.ether_type, &mut payload)?;
    transport(frame, &mut payload)?;
    level.carries(&payload);
    level.reads_error(frame);
    Ok(())
}

#[inline(always)]
fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([pair[0], pair[1]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UDP_FRAME: [u8; 60] = {
        let mut frame = [0; 60];
        (frame[12], frame[14], frame[17], frame[22], frame[23]) = (8, 0x45, 46, 64, PROTOCOL_UDP);
        (frame[26], frame[29], frame[30], frame[33]) = (10, 1, 10, 2);
        (frame[37], frame[39]) = (53, 26);
        frame
    };

    proptest! {
        /// The fast path finds what the slow path finds, on frames that differ from a usual one in a few
        /// bytes.
        #[test]
        fn the_short_way_finds_what_the_long_way_finds(
            changes in prop::collection::vec((12_usize..50, any::<u8>()), 0..4),
            tcp: bool,
            length in 30_usize..=60,
        ) {
            let mut frame = UDP_FRAME;
            if tcp {
                (frame[23], frame[46]) = (PROTOCOL_TCP, 0x50);
            }
            changes.into_iter().for_each(|(at, byte)| frame[at] = byte);
            frame[17] = frame[17].min(length as u8);
            for depth in [Depth::L2, Depth::L3, Depth::L4, Depth::Inner] {
                let frame = &frame[..length];
                if let Some(headers) = usual(frame, depth, &TunnelPorts::STANDARD) {
                    let mut found = Headers::default();
                    prop_assert_eq!(walk(frame, depth, &TunnelPorts::STANDARD, &mut found), Ok(()));
                    prop_assert_eq!(found, headers);
                }
            }
        }
    }

    #[test]
    fn the_usual_way_is_taken() {
        for depth in [Depth::L3, Depth::L4, Depth::Inner] {
            assert!(usual(&UDP_FRAME, depth, &TunnelPorts::STANDARD).is_some(), "{depth:?}");
        }
    }
}
