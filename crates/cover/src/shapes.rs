//! The shapes of packets that a program can tell apart.

use crate::shape::{HeaderSet, Layer4, Network, PacketShape};
use std::collections::BTreeSet;
use weir_packet::{Depth, Field, FieldKind, LevelId, TunnelKind};
use weir_program::{Criterion, HashInput, Operation, PipeKind, Program};

/// Returns the shapes of packets that a program may treat differently.
#[must_use]
pub fn shapes(program: &Program) -> Vec<PacketShape> {
    let fields = fields(program);
    let reads = |wanted: &[FieldKind]| fields.iter().any(|field| wanted.contains(&field.kind));
    let operations = || program.pipes.iter().flat_map(|pipe| &pipe.templates).flat_map(|one| &one.operations);
    let tagged = reads(&[FieldKind::VlanPcp, FieldKind::VlanVid])
        || operations().any(|one| matches!(one, Operation::PopVlan | Operation::PushVlan { .. }));
    let twice = tagged && operations().any(|one| matches!(one, Operation::PopVlan))
        || reads(&[FieldKind::SecondVlanPcp, FieldKind::SecondVlanVid]);
    let tags = if twice { 2 } else { u8::from(tagged) };
    let mut shapes = Vec::new();
    for tags in 0..=tags {
        let level = |(network, transport)| HeaderSet { ethernet: true, tags, network, transport };
        shapes.extend(plain().into_iter().map(|headers| PacketShape { outer: level(headers), tunnel: None }));
        if program.depth() >= Depth::L4 {
            let errors = [Network::Ipv4, Network::Ipv6]
                .into_iter()
                .flat_map(|network| [true, false].map(|is_udp| (network, Layer4::IcmpError(is_udp))));
            shapes.extend(errors.map(|headers| PacketShape { outer: level(headers), tunnel: None }));
        }
        if program.depth() < Depth::Inner {
            continue;
        }
        for (kind, network) in TunnelKind::ALL
            .iter()
            .flat_map(|kind| [Network::Ipv4, Network::Ipv6].map(|network| (*kind, network)))
        {
            let outer = level((network, Layer4::Tunnel));
            shapes.extend(
                inside(kind)
                    .into_iter()
                    .map(|(id, inner)| PacketShape { outer, tunnel: Some((kind, id, inner)) }),
            );
        }
    }
    shapes
}

/// The headers behind Ethernet, the most usual first.
fn plain() -> Vec<(Network, Layer4)> {
    let mut all = Vec::new();
    for network in [Network::Ipv4, Network::Ipv6] {
        let transports = [Layer4::Udp, Layer4::Tcp, Layer4::Icmp, Layer4::Other];
        all.extend(transports.map(|transport| (network, transport)));
    }
    all.extend([(Network::Arp, Layer4::Absent), (Network::Other, Layer4::Absent)]);
    all
}

/// What a tunnel of a kind may carry, with and without an ID.
fn inside(kind: TunnelKind) -> Vec<(bool, HeaderSet)> {
    let spec = kind.spec();
    let mut ids = Vec::new();
    if spec.id.is_some() {
        ids.push(true);
    }
    if !spec.id_needed {
        ids.push(false);
    }
    let mut all = Vec::new();
    for ethernet in [true, false] {
        if !(if ethernet { spec.ethernet } else { spec.ip }) {
            continue;
        }
        for (network, transport) in plain() {
            let is_ip = matches!(network, Network::Ipv4 | Network::Ipv6);
            if ethernet || is_ip {
                let level = HeaderSet { ethernet, tags: 0, network, transport };
                all.extend(ids.iter().map(|id| (*id, level)));
            }
        }
    }
    all
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
