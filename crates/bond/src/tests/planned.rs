//! Planned moves lose nothing, and reorder no flow that pauses.

use super::frames::{number_of, numbered, udp};
use super::rig::{BondRig, MS, SEC, bond};
use crate::{Bond, Mode};
use std::collections::BTreeMap;

const US: u64 = 1_000;

/// Streams of frames from inside and from the partner, with counts.
#[derive(Default)]
struct FrameStreams {
    number: u32,
    /// Frames sent by the partner.
    from_partner: u32,
}

impl FrameStreams {
    /// For `ns`: one frame of each flow every `gap_ns`, and one from the partner on every member it
    /// distributes to.
    fn run(&mut self, rig: &mut BondRig, flows: u16, ns: u64, gap_ns: u64) {
        for _ in 0..ns / gap_ns {
            for flow in 0..flows {
                rig.frame(0, &numbered(flow, self.number));
            }
            self.number += 1;
            let Some(partner) = &rig.partner else { return rig.run(gap_ns) };
            let sends: Vec<u16> = partner.used.iter().filter(|one| one.1.1).map(|one| *one.0).collect();
            for port in sends {
                let member = rig.bond.members.iter().any(|member| member.port.0 == port);
                if member {
                    rig.partner_sends(port, &udp(7));
                    self.from_partner += 1;
                }
            }
            rig.run(gap_ns);
        }
    }

    /// Asserts that every frame has arrived; returns how many did so after a later one of their flow.
    fn end(&self, rig: &mut BondRig, flows: u16) -> u32 {
        rig.run(10 * MS);
        assert_eq!(rig.refused_by_partner, 0, "nothing is sent to a partner that is not collecting");
        let mut next = BTreeMap::<u16, u32>::new();
        let (mut late, mut arrived) = (0, 0);
        for seen in rig.taken.iter().filter(|seen| seen.bytes.len() >= 46 && seen.bytes[36..38] == [0, 80]) {
            let (flow, number) = number_of(&seen.bytes);
            let newest = next.entry(flow).or_default();
            late += u32::from(number < *newest);
            *newest = (*newest).max(number);
            arrived += 1;
        }
        assert_eq!(arrived, u32::from(flows) * self.number, "all that was sent has arrived");
        let came = rig.inside.iter().filter(|frame| **frame == udp(7)).count();
        assert_eq!(came as u32, self.from_partner, "everything the partner sent has arrived");
        rig.assert_sound();
        late
    }
}

/// A bond over links whose latencies differ by as much as its idle gap allows.
fn uneven(members: u16) -> BondRig {
    let mut rig = BondRig::negotiated(members);
    for (port, latency_us) in [(1, 900), (2, 100), (3, 500)] {
        rig.wires.get_mut(&port).unwrap().latency_ns = latency_us * US;
    }
    rig
}

#[test]
fn flows_that_pause_are_never_reordered() {
    let mut rig = uneven(3);
    let mut traffic = FrameStreams::default();
    for words in ["disable p1", "enable p1", "disable p2", "enable p2", "migrate 7 p3", "rebalance"] {
        // Bursts of five frames, each followed by a pause of 2 ms.
        for burst in 0..100 {
            traffic.run(&mut rig, 40, 5 * 200 * US, 200 * US);
            rig.run(2 * MS);
            if burst == 50 {
                rig.ask(words).unwrap();
            }
        }
        rig.run(3 * SEC);
    }
    let late = traffic.end(&mut rig, 40);
    let report = rig.report();
    assert!(report.moved > 300, "{}", report.moved);
    assert_eq!((late, report.moved_busy), (0, 0));
}

#[test]
fn a_flow_that_never_pauses_is_counted() {
    let mut rig = uneven(2);
    let mut traffic = FrameStreams::default();
    traffic.run(&mut rig, 1, 100 * MS, 500 * US);
    let port = rig.taken.last().unwrap().port;
    rig.ask(&format!("disable p{port}")).unwrap();
    traffic.run(&mut rig, 1, 999 * MS, 500 * US);
    assert_eq!(rig.report().moved_busy, 0);
    assert_eq!(rig.taken.last().unwrap().port, port, "it still goes where it went");
    traffic.run(&mut rig, 1, 10 * MS, 500 * US);
    assert_eq!(rig.report().moved_busy, 1, "after 1 s it has waited long enough");
    assert_ne!(rig.taken.last().unwrap().port, port);
    traffic.end(&mut rig, 1);
}

#[test]
fn a_planned_removal_loses_nothing() {
    for idle_gap_max_ns in [100 * MS, SEC, 3 * SEC] {
        let mut rig =
            BondRig::new(Bond { idle_gap_max_ns, idle_gap_ns: 20 * MS, ..bond(Mode::BalanceTcp, 3) });
        rig.add_partner();
        rig.run(5 * SEC);
        let mut traffic = FrameStreams::default();
        traffic.run(&mut rig, 32, 100 * MS, 10 * MS);
        rig.ask("disable p2").unwrap();
        assert_eq!(rig.enabled(), [1, 3]);
        traffic.run(&mut rig, 32, idle_gap_max_ns + 3 * SEC, 10 * MS);
        assert_eq!(rig.shares().get(&2), None);
        assert_eq!(rig.partner.as_ref().unwrap().used[&2], (false, false), "the partner knows");
        assert_eq!(rig.admitted(), [1, 3]);
        let mark = rig.sent.len();
        traffic.run(&mut rig, 32, SEC, 10 * MS);
        assert!(rig.data_since(mark).iter().all(|seen| seen.port != 2));
        rig.ask("enable p2").unwrap();
        traffic.run(&mut rig, 32, 6 * SEC, 10 * MS);
        assert_eq!(rig.enabled(), [1, 2, 3]);
        assert_eq!(rig.shares()[&2], 85);
        traffic.end(&mut rig, 32);
    }
}

#[test]
fn a_partner_that_leaves_a_link_is_left_too() {
    let mut rig = BondRig::negotiated(2);
    let mut traffic = FrameStreams::default();
    rig.partner_holds(2, true);
    // The partner stops accepting frames before we hear of it; frames in flight are lost at its end, not at
    // ours.
    rig.run(MS);
    assert_eq!(rig.enabled(), [1]);
    rig.refused_by_partner = 0;
    traffic.run(&mut rig, 16, SEC, 10 * MS);
    rig.partner_holds(2, false);
    traffic.run(&mut rig, 16, 6 * SEC, 10 * MS);
    assert_eq!(rig.enabled(), [1, 2]);
    traffic.end(&mut rig, 16);
}

#[test]
fn a_leaver_that_is_lost_is_left_at_once() {
    type Loss = fn(&mut BondRig);
    let losses: [Loss; 2] = [|rig| rig.carrier(2, false), |rig| rig.partner_holds(2, true)];
    for lose in losses {
        let mut rig = BondRig::new(Bond {
            idle_gap_max_ns: 60 * SEC,
            idle_gap_ns: 30 * SEC,
            ..bond(Mode::BalanceTcp, 3)
        });
        rig.add_partner();
        rig.run(5 * SEC);
        let flows: Vec<u16> = (0..200).filter(|flow| rig.send(&udp(*flow)) == [2]).collect();
        let others: Vec<u16> = (0..200).filter(|flow| rig.send(&udp(*flow)) == [3]).collect();
        rig.ask("disable p2").unwrap();
        // Another pending move, which has no reason to hurry.
        rig.ask("disable p3").unwrap();
        rig.ask("enable p3").unwrap();
        assert!(flows.iter().all(|flow| rig.send(&udp(*flow)) == [2]), "they wait");
        lose(&mut rig);
        rig.run(MS);
        assert!(flows.iter().all(|flow| rig.send(&udp(*flow)) != [2]));
        assert!(others.iter().all(|flow| rig.send(&udp(*flow)) == [3]), "buckets of remaining members stay");
        rig.assert_sound();
    }
}

#[test]
fn slb_says_who_has_left_with_a_member_once_it_is_left() {
    let mut rig = BondRig::new(bond(Mode::BalanceSlb, 2));
    for station in 0..20 {
        rig.send(&super::frames::from(station, None, 1));
    }
    let mark = rig.sent.len();
    rig.ask("disable p2").unwrap();
    rig.run(500 * MS);
    rig.run(3 * SEC);
    let announced = rig.data_since(mark);
    assert_eq!(announced.len(), 20);
    assert!(announced.iter().all(|seen| seen.port == 1), "none through the drained member");
    assert_eq!(rig.admitted(), [1]);
    rig.assert_sound();
}
