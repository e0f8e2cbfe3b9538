//! `weir bench`: measurements on this machine, beside rivals where there are any.
//!
//! It is a library, and a feature of the binary, so that a packaged daemon can do without it.
//!
//! - `engine.rs`: packets a second through seven programs, memory to memory. `scenarios.rs`: the programs.
//! - `memory.rs`: what an entry costs.
//! - `dpdk.rs`, `xdp.rs`: beside dpdk-testpmd, on DPDK's devices and on AF_XDP. `peers.rs` has the two take
//!   turns, `arm.rs` is weir's part, in a process of its own.
//! - `bond/`: a bond beside Open vSwitch's.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod arm;
mod bond;
mod command;
mod dpdk;
mod engine;
mod memory;
mod peers;
mod scenarios;
#[cfg(feature = "dpdk")]
mod sink;
mod xdp;

pub use command::{Bench, measure};
