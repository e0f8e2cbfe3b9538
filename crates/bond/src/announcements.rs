//! The announcements of a bond: that an address is now reached through another member. It sends RARP for MAC
//! addresses inside (what bridges learn from), and gratuitous ARP and unsolicited neighbour advertisements
//! for IP addresses. This file also has the requests with which the bond probes.
//!
//! Stations are announced a few at a time, because workers have limited room for frames.

use super::config::{Bond, Inward};
use super::learnt::{Learnt, LearntAddress, MacBytes};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_app::Action;
use weir_program::PortId;

/// Stations announced in one batch; the next batch follows a millisecond later.
const AT_ONCE: usize = 64;
const PAUSE_NS: u64 = 1_000_000;

/// Stations that are still to be announced.
#[derive(Default)]
pub(super) struct Announcements {
    waiting: VecDeque<(MacBytes, LearntAddress)>,
    next_ns: Option<u64>,
}

impl Announcements {
    /// Announces the bond's own addresses through the active member's port, and restarts the announcement of
    /// all known stations.
    pub fn start(&mut self, bond: &Bond, output: PortId, learnt: &Learnt, actions: &mut Vec<Action>) {
        let own = |ip: &IpAddr| Action::Inject { bytes: address(bond.mac(), *ip), output };
        actions.extend(bond.announce.iter().map(own));
        self.waiting = learnt.iter().collect();
    }

    /// Returns when the next stations are announced.
    pub fn wake_ns(&self) -> Option<u64> {
        self.next_ns
    }

    /// Announces the next stations, through the bucket that their own frames use.
    pub fn send(&mut self, now_ns: u64, inward: Inward, learnt: &Learnt, actions: &mut Vec<Action>) {
        let count = self.waiting.len().min(AT_ONCE);
        let next: Vec<_> = self.waiting.drain(..count).collect();
        if let Inward::Port(input) = inward {
            let through = |(mac, vid)| Action::InjectThrough { bytes: rarp(mac, vid), input };
            let still = next.into_iter().filter(|(mac, _)| learnt.knows(*mac));
            actions.extend(still.map(|(mac, known)| through((mac, known.vid))));
        }
        self.next_ns = (!self.waiting.is_empty()).then(|| now_ns + PAUSE_NS);
    }
}

const BROADCAST: MacBytes = [0xff; 6];
/// EtherType of RARP (RFC 903).
const ETHER_RARP: u16 = 0x8035;
const ETHER_ARP: u16 = 0x0806;
const ETHER_IPV6: u16 = 0x86dd;
/// The ICMPv6 type of a neighbour advertisement.
pub(super) const ADVERTISEMENT: u8 = 136;
/// Shows that no router has forwarded a message (RFC 4861 §7.1.2).
const HOP_LIMIT: u8 = 255;
/// Frames are padded to Ethernet's minimum length, without FCS.
const SHORTEST: usize = 60;

/// A reverse ARP request from an address inside to all stations (RFC 903). It needs no answer: its purpose is
/// that bridges learn where the address is.
#[must_use]
pub fn rarp(mac: MacBytes, vid: Option<u16>) -> Vec<u8> {
    arp_like((mac, vid), ETHER_RARP, 3, [Ipv4Addr::UNSPECIFIED; 2])
}

/// Announces where an IP address is: gratuitous ARP (RFC 5227 §3) or an unsolicited neighbour advertisement
/// (RFC 4861 §7.2.6).
#[must_use]
pub fn address(mac: MacBytes, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => arp_like((mac, None), ETHER_ARP, 1, [address; 2]),
        IpAddr::V6(address) => advertisement(mac, address),
    }
}

/// Asks who has an address, with an ARP request (RFC 826) or a neighbour solicitation (RFC 4861 §4.3). The
/// solicitation has a source address, because the answer to a solicitation without one goes to all nodes
/// (§7.2.4), and a switch floods it to every member.
#[must_use]
pub fn question((mac, vid): (MacBytes, Option<u16>), source: Ipv4Addr, target: IpAddr) -> Vec<u8> {
    match target {
        IpAddr::V4(target) => arp_like((mac, vid), ETHER_ARP, 1, [source, target]),
        IpAddr::V6(target) => {
            let [.., a, b, c] = target.octets();
            let group =
                Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]));
            let message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets(), &[1, 1], &mac].concat();
            icmpv6((mac, [0x33, 0x33, 0xff, a, b, c]), vid, (link_local(mac), group), message)
        }
    }
}

/// The link-local address of a station that has no other (RFC 4291, appendix A).
#[must_use]
pub fn link_local([a, b, c, d, e, f]: MacBytes) -> Ipv6Addr {
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Returns the station that answers a probe of `own` with this frame: an ARP reply or a neighbour
/// advertisement to `own`. The answer must be in the probe's VLAN; a tag with VLAN 0 carries only a priority.
/// An answer to another address proves nothing about this link, because a switch floods frames to groups and
/// to unknown addresses.
#[must_use]
pub fn answer(frame: &[u8], own: MacBytes, vid: Option<u16>) -> Option<IpAddr> {
    let tag = frame.get(14..16).filter(|_| frame[12..14] == [0x81, 0]);
    let tagged = tag.map(|tag| u16::from_be_bytes([tag[0] & 0xf, tag[1]]));
    if tagged.filter(|vid| *vid != 0) != vid {
        return None;
    }
    let rest = frame.get(if tag.is_some() { 16 } else { 12 }..)?;
    let ether_type = u16::from_be_bytes(*rest.first_chunk()?);
    if frame[..6] != own {
        return None;
    }
    match ether_type {
        ETHER_ARP if *rest.get(8..10)? == [0, 2] => {
            Some(IpAddr::from(<[u8; 4]>::try_from(rest.get(16..20)?).ok()?))
        }
        ETHER_IPV6
            if *rest.get(8..10)? == [58, HOP_LIMIT]
                && *rest.get(26..42)? == link_local(own).octets()
                && *rest.get(42..44)? == [ADVERTISEMENT, 0] =>
        {
            Some(IpAddr::from(<[u8; 16]>::try_from(rest.get(50..66)?).ok()?))
        }
        _ => None,
    }
}

fn arp_like(
    (mac, vid): (MacBytes, Option<u16>),
    ether_type: u16,
    operation: u16,
    [sender, target]: [Ipv4Addr; 2],
) -> Vec<u8> {
    let mut frame = ethernet(BROADCAST, mac, vid, ether_type);
    frame.extend([0, 1, 8, 0, 6, 4]);
    frame.extend(operation.to_be_bytes());
    frame.extend(mac);
    frame.extend(sender.octets());
    // RARP asks for the sender's own address; ARP leaves the target's address open.
    frame.extend(if ether_type == ETHER_RARP { mac } else { [0; 6] });
    frame.extend(target.octets());
    frame.resize(frame.len().max(SHORTEST), 0);
    frame
}

/// RFC 4861 §4.4, to all nodes, with the override flag and the target's link-layer address.
fn advertisement(mac: MacBytes, address: Ipv6Addr) -> Vec<u8> {
    const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let message = [&[ADVERTISEMENT, 0, 0, 0, 0x20, 0, 0, 0][..], &address.octets(), &[2, 1], &mac].concat();
    icmpv6((mac, [0x33, 0x33, 0, 0, 0, 1]), None, (address, ALL_NODES), message)
}

/// A neighbour discovery message with its checksum (RFC 4443 §2.3).
pub(super) fn icmpv6(
    (from, to): (MacBytes, MacBytes),
    vid: Option<u16>,
    (source, target): (Ipv6Addr, Ipv6Addr),
    mut message: Vec<u8>,
) -> Vec<u8> {
    let length = message.len() as u16;
    let pseudo =
        [&source.octets()[..], &target.octets(), &u32::from(length).to_be_bytes(), &[0, 0, 0, 58]].concat();
    let sum = weir_packet::checksum(weir_packet::Sum::default().bytes(&pseudo).bytes(&message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = ethernet(to, from, vid, ETHER_IPV6);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend([58, HOP_LIMIT]);
    frame.extend(source.octets());
    frame.extend(target.octets());
    frame.extend(message);
    frame
}

fn ethernet(to: MacBytes, from: MacBytes, vid: Option<u16>, ether_type: u16) -> Vec<u8> {
    let mut frame = [to, from].concat();
    if let Some(vid) = vid {
        frame.extend([0x81, 0]);
        frame.extend((vid & 0xfff).to_be_bytes());
    }
    frame.extend(ether_type.to_be_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacBytes = [2, 0, 0, 0, 0, 9];

    #[test]
    fn rarp_is_as_bridges_want_it() {
        let frame = rarp(MAC, None);
        assert_eq!(frame.len(), SHORTEST);
        assert_eq!(frame[..14], [255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 9, 0x80, 0x35]);
        assert_eq!(frame[14..22], [0, 1, 8, 0, 6, 4, 0, 3]);
        assert_eq!((&frame[22..28], &frame[32..38]), (&MAC[..], &MAC[..]));
        assert_eq!(rarp(MAC, Some(7))[12..18], [0x81, 0, 0, 7, 0x80, 0x35]);
    }

    #[test]
    fn an_ipv4_address_is_announced_by_gratuitous_arp() {
        let frame = address(MAC, "192.0.2.1".parse().unwrap());
        assert_eq!(frame[12..22], [8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        assert_eq!((&frame[28..32], &frame[38..42]), (&[192, 0, 2, 1][..], &[192, 0, 2, 1][..]));
    }

    /// The answer of 2001:db8::abcd to a station.
    fn advertised((mac, ip): (MacBytes, Ipv6Addr), vid: Option<u16>) -> Vec<u8> {
        let from = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xabcd);
        let message =
            [&[ADVERTISEMENT, 0, 0, 0, 0x60, 0, 0, 0][..], &from.octets(), &[2, 1], &[2; 6]].concat();
        icmpv6(([2; 6], mac), vid, (from, ip), message)
    }

    #[test]
    fn questions_and_answers_name_the_target() {
        let [v4, v6]: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "2001:db8::abcd".parse().unwrap()];
        for (vid, tag) in [(None, 0), (Some(7), 4)] {
            let ask = |target| question((MAC, vid), Ipv4Addr::UNSPECIFIED, target);
            let mut reply = ask(v4);
            let at = |from: usize, to: usize| from + tag..to + tag;
            assert_eq!((&reply[at(28, 32)], &reply[at(38, 42)]), (&[0; 4][..], &[192, 0, 2, 1][..]));
            reply[21 + tag] = 2;
            reply[at(28, 32)].copy_from_slice(&[192, 0, 2, 1]);
            assert_eq!(answer(&reply, MAC, vid), None, "a broadcast reply is not for us");
            reply[..6].copy_from_slice(&MAC);
            assert_eq!(answer(&reply, MAC, vid), Some(v4));
            assert_eq!(answer(&reply, [2, 0, 0, 0, 0, 8], vid), None, "someone else asked");
            assert_eq!(answer(&reply, MAC, Some(8)), None, "another VLAN");
            let asked = ask(v6);
            assert_eq!(asked[..6], [0x33, 0x33, 0xff, 0, 0xab, 0xcd]);
            assert_eq!(answer(&asked, MAC, vid), None);
            let own = link_local(MAC);
            assert_eq!(own, "fe80::ff:fe00:9".parse::<Ipv6Addr>().unwrap());
            assert_eq!(asked[at(22, 38)], own.octets(), "an answer to the zero address would be a broadcast");
            assert_eq!(asked[at(78, 86)], [1, 1, 2, 0, 0, 0, 0, 9], "where to send it");
            let reply = advertised((MAC, own), vid);
            assert_eq!(answer(&reply, MAC, vid), Some(v6));
            assert_eq!(answer(&reply, [2, 0, 0, 0, 0, 8], vid), None, "someone else asked");
            assert_eq!(answer(&reply, MAC, Some(8)), None, "another VLAN");
            assert_eq!(answer(&advertised((MAC, link_local([2; 6])), vid), MAC, vid), None, "another host");
            let mut routed = reply.clone();
            routed[21 + tag] = 254;
            assert_eq!(answer(&routed, MAC, vid), None, "it passed a router");
            assert!((0..reply.len() - 8).all(|length| answer(&reply[..length], MAC, vid).is_none()));
        }
        assert_eq!(answer(&address(MAC, v6), MAC, None), None, "a multicast advertisement is not for us");
        assert_eq!(answer(&[0; 13], MAC, None), None);
    }

    #[test]
    fn an_ipv6_address_is_announced_with_a_good_checksum() {
        let frame = address(MAC, "2001:db8::1".parse().unwrap());
        assert_eq!(frame.len(), 14 + 40 + 32);
        let headers = weir_packet::parse(&frame, weir_packet::Depth::L4).unwrap();
        assert_eq!(headers.outer().protocol, 58);
        let pseudo = [&frame[22..54], &[0, 0, 0, 32, 0, 0, 0, 58]].concat();
        let sum = weir_packet::Sum::default().bytes(&pseudo).bytes(&frame[54..]);
        assert_eq!(weir_packet::checksum(sum), 0);
    }
}
