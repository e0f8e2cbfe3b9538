//! Checksum updates from the definition: the sum over everything covered, before and after, and the
//! difference subtracted from the checksum (RFC 1071; RFC 1624 arrives at the same number). Slow, but with
//! nothing that depends on the field.

use super::bytes::{Fragment, Headers, Ip, TransportKind, number16};
use super::trace::Mended;
use packet::{Field, FieldKind, LevelId};
use std::ops::Range;

/// One checksum of a frame.
struct Checksum {
    name: &'static str,
    /// Where its two bytes are.
    at: usize,
    /// The ranges covered, each but the last of even length. Length and protocol are left out, as no action
    /// changes them.
    covers: Vec<Range<usize>>,
    udp: bool,
}

/// Updates the checksums covering `field`, which has changed since `before`, from the innermost outward.
pub(super) fn mend(before: &[u8], after: &mut [u8], headers: &Headers, field: Field) -> Vec<Mended> {
    checksums_over(field, headers).iter().map(|checksum| checksum.mend(before, after)).collect()
}

/// Updates the checksum of an IPv4 header that has changed since `before`.
pub(super) fn mend_header(before: &[u8], after: &mut [u8], ip: &Ip, name: &'static str) -> Mended {
    header_checksum(ip, name).mend(before, after)
}

fn checksums_over(field: Field, headers: &Headers) -> Vec<Checksum> {
    let mut all = Vec::new();
    match (field.level, headers.inner()) {
        (LevelId::Inner, Some(inner)) => all.extend(own_checksums(field, inner, ["inner ipv4", "inner l4"])),
        (LevelId::Outer, _) if field.spec().tunnel.is_none() => {
            return own_checksums(field, headers, ["ipv4", "l4"]);
        }
        _ => {}
    }
    all.extend(transport_checksum(headers, "udp"));
    all.extend(tunnel_checksum(headers));
    all
}

/// RFC 2784 §2.3: GRE's checksum is over its header and payload.
fn tunnel_checksum(headers: &Headers) -> Option<Checksum> {
    let tunnel = headers.tunnel.as_ref()?;
    let at = tunnel.checksum?;
    Some(Checksum { name: "gre", at, covers: vec![tunnel.start..at, at + 2..tunnel.end], udp: false })
}

/// The checksums covering a field, without those of the tunnels around it.
fn own_checksums(field: Field, headers: &Headers, names: [&'static str; 2]) -> Vec<Checksum> {
    let header = headers.ipv4().map(|ip| header_checksum(ip, names[0]));
    let transport = transport_checksum(headers, names[1]);
    let (in_header, in_transport) = match field.kind {
        FieldKind::Ipv4Dscp | FieldKind::Ipv4Ecn | FieldKind::Ipv4Ttl => (true, false),
        FieldKind::Ipv4Src | FieldKind::Ipv4Dst => (true, true),
        // Of the pseudo header only the addresses (RFC 8200 §8.1) can be changed.
        FieldKind::Ipv6Src | FieldKind::Ipv6Dst => (false, true),
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
        udp: false,
    }
}

/// RFC 9293 §3.1, RFC 768, RFC 4443 §2.3: covers addresses and payload. A first fragment has it if it is long
/// enough.
fn transport_checksum(headers: &Headers, name: &'static str) -> Option<Checksum> {
    let ip = headers.ip.as_ref().filter(|ip| ip.fragment != Fragment::Later)?;
    let (offset, kind) = match (ip.protocol, ip.version) {
        (6, _) => (16, TransportKind::Tcp),
        (17, _) => (6, TransportKind::Udp),
        (58, 6) => (2, TransportKind::Icmpv6),
        _ => return None,
    };
    let at = ip.payload + offset;
    // If the frame was not parsed that deep, an unfragmented packet has no transport header here and needs no
    // update.
    let found = headers.transport_of(kind).is_some() || ip.fragment == Fragment::First;
    if !found || at + 2 > ip.end {
        return None;
    }
    let addresses = if ip.version == 4 { ip.start + 12..ip.start + 20 } else { ip.start + 8..ip.start + 40 };
    let covers = vec![addresses, ip.payload..at, at + 2..ip.end];
    Some(Checksum { name, at, covers, udp: kind == TransportKind::Udp })
}

impl Checksum {
    fn mend(&self, before: &[u8], after: &mut [u8]) -> Mended {
        let old = number16(after, self.at).unwrap_or_default();
        let new = self.mended(old, before, after);
        after[self.at..self.at + 2].copy_from_slice(&new.to_be_bytes());
        Mended { name: self.name, before: old, after: new }
    }

    /// One's complement arithmetic is arithmetic modulo 65535 with two representations of zero. This picks
    /// one: never 0xffff, except for UDP, where 0 would mean no checksum, never 0.
    fn mended(&self, old: u16, before: &[u8], after: &[u8]) -> u16 {
        if self.udp && old == 0 {
            return 0;
        }
        let new = (u64::from(old) + self.sum(before) + (65535 - self.sum(after))) % 65535;
        if self.udp && new == 0 { 0xffff } else { new as u16 }
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
