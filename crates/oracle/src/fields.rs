//! The places of fields, defined a second time: bit offsets into a header, as the RFCs draw them.

use super::bytes::{Fragment, Headers, TransportKind};
use weir_packet::{Field, FieldKind, LevelId};

/// Where the value of a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldLocation {
    /// Nowhere: the packet does not have the field.
    Absent,
    /// In the frame: the first bit, counted from the start of the frame, and the number of bits.
    Bits { first: usize, count: usize },
    /// Known from elsewhere: this value.
    Fact(u128),
    /// In this word of metadata.
    Meta(usize),
    /// The field is a port of the datagram that the packet is a fragment of: 0 for the source, 1 for the
    /// destination.
    Port(usize),
}

/// A property of a packet that is not in its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub input: u16,
    pub color: u8,
}

/// Where `field` is.
pub(super) fn place(field: Field, headers: &Headers, facts: Facts) -> FieldLocation {
    match field.kind {
        FieldKind::InputPort => return FieldLocation::Fact(u128::from(facts.input)),
        FieldKind::MeterColor => return FieldLocation::Fact(u128::from(facts.color)),
        FieldKind::Meta0 => return FieldLocation::Meta(0),
        FieldKind::Meta1 => return FieldLocation::Meta(1),
        FieldKind::Meta2 => return FieldLocation::Meta(2),
        FieldKind::Meta3 => return FieldLocation::Meta(3),
        _ => {}
    }
    if field.kind == FieldKind::TunnelId || field.spec().tunnel.is_some() {
        return tunnel_place(field, headers);
    }
    let level = match field.level {
        LevelId::Outer => Some(headers),
        LevelId::Inner => headers.inner(),
    };
    level.map_or(FieldLocation::Absent, |level| level_place(field, level))
}

/// Where the id of the tunnel is, for any kind or for one.
fn tunnel_place(field: Field, headers: &Headers) -> FieldLocation {
    let kind = field.spec().tunnel;
    let tunnel = headers.tunnel.as_ref().filter(|tunnel| kind.is_none_or(|kind| kind == tunnel.kind));
    match tunnel.map(|tunnel| tunnel.id) {
        Some(Some((first, count))) => FieldLocation::Bits { first, count },
        // A tunnel without an id has the id 0, but no VNI and no key.
        Some(None) if kind.is_none() => FieldLocation::Fact(0),
        _ => FieldLocation::Absent,
    }
}

/// Bits of a header, if the packet has that header.
fn bits(field: Field, header: Option<usize>, first: usize) -> FieldLocation {
    header.map_or(FieldLocation::Absent, |start| FieldLocation::Bits {
        first: 8 * start + first,
        count: width(field),
    })
}

fn level_place(field: Field, headers: &Headers) -> FieldLocation {
    use TransportKind::{Icmp, Icmpv6, Tcp, Udp};
    let ethernet = headers.ethernet;
    let tag = |number: usize| headers.tags.get(number).copied();
    let ipv4 = headers.ipv4().map(|ip| ip.start);
    let ipv6 = headers.ipv6().map(|ip| ip.start);
    let ip = headers.ip.as_ref();
    let of = |kind| headers.transport_of(kind);
    let bits = |header: Option<usize>, first: usize| bits(field, header, first);
    match field.kind {
        FieldKind::EthDst => bits(ethernet, 0),
        FieldKind::EthSrc => bits(ethernet, 48),
        FieldKind::EthType => {
            ethernet.map_or(FieldLocation::Absent, |_| FieldLocation::Fact(u128::from(headers.ether_type)))
        }
        // A tag: TPID 16, PCP 3, DEI 1, VID 12.
        FieldKind::VlanPcp => bits(tag(0), 16),
        FieldKind::VlanVid => bits(tag(0), 20),
        FieldKind::SecondVlanPcp => bits(tag(1), 16),
        FieldKind::SecondVlanVid => bits(tag(1), 20),
        // RFC 826: hardware 16, protocol 16, lengths 8 and 8, operation 16, sender 48 and 32, target 48 and
        // 32.
        FieldKind::ArpOperation => bits(headers.arp, 48),
        FieldKind::ArpSenderIp => bits(headers.arp, 112),
        FieldKind::ArpTargetIp => bits(headers.arp, 192),
        FieldKind::IpVersion => FieldLocation::Fact(ip.map_or(0, |ip| u128::from(ip.version))),
        FieldKind::IpProtocol => FieldLocation::Fact(ip.map_or(0, |ip| u128::from(ip.protocol))),
        FieldKind::IpFragment => {
            FieldLocation::Fact(ip.map_or(0, |ip| u128::from(ip.fragment != Fragment::Whole)))
        }
        // RFC 791 §3.1: version 4, IHL 4, DSCP 6, ECN 2, length 16, identification 16, flags 3, offset 13,
        // TTL 8, protocol 8, checksum 16, source 32, destination 32.
        FieldKind::Ipv4Dscp => bits(ipv4, 8),
        FieldKind::Ipv4Ecn => bits(ipv4, 14),
        FieldKind::Ipv4Identification => bits(ipv4, 32),
        FieldKind::Ipv4Ttl => bits(ipv4, 64),
        FieldKind::Ipv4Src => bits(ipv4, 96),
        FieldKind::Ipv4Dst => bits(ipv4, 128),
        // RFC 8200 §3: version 4, class 8, label 20, length 16, next 8, hop limit 8, source 128, destination
        // 128.
        FieldKind::Ipv6TrafficClass => bits(ipv6, 4),
        FieldKind::Ipv6FlowLabel => bits(ipv6, 12),
        FieldKind::Ipv6HopLimit => bits(ipv6, 56),
        FieldKind::Ipv6Src => bits(ipv6, 64),
        FieldKind::Ipv6Dst => bits(ipv6, 192),
        FieldKind::L4Sport => bits(headers.ports(), 0),
        FieldKind::L4Dport => bits(headers.ports(), 16),
        FieldKind::TcpSport => bits(of(Tcp), 0),
        FieldKind::TcpDport => bits(of(Tcp), 16),
        // RFC 9293 §3.1: ports 32, sequence 32, acknowledgement 32, offset 4, reserved 4, flags 8.
        FieldKind::TcpFlags => bits(of(Tcp), 104),
        FieldKind::UdpSport => bits(of(Udp), 0),
        FieldKind::UdpDport => bits(of(Udp), 16),
        FieldKind::IcmpType => bits(of(Icmp), 0),
        FieldKind::IcmpCode => bits(of(Icmp), 8),
        FieldKind::Icmpv6Type => bits(of(Icmpv6), 0),
        FieldKind::Icmpv6Code => bits(of(Icmpv6), 8),
        _ => unreachable!("{field} is not at a level"),
    }
}

/// The width of a field in bits.
pub(super) fn width(field: Field) -> usize {
    match field.kind {
        FieldKind::IpFragment => 1,
        FieldKind::Ipv4Ecn | FieldKind::MeterColor => 2,
        FieldKind::VlanPcp | FieldKind::SecondVlanPcp => 3,
        FieldKind::IpVersion => 4,
        FieldKind::Ipv4Dscp => 6,
        FieldKind::IpProtocol
        | FieldKind::Ipv4Ttl
        | FieldKind::Ipv6TrafficClass
        | FieldKind::Ipv6HopLimit
        | FieldKind::TcpFlags
        | FieldKind::ErrorV4Protocol
        | FieldKind::ErrorV6Protocol => 8,
        FieldKind::IcmpType | FieldKind::IcmpCode | FieldKind::Icmpv6Type | FieldKind::Icmpv6Code => 8,
        FieldKind::VlanVid | FieldKind::SecondVlanVid => 12,
        FieldKind::EthType
        | FieldKind::ArpOperation
        | FieldKind::Ipv4Identification
        | FieldKind::InputPort => 16,
        FieldKind::L4Sport
        | FieldKind::L4Dport
        | FieldKind::TcpSport
        | FieldKind::TcpDport
        | FieldKind::UdpSport
        | FieldKind::UdpDport
        | FieldKind::ErrorSport
        | FieldKind::ErrorDport => 16,
        FieldKind::Ipv6FlowLabel => 20,
        FieldKind::TunnelId => 32,
        FieldKind::ArpSenderIp | FieldKind::ArpTargetIp | FieldKind::Ipv4Src | FieldKind::Ipv4Dst => 32,
        FieldKind::ErrorV4Src | FieldKind::ErrorV4Dst => 32,
        FieldKind::Meta0 | FieldKind::Meta1 | FieldKind::Meta2 | FieldKind::Meta3 => 32,
        FieldKind::EthDst | FieldKind::EthSrc => 48,
        FieldKind::Ipv6Src | FieldKind::Ipv6Dst | FieldKind::ErrorV6Src | FieldKind::ErrorV6Dst => 128,
        // VNIs and keys.
        _ => field.spec().tunnel.and_then(|kind| kind.spec().id).map_or(0, |(_, bits)| usize::from(bits)),
    }
}

/// The number formed by some bits, the first of which is the highest.
pub(super) fn read_bits(frame: &[u8], first: usize, count: usize) -> u128 {
    (first..first + count).fold(0, |number, bit| {
        let one = frame[bit / 8] >> (7 - bit % 8) & 1;
        number << 1 | u128::from(one)
    })
}

/// Writes the low `count` bits of a number.
pub(super) fn write_bits(frame: &mut [u8], first: usize, count: usize, number: u128) {
    for position in 0..count {
        let bit = first + position;
        let one = (number >> (count - 1 - position) & 1) as u8;
        let mask = 1 << (7 - bit % 8);
        if one == 1 {
            frame[bit / 8] |= mask;
        } else {
            frame[bit / 8] &= !mask;
        }
    }
}

/// A number of `bits` one bits.
pub(super) fn ones(bits: usize) -> u128 {
    if bits >= 128 { u128::MAX } else { (1 << bits) - 1 }
}
