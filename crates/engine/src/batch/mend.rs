//! Incremental checksum updates (RFC 1624) after an action. Checksums are never recomputed, so that a frame
//! that arrived corrupted leaves corrupted, and its receiver still notices.
//!
//! A change inside a tunnel affects up to three checksums, innermost first. Each updated checksum is itself a
//! change to the bytes covered by the next one.

use weir_packet::{
    Base, Field, FieldKind, Headers, Layer, Level, LevelId, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP,
    Source, Sum, pseudo_header, update, update_udp,
};

/// Protocols (IANA) that are not parsed, but whose checksum has a pseudo header.
const PROTOCOL_DCCP: u8 = 33;
const PROTOCOL_OSPF: u8 = 89;
const PROTOCOL_PIM: u8 = 103;
const PROTOCOL_VRRP: u8 = 112;
const PROTOCOL_MOBILITY: u8 = 135;
const PROTOCOL_UDP_LITE: u8 = 136;
const PROTOCOL_HIP: u8 = 139;

/// Bytes of the IPv6 header.
const IPV6: usize = 40;

/// Which checksums cover a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cover {
    /// The level whose headers contain the field.
    pub level: LevelId,
    /// Whether the IPv4 header checksum covers the field.
    pub ipv4_header: bool,
    /// How the transport checksum covers the field.
    pub transport: Transport,
    /// Whether the field lies in a tunnel header or inside the tunnel, so that a checksum of the tunnel
    /// covers it.
    pub tunnel: bool,
}

/// How a field enters a transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    No,
    Port,
    /// An IPv4 address of the pseudo header.
    Address,
    /// An IPv6 address of the pseudo header, unless an extension header has the address that counts there.
    Ipv6Src,
    Ipv6Dst,
}

impl Cover {
    /// The checksums that cover `field`.
    #[must_use]
    pub fn of(field: Field) -> Cover {
        let (spec, level) = (field.spec(), field.level);
        let transport = match field.kind {
            FieldKind::Ipv4Src | FieldKind::Ipv4Dst => Transport::Address,
            FieldKind::Ipv6Src => Transport::Ipv6Src,
            FieldKind::Ipv6Dst => Transport::Ipv6Dst,
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

impl Transport {
    /// True if the pseudo header contains this field, as it always does without extension headers.
    #[inline(always)]
    fn counts(self, bytes: &[u8], level: &Level) -> bool {
        let (l3, l4) = (level.at(Base::L3), level.at(Base::L4));
        match self {
            Transport::No | Transport::Port | Transport::Address => true,
            _ if l3 + IPV6 == l4 => true,
            Transport::Ipv6Src => pseudo_header(bytes, l3, l4)[0],
            Transport::Ipv6Dst => pseudo_header(bytes, l3, l4)[1],
        }
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
        && cover.transport.counts(bytes, level)
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
pub(super) fn rewrite(
    bytes: &mut [u8],
    at: usize,
    change: Sum,
    update: impl Fn(u16, Sum) -> u16,
    around: Sum,
) -> Sum {
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
    } else {
        unread_checksum(bytes, level)
    }
}

/// The checksum of a first fragment, or of a protocol that the parser does not read, if the packet is long
/// enough to contain it.
#[cold]
fn unread_checksum(bytes: &[u8], level: &Level) -> Option<(usize, bool)> {
    let (l3, l4) = (level.at(Base::L3), level.at(Base::L4));
    let be16 = |at: usize| bytes.get(at..at + 2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    let is_ipv4 = level.layers.has(Layer::Ipv4);
    let end = if is_ipv4 { l3 + usize::from(be16(l3 + 2)?) } else { l3 + IPV6 + usize::from(be16(l3 + 4)?) };
    let offset = match (level.layers.has(Layer::Fragment), is_ipv4) {
        (false, _) => 0,
        (true, true) => be16(l3 + 6)? & 0x1fff,
        // Parsing stopped right after the fragment header (RFC 8200 §4.5), which has 8 bytes.
        (true, false) => be16(l4 - 6)? & 0xfff8,
    };
    let (place, is_udp) = checksum_place(level.protocol, is_ipv4, *bytes.get(l4)?)?;
    (offset == 0 && l4 + place + 2 <= end).then_some((l4 + place, is_udp))
}

/// Where the header of a protocol with a pseudo header has its checksum, and whether 0 means no checksum, as
/// in UDP. Coverages (DCCP, UDP-Lite, PIM's registers) may leave out payload, but never addresses.
pub(super) fn checksum_place(protocol: u8, is_ipv4: bool, first: u8) -> Option<(usize, bool)> {
    Some(match protocol {
        PROTOCOL_UDP => (6, true),
        PROTOCOL_TCP => (16, false),
        PROTOCOL_DCCP => (6, false),                              // RFC 4340 §9.1
        PROTOCOL_UDP_LITE => (6, true),                           // RFC 3828 §3.1
        PROTOCOL_HIP => (4, false),                               // RFC 7401 §5.1.1
        PROTOCOL_OSPF if first == 3 => (12, false),               // RFC 5340 §A.3.1, RFC 7949 §3.2
        PROTOCOL_VRRP if first >> 4 == 3 => (6, false),           // RFC 5798 §5.2.8
        PROTOCOL_ICMPV6 | PROTOCOL_PIM if !is_ipv4 => (2, false), // RFC 4443 §2.3, RFC 7761 §4.9
        PROTOCOL_MOBILITY if !is_ipv4 => (4, false),              // RFC 6275 §6.1.1
        _ => return None,
    })
}
