//! The controller that brings a cluster's services to nodes.
//!
//! [`desired::desired`] computes what nodes and the cluster should have from a snapshot of objects, without
//! a server.

pub mod config;
pub mod desired;
pub mod endpoints;
mod follow;
mod gateway;
mod lease;
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
