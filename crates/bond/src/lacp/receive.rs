//! The receive machine (802.1AX 6.4.12): the information about the partner, and how long it is valid.

use super::info::{Info, State};
use super::lacpdu::LacpPdu;
use super::member::{LinkState, Member};
use super::notice::Notice;

/// Silence after which a partner's information expires if we asked for a PDU every second: three intervals,
/// in nanoseconds.
const SHORT_NS: u64 = 3_000_000_000;
/// The silence after which a partner's information expires if we asked for a PDU every 30 seconds, in
/// nanoseconds.
const LONG_NS: u64 = 90_000_000_000;

/// Our state bits that the partner must know.
const ANNOUNCED: State = State(State::ACTIVITY.0 | State::TIMEOUT.0 | State::SYNC.0 | State::AGGREGATION.0);

/// State of the machine. INITIALIZE is the creation of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Receive {
    /// The link is down. The partner is remembered, because most likely it will be the same when the link is
    /// up again.
    #[default]
    PortDisabled,
    /// The partner is silent, and will be given up at this time.
    Expired(u64),
    /// There is no partner.
    Defaulted,
    /// The partner's information is valid until this time.
    Current(u64),
}

impl Receive {
    pub(super) fn wake_ns(&self) -> Option<u64> {
        match self {
            Receive::PortDisabled | Receive::Defaulted => None,
            Receive::Expired(until) | Receive::Current(until) => Some(*until),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Receive::PortDisabled => "port disabled",
            Receive::Expired(_) => "expired",
            Receive::Defaulted => "defaulted",
            Receive::Current(_) => "current",
        }
    }
}

impl Member {
    /// Updates the link's state and speed.
    pub(super) fn set_link(&mut self, now_ns: u64, link: LinkState) {
        let was_up = std::mem::replace(&mut self.link, link).up;
        if link.up && !was_up {
            self.expire(now_ns);
            self.transmit.wanted = true;
        } else if !link.up {
            self.receive = Receive::PortDisabled;
            self.partner.state = self.partner.state.with(State::SYNC, false);
        }
    }

    /// Processes a PDU that was not refused.
    pub(super) fn receive(&mut self, now_ns: u64, pdu: &LacpPdu) {
        self.counters.lacpdus_received += 1;
        if !pdu.actor.is_same_port(&self.partner) {
            self.selected = false;
            if self.has_partner() && pdu.actor.system != self.partner.system {
                self.counters.partner_changed += 1;
                self.note(now_ns, Notice::PartnerChanged { from: self.partner.system, to: pdu.actor.system });
            }
        }
        let known = pdu.partner.state.among(ANNOUNCED) == self.actor.state.among(ANNOUNCED);
        self.transmit.wanted |= !known || !pdu.partner.is_same_port(&self.actor);
        // The partner remembers us but did not receive our PDU, which was sent when our end of the link came
        // up before its own.
        self.transmit.wanted |= pdu.actor.state.has(State::EXPIRED);
        self.record(pdu);
        self.record_sync(&pdu.partner);
        self.actor.state = self.actor.state.with(State::DEFAULTED | State::EXPIRED, false);
        self.receive = Receive::Current(now_ns.saturating_add(self.patience_ns()));
    }

    /// recordPDU: the partner is in sync if its PDU is about this link, or about a link that it does not
    /// aggregate, and at least one end is active.
    fn record(&mut self, pdu: &LacpPdu) {
        let kept = pdu.actor.state.has(State::ACTIVITY)
            || self.actor.state.has(State::ACTIVITY) && pdu.partner.state.has(State::ACTIVITY);
        let individual = !pdu.actor.state.has(State::AGGREGATION);
        let matched = individual || pdu.partner.is_same_port(&self.actor);
        let sync = pdu.actor.state.has(State::SYNC) && matched && kept;
        self.partner = Info { state: pdu.actor.state.with(State::SYNC, sync), ..pdu.actor };
    }

    /// Gives up a partner that has been silent for too long, in two steps.
    pub(super) fn time_out(&mut self, now_ns: u64) {
        match self.receive {
            Receive::Current(until) if now_ns >= until => {
                self.counters.expired += 1;
                self.note(now_ns, Notice::Expired { partner: self.partner.system });
                self.expire(now_ns);
            }
            Receive::Expired(until) if now_ns >= until => {
                self.counters.defaulted += 1;
                self.receive = Receive::Defaulted;
                self.forget_partner();
                self.actor.state = self.actor.state.with(State::EXPIRED, false);
            }
            _ => {}
        }
    }

    /// EXPIRED: the partner is no longer in sync, and is asked to send every second for another 3 s.
    fn expire(&mut self, now_ns: u64) {
        self.receive = Receive::Expired(now_ns.saturating_add(SHORT_NS));
        self.partner.state = self.partner.state.with(State::SYNC, false).with(State::TIMEOUT, true);
        self.actor.state = self.actor.state.with(State::EXPIRED, true);
    }

    /// recordDefault: there is no partner, so the values that we prefer are assumed for it.
    pub(super) fn forget_partner(&mut self) {
        self.selected = false;
        self.partner = Info { state: self.actor.state.among(State::TIMEOUT), ..Info::default() };
        self.actor.state = self.actor.state.with(State::DEFAULTED, true);
    }

    /// Applies changed settings of the bond. A partner that is now asked for fewer PDUs gets the time it
    /// needs.
    pub(super) fn set_actor(&mut self, now_ns: u64, actor: Info) {
        const OURS: State = State(State::ACTIVITY.0 | State::TIMEOUT.0 | State::AGGREGATION.0);
        let state = self.actor.state.with(OURS, false) | actor.state;
        if !actor.is_same_port(&self.actor) {
            self.selected = false;
            self.partner.state = self.partner.state.with(State::SYNC, false);
        }
        let actor = Info { state, ..actor };
        self.transmit.wanted |= actor != self.actor;
        let rate_changed = actor.state.among(State::TIMEOUT) != self.actor.state.among(State::TIMEOUT);
        self.actor = actor;
        match self.receive {
            Receive::Current(_) if rate_changed && !state.has(State::TIMEOUT) => {
                self.receive = Receive::Current(now_ns.saturating_add(LONG_NS));
            }
            Receive::Defaulted => self.forget_partner(),
            _ => {}
        }
    }

    fn patience_ns(&self) -> u64 {
        if self.actor.state.has(State::TIMEOUT) { SHORT_NS } else { LONG_NS }
    }
}
