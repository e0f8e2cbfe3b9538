//! Incremental checksum updates (RFC 1624) after an action. Checksums are never recomputed, so that a frame
//! that arrived corrupted leaves corrupted, and its receiver still notices.
//!
//! A change inside a tunnel affects up to three checksums, innermost first. Each updated checksum is itself a
//! change to the bytes covered by the next one.

use packet::{
    Base, Field, FieldKind, Headers, Layer, Level, LevelId, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP,
    Source, Sum, update, update_udp,
};

/// Which checksums cover a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cover {
    /// The level whose headers contain the field.
    pub level: LevelId,
    /// The IPv4 header checksum covers it.
    pub ipv4_header: bool,
    /// How the transport checksum covers it: as a port, or as an address in the pseudo header.
    pub transport: Transport,
    /// It lies in a tunnel header or inside the tunnel, so a checksum of the tunnel covers it.
    pub tunnel: bool,
}

/// How a field enters a transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    No,
    Port,
    Address,
}

impl Cover {
    /// The checksums that cover `field`.
    #[must_use]
    pub fn of(field: Field) -> Cover {
        let (spec, level) = (field.spec(), field.level);
        let transport = match field.kind {
            FieldKind::Ipv4Src | FieldKind::Ipv4Dst | FieldKind::Ipv6Src | FieldKind::Ipv6Dst => {
                Transport::Address
            }
            _ if spec.source == Source::Frame(Base::L4) => Transport::Port,
            _ => Transport::No,
        };
        let tunnel = level == LevelId::Inner || spec.source == Source::Frame(Base::TunnelId);
        Cover { level, ipv4_header: spec.needs.has(Layer::Ipv4), transport, tunnel }
    }

    /// The checksums that cover a field of the outer level.
    #[must_use]
    pub const fn outer(ipv4_header: bool, transport: Transport) -> Cover {
        Cover { level: LevelId::Outer, ipv4_header, transport, tunnel: false }
    }
}

/// Updates every checksum that covers a field changed by `change`.
#[inline]
pub fn mend(bytes: &mut [u8], headers: &Headers, cover: Cover, change: Sum) {
    let mut around = change;
    let level = headers.level(cover.level);
    if cover.ipv4_header {
        around = rewrite(bytes, level.at(Base::L3) + 10, change, update, around);
    }
    if cover.transport != Transport::No
        && let Some((at, is_udp)) = transport_checksum(bytes, level)
    {
        let update = if is_udp { update_udp } else { update };
        around = rewrite(bytes, at, change, update, around);
    }
    if cover.tunnel {
        tunnel(bytes, headers, around);
    }
}

/// Updates the checksum that covers a tunnel: that of the UDP header in front of it, or its own.
fn tunnel(bytes: &mut [u8], headers: &Headers, change: Sum) {
    if headers.outer().layers.has(Layer::Udp) {
        rewrite(bytes, headers.outer().at(Base::L4) + 6, change, update_udp, change);
    } else if let Some(tunnel) = headers.tunnel()
        && let Some((bit, offset)) = tunnel.kind.spec().checksum
        && bytes.get(tunnel.at).is_some_and(|first| first & bit != 0)
    {
        rewrite(bytes, tunnel.at + offset, change, update, change);
    }
}

/// Updates one checksum; returns `around` with the change of the checksum itself added.
#[inline(always)]
fn rewrite(bytes: &mut [u8], at: usize, change: Sum, update: impl Fn(u16, Sum) -> u16, around: Sum) -> Sum {
    let Some(place) = bytes.get_mut(at..at + 2) else { return around };
    let old = u16::from_be_bytes([place[0], place[1]]);
    let new = update(old, change);
    place.copy_from_slice(&new.to_be_bytes());
    around.replace16(old, new)
}

/// Offset of the transport checksum, and whether it is UDP's; `None` if this level has none.
#[inline(always)]
fn transport_checksum(bytes: &[u8], level: &Level) -> Option<(usize, bool)> {
    let (layers, l4) = (level.layers, level.at(Base::L4));
    if layers.has(Layer::Udp) {
        Some((l4 + 6, true))
    } else if layers.has(Layer::Tcp) {
        Some((l4 + 16, false))
    } else if layers.has(Layer::Icmpv6) {
        Some((l4 + 2, false))
    } else if layers.has(Layer::Fragment) {
        fragment_checksum(bytes, level)
    } else {
        None
    }
}

/// The transport checksum of a first fragment, if the fragment is long enough to contain it.
#[cold]
fn fragment_checksum(bytes: &[u8], level: &Level) -> Option<(usize, bool)> {
    let (l3, l4) = (level.at(Base::L3), level.at(Base::L4));
    let is_ipv4 = level.layers.has(Layer::Ipv4);
    let be16 = |at: usize| bytes.get(at..at + 2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    let (offset, end) = if is_ipv4 {
        (be16(l3 + 6)? & 0x1fff, l3 + usize::from(be16(l3 + 2)?))
    } else {
        // Parsing stopped right behind the fragment header (RFC 8200 §4.5), 8 bytes long.
        (be16(l4 - 6)? & 0xfff8, l3 + 40 + usize::from(be16(l3 + 4)?))
    };
    let at = match level.protocol {
        PROTOCOL_UDP => l4 + 6,
        PROTOCOL_TCP => l4 + 16,
        PROTOCOL_ICMPV6 if !is_ipv4 => l4 + 2,
        _ => return None,
    };
    (offset == 0 && at + 2 <= end).then_some((at, level.protocol == PROTOCOL_UDP))
}
