//! The transmit machine (802.1AX 6.4.16), which sends at most three LACPDUs per second when there is news for
//! the partner, and the Marker responder (6.5.4), within the limits of Annex 57A of IEEE 802.3.

use super::lacpdu::{LacpPdu, Marker};
use super::member::Member;
use super::periodic::{FAST_NS, Pace};

/// The largest number of LACPDUs within any [`FAST_NS`].
const LACPDUS: usize = 3;
/// The largest number of frames of a slow protocol within any second.
const MARKERS: usize = 10;

/// State of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Transmit {
    /// NTT in the standard: there is news for the partner.
    pub wanted: bool,
    sent: Window<LACPDUS>,
    answered: Window<MARKERS>,
}

impl Transmit {
    pub(super) fn wake_ns(&self) -> Option<u64> {
        if self.wanted { Some(self.sent.free_ns()) } else { None }
    }
}

impl Member {
    /// Returns the LACPDU to send now, if one is wanted and allowed.
    pub(super) fn lacpdu(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        // Between two passive ends nothing is sent, and no LACPDU is kept for later.
        self.transmit.wanted &= self.periodic.pace != Pace::None;
        if !self.transmit.wanted || !self.transmit.sent.take(now_ns) {
            return None;
        }
        self.transmit.wanted = false;
        self.counters.lacpdus_sent += 1;
        Some(
            LacpPdu { actor: self.actor, partner: self.partner, collector_delay: 0 }.frame(self.settings.mac),
        )
    }

    /// Returns the response to a marker.
    pub(super) fn answer(&mut self, now_ns: u64, marker: &Marker) -> Option<Vec<u8>> {
        self.counters.markers_received += 1;
        if !self.transmit.answered.take(now_ns) {
            self.counters.markers_unanswered += 1;
            return None;
        }
        Some(marker.answer(self.settings.mac))
    }
}

/// The times of the last `N` frames sent, oldest first. Another may be sent once the oldest is a second old.
#[derive(Clone, Copy, Debug)]
struct Window<const N: usize>([Option<u64>; N]);

impl<const N: usize> Default for Window<N> {
    fn default() -> Self {
        Window([None; N])
    }
}

impl<const N: usize> Window<N> {
    /// Returns when the next frame may be sent.
    fn free_ns(&self) -> u64 {
        self.0[0].map_or(0, |oldest| oldest.saturating_add(FAST_NS))
    }

    /// Reserves a slot, if one is free.
    fn take(&mut self, now_ns: u64) -> bool {
        let free = now_ns >= self.free_ns();
        if free {
            self.0.rotate_left(1);
            self.0[N - 1] = Some(now_ns);
        }
        free
    }
}
