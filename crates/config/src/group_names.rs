//! Groups and targets by name. There may be thousands of groups and a million entries that name them, so
//! names are looked up in maps, which are built on first use.

use std::collections::HashMap;
use weir_program::{GroupId, Program};

/// The names of a program's groups and of their targets.
#[derive(Debug)]
pub struct GroupNames<'a> {
    program: &'a Program,
    groups: Option<HashMap<&'a str, GroupId>>,
    /// The targets of the last group that was looked up: entries of a group are mostly adjacent.
    targets: Option<(GroupId, HashMap<&'a str, u16>)>,
}

impl<'a> GroupNames<'a> {
    /// The names of this program's groups.
    #[must_use]
    pub fn new(program: &'a Program) -> GroupNames<'a> {
        GroupNames { program, groups: None, targets: None }
    }

    /// Returns the group with this name.
    pub fn group(&mut self, name: &str) -> Option<GroupId> {
        let named = || (0..).map(GroupId).zip(&self.program.groups).map(|(id, one)| (one.name.as_str(), id));
        self.groups.get_or_insert_with(|| named().collect()).get(name).copied()
    }

    /// Returns the index of a group's target with this name.
    pub fn target(&mut self, id: GroupId, name: &str) -> Option<u16> {
        if self.targets.as_ref().is_none_or(|(last, _)| *last != id) {
            let targets = self.program.groups.get(id.index())?.targets.iter();
            self.targets = Some((id, targets.map(|target| target.name.as_str()).zip(0..).collect()));
        }
        self.targets.as_ref()?.1.get(name).copied()
    }
}
