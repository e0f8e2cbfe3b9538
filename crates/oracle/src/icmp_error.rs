//! The interpreter's own parsing of the packet inside an ICMP error: RFC 792 for IPv4, RFC 4443 §3 for IPv6;
//! and what happens to it when its flow is translated: RFC 5508 §4.2.

use super::action::Done;
use super::bytes::{Fragment, Headers, Ip, Transport, TransportKind, number16};
use super::checksum::{mend, mend_icmp};
use super::fields::{self, Facts, FieldLocation, place, read_bits};
use super::packet::Packet;
use super::trace::{Change, Mended};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_packet::{DropReason, Field, FieldKind, FlowKey, LevelId};

/// Returns the key of the flow that an ICMP error is about, reversed; `None` if the packet is not an ICMP
/// error, or if it contains too little of a packet.
pub(super) fn key_inside(bytes: &[u8], headers: &Headers, vni: Option<u32>) -> Option<FlowKey> {
    let inside = packet_inside(bytes, headers)?;
    let ip = inside.ip.as_ref()?;
    let address = |v4: usize, v6: usize| {
        if ip.version == 4 {
            IpAddr::V4(Ipv4Addr::from_bits(read_bits(bytes, 8 * (ip.start + v4), 32) as u32))
        } else {
            IpAddr::V6(Ipv6Addr::from_bits(read_bits(bytes, 8 * (ip.start + v6), 128)))
        }
    };
    let port = |at: usize| inside.ports().and_then(|start| number16(bytes, start + at)).unwrap_or(0);
    Some(FlowKey::new(address(16, 24), address(12, 8), ip.protocol, (port(2), port(0)), vni))
}

/// Returns the headers of the packet inside an ICMP error.
pub(super) fn packet_inside(bytes: &[u8], headers: &Headers) -> Option<Headers> {
    let (ip, transport) = (headers.ip.as_ref()?, headers.transport?);
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
    // Anything after the datagram is padding.
    let start = transport.start + 8;
    let inside = bytes[..ip.end].get(start..)?;
    let ip = if ip.version == 4 { ipv4(inside) } else { ipv6(inside) }?;
    let kind = match (ip.protocol, ip.version) {
        (6, _) => Some(TransportKind::Tcp),
        (17, _) => Some(TransportKind::Udp),
        (58, 6) => Some(TransportKind::Icmpv6),
        _ => None,
    };
    let transport = kind.filter(|_| ip.fragment == Fragment::Whole);
    let has_ports = matches!(transport, Some(TransportKind::Tcp | TransportKind::Udp));
    if has_ports && inside.len() < ip.payload + 4 {
        return None;
    }
    let transport = transport.map(|kind| Transport { kind, start: start + ip.payload });
    let ip = Ip { start, payload: start + ip.payload, end: start + inside.len(), ..ip };
    Some(Headers { ip: Some(ip), transport, ..Headers::default() })
}

/// Reads the header of a packet whose length is the number of bytes present.
fn ipv4(inside: &[u8]) -> Option<Ip> {
    if inside.len() < 20 || inside[0] / 16 != 4 || inside[0] % 16 < 5 {
        return None;
    }
    let header_bytes = 4 * usize::from(inside[0] % 16);
    let more_fragments = inside[6] & 0x20 != 0;
    let fragment = match number16(inside, 6)? % 0x2000 {
        0 if !more_fragments => Fragment::Whole,
        0 => Fragment::First,
        _ => Fragment::Later,
    };
    (header_bytes <= inside.len()).then(|| ip(4, header_bytes, inside[9], fragment))
}

fn ipv6(inside: &[u8]) -> Option<Ip> {
    if inside.len() < 40 || inside[0] / 16 != 6 {
        return None;
    }
    let next_header = inside[6];
    // Hop-by-hop options, routing, fragment, authentication, destination options.
    let has_extension = [0, 43, 44, 51, 60].contains(&next_header);
    let to_many = Ipv6Addr::from_bits(read_bits(inside, 8 * 24, 128)).is_multicast();
    (!has_extension && !to_many).then(|| ip(6, 40, next_header, Fragment::Whole))
}

fn ip(version: u8, payload: usize, protocol: u8, fragment: Fragment) -> Ip {
    let (other_source, other_destination) = (false, false);
    Ip { version, start: 0, payload, end: 0, protocol, fragment, other_source, other_destination }
}

/// Where a field of the packet inside an ICMP error is; `None` for other fields.
pub(super) fn place_inside(bytes: &[u8], headers: &Headers, field: Field) -> Option<FieldLocation> {
    let of_packet = match field.kind {
        FieldKind::ErrorV4Src => Field::Ipv4Src,
        FieldKind::ErrorV4Dst => Field::Ipv4Dst,
        FieldKind::ErrorV6Src => Field::Ipv6Src,
        FieldKind::ErrorV6Dst => Field::Ipv6Dst,
        FieldKind::ErrorSport => Field::L4Sport,
        FieldKind::ErrorDport => Field::L4Dport,
        FieldKind::ErrorV4Protocol | FieldKind::ErrorV6Protocol => Field::IpProtocol,
        _ => return None,
    };
    let level = if field.level == LevelId::Outer { Some(headers) } else { headers.inner() };
    let Some(inside) = level.and_then(|level| packet_inside(bytes, level)) else {
        return Some(FieldLocation::Absent);
    };
    let is_version = |version| inside.ip.as_ref().is_some_and(|ip| ip.version == version);
    Some(match field.kind {
        FieldKind::ErrorV4Protocol if !is_version(4) => FieldLocation::Absent,
        FieldKind::ErrorV6Protocol if !is_version(6) => FieldLocation::Absent,
        _ => place(of_packet, &inside, Facts { input: 0, color: 0 }),
    })
}

/// The field at the other end of a packet.
fn opposite(field: Field) -> Option<(Field, bool)> {
    let is_address = matches!(
        field.kind,
        FieldKind::Ipv4Src | FieldKind::Ipv4Dst | FieldKind::Ipv6Src | FieldKind::Ipv6Dst
    );
    let other = match field {
        Field::Ipv4Src => Field::Ipv4Dst,
        Field::Ipv4Dst => Field::Ipv4Src,
        Field::Ipv6Src => Field::Ipv6Dst,
        Field::Ipv6Dst => Field::Ipv6Src,
        Field::L4Sport => Field::L4Dport,
        Field::L4Dport => Field::L4Sport,
        Field::TcpSport => Field::TcpDport,
        Field::TcpDport => Field::TcpSport,
        Field::UdpSport => Field::UdpDport,
        Field::UdpDport => Field::UdpSport,
        _ => return None,
    };
    (field.level == LevelId::Outer).then_some((other, is_address))
}

/// Sets a field of an ICMP error as a pipe that translates the error's flow does: sentence A20. `None` if the
/// packet is not such an error, or the field does not matter.
pub(super) fn translate(packet: &mut Packet, field: Field, value: u128) -> Option<Done> {
    let (other, is_address) = opposite(field)?;
    let inside = packet_inside(&packet.bytes, &packet.headers)?;
    let FieldLocation::Bits { first, count } = place(other, &inside, Facts { input: 0, color: 0 }) else {
        return (!is_address).then_some(Err(DropReason::NotApplicable));
    };
    let mut mended = Vec::new();
    let mut before = read_bits(&packet.bytes, first, count);
    if is_address {
        before = packet.read(field)?;
        match packet.write(field, value) {
            Ok(outer) => mended = outer,
            Err(reason) => return Some(Err(reason)),
        }
    }
    let old = packet.bytes.clone();
    fields::write_bits(&mut packet.bytes, first, count, value);
    for Mended { name, before, after } in mend(&old, &mut packet.bytes, &inside, other) {
        mended.push(Mended { name: if name == "ipv4" { "inside ipv4" } else { "inside l4" }, before, after });
    }
    mended.push(mend_icmp(&old, &mut packet.bytes, &packet.headers)?);
    Some(Ok((Change::Field { field, before, after: value }, mended)))
}
