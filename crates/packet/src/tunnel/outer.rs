//! The headers in front of a tunnel's payload: Ethernet, IPv4 or IPv6, UDP if the kind uses it, and the
//! tunnel's own. The parts that many packets have in common are written once into a template; [`Finish`]
//! fills in the rest for each packet.

use super::{Inside, TunnelKind, TunnelPorts};
use crate::{ETHER_IPV4, ETHER_IPV6, Sum, checksum};
use std::net::IpAddr;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;

/// The properties that determine the length of the outer headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterShape {
    /// The kind of tunnel, which determines its own header and whether UDP is in front of it.
    pub kind: TunnelKind,
    /// Whether the outer IP header is IPv6 rather than IPv4.
    pub is_ipv6: bool,
    /// Whether the tunnel header has its optional part: an ID or, for GUE, the GLB director's second chance.
    pub extended: bool,
    /// Whether the tunnel has no header, as in variant 1 of GUE.
    pub bare: bool,
}

/// The values from which a template is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// Destination MAC address of the outer frame.
    pub eth_dst: [u8; 6],
    /// Source MAC address of the outer frame.
    pub eth_src: [u8; 6],
    /// Source address of the outer IP header, of the version that [`OuterShape::is_ipv6`] says.
    pub src: IpAddr,
    /// Destination address of the outer IP header, of the same version as `src`.
    pub dst: IpAddr,
    /// TTL or hop limit of the outer IP header.
    pub ttl: u8,
    /// VNI or key, where the tunnel has one.
    pub id: u32,
}

/// The values that differ from packet to packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Number of bytes after the outer headers.
    pub length: u16,
    /// DSCP and ECN of the outer IP header: the byte that holds both.
    pub traffic_class: u8,
    /// UDP source port; only used for UDP. `None` keeps that of the template.
    pub sport: Option<u16>,
    /// Flow label (RFC 6437), 20 bits; only used for IPv6.
    pub flow_label: u32,
    /// The low bits of the source address, up to 32 in IPv4. They are 0 in the template.
    pub host: u64,
}

/// Fills in the values that differ in a copy of the template. It holds the shape with precomputed lengths,
/// because this runs for every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish {
    is_ipv6: bool,
    is_udp: bool,
    /// Bytes of the outer headers after the IP header.
    behind_ip: u16,
}

impl OuterShape {
    /// Bytes of all outer headers.
    #[must_use]
    pub const fn length(self) -> usize {
        self.tunnel() + if self.bare { 0 } else { self.kind.header_length(self.extended) }
    }

    /// Where the IP header starts.
    #[must_use]
    pub const fn ip(self) -> usize {
        ETHERNET
    }

    /// Where the header after the IP header starts: UDP's, or the tunnel's.
    #[must_use]
    pub const fn transport(self) -> usize {
        ETHERNET + if self.is_ipv6 { IPV6 } else { IPV4 }
    }

    /// Where the tunnel header starts.
    #[must_use]
    pub const fn tunnel(self) -> usize {
        self.transport() + if self.kind.is_udp() { UDP } else { 0 }
    }

    /// Returns the [`Finish`] for copies of the template.
    #[must_use]
    pub const fn finish(self) -> Finish {
        let behind_ip = (self.length() - self.transport()) as u16;
        Finish { is_ipv6: self.is_ipv6, is_udp: self.kind.is_udp(), behind_ip }
    }

    /// Writes the template for a payload of the kind `inside` into `place`, which has [`OuterShape::length`]
    /// bytes. The fields that [`Finish`] fills in are 0, and the IPv4 checksum is correct for that.
    pub fn write(self, outer: &Outer, inside: Inside, ports: &TunnelPorts, place: &mut [u8]) {
        place.fill(0);
        place[..6].copy_from_slice(&outer.eth_dst);
        place[6..12].copy_from_slice(&outer.eth_src);
        let ether_type = if self.is_ipv6 { ETHER_IPV6 } else { ETHER_IPV4 };
        place[12..14].copy_from_slice(&ether_type.to_be_bytes());
        match (outer.src, outer.dst) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                place[14] = 0x60;
                place[21] = outer.ttl;
                place[22..38].copy_from_slice(&src.octets());
                place[38..54].copy_from_slice(&dst.octets());
            }
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                place[14] = 0x45;
                // Don't Fragment: a tunnel endpoint must not fragment (RFC 7348 §4.3).
                place[20] = 0x40;
                place[22] = outer.ttl;
                place[26..30].copy_from_slice(&src.octets());
                place[30..34].copy_from_slice(&dst.octets());
            }
            _ => debug_assert!(false, "addresses of different IP versions"),
        }
        if self.kind.is_udp() {
            let dport = self.transport() + 2;
            place[dport..dport + 2].copy_from_slice(&ports.of(self.kind).to_be_bytes());
        }
        if !self.bare {
            self.kind.write(&mut place[self.tunnel()..], self.extended.then_some(outer.id));
        }
        self.carry(inside, place);
    }

    /// Reads back the values that [`OuterShape::write`] has written.
    #[must_use]
    pub fn read(self, place: &[u8]) -> Outer {
        fn bytes<const N: usize>(place: &[u8], at: usize) -> [u8; N] {
            place.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
        }
        let ipv4 = |at| IpAddr::from(bytes::<4>(place, at));
        let ipv6 = |at| IpAddr::from(bytes::<16>(place, at));
        let ([protocol], [ttl], src, dst) = match self.is_ipv6 {
            true => (bytes(place, 20), bytes(place, 21), ipv6(22), ipv6(38)),
            false => (bytes(place, 23), bytes(place, 22), ipv4(26), ipv4(30)),
        };
        let header = place.get(self.tunnel()..).filter(|_| !self.bare);
        let header = header.and_then(|header| self.kind.read(header, protocol).ok());
        let id = header.and_then(|header| header.id).map_or(0, |id| id.value);
        Outer { eth_dst: bytes(place, 0), eth_src: bytes(place, 6), src, dst, ttl, id }
    }

    /// Records in a template which kind of payload it carries.
    pub fn carry(self, inside: Inside, place: &mut [u8]) {
        let protocol = self.kind.protocol(inside);
        if self.is_ipv6 {
            place[20] = protocol;
        } else {
            place[23] = protocol;
            place[24..26].fill(0);
            let sum = checksum(Sum::default().bytes(&place[14..34]));
            place[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        if !self.bare {
            self.kind.carry(&mut place[self.tunnel()..], inside);
        }
    }

    /// Writes the IPv4 address of a packet's second chance into GUE headers that have room for it.
    #[inline]
    pub fn second_chance(self, hop: u32, headers: &mut [u8]) {
        if let Some(header) = headers.get_mut(self.tunnel()..).filter(|_| self.kind == TunnelKind::Gue) {
            super::gue::second_chance(header, hop);
        }
    }
}

impl Finish {
    /// The most bytes that can be carried: the limit of the length field in the IP header.
    #[must_use]
    pub const fn length_max(self) -> usize {
        let ip = if self.is_ipv6 { 0 } else { IPV4 };
        u16::MAX as usize - ip - self.behind_ip as usize
    }

    /// Fills in lengths, DSCP, ECN, the flow label, the low bits of the source address, the IPv4 checksum and
    /// the UDP source port. A UDP checksum stays 0. Headers shorter than their shape are left unchanged.
    #[inline(always)]
    pub fn write(self, headers: &mut [u8], carried: Carried) {
        let Carried { length, traffic_class, sport, flow_label, host } = carried;
        let behind_ip = self.behind_ip + length;
        let rest = if self.is_ipv6 {
            let Some((head, rest)) = headers.split_first_chunk_mut::<{ ETHERNET + IPV6 }>() else { return };
            let first = 6 << 28 | u32::from(traffic_class) << 20 | flow_label;
            head[14..18].copy_from_slice(&first.to_be_bytes());
            head[18..20].copy_from_slice(&behind_ip.to_be_bytes());
            let host = host.to_be_bytes();
            head[30..38].iter_mut().zip(host).for_each(|(byte, host)| *byte |= host);
            rest
        } else {
            let Some((head, rest)) = headers.split_first_chunk_mut::<{ ETHERNET + IPV4 }>() else { return };
            let total = IPV4 as u16 + behind_ip;
            head[15] = traffic_class;
            head[16..18].copy_from_slice(&total.to_be_bytes());
            let without = u16::from_be_bytes([head[24], head[25]]);
            let host = host as u32;
            let sum = Sum::default().word(!without).word(traffic_class.into()).word(total).value32(host);
            head[24..26].copy_from_slice(&checksum(sum).to_be_bytes());
            head[26..30].iter_mut().zip(host.to_be_bytes()).for_each(|(byte, host)| *byte |= host);
            rest
        };
        if self.is_udp
            && let Some(udp) = rest.first_chunk_mut::<UDP>()
        {
            if let Some(sport) = sport {
                udp[..2].copy_from_slice(&sport.to_be_bytes());
            }
            udp[4..6].copy_from_slice(&behind_ip.to_be_bytes());
        }
    }
}
