//! ACL: masks, ranges and priorities per entry. The check finds rules that no packet can hit.

use super::Type;
use crate::check::{Finding, FindingKind, SHADOW_MAX};
use crate::{Entry, EntryMatch, Pipe};

pub const TYPE: Type = Type {
    word: "acl",
    criteria: &["masked", "range"],
    matches: "a value, `masked` or `range`",
    priorities: true,
};

/// Reports entries that are covered by one that takes precedence. Every pair is compared, so pipes with more
/// than [`SHADOW_MAX`] entries are skipped.
pub fn shadowed(pipe: &Pipe, findings: &mut Vec<Finding>) {
    if pipe.entries.len() > SHADOW_MAX {
        return;
    }
    let entries: Vec<Entry> = pipe.entries.iter().collect();
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|&at| entries[at].priority);
    for (rank, &at) in order.iter().enumerate() {
        let entry = &entries[at];
        let better = order[..rank].iter().find(|&&better| covers(&entries[better], entry));
        let Some(&by) = better else { continue };
        let priority = entries[by].priority;
        // Equal keys are reported elsewhere.
        if entries[by].matches != entry.matches || priority != entry.priority {
            findings.push(Finding::new(entry.origin, FindingKind::Shadowed { by: by + 1, priority }));
        }
    }
}

fn covers(better: &Entry, entry: &Entry) -> bool {
    better.matches.len() == entry.matches.len()
        && better.matches.iter().zip(&entry.matches).all(|(wide, narrow)| covers_field(*wide, *narrow))
}

fn covers_field(wide: EntryMatch, narrow: EntryMatch) -> bool {
    match (wide, narrow) {
        (EntryMatch::Any, _) => true,
        (EntryMatch::Masked { value, mask }, EntryMatch::Masked { value: inner, mask: finer }) => {
            mask & !finer == 0 && inner & mask == value
        }
        (EntryMatch::Range { first, last }, EntryMatch::Range { first: from, last: to }) => {
            first <= from && to <= last
        }
        _ => false,
    }
}
