//! NAT pools: which addresses and ports flows take, which flows take any, and when they are free again
//! (pipes.md N1 ff.).

mod support;

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use support::{Bench, SECRET, source_nat};
use weir_packet::craft::frame;
use weir_packet::{DropReason, FlowKey};
use weir_program::Verdict;
use weir_program::change::{Change, EntryKey};
use weir_program::check::check;
use weir_program::nat::Binding;
use weir_program::owner::Owners;
use weir_program::{
    Entry, EntryMatch, FlowState, NatPrefix, OwnedBy, PipeId, PipeKind, PortId, Program, Timeouts,
};

const NO_PORT: Verdict = Verdict::Drop(DropReason::NoNatPort);
const MISS: Verdict = Verdict::Drop(DropReason::Miss);

/// Two addresses with two ports for each slice.
fn small() -> Program {
    source_nat((1024, 1151), 31)
}

fn udp(source: &str, sport: u16, destination: &str, dport: u16) -> Vec<u8> {
    frame(&format!("src={source} dst={destination} proto=udp sport={sport} dport={dport}"))
}

fn client(sport: u16) -> Vec<u8> {
    udp("10.1.1.1", sport, "203.0.113.5", 53)
}

fn key(sport: u16) -> FlowKey {
    FlowKey::new([10, 1, 1, 1].into(), [203, 0, 113, 5].into(), 17, (sport, 53), None)
}

/// The address and port of a client's flow.
fn binding(bench: &Bench, sport: u16) -> Option<Binding> {
    bench.engine.flow(PipeId(0), &key(sport))?.binding
}

fn answer((address, port): Binding) -> Vec<u8> {
    udp("203.0.113.5", 53, &address.to_string(), port)
}

fn used(bench: &Bench) -> usize {
    bench.engine.pipe_reports()[0].nat_used
}

fn live(bench: &Bench) -> usize {
    bench.engine.flows(PipeId(0), 0).1
}

/// Ports of a client whose flows are in one slice.
fn of_one_slice(program: &Program) -> Vec<u16> {
    let mut by_worker: BTreeMap<usize, Vec<u16>> = BTreeMap::new();
    let owners = Owners::new(program, SECRET.into(), 64);
    for sport in 0..4000 {
        by_worker.entry(owners.worker(PortId(0), &client(sport))).or_default().push(sport);
    }
    assert_eq!(by_worker.len(), 64, "as many workers as slices");
    by_worker.remove(&0).unwrap()
}

#[test]
fn n1_a_flow_takes_an_address_and_a_port_and_its_answers_come_back() {
    let mut bench = Bench::new(&small());
    assert_eq!(check(&small()), []);
    let out = bench.bytes(PortId(0), &client(4000));
    let (address, port) = binding(&bench, 4000).unwrap();
    assert!((1024..1152).contains(&port), "{port}");
    assert_eq!(out, udp(&address.to_string(), port, "203.0.113.5", 53));
    assert_eq!(bench.bytes(PortId(0), &client(4000)), out);
    let back = bench.bytes(PortId(1), &answer((address, port)));
    assert_eq!(back, udp("203.0.113.5", 53, "10.1.1.1", 4000));
    assert_eq!((used(&bench), live(&bench)), (1, 2));
    // An error from a router on the path is about this flow, and is returned as well.
    let inside: String = out[14..42].iter().map(|byte| format!("{byte:02x}")).collect();
    let error = format!("src=198.51.100.7 dst={address} proto=icmp icmp_type=11 payload={inside}");
    let back = bench.bytes(PortId(1), &frame(&error));
    let inside: String = client(4000)[14..42].iter().map(|byte| format!("{byte:02x}")).collect();
    let wanted = format!("src=198.51.100.7 dst=10.1.1.1 proto=icmp icmp_type=11 payload={inside}");
    assert_eq!(back, frame(&wanted));
}

#[test]
fn n2_the_port_of_an_answer_says_which_worker_it_is_for() {
    let mut bench = Bench::new(&small());
    for workers in [1, 2, 3, 4, 64, 100] {
        let owners = Owners::new(&small(), SECRET.into(), workers);
        let mut met = BTreeSet::new();
        for sport in 0..200 {
            bench.frame(PortId(0), &client(sport));
            let Some(bound) = binding(&bench, sport) else { continue };
            let worker = owners.worker(PortId(0), &client(sport));
            assert_eq!(owners.worker(PortId(1), &answer(bound)), worker, "{workers} workers");
            met.insert(worker);
        }
        assert!(met.len() > workers.min(40) / 2, "{met:?} of {workers}");
    }
}

#[test]
fn n3_who_begins_no_flow() {
    let mut bench = Bench::new(&small());
    let stranger = answer(([192, 0, 2, 8].into(), 1024));
    let fragment = frame("src=10.1.1.1 dst=203.0.113.5 frag=0+ proto=udp sport=7 dport=53");
    let ping = frame("src=10.1.1.1 dst=203.0.113.5 proto=icmp icmp_type=8");
    let ipv6 = frame("src=2001:db8::1 dst=2001:db8::2 proto=udp sport=7 dport=53");
    let to_pool = udp("10.1.1.1", 7, "192.0.2.9", 80);
    for other in [stranger, fragment, ping, ipv6, to_pool] {
        assert_eq!(bench.frame(PortId(0), &other), MISS, "{}", weir_packet::craft::describe(&other));
    }
    assert_eq!((used(&bench), live(&bench), bench.engine.flow_account().unflowed.unknown), (0, 0, 5));
}

#[test]
fn n4_what_was_left_behind_is_given_after_everything_else() {
    let mut bench = Bench::new(&small());
    let ports = of_one_slice(&small());
    // A slice has four places.
    for sport in &ports[..2] {
        bench.frame(PortId(0), &client(*sport));
    }
    let first = binding(&bench, ports[0]);
    bench.now_ns += 100_000_000;
    bench.engine.age(bench.now_ns);
    assert_eq!(used(&bench), 0);
    let mut given = Vec::new();
    for sport in &ports[2..6] {
        bench.frame(PortId(0), &client(*sport));
        given.push(binding(&bench, *sport));
    }
    assert_eq!(given.iter().position(|one| *one == first), Some(2), "{given:?}");
}

#[test]
fn n5_a_pool_that_is_used_up_drops_with_a_reason_and_so_does_a_full_table() {
    let mut bench = Bench::new(&small());
    let ports = of_one_slice(&small());
    let verdicts: Vec<Verdict> =
        ports[..6].iter().map(|sport| bench.frame(PortId(0), &client(*sport))).collect();
    assert_eq!(verdicts[4..], [NO_PORT; 2]);
    assert!(!verdicts[..4].contains(&NO_PORT));
    assert_eq!(bench.engine.flow_account().unflowed.no_nat_port, 2);
    assert_eq!((used(&bench), live(&bench)), (4, 8));
    let mut full = small();
    full.pipes[0].capacity = 3;
    let mut bench = Bench::new(&full);
    assert_ne!(bench.frame(PortId(0), &client(1)), NO_PORT);
    assert_eq!(
        bench.frame(PortId(0), &client(2)),
        NO_PORT,
        "there is room for one more, and not for answers"
    );
    assert_eq!((bench.engine.flow_account().unflowed.full, used(&bench)), (1, 1));
}

#[test]
fn n6_a_flow_and_its_answers_age_as_one() {
    let mut program = small();
    let timeouts = FlowState::ALL.iter().fold(Timeouts::CONNTRACK, |all, state| {
        all.with(*state, if matches!(state, FlowState::TcpRst) { 1_000_000_000 } else { 60_000_000_000 })
    });
    let PipeKind::Flow { timeouts: own, .. } = &mut program.pipes[0].kind else { unreachable!() };
    *own = timeouts;
    let tcp = |source: &str, sport: u16, destination: &str, dport: u16, flags: &str| {
        frame(&format!("src={source} dst={destination} proto=tcp sport={sport} dport={dport} flags={flags}"))
    };
    let there = |flags| tcp("10.1.1.1", 7, "203.0.113.5", 80, flags);
    let key = FlowKey::new([10, 1, 1, 1].into(), [203, 0, 113, 5].into(), 6, (7, 80), None);
    let mut bench = Bench::new(&program);
    bench.frame(PortId(0), &there("S"));
    let (address, port) = bench.engine.flow(PipeId(0), &key).unwrap().binding.unwrap();
    let back = |flags| tcp("203.0.113.5", 80, &address.to_string(), port, flags);
    // Packets in one direction keep both alive.
    for _ in 0..3 {
        bench.now_ns += 50_000_000_000;
        bench.frame(PortId(1), &back("A"));
        bench.engine.age(bench.now_ns);
        assert_eq!((live(&bench), used(&bench)), (2, 1));
    }
    // When one ends, both end.
    bench.frame(PortId(1), &back("R"));
    bench.now_ns += 2_000_000_000;
    bench.engine.age(bench.now_ns);
    assert_eq!((live(&bench), used(&bench)), (0, 0));
}

#[test]
fn n7_bindings_survive_a_swap_as_far_as_the_new_pool_has_them() {
    let bound = |bench: &Bench| (0..100).map(|sport| binding(bench, sport)).collect::<Vec<_>>();
    let mut capacity = small();
    capacity.pipes[0].capacity = 1000;
    let mut larger = small();
    larger.nat_pools[0].prefixes.insert(0, NatPrefix { first: [198, 51, 100, 0].into(), length: 28 });
    larger.nat_pools[0].last = 65_535;
    for program in [small(), capacity, larger] {
        let mut bench = Bench::new(&small());
        (0..100).for_each(|sport| _ = bench.frame(PortId(0), &client(sport)));
        let (before, taken) = (bound(&bench), used(&bench));
        bench.swap(&program);
        assert_eq!((bound(&bench), used(&bench)), (before, taken));
        (100..200).for_each(|sport| _ = bench.frame(PortId(0), &client(sport)));
        distinct(&bench);
    }
    let mut bench = Bench::new(&small());
    (0..100).for_each(|sport| _ = bench.frame(PortId(0), &client(sport)));
    let before = bound(&bench);
    bench.swap(&source_nat((1024, 1087), 31));
    let kept = |bound: &Option<Binding>| bound.filter(|(_, port)| *port < 1088);
    assert_eq!(bound(&bench), before.iter().map(kept).collect::<Vec<_>>());
    assert_eq!(live(&bench), 2 * used(&bench));
    assert!(used(&bench) > 0 && before.iter().flatten().count() > used(&bench));
}

#[test]
fn n7_flows_to_an_address_that_the_pool_gets_end() {
    let inside = |sport| udp("10.1.1.1", sport, "192.0.2.10", 1024);
    let key = |sport| FlowKey::new([10, 1, 1, 1].into(), [192, 0, 2, 10].into(), 17, (sport, 1024), None);
    let mut bench = Bench::new(&small());
    (0..100).for_each(|sport| _ = bench.frame(PortId(0), &inside(sport)));
    let mut larger = small();
    larger.nat_pools[0].prefixes.push(NatPrefix { first: [192, 0, 2, 10].into(), length: 32 });
    let slice = |bench: &Bench, sport| bench.engine.flow(PipeId(0), &key(sport)).map(|flow| flow.binding);
    let before: Vec<_> = (0..100).map(|sport| slice(&bench, sport)).collect();
    bench.swap(&larger);
    for (sport, before) in before.into_iter().enumerate() {
        // Packets sent there are answers now, in the slice of their port: 1024 is in slice 0.
        let stays = before.flatten().is_some_and(|(_, port)| port % 64 == 0);
        assert_eq!(slice(&bench, sport as u16).is_some(), stays, "{sport}");
    }
}

#[test]
fn n9_an_entry_of_its_own_takes_a_flow_out_of_the_pool() {
    let mut bench = Bench::new(&small());
    bench.frame(PortId(0), &client(7));
    let entry = Entry { template: 1, run_time: true, ..Entry::on(EntryMatch::Flow(key(7))) };
    bench.apply(Change::Add { pipe: PipeId(0), entry: entry.clone() }).unwrap();
    assert_eq!((binding(&bench, 7), used(&bench), live(&bench)), (None, 1, 2), "its answers still have it");
    bench
        .apply(Change::Remove { pipe: PipeId(0), key: EntryKey::of(&Entry::on(EntryMatch::Default)) })
        .unwrap();
    bench.take_deltas();
    assert_eq!((used(&bench), live(&bench)), (0, 1));
    let taking = Entry { template: 0, ..entry };
    assert!(bench.apply(Change::Add { pipe: PipeId(0), entry: taking }).is_err());
}

#[test]
fn n9_the_check_refuses_what_cannot_work() {
    type Spoil = fn(&mut Program);
    let cases: [(&str, Spoil); 12] = [
        ("at least 64", |program| program.nat_pools[0].last = 1086),
        ("has no ports", |program| program.nat_pools[0].last = 1000),
        ("has no addresses", |program| program.nat_pools[0].prefixes.clear()),
        ("twice", |program| {
            program.nat_pools[0].prefixes.push(NatPrefix { first: [192, 0, 2, 9].into(), length: 32 })
        }),
        ("the limit is", |program| {
            program.nat_pools[0].prefixes = vec![NatPrefix { first: [0, 0, 0, 0].into(), length: 0 }];
        }),
        ("the limit is", |program| {
            program.nat_pools[0].prefixes =
                vec![NatPrefix { first: "2001:db8::".parse().unwrap(), length: 64 }];
        }),
        ("includes port 0", |program| program.nat_pools[0].first = 0),
        ("with NAT pool `out`", |program| {
            let mut other = program.nat_pools[0].clone();
            other.name = "other".into();
            program.nat_pools.push(other);
        }),
        ("ipv6.src", |program| {
            program.nat_pools[0].prefixes =
                vec![NatPrefix { first: "2001:db8::".parse().unwrap(), length: 120 }];
        }),
        ("reverse: true", |program| {
            let PipeKind::Flow { reverse, .. } = &mut program.pipes[0].kind else { unreachable!() };
            *reverse = false;
        }),
        ("owner: both", |program| program.pipes[0].owner = OwnedBy::Src),
        ("each once", |program| program.pipes[0].templates[0].operations.truncate(1)),
    ];
    let mut whole = small();
    (whole.nat_pools[0].first, whole.nat_pools[0].last) = (1, u16::MAX);
    whole.nat_pools[0].prefixes = vec![NatPrefix { first: [192, 0, 2, 0].into(), length: 24 }];
    assert_eq!(check(&whole), [], "2^24 places, less those of port 0");
    for (wanted, spoil) in cases {
        let mut program = small();
        spoil(&mut program);
        let found: Vec<String> = check(&program).iter().map(|one| one.kind.to_string()).collect();
        assert!(found.iter().any(|one| one.contains(wanted)), "{wanted}: {found:?}");
    }
}

/// No two flows share a place, except a flow and its answers.
fn distinct(bench: &Bench) {
    let mut seen = BTreeSet::new();
    for flow in bench.engine.flows(PipeId(0), usize::MAX).0 {
        let Some(bound) = flow.binding else { continue };
        let is_answers = (flow.key.dst(), flow.key.dport()) == bound;
        assert!(seen.insert((bound, is_answers)), "{} has {bound:?}, as another flow does", flow.key);
    }
    let bound: BTreeSet<Binding> = seen.into_iter().map(|(bound, _)| bound).collect();
    assert_eq!(bound.len(), used(bench));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn no_two_live_flows_share_and_all_is_free_when_all_are_gone(
        steps in prop::collection::vec((0_u8..12, any::<u16>()), 1..300), last in 1087_u16..1300,
    ) {
        let program = source_nat((1024, last), 31);
        let mut bench = Bench::new(&program);
        let target = Entry::on(EntryMatch::Target(0));
        let id = PipeId(0);
        for (what, number) in steps {
            match what {
                0 => bench.now_ns += u64::from(number) * 1_000,
                1 => bench.engine.age(bench.now_ns),
                2 => _ = bench.apply(Change::Remove { pipe: id, key: EntryKey::of(&target) }),
                3 => _ = bench.apply(Change::Add { pipe: id, entry: target.clone() }),
                4 => {
                    let mut other = source_nat((1024, last.max(number % 1300)), 31);
                    other.pipes[0].capacity = if number % 2 == 0 { 4096 } else { 700 };
                    bench.swap(&other);
                }
                5 => {
                    let flows = bench.engine.flows(id, usize::MAX).0;
                    let bound = flows.into_iter().find_map(|flow| flow.binding);
                    bound.into_iter().for_each(|bound| _ = bench.frame(PortId(1), &answer(bound)));
                }
                _ => (0..20).for_each(|more| _ = bench.frame(PortId(0), &client(number % 1000 + more))),
            }
            distinct(&bench);
        }
        bench.now_ns += 1_000_000_000;
        bench.engine.age(bench.now_ns);
        bench.engine.take_deltas(|_| true);
        bench.engine.clear_removed();
        prop_assert_eq!((used(&bench), live(&bench)), (0, 0));
        // And everything can be handed out again.
        let _ = bench.apply(Change::Add { pipe: id, entry: target });
        (0..u16::MAX).step_by(7).for_each(|sport| _ = bench.frame(PortId(0), &client(sport)));
        let all = bench.program.nat_pools[0].places() as usize;
        prop_assert!(used(&bench) == all || live(&bench) + 2 > bench.program.pipes[0].capacity as usize);
    }
}
