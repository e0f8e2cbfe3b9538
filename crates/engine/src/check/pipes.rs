//! A pipe's own shape: what it matches, what its actions do.

use super::finding::{Finding, FindingKind};
use super::{CAPACITY_MAX, MATCHES_MAX, TEMPLATES_MAX, operations, too_many};
use crate::program::{Criterion, Forward, Match, Origin, Pipe, Program, SharedUse};
use packet::{Field, Layer};

pub(super) fn check(program: &Program, pipe: &Pipe, findings: &mut Vec<Finding>) {
    let mut kinds = Vec::new();
    too_many("matches", pipe.matches.len(), MATCHES_MAX, &mut kinds);
    too_many("action templates", pipe.templates.len(), TEMPLATES_MAX, &mut kinds);
    if pipe.templates.is_empty() {
        kinds.push(FindingKind::NoTemplate);
    }
    capacity(pipe, &mut kinds);
    names(program, pipe, &mut kinds);
    pipe.kind.check(program, pipe, &mut kinds);
    contradiction(pipe.matches.iter().filter_map(layers_of_match), &mut kinds);
    for template in &pipe.templates {
        operations::check(template, &mut kinds);
    }
    findings.extend(kinds.into_iter().map(|kind| Finding::new(pipe.origin, kind)));
    for one in &pipe.matches {
        criterion(pipe, one, findings);
    }
}

fn capacity(pipe: &Pipe, kinds: &mut Vec<FindingKind>) {
    let (capacity, entries) = (pipe.capacity, pipe.entries.len());
    if capacity == 0 || capacity > CAPACITY_MAX {
        kinds.push(FindingKind::Capacity { capacity, max: CAPACITY_MAX });
    } else if (capacity as usize) < entries {
        kinds.push(FindingKind::CapacityTooSmall { pipe: pipe.name.clone(), capacity, entries });
    }
}

/// Indices that lead nowhere, and a miss that asks an entry.
fn names(program: &Program, pipe: &Pipe, kinds: &mut Vec<FindingKind>) {
    if pipe.miss == Forward::PerEntry {
        kinds.push(FindingKind::MissPerEntry);
    }
    kinds.extend(dangling(program, pipe.forward));
    kinds.extend(dangling(program, pipe.miss));
    if let Some(SharedUse::Pipe(id)) = pipe.monitor.counter {
        kinds.extend(lost("counter", id.index(), program.counters.len()));
    }
    if let Some(SharedUse::Pipe(id)) = pipe.monitor.meter {
        kinds.extend(lost("meter", id.index(), program.meters.len()));
    }
}

/// A forward to something that does not exist.
pub(super) fn dangling(program: &Program, forward: Forward) -> Option<FindingKind> {
    match forward {
        Forward::Port(id) => lost("port", id.index(), program.ports.len()),
        Forward::Pipe(id) => lost("pipe", id.index(), program.pipes.len()),
        Forward::Group(id) => lost("group", id.index(), program.groups.len()),
        Forward::App(id) => lost("app", id.index(), program.apps.len()),
        Forward::Flood(id) => lost("group", id.index(), program.groups.len()),
        Forward::Tee { app, next } => {
            lost("app", app.index(), program.apps.len()).or_else(|| lost("pipe", next.index(), program.pipes.len()))
        }
        Forward::InputPort | Forward::Kernel | Forward::Drop | Forward::PerEntry => None,
    }
}

/// An index that leads nowhere.
pub(crate) fn lost(what: &'static str, index: usize, count: usize) -> Option<FindingKind> {
    (index >= count).then_some(FindingKind::Dangling { what, index })
}

/// `value` if it is above `max`.
pub(crate) fn too_large(name: String, value: u128, max: u128) -> Option<FindingKind> {
    (value > max).then_some(FindingKind::OutOfRange { name, value, max })
}

fn criterion(pipe: &Pipe, one: &Match, findings: &mut Vec<Finding>) {
    let field = one.field;
    let mut kinds = Vec::new();
    if let Some(kind) = not_allowed(pipe, one) {
        kinds.push(kind);
    }
    match one.criterion {
        Criterion::Const { value, mask } => {
            kinds.extend(too_large(format!("the mask of {field}"), mask, field.max()));
            kinds.extend(masked_value(field, value, mask));
        }
        Criterion::PerEntry { mask } => kinds.extend(too_large(format!("the mask of {field}"), mask, field.max())),
        Criterion::Range if field.spec().bits > 16 => {
            kinds.push(FindingKind::RangeTooWide { field, bits: field.spec().bits });
        }
        Criterion::Range | Criterion::Prefix | Criterion::Masked => {}
    }
    findings.extend(kinds.into_iter().map(|kind| Finding::new(one.origin, kind)));
}

/// A value that does not fit its field or its mask.
pub(super) fn masked_value(field: Field, value: u128, mask: u128) -> Option<FindingKind> {
    too_large(field.name().to_string(), value, field.max())
        .or_else(|| (value & !mask != 0).then_some(FindingKind::OutsideMask { field, value, mask }))
}

fn not_allowed(pipe: &Pipe, one: &Match) -> Option<FindingKind> {
    let kind = pipe.kind.of_type();
    let criterion = one.criterion.word().filter(|word| !kind.criteria.contains(word))?;
    Some(FindingKind::CriterionNotAllowed { kind: kind.word, field: one.field, criterion, instead: kind.matches })
}

/// A protocol number that is meant, by `ip.protocol` or by a layer; unlike the layer, a fragment has it too.
const TCP: u32 = 1 << 28;
const UDP: u32 = 1 << 29;
const ICMP: u32 = 1 << 30;
const ICMPV6: u32 = 1 << 31;

/// Of each row a packet has one at most.
const EXCLUSIVE: &[&[u32]] = &[
    &[Layer::Arp as u32, Layer::Ipv4 as u32, Layer::Ipv6 as u32],
    &[TCP, UDP, ICMP, ICMPV6, Layer::Arp as u32],
    &[Layer::Ports as u32, ICMP, Layer::Fragment as u32],
    &[Layer::Ports as u32, ICMPV6, Layer::Arp as u32],
    &[ICMP, Layer::Ipv6 as u32],
    &[ICMPV6, Layer::Ipv4 as u32],
    &[Layer::Tcp as u32, Layer::Fragment as u32],
    &[Layer::Udp as u32, Layer::Fragment as u32],
    &[Layer::Icmpv6 as u32, Layer::Fragment as u32],
    &[Layer::Vxlan as u32, TCP, ICMP],
    &[Layer::Vxlan as u32, ICMPV6, Layer::Fragment as u32],
    &[Layer::Vxlan as u32, Layer::Arp as u32],
    &[Layer::InnerIpv4 as u32, Layer::InnerIpv6 as u32],
    &[Layer::InnerTcp as u32, Layer::InnerUdp as u32, Layer::InnerIcmp as u32, Layer::InnerIcmpv6 as u32],
    &[Layer::InnerTcp as u32, Layer::InnerFragment as u32],
    &[Layer::InnerPorts as u32, Layer::InnerIcmp as u32, Layer::InnerFragment as u32],
    &[Layer::InnerIcmp as u32, Layer::InnerIpv6 as u32],
];

/// Reports two fields that no packet has at once.
pub(super) fn contradiction(fields: impl Iterator<Item = (Field, u32)>, kinds: &mut Vec<FindingKind>) {
    let fields: Vec<_> = fields.collect();
    for (at, (first, mine)) in fields.iter().enumerate() {
        for (second, theirs) in &fields[at + 1..] {
            if excludes(*mine, *theirs) {
                let (first, second) = (first.to_string(), second.to_string());
                kinds.push(FindingKind::NeverHits { first, second });
                return;
            }
        }
    }
}

fn excludes(one: u32, other: u32) -> bool {
    EXCLUSIVE.iter().any(|set| {
        let mut pairs = set.iter().flat_map(|first| set.iter().map(move |second| (*first, *second)));
        pairs.any(|(first, second)| first != second && one & first != 0 && other & second != 0)
    })
}

/// The layers a packet that matches must have: those of the field, and those its constant value means.
fn layers_of_match(one: &Match) -> Option<(Field, u32)> {
    match one.criterion {
        Criterion::Const { value, mask } => Some((one.field, layers_of_value(one.field, value, mask))),
        Criterion::PerEntry { .. } | Criterion::Prefix => Some((one.field, layers_of(one.field))),
        // An entry's `any` matches without the layer.
        Criterion::Masked | Criterion::Range => None,
    }
}

/// The layers that a field with this value means.
pub(super) fn layers_of_value(field: Field, value: u128, mask: u128) -> u32 {
    let meant = match (field, value) {
        _ if mask != field.max() => 0,
        (Field::IpVersion, 4) | (Field::EthType, 0x0800) => Layer::Ipv4 as u32,
        (Field::IpVersion, 6) | (Field::EthType, 0x86dd) => Layer::Ipv6 as u32,
        (Field::EthType, 0x0806) => Layer::Arp as u32,
        (Field::IpProtocol, 6) => TCP,
        (Field::IpProtocol, 17) => UDP,
        (Field::IpProtocol, 1) => ICMP,
        (Field::IpProtocol, 58) => ICMPV6,
        (Field::IpFragment, 1) => Layer::Fragment as u32,
        _ => 0,
    };
    meant | layers_of(field)
}

/// The layers that a packet with this field has.
pub(super) fn layers_of(field: Field) -> u32 {
    let needs = field.spec().needs;
    let protocols = [(Layer::Tcp, TCP), (Layer::Udp, UDP), (Layer::Icmp, ICMP), (Layer::Icmpv6, ICMPV6)];
    protocols.iter().filter(|(layer, _)| needs.has(*layer)).fold(needs.0, |layers, (_, protocol)| layers | protocol)
}

/// The origin of what a pipe gets wrong about a meter.
pub(super) fn meters_of(pipe: &Pipe) -> Vec<(usize, Origin)> {
    match pipe.monitor.meter {
        Some(SharedUse::Pipe(id)) => vec![(id.index(), pipe.origin)],
        Some(SharedUse::PerEntry) => {
            pipe.entries.iter().filter_map(|entry| entry.meter.map(|id| (id.index(), entry.origin))).collect()
        }
        None => Vec::new(),
    }
}
