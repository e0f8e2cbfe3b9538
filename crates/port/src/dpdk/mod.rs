//! DPDK ports: any device that a DPDK 22.11 driver knows, by its devargs (`0000:01:00.0`, `net_memif0,role=client`).
//!
//! `shim.c` has DPDK's inline data path and turns whole bursts into frames; `shim.rs` declares it and holds all unsafe
//! code; `eal.rs` starts DPDK once in a process and makes sentences of its errors; `pool.rs` and `port.rs` are the pool
//! and the port that a worker sees, and `link.rs` is what others ask about its link. Drivers are plug-ins that DPDK loads itself: linking is dynamic, and must stay so.

mod eal;
mod link;
mod pool;
mod port;
#[allow(unsafe_code, reason = "DPDK is C; the file's head has the promises")]
mod shim;

pub use eal::{DpdkError, Eal, EalMemory, EalOptions, EalThread};
pub use link::DpdkLink;
pub use pool::MbufPool;
pub use port::{DESCRIPTORS, DpdkOptions, DpdkPort};
