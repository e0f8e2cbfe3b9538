//! Removes from a random pipe what is never compiled, whatever the test.

use weir_packet::{Field, KeySource, LevelId};
use weir_program::operation::{Headers, Value};
use weir_program::{Encap, Entry, Forward, GroupChoice, HashInput, Operation, Pipe, PipeKind, Template};

/// Removes meters, apps and hashes that the kernel does not have, and flows.
pub fn tame(pipe: &mut Pipe) {
    pipe.rehash = false;
    (pipe.monitor.meter, pipe.monitor.drop_red, pipe.monitor.measured) = (None, false, None);
    (pipe.forward, pipe.miss) = (forward(pipe.forward), forward(pipe.miss));
    let mut entries: Vec<Entry> = pipe.entries.iter().collect();
    for entry in &mut entries {
        entry.meter = None;
        entry.forward = entry.forward.map(forward);
    }
    match &mut pipe.kind {
        // A pipe that every packet hits.
        PipeKind::Flow { .. } => {
            entries.truncate(1);
            entries.iter_mut().for_each(|entry| entry.matches.clear());
            (pipe.kind, pipe.nat) = (PipeKind::Basic, None);
        }
        PipeKind::Hash { input, group: GroupChoice::One(_) }
            if matches!(input, HashInput::RoundRobin | HashInput::Quic) =>
        {
            *input = HashInput::Select(KeySource::Outer);
        }
        PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl | PipeKind::Hash { .. } => {}
    }
    pipe.entries = entries.into();
}

/// Leads elsewhere instead of to an app, or to several ports.
pub fn forward(forward: Forward) -> Forward {
    match forward {
        Forward::App(_) => Forward::InputPort,
        Forward::Flood(_) => Forward::Drop,
        Forward::Tee { next, .. } => Forward::Pipe(next),
        other => other,
    }
}

/// Keeps some operations of an action, with the values that entries have for them.
pub fn keep<'a>(
    template: &mut Template,
    entries: impl Iterator<Item = &'a mut Entry>,
    mut is_kept: impl FnMut(usize, &Operation) -> bool,
) {
    let (mut kept, mut first) = (Vec::new(), 0);
    for (at, operation) in std::mem::take(&mut template.operations).into_iter().enumerate() {
        let end = first + operation.numbers().filter(|(_, value, _)| value.is_given()).count();
        if is_kept(at, &operation) {
            kept.push(first..end);
            template.operations.push(operation);
        }
        first = end;
    }
    for entry in entries {
        let values = std::mem::take(&mut entry.values);
        entry.values = kept.iter().flat_map(|range| values[range.clone()].to_vec()).collect();
    }
}

/// Removes the operations that are not compiled; `keeps` says whether the pipe's flows keep values.
pub fn simplify(pipe: &mut Pipe, keeps: bool) {
    let mut entries: Vec<Entry> = pipe.entries.iter().collect();
    for (at, template) in (0..).zip(&mut pipe.templates) {
        let mut moved = false;
        keep(template, entries.iter_mut().filter(|entry| entry.template == at), |_, operation| {
            let kept = !moved && is_compiled(operation, keeps);
            moved |= kept && operation.headers() != Headers::Stay;
            kept
        });
        template.operations.iter_mut().for_each(|operation| *operation = plain(*operation));
    }
    pipe.entries = entries.into();
}

fn is_compiled(operation: &Operation, keeps: bool) -> bool {
    let has_value = |value: Value| matches!(value, Value::Const(_) | Value::PerEntry) || keeps;
    let is_outer = |field: Field| field.level == LevelId::Outer && field.spec().tunnel.is_none();
    operation.numbers().all(|(_, value, _)| has_value(value)) && operation.writes().is_none_or(is_outer)
}

/// The same operation without what is never compiled.
fn plain(operation: Operation) -> Operation {
    match operation {
        Operation::Encap(encap) => {
            Operation::Encap(Encap { udp_checksum: false, second_chance: false, ..encap })
        }
        other => other,
    }
}
