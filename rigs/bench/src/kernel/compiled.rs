//! The bench's use of the eBPF compiler: a scenario's program, loaded.

use crate::engine::assign_buckets;
use anyhow::{Context, Result, anyhow, ensure};
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use weir_engine::batch::Engine;
use weir_kernel::{Executor, FlowTable, FrameOutcome};
use weir_packet::{FlowKey, PROTOCOL_UDP, TableHash};
use weir_papers::HandFlow;
use weir_program::{EntryMatch, GroupId, Pipe, PipeId, PipeKind, PortId, Program};

/// The port on which frames arrive.
const IN: PortId = PortId(0);

/// A program that the kernel runs.
pub struct Compiled(Executor);

impl Compiled {
    /// Compiles and loads a program, which knows these flows.
    pub fn load(program: &Program, flows: &[HandFlow]) -> Result<Compiled> {
        let mut executor = Executor::load(program, &buckets(program))?;
        if let Some(mut table) = executor.take_flows() {
            let is_flow = |pipe: &Pipe| matches!(pipe.kind, PipeKind::Flow { .. });
            let pipe = program.pipes.iter().position(is_flow).expect("a FLOW pipe compiles");
            for flow in flows {
                follow(&executor, &mut table, PipeId(pipe as u16), flow)?;
            }
        }
        Ok(Compiled(executor))
    }

    /// Returns why a frame is left to the batch engine, if it is.
    pub fn left(&self, frame: &[u8]) -> Result<Option<&'static str>> {
        Ok(match self.0.run(IN, frame)?.0 {
            FrameOutcome::Left(why) => Some(why.explanation()),
            FrameOutcome::Decided(_) => None,
        })
    }

    /// Puts the program of the port on which frames arrive in the first place of an array.
    pub fn put_into(&self, array: BorrowedFd<'_>) -> io::Result<()> {
        self.0.put_into(IN, array)
    }
}

/// Lets the kernel follow a flow, of which no packet has arrived yet.
fn follow(executor: &Executor, table: &mut FlowTable, pipe: PipeId, flow: &HandFlow) -> Result<()> {
    let [source, destination] = flow.addresses.map(IpAddr::V4);
    let [sport, dport] = flow.ports;
    let key = FlowKey::new(source, destination, PROTOCOL_UDP, (sport, dport), None);
    let member = EntryMatch::Member { group: GroupId(0), target: flow.target };
    let mut entries = [EntryMatch::Target(flow.target), member].into_iter();
    let entry = entries.find_map(|one| executor.flow_entry(pipe, &[one])).context("no such target")?;
    let slot = table.insert(pipe, &key, entry, &[]).map_err(|why| anyhow!("{key:?}: {why:?}"))?;
    let is_followed = table.pending(slot).is_some_and(|mark| table.try_activate(mark));
    ensure!(is_followed, "{key:?} is not followed");
    Ok(())
}

/// Returns the target of each bucket of each group, as the engine fills them.
pub fn buckets(program: &Program) -> Vec<Vec<u16>> {
    let mut engine = Engine::new(program, TableHash::new([3, 5])).expect("the scenarios' programs are sound");
    assign_buckets(program, &mut engine);
    engine.buckets()
}
