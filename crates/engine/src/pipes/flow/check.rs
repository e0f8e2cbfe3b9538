//! Checks of FLOW pipes.

use super::Learn;
use crate::check::{Finding, FindingKind, lost};
use crate::pipes::targets;
use crate::program::{Entry, EntryMatch, Fill, Pipe, Program};

/// Checks that the group to learn from exists, and that its buckets do not move with time.
pub fn check(program: &Program, learn: Learn, kinds: &mut Vec<FindingKind>) {
    let Some(group) = learn.group() else { return };
    kinds.extend(lost("group", group.index(), program.groups.len()));
    let given = program.groups.get(group.index()).filter(|group| group.fill == Fill::Given);
    kinds.extend(given.map(|group| FindingKind::LearnGiven { group: group.name.clone() }));
}

/// Checks that an entry is a flow, the default for new flows, or a target that they learn.
pub fn fit(program: &Program, learn: Learn, pipe: &Pipe, entry: &Entry, kinds: &mut Vec<FindingKind>) {
    if let [EntryMatch::Flow(_) | EntryMatch::Default] = entry.matches.as_slice() {
        return;
    }
    let group = learn.group();
    let wanted = if group.is_some() { "a flow, a target, or `default`" } else { "a flow, or `default`" };
    targets::fit(program, group, pipe, entry, ("the row of a FLOW pipe", wanted), kinds);
}

/// Checks that there are entries for everything that flows learn.
pub fn all_there(program: &Program, pipe: &Pipe, learn: Learn, findings: &mut Vec<Finding>) {
    match learn {
        Learn::Pin(group) | Learn::Follow(group) => targets::all_there(program, pipe, group, findings),
        Learn::Default if !pipe.entries.iter().any(|entry| entry.matches == [EntryMatch::Default]) => {
            findings.push(Finding::new(pipe.origin, FindingKind::NoDefaultEntry));
        }
        Learn::Default | Learn::Nothing => {}
    }
}
