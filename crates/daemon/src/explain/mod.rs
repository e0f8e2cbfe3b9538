//! `weir explain`: every pipe that a packet meets, what was compared, what was done, and why the packet went
//! where it did. Both the reference interpreter and the batch engine run the packet; a difference is a bug to
//! report.

mod executor;
mod render;

pub use executor::{Executor, KernelView};
pub use render::{RenderNames, decision};

use crate::config::{Plan, port_obstacle};
use serde_json::{Value, json};
use weir_engine::batch::Engine;
use weir_engine::worker::FramePrediction;
use weir_oracle::{Interpreter, Walk};
use weir_packet::{Batch, DropReason, FRAME_BYTES_MAX, HEADROOM, Pool, Pools, RegionPool, TableHash};
use weir_program::PortId;

/// The explanation of a packet's walk.
pub struct Explanation {
    /// The result of the interpreter.
    pub walk: Walk,
    /// The result of the engine; `None` if the engine could not be queried.
    pub probe: Option<FramePrediction>,
    /// What the kernel can handle; `None` if no port uses it.
    pub kernel: Option<KernelView>,
}

impl Explanation {
    /// Explains a packet in a program that is not running, from its configuration.
    pub fn offline(plan: &Plan, input: PortId, frame: &[u8]) -> anyhow::Result<Explanation> {
        let mut engine = Engine::new(&plan.program, TableHash::random())?;
        let interpreter = Interpreter::new(&plan.program, engine.buckets());
        let walk = interpreter.explain(input, frame, usize::from(HEADROOM), 0);
        let kernel = plan.uses_kernel().then(|| KernelView {
            coverage: plan.coverage(),
            obstacle: plan.ports.get(input.index()).and_then(port_obstacle).map(str::to_string),
            flows: Vec::new(),
        });
        let explanation = Explanation::new(walk, probe(&mut engine, input, frame, plan.chunk()), frame);
        Ok(Explanation { kernel, ..explanation })
    }

    /// Explains a packet from the results of the interpreter and the engine. A frame that does not fit the
    /// engine's buffers never reaches a pipe, although the interpreter has no limit.
    pub fn new(walk: Walk, probe: Option<FramePrediction>, frame: &[u8]) -> Explanation {
        if probe.is_some() || frame.len() <= FRAME_BYTES_MAX {
            return Explanation { walk, probe, kernel: None };
        }
        let verdict = weir_program::Verdict::Drop(DropReason::Oversize);
        let (copies, trace, effects) = (Vec::new(), Vec::new(), Vec::new());
        let bytes = frame.to_vec();
        let walk = Walk { verdict, bytes, copies, trace, effects, limit: None };
        Explanation { walk, probe, kernel: None }
    }

    /// Returns the ports through which the packet and its copies leave.
    pub fn outputs(&self) -> Vec<PortId> {
        let all = self.walk.copies.iter().map(|copy| copy.to).chain([self.walk.verdict]);
        all.filter_map(|to| if let weir_program::Verdict::Transmit(port) = to { Some(port) } else { None })
            .collect()
    }

    /// Returns true if the engine and the interpreter agree.
    pub fn agrees(&self) -> bool {
        let Some(probe) = &self.probe else { return true };
        let dropped = matches!(self.walk.verdict, weir_program::Verdict::Drop(_));
        let ends_alike = probe.verdict == self.walk.verdict && (dropped || probe.bytes == self.walk.bytes);
        ends_alike && probe.copies == self.walk.copies
    }

    /// Returns the explanation as text.
    pub fn text(&self, names: &RenderNames<'_>, input: PortId, frame: &[u8]) -> String {
        let mut text = match self.executor(names, input, frame) {
            Some(Executor::Kernel) => "runs    in the kernel\n".to_string(),
            Some(Executor::Engine(why)) => format!("runs    in the engine: {why}\n"),
            None => String::new(),
        };
        text += &render::walk(names, &self.walk, input, frame);
        if !self.agrees() {
            text += &format!("\nBUG: the engine says otherwise, please report this: {:?}\n", self.probe);
        }
        text
    }

    /// Returns the explanation as JSON.
    pub fn json(&self, names: &RenderNames<'_>, input: PortId, frame: &[u8]) -> Value {
        let mut json = render::json(names, &self.walk, input, frame);
        json["agrees"] = json!(self.agrees());
        match self.executor(names, input, frame) {
            Some(Executor::Kernel) => json["runs"] = json!({ "in": "kernel" }),
            Some(Executor::Engine(why)) => json["runs"] = json!({ "in": "engine", "why": why }),
            None => {}
        }
        json
    }

    /// Returns which executor handles the packet; `None` if no port uses the kernel.
    fn executor(&self, names: &RenderNames<'_>, input: PortId, frame: &[u8]) -> Option<Executor> {
        self.kernel.as_ref().map(|kernel| kernel.executor(names, input, frame, &self.walk))
    }
}

fn probe(engine: &mut Engine, input: PortId, frame: &[u8], chunk: usize) -> Option<FramePrediction> {
    let mut pools = Pools::new();
    pools.add(Pool::Region(RegionPool::new(1, chunk)));
    let mut batch = Batch::new();
    let mut copy = pools.first().take()?;
    if copy.fill(frame).is_err() {
        pools.give(copy);
        return None;
    }
    if let Err(copy) = batch.push(copy) {
        pools.give(copy);
        return None;
    }
    let (turns, next_bindings, new_flows) = (engine.turns(), engine.next_bindings(), engine.new_flows());
    let outcome = engine.probe(&mut batch, input, 0);
    let bytes = batch.frame(0).bytes().to_vec();
    pools.give(batch.take(0));
    let (verdict, copies) = (outcome.verdict(0, input), outcome.copies(0, &bytes));
    Some(FramePrediction { verdict, copies, bytes, worker: 0, turns, next_bindings, new_flows })
}
