//! The headers in front of what a tunnel carries: Ethernet, IPv4 or IPv6, UDP where the kind is in it, and the tunnel's
//! own. What is the same for many packets is written once into a template; [`OuterShape::finish`] fills in the rest in
//! front of each packet.

use super::{Inside, TunnelKind, TunnelPorts};
use crate::{ETHER_IPV4, ETHER_IPV6, Sum, checksum};
use std::net::IpAddr;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;

/// What decides how long the outer headers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterShape {
    /// The tunnel.
    pub kind: TunnelKind,
    /// IPv6 around it, not IPv4.
    pub is_ipv6: bool,
    /// Does the tunnel header have an id?
    pub has_id: bool,
}

/// What a template is written from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// Destination MAC address.
    pub eth_dst: [u8; 6],
    /// Source MAC address.
    pub eth_src: [u8; 6],
    /// Source address, of the shape's version.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// TTL or hop limit.
    pub ttl: u8,
    /// VNI or key; counts only where the shape has an id.
    pub id: u32,
}

/// What differs from packet to packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Bytes behind the outer headers.
    pub length: u16,
    /// What they are.
    pub inside: Inside,
    /// DSCP and ECN of the outer IP header: the byte that holds both.
    pub traffic_class: u8,
    /// UDP source port; counts only in UDP.
    pub sport: u16,
}

impl OuterShape {
    /// Bytes of all outer headers.
    #[must_use]
    pub const fn length(self) -> usize {
        self.tunnel() + self.kind.header_length(self.has_id)
    }

    /// Where the IP header starts.
    #[must_use]
    pub const fn ip(self) -> usize {
        ETHERNET
    }

    /// Where the header behind the IP header starts: UDP's, or the tunnel's.
    #[must_use]
    pub const fn transport(self) -> usize {
        ETHERNET + if self.is_ipv6 { IPV6 } else { IPV4 }
    }

    /// Where the tunnel header starts.
    #[must_use]
    pub const fn tunnel(self) -> usize {
        self.transport() + if self.kind.is_udp() { UDP } else { 0 }
    }

    /// Writes the template into `place`, which has [`OuterShape::length`] bytes. What [`OuterShape::finish`] fills in is
    /// 0, and the IPv4 checksum is right for that.
    pub fn write(self, outer: &Outer, ports: &TunnelPorts, place: &mut [u8]) {
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
                // Don't Fragment: a tunnel end point must not fragment (RFC 7348 §4.3).
                place[20] = 0x40;
                place[22] = outer.ttl;
                place[26..30].copy_from_slice(&src.octets());
                place[30..34].copy_from_slice(&dst.octets());
                let sum = checksum(Sum::default().bytes(&place[14..34]));
                place[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            _ => debug_assert!(false, "addresses of two versions"),
        }
        if self.kind.is_udp() {
            let dport = self.transport() + 2;
            place[dport..dport + 2].copy_from_slice(&ports.of(self.kind).to_be_bytes());
        }
        self.kind.write(&mut place[self.tunnel()..], self.has_id.then_some(outer.id));
    }

    /// Fills in what differs, in `headers` that are a copy of the template. A UDP checksum stays 0.
    #[inline]
    pub fn finish(self, headers: &mut [u8], carried: Carried) {
        let Carried { length, inside, traffic_class, sport } = carried;
        let transport = self.transport();
        let behind_ip = (self.length() - transport) as u16 + length;
        let protocol = self.kind.protocol(inside);
        if self.is_ipv6 {
            headers[14] = 0x60 | traffic_class >> 4;
            headers[15] = traffic_class << 4;
            headers[18..20].copy_from_slice(&behind_ip.to_be_bytes());
            headers[20] = protocol;
        } else {
            let total = IPV4 as u16 + behind_ip;
            headers[15] = traffic_class;
            headers[16..18].copy_from_slice(&total.to_be_bytes());
            headers[23] = protocol;
            let without = u16::from_be_bytes([headers[24], headers[25]]);
            let sum = Sum::default().word(!without).word(traffic_class.into()).word(total).word(protocol.into());
            let sum = checksum(sum);
            headers[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        if self.kind.is_udp() {
            headers[transport..transport + 2].copy_from_slice(&sport.to_be_bytes());
            headers[transport + 4..transport + 6].copy_from_slice(&behind_ip.to_be_bytes());
        }
        self.kind.carry(&mut headers[self.tunnel()..], inside);
    }
}
