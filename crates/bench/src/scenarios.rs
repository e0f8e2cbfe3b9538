//! The programs that `weir bench engine` runs, and the traffic that goes with each.
//!
//! All of them: one core, 64-byte frames of UDP over IPv4, memory ports, keys in seeded random order, counters and ages on.

use engine::program::{
    Criterion, Encap, Entry, EntryMatch, Fill, Forward, Group, GroupId, HashInput, Learn, Match, Operation, Origin,
    Pipe, PipeId, PipeKind, PortDeclaration, PortId, Program, SharedUse, Target, Template, Value,
};
use packet::{Field, KeySource};
use port::UdpFlow;
use std::net::Ipv4Addr;

/// A program, and the flows whose packets go through it.
pub struct Scenario {
    /// Its name in the results.
    pub name: &'static str,
    /// What it stands for.
    pub what: &'static str,
    /// The program: port 0 in, port 1 out.
    pub program: Program,
    /// The flows in the order in which their packets come.
    pub flows: Vec<UdpFlow>,
    /// Every packet is of a flow that the table does not have: the table is emptied between rounds.
    pub learns: bool,
}

const MILLION: u32 = 1 << 20;

/// What makes a scenario.
pub type Make = fn() -> Scenario;

/// Every scenario and what makes it; made one at a time, the large ones take hundreds of megabytes.
pub const ALL: [(&str, Make); 7] = [
    ("basic2", basic2),
    ("hash256", hash256),
    ("basic1m", basic1m),
    ("flow1m", flow1m),
    ("chain5", chain5),
    ("vxlan", vxlan),
    ("learn", learn),
];

/// A small generator (SplitMix64), so that every run visits the keys in the same order.
pub struct Random(u64);

impl Random {
    /// Seeded.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }
}

/// Flow number `at`, all different: sources in 10/8, destinations in 172.16/12.
#[must_use]
pub fn flow(at: u32) -> UdpFlow {
    let source = Ipv4Addr::from_bits(0x0a00_0000 | at & 0xf_ffff);
    let destination = Ipv4Addr::from_bits(0xac10_0000 | at.wrapping_mul(2654435761) >> 16 & 0x3ff);
    (source, destination, 1024 + (at >> 20) as u16, 53)
}

/// Every flow below `count` once, in random order.
#[must_use]
pub fn shuffled(count: u32) -> Vec<UdpFlow> {
    let mut random = Random::new(1);
    let mut order: Vec<u32> = (0..count).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, random.below(at + 1));
    }
    order.into_iter().map(flow).collect()
}

fn ports() -> Vec<PortDeclaration> {
    let port = |name: &str, root| PortDeclaration { name: name.into(), root, kernel_path: false, origin: Origin(0) };
    vec![port("in", Some(PipeId(0))), port("out", None)]
}

fn pipe(name: &str, kind: PipeKind) -> Pipe {
    Pipe {
        name: name.into(),
        kind,
        matches: Vec::new(),
        monitor: Default::default(),
        templates: vec![Template::default()],
        forward: Forward::Port(PortId(1)),
        miss: Forward::Drop,
        rehash: false,
        capacity: 16,
        entries: Vec::new(),
        origin: Origin(0),
    }
}

fn matching(field: Field, criterion: Criterion) -> Match {
    Match { field, criterion, origin: Origin(0) }
}

fn per_entry(field: Field) -> Match {
    matching(field, Criterion::PerEntry { mask: field.max() })
}

fn template(operations: Vec<Operation>) -> Vec<Template> {
    vec![Template { name: "default".into(), operations }]
}

fn set_macs() -> Vec<Template> {
    let source = Operation::Set(Field::EthSrc, Value::Const(0x0200_0000_0001));
    template(vec![Operation::Set(Field::EthDst, Value::PerEntry), source])
}

fn mac(at: u32) -> u128 {
    0x0200_0000_1000 + u128::from(at)
}

fn program(pipes: Vec<Pipe>) -> Program {
    Program { ports: ports(), pipes, select_seed: 7, ..Program::default() }
}

fn group(count: u16, size: u32) -> Group {
    let target =
        |at: u16| Target { name: format!("t{at}"), weight: 1, forward: Forward::Port(PortId(1)), origin: Origin(0) };
    let targets = (0..count).map(target).collect();
    Group { name: "group".into(), fill: Fill::Wants, size, seed: None, targets, origin: Origin(0) }
}

/// XenoFlow's program: even and odd clients, MAC addresses rewritten, a shared counter each.
#[must_use]
pub fn basic2() -> Scenario {
    let mut pipe = pipe("balance", PipeKind::Basic);
    pipe.matches = vec![matching(Field::Ipv4Src, Criterion::PerEntry { mask: 1 })];
    pipe.monitor.counter = Some(SharedUse::PerEntry);
    pipe.templates = set_macs();
    let entry = |at: u16| Entry {
        matches: vec![EntryMatch::Value(u128::from(at))],
        values: vec![mac(at.into())],
        counter: Some(engine::program::CounterId(at)),
        ..Entry::default()
    };
    pipe.entries = (0..2).map(entry).collect();
    let mut program = program(vec![pipe]);
    program.counters = vec!["even".into(), "odd".into()];
    let what = "2 entries under a mask, set both MAC addresses, shared counter";
    Scenario { name: "basic2", what, program, flows: shuffled(65536), learns: false }
}

fn hash256() -> Scenario {
    let mut pipe = pipe("spread", PipeKind::Hash { input: HashInput::Select(KeySource::Outer), group: GroupId(0) });
    pipe.templates = set_macs();
    pipe.entries = targets(256);
    let mut program = program(vec![pipe]);
    program.groups = vec![group(256, 256)];
    let what = "5-tuple to one of 256 buckets, set both MAC addresses";
    Scenario { name: "hash256", what, program, flows: shuffled(65536), learns: false }
}

fn targets(count: u16) -> Vec<Entry> {
    let entry =
        |at: u16| Entry { matches: vec![EntryMatch::Target(at)], values: vec![mac(at.into())], ..Entry::default() };
    (0..count).map(entry).collect()
}

/// A bond of two members as its app writes it: 256 given buckets, a port for each member. With `flow_table` every flow
/// first meets an entry of its own.
#[must_use]
pub fn bond(flows: u32, flow_table: bool) -> Scenario {
    let mut bond = pipe("bond0", PipeKind::Hash { input: HashInput::Select(KeySource::Outer), group: GroupId(0) });
    bond.forward = Forward::PerEntry;
    let to = |at: u16| Some(Forward::Port(PortId(at + 1)));
    let entry = |at: u16| Entry { matches: vec![EntryMatch::Target(at)], forward: to(at), ..Entry::default() };
    bond.entries = (0..2).map(entry).collect();
    let mut pipes = vec![bond];
    if flow_table {
        let mut table = flow_pipe(MILLION, Learn::Default);
        table.forward = Forward::Pipe(PipeId(1));
        pipes.insert(0, table);
    }
    let mut program = program(pipes);
    let second = PortDeclaration { name: "out2".into(), ..program.ports[1].clone() };
    program.ports.push(second);
    program.groups = vec![Group { fill: Fill::Given, seed: Some(11), ..group(2, 256) }];
    let what = "5-tuple to one of 256 given buckets, out by one of two members";
    Scenario { name: "bond", what, program, flows: shuffled(flows), learns: false }
}

#[must_use]
pub fn basic1m() -> Scenario {
    let mut pipe = pipe("exact", PipeKind::Basic);
    let fields = [Field::Ipv4Src, Field::Ipv4Dst, Field::UdpSport, Field::UdpDport, Field::IpProtocol];
    pipe.matches = fields.into_iter().map(per_entry).collect();
    pipe.templates = set_macs();
    pipe.capacity = MILLION;
    let entry = |at: u32| {
        let (source, destination, sport, dport) = flow(at);
        let numbers = [source.to_bits(), destination.to_bits(), sport.into(), dport.into(), 17];
        Entry {
            matches: numbers.into_iter().map(|number| EntryMatch::Value(number.into())).collect(),
            values: vec![mac(at & 15)],
            ..Entry::default()
        }
    };
    pipe.entries = (0..MILLION).map(entry).collect();
    let what = "1 Mi entries with keys of 16 bytes (addresses, ports, protocol), set both MAC addresses";
    Scenario { name: "basic1m", what, program: program(vec![pipe]), flows: shuffled(MILLION), learns: false }
}

fn flow_pipe(capacity: u32, learn: Learn) -> Pipe {
    let kind = PipeKind::Flow { key: KeySource::Outer, learn, idle_timeout_ns: 60_000_000_000 };
    let mut pipe = pipe("flows", kind);
    pipe.capacity = capacity;
    pipe.entries = vec![Entry { matches: vec![EntryMatch::Default], ..Entry::default() }];
    pipe
}

#[must_use]
pub fn flow1m() -> Scenario {
    let what = "1 Mi live IPv4 flows, counted, aged";
    let program = program(vec![flow_pipe(MILLION, Learn::Default)]);
    Scenario { name: "flow1m", what, program, flows: shuffled(MILLION), learns: false }
}

fn learn() -> Scenario {
    let what = "every packet is of a new flow";
    let program = program(vec![flow_pipe(MILLION, Learn::Default)]);
    Scenario { name: "learn", what, program, flows: shuffled(MILLION), learns: true }
}

fn vxlan() -> Scenario {
    let mut pipe = pipe("tunnel", PipeKind::Basic);
    pipe.matches = vec![matching(Field::Ipv4Src, Criterion::PerEntry { mask: 1 })];
    let encap = Encap {
        eth_dst: Value::PerEntry,
        eth_src: Value::Const(0x0200_0000_0001),
        ipv6: false,
        src: Value::Const(0xc0a8_0001),
        dst: Value::PerEntry,
        vni: Value::Const(77),
        ttl: Value::Const(64),
        sport: None,
    };
    pipe.templates = template(vec![Operation::EncapVxlan(encap)]);
    let entry = |at: u32| Entry {
        matches: vec![EntryMatch::Value(at.into())],
        values: vec![mac(at), u128::from(0xc0a8_0100 + at)],
        ..Entry::default()
    };
    pipe.entries = (0..2).map(entry).collect();
    let what = "2 entries, outer Ethernet, IPv4, UDP and VXLAN pushed, source port from the hash";
    Scenario { name: "vxlan", what, program: program(vec![pipe]), flows: shuffled(65536), learns: false }
}

/// BASIC of 4, ACL of 100 rules over 8 masks, LPM of 10 k, HASH of 256, FLOW that rewrites address and port.
fn chain5() -> Scenario {
    const FLOWS: u32 = 100_000;
    let next = |at: u16| Forward::Pipe(PipeId(at));
    let mut classify = pipe("classify", PipeKind::Basic);
    classify.matches = vec![per_entry(Field::UdpDport)];
    classify.entries = [53u128, 80, 123, 443].map(exact).to_vec();
    classify.forward = next(1);
    let mut acl = acl(100);
    acl.forward = next(2);
    let mut route = pipe("route", PipeKind::Lpm);
    route.matches = vec![matching(Field::Ipv4Dst, Criterion::Prefix)];
    route.entries = prefixes(10_000);
    route.capacity = 16_384;
    route.forward = next(3);
    let mut spread = pipe("spread", PipeKind::Hash { input: HashInput::Select(KeySource::Outer), group: GroupId(0) });
    spread.templates = set_macs();
    spread.entries = targets(256);
    spread.forward = next(4);
    let mut nat = flow_pipe(131_072, Learn::Pin(GroupId(0)));
    let rewrite = [Operation::Set(Field::Ipv4Src, Value::PerEntry), Operation::Set(Field::UdpSport, Value::PerEntry)];
    nat.templates = template(rewrite.to_vec());
    let entry = |at: u16| Entry {
        matches: vec![EntryMatch::Target(at)],
        values: vec![0xc633_6400 + u128::from(at), 1024 + u128::from(at)],
        ..Entry::default()
    };
    nat.entries = (0..256).map(entry).collect();
    let mut program = program(vec![classify, acl, route, spread, nat]);
    program.groups = vec![group(256, 256)];
    let what = "BASIC of 4, ACL of 100 rules over 8 masks, LPM of 10 k, HASH of 256, FLOW with NAT of address and port, 100 k flows";
    Scenario { name: "chain5", what, program, flows: shuffled(FLOWS), learns: false }
}

fn exact(value: u128) -> Entry {
    Entry { matches: vec![EntryMatch::Value(value)], ..Entry::default() }
}

/// Rules over eight masks; the last one lets everything pass, so that every packet is looked up to the end.
fn acl(rules: u32) -> Pipe {
    let mut random = Random::new(2);
    let mut pipe = pipe("filter", PipeKind::Acl);
    let masked = |field| matching(field, Criterion::Masked);
    pipe.matches = vec![masked(Field::Ipv4Src), masked(Field::Ipv4Dst), masked(Field::UdpDport)];
    let masks = [(32, 32, 16), (32, 24, 16), (24, 32, 0), (24, 24, 16), (16, 24, 0), (32, 0, 16), (0, 32, 16)];
    let prefix = |bits: u32| if bits == 0 { 0 } else { u128::from(u32::MAX << (32 - bits)) };
    for priority in 0..rules - 1 {
        let (source, destination, port) = masks[priority as usize % masks.len()];
        let rule = |value: u64, mask: u128| {
            if mask == 0 { EntryMatch::Any } else { EntryMatch::Masked { value: u128::from(value) & mask, mask } }
        };
        let matches = vec![
            rule(0x0a00_0000 | random.next() & 0xff_ffff, prefix(source)),
            rule(0xac10_0000 | random.next() & 0x3ff, prefix(destination)),
            rule(8000 + u64::from(priority), if port == 0 { 0 } else { 0xffff }),
        ];
        pipe.entries.push(Entry { matches, priority, ..Entry::default() });
    }
    let matches = vec![EntryMatch::Any; 3];
    pipe.entries.push(Entry { matches, priority: rules, ..Entry::default() });
    pipe.capacity = 128;
    pipe
}

/// Routes to where the flows go, of lengths 16 to 32, and a default.
fn prefixes(count: usize) -> Vec<Entry> {
    let mut random = Random::new(3);
    let mut seen = std::collections::BTreeSet::from([(0u128, 0u8)]);
    while seen.len() < count {
        let length = 16 + random.below(17) as u8;
        let value = 0xac00_0000 | random.next() as u32 & 0x00ff_ffff;
        seen.insert((u128::from(value & u32::MAX << (32 - length)), length));
    }
    let entry = |(value, length)| Entry { matches: vec![EntryMatch::Prefix { value, length }], ..Entry::default() };
    seen.into_iter().map(entry).collect()
}
