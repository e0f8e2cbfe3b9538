//! The packet inside an ICMP error, where a FLOW pipe translates the flow that the error is about (A20): what
//! an action sets at one end of the error, it also sets at the opposite end of the packet inside, which
//! travelled the other way (RFC 5508 §4.2).

use super::mend::{checksum_place, rewrite};
use weir_packet::{
    Base, Field, FieldKind, Headers, Inside, Layer, Layers, PROTOCOL_TCP, PROTOCOL_UDP, Sum,
    inside_icmp_error, update, update_udp,
};

/// An end of the packet inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotedEnd {
    Src,
    Dst,
}

impl QuotedEnd {
    /// Returns the end inside that corresponds to an address of the error.
    pub fn of_address(field: Field) -> Option<QuotedEnd> {
        match field.kind {
            FieldKind::Ipv4Src | FieldKind::Ipv6Src => Some(QuotedEnd::Dst),
            FieldKind::Ipv4Dst | FieldKind::Ipv6Dst => Some(QuotedEnd::Src),
            _ => None,
        }
    }
}

/// Sets an address inside, if the frame is an ICMP error.
#[inline(always)]
pub fn set_address(bytes: &mut [u8], headers: &Headers, end: QuotedEnd, new: &[u8]) {
    let layers = headers.outer().layers;
    if layers.has(Layer::Icmp) || layers.has(Layer::Icmpv6) {
        set_address_inside(bytes, headers, end, new);
    }
}

#[cold]
fn set_address_inside(bytes: &mut [u8], headers: &Headers, end: QuotedEnd, new: &[u8]) {
    let Some(inside) = inside_icmp_error(bytes, headers.outer()) else { return };
    let source = inside.ip + if inside.is_ipv4 { 12 } else { 8 };
    let at = if end == QuotedEnd::Src { source } else { source + new.len() };
    set(bytes, headers, &inside, (at, new), inside.is_ipv4);
}

/// Sets a port inside, given as a byte offset from the start of the segment that the error would have;
/// `needs` are the layers that it would need. Returns false if the frame is not an ICMP error with such a
/// port inside.
#[cold]
pub fn set_port(bytes: &mut [u8], headers: &Headers, (at, needs): (usize, Layers), new: [u8; 2]) -> bool {
    let Some(inside) = inside_icmp_error(bytes, headers.outer()).filter(Inside::has_ports) else {
        return false;
    };
    let other = if needs.has(Layer::Tcp) { PROTOCOL_UDP } else { PROTOCOL_TCP };
    if !needs.has(Layer::Ports) && inside.protocol == other {
        return false;
    }
    set(bytes, headers, &inside, (inside.transport + 2 - at, &new), false);
    true
}

/// Writes bytes inside. Updates the checksums there, and that of the error, which covers all of it.
fn set(bytes: &mut [u8], headers: &Headers, inside: &Inside, (at, new): (usize, &[u8]), in_header: bool) {
    let Some(place) = bytes.get_mut(at..at + new.len()) else { return };
    let change = Sum::default().replace_bytes(place, new);
    place.copy_from_slice(new);
    let mut around = change;
    if in_header {
        around = rewrite(bytes, inside.ip + 10, change, update, around);
    }
    let first = bytes.get(inside.transport).copied().unwrap_or_default();
    let transport = checksum_place(inside.protocol, inside.is_ipv4, first).filter(|_| !inside.later);
    if let Some((place, zero_is_none)) = transport
        && inside.transport + place + 2 <= inside.end
    {
        let update = if zero_is_none { update_udp } else { update };
        around = rewrite(bytes, inside.transport + place, change, update, around);
    }
    rewrite(bytes, headers.outer().at(Base::L4) + 2, around, update, around);
}
