//! Modes that OVS lacks, and probes.

use super::frames::udp;
use super::rig::{BondRig, MS, SEC, Seen, bond};
use crate::announcements::{self, ADVERTISEMENT};
use crate::links::Need;
use crate::{Bond, Mode, Probe};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use weir_packet::craft;

#[test]
fn round_robin_deals_out_in_turn() {
    let mut rig = BondRig::new(bond(Mode::RoundRobin, 2));
    let left: Vec<u16> = (0..512).flat_map(|_| rig.send(&udp(1))).collect();
    assert_eq!(left.iter().filter(|port| **port == 1).count(), 256, "one flow, evenly");
    assert!(left.windows(4).all(|some| some.contains(&1) && some.contains(&2)), "not in long bursts");
    rig.carrier(2, false);
    assert!((0..100).all(|_| rig.send(&udp(1)) == [1]));
    rig.carrier(2, true);
    assert_eq!([1, 2].map(|port| rig.receive(port, &udp(1))), [1, 1]);
    rig.assert_sound();
}

#[test]
fn broadcast_leaves_by_every_member_whatever_its_speed() {
    let fast_first =
        |wire: &super::rig::BondWire| super::rig::BondWire { speed_bps: Some(1_000_000_000), ..*wire };
    let mut rig = BondRig::with_wires(bond(Mode::Broadcast, 4), fast_first);
    rig.wires.get_mut(&1).unwrap().speed_bps = Some(100_000_000_000);
    rig.carrier(1, true);
    rig.run(2 * SEC);
    assert_eq!(rig.send(&udp(1)), [1, 2, 3, 4]);
    rig.carrier(3, false);
    assert_eq!(rig.send(&udp(1)), [1, 2, 4]);
    rig.carrier(1, false);
    rig.carrier(2, false);
    assert_eq!(rig.send(&udp(1)), [4]);
    rig.carrier(4, false);
    assert_eq!(rig.send(&udp(1)), [0; 0]);
    (1..=4).for_each(|port| rig.carrier(port, true));
    rig.run(2 * SEC);
    assert_eq!(rig.send(&udp(1)), [1, 2, 3, 4]);
    rig.assert_sound();
}

#[test]
fn the_active_member_has_everything_whatever_its_weight() {
    let mut weightless = bond(Mode::ActiveBackup, 2);
    weightless.members[0].weight = Some(0);
    let mut rig = BondRig::new(weightless);
    assert_eq!((rig.active(), rig.send(&udp(1))), (Some(1), vec![1]));
    rig.assert_sound();
}

#[test]
fn shares_are_as_weights_or_speeds() {
    let mut rig = BondRig::with_wires(bond(Mode::Static, 3), |wire| *wire);
    rig.wires.get_mut(&3).unwrap().speed_bps = Some(10_000_000_000);
    rig.carrier(3, true);
    rig.run(2 * SEC);
    let shares = rig.shares();
    assert!(shares[&3].abs_diff(256 * 10 / 12) <= 1 && shares[&1].abs_diff(256 / 12) <= 1, "{shares:?}");
    let mut weighted = rig.bond.clone();
    weighted.members.iter_mut().zip([1, 1, 2]).for_each(|(member, weight)| member.weight = Some(weight));
    rig.reload(weighted);
    rig.run(2 * SEC);
    assert_eq!(rig.shares(), BTreeMap::from([(1, 64), (2, 64), (3, 128)]));
    rig.assert_sound();
}

#[test]
fn a_static_bond_needs_nobody_and_takes_from_all() {
    let mut rig = BondRig::new(bond(Mode::Static, 2));
    assert_eq!(rig.enabled(), [1, 2]);
    assert_eq!([1, 2, 3].map(|port| rig.receive(port, &udp(1))), [1, 1, 0]);
    rig.carrier(2, false);
    assert_eq!([1, 2].map(|port| rig.receive(port, &udp(1))), [1, 0]);
    // LACPDUs of a partner that speaks LACP regardless are not delivered.
    rig.carrier(2, true);
    rig.add_partner();
    rig.run(5 * SEC);
    assert!(rig.inside.iter().all(|frame| frame[12..14] != [0x88, 0x09]));
    rig.assert_sound();
}

/// Where the ARP message of a frame begins, and the frame's tag in words.
fn arp_of(frame: &[u8]) -> Option<(usize, String)> {
    match frame[12..18] {
        [8, 6, ..] => Some((14, String::new())),
        [0x81, 0, 0, vid, 8, 6] => Some((18, format!("vlan={vid}"))),
        _ => None,
    }
}

/// Answers the probes sent on these members since `since`, each to the member given by `to`; returns the
/// number of probes.
fn answer_to(rig: &mut BondRig, since: usize, by: &[u16], to: fn(u16) -> u16) -> usize {
    let asked: Vec<Seen> =
        rig.sent[since..].iter().filter(|seen| arp_of(&seen.bytes).is_some()).cloned().collect();
    for seen in asked.iter().filter(|seen| by.contains(&seen.port)) {
        let (at, tag) = arp_of(&seen.bytes).unwrap();
        let target = Ipv4Addr::from_octets(seen.bytes[at + 24..at + 28].try_into().unwrap());
        let to = to(seen.port);
        let reply = craft::frame(&format!(
            "eth.src=02:00:00:00:99:99 eth.dst=02:00:00:00:00:{to:02x} {tag} arp=reply sender_ip={target} \
                target_ip=0.0.0.0"
        ));
        let admitted = rig.admitted().contains(&seen.port);
        let arrived = rig.receive(seen.port, &reply);
        assert_eq!(arrived, usize::from(admitted), "the answer itself is forwarded like any frame");
    }
    asked.len()
}

fn answer(rig: &mut BondRig, since: usize, by: &[u16]) -> usize {
    answer_to(rig, since, by, |port| port)
}

/// LACP takes seconds to notice a partner that has fallen silent on a link with carrier.
#[test]
fn probes_in_a_vlan_notice_a_silent_link_within_100_ms() {
    for vlan in [None, Some(7)] {
        let probe = Probe {
            targets: vec!["10.0.0.1".parse().unwrap()],
            source: Ipv4Addr::UNSPECIFIED,
            vlan,
            interval_ms: 20,
            missed_max: 2,
            need: Need::Any,
        };
        let mut rig = BondRig::new(Bond { probe: Some(probe), ..bond(Mode::Static, 2) });
        answer(&mut rig, 0, &[1, 2]);
        for _ in 0..10 {
            let mark = rig.sent.len();
            rig.run(20 * MS);
            answer(&mut rig, mark, &[1, 2]);
        }
        assert_eq!(rig.enabled(), [1, 2], "vlan {vlan:?}");
        let silent_ns = rig.now_ns;
        while rig.enabled() == [1, 2] {
            let mark = rig.sent.len();
            rig.run(20 * MS);
            answer(&mut rig, mark, &[1]);
            assert!(rig.now_ns - silent_ns < 100 * MS, "vlan {vlan:?}");
        }
        assert_eq!(rig.enabled(), [1]);
        rig.assert_sound();
    }
}

/// A switch floods frames to unknown addresses, so a member may see answers to other stations.
#[test]
fn an_answer_to_another_station_says_nothing_about_a_member() {
    let probe = Probe {
        targets: vec!["10.0.0.1".parse().unwrap()],
        source: Ipv4Addr::UNSPECIFIED,
        vlan: None,
        interval_ms: 100,
        missed_max: 2,
        need: Need::Any,
    };
    let mut rig = BondRig::new(Bond { probe: Some(probe), ..bond(Mode::Static, 2) });
    answer_to(&mut rig, 0, &[1, 2], |port| port + 1);
    assert_eq!(rig.enabled(), [0; 0]);
    answer(&mut rig, 0, &[1, 2]);
    assert_eq!(rig.enabled(), [1, 2]);
}

/// A frame to a reserved group address, of this EtherType.
fn reserved(last: u8, ether_type: u16) -> Vec<u8> {
    craft::frame(&format!(
        "eth.src=02:00:00:00:88:01 eth.dst=01:80:c2:00:00:{last:02x} type={ether_type:#06x}"
    ))
}

/// The same frame from a station outside.
fn came_from(frame: &[u8]) -> Vec<u8> {
    [&frame[..6], &[2, 0, 0, 0, 0x99, 1], &frame[12..]].concat()
}

/// LACP, PAUSE, STP, EAPOL and LLDP are exchanged between neighbours only (IEEE 802.1Q table 8-1).
#[test]
fn reserved_group_addresses_are_not_relayed_unless_that_is_configured() {
    for (_, mode) in Mode::WORDS {
        for forward_reserved in [false, true] {
            let mut rig = BondRig::new(Bond { forward_reserved, ..bond(mode, 2) });
            if mode == Mode::BalanceTcp {
                rig.add_partner();
                rig.run(4 * SEC);
            }
            let case = format!("{mode:?} {forward_reserved}");
            assert_eq!(rig.enabled(), [1, 2], "{case}");
            // An LACPDU from inside leaves only through a bond without LACP of its own.
            let lacpdu = rig.send(&reserved(2, 0x8809)).len();
            assert_eq!(lacpdu > 0, forward_reserved && mode != Mode::BalanceTcp, "{case}");
            for last in 0..16 {
                let frame = reserved(last, 0x88cc);
                assert_eq!(!rig.send(&frame).is_empty(), forward_reserved, "{case}: {last:#x} to a member");
                let came: usize = [1, 2].map(|port| rig.receive(port, &came_from(&frame))).iter().sum();
                assert_eq!(came > 0, forward_reserved, "{case}: {last:#x} from a member");
            }
            // The next address is an ordinary group.
            let next = reserved(0x10, 0x88cc);
            assert!(!rig.send(&next).is_empty(), "{case}");
            assert!(
                [1, 2].map(|port| rig.receive(port, &came_from(&next))).iter().sum::<usize>() > 0,
                "{case}"
            );
            rig.assert_sound();
        }
    }
}

#[test]
fn a_member_whose_probes_are_not_answered_is_not_used() {
    let probe = Probe {
        targets: vec!["10.0.0.1".parse().unwrap()],
        source: Ipv4Addr::UNSPECIFIED,
        vlan: None,
        interval_ms: 100,
        missed_max: 2,
        need: Need::Any,
    };
    let mut rig = BondRig::new(Bond { probe: Some(probe), ..bond(Mode::Static, 2) });
    assert_eq!(rig.enabled(), [0; 0], "it must be answered first");
    assert_eq!(answer(&mut rig, 0, &[1, 2]), 2);
    assert_eq!(rig.enabled(), [1, 2]);
    for _ in 0..20 {
        let mark = rig.sent.len();
        rig.run(100 * MS);
        assert_eq!(answer(&mut rig, mark, &[1]), 2);
        rig.assert_sound();
    }
    assert_eq!(rig.enabled(), [1], "p2 is silent");
    assert!((0..100).all(|flow| rig.send(&udp(flow)) == [1]));
    let mark = rig.sent.len();
    rig.run(100 * MS);
    answer(&mut rig, mark, &[1, 2]);
    assert_eq!(rig.enabled(), [1, 2]);
    rig.assert_sound();
}

/// An address's answer to a member that asks for it.
fn advertised(target: Ipv6Addr, member: u8) -> Vec<u8> {
    let (own, from) = ([2, 0, 0, 0, 0, member], [2, 0, 0, 0, 7, 7]);
    let message = [&[ADVERTISEMENT, 0, 0, 0, 0x60, 0, 0, 0][..], &target.octets(), &[2, 1], &from].concat();
    announcements::icmpv6((from, own), None, (target, announcements::link_local(own)), message)
}

#[test]
fn ndp_targets_are_asked_and_strangers_are_not_heard() {
    let target: Ipv6Addr = "2001:db8::1".parse().unwrap();
    let probe = Probe {
        targets: vec![target.into()],
        source: Ipv4Addr::UNSPECIFIED,
        vlan: None,
        interval_ms: 1000,
        missed_max: 2,
        need: Need::Any,
    };
    let mut bond = Bond { probe: Some(probe), ..bond(Mode::BalanceTcp, 2) };
    bond.lacp.as_mut().unwrap().fallback = true;
    let mut rig = BondRig::new(bond);
    rig.add_partner();
    rig.run(4 * SEC);
    let stranger = "2001:db8::2".parse().unwrap();
    rig.frame(1, &advertised(stranger, 1));
    rig.frame(1, &advertised(target, 2));
    // A switch floods frames for all stations to every member, including answers that another station has
    // requested.
    rig.frame(1, &announcements::address([2, 0, 0, 0, 7, 7], target.into()));
    assert_eq!(rig.enabled(), [0; 0]);
    rig.frame(1, &advertised(target, 1));
    assert_eq!(rig.enabled(), [1]);
    let refused = rig.ask("show").unwrap()["members"][0]["lacp"]["refused"].clone();
    assert_eq!(refused, 0, "an answer is no LACPDU");
    rig.assert_sound();
}
