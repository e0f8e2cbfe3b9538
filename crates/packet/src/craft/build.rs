//! From a recipe to bytes: each header is a small function that appends the header to the bytes before its
//! payload.

use super::{
    Addresses, Arp, Body, Checksum, Extension, ExtensionKind, Icmp, Ip, Recipe, Tag, Tcp, Transport, Udp,
};
use crate::{
    ETHER_ARP, ETHER_IPV4, ETHER_IPV6, ETHER_QINQ, ETHER_VLAN, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP,
    Sum, checksum,
};

impl Recipe {
    /// The bytes. Lengths that do not fit their fields are truncated; the text parser rejects such recipes.
    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        let frame = self.build_with(&self.payload);
        match self.length {
            Some(length) if length > frame.len() => {
                let mut payload = self.payload.clone();
                payload.resize(payload.len() + length - frame.len(), 0);
                self.build_with(&payload)
            }
            _ => frame,
        }
    }

    fn build_with(&self, payload: &[u8]) -> Vec<u8> {
        let (ether_type, packet) = match &self.body {
            Body::Raw(bytes) => return bytes.clone(),
            Body::Ethernet(ether_type) => (*ether_type, payload.to_vec()),
            Body::Arp(arp) => (ETHER_ARP, [&self.arp(arp), payload].concat()),
            Body::Ip(ip) => (if ip.addresses.is_ipv4() { ETHER_IPV4 } else { ETHER_IPV6 }, ip.build(payload)),
        };
        let mut frame = [self.eth_dst, self.eth_src].concat();
        let outer_tpid = if self.second_vlan.is_some() { ETHER_QINQ } else { ETHER_VLAN };
        let tags = self
            .vlan
            .map(|tag| (outer_tpid, tag))
            .into_iter()
            .chain(self.second_vlan.map(|t| (ETHER_VLAN, t)));
        for (usual, Tag { vid, pcp, dei, tpid }) in tags {
            frame.extend(tpid.unwrap_or(usual).to_be_bytes());
            frame.extend((u16::from(pcp) << 13 | u16::from(dei) << 12 | vid & 0xfff).to_be_bytes());
        }
        frame.extend(ether_type.to_be_bytes());
        [&frame, packet.as_slice(), &self.trailer].concat()
    }

    /// RFC 826.
    fn arp(&self, arp: &Arp) -> [u8; 28] {
        let mut packet = [0; 28];
        packet[..8].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1 + u8::from(arp.is_reply)]);
        packet[8..14].copy_from_slice(&self.eth_src);
        packet[14..18].copy_from_slice(&arp.sender_ip.octets());
        if arp.is_reply {
            packet[18..24].copy_from_slice(&self.eth_dst);
        }
        packet[24..].copy_from_slice(&arp.target_ip.octets());
        packet
    }
}

impl Ip {
    fn build(&self, payload: &[u8]) -> Vec<u8> {
        let segment = self.segment(payload);
        match self.addresses {
            Addresses::V4(src, dst) => self.ipv4([src.octets(), dst.octets()], &segment),
            Addresses::V6(src, dst) => self.ipv6([src.octets(), dst.octets()], &segment),
        }
    }

    /// RFC 791 §3.1.
    fn ipv4(&self, addresses: [[u8; 4]; 2], segment: &[u8]) -> Vec<u8> {
        let mut header = vec![0; 20 + self.options.len()];
        let total_length = (header.len() + segment.len()) as u16;
        header[0] = 0x40 | (header.len() / 4) as u8;
        header[1] = self.dscp << 2 | self.ecn;
        put16(&mut header, 2, total_length);
        put16(&mut header, 4, self.identification as u16);
        let fragment = self.fragment.map_or(0, |part| (part.offset / 8) | (u16::from(part.more) << 13));
        put16(&mut header, 6, fragment | u16::from(self.dont_fragment) << 14);
        header[8] = self.ttl;
        header[9] = self.transport.protocol(true);
        header[12..20].copy_from_slice(&addresses.concat());
        header[20..].copy_from_slice(&self.options);
        let good = checksum(Sum::default().bytes(&header));
        put16(&mut header, 10, self.checksum.shown(good));
        [&header, segment].concat()
    }

    /// RFC 8200 §3, §4.
    fn ipv6(&self, addresses: [[u8; 16]; 2], segment: &[u8]) -> Vec<u8> {
        let protocol = self.transport.protocol(false);
        let numbers: Vec<u8> = self.extensions.iter().map(|extension| extension.kind.number()).collect();
        let fragment = self.fragment.map(|_| FRAGMENT_HEADER);
        let mut next = numbers.into_iter().chain(fragment).chain([protocol]);
        let mut header = vec![0; 40];
        let traffic = u32::from(self.dscp << 2 | self.ecn) << 20;
        header[..4].copy_from_slice(&(6 << 28 | traffic | self.flow_label & 0xf_ffff).to_be_bytes());
        header[6] = next.next().unwrap_or(protocol);
        header[7] = self.ttl;
        header[8..40].copy_from_slice(&addresses.concat());
        for extension in &self.extensions {
            header.extend(extension.bytes(next.next().unwrap_or(protocol)));
        }
        if let Some(part) = self.fragment {
            header.extend([protocol, 0]);
            header.extend((part.offset & !7 | u16::from(part.more)).to_be_bytes());
            header.extend(self.identification.to_be_bytes());
        }
        let payload_length = (header.len() - 40 + segment.len()) as u16;
        put16(&mut header, 4, payload_length);
        [&header, segment].concat()
    }

    /// The transport header and its payload.
    fn segment(&self, payload: &[u8]) -> Vec<u8> {
        match &self.transport {
            Transport::Udp(udp) => udp.build(&self.addresses, payload),
            Transport::Tcp(tcp) => tcp.build(&self.addresses, payload),
            Transport::Icmp(icmp) => icmp.build(&self.addresses, payload),
            Transport::Tunnel(tunnel) => [&tunnel.build(), payload].concat(),
            Transport::Other(_) => payload.to_vec(),
        }
    }
}

impl Udp {
    /// RFC 768.
    fn build(&self, addresses: &Addresses, payload: &[u8]) -> Vec<u8> {
        let mut segment = vec![0; 8];
        put16(&mut segment, 0, self.sport);
        put16(&mut segment, 2, self.dport);
        if let Some(tunnel) = &self.tunnel {
            segment.extend(tunnel.build());
        }
        segment.extend(payload);
        let length = segment.len() as u16;
        put16(&mut segment, 4, length);
        let good = match checksum(addresses.pseudo(PROTOCOL_UDP, segment.len()).bytes(&segment)) {
            0 => 0xffff, // 0 would mean "no checksum"
            good => good,
        };
        put16(&mut segment, 6, self.checksum.shown(good));
        segment
    }
}

impl Tcp {
    /// RFC 9293 §3.1.
    fn build(&self, addresses: &Addresses, payload: &[u8]) -> Vec<u8> {
        let mut segment = vec![0; 20];
        put16(&mut segment, 0, self.sport);
        put16(&mut segment, 2, self.dport);
        segment[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        segment[8..12].copy_from_slice(&self.acknowledgment.to_be_bytes());
        segment[12] = (((20 + self.options.len()) / 4) << 4) as u8;
        segment[13] = self.flags;
        put16(&mut segment, 14, self.window);
        segment.extend(&self.options);
        segment.extend(payload);
        let good = checksum(addresses.pseudo(PROTOCOL_TCP, segment.len()).bytes(&segment));
        put16(&mut segment, 16, self.checksum.shown(good));
        segment
    }
}

impl Icmp {
    /// RFC 792; RFC 4443 §2, whose checksum covers a pseudo-header.
    fn build(&self, addresses: &Addresses, payload: &[u8]) -> Vec<u8> {
        let mut segment = vec![self.kind, self.code, 0, 0];
        segment.extend(self.rest.to_be_bytes());
        segment.extend(payload);
        let pseudo = match addresses {
            Addresses::V4(..) => Sum::default(),
            Addresses::V6(..) => addresses.pseudo(PROTOCOL_ICMPV6, segment.len()),
        };
        let good = checksum(pseudo.bytes(&segment));
        put16(&mut segment, 2, self.checksum.shown(good));
        segment
    }
}

impl Addresses {
    /// The pseudo-header of a transport checksum (RFC 9293 §3.1, RFC 8200 §8.1).
    fn pseudo(&self, protocol: u8, length: usize) -> Sum {
        let sum = match self {
            Addresses::V4(src, dst) => Sum::default().bytes(&src.octets()).bytes(&dst.octets()),
            Addresses::V6(src, dst) => Sum::default().bytes(&src.octets()).bytes(&dst.octets()),
        };
        sum.word(u16::from(protocol)).value32(length as u32)
    }
}

/// Next header value of a fragment header.
const FRAGMENT_HEADER: u8 = 44;

impl Extension {
    /// The header, followed by `next`.
    fn bytes(&self, next: u8) -> Vec<u8> {
        let length = (2 + self.content.len()) / self.kind.unit() - self.kind.units_uncounted();
        [&[next, length as u8], self.content.as_slice()].concat()
    }
}

impl ExtensionKind {
    /// All kinds.
    pub(super) const ALL: [ExtensionKind; 4] = [
        ExtensionKind::HopByHop,
        ExtensionKind::Routing,
        ExtensionKind::Authentication,
        ExtensionKind::Destination,
    ];

    pub(super) fn number(self) -> u8 {
        match self {
            ExtensionKind::HopByHop => 0,
            ExtensionKind::Routing => 43,
            ExtensionKind::Authentication => 51,
            ExtensionKind::Destination => 60,
        }
    }

    /// A header of this kind that requests nothing, as short as possible.
    pub(super) fn blank(self) -> Extension {
        let content = match self {
            // PadN over the six bytes of options (RFC 8200 §4.2).
            ExtensionKind::HopByHop | ExtensionKind::Destination => vec![1, 4, 0, 0, 0, 0],
            // Type 253 is for experiments (RFC 4727 §3.2); nodes ignore it if no segments are left.
            ExtensionKind::Routing => vec![253, 0, 0, 0, 0, 0],
            // No security association and no integrity check value.
            ExtensionKind::Authentication => vec![0; 10],
        };
        Extension { kind: self, content }
    }

    /// The unit of its length field, in bytes.
    pub(super) fn unit(self) -> usize {
        if self == ExtensionKind::Authentication { 4 } else { 8 }
    }

    /// Units that its length field does not count (RFC 4302 §2.2, RFC 8200 §4.3).
    pub(super) fn units_uncounted(self) -> usize {
        if self == ExtensionKind::Authentication { 2 } else { 1 }
    }

    /// Length in bytes of the header with this length field.
    pub(super) fn bytes(self, length: u8) -> usize {
        (usize::from(length) + self.units_uncounted()) * self.unit()
    }
}

impl Checksum {
    fn shown(self, good: u16) -> u16 {
        match self {
            Checksum::Good => good,
            Checksum::Bad if good == 1 => 2,
            Checksum::Bad => good ^ 1,
            Checksum::Value(value) => value,
        }
    }
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
