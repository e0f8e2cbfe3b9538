//! `weir sim path`: a leaf-spine fabric of thousands of hosts, packet by packet.
//!
//! The simulator evaluates what a test bed of two hosts cannot: path selection schemes with many hosts that
//! all choose at once, at loads of 10 to 90 %, with slow, cut, lossy and lying links. The selection code is
//! that of the crate `path`, unchanged. Probes are packets like any other. A run is single-threaded, and its
//! output is determined by its options and its seed, to the byte. A sweep is spread over machines as
//! processes (docs/design/simulator.md).
//!
//! Simplifications: TCP ([`tcp`]); discovery (a path's ports are known); hosts take no time.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod calendar;
mod command;
mod fabric;
mod loads;
mod node;
mod outcome;
mod packet;
mod run;
mod scenario;
pub mod tcp;
mod trace;

pub use command::{Merge, PathOptions, Sim, run};
