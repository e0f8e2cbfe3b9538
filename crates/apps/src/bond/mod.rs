//! The bond: several ports that are one.

pub mod assignment;
pub mod lacp;
pub mod links;
pub mod rebalance;
