//! Entries that no packet can hit, whatever leads to their pipe.

use crate::domain::Condition;
use crate::rows::{HitBy, Rows};
use crate::shape::{PacketShape, default};
use crate::shapes::shapes;
use crate::solve::{Box, Conjunction, Solution, solve};
use crate::symbols::canonical;
use std::collections::BTreeSet;
use weir_packet::Field;
use weir_program::{PipeId, Program};

/// Why no packet hits an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyUnreachable {
    /// Every packet that meets its conditions hits one of these entries of the same pipe.
    Shadowed(BTreeSet<usize>),
    /// No packet meets its conditions.
    NoSuchPacket,
}

/// Returns the entries of a pipe that no packet can hit. An entry for which more than `steps` steps are
/// needed is taken to be reachable.
#[must_use]
pub fn unreachable(program: &Program, id: PipeId, steps: u32) -> Vec<(usize, WhyUnreachable)> {
    let pipe = &program.pipes[id.index()];
    let rows = Rows::of(pipe);
    // Actions in front of the pipe may have given a packet another shape than it had when it arrived.
    let shapes: BTreeSet<PacketShape> = shapes(program).into_iter().collect();
    let excluded: Vec<(PacketShape, Vec<Conjunction>)> =
        shapes.into_iter().map(|shape| (shape, shape.excluded(program))).collect();
    let mut found = Vec::new();
    for (at, row) in rows.rows.iter().enumerate() {
        let HitBy::Fields(wanted) = &row.hit_by else { continue };
        let before: Vec<usize> = rows.before(at).collect();
        let mut blamed = BTreeSet::new();
        let is_hit = excluded.iter().any(|(shape, excluded)| {
            let Some(conditions) = on(shape, program, wanted) else { return false };
            let Some(within) = Box::default().with_all(&conditions) else { return false };
            let earlier: Vec<(usize, Conjunction)> = before
                .iter()
                .filter_map(|other| match &rows.rows[*other].hit_by {
                    HitBy::Fields(wanted) => Some((*other, on(shape, program, wanted)?)),
                    HitBy::Target(..) | HitBy::Flow(_) | HitBy::Default => None,
                })
                .collect();
            let mut forbidden: Vec<&[(Field, Condition)]> =
                earlier.iter().map(|(_, conditions)| conditions.as_slice()).collect();
            forbidden.extend(excluded.iter().map(Vec::as_slice));
            match solve(&within, &forbidden, default, &mut { steps }) {
                Solution::Found(_) | Solution::Unknown => true,
                Solution::Impossible(by) => {
                    blamed.extend(by.into_iter().filter_map(|at| earlier.get(at)).map(|(other, _)| *other));
                    false
                }
            }
        });
        if !is_hit {
            let reason = if blamed.is_empty() {
                WhyUnreachable::NoSuchPacket
            } else {
                WhyUnreachable::Shadowed(blamed)
            };
            found.push((at, reason));
        }
    }
    found
}

/// Returns the conditions on packets of a shape; `None` if they meet none. Facts that actions may change,
/// such as metadata, are taken as free.
fn on(shape: &PacketShape, program: &Program, wanted: &[(Field, Option<Condition>)]) -> Option<Conjunction> {
    let mut conditions = Vec::with_capacity(wanted.len());
    for (field, condition) in wanted {
        let Some(condition) = condition else { continue };
        if !shape.has(*field) {
            return None;
        }
        match shape.fixed(*field, program) {
            Some(value) if condition.holds(value) => {}
            Some(_) => return None,
            None => conditions.push((canonical(*field), *condition)),
        }
    }
    Some(conditions)
}
