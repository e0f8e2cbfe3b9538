//! Ports on the queues of a network interface, using AF_XDP.
//!
//! - `interface.rs`: an interface with weir's XDP program attached; opens its queues. Start here.
//! - `port.rs`: one queue as a [`weir_packet::Port`]: receive, transmit, flush.
//! - `ring.rs`: the rings shared with the kernel. `umem.rs`: which frames the kernel owns. These two contain
//!   the unsafe code.
//! - `joining.rs`: frames larger than a page, which arrive in pieces.
//! - `socket.rs`: the system calls.
//! - `succession.rs`: an interface and its sockets pass from one process to another.
//! - `line.rs`: what the daemon and a worker share about a queue, when its interface goes and comes back.
//! - `monitor.rs`: news of interfaces. `membership.rs`: which frames the NIC lets through.
//! - `carrier.rs`: the state of the link.
//! - `ethtool.rs`, `far.rs`: what a driver offloads, at an interface and at a veth's other end.
//!   `report.rs`: the same for people (`weir ports`).
//! - `decider.rs`: what a program that handles frames before they reach a socket needs.
//! - `error.rs`: what can fail, and what to do then.

mod carrier;
mod decider;
mod error;
#[allow(unsafe_code, reason = "the ethtool ioctl")]
mod ethtool;
mod far;
mod interface;
mod joining;
mod line;
#[allow(unsafe_code, reason = "a socket option that rustix does not have")]
mod membership;
mod monitor;
mod news;
mod port;
mod report;
#[allow(unsafe_code, reason = "memory shared with the kernel")]
mod ring;
mod socket;
mod spread;
mod succession;
#[allow(unsafe_code, reason = "chunks pass between the pool and the kernel")]
mod umem;

pub use carrier::Carrier;
pub use error::XdpError;
pub use ethtool::{Ethtool, QueuesInUse};
pub use interface::{Mode, Queues, Remnant, Wanted, XdpConfig, XdpInterface};
pub use monitor::{InterfaceList, LinkMonitor};
pub use news::{InterfaceNews, InterfaceState};
pub use port::{Rings, XdpPort};
pub use report::{InterfaceReport, interfaces, obstacles};
pub use spread::{Spread, spread};
pub use succession::{Handover, Home, Left, LostFrames, Memory, Offer};
