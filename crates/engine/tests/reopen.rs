//! A SYN on a flow that has ended begins another (pipes.md C15).

mod support;

use support::both::Both;
use support::{Bench, SECRET, source_nat, start};
use weir_engine::batch::Engine;
use weir_engine::delta::DeltaReason;
use weir_packet::{Batch, Pools, craft};
use weir_program::Verdict;
use weir_program::change::Change;
use weir_program::{
    Entry, EntryMatch, Fill, FlowState, Forward, Group, GroupId, Learn, NewFlows, Pipe, PipeId, PipeKind,
    PortId, Program, Target, Timeouts,
};

const MS: u64 = 1_000_000;

/// A program that sends new flows to two ports in turn, wherever they come from.
fn in_turn(change: impl FnOnce(Pipe) -> Pipe) -> Program {
    let rows = (0..2).map(|at| Entry::on(EntryMatch::Target(at)).to(PortId(at)));
    let pipe = Pipe::flow("flows", Learn::Pin(GroupId(0).into())).entries(rows).forward(Forward::PerEntry);
    let pipe = pipe.timeouts(Timeouts::CONNTRACK).capacity(64);
    let mut program = start(&["p0", "p1"], [change(pipe)]);
    let targets = ["t0", "t1"].map(|name| Target::new(name, PortId(0)));
    program.group(Group::new("g", Fill::Wants, 64).new_flows(NewFlows::RoundRobin).targets(targets));
    program.build()
}

fn client(said: &str) -> Vec<u8> {
    craft::frame(&format!("src=10.1.1.1 dst=203.0.113.5 proto=tcp sport=7 dport=80 flags={said}"))
}

impl Both {
    /// Returns the port that a frame leaves through.
    fn frame(&mut self, input: u16, bytes: &[u8]) -> u16 {
        self.leaves_by(PortId(input), bytes)
    }

    /// Returns the ports that segments of a client leave through.
    fn segments(&mut self, all: &[&str]) -> Vec<u16> {
        all.iter().map(|said| self.frame(0, &client(said))).collect()
    }

    /// Returns how many flows have begun in total.
    fn begun(&self) -> u64 {
        let census = self.bench.tables().census(PipeId(0));
        (0..2).map(|target| census.flows(target).begun).sum()
    }

    /// Returns the packets of flows that a SYN has ended.
    fn reopened(&mut self) -> Vec<u64> {
        self.bench.take_deltas();
        let of_reason = self.bench.deltas.iter().filter(|delta| delta.reason() == DeltaReason::Reopened);
        of_reason.map(|delta| delta.packets()).collect()
    }
}

#[test]
fn c15_a_syn_on_an_ended_flow_begins_another() {
    let endings: [&[&str]; 4] =
        [&["S", "A", "FA"], &["S", "A", "FA", "A"], &["S", "A", "RA"], &["S", "A", "FA", "R"]];
    for ending in endings {
        let mut both = Both::new(&in_turn(|pipe| pipe));
        let first = both.segments(ending);
        assert!(first.iter().all(|port| *port == first[0]), "{ending:?}");
        // In turn, the next connection goes to the other target, with everything that belongs to it.
        let other = 1 - first[0];
        assert_eq!(both.segments(&["S", "A", "A payload=00", "FA"]), [other; 4], "{ending:?}");
        assert_eq!((both.begun(), both.reopened()), (2, vec![ending.len() as u64]), "{ending:?}");
        assert_eq!(both.segments(&["S"]), [first[0]], "{ending:?}");
        assert_eq!(both.begun(), 3);
        let flow = both.bench.engine.flows(PipeId(0), 9).0[0];
        assert_eq!((flow.hits.packets, flow.state), (1, Some(FlowState::TcpSyn)));
    }
}

#[test]
fn c15_any_other_syn_joins_its_flow() {
    let open: [&[&str]; 5] =
        [&["S"], &["A"], &["S", "A"], &["S", "A", "FA", "A payload=00"], &["S", "A", "RA", "A"]];
    for said in open {
        let mut both = Both::new(&in_turn(|pipe| pipe));
        let mut ports = both.segments(said);
        ports.extend(both.segments(&["S", "S", "A"]));
        assert!(ports.iter().all(|port| *port == ports[0]), "{said:?}: {ports:?}");
        assert_eq!((both.begun(), both.reopened()), (1, Vec::new()), "{said:?}");
    }
    // Nor does anything except a bare SYN begin another.
    for said in ["SA", "FS", "RS", "A", "FA"] {
        let mut both = Both::new(&in_turn(|pipe| pipe));
        let first = both.segments(&["S", "A", "FA"])[0];
        assert_eq!(both.segments(&[said]), [first], "{said}");
        assert_eq!(both.begun(), 1, "{said}");
    }
}

#[test]
fn a_target_that_gets_no_new_flows_gets_none_from_a_port_that_is_used_again() {
    let mut both = Both::new(&in_turn(|pipe| pipe));
    let first = both.segments(&["S", "A", "FA"])[0];
    let nothing = Change::SetWeight { group: GroupId(0), target: first, weight: 0 };
    both.twin.apply(&nothing).unwrap();
    both.bench.apply(nothing).unwrap();
    both.twin.set_buckets(GroupId(0), both.bench.engine.buckets()[0].clone());
    for _ in 0..4 {
        assert_eq!(both.segments(&["S", "A", "FA"]), [1 - first; 3]);
    }
}

#[test]
fn without_states_without_learning_and_with_an_entry_of_its_own_no_syn_ends_a_flow() {
    let mut both = Both::new(&in_turn(|pipe| pipe.idle_timeout_ns(100 * MS)));
    both.segments(&["S", "A", "FA", "S"]);
    assert_eq!(both.begun(), 1);
    let key = weir_packet::FlowKey::new([10, 1, 1, 1].into(), [203, 0, 113, 5].into(), 6, (7, 80), None);
    for learn in [Learn::Nothing, Learn::Default] {
        let own = Entry::on(EntryMatch::Flow(key));
        let pipe = Pipe::flow("f", learn).timeouts(Timeouts::CONNTRACK).entry(own);
        let mut both = Both::new(&start(&["a"], [pipe.forward(PortId(0))]).build());
        both.segments(&["S", "A", "FA", "S"]);
        assert_eq!((both.bench.engine.flows(PipeId(0), 9).0[0].hits.packets, both.reopened()), (4, vec![]));
    }
}

#[test]
fn while_deltas_have_no_room_the_syn_joins_its_flow() {
    let mut both = Both::new(&in_turn(|pipe| pipe.report_first(true).capacity(5_000)));
    let first = both.segments(&["S", "A", "FA"])[0];
    both.bench.learn(4_200);
    assert_eq!(both.bench.frame(PortId(0), &client("S")), Verdict::Transmit(PortId(first)));
    assert_eq!(both.reopened(), Vec::<u64>::new());
}

/// A program that translates what clients send to an address and a port from its pool.
fn translating() -> Program {
    let mut program = source_nat((1024, 1151), 31);
    if let PipeKind::Flow { timeouts, .. } = &mut program.pipes[0].kind {
        *timeouts = Timeouts::CONNTRACK;
    }
    program
}

/// The other side's answer to a frame that the program has translated.
fn answer(to: &[u8], flags: &str) -> Vec<u8> {
    let port = u16::from_be_bytes([to[34], to[35]]);
    let address = std::net::Ipv4Addr::from([to[26], to[27], to[28], to[29]]);
    craft::frame(&format!("src=203.0.113.5 dst={address} proto=tcp sport=80 dport={port} flags={flags}"))
}

#[test]
fn c15_a_translated_connection_has_ended_when_both_sides_have_closed() {
    let mut both = Both::new(&translating());
    let first = both.bench.bytes(PortId(0), &client("S"));
    let say = |both: &mut Both, flags: &str| both.bench.bytes(PortId(0), &client(flags));
    let hear = |both: &mut Both, flags: &str| both.bench.frame(PortId(1), &answer(&first, flags));
    hear(&mut both, "SA");
    ["A", "FA"].iter().for_each(|flags| _ = say(&mut both, flags));
    hear(&mut both, "A");
    // The client has closed, and the other side may have more to send.
    assert_eq!(say(&mut both, "S"), first);
    ["A", "FA"].iter().for_each(|flags| _ = say(&mut both, flags));
    hear(&mut both, "FA");
    // A SYN of the other side begins no flow in this direction.
    assert_eq!(hear(&mut both, "S"), Verdict::Transmit(PortId(0)));
    hear(&mut both, "FA");
    say(&mut both, "FA");
    assert_eq!(both.reopened(), Vec::<u64>::new());
    let second = say(&mut both, "S");
    assert_ne!(second, first, "a port of its own");
    assert_eq!(both.reopened(), [7, 5]);
    assert_eq!(both.bench.engine.flows(PipeId(0), 9).1, 2);
    assert_eq!(hear(&mut both, "A"), Verdict::Drop(weir_packet::DropReason::Miss), "nothing leads there");
}

/// As in RFC 6146 §3.5.2.2 and in netfilter: a client that has forgotten the connection learns about it from
/// the acknowledgement that its SYN gets.
#[test]
fn c9_a_syn_on_a_half_closed_connection_changes_nothing() {
    for is_client in [true, false] {
        let mut both = Both::new(&translating());
        let first = both.bench.bytes(PortId(0), &client("S"));
        let mut say = |is_client: bool, flags: &str| match is_client {
            true => both.bench.frame(PortId(0), &client(flags)),
            false => both.bench.frame(PortId(1), &answer(&first, flags)),
        };
        for (is_client, flags) in [(false, "SA"), (true, "A"), (is_client, "FA")] {
            say(is_client, flags);
        }
        for flags in ["S", "SA", "S payload=c0"] {
            say(is_client, flags);
        }
        for flow in both.bench.engine.flows(PipeId(0), 9).0 {
            assert_eq!(flow.state, Some(FlowState::TcpHalfClosed), "client: {is_client}");
        }
    }
}

#[test]
fn c15_connections_of_one_batch_are_told_apart() {
    let said = ["S", "A", "R", "S", "A", "R", "S", "S", "A"];
    let mut engine = Engine::new(&translating(), SECRET).unwrap();
    let (mut pools, mut batch) = (Pools::region(16), Batch::new());
    for flags in said {
        let mut frame = pools.first().take().unwrap();
        frame.fill(&client(flags)).unwrap();
        batch.push(frame).unwrap();
    }
    let list = batch.mask();
    engine.process(&mut batch, list, PortId(0), MS);
    let mut bench = Bench::new(&translating());
    let ports: Vec<u16> = said
        .iter()
        .enumerate()
        .map(|(slot, flags)| {
            let alone = bench.bytes(PortId(0), &client(flags));
            assert_eq!(batch.frame(slot).bytes(), alone, "{slot}");
            u16::from_be_bytes([alone[34], alone[35]])
        })
        .collect();
    assert!(ports.chunk_by(|one, other| one == other).map(<[u16]>::len).eq([3, 3, 3]), "{ports:?}");
    for slot in 0..batch.len() {
        pools.give(batch.take(slot));
    }
    batch.clear();
    let mut given = Vec::new();
    engine.take_deltas(|delta| {
        given.push((delta.reason(), delta.packets()));
        true
    });
    // Each flow and that of its answers, which has no packets.
    assert_eq!(given, [(DeltaReason::Reopened, 3), (DeltaReason::Reopened, 0)].repeat(2));
}
