//! Changes to a running program's entries. Every worker applies the same changes in the same order between
//! breaths; a change is complete when all workers have applied it.
//!
//! Several changes can form a batch ([`Changes`]), which is applied as a whole or not at all.

use crate::buckets::BucketTable;
use crate::check::WEIGHT_MAX;
use crate::{CounterId, Entry, EntryMatch, Fill, Group, GroupId, PipeId, Target};
use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::slice::from_ref;
use std::sync::Arc;
use thiserror::Error;

/// A change.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Adds an entry. The change is refused if an entry with an equal key exists.
    Add {
        /// The pipe.
        pipe: PipeId,
        /// The entry.
        entry: Entry,
    },
    /// Updates template, values, forward, counter and meter of the entry with the same key, whose counts
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
    /// Changes a target's share of its group's buckets; with 0, the target loses all buckets. An engine that
    /// gets this fills the buckets itself; code that runs workers sends them [`Change::Publish`] instead
    /// ([`crate::buckets::GroupTables::publish`]).
    SetWeight {
        /// The group.
        group: GroupId,
        /// The target's position in the group.
        target: u16,
        /// The weight.
        weight: u32,
    },
    /// Changes the shares of several targets, each once; either all are changed or none. The buckets are
    /// filled once.
    SetWeights {
        /// The group.
        group: GroupId,
        /// Positions of targets in the group, and their weights.
        weights: Arc<[(u16, u32)]>,
    },
    /// Replaces a group's targets, and the buckets filled for them. The number of places stays the same;
    /// weights may differ, vacant places may be taken, and other places may become vacant. The number of
    /// buckets may only change if they are filled as Maglev does ([`Fill::Maglev`]).
    Publish {
        /// The group.
        group: GroupId,
        /// The group's targets with their new weights.
        targets: Arc<[Target]>,
        /// Its buckets.
        table: Arc<BucketTable>,
    },
    /// Names counters, which start from 0 again.
    NameCounters(Arc<[(CounterId, String)]>),
    /// Assigns targets to given buckets ([`Fill::Given`]); a later move of a bucket replaces a pending one. A
    /// bucket that has no target or was never used moves at once. Every worker carries out its own moves:
    /// before it sends a packet that meets the bucket, and about once per millisecond.
    MoveBuckets {
        /// The group.
        group: GroupId,
        /// Buckets and their targets; [`weir_table::NO_TARGET`] removes the target.
        moves: Arc<[(u32, u16)]>,
        /// A bucket moves once it has been unused this long, in nanoseconds; 0 means at once.
        idle_gap_ns: u64,
        /// A bucket moves after this long even if it is in use (and counts as moved busy), in nanoseconds.
        wait_max_ns: u64,
    },
    /// Several changes, carried out in this order; either all are carried out or none.
    Batch(Changes),
}

/// A group, positions of targets in it, and their weights.
pub type Weights<'a> = (GroupId, Cow<'a, [(u16, u32)]>);

/// Changes that are carried out together or not at all. No two of them change the same entry, so each can be
/// validated without carrying out the others. A copy shares the list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes(Arc<List>);

#[derive(Debug, Default, PartialEq)]
struct List {
    changes: Vec<Change>,
    /// The pipes whose entries the changes concern.
    pipes: Vec<PipeId>,
}

impl Changes {
    /// Takes a list of changes.
    ///
    /// # Errors
    /// Two changes concern the same entry, or a change sets a weight or is a batch; the error says which
    /// ([`ChangeError::At`]).
    pub fn new(changes: Vec<Change>) -> Result<Changes, ChangeError> {
        let hasher = RandomState::new();
        // Only hashes are stored, because a million keys are large. Keys with equal hashes are compared, and
        // distinct keys with equal hashes, which are rare, are stored separately.
        let mut seen: HashMap<u64, usize> = HashMap::with_capacity(changes.len());
        let mut apart: Vec<(u64, usize)> = Vec::new();
        for (index, change) in changes.iter().enumerate() {
            let at = |why| ChangeError::At { index, why: Box::new(why) };
            let is_alone =
                matches!(change, Change::Publish { .. } | Change::NameCounters(_) | Change::Batch(_));
            if change.weights().is_some() || is_alone {
                return Err(at(ChangeError::Alone));
            }
            let Some(place) = change.place() else { continue };
            let hash = hasher.hash_one(place);
            let first = *seen.entry(hash).or_insert(index);
            if first == index {
                continue;
            }
            let others = apart.iter().filter(|one| one.0 == hash).map(|one| one.1);
            if others.chain([first]).any(|other| changes[other].place() == Some(place)) {
                return Err(at(ChangeError::Twice));
            }
            apart.push((hash, index));
        }
        Ok(Changes::list(changes))
    }

    /// Wraps a single change; a batch becomes the list of its changes.
    #[must_use]
    pub fn of(change: Change) -> Changes {
        match change {
            Change::Batch(changes) => changes,
            one => Changes::list(vec![one]),
        }
    }

    fn list(changes: Vec<Change>) -> Changes {
        let mut pipes: Vec<PipeId> = Vec::new();
        for (pipe, ..) in changes.iter().filter_map(Change::place) {
            // Most changes are for the same pipe as the one before.
            if !pipes.iter().rev().any(|known| *known == pipe) {
                pipes.push(pipe);
            }
        }
        Changes(Arc::new(List { changes, pipes }))
    }

    /// Returns the pipes whose entries the changes concern, each once.
    #[must_use]
    pub fn pipes(&self) -> &[PipeId] {
        &self.0.pipes
    }
}

impl std::ops::Deref for Changes {
    type Target = [Change];

    fn deref(&self) -> &[Change] {
        &self.0.changes
    }
}

/// Identifies an entry in its pipe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EntryKey {
    /// Its matches.
    pub matches: Vec<EntryMatch>,
    /// The priority of an ACL entry; 0 in other pipes.
    pub priority: u32,
}

impl EntryKey {
    /// Returns the key of this entry.
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

/// Why a change was refused; a refused change has no effect.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ChangeError {
    /// The pipe already has as many entries as its capacity allows.
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
        /// What is wrong with the entry.
        why: String,
    },
    /// The group's buckets are filled in another way.
    #[error("the buckets of group `{group}` {why}")]
    Filled {
        /// The group's name.
        group: String,
        /// How the buckets are filled, and what to do instead.
        why: &'static str,
    },
    /// The weight is too large.
    #[error("a weight of group `{group}` is a number from 0 to {max}, not {weight}")]
    Weight {
        /// The group's name.
        group: String,
        /// The weight.
        weight: u32,
        /// The largest weight.
        max: u32,
    },
    /// There is no such pipe, group or target.
    #[error("no such {what}")]
    Unknown {
        /// What was looked for.
        what: String,
    },
    /// Other changes to the pipe are in progress.
    #[error("other changes to pipe `{pipe}` are in progress: try again when they are done")]
    Busy {
        /// The pipe's name.
        pipe: String,
    },
    /// A packet has hit the entry, which was to be removed because it was idle.
    #[error("an entry of pipe `{pipe}` is in use again")]
    InUse {
        /// The pipe's name.
        pipe: String,
    },
    /// Another change of the batch changes the same entry.
    #[error("an earlier change of the batch changes the same entry: a batch can change each entry only once")]
    Twice,
    /// A batch contains a change of a weight or of names, or another batch.
    #[error("a batch can change only entries and given buckets: change weights one by one")]
    Alone,
    /// A change in a batch was refused, and with it the whole batch.
    #[error("change {} of the batch: {why}", index + 1)]
    At {
        /// The position of the change in the batch, starting at 0.
        index: usize,
        /// Why the change was refused.
        why: Box<ChangeError>,
    },
}

impl ChangeError {
    /// Returns why a single change was refused, without its position in a batch.
    #[must_use]
    pub fn cause(&self) -> &ChangeError {
        if let ChangeError::At { why, .. } = self { why } else { self }
    }
}

impl Change {
    /// Returns the individual changes that this change consists of.
    #[must_use]
    pub fn singles(&self) -> &[Change] {
        if let Change::Batch(changes) = self { changes } else { from_ref(self) }
    }

    /// Returns the weights that the change sets: the group, the positions of targets, and their new weights.
    #[must_use]
    pub fn weights(&self) -> Option<Weights<'_>> {
        match self {
            Change::SetWeight { group, target, weight } => {
                Some((*group, Cow::Owned(vec![(*target, *weight)])))
            }
            Change::SetWeights { group, weights } => Some((*group, Cow::Borrowed(weights))),
            _ => None,
        }
    }

    /// Returns what identifies the entry that the change concerns: the pipe, and the matches and the priority
    /// in it.
    fn place(&self) -> Option<(PipeId, &[EntryMatch], u32)> {
        match self {
            Change::Add { pipe, entry } | Change::Update { pipe, entry } => {
                Some((*pipe, &entry.matches, entry.priority))
            }
            Change::Remove { pipe, key } => Some((*pipe, &key.matches, key.priority)),
            Change::SetWeight { .. }
            | Change::SetWeights { .. }
            | Change::Publish { .. }
            | Change::NameCounters(_)
            | Change::MoveBuckets { .. }
            | Change::Batch(_) => None,
        }
    }

    /// Checks the change against a program's groups, but not its entries.
    ///
    /// # Errors
    /// Groups, buckets or targets are unknown, or the buckets are filled in another way.
    pub fn fits_groups(&self, groups: &[Group]) -> Result<(), ChangeError> {
        let unknown = |what: String| Err(ChangeError::Unknown { what });
        let (Change::SetWeight { group, .. }
        | Change::SetWeights { group, .. }
        | Change::Publish { group, .. }
        | Change::MoveBuckets { group, .. }) = self
        else {
            return Ok(());
        };
        let Some(Group { name, fill, size, targets, .. }) = groups.get(group.index()) else {
            return unknown("group".into());
        };
        let filled = |why| Err(ChangeError::Filled { group: name.clone(), why });
        for &(target, weight) in self.weights().iter().flat_map(|(_, weights)| weights.iter()) {
            if usize::from(target) >= targets.len() && *fill != Fill::Given {
                return unknown("target".into());
            }
            if weight > WEIGHT_MAX && *fill != Fill::Given {
                return Err(ChangeError::Weight { group: name.clone(), weight, max: WEIGHT_MAX });
            }
        }
        match self {
            Change::SetWeight { .. } | Change::SetWeights { .. } if *fill == Fill::Given => {
                filled("are given one by one, and weights have no effect: move buckets")
            }
            Change::Publish { .. } if *fill == Fill::Given => filled("are given one by one: move them"),
            Change::Publish { targets: others, .. } if others.len() != targets.len() => {
                unknown("target".into())
            }
            Change::Publish { table, .. }
                if *fill != Fill::Maglev && table.buckets().slots().len() != *size as usize =>
            {
                unknown("bucket".into())
            }
            Change::MoveBuckets { .. } if *fill != Fill::Given => filled("follow its weights: change those"),
            Change::MoveBuckets { moves, .. } => match moves.iter().find(|one| one.0 >= *size) {
                Some((bucket, _)) => unknown(format!("bucket {bucket} of group `{name}`")),
                None => {
                    let known =
                        |target: u16| target == weir_table::NO_TARGET || usize::from(target) < targets.len();
                    let lost = moves.iter().find(|one| !known(one.1));
                    lost.map_or(Ok(()), |(_, target)| unknown(format!("target {target} of group `{name}`")))
                }
            },
            _ => Ok(()),
        }
    }
}
