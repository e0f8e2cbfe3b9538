//! Checks of entries: each fits its pipe, occurs once, and can be hit.

use super::contradiction::{Meant, contradiction, of_field, of_value};
use super::finding::{Finding, FindingKind};
use super::pipes::{dangling, lost, masked_value, one_port, too_large};
use crate::{Criterion, Entry, EntryMatch, Forward, Match, Pipe, Place, Program, SharedUse, Template};
use std::collections::HashSet;
use weir_packet::Field;

pub(super) fn check(program: &Program, pipe: &Pipe, findings: &mut Vec<Finding>) {
    let mut kinds = Vec::new();
    let places: Vec<Vec<Place>> = pipe.templates.iter().map(Template::places).collect();
    let mut entries = pipe.entries.cursor();
    while let Some(entry) = entries.next() {
        fit(program, pipe, entry, places_of(&places, entry), &mut kinds);
        findings.extend(kinds.drain(..).map(|kind| Finding::new(entry.origin, kind)));
    }
    twice(pipe, findings);
    pipe.kind.check_entries(program, pipe, findings);
}

/// Returns the numbers that an entry's action requires, out of those of its pipe's actions.
pub(super) fn places_of<'a>(places: &'a [Vec<Place>], entry: &Entry) -> &'a [Place] {
    places.get(usize::from(entry.template)).map_or(&[], Vec::as_slice)
}

/// Reports everything that an entry has but its pipe does not expect, and vice versa. `places` are the
/// numbers that its action requires.
pub(super) fn fit(
    program: &Program,
    pipe: &Pipe,
    entry: &Entry,
    places: &[Place],
    kinds: &mut Vec<FindingKind>,
) {
    pipe.kind.fit(program, pipe, entry, kinds);
    if entry.priority != 0 && !pipe.kind.of_type().priorities {
        kinds.push(FindingKind::PriorityUnexpected);
    }
    ports(program, pipe, entry, kinds);
    values(pipe, entry, places, kinds);
    shared(program, pipe, entry, kinds);
    forward(program, pipe, entry, kinds);
}

/// Checks that an entry gives a match for each criterion of its pipe.
pub fn fields(pipe: &Pipe, entry: &Entry, kinds: &mut Vec<FindingKind>) {
    // Nothing is collected here, because there may be a million entries.
    let wanted = pipe.varying().count();
    if wanted != entry.matches.len() {
        let (pipe, found) = (pipe.name.clone(), entry.matches.len());
        kinds.push(FindingKind::MatchCount { pipe, wanted, found });
        return;
    }
    for (one, given) in pipe.varying().zip(&entry.matches) {
        kinds.extend(field(one, *given));
    }
    // Where an entry may match `any`, the fields that it does give must be compatible; the other fields are
    // those of the pipe.
    if pipe.varying().any(|one| one.criterion.has_any()) {
        let given = pipe.varying().zip(&entry.matches).filter(|(one, _)| one.criterion.has_any());
        // Whether fragments have ports is a property of the program, which an entry is checked against later.
        contradiction(given.filter_map(|(one, given)| layers(one.field, *given)), true, kinds);
    }
}

fn layers(field: Field, given: EntryMatch) -> Option<(Field, Meant)> {
    match given {
        EntryMatch::Any => None,
        EntryMatch::Masked { value, mask } => Some((field, of_value(field, value, mask))),
        _ => Some((field, of_field(field))),
    }
}

fn field(one: &Match, given: EntryMatch) -> Option<FindingKind> {
    let field = one.field;
    match (one.criterion, given) {
        (Criterion::PerEntry { mask }, EntryMatch::Value(value)) => masked_value(field, value, mask),
        (Criterion::Prefix, EntryMatch::Prefix { value, length }) => prefix(field, value, length),
        (Criterion::Masked, EntryMatch::Masked { value, mask }) => {
            too_large(format!("the mask of {field}"), mask, field.max())
                .or_else(|| masked_value(field, value, mask))
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

/// The name of an entry's kind of match, used in messages.
pub fn found(given: EntryMatch) -> &'static str {
    match given {
        EntryMatch::Value(_) => "a value",
        EntryMatch::Prefix { .. } => "a prefix",
        EntryMatch::Masked { .. } => "a value under a mask",
        EntryMatch::Range { .. } => "a range",
        EntryMatch::Any => "`any`",
        EntryMatch::Target(_) => "a target",
        EntryMatch::Member { .. } => "a target of a group",
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

/// The mask of a prefix; a length beyond the field's width covers the whole field.
pub(super) fn prefix_mask(field: Field, length: u8) -> u128 {
    let rest = field.spec().bits.saturating_sub(length);
    if rest >= 128 { 0 } else { field.max() >> rest << rest }
}

/// Checks that an entry matches `port` with a single port, or with any.
fn ports(program: &Program, pipe: &Pipe, entry: &Entry, kinds: &mut Vec<FindingKind>) {
    for (one, given) in pipe.varying().zip(&entry.matches) {
        if one.field != Field::InputPort {
            continue;
        }
        kinds.extend(match (*given, one.criterion) {
            (EntryMatch::Value(value), Criterion::PerEntry { mask }) => one_port(program, value, mask),
            (EntryMatch::Masked { value, mask }, _) => one_port(program, value, mask),
            (EntryMatch::Range { first, last }, _) if first != last => {
                Some(FindingKind::PortNumber { instead: "write an entry for each port instead of a range" })
            }
            (EntryMatch::Range { first, .. }, _) => one_port(program, first.into(), one.field.max()),
            _ => None,
        });
    }
}

fn values(pipe: &Pipe, entry: &Entry, places: &[Place], kinds: &mut Vec<FindingKind>) {
    if usize::from(entry.template) >= pipe.templates.len() {
        kinds.push(FindingKind::Dangling { what: "action", index: usize::from(entry.template) });
        return;
    }
    let (wanted, found) = (places.len(), entry.values.len());
    if wanted != found {
        kinds.push(FindingKind::ValueCount { wanted, found });
        return;
    }
    let large = places.iter().zip(&entry.values).filter(|(place, value)| **value > place.field.max());
    kinds.extend(
        large.filter_map(|(place, value)| too_large(place.key.to_string(), *value, place.field.max())),
    );
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
    let mut seen = HashSet::with_capacity(pipe.entries.len());
    let mut entries = pipe.entries.cursor();
    while let Some(origin) = entries.next().map(|entry| entry.origin) {
        if !seen.insert(entries.key()) {
            findings.push(Finding::new(origin, FindingKind::EntryTwice { pipe: pipe.name.clone() }));
        }
    }
}
