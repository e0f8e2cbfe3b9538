//! Checksum updates from the definition: the sum over everything covered, before and after, and the
//! difference subtracted from the checksum (RFC 1071; RFC 1624 arrives at the same number). Slow, but
//! independent of the field.

use super::bytes::{Fragment, Headers, Ip, number16};
use super::trace::Mended;
use std::ops::Range;
use weir_packet::{Field, FieldKind, LevelId};

/// One checksum of a frame.
struct Checksum {
    name: &'static str,
    /// Where its two bytes are.
    at: usize,
    /// The ranges covered; all but the last have an even length. Length and protocol are omitted, because no
    /// action changes them, as are addresses that an extension header replaces. Partial coverage (DCCP,
    /// UDP-Lite) does not matter, because no action changes anything after such a header.
    covers: Vec<Range<usize>>,
    /// UDP and UDP-Lite never send 0, which means no checksum.
    zero_is_none: bool,
}

/// Updates the checksums covering `field`, which has changed since `before`, from the innermost outward.
pub(super) fn mend(before: &[u8], after: &mut [u8], headers: &Headers, field: Field) -> Vec<Mended> {
    checksums_over(after, field, headers).iter().map(|checksum| checksum.mend(before, after)).collect()
}

/// Updates the checksum of an IPv4 header that has changed since `before`.
pub(super) fn mend_header(before: &[u8], after: &mut [u8], ip: &Ip, name: &'static str) -> Mended {
    header_checksum(ip, name).mend(before, after)
}

/// Updates the checksum of an ICMP message whose content has changed since `before` (RFC 792, RFC 4443
/// §2.3).
pub(super) fn mend_icmp(before: &[u8], after: &mut [u8], headers: &Headers) -> Option<Mended> {
    let (start, end) = (headers.transport?.start, headers.ip.as_ref()?.end);
    let covers = vec![start..start + 2, start + 4..end];
    Some(Checksum { name: "icmp", at: start + 2, covers, zero_is_none: false }.mend(before, after))
}

fn checksums_over(frame: &[u8], field: Field, headers: &Headers) -> Vec<Checksum> {
    let mut all = Vec::new();
    match (field.level, headers.inner()) {
        (LevelId::Inner, Some(inner)) => {
            all.extend(own_checksums(frame, field, inner, ["inner ipv4", "inner l4"]))
        }
        (LevelId::Outer, _) if field.spec().tunnel.is_none() => {
            return own_checksums(frame, field, headers, ["ipv4", "l4"]);
        }
        _ => {}
    }
    all.extend(transport_checksum(frame, headers, "udp"));
    all.extend(tunnel_checksum(headers));
    all
}

/// RFC 2784 §2.3: GRE's checksum is over its header and payload.
fn tunnel_checksum(headers: &Headers) -> Option<Checksum> {
    let tunnel = headers.tunnel.as_ref()?;
    let at = tunnel.checksum?;
    Some(Checksum {
        name: "gre",
        at,
        covers: vec![tunnel.start..at, at + 2..tunnel.end],
        zero_is_none: false,
    })
}

/// The checksums covering a field, excluding those of the surrounding tunnels.
fn own_checksums(frame: &[u8], field: Field, headers: &Headers, names: [&'static str; 2]) -> Vec<Checksum> {
    let header = headers.ipv4().map(|ip| header_checksum(ip, names[0]));
    let transport = transport_checksum(frame, headers, names[1]);
    let (in_header, in_transport) = match field.kind {
        FieldKind::Ipv4Dscp | FieldKind::Ipv4Ecn | FieldKind::Ipv4Ttl => (true, false),
        FieldKind::Ipv4Src | FieldKind::Ipv4Dst => (true, true),
        // Of the pseudo header, only the addresses (RFC 8200 §8.1) can be changed, where it contains them.
        FieldKind::Ipv6Src => (false, headers.ipv6().is_some_and(|ip| !ip.other_source)),
        FieldKind::Ipv6Dst => (false, headers.ipv6().is_some_and(|ip| !ip.other_destination)),
        FieldKind::L4Sport | FieldKind::L4Dport => (false, true),
        FieldKind::TcpSport | FieldKind::TcpDport | FieldKind::UdpSport | FieldKind::UdpDport => {
            (false, true)
        }
        _ => (false, false),
    };
    header.filter(|_| in_header).into_iter().chain(transport.filter(|_| in_transport)).collect()
}

/// RFC 791 §3.1: over the header.
fn header_checksum(ip: &Ip, name: &'static str) -> Checksum {
    Checksum {
        name,
        at: ip.start + 10,
        covers: vec![ip.start..ip.start + 10, ip.start + 12..ip.payload],
        zero_is_none: false,
    }
}

/// The checksum of what IP carries, if it includes a pseudo header. A packet that is too short, or a later
/// fragment, has none.
fn transport_checksum(frame: &[u8], headers: &Headers, name: &'static str) -> Option<Checksum> {
    let ip = headers.ip.as_ref().filter(|ip| ip.fragment != Fragment::Later)?;
    let version = frame.get(ip.payload).copied().unwrap_or_default();
    let place = match (ip.protocol, ip.version) {
        // If the frame was not parsed that deep, an unfragmented packet has no transport header here and
        // needs no update.
        (6 | 17, _) | (58, 6) if headers.transport.is_none() && ip.fragment == Fragment::Whole => {
            return None;
        }
        (6, _) => 16,                       // TCP: RFC 9293 §3.1
        (17, _) => 6,                       // UDP: RFC 768
        (58, 6) => 2,                       // ICMPv6: RFC 4443 §2.3
        (33, _) => 6,                       // DCCP: RFC 4340 §9.1
        (89, _) if version == 3 => 12,      // OSPFv3: RFC 5340 §A.3.1, over IPv4 RFC 7949 §3.2
        (103, 6) => 2,                      // PIM: RFC 7761 §4.9
        (112, _) if version / 16 == 3 => 6, // VRRPv3: RFC 5798 §5.2.8
        (135, 6) => 4,                      // Mobility: RFC 6275 §6.1.1
        (136, _) => 6,                      // UDP-Lite: RFC 3828 §3.1
        (139, _) => 4,                      // HIP: RFC 7401 §5.1.1
        _ => return None,
    };
    let at = ip.payload + place;
    if at + 2 > ip.end {
        return None;
    }
    let mut covers = vec![ip.payload..at, at + 2..ip.end];
    let (first, length) = if ip.version == 4 { (ip.start + 12, 4) } else { (ip.start + 8, 16) };
    if !ip.other_source {
        covers.insert(0, first..first + length);
    }
    if !ip.other_destination {
        covers.insert(0, first + length..first + 2 * length);
    }
    Some(Checksum { name, at, covers, zero_is_none: matches!(ip.protocol, 17 | 136) })
}

impl Checksum {
    fn mend(&self, before: &[u8], after: &mut [u8]) -> Mended {
        let old = number16(after, self.at).unwrap_or_default();
        let new = self.mended(old, before, after);
        after[self.at..self.at + 2].copy_from_slice(&new.to_be_bytes());
        Mended { name: self.name, before: old, after: new }
    }

    /// One's complement arithmetic is arithmetic modulo 65535 with two representations of zero. This picks
    /// one: never 0xffff, or for UDP, where 0 would mean no checksum, never 0.
    fn mended(&self, old: u16, before: &[u8], after: &[u8]) -> u16 {
        if self.zero_is_none && old == 0 {
            return 0;
        }
        let new = (u64::from(old) + self.sum(before) + (65535 - self.sum(after))) % 65535;
        if self.zero_is_none && new == 0 { 0xffff } else { new as u16 }
    }

    /// The sum of the 16-bit words covered, modulo 65535. An odd last byte is the upper half of a word.
    fn sum(&self, frame: &[u8]) -> u64 {
        let mut sum = 0;
        for range in &self.covers {
            for (at, byte) in frame[range.clone()].iter().enumerate() {
                sum += if at % 2 == 0 { u64::from(*byte) << 8 } else { u64::from(*byte) };
            }
        }
        sum % 65535
    }
}
