//! Rows by group and target, for HASH pipes and FLOW pipes that learn from groups.
//!
//! A pipe picks from one group, or from all that have a number, of which metadata chooses one for each
//! packet. The rows of a group's targets are neighbours in one list, so a target costs 4 bytes.

use super::table::{NO_ROW, Refusal};
use crate::check::{Finding, FindingKind, found, lost};
use crate::program::{Entry, EntryMatch, Group, GroupChoice, GroupId, Pipe, Program, Target};
use packet::prefetch;

/// The row of each target of each group.
#[derive(Debug, Default)]
pub struct Targets {
    choice: GroupChoice,
    /// Where the rows of each group begin, by its position, and where those of the last one end.
    starts: Vec<u32>,
    rows: Vec<u32>,
    count: usize,
}

impl Targets {
    /// Creates an empty list for the targets of all groups that a pipe may pick from.
    #[must_use]
    pub fn new(program: &Program, choice: Option<GroupChoice>) -> Targets {
        let mut starts = vec![0; program.groups.len() + 1];
        for id in choice.into_iter().flat_map(|choice| groups(program, choice)) {
            starts[id.index() + 1] = program.groups[id.index()].targets.len() as u32;
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let count = starts.last().map_or(0, |&end| end as usize);
        let mut rows = Vec::with_capacity(count);
        packet::advise_huge(&rows);
        rows.resize(count, NO_ROW);
        Targets { choice: choice.unwrap_or_default(), starts, rows, count: 0 }
    }

    /// Returns the row of a target of a group, by its position, or [`NO_ROW`].
    #[inline(always)]
    #[must_use]
    pub fn row(&self, group: usize, target: u16) -> u32 {
        self.place(group, target).map_or(NO_ROW, |place| self.rows[place])
    }

    /// Prefetches where the rows of a group begin.
    #[inline(always)]
    pub fn prefetch_start(&self, group: usize) {
        self.starts.get(group).into_iter().for_each(prefetch);
    }

    /// Prefetches the row of a target of a group.
    #[inline(always)]
    pub fn prefetch(&self, group: usize, target: u16) {
        if let Some(place) = self.place(group, target) {
            prefetch(&self.rows[place]);
        }
    }

    /// Returns the rows of the targets of a group, by their positions.
    #[inline(always)]
    #[must_use]
    pub fn of(&self, group: GroupId) -> &[u32] {
        let end = self.starts.get(group.index() + 1).copied();
        let both = self.starts.get(group.index()).zip(end);
        both.and_then(|(&start, end)| self.rows.get(start as usize..end as usize)).unwrap_or_default()
    }

    /// Sets the row of the target named by `matches`.
    pub fn insert(&mut self, matches: &[EntryMatch], row: u32) -> Result<(), Refusal> {
        let place = self.named(matches);
        let place = place.ok_or_else(|| Refusal::Unfit("it names no target of the pipe's group".into()))?;
        if self.rows[place] != NO_ROW {
            return Err(Refusal::Exists);
        }
        self.rows[place] = row;
        self.count += 1;
        Ok(())
    }

    /// Returns the row of the target named by `matches`.
    #[must_use]
    pub fn find(&self, matches: &[EntryMatch]) -> Option<u32> {
        self.rows.get(self.named(matches)?).copied().filter(|&row| row != NO_ROW)
    }

    /// Removes and returns the row of the target named by `matches`.
    pub fn remove(&mut self, matches: &[EntryMatch]) -> Option<u32> {
        let place = self.named(matches)?;
        let row = std::mem::replace(&mut self.rows[place], NO_ROW);
        if row == NO_ROW {
            return None;
        }
        self.count -= 1;
        Some(row)
    }

    /// Returns the number of targets that have a row.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    #[inline(always)]
    fn place(&self, group: usize, target: u16) -> Option<usize> {
        let place = self.starts.get(group)? + u32::from(target);
        (place < *self.starts.get(group + 1)?).then_some(place as usize)
    }

    fn named(&self, matches: &[EntryMatch]) -> Option<usize> {
        match (matches.first()?, self.choice) {
            (EntryMatch::Target(target), GroupChoice::One(group)) => self.place(group.index(), *target),
            (EntryMatch::Member { group, target }, GroupChoice::ByMeta(_)) => {
                self.place(group.index(), *target)
            }
            _ => None,
        }
    }
}

/// Returns the groups that a pipe may pick from, as far as they exist.
pub fn groups(program: &Program, choice: GroupChoice) -> impl Iterator<Item = GroupId> {
    let groups = (0..).map(GroupId).zip(&program.groups);
    let may = move |(id, group): &(GroupId, &Group)| match choice {
        GroupChoice::One(one) => one == *id,
        GroupChoice::ByMeta(_) => group.number.is_some(),
    };
    groups.filter(may).map(|(id, _)| id)
}

/// Checks that there is something to choose.
pub fn check(program: &Program, choice: GroupChoice, kinds: &mut Vec<FindingKind>) {
    match choice {
        GroupChoice::One(group) => kinds.extend(lost("group", group.index(), program.groups.len())),
        GroupChoice::ByMeta(_) if groups(program, choice).next().is_none() => {
            kinds.push(FindingKind::NoNumberedGroup);
        }
        GroupChoice::ByMeta(_) => {}
    }
}

/// Checks that the single match of an entry is a target of a group that `choice` can choose; otherwise
/// reports that `wanted` is expected in that `place`.
pub fn fit(
    program: &Program,
    choice: Option<GroupChoice>,
    pipe: &Pipe,
    entry: &Entry,
    (place, wanted): (&str, &'static str),
    kinds: &mut Vec<FindingKind>,
) {
    let targets = |group: GroupId| program.groups.get(group.index()).map_or(0, |group| group.targets.len());
    match (entry.matches.as_slice(), choice) {
        ([EntryMatch::Target(target)], Some(GroupChoice::One(group))) => {
            kinds.extend(lost("target", usize::from(*target), targets(group)));
        }
        ([EntryMatch::Member { group, target }], Some(GroupChoice::ByMeta(_))) => {
            match program.groups.get(group.index()) {
                None => kinds.extend(lost("group", group.index(), program.groups.len())),
                Some(declared) if declared.number.is_none() => {
                    kinds.push(FindingKind::Unnumbered { group: declared.name.clone() });
                }
                Some(_) => kinds.extend(lost("target", usize::from(*target), targets(*group))),
            }
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

/// Reports targets without an entry: those of the pipe's group or, where metadata chooses, of every group
/// that has an entry here. The others are for other pipes. A target of weight 0 gets no packets to have an
/// entry for.
pub fn all_there(program: &Program, pipe: &Pipe, choice: GroupChoice, findings: &mut Vec<Finding>) {
    let mut there = Targets::new(program, Some(choice));
    let mut met = vec![false; program.groups.len()];
    let mut entries = pipe.entries.cursor();
    while let Some(entry) = entries.next() {
        // What does not fit, or is there twice, is reported elsewhere.
        let _ = there.insert(&entry.matches, 0);
        if let [EntryMatch::Member { group, .. }] = entry.matches[..]
            && let Some(met) = met.get_mut(group.index())
        {
            *met = true;
        }
    }
    let wanted = |id: &GroupId| choice.one().is_some() || met[id.index()];
    for id in groups(program, choice).filter(wanted) {
        let group = &program.groups[id.index()];
        let without =
            |(at, target): &(u16, &Target)| target.weight > 0 && there.row(id.index(), *at) == NO_ROW;
        for (_, target) in (0..).zip(&*group.targets).filter(without) {
            let (pipe_name, target) = (pipe.name.clone(), target.name.clone());
            let kind = FindingKind::TargetWithoutEntry { pipe: pipe_name, target, group: group.name.clone() };
            findings.push(Finding::new(pipe.origin, kind));
        }
    }
}
