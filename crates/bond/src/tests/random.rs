//! Any sequence of events leaves a bond in a sound state.

use super::frames::{arp, from, long, udp};
use super::rig::{BondRig, LINKS, MS, bond, lacp_config, member};
use crate::lacp::Config;
use crate::{Bond, Mode};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Act {
    Carrier(u16, bool),
    Speed(u16, u64),
    Cut(u16, bool),
    Hold(u16, bool),
    Ask(String),
    Send(u16, Option<u16>),
    Receive(u16, u16),
    Gratuitous(u16, u16),
    Pdu(u16, Vec<u8>),
    Reload(RandomReload),
    /// A flow that is heavy for one interval and one look.
    Heavy(u16),
    Run(u64),
}

#[derive(Clone, Debug)]
struct RandomReload {
    mode: Mode,
    /// Bit mask of the ports that are members.
    members: u8,
    reversed: bool,
    lacp: bool,
    fallback: bool,
    weights: Option<[u32; 4]>,
    primary: bool,
    delays_ms: u32,
    buckets: u32,
    rebalances: bool,
    learnt_max: u32,
    elephants: u32,
}

impl RandomReload {
    fn bond(&self) -> Bond {
        let mut ports: Vec<u16> = (1..=LINKS).filter(|port| self.members >> (port - 1) & 1 == 1).collect();
        if self.reversed {
            ports.reverse();
        }
        let mut bond = Bond { members: ports.into_iter().map(member).collect(), ..bond(self.mode, 1) };
        let can = matches!(self.mode, Mode::ActiveBackup | Mode::BalanceTcp);
        bond.lacp = (can && (self.lacp || self.mode == Mode::BalanceTcp))
            .then(|| Config { fallback: self.fallback, ..lacp_config(1) });
        if let Some(weights) = self.weights {
            bond.members.iter_mut().zip(weights).for_each(|(member, weight)| member.weight = Some(weight));
        }
        bond.primary = self.primary.then(|| bond.members[0].name.clone());
        (bond.updelay_ms, bond.downdelay_ms) = (self.delays_ms, self.delays_ms);
        (bond.buckets, bond.learnt_max) = (self.buckets, self.learnt_max);
        bond.rebalance_ms = if self.rebalances { 1000 } else { 0 };
        let pins = self.rebalances && matches!(self.mode, Mode::BalanceTcp | Mode::Static);
        bond.elephants = if pins { self.elephants } else { 0 };
        bond
    }
}

fn reload() -> impl Strategy<Value = RandomReload> {
    let mode = prop::sample::select(Mode::WORDS.map(|(_, mode)| mode).to_vec());
    let flags = prop::array::uniform5(any::<bool>());
    let weights = prop::option::of(prop::array::uniform4(1_u32..20));
    let numbers = (
        prop::sample::select(vec![0_u32, 0, 30]),
        prop::sample::select(vec![4_u32, 256]),
        4_u32..7,
        0_u32..3,
    );
    (mode, 1_u8..16, flags, weights, numbers).prop_map(|(mode, members, flags, weights, numbers)| {
        RandomReload {
            mode,
            members,
            reversed: flags[0],
            lacp: flags[1],
            fallback: flags[2],
            weights,
            primary: flags[3],
            delays_ms: numbers.0,
            buckets: numbers.1,
            rebalances: flags[4],
            learnt_max: numbers.2,
            elephants: numbers.3,
        }
    })
}

fn words() -> impl Strategy<Value = String> {
    let of = |word: &'static str| (1_u16..6).prop_map(move |port| format!("{word} p{port}"));
    let plain = ["show", "buckets", "rebalance", "rebalance dry-run", "what"];
    prop_oneof![
        prop::sample::select(plain.to_vec()).prop_map(str::to_string),
        of("disable"),
        of("enable"),
        of("set-active"),
        (0_u32..300, 1_u16..6).prop_map(|(bucket, port)| format!("migrate {bucket} p{port}")),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let port = 1..=LINKS;
    let station = 0_u16..12;
    prop_oneof![
        6 => (port.clone(), any::<bool>()).prop_map(|(port, up)| Act::Carrier(port, up)),
        1 => (port.clone(), 1_u64..20).prop_map(|(port, speed)| Act::Speed(port, speed * 1_000_000_000)),
        2 => (port.clone(), any::<bool>()).prop_map(|(port, cut)| Act::Cut(port, cut)),
        2 => (port.clone(), any::<bool>()).prop_map(|(port, held)| Act::Hold(port, held)),
        4 => words().prop_map(Act::Ask),
        6 => (station.clone(), prop::option::of(1_u16..3)).prop_map(|(station, vid)| Act::Send(station, vid)),
        3 => (port.clone(), station.clone()).prop_map(|(port, station)| Act::Receive(port, station)),
        2 => (port.clone(), station).prop_map(|(port, station)| Act::Gratuitous(port, station)),
        1 => (port, prop::collection::vec(any::<u8>(), 0..120)).prop_map(|(port, bytes)| Act::Pdu(port,
            bytes)),
        3 => reload().prop_map(Act::Reload),
        1 => (0_u16..4).prop_map(Act::Heavy),
        6 => prop::sample::select(vec![0, 1, 15, 100, 1100, 4000, 10_000]).prop_map(|ms| Act::Run(ms * MS)),
    ]
}

/// A configuration in which flows are pinned.
fn pinning() -> impl Strategy<Value = RandomReload> {
    reload().prop_map(|reload| RandomReload {
        mode: if reload.lacp { Mode::BalanceTcp } else { Mode::Static },
        rebalances: true,
        elephants: reload.elephants.max(1),
        ..reload
    })
}

fn act_on_pins() -> impl Strategy<Value = Act> {
    prop_oneof![
        7 => act(),
        4 => (0_u16..4).prop_map(Act::Heavy),
        1 => pinning().prop_map(Act::Reload),
    ]
}

fn carry_out(rig: &mut BondRig, act: Act) {
    match act {
        Act::Carrier(port, up) => rig.carrier(port, up),
        Act::Speed(port, speed_bps) => {
            let wire = rig.wires.get_mut(&port).unwrap();
            wire.speed_bps = Some(speed_bps);
            let up = wire.carrier;
            rig.carrier(port, up);
        }
        Act::Cut(port, cut) => rig.cut(port, cut),
        Act::Hold(port, held) => rig.partner_holds(port, held),
        Act::Ask(words) => drop(rig.ask(&words)),
        Act::Send(station, vid) => {
            let left = rig.send(&from(station, vid, station));
            let sends = !rig.enabled().is_empty();
            assert_eq!(!left.is_empty(), sends, "a frame leaves if a member may be used");
            assert!(rig.bond.mode == Mode::Broadcast || left.len() <= 1);
        }
        Act::Receive(port, station) => {
            let admitted = rig.admitted().contains(&port);
            assert!(rig.receive(port, &from(station, None, 1)) <= usize::from(admitted));
        }
        Act::Gratuitous(port, station) => drop(rig.receive(port, &arp(station, true))),
        Act::Pdu(port, bytes) => {
            let head = [0x01, 0x80, 0xc2, 0, 0, 2, 2, 9, 9, 0, 0, port as u8, 0x88, 0x09, 1, 1];
            rig.frame(port, &[&head[..], &bytes].concat());
        }
        Act::Reload(reload) => {
            let before = (rig.bond.size(), rig.report());
            rig.reload(reload.bond());
            rig.forgive_removals();
            if before.0 == rig.bond.size() {
                let after = rig.report();
                let grows = |new: &[u64], old: &[u64]| new.iter().zip(old).all(|(new, old)| new >= old);
                assert!(grows(&after.bytes, &before.1.bytes), "counters never decrease");
                assert!(after.moved >= before.1.moved && after.moved_busy >= before.1.moved_busy);
            }
        }
        Act::Heavy(flow) => {
            for _ in 0..130 {
                rig.frame(0, &long(flow));
                rig.run(10 * MS);
            }
        }
        Act::Run(ns) => rig.run(ns),
    }
}

proptest! {
    #[test]
    fn whatever_happens_a_bond_is_sound(first in reload(), acts in prop::collection::vec(act(), 1..60)) {
        all_go_well(&first, acts);
    }

    #[test]
    fn whatever_happens_pinned_flows_are_where_they_should_be(
        first in pinning(),
        acts in prop::collection::vec(act_on_pins(), 1..40),
    ) {
        all_go_well(&first, acts);
    }
}

fn all_go_well(first: &RandomReload, acts: Vec<Act>) {
    let mut rig = BondRig::new(first.bond());
    rig.add_partner();
    for act in acts {
        carry_out(&mut rig, act);
        rig.assert_sound();
    }
    // Once everything works again, all members are used.
    for port in 1..=LINKS {
        rig.carrier(port, true);
        rig.cut(port, false);
        rig.partner_holds(port, false);
    }
    for at in 0..rig.bond.members.len() {
        let words = format!("enable {}", rig.bond.members[at].name);
        rig.ask(&words).unwrap();
    }
    rig.run(12_000 * MS);
    rig.assert_sound();
    let members: std::collections::BTreeSet<u16> =
        rig.bond.members.iter().map(|member| member.port.0).collect();
    assert_eq!(rig.enabled(), members.into_iter().collect::<Vec<_>>());
    rig.run(2000 * MS);
    assert!(!rig.send(&udp(1)).is_empty());
    assert_eq!(rig.report().pending, 0);
}
