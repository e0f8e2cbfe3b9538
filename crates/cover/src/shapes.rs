//! The shapes of packets that a program can tell apart.

use crate::shape::{HeaderSet, Layer4, Network, PacketShape, Quoted};
use std::collections::BTreeSet;
use weir_packet::{Depth, Field, FieldKind, LevelId, TunnelKind};
use weir_program::{Criterion, HashInput, Operation, PipeKind, Program};

/// Which unusual packets inside tunnels to generate.
#[derive(Clone, Copy)]
struct InnerShapes {
    tags: u8,
    errors: bool,
    fragments: bool,
    /// Tunnels with something that is not parsed.
    nothing: bool,
}

/// Returns the shapes of packets that a program is likely to treat differently: inside tunnels, only the
/// headers that the program reads.
#[must_use]
pub fn shapes(program: &Program) -> Vec<PacketShape> {
    let fields = fields(program);
    let decapsulates = has_operation(program, |one| matches!(one, Operation::Decap(_)));
    // What is inside a tunnel is outside after decapsulation.
    let reads = |wanted: &[FieldKind]| {
        let is_inside = |field: &&Field| decapsulates || !is_outer(**field);
        fields.iter().filter(is_inside).any(|field| wanted.contains(&field.kind))
    };
    let pops = decapsulates && has_operation(program, |one| matches!(one, Operation::PopVlan));
    let tags = match (reads(&SECOND_TAG), reads(&FIRST_TAG) || pops) {
        (true, _) => 2,
        (false, first) => u8::from(first),
    };
    let inside = InnerShapes {
        tags,
        errors: reads(&ERROR),
        fragments: reads(&[FieldKind::IpFragment]),
        nothing: false,
    };
    all(program, outer_tags(program, &fields), inside)
}

/// Returns all shapes of packets that a program may treat differently.
#[must_use]
pub fn every_shape(program: &Program) -> Vec<PacketShape> {
    let fields = fields(program);
    let tags = match outer_tags(program, &fields) {
        0 => 0,
        _ => 2,
    };
    all(program, tags, InnerShapes { tags: 2, errors: true, fragments: true, nothing: true })
}

const FIRST_TAG: [FieldKind; 2] = [FieldKind::VlanPcp, FieldKind::VlanVid];
const SECOND_TAG: [FieldKind; 2] = [FieldKind::SecondVlanPcp, FieldKind::SecondVlanVid];

/// The fields of the packet that an ICMP error is about.
const ERROR: [FieldKind; 8] = [
    FieldKind::ErrorV4Protocol,
    FieldKind::ErrorV4Src,
    FieldKind::ErrorV4Dst,
    FieldKind::ErrorV6Protocol,
    FieldKind::ErrorV6Src,
    FieldKind::ErrorV6Dst,
    FieldKind::ErrorSport,
    FieldKind::ErrorDport,
];

fn has_operation(program: &Program, wanted: impl Fn(&Operation) -> bool) -> bool {
    program.pipes.iter().flat_map(|pipe| &pipe.templates).flat_map(|one| &one.operations).any(wanted)
}

/// Returns how many VLAN tags make a difference.
fn outer_tags(program: &Program, fields: &BTreeSet<Field>) -> u8 {
    let reads = |wanted: &[FieldKind]| fields.iter().any(|field| wanted.contains(&field.kind));
    let pops = has_operation(program, |one| matches!(one, Operation::PopVlan));
    let pushes = has_operation(program, |one| matches!(one, Operation::PushVlan { .. }));
    if pops || reads(&SECOND_TAG) { 2 } else { u8::from(pushes || reads(&FIRST_TAG)) }
}

fn all(program: &Program, tags: u8, inside: InnerShapes) -> Vec<PacketShape> {
    let depth = program.depth();
    let mut shapes = Vec::new();
    for tags in 0..=tags {
        let level = |(network, transport)| HeaderSet { ethernet: true, tags, network, transport };
        let mut outer = plain();
        if depth >= Depth::L3 {
            outer.extend(of_ip(&[Layer4::Fragment]));
        }
        if depth >= Depth::L4 {
            outer.extend(of_ip(&Quoted::ALL.map(Layer4::IcmpError)));
        }
        if program.follows() {
            outer.extend(of_ip(&[false, true].map(Layer4::FirstFragment)));
        }
        shapes.extend(outer.into_iter().map(|headers| PacketShape { outer: level(headers), tunnel: None }));
        if depth < Depth::Inner {
            continue;
        }
        for (kind, network) in TunnelKind::ALL
            .iter()
            .flat_map(|kind| [Network::Ipv4, Network::Ipv6].map(|network| (*kind, network)))
        {
            let outer = level((network, Layer4::Tunnel));
            shapes.extend(
                carried(kind, inside)
                    .into_iter()
                    .map(|(id, inner)| PacketShape { outer, tunnel: Some((kind, id, inner)) }),
            );
        }
    }
    if tags < 2 && fields(program).iter().any(|field| field.kind == FieldKind::EthType) {
        // Behind two tags, the EtherType may be that of another one.
        let outer = HeaderSet { ethernet: true, tags: 2, network: Network::Other, transport: Layer4::Absent };
        shapes.push(PacketShape { outer, tunnel: None });
    }
    shapes
}

/// The headers behind Ethernet, the most usual first.
fn plain() -> Vec<(Network, Layer4)> {
    let mut all = of_ip(&[Layer4::Udp, Layer4::Tcp, Layer4::Icmp, Layer4::Other]);
    all.extend([(Network::Arp, Layer4::Absent), (Network::Other, Layer4::Absent)]);
    all
}

/// The given layers over each version of IP.
fn of_ip(transports: &[Layer4]) -> Vec<(Network, Layer4)> {
    let over = |network| transports.iter().map(move |transport| (network, *transport));
    [Network::Ipv4, Network::Ipv6].into_iter().flat_map(over).collect()
}

/// What a tunnel of a kind may carry, with and without an ID.
fn carried(kind: TunnelKind, inside: InnerShapes) -> Vec<(bool, HeaderSet)> {
    let spec = kind.spec();
    let mut ids = Vec::new();
    if spec.id.is_some() {
        ids.push(true);
    }
    if !spec.id_needed {
        ids.push(false);
    }
    let mut headers = plain();
    if inside.fragments {
        headers.extend(of_ip(&[Layer4::Fragment]));
    }
    if inside.errors {
        headers.extend(of_ip(&Quoted::ALL.map(Layer4::IcmpError)));
    }
    let mut levels = Vec::new();
    for (network, transport) in headers {
        if spec.ethernet {
            levels.extend((0..=inside.tags).map(|tags| HeaderSet {
                ethernet: true,
                tags,
                network,
                transport,
            }));
        }
        if spec.ip && matches!(network, Network::Ipv4 | Network::Ipv6) {
            levels.push(HeaderSet { ethernet: false, tags: 0, network, transport });
        }
    }
    levels.extend(inside.nothing.then_some(HeaderSet::NOTHING));
    levels.into_iter().flat_map(|level| ids.iter().map(move |id| (*id, level)).collect::<Vec<_>>()).collect()
}

/// Returns the fields that a program matches, hashes, reads or writes.
#[must_use]
pub fn fields(program: &Program) -> BTreeSet<Field> {
    let mut fields = BTreeSet::new();
    for pipe in &program.pipes {
        fields.extend(reads_of(program, pipe));
        for operation in pipe.templates.iter().flat_map(|one| &one.operations) {
            fields.extend(operation.writes());
        }
    }
    fields
}

/// Returns the fields on which the way of a packet from a pipe may depend, those of its key included.
pub fn reads_of(program: &Program, pipe: &weir_program::Pipe) -> BTreeSet<Field> {
    let mut fields: BTreeSet<Field> = pipe.matches.iter().map(|one| one.field).collect();
    fields.extend(pipe.kind.hashed().iter().map(|(field, _)| *field));
    fields.extend(pipe.kind.group().and_then(weir_program::GroupChoice::field));
    for operation in pipe.templates.iter().flat_map(|one| &one.operations) {
        if let Operation::Copy { from, .. } = operation {
            fields.insert(*from);
        }
        if let Operation::DecrementTtl = operation {
            fields.extend([Field::Ipv4Ttl, Field::Ipv6HopLimit]);
        }
    }
    let keyed = match &pipe.kind {
        PipeKind::Flow { .. } => true,
        PipeKind::Hash { input, .. } => !matches!(input, HashInput::Fields(_) | HashInput::RoundRobin),
        PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl => false,
    };
    if keyed || !program.groups.is_empty() {
        fields.extend(KEY);
    }
    debug_assert!(
        pipe.matches
            .iter()
            .all(|one| !matches!(one.criterion, Criterion::Const { .. }) || fields.contains(&one.field))
    );
    fields
}

/// The fields of the flow key at the outer level.
pub const KEY: [Field; 6] =
    [Field::L4Sport, Field::Ipv4Src, Field::Ipv6Src, Field::Ipv4Dst, Field::Ipv6Dst, Field::L4Dport];

/// Whether a field is at the outer level.
#[must_use]
pub fn is_outer(field: Field) -> bool {
    field.level == LevelId::Outer
}
