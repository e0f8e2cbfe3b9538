//! Entries: do they fit their pipe, is each there once, can each be hit?

use super::finding::{Finding, FindingKind};
use super::pipes::{contradiction, dangling, layers_of, layers_of_value, lost, masked_value, too_large};
use super::{SHADOW_MAX, learn_group};
use crate::program::{
    Criterion, Entry, EntryMatch, Forward, GroupId, Learn, Match, Pipe, PipeKind, Program, SharedUse,
};
use packet::Field;
use std::collections::HashMap;

pub(super) fn check(program: &Program, pipe: &Pipe, findings: &mut Vec<Finding>) {
    let mut kinds = Vec::new();
    for entry in &pipe.entries {
        fit(program, pipe, entry, &mut kinds);
        findings.extend(kinds.drain(..).map(|kind| Finding::new(entry.origin, kind)));
    }
    twice(pipe, findings);
    match pipe.kind {
        PipeKind::Acl => shadowed(pipe, findings),
        PipeKind::Hash { group, .. } => targets(program, pipe, group, findings),
        PipeKind::Flow { learn, .. } => learnt(program, pipe, learn, findings),
        PipeKind::Basic | PipeKind::Lpm => {}
    }
}

/// All that an entry gives that its pipe does not want, and the other way round.
pub(super) fn fit(program: &Program, pipe: &Pipe, entry: &Entry, kinds: &mut Vec<FindingKind>) {
    match pipe.kind {
        PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl => fields(pipe, entry, kinds),
        PipeKind::Hash { group, .. } => row(program, pipe, entry, Some(group), kinds),
        PipeKind::Flow { learn, .. } => row(program, pipe, entry, learn_group(learn), kinds),
    }
    if entry.priority != 0 && pipe.kind != PipeKind::Acl {
        kinds.push(FindingKind::PriorityUnexpected);
    }
    values(pipe, entry, kinds);
    shared(program, pipe, entry, kinds);
    forward(program, pipe, entry, kinds);
}

fn fields(pipe: &Pipe, entry: &Entry, kinds: &mut Vec<FindingKind>) {
    let wanted: Vec<&Match> = varying(pipe).collect();
    if wanted.len() != entry.matches.len() {
        let (pipe, wanted, found) = (pipe.name.clone(), wanted.len(), entry.matches.len());
        kinds.push(FindingKind::MatchCount { pipe, wanted, found });
        return;
    }
    for (one, given) in wanted.iter().zip(&entry.matches) {
        kinds.extend(field(one, *given));
    }
    if pipe.kind == PipeKind::Acl {
        let layers = wanted.iter().zip(&entry.matches).filter_map(|(one, given)| layers(one.field, *given));
        contradiction(layers, kinds);
    }
}

/// The matches of a pipe that its entries fill in.
pub(super) fn varying(pipe: &Pipe) -> impl Iterator<Item = &Match> {
    pipe.matches.iter().filter(|one| !matches!(one.criterion, Criterion::Const { .. }))
}

fn layers(field: Field, given: EntryMatch) -> Option<(Field, u32)> {
    match given {
        EntryMatch::Any => None,
        EntryMatch::Masked { value, mask } => Some((field, layers_of_value(field, value, mask))),
        _ => Some((field, layers_of(field))),
    }
}

fn field(one: &Match, given: EntryMatch) -> Option<FindingKind> {
    let field = one.field;
    match (one.criterion, given) {
        (Criterion::PerEntry { mask }, EntryMatch::Value(value)) => masked_value(field, value, mask),
        (Criterion::Prefix, EntryMatch::Prefix { value, length }) => prefix(field, value, length),
        (Criterion::Masked, EntryMatch::Masked { value, mask }) => {
            too_large(format!("the mask of {field}"), mask, field.max()).or_else(|| masked_value(field, value, mask))
        }
        (Criterion::Range, EntryMatch::Range { first, last }) if first > last => {
            Some(FindingKind::RangeEmpty { field, first, last })
        }
        (Criterion::Range, EntryMatch::Range { last, .. }) => {
            too_large(field.name().to_string(), u128::from(last), field.max())
        }
        (Criterion::Masked | Criterion::Range, EntryMatch::Any) => None,
        (criterion, given) => {
            let wanted = match criterion {
                Criterion::PerEntry { .. } | Criterion::Const { .. } => "a value",
                Criterion::Prefix => "a prefix",
                Criterion::Masked => "a value under a mask, or `any`",
                Criterion::Range => "a range, or `any`",
            };
            Some(FindingKind::MatchKind { place: format!("`{field}`"), wanted, found: found(given) })
        }
    }
}

fn found(given: EntryMatch) -> &'static str {
    match given {
        EntryMatch::Value(_) => "a value",
        EntryMatch::Prefix { .. } => "a prefix",
        EntryMatch::Masked { .. } => "a value under a mask",
        EntryMatch::Range { .. } => "a range",
        EntryMatch::Any => "`any`",
        EntryMatch::Target(_) => "a target",
        EntryMatch::Flow(_) => "a flow",
        EntryMatch::Default => "`default`",
    }
}

fn prefix(field: Field, value: u128, length: u8) -> Option<FindingKind> {
    let bits = field.spec().bits;
    if length > bits {
        return Some(FindingKind::PrefixTooLong { field, length, bits });
    }
    masked_value(field, value, prefix_mask(field, length))
}

/// The mask of a prefix; a length beyond the field's is taken as all of it.
pub(super) fn prefix_mask(field: Field, length: u8) -> u128 {
    let rest = field.spec().bits.saturating_sub(length);
    if rest >= 128 { 0 } else { field.max() >> rest << rest }
}

/// The one match of an entry of a HASH or FLOW pipe.
fn row(program: &Program, pipe: &Pipe, entry: &Entry, group: Option<GroupId>, kinds: &mut Vec<FindingKind>) {
    let &[given] = entry.matches.as_slice() else {
        let (pipe, found) = (pipe.name.clone(), entry.matches.len());
        kinds.push(FindingKind::MatchCount { pipe, wanted: 1, found });
        return;
    };
    let flow = matches!(pipe.kind, PipeKind::Flow { .. });
    match given {
        EntryMatch::Target(target) if group.is_some() => {
            let targets = group.and_then(|id| program.groups.get(id.index())).map_or(0, |group| group.targets.len());
            kinds.extend(lost("target", usize::from(target), targets));
        }
        EntryMatch::Flow(_) | EntryMatch::Default if flow => {}
        other => {
            let (place, wanted) = match (flow, group) {
                (false, _) => ("the row of a HASH pipe", "a target"),
                (true, Some(_)) => ("the row of a FLOW pipe", "a flow, a target, or `default`"),
                (true, None) => ("the row of a FLOW pipe", "a flow, or `default`"),
            };
            kinds.push(FindingKind::MatchKind { place: place.to_string(), wanted, found: found(other) });
        }
    }
}

fn values(pipe: &Pipe, entry: &Entry, kinds: &mut Vec<FindingKind>) {
    let Some(template) = pipe.templates.get(usize::from(entry.template)) else {
        kinds.push(FindingKind::Dangling { what: "action", index: usize::from(entry.template) });
        return;
    };
    let (wanted, found) = (pipe.values_wanted(entry.template), entry.values.len());
    if wanted != found {
        kinds.push(FindingKind::ValueCount { wanted, found });
        return;
    }
    if wanted > 0 {
        let named = template.places().into_iter().zip(&entry.values);
        kinds.extend(named.filter_map(|(place, value)| too_large(place.key.to_string(), *value, place.field.max())));
    }
}

fn shared(program: &Program, pipe: &Pipe, entry: &Entry, kinds: &mut Vec<FindingKind>) {
    let counter = pipe.monitor.counter == Some(SharedUse::PerEntry);
    let meter = pipe.monitor.meter == Some(SharedUse::PerEntry);
    kinds.extend(given("counter", counter, entry.counter.is_some()));
    kinds.extend(given("meter", meter, entry.meter.is_some()));
    kinds.extend(given("forward", pipe.forward == Forward::PerEntry, entry.forward.is_some()));
    kinds.extend(entry.counter.and_then(|id| lost("counter", id.index(), program.counters.len())));
    kinds.extend(entry.meter.and_then(|id| lost("meter", id.index(), program.meters.len())));
}

fn given(what: &'static str, wanted: bool, found: bool) -> Option<FindingKind> {
    match (wanted, found) {
        (true, false) => Some(FindingKind::PerEntryMissing { what }),
        (false, true) => Some(FindingKind::PerEntryUnexpected { what }),
        _ => None,
    }
}

fn forward(program: &Program, pipe: &Pipe, entry: &Entry, kinds: &mut Vec<FindingKind>) {
    match entry.forward {
        Some(Forward::PerEntry) if pipe.forward == Forward::PerEntry => {
            kinds.push(FindingKind::PerEntryMissing { what: "forward" });
        }
        Some(Forward::Tee { .. }) => kinds.push(FindingKind::EntryCopies),
        Some(forward) => kinds.extend(dangling(program, forward)),
        None => {}
    }
}

fn twice(pipe: &Pipe, findings: &mut Vec<Finding>) {
    let mut seen = HashMap::with_capacity(pipe.entries.len());
    for entry in &pipe.entries {
        if seen.insert((entry.matches.as_slice(), entry.priority), ()).is_some() {
            findings.push(Finding::new(entry.origin, FindingKind::EntryTwice { pipe: pipe.name.clone() }));
        }
    }
}

/// ACL entries that a better one covers. Every pair is compared, so pipes above [`SHADOW_MAX`] entries are not looked at.
fn shadowed(pipe: &Pipe, findings: &mut Vec<Finding>) {
    if pipe.entries.len() > SHADOW_MAX {
        return;
    }
    let mut order: Vec<usize> = (0..pipe.entries.len()).collect();
    order.sort_by_key(|&at| pipe.entries[at].priority);
    for (rank, &at) in order.iter().enumerate() {
        let entry = &pipe.entries[at];
        let better = order[..rank].iter().find(|&&better| covers(&pipe.entries[better], entry));
        let Some(&by) = better else { continue };
        let priority = pipe.entries[by].priority;
        // Equal keys are told as such.
        if pipe.entries[by].matches != entry.matches || priority != entry.priority {
            findings.push(Finding::new(entry.origin, FindingKind::Shadowed { by: by + 1, priority }));
        }
    }
}

fn covers(better: &Entry, entry: &Entry) -> bool {
    better.matches.len() == entry.matches.len()
        && better.matches.iter().zip(&entry.matches).all(|(wide, narrow)| covers_field(*wide, *narrow))
}

fn covers_field(wide: EntryMatch, narrow: EntryMatch) -> bool {
    match (wide, narrow) {
        (EntryMatch::Any, _) => true,
        (EntryMatch::Masked { value, mask }, EntryMatch::Masked { value: inner, mask: finer }) => {
            mask & !finer == 0 && inner & mask == value
        }
        (EntryMatch::Range { first, last }, EntryMatch::Range { first: from, last: to }) => first <= from && to <= last,
        _ => false,
    }
}

/// Each target of the group needs its entry.
fn targets(program: &Program, pipe: &Pipe, group: GroupId, findings: &mut Vec<Finding>) {
    let Some(group) = program.groups.get(group.index()) else { return };
    for (at, target) in group.targets.iter().enumerate() {
        if !pipe.entries.iter().any(|entry| entry.matches == [EntryMatch::Target(at as u16)]) {
            let (pipe_name, target) = (pipe.name.clone(), target.name.clone());
            let kind = FindingKind::TargetWithoutEntry { pipe: pipe_name, target, group: group.name.clone() };
            findings.push(Finding::new(pipe.origin, kind));
        }
    }
}

fn learnt(program: &Program, pipe: &Pipe, learn: Learn, findings: &mut Vec<Finding>) {
    match learn {
        Learn::Pin(group) | Learn::Follow(group) => targets(program, pipe, group, findings),
        Learn::Default if !pipe.entries.iter().any(|entry| entry.matches == [EntryMatch::Default]) => {
            findings.push(Finding::new(pipe.origin, FindingKind::NoDefaultEntry));
        }
        Learn::Default | Learn::Nothing => {}
    }
}
