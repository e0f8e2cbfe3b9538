//! FLOW: exact match on the flow key; packets write the entries, from what the pipe's own entries say.

mod age;
mod ages;
mod check;
mod decided;
mod kept;
mod lookup;
mod migrate;
mod nat;
mod new_flows;
mod observations;
mod pairs;
mod period;
mod reopen;
mod segments;
mod swap;
mod table;
mod takeover;
mod timeouts;

pub use ages::Ages;
pub use check::{all_there, check, fit};
pub use decided::Renumbering;
pub use migrate::Migrants;
pub use new_flows::NewFlowState;
pub use segments::IdleSegment;
pub use table::{Flows, first_targets};
pub use takeover::Record;
pub use timeouts::Timeouts;

use super::{PipeKind, Type};
use crate::program::{GroupChoice, KeyUse};
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
    Pin(GroupChoice),
    /// The group: the flow follows its buckets. If metadata chooses the group, each packet's does.
    Follow(GroupChoice),
}

impl Learn {
    /// Returns the group it learns from.
    #[must_use]
    pub fn group(self) -> Option<GroupChoice> {
        match self {
            Learn::Pin(group) | Learn::Follow(group) => Some(group),
            Learn::Nothing | Learn::Default => None,
        }
    }

    /// Returns the same without the number of its group, which differs between programs.
    pub(crate) fn unnumbered(self) -> Learn {
        match self {
            Learn::Pin(group) => Learn::Pin(group.unnumbered()),
            Learn::Follow(group) => Learn::Follow(group.unnumbered()),
            Learn::Nothing | Learn::Default => self,
        }
    }

    /// Returns which of its pipe's flow keys and hashes it uses.
    pub(super) fn key_use(self, timeouts: Timeouts) -> KeyUse {
        let flags = timeouts.are_by_state();
        let (select, select_some) = (matches!(self, Learn::Follow(_)), matches!(self, Learn::Pin(_)));
        KeyUse { table: true, select, select_some, flags, ..KeyUse::default() }
    }
}
