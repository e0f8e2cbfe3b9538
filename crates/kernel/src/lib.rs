//! The third executor: compiles a program to eBPF, which runs in XDP, in front of the host's network stack.
//!
//! Each packet is handled by one executor. The compiled program carries out a packet's whole walk, or leaves
//! the packet, unchanged and uncounted, to the batch engine, which starts the walk from the beginning.
//! [`Coverage`] says what compiles, and why the rest does not ([`Why`]).
//!
//! The code is generated in Rust by a small [assembler](asm) and specialised for the program: only headers
//! that the program reads are parsed, masks are constants, and keys are laid out for the maps. The kernel's
//! verifier checks the code like any other eBPF program.

#![deny(unsafe_code)]

mod acl;
pub mod asm;
mod compile;
mod counts;
mod coverage;
mod flows;
mod followed;
mod kept;
mod keyed;
mod layout;
mod replica;
mod routes;
mod samples;
#[allow(unsafe_code, reason = "the system call bpf(2), which rustix lacks")]
mod sys;
mod tables;

pub use coverage::{CHECKSUM_PROTOCOLS, Coverage, Why, leads_of, uses_inner_key, writes_addresses};
pub use flows::{FlowEntry, FlowTable, MappedFlows, NotFollowed};
pub use kept::kept_bytes;
pub use replica::{PortLink, Replica, UnsentFrames};
pub use sys::Refused;

use crate::asm::Code;
use crate::compile::{XDP_DROP, XDP_PASS, XDP_TX};
use crate::sys::Loaded;
use crate::tables::Tables;
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::BorrowedFd;
use weir_packet::DropReason;
use weir_program::change::EntryKey;
use weir_program::replica::TableReplica;
use weir_program::snapshot::Count;
use weir_program::{EntryMatch, GroupId, PipeId, PortId, Program, Verdict};

/// Why a program does not run in the kernel.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A map could not be created or filled.
    #[error("cannot create the kernel's table for {what} ({bytes} bytes): {error}")]
    Map {
        /// Which.
        what: String,
        /// Its size.
        bytes: usize,
        /// The kernel's error.
        error: io::Error,
    },
    /// The kernel refused the program.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// An entry could not be added.
    #[error(transparent)]
    Table(#[from] tables::TableError),
    /// The interfaces' maps could not be changed.
    #[error("cannot set the program of port `{port}`: {error}")]
    Port {
        /// The port.
        port: String,
        /// The kernel's error.
        error: io::Error,
    },
}

/// The outcome of a frame in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameOutcome {
    /// The kernel decided.
    Decided(Verdict),
    /// The frame is left to the batch engine.
    Left(Why),
}

/// A program in the kernel that runs only on given frames: for tests and benchmarks. Frames for any port are
/// sent back.
#[derive(Debug)]
pub struct Executor {
    replica: Replica,
    ports: Vec<PortRuns>,
}

/// The program of a port.
#[derive(Debug)]
struct PortRuns {
    code: Code,
    loaded: Loaded,
    /// Every outcome of frames that arrive at the port, the latest one first.
    outcomes: RefCell<Vec<OutcomeCount>>,
    /// Whether frames that were run elsewhere may have been counted.
    runs_elsewhere: Cell<bool>,
}

/// An outcome, where its frames are counted, and how many had been counted when the count was last read.
#[derive(Clone, Copy, Debug)]
struct OutcomeCount {
    outcome: FrameOutcome,
    place: u32,
    frames: u64,
}

impl Executor {
    /// Compiles a checked program with its entries and loads it. `buckets` has the target of each bucket of
    /// each group; `u16::MAX` means none.
    ///
    /// # Errors
    /// The kernel has no memory for the tables, or refuses a program.
    pub fn load(program: &Program, buckets: &[Vec<u16>]) -> Result<Executor, LoadError> {
        let leads = leads_of(program);
        let coverage = Coverage::of(program, &leads, &vec![true; program.ports.len()]);
        let mut tables = Tables::new((program.clone(), 1), coverage)?;
        for (at, pipe) in program.pipes.iter().enumerate() {
            for entry in pipe.entries.iter() {
                tables.put(PipeId(at as u16), &entry)?;
            }
        }
        tables.write_rules()?;
        for (at, buckets) in buckets.iter().enumerate() {
            tables.publish(GroupId(at as u16), buckets);
        }
        let (maps, exit) = (tables.maps(None), compile::Exit { sockets: None, length_max: 65_535 });
        let mut ports = Vec::new();
        for port in (0..program.ports.len()).map(|at| PortId(at as u16)) {
            let code = tables.compile(&maps, port, &exit);
            let loaded = Loaded::xdp("weir", &code.instructions)?;
            let outcomes = RefCell::new(outcomes(&tables, port));
            ports.push(PortRuns { code, loaded, outcomes, runs_elsewhere: Cell::new(false) });
        }
        let mut replica = Replica::without_links(tables);
        replica.start();
        Ok(Executor { replica, ports })
    }

    /// Returns the parts of the program that compile.
    #[must_use]
    pub fn coverage(&self) -> &Coverage {
        self.replica.coverage()
    }

    /// The tables, for changes and sweeps.
    pub fn replica(&mut self) -> &mut (dyn TableReplica + 'static) {
        &mut self.replica
    }

    /// The length of each port's program, in instructions.
    #[must_use]
    pub fn instructions(&self) -> Vec<usize> {
        self.ports.iter().map(|port| port.code.instructions.len()).collect()
    }

    /// The program of a port.
    #[must_use]
    pub fn code(&self, port: PortId) -> &Code {
        &self.ports[port.index()].code
    }

    /// Runs other instructions in place of a port's program: instructions with a fault, to show that a test
    /// finds the fault.
    ///
    /// # Errors
    /// The kernel refuses the instructions, and the program stays.
    pub fn replace(&mut self, port: PortId, instructions: &[u64]) -> Result<(), Refused> {
        self.ports[port.index()].loaded = Loaded::xdp("weir", instructions)?;
        Ok(())
    }

    /// Stores the program of a port as the first one in an array of programs.
    ///
    /// # Errors
    /// Returns the kernel's error: `EINVAL` if the array is for programs of another kind.
    pub fn put_into(&self, port: PortId, programs: BorrowedFd<'_>) -> io::Result<()> {
        let of = &self.ports[port.index()];
        of.runs_elsewhere.set(true);
        sys::set_program(programs, &of.loaded)
    }

    /// Runs a frame that arrives at a port, and returns the outcome with the frame's bytes.
    ///
    /// # Errors
    /// Returns the kernel's error: `EINVAL` for a frame of less than 14 bytes or more than a page. Or the
    /// program has counted no outcome, or returned another one.
    pub fn run(&self, port: PortId, frame: &[u8]) -> io::Result<(FrameOutcome, Vec<u8>)> {
        let of = &self.ports[port.index()];
        let mut outcomes = of.outcomes.borrow_mut();
        let frames = |one: &OutcomeCount| self.replica.tables.count(one.place).packets;
        if of.runs_elsewhere.get() {
            outcomes.iter_mut().for_each(|one| one.frames = frames(one));
        }
        let ran = of.loaded.run(frame)?;
        let at = outcomes.iter().position(|one| frames(one) != one.frames);
        let at = at.ok_or_else(|| io::Error::other("no outcome is counted"))?;
        outcomes[at].frames = frames(&outcomes[at]);
        outcomes[..=at].rotate_right(1);
        let outcome = outcomes[0].outcome;
        let action = match outcome {
            FrameOutcome::Decided(Verdict::Transmit(_)) => XDP_TX,
            FrameOutcome::Decided(Verdict::Drop(_)) => XDP_DROP,
            FrameOutcome::Decided(_) | FrameOutcome::Left(_) => XDP_PASS,
        };
        if ran.action != action as u32 {
            return Err(io::Error::other(format!(
                "{outcome:?} is counted, and the action is {}",
                ran.action
            )));
        }
        Ok((outcome, ran.bytes))
    }

    /// Hands out the flows that the kernel follows; `None` if no FLOW pipe compiles.
    pub fn take_flows(&mut self) -> Option<FlowTable> {
        self.replica.tables.take_flows()
    }

    /// Returns how flows refer to the entry that they are decided for; `None` if the kernel does not have it.
    #[must_use]
    pub fn flow_entry(&self, pipe: PipeId, matches: &[EntryMatch]) -> Option<FlowEntry> {
        self.replica.tables.flow_entry(pipe, matches)
    }

    /// The count of an entry.
    #[must_use]
    pub fn hits(&self, pipe: PipeId, key: &EntryKey) -> Count {
        let tables = &self.replica.tables;
        let number = tables.number(pipe, key);
        number.map(|number| tables.count(tables.places().entry(pipe, number))).unwrap_or_default()
    }
}

/// Every outcome of frames that arrive at a port.
fn outcomes(tables: &Tables, port: PortId) -> Vec<OutcomeCount> {
    let places = tables.places();
    let ports = (0..tables.program().ports.len()).map(|at| Verdict::Transmit(PortId(at as u16)));
    let drops = DropReason::ALL.iter().map(|reason| Verdict::Drop(*reason));
    let verdicts = ports.chain([Verdict::Kernel(port)]).chain(drops);
    let decided = verdicts.map(|one| (FrameOutcome::Decided(one), places.decided(port, one)));
    let left = Why::ALL.into_iter().map(|why| (FrameOutcome::Left(why), places.left(port, why)));
    decided.chain(left).map(|(outcome, place)| OutcomeCount { outcome, place, frames: 0 }).collect()
}
