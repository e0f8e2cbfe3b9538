//! Groups that are filled like the GLB director's table: a row has two back ends, and a GUE header tells the
//! first back end the second one's address. The first forwards to the second any packet that belongs to none
//! of its own connections (the "second chance"). So connections survive a change of the table without state
//! in any load balancer.
//!
//! The director gives a back end a state, and a group gives a target a weight. A target without weight
//! drains: it swaps places with the second target of its rows, so that its connections continue. Only a
//! target that the configuration gives no weight is inactive and in no row. Where both targets of a row
//! drain, the director still sends to the first; a group has no buckets for targets without weight, so here
//! the best serving target goes first.

use crate::{Fill, Group, Target};
use std::net::IpAddr;
use weir_table::{GlbRow, GlbState, GlbTarget, NO_TARGET, fill_glb, glb_row};

/// Returns the rows of a group that is filled like the GLB director's table: for each bucket, the target that
/// packets go to, and the target to which it forwards packets that it does not know. Empty for other groups.
#[must_use]
pub fn glb_rows(group: &Group) -> Vec<GlbRow> {
    let Fill::Glb(seed, _) = group.fill else { return Vec::new() };
    let targets = as_director(group);
    let rows = fill_glb(&targets, seed);
    if group.targets.iter().all(|target| target.weight > 0) {
        return rows;
    }
    let rows = rows.into_iter().zip(0..);
    rows.map(|(row, at)| with_serving_first(row, at, group, (&targets, seed))).collect()
}

/// Returns the addresses of both targets of one row, the first target first: 0 where there is no target or it
/// has no IPv4 address, because a header has no room for others. [`Hops`] has them for all rows.
#[must_use]
pub fn hops_of(group: &Group, row: u32) -> [u32; 2] {
    let Fill::Glb(seed, _) = group.fill else { return [0; 2] };
    let targets = as_director(group);
    let row = with_serving_first(glb_row(&targets, seed, row), row, group, (&targets, seed));
    [row.first, row.second].map(|target| group.targets.get(usize::from(target)).map_or(0, address))
}

fn address(target: &Target) -> u32 {
    match target.address {
        Some(IpAddr::V4(address)) => address.to_bits(),
        Some(IpAddr::V6(_)) | None => 0,
    }
}

/// The addresses of both targets of each row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hops {
    /// The second target of each row; the first is that of the bucket.
    seconds: Box<[u16]>,
    /// The address of each target, or 0.
    addresses: Box<[u32]>,
}

impl Hops {
    /// Returns the hops of a group with these rows.
    pub fn of(group: &Group, rows: &[GlbRow]) -> Hops {
        let seconds = rows.iter().map(|row| row.second).collect();
        Hops { seconds, addresses: group.targets.iter().map(address).collect() }
    }

    /// Returns the second target of each row.
    pub fn seconds(&self) -> &[u16] {
        &self.seconds
    }

    /// Returns the addresses of a row, as [`hops_of`] does.
    pub fn at(&self, row: usize, first: u16) -> [u32; 2] {
        let second = self.seconds.get(row).copied().unwrap_or(NO_TARGET);
        [first, second].map(|target| self.addresses.get(usize::from(target)).copied().unwrap_or(0))
    }
}

/// Returns a row unchanged or, if its first target has no weight, with the best target that has a weight in
/// front.
fn with_serving_first(
    row: GlbRow,
    at: u32,
    group: &Group,
    (targets, seed): (&[GlbTarget], [u8; 16]),
) -> GlbRow {
    let serves = |target: u16| group.targets.get(usize::from(target)).is_some_and(|one| one.weight > 0);
    if row.first == NO_TARGET || serves(row.first) {
        return row;
    }
    let state = |serves| if serves { GlbState::Active } else { GlbState::Inactive };
    let serving = targets.iter().zip(0..).map(|(one, at)| GlbTarget { state: state(serves(at)), ..*one });
    let first = glb_row(&serving.collect::<Vec<_>>(), seed, at).first;
    GlbRow { first, second: if first == NO_TARGET { NO_TARGET } else { row.first } }
}

/// Returns a group's targets as the director sees them.
fn as_director(group: &Group) -> Vec<GlbTarget> {
    let state = |target: &Target| match target.weight {
        0 if target.inactive => GlbState::Inactive,
        0 => GlbState::Draining,
        _ => GlbState::Active,
    };
    // The check refuses targets without an address; here, such a target would be a placeholder that keeps its
    // position.
    let address = |target: &Target| target.address.unwrap_or(IpAddr::from([0, 0, 0, 0]));
    let target = |one: &Target| GlbTarget { address: address(one), state: state(one), healthy: true };
    group.targets.iter().map(target).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Forward, GlbHash};

    fn group(weights: [u32; 4]) -> Group {
        let target = |(weight, at): (u32, u8)| Target {
            weight,
            ..Target::new(format!("b{at}"), Forward::Drop).address([10, 0, 0, at].into())
        };
        let fill = Fill::Glb([0x34; 16], GlbHash { key: [0x12; 16], fields: GlbHash::SOURCE });
        Group::new("g", fill, 65_536).targets(weights.into_iter().zip(1..).map(target))
    }

    #[test]
    fn a_target_without_weight_is_the_second_one_of_its_rows_and_others_stay() {
        let (before, after) = (glb_rows(&group([1; 4])), glb_rows(&group([1, 0, 1, 1])));
        let mut drained = 0;
        for (was, is) in before.iter().zip(&after) {
            match was.first {
                1 => assert_eq!((is.first, is.second), (was.second, 1)),
                _ => assert_eq!(is, was),
            }
            drained += u32::from(was.first == 1);
        }
        assert!((15_000..18_000).contains(&drained), "{drained}");
    }

    #[test]
    fn where_both_of_a_row_drain_the_best_that_serves_goes_first() {
        let rows = glb_rows(&group([0, 0, 1, 1]));
        let before = glb_rows(&group([1; 4]));
        assert!(rows.iter().all(|row| row.first >= 2 && row.second != NO_TARGET));
        let both = rows.iter().zip(&before).filter(|(_, was)| was.first < 2 && was.second < 2);
        assert!(both.clone().count() > 5_000 && both.clone().all(|(row, was)| row.second == was.first));
        assert!(glb_rows(&group([0; 4])).iter().all(|row| [row.first, row.second] == [NO_TARGET; 2]));
    }

    #[test]
    fn an_inactive_target_is_in_no_row_until_it_has_a_weight() {
        let mut all = group([0, 1, 1, 1]);
        all.target_mut(0).inactive = true;
        assert!(glb_rows(&all).iter().all(|row| row.first != 0 && row.second != 0));
        all.set_weight(0, 1);
        assert_eq!(glb_rows(&all), glb_rows(&group([1; 4])));
        all.set_weight(0, 0);
        assert_eq!(glb_rows(&all), glb_rows(&group([0, 1, 1, 1])), "it is now draining");
    }

    #[test]
    fn one_row_is_as_in_the_table_of_all() {
        for weights in [[1; 4], [1, 0, 1, 1], [0, 0, 1, 1], [0; 4], [0, 0, 0, 1]] {
            let group = group(weights);
            let rows = glb_rows(&group);
            let (all, firsts) = (Hops::of(&group, &rows), |row: u32| rows[row as usize].first);
            let is_alike = |row| hops_of(&group, row) == all.at(row as usize, firsts(row));
            assert!((0..65_536).step_by(97).all(is_alike));
        }
    }
}
