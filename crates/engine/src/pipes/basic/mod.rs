//! BASIC: exact match of some fields, each under one mask for the whole pipe.

mod table;

pub use table::BasicTable;
pub(crate) use table::each_width;

use super::Type;

pub const TYPE: Type = Type {
    word: "basic",
    criteria: &["per_entry"],
    matches: "a value or `per_entry`; LPM pipes have `prefix`, ACL pipes `masked` and `range`",
    priorities: false,
};
