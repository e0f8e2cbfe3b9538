//! The periodic transmission machine (802.1AX 6.4.13): sends PDUs as often as the partner wants them.

use super::info::State;
use super::member::Member;

/// Interval between PDUs to a partner that wants them fast, in nanoseconds.
pub(super) const FAST_NS: u64 = 1_000_000_000;
/// Interval between PDUs to other partners, in nanoseconds.
const SLOW_NS: u64 = 30_000_000_000;

/// State of the machine. PERIODIC_TX has no duration: it is the request to transmit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Periodic {
    pub pace: Pace,
    /// When the next PDU is due.
    pub due_ns: Option<u64>,
}

/// How often to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pace {
    /// Both ends are passive, or the link is down: no LACPDUs are sent.
    #[default]
    None,
    Fast,
    Slow,
}

impl Pace {
    pub(super) fn name(self) -> &'static str {
        match self {
            Pace::None => "none",
            Pace::Fast => "fast",
            Pace::Slow => "slow",
        }
    }

    fn interval_ns(self) -> Option<u64> {
        match self {
            Pace::None => None,
            Pace::Fast => Some(FAST_NS),
            Pace::Slow => Some(SLOW_NS),
        }
    }
}

impl Member {
    /// Runs the machine. After a delay it sends one PDU rather than all that were missed. A partner that
    /// changes to fast gets one at once, because it may not be able to wait 30 s.
    pub(super) fn run_periodic(&mut self, now_ns: u64) {
        let before = self.periodic;
        let pace = self.pace();
        let due = before.due_ns.is_some_and(|due| now_ns >= due);
        self.transmit.wanted |= due || (before.pace, pace) == (Pace::Slow, Pace::Fast);
        if due || pace != before.pace {
            let due_ns = pace.interval_ns().map(|interval| now_ns.saturating_add(interval));
            self.periodic = Periodic { pace, due_ns };
        }
    }

    fn pace(&self) -> Pace {
        let (actor, partner) = (self.actor.state, self.partner.state);
        match partner.has(State::TIMEOUT) {
            _ if !self.link.up => Pace::None,
            _ if !actor.has(State::ACTIVITY) && !partner.has(State::ACTIVITY) => Pace::None,
            true => Pace::Fast,
            false => Pace::Slow,
        }
    }
}
