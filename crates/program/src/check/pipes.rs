//! Checks of a pipe itself: what it matches and what its actions do.

use super::contradiction::{contradiction, of_match};
use super::finding::{Finding, FindingKind};
use super::{CAPACITY_MAX, MATCHES_MAX, TEMPLATES_MAX, nat, operations, too_many};
use crate::{Criterion, Entry, EntryMatch, Forward, Match, Origin, Pipe, PipeKind, Program, SharedUse};
use weir_packet::Field;

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
    nat::pipe(program, pipe, &mut kinds);
    contradiction(pipe.matches.iter().filter_map(of_match), program.follow_fragments, &mut kinds);
    kinds.extend(drops_all(pipe));
    for template in &pipe.templates {
        operations::check(template, &pipe.kind, &mut kinds);
    }
    findings.extend(kinds.into_iter().map(|kind| Finding::new(pipe.origin, kind)));
    for one in &pipe.matches {
        criterion(pipe, one, findings);
        let kind = if one.field == Field::InputPort { port(program, one.criterion) } else { None };
        findings.extend(kind.map(|kind| Finding::new(one.origin, kind)));
    }
}

fn capacity(pipe: &Pipe, kinds: &mut Vec<FindingKind>) {
    let (capacity, mut entries) = (pipe.capacity, pipe.entries.len());
    if (capacity as usize) < entries && matches!(pipe.kind, PipeKind::Flow { .. }) {
        // The capacity is for flows; targets have their entries in addition.
        let is_flow = |entry: &Entry| matches!(entry.matches[..], [EntryMatch::Flow(_)]);
        entries = pipe.entries.iter().filter(is_flow).count();
    }
    if capacity == 0 || capacity > CAPACITY_MAX {
        kinds.push(FindingKind::Capacity { capacity, max: CAPACITY_MAX });
    } else if (capacity as usize) < entries {
        kinds.push(FindingKind::CapacityTooSmall { pipe: pipe.name.clone(), capacity, entries });
    }
}

/// Returns a finding if a pipe drops every packet although something is written for hits. A pipe that every
/// packet misses may be intended: its miss does the work. But if the miss drops, anything written for hits
/// shows that packets were expected to hit.
fn drops_all(pipe: &Pipe) -> Option<FindingKind> {
    let is_empty = pipe.matches.is_empty() && pipe.entries.is_empty();
    let has_no_key = matches!(pipe.kind, PipeKind::Basic | PipeKind::Acl);
    let unused = match pipe.forward != Forward::Drop {
        true => "`forward`",
        false if pipe.templates.iter().any(|template| !template.operations.is_empty()) => "action",
        false => return None,
    };
    (is_empty && has_no_key && pipe.miss == Forward::Drop).then_some(FindingKind::DropsAll { unused })
}

/// Reports invalid indices, and a miss that refers to an entry.
fn names(program: &Program, pipe: &Pipe, kinds: &mut Vec<FindingKind>) {
    if pipe.miss == Forward::PerEntry {
        kinds.push(FindingKind::MissPerEntry);
    }
    kinds.extend(dangling(program, pipe.forward));
    kinds.extend(dangling(program, pipe.miss));
    kinds.extend(pipe.too_long.and_then(|app| dangling(program, Forward::App(app))));
    if let Some(SharedUse::Pipe(id)) = pipe.monitor.counter {
        kinds.extend(lost("counter", id.index(), program.counters.len()));
    }
    if let Some(SharedUse::Pipe(id)) = pipe.monitor.meter {
        kinds.extend(lost("meter", id.index(), program.meters.len()));
    }
}

/// Reports a forward to something that does not exist.
pub(super) fn dangling(program: &Program, forward: Forward) -> Option<FindingKind> {
    match forward {
        Forward::Port(id) => lost("port", id.index(), program.ports.len()),
        Forward::Pipe(id) => lost("pipe", id.index(), program.pipes.len()),
        Forward::Group(id) => lost("group", id.index(), program.groups.len()),
        Forward::App(id) => lost("app", id.index(), program.apps.len()),
        Forward::Flood(id) => lost("group", id.index(), program.groups.len()),
        Forward::Tee { app, next } => lost("app", app.index(), program.apps.len())
            .or_else(|| lost("pipe", next.index(), program.pipes.len())),
        Forward::InputPort | Forward::Kernel | Forward::Drop | Forward::PerEntry => None,
    }
}

/// Reports an index that is out of range.
pub fn lost(what: &'static str, index: usize, count: usize) -> Option<FindingKind> {
    (index >= count).then_some(FindingKind::Dangling { what, index })
}

/// Reports `value` if it is above `max`.
pub fn too_large(name: String, value: u128, max: u128) -> Option<FindingKind> {
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
        Criterion::PerEntry { mask } => {
            kinds.extend(too_large(format!("the mask of {field}"), mask, field.max()))
        }
        Criterion::Range if field.spec().bits > 16 => {
            kinds.push(FindingKind::RangeTooWide { field, bits: field.spec().bits });
        }
        Criterion::Range | Criterion::Prefix | Criterion::Masked => {}
    }
    findings.extend(kinds.into_iter().map(|kind| Finding::new(one.origin, kind)));
}

/// Reports a criterion that uses the number of a port as more than an identifier. A reload may give a port
/// another number.
fn port(program: &Program, criterion: Criterion) -> Option<FindingKind> {
    match criterion {
        Criterion::Const { value, mask } => one_port(program, value, mask),
        Criterion::PerEntry { mask } => whole_port(mask),
        Criterion::Prefix => Some(FindingKind::PortNumber { instead: "match it `per_entry`" }),
        Criterion::Masked | Criterion::Range => None,
    }
}

/// Reports a comparison with part of a port's number, or with a port that does not exist.
pub(super) fn one_port(program: &Program, value: u128, mask: u128) -> Option<FindingKind> {
    let port = if mask == 0 { 0 } else { usize::try_from(value).unwrap_or(usize::MAX) };
    whole_port(mask).or_else(|| lost("port", port, program.ports.len()))
}

fn whole_port(mask: u128) -> Option<FindingKind> {
    let whole = mask == 0 || mask == Field::InputPort.max();
    (!whole).then_some(FindingKind::PortNumber { instead: "compare it without a mask" })
}

/// Reports a value that does not fit its field or its mask.
pub(super) fn masked_value(field: Field, value: u128, mask: u128) -> Option<FindingKind> {
    // Nothing is collected here, because there may be a million entries.
    let is_large = value > field.max();
    let large = is_large.then(|| too_large(field.name().to_string(), value, field.max())).flatten();
    large.or_else(|| (value & !mask != 0).then_some(FindingKind::OutsideMask { field, value, mask }))
}

fn not_allowed(pipe: &Pipe, one: &Match) -> Option<FindingKind> {
    let kind = pipe.kind.of_type();
    let criterion = one.criterion.word().filter(|word| !kind.criteria.contains(word))?;
    Some(FindingKind::CriterionNotAllowed {
        kind: kind.word,
        field: one.field,
        criterion,
        instead: kind.matches,
    })
}

/// The meters a pipe uses, each with the origin to blame in a finding.
pub(super) fn meters_of(pipe: &Pipe) -> Vec<(usize, Origin)> {
    match pipe.monitor.meter {
        Some(SharedUse::Pipe(id)) => vec![(id.index(), pipe.origin)],
        Some(SharedUse::PerEntry) => pipe.entries.meters().map(|(id, origin)| (id.index(), origin)).collect(),
        None => Vec::new(),
    }
}
