//! Rows by group and target, for HASH pipes and FLOW pipes that learn from groups.
//!
//! A pipe picks from one group, or from all groups with a number, among which metadata chooses for each
//! packet. The rows of a group's targets are adjacent in one list, so a target costs 4 bytes.

use super::lookup::{NO_ROW, Refusal};
use weir_packet::prefetch;
pub use weir_program::pipes::targets::groups;
use weir_program::{EntryMatch, GroupChoice, GroupId, Program};

/// The row of each target of each group.
#[derive(Debug, Default)]
pub struct Targets {
    choice: GroupChoice,
    /// By position of the group.
    places: Vec<TargetRows>,
    rows: Vec<u32>,
    count: usize,
}

/// Where the rows of a group's targets are listed.
#[derive(Clone, Copy, Debug, Default)]
struct TargetRows {
    start: u32,
    end: u32,
    /// The row of the group's first target, if the rows of the other targets follow it in order, as they do
    /// when their entries are inserted together. Then the list need not be read: the rows of a million
    /// targets are four megabytes.
    first: u32,
    /// How many targets have the row that `first` implies.
    in_order: u32,
}

impl TargetRows {
    /// The row of a target, if it is in order.
    #[inline(always)]
    fn row(&self, target: u32) -> u32 {
        self.first.wrapping_add(target)
    }

    #[inline(always)]
    fn are_in_order(&self) -> bool {
        self.in_order == self.end - self.start
    }
}

impl Targets {
    /// Creates an empty list for the targets of all groups that a pipe may pick from.
    #[must_use]
    pub fn new(program: &Program, choice: Option<GroupChoice>) -> Targets {
        let mut places = vec![TargetRows::default(); program.groups.len()];
        for id in choice.into_iter().flat_map(|choice| groups(program, choice)) {
            places[id.index()].end = program.groups[id.index()].targets.len() as u32;
        }
        let mut count = 0;
        for group in &mut places {
            (group.start, group.end) = (count, count + group.end);
            count = group.end;
        }
        let count = count as usize;
        let mut rows = Vec::with_capacity(count);
        weir_packet::advise_huge(&rows);
        rows.resize(count, NO_ROW);
        Targets { choice: choice.unwrap_or_default(), places, rows, count: 0 }
    }

    /// Returns the row of a target of a group, by its position, or [`NO_ROW`].
    #[inline(always)]
    #[must_use]
    pub fn row(&self, group: usize, target: u16) -> u32 {
        let Some(places) = self.places.get(group) else { return NO_ROW };
        let (target, place) = (u32::from(target), places.start + u32::from(target));
        if place >= places.end {
            NO_ROW
        } else if places.are_in_order() {
            places.row(target)
        } else {
            self.rows[place as usize]
        }
    }

    /// Prefetches what is known about a group.
    #[inline(always)]
    pub fn prefetch_group(&self, group: usize) {
        self.places.get(group).into_iter().for_each(prefetch);
    }

    /// Prefetches the row of a target of a group, if it must be looked up.
    #[inline(always)]
    pub fn prefetch(&self, group: usize, target: u16) {
        if self.places.get(group).is_some_and(|places| !places.are_in_order())
            && let Some(place) = self.place(group, target)
        {
            prefetch(&self.rows[place]);
        }
    }

    /// Returns the rows of the targets of a group, by their positions.
    #[inline(always)]
    #[must_use]
    pub fn of(&self, group: GroupId) -> &[u32] {
        let places = self.places.get(group.index()).copied().unwrap_or_default();
        self.rows.get(places.start as usize..places.end as usize).unwrap_or_default()
    }

    /// Sets the row of the target named by `matches`.
    pub fn insert(&mut self, matches: &[EntryMatch], row: u32) -> Result<(), Refusal> {
        let (group, place) = self
            .named(matches)
            .ok_or_else(|| Refusal::Unfit("it names no target of the pipe's group".into()))?;
        if self.rows[place] != NO_ROW {
            return Err(Refusal::Exists);
        }
        self.rows[place] = row;
        self.count += 1;
        let places = &mut self.places[group];
        let target = place as u32 - places.start;
        if places.in_order > 0 {
            places.in_order += u32::from(row == places.row(target));
        } else {
            places.first = row.wrapping_sub(target);
            let rows = (0..).zip(&self.rows[places.start as usize..places.end as usize]);
            places.in_order =
                rows.filter(|&(at, &row)| row != NO_ROW && row == places.row(at)).count() as u32;
        }
        Ok(())
    }

    /// Returns the row of the target named by `matches`.
    #[must_use]
    pub fn find(&self, matches: &[EntryMatch]) -> Option<u32> {
        self.rows.get(self.named(matches)?.1).copied().filter(|&row| row != NO_ROW)
    }

    /// Removes and returns the row of the target named by `matches`.
    pub fn remove(&mut self, matches: &[EntryMatch]) -> Option<u32> {
        let (group, place) = self.named(matches)?;
        let row = std::mem::replace(&mut self.rows[place], NO_ROW);
        if row == NO_ROW {
            return None;
        }
        self.count -= 1;
        let places = &mut self.places[group];
        let target = place as u32 - places.start;
        places.in_order -= u32::from(row == places.row(target));
        Some(row)
    }

    /// Returns the number of targets that have a row.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    #[inline(always)]
    fn place(&self, group: usize, target: u16) -> Option<usize> {
        let places = self.places.get(group)?;
        let place = places.start + u32::from(target);
        (place < places.end).then_some(place as usize)
    }

    /// Returns the group, and the place in the list of rows.
    fn named(&self, matches: &[EntryMatch]) -> Option<(usize, usize)> {
        let (group, target) = match (matches.first()?, self.choice) {
            (EntryMatch::Target(target), GroupChoice::One(group)) => (group, target),
            (EntryMatch::Member { group, target }, GroupChoice::ByMeta(_)) => (*group, target),
            _ => return None,
        };
        Some((group.index(), self.place(group.index(), *target)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use weir_program::{Fill, Forward, Group, Target};

    const TARGETS: usize = 4;

    fn member(place: usize) -> [EntryMatch; 1] {
        let group = GroupId((place / TARGETS) as u16);
        [EntryMatch::Member { group, target: (place % TARGETS) as u16 }]
    }

    proptest! {
        /// Rows are added and removed, in the order of the targets and in other orders.
        #[test]
        fn rows_are_those_inserted(steps in prop::collection::vec(
            (0..3 * TARGETS, 0..10_u32, any::<bool>()), 0..200)) {
            let group = |number| {
                let targets = (0..TARGETS).map(|at| Target::new(format!("t{at}"), Forward::Drop));
                Group::new(format!("g{number}"), Fill::Wants, 16).number(number).targets(targets)
            };
            let program = Program { groups: (0..3).map(group).collect(), ..Program::default() };
            let mut targets = Targets::new(&program, Some(GroupChoice::ByMeta(0)));
            let mut twin: HashMap<usize, u32> = HashMap::new();
            for (place, row, is_next) in steps {
                if is_next {
                    // The row of an entry that is inserted after that of the preceding target.
                    let row = twin.get(&place.wrapping_sub(1)).map_or(row, |before| before + 1);
                    let is_new = !twin.contains_key(&place);
                    prop_assert_eq!(targets.insert(&member(place), row).is_ok(), is_new);
                    twin.entry(place).or_insert(row);
                } else {
                    prop_assert_eq!(targets.remove(&member(place)), twin.remove(&place));
                }
                for place in 0..3 * TARGETS {
                    let row = targets.row(place / TARGETS, (place % TARGETS) as u16);
                    prop_assert_eq!(Some(row).filter(|row| *row != NO_ROW), twin.get(&place).copied());
                }
                prop_assert_eq!(targets.row(0, TARGETS as u16), NO_ROW);
                prop_assert_eq!(targets.len(), twin.len());
            }
        }
    }
}
