//! Variants of a packet: the same path with values at their limits, fragments, options, lengths, and headers
//! that are malformed.

use crate::shape::{HeaderSet, Layer4, Network, PacketShape, default};
use crate::solve::Point;
use std::collections::BTreeSet;
use weir_packet::craft::{
    Addresses, Body, Checksum, Extension, ExtensionKind, Fragment, Icmp, Ip, Recipe, Tag, Transport,
};
use weir_packet::{FRAME_BYTES_MAX, Field, LevelId};
use weir_program::{Operation, Program, Value};

/// A variant: what it shows, and its bytes.
pub type Variant = (&'static str, Vec<u8>);

/// The maximum number of limits of a kind that are tried.
const LENGTHS: usize = 16;

/// A change of an IP packet.
type IpChange = fn(&mut Ip);

const TTLS: [(&str, u8); 4] = [("TTL 0", 0), ("TTL 1", 1), ("TTL 2", 2), ("TTL 255", 255)];

const CHANGES: [(&str, IpChange); 14] = [
    ("without DF", |ip| ip.dont_fragment = false),
    ("ECN 1", |ip| ip.ecn = 1),
    ("ECN 2", |ip| ip.ecn = 2),
    ("ECN 3", |ip| ip.ecn = 3),
    ("DSCP 46", |ip| ip.dscp = 46),
    ("IPv4 options", |ip| ip.options = vec![1; 4]),
    ("an IPv6 extension header", |ip| ip.extensions = extensions(1)),
    ("eight IPv6 extension headers", |ip| ip.extensions = extensions(8)),
    ("nine IPv6 extension headers", |ip| ip.extensions = extensions(9)),
    ("the first fragment", |ip| ip.fragment = Some(Fragment { offset: 0, more: true })),
    ("a later fragment", |ip| ip.fragment = Some(Fragment { offset: 8, more: false })),
    ("an atomic fragment", |ip| ip.fragment = Some(Fragment { offset: 0, more: false })),
    ("a wrong L4 checksum", |ip| set_checksum(ip, Checksum::Bad)),
    ("an L4 checksum of 0", |ip| set_checksum(ip, Checksum::Value(0))),
];

/// Flags of TCP segments: FIN and ACK, RST, SYN and ACK, ACK, PSH and ACK, none.
const FLAGS: [u8; 6] = [0x11, 0x04, 0x12, 0x10, 0x18, 0];

fn extensions(count: usize) -> Vec<Extension> {
    vec![Extension { kind: ExtensionKind::Destination, content: vec![1, 4, 0, 0, 0, 0] }; count]
}

fn set_checksum(ip: &mut Ip, to: Checksum) {
    match &mut ip.transport {
        Transport::Tcp(tcp) => tcp.checksum = to,
        Transport::Udp(udp) => udp.checksum = to,
        Transport::Icmp(icmp) => icmp.checksum = to,
        Transport::Tunnel(_) | Transport::Other(_) => {}
    }
}

/// The limits around which variants are made.
pub struct VariantLimits {
    /// Lengths of frames.
    lengths: BTreeSet<usize>,
    /// Maximum segment sizes.
    segments: BTreeSet<u16>,
}

impl VariantLimits {
    /// Returns the limits of a program.
    #[must_use]
    pub fn of(program: &Program) -> VariantLimits {
        VariantLimits { lengths: lengths(program), segments: segments(program) }
    }
}

/// Returns the variants of a packet of a shape.
#[must_use]
pub fn variants(
    shape: &PacketShape,
    program: &Program,
    point: &Point,
    VariantLimits { lengths, segments }: &VariantLimits,
) -> Vec<Variant> {
    let recipe = shape.recipe(program, point);
    let mut variants = Vec::new();
    for level in [LevelId::Outer, LevelId::Inner] {
        let mut add = |purpose: &'static str, change: &dyn Fn(&mut Ip)| {
            let mut changed = recipe.clone();
            if let Some(ip) = ip_at(&mut changed, level) {
                change(ip);
                variants.push((purpose, changed.build()));
            }
        };
        TTLS.iter().for_each(|(purpose, ttl)| add(purpose, &|ip| ip.ttl = *ttl));
        CHANGES.iter().for_each(|(purpose, change)| add(purpose, change));
        if shape.level(level).is_some_and(|level| level.transport == Layer4::Tcp) {
            let flags = |ip: &mut Ip, flags: u8| {
                if let Transport::Tcp(tcp) = &mut ip.transport {
                    tcp.flags = flags;
                }
            };
            FLAGS.iter().for_each(|to| add("other TCP flags", &|ip| flags(ip, *to)));
            for mss in segments {
                add("an MSS at a limit", &|ip| {
                    if let Transport::Tcp(tcp) = &mut ip.transport {
                        // RFC 9293 §3.2: kind 2, 4 bytes.
                        tcp.options = [[2, 4], mss.to_be_bytes()].concat();
                    }
                });
            }
        }
    }
    variants.push(("padding", Recipe { trailer: vec![0; 6], ..recipe.clone() }.build()));
    let tag = Tag { vid: 4095, pcp: 7, dei: true, tpid: None };
    if shape.outer.tags == 0 {
        variants.push(("a VLAN tag", Recipe { vlan: Some(tag), ..recipe.clone() }.build()));
    }
    let filled = |length: &usize| Recipe { length: Some(*length), ..recipe.clone() }.build();
    variants.extend(lengths.iter().map(|length| ("a length at a limit", filled(length))));
    let mut whole = recipe.clone();
    if let Some(ip) = ip_at(&mut whole, LevelId::Outer) {
        ip.dont_fragment = false;
        let filled = |length: &usize| Recipe { length: Some(*length), ..whole.clone() }.build();
        variants.extend(lengths.iter().map(|length| ("a length at a limit, without DF", filled(length))));
    }
    variants.extend(icmp_error(shape, program, point).map(|frame| ("an ICMP error about its answer", frame)));
    variants.extend(malformed(shape, &recipe.build()));
    variants.extend(short(shape, &recipe));
    variants
}

fn ip_at(recipe: &mut Recipe, level: LevelId) -> Option<&mut Ip> {
    let Body::Ip(ip) = &mut recipe.body else { return None };
    if level == LevelId::Outer {
        return Some(ip);
    }
    let tunnel = match &mut ip.transport {
        Transport::Tunnel(tunnel) => Some(tunnel),
        Transport::Udp(udp) => udp.tunnel.as_mut(),
        Transport::Tcp(_) | Transport::Icmp(_) | Transport::Other(_) => None,
    };
    match &mut tunnel?.inner.as_mut()?.body {
        Body::Ip(ip) => Some(ip),
        Body::Raw(_) | Body::Ethernet(_) | Body::Arp(_) => None,
    }
}

/// Returns the segment sizes around those to which a program clamps, and that of Ethernet.
fn segments(program: &Program) -> BTreeSet<u16> {
    let clamps = |one: &Operation| matches!(one, Operation::ClampMss { .. }).then_some(());
    let limits = limits(program, clamps).filter_map(|(mss, ())| u16::try_from(mss).ok());
    let near = |mss: u16| [mss.saturating_sub(1), mss, mss.saturating_add(1)];
    limits.collect::<BTreeSet<u16>>().into_iter().take(LENGTHS).flat_map(near).chain([1460]).collect()
}

/// Returns the frame lengths around the limits that a program has.
fn lengths(program: &Program) -> BTreeSet<usize> {
    let limit = |one: &Operation| match one {
        Operation::LimitLength { frame, .. } => Some(*frame),
        _ => None,
    };
    let limits: BTreeSet<(usize, bool)> =
        limits(program, limit).map(|(bytes, frame)| (bytes as usize, frame)).collect();
    let near = |(limit, frame): (usize, bool)| {
        let behind = if frame { 0 } else { 14 };
        [limit.saturating_sub(1) + behind, limit + behind, limit + 1 + behind]
    };
    limits
        .into_iter()
        .take(LENGTHS)
        .flat_map(near)
        .filter(|length| (64..=FRAME_BYTES_MAX).contains(length))
        .collect()
}

/// Returns the numbers of the operations that are wanted: those in the program, and those that entries give,
/// each at the place that its operation has among the values of the entry.
fn limits<T: Copy>(
    program: &Program,
    wanted: impl Fn(&Operation) -> Option<T>,
) -> impl Iterator<Item = (u128, T)> {
    let mut limits = Vec::new();
    for pipe in &program.pipes {
        for (number, template) in pipe.templates.iter().enumerate() {
            let mut place = 0;
            for operation in &template.operations {
                for (_, value, _) in operation.numbers() {
                    let is_given = value.is_given();
                    let at = place;
                    place += usize::from(is_given);
                    let Some(of) = wanted(operation) else { continue };
                    if let Value::Const(number) = value {
                        limits.push((number, of));
                    } else if is_given {
                        let entries = pipe.entries.iter().filter(|one| usize::from(one.template) == number);
                        limits.extend(entries.filter_map(|one| one.values.get(at).map(|value| (*value, of))));
                    }
                }
            }
        }
    }
    limits.into_iter()
}

/// Returns an ICMP error about the answer to a packet: it belongs to the packet's flow, and has its
/// direction.
fn icmp_error(shape: &PacketShape, program: &Program, point: &Point) -> Option<Vec<u8>> {
    let ipv4 = match shape.outer.network {
        Network::Ipv4 => true,
        Network::Ipv6 => false,
        Network::Other | Network::Arp => return None,
    };
    let mut answer = point.clone();
    let pairs = [
        (Field::Ipv4Src, Field::Ipv4Dst),
        (Field::Ipv6Src, Field::Ipv6Dst),
        (Field::L4Sport, Field::L4Dport),
    ];
    let get = |field: Field| point.get(&field).copied().unwrap_or_else(|| default(field));
    for (one, other) in pairs {
        answer.insert(one, get(other));
        answer.insert(other, get(one));
    }
    let about = shape.recipe(program, &answer).build();
    let network = 14 + 4 * usize::from(shape.outer.tags);
    let mut error = shape.recipe(program, point);
    let (kind, code) = if ipv4 { (3, 1) } else { (1, 0) };
    let Body::Ip(ip) = &mut error.body else { return None };
    // The router that reports the error is next to the answering end.
    if let Addresses::V4(src, _) = &mut ip.addresses {
        *src = std::net::Ipv4Addr::from_bits(src.to_bits() ^ 1);
    }
    ip.transport = Transport::Icmp(Icmp { kind, code, rest: 0, checksum: Checksum::Good });
    error.payload = about.get(network..)?.to_vec();
    Some(error.build())
}

/// Returns packets that end, according to their lengths, before their headers do.
fn short(shape: &PacketShape, recipe: &Recipe) -> Vec<Variant> {
    let frame = recipe.build();
    let mut variants = Vec::new();
    for level in [LevelId::Outer, LevelId::Inner] {
        let mut changed = recipe.clone();
        let Some(ip) = ip_at(&mut changed, level) else { continue };
        let protocol = ip.transport.protocol(matches!(ip.addresses, Addresses::V4(..)));
        let start = match (level, shape.tunnel) {
            (LevelId::Outer, _) => length_of(HeaderSet { transport: Layer4::Absent, ..shape.outer }),
            (LevelId::Inner, Some((.., inner))) => frame.len() - transport_length(inner),
            (LevelId::Inner, None) => continue,
        };
        for length in [0, 1, 3, 4, 7, 8, 9, 11, 12, 15, 16, 19, 23, 27, 40] {
            let Some(payload) = frame.get(start..start + length) else { break };
            let mut changed = recipe.clone();
            if let Some(ip) = ip_at(&mut changed, level) {
                ip.transport = Transport::Other(protocol);
            }
            changed.payload = payload.to_vec();
            variants.push(("a packet that ends within its headers", changed.build()));
        }
    }
    variants
}

/// Returns frames whose headers are truncated or contradict themselves.
fn malformed(shape: &PacketShape, frame: &[u8]) -> Vec<Variant> {
    let mut variants = Vec::new();
    let mut start = 0;
    let levels = [LevelId::Outer, LevelId::Inner];
    for (at, level) in levels.into_iter().filter_map(|at| shape.level(at).map(|level| (at, level))) {
        if at == LevelId::Inner {
            start = frame.len() - length_of(level);
            variants.extend([("a truncated tunnel header", cut(frame, start.saturating_sub(1)))]);
            variants.push(("another tunnel header", flip(frame, start.saturating_sub(8), 0xff)));
        }
        let network = start + if level.ethernet { 14 + 4 * usize::from(level.tags) } else { 0 };
        let transport = network + network_length(level);
        let end = transport + transport_length(level);
        for place in [network, transport, end] {
            variants.push(("a truncated header", cut(frame, place.saturating_sub(1))));
        }
        variants.push(("a frame that ends behind its headers", cut(frame, end)));
        match level.network {
            Network::Ipv4 => {
                variants.push(("IP version 5", put(frame, network, &[0x55])));
                variants.push(("an IPv4 header of 16 bytes", put(frame, network, &[0x44])));
                variants.push(("an IPv4 header of 60 bytes", put(frame, network, &[0x4f])));
                variants.push(("an IPv4 length of 0", put(frame, network + 2, &[0, 0])));
                variants.push(("an IPv4 length of 19", put(frame, network + 2, &[0, 19])));
                variants.push(("an IPv4 length beyond the frame", put(frame, network + 2, &[0x7f, 0xff])));
                variants.push(("a multicast source", put(frame, network + 12, &[224, 0, 0, 1])));
                variants.push(("no source", put(frame, network + 12, &[0; 4])));
            }
            Network::Ipv6 => {
                variants.push(("IP version 5", put(frame, network, &[0x55])));
                variants.push(("an IPv6 length of 0", put(frame, network + 4, &[0, 0])));
                variants.push(("an IPv6 length beyond the frame", put(frame, network + 4, &[0x7f, 0xff])));
                variants.push(("a multicast source", put(frame, network + 8, &[0xff])));
                variants.push(("no source", put(frame, network + 8, &[0; 16])));
            }
            Network::Arp | Network::Other => {
                variants.push(("other ARP hardware", put(frame, network, &[0, 6])));
            }
        }
        match level.transport {
            Layer4::Udp | Layer4::Tunnel => {
                variants.push(("a UDP length of 7", put(frame, transport + 4, &[0, 7])));
                variants.push(("a UDP length beyond the packet", put(frame, transport + 4, &[0x7f, 0xff])));
            }
            Layer4::Tcp => {
                variants.push(("a TCP header of 16 bytes", put(frame, transport + 12, &[0x40])));
                variants.push(("a TCP header of 60 bytes", put(frame, transport + 12, &[0xf0])));
            }
            Layer4::Absent
            | Layer4::Icmp
            | Layer4::IcmpError(_)
            | Layer4::Fragment
            | Layer4::FirstFragment(_)
            | Layer4::Other => {}
        }
    }
    variants.push(("an empty frame", Vec::new()));
    variants
}

fn network_length(level: HeaderSet) -> usize {
    match level.network {
        Network::Ipv4 => 20,
        Network::Ipv6 => 40,
        Network::Arp => 28,
        Network::Other => 0,
    }
}

fn transport_length(level: HeaderSet) -> usize {
    match level.transport {
        Layer4::Tcp | Layer4::FirstFragment(false) => 20,
        Layer4::Udp | Layer4::FirstFragment(true) | Layer4::Icmp | Layer4::IcmpError(_) | Layer4::Tunnel => 8,
        Layer4::Absent | Layer4::Fragment | Layer4::Other => 0,
    }
}

/// Returns the length of a frame that has only these headers.
fn length_of(level: HeaderSet) -> usize {
    let ethernet = if level.ethernet { 14 + 4 * usize::from(level.tags) } else { 0 };
    ethernet + network_length(level) + transport_length(level)
}

fn cut(frame: &[u8], length: usize) -> Vec<u8> {
    frame[..length.min(frame.len())].to_vec()
}

/// Overwrites bytes, if the frame has them.
fn put(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut changed = frame.to_vec();
    if let Some(place) = changed.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
    changed
}

fn flip(frame: &[u8], at: usize, bits: u8) -> Vec<u8> {
    let mut changed = frame.to_vec();
    changed.get_mut(at).into_iter().for_each(|byte| *byte ^= bits);
    changed
}
