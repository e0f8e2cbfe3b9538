//! Encapsulation and decapsulation, implemented a second time, header by header as the RFCs draw them.

use super::action::{Done, Values};
use super::bytes::Ip;
use super::checksum::mend_header;
use super::fields::{read_bits, write_bits};
use super::packet::Packet;
use super::trace::{Change, Mended};
use super::tunnel_headers::{Inside, critical_options, protocol, tunnel_header};
use std::net::Ipv4Addr;
use weir_packet::{DropReason, KeySource, TunnelKind};
use weir_program::{Encap, Program};

/// Removes the outer headers.
pub(super) fn decap(packet: &mut Packet, kind: TunnelKind) -> Done {
    let tunnel = packet.headers.tunnel.clone().filter(|tunnel| tunnel.kind == kind);
    let tunnel = tunnel.ok_or(DropReason::NotApplicable)?;
    let inner = tunnel.inner.ok_or(DropReason::NotApplicable)?;
    let outer = packet.headers.ip.clone().ok_or(DropReason::NotApplicable)?;
    let start = inner.ethernet.or(inner.ip.as_ref().map(|ip| ip.start)).ok_or(DropReason::NotApplicable)?;
    if kind == TunnelKind::Geneve {
        critical_options(&packet.bytes[tunnel.start + 8..start])?;
    }
    let mended = inner.ip.as_ref().map_or(Ok(None), |inner| hand_on_congestion(packet, &outer, inner))?;
    packet.bytes.truncate(tunnel.end);
    // An IP packet gets the Ethernet header from in front of the outer headers, with its own EtherType.
    let link = if inner.ethernet.is_some() { Vec::new() } else { packet.bytes[..outer.start].to_vec() };
    let removed = start - link.len();
    packet.take_front(removed);
    packet.bytes[..link.len()].copy_from_slice(&link);
    if inner.ethernet.is_none() {
        packet.bytes[link.len() - 2..link.len()].copy_from_slice(&inner.ether_type.to_be_bytes());
    }
    Ok((Change::Removed(removed), mended.into_iter().collect()))
}

/// Sets the ECN field of the inner IP header from both headers; returns the checksum that this updates, if
/// any.
fn hand_on_congestion(packet: &mut Packet, outer: &Ip, inner: &Ip) -> Result<Option<Mended>, DropReason> {
    let before = packet.bytes.clone();
    let (old, outer) = (class(&before, inner) % 4, class(&before, outer) % 4);
    let new = decapsulated_ecn(old, outer).ok_or(DropReason::EcnCeNotEct)?;
    if new == old {
        return Ok(None);
    }
    write_bits(&mut packet.bytes, class_bits(inner) + 6, 2, u128::from(new));
    Ok((inner.version == 4).then(|| mend_header(&before, &mut packet.bytes, inner, "inner ipv4")))
}

/// Adds the outer headers, innermost first.
pub(super) fn encap(
    packet: &mut Packet,
    encap: &Encap,
    values: &mut Values<'_>,
    (program, hops): (&Program, Option<[u32; 2]>),
) -> Done {
    let [eth_dst, eth_src, src] = [encap.eth_dst, encap.eth_src, encap.src].map(|value| values.get(value));
    let src_bits = encap.src_bits.map_or(0, |value| values.get(value));
    let dst = values.get(encap.dst);
    let id = encap.id.map(|value| values.get(value) as u32);
    let ttl = values.get(encap.ttl) as u8;
    let hash = packet.select_hash(KeySource::Outer, program.select_seed);
    let src = spread(src, src_bits.min(if encap.ipv6 { 64 } else { 24 }) as u32, hash);
    let sport = encap.sport.map_or(49152 + (hash >> 50) as u16, |value| values.get(value) as u16);
    let class = packet.headers.ip.as_ref().map_or(0, |ip| class(&packet.bytes, ip));
    let carried = if encap.ethernet { Inside::Ethernet } else { only_ip(packet)? };

    // In GUE variant 1 the packet stands alone, and its first bits say which IP version it is.
    let mut front = if encap.bare { Vec::new() } else { tunnel_header(encap.kind, id, carried) };
    let second_chance = hops.map(|hops| say_second_chance(&mut front, hops, dst as u32));
    let protocol = protocol(encap.kind, carried);
    if protocol == 17 {
        // RFC 768: ports, length, checksum.
        let length = 8 + front.len() + packet.bytes.len();
        let length = u16::try_from(length).map_err(|_| DropReason::Oversize)?;
        let mut udp = Vec::new();
        udp.extend(sport.to_be_bytes());
        udp.extend(program.tunnels.of(encap.kind).to_be_bytes());
        udp.extend(length.to_be_bytes());
        udp.extend([0, 0]);
        front.splice(..0, udp);
        if encap.udp_checksum {
            let addresses = if encap.ipv6 { (src, dst) } else { (src & 0xffff_ffff, dst & 0xffff_ffff) };
            let sum = udp_checksum(addresses, &front, &packet.bytes);
            front[6..8].copy_from_slice(&sum.to_be_bytes());
        }
    }
    let length = front.len() + packet.bytes.len();
    let outer_class = encap.dscp.unwrap_or(class / 4) * 4 + class % 4;
    let ip = match encap.ipv6 {
        true => outer_ipv6(length, (outer_class, flow_label(hash)), ttl, protocol, (src, dst))?,
        false => outer_ipv4(length, outer_class, ttl, protocol, (src as u32, dst as u32))?,
    };
    front.splice(..0, ip);
    let mut ethernet = Vec::new();
    ethernet.extend(&eth_dst.to_be_bytes()[10..]);
    ethernet.extend(&eth_src.to_be_bytes()[10..]);
    ethernet.extend(if encap.ipv6 { [0x86, 0xdd] } else { [0x08, 0x00] });
    front.splice(..0, ethernet);
    packet.put_front(&front)?;
    let change = match second_chance {
        Some(hop) => Change::AddedWithSecondChance(front.len(), hop),
        None => Change::Added(front.len()),
    };
    Ok((change, Vec::new()))
}

/// Puts the GLB director's private data after a GUE header: type 0 (16 bits), index of the next hop (8),
/// number of hops (8), and the address of each. The hop is the back end of the row that the packet does not
/// go to, or the first one if it goes to neither; if there is none, it is the packet's destination, because
/// the director's iptables module drops packets without a hop. Returns the other back end.
fn say_second_chance(gue: &mut Vec<u8>, [first, second]: [u32; 2], to: u32) -> Option<Ipv4Addr> {
    let hop = if to == first { second } else { first };
    // The length in the header is that of everything after its first word.
    gue[0] += 2;
    gue.extend([0, 0, 0, 1]);
    gue.extend((if hop == 0 { to } else { hop }).to_be_bytes());
    (hop != 0).then(|| hop.into())
}

/// Reduces the frame to its IP packet, without Ethernet header, tags and padding.
fn only_ip(packet: &mut Packet) -> Result<Inside, DropReason> {
    let ip = packet.headers.ip.clone().ok_or(DropReason::NotApplicable)?;
    packet.bytes.truncate(ip.end);
    packet.take_front(ip.start);
    Ok(if ip.version == 4 { Inside::Ipv4 } else { Inside::Ipv6 })
}

/// RFC 791 §3.1: version 4, five words, class, identification 0, Don't Fragment.
fn outer_ipv4(
    length: usize,
    class: u8,
    ttl: u8,
    protocol: u8,
    (src, dst): (u32, u32),
) -> Result<Vec<u8>, DropReason> {
    let length = u16::try_from(20 + length).map_err(|_| DropReason::Oversize)?;
    let mut header = vec![0x45, class];
    header.extend(length.to_be_bytes());
    header.extend([0, 0, 0x40, 0, ttl, protocol, 0, 0]);
    header.extend(src.to_be_bytes());
    header.extend(dst.to_be_bytes());
    let checksum = !sum(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    Ok(header)
}

/// Replaces the low bits of a source address by a number other than 0 and all ones. The hash with its halves
/// swapped, as a fraction of 2^64, selects the number.
fn spread(src: u128, bits: u32, hash: u64) -> u128 {
    if bits < 2 {
        return src;
    }
    let numbers = (1 << bits) - 2;
    let exchanged = (hash & 0xffff_ffff) << 32 | hash >> 32;
    (src >> bits << bits) + 1 + ((u128::from(exchanged) * numbers) >> 64)
}

/// RFC 6437 §3: 20 bits of the hash, but not 0, which means that there is no label.
fn flow_label(hash: u64) -> u32 {
    match hash % (1 << 20) {
        0 => 1,
        label => label as u32,
    }
}

/// RFC 8200 §3: version 6, class, flow label.
fn outer_ipv6(
    length: usize,
    (class, label): (u8, u32),
    ttl: u8,
    next: u8,
    (src, dst): (u128, u128),
) -> Result<Vec<u8>, DropReason> {
    let length = u16::try_from(length).map_err(|_| DropReason::Oversize)?;
    let mut header = (0x6000_0000 | u32::from(class) << 20 | label).to_be_bytes().to_vec();
    header.extend(length.to_be_bytes());
    header.extend([next, ttl]);
    header.extend(src.to_be_bytes());
    header.extend(dst.to_be_bytes());
    Ok(header)
}

/// RFC 768, RFC 8200 §8.1: addresses, protocol and length, then the datagram; 0 is written as 0xffff.
fn udp_checksum((src, dst): (u128, u128), headers: &[u8], payload: &[u8]) -> u16 {
    let mut covered = Vec::new();
    covered.extend(src.to_be_bytes());
    covered.extend(dst.to_be_bytes());
    covered.extend((headers.len() as u32 + payload.len() as u32).to_be_bytes());
    covered.extend([0, 0, 0, 17]);
    covered.extend(headers);
    covered.extend(payload);
    match !sum(&covered) {
        0 => 0xffff,
        checksum => checksum,
    }
}

/// One's complement sum of 16-bit words (RFC 1071 §1). An odd last byte is the upper half of a word.
fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The byte with DSCP and ECN of an IP header.
fn class(frame: &[u8], ip: &Ip) -> u8 {
    read_bits(frame, class_bits(ip), 8) as u8
}

/// Bit offset of DSCP and ECN: after version and IHL (RFC 791 §3.1), or after the version (RFC 8200 §3).
fn class_bits(ip: &Ip) -> usize {
    8 * ip.start + if ip.version == 4 { 8 } else { 4 }
}

/// RFC 6040 §4.2, the table for normal mode line by line; `None` means drop.
fn decapsulated_ecn(inner: u8, outer: u8) -> Option<u8> {
    const NOT_ECT: u8 = 0b00;
    const ECT_1: u8 = 0b01;
    const ECT_0: u8 = 0b10;
    const CE: u8 = 0b11;
    const TABLE: [(u8, [Option<u8>; 4]); 4] = [
        // Outer:  Not-ECT       ECT(0)         ECT(1)         CE
        (NOT_ECT, [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None]),
        (ECT_0, [Some(ECT_0), Some(ECT_0), Some(ECT_1), Some(CE)]),
        (ECT_1, [Some(ECT_1), Some(ECT_1), Some(ECT_1), Some(CE)]),
        (CE, [Some(CE), Some(CE), Some(CE), Some(CE)]),
    ];
    let column = [NOT_ECT, ECT_0, ECT_1, CE].iter().position(|one| *one == outer)?;
    TABLE.iter().find(|(one, _)| *one == inner).and_then(|(_, line)| line[column])
}
