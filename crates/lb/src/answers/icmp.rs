//! ICMP (RFC 792, RFC 1122 §3.2.2) and ICMPv6 (RFC 4443 §2.4) errors, sent from the address that the packet
//! was addressed to: which packets may be answered, and how.

use std::net::{Ipv4Addr, Ipv6Addr};
use weir_packet::{
    ETHER_IPV4, ETHER_IPV6, ETHER_QINQ, ETHER_VLAN, PROTOCOL_ICMP, PROTOCOL_ICMPV6, Sum, checksum,
};

/// The length of the longest IPv4 error (RFC 1812 §4.3.2.3), and of the longest IPv6 error, which is IPv6's
/// minimum MTU (RFC 4443 §2.4).
const IPV4_MAX: usize = 576;
const IPV6_MAX: usize = 1280;
/// Header lengths in bytes.
const ETHERNET: usize = 14;
const VLAN_TAG: usize = 4;
const VLAN_TAGS_MAX: usize = 2;
const IPV4: usize = 20;
const IPV6: usize = 40;
const ICMP: usize = 8;
/// Internetwork control (RFC 1812 §4.3.2.5), and the hop limit of answers.
const CLASS: u8 = 0xc0;
const TTL: u8 = 64;
/// Destination unreachable, fragmentation needed and DF set; packet too big.
const FRAGMENTATION_NEEDED: [u8; 2] = [3, 4];
const PACKET_TOO_BIG: [u8; 2] = [2, 0];
/// Destination unreachable, port unreachable.
const PORT_UNREACHABLE: [[u8; 2]; 2] = [[3, 3], [1, 4]];

/// The reason for an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// The packet is too long for the path, which allows this number of bytes.
    TooBig(u16),
    /// Nothing listens on the packet's destination port.
    Port,
}

/// IPv6 extension headers (IANA) behind which an ICMPv6 message may be hidden.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
const MOBILITY: u8 = 135;
/// The number of extension headers that are followed, as in pipes.md F2.
const EXTENSIONS_MAX: usize = 8;
/// Informational ICMPv6 messages have this bit set (RFC 4443 §2.1). So does a redirect, which must not be
/// answered either.
const INFORMATIONAL: u8 = 0x80;
const REDIRECT: u8 = 137;

/// Returns the error about a packet, to be sent through the port on which the packet arrived. `None` if no
/// error may be sent: about a fragment other than the first, about ICMP errors, to addresses that do not
/// belong to a single station (RFC 1122 §3.2.2, RFC 4443 §2.4), and about an IPv4 packet that is too long but
/// does not have DF set. Pings are answered: they may be probing the MTU.
pub(super) fn answer(frame: &[u8], wrong: Wrong) -> Option<Vec<u8>> {
    let (l3, is_ipv4) = network(frame)?;
    let (header, packet) = (frame.get(..l3)?, frame.get(l3..)?);
    let is_group = |mac: &[u8]| mac[0] & 1 != 0;
    let (to, from) = (header.get(..6)?, header.get(6..12)?);
    if is_group(to) || is_group(from) {
        return None;
    }
    let mut answer = [from, to, &header[12..]].concat();
    let message = if is_ipv4 { ipv4 } else { ipv6 };
    message(packet, wrong, &mut answer)?;
    Some(answer)
}

/// Returns where the IP packet begins, and whether it is IPv4. The frame may be truncated after the header:
/// only the beginning of a very long frame arrives here.
pub(super) fn network(frame: &[u8]) -> Option<(usize, bool)> {
    let mut at = ETHERNET;
    for _ in 0..=VLAN_TAGS_MAX {
        match u16::from_be_bytes([*frame.get(at - 2)?, *frame.get(at - 1)?]) {
            ETHER_VLAN | ETHER_QINQ => at += VLAN_TAG,
            ETHER_IPV4 => return Some((at, true)),
            ETHER_IPV6 => return Some((at, false)),
            _ => return None,
        }
    }
    None
}

fn ipv4(packet: &[u8], wrong: Wrong, answer: &mut Vec<u8>) -> Option<()> {
    let header: &[u8; IPV4] = packet.first_chunk()?;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let flags = u16::from_be_bytes([header[6], header[7]]);
    let [.., a, b, c, d, _, _, _, _] = *header;
    let from = Ipv4Addr::new(a, b, c, d);
    let needs_df = matches!(wrong, Wrong::TooBig(_));
    if needs_df && flags & 0x4000 == 0 || flags & 0x1fff != 0 || !is_station(from) {
        return None;
    }
    let behind = usize::from(header[0] & 0x0f) * 4;
    if header[9] == PROTOCOL_ICMP && !packet.get(behind).is_some_and(|kind| is_query(*kind)) {
        return None;
    }
    let inside = &packet[..length.min(IPV4_MAX - IPV4 - ICMP).min(packet.len())];
    let total = (IPV4 + ICMP + inside.len()) as u16;
    let [high, low] = total.to_be_bytes();
    let mut ip = [0x45, CLASS, high, low, 0, 0, 0x40, 0, TTL, PROTOCOL_ICMP, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    ip[12..16].copy_from_slice(&header[16..20]);
    ip[16..20].copy_from_slice(&header[12..16]);
    let sum = checksum(Sum::default().bytes(&ip));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    answer.extend(ip);
    let ([kind, code], limit) = match wrong {
        Wrong::TooBig(limit) => (FRAGMENTATION_NEEDED, limit),
        Wrong::Port => (PORT_UNREACHABLE[0], 0),
    };
    let [high, low] = limit.to_be_bytes();
    message([kind, code, 0, 0, 0, 0, high, low], inside, Sum::default(), answer);
    Some(())
}

fn ipv6(packet: &[u8], wrong: Wrong, answer: &mut Vec<u8>) -> Option<()> {
    let header: &[u8; IPV6] = packet.first_chunk()?;
    let address: [u8; 16] = *header[8..24].first_chunk()?;
    let source = Ipv6Addr::from(address);
    let is_station = !(source.is_multicast() || source.is_unspecified() || source.is_loopback());
    if !is_station || may_be_error(packet)? {
        return None;
    }
    let length = IPV6 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let inside = &packet[..length.min(IPV6_MAX - IPV6 - ICMP).min(packet.len())];
    let payload = (ICMP + inside.len()) as u16;
    let [high, low] = payload.to_be_bytes();
    answer.extend([0x60 | CLASS >> 4, CLASS << 4, 0, 0, high, low, PROTOCOL_ICMPV6, TTL]);
    answer.extend(&header[24..40]);
    answer.extend(&header[8..24]);
    let pseudo = Sum::default().bytes(&header[8..40]).word(payload).word(PROTOCOL_ICMPV6.into());
    let ([kind, code], limit) = match wrong {
        Wrong::TooBig(limit) => (PACKET_TOO_BIG, limit),
        Wrong::Port => (PORT_UNREACHABLE[1], 0),
    };
    let [high, low] = limit.to_be_bytes();
    message([kind, code, 0, 0, 0, 0, high, low], inside, pseudo, answer);
    Some(())
}

/// Whether an ICMP message is a query or a reply: echo, router discovery, timestamp, information, mask (RFC
/// 792, RFC 950, RFC 1256). All other types are errors, or may be (RFC 1122 §3.2.2).
fn is_query(kind: u8) -> bool {
    matches!(kind, 0 | 8..=10 | 13..=18)
}

/// Whether an IPv6 packet is an ICMPv6 error or redirect, behind any extension headers, or could be a later
/// fragment of one. `None` if it is truncated or has too many of these headers.
fn may_be_error(packet: &[u8]) -> Option<bool> {
    let (mut next, mut at) = (*packet.get(6)?, IPV6);
    for _ in 0..=EXTENSIONS_MAX {
        let header = packet.get(at..)?;
        let length = match next {
            PROTOCOL_ICMPV6 => {
                let kind = *header.first()?;
                return Some(kind & INFORMATIONAL == 0 || kind == REDIRECT);
            }
            // The content of a fragment after the first is unknown.
            FRAGMENT if u16::from_be_bytes([*header.get(2)?, *header.get(3)?]) >> 3 != 0 => {
                return Some(header[0] == PROTOCOL_ICMPV6 || is_extension(header[0]));
            }
            FRAGMENT => 8,
            AUTHENTICATION => (usize::from(*header.get(1)?) + 2) * 4,
            _ if is_extension(next) => (usize::from(*header.get(1)?) + 1) * 8,
            _ => return Some(false),
        };
        (next, at) = (*header.first()?, at + length);
    }
    None
}

fn is_extension(next: u8) -> bool {
    matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS | MOBILITY)
}

/// Appends an ICMP message, starting its checksum from `sum`.
fn message(mut header: [u8; ICMP], inside: &[u8], sum: Sum, answer: &mut Vec<u8>) {
    let sum = checksum(sum.bytes(&header).bytes(inside));
    header[2..4].copy_from_slice(&sum.to_be_bytes());
    answer.extend(header);
    answer.extend(inside);
}

/// Whether `address` is that of a single station: not multicast, broadcast, unspecified or loopback.
pub(super) fn is_station(address: Ipv4Addr) -> bool {
    let first = address.octets()[0];
    first != 0 && first < 224 && !address.is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_packet::craft;

    fn answer(frame: &[u8], limit: u16) -> Option<Vec<u8>> {
        super::answer(frame, Wrong::TooBig(limit))
    }

    fn long(what: &str, bytes: usize) -> Vec<u8> {
        craft::frame(&format!(
            "eth.src=02:00:00:00:00:0c eth.dst=02:00:00:00:00:01 {what} payload={}",
            "5a".repeat(bytes)
        ))
    }

    #[test]
    fn a_long_packet_with_df_is_answered_from_where_it_was_sent() {
        let frame = long("vlan=7.3 src=10.0.0.9 dst=10.0.0.80 df=1 proto=tcp sport=4000 dport=80", 1460);
        let answer = answer(&frame, 1480).unwrap();
        assert_eq!(answer[..12], [[2, 0, 0, 0, 0, 0xc], [2, 0, 0, 0, 0, 1]].concat());
        assert_eq!(answer[12..18], frame[12..18], "the tag stays");
        assert_eq!(answer.len(), 18 + IPV4_MAX);
        let parsed = etherparse(&answer[18..]);
        assert_eq!((parsed.0, parsed.1), ([10, 0, 0, 80], [10, 0, 0, 9]));
        assert_eq!(answer[38..40], FRAGMENTATION_NEEDED);
        assert_eq!(answer[42..46], [0, 0, 0x05, 0xc8], "the MTU of the next hop is 1480");
        assert_eq!(answer[46..], frame[18..18 + 548], "as much of the original packet as fits");
        assert_eq!(Sum::default().bytes(&answer[18..38]).fold(), 0xffff);
        assert_eq!(Sum::default().bytes(&answer[38..]).fold(), 0xffff);
    }

    /// Source and destination of an IPv4 packet.
    fn etherparse(packet: &[u8]) -> ([u8; 4], [u8; 4]) {
        (packet[12..16].try_into().unwrap(), packet[16..20].try_into().unwrap())
    }

    #[test]
    fn of_ipv6_as_much_is_sent_back_as_fits_the_smallest_mtu() {
        let frame = long("src=fd00::9 dst=fd00::80 proto=udp sport=4000 dport=80", 1440);
        let answer = answer(&frame, 1460).unwrap();
        assert_eq!(answer.len(), 14 + IPV6_MAX);
        assert_eq!(answer[22..38], frame[38..54], "from the address that it was sent to");
        assert_eq!(answer[38..54], frame[22..38]);
        assert_eq!(answer[54..56], PACKET_TOO_BIG);
        assert_eq!(answer[58..62], 1460_u32.to_be_bytes());
        assert_eq!(answer[62..], frame[14..14 + 1232]);
        let pseudo = Sum::default().bytes(&answer[22..54]).word(1240).word(58);
        assert_eq!(pseudo.bytes(&answer[54..]).fold(), 0xffff);
        let short = long("src=fd00::9 dst=fd00::80 proto=udp sport=4000 dport=80", 100);
        assert_eq!(
            super::answer(&short, Wrong::TooBig(100)).unwrap().len(),
            14 + 48 + 148,
            "all of a shorter packet"
        );
    }

    #[test]
    fn what_must_not_be_answered_is_not() {
        let to = "dst=10.0.0.80";
        for what in [
            format!("src=10.0.0.9 {to} proto=udp sport=1 dport=2"),
            format!("src=10.0.0.9 {to} df=1 frag=1480+ proto=udp"),
            format!("src=0.0.0.0 {to} df=1 proto=udp sport=1 dport=2"),
            format!("src=224.0.0.1 {to} df=1 proto=udp sport=1 dport=2"),
            format!("src=255.255.255.255 {to} df=1 proto=udp sport=1 dport=2"),
            format!("src=127.0.0.1 {to} df=1 proto=udp sport=1 dport=2"),
            format!("src=10.0.0.9 {to} df=1 proto=icmp icmp_type=3 icmp_code=4"),
            "src=:: dst=fd00::80 proto=udp sport=1 dport=2".to_string(),
            format!("src=10.0.0.9 {to} df=1 proto=icmp icmp_type=5"),
            format!("src=10.0.0.9 {to} df=1 proto=icmp icmp_type=40"),
            "src=fd00::9 dst=fd00::80 proto=icmpv6 icmp_type=1".to_string(),
            "src=fd00::9 dst=fd00::80 proto=icmpv6 icmp_type=2".to_string(),
            "src=fd00::9 dst=fd00::80 proto=icmpv6 icmp_type=137".to_string(),
            "arp=request sender_ip=10.0.0.9 target_ip=10.0.0.80".to_string(),
        ] {
            assert_eq!(answer(&long(&what, 100), 60), None, "{what}");
        }
        let hidden = behind_options(&long("src=fd00::9 dst=fd00::80 proto=icmpv6 icmp_type=1", 100));
        assert_eq!(answer(&hidden, 60), None, "an error behind an extension header");
        let mut group = long(&format!("src=10.0.0.9 {to} df=1 proto=udp sport=1 dport=2"), 100);
        assert!(answer(&group, 60).is_some());
        group[6] |= 1;
        assert_eq!(answer(&group, 60), None, "from a group address");
        for length in 0..group.len() {
            // The function never panics, and returns nothing for a truncated header.
            let _ = answer(&hidden[..length.min(hidden.len())], 60);
            let whole = long("src=10.0.0.9 dst=10.0.0.80 df=1 proto=udp sport=1 dport=2", 100);
            assert_eq!(answer(&whole[..length], 60).is_some(), length >= 34);
        }
    }

    /// The frame with a destination options header inserted before the payload of its IPv6 packet.
    fn behind_options(frame: &[u8]) -> Vec<u8> {
        let (mut ip, rest) = (frame[14..54].to_vec(), &frame[54..]);
        ip[4..6].copy_from_slice(&(8 + rest.len() as u16).to_be_bytes());
        let options = [ip[6], 0, 1, 4, 0, 0, 0, 0];
        ip[6] = DESTINATION_OPTIONS;
        [&frame[..14], &ip, &options, rest].concat()
    }

    /// Hosts may probe the MTU with pings, so ICMP reports their length, too (RFC 1122 §3.2.2).
    #[test]
    fn a_long_ping_is_answered() {
        for what in [
            "src=10.0.0.9 dst=10.0.0.80 df=1 proto=icmp icmp_type=8",
            "src=10.0.0.9 dst=10.0.0.80 df=1 proto=icmp icmp_type=0",
            "src=fd00::9 dst=fd00::80 proto=icmpv6 icmp_type=128",
        ] {
            assert!(answer(&long(what, 100), 60).is_some(), "{what}");
        }
        let ping = long("src=fd00::9 dst=fd00::80 proto=icmpv6 icmp_type=128", 100);
        assert!(answer(&behind_options(&ping), 60).is_some());
        let udp = long("src=fd00::9 dst=fd00::80 proto=udp sport=1 dport=2", 100);
        assert!(answer(&behind_options(&udp), 60).is_some());
    }

    /// Fragments after the first are answered unless they carry ICMP (RFC 4443 §2.4 excludes errors only).
    #[test]
    fn later_fragments_of_ipv6_are_answered_unless_they_may_be_of_an_error() {
        let fragment = |next: u8, offset: u16| {
            let mut frame = behind_options(&long("src=fd00::9 dst=fd00::80 proto=udp sport=1 dport=2", 100));
            frame[20] = FRAGMENT;
            frame[54] = next;
            frame[56..58].copy_from_slice(&(offset << 3 | 1).to_be_bytes());
            answer(&frame, 60).is_some()
        };
        assert_eq!([fragment(17, 0), fragment(17, 9)], [true, true]);
        assert_eq!([fragment(PROTOCOL_ICMPV6, 0), fragment(PROTOCOL_ICMPV6, 9)], [false, false]);
        assert_eq!([fragment(DESTINATION_OPTIONS, 9), fragment(6, 9)], [false, true]);
    }
}
