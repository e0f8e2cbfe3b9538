//! Changes of a running program's entries, and what came of them. Every worker applies the same changes in the same
//! order between breaths; a change counts as done when all have.

use crate::program::{Entry, EntryMatch, GroupId, PipeId};
use thiserror::Error;

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A new entry; an equal key is refused.
    Add {
        /// The pipe.
        pipe: PipeId,
        /// The entry.
        entry: Entry,
    },
    /// New template, values, forward, counter and meter for the entry with the same key; its counts go on.
    Update {
        /// The pipe.
        pipe: PipeId,
        /// The entry.
        entry: Entry,
    },
    /// Takes an entry out.
    Remove {
        /// The pipe.
        pipe: PipeId,
        /// The key of the entry.
        key: EntryKey,
    },
    /// A target's new share of its group's buckets; 0 takes all of them.
    SetWeight {
        /// The group.
        group: GroupId,
        /// The target's position in it.
        target: u16,
        /// The weight.
        weight: u32,
    },
}

/// What tells an entry from the others of its pipe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EntryKey {
    /// Its matches.
    pub matches: Vec<EntryMatch>,
    /// ACL: its priority; 0 otherwise.
    pub priority: u32,
}

impl EntryKey {
    /// The key of an entry.
    #[must_use]
    pub fn of(entry: &Entry) -> EntryKey {
        EntryKey { matches: entry.matches.clone(), priority: entry.priority }
    }
}

/// Why a change was refused; nothing has changed then.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChangeError {
    /// The pipe holds as many entries as it was made for.
    #[error("pipe `{pipe}` is full ({capacity} entries): raise its `capacity` or remove entries")]
    Full {
        /// The pipe's name.
        pipe: String,
        /// Its capacity.
        capacity: u32,
    },
    /// There is an entry with this key.
    #[error("pipe `{pipe}` already has an entry with this key: update or remove it")]
    Exists {
        /// The pipe's name.
        pipe: String,
    },
    /// There is none.
    #[error("pipe `{pipe}` has no entry with this key")]
    NotFound {
        /// The pipe's name.
        pipe: String,
    },
    /// The entry does not fit its pipe.
    #[error("the entry does not fit pipe `{pipe}`: {why}")]
    Unfit {
        /// The pipe's name.
        pipe: String,
        /// What is wrong with it.
        why: String,
    },
    /// No such pipe, group or target.
    #[error("no such {what}")]
    Unknown {
        /// What was looked for.
        what: String,
    },
}
