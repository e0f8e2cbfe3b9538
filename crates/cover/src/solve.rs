//! A search for a packet: values that meet some conditions, and none of several conjunctions of others.
//!
//! The conditions of a program are about single fields, so a set of packets is a box: a [`Domain`] for each
//! field. The search takes a point of the box. If the point lies in a forbidden box, it splits what remains
//! into boxes outside of that one, which have no point in common, and continues in each. So it finds a point
//! if there is one, and otherwise has proved that there is none; only the number of steps is limited.

use crate::domain::{Condition, Domain};
use std::collections::{BTreeMap, BTreeSet};
use weir_packet::Field;

/// Conditions on fields of the packet as it arrives, all of which hold. An empty list always holds.
pub type Conjunction = Vec<(Field, Condition)>;

/// The packets that are left: the domains of fields; a field without one may have any value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Box(BTreeMap<Field, Domain>);

/// The values of a packet's fields; a field without one may have any value.
pub type Point = BTreeMap<Field, u128>;

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Solution {
    /// Values that meet the conditions.
    Found(Point),
    /// There are no such values; the set has the forbidden conjunctions that exclude them.
    Impossible(BTreeSet<usize>),
    /// The limit of steps was reached.
    Unknown,
}

impl Box {
    /// Returns the domain of a field.
    #[must_use]
    pub fn domain(&self, field: Field) -> Domain {
        self.0.get(&field).copied().unwrap_or_else(|| Domain::all(field.spec().bits))
    }

    /// Returns the packets of the box that also meet a condition.
    #[must_use]
    pub fn with(&self, field: Field, condition: Condition) -> Option<Box> {
        let domain = self.domain(field).with(condition)?;
        let mut narrowed = self.clone();
        narrowed.0.insert(field, domain);
        Some(narrowed)
    }

    /// Returns the packets that meet all conditions.
    #[must_use]
    pub fn with_all(&self, conditions: &[(Field, Condition)]) -> Option<Box> {
        let mut narrowed = self.clone();
        for (field, condition) in conditions {
            let domain = narrowed.domain(*field).with(*condition)?;
            narrowed.0.insert(*field, domain);
        }
        Some(narrowed)
    }

    /// Whether some packet may meet all conditions.
    #[must_use]
    pub fn allows(&self, conditions: &[(Field, Condition)]) -> bool {
        // Two conditions on one field are rare, and then the search decides.
        conditions.iter().all(|(field, condition)| self.domain(*field).allows(*condition))
    }

    fn implies(&self, conditions: &[(Field, Condition)]) -> bool {
        conditions.iter().all(|(field, condition)| self.domain(*field).implies(*condition))
    }

    /// Iterates over the fields whose values are limited.
    pub fn fields(&self) -> impl Iterator<Item = (Field, Domain)> + '_ {
        self.0.iter().map(|(field, domain)| (*field, *domain))
    }

    /// Whether a point lies in the box.
    #[must_use]
    pub fn has(&self, point: &Point) -> bool {
        self.fields().all(|(field, domain)| point.get(&field).is_none_or(|value| domain.has(*value)))
    }
}

/// Whether a point meets all conditions; `default` supplies the values that the point does not have.
#[must_use]
pub fn meets(point: &Point, conditions: &[(Field, Condition)], default: impl Fn(Field) -> u128) -> bool {
    let value = |field: &Field| point.get(field).copied().unwrap_or_else(|| default(*field));
    conditions.iter().all(|(field, condition)| condition.holds(value(field)))
}

/// Searches for a point of `within` that lies in none of the forbidden boxes. Values are `preferred` ones
/// where possible. `steps` is the limit, and is counted down.
#[must_use]
pub fn solve(
    within: &Box,
    forbidden: &[&[(Field, Condition)]],
    preferred: impl Fn(Field) -> u128,
    steps: &mut u32,
) -> Solution {
    let all: Vec<usize> = (0..forbidden.len()).collect();
    let mut search = PointSearch { forbidden, preferred: &preferred, steps, blamed: BTreeSet::new() };
    match search.find(within, &all) {
        Some(Some(point)) => Solution::Found(point),
        Some(None) => Solution::Impossible(search.blamed),
        None => Solution::Unknown,
    }
}

struct PointSearch<'a, P> {
    forbidden: &'a [&'a [(Field, Condition)]],
    preferred: &'a P,
    steps: &'a mut u32,
    /// The forbidden boxes that were split off.
    blamed: BTreeSet<usize>,
}

impl<P: Fn(Field) -> u128> PointSearch<'_, P> {
    /// Returns a point of the box; `None` if the limit is reached.
    fn find(&mut self, within: &Box, candidates: &[usize]) -> Option<Option<Point>> {
        *self.steps = self.steps.checked_sub(1)?;
        let near: Vec<usize> =
            candidates.iter().copied().filter(|at| within.allows(self.forbidden[*at])).collect();
        if let Some(covering) = near.iter().find(|at| within.implies(self.forbidden[**at])) {
            self.blamed.insert(*covering);
            return Some(None);
        }
        let point = self.point(within, &near);
        let hit = near.iter().copied().find(|at| meets(&point, self.forbidden[*at], self.preferred));
        let Some(hit) = hit else { return Some(Some(point)) };
        self.blamed.insert(hit);
        let mut agreed = within.clone();
        for (field, condition) in self.forbidden[hit] {
            for part in agreed.domain(*field).without(*condition) {
                let mut outside = agreed.clone();
                outside.0.insert(*field, part);
                if let Some(point) = self.find(&outside, &near)? {
                    return Some(Some(point));
                }
            }
            match agreed.with(*field, *condition) {
                Some(rest) => agreed = rest,
                None => break,
            }
        }
        Some(None)
    }

    /// Returns a point of a box, with a value for each field that a condition is about.
    fn point(&self, within: &Box, near: &[usize]) -> Point {
        let mut point = Point::new();
        let fields = near.iter().flat_map(|at| self.forbidden[*at].iter().map(|(field, _)| *field));
        for field in within.0.keys().copied().chain(fields) {
            point.entry(field).or_insert_with(|| within.domain(field).near((self.preferred)(field)));
        }
        point
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FIELDS: [Field; 2] = [Field::Ipv4Ecn, Field::VlanPcp];

    fn condition() -> impl Strategy<Value = (Field, Condition)> {
        let bits =
            (0..8u128, 0..8u128).prop_map(|(value, mask)| Condition::Bits { value: value & mask, mask });
        let range =
            (0..8u128, 0..8u128).prop_map(|(a, b)| Condition::Range { first: a.min(b), last: a.max(b) });
        (0..2usize, prop_oneof![bits, range]).prop_map(|(at, condition)| (FIELDS[at], condition))
    }

    fn conjunction(most: usize) -> impl Strategy<Value = Conjunction> {
        prop::collection::vec(condition(), 0..=most)
    }

    proptest! {
        /// The search agrees with trying all points.
        #[test]
        fn a_point_is_found_exactly_if_there_is_one(
            wanted in conjunction(3),
            forbidden in prop::collection::vec(conjunction(2), 0..8),
        ) {
            let point = |number: u128| Point::from([(FIELDS[0], number / 8), (FIELDS[1], number % 8)]);
            let points = (0..32).map(point);
            let exists = points.into_iter().any(|point| {
                meets(&point, &wanted, |_| 0) && !forbidden.iter().any(|one| meets(&point, one, |_| 0))
            });
            let lists: Vec<&[(Field, Condition)]> = forbidden.iter().map(Vec::as_slice).collect();
            let Some(within) = Box::default().with_all(&wanted) else {
                prop_assert!(!exists);
                return Ok(());
            };
            match solve(&within, &lists, |_| 1, &mut 100_000) {
                Solution::Found(point) => {
                    prop_assert!(meets(&point, &wanted, |_| 1));
                    prop_assert!(!forbidden.iter().any(|one| meets(&point, one, |_| 1)));
                }
                Solution::Impossible(_) => prop_assert!(!exists),
                Solution::Unknown => prop_assert!(false, "100000 steps suffice"),
            }
        }
    }
}
