//! What must change in a running program when a back end changes its state or its weight. Health checks and
//! operators decide on states; this module determines what follows for pipes.

use super::NAME;
use super::service::State;
use std::collections::HashMap;
use weir_app::Action;
use weir_program::change::{Change, EntryKey};
use weir_program::{Entry, EntryMatch, GroupChoice, GroupId, PipeId, Program};

/// The location of a back end of a service in a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// The service's group.
    pub group: GroupId,
    /// The back end's position in the group.
    pub target: u16,
    /// Its entries, with the pipes that contain them: one for each choosing pipe that the service uses.
    pub entries: Vec<(PipeId, Entry)>,
}

impl Place {
    /// Locates the back ends of a service, in order. Empty if the service does not exist, or if it chooses by
    /// bits of the source address, because it then has no group. A back end configured for maintenance has no
    /// entries.
    #[must_use]
    pub fn find(program: &Program, service: &str) -> Vec<Place> {
        Place::of_all(program, &[service]).pop().unwrap_or_default()
    }

    /// Locates the back ends of several services, in order.
    #[must_use]
    pub fn of_all(program: &Program, services: &[&str]) -> Vec<Vec<Place>> {
        let groups: Vec<Option<GroupId>> =
            services.iter().map(|service| program.group_named(&format!("{NAME}/{service}"))).collect();
        let of: HashMap<GroupId, usize> =
            groups.iter().enumerate().filter_map(|(at, group)| Some(((*group)?, at))).collect();
        let blank = |group: &Option<GroupId>| {
            let Some(group) = *group else { return Vec::new() };
            let place = |target| Place { group, target, entries: Vec::new() };
            (0..program.groups[group.index()].targets.len()).map(|target| place(target as u16)).collect()
        };
        let mut all: Vec<Vec<Place>> = groups.iter().map(blank).collect();
        for (at, pipe) in (0..).zip(&program.pipes) {
            if !matches!(pipe.kind.group(), Some(GroupChoice::ByMeta(_))) {
                continue;
            }
            let mut entries = pipe.entries.cursor();
            while let Some(entry) = entries.next() {
                let [EntryMatch::Member { group, target }] = entry.matches[..] else { continue };
                let places = of.get(&group).map(|at| &mut all[*at]);
                if let Some(place) = places.and_then(|places| places.get_mut(usize::from(target))) {
                    place.entries.push((PipeId(at), entry.clone()));
                }
            }
        }
        all
    }

    /// Returns the actions that add the back end's entries.
    pub(super) fn add(&self) -> impl Iterator<Item = Action> + '_ {
        let add = |(pipe, entry): &(PipeId, Entry)| Change::Add { pipe: *pipe, entry: entry.clone() };
        self.entries.iter().map(add).map(Action::Change)
    }

    /// Returns the actions that remove its entries, which ends its flows.
    pub(super) fn remove(&self) -> impl Iterator<Item = Action> + '_ {
        let remove =
            |(pipe, entry): &(PipeId, Entry)| Change::Remove { pipe: *pipe, key: EntryKey::of(entry) };
        self.entries.iter().map(remove).map(Action::Change)
    }

    /// Returns what must change when the back end moves from one state to another, with this weight while it
    /// is up. If the new state does not keep flows, the back end's entries are removed, which ends its flows.
    #[must_use]
    pub fn changes(&self, (from, to): (State, State), weight: u32) -> Vec<Change> {
        let entry = |(pipe, entry): &(PipeId, Entry)| match (from.keeps_flows(), to.keeps_flows()) {
            (true, false) => Some(Change::Remove { pipe: *pipe, key: EntryKey::of(entry) }),
            (false, true) => Some(Change::Add { pipe: *pipe, entry: entry.clone() }),
            _ => None,
        };
        let entries = self.entries.iter().filter_map(entry);
        let weight = if to == State::Up { weight } else { 0 };
        let weight = Change::SetWeight { group: self.group, target: self.target, weight };
        // No packet may be sent to a back end without an entry.
        if to.keeps_flows() {
            entries.chain([weight]).collect()
        } else {
            [weight].into_iter().chain(entries).collect()
        }
    }
}
