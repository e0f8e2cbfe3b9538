//! Removes what is never compiled from a random program, so that packets get as far as its FLOW pipes.

use crate::uncompiled::{forward, tame};
use weir_oracle::arbitrary::Choices;
use weir_program::{Fill, PipeId, Program};

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
        pipe.too_long = None;
        tame(pipe);
    }
    let root = PipeId(random.below(program.pipes.len()) as u16);
    let last = program.ports.len() - 1;
    program.ports[last].root.iter_mut().for_each(|at| *at = root);
    program
}
