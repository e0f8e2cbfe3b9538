//! Actions, one operation at a time, each on the bytes as the one before left them.

use super::fields::{ones, width};
use super::packet::Packet;
use super::trace::{Change, Mended, Performed};
use crate::program::{Encap, Operation, Template, Value};
use packet::{DropReason, Field, KeySource};

/// What came of an action: what was done, and the reason to drop the packet if something could not be.
pub(super) struct Acted {
    pub operations: Vec<Performed>,
    pub failed: Option<DropReason>,
}

/// Carries out a template with an entry's values.
pub(super) fn act(packet: &mut Packet, template: &Template, values: &[u128], seed: u64) -> Acted {
    let mut values = Values { own: values.iter() };
    let mut operations = Vec::new();
    for &operation in &template.operations {
        // Only decap and pop VLAN come before another operation that looks at headers.
        let found = if is_push(operation) && packet_was_pushed(&operations) { Ok(()) } else { packet.find_headers() };
        let done = found.and_then(|()| perform(packet, operation, &mut values, seed));
        let (change, mended, failed) = match done {
            Ok((change, mended)) => (change, mended, None),
            Err(reason) => (Change::Failed(reason), Vec::new(), Some(reason)),
        };
        operations.push(Performed { operation, change, mended });
        if failed.is_some() {
            return Acted { operations, failed };
        }
    }
    Acted { operations, failed: None }
}

fn is_push(operation: Operation) -> bool {
    matches!(operation, Operation::PushVlan { .. } | Operation::EncapVxlan(_))
}

/// Headers that were put in front are not found again until the next pipe.
fn packet_was_pushed(done: &[Performed]) -> bool {
    done.last().is_some_and(|last| is_push(last.operation))
}

/// An entry's values, used up in order.
struct Values<'a> {
    own: std::slice::Iter<'a, u128>,
}

impl Values<'_> {
    fn get(&mut self, value: Value) -> u128 {
        match value {
            Value::Const(value) => value,
            Value::PerEntry => *self.own.next().expect("an entry that fits its pipe has all values"),
        }
    }
}

type Done = Result<(Change, Vec<Mended>), DropReason>;

fn perform(packet: &mut Packet, operation: Operation, values: &mut Values<'_>, seed: u64) -> Done {
    match operation {
        Operation::DecapVxlan => decap_vxlan(packet),
        Operation::PopVlan => pop_vlan(packet),
        Operation::Set(field, value) => {
            let value = values.get(value);
            write(packet, field, value)
        }
        Operation::Add(field, value) => {
            let added = values.get(value);
            let old = packet.read(field).ok_or(DropReason::NotApplicable)?;
            write(packet, field, old.wrapping_add(added))
        }
        Operation::Copy { from, to } => {
            let value = packet.read(from).ok_or(DropReason::NotApplicable)?;
            write(packet, to, value)
        }
        Operation::DecrementTtl => decrement_ttl(packet),
        Operation::PushVlan { tpid, vid, pcp } => {
            let (vid, pcp) = (values.get(vid), values.get(pcp));
            push_vlan(packet, tpid, vid as u16, pcp as u16)
        }
        Operation::EncapVxlan(encap) => encap_vxlan(packet, &encap, values, seed),
    }
}

/// Writes the low bits of a value.
fn write(packet: &mut Packet, field: Field, value: u128) -> Done {
    let before = packet.read(field).ok_or(DropReason::NotApplicable)?;
    let after = value & ones(width(field));
    let mended = packet.write(field, after)?;
    Ok((Change::Field { field, before, after }, mended))
}

/// RFC 791 §3.2, RFC 8200 §3.
fn decrement_ttl(packet: &mut Packet) -> Done {
    let field = match &packet.headers.ip {
        Some(ip) if ip.version == 4 => Field::Ipv4Ttl,
        Some(_) => Field::Ipv6HopLimit,
        None => return Err(DropReason::NotApplicable),
    };
    match packet.read(field) {
        None => Err(DropReason::NotApplicable),
        Some(0 | 1) => Err(DropReason::TtlExpired),
        Some(ttl) => write(packet, field, ttl - 1),
    }
}

fn decap_vxlan(packet: &mut Packet) -> Done {
    let vxlan = packet.headers.vxlan.as_ref().ok_or(DropReason::NotApplicable)?;
    let (start, end) = (vxlan.inner.ethernet, vxlan.end);
    packet.bytes.truncate(end);
    packet.take_front(start);
    Ok((Change::Removed(start), Vec::new()))
}

fn pop_vlan(packet: &mut Packet) -> Done {
    if packet.headers.tags.is_empty() {
        return Err(DropReason::NotApplicable);
    }
    let addresses = packet.bytes[..12].to_vec();
    packet.bytes[4..16].copy_from_slice(&addresses);
    packet.take_front(4);
    Ok((Change::Removed(4), Vec::new()))
}

/// IEEE 802.1Q: TPID, then PCP 3, DEI 1, VID 12.
fn push_vlan(packet: &mut Packet, tpid: u16, vid: u16, pcp: u16) -> Done {
    let addresses = packet.bytes[..12].to_vec();
    packet.put_front(&[0; 4])?;
    packet.bytes[..12].copy_from_slice(&addresses);
    packet.bytes[12..14].copy_from_slice(&tpid.to_be_bytes());
    packet.bytes[14..16].copy_from_slice(&((pcp & 7) << 13 | vid & 0xfff).to_be_bytes());
    Ok((Change::Added(4), Vec::new()))
}

/// RFC 7348 §5, header by header.
fn encap_vxlan(packet: &mut Packet, encap: &Encap, values: &mut Values<'_>, seed: u64) -> Done {
    let [eth_dst, eth_src, src, dst, vni, ttl] =
        [encap.eth_dst, encap.eth_src, encap.src, encap.dst, encap.vni, encap.ttl].map(|value| values.get(value));
    let hash = packet.select_hash(KeySource::Outer, seed);
    let sport = encap.sport.map_or(49152 + (hash >> 50) as u16, |value| values.get(value) as u16);
    let udp_length = 8 + 8 + packet.bytes.len();
    let ip_length = if encap.ipv6 { udp_length } else { 20 + udp_length };
    let (Ok(udp_length), Ok(ip_length)) = (u16::try_from(udp_length), u16::try_from(ip_length)) else {
        return Err(DropReason::Oversize);
    };
    let mut front = Vec::new();
    front.extend(&eth_dst.to_be_bytes()[10..]);
    front.extend(&eth_src.to_be_bytes()[10..]);
    if encap.ipv6 {
        front.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        front.extend(ip_length.to_be_bytes());
        front.extend([17, ttl as u8]);
        front.extend(src.to_be_bytes());
        front.extend(dst.to_be_bytes());
    } else {
        front.extend([0x08, 0x00]);
        front.extend(outer_ipv4(ip_length, ttl as u8, src as u32, dst as u32));
    }
    front.extend(sport.to_be_bytes());
    front.extend(4789_u16.to_be_bytes());
    front.extend(udp_length.to_be_bytes());
    // No UDP checksum; I flag, VNI.
    front.extend([0, 0, 0x08, 0, 0, 0]);
    front.extend(&((vni as u32) << 8).to_be_bytes());
    packet.put_front(&front)?;
    Ok((Change::Added(front.len()), Vec::new()))
}

/// Version 4, five words, class 0, identification 0, DF, UDP.
fn outer_ipv4(length: u16, ttl: u8, src: u32, dst: u32) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend(length.to_be_bytes());
    header.extend([0, 0, 0x40, 0, ttl, 17, 0, 0]);
    header.extend(src.to_be_bytes());
    header.extend(dst.to_be_bytes());
    let mut sum: u32 = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let checksum = !(sum as u16);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}
