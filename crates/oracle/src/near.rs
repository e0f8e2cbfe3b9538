//! Which entry a packet missed most narrowly, and by how much: the answer to "why did this not match?".

use super::fields::{ones, width};
use super::lookup::{per_entry, prefix_mask, satisfies};
use super::state::Row;
use super::trace::{Difference, FieldValue, KeyField, Mask, Nearest};
use weir_packet::FlowKey;
use weir_program::change::EntryKey;
use weir_program::{Criterion, EntryMatch};

/// Returns the entry with the fewest differing fields and, among those, the fewest differing bits.
pub(super) fn nearest(key: &[KeyField], rows: &[Row]) -> Option<Near> {
    fewest(rows, |row| {
        let wanted = per_entry(key).zip(&row.entry.matches);
        let failed =
            wanted.filter(|((field, criterion), wanted)| !satisfies(field, *criterion, Some(wanted)));
        Some(failed.map(|((field, criterion), wanted)| difference(field, criterion, Some(wanted))).collect())
    })
}

/// Like [`nearest`], for the own entries of a FLOW pipe.
pub(super) fn nearest_flow(key: &FlowKey, rows: &[Row]) -> Option<Near> {
    fewest(rows, |row| match row.entry.matches.first() {
        Some(EntryMatch::Flow(wanted)) => Some(flow_differences(key, wanted)),
        _ => None,
    })
}

/// An entry that a packet missed narrowly.
pub(super) struct Near {
    /// Its position.
    pub row: usize,
    pub shown: Nearest,
}

fn fewest(rows: &[Row], differences: impl Fn(&Row) -> Option<Vec<Difference>>) -> Option<Near> {
    let compared = rows.iter().enumerate().filter_map(|(at, row)| Some((at, differences(row)?)));
    let nearest = compared.min_by_key(|(_, differences)| {
        (differences.len(), differences.iter().map(|one| one.bits).sum::<u32>())
    });
    nearest.map(|(row, differences)| {
        let entry = &rows[row].entry;
        Near { row, shown: Nearest { entry: EntryKey::of(entry), origin: entry.origin, differences } }
    })
}

/// Describes a field that does not satisfy its criterion.
pub(super) fn difference(field: &KeyField, criterion: Criterion, wanted: Option<&EntryMatch>) -> Difference {
    let all = ones(width(field.field));
    let shown = |value: u128| FieldValue { field: field.field, value }.to_string();
    let masked = |value: u128, mask: u128| match mask == all {
        true => (shown(value), value, mask),
        false => (format!("{}/{}", shown(value), Mask(mask)), value, mask),
    };
    let (wanted, value, mask) = match (criterion, wanted) {
        (Criterion::Const { value, mask }, _) => masked(value, mask),
        (Criterion::PerEntry { mask }, Some(EntryMatch::Value(value))) => masked(*value, mask),
        (_, Some(EntryMatch::Masked { value, mask })) => masked(*value, *mask),
        (_, Some(EntryMatch::Prefix { value, length })) => {
            (format!("{}/{length}", shown(*value)), *value, prefix_mask(width(field.field), *length))
        }
        (_, Some(EntryMatch::Range { first, last })) => {
            // The nearer end of the range.
            let below = field.actual.is_some_and(|actual| actual < u128::from(*first));
            (
                if first == last { first.to_string() } else { format!("{first}-{last}") },
                u128::from(if below { *first } else { *last }),
                all,
            )
        }
        _ => ("present".to_string(), 0, all),
    };
    let bits = field.actual.map_or(all, |actual| (actual ^ value) & mask).count_ones();
    Difference { name: field.field.name().to_string(), wanted, actual: field.actual.map(shown), bits }
}

/// Describes a field that cannot be hashed because the packet lacks it.
pub(super) fn absent(field: &KeyField) -> Difference {
    let bits = width(field.field) as u32;
    Difference { name: field.field.name().to_string(), wanted: "present".to_string(), actual: None, bits }
}

/// Describes a packet without a flow key.
pub(super) fn no_ip() -> Difference {
    Difference { name: "flow key".to_string(), wanted: "IPv4 or IPv6".to_string(), actual: None, bits: 1 }
}

fn flow_differences(actual: &FlowKey, wanted: &FlowKey) -> Vec<Difference> {
    let parts = |key: &FlowKey| {
        [
            ("src", key.src().to_string()),
            ("dst", key.dst().to_string()),
            ("sport", key.sport().to_string()),
            ("dport", key.dport().to_string()),
            ("protocol", key.protocol().to_string()),
            ("vni", key.vni().map_or("none".to_string(), |vni| vni.to_string())),
        ]
    };
    let pairs = parts(actual).into_iter().zip(parts(wanted));
    pairs
        .filter(|(has, wants)| has != wants)
        .map(|((name, has), (_, wanted))| Difference {
            name: name.to_string(),
            wanted,
            actual: Some(has),
            bits: 1,
        })
        .collect()
}
