//! The test bed of labs, benches and tests: network namespaces, cables between them, and the processes in
//! them.
//!
//! A [`Run`] owns namespaces, processes and files, and removes them however it ends. A [`Namespace`] runs
//! commands; [`cable`] connects two of them, and a [`Switch`] connects many. Nothing here knows weir.

mod cable;
mod listener;
pub mod namespace;
pub mod run;

pub use cable::{CableEnd, Switch, cable};
pub use listener::with_listener;
pub use namespace::Namespace;
pub use run::{Run, Started, is_root, kernel_lacks};
