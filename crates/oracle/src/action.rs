//! Actions: one operation at a time, each on the bytes that the previous one left.

use super::fields::{ones, width};
use super::icmp_error;
use super::length;
use super::packet::Packet;
use super::trace::{Change, Mended, Performed};
use super::tunnel;
use std::net::IpAddr;
use weir_packet::{DropReason, Field, KeySource};
use weir_program::nat::Binding;
use weir_program::operation::{NatPart, Slot};
use weir_program::snapshot::KeptOperations;
use weir_program::{Operation, Pipe, PipeKind, Program, Template, Value};

/// The result of an action: the operations performed, and the reason for dropping the packet if one failed.
pub(super) struct Acted {
    pub operations: Vec<Performed>,
    pub failed: Option<DropReason>,
}

/// Returns what the flow that this packet begins keeps: the operations with values kept by the flow, with all
/// their numbers resolved. Without a packet, this is for a flow that no packet begins.
pub(super) fn keep(
    template: &Template,
    values: &[u128],
    packet: Option<&Packet>,
    binding: Option<Binding>,
) -> KeptOperations {
    let pairs = template.operations.iter().zip(settled(template, values, packet, binding));
    pairs.map(|(written, settled)| written.is_kept().then_some(settled)).collect()
}

/// Returns the operations of an action with all their numbers resolved for this packet.
pub(super) fn settled(
    template: &Template,
    values: &[u128],
    packet: Option<&Packet>,
    binding: Option<Binding>,
) -> Vec<Operation> {
    let mut own = values.iter().copied();
    let mut list = template.operations.clone();
    for operation in &mut list {
        for argument in operation.arguments() {
            let (Slot::Number(value, _) | Slot::Optional(Some(value), _) | Slot::Hashed(Some(value), _)) =
                argument.slot
            else {
                continue;
            };
            *value = Value::Const(match *value {
                Value::Const(value) => value,
                Value::PerEntry | Value::PerFlow => own.next().expect("an entry that fits has all values"),
                Value::Learnt(field) => packet.and_then(|packet| packet.read(field)).unwrap_or(0),
                Value::Nat(NatPart::Port) => binding.map_or(0, |(_, port)| port.into()),
                Value::Nat(NatPart::Address) => match binding {
                    Some((IpAddr::V4(address), _)) => u32::from(address).into(),
                    Some((IpAddr::V6(address), _)) => address.into(),
                    None => 0,
                },
            });
        }
    }
    list
}

/// Finds the addresses of the back ends in a packet's row of a group filled like the GLB director's.
pub(super) type Hops<'a> = &'a dyn Fn(&Packet) -> [u32; 2];

/// Performs a template of a pipe with an entry's values, and with what a flow keeps.
pub(super) fn act(
    packet: &mut Packet,
    (pipe, template): (&Pipe, &Template),
    (values, kept): (&[u128], &KeptOperations),
    (program, hops): (&Program, Hops<'_>),
) -> Acted {
    // The flows of such a pipe are translated together with the errors about them.
    let translates = matches!(pipe.kind, PipeKind::Flow { key: KeySource::Outer, .. });
    let mut values = Values { own: values.iter() };
    let mut operations: Vec<Performed> = Vec::new();
    for (at, &written) in template.operations.iter().enumerate() {
        let operation = match kept.get(at).copied().flatten() {
            Some(kept) => {
                values.skip(written);
                kept
            }
            None => written,
        };
        // A push that follows another push does not need to parse the headers again.
        let found = if is_push(operation) && operations.last().is_some_and(|last| is_push(last.operation)) {
            Ok(())
        } else {
            packet.find_headers()
        };
        let done = found.and_then(|()| match operation {
            Operation::Set(field, value) if translates => set_of_flow(packet, field, values.get(value)),
            Operation::Encap(encap) if encap.second_chance => {
                tunnel::encap(packet, &encap, &mut values, (program, Some(hops(packet))))
            }
            _ => perform(packet, operation, &mut values, program),
        });
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
    matches!(operation, Operation::PushVlan { .. })
}

/// An entry's values, consumed in order.
pub(super) struct Values<'a> {
    own: std::slice::Iter<'a, u128>,
}

impl Values<'_> {
    /// Skips the values of an operation.
    fn skip(&mut self, operation: Operation) {
        let given = operation.numbers().filter(|(_, value, _)| value.is_given()).count();
        (0..given).for_each(|_| _ = self.own.next());
    }

    pub(super) fn get(&mut self, value: Value) -> u128 {
        match value {
            Value::Const(value) => value,
            Value::Learnt(_) | Value::Nat(_) => unreachable!("the check ensures that flows keep it"),
            Value::PerEntry | Value::PerFlow => {
                *self.own.next().expect("an entry that fits its pipe has all values")
            }
        }
    }
}

pub(super) type Done = Result<(Change, Vec<Mended>), DropReason>;

fn perform(packet: &mut Packet, operation: Operation, values: &mut Values<'_>, program: &Program) -> Done {
    match operation {
        Operation::Decap(kind) => tunnel::decap(packet, kind),
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
        Operation::LimitLength { bytes, frame } => {
            let most = values.get(bytes);
            length::limit(packet, most as u16, frame)
        }
        Operation::ClampMss { mss } => {
            let most = values.get(mss);
            length::clamp(packet, most as u16)
        }
        Operation::PushVlan { tpid, vid, pcp } => {
            let (vid, pcp) = (values.get(vid), values.get(pcp));
            push_vlan(packet, tpid, vid as u16, pcp as u16)
        }
        Operation::Encap(encap) => tunnel::encap(packet, &encap, values, (program, None)),
    }
}

/// Writes the low bits of a value, and if the packet is an ICMP error, also into the packet inside.
fn set_of_flow(packet: &mut Packet, field: Field, value: u128) -> Done {
    let low = value & ones(width(field));
    icmp_error::translate(packet, field, low).unwrap_or_else(|| write(packet, field, value))
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
