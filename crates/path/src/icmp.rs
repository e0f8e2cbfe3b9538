//! Messages of routers about probes whose TTL has expired, and echo requests to routers with their replies.

use crate::wire::{DATAGRAM, quoted_id};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// ICMP "time exceeded", and its code "in transit" (RFC 792).
pub const TIME_EXCEEDED: u8 = 11;
/// The code of [`TIME_EXCEEDED`] for a TTL that expired in transit; code 1 is about reassembly (RFC 792).
pub const IN_TRANSIT: u8 = 0;

/// The ICMPv6 equivalent (RFC 4443), with the same code.
const TIME_EXCEEDED6: u8 = 3;

const UDP: u8 = 17;

/// A router reports that the TTL of a probe has expired there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The address of the router that reports.
    pub router: IpAddr,
    /// The sender of the probe.
    pub from: IpAddr,
    /// The destination of the probe.
    pub to: IpAddr,
    /// The probe's source port.
    pub port: u16,
    /// The probe's destination port.
    pub dport: u16,
    /// The probe's identification.
    pub id: u16,
    /// The UDP checksum of the probe, as quoted.
    pub check: u16,
    /// Its cookie, if the router quotes that much of it.
    pub cookie: Option<u64>,
}

/// The offset of a probe's cookie after its UDP header: it replaces session and number.
const COOKIE: usize = 8 + 8 + 8;

fn cookie(udp: &[u8]) -> Option<u64> {
    udp.get(COOKIE..)?.first_chunk().map(|eight| u64::from_be_bytes(*eight))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk::<2>().map(|two| u16::from_be_bytes(*two))
}

/// Reads an ICMP message in its IPv4 packet: time exceeded, about a UDP packet, quoting its IP header and at
/// least 8 more bytes (RFC 792).
#[must_use]
pub fn expired(packet: &[u8]) -> Option<Expired> {
    let address = |bytes: &[u8], at: usize| {
        bytes.get(at..)?.first_chunk::<4>().map(|octets| IpAddr::from(Ipv4Addr::from(*octets)))
    };
    let header = |packet: &[u8]| {
        let length = usize::from(packet.first()? & 15) * 4;
        (packet.first()? >> 4 == 4 && length >= 20).then_some(length)
    };
    let icmp = packet.get(header(packet)?..)?;
    if icmp.first() != Some(&TIME_EXCEEDED) || icmp.get(1) != Some(&IN_TRANSIT) {
        return None;
    }
    let quoted = icmp.get(8..)?;
    let udp = quoted.get(header(quoted)?..)?;
    (quoted.get(9) == Some(&UDP)).then_some(())?;
    Some(Expired {
        router: address(packet, 12)?,
        from: address(quoted, 12)?,
        to: address(quoted, 16)?,
        port: half(udp, 0)?,
        dport: half(udp, 2)?,
        id: half(quoted, 4)?,
        check: half(udp, 6)?,
        cookie: cookie(udp),
    })
}

/// Reads an ICMPv6 message, which comes without its IP header: time exceeded, about a UDP packet, quoting as
/// much of it as fits (RFC 4443, section 3.3). Our packets have no extension headers.
#[must_use]
pub fn expired6(icmp: &[u8], router: IpAddr) -> Option<Expired> {
    const IP: usize = 40;
    if icmp.first() != Some(&TIME_EXCEEDED6) || icmp.get(1) != Some(&IN_TRANSIT) {
        return None;
    }
    let quoted = icmp.get(8..)?;
    let udp = quoted.get(IP..)?;
    (quoted.first()? >> 4 == 6 && quoted.get(6) == Some(&UDP)).then_some(())?;
    let address =
        |at: usize| quoted.get(at..)?.first_chunk::<16>().map(|octets| IpAddr::from(Ipv6Addr::from(*octets)));
    Some(Expired {
        router,
        from: address(8)?,
        to: address(24)?,
        port: half(udp, 0)?,
        dport: half(udp, 2)?,
        id: quoted_id(udp)?,
        check: half(udp, 6)?,
        cookie: cookie(udp),
    })
}

/// An echo request and its reply (RFC 792).
const ECHO: u8 = 8;
const ECHO_REPLY: u8 = 0;

/// The reply of a router to an echo request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EchoReply {
    /// The address of the router that replied.
    pub router: Ipv4Addr,
    /// The number of the request.
    pub number: u32,
    /// The cookie of the request, known only to hosts that have seen it.
    pub cookie: u64,
}

/// Builds an echo request, including its IPv4 header, whose checksum the kernel computes. It is as long as a
/// probe. Its number takes the places of identifier and sequence number.
#[must_use]
pub fn echo([source, router]: [Ipv4Addr; 2], dscp: u8, number: u32, cookie: u64) -> Vec<u8> {
    let mut packet = vec![0x45, dscp << 2, 0, DATAGRAM as u8, 0, 0, 0x40, 0, 64, 1, 0, 0];
    packet.extend(source.octets());
    packet.extend(router.octets());
    packet.extend([ECHO, 0, 0, 0]);
    packet.extend(number.to_be_bytes());
    packet.extend(cookie.to_be_bytes());
    packet.resize(DATAGRAM, 0);
    let sum = weir_packet::checksum(weir_packet::Sum::default().bytes(&packet[20..]));
    packet[22..24].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Reads an echo reply in its IPv4 packet.
#[must_use]
pub fn echoed(packet: &[u8]) -> Option<EchoReply> {
    let length = usize::from(packet.first()? & 15) * 4;
    let icmp = packet.get(length..).filter(|_| packet[0] >> 4 == 4 && length >= 20)?;
    (icmp.first() == Some(&ECHO_REPLY) && icmp.get(1) == Some(&0)).then_some(())?;
    Some(EchoReply {
        router: Ipv4Addr::from(*packet.get(12..)?.first_chunk::<4>()?),
        number: u32::from_be_bytes(*icmp.get(4..)?.first_chunk()?),
        cookie: u64::from_be_bytes(*icmp.get(8..)?.first_chunk()?),
    })
}

/// Builds a router's message, including its IPv4 header, about a packet that starts with an IPv4 header; it
/// quotes `quotes` bytes, less than 228. For simulated fabrics.
#[must_use]
pub fn message(router: Ipv4Addr, packet: &[u8], quotes: usize) -> Vec<u8> {
    let quoted = &packet[..packet.len().min(quotes)];
    let mut message = vec![0x45, 0, 0, 28 + quoted.len() as u8, 0, 0, 0, 0, 64, 1, 0, 0];
    message.extend(router.octets());
    message.extend(packet.get(12..16).unwrap_or(&[0; 4]));
    let sum = weir_packet::checksum(weir_packet::Sum::default().bytes(&message));
    message[10..12].copy_from_slice(&sum.to_be_bytes());
    message.extend([TIME_EXCEEDED, IN_TRANSIT, 0, 0, 0, 0, 0, 0]);
    message.extend(quoted);
    let sum = weir_packet::checksum(weir_packet::Sum::default().bytes(&message[20..]));
    message[22..24].copy_from_slice(&sum.to_be_bytes());
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::PathTunnel;
    use crate::wire::{Outer, Packet, Secret};

    /// The minimum that a router quotes.
    const LEAST: usize = 20 + 8;

    fn quoted() -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 84, 2, 7, 0x40, 0, 1, UDP, 0, 0, 10, 0, 1, 1, 10, 0, 2, 1];
        packet.extend([0xc3, 0x51, 0x12, 0xb5, 0, 64, 0x12, 0x34]);
        packet
    }

    #[test]
    fn a_router_names_itself_and_the_probe() {
        let [router, from, to] = [[10, 9, 1, 2], [10, 0, 1, 1], [10, 0, 2, 1]].map(IpAddr::from);
        let address = Ipv4Addr::new(10, 9, 1, 2);
        let read =
            Expired { router, from, to, port: 50_001, dport: 4789, id: 0x0207, check: 0x1234, cookie: None };
        assert_eq!(expired(&message(address, &quoted(), LEAST)), Some(read));
        let whole = [&quoted()[..], &[8; 16], &[1, 2, 3, 4, 5, 6, 7, 8]].concat();
        assert_eq!(expired(&message(address, &whole, 51)), Some(read), "a partial cookie does not count");
        let cookie = Some(0x0102_0304_0506_0708);
        assert_eq!(expired(&message(address, &whole, 52)), Some(Expired { cookie, ..read }));
    }

    #[test]
    fn an_echo_request_is_answered_by_its_router_alone() {
        let [here, router] = [1, 2].map(|last| Ipv4Addr::new(10, 9, 0, last));
        let request = echo([here, router], 8, 0x0102_0304, 77);
        assert_eq!((request.len(), request[1], echoed(&request)), (DATAGRAM, 32, None));
        assert_eq!(weir_packet::checksum(weir_packet::Sum::default().bytes(&request[20..])), 0);
        // A host exchanges the addresses and clears the type.
        let mut reply = request.clone();
        reply[12..16].copy_from_slice(&router.octets());
        reply[16..20].copy_from_slice(&here.octets());
        reply[20] = ECHO_REPLY;
        assert_eq!(echoed(&reply), Some(EchoReply { router, number: 0x0102_0304, cookie: 77 }));
        assert!((0..36).all(|length| echoed(&reply[..length]).is_none()));
        reply[0] = 0x4f;
        assert_ne!(echoed(&reply).map(|reply| reply.cookie), Some(77), "options come first");
    }

    #[test]
    fn a_router_of_ipv6_quotes_the_whole_probe() {
        let [here, to, router] = [1, 2, 3].map(|last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last));
        let outer = Outer {
            macs: [[0; 6]; 2],
            source: here,
            destination: to,
            port: 50_001,
            tunnel: PathTunnel::VXLAN,
            dscp: 0,
            marked: false,
            id: 0x0207,
            ttl: 2,
        };
        let probe = Packet::trace(outer, 1 << 32 | 2).with_id().datagram6(Secret::default());
        let check = u16::from_be_bytes([probe[46], probe[47]]);
        let mut message = vec![TIME_EXCEEDED6, 0, 0, 0, 0, 0, 0, 0];
        message.extend(probe);
        let [router, from, to] = [router, here, to].map(IpAddr::from);
        let cookie = Some(1 << 32 | 2);
        let found = Expired { router, from, to, port: 50_001, dport: 4789, id: 0x0207, check, cookie };
        assert_eq!(expired6(&message, router), Some(found));
        for (at, value) in [(0, 1), (1, 1), (8, 0x45), (14, 6)] {
            let mut other = message.clone();
            other[at] = value;
            assert_eq!(expired6(&other, router), None, "byte {at}");
        }
        assert!((0..80).all(|length| expired6(&message[..length], router).is_none()));
    }

    #[test]
    fn what_is_cut_short_or_something_else_says_nothing() {
        let whole = message(Ipv4Addr::new(10, 9, 1, 2), &quoted(), LEAST);
        assert!((0..whole.len()).all(|length| expired(&whole[..length]).is_none()));
        for (at, value) in [(20, 3), (21, 1), (0, 0x65), (28, 0x41), (37, 6)] {
            let mut other = whole.clone();
            other[at] = value;
            assert_eq!(expired(&other), None, "byte {at}");
        }
    }
}
