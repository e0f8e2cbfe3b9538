//! The flow-pipe engine: programs, their check, two executors, workers. It knows only the `Port` trait, no
//! driver.

mod affinity;
mod aggregate;
#[cfg(any(test, feature = "arbitrary"))]
pub mod arbitrary;
pub mod batch;
pub mod buckets;
pub mod builder;
pub mod census;
pub mod change;
pub mod check;
pub mod director;
pub(crate) mod entry_list;
pub mod fragments;
pub mod interpreter;
pub mod nat;
pub mod operation;
pub mod owner;
pub mod parcel;
pub mod pipes;
pub mod program;
pub mod quic;
pub mod ring;
pub mod snapshot;
pub mod sources;
mod verdict;
pub mod worker;

pub use table::delta;
pub use verdict::{Copied, Verdict};
pub use worker::WAITING_MAX;
