//! `weir bench`.
//!
//! - `engine.rs`: packets a second through seven programs, memory to memory. `scenarios.rs`: the programs.
//! - `memory.rs`: what an entry costs.
//! - `dpdk.rs`, `xdp.rs`: beside dpdk-testpmd, on DPDK's devices and on AF_XDP. `peers.rs` has the two take turns, `arm.rs`
//!   is weir's part, in a process of its own.
//! - `bond/`: a bond beside Open vSwitch's.

pub mod arm;
pub mod bond;
pub mod dpdk;
pub mod engine;
pub mod memory;
pub mod peers;
pub mod scenarios;
#[cfg(feature = "dpdk")]
mod sink;
pub mod xdp;
