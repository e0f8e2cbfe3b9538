//! Values of their entry's action that flows keep, and answers that are learnt with a flow (pipes.md A19,
//! M20).

mod support;

use support::{Bench, balancer, start, targets, udp};
use weir_engine::batch::Engine;
use weir_oracle::{FlowSource, Interpreter};
use weir_packet::{DropReason, Field, FlowKey};
use weir_program::change::{Change, ChangeError};
use weir_program::check::{check, owners};
use weir_program::nat::Binding;
use weir_program::operation::Value;
use weir_program::snapshot::{FlowSnapshot, KeptOperations};
use weir_program::{
    Entry, EntryMatch, Fill, FlowState, Group, GroupChoice, GroupId, Learn, Operation, OwnedBy, Pipe, PipeId,
    PipeKind, PortId, Program, Template, Timeouts,
};

/// A program with one FLOW pipe that learns for its default entry, with this action.
fn keeping(operations: &[Operation], values: &[u128], capacity: u32) -> Program {
    let mut pipe = Pipe::flow("f", Learn::Default).capacity(capacity).forward(PortId(0));
    pipe.templates = vec![Template { name: "action".into(), operations: operations.to_vec() }];
    pipe.entries = vec![default(values)].into();
    start(&["a"], [pipe]).build()
}

fn default(values: &[u128]) -> Entry {
    Entry { values: values.to_vec(), ..Entry::on(EntryMatch::Default) }
}

fn update(entry: Entry) -> Change {
    Change::Update { pipe: PipeId(0), entry }
}

/// The destination that a frame has after the program.
fn destination(bench: &mut Bench, frame: &[u8]) -> [u8; 6] {
    bench.bytes(PortId(0), frame)[..6].try_into().unwrap()
}

const SET: Operation = Operation::Set(Field::EthDst, Value::PerFlow);

#[test]
fn a19_a_flow_keeps_the_values_of_its_entry() {
    let mut bench = Bench::new(&keeping(&[SET], &[1], 64));
    assert_eq!(destination(&mut bench, &udp(7, 53)), [0, 0, 0, 0, 0, 1]);
    bench.apply(update(default(&[2]))).unwrap();
    assert_eq!(destination(&mut bench, &udp(7, 53)), [0, 0, 0, 0, 0, 1]);
    assert_eq!(destination(&mut bench, &udp(8, 53)), [0, 0, 0, 0, 0, 2]);
}

#[test]
fn a19_a_flow_keeps_fields_of_its_first_packet() {
    let learnt = Operation::Set(Field::Ipv4Ttl, Value::Learnt(Field::Ipv4Ttl));
    let mut bench = Bench::new(&keeping(&[learnt], &[], 64));
    let frame = |ttl: u8| {
        weir_packet::craft::frame(&format!("src=10.0.0.1 dst=10.0.0.2 ttl={ttl} proto=udp sport=7 dport=53"))
    };
    let ttl = |bench: &mut Bench, ttl| bench.bytes(PortId(0), &frame(ttl))[22];
    assert_eq!([ttl(&mut bench, 9), ttl(&mut bench, 8), ttl(&mut bench, 200)], [9, 9, 9]);
}

#[test]
fn a19_an_unflowed_packet_has_the_values_of_its_entry() {
    let mut bench = Bench::new(&keeping(&[SET], &[1], 1));
    bench.frame(PortId(0), &udp(7, 53));
    bench.apply(update(default(&[2]))).unwrap();
    assert_eq!(destination(&mut bench, &udp(8, 53)), [0, 0, 0, 0, 0, 2]);
    assert_eq!(destination(&mut bench, &udp(7, 53)), [0, 0, 0, 0, 0, 1]);
    assert_eq!(bench.engine.flow_account().unflowed.full, 1);
}

#[test]
fn a19_what_flows_keep_survives_a_swap() {
    for capacity in [64, 32] {
        let mut bench = Bench::new(&keeping(&[SET], &[1], 64));
        bench.learn(20);
        bench.swap(&keeping(&[SET], &[2], capacity));
        for sport in 0..20 {
            assert_eq!(destination(&mut bench, &udp(sport, 53)), [0, 0, 0, 0, 0, 1], "{sport}");
        }
        assert_eq!(destination(&mut bench, &udp(99, 53)), [0, 0, 0, 0, 0, 2]);
    }
}

#[test]
fn a19_an_entry_whose_flows_keep_values_stays_with_its_action() {
    let mut program = keeping(&[SET], &[1], 64);
    let other = Template { name: "other".into(), operations: vec![] };
    program.pipes[0].templates.push(other);
    let mut bench = Bench::new(&program);
    let entry = Entry { template: 1, ..default(&[]) };
    assert!(matches!(bench.apply(update(entry)), Err(ChangeError::Unfit { .. })));
}

#[test]
fn a19_the_check_refuses_per_flow_elsewhere() {
    let finds =
        |program: &Program| check(program).iter().any(|one| one.kind.to_string().contains("per_flow"));
    assert!(!finds(&keeping(&[SET], &[1], 64)));
    let mut basic = keeping(&[SET], &[1], 64);
    basic.pipes[0] = Pipe::basic("p").per_entry(Field::L4Dport).forward(PortId(0)).act([SET]);
    assert!(finds(&basic));
}

/// A load balancer with one back end, 10.0.0.11:8080, that sees all packets as coming from 10.0.0.9.
fn translating(capacity: u32) -> Program {
    let set = Operation::Set;
    let to = [
        set(Field::Ipv4Src, Value::Const(0x0a00_0009)),
        set(Field::Ipv4Dst, Value::PerFlow),
        set(Field::L4Dport, Value::PerFlow),
    ];
    let back = [
        set(Field::Ipv4Src, Value::Learnt(Field::Ipv4Dst)),
        set(Field::Ipv4Dst, Value::Learnt(Field::Ipv4Src)),
        set(Field::L4Sport, Value::Learnt(Field::L4Dport)),
    ];
    let mut pipe = Pipe::flow("nat", Learn::Pin(GroupId(0).into())).reverse(true).capacity(capacity);
    pipe.templates = [("to", to), ("back", back)]
        .map(|(name, all)| Template { name: name.into(), operations: all.into() })
        .into();
    let target = Entry { values: vec![0x0a00_000b, 8080], ..Entry::on(EntryMatch::Target(0)) };
    pipe.entries = vec![target, Entry { template: 1, ..Entry::on(EntryMatch::Default) }].into();
    let mut program = start(&["a"], [pipe.forward(PortId(0))]);
    program.group(Group::new("web", Fill::Wants, 4).targets(targets(&["x"])));
    program.build()
}

fn frame(source: &str, sport: u16, destination: &str, dport: u16) -> Vec<u8> {
    weir_packet::craft::frame(&format!(
        "src={source} dst={destination} proto=udp sport={sport} dport={dport}"
    ))
}

#[test]
fn m20_answers_are_learnt_with_the_flow_and_translated_back() {
    let mut bench = Bench::new(&translating(64));
    assert!(check(&translating(64)).is_empty(), "{:?}", check(&translating(64)));
    let request = bench.bytes(PortId(0), &frame("10.1.1.1", 4000, "10.0.0.80", 80));
    assert_eq!(request, frame("10.0.0.9", 4000, "10.0.0.11", 8080));
    let answer = bench.bytes(PortId(0), &frame("10.0.0.11", 8080, "10.0.0.9", 4000));
    assert_eq!(answer, frame("10.0.0.80", 80, "10.1.1.1", 4000));
    assert_eq!(bench.engine.flows(PipeId(0), 9).1, 2);
    // Anything that is not an answer is a new flow, and is treated as a request.
    let other = bench.bytes(PortId(0), &frame("10.0.0.11", 8080, "10.0.0.9", 4001));
    assert_eq!(other, frame("10.0.0.9", 8080, "10.0.0.11", 8080));
}

/// The live flows of an engine.
struct EngineFlows<'a>(&'a Engine);

impl FlowSource for EngineFlows<'_> {
    fn flow(&self, pipe: PipeId, key: &FlowKey) -> Option<FlowSnapshot> {
        self.0.flow(pipe, key)
    }

    fn kept(&self, pipe: PipeId, key: &FlowKey) -> Option<KeptOperations> {
        self.0.kept(pipe, key)
    }

    fn next_binding(&self, _pipe: PipeId, _key: &FlowKey, _freed: Option<Binding>) -> Option<Binding> {
        None
    }
}

#[test]
fn a19_a_flow_of_an_engine_is_explained_with_what_it_keeps() {
    let mut bench = Bench::new(&translating(64));
    let request = frame("10.1.1.1", 4000, "10.0.0.80", 80);
    let answer = frame("10.0.0.11", 8080, "10.0.0.9", 4000);
    bench.frame(PortId(0), &request);
    let moved = Entry { values: vec![0x0a00_000c, 9090], ..Entry::on(EntryMatch::Target(0)) };
    bench.apply(update(moved.clone())).unwrap();
    let mut interpreter = Interpreter::new(&translating(64), bench.engine.buckets());
    interpreter.apply(&update(moved)).unwrap();
    let explain = |interpreter: &mut Interpreter, engine: &Engine, frame: &[u8]| {
        interpreter.explain_with(PortId(0), frame, 128, 0, &EngineFlows(engine)).bytes
    };
    for (packet, translated) in [
        (request, frame("10.0.0.9", 4000, "10.0.0.11", 8080)),
        (answer, frame("10.0.0.80", 80, "10.1.1.1", 4000)),
        // A new flow gets the new values.
        (frame("10.1.1.2", 4001, "10.0.0.80", 80), frame("10.0.0.9", 4001, "10.0.0.12", 9090)),
    ] {
        assert_eq!(explain(&mut interpreter, &bench.engine, &packet), translated);
        assert_eq!(bench.bytes(PortId(0), &packet), translated);
    }
}

/// The same where metadata chooses the group: packets to port 80 are for the service; packets to other ports
/// are answers, or unexpected here.
fn translating_by_meta() -> Program {
    let mut translating = translating(64);
    let mut nat = translating.pipes.remove(0);
    let PipeKind::Flow { learn, .. } = &mut nat.kind else { panic!("it is a FLOW pipe") };
    *learn = Learn::Pin(GroupChoice::ByMeta(0));
    nat.entries.edit(|all| all[0].matches = vec![EntryMatch::Member { group: GroupId(0), target: 0 }]);
    let numbers =
        [(80_u32, 1_u32), (4000, 0), (4001, 0)].map(|(dport, number)| Entry::on(dport).value(number));
    let vips = Pipe::basic("vips").per_entry(Field::L4Dport).entries(numbers).forward(PipeId(1));
    let set = [Operation::Set(Field::Meta0, Value::PerEntry)];
    let mut program = start(&["a"], [vips.act(set).capacity(16), nat]);
    program.group(Group::new("web", Fill::Wants, 4).number(1).targets(targets(&["x"])));
    program.build()
}

#[test]
fn m22_answers_need_no_group() {
    let program = translating_by_meta();
    assert!(check(&program).is_empty(), "{:?}", check(&program));
    let mut bench = Bench::new(&program);
    let mut twin = Interpreter::new(&program, bench.engine.buckets());
    let mut pass = |bytes: Vec<u8>, wanted: Result<Vec<u8>, DropReason>| {
        let walk = twin.walk(PortId(0), &bytes, 128, bench.now_ns);
        let verdict = match wanted {
            Ok(frame) => {
                assert_eq!((bench.bytes(PortId(0), &bytes), &walk.bytes), (frame.clone(), &frame));
                return;
            }
            Err(reason) => weir_program::Verdict::Drop(reason),
        };
        assert_eq!((bench.frame(PortId(0), &bytes), walk.verdict), (verdict, verdict));
    };
    pass(frame("10.1.1.1", 4000, "10.0.0.80", 80), Ok(frame("10.0.0.9", 4000, "10.0.0.11", 8080)));
    pass(frame("10.0.0.11", 8080, "10.0.0.9", 4000), Ok(frame("10.0.0.80", 80, "10.1.1.1", 4000)));
    pass(frame("10.0.0.11", 8080, "10.0.0.9", 4001), Err(DropReason::Miss));
    assert_eq!(bench.engine.flow_account().unflowed.no_group, 1);
}

#[test]
fn m20_both_or_none_are_learnt() {
    let mut bench = Bench::new(&translating(3));
    for client in 1..=2 {
        bench.frame(PortId(0), &frame(&format!("10.1.1.{client}"), 4000 + client, "10.0.0.80", 80));
    }
    assert_eq!(bench.engine.flows(PipeId(0), 9).1, 2);
    assert_eq!(bench.engine.flow_account().unflowed.full, 1);
    let key = FlowKey::new([10, 0, 0, 11].into(), [10, 0, 0, 9].into(), 17, (8080, 4001), None);
    assert!(bench.engine.flow(PipeId(0), &key).is_some());
}

#[test]
fn m20_no_two_flows_become_the_same() {
    let program = translating(64);
    let mut bench = Bench::new(&program);
    let mut twin = Interpreter::new(&program, bench.engine.buckets());
    let mut verdict = |frame: &[u8]| {
        let found = bench.frame(PortId(0), frame);
        assert_eq!(twin.walk(PortId(0), frame, 128, 0).verdict, found);
        found
    };
    // Both become a flow from 10.0.0.9:4000 to the target.
    let [first, second] = ["10.1.1.1", "10.1.1.2"].map(|client| frame(client, 4000, "10.0.0.80", 80));
    assert_eq!(verdict(&first), weir_program::Verdict::Transmit(PortId(0)));
    assert_eq!(verdict(&second), weir_program::Verdict::Drop(DropReason::AnswersTaken));
    assert_eq!(
        verdict(&frame("10.1.1.2", 4001, "10.0.0.80", 80)),
        weir_program::Verdict::Transmit(PortId(0))
    );
    assert_eq!(bench.engine.flow_account().unflowed.answers_taken, 1);
}

#[test]
fn m20_a_flow_and_its_answers_age_as_one() {
    const SECOND: u64 = 1_000_000_000;
    let of_capacity = |capacity| {
        let mut program = translating(capacity);
        let long = Timeouts::CONNTRACK.with(FlowState::TcpSyn, 5 * SECOND);
        let PipeKind::Flow { timeouts, .. } = &mut program.pipes[0].kind else { unreachable!() };
        *timeouts = long.with(FlowState::TcpEstablished, 100 * SECOND).with(FlowState::TcpFin, 2 * SECOND);
        program
    };
    let tcp = |source: &str, sport: u16, destination: &str, dport: u16, flags: &str| {
        weir_packet::craft::frame(&format!(
            "src={source} dst={destination} proto=tcp sport={sport} dport={dport} flags={flags}"
        ))
    };
    let there = |flags| tcp("10.1.1.1", 4000, "10.0.0.80", 80, flags);
    let back = |flags| tcp("10.0.0.11", 8080, "10.0.0.9", 4000, flags);
    let mut bench = Bench::new(&of_capacity(64));
    let live = |bench: &Bench| bench.engine.flows(PipeId(0), 9).1;
    bench.frame(PortId(0), &there("S"));
    bench.frame(PortId(0), &back("SA"));
    bench.frame(PortId(0), &there("A"));
    // The server has been silent since; the client's state holds for both.
    bench.now_ns += 90 * SECOND;
    bench.engine.age(bench.now_ns);
    assert_eq!(live(&bench), 2);
    assert_eq!(bench.engine.next_age_ns(bench.now_ns), Some(100 * SECOND + 1_000_000));
    // In another table, too.
    bench.swap(&of_capacity(200));
    bench.engine.age(bench.now_ns);
    assert_eq!(live(&bench), 2);
    // One FIN leaves both half closed, and the second one ends both.
    bench.frame(PortId(0), &back("FA"));
    bench.now_ns += 240 * SECOND;
    bench.engine.age(bench.now_ns);
    assert_eq!(live(&bench), 2);
    bench.frame(PortId(0), &there("FA"));
    bench.now_ns += 3 * SECOND;
    bench.engine.age(bench.now_ns);
    assert_eq!(live(&bench), 0);
}

#[test]
fn m20_the_check_refuses_what_hides_the_key_of_answers() {
    let finds = |change: &dyn Fn(&mut Pipe)| {
        let mut program = translating(64);
        change(&mut program.pipes[0]);
        check(&program).iter().any(|one| one.kind.to_string().contains("`reverse`"))
    };
    assert!(!finds(&|_| {}));
    assert!(finds(&|pipe| drop(pipe.entries.edit(Vec::pop))));
    assert!(finds(&|pipe| *pipe = pipe.clone().key(weir_packet::KeySource::Inner)));
    let add = Operation::Add(Field::L4Dport, Value::Const(1));
    assert!(finds(&|pipe| pipe.templates[0].operations.push(add)));
}

#[test]
fn m20_with_several_workers_answers_stay_with_their_flow() {
    let refused = |program: &Program| !owners(program).1.is_empty();
    assert!(refused(&translating(64)));
    let mut plain = translating(64);
    plain.pipes[0].templates.iter_mut().for_each(|template| template.operations.clear());
    let clear = |entries: &mut Vec<Entry>| entries.iter_mut().for_each(|entry| entry.values.clear());
    plain.pipes[0].entries.edit(clear);
    assert!(!refused(&plain), "{:?}", owners(&plain).1);
    plain.pipes[0].owner = OwnedBy::Src;
    assert!(refused(&plain));
}

#[test]
fn o2_the_check_refuses_what_hides_the_client() {
    let finds = |change: &dyn Fn(&mut Program)| {
        let mut program = balancer::program();
        change(&mut program);
        check(&program).iter().any(|one| one.kind.to_string().contains("`owner: client`"))
    };
    assert_eq!(check(&balancer::program()), []);
    assert_eq!(owners(&balancer::program()).1, []);
    assert!(!finds(&|_| {}));
    // The side that a packet comes from is unknown where one group serves all.
    assert!(finds(&|program| program.pipes[3].owner = OwnedBy::Client));
    let group = |program: &mut Program| {
        if let PipeKind::Flow { learn, .. } = &mut program.pipes[2].kind {
            *learn = Learn::Pin(GroupId(0).into());
        }
    };
    assert!(finds(&group));
    let source = Operation::Set(Field::L4Sport, Value::Const(7));
    assert!(finds(&|program| program.pipes[2].templates[0].operations.push(source)));
    assert!(!finds(&|program| program.pipes[2].templates[1].operations.push(source)));
    // At run time as well.
    let mut bench = Bench::new(&balancer::program());
    let entry = Entry::on(EntryMatch::Member { group: GroupId(0), target: 0 }).template(1);
    assert!(bench.apply(Change::Update { pipe: PipeId(2), entry }).is_err());
}

/// An ICMP error from one address to another, with `bytes` bytes of the IP packet that it is about.
fn error(ends: &str, kind: &str, about: &str, bytes: usize) -> Vec<u8> {
    let about = weir_packet::craft::frame(about);
    let inside: String = about[14..][..bytes].iter().map(|byte| format!("{byte:02x}")).collect();
    weir_packet::craft::frame(&format!("{ends} {kind} payload={inside}"))
}

/// Checks that the engine and the interpreter turn a frame into `wanted`.
fn both(program: &Program, before: &[Vec<u8>], frame: &[u8], wanted: &[u8], what: &str) {
    let mut bench = Bench::new(program);
    let mut twin = Interpreter::new(program, bench.engine.buckets());
    for one in before {
        bench.frame(PortId(0), one);
        twin.walk(PortId(0), one, 128, bench.now_ns);
    }
    let walk = twin.walk(PortId(0), frame, 128, bench.now_ns);
    assert_eq!(walk.bytes, wanted, "{what}: the interpreter");
    assert_eq!(bench.bytes(PortId(0), frame), wanted, "{what}: the engine");
}

#[test]
fn a20_errors_are_translated_with_the_packet_inside_in_both_directions() {
    let request = [frame("10.1.1.1", 4000, "10.0.0.80", 80)];
    let (exceeded, unreachable) = ("proto=icmp icmp_type=11", "proto=icmp icmp_type=3 icmp_code=3");
    let inside = |src: &str, dst: &str| format!("src={src} dst={dst} proto=udp");
    for (csum, bytes) in [("", 28), ("csum=0", 28), ("", 24)] {
        let sent = format!("{} sport=4000 dport=8080 {csum}", inside("10.0.0.9", "10.0.0.11"));
        let meant = format!("{} sport=4000 dport=80 {csum}", inside("10.1.1.1", "10.0.0.80"));
        let frame = error("src=192.0.2.1 dst=10.0.0.9", exceeded, &sent, bytes);
        let wanted = error("src=10.0.0.80 dst=10.1.1.1", exceeded, &meant, bytes);
        both(&translating(64), &request, &frame, &wanted, &format!("for the client, {csum} {bytes}"));
        let sent = format!("{} sport=80 dport=4000 {csum}", inside("10.0.0.80", "10.1.1.1"));
        let meant = format!("{} sport=8080 dport=4000 {csum}", inside("10.0.0.11", "10.0.0.9"));
        let frame = error("src=10.1.1.1 dst=10.0.0.80", unreachable, &sent, bytes);
        let wanted = error("src=10.0.0.9 dst=10.0.0.11", unreachable, &meant, bytes);
        both(&translating(64), &request, &frame, &wanted, &format!("from the client, {csum} {bytes}"));
    }
}

#[test]
fn a20_errors_of_ipv6_are_translated_with_the_checksums_inside() {
    let set = [
        Operation::Set(Field::Ipv6Dst, Value::Const(0xfd00_0000_0000_0000_0000_0000_0000_0001)),
        Operation::Set(Field::L4Dport, Value::Const(9)),
    ];
    let error = |dst: &str, about: &str, bytes| {
        error(&format!("src=2001:db8:9::1 dst={dst}"), "proto=icmpv6 icmp_type=3", about, bytes)
    };
    let addresses = |src: &str| format!("src={src} dst=2001:db8::2");
    for (ports, more, bytes) in [("sport=7", "proto=tcp dport=80", 60), ("sport=7", "proto=udp dport=80", 48)]
    {
        let frame = error("2001:db8::1", &format!("{} {ports} {more}", addresses("2001:db8::1")), bytes);
        let wanted = error("fd00::1", &format!("{} sport=9 {more}", addresses("fd00::1")), bytes);
        both(&keeping(&set, &[], 64), &[], &frame, &wanted, more);
    }
    let echo = |src: &str| format!("{} proto=icmpv6 icmp_type=128 icmp_rest=7", addresses(src));
    let frame = error("2001:db8::1", &echo("2001:db8::1"), 48);
    both(&keeping(&set[..1], &[], 64), &[], &frame, &error("fd00::1", &echo("fd00::1"), 48), "echo");
    // A packet inside without ports has none to set.
    let mut bench = Bench::new(&keeping(&set, &[], 64));
    let verdict = bench.frame(PortId(0), &frame);
    assert_eq!(verdict, weir_program::Verdict::Drop(DropReason::NotApplicable));
}

#[test]
fn a20_an_error_begins_no_flow_where_answers_are_learnt() {
    let mut bench = Bench::new(&translating(64));
    let about = "src=10.0.0.9 dst=10.0.0.11 proto=udp sport=4000 dport=8080";
    let frame = error("src=192.0.2.1 dst=10.0.0.9", "proto=icmp icmp_type=11", about, 28);
    assert_eq!(bench.frame(PortId(0), &frame), weir_program::Verdict::Drop(DropReason::Miss));
    assert_eq!(bench.engine.flows(PipeId(0), 9).1, 0);
    assert_eq!(bench.engine.flow_account().unflowed.unknown, 1);
}
