//! HASH: a hash picks a bucket of a group, the bucket a target, and the target has an entry.

use super::{PipeKind, Type, key_depth, targets};
use crate::check::{FindingKind, too_large};
use crate::{Entry, GroupChoice, GroupId, KeyUse, Pipe, Program};
use weir_packet::{Depth, Field, KeySource};

pub const TYPE: Type = Type {
    word: "hash",
    criteria: &[],
    matches: "a value; its entries are the group's targets",
    priorities: false,
};

pub const BLANK: PipeKind =
    PipeKind::Hash { input: HashInput::Select(KeySource::Outer), group: GroupChoice::One(GroupId(0)) };

/// What a HASH pipe hashes.
#[derive(Clone, Debug, PartialEq)]
pub enum HashInput {
    /// The packet's select hash (5-tuple, as received or as of the last `rehash`).
    Select(KeySource),
    /// The values of these fields under these masks, in this order, with the select hash function.
    Fields(Vec<(Field, u128)>),
    /// The hash delivered by the NIC with the frame, whatever was rewritten since; for a frame without a
    /// hash, the select hash of the outer headers.
    Rss,
    /// Nothing: packets take the buckets in turn, on each worker separately.
    RoundRobin,
    /// Nothing: packets go to the target whose server ID is in their QUIC connection ID, and other packets
    /// miss.
    Quic,
}

impl HashInput {
    /// Returns how deep the input reads.
    pub fn depth(&self) -> Depth {
        match self {
            HashInput::Fields(fields) => {
                fields.iter().map(|(field, _)| field.depth()).max().unwrap_or_default()
            }
            HashInput::Select(source) => key_depth(*source),
            // Not every frame has a NIC's hash.
            HashInput::Rss => key_depth(KeySource::Outer),
            HashInput::RoundRobin => Depth::L2,
            HashInput::Quic => Depth::L4,
        }
    }

    /// Returns the headers whose flow key the pipe hashes, if it hashes one.
    pub fn source(&self) -> KeySource {
        if let HashInput::Select(source) = self { *source } else { KeySource::Outer }
    }

    /// Returns how the input uses the flow keys of `wanted`.
    pub fn key_use(&self, wanted: KeySource) -> KeyUse {
        match self {
            HashInput::Select(source) => KeyUse { select: *source == wanted, ..KeyUse::default() },
            HashInput::Rss => KeyUse { select_unhashed: wanted == KeySource::Outer, ..KeyUse::default() },
            HashInput::Fields(_) | HashInput::RoundRobin | HashInput::Quic => KeyUse::default(),
        }
    }
}

/// Returns the capacity: room for every target of the groups.
pub fn capacity(program: &Program, choice: GroupChoice, written: usize) -> usize {
    let targets: usize =
        targets::groups(program, choice).map(|id| program.groups[id.index()].targets.len()).sum();
    written.max(targets).max(1)
}

pub fn check(program: &Program, input: &HashInput, choice: GroupChoice, kinds: &mut Vec<FindingKind>) {
    targets::check(program, choice, kinds);
    if (input, choice.one()) == (&HashInput::RoundRobin, None) {
        kinds.push(FindingKind::TurnsOfSeveral);
    }
    let by_key = |id: &GroupId| program.groups[id.index()].picks_by_key();
    if *input == HashInput::Quic {
        if !targets::groups(program, choice).any(|id| program.groups[id.index()].quic.is_some()) {
            kinds.push(FindingKind::NoServerIds);
        }
        return;
    }
    if !matches!(input, HashInput::Select(_))
        && let Some(id) = targets::groups(program, choice).find(by_key)
    {
        let (of, group) = (&program.groups[id.index()], program.groups[id.index()].name.clone());
        kinds.push(match of.affinity {
            Some(_) => FindingKind::HashOfSource { group },
            None => FindingKind::HashOfOthers { group },
        });
    }
    let HashInput::Fields(fields) = input else { return };
    if fields.is_empty() {
        kinds.push(FindingKind::NothingHashed);
    }
    if fields.iter().any(|(field, _)| *field == Field::InputPort) {
        kinds.push(FindingKind::PortNumber { instead: "match it, and give each port its own group" });
    }
    for (field, mask) in fields {
        kinds.extend(too_large(format!("the mask of {field}"), *mask, (*field).max()));
    }
}

pub fn fit(program: &Program, choice: GroupChoice, pipe: &Pipe, entry: &Entry, kinds: &mut Vec<FindingKind>) {
    targets::fit(program, Some(choice), pipe, entry, ("the row of a HASH pipe", "a target"), kinds);
}
