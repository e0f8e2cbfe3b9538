//! The interpreter's own code for tunnel headers, to be read side by side with their RFCs. The packet inside
//! is parsed by the same functions as the frame around it, but only one level deep: a tunnel in a tunnel is
//! payload.

use super::bytes::{Fragment, Headers, TransportKind, inner_headers, number16};
use weir_packet::{DropReason, TunnelKind, TunnelPorts};

/// A tunnel header and what it carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParsedTunnel {
    pub kind: TunnelKind,
    pub start: usize,
    /// First byte after the payload of UDP or IP.
    pub end: usize,
    /// First bit of VNI or key, counted from the start of the frame, and the number of bits.
    pub id: Option<(usize, usize)>,
    /// Offset of a checksum over header and payload.
    pub checksum: Option<usize>,
    /// The headers inside, if they are parsed.
    pub inner: Option<Box<Headers>>,
}

/// What follows a tunnel header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inside {
    Ethernet,
    Ipv4,
    Ipv6,
    /// Something that is not parsed.
    Unread,
}

impl Inside {
    /// Protocol type of GRE and Geneve; 0x6558 is Transparent Ethernet Bridging.
    fn ether_type(self) -> [u8; 2] {
        match self {
            Inside::Ethernet => [0x65, 0x58],
            Inside::Ipv4 => [0x08, 0x00],
            Inside::Ipv6 => [0x86, 0xdd],
            Inside::Unread => [0, 0],
        }
    }

    /// IP protocol number: 4 is IPv4, 41 IPv6, 143 Ethernet, 59 nothing.
    fn protocol(self) -> u8 {
        match self {
            Inside::Ethernet => 143,
            Inside::Ipv4 => 4,
            Inside::Ipv6 => 41,
            Inside::Unread => 59,
        }
    }
}

/// A tunnel header: its length and contents.
struct Header {
    length: usize,
    /// First bit, counted from the header's start, and number of bits.
    id: Option<(usize, usize)>,
    /// Offset from the header's start.
    checksum: Option<usize>,
    inside: Inside,
}

/// A header, or `None` if its version is unknown.
type Read = Result<Option<Header>, DropReason>;

/// Finds the tunnel in a frame.
pub(super) fn tunnel(
    frame: &[u8],
    found: &Headers,
    ports: &TunnelPorts,
) -> Result<Option<ParsedTunnel>, DropReason> {
    let Some(ip) = found.ip.as_ref().filter(|ip| ip.fragment == Fragment::Whole) else { return Ok(None) };
    let (kind, start, end) = if let Some(udp) = found.transport_of(TransportKind::Udp) {
        let port = number16(frame, udp + 2);
        let mut kinds = [TunnelKind::Vxlan, TunnelKind::Geneve, TunnelKind::Gue].into_iter();
        let Some(kind) = kinds.find(|kind| port == Some(ports.of(*kind))) else { return Ok(None) };
        (kind, udp + 8, udp + usize::from(number16(frame, udp + 4).unwrap_or_default()))
    } else {
        let kind = match ip.protocol {
            47 => TunnelKind::Gre,
            4 | 41 => TunnelKind::Ipip,
            _ => return Ok(None),
        };
        (kind, ip.payload, ip.end)
    };
    let bytes = &frame[start..end];
    let header = match kind {
        TunnelKind::Vxlan => vxlan(bytes)?,
        TunnelKind::Geneve => geneve(bytes)?,
        TunnelKind::Gre => gre(bytes)?,
        TunnelKind::Ipip => ip_in_ip(ip.protocol),
        TunnelKind::Gue => gue(bytes)?,
    };
    let Some(Header { length, id, checksum, inside }) = header else { return Ok(None) };
    let inner =
        inner_headers(&frame[..end], start + length, inside).map_err(|_| DropReason::MalformedInner)?;
    let id = id.map(|(first, bits)| (8 * start + first, bits));
    let checksum = checksum.map(|at| start + at);
    Ok(Some(ParsedTunnel { kind, start, end, id, checksum, inner: inner.map(Box::new) }))
}

/// RFC 7348 §5: R R R R I R R R, reserved 24, VNI 24, reserved 8.
fn vxlan(bytes: &[u8]) -> Read {
    if bytes.len() < 8 || bytes[0] & 0b0000_1000 == 0 {
        return Err(DropReason::MalformedVxlan);
    }
    Ok(Some(Header { length: 8, id: Some((32, 24)), checksum: None, inside: Inside::Ethernet }))
}

/// RFC 8926 §3.4: version 2, option length 6, O 1, C 1, reserved 6, protocol type 16, VNI 24, reserved 8,
/// options.
fn geneve(bytes: &[u8]) -> Read {
    if bytes.len() < 8 {
        return Err(DropReason::MalformedGeneve);
    }
    let (version, options) = (bytes[0] / 64, 4 * usize::from(bytes[0] % 64));
    if version > 0 {
        return Ok(None);
    }
    if bytes.len() < 8 + options {
        return Err(DropReason::MalformedGeneve);
    }
    // Only tunnel endpoints may process a control message.
    let control = bytes[1] >= 128;
    let inside = if control { Inside::Unread } else { by_ether_type(number16(bytes, 2)) };
    Ok(Some(Header { length: 8 + options, id: Some((32, 24)), checksum: None, inside }))
}

/// RFC 2784 §2, RFC 2890 §2: C 1, reserved 1, K 1, S 1, reserved 9, version 3, protocol type 16; checksum
/// 16 and reserved 16 with C, key 32 with K, sequence number 32 with S.
fn gre(bytes: &[u8]) -> Read {
    if bytes.len() < 4 {
        return Err(DropReason::MalformedGre);
    }
    let flag = |bit: u8| bytes[0] >> (7 - bit) & 1 == 1;
    let (checksum, routing, key, sequence) = (flag(0), flag(1), flag(2), flag(3));
    if !bytes[1].is_multiple_of(8) || routing {
        return Ok(None);
    }
    let mut length = 4;
    let mut optional = |present: bool| {
        let at = length;
        length += if present { 4 } else { 0 };
        present.then_some(at)
    };
    let (checksum, key) = (optional(checksum), optional(key));
    optional(sequence);
    if bytes.len() < length {
        return Err(DropReason::MalformedGre);
    }
    let id = key.map(|at| (8 * at, 32));
    Ok(Some(Header { length, id, checksum, inside: by_ether_type(number16(bytes, 2)) }))
}

/// RFC 2003, RFC 2473 §3, RFC 4213 §3: no header of its own.
fn ip_in_ip(protocol: u8) -> Option<Header> {
    Some(Header { length: 0, id: None, checksum: None, inside: by_protocol(protocol) })
}

/// draft-ietf-intarea-gue-09 §3: version 2, C 1, header length 5, protocol 8, flags 16, fields; or variant
/// 1, which has no header, so that these are the first bits of the IP packet itself.
fn gue(bytes: &[u8]) -> Read {
    let Some(&first) = bytes.first() else { return Err(DropReason::MalformedGue) };
    let (length, inside) = match (first / 64, first / 16) {
        (0, _) => {
            let length = 4 + 4 * usize::from(first % 32);
            if bytes.len() < length {
                return Err(DropReason::MalformedGue);
            }
            let control = first & 0b0010_0000 != 0;
            (length, if control { Inside::Unread } else { by_protocol(bytes[1]) })
        }
        (1, 4) => (0, Inside::Ipv4),
        (1, 6) => (0, Inside::Ipv6),
        _ => return Ok(None),
    };
    Ok(Some(Header { length, id: None, checksum: None, inside }))
}

fn by_ether_type(number: Option<u16>) -> Inside {
    match number {
        Some(0x6558) => Inside::Ethernet,
        Some(0x0800) => Inside::Ipv4,
        Some(0x86dd) => Inside::Ipv6,
        _ => Inside::Unread,
    }
}

fn by_protocol(number: u8) -> Inside {
    match number {
        4 => Inside::Ipv4,
        41 => Inside::Ipv6,
        _ => Inside::Unread,
    }
}

/// RFC 8926 §3.5: class 16, type 8 (whose first bit means critical), reserved 3, length 5 in words. No
/// option is known.
pub(super) fn critical_options(options: &[u8]) -> Result<(), DropReason> {
    let mut at = 0;
    while at + 4 <= options.len() {
        if options[at + 2] >= 128 {
            return Err(DropReason::GeneveCriticalOption);
        }
        at += 4 + 4 * usize::from(options[at + 3] % 32);
    }
    if at > options.len() { Err(DropReason::MalformedGeneve) } else { Ok(()) }
}

/// The protocol number of the outer IP header.
pub(super) fn protocol(kind: TunnelKind, carried: Inside) -> u8 {
    match kind {
        TunnelKind::Vxlan | TunnelKind::Geneve | TunnelKind::Gue => 17,
        TunnelKind::Gre => 47,
        TunnelKind::Ipip => carried.protocol(),
    }
}

/// The header that an encapsulation writes.
pub(super) fn tunnel_header(kind: TunnelKind, id: Option<u32>, carried: Inside) -> Vec<u8> {
    let [high, low] = carried.ether_type();
    let [id0, id1, id2, id3] = id.unwrap_or_default().to_be_bytes();
    match (kind, id) {
        // RFC 7348 §5: flags, where I means that there is a VNI, 24 reserved bits, VNI, 8 reserved bits.
        (TunnelKind::Vxlan, _) => vec![0x08, 0, 0, 0, id1, id2, id3, 0],
        // RFC 8926 §3.4: version 0 without options, no flags, protocol type, VNI, 8 reserved bits.
        (TunnelKind::Geneve, _) => vec![0, 0, high, low, id1, id2, id3, 0],
        // RFC 2784 §2.1, RFC 2890 §2: the third bit means that there is a key.
        (TunnelKind::Gre, None) => vec![0, 0, high, low],
        (TunnelKind::Gre, Some(_)) => vec![0x20, 0, high, low, id0, id1, id2, id3],
        // RFC 2003 §3, RFC 2473 §3: nothing in between.
        (TunnelKind::Ipip, _) => Vec::new(),
        // draft-ietf-intarea-gue-09 §3: variant 0, no control, no optional fields, protocol, no flags.
        (TunnelKind::Gue, _) => vec![0, carried.protocol(), 0, 0],
    }
}
