//! A program of pipes as written: ports, pipes, groups, counters and meters, with names resolved to indices
//! and nothing compiled yet; and everything its executors must agree on: the check, changes at run time, the
//! buckets of groups, snapshots. It depends on no executor.

mod affinity;
pub mod buckets;
pub mod builder;
pub mod census;
pub mod change;
pub mod check;
pub mod director;
pub mod entry_list;
pub mod fragments;
mod model;
pub mod nat;
pub mod operation;
pub mod owner;
pub mod pipes;
pub mod quic;
pub mod replica;
pub mod snapshot;
pub mod sources;
mod verdict;

pub use model::*;
pub use verdict::{Copied, Verdict};
