//! Removes what is never compiled from a random program, so that packets get as far as its FLOW pipes.

use weir_oracle::arbitrary::Choices;
use weir_packet::KeySource;
use weir_program::{Entry, Fill, Forward, GroupChoice, HashInput, Pipe, PipeId, PipeKind, Program};

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
    program.pipes.iter_mut().for_each(tame);
    let root = PipeId(random.below(program.pipes.len()) as u16);
    let last = program.ports.len() - 1;
    program.ports[last].root.iter_mut().for_each(|at| *at = root);
    program
}

fn tame(pipe: &mut Pipe) {
    (pipe.rehash, pipe.too_long) = (false, None);
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

pub fn forward(forward: Forward) -> Forward {
    match forward {
        Forward::App(_) => Forward::InputPort,
        Forward::Flood(_) => Forward::Drop,
        Forward::Tee { next, .. } => Forward::Pipe(next),
        other => other,
    }
}
