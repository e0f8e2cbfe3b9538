//! The link state of a DPDK port, for threads other than the port's worker.
//!
//! DPDK lets any thread query a link, but calls that concern the same port must not overlap, and none may be
//! made while the port is stopped or closed. The worker reads the counters of the same device meanwhile: a
//! lock in the device serialises the two, and no burst waits for it. The port may close at any time, with its
//! last queue, on the worker's thread. A link therefore holds only a weak reference: it keeps the device open
//! for the duration of one query, and finds nothing once the port is closed.

use super::shim::Device;
use crate::LinkState;
use std::sync::Weak;

/// `ENODEV` of Linux.
const ENODEV: i32 = 19;

/// Queries the link of one DPDK port from any thread. It does not keep the port open.
#[derive(Clone)]
pub struct DpdkLink(Weak<Device>);

impl DpdkLink {
    pub(super) fn new(device: Weak<Device>) -> DpdkLink {
        DpdkLink(device)
    }

    /// Returns the link's state as far as the driver knows it without waiting. A closed port is down; a port
    /// whose driver does not report its state counts as up.
    #[must_use]
    pub fn state(&self) -> LinkState {
        let Some(device) = self.0.upgrade() else { return LinkState::default() };
        match device.link() {
            Ok(state) => state,
            Err(errno) => LinkState { up: errno != ENODEV, speed_bps: None },
        }
    }
}
