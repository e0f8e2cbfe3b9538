//! Small programs: a hit goes out of port 1, a miss is dropped.

use engine::Verdict;
use engine::interpreter::trace::Known;
use engine::interpreter::{Interpreter, Walk};
use engine::program::{
    Criterion, Entry, EntryMatch, Fill, Forward, Group, GroupId, HashInput, Learn, Match, MeterConfig,
    MeterDeclaration, Monitor, Operation, Origin, Pipe, PipeId, PipeKind, PortDeclaration, PortId, Program, Target,
    Template,
};
use engine::snapshot::Count;
use packet::{DropReason, Field, KeySource};

pub use packet::craft::frame;

pub const MS: u64 = 1_000_000;
pub const HIT: Verdict = Verdict::Transmit(PortId(1));
pub const MISS: Verdict = Verdict::Drop(DropReason::Miss);

pub fn dropped(reason: DropReason) -> Verdict {
    Verdict::Drop(reason)
}

/// Two ports, the first one leading to the first pipe; one app.
pub fn program(pipes: Vec<Pipe>) -> Program {
    let port = |name: &str, root| PortDeclaration {
        name: name.to_string(),
        root,
        kernel_path: true,
        origin: Origin::default(),
    };
    Program {
        ports: vec![port("in", Some(PipeId(0))), port("out", None)],
        pipes,
        apps: vec!["app".to_string()],
        counters: vec!["shared".to_string()],
        select_seed: 7,
        ..Program::default()
    }
}

pub fn pipe(kind: PipeKind) -> Pipe {
    Pipe {
        name: "pipe".to_string(),
        kind,
        matches: Vec::new(),
        monitor: Monitor::default(),
        templates: vec![Template::default()],
        forward: Forward::Port(PortId(1)),
        miss: Forward::Drop,
        rehash: false,
        capacity: 8,
        entries: Vec::new(),
        origin: Origin::default(),
    }
}

/// One field, compared whole with the entries' values.
pub fn exact(field: Field, values: &[u128]) -> Pipe {
    let matches = vec![matched(field, Criterion::PerEntry { mask: field.max() })];
    let entries = values.iter().map(|value| entry(vec![EntryMatch::Value(*value)])).collect();
    Pipe { matches, entries, ..pipe(PipeKind::Basic) }
}

/// One constant and an entry that matches everything.
pub fn only(field: Field, value: u128, mask: u128) -> Pipe {
    Pipe { matches: vec![matched(field, Criterion::Const { value, mask })], ..all() }
}

/// An entry that every packet hits.
pub fn all() -> Pipe {
    Pipe { entries: vec![entry(Vec::new())], ..pipe(PipeKind::Basic) }
}

/// The same, with an action.
pub fn act(operations: Vec<Operation>) -> Pipe {
    Pipe { templates: vec![Template { name: "act".to_string(), operations }], ..all() }
}

pub fn matched(field: Field, criterion: Criterion) -> Match {
    Match { field, criterion, origin: Origin::default() }
}

pub fn entry(matches: Vec<EntryMatch>) -> Entry {
    Entry { matches, ..Entry::default() }
}

pub fn onward(pipe: Pipe, to: u16) -> Pipe {
    Pipe { forward: Forward::Pipe(PipeId(to)), ..pipe }
}

/// A group of targets `0..count`; the buckets are given to the interpreter.
pub fn group(count: usize) -> Group {
    let target = |at: usize| Target {
        name: format!("target{at}"),
        weight: 1,
        forward: Forward::Port(PortId(at as u16)),
        origin: Origin::default(),
    };
    Group {
        name: "group".to_string(),
        fill: Fill::Wants,
        seed: None,
        size: 4,
        targets: (0..count).map(target).collect(),
        origin: Origin::default(),
    }
}

/// A row for each of two targets, forwarded to the port of its number.
pub fn rows() -> Vec<Entry> {
    let row = |target: u16| Entry { forward: Some(Forward::Port(PortId(target))), ..entry(vec![target_match(target)]) };
    vec![row(0), row(1)]
}

pub fn target_match(target: u16) -> EntryMatch {
    EntryMatch::Target(target)
}

pub fn flow(learn: Learn, capacity: u32) -> Pipe {
    let entries = match learn {
        Learn::Nothing => Vec::new(),
        Learn::Default => vec![entry(vec![EntryMatch::Default])],
        Learn::Pin(_) | Learn::Follow(_) => rows(),
    };
    let by_target = matches!(learn, Learn::Pin(_) | Learn::Follow(_));
    let kind = PipeKind::Flow { key: KeySource::Outer, learn, idle_timeout_ns: 0 };
    let forward = if by_target { Forward::PerEntry } else { Forward::Port(PortId(1)) };
    Pipe { entries, capacity, forward, ..pipe(kind) }
}

pub fn hash(input: HashInput) -> Pipe {
    let kind = PipeKind::Hash { input, group: GroupId(0) };
    Pipe { entries: rows(), forward: Forward::PerEntry, ..pipe(kind) }
}

pub fn with_group(program: Program, targets: usize) -> Program {
    Program { groups: vec![group(targets)], ..program }
}

pub fn with_meter(mut program: Program, config: MeterConfig) -> Program {
    program.meters.push(MeterDeclaration { name: "meter".to_string(), config, origin: Origin::default() });
    program
}

/// Started with every bucket naming target 0.
pub fn start(program: &Program) -> Interpreter {
    Interpreter::new(program, program.groups.iter().map(|group| vec![0; group.size as usize]).collect())
}

pub fn walk(program: &Program, bytes: &[u8]) -> Walk {
    start(program).walk(PortId(0), bytes, 128, 0)
}

/// What becomes of a frame that meets one pipe.
pub fn meets(pipe: Pipe, bytes: &[u8]) -> Verdict {
    walk(&program(vec![pipe]), bytes).verdict
}

/// The bytes that leave a pipe with this action.
pub fn acted(operations: Vec<Operation>, bytes: &[u8]) -> Vec<u8> {
    let walk = walk(&program(vec![act(operations)]), bytes);
    assert_eq!(walk.verdict, HIT, "{:?}", walk.trace);
    walk.bytes
}

pub fn fails(operations: Vec<Operation>, bytes: &[u8]) -> Verdict {
    meets(act(operations), bytes)
}

pub fn hits(interpreter: &Interpreter, pipe: usize, entry: usize) -> Count {
    interpreter.snapshot().pipes[pipe].entries[entry].hits
}

pub fn known(walk: &Walk) -> Known {
    walk.trace.last().and_then(|step| step.flow).expect("the last pipe is a FLOW pipe").known
}

/// Are all checksums of a frame right, as etherparse computes them? A UDP checksum of 0 is none.
pub fn checksums_are_right(bytes: &[u8]) -> bool {
    use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
    let headers = PacketHeaders::from_ethernet_slice(bytes).expect("a frame that etherparse reads");
    let payload = headers.payload.slice();
    let mut wanted = headers.transport.clone();
    let net_is_right = match headers.net.as_ref().expect("IP") {
        NetHeaders::Ipv4(ip, _) => {
            if let Some(transport) = &mut wanted {
                transport.update_checksum_ipv4(ip, payload).expect("a length that fits");
            }
            ip.header_checksum == ip.calc_header_checksum()
        }
        NetHeaders::Ipv6(ip, _) => {
            if let Some(transport) = &mut wanted {
                transport.update_checksum_ipv6(ip, payload).expect("a length that fits");
            }
            true
        }
        NetHeaders::Arp(_) => true,
    };
    let none = matches!(&headers.transport, Some(TransportHeader::Udp(udp)) if udp.checksum == 0);
    net_is_right && (none || wanted == headers.transport)
}

/// The 16-bit number at a place.
pub fn number(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
