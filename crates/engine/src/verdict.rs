//! What became of a packet: the answer both executors give.

use crate::program::{AppId, PortId};
use packet::DropReason;

/// The end of a packet's walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Out of a port.
    Transmit(PortId),
    /// To the host's stack at a port.
    Kernel(PortId),
    /// To an app.
    App(AppId),
    /// Dropped.
    Drop(DropReason),
}
