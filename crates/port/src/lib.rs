//! Ports: where frames come from and where they go. A port is one queue owned by a worker; every kind of port
//! keeps the promises of [`weir_packet::Port`].
//!
//! - [`MemPort`]: queues in memory, for tests.
//! - [`Generator`]: synthetic traffic, for benches.
//! - [`Arrivals`]: synthetic traffic at a given rate; frames that are not taken in time are lost.
//!   [`zero_loss`] finds the highest rate without loss.
//! - [`PcapPort`]: receives a recording in virtual time and records the frames that it transmits.
//! - [`XdpPort`]: a queue of a network interface, using AF_XDP.
//! - `dpdk::DpdkPort`: a queue of any device with a DPDK driver (feature `dpdk`).
//! - [`FaultPort`]: loses, duplicates, truncates, corrupts, delays and reorders the frames of another port.
//! - [`TracePort`]: records the frames of another port.
//!
//! The last two wrap any port and pass on whatever they do not change. [`huge_pages`] counts and reserves
//! memory for DPDK, and [`numa`] places memory close to a NIC. [`tun`] connects sockets in a separate
//! namespace.

mod arrivals;
#[cfg(feature = "dpdk")]
pub mod dpdk;
mod fault;
mod generator;
pub mod huge_pages;
mod link;
mod mem;
pub mod numa;
pub mod pcap;
mod rewrap;
mod trace;
pub mod tun;
mod verify;
pub mod xdp;
pub mod zero_loss;

pub use arrivals::{Arrivals, Pace};
pub use fault::{Delay, FaultPort, Faults, LATE_MAX, PATIENCE_NS, Rates};
pub use generator::{Generator, Patch, Stream, UdpFlow};
pub use link::LinkState;
pub use mem::{MemPort, MemWire};
pub use pcap::PcapPort;
pub use rewrap::{Retrace, rewrap};
pub use trace::{Recording, Taps, TracePort};
pub use verify::{WrongChecksum, wrong_checksums};
pub use xdp::{XdpInterface, XdpPort};
