//! Flows with a NAT pool: both directions are translated in the kernel with the values that they keep, and
//! what may change a flow, or is only about it, goes to the engine.

use crate::may_load;
use crate::random::{FollowTally, OWNERS, follow};
use std::net::IpAddr;
use weir_kernel::{Executor, FlowTable, FrameOutcome, Why};
use weir_oracle::Interpreter;
use weir_oracle::arbitrary::dealt_buckets;
use weir_packet::{Field, craft};
use weir_program::operation::{NatPart, Operation, Value};
use weir_program::{
    Entry, EntryMatch, Fill, Forward, Group, GroupChoice, GroupId, Learn, NatPool, NatPoolId, NatPrefix,
    Origin, Pipe, PipeId, PortDeclaration, PortId, Program, Target, Timeouts, Verdict,
};

const PIPE: PipeId = PipeId(0);
const INSIDE: PortId = PortId(0);
const OUTSIDE: PortId = PortId(1);

/// A version of IP, and addresses: of a client, of a service and its back end, and of the pool.
struct Addresses {
    fields: [Field; 2],
    client: &'static str,
    service: &'static str,
    back_end: &'static str,
    pool: &'static str,
    bits: u8,
}

const IPV4: Addresses = Addresses {
    fields: [Field::Ipv4Src, Field::Ipv4Dst],
    client: "10.0.0.1",
    service: "192.0.2.80",
    back_end: "10.9.0.7",
    pool: "198.51.100.8",
    bits: 32,
};
const IPV6: Addresses = Addresses {
    fields: [Field::Ipv6Src, Field::Ipv6Dst],
    client: "2001:db8:a::1",
    service: "2001:db8:b::80",
    back_end: "2001:db8:c::7",
    pool: "2001:db8:d::8",
    bits: 128,
};

/// Full NAT: the pool's address and port as source, a back end as destination. Answers get all of it back.
fn program(of: &Addresses) -> Program {
    let [src, dst] = of.fields;
    let learnt = |to, from| Operation::Set(to, Value::Learnt(from));
    let back_end: IpAddr = of.back_end.parse().expect("an address");
    let back_end = match back_end {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    };
    let translate = [
        Operation::DecrementTtl,
        Operation::Set(dst, Value::PerEntry),
        Operation::Set(Field::L4Dport, Value::PerFlow),
        Operation::Set(src, Value::Nat(NatPart::Address)),
        Operation::Set(Field::L4Sport, Value::Nat(NatPart::Port)),
        Operation::Set(Field::EthDst, Value::PerFlow),
    ];
    let restore = [
        Operation::DecrementTtl,
        learnt(src, dst),
        learnt(Field::L4Sport, Field::L4Dport),
        learnt(dst, src),
        learnt(Field::L4Dport, Field::L4Sport),
        learnt(Field::EthSrc, Field::EthDst),
        learnt(Field::EthDst, Field::EthSrc),
    ];
    let learn = Learn::Pin(GroupChoice::One(GroupId(0)));
    let mut pipe = Pipe::flow("nat", learn).reverse(true).timeouts(Timeouts::CONNTRACK);
    pipe = pipe.actions([("to", translate.to_vec()), ("back", restore.to_vec())].map(named));
    (pipe.nat, pipe.capacity, pipe.forward) = (Some(NatPoolId(0)), 64, Forward::PerEntry);
    let entry = |matches, (template, values): (u16, Vec<u128>), port| Entry {
        matches: vec![matches],
        template,
        values,
        forward: Some(Forward::Port(port)),
        ..Entry::default()
    };
    let values = vec![back_end, 8080, 0x0200_0000_00fe];
    pipe.entries = vec![
        entry(EntryMatch::Target(0), (0, values), OUTSIDE),
        entry(EntryMatch::Default, (1, Vec::new()), INSIDE),
    ]
    .into();
    let port = |name: &str| PortDeclaration { root: Some(PIPE), ..PortDeclaration::new(name.to_string()) };
    let targets = [Target::new("back", Forward::Drop)];
    let prefix = NatPrefix { first: of.pool.parse().expect("an address"), length: of.bits };
    let (prefixes, origin) = (vec![prefix], Origin::default());
    Program {
        ports: vec![port("inside"), port("outside")],
        pipes: vec![pipe],
        groups: vec![Group { targets: targets.into(), ..Group::new("back", Fill::Maglev, 64) }],
        nat_pools: vec![NatPool { name: "pool".into(), prefixes, first: 1024, last: 2047, origin }],
        ..Program::default()
    }
}

fn named((name, operations): (&str, Vec<Operation>)) -> weir_program::Template {
    weir_program::Template::new(name, operations)
}

/// The interpreter, which has learnt three flows with their answers, and the kernel, which follows them.
struct TranslatedFlows {
    oracle: Interpreter,
    executor: Executor,
    flows: [FlowTable; OWNERS],
    /// Packets of these flows in both directions.
    packets: Vec<Vec<u8>>,
    /// Destinations of answers: the pool's address and port.
    bound: Vec<String>,
}

impl TranslatedFlows {
    fn new(of: &Addresses) -> TranslatedFlows {
        let program = program(of);
        let buckets: Vec<Vec<u16>> = program.groups.iter().map(dealt_buckets).collect();
        let mut oracle = Interpreter::new(&program, buckets.clone());
        let mut executor = Executor::load(&program, &buckets).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(executor.coverage().pipes, [None]);
        let flows = executor.take_flows().expect("a FLOW pipe compiles");
        let flows = [(); OWNERS].map(|()| flows.share());
        let mut all = TranslatedFlows { oracle, executor, flows, packets: Vec::new(), bound: Vec::new() };
        for (protocol, sport) in [("tcp", 1000), ("tcp", 1001), ("udp", 1000)] {
            let tcp = |flags: &str| if protocol == "tcp" { format!("flags={flags}") } else { String::new() };
            let (client, service) = (of.client, of.service);
            let to = |flags: &str| {
                let ends = format!("src={client} dst={service} sport={sport} dport=80");
                craft::frame(&format!("{ends} proto={protocol} {} payload=0102030405", tcp(flags)))
            };
            let walk = all.oracle.walk(INSIDE, &to("S"), 256, 0);
            assert_eq!(walk.verdict, Verdict::Transmit(OUTSIDE), "{walk:#?}");
            let learnt = all.oracle.snapshot();
            let is_this =
                |key: &weir_packet::FlowKey| key.sport() == sport && key.src().to_string() == client;
            let mut learnt = learnt.pipes[0].flows.iter();
            let flow =
                learnt.rfind(|flow| is_this(&flow.key) && (flow.key.protocol() == 6) == (protocol == "tcp"));
            let (address, port) = flow.and_then(|flow| flow.binding).expect("a place in the pool");
            let bound = format!("dst={address} dport={port}");
            let back = |flags: &str| {
                let ends = format!("src={} sport=8080 {bound}", of.back_end);
                craft::frame(&format!("{ends} proto={protocol} {} payload=0504030201", tcp(flags)))
            };
            for (port, frame) in [(OUTSIDE, back("SA")), (INSIDE, to("A")), (OUTSIDE, back("A"))] {
                all.oracle.walk(port, &frame, 256, 0);
            }
            all.packets.extend([to("A"), back("A")]);
            all.bound.push(bound);
        }
        oracle = all.oracle;
        let mut tally = FollowTally::default();
        let followed =
            follow(&program, (&oracle, &oracle.snapshot()), (&all.executor, &mut all.flows), &mut tally);
        assert_eq!(followed.len(), 6);
        TranslatedFlows { oracle, ..all }
    }

    /// Whether the kernel decides all packets of the flows, and as the interpreter does, if they arrive at
    /// this port.
    fn agrees(&mut self, port: PortId) -> bool {
        self.packets.iter().all(|frame| {
            let walk = self.oracle.walk(port, frame, 256, 0);
            let ran = self.executor.run(port, frame).ok();
            ran == Some((FrameOutcome::Decided(walk.verdict), walk.bytes))
        })
    }
}

#[test]
fn a19_n1_in_the_kernel_full_nat_translates_both_directions() {
    if !may_load() {
        return;
    }
    for of in [IPV4, IPV6] {
        let mut all = TranslatedFlows::new(&of);
        let (before, hits) = (all.oracle.snapshot(), all.packets.len() as u64);
        for _ in 0..3 {
            assert!(all.agrees(INSIDE) && all.agrees(OUTSIDE));
        }
        let now = all.oracle.snapshot();
        for (before, now) in before.pipes[0].flows.iter().zip(&now.pipes[0].flows) {
            let slot = all.flows[0].find(PIPE, &now.key).expect("a flow that is followed");
            let counted = weir_program::replica::FlowLines::sweep(&*all.flows[0], slot);
            assert_eq!(counted.packets, now.hits.packets - before.hits.packets);
            assert_eq!(counted.bytes, now.hits.bytes - before.hits.bytes);
        }
        assert_eq!(now.pipes[0].flows.len() as u64, hits);
    }
}

#[test]
fn n3_in_the_kernel_what_begins_no_flow_or_may_change_one_is_left_as_it_arrived() {
    if !may_load() {
        return;
    }
    let all = TranslatedFlows::new(&IPV4);
    let run = |port, text: &str| {
        let frame = craft::frame(text);
        let (outcome, after) = all.executor.run(port, &frame).expect("a test run");
        assert!(after.ends_with(&frame), "{text}");
        outcome
    };
    let bound = &all.bound[0];
    let to = "src=10.0.0.1 dst=192.0.2.80";
    let quoted = "payload=4500001c000000000111ed80c00002010a00005003e8005000082f55";
    for (port, text, why) in [
        (INSIDE, format!("{to} proto=tcp sport=1000 dport=80 flags=FA"), Why::TcpFlags),
        (OUTSIDE, format!("src=10.9.0.7 sport=8080 {bound} proto=tcp flags=R"), Why::TcpFlags),
        // The segment behind one that may change the state, until the engine has sent it.
        (INSIDE, format!("{to} proto=tcp sport=1000 dport=80 flags=A"), Why::Pending),
        (INSIDE, format!("{to} proto=tcp sport=1002 dport=80 flags=S"), Why::NewFlow),
        (INSIDE, format!("{to} proto=icmp icmp_type=8"), Why::NewFlow),
        (OUTSIDE, "src=10.9.0.8 dst=198.51.100.8 sport=8080 dport=1024 proto=udp".into(), Why::NewFlow),
        (OUTSIDE, format!("src=10.9.0.7 dst=198.51.100.8 proto=icmp icmp_type=3 {quoted}"), Why::IcmpError),
        (INSIDE, format!("{to} proto=udp sport=1000 dport=80 frag=0+"), Why::Fragment),
    ] {
        assert_eq!(run(port, &text), FrameOutcome::Left(why), "{text}");
    }
}

#[test]
fn a_value_that_is_read_from_another_place_of_a_flow_is_found() {
    if !may_load() {
        return;
    }
    // Where the numbers that flows keep begin in their lines, behind the counts and the longest key.
    const KEPT: i16 = 88;
    for of in [IPV4, IPV6] {
        let mut all = TranslatedFlows::new(&of);
        let instructions = all.executor.code(INSIDE).instructions.clone();
        // Loads from a register other than the frame pointer.
        let is_load = |code: u64| code & 0x07 == 1 && code >> 12 & 15 != 10;
        let offset = |code: u64| (code >> 16) as u16 as i16;
        let is_kept = |at: &usize| is_load(instructions[*at]) && offset(instructions[*at]) >= KEPT;
        let places: Vec<usize> = (0..instructions.len()).filter(is_kept).collect();
        // There are ten values, of which two MAC addresses, and four addresses over IPv6, take two loads.
        assert!(places.len() >= 12, "{places:?}");
        for at in places {
            let mut faulty = instructions.clone();
            let moved = (offset(faulty[at]) + 2).cast_unsigned();
            faulty[at] = faulty[at] & !0xffff_0000 | u64::from(moved) << 16;
            let is_loaded = all.executor.replace(INSIDE, &faulty).is_ok();
            assert!(!is_loaded || !all.agrees(INSIDE), "instruction {at}");
        }
    }
}
