//! The entries of pipes, as conditions on fields.

use crate::domain::Condition;
use weir_packet::Field;
use weir_program::{Criterion, Entry, EntryMatch, GroupChoice, GroupId, Pipe, PipeKind};

/// An entry of a pipe.
#[derive(Clone, Debug)]
pub struct PipeRow {
    /// The entry.
    pub entry: Entry,
    /// The packets that hit the entry.
    pub hit_by: HitBy,
    /// Of the rows that a packet meets, the one with the lowest number is hit.
    pub rank: u32,
}

/// The packets that hit an entry, if no other takes precedence.
#[derive(Clone, Debug)]
pub enum HitBy {
    /// Packets whose fields meet these conditions; without a condition, a packet may lack the field.
    Fields(Vec<(Field, Option<Condition>)>),
    /// Packets for which a group picks this target.
    Target(GroupId, u16),
    /// Packets of a flow with an entry of its own.
    Flow(weir_packet::FlowKey),
    /// Packets of flows that are learnt for the default entry.
    Default,
}

/// The rows of a pipe, and its constants.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The conditions that all hits meet.
    pub constants: Vec<(Field, Condition)>,
    /// The rows, in the order of the pipe's entries.
    pub rows: Vec<PipeRow>,
    /// The positions of the rows in the order of their ranks.
    pub by_rank: Vec<usize>,
}

impl Rows {
    /// Returns the rows of a pipe.
    #[must_use]
    pub fn of(pipe: &Pipe) -> Rows {
        let constants = pipe.matches.iter().filter_map(|one| match one.criterion {
            Criterion::Const { value, mask } => Some((one.field, Condition::Bits { value, mask })),
            Criterion::PerEntry { .. } | Criterion::Prefix | Criterion::Masked | Criterion::Range => None,
        });
        let rows: Vec<PipeRow> = pipe.entries.iter().map(|entry| row(pipe, entry)).collect();
        let mut by_rank: Vec<usize> = (0..rows.len()).collect();
        by_rank.sort_by_key(|at| rows[*at].rank);
        Rows { constants: constants.collect(), rows, by_rank }
    }

    /// Returns the rows that take precedence over the row `at` and that some packet could meet together with
    /// it, in their order.
    pub fn before(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        let row = &self.rows[at];
        let earlier = self.by_rank.iter().copied().take_while(move |other| *other != at);
        earlier.filter(move |other| self.rows[*other].overlaps(row))
    }
}

impl PipeRow {
    /// Whether some packet could meet both rows.
    #[must_use]
    pub fn overlaps(&self, other: &PipeRow) -> bool {
        let (HitBy::Fields(own), HitBy::Fields(others)) = (&self.hit_by, &other.hit_by) else { return false };
        own.iter().zip(others).all(|((_, one), (_, other))| match (one, other) {
            (Some(one), Some(other)) => overlap(*one, *other),
            (None, _) | (_, None) => true,
        })
    }
}

fn overlap(one: Condition, other: Condition) -> bool {
    match (one, other) {
        (Condition::Bits { value, mask }, Condition::Bits { value: to, mask: under }) => {
            (value ^ to) & mask & under == 0
        }
        (Condition::Range { first, last }, Condition::Range { first: from, last: to }) => {
            first <= to && from <= last
        }
        // A field has one kind of condition in all rows; if not, the search decides.
        (Condition::Bits { .. }, Condition::Range { .. })
        | (Condition::Range { .. }, Condition::Bits { .. }) => true,
    }
}

fn row(pipe: &Pipe, entry: Entry) -> PipeRow {
    let group = match pipe.kind.group() {
        Some(GroupChoice::One(group)) => group,
        Some(GroupChoice::ByMeta(_)) | None => GroupId::default(),
    };
    let hit_by = match entry.matches.first() {
        Some(EntryMatch::Target(target)) => HitBy::Target(group, *target),
        Some(EntryMatch::Member { group, target }) => HitBy::Target(*group, *target),
        Some(EntryMatch::Flow(key)) => HitBy::Flow(*key),
        Some(EntryMatch::Default) => HitBy::Default,
        _ => {
            let conditions = pipe.varying().zip(&entry.matches).map(|(one, wanted)| {
                let bits = one.field.spec().bits;
                (one.field, condition(one.criterion, *wanted, bits))
            });
            HitBy::Fields(conditions.collect())
        }
    };
    let rank = match (&pipe.kind, entry.matches.first()) {
        (PipeKind::Acl, _) => entry.priority,
        (PipeKind::Lpm, Some(EntryMatch::Prefix { length, .. })) => u32::from(u8::MAX - *length),
        _ => 0,
    };
    PipeRow { entry, hit_by, rank }
}

/// Returns the condition of an entry in one field; `None` for any value.
fn condition(criterion: Criterion, wanted: EntryMatch, bits: u8) -> Option<Condition> {
    match (criterion, wanted) {
        (Criterion::PerEntry { mask }, EntryMatch::Value(value)) => Some(Condition::Bits { value, mask }),
        (_, EntryMatch::Prefix { value, length }) => {
            let mask = crate::domain::ones(bits) & !crate::domain::ones(bits - length);
            Some(Condition::Bits { value, mask })
        }
        (_, EntryMatch::Masked { value, mask }) => Some(Condition::Bits { value, mask }),
        (_, EntryMatch::Range { first, last }) => {
            Some(Condition::Range { first: u128::from(first), last: u128::from(last) })
        }
        _ => None,
    }
}
