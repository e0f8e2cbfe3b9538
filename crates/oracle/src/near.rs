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
    let failed = |row: &Row| -> Vec<(KeyField, Criterion, EntryMatch)> {
        let wanted = per_entry(key).zip(&row.entry.matches);
        let failed =
            wanted.filter(|((field, criterion), wanted)| !satisfies(field, *criterion, Some(wanted)));
        failed.map(|((field, criterion), wanted)| (*field, criterion, *wanted)).collect()
    };
    // Texts are written only for the nearest entry: there may be very many.
    let distance = |row: &Row| {
        let failed = failed(row);
        let bits =
            failed.iter().map(|(field, criterion, wanted)| bits(field, *criterion, Some(wanted))).sum();
        Some((failed.len(), bits))
    };
    let differences = |row: &Row| {
        let failed = failed(row).into_iter();
        failed.map(|(field, criterion, wanted)| difference(&field, criterion, Some(&wanted))).collect()
    };
    fewest(rows, distance, differences)
}

/// Like [`nearest`], for the own entries of a FLOW pipe.
pub(super) fn nearest_flow(key: &FlowKey, rows: &[Row]) -> Option<Near> {
    let differences = |row: &Row| match row.entry.matches.first() {
        Some(EntryMatch::Flow(wanted)) => flow_differences(key, wanted),
        _ => Vec::new(),
    };
    let distance = |row: &Row| match row.entry.matches.first() {
        Some(EntryMatch::Flow(_)) => {
            let differences = differences(row);
            Some((differences.len(), differences.iter().map(|one| one.bits).sum()))
        }
        _ => None,
    };
    fewest(rows, distance, differences)
}

/// An entry that a packet missed narrowly.
pub(super) struct Near {
    /// Its position.
    pub row: usize,
    pub shown: Nearest,
}

/// Returns the row with the smallest distance: the number of differing fields, then of differing bits.
fn fewest(
    rows: &[Row],
    distance: impl Fn(&Row) -> Option<(usize, u32)>,
    differences: impl Fn(&Row) -> Vec<Difference>,
) -> Option<Near> {
    let compared = rows.iter().enumerate().filter_map(|(at, row)| Some((at, distance(row)?)));
    let (row, _) = compared.min_by_key(|(_, distance)| *distance)?;
    let entry = &rows[row].entry;
    let (key, origin, differences) = (EntryKey::of(entry), entry.origin, differences(&rows[row]));
    Some(Near { row, shown: Nearest { entry: key, origin, differences } })
}

/// Returns the number of bits in which a field differs from the required value.
fn bits(field: &KeyField, criterion: Criterion, wanted: Option<&EntryMatch>) -> u32 {
    let (value, mask) = target(field, criterion, wanted);
    field.actual.map_or(ones(width(field.field)), |actual| (actual ^ value) & mask).count_ones()
}

/// Returns the value that a field should have, and the bits that are compared; for a range, the nearer end.
fn target(field: &KeyField, criterion: Criterion, wanted: Option<&EntryMatch>) -> (u128, u128) {
    let all = ones(width(field.field));
    match (criterion, wanted) {
        (Criterion::Const { value, mask }, _) => (value, mask),
        (Criterion::PerEntry { mask }, Some(EntryMatch::Value(value))) => (*value, mask),
        (_, Some(EntryMatch::Masked { value, mask })) => (*value, *mask),
        (_, Some(EntryMatch::Prefix { value, length })) => (*value, prefix_mask(width(field.field), *length)),
        (_, Some(EntryMatch::Range { first, last })) => {
            let below = field.actual.is_some_and(|actual| actual < u128::from(*first));
            (u128::from(if below { *first } else { *last }), all)
        }
        _ => (0, all),
    }
}

/// Describes a field that does not satisfy its criterion.
pub(super) fn difference(field: &KeyField, criterion: Criterion, wanted: Option<&EntryMatch>) -> Difference {
    let shown = |value: u128| FieldValue { field: field.field, value }.to_string();
    let (value, mask) = target(field, criterion, wanted);
    let text = match (criterion, wanted) {
        (_, Some(EntryMatch::Prefix { length, .. })) => format!("{}/{length}", shown(value)),
        (_, Some(EntryMatch::Range { first, last })) if first == last => first.to_string(),
        (_, Some(EntryMatch::Range { first, last })) => format!("{first}-{last}"),
        (Criterion::Const { .. }, _) | (_, Some(EntryMatch::Value(_) | EntryMatch::Masked { .. })) => {
            if mask == ones(width(field.field)) {
                shown(value)
            } else {
                format!("{}/{}", shown(value), Mask(mask))
            }
        }
        _ => "present".to_string(),
    };
    let bits = bits(field, criterion, wanted);
    Difference { name: field.field.name().to_string(), wanted: text, actual: field.actual.map(shown), bits }
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
