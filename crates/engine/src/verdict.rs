//! What became of a packet: the answer both executors give.

use crate::program::{AppId, PortId};
use packet::DropReason;

/// The end of a packet's walk; copies that left it on the way are [`Copied`].
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

/// A copy of a packet. Both executors tell those of a packet in the order of its walk, and of several ports in the order
/// of their numbers; the frame itself goes out of the last of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Where it goes.
    pub to: Verdict,
    /// Its bytes: the packet's at that moment.
    pub bytes: Vec<u8>,
}
