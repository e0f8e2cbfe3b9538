//! New flows that go to targets in turn, or to the target with the fewest flows (pipes.md M24 to M26).

mod support;

use support::both::Both;
use support::{SECRET, source_nat, start, udp};
use weir_engine::batch::Engine;
use weir_packet::craft;
use weir_program::Verdict;
use weir_program::buckets::GroupTables;
use weir_program::census::Flows;
use weir_program::change::{Change, EntryKey};
use weir_program::{
    Entry, EntryMatch, Fill, Forward, Group, GroupChoice, GroupId, Learn, NewFlows, Pipe, PipeId, PipeKind,
    PortId, Program, Target, Timeouts,
};

const MS: u64 = 1_000_000;
/// The group of each program, where metadata does not choose.
const ONE: GroupChoice = GroupChoice::One(GroupId(0));

/// A program that pins flows to one target per weight, each of which leads to a port of its own.
fn program(new_flows: NewFlows, weights: &[u32], capacity: u32) -> Program {
    let names: Vec<String> = (0..weights.len()).map(|at| format!("p{at}")).collect();
    let rows = (0..weights.len() as u16).map(|at| Entry::on(EntryMatch::Target(at)).to(PortId(at)));
    let mut pipe = Pipe::flow("flows", Learn::Pin(ONE)).entries(rows).forward(Forward::PerEntry);
    if let PipeKind::Flow { timeouts, .. } = &mut pipe.kind {
        *timeouts = Timeouts::all(100 * MS);
    }
    let mut program = start(&names.iter().map(String::as_str).collect::<Vec<_>>(), [pipe.capacity(capacity)]);
    let target = |(at, weight): (usize, &u32)| Target::new(format!("t{at}"), PortId(0)).weight(*weight);
    let group = Group::new("g", Fill::Wants, 4096).new_flows(new_flows);
    program.group(group.targets(weights.iter().enumerate().map(target)));
    program.build()
}

impl Both {
    /// Returns the target that a frame goes to.
    fn frame(&mut self, bytes: &[u8]) -> u16 {
        self.leaves_by(PortId(0), bytes)
    }

    fn udp(&mut self, sport: u16) -> u16 {
        self.frame(&udp(sport, 53))
    }

    /// Where the hash sends a flow.
    fn by_hash(&mut self, sport: u16) -> u16 {
        Both::new(&program(NewFlows::Hash, &[1; 3], 1)).udp(sport)
    }

    fn flows(&self, target: u32) -> Flows {
        self.bench.tables().census(PipeId(0)).flows(target)
    }
}

fn tcp(sport: u16, flags: &str) -> Vec<u8> {
    craft::frame(&format!("src=10.0.0.1 dst=10.0.0.2 proto=tcp sport={sport} dport=80 flags={flags}"))
}

fn counts(to: &[u16], targets: u16) -> Vec<usize> {
    (0..targets).map(|target| to.iter().filter(|&&one| one == target).count()).collect()
}

#[test]
fn m24_new_flows_go_to_targets_in_turn_by_weight() {
    let mut both = Both::new(&program(NewFlows::RoundRobin, &[2, 0, 1, 1], 4096));
    let to: Vec<u16> = (0..400).map(|sport| both.udp(sport)).collect();
    assert_eq!(counts(&to, 4), [200, 0, 100, 100]);
    // Every round has the same order, wherever the first flow began.
    assert!(to.windows(5).all(|some| some[0] == some[4]), "{to:?}");
    let order = to.iter().map(|to| char::from(b'0' + *to as u8)).collect::<String>();
    assert!(order.contains("02300230"), "{order}");
    // A flow stays.
    assert!((0..400).all(|sport| both.udp(sport) == to[usize::from(sport)]));
    // With other weights the turns continue in another order.
    let weigh = Change::SetWeight { group: GroupId(0), target: 0, weight: 0 };
    both.bench.apply(weigh.clone()).unwrap();
    both.twin.apply(&weigh).unwrap();
    let to: Vec<u16> =
        (400..500).map(|sport| both.bench.frame(PortId(0), &udp(sport, 53))).map(target).collect();
    assert_eq!(counts(&to, 4), [0, 0, 50, 50]);
}

fn target(verdict: Verdict) -> u16 {
    let Verdict::Transmit(port) = verdict else { panic!("{verdict:?}") };
    port.0
}

#[test]
fn m25_a_new_flow_goes_to_the_target_with_the_fewest_for_its_weight() {
    let mut both = Both::new(&program(NewFlows::LeastFlows, &[1, 1, 2, 0], 4096));
    let to: Vec<u16> = (0..40).map(|sport| both.udp(sport)).collect();
    assert_eq!(counts(&to, 4), [10, 10, 20, 0]);
    assert_eq!(
        (both.flows(0), both.flows(3)),
        (Flows { active: 10, begun: 10, ..Flows::default() }, Flows::default())
    );
    // The flows of one target end; those of the others continue.
    both.bench.now_ns += 80 * MS;
    (0..40).filter(|sport| to[*sport] != 1).for_each(|sport| _ = both.udp(sport as u16));
    both.bench.now_ns += 80 * MS;
    both.bench.engine.age(both.bench.now_ns);
    both.twin.age(both.bench.now_ns);
    assert_eq!(both.flows(1), Flows { begun: 10, ..Flows::default() });
    let to: Vec<u16> = (100..110).map(|sport| both.udp(sport)).collect();
    assert_eq!(counts(&to, 4), [0, 10, 0, 0]);
    // A target whose entry is removed has no flows any more.
    let gone = Change::Remove { pipe: PipeId(0), key: EntryKey::one(EntryMatch::Target(2)) };
    both.bench.apply(gone).unwrap();
    assert_eq!(both.flows(2), Flows { begun: 20, ..Flows::default() });
}

/// Mitzenmacher's bound for the better of two choices: the largest load exceeds the mean by a little more
/// than log2 log n, regardless of the number of flows. By hash alone it would be some three standard
/// deviations.
#[test]
fn m25_of_many_targets_the_better_one_of_two_has_nearly_its_share() {
    let loads = |new_flows| {
        let mut both = Both::new(&program(new_flows, &[1; 64], 8192));
        let to: Vec<u16> =
            (0..6400).map(|sport| target(both.bench.frame(PortId(0), &udp(sport, 53)))).collect();
        counts(&to, 64)
    };
    let (least, hash) = (loads(NewFlows::LeastFlows), loads(NewFlows::Hash));
    assert!(least.iter().all(|load| (90..=104).contains(load)), "{least:?}");
    assert!(hash.iter().max() > Some(&115), "{hash:?}");
    // The twin takes the same two.
    let mut both = Both::new(&program(NewFlows::LeastFlows, &[1; 64], 8192));
    (0..300).for_each(|sport| _ = both.udp(sport));
}

#[test]
fn m26_what_is_no_connections_first_packet_goes_by_hash() {
    for new_flows in [NewFlows::RoundRobin, NewFlows::LeastFlows] {
        let mut both = Both::new(&program(new_flows, &[1; 3], 4096));
        let mut hash = Both::new(&program(NewFlows::Hash, &[1; 3], 4096));
        for sport in 0..60 {
            assert_eq!(both.frame(&tcp(sport, "A")), hash.frame(&tcp(sport, "A")));
        }
        let before = counts(&(0..60).map(|sport| both.frame(&tcp(sport, "A"))).collect::<Vec<_>>(), 3);
        let to: Vec<u16> = (1000..1060).map(|sport| both.frame(&tcp(sport, "S"))).collect();
        match new_flows {
            NewFlows::RoundRobin => assert_eq!(counts(&to, 3), [20, 20, 20]),
            _ => {
                let all: Vec<usize> = before.iter().zip(counts(&to, 3)).map(|(one, two)| one + two).collect();
                assert_eq!(all, [40, 40, 40]);
            }
        }
    }
}

#[test]
fn m26_without_room_flows_go_by_hash_and_stay_there_when_there_is_room_again() {
    for new_flows in [NewFlows::RoundRobin, NewFlows::LeastFlows] {
        let mut both = Both::new(&program(new_flows, &[1; 3], 4));
        (0..4).for_each(|sport| _ = both.udp(sport));
        // The table is full.
        both.bench.now_ns += 50 * MS;
        let late: Vec<u16> = (100..130).map(|sport| both.udp(sport)).collect();
        let hash: Vec<u16> = (100..130).map(|sport| both.by_hash(sport)).collect();
        assert_eq!(late, hash);
        // The first flows end, which makes room. Flows that began in the meantime stay where they are.
        both.bench.now_ns += 51 * MS;
        both.bench.engine.age(both.bench.now_ns);
        both.twin.age(both.bench.now_ns);
        assert_eq!(both.udp(103), hash[3]);
        assert_eq!(both.bench.engine.flows(PipeId(0), 9).1, 1, "it is learnt now");
        // The table had room throughout the lifetime of a flow: turns continue.
        both.bench.now_ns += 101 * MS;
        both.bench.engine.age(both.bench.now_ns);
        both.twin.age(both.bench.now_ns);
        let to: Vec<u16> = (200..203).map(|sport| both.udp(sport)).collect();
        assert_eq!(counts(&to, 3), [1, 1, 1]);
    }
}

/// Runs a frame through an engine.
fn through(engine: &mut Engine, bytes: &[u8]) -> u16 {
    target(engine.process_one(PortId(0), bytes, 0).verdict)
}

#[test]
fn m25_workers_share_the_counts_and_a_swap_counts_the_flows_in_again() {
    let before = program(NewFlows::LeastFlows, &[1; 3], 4096);
    let tables = GroupTables::new(&before);
    let mut workers = [(); 2].map(|()| Engine::with_tables(&before, SECRET, &tables).unwrap());
    let mut all = vec![0; 3];
    for sport in 0..60 {
        all[usize::from(through(&mut workers[usize::from(sport % 7 == 0)], &udp(sport, 53)))] += 1;
    }
    assert_eq!(all, [20, 20, 20], "as if there were one worker");
    // One target is removed, and another one is inserted in front.
    let mut after = program(NewFlows::LeastFlows, &[1; 3], 4096);
    for (at, name) in ["new", "t0", "t1"].into_iter().enumerate() {
        after.groups[0].target_mut(at).name = name.to_string();
    }
    let next = tables.succeed(&after);
    for (at, worker) in workers.iter_mut().enumerate() {
        let mut heir = Engine::with_tables(&after, SECRET, &next).unwrap();
        heir.inherit(worker, 0);
        *worker = heir;
        worker.tick((at as u64 + 1) * MS);
    }
    let census = next.census(PipeId(0));
    let flows = [0, 1, 2].map(|number| census.flows(number));
    let kept = Flows { active: 20, begun: 20, ..Flows::default() };
    assert_eq!(flows, [Flows::default(), kept, kept]);
    let to: Vec<u16> = (100..120).map(|sport| through(&mut workers[0], &udp(sport, 53))).collect();
    assert_eq!(counts(&to, 3), [20, 0, 0], "a new target gets all flows until it has as many as the others");
}

/// Each flow that its target does not answer counts once, in one direction and in two.
#[test]
fn what_targets_leave_unanswered_is_counted_once_for_each_flow() {
    let by_state = |mut program: Program| {
        for pipe in &mut program.pipes {
            if let PipeKind::Flow { timeouts, .. } = &mut pipe.kind {
                *timeouts = Timeouts::CONNTRACK;
            }
        }
        program
    };
    let mut both = Both::new(&by_state(program(NewFlows::RoundRobin, &[1], 4096)));
    for (sport, flags) in [(1, "S"), (1, "S"), (1, "S"), (2, "S"), (2, "A"), (2, "S"), (3, "S"), (3, "S")] {
        both.frame(&tcp(sport, flags));
    }
    assert_eq!(both.flows(0), Flows { active: 3, begun: 3, repeated: 3, unanswered: 2 });
    // In two directions, a reset counts the same, but not once the connection was accepted.
    let mut both = Both::new(&by_state(source_nat((1024, 1151), 32)));
    for (sport, flags) in [(7, &["RA"][..]), (8, &["SA", "R"]), (9, &["RA", "RA"])] {
        let syn = format!("src=10.1.1.1 dst=203.0.113.5 proto=tcp sport={sport} dport=80 flags=S");
        let sent = both.bench.bytes(PortId(0), &craft::frame(&syn));
        both.twin.walk(PortId(0), &craft::frame(&syn), 128, 0);
        let port = u16::from_be_bytes([sent[34], sent[35]]);
        for flags in flags {
            let answer =
                format!("src=203.0.113.5 dst=192.0.2.8 proto=tcp sport=80 dport={port} flags={flags}");
            both.verdict(PortId(1), &craft::frame(&answer));
        }
    }
    assert_eq!(both.flows(0), Flows { active: 3, begun: 3, repeated: 0, unanswered: 2 });
}
