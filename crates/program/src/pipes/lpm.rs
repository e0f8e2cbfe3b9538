//! LPM: longest prefix match on one field.

use super::Type;
use crate::check::FindingKind;
use crate::{Criterion, Pipe};

pub const TYPE: Type = Type {
    word: "lpm",
    criteria: &["prefix"],
    matches: "a value, and `prefix` for one field",
    priorities: false,
};

/// Checks that exactly one field is matched by prefix.
pub fn check(pipe: &Pipe, kinds: &mut Vec<FindingKind>) {
    let count = pipe.matches.iter().filter(|one| one.criterion == Criterion::Prefix).count();
    if count != 1 {
        kinds.push(FindingKind::PrefixCount { count });
    }
}
