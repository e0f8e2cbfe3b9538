//! Checksums mended for what an action changed (RFC 1624), never computed anew: a frame that arrived broken leaves
//! just as broken, and its receiver still notices.
//!
//! A change inside VXLAN passes through up to three checksums, innermost first; each one's own change counts as a
//! change of the bytes around it.

use packet::{Base, Field, Headers, Layer, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP, Sum, update, update_udp};

/// Which checksums cover a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cover {
    /// The field lies inside VXLAN (or in its header): the outer UDP checksum covers it.
    pub outer_udp: bool,
    /// It lies in an IPv4 header.
    pub ipv4_header: bool,
    /// It is in the transport checksum: a port, or an address in the pseudo header.
    pub transport: Transport,
    /// The headers meant are the inner ones.
    pub inner: bool,
}

/// How a field enters a transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    No,
    Port,
    Address,
}

impl Cover {
    /// What covers `field`.
    #[must_use]
    pub fn of(field: Field) -> Cover {
        let base = field.spec().base;
        let transport = match field {
            Field::Ipv4Src | Field::Ipv4Dst | Field::Ipv6Src | Field::Ipv6Dst => Transport::Address,
            Field::InnerIpv4Src | Field::InnerIpv4Dst | Field::InnerIpv6Src | Field::InnerIpv6Dst => Transport::Address,
            _ if base == Base::L4 || base == Base::InnerL4 => Transport::Port,
            _ => Transport::No,
        };
        let ipv4 = Layer::Ipv4 as u32 | Layer::InnerIpv4 as u32;
        Cover {
            outer_udp: matches!(base, Base::Tunnel | Base::InnerL2 | Base::InnerL3 | Base::InnerL4),
            ipv4_header: field.spec().needs.0 & ipv4 != 0,
            transport,
            inner: matches!(base, Base::InnerL3 | Base::InnerL4),
        }
    }
}

/// Mends every checksum over a field whose change is `change`.
#[inline]
pub fn mend(bytes: &mut [u8], headers: &Headers, cover: Cover, change: Sum) {
    let mut around = change;
    if cover.ipv4_header {
        let l3 = usize::from(headers.offsets[if cover.inner { 6 } else { 2 }]);
        around = rewrite(bytes, l3 + 10, change, update, around);
    }
    if cover.transport != Transport::No
        && let Some((at, is_udp)) = transport_checksum(bytes, headers, cover.inner)
    {
        let update = if is_udp { update_udp } else { update };
        around = rewrite(bytes, at, change, update, around);
    }
    if cover.outer_udp {
        rewrite(bytes, usize::from(headers.offsets[3]) + 6, around, update_udp, around);
    }
}

/// Rewrites one checksum; returns `around` with the checksum's own change added.
#[inline(always)]
fn rewrite(bytes: &mut [u8], at: usize, change: Sum, update: impl Fn(u16, Sum) -> u16, around: Sum) -> Sum {
    let Some(place) = bytes.get_mut(at..at + 2) else { return around };
    let old = u16::from_be_bytes([place[0], place[1]]);
    let new = update(old, change);
    place.copy_from_slice(&new.to_be_bytes());
    around.replace16(old, new)
}

/// Where the transport checksum lies and whether it is UDP's; `None` when this frame carries none.
#[inline(always)]
fn transport_checksum(bytes: &[u8], headers: &Headers, inner: bool) -> Option<(usize, bool)> {
    let layers = headers.layers;
    let l4 = usize::from(headers.offsets[if inner { 7 } else { 3 }]);
    let (udp, tcp, icmpv6, fragment) = if inner {
        (Layer::InnerUdp, Layer::InnerTcp, Layer::InnerIcmpv6, Layer::InnerFragment)
    } else {
        (Layer::Udp, Layer::Tcp, Layer::Icmpv6, Layer::Fragment)
    };
    if layers.has(udp) {
        Some((l4 + 6, true))
    } else if layers.has(tcp) {
        Some((l4 + 16, false))
    } else if layers.has(icmpv6) {
        Some((l4 + 2, false))
    } else if layers.has(fragment) {
        fragment_checksum(bytes, headers, inner)
    } else {
        None
    }
}

/// The transport checksum of a first fragment, when its field lies within the fragment.
#[cold]
fn fragment_checksum(bytes: &[u8], headers: &Headers, inner: bool) -> Option<(usize, bool)> {
    let l3 = usize::from(headers.offsets[if inner { 6 } else { 2 }]);
    let l4 = usize::from(headers.offsets[if inner { 7 } else { 3 }]);
    let protocol = if inner { headers.inner_protocol } else { headers.protocol };
    let is_ipv4 = headers.layers.has(if inner { Layer::InnerIpv4 } else { Layer::Ipv4 });
    let be16 = |at: usize| bytes.get(at..at + 2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    let (offset, end) = if is_ipv4 {
        (be16(l3 + 6)? & 0x1fff, l3 + usize::from(be16(l3 + 2)?))
    } else {
        // Parsing stopped right behind the fragment header (RFC 8200 §4.5), 8 bytes long.
        (be16(l4 - 6)? & 0xfff8, l3 + 40 + usize::from(be16(l3 + 4)?))
    };
    let at = match protocol {
        PROTOCOL_UDP => l4 + 6,
        PROTOCOL_TCP => l4 + 16,
        PROTOCOL_ICMPV6 if !is_ipv4 => l4 + 2,
        _ => return None,
    };
    (offset == 0 && at + 2 <= end).then_some((at, protocol == PROTOCOL_UDP))
}
