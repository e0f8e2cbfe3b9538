//! Changes of a running program's entries, and what came of them. Every worker applies the same changes in the same
//! order between breaths; a change counts as done when all have.

use crate::program::{Entry, EntryMatch, Fill, Group, GroupId, PipeId, Program};
use std::sync::Arc;
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
    /// New targets for buckets of a group that is filled by hand ([`Fill::Given`]); later moves of a bucket replace one
    /// that still waits. A bucket without a target, and one that was never used, moves at once. Every worker carries
    /// out its own moves, looking when a packet meets the bucket, before it is sent, and about every millisecond.
    MoveBuckets {
        /// The group.
        group: GroupId,
        /// Bucket and target; [`table::NO_TARGET`] takes the target away.
        moves: Arc<[(u32, u16)]>,
        /// A bucket moves as soon as nothing has used it for so long, nanoseconds; 0: at once.
        idle_gap_ns: u64,
        /// At the latest after so long, nanoseconds; then it counts as moved busy.
        wait_max_ns: u64,
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

    /// The key of an entry with one match.
    #[must_use]
    pub fn one(given: EntryMatch) -> EntryKey {
        EntryKey { matches: vec![given], priority: 0 }
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
    /// The group's buckets are not filled like that.
    #[error("the buckets of group `{group}` {why}")]
    Filled {
        /// The group's name.
        group: String,
        /// How they are filled, and what to do instead.
        why: &'static str,
    },
    /// No such pipe, group or target.
    #[error("no such {what}")]
    Unknown {
        /// What was looked for.
        what: String,
    },
}

impl Change {
    /// Why the program's groups refuse the change; entries are not looked at.
    ///
    /// # Errors
    /// Unknown groups, buckets and targets, and buckets that are filled in another way.
    pub(crate) fn fits_groups(&self, program: &Program) -> Result<(), ChangeError> {
        let unknown = |what: String| Err(ChangeError::Unknown { what });
        let (Change::SetWeight { group, .. } | Change::MoveBuckets { group, .. }) = self else { return Ok(()) };
        let Some(Group { name, fill, size, targets, .. }) = program.groups.get(group.index()) else {
            return unknown("group".into());
        };
        let filled = |why| Err(ChangeError::Filled { group: name.clone(), why });
        match self {
            Change::SetWeight { .. } if *fill == Fill::Given => {
                filled("are given one by one, weights have no part in it: move buckets")
            }
            Change::SetWeight { target, .. } if usize::from(*target) >= targets.len() => unknown("target".into()),
            Change::MoveBuckets { .. } if *fill != Fill::Given => filled("follow its weights: change those"),
            Change::MoveBuckets { moves, .. } => match moves.iter().find(|one| one.0 >= *size) {
                Some((bucket, _)) => unknown(format!("bucket {bucket} of group `{name}`")),
                None => {
                    let known = |target: u16| target == table::NO_TARGET || usize::from(target) < targets.len();
                    let lost = moves.iter().find(|one| !known(one.1));
                    lost.map_or(Ok(()), |(_, target)| unknown(format!("target {target} of group `{name}`")))
                }
            },
            _ => Ok(()),
        }
    }
}
