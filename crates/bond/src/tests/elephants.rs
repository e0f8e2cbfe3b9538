//! Elephants: heavy flows are found, given buckets of their own, moved and released, without reordering any
//! flow.

use super::frames::{number_of, numbered};
use super::rig::{BondRig, MS, SEC, bond, program_of};
use crate::{Bond, Mode};
use serde_json::Value;
use std::collections::BTreeMap;

const MICE: u16 = 1000;
/// Length of every data frame.
const LENGTH: usize = 1000;
/// Flow numbers from here on are heavy.
const HEAVY: u16 = 20_000;

/// Like `numbered`, padded to `LENGTH`.
fn long(flow: u16, number: u32) -> Vec<u8> {
    let mut frame = numbered(flow, number);
    frame.resize(LENGTH, 0);
    frame[16..18].copy_from_slice(&(LENGTH as u16 - 14).to_be_bytes());
    frame[38..40].copy_from_slice(&(LENGTH as u16 - 34).to_be_bytes());
    frame
}

fn with(elephants: u32, mode: Mode, members: u16) -> Bond {
    Bond { rebalance_ms: 1000, elephants, ..bond(mode, members) }
}

/// A rig whose members' latencies differ by as much as the idle gap allows.
fn uneven(bond: Bond) -> BondRig {
    let mut rig = BondRig::new(bond);
    for (port, latency) in [(1, 9), (2, 1), (3, 5), (4, 7)] {
        rig.wires.get_mut(&port).unwrap().latency_ns = latency * MS / 10;
    }
    rig
}

/// Flows from inside, and the number of frames sent of each.
struct InsideFlows {
    heavy: Vec<u16>,
    /// Heavy flows never pause for as long as the idle gap.
    restless: bool,
    number: BTreeMap<u16, u32>,
    mouse: u16,
    /// The member through which each heavy flow last left.
    left: BTreeMap<u16, u16>,
}

impl InsideFlows {
    fn new(heavy: &[u16]) -> InsideFlows {
        InsideFlows {
            heavy: heavy.to_vec(),
            restless: false,
            number: BTreeMap::new(),
            mouse: 0,
            left: BTreeMap::new(),
        }
    }

    /// Sends for `ns`: every 2 ms, three frames of each heavy flow and two of a few mice.
    fn run(&mut self, rig: &mut BondRig, ns: u64) {
        for _ in 0..ns / (2 * MS) {
            for _ in 0..3 {
                (0..self.heavy.len()).for_each(|at| self.send(rig, self.heavy[at]));
                rig.run(if self.restless { 2 * MS / 3 } else { 0 });
            }
            for _ in 0..2 {
                self.mouse = (self.mouse + 1) % MICE;
                self.send(rig, self.mouse);
            }
            rig.run(if self.restless { 0 } else { 2 * MS });
        }
    }

    fn send(&mut self, rig: &mut BondRig, flow: u16) {
        let number = self.number.entry(flow).or_default();
        *number += 1;
        let left = rig.send(&long(flow, *number));
        assert_eq!(left.len(), 1, "a frame leaves exactly once");
        if flow >= HEAVY {
            self.left.insert(flow, left[0]);
        }
    }

    /// Asserts that every frame has arrived, and none after a later one of its flow.
    fn assert_in_order(&self, rig: &mut BondRig) {
        rig.run(10 * MS);
        let mut last = BTreeMap::<u16, u32>::new();
        for seen in rig.taken.iter().filter(|seen| seen.bytes.len() == LENGTH) {
            let (flow, number) = number_of(&seen.bytes);
            let before = last.insert(flow, number).unwrap_or_default();
            assert_eq!(number, before + 1, "flow {flow}");
        }
        assert_eq!(last, self.number, "all that was sent has arrived");
        assert_eq!(rig.ask("show").unwrap()["moved_busy"], 0);
    }
}

/// Data bytes sent by each member since `mark`.
fn bytes_since(rig: &BondRig, mark: usize) -> BTreeMap<u16, usize> {
    let mut bytes = BTreeMap::new();
    for seen in rig.data_since(mark) {
        *bytes.entry(seen.port).or_default() += seen.bytes.len();
    }
    bytes
}

fn pinned(rig: &mut BondRig) -> Vec<Value> {
    rig.ask("show").unwrap()["pinned"].as_array().unwrap().clone()
}

/// A rig with one pinned flow, and its traffic.
fn with_one_pinned(bond: Bond) -> (BondRig, InsideFlows) {
    let negotiates = bond.mode == Mode::BalanceTcp;
    let mut rig = uneven(bond);
    if negotiates {
        rig.add_partner();
        rig.run(5 * SEC);
    }
    let mut traffic = InsideFlows::new(&[HEAVY]);
    traffic.run(&mut rig, 2500 * MS);
    assert_eq!(pinned(&mut rig).len(), 1, "{:?}", rig.said);
    (rig, traffic)
}

/// The bond's bucket for a flow, computed as the specification defines it.
fn bucket_of(flow: u16) -> usize {
    let key = weir_packet::FlowKey::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into(), 17, (flow, 80), None);
    let hash = weir_table::seeded(weir_packet::select_hash(0, &key.0), 0x626f_6e64_0000_0000);
    (((hash >> 32) * 256) >> 32) as usize
}

/// The bucket that currently has a twin, as the engine sees it.
fn looked_at(rig: &BondRig) -> Option<usize> {
    let members = rig.bond.members.len() as u16;
    rig.report().slots.iter().position(|slot| *slot >= members && *slot != weir_table::NO_TARGET)
}

#[test]
fn an_elephant_leaves_its_bucket_and_the_rest_is_made_even() {
    for mode in [Mode::Static, Mode::BalanceTcp] {
        let mut rig = uneven(with(1, mode, 2));
        if mode == Mode::BalanceTcp {
            rig.add_partner();
            rig.run(5 * SEC);
        }
        let mut traffic = InsideFlows::new(&[HEAVY]);
        traffic.restless = true;
        traffic.run(&mut rig, 3200 * MS);
        let mark = rig.sent.len();
        traffic.run(&mut rig, SEC);
        let bytes = bytes_since(&rig, mark);
        let own = traffic.left[&HEAVY];
        let (with_it, other) = (bytes[&own], bytes[&(3 - own)]);
        assert!(with_it * 100 <= (with_it + other) * 62, "a flow of 60 % cannot be split: {bytes:?}");
        let shown = pinned(&mut rig);
        assert_eq!(shown.len(), 1);
        assert_eq!(shown[0]["flow"], format!("udp 10.0.0.2:{HEAVY} > 10.0.0.1:80"));
        assert_eq!(
            (&shown[0]["member"], &shown[0]["bucket"]),
            (&format!("p{own}").into(), &bucket_of(HEAVY).into())
        );
        assert!(shown[0]["load"].as_u64().unwrap() > 1_000_000);
        assert!(
            rig.said
                .iter()
                .any(|line| line.starts_with(&format!("pinned udp 10.0.0.2:{HEAVY} > 10.0.0.1:80 to p")))
        );
        let plan = rig.ask("rebalance dry-run").unwrap();
        assert_eq!(plan["elephants"], serde_json::json!([]), "it is known");
        traffic.assert_in_order(&mut rig);
        rig.assert_sound();
    }
}

#[test]
fn without_elephants_a_bucket_keeps_its_heavy_flow() {
    let mut rig = BondRig::new(with(0, Mode::Static, 2));
    assert_eq!(rig.program.apps, ["bond0/slow"]);
    let names: Vec<&str> = rig.program.pipes.iter().map(|pipe| pipe.name.as_str()).collect();
    assert_eq!(names, ["bond0", "bond0/in", "bond0/reserved", "bond0/slow", "bond0/reserved/out"]);
    assert_eq!((rig.program.groups.len(), rig.program.groups[0].targets.len()), (1, 2));
    let mut traffic = InsideFlows::new(&[HEAVY]);
    traffic.run(&mut rig, 3500 * MS);
    assert_eq!(pinned(&mut rig), [Value::Null; 0]);
    assert_eq!(rig.ask("rebalance dry-run").unwrap()["elephants"].as_array().unwrap().len(), 1);
    rig.assert_sound();
}

#[test]
fn a_look_is_no_move_and_changes_no_way() {
    let mut rig = uneven(with(1, Mode::Static, 2));
    let mut traffic = InsideFlows::new(&[HEAVY]);
    traffic.restless = true;
    traffic.run(&mut rig, 990 * MS);
    let own = traffic.left[&HEAVY];
    let before = rig.ask("buckets").unwrap();
    while looked_at(&rig).is_none() {
        traffic.run(&mut rig, 2 * MS);
    }
    assert_eq!(looked_at(&rig), Some(bucket_of(HEAVY)));
    let during = rig.ask("buckets").unwrap();
    let members = |shown: &Value| -> Vec<Value> {
        shown["buckets"].as_array().unwrap().iter().map(|one| one["member"].clone()).collect()
    };
    let bucket = bucket_of(HEAVY);
    assert_eq!(members(&before)[bucket], members(&during)[bucket]);
    assert_eq!(traffic.left[&HEAVY], own, "it leaves by the same member");
    rig.assert_sound();
    while looked_at(&rig).is_some() {
        traffic.run(&mut rig, 2 * MS);
    }
    assert_eq!(traffic.left[&HEAVY], own);
    let shown = rig.ask("show").unwrap();
    let engine = rig.report().moved;
    assert_eq!(shown["moved"].as_u64().unwrap() + 2, engine, "there and back");
    assert_eq!(pinned(&mut rig).len(), 1);
    traffic.assert_in_order(&mut rig);
}

#[test]
fn a_flow_that_ends_gives_its_bucket_back() {
    let (mut rig, mut traffic) = with_one_pinned(with(1, Mode::Static, 2));
    traffic.heavy.clear();
    traffic.run(&mut rig, 2500 * MS);
    assert_eq!(pinned(&mut rig), [Value::Null; 0]);
    assert!(
        rig.said.iter().any(|line| line.starts_with("unpinned: ") && line.ends_with(": it carries little"))
    );
    assert_eq!(rig.engine.entries(rig.program.pipe_named("bond0").unwrap()).len(), 0);
    // The flow returns and is pinned again.
    traffic.heavy = vec![HEAVY];
    traffic.run(&mut rig, 4500 * MS);
    assert_eq!(pinned(&mut rig).len(), 1);
    traffic.assert_in_order(&mut rig);
    rig.assert_sound();
}

#[test]
fn when_its_member_fails_the_next_frame_leaves_by_another() {
    for mode in [Mode::Static, Mode::BalanceTcp] {
        let (mut rig, mut traffic) = with_one_pinned(with(1, mode, 3));
        let own = traffic.left[&HEAVY];
        rig.carrier(own, false);
        traffic.send(&mut rig, HEAVY);
        assert_ne!(traffic.left[&HEAVY], own);
        assert_eq!(pinned(&mut rig), [Value::Null; 0]);
        rig.assert_sound();
        rig.carrier(own, true);
        traffic.run(&mut rig, 8000 * MS);
        assert_eq!(pinned(&mut rig).len(), 1, "found again");
        rig.assert_sound();
    }
}

#[test]
fn a_member_that_is_taken_out_is_left_when_idle_and_at_once_if_it_fails() {
    let (mut rig, mut traffic) = with_one_pinned(with(1, Mode::Static, 3));
    let own = traffic.left[&HEAVY];
    rig.ask(&format!("disable p{own}")).unwrap();
    traffic.run(&mut rig, 20 * MS);
    assert_ne!(traffic.left[&HEAVY], own);
    assert_eq!(pinned(&mut rig).len(), 1, "it is still known");
    traffic.assert_in_order(&mut rig);
    rig.assert_sound();
    // Again, but the flow never pauses, and the link is lost while the move is pending.
    let own = traffic.left[&HEAVY];
    traffic.send(&mut rig, HEAVY);
    rig.ask(&format!("disable p{own}")).unwrap();
    traffic.send(&mut rig, HEAVY);
    assert_eq!(traffic.left[&HEAVY], own);
    rig.carrier(own, false);
    traffic.send(&mut rig, HEAVY);
    assert_ne!(traffic.left[&HEAVY], own);
    rig.assert_sound();
}

#[test]
fn two_elephants_in_one_bucket_get_apart() {
    let first = HEAVY;
    let second = (HEAVY + 1..).find(|flow| bucket_of(*flow) == bucket_of(first)).unwrap();
    let mut rig = uneven(with(2, Mode::Static, 2));
    let mut traffic = InsideFlows::new(&[first, second]);
    traffic.run(&mut rig, 5200 * MS);
    assert_ne!(traffic.left[&first], traffic.left[&second], "{:?}", rig.said);
    let mark = rig.sent.len();
    traffic.run(&mut rig, SEC);
    let bytes = bytes_since(&rig, mark);
    assert!(bytes[&1].abs_diff(bytes[&2]) * 4 < bytes[&1] + bytes[&2], "{bytes:?}");
    traffic.assert_in_order(&mut rig);
    rig.assert_sound();
}

#[test]
fn no_more_are_pinned_than_may_be() {
    let mut rig = BondRig::new(with(1, Mode::Static, 4));
    let mut traffic = InsideFlows::new(&[HEAVY, HEAVY + 1, HEAVY + 2]);
    traffic.run(&mut rig, 5 * SEC);
    assert_eq!(pinned(&mut rig).len(), 1);
    rig.assert_sound();
}

#[test]
fn a_bucket_without_a_heavy_flow_rests_for_three_intervals() {
    let mut rig = BondRig::new(with(1, Mode::Static, 2));
    let bucket = bucket_of(HEAVY);
    let herd: Vec<u16> = (1..=u16::MAX).filter(|flow| bucket_of(*flow) == bucket).take(10).collect();
    let mut traffic = InsideFlows::new(&herd);
    let mut looks = Vec::new();
    let mut looking = false;
    for _ in 0..4600 / 10 {
        traffic.run(&mut rig, 10 * MS);
        // A look takes ten milliseconds, too short to observe from here; it shows in the number of copied
        // frames.
        let copied = rig.ledger.copied;
        if copied > 0 && !looking {
            looks.push(rig.now_ns / MS);
        }
        looking = copied > 0;
        rig.ledger.copied = 0;
        rig.ledger.to_app -= copied;
    }
    assert_eq!(pinned(&mut rig), [Value::Null; 0]);
    assert!(looks.len() == 2 && (2990..3050).contains(&(looks[1] - looks[0])), "{looks:?}");
    traffic.assert_in_order(&mut rig);
}

/// A rig with one heavy flow, at the moment its bucket has been given a twin.
fn until_looked_at(bond: Bond) -> (BondRig, InsideFlows) {
    let mut rig = uneven(bond);
    let mut traffic = InsideFlows::new(&[HEAVY]);
    while looked_at(&rig).is_none() {
        traffic.run(&mut rig, 2 * MS);
        assert!(rig.now_ns < 3 * SEC);
    }
    (rig, traffic)
}

#[test]
fn a_look_ends_when_a_member_fails_or_an_operator_interferes() {
    // Its member fails.
    let (mut rig, mut traffic) = until_looked_at(with(1, Mode::Static, 2));
    let own = traffic.left[&HEAVY];
    rig.carrier(own, false);
    assert_eq!(looked_at(&rig), None);
    traffic.send(&mut rig, HEAVY);
    assert_eq!(traffic.left[&HEAVY], 3 - own);
    rig.assert_sound();
    // All fail.
    rig.carrier(3 - own, false);
    rig.assert_sound();
    rig.carrier(own, true);
    rig.carrier(3 - own, true);
    rig.assert_sound();
    // The member is disabled, or the bucket moved by hand.
    for words in ["disable", "migrate"] {
        let (mut rig, mut traffic) = until_looked_at(with(1, Mode::Static, 2));
        let own = traffic.left[&HEAVY];
        let words = match words {
            "disable" => format!("disable p{own}"),
            _ => format!("migrate {} p{}", bucket_of(HEAVY), 3 - own),
        };
        rig.ask(&words).unwrap();
        assert_eq!(looked_at(&rig), None);
        traffic.run(&mut rig, 10 * MS);
        assert_eq!(traffic.left[&HEAVY], 3 - own);
        traffic.assert_in_order(&mut rig);
        rig.assert_sound();
    }
}

#[test]
fn a_look_ends_with_a_reload() {
    // Nothing changes, no elephants are allowed, the mode changes, its member is removed, the number of
    // buckets changes.
    let base = || with(1, Mode::Static, 3);
    for what in 0..5 {
        let (mut rig, mut traffic) = until_looked_at(base());
        let own = traffic.left[&HEAVY];
        let mut next = base();
        match what {
            0 => {}
            1 => next.elephants = 0,
            2 => next = with(1, Mode::BalanceTcp, 3),
            3 => next.members.retain(|member| member.port.0 != own),
            _ => next.buckets = 1024,
        }
        rig.reload(next);
        rig.forgive_removals();
        assert_eq!(looked_at(&rig), None);
        rig.assert_sound();
        if what == 2 {
            rig.add_partner();
            rig.run(5 * SEC);
        }
        traffic.send(&mut rig, HEAVY);
        if what != 2 && what != 4 {
            assert_eq!(traffic.left[&HEAVY] == own, what != 3, "{what}");
        }
        traffic.run(&mut rig, 3 * SEC);
        assert_eq!(pinned(&mut rig).len(), usize::from(what != 1), "{what}");
        rig.assert_sound();
    }
}

#[test]
fn a_reload_keeps_pins_that_mean_the_same() {
    let base = || with(2, Mode::Static, 3);
    for what in 0..8 {
        let (mut rig, mut traffic) = with_one_pinned(base());
        let own = traffic.left[&HEAVY];
        let mut next = base();
        let keeps = match what {
            0 => true,
            1 => {
                next.members.reverse();
                true
            }
            2 => {
                next.members.retain(|member| member.port.0 != own % 3 + 1);
                true
            }
            3 => {
                next.members.retain(|member| member.port.0 != own);
                false
            }
            4 => {
                next.elephants = 0;
                false
            }
            5 => {
                next = with(2, Mode::BalanceTcp, 3);
                false
            }
            6 => {
                next.basis = 7;
                false
            }
            _ => {
                next.elephants = 1;
                false
            }
        };
        rig.reload(next);
        rig.forgive_removals();
        rig.assert_sound();
        assert_eq!(pinned(&mut rig).len(), usize::from(keeps), "{what}");
        let flows = rig.program.pipe_named("bond0").unwrap();
        if what != 4 {
            assert_eq!(rig.engine.entries(flows).len(), usize::from(keeps), "{what}");
        }
        if what == 5 {
            rig.add_partner();
            rig.run(5 * SEC);
        }
        traffic.send(&mut rig, HEAVY);
        if keeps {
            assert_eq!(traffic.left[&HEAVY], own, "{what}");
            traffic.run(&mut rig, 3 * SEC);
            assert_eq!(pinned(&mut rig).len(), 1);
            traffic.assert_in_order(&mut rig);
        }
        rig.assert_sound();
    }
}

#[test]
fn another_seed_of_the_select_hash_loses_no_frame() {
    let (mut rig, mut traffic) = with_one_pinned(with(1, Mode::Static, 2));
    let mut program = program_of(&rig.bond);
    program.select_seed = 99;
    rig.reload_as(rig.bond.clone(), program);
    traffic.send(&mut rig, HEAVY);
    assert_eq!(pinned(&mut rig), [Value::Null; 0]);
    rig.assert_sound();
}

#[test]
fn without_any_member_nothing_is_sent_by_a_pin() {
    let (mut rig, mut traffic) = with_one_pinned(with(1, Mode::Static, 2));
    for port in [1, 2] {
        rig.carrier(port, false);
    }
    assert_eq!(rig.send(&long(HEAVY, 1_000_000)), [0; 0]);
    rig.assert_sound();
    for port in [1, 2] {
        rig.carrier(port, true);
    }
    traffic.run(&mut rig, 3 * SEC);
    assert_eq!(pinned(&mut rig).len(), 1);
    rig.assert_sound();
}
