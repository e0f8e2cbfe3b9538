//! What the numbers in deltas mean, by generation of the program: a delta may be read long after its program
//! was replaced.

use super::OF_PODS;
use super::measuring::Measuring;
use engine::delta::Belonging;
use std::sync::Arc;

/// For the last 256 generations, the measurement and the name of each pipe, and the name of each target.
#[derive(Default)]
pub struct Names {
    by_generation: Vec<Option<Generation>>,
    /// The measurement of flows between pods, and what stands for a pipe's name.
    of_pods: Option<(usize, Arc<str>)>,
}

/// The names of a program.
struct Generation {
    pipes: Vec<Pipe>,
    targets: Vec<Arc<str>>,
}

/// A pipe of a program.
struct Pipe {
    name: Arc<str>,
    /// The position of its present measurement.
    measured: Option<usize>,
}

impl Names {
    /// Takes note of a program's pipes; what they are measured by now holds for those of former programs too.
    pub fn set(&mut self, generation: u64, pipes: &[String], targets: Vec<Arc<str>>, measured: &[Measuring]) {
        self.by_generation.resize_with(256, || None);
        let pipe = |name: &String| Pipe { name: name.as_str().into(), measured: None };
        let pipes = pipes.iter().map(pipe).collect();
        self.by_generation[generation as usize % 256] = Some(Generation { pipes, targets });
        let overlay = |(at, one): (usize, &Measuring)| Some((at, Arc::from(one.overlay()?)));
        self.of_pods = measured.iter().enumerate().find_map(overlay);
        for pipe in self.by_generation.iter_mut().flatten().flat_map(|one| &mut one.pipes) {
            pipe.measured = measured.iter().position(|one| one.has(&pipe.name));
        }
    }

    /// Returns true if it is known what a delta is about.
    pub fn knows(&self, of: Belonging) -> bool {
        let of_program = self.by_generation.get(usize::from(of.generation));
        of == OF_PODS || of_program.is_some_and(Option::is_some)
    }

    /// Returns the position of the measurement that a delta is for, and the name of its pipe.
    pub fn find(&self, of: Belonging) -> Option<(usize, &Arc<str>)> {
        if of == OF_PODS {
            return self.of_pods.as_ref().map(|(at, name)| (*at, name));
        }
        let names = self.by_generation.get(usize::from(of.generation))?.as_ref()?;
        let pipe = names.pipes.get(usize::from(of.pipe))?;
        Some((pipe.measured?, &pipe.name))
    }

    /// Returns the name of the target that a flow was decided for.
    pub fn target(&self, of: Belonging) -> Option<&Arc<str>> {
        self.by_generation.get(usize::from(of.generation))?.as_ref()?.targets.get(of.target as usize)
    }
}
