//! The layout of entries in maps, which user space writes and the compiled program reads.
//!
//! A record has everything that a hit needs: where to count, which action to apply with which values, and
//! where to send the packet. Its words are in the processor's order.

use crate::coverage::{Why, forward_of};
use weir_packet::tunnel::{Inside, Outer, OuterShape};
use weir_packet::{DropReason, Field, TunnelPorts};
use weir_program::operation::Value;
use weir_program::{
    CounterId, Encap, Entry, EntryMatch, Forward, GroupChoice, Match, Operation, Pipe, PipeId, PipeKind,
    PortId, Program, SharedUse, Template, Verdict,
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

/// Instead of a template's number: the packet is left to the engine, and the reason is stored instead of the
/// forward.
pub const LEFT: u32 = u32::MAX;
/// Instead of a template's number: the target has no entry.
pub const ABSENT: u32 = u32::MAX - 1;

/// To a port. This and the following are kinds of forwards, in the upper half of a word.
pub const TO_PORT: u32 = 1 << 16;
/// Back through the port of arrival.
pub const TO_INPUT: u32 = 2 << 16;
/// To a later pipe.
pub const TO_PIPE: u32 = 3 << 16;
/// To the target of a group.
pub const TO_GROUP: u32 = 4 << 16;
/// To the host's stack.
pub const TO_KERNEL: u32 = 5 << 16;
/// Nowhere: the frame is dropped.
pub const TO_NOTHING: u32 = 6 << 16;

/// Where the counts of a program are. Places 0 and 1 are not used, so that 0 means none.
///
/// Each port of arrival has a block of places for verdicts: two for each port, the host's stack and each
/// reason to drop, and one for each reason to leave the packet to the engine. The first of two counts the
/// packet as it arrived; the second only has the bytes that leave. The first one is even, so both are in the
/// same block of marks. Shared counters, misses and entries follow.
#[derive(Clone, Debug)]
pub struct CountPlaces {
    ports: u32,
    shared: u32,
    misses: u32,
    /// The first place of each pipe's entries, and at the end the place behind all of them.
    entries: Vec<u32>,
}

/// What is counted at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedAt {
    /// A packet that arrived at a port and has a verdict.
    Decided(PortId, Verdict),
    /// Bytes that a verdict sends.
    Sent(Verdict),
    /// A packet that arrived at a port and is left to the engine.
    Left(PortId, Why),
    /// A shared counter.
    Shared(CounterId),
    /// A miss of a pipe.
    Misses(PipeId),
    /// A hit of the entry with this number in its pipe.
    Entry(PipeId, u32),
}

/// Places are marked in blocks of 64, so that a sweep need not look at all of them.
pub const MARK_SHIFT: i32 = 6;

/// The first place that is used.
const FIRST: u32 = 2;

const DROPS: u32 = DropReason::ALL.len() as u32;
const LEFT_REASONS: u32 = Why::ALL.len() as u32;

impl CountPlaces {
    /// Assigns places; `room` is the number of entries that each pipe has room for.
    pub fn new(program: &Program, room: &[u32]) -> CountPlaces {
        let ports = program.ports.len() as u32;
        let shared = FIRST + ports * block(ports);
        let misses = shared + program.counters.len() as u32;
        let mut next = misses + program.pipes.len() as u32;
        let mut entries = vec![next];
        for room in room {
            next += room;
            entries.push(next);
        }
        CountPlaces { ports, shared, misses, entries }
    }

    /// The first place of the block of a port of arrival.
    fn block(&self, input: PortId) -> u32 {
        FIRST + u32::from(input.0) * block(self.ports)
    }

    /// Frames that arrived at a port and have a verdict.
    #[must_use]
    pub fn decided(&self, input: PortId, verdict: Verdict) -> u32 {
        let offset = match verdict {
            Verdict::Transmit(port) => u32::from(port.0),
            Verdict::Kernel(_) => self.ports,
            Verdict::Drop(reason) => self.ports + 1 + reason as u32,
            Verdict::App(_) => unreachable!("frames for apps are left to the engine"),
        };
        self.block(input) + 2 * offset
    }

    /// Frames that arrived at a port and are left to the engine for a reason.
    #[must_use]
    pub fn left(&self, input: PortId, why: Why) -> u32 {
        self.block(input) + 2 * (self.ports + 1 + DROPS) + why as u32
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
    pub fn entry(&self, pipe: PipeId, entry: u32) -> u32 {
        self.entries[pipe.index()] + entry
    }

    /// The number of places.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.entries.last().copied().unwrap_or(self.misses)
    }

    /// The event that a place counts; `None` for places that are not used.
    #[must_use]
    pub fn at(&self, place: u32) -> Option<CountedAt> {
        let first_entry = self.entries[0];
        if place >= first_entry {
            let pipe = self.entries.partition_point(|first| *first <= place) - 1;
            return Some(CountedAt::Entry(PipeId(pipe as u16), place - self.entries[pipe]));
        }
        if place >= self.misses {
            return Some(CountedAt::Misses(PipeId((place - self.misses) as u16)));
        }
        if place >= self.shared {
            return Some(CountedAt::Shared(CounterId((place - self.shared) as u16)));
        }
        let at = place.checked_sub(FIRST)?;
        let (input, at) = (PortId((at / block(self.ports)) as u16), at % block(self.ports));
        if let Some(why) = at.checked_sub(2 * (self.ports + 1 + DROPS)) {
            return Why::ALL.get(why as usize).map(|why| CountedAt::Left(input, *why));
        }
        let verdict = match (at / 2).checked_sub(self.ports) {
            None => Verdict::Transmit(PortId((at / 2) as u16)),
            Some(0) => Verdict::Kernel(input),
            Some(more) => Verdict::Drop(DropReason::ALL[more as usize - 1]),
        };
        Some(if at % 2 == 0 { CountedAt::Decided(input, verdict) } else { CountedAt::Sent(verdict) })
    }
}

/// The number of places of a port of arrival.
fn block(ports: u32) -> u32 {
    2 * (ports + 1 + DROPS) + LEFT_REASONS.next_multiple_of(2)
}

/// Bytes of a value: one word, or two for wide fields.
pub fn value_bytes(like: Field) -> usize {
    if like.spec().bits > 64 { 16 } else { 8 }
}

/// Bytes of the headers that an encapsulation copies, in whole words.
pub fn header_bytes(shape: OuterShape) -> usize {
    shape.length().next_multiple_of(8)
}

/// Where an entry's values have what the hash is multiplied by to spread the outer source address: 0, or two
/// less than the number of addresses.
pub fn source_factor(encap: &Encap) -> usize {
    2 * header_bytes(encap.shape())
}

/// Whether each entry says how many bits of the outer source address are spread.
pub fn is_spread_by_entry(encap: &Encap) -> bool {
    matches!(encap.src_bits, Some(Value::PerEntry))
}

/// Whether a field is a MAC address. One that is set lies in a record as in a frame.
pub fn is_mac(field: Field) -> bool {
    field.spec().bytes == 6
}

/// Bytes that an operation's values take in a record.
pub fn operation_bytes(operation: &Operation) -> usize {
    match operation {
        // Headers for IPv4 and for IPv6 inside, then what spreads the source.
        _ if operation.is_kept() => 0,
        Operation::Encap(encap) => source_factor(encap) + if is_spread_by_entry(encap) { 8 } else { 0 },
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

/// Bytes of the table of a HASH or FLOW pipe: for each target, a word whose lowest bit says which record
/// packets read, and whose other bits count how often its entry was removed; then two records of each.
pub fn target_bytes(pipe: &Pipe, targets: usize) -> usize {
    target_record(pipe, targets, targets, 0).max(8)
}

/// Where a record of a target is.
pub fn target_record(pipe: &Pipe, targets: usize, target: usize, slot: usize) -> usize {
    targets * 8 + (target * 2 + slot) * record_bytes(pipe)
}

/// How many records a HASH or FLOW pipe has: one for each target that may be picked, and in FLOW pipes one
/// more for the default entry; 0 for others.
pub fn targets(program: &Program, pipe: &Pipe) -> usize {
    let default = usize::from(matches!(pipe.kind, PipeKind::Flow { .. }));
    default
        + match pipe.kind.group() {
            Some(GroupChoice::One(group)) => program.groups[group.index()].targets.len(),
            Some(GroupChoice::ByMeta(_)) => program.groups.iter().map(|group| group.targets.len()).sum(),
            None => 0,
        }
}

/// The number of the target that an entry is for.
pub fn target_number(program: &Program, pipe: &Pipe, matches: &[EntryMatch]) -> Option<usize> {
    match *matches {
        [EntryMatch::Default] => Some(targets(program, pipe) - 1),
        [EntryMatch::Target(target)] => Some(usize::from(target)),
        [EntryMatch::Member { group, target }] => {
            let before = program.groups[..group.index()].iter().map(|group| group.targets.len());
            Some(before.sum::<usize>() + usize::from(target))
        }
        _ => None,
    }
}

/// Bytes of an LPM pipe's key, which begins with the number of bits in the prefix.
pub fn prefix_bytes(field: Field) -> usize {
    4 + value_bytes(field)
}

/// Appends a number as words, the upper one first.
fn push_words(bytes: &mut Vec<u8>, number: u128, like: Field) {
    if value_bytes(like) == 16 {
        bytes.extend(((number >> 64) as u64).to_ne_bytes());
    }
    bytes.extend((number as u64).to_ne_bytes());
}

/// Returns the key of an LPM pipe's entry: the length of the prefix, then its bits in network order, from the
/// field's first.
pub fn prefix(field: Field, value: u128, length: u8) -> Vec<u8> {
    let first = value << (128 - u32::from(field.spec().bits));
    let mut bytes = u32::from(length).to_ne_bytes().to_vec();
    bytes.extend(&first.to_be_bytes()[..value_bytes(field)]);
    bytes
}

/// How many entries a pipe has room for.
pub fn room(program: &Program, pipe: &Pipe) -> u32 {
    match pipe.kind {
        PipeKind::Hash { .. } | PipeKind::Flow { .. } => targets(program, pipe) as u32,
        _ => pipe.capacity.max(pipe.entries.len() as u32),
    }
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

/// Writes the record of an entry, whose hits are counted at `count`. With a reason, its packets are left to
/// the engine.
pub fn record(program: &Program, counts: &CountPlaces, place: EntryPlace, entry: &Entry) -> Vec<u8> {
    let pipe = &program.pipes[place.pipe.index()];
    let mut bytes = Vec::with_capacity(record_bytes(pipe));
    let forward = forward_code(forward_of(pipe, entry));
    let (template, forward) = match (place.left, forward) {
        (None, Some(code)) => (u32::from(entry.template), code),
        (why, _) => (LEFT, why.unwrap_or(Why::Forward) as u32),
    };
    let shared = match pipe.monitor.counter {
        Some(SharedUse::Pipe(counter)) => counts.shared(counter.index()),
        Some(SharedUse::PerEntry) => entry.counter.map_or(0, |counter| counts.shared(counter.index())),
        None => 0,
    };
    for word in [place.count, template, forward, shared] {
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

/// Where an entry is, and what happens to its packets.
#[derive(Clone, Copy, Debug)]
pub struct EntryPlace {
    /// Its pipe.
    pub pipe: PipeId,
    /// Where its hits are counted.
    pub count: u32,
    /// Why its packets are left to the engine.
    pub left: Option<Why>,
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
    if operation.is_kept() {
        // Each flow has its own.
        return operation.numbers().filter(|(_, value, _)| value.is_given()).for_each(|(_, value, _)| {
            take(value);
        });
    }
    if let Operation::Encap(encap) = operation {
        return push_headers(bytes, encap, &mut take, ports);
    }
    for (_, value, like) in operation.numbers().collect::<Vec<_>>() {
        let number = take(value);
        if value.is_given() && matches!(operation, Operation::Set(field, _) if is_mac(*field)) {
            bytes.extend(((number as u64) << 16).to_be_bytes());
        } else if value.is_given() {
            push_words(bytes, number, like);
        }
    }
}

/// How many low bits of the outer source come from the hash, if this number is the same for all entries.
pub fn source_bits(encap: &Encap) -> Option<u32> {
    match encap.src_bits {
        None => Some(0),
        Some(Value::Const(bits)) => Some(limited(encap, bits)),
        Some(_) => None,
    }
}

/// How many bits are spread if an operation or entry asks for `bits`.
fn limited(encap: &Encap, bits: u128) -> u32 {
    bits.min(*Encap::src_bits_range(encap.ipv6).end() as u128) as u32
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
    let src = take(encap.src);
    let bits = match encap.src_bits {
        Some(Value::PerEntry) => limited(encap, take(Value::PerEntry)),
        _ => source_bits(encap).unwrap_or(0),
    };
    let bits = if bits > 1 { bits } else { 0 };
    let src = address(src >> bits << bits);
    let dst = address(take(encap.dst));
    let id = encap.id.map_or(0, &mut *take) as u32;
    let ttl = take(encap.ttl) as u8;
    let sport = encap.sport.filter(|_| encap.kind.is_udp()).map(&mut *take);
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
    if is_spread_by_entry(encap) {
        let factor = (1_u128 << bits).saturating_sub(2) as u64;
        bytes.extend(factor.to_ne_bytes());
    }
}

/// The maximum number of bytes that a program adds to a frame.
pub fn growth(program: &Program) -> usize {
    let one = |operation: &Operation| match operation {
        Operation::Encap(encap) => encap.shape().length(),
        Operation::PushVlan { .. } => 4,
        _ => 0,
    };
    let template = |template: &Template| template.operations.iter().map(one).sum::<usize>();
    let pipe = |pipe: &Pipe| pipe.templates.iter().map(template).max().unwrap_or(0);
    program.pipes.iter().map(pipe).sum()
}
