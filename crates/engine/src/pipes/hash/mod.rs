//! HASH: a hash picks a bucket of a group, the bucket a target, and the target has an entry.

mod table;

pub use table::HashTable;
