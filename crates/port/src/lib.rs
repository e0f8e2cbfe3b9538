//! Where frames come from and go to. A port is one queue that a worker holds; all of them keep the promises of
//! [`packet::Port`].
//!
//! - [`MemPort`]: queues in memory, for tests.
//! - [`Generator`]: traffic out of nothing, for benches.
//! - [`PcapPort`]: a recording is received in virtual time, what is transmitted becomes another.
//! - [`XdpPort`]: a queue of a network interface, by AF_XDP.
//! - `dpdk::DpdkPort`: a queue of any device that DPDK drives (feature `dpdk`).
//! - [`FaultPort`]: loses, repeats, cuts, corrupts, delays and reorders what passes another port.
//! - [`TracePort`]: records what passes another port.
//!
//! The last two wrap any port and pass on whatever they do not change. [`huge_pages`] says whether DPDK has memory.

#[cfg(feature = "dpdk")]
pub mod dpdk;
mod fault;
mod generator;
pub mod huge_pages;
mod link;
mod mem;
pub mod pcap;
mod trace;
pub mod xdp;

pub use fault::{Delay, FaultPort, Faults, LATE_MAX, PATIENCE_NS, Rates};
pub use generator::{Generator, Patch, Stream, UdpFlow};
pub use link::LinkState;
pub use mem::{MemPort, MemWire};
pub use pcap::PcapPort;
pub use trace::{Taps, TracePort};
pub use xdp::{XdpInterface, XdpPort};
