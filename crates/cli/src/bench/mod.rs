//! `weir bench`.
//!
//! - `engine.rs`: packets a second through seven programs, memory to memory. `scenarios.rs`: the programs.
//! - `memory.rs`: what an entry costs.

pub mod engine;
pub mod memory;
pub mod scenarios;
