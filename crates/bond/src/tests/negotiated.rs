//! Bonds with LACP send and accept nothing without the partner's consent.

use super::frames::udp;
use super::rig::{BondRig, LINKS, MS, SEC, bond, lacp_config};
use crate::lacp::{Negotiation, SLOW_ADDRESS};
use crate::{Bond, Mode, lacp};

fn fallback(members: u16) -> Bond {
    Bond { lacp: Some(lacp::Config { fallback: true, ..lacp_config(1) }), ..bond(Mode::BalanceTcp, members) }
}

#[test]
fn configured_and_not_negotiated_nothing_is_sent_or_taken() {
    let mut rig = BondRig::new(bond(Mode::BalanceTcp, 2));
    for _ in 0..20 {
        assert_eq!(rig.send(&udp(1)), [0; 0]);
        assert_eq!([1, 2].map(|port| rig.receive(port, &udp(1))), [0, 0]);
        rig.run(SEC);
        rig.assert_sound();
    }
    rig.add_partner();
    rig.run(3 * SEC);
    assert_eq!(rig.enabled(), [1, 2], "negotiated within 3 s");
    assert_eq!([1, 2].map(|port| rig.receive(port, &udp(1))), [1, 1]);
    assert_eq!(rig.send(&udp(1)).len(), 1);
    rig.assert_sound();
}

#[test]
fn l4_a_silent_link_is_left_within_3_s_and_returns() {
    let mut rig = BondRig::negotiated(2);
    let table = rig.table();
    rig.cut(2, true);
    rig.run(3 * SEC + 2 * MS);
    assert_eq!(rig.enabled(), [1]);
    assert!((0..100).all(|flow| rig.send(&udp(flow)) == [1]));
    rig.run(6 * SEC);
    rig.assert_sound();
    rig.cut(2, false);
    rig.run(5 * SEC);
    assert_eq!(rig.enabled(), [1, 2]);
    assert_eq!(rig.table(), table);
    rig.assert_sound();
}

#[test]
fn when_all_partners_are_silent_nothing_is_sent_though_links_have_carrier() {
    let mut rig = BondRig::negotiated(2);
    (1..=2).for_each(|port| rig.cut(port, true));
    rig.run(4 * SEC);
    assert_eq!(rig.enabled(), [0; 0]);
    assert_eq!(rig.send(&udp(1)), [0; 0]);
    rig.run(SEC);
    assert_eq!([1, 2].map(|port| rig.receive(port, &udp(1))), [0, 0]);
    rig.assert_sound();
    (1..=2).for_each(|port| rig.cut(port, false));
    rig.run(5 * SEC);
    assert_eq!(rig.enabled(), [1, 2]);
    rig.assert_sound();
}

#[test]
fn with_fallback_one_member_works_until_a_partner_speaks() {
    let mut rig = BondRig::new(fallback(3));
    rig.run(4 * SEC);
    assert_eq!(rig.app.aggregation.negotiation, Negotiation::Fallback);
    assert_eq!(rig.active(), Some(1));
    assert!((0..100).all(|flow| rig.send(&udp(flow)) == [1]));
    assert_eq!([1, 2, 3].map(|port| rig.receive(port, &udp(1))), [1, 0, 0]);
    rig.assert_sound();
    let mark = rig.sent.len();
    rig.carrier(1, false);
    assert_eq!(rig.send(&udp(1)), [2]);
    assert!(
        rig.data_since(mark).iter().any(|seen| super::frames::is_rarp(&seen.bytes)),
        "the switch has to learn"
    );
    rig.assert_sound();
    rig.carrier(1, true);
    rig.add_partner();
    rig.run(5 * SEC);
    assert_eq!(rig.app.aggregation.negotiation, Negotiation::Negotiated);
    assert_eq!(rig.shares().len(), 3);
    assert_eq!([1, 2, 3].map(|port| rig.receive(port, &udp(1))), [1, 1, 1]);
    rig.assert_sound();
}

#[test]
fn in_fallback_a_link_that_comes_up_interrupts_nothing() {
    let mut rig = BondRig::new(fallback(2));
    rig.run(4 * SEC);
    for _ in 0..3 {
        rig.carrier(2, false);
        rig.run(SEC);
        rig.carrier(2, true);
        for _ in 0..50 {
            assert_eq!(rig.send(&udp(1)), [1]);
            rig.run(100 * MS);
            rig.assert_sound();
        }
    }
    assert_eq!(rig.app.aggregation.negotiation, Negotiation::Fallback);
}

#[test]
fn a_partner_that_is_only_taken_from_ends_the_fallback() {
    let mut rig = BondRig::new(fallback(2));
    rig.add_partner();
    rig.cut(2, true);
    rig.run(8 * SEC);
    assert_eq!(rig.app.aggregation.negotiation, Negotiation::Negotiated);
    rig.carrier(1, false);
    assert_eq!((rig.app.aggregation.negotiation, rig.send(&udp(1))), (Negotiation::Fallback, vec![2]));
    rig.carrier(1, true);
    // The partner collects before it distributes.
    for _ in 0..100 {
        rig.run(MS / 10);
        rig.assert_sound();
    }
    rig.run(5 * SEC);
    assert_eq!((rig.app.aggregation.negotiation, rig.send(&udp(1))), (Negotiation::Negotiated, vec![1]));
    rig.assert_sound();
}

#[test]
fn a_member_that_a_reload_adds_in_fallback_may_be_used() {
    let mut rig = BondRig::new(fallback(1));
    rig.run(4 * SEC);
    assert_eq!(rig.send(&udp(1)), [1]);
    rig.reload(fallback(2));
    assert_eq!(rig.send(&udp(1)), [1]);
    rig.carrier(1, false);
    rig.run(4 * SEC);
    assert_eq!(rig.send(&udp(1)), [2]);
    rig.assert_sound();
}

#[test]
fn active_backup_with_lacp_takes_what_the_partner_sends_by_any_member() {
    let mut rig = BondRig::new(Bond { lacp: Some(lacp_config(1)), ..bond(Mode::ActiveBackup, 2) });
    rig.add_partner();
    rig.run(5 * SEC);
    assert!((0..100).all(|flow| rig.send(&udp(flow)) == [1]));
    assert_eq!([1, 2].map(|port| rig.receive(port, &udp(1))), [1, 1]);
    rig.carrier(1, false);
    assert_eq!(rig.send(&udp(1)), [2]);
    rig.assert_sound();
}

#[test]
fn too_few_links_are_none() {
    let config = lacp::Config { min_links: 2, ..lacp_config(1) };
    let mut rig = BondRig::new(Bond { lacp: Some(config), ..bond(Mode::BalanceTcp, 2) });
    rig.add_partner();
    rig.run(5 * SEC);
    assert_eq!(rig.enabled(), [1, 2]);
    rig.carrier(2, false);
    assert_eq!((rig.enabled(), rig.send(&udp(1))), (vec![], vec![]));
    rig.assert_sound();
    rig.carrier(2, true);
    rig.run(5 * SEC);
    assert_eq!(rig.enabled(), [1, 2]);
    rig.assert_sound();
}

/// Corrupted variants of one of the partner's LACPDUs.
fn hostile(pdu: &[u8]) -> Vec<Vec<u8>> {
    let spoilt = |at: usize, byte: u8| {
        let mut frame = pdu.to_vec();
        frame[at] = byte;
        frame
    };
    let mut own = pdu.to_vec();
    own[20..26].copy_from_slice(&lacp_config(1).system.mac);
    let mut all: Vec<Vec<u8>> = (14..pdu.len().min(124)).map(|length| pdu[..length].to_vec()).collect();
    all.extend([
        spoilt(14, 2),
        spoilt(14, 10),
        spoilt(14, 0xff),
        spoilt(15, 0),
        spoilt(16, 9),
        spoilt(17, 1),
        own,
    ]);
    // Sent to an address that is not the protocol's.
    all.extend([spoilt(5, 3), spoilt(0, 2)]);
    all
}

#[test]
fn hostile_lacpdus_change_nothing() {
    let mut rig = BondRig::negotiated(2);
    let partner = rig.partner.as_ref().unwrap().lacp.status();
    let (actor, us) = (partner.members[0].actor, partner.members[0].partner);
    let pdu = lacp::LacpPdu { actor, partner: us, collector_delay: 0 }.frame([2, 9, 9, 0, 0, 1]);
    assert_eq!(pdu[..6], SLOW_ADDRESS);
    let (table, admitted, inside) = (rig.table(), rig.admitted(), rig.inside.len());
    for frame in hostile(&pdu) {
        rig.frame(1, &frame);
        assert_eq!((rig.table(), rig.enabled()), (table.clone(), vec![1, 2]), "{frame:02x?}");
        assert_eq!(rig.admitted(), admitted);
        rig.assert_sound();
    }
    let to_others = |frame: &Vec<u8>| frame[..6] != SLOW_ADDRESS;
    assert_eq!(rig.inside[inside..].iter().filter(|frame| !to_others(frame)).count(), 0, "none is forwarded");
    rig.run(10 * SEC);
    assert_eq!((rig.table(), rig.enabled()), (table, vec![1, 2]));
    let shown = rig.ask("show").unwrap();
    assert!(shown["members"][0]["lacp"]["refused"].as_u64().unwrap() > 100, "{shown}");
    assert_eq!(shown["members"][1]["lacp"]["refused"], 0);
    assert!(rig.said.len() < 40, "and the log is not flooded: {}", rig.said.len());
}

#[test]
fn a_hundred_flaps_leave_the_table_as_it_was() {
    let mut rig = BondRig::negotiated(LINKS);
    let table = rig.table();
    for flap in 0..100 {
        let port = 1 + flap % LINKS;
        rig.carrier(port, false);
        rig.assert_sound();
        rig.carrier(port, true);
        rig.run(4 * SEC);
        rig.assert_sound();
    }
    assert_eq!(rig.table(), table);
}
