//! The flow-pipe engine: programs, their check, two executors, workers. It knows the `Port` trait and no driver.

pub mod change;
pub mod program;
pub mod snapshot;
mod verdict;

pub use verdict::Verdict;
