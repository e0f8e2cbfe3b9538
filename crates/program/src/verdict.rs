//! The outcome of a packet, as reported by both executors.

use crate::{AppId, PortId};
use weir_packet::DropReason;

/// The end of a packet's walk. Copies made on the way are [`Copied`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Transmitted on a port.
    Transmit(PortId),
    /// Passed to the host's stack at a port.
    Kernel(PortId),
    /// Passed to an app.
    App(AppId),
    /// Dropped.
    Drop(DropReason),
}

/// A copy of a packet. Both executors report a packet's copies in the order of its walk, and those for
/// several ports in the order of port numbers; the frame itself leaves through the last of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Where it goes.
    pub to: Verdict,
    /// The packet's bytes at that moment.
    pub bytes: Vec<u8>,
}
