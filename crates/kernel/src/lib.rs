//! The third executor: compiles a program to eBPF, which runs in XDP, in front of the host's network stack.
//!
//! Each packet is executed by one executor. The compiled program carries out a packet's whole walk, or leaves
//! the packet, unchanged and uncounted, to the batch engine, which starts from the beginning. [`Coverage`]
//! says what compiles, and why the rest does not ([`Why`]).
//!
//! The code is generated in Rust by a small [assembler](asm) and specialised for the program: only headers
//! that the program reads are found, masks are constants, and keys are laid out for the maps. The kernel's
//! verifier checks it like any other eBPF program.

#![deny(unsafe_code)]

mod acl;
pub mod asm;
mod compile;
mod counts;
mod coverage;
mod keyed;
mod layout;
mod replica;
mod routes;
#[allow(unsafe_code, reason = "the system call bpf(2), which rustix lacks")]
mod sys;
mod tables;

pub use coverage::{CHECKSUM_PROTOCOLS, Coverage, Why, leads_of, uses_inner_key, writes_addresses};
pub use replica::{PortLink, Replica, UnsentFrames};
pub use sys::Refused;

use crate::compile::{XDP_DROP, XDP_PASS, XDP_TX};
use crate::sys::Loaded;
use crate::tables::Tables;
use std::io;
use std::os::fd::BorrowedFd;
use weir_packet::DropReason;
use weir_program::change::EntryKey;
use weir_program::snapshot::Count;
use weir_program::{GroupId, PipeId, PortId, Program, Verdict};

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

/// What became of a frame in the kernel.
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
    tables: Tables,
    ports: Vec<Loaded>,
    instructions: Vec<usize>,
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
        let mut tables = Tables::new(program.clone(), coverage)?;
        for (at, pipe) in program.pipes.iter().enumerate() {
            for entry in pipe.entries.iter() {
                tables.put(PipeId(at as u16), &entry)?;
            }
        }
        tables.write_rules()?;
        for (at, buckets) in buckets.iter().enumerate() {
            tables.publish(GroupId(at as u16), buckets);
        }
        let (mut ports, mut instructions) = (Vec::new(), Vec::new());
        let (maps, exit) = (tables.maps(None), compile::Exit { sockets: None, length_max: 65_535 });
        for port in (0..program.ports.len()).map(|at| PortId(at as u16)) {
            let code = tables.compile(&maps, port, &exit);
            instructions.push(code.len());
            ports.push(Loaded::xdp("weir", &code)?);
        }
        Ok(Executor { tables, ports, instructions })
    }

    /// What of the program compiles.
    #[must_use]
    pub fn coverage(&self) -> &Coverage {
        self.tables.coverage()
    }

    /// The length of each port's program, in instructions.
    #[must_use]
    pub fn instructions(&self) -> &[usize] {
        &self.instructions
    }

    /// Makes the program of a port the first one in an array of programs.
    ///
    /// # Errors
    /// Returns the kernel's error: `EINVAL` if the array is for programs of another kind.
    pub fn put_into(&self, port: PortId, programs: BorrowedFd<'_>) -> io::Result<()> {
        sys::set_program(programs, &self.ports[port.index()])
    }

    /// Runs a frame that arrives at a port, and returns the outcome with the frame's bytes.
    ///
    /// # Errors
    /// Returns the kernel's error: `EINVAL` for a frame of less than 14 bytes or more than a page.
    pub fn run(&self, port: PortId, frame: &[u8]) -> io::Result<(FrameOutcome, Vec<u8>)> {
        let before = self.outcomes(port);
        let ran = self.ports[port.index()].run(frame)?;
        let after = self.outcomes(port);
        let changed = before.iter().zip(&after).position(|(before, after)| before.1 != after.1);
        let outcome =
            changed.map(|at| after[at].0).ok_or_else(|| io::Error::other("no outcome is counted"))?;
        let action = match outcome {
            FrameOutcome::Decided(Verdict::Transmit(_)) => XDP_TX,
            FrameOutcome::Decided(Verdict::Drop(_)) => XDP_DROP,
            FrameOutcome::Decided(_) | FrameOutcome::Left(_) => XDP_PASS,
        };
        assert_eq!(ran.action, action as u32, "the counted outcome is not the action: {outcome:?}");
        Ok((outcome, ran.bytes))
    }

    /// Every outcome of frames that arrive at a port, with their number.
    fn outcomes(&self, port: PortId) -> Vec<(FrameOutcome, u64)> {
        let places = self.tables.places();
        let packets = |place| self.tables.count(place).packets;
        let ports = (0..self.ports.len()).map(|at| Verdict::Transmit(PortId(at as u16)));
        let drops = DropReason::ALL.iter().map(|reason| Verdict::Drop(*reason));
        let verdicts = ports.chain([Verdict::Kernel(port)]).chain(drops);
        let decided = verdicts.map(|one| (FrameOutcome::Decided(one), packets(places.decided(port, one))));
        let left = Why::ALL.into_iter().map(|why| (FrameOutcome::Left(why), packets(places.left(port, why))));
        decided.chain(left).collect()
    }

    /// The count of an entry.
    #[must_use]
    pub fn hits(&self, pipe: PipeId, key: &EntryKey) -> Count {
        let number = self.tables.number(pipe, key);
        number.map(|number| self.tables.count(self.tables.places().entry(pipe, number))).unwrap_or_default()
    }

    /// The misses of a pipe.
    #[must_use]
    pub fn misses(&self, pipe: PipeId) -> Count {
        self.tables.count(self.tables.places().misses(pipe))
    }

    /// A shared counter.
    #[must_use]
    pub fn counter(&self, counter: usize) -> Count {
        self.tables.count(self.tables.places().shared(counter))
    }
}
