//! Is the link of a DPDK port up, asked by others than the worker that has the port.
//!
//! DPDK lets any thread ask for a link, but wants calls about one port made one after the other, and none of them while
//! the port is stopped or closed. The worker asks the same device for its counters meanwhile: a lock in the device puts
//! both in a row, and no burst waits for it. And the port closes with its last queue, on the worker's thread, whenever
//! that is: whoever asks about the link has only a weak reference, which holds the device open for the length of one
//! question and finds nothing afterwards.

use super::shim::Device;
use crate::LinkState;
use std::sync::Weak;

/// `ENODEV` of Linux.
const ENODEV: i32 = 19;

/// Asks about the link of one DPDK port, from any thread. It does not keep the port open.
#[derive(Clone)]
pub struct DpdkLink(Weak<Device>);

impl DpdkLink {
    pub(super) fn new(device: Weak<Device>) -> DpdkLink {
        DpdkLink(device)
    }

    /// How the link is now, as far as the driver knows without waiting. A port that is closed or gone is down; one whose
    /// driver does not say counts as up.
    #[must_use]
    pub fn state(&self) -> LinkState {
        let Some(device) = self.0.upgrade() else { return LinkState::default() };
        match device.link() {
            Ok(state) => state,
            Err(errno) => LinkState { up: errno != ENODEV, speed_bps: None },
        }
    }
}
