//! `weir sim path`: a leaf-spine fabric of thousands of hosts, packet by packet.
//!
//! It judges what a test bed of two hosts cannot: schemes that choose paths, with many hosts that all choose
//! at once, at loads of 10 to 90 %, with slow, cut, lossy and lying links. The choice is that of the crate
//! `path`, unchanged. Probes are packets like others. A run is a function of its options and its seed, to the
//! byte, and is one thread; a sweep spreads over machines as processes (docs/simulator.md).
//!
//! What is simplified: TCP ([`tcp`]), discovery (a path's ports are known), and hosts cost no time.

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
