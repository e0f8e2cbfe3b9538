//! The packets that were found, and what the interpreter says about them.

use crate::compare::assignments;
use crate::shape::PacketShape;
use crate::solve::Point;
use std::collections::{BTreeMap, BTreeSet};
use weir_oracle::trace::{Lookup, Step};
use weir_oracle::{Effect, Interpreter, Walk};
use weir_program::{Pipe, PipeId, PortId, Program, Verdict};

/// An entry: its pipe, and its position among the pipe's entries.
pub type RowId = (PipeId, usize);

/// What a packet meets in a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Taken {
    /// The packet hits an entry with this action template.
    Hit(u16),
    /// The packet misses.
    Miss,
    /// The packet's group has no target for it, or the packet gets no place among the pipe's flows.
    NoTarget,
}

/// A pipe on the path of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathStep {
    /// The pipe that the packet entered.
    pub pipe: PipeId,
    /// What the packet met in the pipe.
    pub taken: Taken,
}

/// A path through a program: packets that take it meet the same pipes, with the same actions, and end in the
/// same place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    /// The port on which packets of this path arrive.
    pub input: PortId,
    /// The pipes that packets enter, in this order, and what they meet there.
    pub steps: Vec<PathStep>,
    /// Where the path ends.
    pub end: Verdict,
}

/// A packet, and why it was generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The port on which the packet arrives.
    pub input: PortId,
    /// The bytes of the frame, without the FCS.
    pub frame: Vec<u8>,
    /// What the packet shows.
    pub purpose: String,
}

/// The values from which a packet was made.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub shape: PacketShape,
    pub point: Point,
}

/// The packets that were found, and what they reach.
#[derive(Debug)]
pub struct CaseRecord {
    interpreter: Interpreter,
    /// The action template of each entry, by pipe.
    templates: Vec<Vec<u16>>,
    /// The packets that were kept, in the order in which they were found.
    pub cases: Vec<Case>,
    /// The paths that the packets take, each with the position of the first packet.
    pub paths: BTreeMap<Path, usize>,
    /// The entries that the packets hit.
    pub rows: BTreeSet<RowId>,
    known: BTreeSet<(PortId, Vec<u8>)>,
    /// The values of those packets that were made from values, by the position of the packet.
    pub(crate) origins: BTreeMap<usize, Origin>,
}

impl CaseRecord {
    /// Creates a record for a program whose groups have these buckets.
    #[must_use]
    pub fn new(program: &Program, buckets: Vec<Vec<u16>>) -> CaseRecord {
        let templates = |pipe: &Pipe| pipe.entries.iter().map(|entry| entry.template).collect();
        let mut interpreter = Interpreter::new(program, buckets);
        for change in assignments(program) {
            let assigned = interpreter.apply(&change);
            debug_assert!(assigned.is_ok(), "{assigned:?}");
        }
        CaseRecord {
            interpreter,
            templates: program.pipes.iter().map(templates).collect(),
            cases: Vec::new(),
            paths: BTreeMap::new(),
            rows: BTreeSet::new(),
            known: BTreeSet::new(),
            origins: BTreeMap::new(),
        }
    }

    /// Walks a frame without keeping it.
    #[must_use]
    pub fn explain(&self, input: PortId, frame: &[u8]) -> Walk {
        self.interpreter.explain(input, frame, HEADROOM, NOW_NS)
    }

    /// Returns the path of a packet.
    #[must_use]
    pub fn path_of(&self, input: PortId, walk: &Walk) -> Path {
        let mut rows = rows_of(walk).peekable();
        let step = |step: &Step| {
            let hit = rows.next_if(|(pipe, _)| *pipe == step.pipe);
            let taken = match (&step.lookup, hit) {
                (Lookup::Hit(_), Some((pipe, row))) => {
                    Taken::Hit(self.templates[pipe.index()].get(row).copied().unwrap_or_default())
                }
                (Lookup::Miss(_), _) => Taken::Miss,
                (Lookup::Hit(_) | Lookup::NoTarget, _) => Taken::NoTarget,
            };
            PathStep { pipe: step.pipe, taken }
        };
        Path { input, steps: walk.trace.iter().map(step).collect(), end: walk.verdict }
    }

    /// Adds a packet, unless there is one with the same bytes. Returns the packet's walk.
    pub fn add(&mut self, input: PortId, frame: Vec<u8>, purpose: impl FnOnce() -> String) -> Walk {
        let walk = self.explain(input, &frame);
        if self.known.insert((input, frame.clone())) {
            self.rows.extend(rows_of(&walk));
            let at = self.cases.len();
            self.paths.entry(self.path_of(input, &walk)).or_insert(at);
            self.cases.push(Case { input, frame, purpose: purpose() });
        }
        walk
    }
}

impl CaseRecord {
    /// Adds packets that belong together, in their order, even if there are others with the same bytes. Walks
    /// them one after the other, from the state at the start.
    pub(crate) fn add_sequence(&mut self, packets: Vec<(PortId, Vec<u8>, String)>) {
        if packets.is_empty() {
            return;
        }
        let mut interpreter = self.interpreter.clone();
        for ((input, frame, purpose), now_ns) in packets.into_iter().zip((NOW_NS..).step_by(1000)) {
            let walk = interpreter.walk(input, &frame, HEADROOM, now_ns);
            self.rows.extend(rows_of(&walk));
            let (at, path) = (self.cases.len(), self.path_of(input, &walk));
            self.paths.entry(path).or_insert(at);
            self.cases.push(Case { input, frame, purpose });
        }
    }
}

/// Free bytes in front of frames, as workers have.
pub const HEADROOM: usize = weir_packet::HEADROOM as usize;

/// The time of the first packet.
pub const NOW_NS: u64 = 1_000_000_000;

/// Returns the entries that a packet hits.
pub fn rows_of(walk: &Walk) -> impl Iterator<Item = RowId> + '_ {
    walk.effects.iter().filter_map(|effect| match effect {
        Effect::Hit { pipe, row, .. } => Some((*pipe, *row)),
        _ => None,
    })
}
