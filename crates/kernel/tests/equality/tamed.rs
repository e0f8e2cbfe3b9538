//! Removes what is never compiled from a random program, so that packets get further.

use weir_oracle::arbitrary::Choices;
use weir_packet::{Field, KeySource, LevelId};
use weir_program::operation::{Headers, Value};
use weir_program::{
    Encap, Entry, Fill, Forward, GroupChoice, HashInput, Operation, Pipe, PipeId, PipeKind, Program,
};

/// Tames most programs; some stay as they are.
pub fn tamed(mut program: Program, random: &mut Choices) -> Program {
    if random.percent(10) {
        return program;
    }
    for group in &mut program.groups {
        group.no_target = None;
        if group.fill == Fill::Given {
            group.fill = Fill::Maglev;
        }
        let targets: Vec<_> = group.targets.iter().cloned().collect();
        group.targets = targets
            .into_iter()
            .map(|mut target| {
                target.forward = forward(target.forward);
                target
            })
            .collect();
    }
    for pipe in &mut program.pipes {
        tame(pipe);
        if random.percent(80) {
            simplify(pipe);
        }
    }
    let root = PipeId(random.below(program.pipes.len()) as u16);
    let last = program.ports.len() - 1;
    program.ports[last].root.iter_mut().for_each(|at| *at = root);
    program
}

fn tame(pipe: &mut Pipe) {
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

/// Removes the operations that are not compiled, with the values that entries have for them.
fn simplify(pipe: &mut Pipe) {
    let given = |operation: &Operation| operation.numbers().filter(|(_, value, _)| value.is_given()).count();
    let mut entries: Vec<Entry> = pipe.entries.iter().collect();
    for (at, template) in (0..).zip(&mut pipe.templates) {
        let mut kept = Vec::new();
        let (mut first, mut moved) = (0, false);
        for operation in std::mem::take(&mut template.operations) {
            let end = first + given(&operation);
            if !moved && is_compiled(&operation) {
                moved = operation.headers() != Headers::Stay;
                kept.push(first..end);
                template.operations.push(plain(operation));
            }
            first = end;
        }
        for entry in entries.iter_mut().filter(|entry| entry.template == at) {
            let values = std::mem::take(&mut entry.values);
            entry.values = kept.iter().flat_map(|range| values[range.clone()].to_vec()).collect();
        }
    }
    pipe.entries = entries.into();
}

fn is_compiled(operation: &Operation) -> bool {
    let is_plain = |value: Value| matches!(value, Value::Const(_) | Value::PerEntry);
    let is_outer = |field: Field| field.level == LevelId::Outer && field.spec().tunnel.is_none();
    !matches!(operation, Operation::Decap(_))
        && operation.numbers().all(|(_, value, _)| is_plain(value))
        && operation.reads().is_none_or(is_outer)
        && operation.writes().is_none_or(is_outer)
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

fn forward(forward: Forward) -> Forward {
    match forward {
        Forward::App(_) => Forward::InputPort,
        Forward::Flood(_) => Forward::Drop,
        Forward::Tee { next, .. } => Forward::Pipe(next),
        other => other,
    }
}
