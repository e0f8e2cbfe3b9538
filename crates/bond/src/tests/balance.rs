//! The member through which a frame leaves: OVS's cases B1 to B5, B12 and B13, with their numbers.

use super::frames::{from, tcp, udp};
use super::rig::{BondRig, MS, SEC, bond};
use crate::Mode;
use std::collections::BTreeMap;
use weir_packet::craft;

/// Sends frames; returns how many left through each member, after checking that each left exactly once.
fn spread(rig: &mut BondRig, frames: impl IntoIterator<Item = Vec<u8>>) -> BTreeMap<u16, usize> {
    let mut spread = BTreeMap::new();
    for frame in frames {
        let left = rig.send(&frame);
        assert_eq!(left.len(), 1, "B13: a frame leaves exactly once");
        *spread.entry(left[0]).or_default() += 1;
    }
    spread
}

#[test]
fn b1_256_flows_are_spread_over_three_members() {
    let mut rig = BondRig::negotiated(3);
    let spread = spread(&mut rig, (0..256).map(|dport| tcp(dport, 60)));
    assert!(spread.len() == 3 && spread.values().all(|flows| *flows >= 47), "{spread:?}");
    let mut shares: Vec<usize> = rig.shares().into_values().collect();
    shares.sort_unstable();
    assert_eq!(shares, [85, 85, 86]);
    rig.assert_sound();
}

#[test]
fn b2_buckets_follow_links_and_nothing_that_was_counted_is_lost() {
    let mut rig = BondRig::new({
        let mut bond = bond(Mode::BalanceTcp, 2);
        bond.rebalance_ms = 1000;
        bond
    });
    rig.add_partner();
    rig.run(5 * SEC);
    let mut sent = 0;
    let mut before = rig.report();
    let mut traffic = |rig: &mut BondRig| {
        for dport in (0..256).cycle().take(3 * 256) {
            rig.send(&tcp(dport, 1500));
            sent += 1500;
        }
        let report = rig.report();
        let grew = |new: &[u64], old: &[u64]| new.iter().zip(old).all(|(new, old)| new >= old);
        assert!(
            grew(&report.bytes, &before.bytes) && grew(&report.packets, &before.packets),
            "counters never decrease"
        );
        assert_eq!(report.bytes.iter().sum::<u64>(), sent, "what the buckets counted is what was sent");
        before = report;
        rig.run(SEC);
        rig.assert_sound();
    };
    traffic(&mut rig);
    let first = rig.table();
    assert!(rig.shares()[&2] > 0);
    rig.carrier(2, false);
    rig.run(200 * MS);
    let second = rig.table();
    assert_eq!(rig.shares().get(&2), None, "p2 has no bucket");
    let stays = |(old, new): (&Option<u16>, &Option<u16>)| *old == Some(2) || old == new;
    assert!(first.iter().zip(&second).all(stays), "only buckets of p2 moved");
    traffic(&mut rig);
    rig.carrier(2, true);
    rig.run(4 * SEC);
    traffic(&mut rig);
    assert_eq!(rig.table(), first, "it returns and gets its buckets back");
    for port in [1, 2] {
        rig.carrier(port, false);
    }
    rig.run(SEC);
    rig.assert_sound();
    assert_eq!(rig.send(&udp(1)), [0; 0]);
    for port in [1, 2] {
        rig.carrier(port, true);
    }
    rig.run(5 * SEC);
    rig.assert_sound();
    assert_eq!(rig.table(), first);
}

#[test]
fn b3_a_frame_of_its_own_while_a_member_goes_down_reaches_the_others() {
    let mut rig = BondRig::new(bond(Mode::BalanceSlb, 2));
    for station in 0..40 {
        rig.send(&from(station, None, 1));
    }
    let mark = rig.sent.len();
    rig.carrier(2, false);
    // The announcements sent when the member was lost followed the new assignment of buckets.
    let announced = rig.data_since(mark);
    assert_eq!(announced.len(), 40);
    assert!(announced.iter().all(|seen| seen.port == 1));
    assert_eq!(rig.shares().get(&2), None);
    rig.assert_sound();
}

#[test]
fn b4_a_packet_is_classified_once_and_its_tag_does_not_matter() {
    let mut rig = BondRig::negotiated(3);
    let pipe = rig.program.pipe_named("bond0").unwrap();
    for flow in 0..100 {
        let plain = rig.send(&from(1, None, flow));
        for vid in [1, 2, 4094] {
            assert_eq!(rig.send(&from(1, Some(vid), flow)), plain, "VLAN {vid}");
        }
    }
    let hits: u64 = rig.engine.entries(pipe).iter().map(|(_, count)| count.packets).sum();
    let snapshot = rig.engine.snapshot();
    assert_eq!((hits, snapshot.pipes[pipe.index()].misses.packets), (400, 0));
    assert_eq!(snapshot.buckets[0].packets.iter().sum::<u64>(), 400);
}

#[test]
fn b5_stations_are_spread_and_stay() {
    let mut rig = BondRig::new(bond(Mode::BalanceSlb, 3));
    let spread = spread(&mut rig, (0..=100).map(|station| from(station, None, 1)));
    assert!(spread.len() == 3 && spread.values().all(|stations| *stations >= 10), "{spread:?}");
    let mut differ = 0;
    for station in 0..=100 {
        let of = |rig: &mut BondRig, vid| {
            let first = rig.send(&from(station, vid, 1));
            assert!(
                (2..20).all(|flow| rig.send(&from(station, vid, flow)) == first),
                "sticky per MAC and VLAN"
            );
            first
        };
        differ += usize::from(of(&mut rig, Some(7)) != of(&mut rig, Some(8)));
    }
    assert!((30..=90).contains(&differ), "the VLANs of one station are spread, too: {differ}");
    rig.assert_sound();
}

#[test]
fn b12_flows_make_no_entries() {
    let mut rig = BondRig::negotiated(3);
    let entries =
        |rig: &BondRig| rig.engine.snapshot().pipes.iter().map(|pipe| pipe.entries.len()).sum::<usize>();
    let before = entries(&rig);
    for flow in 0..10_000 {
        rig.frame(0, &udp(flow));
    }
    assert_eq!(entries(&rig), before);
    assert_eq!(rig.data_since(0).len(), 10_000);
    rig.run(10 * MS);
    assert_eq!((rig.taken.len(), rig.refused_by_partner), (10_000, 0));
}

#[test]
fn fragments_of_a_datagram_stay_on_one_member() {
    let mut rig = BondRig::negotiated(3);
    let mut members = BTreeMap::new();
    for host in 1..=100 {
        let fragment = |offset: &str| {
            let ports = if offset == "0+" { "sport=7 dport=9" } else { "" };
            craft::frame(&format!(
                "src=10.0.1.{host} dst=10.0.0.1 id=9 frag={offset} proto=udp {ports} len=100"
            ))
        };
        let first = rig.send(&fragment("0+"));
        assert_eq!(rig.send(&fragment("64+")), first);
        assert_eq!(rig.send(&fragment("128")), first);
        *members.entry(first).or_insert(0) += 1;
    }
    assert!(
        members.len() == 3 && members.values().all(|count| *count > 10),
        "datagrams are spread: {members:?}"
    );
}

#[test]
fn another_basis_is_another_spread_of_the_same_buckets() {
    let mut rig = BondRig::negotiated(2);
    let table = rig.table();
    let before: Vec<Vec<u16>> = (0..256).map(|flow| rig.send(&udp(flow))).collect();
    let mut bond = rig.bond.clone();
    bond.basis = 77;
    rig.reload(bond);
    assert_eq!(rig.table(), table, "no bucket moves");
    let differ = (0..256).filter(|flow| rig.send(&udp(*flow)) != before[usize::from(*flow)]).count();
    assert!((90..=166).contains(&differ), "half of the flows change member: {differ}");
    rig.run(5 * SEC);
    rig.assert_sound();
}
