//! Changed addresses and the checksums whose pseudo header contains them, or contains others: random packets
//! of every such protocol after random extension headers, in the engine and the interpreter. The checksums
//! are computed here from scratch, from the parts of each frame.

use std::collections::BTreeMap;
use weir_engine::lockstep::{Act, Arriving, Lockstep};
use weir_oracle::Interpreter;
use weir_oracle::arbitrary::{Choices, Coverage};
use weir_packet::{Field, FieldKind, LevelId};
use weir_program::builder::ProgramBuilder;
use weir_program::{Entry, Operation, Pipe, PipeId, PipeKind, PortDeclaration, PortId, Program, Value};

/// Number, offset of the checksum, first byte, and whether IPv4 has it too.
const PROTOCOLS: [(u8, usize, Option<u8>, bool); 10] = [
    (6, 16, None, true),
    (17, 6, None, true),
    (33, 6, None, true),
    (58, 2, None, false),
    (89, 12, Some(3), true),
    (103, 2, Some(0x21), false),
    (112, 6, Some(0x31), true),
    (135, 4, None, false),
    (136, 6, None, true),
    (139, 4, None, true),
];

/// The source and the destination of a pseudo header that differ from those of the IP header.
type Other = [Option<Vec<u8>>; 2];

/// A frame and what its checksum covers.
struct Made {
    bytes: Vec<u8>,
    protocol: u8,
    /// Where source and destination are, and whether the pseudo header contains them or others.
    addresses: [(usize, usize, Option<Vec<u8>>); 2],
    segment: usize,
    /// Bytes of the segment that the checksum covers, and the length in the pseudo header.
    covered: usize,
    length: usize,
    place: usize,
}

impl Made {
    /// The sum over pseudo header and segment, all ones if the checksum in it is correct (RFC 1071).
    fn sum(&self, bytes: &[u8]) -> u16 {
        let mut sum = u32::from(self.protocol) + self.length as u32;
        let mut add = |bytes: &[u8]| {
            for pair in bytes.chunks(2) {
                sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |byte| u32::from(*byte));
            }
        };
        for (at, length, other) in &self.addresses {
            add(other.as_deref().unwrap_or(&bytes[*at..at + length]));
        }
        add(&bytes[self.segment..self.segment + self.covered]);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    fn checksum(&self, bytes: &[u8]) -> u16 {
        let at = self.segment + self.place;
        u16::from_be_bytes([bytes[at], bytes[at + 1]])
    }

    /// Writes the correct checksum, never 0.
    fn seal(mut self) -> Made {
        let at = self.segment + self.place;
        self.bytes[at..at + 2].fill(0);
        let checksum = match !self.sum(&self.bytes) {
            0 => 0xffff,
            checksum => checksum,
        };
        self.bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        self
    }
}

fn bytes(random: &mut Choices, count: usize) -> Vec<u8> {
    (0..count).map(|_| random.below(256) as u8).collect()
}

/// A header with a checksum at its offset and some payload; also which part of it is covered and counted.
fn segment(random: &mut Choices, protocol: u8, first: Option<u8>) -> (Vec<u8>, usize, usize) {
    let payload = random.below(20);
    let mut segment = bytes(random, 20 + payload);
    let whole = segment.len();
    segment[0] = first.unwrap_or(segment[0]);
    let (mut covered, mut length) = (whole, whole);
    match protocol {
        6 => segment[12] = 0x50,
        17 => segment[4..6].copy_from_slice(&(whole as u16).to_be_bytes()),
        // DCCP: a header of four words, and all of the payload, none of it, or some.
        33 => {
            segment[4] = 4;
            let coverage = random.below(3);
            segment[5] = coverage as u8;
            covered = if coverage == 0 { whole } else { (16 + 4 * (coverage - 1)).min(whole) };
        }
        // A PIM register covers its header only.
        103 if random.percent(50) => (covered, length) = (8, 8),
        103 => segment[0] = 0x20,
        136 => {
            let coverage = random.pick(&[0, 8, 9, 20]);
            segment[4..6].copy_from_slice(&(coverage as u16).to_be_bytes());
            covered = if coverage == 0 { whole } else { coverage };
        }
        _ => {}
    }
    (segment, covered, length)
}

/// Options with or without a home address, padded to whole extension headers.
fn options(random: &mut Choices, home: Option<&[u8]>) -> Vec<u8> {
    let mut header = vec![0, 0];
    for _ in 0..random.below(3) {
        let value = random.below(5);
        let other = [random.pick(&[1, 5, 0x1e, 202]), value as u8];
        header.extend(if random.percent(30) {
            vec![0]
        } else {
            [&other[..], &bytes(random, value)].concat()
        });
    }
    if let Some(home) = home {
        // At 8n + 6 (RFC 6275 §6.3).
        header.extend(vec![0; (14 - header.len() % 8) % 8]);
        header.extend([201, 16]);
        header.extend(home);
    }
    let padding = (8 - header.len() % 8) % 8;
    header.extend(if padding == 1 { vec![0] } else { vec![] });
    if padding > 1 {
        header.extend([1, padding as u8 - 2]);
        header.extend(vec![0; padding - 2]);
    }
    header[1] = (header.len() / 8 - 1) as u8;
    header
}

/// Extension headers with their numbers, and the addresses that they put into the pseudo header.
fn extensions(random: &mut Choices) -> (Vec<(u8, Vec<u8>)>, Other) {
    let (mut all, mut other) = (Vec::new(), [None, None]);
    for _ in 0..random.below(5) {
        all.push(match random.below(6) {
            0 => (0, options(random, None)),
            1 => (60, options(random, None)),
            2 => {
                let home = bytes(random, 16);
                let header = (60, options(random, Some(&home)));
                other[0] = Some(home);
                header
            }
            3 => (51, [&[0, 4], &bytes(random, 22)[..]].concat()),
            kind => {
                let segments = random.between(1, 3);
                let left = if kind == 4 { 0 } else { random.between(1, segments) };
                let list = bytes(random, 16 * segments);
                let header = [0, 2 * segments as u8, random.pick(&[0, 2, 3, 4]), left as u8, 0, 0, 0, 0];
                if left > 0 {
                    other[1] = Some(list[16 * (segments - 1)..].to_vec());
                }
                (43, [&header[..], &list].concat())
            }
        });
    }
    if random.percent(25) {
        let first = random.percent(50);
        all.push((44, vec![0, 0, 0, u8::from(first), 1, 2, 3, 4]));
    }
    (all, other)
}

fn ipv6(random: &mut Choices, protocol: u8, segment: &[u8]) -> (Vec<u8>, Other) {
    let (extensions, other) = extensions(random);
    let numbers = extensions.iter().map(|(number, _)| *number).chain([protocol]);
    let mut numbers = numbers.collect::<Vec<_>>().into_iter();
    let mut packet = [vec![0x60, 0, 0, 0, 0, 0, numbers.next().unwrap(), 64], bytes(random, 32)].concat();
    packet[8] = 0x20;
    for (_, mut header) in extensions {
        header[0] = numbers.next().unwrap();
        packet.extend(header);
    }
    packet.extend(segment);
    let length = packet.len() as u16 - 40;
    packet[4..6].copy_from_slice(&length.to_be_bytes());
    (packet, other)
}

fn ipv4(random: &mut Choices, protocol: u8, segment: &[u8]) -> Vec<u8> {
    let words = random.pick(&[5, 5, 7]);
    let first = if random.percent(20) { 0x20 } else { 0 };
    let mut packet = vec![0x40 | words as u8, 0, 0, 0, 0, 0, first, 0, 64, protocol, 0, 0];
    packet.extend(bytes(random, 8));
    // An address that any host may send from.
    packet[12] = 10;
    packet.extend(vec![1; 4 * (words - 5)]);
    packet.extend(segment);
    let length = packet.len() as u16;
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet
}

/// A frame with a correct checksum, at a level.
fn made(random: &mut Choices, is_ipv6: bool, level: LevelId) -> Made {
    let all = PROTOCOLS.iter().filter(|(.., both)| is_ipv6 || *both).copied().collect::<Vec<_>>();
    let (protocol, place, first, _) = random.pick(&all);
    let (segment, covered, length) = segment(random, protocol, first);
    let (packet, [other_source, other_destination]) = match is_ipv6 {
        true => ipv6(random, protocol, &segment),
        false => (ipv4(random, protocol, &segment), [None, None]),
    };
    let ether_type: [u8; 2] = if is_ipv6 { [0x86, 0xdd] } else { [8, 0] };
    let mut frame = vec![2; 12];
    if level == LevelId::Inner {
        let total = 24 + packet.len() as u16;
        let [high, low] = total.to_be_bytes();
        frame.extend([8, 0, 0x45, 0, high, low, 0, 0, 0, 0, 64, 47, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 0]);
    }
    frame.extend(ether_type);
    let l3 = frame.len();
    frame.extend(packet);
    let end = frame.len();
    frame.extend(vec![0xee; random.below(4)]);
    let (at, size) = if is_ipv6 { (l3 + 8, 16) } else { (l3 + 12, 4) };
    let addresses = [(at, size, other_source), (at + size, size, other_destination)];
    let segment = end - segment.len();
    Made { bytes: frame, protocol, addresses, segment, covered, length, place }.seal()
}

fn program(operation: Operation) -> Program {
    let mut program = ProgramBuilder::new();
    let [input, _] = program.ports(["in", "out"].map(PortDeclaration::new));
    program.pipe(
        Pipe::new("all", PipeKind::Basic).forward(PortId(1)).entry(Entry::default()).act(vec![operation]),
    );
    program.root(input, PipeId(0));
    program.build()
}

/// 64 random frames whose field is changed: the engine and the interpreter agree, and checksums whose pseudo
/// header contains it are updated.
fn change(random: &mut Choices, field: Field, met: &mut BTreeMap<(u8, bool), u32>) {
    let is_source = matches!(field.kind, FieldKind::Ipv4Src | FieldKind::Ipv6Src);
    let is_ipv6 = matches!(field.kind, FieldKind::Ipv6Src | FieldKind::Ipv6Dst);
    let value = Value::Const((random.wide() >> 4) & field.max());
    let operation = random.pick(&[Operation::Set(field, value), Operation::Add(field, value)]);
    let program = program(operation);
    let all: Vec<Made> = (0..64).map(|_| made(random, is_ipv6, field.level)).collect();
    let arriving = |one: &Made| Arriving { bytes: one.bytes.clone(), headroom: 128, hash: 0, ports: None };
    let act = Act::Frames { input: PortId(0), frames: all.iter().map(arriving).collect() };
    Lockstep::new(&program, 1).unwrap().act(&act, &mut Coverage::new()).unwrap();
    let mut interpreter = Interpreter::new(&program, Vec::new());
    for one in &all {
        let out = interpreter.walk(PortId(0), &one.bytes, 128, 0).bytes;
        let (at, size, other) = &one.addresses[usize::from(!is_source)];
        let said = format!("{field} of {:02x?}", one.bytes);
        assert_ne!(out[*at..at + size], one.bytes[*at..at + size], "{said}");
        assert_eq!(one.sum(&out), 0xffff, "{said}");
        if other.is_some() {
            assert_eq!(one.checksum(&out), one.checksum(&one.bytes), "{said}");
        }
        *met.entry((one.protocol, other.is_some())).or_default() += 1;
    }
}

#[test]
fn a18_a_right_checksum_stays_right_whatever_address_its_pseudo_header_has() {
    let mut random = Choices::from_seed(10);
    let fields = [Field::Ipv4Src, Field::Ipv4Dst, Field::Ipv6Src, Field::Ipv6Dst];
    let mut met = BTreeMap::new();
    for field in fields.into_iter().flat_map(|field| [field, field.inner()]) {
        for _ in 0..8 {
            change(&mut random, field, &mut met);
        }
    }
    let wanted = PROTOCOLS.iter().flat_map(|(protocol, ..)| [(*protocol, false), (*protocol, true)]);
    let missing: Vec<_> = wanted.filter(|one| !met.contains_key(one)).collect();
    assert!(missing.is_empty(), "never generated: {missing:?}");
}
