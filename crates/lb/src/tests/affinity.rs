//! Services with client affinity: the client's source address, or a prefix of it, chooses for new flows, and
//! flows keep the choice.

use super::flows::FlowRig;
use super::losses::{balanced, modes_at};
use super::*;
use std::collections::BTreeSet;
use weir_program::Affinity;

fn client(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, last, 7)
}

/// A balancer in one of the modes, with `count` back ends.
fn balancer(mode: usize, count: u8, affinity: Affinity) -> Lb {
    let mut lb = Lb { flows: 4096, ..balanced(mode, count) };
    lb.services[0].affinity = Some(affinity);
    lb
}

fn ask(rig: &mut FlowRig, src: Ipv4Addr, sport: u16) -> u8 {
    rig.frame(&query(OURS, src, VIP, sport, 0)).expect("a back end")
}

#[test]
fn a_client_keeps_its_back_end_in_every_mode_and_a_new_back_end_moves_no_flow() {
    for mode in 0..modes_at(0).len() {
        let mut rig = FlowRig::new(&program_of(balancer(mode, 3, Affinity::ADDRESS), true));
        let first: Vec<u8> = (0..60).map(|last| ask(&mut rig, client(last), 1000)).collect();
        assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 3, "clients are spread");
        for (last, to) in (0..60).zip(&first) {
            let others: Vec<u8> = (1001..1006).map(|sport| ask(&mut rig, client(last), sport)).collect();
            assert_eq!(others, [*to; 5], "client {last} in mode {mode}");
        }
        rig.swap(&program_of(balancer(mode, 4, Affinity::ADDRESS), true));
        let mut moved = 0;
        for (last, to) in (0..60).zip(&first) {
            assert_eq!(ask(&mut rig, client(last), 1000), *to, "an open connection in mode {mode}");
            let new: BTreeSet<u8> = (2000..2003).map(|sport| ask(&mut rig, client(last), sport)).collect();
            assert_eq!(new.len(), 1, "all new flows of a client go to one back end");
            moved += usize::from(!new.contains(to));
        }
        assert!((1..30).contains(&moved), "about a quarter goes to the new one: {moved}");
    }
}

#[test]
fn a_prefix_is_one_client_and_without_flows_it_chooses_as_well() {
    let network = Affinity { ipv4: 24, ipv6: 64, timeout_ns: 0 };
    for stateless in [false, true] {
        let mut lb = balancer(0, 3, network);
        lb.services[0].stateless = stateless;
        let mut rig = FlowRig::new(&program_of(lb, true));
        let mut seen = BTreeSet::new();
        for third in 0..40 {
            let of = |last| Ipv4Addr::new(192, 0, third, last);
            let all: BTreeSet<u8> =
                (1..20).map(|last| ask(&mut rig, of(last), 900 + u16::from(last))).collect();
            assert_eq!(all.len(), 1, "192.0.{third}.0/24");
            seen.extend(all);
        }
        assert_eq!(seen.len(), 3, "networks are spread");
    }
}

#[test]
fn every_worker_and_every_node_chooses_the_same() {
    let program = program_of(balancer(5, 3, Affinity::ADDRESS), true);
    let mut workers = [FlowRig::new(&program), FlowRig::new(&program), FlowRig::new(&program)];
    for last in 0..60 {
        let connections =
            (0..9_u16).map(|at| ask(&mut workers[usize::from(at % 3)], client(last), 3000 + at));
        assert_eq!(connections.collect::<BTreeSet<_>>().len(), 1, "client {last}");
    }
}

#[test]
fn with_a_timeout_a_new_back_end_moves_no_client_that_is_remembered() {
    let kept = Affinity { timeout_ns: 10_800_000_000_000, ..Affinity::ADDRESS };
    for mode in 0..modes_at(0).len() {
        let mut rig = FlowRig::new(&program_of(balancer(mode, 3, kept), true));
        let first: Vec<u8> = (0..60).map(|last| ask(&mut rig, client(last), 1000)).collect();
        rig.swap(&program_of(balancer(mode, 4, kept), true));
        for (last, to) in (0..60).zip(&first) {
            assert_eq!(ask(&mut rig, client(last), 2000), *to, "client {last} in mode {mode}");
        }
        let new: BTreeSet<u8> = (60..200).map(|last| ask(&mut rig, client(last), 1000)).collect();
        assert_eq!(new.len(), 4, "others are spread over all");
    }
}
