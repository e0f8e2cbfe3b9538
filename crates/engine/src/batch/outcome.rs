//! What became of a batch: one mask per way out, so that the worker sends each way's frames together and in order.

use super::Tees;
use crate::program::{AppId, PortId, Program};
use crate::verdict::{Copied, Verdict};
use packet::DropReason;

/// What became of a batch: one mask per way out.
#[derive(Debug)]
pub struct Outcome {
    /// Packets for each port, by its number.
    pub transmit: Vec<u64>,
    /// Packets for the host's stack at the port they came in by.
    pub kernel: u64,
    /// Packets for each app, by its number.
    pub apps: Vec<u64>,
    /// Packets that were dropped; `reasons` says why.
    pub dropped: u64,
    /// Reasons of the dropped.
    pub reasons: Vec<DropReason>,
    /// Packets in the masks of several ports: a copy for each, and the frame itself for the last.
    pub flooded: u64,
    /// Copies for apps of packets that went on.
    pub tees: Tees,
}

impl Outcome {
    pub(super) fn new(program: &Program) -> Outcome {
        Outcome {
            transmit: vec![0; program.ports.len()],
            kernel: 0,
            apps: vec![0; program.apps.len()],
            dropped: 0,
            reasons: vec![DropReason::Policy; 64],
            flooded: 0,
            tees: Tees::new(program),
        }
    }

    pub(super) fn clear(&mut self) {
        self.transmit.fill(0);
        // glibc fills nothing by a store under an empty mask, and where an empty list points to that is an assist of
        // hundreds of cycles.
        if !self.apps.is_empty() {
            self.apps.fill(0);
        }
        self.kernel = 0;
        self.dropped = 0;
        self.flooded = 0;
        self.tees.clear();
    }

    #[inline(always)]
    pub(crate) fn drop(&mut self, slot: usize, reason: DropReason) {
        self.dropped |= 1 << slot;
        self.reasons[slot & 63] = reason;
    }

    /// What became of one packet; `input` is where it came in.
    #[must_use]
    pub fn verdict(&self, slot: usize, input: PortId) -> Verdict {
        let bit = 1 << slot;
        let port = self.transmit.iter().rposition(|list| list & bit != 0);
        let app = self.apps.iter().position(|list| list & bit != 0);
        match (port, app) {
            (Some(port), _) => Verdict::Transmit(PortId(port as u16)),
            (None, Some(app)) => Verdict::App(AppId(app as u16)),
            (None, None) if self.kernel & bit != 0 => Verdict::Kernel(input),
            (None, None) => Verdict::Drop(self.reasons[slot & 63]),
        }
    }

    /// Copies of one packet, whose bytes are these now.
    #[must_use]
    pub fn copies(&self, slot: usize, bytes: &[u8]) -> Vec<Copied> {
        let tees = self.tees.of(slot).map(|(app, bytes)| Copied { to: Verdict::App(app), bytes: bytes.to_vec() });
        let mut copies: Vec<Copied> = tees.collect();
        if self.flooded & 1 << slot != 0 {
            let ports = (0..).map(PortId).zip(&self.transmit).filter(|(_, list)| *list & 1 << slot != 0);
            let flood = ports.map(|(port, _)| Copied { to: Verdict::Transmit(port), bytes: bytes.to_vec() });
            copies.extend(flood);
            // The last one is the frame itself.
            copies.pop();
        }
        copies
    }
}
