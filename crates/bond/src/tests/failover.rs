//! Bonds to a switch that is unaware of them: Open vSwitch's cases B6 to B10.

use super::frames::{arp, from, is_rarp, source, udp};
use super::rig::{BondRig, MS, SEC, bond};
use crate::links::Reselect;
use crate::{Bond, Mode};
use std::net::IpAddr;

const STATIONS: [u16; 2] = [0x09, 0x0b];

fn two_stations(bond: Bond) -> BondRig {
    let mut rig = BondRig::new(bond);
    stations_leave_by(&mut rig, 1);
    rig
}

fn stations_leave_by(rig: &mut BondRig, port: u16) {
    for station in STATIONS {
        assert_eq!(rig.send(&from(station, None, 1)), [port]);
    }
    rig.assert_sound();
}

/// The RARP frames sent since `mark`: the member and the station of each.
fn announced(rig: &BondRig, mark: usize) -> Vec<(u16, u8)> {
    let of = rig.sent[mark..].iter().filter(|seen| is_rarp(&seen.bytes));
    let one = |seen: &super::rig::Seen| {
        assert_eq!(seen.bytes[..6], [0xff; 6], "to all");
        assert_eq!(source(&seen.bytes)[..5], [0x50, 0x54, 0, 0, 0], "from a station");
        (seen.port, source(&seen.bytes)[5])
    };
    of.map(one).collect()
}

#[test]
fn b6_another_member_takes_over_and_says_who_is_behind_it() {
    let mut rig = two_stations(bond(Mode::ActiveBackup, 2));
    let mark = rig.sent.len();
    rig.carrier(2, false);
    stations_leave_by(&mut rig, 1);
    assert_eq!(announced(&rig, mark), [], "losing a backup changes nothing");
    rig.carrier(2, true);
    assert_eq!(announced(&rig, mark), []);
    rig.carrier(1, false);
    assert_eq!(
        announced(&rig, mark),
        [(2, 0x09), (2, 0x0b)],
        "one announcement per station, before any \
        frame"
    );
    stations_leave_by(&mut rig, 2);
    let mark = rig.sent.len();
    rig.carrier(1, true);
    rig.run(SEC);
    stations_leave_by(&mut rig, 2);
    assert_eq!(announced(&rig, mark), [], "without a primary, the active member stays");
    assert_eq!(
        (rig.receive(2, &udp(1)), rig.receive(1, &udp(1))),
        (1, 0),
        "frames from a backup are \
        dropped"
    );
}

#[test]
fn b6_the_primary_returns_within_100_ms() {
    let mut rig = two_stations(Bond { primary: Some("p1".into()), ..bond(Mode::ActiveBackup, 2) });
    rig.carrier(1, false);
    stations_leave_by(&mut rig, 2);
    let mark = rig.sent.len();
    rig.carrier(1, true);
    rig.run(100 * MS);
    assert_eq!(announced(&rig, mark), [(1, 0x09), (1, 0x0b)]);
    stations_leave_by(&mut rig, 1);
}

#[test]
fn after_a_total_outage_the_first_member_says_who_is_behind_it() {
    let mut rig = two_stations(bond(Mode::ActiveBackup, 2));
    rig.carrier(2, false);
    rig.carrier(1, false);
    rig.assert_sound();
    assert_eq!(rig.send(&from(STATIONS[0], None, 1)), [0; 0]);
    let mark = rig.sent.len();
    rig.carrier(2, true);
    assert_eq!(announced(&rig, mark), [(2, 0x09), (2, 0x0b)]);
    stations_leave_by(&mut rig, 2);
}

#[test]
fn b7_another_primary_takes_over_and_none_leaves_things_as_they_are() {
    let mut rig = two_stations(Bond { primary: Some("p1".into()), ..bond(Mode::ActiveBackup, 3) });
    let with =
        |primary: Option<&str>| Bond { primary: primary.map(str::to_string), ..bond(Mode::ActiveBackup, 3) };
    rig.reload(with(Some("p2")));
    rig.run(100 * MS);
    stations_leave_by(&mut rig, 2);
    rig.reload(with(None));
    rig.run(SEC);
    stations_leave_by(&mut rig, 2);
    // The primary is removed from the bond and added again.
    rig.reload(Bond { members: vec![super::rig::member(2), super::rig::member(3)], ..with(None) });
    stations_leave_by(&mut rig, 2);
    rig.reload(with(Some("p1")));
    rig.run(100 * MS);
    stations_leave_by(&mut rig, 1);
}

#[test]
fn b8_nothing_goes_to_the_old_member_any_more() {
    let mut rig = two_stations(Bond { primary: Some("p1".into()), ..bond(Mode::ActiveBackup, 2) });
    rig.reload(Bond { primary: Some("p2".into()), ..bond(Mode::ActiveBackup, 2) });
    let mark = rig.sent.len();
    for flow in 0..100 {
        rig.send(&from(STATIONS[0], None, flow));
    }
    let left = rig.data_since(mark);
    assert!(left.len() == 100 && left.iter().all(|seen| seen.port == 2));
    rig.ask("set-active p1").unwrap();
    assert_eq!(rig.send(&udp(1)), [1]);
    rig.assert_sound();
}

#[test]
fn reselect_failure_waits_until_the_active_member_is_lost() {
    let policy =
        Bond { primary: Some("p1".into()), reselect: Reselect::Failure, ..bond(Mode::ActiveBackup, 2) };
    let mut rig = two_stations(policy);
    rig.carrier(1, false);
    rig.carrier(1, true);
    rig.run(10 * SEC);
    stations_leave_by(&mut rig, 2);
    rig.carrier(2, false);
    stations_leave_by(&mut rig, 1);
}

#[test]
fn b9_a_broadcast_comes_in_by_the_active_member_only() {
    let mut rig = BondRig::new(bond(Mode::BalanceSlb, 3));
    assert_eq!(rig.active(), Some(1));
    let broadcast = arp(0x77, false);
    assert_eq!([1, 2, 3].map(|port| rig.receive(port, &broadcast)), [1, 0, 0]);
    assert_eq!(
        [1, 2, 3].map(|port| rig.receive(port, &from(0x77, None, 1))),
        [1, 1, 1],
        "other frames \
        arrive on any member"
    );
    rig.carrier(1, false);
    assert_eq!([2, 3].map(|port| rig.receive(port, &broadcast)), [1, 0]);
    rig.ask("set-active p3").unwrap();
    assert_eq!([2, 3].map(|port| rig.receive(port, &broadcast)), [0, 1]);
    assert_eq!(rig.receive(4, &broadcast), 0, "no member");
    rig.assert_sound();
}

#[test]
fn b10_the_active_member_survives_a_reload() {
    for mode in [Mode::ActiveBackup, Mode::BalanceSlb] {
        let mut rig = BondRig::new(bond(mode, 3));
        rig.carrier(1, false);
        rig.carrier(1, true);
        assert_eq!(rig.active(), Some(2));
        rig.reload(Bond { updelay_ms: 10, ..bond(mode, 3) });
        assert_eq!(rig.active(), Some(2));
        rig.run(SEC);
        assert_eq!(rig.active(), Some(2));
        rig.assert_sound();
    }
}

#[test]
fn what_is_inside_does_not_come_in_again() {
    let mut rig = BondRig::new(bond(Mode::BalanceSlb, 3));
    let station = 0x09;
    let by = rig.send(&arp(station, false));
    assert_eq!(by.len(), 1);
    for port in 1..=3 {
        assert_eq!(rig.receive(port, &arp(station, false)), 0, "a switch floods it back");
        assert_eq!(rig.receive(port, &from(station, None, 1)), 0);
    }
    rig.run(4 * SEC);
    assert_eq!(
        [1, 2, 3].map(|port| rig.receive(port, &arp(station, true))),
        [0; 3],
        "too early to have moved"
    );
    rig.run(SEC);
    // The station has moved outside and announces itself; the switch floods the announcement to every member,
    // and one copy is accepted.
    assert_eq!([3, 2, 1].map(|port| rig.receive(port, &arp(station, true))), [0, 0, 1]);
    assert_eq!(rig.receive(2, &from(station, None, 1)), 1);
    rig.assert_sound();
    assert_eq!(rig.send(&from(station, None, 1)).len(), 1, "and back again");
    assert_eq!(rig.receive(2, &from(station, None, 1)), 0);
    rig.assert_sound();
}

#[test]
fn stations_of_a_member_that_is_lost_are_announced_by_the_others() {
    let mut rig = BondRig::new(bond(Mode::BalanceSlb, 3));
    for station in 0..30 {
        rig.send(&from(station, (station % 2 == 0).then_some(5), 1));
    }
    let mark = rig.sent.len();
    rig.carrier(3, false);
    let announced = announced(&rig, mark);
    assert_eq!(announced.len(), 30);
    for (port, station) in announced {
        let frame = from(station.into(), (station % 2 == 0).then_some(5), 9);
        assert_eq!(rig.send(&frame), [port], "by the member that its frames leave by");
    }
}

#[test]
fn many_stations_are_announced_a_few_at_a_time() {
    let mut rig = BondRig::new(bond(Mode::ActiveBackup, 2));
    for station in 0..200 {
        rig.send(&from(station, None, 1));
    }
    let mark = rig.sent.len();
    rig.carrier(1, false);
    assert_eq!(announced(&rig, mark).len(), 64);
    assert_eq!(rig.send(&from(199, None, 1)), [2], "frames do not wait");
    rig.run(4 * MS);
    let stations: Vec<u8> = announced(&rig, mark).into_iter().map(|(_, station)| station).collect();
    assert_eq!(stations, (0..200).collect::<Vec<u8>>());
    rig.assert_sound();
}

#[test]
fn addresses_of_its_own_are_announced_where_they_are_now() {
    let addresses: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    let mut rig = BondRig::new(Bond { announce: addresses.to_vec(), ..bond(Mode::ActiveBackup, 2) });
    let mark = rig.sent.len();
    rig.carrier(1, false);
    let types: Vec<(u16, [u8; 2])> =
        rig.sent[mark..].iter().map(|seen| (seen.port, [seen.bytes[12], seen.bytes[13]])).collect();
    assert_eq!(types, [(2, [8, 6]), (2, [0x86, 0xdd])]);
}

#[test]
fn stations_are_remembered_within_bounds_and_not_for_ever() {
    let mut rig = BondRig::new(Bond { learnt_max: 8, ..bond(Mode::BalanceSlb, 2) });
    for station in 0..100 {
        rig.send(&from(station, None, 1));
        rig.assert_sound();
    }
    assert_eq!(rig.app.stations.learnt.len(), 8);
    let copies = rig.ledger.copied;
    for station in 92..100 {
        rig.send(&from(station, None, 1));
    }
    assert_eq!(rig.ledger.copied, copies, "what is known is not copied");
    rig.run(299 * SEC);
    assert_eq!(rig.app.stations.learnt.len(), 8);
    rig.run(2 * SEC);
    assert_eq!(rig.app.stations.learnt.len(), 0);
    rig.assert_sound();
    rig.send(&from(99, None, 1));
    assert_eq!(rig.receive(1, &from(99, None, 1)), 0);
    assert_eq!(rig.receive(1, &from(98, None, 1)), 1, "it may have moved outside");
    rig.assert_sound();
}

#[test]
fn a_hundred_flaps_leave_the_table_as_it_was() {
    for mode in [Mode::BalanceSlb, Mode::Static, Mode::RoundRobin, Mode::Broadcast, Mode::ActiveBackup] {
        let mut rig = BondRig::new(Bond { primary: Some("p1".into()), ..bond(mode, 3) });
        let table = rig.table();
        for flap in 0..100 {
            rig.carrier(1 + flap % 3, false);
            rig.send(&udp(flap));
            rig.carrier(1 + flap % 3, true);
            rig.send(&udp(flap));
        }
        rig.run(2 * SEC);
        assert_eq!(rig.table(), table, "{mode:?}");
        rig.assert_sound();
    }
}

#[test]
fn delays_keep_a_member_that_flaps_out() {
    let mut rig = BondRig::new(Bond { updelay_ms: 500, downdelay_ms: 20, ..bond(Mode::Static, 2) });
    rig.run(SEC);
    assert_eq!(rig.enabled(), [1, 2]);
    rig.carrier(2, false);
    rig.run(10 * MS);
    rig.carrier(2, true);
    rig.run(SEC);
    assert_eq!(rig.enabled(), [1, 2]);
    rig.carrier(2, false);
    rig.run(21 * MS);
    assert_eq!(rig.enabled(), [1]);
    rig.carrier(2, true);
    rig.run(499 * MS);
    assert_eq!(rig.enabled(), [1]);
    rig.run(2 * MS);
    assert_eq!(rig.enabled(), [1, 2]);
    rig.assert_sound();
}
