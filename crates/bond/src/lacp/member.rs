//! One member: the state of its machines. Each machine has a file.

use super::churn::Churn;
use super::config::{Config, Settings};
use super::info::{Info, State};
use super::mux::Mux;
use super::notice::{Notice, Notices};
use super::periodic::Periodic;
use super::receive::Receive;
use super::refusal::Refusal;
use super::status::Counters;
use super::transmit::Transmit;

/// State of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkState {
    pub up: bool,
    pub speed_bps: Option<u64>,
}

/// A member of the bond.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub settings: Settings,
    pub link: LinkState,
    /// Whether the operator has excluded the member from the bond.
    pub held: bool,
    pub actor: Info,
    pub partner: Info,
    pub receive: Receive,
    pub periodic: Periodic,
    pub selected: bool,
    /// Whether the member has a partner other than the bond's.
    pub outside: bool,
    pub mux: Mux,
    /// Whether the member continues from another process, where the events that it would otherwise wait for
    /// have already happened.
    pub resumes: bool,
    /// When the partner is assumed to know that we are in sync; `None` once it has said so.
    pub known_ns: Option<u64>,
    pub transmit: Transmit,
    pub actor_churn: Churn,
    pub partner_churn: Churn,
    /// Collecting and distributing, as last reported.
    pub announced: (bool, bool),
    pub counters: Counters,
    pub notices: Notices,
}

impl Member {
    /// The state INITIALIZE: no partner, link down.
    pub(super) fn new(config: &Config, settings: Settings) -> Member {
        let mut member = Member {
            settings,
            link: LinkState::default(),
            held: false,
            actor: config.actor(&settings),
            partner: Info::default(),
            receive: Receive::default(),
            periodic: Periodic::default(),
            selected: false,
            outside: false,
            mux: Mux::default(),
            resumes: false,
            known_ns: None,
            transmit: Transmit::default(),
            actor_churn: Churn::default(),
            partner_churn: Churn::default(),
            announced: (false, false),
            counters: Counters::default(),
            notices: Notices::default(),
        };
        member.forget_partner();
        member
    }

    /// Returns true if a partner has spoken and has not been given up.
    pub(super) fn has_partner(&self) -> bool {
        !self.partner.system.is_nobody()
    }

    /// Returns true if the partner's information is current.
    pub(super) fn is_current(&self) -> bool {
        matches!(self.receive, Receive::Current(_))
    }

    /// Returns true if its partner has been given up.
    pub(super) fn is_given_up(&self) -> bool {
        self.receive == Receive::Defaulted
    }

    pub(super) fn note(&mut self, now_ns: u64, notice: Notice) {
        self.notices.add(now_ns, notice);
    }

    pub(super) fn refuse(&mut self, now_ns: u64, refusal: Refusal) {
        self.counters.refused[refusal as usize] += 1;
        match refusal {
            // PDUs may be in flight when the link goes down; that is not an error.
            Refusal::LinkDown => {}
            Refusal::OwnSystem => self.note(now_ns, Notice::Loop),
            _ => self.note(now_ns, Notice::Refused(refusal)),
        }
    }

    pub(super) fn look_for_churn(&mut self, now_ns: u64) {
        let sync = |info: &Info| info.state.has(State::SYNC);
        if self.actor_churn.look(now_ns, self.link.up, sync(&self.actor)) {
            self.counters.actor_churned += 1;
            self.note(now_ns, Notice::ActorChurn);
        }
        if self.partner_churn.look(now_ns, self.link.up, sync(&self.partner)) {
            self.counters.partner_churned += 1;
            self.note(now_ns, Notice::PartnerChurn);
        }
    }

    /// Returns collecting and distributing if they have changed since the last report.
    pub(super) fn news(&mut self) -> Option<(bool, bool)> {
        let now = (self.mux >= Mux::Collecting, self.mux == Mux::Distributing);
        let before = std::mem::replace(&mut self.announced, now);
        if now == before { None } else { Some(now) }
    }

    pub(super) fn wake_ns(&self) -> Option<u64> {
        let machines = [
            self.receive.wake_ns(),
            self.periodic.due_ns,
            self.mux_wake_ns(),
            self.transmit.wake_ns(),
            self.actor_churn.wake_ns(),
            self.partner_churn.wake_ns(),
        ];
        machines.into_iter().flatten().min()
    }
}
