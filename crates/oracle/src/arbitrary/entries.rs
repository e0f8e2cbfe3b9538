//! Random entries that fit their pipe.

use super::Choices;
use super::pools::{flow_key, value};
use super::programs::forward;
use weir_packet::Field;
use weir_program::change::EntryKey;
use weir_program::{
    CounterId, Criterion, Entry, EntryMatch, Forward, GroupChoice, GroupId, Learn, MeterId, Origin, Pipe,
    PipeKind, Program, SharedUse,
};

/// Generates the entries of a new pipe, without duplicate keys.
pub(super) fn entries(
    random: &mut Choices,
    program: &Program,
    pipe: &Pipe,
    at: usize,
    pipes: usize,
) -> Vec<Entry> {
    let mut list = Vec::new();
    for key in fixed_keys(random, program, pipe) {
        list.push(entry_for(random, program, pipe, vec![key], (at, pipes)));
    }
    let more = match pipe.kind {
        PipeKind::Hash { .. } => 0,
        PipeKind::Flow { .. } => random.below(3),
        _ => random.between(0, 7),
    };
    for _ in 0..more {
        let one = entry(random, program, pipe, at, pipes);
        if !list.iter().any(|other| EntryKey::of(other) == EntryKey::of(&one)) {
            list.push(one);
        }
    }
    for (number, entry) in list.iter_mut().enumerate() {
        entry.run_time = false;
        entry.origin = Origin(pipe.origin.0 + number as u32 + 1);
    }
    list
}

/// Returns the groups that a pipe may pick from.
fn groups(program: &Program, choice: GroupChoice) -> Vec<GroupId> {
    match choice {
        GroupChoice::One(group) => vec![group],
        GroupChoice::ByMeta(_) => {
            let all = (0..).map(GroupId).zip(&program.groups);
            all.filter(|(_, group)| group.number.is_some()).map(|(id, _)| id).collect()
        }
    }
}

/// Generates a key for each target, sometimes for all but one, and for the default of new flows.
fn fixed_keys(random: &mut Choices, program: &Program, pipe: &Pipe) -> Vec<EntryMatch> {
    let mut rows = |choice: GroupChoice| {
        let mut all = Vec::new();
        for group in groups(program, choice) {
            let targets = program.groups[group.index()].targets.len() as u16;
            let without =
                if random.percent(12) { random.below(usize::from(targets)) as u16 } else { targets };
            all.extend((0..targets).filter(|at| *at != without).map(|target| choice.key(group, target)));
        }
        all
    };
    match pipe.kind {
        PipeKind::Hash { group, .. } => rows(group),
        PipeKind::Flow { learn: Learn::Pin(choice) | Learn::Follow(choice), reverse, .. } => {
            let mut all: Vec<EntryMatch> = rows(choice);
            all.extend(reverse.then_some(EntryMatch::Default));
            all
        }
        PipeKind::Flow { learn: Learn::Default, .. } => vec![EntryMatch::Default],
        _ => Vec::new(),
    }
}

/// Generates an entry that could be added at run time.
pub(super) fn entry(random: &mut Choices, program: &Program, pipe: &Pipe, at: usize, pipes: usize) -> Entry {
    let matches = keys(random, program, pipe);
    entry_for(random, program, pipe, matches, (at, pipes))
}

/// Generates an entry with these matches that could be added at run time. Targets have the action that uses a
/// NAT pool, which is the first action.
fn entry_for(
    random: &mut Choices,
    program: &Program,
    pipe: &Pipe,
    matches: Vec<EntryMatch>,
    (at, pipes): (usize, usize),
) -> Entry {
    let is_target = matches!(matches.first(), Some(EntryMatch::Target(_) | EntryMatch::Member { .. }));
    let template = match pipe.nat {
        Some(_) if is_target => 0,
        Some(_) => random.between(1, pipe.templates.len() - 1),
        None => random.below(pipe.templates.len()),
    };
    let places = pipe.templates[template].places();
    let counter = pipe.monitor.counter == Some(SharedUse::PerEntry);
    let meter = pipe.monitor.meter == Some(SharedUse::PerEntry);
    Entry {
        matches,
        priority: if pipe.kind.of_type().priorities { random.below(3) as u32 } else { 0 },
        template: template as u16,
        values: places.into_iter().map(|place| value(random, place.field)).collect(),
        forward: (pipe.forward == Forward::PerEntry).then(|| forward(random, program, at, pipes)),
        counter: counter.then(|| CounterId(random.below(program.counters.len()) as u16)),
        meter: meter.then(|| own_meter(random, program)),
        run_time: random.percent(80),
        origin: Origin::default(),
    }
}

/// Picks a meter that no other pipe uses: a meter belongs to one pipe, and at most one pipe has meters per
/// entry.
fn own_meter(random: &mut Choices, program: &Program) -> MeterId {
    let taken = |meter: &MeterId| {
        program.pipes.iter().any(|pipe| pipe.monitor.meter == Some(SharedUse::Pipe(*meter)))
    };
    let left: Vec<MeterId> =
        (0..program.meters.len() as u16).map(MeterId).filter(|meter| !taken(meter)).collect();
    random.pick(&left)
}

fn keys(random: &mut Choices, program: &Program, pipe: &Pipe) -> Vec<EntryMatch> {
    let target = |random: &mut Choices, choice: GroupChoice| {
        let group = random.pick(&groups(program, choice));
        choice.key(group, random.below(program.groups[group.index()].targets.len()) as u16)
    };
    match pipe.kind {
        PipeKind::Hash { group, .. } => vec![target(random, group)],
        PipeKind::Flow { learn: Learn::Pin(choice) | Learn::Follow(choice), .. } if random.percent(40) => {
            vec![target(random, choice)]
        }
        PipeKind::Flow { .. } => vec![EntryMatch::Flow(flow_key(random))],
        _ => pipe.matches.iter().filter_map(|one| key(random, one.field, one.criterion)).collect(),
    }
}

fn key(random: &mut Choices, field: Field, criterion: Criterion) -> Option<EntryMatch> {
    let bits = u32::from(field.spec().bits);
    Some(match criterion {
        Criterion::Const { .. } => return None,
        Criterion::PerEntry { mask } => EntryMatch::Value(value(random, field) & mask),
        Criterion::Prefix => {
            let length = random.pick(&[0, 8, bits / 2, bits - 8, bits - 1, bits]).min(bits);
            let mask = if length == 0 { 0 } else { field.max() << (bits - length) & field.max() };
            EntryMatch::Prefix { value: value(random, field) & mask, length: length as u8 }
        }
        Criterion::Masked if random.percent(25) => EntryMatch::Any,
        Criterion::Masked => {
            let mask = super::pools::mask(random, field);
            EntryMatch::Masked { value: value(random, field) & mask, mask }
        }
        Criterion::Range if random.percent(25) => EntryMatch::Any,
        Criterion::Range if field == Field::InputPort => {
            let port = value(random, field) as u16;
            EntryMatch::Range { first: port, last: port }
        }
        Criterion::Range => {
            let (first, last) = random.pick(super::pools::RANGES);
            let max = field.max().min(0xffff) as u16;
            EntryMatch::Range { first: first.min(max), last: last.min(max) }
        }
    })
}
