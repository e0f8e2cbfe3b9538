//! The controller that brings a cluster's services to nodes.
//!
//! [`desired::desired`] computes what nodes and the cluster should have from the objects of a moment, without
//! a server.

pub mod config;
pub mod desired;
pub mod endpoints;
mod gateway;
pub mod objects;
pub mod pools;
#[cfg(test)]
mod tests;
