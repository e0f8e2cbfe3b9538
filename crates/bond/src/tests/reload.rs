//! Reloads under traffic lose nothing, and move nothing that can stay.

use super::frames::{from, udp};
use super::rig::{BondRig, LINKS, SEC, bond, builder_of, errors, member, program_of};
use crate::{Bond, Mode};
use std::collections::BTreeSet;
use weir_program::{Entry, Pipe, PortId};

/// Asserts that every flow leaves through one enabled member.
fn all_arrive(rig: &mut BondRig) {
    let enabled: BTreeSet<u16> = rig.enabled().into_iter().collect();
    let dropped = rig.dropped();
    for flow in 0..512 {
        let left = rig.send(&udp(flow));
        assert!(left.len() == 1 && enabled.contains(&left[0]), "flow {flow}: {left:?} of {enabled:?}");
    }
    assert_eq!(rig.dropped(), dropped);
    rig.assert_sound();
}

/// Number of buckets that moved although their member stayed, that is, was not in `without`.
fn moved(before: &[Option<u16>], after: &[Option<u16>], without: &[u16]) -> usize {
    let stayed = |port: &Option<u16>| port.is_some_and(|port| !without.contains(&port));
    before.iter().zip(after).filter(|(before, after)| stayed(before) && before != after).count()
}

#[test]
fn a_member_more_takes_its_part_and_no_more() {
    let mut rig = BondRig::negotiated(2);
    all_arrive(&mut rig);
    let before = rig.table();
    rig.reload(bond(Mode::BalanceTcp, 3));
    all_arrive(&mut rig);
    assert_eq!(moved(&before, &rig.table(), &[]), 0, "it has no partner yet");
    for _ in 0..10 {
        rig.run(SEC);
        all_arrive(&mut rig);
    }
    let after = rig.table();
    assert!(after.iter().filter(|port| **port == Some(3)).count().abs_diff(85) <= 1);
    let others = before.iter().zip(&after).filter(|(before, after)| before != after && **after != Some(3));
    assert_eq!(others.count(), 0, "nothing moves between two others");
}

#[test]
fn a_member_less_leaves_the_others_alone_and_tells_its_partner() {
    let mut rig = BondRig::negotiated(3);
    all_arrive(&mut rig);
    let (before, mark) = (rig.table(), rig.sent.len());
    rig.reload(Bond { members: vec![member(1), member(3)], ..bond(Mode::BalanceTcp, 3) });
    let last = rig.sent[mark..].iter().find(|seen| seen.port == 2).expect("its partner is notified");
    assert_eq!(last.bytes[12..14], [0x88, 0x09]);
    all_arrive(&mut rig);
    rig.run(5 * SEC);
    all_arrive(&mut rig);
    assert_eq!(moved(&before, &rig.table(), &[2]), 0);
    assert_eq!(rig.partner.as_ref().unwrap().used[&2], (false, false));
    assert!(rig.said.iter().all(|line| !line.contains("none")), "{:?}", rig.said);
    // And back again.
    rig.reload(bond(Mode::BalanceTcp, 3));
    rig.run(6 * SEC);
    all_arrive(&mut rig);
    assert_eq!(rig.shares()[&2], 85);
}

#[test]
fn one_goes_and_another_comes_at_once() {
    let mut rig = BondRig::negotiated(2);
    for (first, second) in [(1, 3), (3, 4), (4, 2), (2, 1)] {
        rig.reload(Bond { members: vec![member(first), member(second)], ..bond(Mode::BalanceTcp, 2) });
        all_arrive(&mut rig);
        rig.run(6 * SEC);
        all_arrive(&mut rig);
        assert_eq!(rig.admitted(), BTreeSet::from([first, second]).into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn another_order_of_members_is_the_same_bond() {
    let mut rig = BondRig::negotiated(3);
    let before = rig.table();
    let members = [3, 1, 2].map(member).to_vec();
    rig.reload(Bond { members, ..bond(Mode::BalanceTcp, 3) });
    assert_eq!(rig.table(), before);
    all_arrive(&mut rig);
    rig.run(5 * SEC);
    assert_eq!(rig.table(), before);
    all_arrive(&mut rig);
}

#[test]
fn ports_may_have_other_numbers() {
    for mode in [Mode::BalanceTcp, Mode::BalanceSlb, Mode::ActiveBackup] {
        let mut rig = BondRig::new(bond(mode, 3));
        rig.add_partner();
        rig.run(5 * SEC);
        rig.carrier(1, false);
        // Ports 1, 2 and 3 are now 3, 1 and 2, so the former p1 has number 3.
        let now = |port: u16| (port + 1) % 3 + 1;
        let mut renumbered = bond(mode, 3);
        renumbered.members.iter_mut().for_each(|member| member.port = PortId(now(member.port.0)));
        let mut program = program_of(&renumbered);
        let names: Vec<String> = (1..=3).map(|port| program.ports[port as usize].name.clone()).collect();
        for (old, name) in (1..=3).zip(names) {
            program.ports[usize::from(now(old))].name = name;
        }
        let wires = rig.wires.clone();
        rig.wires.extend((1..=3).map(|port| (now(port), wires[&port])));
        rig.partner = None;
        rig.reload_as(renumbered, program);
        rig.assert_sound();
        let expected: Vec<u16> = if mode == Mode::ActiveBackup { vec![1] } else { vec![1, 2] };
        assert_eq!(rig.admitted(), expected, "{mode:?}");
    }
}

#[test]
fn what_is_inside_stays_known_and_more_or_less_may_be() {
    let mut rig = BondRig::new(Bond { learnt_max: 10, ..bond(Mode::BalanceSlb, 2) });
    let stations = |rig: &mut BondRig, count: u16| {
        (0..count).for_each(|station| drop(rig.send(&from(station, None, 1))))
    };
    stations(&mut rig, 20);
    rig.reload(Bond { learnt_max: 10, basis: 3, ..bond(Mode::BalanceSlb, 2) });
    assert_eq!(rig.app.stations.learnt.len(), 10);
    rig.assert_sound();
    rig.reload(Bond { learnt_max: 15, ..bond(Mode::BalanceSlb, 2) });
    stations(&mut rig, 40);
    assert_eq!(rig.app.stations.learnt.len(), 15);
    rig.assert_sound();
    rig.reload(Bond { learnt_max: 4, ..bond(Mode::BalanceSlb, 2) });
    rig.forgive_removals();
    stations(&mut rig, 40);
    assert_eq!(rig.app.stations.learnt.len(), 4);
    rig.assert_sound();
}

#[test]
fn any_mode_may_follow_any_other() {
    for (_, first) in Mode::WORDS {
        for (_, second) in Mode::WORDS {
            let mut rig = BondRig::new(bond(first, 3));
            rig.add_partner();
            rig.run(5 * SEC);
            (0..10).for_each(|station| drop(rig.send(&from(station, None, 1))));
            rig.reload(Bond { members: [2, 1, 3].map(member).to_vec(), ..bond(second, 3) });
            rig.forgive_removals();
            rig.assert_sound();
            rig.run(6 * SEC);
            (0..10).for_each(|station| {
                assert!(!rig.send(&from(station, None, 1)).is_empty(), "{first:?} {second:?}")
            });
            rig.assert_sound();
            rig.reload(bond(first, 3));
            rig.forgive_removals();
            rig.assert_sound();
            rig.run(6 * SEC);
            (0..10).for_each(|station| {
                assert!(!rig.send(&from(station, None, 1)).is_empty(), "{first:?} {second:?}")
            });
            rig.assert_sound();
        }
    }
}

#[test]
fn another_number_of_buckets_is_another_table() {
    let mut rig = BondRig::negotiated(3);
    for buckets in [512, 4, 65_536, 256] {
        rig.reload(Bond { buckets, ..bond(Mode::BalanceTcp, 3) });
        all_arrive(&mut rig);
        let shares: Vec<usize> = rig.shares().into_values().collect();
        assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
    }
}

#[test]
fn what_the_operator_took_out_stays_out() {
    let mut rig = BondRig::negotiated(3);
    rig.ask("disable p2").unwrap();
    rig.run(3 * SEC);
    rig.reload(Bond { basis: 1, ..bond(Mode::BalanceTcp, 3) });
    rig.run(6 * SEC);
    assert_eq!(rig.enabled(), [1, 3]);
    all_arrive(&mut rig);
    rig.ask("enable p2").unwrap();
    rig.run(6 * SEC);
    assert_eq!(rig.enabled(), [1, 2, 3]);
    all_arrive(&mut rig);
}

#[test]
fn what_was_carried_before_a_bond_began_is_nobodys_load() {
    let mut rig = BondRig::new(bond(Mode::Static, 2));
    let heavy = udp(1);
    (0..5000).for_each(|_| rig.frame(0, &heavy));
    rig.run(100 * SEC);
    rig.reload(Bond { rebalance_ms: 10_000, ..bond(Mode::BalanceSlb, 2) });
    let shown = rig.ask("show").unwrap();
    assert_eq!(shown["next_rebalance_ms"], 10_000);
    rig.run(11 * SEC);
    let plan = rig.ask("rebalance dry-run").unwrap();
    assert_eq!((&plan["loads"][0]["before"], &plan["loads"][1]["before"]), (&0.into(), &0.into()));
    rig.assert_sound();
}

#[test]
fn another_app_may_stand_on_it() {
    for (_, mode) in Mode::WORDS {
        let open = Bond { inward: crate::Inward::Open, ..bond(mode, LINKS) };
        let (mut program, below) = builder_of(&open);
        let lb = program.pipe(Pipe::basic("lb").entry(Entry::default()).forward(PortId(0)));
        below.lead(&mut program, lb);
        let program = program.build();
        assert_eq!(errors(&program), []);
        let mut rig = BondRig::new(open.clone());
        rig.add_partner();
        rig.run(5 * SEC);
        assert_eq!(rig.receive(1, &udp(1)), 0, "no target is given");
        rig.reload_as(open, program);
        assert_eq!(rig.receive(1, &udp(1)), 1, "{mode:?}");
        assert_eq!(rig.receive(1, &super::frames::arp(0x77, false)), 1);
        rig.assert_sound();
    }
}
