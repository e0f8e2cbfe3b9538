//! Agents: work of apps beside the packet path, in threads of its own, such as probing remote nodes or
//! following the kernel's tables. An app ([`App`](crate::App)) has no thread. Work that needs one is done by
//! the agent of its kind. The two share a board, which the agent writes and from which the app answers.
//!
//! For each kind of app that has an agent ([`Kind::agent`](crate::kind::Kind::agent)), a daemon has one for
//! as long as it runs. The daemon calls [`Agent::reader`] once, and then, for the first program and for each
//! one after a reload, [`Agent::prepare`], [`Agent::follow`] and [`Agent::follow_tables`]. Between the first
//! `prepare` and the first `follow`, the daemon starts its workers and takes over from another one, if there
//! is one. When the workers have stopped, the agent is dropped and ends its threads.

use crate::clock::Clock;
use crate::doctor::{Examined, Finding};
use crate::kind::Apps;
use crate::names::{AddressNames, NamesBoard};
use anyhow::Result;
use serde_json::Value;
use std::sync::Arc;
use weir_engine::delta::{Belonging, FlowDelta, NO_DELTA_TARGET};
use weir_engine::ring::DeltaSender;
use weir_program::Program;

/// Marks deltas of flows outside of pipes, which belong to no program. The numbers of pipes are lower.
pub const OUTSIDE: Belonging = Belonging { generation: 0, pipe: u16::MAX, target: NO_DELTA_TARGET };

/// The agent of a kind of app.
pub trait Agent: Send {
    /// Returns the agent's reader of flow deltas, if it has one.
    fn reader(&mut self) -> Option<Box<dyn DeltaReader>> {
        None
    }

    /// Informs the agent of the next program, which no worker runs yet.
    fn prepare(&mut self, next: &Next<'_>) {
        let _ = next;
    }

    /// Makes the agent work for these apps from now on: it continues work that has not changed, stops work
    /// that is no longer wanted, and starts the rest. Its threads start with the privileges of the caller.
    ///
    /// # Errors
    /// A thread cannot be started.
    fn follow(&mut self, apps: &Apps, host: &Host<'_>) -> Result<()> {
        let _ = (apps, host);
        Ok(())
    }

    /// Returns the tables of flows that the agent keeps outside of pipes.
    fn flow_tables(&self) -> Vec<Arc<dyn FlowTable>> {
        Vec::new()
    }

    /// Examines, for `weir doctor`, whether this host has what the agent's threads need. The threads are not
    /// running.
    fn findings(&self, examined: &Examined<'_>) -> Vec<Finding> {
        let _ = examined;
        Vec::new()
    }

    /// Informs the agent of the flow tables of all agents, once [`Agent::follow`] has been called on each.
    fn follow_tables(&mut self, tables: &[Arc<dyn FlowTable>]) {
        let _ = tables;
    }
}

/// A program that the workers will run.
pub struct Next<'a> {
    /// The apps that have written it.
    pub apps: &'a Apps,
    /// The program, checked and complete with what apps have written.
    pub program: &'a Program,
    /// The number of the program, which is greater than that of any earlier program.
    pub generation: u64,
    /// The number of workers that will run it.
    pub workers: usize,
    /// The names of addresses.
    pub names: &'a NamesBoard,
}

/// What the daemon offers to agents.
pub struct Host<'a> {
    /// The clock that workers and agents share, by which flow deltas are timed.
    pub clock: Clock,
    /// Opens a ring for deltas of flows outside of pipes ([`OUTSIDE`]). The readers of all agents get them.
    /// The ring is closed by dropping the sender.
    pub open_ring: &'a dyn Fn() -> Result<DeltaSender>,
}

/// Reads the deltas of all flows, on the collector's thread.
pub trait DeltaReader: Send {
    /// Returns whether the reader currently reads deltas. Otherwise it gets none.
    fn is_reading(&mut self, now_ns: u64) -> bool;

    /// Reads deltas, and does other work that is due. Called at least every 64 ms while it is reading, even
    /// without deltas. `now_ns` is on the workers' clock.
    fn read(&mut self, deltas: &[FlowDelta], now_ns: u64);

    /// Makes the reader give up a part of its work, because deltas arrive faster than they are read. Returns
    /// false if there is nothing left to give up.
    fn shed(&mut self) -> bool;

    /// Ends the reader, because there will be no more deltas.
    fn finish(self: Box<Self>, now_ns: u64);
}

/// A table of flows outside of pipes, which is shown and measured like the flows of a pipe.
pub trait FlowTable: Send + Sync {
    /// Returns the name that is used in place of a pipe's ([`flow_table`](crate::kind::flow_table)).
    fn name(&self) -> &str;

    /// Returns the flows in `sets` sets starting from `from`, as rows of `weir show flows` with these
    /// names of addresses, and the set at which the next page begins.
    fn page(&self, from: u32, sets: u32, names: &AddressNames) -> (Vec<Value>, Option<u32>);

    /// Returns how many rows all pages have.
    fn count(&self) -> usize;

    /// Makes all flows export their counts every `period_ms` milliseconds; with 0, only when they end.
    fn export_every(&self, period_ms: u64);
}
