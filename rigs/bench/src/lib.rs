//! `weir bench`: measurements on this machine, beside rivals where there are any.
//!
//! It is a library, and a feature of the binary, so that a packaged daemon can do without it.
//!
//! - `engine.rs`: packets a second through seven programs, memory to memory. `scenarios.rs`: the programs.
//! - `memory.rs`: what an entry costs. `million.rs`: a configuration with a million of them.
//! - `scaling.rs`: two workers over one.
//! - `changes/`: how long breaths take, and what is lost, while something changes.
//! - `dpdk.rs`, `xdp.rs`: beside dpdk-testpmd, on DPDK's devices and on AF_XDP. `peers.rs` has the two take
//!   turns, `arm.rs` is weir's part, in a process of its own.
//! - `pipes/`: programs beside those of DPDK's own match-action pipeline.
//! - `path.rs`: schemes of choosing paths, in the network of `weir lab path`.
//! - `overlay/`: the cache of containers' networks beside plain VXLAN, mode `oncache`, and no overlay.
//! - `bond/`: a bond beside Open vSwitch's.
//! - `lb.rs`: the load balancer's programs beside those of `engine.rs`.
//! - `xenoflow/`: the experiments of XenoFlow's thesis.
//! - `generate.rs`: traffic whose truth is known, into a recording or out of an interface.
//! - `record.rs`: `weir measure` on a recording, beside others that read one.
//! - `measure/`: what sketches and their aggregator cost, and how true they are.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod arm;
mod bond;
mod changes;
mod command;
mod dpdk;
mod engine;
mod generate;
mod lb;
mod measure;
mod memory;
mod million;
mod overlay;
mod path;
mod peers;
mod pipes;
mod rate;
mod record;
mod scaling;
mod scenarios;
#[cfg(feature = "dpdk")]
mod sink;
mod xdp;
mod xenoflow;

pub use command::{Bench, run};
