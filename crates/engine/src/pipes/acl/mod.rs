//! ACL: masks, ranges and priorities per entry.

mod check;
mod key;
mod table;

pub use check::shadowed;
pub use table::AclTable;

use super::Type;

pub const TYPE: Type = Type {
    word: "acl",
    criteria: &["masked", "range"],
    matches: "a value, `masked` or `range`",
    priorities: true,
};
