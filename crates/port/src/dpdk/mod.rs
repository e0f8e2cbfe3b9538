//! DPDK ports: any device that a driver of DPDK 22.11 supports, named by its devargs (`0000:01:00.0`,
//! `net_memif0,role=client`).
//!
//! `shim.c` contains DPDK's inline data path and converts whole bursts to frames; `shim.rs` declares it and
//! holds all unsafe code; `eal.rs` starts DPDK once per process and explains its errors; `pool.rs` and
//! `port.rs` are the pool and the port that a worker uses; `link.rs` is the link state for other threads.
//! DPDK loads its drivers itself as plug-ins, so linking is dynamic and must stay so. `member.c` and
//! `member.rs` wrap a DPDK sketch that serves as a baseline in benches.

mod eal;
mod link;
#[allow(unsafe_code, reason = "DPDK is C; the file's head has the promises")]
mod member;
mod pool;
mod port;
#[allow(unsafe_code, reason = "DPDK is C; the file's head has the promises")]
mod shim;

pub use eal::{DpdkError, Eal, EalMemory, EalOptions, EalThread};
pub use link::DpdkLink;
pub use member::MemberSketch;
pub use pool::{MBUF_ROOM, MbufPool};
pub use port::{DESCRIPTORS, DpdkOptions, DpdkPort};
