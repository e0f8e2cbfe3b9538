//! The outcome of a batch: one mask per exit, so that the worker sends the frames of each exit together and
//! in order.

use super::Tees;
use weir_packet::DropReason;
use weir_program::{AppId, PortId, Program};
use weir_program::{Copied, Verdict};

/// The outcome of a batch: one mask per exit.
#[derive(Debug)]
pub struct BatchOutcome {
    /// Packets for each port, by port number.
    pub transmit: Vec<u64>,
    /// Packets for the host's stack, at the port on which they arrived.
    pub kernel: u64,
    /// Packets for each app, by app number.
    pub apps: Vec<u64>,
    /// Packets that were dropped; `reasons` has the reason of each.
    pub dropped: u64,
    /// The reason of each dropped packet.
    pub reasons: Vec<DropReason>,
    /// Packets in the masks of several ports: every port but the last sends a copy, and the last sends the
    /// frame itself.
    pub flooded: u64,
    /// Packets that go to an app because they are too long; `limits` has the maximum length of each.
    pub too_long: u64,
    limits: [u16; 64],
    /// Copies of forwarded packets, for apps.
    pub tees: Tees,
}

impl BatchOutcome {
    pub(super) fn new(program: &Program) -> BatchOutcome {
        BatchOutcome {
            transmit: vec![0; program.ports.len()],
            kernel: 0,
            apps: vec![0; program.apps.len()],
            dropped: 0,
            reasons: vec![DropReason::Policy; 64],
            flooded: 0,
            too_long: 0,
            limits: [0; 64],
            tees: Tees::new(program),
        }
    }

    pub(super) fn clear(&mut self) {
        self.transmit.fill(0);
        // With an empty list, glibc would store under an empty mask; at the address of the list's pointer,
        // that causes an assist of hundreds of cycles.
        if !self.apps.is_empty() {
            self.apps.fill(0);
        }
        self.kernel = 0;
        self.dropped = 0;
        self.flooded = 0;
        self.too_long = 0;
        self.tees.clear();
    }

    #[inline(always)]
    pub(crate) fn drop(&mut self, slot: usize, reason: DropReason) {
        self.dropped |= 1 << slot;
        self.reasons[slot & 63] = reason;
    }

    /// Sends packets that are longer than these limits to an app.
    #[cold]
    pub(crate) fn punt_too_long(&mut self, list: u64, app: AppId, limits: &[u16; 64]) {
        self.apps[app.index()] |= list;
        self.too_long |= list;
        self.limits = *limits;
    }

    /// Returns the maximum length of a packet that goes to an app because it is too long.
    #[must_use]
    pub fn limit(&self, slot: usize) -> Option<u16> {
        (self.too_long >> slot & 1 == 1).then_some(self.limits[slot & 63])
    }

    /// Returns the packets that have an exit; `None` if one has several exits but is not flooded.
    pub(super) fn leaving(&self) -> Option<u64> {
        let exits = self.transmit.iter().chain(&self.apps).chain([&self.kernel, &self.dropped]);
        exits
            .copied()
            .try_fold(0, |before, list| (before & list & !self.flooded == 0).then_some(before | list))
    }

    /// Returns the outcome of one packet, which arrived on `input`.
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

    /// Returns the copies of one packet, whose current bytes are `bytes`.
    #[must_use]
    pub fn copies(&self, slot: usize, bytes: &[u8]) -> Vec<Copied> {
        let tees =
            self.tees.of(slot).map(|(app, bytes)| Copied { to: Verdict::App(app), bytes: bytes.to_vec() });
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
