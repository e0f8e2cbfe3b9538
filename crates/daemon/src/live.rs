//! `explain --live`: uses the daemon's own program, entries, buckets and flows. The interpreter runs here, on
//! an observer's thread, and the engine in the worker that owns the packet's flow; neither counts anything.
//! Entries are read from a worker, a page at a time, because there may be too many to copy.

use super::arrival;
use super::observer::Snapshot;
use crate::config::coverage_with;
use crate::explain::{Explanation, KernelView, RenderNames};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::cell::{OnceCell, RefCell};
use std::net::IpAddr;
use weir_control::Explain;
use weir_engine::worker::Command;
use weir_oracle::{EntrySource, FlowSource, Interpreter};
use weir_packet::craft::Recipe;
use weir_packet::{FlowKey, HEADROOM, read_hex};
use weir_program::nat::Binding;
use weir_program::snapshot::{FlowSnapshot, KeptOperations, NewFlowTurns};
use weir_program::{Entry, GroupId, PipeId, PortId};

/// Looks up flows in the worker that owns the packet, and reads entries.
struct LiveFlows<'a> {
    now: &'a Snapshot,
    worker: usize,
    /// The bindings that new flows would get on that worker, as in [`weir_engine::worker::FramePrediction`].
    next_bindings: Vec<Vec<Option<Binding>>>,
    new_flows: Vec<NewFlowTurns>,
    /// Why not all entries were read.
    failed: OnceCell<anyhow::Error>,
    /// Flows that were found, and whose packets the kernel handles.
    in_kernel: RefCell<Vec<(PipeId, FlowKey)>>,
}

impl EntrySource for LiveFlows<'_> {
    fn each_entry(&self, pipe: PipeId, each: &mut dyn FnMut(Entry)) {
        if let Err(why) = self.now.each_entry(pipe, each) {
            let _ = self.failed.set(why);
        }
    }
}

impl FlowSource for LiveFlows<'_> {
    fn entries(&self) -> Option<&dyn EntrySource> {
        Some(self)
    }

    fn flow(&self, pipe: PipeId, key: &FlowKey) -> Option<FlowSnapshot> {
        let flow = self.now.ask_one(self.worker, |answer| Command::Flow(pipe, *key, answer)).ok()??;
        self.in_kernel.borrow_mut().extend(flow.in_kernel.then_some((pipe, *key)));
        Some(flow)
    }

    fn kept(&self, pipe: PipeId, key: &FlowKey) -> Option<KeptOperations> {
        self.now.ask_one(self.worker, |answer| Command::Kept(pipe, *key, answer)).ok()?
    }

    fn next_binding(&self, pipe: PipeId, key: &FlowKey, freed: Option<Binding>) -> Option<Binding> {
        let program = &self.now.plan.program;
        let pool = program.nat_pools.get(program.pipes[pipe.index()].nat?.index())?;
        let next = self.next_bindings.get(pipe.index())?;
        // Only the worker knows which of the two is next, and this only matters when the pool is nearly
        // exhausted.
        next.get(pool.slice(key) as usize).copied().flatten().or(freed)
    }

    fn has_room(&self, pipe: PipeId, flows: usize) -> bool {
        let capacity = self.now.plan.program.pipes[pipe.index()].capacity as usize;
        let pipes = self.now.reports.get(self.worker).map(|report| &report.pipes);
        let held = pipes.and_then(|pipes| pipes.get(pipe.index())).map(|pipe| pipe.flows);
        held.is_some_and(|held| held + flows <= capacity)
    }

    fn turn(&self, pipe: PipeId, group: GroupId) -> Option<u64> {
        self.new_flows.get(pipe.index())?.turns.get(group.index()).copied().flatten()
    }

    fn flows_of(&self, pipe: PipeId, group: GroupId, target: u16) -> u64 {
        let groups = &self.now.plan.program.groups;
        let before: usize = groups[..group.index()].iter().map(|group| group.targets.len()).sum();
        self.now.tables.census(pipe).active((before + usize::from(target)) as u32).into()
    }

    fn recalled(&self, pipe: PipeId, group: GroupId, source: IpAddr, now_ns: u64) -> Option<u16> {
        let sources = self.now.tables.census(pipe).sources()?;
        let number = sources.recall(group.index(), source, (now_ns / 1_000_000) as u32)?;
        let groups = &self.now.plan.program.groups;
        let before: usize = groups[..group.index()].iter().map(|group| group.targets.len()).sum();
        u16::try_from(number.checked_sub(before as u32)?).ok()
    }

    fn full_ms(&self, pipe: PipeId) -> Option<u64> {
        self.new_flows.get(pipe.index())?.full_ms.map(u64::from)
    }
}

/// Returns the packet in a request: `packet` (a recipe) or `hex`. A recipe without a destination MAC address
/// gets `to`, if that is known.
pub fn packet(recipe: Option<&str>, hex: Option<&str>, to: Option<[u8; 6]>) -> Result<Vec<u8>> {
    if let Some(text) = recipe {
        let mut recipe: Recipe = text.parse().map_err(|error| anyhow::anyhow!("{error}"))?;
        let says = text.split_whitespace().any(|word| word.starts_with("eth.dst="));
        recipe.eth_dst = to.filter(|_| !says).unwrap_or(recipe.eth_dst);
        return Ok(recipe.build());
    }
    let hex = hex.context("the request needs `packet` or `hex`")?;
    read_hex(hex).context("`hex` must be an even number of hexadecimal digits")
}

/// Returns which frames of a port the kernel handles now, and which of the flows that were looked up it
/// handles; `None` if no port uses the kernel.
fn kernel(now: &Snapshot, input: PortId, flows: Vec<(PipeId, FlowKey)>) -> Result<Option<KernelView>> {
    if !now.plan.uses_kernel() {
        return Ok(None);
    }
    let uses = now.ask_one(0, Command::EntryUses)?;
    let coverage = coverage_with(&now.plan.program, &now.plan.ports, &uses.leads);
    let port = now.kernel().into_iter().nth(input.index()).filter(|port| !port.runs);
    let obstacle = port.map(|port| port.obstacle.unwrap_or_else(|| "its program is not running yet".into()));
    Ok(Some(KernelView { coverage, obstacle, flows }))
}

/// Explains a packet in the running program.
pub fn explain(now: &Snapshot, request: &Explain) -> Result<Value> {
    let mut program = now.plan.program.without_entries();
    // With the current weights: the rows of the GLB director follow from them.
    program.groups = now.tables.groups().to_vec();
    let input = match &request.port {
        Some(name) => program.port_named(name).with_context(|| format!("there is no port `{name}`"))?,
        None if program.ports.is_empty() => bail!(
            "there is no port on which a packet could arrive; for pods of an overlay, use `weir overlay \
             explain`"
        ),
        None => PortId(0),
    };
    let mac = now.plan.ports.get(input.index()).and_then(|port| port.mac);
    let frame = packet(request.packet.as_deref(), request.hex.as_deref(), mac)?;
    let mut worker = now.owners.worker(input, &frame);
    let ids = (0..program.groups.len()).map(|at| GroupId(at as u16));
    let buckets = ids.map(|group| now.slots(group)).collect::<Result<_>>()?;
    let mut interpreter = Interpreter::new(&program, buckets);
    let ask = |worker| now.ask_one(worker, |answer| Command::Probe(input, frame.clone(), answer));
    let mut probe = ask(worker)?;
    // The owner of the frame may depend on entries, which the workers have.
    if let Some(other) = probe.as_ref().map(|probe| probe.worker).filter(|&other| other != worker) {
        (worker, probe) = (other, ask(other)?);
    }
    // Turns advance all the time, so use those of the packet that was probed.
    for (at, turns) in probe.iter().flat_map(|probe| &probe.turns).enumerate() {
        interpreter.set_turns(PipeId(at as u16), *turns);
    }
    let now_ns = now.clock.now_ns();
    let next_bindings = probe.as_ref().map(|probe| probe.next_bindings.clone()).unwrap_or_default();
    let new_flows = probe.as_ref().map(|probe| probe.new_flows.clone()).unwrap_or_default();
    let (failed, in_kernel) = Default::default();
    let flows = LiveFlows { now, worker, next_bindings, new_flows, failed, in_kernel };
    let walk = interpreter.explain_with(input, &frame, usize::from(HEADROOM), now_ns, &flows);
    if let Some(why) = flows.failed.into_inner() {
        return Err(why);
    }
    let kernel = kernel(now, input, flows.in_kernel.into_inner())?;
    let explanation = Explanation { kernel, ..Explanation::new(walk, probe, &frame) };
    let names = RenderNames { program: &program, report: None };
    let mut json = explanation.json(&names, input, &frame);
    let outputs = explanation
        .outputs()
        .into_iter()
        .filter_map(|port| now.obstacles[port.index()].clone())
        .collect::<Vec<_>>();
    let arrival = now.arrivals.get(input.index()).and_then(Option::as_ref);
    let xdp = arrival.and_then(|arrival| arrival::explain(&now.plan, input, arrival, &frame));
    let mut text = String::new();
    if let Some((verdict, line)) = xdp {
        json["xdp"] = verdict;
        text += &line;
    }
    text += &explanation.text(&names, input, &frame);
    let text = outputs.iter().fold(text, |text, why| text + why + "\n");
    json["text"] = json!(text);
    json["obstacles"] = json!(outputs);
    Ok(json)
}
