//! Removes from a random pipe what is never compiled, whatever the test.

use weir_packet::KeySource;
use weir_program::{Entry, Forward, GroupChoice, HashInput, Pipe, PipeKind};

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
