//! Groups where the source address picks the target (pipes.md M30, M31).

mod support;

use support::{Bench, start};
use weir_oracle::Interpreter;
use weir_packet::{Field, KeySource, craft, select_hash};
use weir_program::Verdict;
use weir_program::check::{FindingKind, check};
use weir_program::{
    Affinity, Entry, EntryMatch, Fill, Forward, Group, GroupChoice, GroupId, HashInput, Learn, NewFlows,
    Pipe, PortId, Program, Target,
};

const PORTS: [&str; 4] = ["in", "r1", "r2", "r3"];
const ONE: GroupChoice = GroupChoice::One(GroupId(0));

fn group(affinity: Affinity) -> Group {
    let target = |at: u16| Target::new(PORTS[usize::from(at)], PortId(at));
    Group::new("g", Fill::Maglev, 251).targets((1..=3).map(target)).affinity(Some(affinity))
}

/// Programs that pick from the group in every possible way.
fn ways(group: &Group) -> Vec<Program> {
    let rows = || (0..3).map(|at| Entry::on(EntryMatch::Target(at)).to(PortId(at + 1)));
    let select = HashInput::Select(KeySource::Outer);
    let mut pipes = vec![Pipe::hash("pick", select, ONE)];
    pipes.extend([Learn::Pin(ONE), Learn::Follow(ONE)].map(|learn| Pipe::flow("pick", learn)));
    let finish =
        |pipe: Pipe| pipe.entries(rows()).forward(Forward::PerEntry).miss(Forward::Drop).capacity(64);
    let mut pipes: Vec<Pipe> = pipes.into_iter().map(finish).collect();
    // With hardly any room for flows.
    let full = Pipe::flow("pick", Learn::Pin(ONE)).entries(rows()).forward(Forward::PerEntry);
    pipes.push(full.miss(Forward::Drop).capacity(1));
    pipes.push(Pipe::basic("pick").entries([Entry::default()]).forward(Forward::Group(GroupId(0))));
    let program = |pipe: Pipe| {
        let mut program = start(&PORTS, [pipe]);
        program.group(group.clone());
        program.build()
    };
    pipes.into_iter().map(program).collect()
}

/// Sends a frame through the engine and the interpreter.
fn send((bench, twin): &mut (Bench, Interpreter), frame: &[u8]) -> Verdict {
    let wanted = twin.walk(PortId(0), frame, 128, bench.now_ns).verdict;
    assert_eq!(bench.frame(PortId(0), frame), wanted, "the twin disagrees: {}", craft::describe(frame));
    wanted
}

fn both(program: &Program) -> (Bench, Interpreter) {
    let bench = Bench::new(program);
    let twin = Interpreter::new(program, bench.engine.buckets());
    (bench, twin)
}

#[test]
fn m30_flows_from_a_prefix_go_to_one_target() {
    let affinity = Affinity { ipv4: 20, ipv6: 56, timeout_ns: 0 };
    for program in ways(&group(affinity)) {
        let mut both = both(&program);
        let buckets = both.0.engine.buckets()[0].clone();
        let mut seen = std::collections::BTreeSet::new();
        for at in 0..30_u16 {
            let v4 = |low: u16| format!("src=10.9.{}.{} dst=10.0.0.2", (at * 8) | (low >> 8), low & 0xff);
            let v6 = |low: u16| format!("src=2001:db8:{at:x}:ab{low:02x}::{low:x} dst=2001:db8::2");
            let bits = u64::from(0x0a09_0000 | u32::from(at * 8) << 8) & 0xffff_f000;
            let network = (0x2001_0db8_u64 << 32 | u64::from(at) << 16 | 0xab00, 0);
            for (text, [upper, lower]) in
                [(v4(3), [0, bits]), (v4(0x7ff), [0, bits]), (v6(7), [network.0, 0])]
            {
                let hash = select_hash(program.select_seed, &[upper, lower]);
                let wanted = buckets[((hash >> 32) as usize * buckets.len()) >> 32];
                for sport in [1, 2, 3] {
                    let frame = craft::frame(&format!("{text} proto=udp sport={sport} dport=53"));
                    assert_eq!(send(&mut both, &frame), Verdict::Transmit(PortId(wanted + 1)), "{text}");
                }
                seen.insert(wanted);
            }
        }
        assert_eq!(seen.len(), 3, "prefixes are spread");
    }
}

#[test]
fn m30_a_packet_without_a_flow_picks_as_from_other_groups() {
    let arp = craft::frame("arp=request sender_ip=10.0.0.1 target_ip=10.0.0.2");
    let others = ways(&Group { affinity: None, ..group(Affinity::ADDRESS) });
    for (program, other) in ways(&group(Affinity::ADDRESS)).iter().zip(&others) {
        assert_eq!(send(&mut both(program), &arp), send(&mut both(other), &arp));
    }
}

#[test]
fn m30_the_check_refuses_where_a_source_does_not_pick() {
    let finds = |group: Group, pipe: Pipe, wanted: fn(&FindingKind) -> bool| {
        let mut program = start(&PORTS, [pipe.forward(Forward::PerEntry).miss(Forward::Drop)]);
        program.group(group);
        let found = check(&program.build());
        assert!(found.iter().any(|finding| wanted(&finding.kind)), "{found:?}");
    };
    let select = || Pipe::hash("pick", HashInput::Select(KeySource::Outer), ONE);
    let of_fill = |kind: &FindingKind| matches!(kind, FindingKind::AffinityOfFill { .. });
    let of_bits = |kind: &FindingKind| matches!(kind, FindingKind::AffinityBits { .. });
    finds(Group { fill: Fill::Given, size: 256, ..group(Affinity::ADDRESS) }, select(), of_fill);
    finds(group(Affinity::ADDRESS).new_flows(NewFlows::RoundRobin), select(), of_fill);
    finds(group(Affinity { ipv4: 33, ipv6: 128, timeout_ns: 0 }), select(), of_bits);
    finds(group(Affinity { ipv4: 32, ipv6: 129, timeout_ns: 0 }), select(), of_bits);
    for input in [HashInput::Rss, HashInput::RoundRobin, HashInput::Fields(vec![(Field::Ipv4Src, 0xff)])] {
        let of_source = |kind: &FindingKind| matches!(kind, FindingKind::HashOfSource { .. });
        finds(group(Affinity::ADDRESS), Pipe::hash("pick", input, ONE), of_source);
    }
}

const SECOND: u64 = 1_000_000_000;

/// A program that pins flows, with targets weighted by `weights`, and remembers sources for five minutes.
fn remembering(weights: &[u32], capacity: u32) -> Program {
    let rows = (0..weights.len() as u16).map(|at| Entry::on(EntryMatch::Target(at)).to(PortId(at)));
    let pipe = Pipe::flow("pick", Learn::Pin(ONE)).entries(rows).forward(Forward::PerEntry);
    let pipe = pipe.miss(Forward::Drop).capacity(capacity).idle_timeout_ns(10 * SECOND);
    let mut program = start(&["p0", "p1", "p2", "p3"], [pipe]);
    let target = |(at, weight): (usize, &u32)| Target::new(format!("t{at}"), PortId(0)).weight(*weight);
    let affinity = Affinity { ipv4: 24, timeout_ns: 300 * SECOND, ..Affinity::ADDRESS };
    let group = Group::new("g", Fill::Maglev, 251).affinity(Some(affinity));
    program.group(group.targets(weights.iter().enumerate().map(target)));
    program.build()
}

/// A frame of a new flow from each of 40 networks.
fn networks(sport: u16) -> impl Iterator<Item = Vec<u8>> {
    (0..40).map(move |at| {
        craft::frame(&format!("src=10.9.{at}.{} dst=10.0.0.2 proto=udp sport={sport} dport=53", sport % 250))
    })
}

/// Where new flows of 40 networks go.
fn all(both: &mut (Bench, Interpreter), sport: u16) -> Vec<Verdict> {
    networks(sport).map(|frame| send(both, &frame)).collect()
}

fn later(both: &mut (Bench, Interpreter), seconds: u64) {
    both.0.now_ns += seconds * SECOND;
    let now_ns = both.0.now_ns;
    both.0.engine.age(now_ns);
    both.0.take_deltas();
    both.1.age(now_ns);
}

#[test]
fn m31_a_source_keeps_its_target_for_the_timeout_after_its_last_flow() {
    let mut both = both(&remembering(&[1, 1, 1, 0], 4096));
    let first = all(&mut both, 1);
    // Another target is added: it gets flows of sources that are not remembered.
    let weight =
        |target, weight| weir_program::change::Change::SetWeight { group: GroupId(0), target, weight };
    let set = |both: &mut (Bench, Interpreter), change: weir_program::change::Change| {
        both.1.apply(&change).unwrap();
        both.0.apply(change).unwrap();
        both.1.set_buckets(GroupId(0), both.0.engine.buckets()[0].clone());
    };
    set(&mut both, weight(3, 1));
    let moved = |now: &[Verdict]| now.iter().zip(&first).filter(|(now, first)| now != first).count();
    for sport in 2..5 {
        later(&mut both, 299);
        assert_eq!(both.0.engine.flows(weir_program::PipeId(0), 0).1, 0, "the flows are gone");
        assert_eq!(moved(&all(&mut both, sport)), 0, "each packet restarts the timeout");
    }
    // A target that no longer gets new flows is not remembered.
    set(&mut both, weight(0, 0));
    let left = all(&mut both, 5);
    assert!(left.iter().all(|one| *one != Verdict::Transmit(PortId(0))));
    let others = first.iter().zip(&left).filter(|(first, _)| **first != Verdict::Transmit(PortId(0)));
    assert!(others.clone().count() > 10 && others.clone().all(|(first, left)| first == left));
    set(&mut both, weight(0, 1));
    later(&mut both, 303);
    assert!((1..20).contains(&moved(&all(&mut both, 6))), "the buckets decide");
}

#[test]
fn m31_what_is_remembered_goes_on_over_a_swap_and_holds_without_room_for_flows() {
    let mut bench = Bench::new(&remembering(&[1, 1, 1], 1));
    let go = |bench: &mut Bench, sport| -> Vec<Verdict> {
        networks(sport).map(|frame| bench.frame(PortId(0), &frame)).collect()
    };
    // There is room for one flow: only the first source is remembered.
    let first = go(&mut bench, 1);
    assert_eq!(go(&mut bench, 2), first);
    let mut bench = Bench::new(&remembering(&[1, 1, 1], 4096));
    assert_eq!(go(&mut bench, 1), first);
    bench.swap(&remembering(&[1, 1, 1, 1], 4096));
    assert_eq!(go(&mut bench, 2), first);
    let mut fresh = Bench::new(&remembering(&[1, 1, 1, 1], 4096));
    assert_ne!(go(&mut fresh, 2), first, "the buckets are others");
}
