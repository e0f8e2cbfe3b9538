//! `weir bench`: measurements on this machine, compared with rivals if there are any.
//!
//! This crate is a library, and a feature of the binary, so that a packaged daemon can do without it.
//!
//! - `engine.rs`: packets per second through seven programs, memory to memory. `scenarios.rs`: the programs.
//! - `memory.rs`: what an entry costs. `million.rs`: a configuration with a million entries.
//! - `scaling.rs`: the speedup from one worker to two.
//! - `changes/`: how long breaths take, and what is lost, while something changes.
//! - `dpdk.rs`, `xdp.rs`: comparison with dpdk-testpmd, on DPDK's devices and on AF_XDP. `peers.rs` lets the
//!   two take turns, `arm.rs` is weir's part, in a separate process.
//! - `executors/`: the engine on AF_XDP ports compared with the kernel's executor, on veth pairs.
//!   `source.rs`: frames that the kernel generates.
//! - `pipes/`: programs compared with those of DPDK's own match-action pipeline.
//! - `kernel/`: programs that are compiled to eBPF compared with programs in C.
//! - `path.rs`: path selection schemes, in the network of `weir lab path`.
//! - `overlay/`: the cache for container networks compared with plain VXLAN, mode `oncache`, and no overlay.
//! - `bond/`: a bond compared with Open vSwitch's.
//! - `lb.rs`: the load balancer's programs compared with those of `engine.rs`.
//! - `xenoflow/`: the experiments of XenoFlow's thesis.
//! - `selection.rs`: the measurements that a command line names.
//! - `generate.rs`: traffic with known ground truth, into a recording or out of an interface.
//! - `rate.rs`: the highest rate without loss, also of a daemon on another host.
//! - `record.rs`: `weir measure` on a recording, compared with other tools that read one.
//! - `measure/`: the cost and the accuracy of sketches and their aggregator.
//! - `solution/`: recordings and live traffic counted in the solutions of Agg-Evict's paper, for
//!   `weir measure --solution` and for measurements.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod arm;
mod bond;
mod changes;
mod command;
mod dpdk;
mod engine;
mod executors;
mod generate;
mod kernel;
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
mod selection;
#[cfg(feature = "dpdk")]
mod sink;
mod solution;
mod source;
mod xdp;
mod xenoflow;

pub use command::{Bench, run};
pub use solution::{MEASURE, read_measurements};
