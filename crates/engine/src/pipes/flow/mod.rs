//! FLOW: exact match on the flow key; packets write the entries, from what the pipe's own entries say.

mod age;
mod check;
mod decided;
mod kept;
mod lookup;
mod swap;
mod table;
mod timeouts;

pub use check::{all_there, check, fit};
pub use table::Flows;
pub use timeouts::Timeouts;

use super::{PipeKind, Type};
use crate::program::{GroupId, KeyUse};
use packet::KeySource;

pub const TYPE: Type =
    Type { word: "flow", criteria: &[], matches: "a value; its key is the flow key", priorities: false };

pub const BLANK: PipeKind = PipeKind::Flow {
    key: KeySource::Outer,
    learn: Learn::Nothing,
    timeouts: Timeouts::NEVER,
    first: false,
    reverse: false,
};

/// Default capacity for flows.
pub const FLOWS: usize = 65_536;

/// What the first packet of a flow writes into a FLOW pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learn {
    /// Nothing: only entries that were configured or added at run time hit.
    Nothing,
    /// A reference to the pipe's default entry ([`crate::program::EntryMatch::Default`]): flows are counted
    /// and tracked.
    Default,
    /// The target given by the group's buckets: the flow is pinned to it, whatever happens to the buckets.
    Pin(GroupId),
    /// The group: the flow follows its buckets.
    Follow(GroupId),
}

impl Learn {
    /// Returns the group it learns from.
    #[must_use]
    pub fn group(self) -> Option<GroupId> {
        match self {
            Learn::Pin(group) | Learn::Follow(group) => Some(group),
            Learn::Nothing | Learn::Default => None,
        }
    }

    /// Returns the same with another group.
    #[must_use]
    pub fn of(self, group: GroupId) -> Learn {
        match self {
            Learn::Pin(_) => Learn::Pin(group),
            Learn::Follow(_) => Learn::Follow(group),
            Learn::Nothing | Learn::Default => self,
        }
    }

    /// Returns which of its pipe's flow keys and hashes it uses.
    pub(super) fn key_use(self, timeouts: Timeouts) -> KeyUse {
        let flags = timeouts.are_by_state();
        KeyUse { table: true, select: self.group().is_some(), flags, ..KeyUse::default() }
    }
}
