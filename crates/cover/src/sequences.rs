//! Packets of a flow in order: the first one, more of them, answers, and what ends a connection.

use crate::record::{CaseRecord, Origin};
use crate::shape::Layer4;
use weir_oracle::Walk;
use weir_packet::Field;
use weir_packet::craft::{Addresses, Body, Recipe, Transport, describe};
use weir_program::{PortId, Program, Verdict};

/// How many source ports are tried for a flow that no other packet belongs to.
const TRIES: u128 = 32;

/// Flags of TCP segments.
const SYN: u8 = 0x02;
const SYN_ACK: u8 = 0x12;
const ACK: u8 = 0x10;
const FIN_ACK: u8 = 0x11;
const RST: u8 = 0x04;

/// A packet of a connection: whether it is an answer, its flags, and what it shows.
const SEGMENTS: [(bool, u8, &str); 12] = [
    (false, SYN, "opens a connection"),
    (false, SYN, "repeats its SYN"),
    (true, SYN_ACK, "answers its SYN"),
    (false, ACK, "establishes it"),
    (true, ACK, "answers in it"),
    (false, FIN_ACK, "half-closes it"),
    (true, ACK, "answers in the half-closed connection"),
    (true, FIN_ACK, "closes it"),
    (false, ACK, "comes after its end"),
    (false, SYN, "opens it again"),
    (false, RST, "resets it"),
    (false, ACK, "comes after its reset"),
];

/// The packets of a flow without connections.
const DATAGRAMS: [(bool, &str); 4] = [
    (false, "begins a flow"),
    (false, "continues it"),
    (true, "answers it"),
    (false, "comes after an answer"),
];

/// Returns the packets of a flow that takes the same path as a packet: the port on which each arrives, its
/// bytes, and what it shows.
pub(crate) fn sequence(
    record: &CaseRecord,
    program: &Program,
    input: PortId,
    origin: &Origin,
) -> Vec<(PortId, Vec<u8>, &'static str)> {
    let Some((frame, walk)) = another(record, program, input, origin) else { return Vec::new() };
    let Verdict::Transmit(output) = walk.verdict else { return Vec::new() };
    let back = answer(&walk.bytes);
    let mut packets = Vec::new();
    let mut add = |is_answer: bool, flags: Option<u8>, purpose: &'static str| {
        let (port, bytes) = match (&back, is_answer) {
            (Some(back), true) => (output, back.as_slice()),
            (None, true) => return,
            (_, false) => (input, frame.as_slice()),
        };
        let Ok(mut recipe) = describe(bytes).parse::<Recipe>() else { return };
        if let (Some(flags), Body::Ip(ip)) = (flags, &mut recipe.body)
            && let Transport::Tcp(tcp) = &mut ip.transport
        {
            tcp.flags = flags;
        }
        packets.push((port, recipe.build(), purpose));
    };
    if origin.shape.outer.transport == Layer4::Tcp {
        SEGMENTS.iter().for_each(|(is_answer, flags, purpose)| add(*is_answer, Some(*flags), purpose));
    } else {
        DATAGRAMS.iter().for_each(|(is_answer, purpose)| add(*is_answer, None, purpose));
    }
    packets
}

/// Returns a packet of another flow that takes the same path.
fn another(
    record: &CaseRecord,
    program: &Program,
    input: PortId,
    origin: &Origin,
) -> Option<(Vec<u8>, Walk)> {
    let of = |frame: &[u8]| {
        let walk = record.explain(input, frame);
        (record.path_of(input, &walk), walk)
    };
    let (path, first) = of(&origin.shape.frame(program, &origin.point));
    if !first.trace.iter().any(|step| step.flow.is_some()) || !matches!(first.verdict, Verdict::Transmit(_)) {
        return None;
    }
    let field = if origin.shape.has(Field::L4Sport) { Field::L4Sport } else { return None };
    (0..TRIES).find_map(|at| {
        let mut point = origin.point.clone();
        point.insert(field, 50_000 + at);
        let frame = origin.shape.frame(program, &point);
        let (other, walk) = of(&frame);
        (other == path).then_some((frame, walk))
    })
}

/// Returns the answer to a frame: with its addresses and ports exchanged.
fn answer(frame: &[u8]) -> Option<Vec<u8>> {
    let mut recipe: Recipe = describe(frame).parse().ok()?;
    std::mem::swap(&mut recipe.eth_src, &mut recipe.eth_dst);
    let Body::Ip(ip) = &mut recipe.body else { return None };
    match &mut ip.addresses {
        Addresses::V4(src, dst) => std::mem::swap(src, dst),
        Addresses::V6(src, dst) => std::mem::swap(src, dst),
    }
    match &mut ip.transport {
        Transport::Tcp(tcp) => std::mem::swap(&mut tcp.sport, &mut tcp.dport),
        Transport::Udp(udp) => std::mem::swap(&mut udp.sport, &mut udp.dport),
        Transport::Icmp(_) | Transport::Tunnel(_) | Transport::Other(_) => {}
    }
    Some(recipe.build())
}
