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

pub mod asm;
mod compile;
mod coverage;
mod layout;
#[allow(unsafe_code, reason = "the system call bpf(2), which rustix lacks")]
mod sys;

pub use coverage::{Coverage, Why};
pub use sys::{Ran, Refused};

use crate::compile::{Input, Maps, XDP_DROP, XDP_PASS, XDP_TX};
use crate::layout::Counts;
use crate::sys::{Loaded, Map, MapKind};
use std::io;
use weir_packet::DropReason;
use weir_program::snapshot::Count;
use weir_program::{GroupChoice, PipeId, PipeKind, PortId, Program, Verdict};

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
}

/// What became of a frame in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel decided.
    Decided(Verdict),
    /// The frame is left to the batch engine.
    Left(Why),
}

/// The state of a program in the kernel: its tables, and a compiled program for each port.
#[derive(Debug)]
pub struct Executor {
    coverage: Coverage,
    counts: Counts,
    /// The maps that programs refer to, which live as long as they do.
    _tables: Vec<Map>,
    counted: Map,
    processors: usize,
    ports: Vec<Loaded>,
    instructions: Vec<usize>,
}

impl Executor {
    /// Compiles a checked program with its entries and loads it. `buckets` has the target of each bucket of
    /// each group; `u16::MAX` means none. Frames for other ports than their own are sent back, as a test run
    /// needs it.
    ///
    /// # Errors
    /// The kernel has no memory for the tables, or refuses a program.
    pub fn load(program: &Program, buckets: &[Vec<u16>]) -> Result<Executor, LoadError> {
        let coverage = Coverage::of(program);
        let room: Vec<usize> = program.pipes.iter().map(|pipe| pipe.entries.len()).collect();
        let counts = Counts::new(program, &room);
        let processors = sys::processors().map_err(|error| map_error("counts", 0, error))?;
        let counted = create("counts", MapKind::PerCpuArray, 4, 16, counts.total())?;
        let mut pipes = Vec::new();
        for at in 0..program.pipes.len() {
            pipes.push(table(program, &coverage, &counts, PipeId(at as u16))?);
        }
        let groups = program.groups.iter().zip(buckets).map(|(group, buckets)| {
            let bytes: Vec<u8> = buckets.iter().flat_map(|target| target.to_ne_bytes()).collect();
            single(&format!("group {}", group.name), &bytes)
        });
        let groups: Vec<Map> = groups.collect::<Result<_, _>>()?;
        let maps = Maps {
            pipes: pipes.iter().map(Map::fd).collect(),
            groups: groups.iter().map(Map::fd).collect(),
            counts: counted.fd(),
            devices: None,
        };
        let (mut ports, mut instructions) = (Vec::new(), Vec::new());
        for port in (0..program.ports.len()).map(|at| PortId(at as u16)) {
            let input = Input { program, coverage: &coverage, counts: &counts, maps: &maps, port, leave: XDP_PASS };
            let code = compile::compile(&input);
            instructions.push(code.len());
            ports.push(Loaded::xdp("weir", &code)?);
        }
        pipes.extend(groups);
        Ok(Executor { coverage, counts, _tables: pipes, counted, processors, ports, instructions })
    }

    /// What of the program compiles.
    #[must_use]
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// The length of each port's program, in instructions.
    #[must_use]
    pub fn instructions(&self) -> &[usize] {
        &self.instructions
    }

    /// Runs a frame that arrives at a port, and returns the outcome with the frame's bytes.
    ///
    /// # Errors
    /// Returns the kernel's error: `EINVAL` for a frame of less than 14 bytes or more than a page.
    pub fn run(&self, port: PortId, frame: &[u8]) -> io::Result<(Outcome, Vec<u8>)> {
        let before = self.outcomes()?;
        let ran = self.ports[port.index()].run(frame, 1)?;
        let after = self.outcomes()?;
        let changed = before.iter().zip(&after).position(|(before, after)| before.1 != after.1);
        let outcome = changed.map(|at| after[at].0).ok_or_else(|| io::Error::other("no outcome is counted"))?;
        let action = match outcome {
            Outcome::Decided(Verdict::Transmit(_)) => XDP_TX,
            Outcome::Decided(Verdict::Drop(_)) => XDP_DROP,
            Outcome::Decided(_) | Outcome::Left(_) => XDP_PASS,
        };
        assert_eq!(ran.action, action as u32, "what is counted is what is done: {outcome:?}");
        Ok((outcome, ran.bytes))
    }

    /// Measures a frame: nanoseconds per run.
    ///
    /// # Errors
    /// As for [`Executor::run`].
    pub fn time(&self, port: PortId, frame: &[u8], repeat: u32) -> io::Result<u32> {
        self.ports[port.index()].run(frame, repeat).map(|ran| ran.ns)
    }

    /// Every outcome with the number of frames that had it.
    fn outcomes(&self) -> io::Result<Vec<(Outcome, u64)>> {
        let mut all = Vec::new();
        let ports = 0..self.ports.len();
        for at in ports {
            let verdict = Verdict::Transmit(PortId(at as u16));
            all.push((Outcome::Decided(verdict), self.counts.port(at)));
        }
        all.push((Outcome::Decided(Verdict::Kernel(PortId(0))), self.counts.kernel()));
        for reason in DropReason::ALL {
            all.push((Outcome::Decided(Verdict::Drop(*reason)), self.counts.dropped(*reason)));
        }
        for why in Why::ALL {
            all.push((Outcome::Left(why), self.counts.left(why)));
        }
        all.into_iter().map(|(outcome, place)| Ok((outcome, self.count(place)?.packets))).collect()
    }

    /// The count of an entry, by its position in its pipe.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn hits(&self, pipe: PipeId, entry: usize) -> io::Result<Count> {
        self.count(self.counts.entry(pipe, entry))
    }

    /// The misses of a pipe.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn misses(&self, pipe: PipeId) -> io::Result<Count> {
        self.count(self.counts.misses(pipe))
    }

    /// A shared counter.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn counter(&self, counter: usize) -> io::Result<Count> {
        self.count(self.counts.shared(counter))
    }

    fn count(&self, place: u32) -> io::Result<Count> {
        let mut values = vec![0_u8; 16 * self.processors];
        self.counted.read(&place.to_ne_bytes(), &mut values)?;
        let mut count = Count::default();
        for value in values.chunks_exact(16) {
            let word = |at: usize| u64::from_ne_bytes(value[at..at + 8].try_into().expect("8 bytes"));
            count.packets += word(0);
            count.bytes += word(8);
        }
        Ok(count)
    }
}

fn map_error(what: &str, bytes: usize, error: io::Error) -> LoadError {
    LoadError::Map { what: what.to_string(), bytes, error }
}

fn create(what: &str, kind: MapKind, key: usize, value: usize, entries: u32) -> Result<Map, LoadError> {
    let error = |error| map_error(what, (key + value) * entries as usize, error);
    Map::create(kind, key, value, entries).map_err(error)
}

/// An array with one value, which programs address directly.
fn single(what: &str, value: &[u8]) -> Result<Map, LoadError> {
    let mut value = value.to_vec();
    value.resize(value.len().max(8), 0);
    let map = create(what, MapKind::Array, 4, value.len(), 1)?;
    map.update(&[0; 4], &value).map_err(|error| map_error(what, value.len(), error))?;
    Ok(map)
}

/// The table of a pipe: its entries by key, or the records of its group's targets in order.
fn table(program: &Program, coverage: &Coverage, counts: &Counts, id: PipeId) -> Result<Map, LoadError> {
    let pipe = &program.pipes[id.index()];
    let what = format!("pipe {}", pipe.name);
    if coverage.pipes[id.index()].is_some() {
        return single(&what, &[]);
    }
    let bytes = layout::record_bytes(pipe);
    let record =
        |at: usize, entry: &weir_program::Entry| layout::record(program, coverage, counts, (id, at), entry);
    if let PipeKind::Hash { group: GroupChoice::One(group), .. } = pipe.kind {
        let targets = program.groups[group.index()].targets.len();
        let mut absent = vec![0; bytes];
        absent[layout::TEMPLATE as usize..][..4].copy_from_slice(&layout::ABSENT.to_ne_bytes());
        let mut all = absent.repeat(targets.max(1));
        for (at, entry) in pipe.entries.iter().enumerate() {
            if let [weir_program::EntryMatch::Target(target)] = entry.matches[..] {
                all[usize::from(target) * bytes..][..bytes].copy_from_slice(&record(at, &entry));
            }
        }
        return single(&what, &all);
    }
    let kind = if pipe.kind == PipeKind::Lpm { MapKind::LpmTrie } else { MapKind::Hash };
    let map = create(&what, kind, layout::key_bytes(pipe), bytes, pipe.capacity.max(1))?;
    for (at, entry) in pipe.entries.iter().enumerate() {
        let done = map.update(&layout::key(pipe, &entry), &record(at, &entry));
        done.map_err(|error| map_error(&what, bytes, error))?;
    }
    Ok(map)
}
