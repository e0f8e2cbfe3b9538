//! The states of flows, and how long flows stay as a result (pipes.md C9, C10).

mod support;

use support::{Bench, start, udp};
use weir_engine::delta::DeltaReason;
use weir_packet::FlowKey;
use weir_program::{EntryMatch, FlowState, Learn, Pipe, PipeId, PortId, Program, Timeouts};

const MS: u64 = 1_000_000;

/// A program that learns flows.
fn learning(change: impl FnOnce(Pipe) -> Pipe) -> Program {
    let pipe = Pipe::flow("f", Learn::Default).entry(EntryMatch::Default).capacity(64).forward(PortId(0));
    start(&["a"], [change(pipe)]).build()
}

/// A segment: its flags, optionally followed by a space and its other properties.
fn tcp(said: &str) -> Vec<u8> {
    weir_packet::craft::frame(&format!("src=10.0.0.1 dst=10.0.0.2 proto=tcp sport=7 dport=80 flags={said}"))
}

/// The state of the only flow after frames with these TCP flags.
fn state_after(segments: &[&str]) -> FlowState {
    let mut bench = Bench::new(&learning(|pipe| pipe.timeouts(Timeouts::CONNTRACK)));
    segments.iter().for_each(|said| _ = bench.frame(PortId(0), &tcp(said)));
    bench.engine.flows(PipeId(0), 1).0[0].state.expect("connection states are tracked")
}

#[test]
fn c9_the_state_of_a_flow_follows_the_flags_seen() {
    let cases: [(&[&str], FlowState); 16] = [
        (&["S"], FlowState::TcpSyn),
        (&["S", "S"], FlowState::TcpSyn),
        (&["SA"], FlowState::TcpSyn),
        (&["A"], FlowState::TcpSyn),
        (&["S", "A"], FlowState::TcpEstablished),
        (&["A", "A"], FlowState::TcpEstablished),
        (&["S", "A", "S"], FlowState::TcpEstablished),
        (&["S", "A", "FA"], FlowState::TcpHalfClosed),
        (&["S", "A", "FA", "A"], FlowState::TcpHalfClosed),
        (&["S", "A", "FA", "FA"], FlowState::TcpHalfClosed),
        (&["S", "A", "FA", "A payload=00"], FlowState::TcpEstablished),
        (&["S", "A", "R"], FlowState::TcpRst),
        (&["S", "A", "R", "R"], FlowState::TcpRst),
        (&["S", "A", "R", "A"], FlowState::TcpEstablished),
        (&["R"], FlowState::TcpRst),
        (&["R", "SA"], FlowState::TcpSyn),
    ];
    for (segments, state) in cases {
        assert_eq!(state_after(segments), state, "{segments:?}");
    }
    let mut bench = Bench::new(&learning(|pipe| pipe.timeouts(Timeouts::CONNTRACK)));
    for state in [FlowState::Single, FlowState::Stream, FlowState::Stream] {
        bench.frame(PortId(0), &udp(7, 53));
        assert_eq!(bench.engine.flows(PipeId(0), 1).0[0].state, Some(state));
    }
}

#[test]
fn c9_what_is_far_outside_the_window_closes_and_resets_nothing() {
    let near = 100_u32 << 24;
    for (seq, counts) in
        [(near, true), (101 << 24, true), (99 << 24, true), (102 << 24, false), (1 << 31, false)]
    {
        let (syn, ack) = (format!("S seq={near}"), format!("A seq={}", near + 1));
        for (flag, closed) in [("R", FlowState::TcpRst), ("FA", FlowState::TcpHalfClosed)] {
            let state = state_after(&[&syn, &ack, &format!("{flag} seq={seq}")]);
            assert_eq!(state, if counts { closed } else { FlowState::TcpEstablished }, "{flag} {seq}");
        }
        // Before a second segment, nothing is known about the window.
        assert_eq!(state_after(&[&syn, &format!("R seq={seq}")]), FlowState::TcpRst);
    }
}

#[test]
fn c9_a_flow_goes_after_the_timeout_of_its_state() {
    for state in FlowState::ALL {
        let timeouts = FlowState::ALL.into_iter().fold(Timeouts::NEVER, |all, one| all.with(one, 1_000 * MS));
        let mut bench = Bench::new(&learning(|pipe| pipe.timeouts(timeouts.with(state, 5 * MS))));
        match state {
            FlowState::Single => _ = bench.frame(PortId(0), &udp(7, 53)),
            FlowState::Stream => (0..2).for_each(|_| _ = bench.frame(PortId(0), &udp(7, 53))),
            FlowState::TcpSyn => _ = bench.frame(PortId(0), &tcp("S")),
            FlowState::TcpEstablished => (0..2).for_each(|_| _ = bench.frame(PortId(0), &tcp("A"))),
            // A single direction is never in this state.
            FlowState::TcpFin => continue,
            FlowState::TcpHalfClosed => _ = bench.frame(PortId(0), &tcp("F")),
            FlowState::TcpRst => _ = bench.frame(PortId(0), &tcp("R")),
        }
        assert_eq!(bench.engine.next_age_ns(0), Some(6 * MS), "{state:?}");
        bench.engine.age(5 * MS);
        assert_eq!(bench.engine.flows(PipeId(0), 1).1, 1, "{state:?}");
        bench.engine.age(6 * MS);
        assert_eq!(bench.engine.flows(PipeId(0), 1).1, 0, "{state:?}");
    }
}

#[test]
fn c13_flows_that_are_not_established_go_earlier_as_a_table_fills() {
    let timeouts = FlowState::ALL.into_iter().fold(Timeouts::NEVER, |all, one| all.with(one, 3_200 * MS));
    let udp_flow = |sport| FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, (sport, 53), None);
    // Flows in a table of 64, and when flows with a single packet expire.
    for (flows, goes_ms) in [(48, 3_200), (49, 3_000), (56, 1_600), (63, 200), (64, 100)] {
        let mut bench = Bench::new(&learning(|pipe| pipe.timeouts(timeouts)));
        // A flow of four packets does not expire early before the last place is taken.
        (0..4).for_each(|_| _ = bench.frame(PortId(0), &udp(9999, 53)));
        bench.learn(flows - 1);
        assert_eq!(bench.engine.next_age_ns(0), Some((goes_ms + 1) * MS), "{flows} flows");
        bench.engine.age(goes_ms * MS);
        assert_eq!(bench.engine.flows(PipeId(0), 0).1, usize::from(flows), "{flows} flows");
        bench.engine.age((goes_ms + 1) * MS);
        let left: Vec<FlowKey> = bench.engine.flows(PipeId(0), 99).0.iter().map(|flow| flow.key).collect();
        match flows {
            48 => {}
            64 => assert_eq!(left, []),
            _ => assert_eq!(left, [udp_flow(9999)], "{flows} flows"),
        }
    }
    // With one timeout for all states, no flow expires early.
    let mut bench = Bench::new(&learning(|pipe| pipe.idle_timeout_ns(3_200 * MS)));
    bench.learn(64);
    bench.engine.age(3_200 * MS);
    assert_eq!(bench.engine.flows(PipeId(0), 0).1, 64);
}

#[test]
fn c13_what_anyone_can_forge_goes_as_early_as_a_flow_of_one_packet() {
    let timeouts = FlowState::ALL.into_iter().fold(Timeouts::NEVER, |all, one| all.with(one, 320 * MS));
    let timeouts = [FlowState::Stream, FlowState::TcpEstablished, FlowState::TcpHalfClosed]
        .into_iter()
        .fold(timeouts, |all, one| all.with(one, 320_000 * MS));
    let begin = |bench: &mut Bench, sport: u16, flags: &[&str]| {
        for flags in flags {
            let said = format!("src=10.0.0.3 proto=tcp sport={sport} dport=80 flags={flags}");
            bench.frame(PortId(0), &weir_packet::craft::frame(&said));
        }
    };
    // Packets of each flow out of 64, and when such flows expire: 63 leave room for one.
    let cases: [(&[&str], u64); 4] = [
        (&["S", "A"], 20),
        (&["S", "A", "A"], 20),
        (&["S", "A", "FA"], 20),
        (&["S", "A", "A", "A"], 320_000),
    ];
    for (flags, goes_ms) in cases {
        let mut bench = Bench::new(&learning(|pipe| pipe.timeouts(timeouts)));
        (0..63).for_each(|sport| begin(&mut bench, sport, flags));
        assert_eq!(bench.engine.next_age_ns(0), Some((goes_ms + 1) * MS), "{flags:?}");
        // In a full table, they expire about as early as those with a SYN or a closed connection; with proof,
        // 32 times as early as otherwise.
        begin(&mut bench, 63, flags);
        let full_ms = match flags {
            [_, _, _, _] => 10_000,
            [.., "FA"] => 10,
            _ => 20,
        };
        assert_eq!(bench.engine.next_age_ns(0), Some((full_ms + 1) * MS), "{flags:?}");
    }
}

#[test]
fn without_timeouts_by_state_no_state_is_kept() {
    let mut bench = Bench::new(&learning(|pipe| pipe.idle_timeout_ns(MS)));
    bench.frame(PortId(0), &tcp("R"));
    assert_eq!(bench.engine.flows(PipeId(0), 1).0[0].state, None);
}

#[test]
fn c10_a_flow_is_told_once_and_later_if_there_is_no_room() {
    let reported = |bench: &mut Bench| -> Vec<(FlowKey, u64)> {
        bench.deltas.clear();
        bench.engine.take_deltas(|delta| {
            bench.deltas.push(delta);
            true
        });
        assert!(bench.deltas.iter().all(|delta| delta.reason() == DeltaReason::First));
        bench.deltas.drain(..).map(|delta| (delta.key, delta.packets())).collect()
    };
    let mut bench = Bench::new(&learning(|pipe| pipe.report_first(true).capacity(5_000)));
    (0..2).for_each(|_| _ = bench.frame(PortId(0), &udp(7, 53)));
    let key = FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, (7, 53), None);
    assert_eq!(reported(&mut bench), [(key, 0)]);
    // More flows than deltas fit: the rest are reported with their next packets.
    bench.learn(4_200);
    assert_eq!(reported(&mut bench).len(), 4_096);
    bench.learn(4_200);
    assert_eq!(reported(&mut bench).len(), 4_199 - 4_096);
    assert!(bench.engine.flow_account().balances());
}
