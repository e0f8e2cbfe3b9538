//! The buckets of groups that are filled by weights. The control plane fills them, and all workers read the
//! same table.
//!
//! Filling 65 537 buckets for 100 targets takes milliseconds, which a worker cannot spare between two
//! breaths. So [`GroupTables`] fills a table once and publishes it as an `Arc`, and a worker replaces a
//! pointer ([`Change::Publish`]). The publisher keeps the replaced table until no worker holds it, so the
//! worker never frees one. State that differs between workers (given buckets and their counts) stays with
//! each worker.

use crate::census::{Census, Flows, places};
use crate::change::{Change, ChangeError};
use crate::director::{Hops, glb_rows};
use crate::quic::QuicServers;
use crate::{Fill, Forward, Group, GroupId, NewFlows, PipeId, Program, QuicConfig, Target};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use weir_table::{
    Buckets, KatranTarget, MaglevTarget, NO_TARGET, fill_katran, fill_maglev, fill_wants, in_turn,
};

/// The buckets of a group filled by weights, and how many each target has. Immutable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketTable {
    buckets: Buckets,
    shares: Vec<u32>,
    choice: Choice,
    quic: Option<Arc<QuicServers>>,
    /// The addresses of both targets of each row, if the table is filled like the GLB director's.
    hops: Hops,
}

/// The data with which the targets of new flows are chosen, apart from a hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Nothing.
    #[default]
    Hash,
    /// The targets in the order of their turns.
    Turns(Vec<u16>),
    /// The weights of all targets.
    Weights(Vec<u32>),
}

impl Choice {
    fn of(group: &Group) -> Choice {
        let weights = || group.targets.iter().map(|target| target.weight).collect::<Vec<u32>>();
        match group.new_flows {
            NewFlows::Hash => Choice::Hash,
            NewFlows::RoundRobin => Choice::Turns(in_turn(&weights(), group.size as usize)),
            NewFlows::LeastFlows => Choice::Weights(weights()),
        }
    }
}

impl BucketTable {
    /// Fills the buckets of a group, starting from the previous buckets where history counts. A group with
    /// given buckets has no table here.
    #[must_use]
    pub fn fill(group: &Group, previous: Option<&[u16]>) -> BucketTable {
        let size = group.size as usize;
        let mut hops = Hops::default();
        let slots = match group.fill {
            Fill::Maglev => {
                let target =
                    |target: &Target| MaglevTarget { id: name_hash(&target.name), weight: target.weight };
                fill_maglev(&group.targets.iter().map(target).collect::<Vec<_>>(), size)
            }
            Fill::Wants => {
                let weights: Vec<u32> = group.targets.iter().map(|target| target.weight).collect();
                fill_wants(previous, &weights, size).0
            }
            Fill::Katran(version, _) => {
                let targets =
                    addressed(group, |target, address| KatranTarget { address, weight: target.weight });
                fill_katran(&targets, version, size)
            }
            Fill::Glb(..) => {
                let rows = glb_rows(group);
                hops = Hops::of(group, &rows);
                rows.iter().map(|row| row.first).collect()
            }
            Fill::Given => Vec::new(),
        };
        let mut shares = vec![0; group.targets.len()];
        for slot in &slots {
            shares.get_mut(usize::from(*slot)).into_iter().for_each(|share| *share += 1);
        }
        BucketTable {
            buckets: Buckets::new(slots),
            shares,
            choice: Choice::of(group),
            quic: QuicServers::of(group),
            hops,
        }
    }

    /// Returns the addresses of both targets in a bucket's row of the GLB director's table, the first target
    /// first, as [`crate::director::hops_of`] does.
    #[inline]
    #[must_use]
    pub fn hops(&self, bucket: usize) -> [u32; 2] {
        let first = self.buckets.slots().get(bucket).copied().unwrap_or(NO_TARGET);
        self.hops.at(bucket, first)
    }

    /// Returns the second target of each bucket's row of the GLB director's table; empty for other tables.
    #[must_use]
    pub fn seconds(&self) -> &[u16] {
        self.hops.seconds()
    }

    /// Returns the targets by their server IDs, if the group has any.
    #[must_use]
    pub fn quic(&self) -> Option<&Arc<QuicServers>> {
        self.quic.as_ref()
    }

    /// Returns the data with which the targets of new flows are chosen.
    #[inline]
    #[must_use]
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Returns the buckets.
    #[inline(always)]
    #[must_use]
    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    /// Returns how many buckets a target has.
    #[must_use]
    pub fn share(&self, target: usize) -> u32 {
        self.shares.get(target).copied().unwrap_or(0)
    }
}

impl Target {
    /// Creates a place for a target that may be added while the program runs ([`GroupTables::replace`]).
    #[must_use]
    pub fn vacant() -> Target {
        Target::new("", Forward::Drop).weight(0)
    }

    /// Whether this is a place for a target that may be added later.
    #[must_use]
    pub fn is_vacant(&self) -> bool {
        self.name.is_empty()
    }
}

/// The groups of a program with their current weights, and their bucket tables as last published.
#[derive(Debug, Default)]
pub struct GroupTables {
    groups: Vec<Group>,
    tables: Vec<Arc<BucketTable>>,
    /// The flows of each pipe, with the pipe's name, in program order.
    censuses: Vec<(String, Arc<Census>)>,
    /// Replaced tables that a worker may still hold.
    retired: Vec<Retired>,
}

/// The data that a worker releases when a table is published.
#[derive(Debug)]
struct Retired {
    targets: Arc<[Target]>,
    table: Arc<BucketTable>,
}

impl GroupTables {
    /// Fills the buckets of all groups.
    #[must_use]
    pub fn new(program: &Program) -> GroupTables {
        let mut filler = Filler::default();
        let tables = program.groups.iter().map(|group| filler.fill(group)).collect();
        let censuses =
            program.pipes.iter().map(|pipe| (pipe.name.clone(), Arc::new(Census::new(program, pipe))));
        GroupTables {
            groups: program.groups.clone(),
            tables,
            censuses: censuses.collect(),
            retired: Vec::new(),
        }
    }

    /// Returns a copy that shares the tables, such as for a thread that prepares the next program.
    #[must_use]
    pub fn share(&self) -> GroupTables {
        GroupTables {
            groups: self.groups.clone(),
            tables: self.tables.clone(),
            censuses: self.censuses.clone(),
            retired: Vec::new(),
        }
    }

    /// Returns the tables for the next program. A group that keeps its name and everything its buckets depend
    /// on keeps its table. Wants-count starts from the group's previous buckets, matched by the names of
    /// targets.
    #[must_use]
    pub fn succeed(&self, new: &Program) -> GroupTables {
        let before =
            self.groups.iter().zip(&self.tables).map(|(group, table)| (group.name.as_str(), (group, table)));
        let before: HashMap<&str, (&Group, &Arc<BucketTable>)> = before.collect();
        let mut filler = Filler::default();
        let mut follow = |group: &Group| match before.get(group.name.as_str()) {
            Some((was, table)) if is_filled_alike(was, group) => Arc::clone(table),
            Some((was, table)) if group.fill == Fill::Wants && was.size == group.size => {
                let previous = renamed(table.buckets.slots(), was, group);
                Arc::new(BucketTable::fill(group, Some(&previous)))
            }
            _ => filler.fill(group),
        };
        let tables = new.groups.iter().map(&mut follow).collect();
        let places = places(&self.groups, &new.groups);
        let former: HashMap<&str, &Census> =
            self.censuses.iter().map(|(name, census)| (name.as_str(), census.as_ref())).collect();
        let census = |pipe: &crate::Pipe| match former.get(pipe.name.as_str()) {
            Some(former) => former.succeed(new, pipe, &places),
            None => Census::new(new, pipe),
        };
        let censuses = new.pipes.iter().map(|pipe| (pipe.name.clone(), Arc::new(census(pipe))));
        GroupTables { groups: new.groups.clone(), tables, censuses: censuses.collect(), retired: Vec::new() }
    }

    /// Returns the table of a group; the table is empty if the group's buckets are given.
    #[must_use]
    pub fn table(&self, group: GroupId) -> &Arc<BucketTable> {
        &self.tables[group.index()]
    }

    /// Returns the flows of a pipe by their targets.
    ///
    /// # Panics
    /// There is no such pipe.
    #[must_use]
    pub fn census(&self, pipe: PipeId) -> &Arc<Census> {
        &self.censuses[pipe.index()].1
    }

    /// Returns the flows of each target of a group, over all pipes; empty if nothing counts them.
    #[must_use]
    pub fn flows_of(&self, group: GroupId) -> Vec<Flows> {
        let censuses: Vec<&Census> =
            self.censuses.iter().map(|(_, census)| census.as_ref()).filter(|one| !one.is_empty()).collect();
        let Some(of) = self.groups.get(group.index()).filter(|_| !censuses.is_empty()) else {
            return Vec::new();
        };
        let first: usize = self.groups[..group.index()].iter().map(|group| group.targets.len()).sum();
        let sum = |number: usize| {
            censuses.iter().map(|census| census.flows(number as u32)).fold(Flows::default(), Flows::plus)
        };
        (first..first + of.targets.len()).map(sum).collect()
    }

    /// Returns the groups, with the weights that their targets have now.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Carries out a change of weights here and returns the change that workers apply instead, which carries
    /// the filled table. Returns other changes as they are.
    ///
    /// # Errors
    /// The group fills its buckets in another way, or there is no such group, target or weight.
    pub fn publish(&mut self, change: &Change) -> Result<Change, ChangeError> {
        change.fits_groups(&self.groups)?;
        let Some((id, weights)) = change.weights() else { return Ok(change.clone()) };
        let (group, table) = (&mut self.groups[id.index()], &mut self.tables[id.index()]);
        let before = Retired { targets: Arc::clone(&group.targets), table: Arc::clone(table) };
        weights.iter().for_each(|(target, weight)| group.set_weight(usize::from(*target), *weight));
        *table = Arc::new(BucketTable::fill(group, Some(table.buckets.slots())));
        self.retired.retain(Retired::is_held);
        self.retired.push(before);
        Ok(Change::Publish { group: id, targets: Arc::clone(&group.targets), table: Arc::clone(table) })
    }

    /// Replaces the targets of a group with others in the same number of places, and its buckets with `size`
    /// new ones. A target that stays in its place keeps its weight at run time; the flows of a new target are
    /// counted from 0. Returns the change that workers apply.
    ///
    /// # Errors
    /// There is no such group, it has another number of places, or its buckets are given one by one, or their
    /// number is fixed.
    pub fn replace(&mut self, id: GroupId, targets: &[Target], size: u32) -> Result<Change, ChangeError> {
        let unknown = || ChangeError::Unknown { what: "group".into() };
        let mut next = self.groups.get(id.index()).cloned().ok_or_else(unknown)?;
        (next.targets, next.size) = (targets.into(), size);
        let first: usize = self.groups[..id.index()].iter().map(|group| group.targets.len()).sum();
        let group = &self.groups[id.index()];
        let mut new = Vec::new();
        for (at, (before, target)) in group.targets.iter().zip(targets).enumerate() {
            if target.name == before.name {
                next.set_weight(at, before.weight);
            } else if !target.is_vacant() {
                new.push((first + at) as u32);
            }
        }
        let table = Arc::new(BucketTable::fill(&next, None));
        let change =
            Change::Publish { group: id, targets: Arc::clone(&next.targets), table: Arc::clone(&table) };
        change.fits_groups(&self.groups)?;
        let censuses = self.censuses.iter().map(|(_, census)| census);
        censuses.for_each(|census| new.iter().for_each(|number| census.forget(*number)));
        let targets = std::mem::replace(&mut self.groups[id.index()], next).targets;
        let table = std::mem::replace(&mut self.tables[id.index()], table);
        self.retired.retain(Retired::is_held);
        self.retired.push(Retired { targets, table });
        Ok(change)
    }
}

/// Fills tables without a history. Groups that share a list of targets and are filled alike share a table:
/// ten thousand services over the same back ends have one, which stays in the cache.
#[derive(Default)]
struct Filler {
    /// By the address of the list, and the number of buckets.
    filled: HashMap<(*const Target, u32), Vec<Filled>>,
}

/// A table, and how it was filled.
type Filled = ((Fill, NewFlows, Option<Arc<[QuicConfig]>>), Arc<BucketTable>);

impl Filler {
    fn fill(&mut self, group: &Group) -> Arc<BucketTable> {
        let alike = self.filled.entry((group.targets.as_ptr(), group.size)).or_default();
        let how = (group.fill, group.new_flows, group.quic.clone());
        if let Some((_, table)) = alike.iter().find(|(other, _)| *other == how) {
            return Arc::clone(table);
        }
        let table = Arc::new(BucketTable::fill(group, None));
        alike.push((how, Arc::clone(&table)));
        table
    }
}

impl Retired {
    fn is_held(&self) -> bool {
        Arc::strong_count(&self.targets) > 1 || Arc::strong_count(&self.table) > 1
    }
}

/// Returns a group's targets as another system sees them. The check refuses targets without an address; here,
/// such a target would be a placeholder that keeps its position.
fn addressed<T>(group: &Group, see: impl Fn(&Target, IpAddr) -> T) -> Vec<T> {
    let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    group.targets.iter().map(|target| see(target, target.address.unwrap_or(nobody))).collect()
}

/// Returns true if the buckets of both groups are filled from the same inputs.
fn is_filled_alike(one: &Group, other: &Group) -> bool {
    let of =
        |group: &Group| (group.fill, group.new_flows, group.quic.clone(), group.size, group.targets.len());
    let alike = |(one, other): (&Target, &Target)| {
        (&one.name, one.weight, one.inactive, one.address, one.server_id)
            == (&other.name, other.weight, other.inactive, other.address, other.server_id)
    };
    of(one) == of(other) && one.targets.iter().zip(&*other.targets).all(alike)
}

/// Returns the buckets of `was`, renumbered to the targets of the same names in `now`.
fn renamed(slots: &[u16], was: &Group, now: &Group) -> Vec<u16> {
    let numbers: HashMap<&str, u16> = now.targets.iter().map(|one| one.name.as_str()).zip(0..).collect();
    let number = |target: &Target| numbers.get(target.name.as_str()).copied().unwrap_or(NO_TARGET);
    let numbers: Vec<u16> = was.targets.iter().map(number).collect();
    slots.iter().map(|&slot| numbers.get(usize::from(slot)).copied().unwrap_or(NO_TARGET)).collect()
}

/// Converts a target's name to a number on which every node of a fleet agrees: the select hash, with seed 0,
/// of the number of its bytes and the bytes themselves, eight per word.
#[must_use]
pub fn name_hash(name: &str) -> u64 {
    let mut words = vec![name.len() as u64];
    for part in name.as_bytes().chunks(8) {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        words.push(u64::from_be_bytes(word));
    }
    weir_packet::select_hash(0, &words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(fill: Fill, names: &[&str]) -> Program {
        let targets = names.iter().map(|name| Target::new(*name, crate::Forward::Drop));
        let size = if fill == Fill::Maglev { 251 } else { 64 };
        Program { groups: vec![Group::new("g", fill, size).targets(targets)], ..Program::default() }
    }

    fn weigh(weight: u32) -> Change {
        Change::SetWeight { group: GroupId(0), target: 1, weight }
    }

    #[test]
    fn a_change_of_weight_fills_here_and_workers_get_the_table() {
        let mut tables = GroupTables::new(&program(Fill::Maglev, &["a", "b", "c"]));
        let Ok(Change::Publish { table, targets, .. }) = tables.publish(&weigh(0)) else {
            panic!("not published")
        };
        assert!(Arc::ptr_eq(&table, tables.table(GroupId(0))));
        assert!(Arc::ptr_eq(&targets, &tables.groups[0].targets));
        assert_eq!(*table, BucketTable::fill(&tables.groups[0], None));
        assert_eq!((tables.groups[0].targets[1].weight, table.share(1)), (0, 0));
    }

    #[test]
    fn several_weights_are_one_table() {
        let mut tables = GroupTables::new(&program(Fill::Maglev, &["a", "b", "c"]));
        let several =
            |weights: &[(u16, u32)]| Change::SetWeights { group: GroupId(0), weights: weights.into() };
        let Ok(Change::Publish { targets, table, .. }) = tables.publish(&several(&[(0, 0), (2, 3)])) else {
            panic!("not published")
        };
        assert_eq!(targets.iter().map(|target| target.weight).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(*table, BucketTable::fill(&tables.groups[0], None));
        assert!(tables.publish(&several(&[(0, 1), (3, 1)])).is_err(), "there is no fourth target");
        assert_eq!(tables.groups[0].targets[0].weight, 0, "and nothing has changed");
    }

    #[test]
    fn groups_over_the_same_list_of_targets_share_a_table_until_a_weight_changes() {
        let one = program(Fill::Maglev, &["a", "b", "c"]).groups.remove(0);
        let other = Group { name: "h".into(), targets: Arc::clone(&one.targets), ..one.clone() };
        let sized = Group { name: "i".into(), size: 1021, ..other.clone() };
        let equal = program(Fill::Maglev, &["a", "b", "c"]).groups.remove(0);
        let groups = vec![one, other, sized, Group { name: "j".into(), ..equal }];
        let program = Program { groups, ..Program::default() };
        let mut tables = GroupTables::new(&program);
        let table = |tables: &GroupTables, at| Arc::clone(tables.table(GroupId(at)));
        assert!(Arc::ptr_eq(&table(&tables, 0), &table(&tables, 1)));
        assert!(!Arc::ptr_eq(&table(&tables, 0), &table(&tables, 2)));
        assert_eq!(table(&tables, 0), table(&tables, 3));
        let before = table(&tables, 1);
        drop(tables.publish(&weigh(7)).unwrap());
        assert!(Arc::ptr_eq(&before, &table(&tables, 1)), "the other group's weights stay");
        assert_ne!(before, table(&tables, 0));
    }

    #[test]
    fn what_a_worker_may_hold_is_kept_until_it_does_not() {
        let mut tables = GroupTables::new(&program(Fill::Wants, &["a", "b"]));
        let held = Arc::clone(tables.table(GroupId(0)));
        (0..3).for_each(|weight| drop(tables.publish(&weigh(weight)).unwrap()));
        assert_eq!(Arc::strong_count(&held), 2, "the publisher also holds it");
        drop(held);
        drop(tables.publish(&weigh(9)).unwrap());
        assert_eq!(tables.retired.len(), 1, "all but the last are freed here");
    }

    #[test]
    fn a_table_is_filled_again_only_if_something_changed() {
        let old = program(Fill::Wants, &["a", "b", "c"]);
        let tables = GroupTables::new(&old);
        let same = tables.succeed(&program(Fill::Wants, &["a", "b", "c"]));
        assert!(Arc::ptr_eq(same.table(GroupId(0)), tables.table(GroupId(0))));
        let fewer = program(Fill::Wants, &["c", "a"]);
        let after = tables.succeed(&fewer);
        let before = tables.table(GroupId(0)).buckets().slots().iter();
        let kept = before.zip(after.table(GroupId(0)).buckets().slots());
        assert!(kept.clone().all(|(was, now)| *was == 1 || [1, 9, 0][usize::from(*was)] == *now));
    }
}
