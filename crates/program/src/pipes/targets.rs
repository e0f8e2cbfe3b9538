//! Code for pipes that pick targets from groups, HASH and FLOW: which groups they may pick from, and the
//! checks of entries that name targets.

use crate::check::{Finding, FindingKind, found, lost};
use crate::{Entry, EntryMatch, Group, GroupChoice, GroupId, Pipe, Program, Target};

/// Returns the existing groups that a pipe may pick from.
pub fn groups(program: &Program, choice: GroupChoice) -> impl Iterator<Item = GroupId> {
    let groups = (0..).map(GroupId).zip(&program.groups);
    let may = move |(id, group): &(GroupId, &Group)| match choice {
        GroupChoice::One(one) => one == *id,
        GroupChoice::ByMeta(_) => group.number.is_some(),
    };
    groups.filter(may).map(|(id, _)| id)
}

/// Returns whether an entry of the pipe names a target of the group. Metadata may choose only groups of which
/// this is true: the others are for other pipes.
pub fn is_entered(pipe: &Pipe, group: GroupId) -> bool {
    let mut entries = pipe.entries.cursor();
    while let Some(entry) = entries.next() {
        if matches!(entry.matches.first(), Some(EntryMatch::Member { group: one, .. }) if *one == group) {
            return true;
        }
    }
    false
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
/// that has an entry here. The other groups are for other pipes. A target of weight 0 gets no packets and
/// needs no entry.
pub fn all_there(program: &Program, pipe: &Pipe, choice: GroupChoice, findings: &mut Vec<Finding>) {
    // By group, then by target. A group that no entry names has an empty list.
    let mut there: Vec<Vec<bool>> = vec![Vec::new(); program.groups.len()];
    let mut entries = pipe.entries.cursor();
    while let Some(entry) = entries.next() {
        let (group, target) = match (entry.matches.first(), choice) {
            (Some(EntryMatch::Target(target)), GroupChoice::One(group)) => (group, *target),
            (Some(EntryMatch::Member { group, target }), GroupChoice::ByMeta(_)) => (*group, *target),
            // Entries that do not fit are reported elsewhere.
            _ => continue,
        };
        let Some(declared) = program.groups.get(group.index()) else { continue };
        let there = &mut there[group.index()];
        there.resize(declared.targets.len(), false);
        there.get_mut(usize::from(target)).into_iter().for_each(|there| *there = true);
    }
    let wanted = |id: &GroupId| choice.one().is_some() || !there[id.index()].is_empty();
    for id in groups(program, choice).filter(wanted) {
        let group = &program.groups[id.index()];
        let there = &there[id.index()];
        let without =
            |(at, target): &(usize, &Target)| target.weight > 0 && !there.get(*at).is_some_and(|one| *one);
        for (_, target) in (0..).zip(&*group.targets).filter(without) {
            let (pipe_name, target) = (pipe.name.clone(), target.name.clone());
            let kind = FindingKind::TargetWithoutEntry { pipe: pipe_name, target, group: group.name.clone() };
            findings.push(Finding::new(pipe.origin, kind));
        }
    }
}
