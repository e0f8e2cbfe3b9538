//! The meaning of the numbers in deltas, by generation of the program: a delta may be read long after its
//! program was replaced.

use super::measuring::Measuring;
use std::sync::Arc;
use weir_app::agent::OUTSIDE;
use weir_engine::delta::{Belonging, FlowDelta};
use weir_program::{Group, Program, Target};

/// The names of a program's parts, indexed by their numbers in deltas.
#[derive(Default)]
pub struct ProgramNames {
    pipes: Vec<Arc<str>>,
    ports: Vec<Arc<str>>,
    /// The targets of all groups.
    targets: Vec<Arc<str>>,
}

impl ProgramNames {
    /// Returns the names of a program; none if it measures nothing, because there are no deltas then.
    pub fn of(program: &Program) -> ProgramNames {
        if program.pipes.iter().all(|pipe| pipe.monitor.measured.is_none()) {
            return ProgramNames::default();
        }
        let name = |group: &Group, target: &Target| format!("{}/{}", group.name, target.name).into();
        let of_group = |group: &Group| group.targets.iter().map(|one| name(group, one)).collect::<Vec<_>>();
        ProgramNames {
            pipes: program.pipes.iter().map(|pipe| pipe.name.as_str().into()).collect(),
            ports: program.ports.iter().map(|port| port.name.as_str().into()).collect(),
            targets: program.groups.iter().flat_map(of_group).collect(),
        }
    }
}

/// For the last 256 generations, the measurement and the name of each pipe, and the name of each target.
#[derive(Default)]
pub struct PipeNames {
    by_generation: Vec<Option<Generation>>,
    /// The measurement of flows between pods, and the name shown in place of a pipe's.
    of_pods: Option<(usize, Arc<str>)>,
}

/// The names of a program.
struct Generation {
    pipes: Vec<Pipe>,
    ports: Vec<Arc<str>>,
    targets: Vec<Arc<str>>,
}

/// The names that a delta refers to.
#[derive(Clone, Copy)]
pub struct Named<'a> {
    /// The pipe, or the overlay's table of flows.
    pub pipe: &'a Arc<str>,
    /// The target to which the flow's packets were sent.
    pub target: Option<&'a Arc<str>>,
    /// The port on which the flow's first packet arrived.
    pub ingress: Option<&'a Arc<str>>,
}

/// A pipe of a program.
struct Pipe {
    name: Arc<str>,
    /// The position of its current measurement.
    measured: Option<usize>,
}

impl PipeNames {
    /// Records a program's pipes; their current measurements apply to those of previous programs too.
    pub fn set(&mut self, generation: u64, names: ProgramNames, measured: &[Measuring]) {
        let ProgramNames { pipes, ports, targets } = names;
        self.by_generation.resize_with(256, || None);
        let pipes = pipes.into_iter().map(|name| Pipe { name, measured: None }).collect();
        self.by_generation[generation as usize % 256] = Some(Generation { pipes, ports, targets });
        let overlay = |(at, one): (usize, &Measuring)| Some((at, Arc::from(one.overlay()?)));
        self.of_pods = measured.iter().enumerate().find_map(overlay);
        for pipe in self.by_generation.iter_mut().flatten().flat_map(|one| &mut one.pipes) {
            pipe.measured = measured.iter().position(|one| one.has(&pipe.name));
        }
    }

    /// Returns true if the program of a delta is known.
    pub fn knows(&self, of: Belonging) -> bool {
        of == OUTSIDE || self.of(of.generation).is_some()
    }

    /// Returns the position of the measurement that a delta is for, and the names that it refers to.
    pub fn find(&self, delta: &FlowDelta) -> Option<(usize, Named<'_>)> {
        let of = delta.of();
        if of == OUTSIDE {
            let (at, pipe) = self.of_pods.as_ref()?;
            return Some((*at, Named { pipe, target: None, ingress: None }));
        }
        let names = self.of(of.generation)?;
        let Pipe { name, measured } = names.pipes.get(usize::from(of.pipe))?;
        // The numbers in observations may be those of an earlier program.
        let observed = self.of(delta.observed.generation);
        let target = names.targets.get(of.target as usize);
        let target = target.or_else(|| observed?.targets.get(delta.observed.target as usize));
        let ingress = observed.and_then(|names| names.ports.get(usize::from(delta.observed.input)));
        Some(((*measured)?, Named { pipe: name, target, ingress }))
    }

    fn of(&self, generation: u8) -> Option<&Generation> {
        self.by_generation.get(usize::from(generation))?.as_ref()
    }
}
