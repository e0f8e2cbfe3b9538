//! The order of pipes: every forward of the program leads onward in it, and so must every entry added later.

use crate::program::{Forward, PipeId, Program};

/// Returns the position of each pipe. Of the pipes whose predecessors all have a position, the one written
/// first is next.
pub(super) fn places(program: &Program) -> Vec<usize> {
    let edges: Vec<(usize, usize)> = (0..program.pipes.len())
        .flat_map(|from| ways_out(program, from).into_iter().map(move |to| (from, to.index())))
        .collect();
    let mut places: Vec<Option<usize>> = vec![None; program.pipes.len()];
    for place in 0..places.len() {
        let waits = |at: usize| edges.iter().any(|&(from, to)| to == at && places[from].is_none());
        let next = (0..places.len()).find(|&at| places[at].is_none() && !waits(at));
        places[next.expect("the check refuses loops")] = Some(place);
    }
    places.into_iter().flatten().collect()
}

fn ways_out(program: &Program, from: usize) -> Vec<PipeId> {
    let pipe = &program.pipes[from];
    let forwards = pipe.entries.iter().filter_map(|entry| entry.forward).chain([pipe.forward, pipe.miss]);
    forwards.flat_map(|forward| pipes_behind(program, forward)).collect()
}

/// Returns the pipes to which a forward can lead.
pub(super) fn pipes_behind(program: &Program, forward: Forward) -> Vec<PipeId> {
    match forward {
        Forward::Pipe(pipe) | Forward::Tee { next: pipe, .. } => vec![pipe],
        Forward::Group(group) => {
            let targets = program.groups[group.index()].targets.iter();
            targets
                .filter_map(|target| if let Forward::Pipe(pipe) = target.forward { Some(pipe) } else { None })
                .collect()
        }
        _ => Vec::new(),
    }
}
