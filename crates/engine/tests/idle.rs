//! Connections whose flows have been idle too long are announced to the app that resets them (pipes.md
//! C16).

mod support;

use support::both::Both;
use support::{source_nat, start};
use weir_engine::batch::Engine;
use weir_packet::craft;
use weir_program::{
    AppId, Entry, EntryMatch, Fill, FlowState, Forward, Group, GroupId, Learn, Pipe, PipeId, PipeKind,
    PortId, Program, Target, Timeouts,
};

const MS: u64 = 1_000_000;
/// How long an established connection may be idle, and a reset connection.
const ESTABLISHED_MS: u64 = 50;
const RST_MS: u64 = 20;
/// Ethernet, IPv4 and TCP without options.
const HEADERS: usize = 14 + 20 + 20;

fn timeouts() -> Timeouts {
    let all = Timeouts::CONNTRACK.with(FlowState::TcpEstablished, ESTABLISHED_MS * MS);
    all.with(FlowState::TcpRst, RST_MS * MS)
}

/// A program that pins flows to a target of a group, whose idle connections an app resets or not.
fn pinning(has_app: bool, capacity: u32) -> Program {
    let row = Entry::on(EntryMatch::Target(0)).to(PortId(0));
    let pipe = Pipe::flow("flows", Learn::Pin(GroupId(0).into())).entry(row).forward(Forward::PerEntry);
    let mut program = start(&["p0", "p1"], [pipe.timeouts(timeouts()).capacity(capacity)]);
    let app = program.app("resetter");
    let group = Group::new("g", Fill::Wants, 64).targets([Target::new("t0", PortId(0))]);
    program.group(group.idle(has_app.then_some(app)));
    program.build()
}

fn tcp(said: &str) -> Vec<u8> {
    craft::frame(&format!("src=10.1.1.1 dst=203.0.113.5 proto=tcp sport=7 dport=80 {said}"))
}

/// The information that an app gets about an idle connection.
type Announced = (AppId, PortId, Vec<u8>);

fn announced(engine: &mut Engine) -> Vec<Announced> {
    let mut all = Vec::new();
    engine.take_idle(|one| {
        all.push((one.app, one.input(), one.bytes().to_vec()));
        true
    });
    all
}

impl Both {
    fn say(&mut self, input: u16, all: &[&str]) {
        all.iter().for_each(|said| _ = self.verdict(PortId(input), &tcp(said)));
    }

    /// Lets time pass. Returns what the app learns, and the state of the first flow.
    fn wait(&mut self, ms: u64) -> (Vec<Announced>, Option<FlowState>) {
        self.bench.now_ns += ms * MS;
        self.bench.engine.age(self.bench.now_ns);
        self.twin.age(self.bench.now_ns);
        let announced = announced(&mut self.bench.engine);
        assert_eq!(announced, self.twin.take_idle());
        let flows = self.bench.engine.flows(PipeId(0), 9).0;
        assert_eq!(flows.len(), self.twin.snapshot().pipes[0].flows.len());
        (announced, flows.first().and_then(|flow| flow.state))
    }
}

/// The information that the app gets about a connection whose newest segment is this one.
fn newest(input: u16, said: &str) -> Vec<Announced> {
    vec![(AppId(0), PortId(input), tcp(said)[..HEADERS].to_vec())]
}

#[test]
fn c16_an_idle_connection_is_announced() {
    let mut both = Both::new(&pinning(true, 64));
    both.say(1, &["flags=S seq=99", "flags=A seq=100 ack=7", "flags=PA seq=100 ack=7 payload=c0ffee"]);
    assert_eq!(both.wait(ESTABLISHED_MS), (vec![], Some(FlowState::TcpEstablished)));
    let wanted = newest(1, "flags=PA seq=100 ack=7 payload=c0ffee");
    assert_eq!(both.wait(1), (wanted, Some(FlowState::TcpRst)));
    // Its resets have time to follow the flow, and are not announced again.
    assert_eq!(both.wait(RST_MS), (vec![], Some(FlowState::TcpRst)));
    both.say(1, &["flags=RA seq=103 ack=7"]);
    assert_eq!(both.wait(RST_MS), (vec![], Some(FlowState::TcpRst)));
    assert_eq!(both.wait(1), (vec![], None));
}

#[test]
fn c16_only_established_connections_are_announced() {
    for said in [&["flags=S"][..], &["flags=A", "flags=FA"], &["flags=A", "flags=A", "flags=R"]] {
        let mut both = Both::new(&pinning(true, 64));
        both.say(0, said);
        assert_eq!(both.wait(3_600_000 * 24 * 6), (vec![], None), "{said:?}");
    }
    let mut both = Both::new(&pinning(false, 64));
    both.say(0, &["flags=A ack=1", "flags=A ack=1"]);
    assert_eq!(both.wait(ESTABLISHED_MS + 1), (vec![], None), "no app");
    // A connection whose segments acknowledge nothing cannot be reset.
    let mut both = Both::new(&pinning(true, 64));
    both.say(0, &["flags=P", "flags=P"]);
    assert_eq!(both.wait(ESTABLISHED_MS + 1), (vec![], None), "no acknowledgement");
}

#[test]
fn c16_no_older_segment_counts() {
    for (said, wanted) in [
        (["flags=A seq=100 ack=7 payload=c0ffee", "flags=A seq=103 ack=9"], 1),
        // A retransmitted segment, and one that keeps the connection alive.
        (["flags=A seq=103 ack=9", "flags=A seq=100 ack=7 payload=c0"], 0),
        (["flags=A seq=103 ack=9", "flags=A seq=102 ack=9"], 0),
        (["flags=A seq=0xfffffffe ack=7 payload=c0ffee", "flags=A seq=1 ack=9"], 1),
        (["flags=A seq=1 ack=9", "flags=A seq=0xffffffff ack=9"], 0),
    ] {
        let mut both = Both::new(&pinning(true, 64));
        both.say(0, &said);
        assert_eq!(both.wait(ESTABLISHED_MS + 1).0, newest(0, said[wanted]), "{said:?}");
        // Another connection with the same addresses and ports starts from its own numbers.
        both.say(0, &["flags=S seq=5", "flags=A seq=6 ack=1"]);
        assert_eq!(both.wait(ESTABLISHED_MS + 1).0, newest(0, "flags=A seq=6 ack=1"), "{said:?}");
    }
}

#[test]
fn c16_both_directions_are_idle_together() {
    let mut program = source_nat((1024, 1151), 31);
    if let PipeKind::Flow { timeouts: of_pipe, .. } = &mut program.pipes[0].kind {
        *of_pipe = timeouts();
    }
    program.apps.push("resetter".into());
    program.groups[0].idle = Some(AppId(0));
    let mut both = Both::new(&program);
    let first = both.bench.bytes(PortId(0), &tcp("flags=S seq=99"));
    both.twin.walk(PortId(0), &tcp("flags=S seq=99"), 128, 0);
    let (port, address) = (
        u16::from_be_bytes([first[34], first[35]]),
        std::net::Ipv4Addr::from([first[26], first[27], first[28], first[29]]),
    );
    let answer = |said: &str| {
        craft::frame(&format!("src=203.0.113.5 dst={address} proto=tcp sport=80 dport={port} {said}"))
    };
    both.verdict(PortId(1), &answer("flags=SA seq=6 ack=100"));
    both.say(0, &["flags=A seq=100 ack=7"]);
    both.wait(ESTABLISHED_MS - 10);
    both.verdict(PortId(1), &answer("flags=A seq=7 ack=100 payload=c0"));
    assert_eq!(
        both.wait(ESTABLISHED_MS),
        (vec![], Some(FlowState::TcpEstablished)),
        "the answers have not \
        aged"
    );
    assert_eq!(both.wait(1), (newest(0, "flags=A seq=100 ack=7"), Some(FlowState::TcpRst)));
    assert_eq!(both.wait(RST_MS), (vec![], Some(FlowState::TcpRst)));
    assert_eq!(both.wait(1), (vec![], None));
}

#[test]
fn c16_segments_survive_a_swap() {
    for capacity in [64, 128] {
        let mut bench = Both::new(&pinning(true, 64)).bench;
        ["flags=S seq=99", "flags=A seq=100 ack=7"]
            .iter()
            .for_each(|said| _ = bench.frame(PortId(0), &tcp(said)));
        bench.swap(&pinning(true, capacity));
        bench.engine.age((ESTABLISHED_MS + 1) * MS);
        assert_eq!(announced(&mut bench.engine), newest(0, "flags=A seq=100 ack=7"), "{capacity}");
    }
    // A program without the app lets the flow end.
    let mut bench = Both::new(&pinning(true, 64)).bench;
    (0..2).for_each(|_| _ = bench.frame(PortId(0), &tcp("flags=A ack=7")));
    bench.swap(&pinning(false, 64));
    bench.engine.age((ESTABLISHED_MS + 1) * MS);
    assert_eq!((announced(&mut bench.engine), bench.engine.flows(PipeId(0), 9).1), (vec![], 0));
}

#[test]
fn while_many_segments_wait_idle_flows_stay() {
    let mut bench = Both::new(&pinning(true, 601)).bench;
    for sport in 0..600 {
        let frame = format!("src=10.1.1.1 dst=203.0.113.5 proto=tcp sport={sport} dport=80 flags=A ack=7");
        (0..2).for_each(|_| _ = bench.frame(PortId(0), &craft::frame(&frame)));
    }
    let states = |engine: &Engine, state: FlowState| {
        engine.flows(PipeId(0), 999).0.iter().filter(|flow| flow.state == Some(state)).count()
    };
    let tick = |engine: &mut Engine, ms: u64| {
        engine.tick(ms * MS);
        engine.take_deltas(|_| true);
        [FlowState::TcpRst, FlowState::TcpEstablished].map(|state| states(engine, state))
    };
    // Each of these visits all rows.
    assert_eq!(tick(&mut bench.engine, 1050), [512, 88]);
    assert_eq!(announced(&mut bench.engine).len(), 512);
    assert_eq!(tick(&mut bench.engine, 2100), [88, 0]);
    assert_eq!(announced(&mut bench.engine).len(), 88);
}
