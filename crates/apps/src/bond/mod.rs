//! The bond: several ports that are one.

pub mod lacp;
