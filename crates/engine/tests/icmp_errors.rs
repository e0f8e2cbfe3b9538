//! ICMP errors: the fields of the packet inside (pipes.md M27), and how pinned flows treat them (M28).

mod support;

use support::{Bench, start, targets};
use weir_oracle::Interpreter;
use weir_packet::{DropReason, Field};
use weir_program::Verdict;
use weir_program::{Entry, EntryMatch, Fill, FlowState, Group, GroupId, Learn, Pipe, PipeId, PortId};
use weir_program::{Program, Timeouts};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

fn frame(text: &str) -> Vec<u8> {
    weir_packet::craft::frame(text)
}

/// An ICMP error of the type `kind` from a router, which returns `bytes` bytes of the packet.
fn error(kind: u8, about: &str, bytes: usize) -> Vec<u8> {
    let inside: String = frame(about)[14..].iter().take(bytes).map(|byte| format!("{byte:02x}")).collect();
    let (ends, protocol) = match about.contains("::") {
        true => ("src=2001:db8:9::1 dst=2001:db8:80::1", "icmpv6"),
        false => ("src=192.0.2.1 dst=10.0.0.80", "icmp"),
    };
    frame(&format!("{ends} proto={protocol} icmp_type={kind} payload={inside}"))
}

/// The outcome of a frame that meets one pipe, in the engine and the interpreter.
fn both(program: &Program, bytes: &[u8]) -> Verdict {
    let mut bench = Bench::new(program);
    let walk = Interpreter::new(program, bench.engine.buckets()).walk(PortId(0), bytes, 128, 0);
    assert_eq!(bench.frame(PortId(0), bytes), walk.verdict);
    walk.verdict
}

#[test]
fn m27_the_packet_inside_an_error_has_fields() {
    let sent = "src=10.0.0.80 dst=198.51.100.7 proto=tcp sport=443 dport=4000";
    let six = "src=2001:db8:80::1 dst=2001:db8:7::1 proto=udp sport=53 dport=4000";
    let wanted = |fields: &[(Field, u128)]| {
        let pipe = fields.iter().fold(Pipe::basic("p"), |pipe, (field, value)| pipe.constant(*field, *value));
        start(&["a"], [pipe.entry(Entry::default()).forward(PortId(0))]).build()
    };
    let v4 = wanted(&[
        (Field::ErrorV4Protocol, 6),
        (Field::ErrorV4Src, 0x0a00_0050),
        (Field::ErrorV4Dst, 0xc633_6407),
        (Field::ErrorSport, 443),
        (Field::ErrorDport, 4000),
    ]);
    let v6 = wanted(&[
        (Field::ErrorV6Protocol, 17),
        (Field::ErrorV6Src, 0x2001_0db8_0080 << 80 | 1),
        (Field::ErrorV6Dst, 0x2001_0db8_0007 << 80 | 1),
        (Field::ErrorSport, 53),
        (Field::ErrorDport, 4000),
    ]);
    let (hit, miss) = (Verdict::Transmit(PortId(0)), Verdict::Drop(DropReason::Miss));
    for kind in [3, 4, 5, 11, 12] {
        assert_eq!(both(&v4, &error(kind, sent, 28)), hit, "type {kind}");
    }
    for kind in 1..=4 {
        assert_eq!(both(&v6, &error(kind, six, 48)), hit, "type {kind}");
    }
    // Not an error, too little inside, another packet inside, the packet itself.
    for bytes in [
        error(8, sent, 28),
        error(3, sent, 20),
        error(3, &sent.replace("443", "80"), 28),
        error(3, &format!("frag=0+ {sent}"), 28),
        frame(sent),
    ] {
        assert_eq!(both(&v4, &bytes), miss);
    }
    assert_eq!(both(&v6, &error(128, six, 48)), miss);
    // A packet inside without ports has the other fields.
    let addresses = wanted(&[(Field::ErrorV4Protocol, 6), (Field::ErrorV4Src, 0x0a00_0050)]);
    assert_eq!(both(&addresses, &error(3, &format!("frag=0+ {sent}"), 28)), hit);
    // And inside a tunnel, too.
    let inner = wanted(&[(Field::ErrorSport.inner(), 443), (Field::ErrorV4Src.inner(), 0x0a00_0050)]);
    let about: String = frame(sent)[14..42].iter().map(|byte| format!("{byte:02x}")).collect();
    let icmp = format!("src=192.0.2.1 dst=10.0.0.80 proto=icmp icmp_type=3 payload={about}");
    let tunnelled = frame(&format!("src=1.1.1.1 dst=2.2.2.2 vni=7 inner({icmp})"));
    assert_eq!(both(&inner, &tunnelled), hit);
}

/// Pins flows to a back end.
fn pinning() -> Program {
    let timeouts = Timeouts::all(SECOND).with(FlowState::TcpSyn, 30 * MS);
    let pipe = Pipe::flow("f", Learn::Pin(GroupId(0).into()))
        .timeouts(timeouts)
        .entry(EntryMatch::Target(0))
        .capacity(64)
        .forward(PortId(1));
    let mut program = start(&["a", "b"], [pipe]);
    program.group(Group::new("web", Fill::Wants, 4).targets(targets(&["b1"])));
    program.build()
}

const SYN: &str = "src=198.51.100.7 dst=10.0.0.80 proto=tcp sport=4000 dport=443 flags=S";
const ANSWER: &str = "src=10.0.0.80 dst=198.51.100.7 proto=tcp sport=443 dport=4000 flags=A";

#[test]
fn m28_an_error_goes_the_way_of_its_pinned_flow_and_changes_nothing_of_it() {
    let mut bench = Bench::new(&pinning());
    let mut twin = Interpreter::new(&bench.program, bench.engine.buckets());
    let verdict = |bench: &mut Bench, twin: &mut Interpreter, bytes: &[u8]| {
        let now_ns = bench.now_ns;
        let walk = twin.walk(PortId(0), bytes, 128, now_ns);
        assert_eq!(bench.frame(PortId(0), bytes), walk.verdict);
        walk.verdict
    };
    let there = Verdict::Transmit(PortId(1));
    assert_eq!(verdict(&mut bench, &mut twin, &frame(SYN)), there);
    let before = bench.engine.snapshot().pipes[0].flows.clone();
    assert_eq!(before.len(), 1);
    // Types that a client would act on, in batches that are cut anywhere, at later times.
    for kind in [3, 4, 5, 11, 12] {
        bench.now_ns += 5 * MS;
        assert_eq!(verdict(&mut bench, &mut twin, &error(kind, ANSWER, 28)), there, "type {kind}");
    }
    for flows in [&bench.engine.snapshot().pipes[0].flows, &twin.snapshot().pipes[0].flows] {
        assert_eq!(*flows, before, "neither age nor state nor counts");
    }
    let account = bench.engine.flow_account();
    assert_eq!((account.met, account.live, account.unflowed.icmp_error), (6, 1, 5));
    assert_eq!(twin.snapshot().pipes[0].account.unflowed.icmp_error, 5);
    // It expires when it would have expired without them.
    bench.engine.age(31 * MS);
    assert_eq!(bench.engine.flows(PipeId(0), 9).1, 0);
}

#[test]
fn m28_an_error_about_an_unknown_flow_begins_none() {
    let mut bench = Bench::new(&pinning());
    for about in [ANSWER, "src=10.0.0.80 dst=198.51.100.8 proto=udp sport=443 dport=4000"] {
        assert_eq!(both(&pinning(), &error(3, about, 28)), Verdict::Drop(DropReason::Miss));
        assert_eq!(bench.frame(PortId(0), &error(3, about, 28)), Verdict::Drop(DropReason::Miss));
    }
    assert_eq!(bench.engine.flows(PipeId(0), 9).1, 0);
    assert_eq!(bench.engine.flow_account().unflowed.unknown, 2);
}
