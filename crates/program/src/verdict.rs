//! The outcome of a packet, as reported by the engine and the interpreter.

use crate::{AppId, PortId, Program};
use weir_packet::DropReason;

/// The end of a packet's walk. Copies made on the way are [`Copied`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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

impl Verdict {
    /// Returns the verdict in words: `transmit on p1`, `to the kernel at p0`, `to app lb` or `drop (miss)`,
    /// with the names that the program has for its ports and apps, or `?` for a port or app that the program
    /// does not have.
    #[must_use]
    pub fn describe(self, program: &Program) -> String {
        let port = |id: PortId| program.ports.get(id.index()).map_or("?", |port| &port.name);
        match self {
            Verdict::Transmit(id) => format!("transmit on {}", port(id)),
            Verdict::Kernel(id) => format!("to the kernel at {}", port(id)),
            Verdict::App(id) => {
                format!("to app {}", program.apps.get(id.index()).map_or("?", String::as_str))
            }
            Verdict::Drop(reason) => format!("drop ({reason})"),
        }
    }
}

/// A copy of a packet. Both executors report a packet's copies in the order of its walk, and those for
/// several ports in the order of port numbers; the frame itself leaves through the last of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Where the copy goes.
    pub to: Verdict,
    /// The packet's bytes at that moment.
    pub bytes: Vec<u8>,
}
