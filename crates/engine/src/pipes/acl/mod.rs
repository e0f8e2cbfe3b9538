//! ACL: masks, ranges and priorities per entry.

mod key;
mod table;

pub use table::AclTable;
