//! `weir bench`: measurements on this machine, in comparison with other programs where there are any.
//!
//! It is a library, and a feature of the binary, so that a packaged daemon can be built without it.
//!
//! - `engine.rs`: packets per second with seven programs, from memory to memory. `scenarios.rs`: the
//!   programs.
//! - `memory.rs`: the memory per entry.
//! - `dpdk.rs`, `xdp.rs`: in comparison with dpdk-testpmd, on DPDK devices and with AF_XDP. `peers.rs` lets
//!   the two take turns; `arm.rs` is weir's part, in a separate process.
//! - `bond/`: a bond in comparison with Open vSwitch's.

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
