//! What a run has exercised.

use std::collections::{BTreeMap, BTreeSet};
use weir_oracle::Walk;
use weir_oracle::arbitrary::Coverage;
use weir_program::{Fill, HashInput, Operation, PipeKind, Program};

/// What a run has seen.
#[derive(Default, Debug)]
pub struct RunStatistics {
    /// Packets that the kernel decided.
    pub decided: u64,
    /// Packets left to the engine, by reason.
    pub left: BTreeMap<String, u64>,
    /// The longest program, in instructions.
    pub instructions: usize,
    /// In how many programs each thing was part of a decided walk.
    pub programs: BTreeMap<String, u64>,
}

/// What the decided packets of one program have met.
#[derive(Default)]
pub struct ProgramMet {
    coverage: Coverage,
    more: BTreeSet<String>,
}

impl ProgramMet {
    /// Notes a decided packet.
    pub fn walk(&mut self, program: &Program, walk: &Walk) {
        self.coverage.walk(program, walk);
        for step in &walk.trace {
            let pipe = &program.pipes[step.pipe.index()];
            let picks = step.pick.iter().chain(step.forward.iter().filter_map(|one| one.pick.as_ref()));
            for pick in picks {
                self.more.insert(format!("fill:{}", fill(program.groups[pick.group.index()].fill)));
                self.more.extend(pick.foreign.then(|| "picked:foreign".to_string()));
                self.more.extend(pick.source.map(|_| "picked:source".to_string()));
            }
            if let PipeKind::Hash { input: HashInput::Select(source), .. } = pipe.kind {
                self.more.insert(format!("select:{source:?}"));
            }
            for done in &step.operations {
                if let Operation::Encap(encap) = done.operation {
                    let version = if encap.ipv6 { 6 } else { 4 };
                    self.more.insert(format!("encap:{}:over:{version}", encap.kind));
                    self.more.extend(encap.src_bits.map(|_| format!("encap:src_bits:{version}")));
                }
            }
        }
    }

    /// Adds one to everything that this program's packets have met.
    pub fn add_to(self, seen: &mut RunStatistics) {
        for name in self.coverage.met().keys().chain(&self.more) {
            *seen.programs.entry(name.clone()).or_default() += 1;
        }
    }
}

fn fill(fill: Fill) -> &'static str {
    match fill {
        Fill::Maglev => "maglev",
        Fill::Wants => "wants",
        Fill::Given => "given",
        Fill::Katran(..) => "katran",
        Fill::Glb(..) => "glb",
    }
}
