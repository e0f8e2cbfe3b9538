//! BASIC: exact match of some fields, each under one mask for the whole pipe.

mod table;

pub use table::BasicTable;
