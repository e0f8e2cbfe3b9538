//! Entries that no packet can hit, whatever leads to their pipe.

use crate::domain::Condition;
use crate::rows::{HitBy, Rows};
use crate::shape::{PacketShape, default};
use crate::shapes::every_shape;
use crate::solve::{Box, Conjunction, Solution, solve};
use crate::symbols::canonical;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use weir_packet::{Field, LevelId};
use weir_program::{Operation, Pipe, PipeId, Program};

/// Why no packet hits an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyUnreachable {
    /// Every packet that meets the entry's conditions hits one of these entries of the same pipe.
    Shadowed(BTreeSet<usize>),
    /// No packet meets the entry's conditions.
    NoSuchPacket,
    /// No packet that meets the entry's conditions, and hits no other entry, arrives at the pipe.
    NotReached,
}

/// Returns the entries of a pipe that no packet can hit. An entry for which more than `steps` steps are
/// needed is taken to be reachable.
#[must_use]
pub fn unreachable(program: &Program, id: PipeId, steps: u32) -> Vec<(usize, WhyUnreachable)> {
    let pipe = &program.pipes[id.index()];
    let rows = Rows::of(pipe);
    let arrivals = arrivals(program, pipe, &rows.constants);
    let mut found = Vec::new();
    for (at, row) in rows.rows.iter().enumerate() {
        let HitBy::Fields(wanted) = &row.hit_by else { continue };
        let before: Vec<usize> = rows.before(at).collect();
        let mut blamed = BTreeSet::new();
        let is_hit = arrivals.iter().any(|arrival| {
            let Some(conditions) = arrival.meets(wanted) else { return false };
            let Some(within) = arrival.within.with_all(&conditions) else { return false };
            let earlier: Vec<(usize, Conjunction)> = before
                .iter()
                .filter_map(|other| match &rows.rows[*other].hit_by {
                    HitBy::Fields(wanted) => Some((*other, arrival.meets(wanted)?)),
                    HitBy::Target(..) | HitBy::Flow(_) | HitBy::Default => None,
                })
                .collect();
            let mut forbidden: Vec<&[(Field, Condition)]> =
                earlier.iter().map(|(_, conditions)| conditions.as_slice()).collect();
            forbidden.extend(arrival.excluded.iter().map(Vec::as_slice));
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

/// Packets, as they arrive at a pipe, that the pipe distinguishes only by values.
#[derive(PartialEq, Eq, Hash)]
struct PipeArrival {
    /// The fields that the pipe compares: whether the packets lack them, have them, or have them with a value
    /// that their shape determines.
    fields: BTreeMap<Field, FieldPresence>,
    /// The conditions under which the packets meet the pipe's constants.
    within: Box,
    /// Conditions that none of the packets meets.
    excluded: Vec<Conjunction>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum FieldPresence {
    Absent,
    Present,
    Fixed(u128),
}

impl PipeArrival {
    /// Returns the conditions on these packets; `None` if no packet meets them.
    fn meets(&self, wanted: &[(Field, Option<Condition>)]) -> Option<Conjunction> {
        let mut conditions = Vec::with_capacity(wanted.len());
        for (field, condition) in wanted {
            let Some(condition) = condition else { continue };
            match self.fields.get(field)? {
                FieldPresence::Absent => return None,
                FieldPresence::Fixed(value) if condition.holds(*value) => {}
                FieldPresence::Fixed(_) => return None,
                FieldPresence::Present => conditions.push((canonical(*field), *condition)),
            }
        }
        Some(conditions)
    }
}

/// Returns the packets that may arrive at a pipe and meet its constants. Actions in front of the pipe may
/// have given a packet any shape, and the fields that they write any value.
fn arrivals(program: &Program, pipe: &Pipe, constants: &[(Field, Condition)]) -> HashSet<PipeArrival> {
    let written = written(program);
    let compared: BTreeSet<Field> = pipe.matches.iter().map(|one| one.field).collect();
    let keys: BTreeSet<Field> = compared.iter().map(|field| canonical(*field)).collect();
    let presence = |shape: &PacketShape, field: Field| match shape.fixed(field, program) {
        _ if !shape.has(field) => FieldPresence::Absent,
        Some(value) if !written.contains(&canonical(field)) => FieldPresence::Fixed(value),
        Some(_) | None => FieldPresence::Present,
    };
    let constants: Vec<_> = constants.iter().map(|(field, condition)| (*field, Some(*condition))).collect();
    let arrival = |shape: PacketShape| {
        let matters = |one: &Conjunction| {
            one.iter().any(|(field, _)| keys.contains(field))
                && !one.iter().any(|(field, _)| written.contains(field))
        };
        let mut arrival = PipeArrival {
            fields: compared.iter().map(|field| (*field, presence(&shape, *field))).collect(),
            within: Box::default(),
            excluded: shape.excluded(program).into_iter().filter(matters).collect(),
        };
        let conditions = arrival.meets(&constants)?;
        arrival.within = arrival.within.with_all(&conditions)?;
        Some(arrival)
    };
    every_shape(program).into_iter().filter_map(arrival).collect()
}

/// Returns the fields that actions may write, by their canonical names.
fn written(program: &Program) -> BTreeSet<Field> {
    let operations = || program.pipes.iter().flat_map(|pipe| &pipe.templates).flat_map(|one| &one.operations);
    let mut written: BTreeSet<Field> = operations().filter_map(Operation::writes).map(canonical).collect();
    written.extend(METADATA);
    if operations().any(|one| matches!(one, Operation::Encap(_))) {
        written.extend([Field::Ipv4Src, Field::Ipv6Src, Field::Ipv4Dst, Field::Ipv6Dst, Field::TunnelId]);
    }
    if operations().any(|one| one.tunnel().is_some()) {
        let moved = written.iter().filter(|field| field.kind.has_inner());
        let both = [LevelId::Outer, LevelId::Inner];
        let moved: Vec<Field> = moved.flat_map(|field| both.map(|level| Field { level, ..*field })).collect();
        written.extend(moved);
    }
    written
}

/// Facts about a packet that no shape determines.
const METADATA: [Field; 6] =
    [Field::Meta0, Field::Meta1, Field::Meta2, Field::Meta3, Field::MeterColor, Field::InputPort];
