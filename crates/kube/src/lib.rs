//! The controller that brings a cluster's services to nodes.
//!
//! [`desired::desired`] computes what nodes and the cluster should have from the objects, without a server,
//! and [`incremental::Incremental`] computes the part of it that a change may affect.

mod classes;
mod conditions;
pub mod config;
pub mod desired;
pub mod endpoints;
mod follow;
mod gateway;
pub mod incremental;
mod lease;
mod names;
mod nodes;
pub mod objects;
pub mod pools;
mod report;
mod run;
mod serve;
mod shared;

pub use run::{Arguments, run};
#[cfg(test)]
mod tests;
