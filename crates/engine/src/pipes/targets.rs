//! Rows by target, for HASH pipes and FLOW pipes that learn from a group.

use super::table::{NO_ROW, Refusal};
use crate::check::{Finding, FindingKind, found, lost};
use crate::program::{Entry, EntryMatch, GroupId, Pipe, Program};

/// The row of each target of a group.
#[derive(Debug)]
pub struct Targets {
    rows: Vec<u32>,
}

impl Targets {
    /// Creates an empty list for `count` targets.
    #[must_use]
    pub fn new(count: usize) -> Targets {
        Targets { rows: vec![NO_ROW; count] }
    }

    /// Returns the row of a target, or [`NO_ROW`].
    #[inline(always)]
    #[must_use]
    pub fn row(&self, target: u16) -> u32 {
        self.rows.get(usize::from(target)).copied().unwrap_or(NO_ROW)
    }

    /// Sets the row of the target named by `matches`.
    pub fn insert(&mut self, matches: &[EntryMatch], row: u32) -> Result<(), Refusal> {
        let place = target_of(matches).and_then(|target| self.rows.get_mut(target));
        let place = place.ok_or_else(|| Refusal::Unfit("it names no target of the pipe's group".into()))?;
        if *place != NO_ROW {
            return Err(Refusal::Exists);
        }
        *place = row;
        Ok(())
    }

    /// Returns the row of the target named by `matches`.
    #[must_use]
    pub fn find(&self, matches: &[EntryMatch]) -> Option<u32> {
        self.rows.get(target_of(matches)?).copied().filter(|&row| row != NO_ROW)
    }

    /// Removes and returns the row of the target named by `matches`.
    pub fn remove(&mut self, matches: &[EntryMatch]) -> Option<u32> {
        let row = std::mem::replace(self.rows.get_mut(target_of(matches)?)?, NO_ROW);
        (row != NO_ROW).then_some(row)
    }

    /// Iterates over the targets that have a row.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u32)> {
        (0..).zip(self.rows.iter().copied()).filter(|&(_, row)| row != NO_ROW)
    }
}

fn target_of(matches: &[EntryMatch]) -> Option<usize> {
    match matches.first()? {
        EntryMatch::Target(target) => Some(usize::from(*target)),
        _ => None,
    }
}

/// Checks that the single match of an entry is a target of `group`; otherwise reports that `wanted` is
/// expected in that `place`.
pub fn fit(
    program: &Program,
    group: Option<GroupId>,
    pipe: &Pipe,
    entry: &Entry,
    (place, wanted): (&str, &'static str),
    kinds: &mut Vec<FindingKind>,
) {
    match (entry.matches.as_slice(), group) {
        ([EntryMatch::Target(target)], Some(group)) => {
            let targets = program.groups.get(group.index()).map_or(0, |group| group.targets.len());
            kinds.extend(lost("target", usize::from(*target), targets));
        }
        ([other], _) => {
            kinds.push(FindingKind::MatchKind { place: place.into(), wanted, found: found(*other) })
        }
        (all, _) => {
            let (pipe, found) = (pipe.name.clone(), all.len());
            kinds.push(FindingKind::MatchCount { pipe, wanted: 1, found });
        }
    }
}

/// Reports targets of the group without an entry.
pub fn all_there(program: &Program, pipe: &Pipe, group: GroupId, findings: &mut Vec<Finding>) {
    let Some(group) = program.groups.get(group.index()) else { return };
    let mut there = vec![false; group.targets.len()];
    let mut entries = pipe.entries.cursor();
    while let Some(entry) = entries.next() {
        if let [EntryMatch::Target(at)] = entry.matches[..]
            && let Some(there) = there.get_mut(usize::from(at))
        {
            *there = true;
        }
    }
    for (target, there) in group.targets.iter().zip(there) {
        if !there {
            let (pipe_name, target) = (pipe.name.clone(), target.name.clone());
            let kind = FindingKind::TargetWithoutEntry { pipe: pipe_name, target, group: group.name.clone() };
            findings.push(Finding::new(pipe.origin, kind));
        }
    }
}
