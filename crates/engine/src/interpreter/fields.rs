//! Where a field lies, written down a second time: bits counted from the start of its header, as the RFCs draw them.

use super::bytes::{Fragment, Headers, TransportKind};
use packet::Field;

/// What a field of a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The packet does not have it.
    Absent,
    /// Bits of the frame: the first one, counted from the frame's start, and how many.
    Bits { first: usize, count: usize },
    /// Something known about the packet.
    Fact(u128),
    /// A metadata word.
    Meta(usize),
}

/// What is known about a packet besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub input: u16,
    pub color: u8,
}

/// Where `field` is.
pub(super) fn place(field: Field, headers: &Headers, facts: Facts) -> Place {
    match field {
        Field::InputPort => Place::Fact(u128::from(facts.input)),
        Field::MeterColor => Place::Fact(u128::from(facts.color)),
        Field::Meta0 => Place::Meta(0),
        Field::Meta1 => Place::Meta(1),
        Field::Meta2 => Place::Meta(2),
        Field::Meta3 => Place::Meta(3),
        Field::VxlanVni => bits(field, headers.vxlan.as_ref().map(|vxlan| vxlan.start), 32),
        _ => match (outer_twin(field), headers.inner()) {
            (None, _) => outer_place(field, headers),
            (Some(twin), Some(inner)) => outer_place(twin, inner),
            (Some(_), None) => Place::Absent,
        },
    }
}

/// The field that an `inner.` one is inside VXLAN.
pub(super) fn outer_twin(field: Field) -> Option<Field> {
    Some(match field {
        Field::InnerEthDst => Field::EthDst,
        Field::InnerEthSrc => Field::EthSrc,
        Field::InnerEthType => Field::EthType,
        Field::InnerIpVersion => Field::IpVersion,
        Field::InnerIpProtocol => Field::IpProtocol,
        Field::InnerIpFragment => Field::IpFragment,
        Field::InnerIpv4Dscp => Field::Ipv4Dscp,
        Field::InnerIpv4Ttl => Field::Ipv4Ttl,
        Field::InnerIpv4Src => Field::Ipv4Src,
        Field::InnerIpv4Dst => Field::Ipv4Dst,
        Field::InnerIpv6HopLimit => Field::Ipv6HopLimit,
        Field::InnerIpv6Src => Field::Ipv6Src,
        Field::InnerIpv6Dst => Field::Ipv6Dst,
        Field::InnerL4Sport => Field::L4Sport,
        Field::InnerL4Dport => Field::L4Dport,
        Field::InnerTcpFlags => Field::TcpFlags,
        Field::InnerIcmpType => Field::IcmpType,
        _ => return None,
    })
}

/// A field's bits in a header, when there is that header.
fn bits(field: Field, header: Option<usize>, first: usize) -> Place {
    header.map_or(Place::Absent, |start| Place::Bits { first: 8 * start + first, count: width(field) })
}

fn outer_place(field: Field, headers: &Headers) -> Place {
    use TransportKind::{Icmp, Icmpv6, Tcp, Udp};
    let ethernet = Some(headers.ethernet);
    let tag = |number: usize| headers.tags.get(number).copied();
    let ipv4 = headers.ipv4().map(|ip| ip.start);
    let ipv6 = headers.ipv6().map(|ip| ip.start);
    let ip = headers.ip.as_ref();
    let of = |kind| headers.transport_of(kind);
    let bits = |header: Option<usize>, first: usize| bits(field, header, first);
    match field {
        Field::EthDst => bits(ethernet, 0),
        Field::EthSrc => bits(ethernet, 48),
        Field::EthType => Place::Fact(u128::from(headers.ether_type)),
        // A tag: TPID 16, PCP 3, DEI 1, VID 12.
        Field::VlanPcp => bits(tag(0), 16),
        Field::VlanVid => bits(tag(0), 20),
        Field::SecondVlanPcp => bits(tag(1), 16),
        Field::SecondVlanVid => bits(tag(1), 20),
        // RFC 826: hardware 16, protocol 16, lengths 8 and 8, operation 16, sender 48 and 32, target 48 and 32.
        Field::ArpOperation => bits(headers.arp, 48),
        Field::ArpSenderIp => bits(headers.arp, 112),
        Field::ArpTargetIp => bits(headers.arp, 192),
        Field::IpVersion => Place::Fact(ip.map_or(0, |ip| u128::from(ip.version))),
        Field::IpProtocol => Place::Fact(ip.map_or(0, |ip| u128::from(ip.protocol))),
        Field::IpFragment => Place::Fact(ip.map_or(0, |ip| u128::from(ip.fragment != Fragment::Whole))),
        // RFC 791 §3.1: version 4, IHL 4, DSCP 6, ECN 2, length 16, identification 16, flags 3, offset 13, TTL 8,
        // protocol 8, checksum 16, source 32, destination 32.
        Field::Ipv4Dscp => bits(ipv4, 8),
        Field::Ipv4Ecn => bits(ipv4, 14),
        Field::Ipv4Identification => bits(ipv4, 32),
        Field::Ipv4Ttl => bits(ipv4, 64),
        Field::Ipv4Src => bits(ipv4, 96),
        Field::Ipv4Dst => bits(ipv4, 128),
        // RFC 8200 §3: version 4, class 8, label 20, length 16, next 8, hop limit 8, source 128, destination 128.
        Field::Ipv6TrafficClass => bits(ipv6, 4),
        Field::Ipv6FlowLabel => bits(ipv6, 12),
        Field::Ipv6HopLimit => bits(ipv6, 56),
        Field::Ipv6Src => bits(ipv6, 64),
        Field::Ipv6Dst => bits(ipv6, 192),
        Field::L4Sport => bits(headers.ports(), 0),
        Field::L4Dport => bits(headers.ports(), 16),
        Field::TcpSport => bits(of(Tcp), 0),
        Field::TcpDport => bits(of(Tcp), 16),
        // RFC 9293 §3.1: ports 32, sequence 32, acknowledgement 32, offset 4, reserved 4, flags 8.
        Field::TcpFlags => bits(of(Tcp), 104),
        Field::UdpSport => bits(of(Udp), 0),
        Field::UdpDport => bits(of(Udp), 16),
        Field::IcmpType => bits(of(Icmp), 0),
        Field::IcmpCode => bits(of(Icmp), 8),
        Field::Icmpv6Type => bits(of(Icmpv6), 0),
        Field::Icmpv6Code => bits(of(Icmpv6), 8),
        other => unreachable!("{other} is neither an outer field nor the twin of an inner one"),
    }
}

/// How many bits a field has.
pub(super) fn width(field: Field) -> usize {
    match outer_twin(field).unwrap_or(field) {
        Field::IpFragment => 1,
        Field::Ipv4Ecn | Field::MeterColor => 2,
        Field::VlanPcp | Field::SecondVlanPcp => 3,
        Field::IpVersion => 4,
        Field::Ipv4Dscp => 6,
        Field::IpProtocol | Field::Ipv4Ttl | Field::Ipv6TrafficClass | Field::Ipv6HopLimit | Field::TcpFlags => 8,
        Field::IcmpType | Field::IcmpCode | Field::Icmpv6Type | Field::Icmpv6Code => 8,
        Field::VlanVid | Field::SecondVlanVid => 12,
        Field::EthType | Field::ArpOperation | Field::Ipv4Identification | Field::InputPort => 16,
        Field::L4Sport | Field::L4Dport | Field::TcpSport | Field::TcpDport | Field::UdpSport | Field::UdpDport => 16,
        Field::Ipv6FlowLabel => 20,
        Field::VxlanVni => 24,
        Field::ArpSenderIp | Field::ArpTargetIp | Field::Ipv4Src | Field::Ipv4Dst => 32,
        Field::Meta0 | Field::Meta1 | Field::Meta2 | Field::Meta3 => 32,
        Field::EthDst | Field::EthSrc => 48,
        Field::Ipv6Src | Field::Ipv6Dst => 128,
        other => unreachable!("{other} is the twin of an outer field"),
    }
}

/// The number that bits spell, first bit highest.
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

/// All ones of a width.
pub(super) fn ones(bits: usize) -> u128 {
    if bits >= 128 { u128::MAX } else { (1 << bits) - 1 }
}
