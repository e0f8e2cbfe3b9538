//! LPM: longest prefix match on one field.

mod table;

pub use table::LpmTable;
