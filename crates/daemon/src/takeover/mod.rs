//! Another weir takes over from a running one: `weir run --takeover`.
//!
//! The successor reads and compiles its configuration, opens everything except sockets, and then asks the
//! running daemon, over its control socket, to hand over. They communicate over a Unix socket created by the
//! successor:
//!
//! | who | sends | and then |
//! |---|---|---|
//! | old | its clock, interfaces, weights | changes by clients are refused; frames are still forwarded |
//! | old | its sockets and their memory, if requested (`sockets.rs`) | |
//! | old | the existing flows, in pages | |
//! | old | `ready` | |
//! | new | `go`, with the sockets that it adopts | the old daemon's workers stop; frames wait there |
//! | old | flows since the first page, states of apps | |
//! | old | `end`, with their state, and its XDP programs' links and maps | its other sockets are closed |
//! | new | `done` | its apps run, its programs replace the old ones; the old daemon exits |
//!
//! Frames received after `go` on a queue whose socket is not passed on are dropped and counted. Before
//! `done`, the successor's sockets get frames through the old programs. The successor has compiled, loaded
//! and filled its program in the kernel before it sends `go`, and the old daemon keeps its own until `done`.
//! So a frame that the kernel can handle does not wait: it meets one of the two programs. The old daemon then
//! adds the last counts of its program to its ledger. Until `go`, any failure leaves the old daemon as it
//! was. Each message is a JSON object and bytes. Both sides run as the same user, and the sockets admit only
//! that user.

mod predecessor;
mod sockets;
mod successor;
mod wire;

pub use predecessor::PendingHandover;
pub use sockets::Offered;
pub use successor::Takeover;

use weir_app::edits;
use weir_app::kind::Kind;
use weir_packet::{DropReason, Ledger};

/// Reads a message of the other daemon, whatever its contents, for fuzzers.
pub fn read(kinds: &[Kind], head: &[u8], bytes: &[u8]) {
    let Ok(head) = wire::head(head) else { return };
    let _ = sockets::read_left(&head["left"], bytes);
    let _ = head["entries"].as_array().into_iter().flatten().map(successor::decided_for).count();
    let _ = edits::read(kinds, &head["edits"]);
}

/// The protocol version. A successor with another version is refused.
const PROTOCOL: u64 = 2;

/// Rows of a flow table that a worker writes or reads between two breaths.
const ROWS: u32 = 2048;

/// The number of rows when frames are no longer forwarded.
const ROWS_AT_REST: u32 = 1 << 18;

/// Returns how many frames a ledger has dropped for these reasons.
fn dropped_by(ledger: &Ledger, reasons: &[DropReason]) -> u64 {
    ledger.drops().filter(|(reason, _)| reasons.contains(reason)).map(|(_, count)| count).sum()
}
