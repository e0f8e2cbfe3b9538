//! What of a program the kernel can run, before it runs: for `weir check --kernel` and `weir explain`.

use crate::config::{self, Plan, PortConfig, PortKind};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use weir_config::ports::KernelUse;
use weir_engine::batch::Engine;
use weir_kernel::{Coverage, Executor, FrameOutcome, LoadError, Why, leads_of};
use weir_packet::TableHash;
use weir_program::{Forward, PipeId, PortId, Program, Verdict};

/// What the kernel can run of a program.
pub struct KernelSurvey<'a> {
    program: &'a Program,
    ports: Vec<(String, Option<&'static str>)>,
    coverage: Coverage,
    /// Instructions of each port's program, or why the kernel did not load it.
    loaded: Result<Vec<usize>, LoadError>,
}

impl<'a> KernelSurvey<'a> {
    /// Examines the program of a plan, and loads it if the process may. If none of its ports is one of
    /// AF_XDP, it is examined as if all were.
    #[must_use]
    pub fn of(plan: &'a Plan) -> KernelSurvey<'a> {
        let obstacles: Vec<_> = plan.ports.iter().map(obstacle).collect();
        let is_xdp = |port: &PortConfig| matches!(port.kind, PortKind::Xdp(_));
        let no_xdp = !plan.ports.iter().any(is_xdp);
        let reaches: Vec<bool> = obstacles.iter().map(|obstacle| no_xdp || obstacle.is_none()).collect();
        let coverage = Coverage::of(&plan.program, &leads_of(&plan.program), &reaches);
        let loaded = load(&plan.program).map(|executor| executor.instructions().to_vec());
        let names = plan.ports.iter().map(|port| port.name.clone());
        KernelSurvey { program: &plan.program, ports: names.zip(obstacles).collect(), coverage, loaded }
    }

    /// Returns how many entries of a pipe have each forward and template, and why their packets are left to
    /// the engine.
    fn kinds(&self, id: PipeId) -> Vec<(Forward, u16, usize, Option<Why>)> {
        let pipe = &self.program.pipes[id.index()];
        let mut counts: BTreeMap<(Forward, u16), usize> = BTreeMap::new();
        for entry in pipe.entries.iter() {
            let forward = if pipe.forward == Forward::PerEntry {
                entry.forward.unwrap_or_default()
            } else {
                pipe.forward
            };
            *counts.entry((forward, entry.template)).or_default() += 1;
        }
        let why = |lead| self.coverage.lead(self.program, id, lead);
        counts.into_iter().map(|(lead, count)| (lead.0, lead.1, count, why(lead))).collect()
    }

    /// Returns it as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (name, obstacle) in &self.ports {
            let state = obstacle.unwrap_or("can run the program in the kernel");
            let _ = writeln!(out, "port {name}: {state}");
        }
        for (at, pipe) in self.program.pipes.iter().enumerate() {
            let id = PipeId(at as u16);
            let state = left(self.coverage.pipes[at]);
            let _ = writeln!(out, "pipe {} ({}): {state}", pipe.name, pipe.kind.word());
            if self.coverage.pipes[at].is_some() {
                continue;
            }
            for (forward, template, count, why) in self.kinds(id) {
                let noun = if count == 1 { "entry" } else { "entries" };
                let action =
                    if pipe.templates.len() > 1 { format!("action {template}, ") } else { String::new() };
                let forward = config::write_forward(forward, self.program);
                let _ = writeln!(out, "  {count} {noun} ({action}forward {forward}): {}", left(why));
            }
            if let Some(why) = self.coverage.why_not_forward(self.program, pipe.miss) {
                let _ = writeln!(out, "  misses: {}", left(Some(why)));
            }
        }
        let _ = match &self.loaded {
            Ok(instructions) => {
                let lengths: Vec<String> = self
                    .ports
                    .iter()
                    .zip(instructions)
                    .map(|((name, _), length)| format!("{name} {length}"))
                    .collect();
                writeln!(out, "the verifier accepts it; instructions by port: {}", lengths.join(", "))
            }
            Err(error) => writeln!(out, "it was not loaded: {error}"),
        };
        out
    }

    /// Returns it as JSON: `{ ports: [{ port, obstacle }], pipes: [{ pipe, why, entries: [{ forward,
    /// template, entries, why }] }], instructions: [..] or null, refused }`.
    #[must_use]
    pub fn json(&self) -> Value {
        let why = |why: Option<Why>| why.map(Why::explanation);
        let ports = self.ports.iter().map(|(port, obstacle)| json!({ "port": port, "obstacle": obstacle }));
        let pipe = |(at, pipe): (usize, &weir_program::Pipe)| {
            let kinds = self.kinds(PipeId(at as u16)).into_iter();
            let entries = kinds.map(|(forward, template, entries, left)| {
                let forward = config::write_forward(forward, self.program);
                json!({ "forward": forward, "template": template, "entries": entries, "why": why(left) })
            });
            let entries = entries.collect::<Vec<_>>();
            json!({ "pipe": pipe.name, "why": why(self.coverage.pipes[at]), "entries": entries })
        };
        json!({
            "ports": ports.collect::<Vec<_>>(),
            "pipes": self.program.pipes.iter().enumerate().map(pipe).collect::<Vec<_>>(),
            "instructions": self.loaded.as_ref().ok(),
            "refused": self.loaded.as_ref().err().map(ToString::to_string),
        })
    }
}

fn left(why: Option<Why>) -> String {
    why.map_or_else(|| "compiled".into(), |why| format!("left to the engine: {}", why.explanation()))
}

/// Returns why the kernel can never run the program on a port's frames.
#[must_use]
pub fn obstacle(port: &PortConfig) -> Option<&'static str> {
    let PortKind::Xdp(xdp) = &port.kind else { return Some("it is no AF_XDP port") };
    if xdp.kernel == KernelUse::Off {
        return Some("it has `kernel: off`");
    }
    if port.fault.is_some() {
        return Some("its frames have faults");
    }
    port.trace.is_some().then_some("its frames are recorded")
}

/// Returns why the kernel cannot do what a plan requires (`kernel: require`), with the port's position.
#[must_use]
pub fn unmet(plan: &Plan) -> Option<(PortId, String)> {
    let required =
        |port: &PortConfig| matches!(&port.kind, PortKind::Xdp(xdp) if xdp.kernel == KernelUse::Require);
    let first = plan.ports.iter().position(required)?;
    let reaches: Vec<bool> = plan.ports.iter().map(|port| obstacle(port).is_none()).collect();
    let coverage = Coverage::of(&plan.program, &leads_of(&plan.program), &reaches);
    (first..plan.ports.len()).filter(|&at| required(&plan.ports[at])).find_map(|at| {
        let root = plan.program.ports[at].root?;
        let pipe = || {
            let why = coverage.pipes[root.index()]?;
            Some(format!(
                "pipe `{}` is not compiled: {}",
                plan.program.pipes[root.index()].name,
                why.explanation()
            ))
        };
        let why = obstacle(&plan.ports[at]).map(str::to_string).or_else(pipe)?;
        Some((PortId(at as u16), format!("port `{}` requires the kernel: {why}", plan.ports[at].name)))
    })
}

/// Compiles and loads a program, with all of its ports.
fn load(program: &Program) -> Result<Executor, LoadError> {
    let buckets = Engine::new(program, TableHash::random()).map(|engine| engine.buckets());
    Executor::load(program, &buckets.unwrap_or_default())
}

/// What the kernel does with a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InKernel {
    /// It decides it: verdict and bytes.
    Decides(Verdict, Vec<u8>),
    /// It leaves it to the engine, for this reason.
    Leaves(&'static str),
}

/// Runs a frame in the kernel, with no port involved. `None` if the kernel does not run the program on frames
/// of this port, or if the process may not try.
#[must_use]
pub fn run(plan: &Plan, input: PortId, frame: &[u8]) -> Option<InKernel> {
    let port = &plan.ports[input.index()];
    if !matches!(port.kind, PortKind::Xdp(_)) {
        return None;
    }
    if let Some(obstacle) = obstacle(port) {
        return Some(InKernel::Leaves(obstacle));
    }
    let (outcome, bytes) = load(&plan.program).ok()?.run(input, frame).ok()?;
    Some(match outcome {
        FrameOutcome::Decided(verdict) => InKernel::Decides(verdict, bytes),
        FrameOutcome::Left(why) => InKernel::Leaves(why.explanation()),
    })
}
