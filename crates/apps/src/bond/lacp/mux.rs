//! The mux machine with independent control (802.1AX 6.4.15): takes frames before it sends any, and sends only once the
//! partner takes them, so that nothing is lost while both come up.

use super::info::State;
use super::member::Member;

/// A member waits so long for its aggregator before it attaches (wait_while).
const WAIT_NS: u64 = 2_000_000_000;

/// Its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mux {
    /// In no aggregator.
    #[default]
    Detached,
    /// Selected; attached then.
    Waiting(u64),
    /// Says so to the partner.
    Attached,
    /// Takes frames.
    Collecting,
    /// Takes and sends.
    Distributing,
}

impl Mux {
    pub(super) fn wake_ns(&self) -> Option<u64> {
        if let Mux::Waiting(until) = self { Some(*until) } else { None }
    }

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
    /// One transition, if there is one. `enough`: the bond's `min_links` are there. True if its state changed.
    pub(super) fn run_mux(&mut self, now_ns: u64, enough: bool) -> bool {
        let ready = enough && self.is_in_sync();
        let next = match self.mux {
            Mux::Detached if self.selected => Mux::Waiting(now_ns.saturating_add(WAIT_NS)),
            Mux::Waiting(_) | Mux::Attached if !self.selected => Mux::Detached,
            Mux::Waiting(until) if now_ns >= until => Mux::Attached,
            Mux::Attached if ready => Mux::Collecting,
            Mux::Collecting | Mux::Distributing if !ready => Mux::Attached,
            Mux::Collecting if self.partner_collects() => Mux::Distributing,
            Mux::Distributing if !self.partner_collects() => Mux::Collecting,
            same => same,
        };
        let changed = next != self.mux;
        self.mux = next;
        changed
    }

    /// Do both ends say that this link is in its aggregator?
    pub(super) fn is_in_sync(&self) -> bool {
        self.selected && self.mux >= Mux::Attached && self.partner.state.has(State::SYNC)
    }

    /// A partner that has not heard us for too long takes nothing, whatever else it says: Open vSwitch goes on saying that it
    /// collects (the standard's cannot: it is not in sync then).
    fn partner_collects(&self) -> bool {
        self.partner.state.has(State::COLLECTING) && !self.partner.state.has(State::EXPIRED)
    }

    /// What the mux says to the partner, and that it be told if it is new.
    pub(super) fn show_mux(&mut self) {
        let before = self.actor.state;
        self.actor.state = before
            .with(State::SYNC, self.mux >= Mux::Attached)
            .with(State::COLLECTING, self.mux >= Mux::Collecting)
            .with(State::DISTRIBUTING, self.mux == Mux::Distributing);
        self.transmit.wanted |= self.actor.state != before;
    }
}
