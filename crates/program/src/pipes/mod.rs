//! Pipe types: the properties of each, a file for its checks, and what survives a swap. Differences between
//! types are resolved here by exhaustive matches; the rest of the model and the configuration take a type's
//! keyword, keys and criteria from its [`Type`]. How an executor looks packets up is its own concern.

mod acl;
mod flow;
mod hash;
mod lpm;
pub mod targets;
mod timeouts;

pub use flow::Learn;
pub use hash::HashInput;
pub use timeouts::Timeouts;

use crate::check::{Finding, FindingKind, entries};
use crate::{Entry, GroupChoice, KeyUse, Pipe, Program};
use weir_packet::{Depth, Field, KeySource};

/// How a pipe looks packets up.
#[derive(Clone, Debug, PartialEq)]
pub enum PipeKind {
    /// Exact match under one mask: a hash table.
    Basic,
    /// Hash to bucket to target; entries are the targets' actions.
    Hash {
        /// What is hashed.
        input: HashInput,
        /// The group whose buckets are used.
        group: GroupChoice,
    },
    /// Exact match on the flow key; entries are written by packets.
    Flow {
        /// The headers from which the key is taken.
        key: KeySource,
        /// The decision that a packet of a new flow writes.
        learn: Learn,
        /// Flows that are idle for longer are removed.
        timeouts: Timeouts,
        /// Whether the first packet of a flow produces a delta.
        first: bool,
        /// Whether the answers to a flow are learnt with the flow; the answers use the pipe's default entry.
        reverse: bool,
    },
    /// Longest prefix match on one field.
    Lpm,
    /// Masks, ranges and priorities per entry.
    Acl,
}

/// Properties that all pipes of a type share.
#[derive(Debug)]
pub struct Type {
    /// The type's YAML keyword.
    pub word: &'static str,
    /// Keywords of the criteria that its matches may have besides a constant.
    pub criteria: &'static [&'static str],
    /// Describes the allowed matches, for the error about another criterion.
    pub matches: &'static str,
    /// Whether its entries have priorities.
    pub priorities: bool,
}

const BASIC: Type = Type {
    word: "basic",
    criteria: &["per_entry"],
    matches: "a value or `per_entry`; LPM pipes have `prefix`, ACL pipes `masked` and `range`",
    priorities: false,
};

/// The smallest default capacity for entries.
const CAPACITY_LEAST: usize = 1024;

impl PipeKind {
    /// One kind of each type, with nothing configured.
    pub const BLANK: [PipeKind; 5] =
        [PipeKind::Basic, hash::BLANK, flow::BLANK, PipeKind::Lpm, PipeKind::Acl];

    /// Returns the kind's type.
    #[must_use]
    pub fn of_type(&self) -> &'static Type {
        match self {
            PipeKind::Basic => &BASIC,
            PipeKind::Hash { .. } => &hash::TYPE,
            PipeKind::Flow { .. } => &flow::TYPE,
            PipeKind::Lpm => &lpm::TYPE,
            PipeKind::Acl => &acl::TYPE,
        }
    }

    /// Returns the keyword of its type.
    #[must_use]
    pub fn word(&self) -> &'static str {
        self.of_type().word
    }

    /// Returns the group whose targets have entries in the pipe.
    #[must_use]
    pub fn group(&self) -> Option<GroupChoice> {
        match self {
            PipeKind::Hash { group, .. } => Some(*group),
            PipeKind::Flow { learn, .. } => learn.group(),
            PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl => None,
        }
    }

    /// Returns the headers whose flow key the pipe's packets use to pick from a group.
    #[must_use]
    pub fn key_source(&self) -> KeySource {
        match self {
            PipeKind::Hash { input, .. } => input.source(),
            PipeKind::Flow { key, .. } => *key,
            PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl => KeySource::Outer,
        }
    }

    /// Whether its flows keep values of actions: a flow that follows a group has no fixed entry whose values
    /// it could keep.
    #[must_use]
    pub fn keeps_values(&self) -> bool {
        matches!(self, PipeKind::Flow { learn, .. } if !matches!(learn, Learn::Follow(_)))
    }

    /// Whether its actions translate the ICMP errors about its flows, too (A20).
    #[must_use]
    pub fn translates(&self) -> bool {
        matches!(self, PipeKind::Flow { key: KeySource::Outer, .. })
    }

    /// Returns the fields that the pipe reads besides those that it matches.
    #[must_use]
    pub fn hashed(&self) -> &[(Field, u128)] {
        if let PipeKind::Hash { input: HashInput::Fields(fields), .. } = self { fields } else { &[] }
    }

    /// Returns the default capacity of a pipe with `written` entries.
    #[must_use]
    pub fn capacity(&self, program: &Program, written: usize) -> u32 {
        let roomy = (written + written / 4).next_power_of_two();
        let room = match self {
            PipeKind::Hash { group, .. } => hash::capacity(program, *group, written),
            PipeKind::Flow { .. } => flow::FLOWS.max(roomy),
            PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl => CAPACITY_LEAST.max(roomy),
        };
        room as u32
    }

    /// Returns the largest number of entries of a pipe with this capacity. The capacity of a FLOW pipe is for
    /// flows; each target has its entry in addition, and the default for new flows has one, too.
    #[must_use]
    pub fn entries_max(&self, program: &Program, capacity: u32) -> usize {
        let groups = self.group().into_iter().flat_map(|choice| targets::groups(program, choice));
        let targets: usize = groups.map(|id| program.groups[id.index()].targets.len()).sum();
        match self {
            PipeKind::Flow { .. } => capacity as usize + targets + 1,
            _ => targets.max(capacity as usize),
        }
    }

    /// Returns how deep the pipe reads besides its matches.
    #[must_use]
    pub fn depth(&self) -> Depth {
        match self {
            PipeKind::Hash { input, .. } => input.depth(),
            PipeKind::Flow { key, .. } => key_depth(*key),
            PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl => Depth::L2,
        }
    }

    /// Returns how the pipe uses the flow keys of `wanted`.
    #[must_use]
    pub fn key_use(&self, wanted: KeySource) -> KeyUse {
        match self {
            PipeKind::Hash { input, .. } => input.key_use(wanted),
            PipeKind::Flow { key, learn, timeouts, .. } if *key == wanted => learn.key_use(*timeouts),
            PipeKind::Flow { .. } | PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl => KeyUse::default(),
        }
    }

    /// Checks the kind itself.
    pub fn check(&self, program: &Program, pipe: &Pipe, kinds: &mut Vec<FindingKind>) {
        match self {
            PipeKind::Hash { input, group } => hash::check(program, input, *group, kinds),
            PipeKind::Flow { .. } => flow::check(program, pipe, kinds),
            PipeKind::Lpm => lpm::check(pipe, kinds),
            PipeKind::Basic | PipeKind::Acl => {}
        }
    }

    /// Checks the key of an entry.
    pub fn fit(&self, program: &Program, pipe: &Pipe, entry: &Entry, kinds: &mut Vec<FindingKind>) {
        match self {
            PipeKind::Basic | PipeKind::Lpm | PipeKind::Acl => entries::fields(pipe, entry, kinds),
            PipeKind::Hash { group, .. } => hash::fit(program, *group, pipe, entry, kinds),
            PipeKind::Flow { learn, .. } => flow::fit(program, *learn, pipe, entry, kinds),
        }
    }

    /// Checks the entries of a pipe against each other.
    pub fn check_entries(&self, program: &Program, pipe: &Pipe, findings: &mut Vec<Finding>) {
        match self {
            PipeKind::Acl => acl::shadowed(pipe, findings),
            // Targets without an entry miss, and other pipes choose then.
            PipeKind::Hash { input: HashInput::Quic, .. } => {}
            PipeKind::Hash { group, .. } => targets::all_there(program, pipe, *group, findings),
            PipeKind::Flow { learn, .. } => flow::all_there(program, pipe, *learn, findings),
            PipeKind::Basic | PipeKind::Lpm => {}
        }
    }

    /// Returns what must stay the same for entries to survive a swap; the group is compared by name.
    #[must_use]
    pub fn shape(&self) -> PipeKind {
        match self {
            PipeKind::Hash { input, group } => {
                PipeKind::Hash { input: input.clone(), group: group.unnumbered() }
            }
            PipeKind::Flow { key, learn, reverse, .. } => PipeKind::Flow {
                key: *key,
                learn: learn.unnumbered(),
                timeouts: Timeouts::NEVER,
                first: false,
                reverse: *reverse,
            },
            same => same.clone(),
        }
    }
}

/// Returns the depth of the flow key of these headers.
#[must_use]
pub fn key_depth(source: KeySource) -> Depth {
    match source {
        KeySource::Outer => Depth::L4,
        KeySource::Inner => Depth::Inner,
    }
}
