//! The interpreter's own parser, written to be read side by side with the RFCs: one function for each header,
//! one struct for each result. The headers inside a tunnel are found by the same functions as those around
//! it.

use super::fields::read_bits;
use super::tunnel_headers::{Inside, ParsedTunnel, tunnel};
use std::net::{Ipv4Addr, Ipv6Addr};
use weir_packet::{Depth, DropReason, TunnelPorts};

/// The headers of a frame, or of a packet inside a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Headers {
    /// Where the Ethernet header starts.
    pub ethernet: Option<usize>,
    /// Where the VLAN tags start (each begins with its TPID); two at most.
    pub tags: Vec<usize>,
    /// EtherType after the tags.
    pub ether_type: u16,
    /// Where an ARP packet starts.
    pub arp: Option<usize>,
    /// IPv4 or IPv6.
    pub ip: Option<Ip>,
    /// The header that follows IP, unless the packet is a fragment.
    pub transport: Option<Transport>,
    /// The tunnel inside UDP or IP, if there is one.
    pub tunnel: Option<ParsedTunnel>,
}

/// An IP header with its options or extension headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ip {
    pub version: u8,
    pub start: usize,
    /// First byte after the header with its options or extension headers.
    pub payload: usize,
    /// First byte beyond the length given in the header.
    pub end: usize,
    pub protocol: u8,
    pub fragment: Fragment,
    /// Whether the pseudo header of a checksum has a different source, or a different destination, than the
    /// header.
    pub other_source: bool,
    pub other_destination: bool,
}

/// Which part of a datagram a fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fragment {
    Whole,
    First,
    Later,
}

/// A TCP, UDP or ICMP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transport {
    pub kind: TransportKind,
    pub start: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransportKind {
    Tcp,
    Udp,
    Icmp,
    Icmpv6,
}

/// The 16-bit number at an offset; `None` beyond the end.
pub(super) fn number16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from(*bytes.get(at)?) << 8 | u16::from(*bytes.get(at + 1)?))
}

/// Finds the headers of a frame.
pub(super) fn headers(frame: &[u8], depth: Depth, ports: &TunnelPorts) -> Result<Headers, DropReason> {
    let (mut found, network) = ethernet(frame, 0)?;
    if depth >= Depth::L3 {
        found.ip = ip(frame, found.ether_type, network)?;
        found.arp = if found.ether_type == 0x0806 { arp(frame, network)? } else { None };
    }
    if depth >= Depth::L4 {
        found.transport = found.ip.as_ref().map_or(Ok(None), |ip| transport(frame, ip))?;
    }
    if depth >= Depth::Inner {
        found.tunnel = tunnel(frame, &found, ports)?;
    }
    Ok(found)
}

/// The headers inside a tunnel. A tunnel within them is payload.
pub(super) fn inner_headers(frame: &[u8], at: usize, inside: Inside) -> Result<Option<Headers>, DropReason> {
    let packet = |ether_type| (Headers { ether_type, ..Headers::default() }, at);
    let (mut found, network) = match inside {
        Inside::Ethernet => ethernet(frame, at)?,
        Inside::Ipv4 => packet(0x0800),
        Inside::Ipv6 => packet(0x86dd),
        Inside::Unread => return Ok(None),
    };
    found.ip = ip(frame, found.ether_type, network)?;
    found.arp = if found.ether_type == 0x0806 { arp(frame, network)? } else { None };
    found.transport = found.ip.as_ref().map_or(Ok(None), |ip| transport(frame, ip))?;
    Ok(Some(found))
}

impl Headers {
    pub fn ipv4(&self) -> Option<&Ip> {
        self.ip.as_ref().filter(|ip| ip.version == 4)
    }

    pub fn ipv6(&self) -> Option<&Ip> {
        self.ip.as_ref().filter(|ip| ip.version == 6)
    }

    /// Where the transport header is, if it is of this kind.
    pub fn transport_of(&self, kind: TransportKind) -> Option<usize> {
        self.transport.filter(|transport| transport.kind == kind).map(|transport| transport.start)
    }

    /// Where the transport header is, if it has ports.
    pub fn ports(&self) -> Option<usize> {
        self.transport_of(TransportKind::Tcp).or(self.transport_of(TransportKind::Udp))
    }

    pub fn inner(&self) -> Option<&Headers> {
        self.tunnel.as_ref()?.inner.as_deref()
    }
}

/// IEEE 802.3, 802.1Q and 802.1ad. Also returns the first byte after Ethernet and VLAN tags.
fn ethernet(frame: &[u8], start: usize) -> Result<(Headers, usize), DropReason> {
    let mut found = Headers { ethernet: Some(start), ..Headers::default() };
    let mut type_at = start + 12;
    found.ether_type = number16(frame, type_at).ok_or(DropReason::MalformedEthernet)?;
    while (found.ether_type == 0x8100 || found.ether_type == 0x88a8) && found.tags.len() < 2 {
        found.tags.push(type_at);
        type_at += 4;
        found.ether_type = number16(frame, type_at).ok_or(DropReason::MalformedEthernet)?;
    }
    Ok((found, type_at + 2))
}

/// The IP header of the version given by the EtherType.
fn ip(frame: &[u8], ether_type: u16, start: usize) -> Result<Option<Ip>, DropReason> {
    match ether_type {
        0x0800 => ipv4(frame, start).map(Some),
        0x86dd => ipv6(frame, start).map(Some),
        _ => Ok(None),
    }
}

/// RFC 826: hardware Ethernet (1), protocol IPv4 (0x0800), addresses of 6 and 4 bytes. ARP with other
/// addresses is not parsed.
fn arp(frame: &[u8], start: usize) -> Result<Option<usize>, DropReason> {
    let malformed = Err(DropReason::MalformedArp);
    if frame.len() < start + 8 {
        return malformed;
    }
    let ipv4_over_ethernet = number16(frame, start) == Some(1)
        && number16(frame, start + 2) == Some(0x0800)
        && frame[start + 4] == 6
        && frame[start + 5] == 4;
    match ipv4_over_ethernet {
        false => Ok(None),
        true if frame.len() < start + 28 => malformed,
        true => Ok(Some(start)),
    }
}

/// RFC 791 §3.1.
fn ipv4(frame: &[u8], start: usize) -> Result<Ip, DropReason> {
    let malformed = DropReason::MalformedIpv4;
    if frame.len() < start + 20 {
        return Err(malformed);
    }
    let version = frame[start] / 16;
    let header = 4 * usize::from(frame[start] % 16);
    let total = usize::from(number16(frame, start + 2).ok_or(malformed)?);
    if version == 4 && header >= 20 && total == 0 {
        return Err(DropReason::Ipv4LengthZero);
    }
    if version != 4 || header < 20 || total < header || start + total > frame.len() {
        return Err(malformed);
    }
    let [source, destination] = [start + 12, start + 16]
        .map(|at| Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]));
    let to_many = destination.is_multicast() || destination.is_broadcast();
    if source.is_multicast() || source.is_broadcast() || source.is_unspecified() && !to_many {
        return Err(malformed);
    }
    let flags_and_offset = number16(frame, start + 6).ok_or(malformed)?;
    let more = flags_and_offset & 0x2000 != 0;
    let offset = flags_and_offset & 0x1fff;
    Ok(Ip {
        version,
        start,
        payload: start + header,
        end: start + total,
        protocol: frame[start + 9],
        fragment: Fragment::of(more, offset),
        other_source: false,
        other_destination: false,
    })
}

impl Fragment {
    fn of(more: bool, offset: u16) -> Fragment {
        match (offset, more) {
            (0, false) => Fragment::Whole,
            (0, true) => Fragment::First,
            _ => Fragment::Later,
        }
    }
}

/// RFC 8200 §3; extension headers §4, Authentication Header RFC 4302 §2.
fn ipv6(frame: &[u8], start: usize) -> Result<Ip, DropReason> {
    let malformed = DropReason::MalformedIpv6;
    if frame.len() < start + 40 {
        return Err(malformed);
    }
    let end = start + 40 + usize::from(number16(frame, start + 4).ok_or(malformed)?);
    if frame[start] / 16 != 6 || end > frame.len() {
        return Err(malformed);
    }
    let source = Ipv6Addr::from_bits(read_bits(frame, 8 * (start + 8), 128));
    let destination = Ipv6Addr::from_bits(read_bits(frame, 8 * (start + 24), 128));
    if source.is_multicast() || source.is_unspecified() && !destination.is_multicast() {
        return Err(malformed);
    }
    let protocol = frame[start + 6];
    let mut ip = Ip {
        version: 6,
        start,
        payload: start + 40,
        end,
        protocol,
        fragment: Fragment::Whole,
        other_source: false,
        other_destination: false,
    };
    let mut followed = 0;
    while is_extension(ip.protocol) && ip.fragment == Fragment::Whole {
        if followed == 8 {
            return Err(DropReason::TooManyExtensionHeaders);
        }
        follow_extension(frame, &mut ip)?;
        followed += 1;
    }
    Ok(ip)
}

/// Hop-by-hop options, routing, fragment, authentication, destination options.
fn is_extension(protocol: u8) -> bool {
    [0, 43, 44, 51, 60].contains(&protocol)
}

fn follow_extension(frame: &[u8], ip: &mut Ip) -> Result<(), DropReason> {
    let at = ip.payload;
    if at + 8 > ip.end {
        return Err(DropReason::MalformedIpv6);
    }
    let units = usize::from(frame[at + 1]);
    let length = match ip.protocol {
        44 => 8,
        51 => 4 * (units + 2),
        _ => 8 * (units + 1),
    };
    if at + length > ip.end {
        return Err(DropReason::MalformedIpv6);
    }
    if ip.protocol == 44 {
        let offset_and_flags = number16(frame, at + 2).ok_or(DropReason::MalformedIpv6)?;
        ip.fragment = Fragment::of(offset_and_flags & 1 != 0, offset_and_flags >> 3);
    }
    match ip.protocol {
        // RFC 8200 §4.4, §8.1: segments left mean that the packet is not yet at its final destination.
        43 => ip.other_destination |= frame[at + 3] != 0,
        60 => ip.other_source |= home_address(&frame[at..at + length]).is_some(),
        _ => {}
    }
    ip.protocol = frame[at];
    ip.payload = at + length;
    Ok(())
}

/// RFC 6275 §6.3: type 201, length 16, the address. RFC 8200 §4.2: options are type, length and data,
/// except for type 0, which is one byte.
fn home_address(header: &[u8]) -> Option<&[u8]> {
    let mut at = 2;
    while at + 1 < header.len() {
        let data = at + 2..at + 2 + usize::from(header[at + 1]);
        at = match header[at] {
            0 => at + 1,
            201 if data.len() == 16 && data.end <= header.len() => return Some(&header[data]),
            _ => data.end,
        };
    }
    None
}

/// The header after IP; a fragment has none.
fn transport(frame: &[u8], ip: &Ip) -> Result<Option<Transport>, DropReason> {
    if ip.fragment != Fragment::Whole {
        return Ok(None);
    }
    let start = ip.payload;
    let room = ip.end - start;
    let kind = match (ip.protocol, ip.version) {
        (6, _) => {
            // RFC 9293 §3.1: the data offset counts words of 32 bits and includes the header.
            if room < 20 || frame[start + 12] / 16 < 5 || 4 * usize::from(frame[start + 12] / 16) > room {
                return Err(DropReason::MalformedTcp);
            }
            TransportKind::Tcp
        }
        (17, _) => {
            // RFC 768: the length includes the header. IP may carry more than UDP says, but never less.
            let length = if room < 8 { None } else { number16(frame, start + 4).map(usize::from) };
            if !length.is_some_and(|length| length >= 8 && length <= room) {
                return Err(DropReason::MalformedUdp);
            }
            TransportKind::Udp
        }
        (1, 4) | (58, 6) => {
            if room < 8 {
                return Err(DropReason::MalformedIcmp);
            }
            if ip.version == 4 { TransportKind::Icmp } else { TransportKind::Icmpv6 }
        }
        _ => return Ok(None),
    };
    Ok(Some(Transport { kind, start }))
}
