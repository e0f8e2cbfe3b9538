//! The mux machine with independent control (802.1AX 6.4.15): it receives frames before it sends any, and
//! sends only once the partner receives, so that nothing is lost while both ends start.
//!
//! Open vSwitch announces that it collects whenever it aggregates a link, even while it still drops received
//! frames because it has not yet heard that we are in sync. Therefore, as long as another member sends, a
//! partner's announcement counts only once the partner knows that we are in sync: when its LACPDU shows this,
//! or after the partner has had time to learn it. If no other member sends, waiting would lose more frames
//! than it saves.

use super::info::{Info, State};
use super::member::Member;

/// How long a member waits before it attaches (wait_while), in nanoseconds.
const WAIT_NS: u64 = 2_000_000_000;

/// After this time a partner is assumed to know that we are in sync even if it has not said so, in
/// nanoseconds: a partner that sends every second would have announced it, and a slow partner has had this
/// time to act on it.
const KNOWN_NS: u64 = 1_000_000_000;

/// State of the mux machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mux {
    /// Not in an aggregator.
    #[default]
    Detached,
    /// Selected; attaches at this time.
    Waiting(u64),
    /// In an aggregator, and announces that to the partner.
    Attached,
    /// Receives frames.
    Collecting,
    /// Receives and sends frames.
    Distributing,
}

impl Mux {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Mux::Detached => "detached",
            Mux::Waiting(_) => "waiting",
            Mux::Attached => "attached",
            Mux::Collecting => "collecting",
            Mux::Distributing => "distributing",
        }
    }
}

impl Member {
    /// Makes one transition, if one is due. `enough` means that `min_links` members are in sync,
    /// `others_send` that a member of the bond sends. Returns true if the state changed.
    pub(super) fn run_mux(&mut self, now_ns: u64, enough: bool, others_send: bool) -> bool {
        let ready = enough && self.is_in_sync();
        let next = match self.mux {
            Mux::Detached if self.selected => {
                Mux::Waiting(now_ns.saturating_add(if self.resumes { 0 } else { WAIT_NS }))
            }
            Mux::Waiting(_) | Mux::Attached if !self.selected => Mux::Detached,
            Mux::Waiting(until) if now_ns >= until => Mux::Attached,
            Mux::Attached if ready => Mux::Collecting,
            Mux::Collecting | Mux::Distributing if !ready => Mux::Attached,
            Mux::Collecting if self.partner_collects() && (!others_send || self.partner_knows(now_ns)) => {
                Mux::Distributing
            }
            Mux::Distributing if !self.partner_collects() => Mux::Collecting,
            same => same,
        };
        let changed = next != self.mux;
        if changed && next == Mux::Attached {
            self.known_ns = (!self.resumes).then_some(now_ns.saturating_add(KNOWN_NS));
        }
        self.resumes &= next != Mux::Distributing;
        self.mux = next;
        changed
    }

    /// Returns true if the member sends frames.
    pub(super) fn sends(&self) -> bool {
        self.mux == Mux::Distributing
    }

    /// Returns true if both ends announce that this link is in its aggregator.
    pub(super) fn is_in_sync(&self) -> bool {
        self.selected && self.mux >= Mux::Attached && self.partner.state.has(State::SYNC)
    }

    /// Returns true if the partner receives frames. A partner whose information about us has expired does
    /// not, regardless of its announcement: Open vSwitch continues to announce collecting (a partner that
    /// follows the standard is then out of sync).
    fn partner_collects(&self) -> bool {
        self.partner.state.has(State::COLLECTING) && !self.partner.state.has(State::EXPIRED)
    }

    /// Returns true if the partner knows that we are in sync.
    fn partner_knows(&self, now_ns: u64) -> bool {
        self.known_ns.is_none_or(|known_ns| now_ns >= known_ns)
    }

    /// Records from the partner's LACPDU whether it knows that we are in sync.
    pub(super) fn record_sync(&mut self, ours: &Info) {
        if self.mux >= Mux::Attached && ours.state.has(State::SYNC) && ours.is_same_port(&self.actor) {
            self.known_ns = None;
        }
    }

    /// Returns when the mux machine must run if no event comes first.
    pub(super) fn mux_wake_ns(&self) -> Option<u64> {
        match self.mux {
            Mux::Waiting(until) => Some(until),
            Mux::Collecting if self.partner_collects() => self.known_ns,
            _ => None,
        }
    }

    /// Updates what the mux announces, and requests an LACPDU if that has changed.
    pub(super) fn show_mux(&mut self) {
        let before = self.actor.state;
        self.actor.state = before
            .with(State::SYNC, self.mux >= Mux::Attached)
            .with(State::COLLECTING, self.mux >= Mux::Collecting)
            .with(State::DISTRIBUTING, self.sends());
        self.transmit.wanted |= self.actor.state != before;
    }
}
