//! How entries lie in maps: what the compiled program reads and user space writes.
//!
//! A record is what a hit needs: where to count, which action with which values, and where to send the
//! packet. Its words are in the processor's order.

use crate::coverage::{Coverage, Why, forward_of};
use weir_packet::tunnel::{Inside, Outer, OuterShape};
use weir_packet::{Field, TunnelPorts};
use weir_program::operation::Value;
use weir_program::{
    Encap, Entry, EntryMatch, Forward, Match, Operation, Pipe, PipeId, PipeKind, Program, SharedUse, Template,
};

/// Offsets in a record, in bytes.
pub const COUNT: i16 = 0;
/// Index of the template, or [`LEFT`].
pub const TEMPLATE: i16 = 4;
/// The kind of forward (high half) and its number.
pub const FORWARD: i16 = 8;
/// The shared counter's place among the counts, or 0.
pub const SHARED: i16 = 12;
/// The values of the action.
pub const VALUES: i16 = 16;

/// In place of a template: the packet is left to the engine, for the reason in place of the forward.
pub const LEFT: u32 = u32::MAX;
/// In place of a template: the target has no entry.
pub const ABSENT: u32 = u32::MAX - 1;

/// Kinds of forwards.
pub const TO_PORT: u32 = 1 << 16;
/// Back through the port of arrival.
pub const TO_INPUT: u32 = 2 << 16;
/// To a later pipe.
pub const TO_PIPE: u32 = 3 << 16;
/// To the target of a group.
pub const TO_GROUP: u32 = 4 << 16;
/// To the host's stack.
pub const TO_KERNEL: u32 = 5 << 16;
/// Nowhere.
pub const TO_NOTHING: u32 = 6 << 16;

/// Where the counts of a program are in its map of counts. Number 0 is not used, so that 0 means none.
#[derive(Clone, Debug)]
pub struct Counts {
    ports: u32,
    kernel: u32,
    drops: u32,
    left: u32,
    shared: u32,
    misses: u32,
    entries: Vec<u32>,
    total: u32,
}

impl Counts {
    /// Assigns places; `room` is the number of entries that each pipe has room for.
    pub fn new(program: &Program, room: &[usize]) -> Counts {
        let ports = 1;
        let kernel = ports + program.ports.len() as u32;
        let drops = kernel + 1;
        let left = drops + weir_packet::DropReason::ALL.len() as u32;
        let shared = left + Why::ALL.len() as u32;
        let misses = shared + program.counters.len() as u32;
        let mut total = misses + program.pipes.len() as u32;
        let mut entries = Vec::new();
        for room in room {
            entries.push(total);
            total += *room as u32;
        }
        Counts { ports, kernel, drops, left, shared, misses, entries, total }
    }

    /// Frames sent through a port.
    #[must_use]
    pub fn port(&self, port: usize) -> u32 {
        self.ports + port as u32
    }

    /// Frames left to the host's stack.
    #[must_use]
    pub fn kernel(&self) -> u32 {
        self.kernel
    }

    /// Frames dropped for a reason.
    #[must_use]
    pub fn dropped(&self, reason: weir_packet::DropReason) -> u32 {
        self.drops + reason as u32
    }

    /// Frames left to the engine for a reason.
    #[must_use]
    pub fn left(&self, why: Why) -> u32 {
        self.left + why as u32
    }

    /// A shared counter.
    #[must_use]
    pub fn shared(&self, counter: usize) -> u32 {
        self.shared + counter as u32
    }

    /// Misses of a pipe.
    #[must_use]
    pub fn misses(&self, pipe: PipeId) -> u32 {
        self.misses + u32::from(pipe.0)
    }

    /// Hits of an entry of a pipe.
    #[must_use]
    pub fn entry(&self, pipe: PipeId, entry: usize) -> u32 {
        self.entries[pipe.index()] + entry as u32
    }

    /// The number of places.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.total
    }
}

/// Bytes of a value: one word, or two for wide fields.
pub fn value_bytes(like: Field) -> usize {
    if like.spec().bits > 64 { 16 } else { 8 }
}

/// Bytes of the headers that an encapsulation copies, in whole words.
pub fn header_bytes(shape: OuterShape) -> usize {
    shape.length().next_multiple_of(8)
}

/// Bytes that an operation's values take.
pub fn operation_bytes(operation: &Operation) -> usize {
    match operation {
        // Headers for IPv4 and for IPv6 inside.
        Operation::Encap(encap) => 2 * header_bytes(encap.shape()),
        other => {
            other.numbers().filter(|(_, value, _)| value.is_given()).map(|(.., like)| value_bytes(like)).sum()
        }
    }
}

/// Bytes of a pipe's records.
pub fn record_bytes(pipe: &Pipe) -> usize {
    let of = |template: &Template| template.operations.iter().map(operation_bytes).sum::<usize>();
    VALUES as usize + pipe.templates.iter().map(of).max().unwrap_or(0)
}

/// Bytes of a pipe's key; never 0, because no map has empty keys. The key of a trie begins with the number of
/// bits in the prefix.
pub fn key_bytes(pipe: &Pipe) -> usize {
    let values: usize = pipe.varying().map(|one| value_bytes(one.field)).sum();
    match pipe.kind {
        PipeKind::Lpm => 4 + values,
        _ => values.max(8),
    }
}

/// Appends a number as words, the upper one first.
fn push_words(bytes: &mut Vec<u8>, number: u128, like: Field) {
    if value_bytes(like) == 16 {
        bytes.extend(((number >> 64) as u64).to_ne_bytes());
    }
    bytes.extend((number as u64).to_ne_bytes());
}

/// Appends a prefix as a trie compares it: bits in network order, from the field's first.
fn push_prefix(bytes: &mut Vec<u8>, value: u128, field: Field) {
    let first = value << (128 - u32::from(field.spec().bits));
    bytes.extend(&first.to_be_bytes()[..value_bytes(field)]);
}

/// Returns an entry's key.
pub fn key(pipe: &Pipe, entry: &Entry) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (one, matched) in pipe.varying().zip(&entry.matches) {
        match *matched {
            EntryMatch::Value(value) => push_words(&mut bytes, value, one.field),
            EntryMatch::Prefix { value, length } => {
                bytes.extend(u32::from(length).to_ne_bytes());
                push_prefix(&mut bytes, value, one.field);
            }
            _ => unreachable!("only BASIC and LPM pipes have keys"),
        }
    }
    bytes.resize(key_bytes(pipe), 0);
    bytes
}

/// The mask under which a match's field is part of a key.
pub fn mask(one: &Match) -> u128 {
    match one.criterion {
        weir_program::Criterion::PerEntry { mask } => mask,
        _ => unreachable!("other criteria are not compiled"),
    }
}

/// Encodes a forward, or returns `None` if it is left to the engine.
pub fn forward_code(forward: Forward) -> Option<u32> {
    match forward {
        Forward::Port(port) => Some(TO_PORT | u32::from(port.0)),
        Forward::InputPort => Some(TO_INPUT),
        Forward::Pipe(pipe) => Some(TO_PIPE | u32::from(pipe.0)),
        Forward::Group(group) => Some(TO_GROUP | u32::from(group.0)),
        Forward::Kernel => Some(TO_KERNEL),
        Forward::Drop => Some(TO_NOTHING),
        Forward::App(_) | Forward::Tee { .. } | Forward::Flood(_) | Forward::PerEntry => None,
    }
}

/// Writes the record of an entry.
pub fn record(
    program: &Program,
    coverage: &Coverage,
    counts: &Counts,
    (id, at): (PipeId, usize),
    entry: &Entry,
) -> Vec<u8> {
    let pipe = &program.pipes[id.index()];
    let mut bytes = Vec::with_capacity(record_bytes(pipe));
    let forward = forward_code(forward_of(pipe, entry));
    let (template, forward) = match (coverage.entry(program, id, entry), forward) {
        (None, Some(code)) => (u32::from(entry.template), code),
        (why, _) => (LEFT, why.unwrap_or(Why::Forward) as u32),
    };
    let shared = match pipe.monitor.counter {
        Some(SharedUse::Pipe(counter)) => counts.shared(counter.index()),
        Some(SharedUse::PerEntry) => entry.counter.map_or(0, |counter| counts.shared(counter.index())),
        None => 0,
    };
    for word in [counts.entry(id, at), template, forward, shared] {
        bytes.extend(word.to_ne_bytes());
    }
    if template != LEFT {
        let mut values = entry.values.iter().copied();
        for operation in &pipe.templates[usize::from(entry.template)].operations {
            push_operation(&mut bytes, operation, &mut values, &program.tunnels);
        }
    }
    bytes.resize(record_bytes(pipe), 0);
    bytes
}

fn push_operation(
    bytes: &mut Vec<u8>,
    operation: &Operation,
    values: &mut impl Iterator<Item = u128>,
    ports: &TunnelPorts,
) {
    let mut take = |value: Value| match value {
        Value::Const(number) => number,
        _ => values.next().expect("an entry that fits has all values"),
    };
    if let Operation::Encap(encap) = operation {
        return push_headers(bytes, encap, &mut take, ports);
    }
    for (_, value, like) in operation.numbers().collect::<Vec<_>>() {
        let number = take(value);
        if value.is_given() {
            push_words(bytes, number, like);
        }
    }
}

/// Writes the outer headers twice: for IPv4 inside (or a frame), and for IPv6.
fn push_headers(
    bytes: &mut Vec<u8>,
    encap: &Encap,
    take: &mut impl FnMut(Value) -> u128,
    ports: &TunnelPorts,
) {
    let shape = encap.shape();
    let mac = |number: u128| -> [u8; 6] { number.to_be_bytes()[10..].try_into().expect("6 of 16 bytes") };
    let address = |number: u128| match encap.ipv6 {
        true => std::net::Ipv6Addr::from(number).into(),
        false => std::net::IpAddr::from(std::net::Ipv4Addr::from(number as u32)),
    };
    // In the order of the operation's arguments.
    let (eth_dst, eth_src) = (mac(take(encap.eth_dst)), mac(take(encap.eth_src)));
    let (src, dst) = (address(take(encap.src)), address(take(encap.dst)));
    let id = encap.id.map_or(0, &mut *take) as u32;
    let ttl = take(encap.ttl) as u8;
    let sport = encap.sport.map(&mut *take);
    let outer = Outer { eth_dst, eth_src, src, dst, ttl, id };
    let insides =
        if encap.ethernet { [Inside::Ethernet, Inside::Ethernet] } else { [Inside::Ipv4, Inside::Ipv6] };
    for inside in insides {
        let mut headers = vec![0; shape.length()];
        shape.write(&outer, inside, ports, &mut headers);
        if let Some(sport) = sport {
            headers[shape.transport()..shape.transport() + 2].copy_from_slice(&(sport as u16).to_be_bytes());
        }
        headers.resize(header_bytes(shape), 0);
        bytes.extend(headers);
    }
}
