//! Changes of a running program's entries. Every worker applies the same changes in the same order between
//! breaths; a change is complete when all workers have applied it.

use crate::buckets::BucketTable;
use crate::check::WEIGHT_MAX;
use crate::program::{Entry, EntryMatch, Fill, Group, GroupId, PipeId, Target};
use std::sync::Arc;
use thiserror::Error;

/// A change.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Adds an entry. Refused if there is one with an equal key.
    Add {
        /// The pipe.
        pipe: PipeId,
        /// The entry.
        entry: Entry,
    },
    /// Replaces template, values, forward, counter and meter of the entry with the same key, whose counts
    /// continue.
    Update {
        /// The pipe.
        pipe: PipeId,
        /// The entry.
        entry: Entry,
    },
    /// Removes an entry.
    Remove {
        /// The pipe.
        pipe: PipeId,
        /// The key of the entry.
        key: EntryKey,
    },
    /// Changes a target's share of its group's buckets; 0 takes all of them. An engine that gets this fills
    /// the buckets itself; who runs workers sends them [`Change::Publish`] instead
    /// ([`crate::buckets::GroupTables::publish`]).
    SetWeight {
        /// The group.
        group: GroupId,
        /// The target's position in the group.
        target: u16,
        /// The weight.
        weight: u32,
    },
    /// Replaces a group's targets, of which only weights differ, and the buckets filled for them.
    Publish {
        /// The group.
        group: GroupId,
        /// Its targets with their new weights.
        targets: Arc<[Target]>,
        /// Its buckets.
        table: Arc<BucketTable>,
    },
    /// Assigns targets to given buckets ([`Fill::Given`]); a later move of a bucket replaces a pending one. A
    /// bucket that has no target or was never used moves at once. Every worker carries out its own moves:
    /// before it sends a packet that meets the bucket, and about every millisecond.
    MoveBuckets {
        /// The group.
        group: GroupId,
        /// Buckets and their targets; [`table::NO_TARGET`] takes the target away.
        moves: Arc<[(u32, u16)]>,
        /// A bucket moves once it has been unused this long, in nanoseconds; 0 means at once.
        idle_gap_ns: u64,
        /// A bucket moves after this long even if it is in use (and counts as moved busy), in nanoseconds.
        wait_max_ns: u64,
    },
}

/// Identifies an entry in its pipe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EntryKey {
    /// Its matches.
    pub matches: Vec<EntryMatch>,
    /// ACL: its priority; 0 otherwise.
    pub priority: u32,
}

impl EntryKey {
    /// Returns the key of an entry.
    #[must_use]
    pub fn of(entry: &Entry) -> EntryKey {
        EntryKey { matches: entry.matches.clone(), priority: entry.priority }
    }

    /// Returns the key of an entry with a single match.
    #[must_use]
    pub fn one(given: EntryMatch) -> EntryKey {
        EntryKey { matches: vec![given], priority: 0 }
    }
}

/// Why a change was refused; nothing has changed then.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChangeError {
    /// The pipe has as many entries as it has capacity for.
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
    /// There is no entry with this key.
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
    /// The group's buckets are filled in another way.
    #[error("the buckets of group `{group}` {why}")]
    Filled {
        /// The group's name.
        group: String,
        /// How they are filled, and what to do instead.
        why: &'static str,
    },
    /// The weight is too large.
    #[error("a weight of group `{group}` is a number from 0 to {max}, not {weight}")]
    Weight {
        /// The group's name.
        group: String,
        /// The weight.
        weight: u32,
        /// The largest one.
        max: u32,
    },
    /// There is no such pipe, group or target.
    #[error("no such {what}")]
    Unknown {
        /// What was looked for.
        what: String,
    },
}

impl Change {
    /// Checks the change against a program's groups, but not its entries.
    ///
    /// # Errors
    /// Groups, buckets or targets are unknown, or the buckets are filled in another way.
    pub(crate) fn fits_groups(&self, groups: &[Group]) -> Result<(), ChangeError> {
        let unknown = |what: String| Err(ChangeError::Unknown { what });
        let (Change::SetWeight { group, .. }
        | Change::Publish { group, .. }
        | Change::MoveBuckets { group, .. }) = self
        else {
            return Ok(());
        };
        let Some(Group { name, fill, size, targets, .. }) = groups.get(group.index()) else {
            return unknown("group".into());
        };
        let filled = |why| Err(ChangeError::Filled { group: name.clone(), why });
        match self {
            Change::SetWeight { .. } if *fill == Fill::Given => {
                filled("are given one by one, weights have no part in it: move buckets")
            }
            Change::SetWeight { target, .. } if usize::from(*target) >= targets.len() => {
                unknown("target".into())
            }
            Change::SetWeight { weight, .. } if *weight > WEIGHT_MAX => {
                Err(ChangeError::Weight { group: name.clone(), weight: *weight, max: WEIGHT_MAX })
            }
            Change::Publish { .. } if *fill == Fill::Given => filled("are given one by one: move them"),
            Change::Publish { targets: others, .. } if others.len() != targets.len() => {
                unknown("target".into())
            }
            Change::Publish { table, .. } if table.buckets().slots().len() != *size as usize => {
                unknown("bucket".into())
            }
            Change::MoveBuckets { .. } if *fill != Fill::Given => filled("follow its weights: change those"),
            Change::MoveBuckets { moves, .. } => match moves.iter().find(|one| one.0 >= *size) {
                Some((bucket, _)) => unknown(format!("bucket {bucket} of group `{name}`")),
                None => {
                    let known =
                        |target: u16| target == table::NO_TARGET || usize::from(target) < targets.len();
                    let lost = moves.iter().find(|one| !known(one.1));
                    lost.map_or(Ok(()), |(_, target)| unknown(format!("target {target} of group `{name}`")))
                }
            },
            _ => Ok(()),
        }
    }
}
