//! The LACP of a bond: its members, and the order in which their state machines run.

use super::config::{Config, Settings};
use super::lacpdu::{LacpPdu, Pdu, parse};
use super::member::{LinkState, Member};
use super::notice::Notice;
use super::refusal::Refusal;
use super::selection::{self, Lag};
use super::status::{Aggregator, MemberStatus, Status};
use std::collections::{BTreeMap, BTreeSet};

/// An input of the state machines.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The bond has a new member, whose link is down; or a member restarts with other settings.
    Add {
        /// Number of the member.
        member: u16,
        /// Its settings.
        settings: Settings,
    },
    /// A member was removed. Its partner is informed.
    Remove {
        /// Number of the member.
        member: u16,
    },
    /// The operator excludes a member from the bond, or admits it again. LACP continues and informs the
    /// partner.
    Hold {
        /// Number of the member.
        member: u16,
        /// Whether to exclude it.
        held: bool,
    },
    /// The state of a link, changed or not.
    Link {
        /// Number of the member.
        member: u16,
        /// Whether the link is up.
        up: bool,
        /// Its speed in bits per second, if known.
        speed_bps: Option<u64>,
    },
    /// A frame of a slow protocol was received, starting with its destination address.
    Pdu {
        /// Number of the member.
        member: u16,
        /// The bytes; may be anything.
        bytes: &'a [u8],
    },
    /// Time has passed. Only this event expires silent partners and sends LACPDUs. After a delay, the caller
    /// first passes on all waiting PDUs, which then count as in time, and then ticks, so that a single LACPDU
    /// answers them all.
    Tick,
    /// The bond's settings were changed to these.
    Reconfigure(&'a Config),
}

/// An output of the state machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a frame.
    Transmit {
        /// Number of the member.
        member: u16,
        /// The frame, without frame check sequence.
        frame: Vec<u8>,
    },
    /// The way in which a member may be used has changed.
    Member {
        /// Number of the member.
        member: u16,
        /// Whether to accept frames from it. If collecting ends while the link is up, the partner may learn
        /// of that up to 1 s later (no more than three LACPDUs are sent per second), and frames that it sends
        /// until then may be accepted.
        collecting: bool,
        /// Whether to send frames on it.
        distributing: bool,
    },
    /// The state of the negotiation has changed.
    Negotiation(Negotiation),
    /// A message for the operator. A flood of PDUs does not cause a flood of messages.
    Report {
        /// Number of the member.
        member: u16,
        /// The message.
        notice: Notice,
        /// How many messages of this kind were suppressed before it.
        kept_back: u64,
    },
}

/// State of a bond's negotiation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Negotiation {
    /// No partner of a member in use has sent an LACPDU yet, or all have gone silent.
    #[default]
    Configured,
    /// There is a partner, but fewer than `min_links` members are in sync, or none.
    TooFewLinks,
    /// The negotiation has succeeded.
    Negotiated,
    /// No partner speaks LACP on any link that is up, and the bond is configured to work without LACP in this
    /// case.
    Fallback,
}

/// The LACP of one bond.
#[derive(Clone, Debug)]
pub struct Lacp {
    config: Config,
    pub(super) members: BTreeMap<u16, Member>,
    active: Option<Lag>,
    negotiation: Negotiation,
    /// The last LACPDUs of partners to a previous process, kept until the links are up.
    pub(super) remembered: BTreeMap<u16, LacpPdu>,
}

impl Lacp {
    /// Creates the LACP of a bond without members. `config` must have no [`Config::problem`].
    pub fn new(config: Config) -> Lacp {
        let (members, remembered) = (BTreeMap::new(), BTreeMap::new());
        Lacp { config, members, active: None, negotiation: Negotiation::default(), remembered }
    }

    /// Processes `event` at `now_ns` and adds the resulting actions to `actions`. Time must not decrease.
    pub fn step(&mut self, now_ns: u64, event: Event<'_>, actions: &mut Vec<Action>) {
        match event {
            Event::Add { member, settings } => self.add(now_ns, member, settings),
            Event::Remove { member } => self.remove(now_ns, member, actions),
            Event::Reconfigure(config) => self.reconfigure(now_ns, config),
            Event::Tick => self.members.values_mut().for_each(|member| member.time_out(now_ns)),
            Event::Pdu { member, bytes } => self.receive(now_ns, member, bytes, actions),
            Event::Hold { member, held } => self.member(member, |member| member.held = held),
            Event::Link { member, up, speed_bps } => {
                self.member(member, |member| member.set_link(now_ns, LinkState { up, speed_bps }));
                if up {
                    self.remember(now_ns, member);
                }
            }
        }
        self.settle(now_ns);
        self.report_changes(now_ns, actions);
        if matches!(event, Event::Tick) {
            self.transmit(now_ns, actions);
        }
    }

    /// Returns when [`Event::Tick`] is due at the latest; a time in the past means at once. Must be queried
    /// again after each step.
    pub fn wake_ns(&self) -> Option<u64> {
        self.members.values().filter_map(Member::wake_ns).min()
    }

    fn member(&mut self, number: u16, change: impl FnOnce(&mut Member)) {
        if let Some(member) = self.members.get_mut(&number) {
            change(member);
        }
    }

    fn add(&mut self, now_ns: u64, number: u16, settings: Settings) {
        let mut member = Member::new(&self.config, settings);
        if let Some(before) = self.members.get(&number) {
            if before.settings == settings {
                return;
            }
            member.transmit = before.transmit;
            member.set_link(now_ns, before.link);
            member.held = before.held;
            member.announced = before.announced;
        }
        self.members.insert(number, member);
    }

    fn remove(&mut self, now_ns: u64, number: u16, actions: &mut Vec<Action>) {
        let Some(mut member) = self.members.remove(&number) else { return };
        member.selected = false;
        while member.run_mux(now_ns, false, false) {}
        report_changes(now_ns, number, &mut member, actions);
        actions.extend(member.lacpdu(now_ns).map(|frame| Action::Transmit { member: number, frame }));
    }

    fn reconfigure(&mut self, now_ns: u64, config: &Config) {
        for member in self.members.values_mut() {
            member.set_actor(now_ns, config.actor(&member.settings));
        }
        self.config.clone_from(config);
    }

    fn receive(&mut self, now_ns: u64, number: u16, bytes: &[u8], actions: &mut Vec<Action>) {
        let Some(member) = self.members.get_mut(&number) else { return };
        if !member.link.up {
            return member.refuse(now_ns, Refusal::LinkDown);
        }
        match parse(bytes) {
            Err(refusal) => member.refuse(now_ns, refusal),
            Ok(Pdu::Lacp(pdu)) if pdu.actor.system.mac == self.config.system.mac => {
                member.refuse(now_ns, Refusal::OwnSystem);
            }
            Ok(Pdu::Lacp(pdu)) => member.receive(now_ns, &pdu),
            Ok(Pdu::Marker(marker)) => {
                let answer = member.answer(now_ns, &marker);
                actions.extend(answer.map(|frame| Action::Transmit { member: number, frame }));
            }
            Ok(Pdu::MarkerResponse(_)) => member.counters.marker_responses_received += 1,
        }
    }

    /// Runs selection and mux until nothing changes. This ends, because each member drops to detached at most
    /// once before it rises again.
    fn settle(&mut self, now_ns: u64) {
        loop {
            let enough = self.has_enough();
            let others_send = self.members.values().any(Member::sends);
            let mut changed = false;
            for member in self.members.values_mut() {
                changed |= member.run_mux(now_ns, enough, others_send);
            }
            self.active = selection::choose(&self.config, &self.members, self.active);
            changed |= selection::select(now_ns, &mut self.members, self.active);
            if !changed {
                return;
            }
        }
    }

    fn report_changes(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        for (number, member) in &mut self.members {
            report_changes(now_ns, *number, member, actions);
        }
        let negotiation = self.negotiation();
        if negotiation != self.negotiation {
            self.negotiation = negotiation;
            actions.push(Action::Negotiation(negotiation));
        }
    }

    fn transmit(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        for (number, member) in &mut self.members {
            actions.extend(member.lacpdu(now_ns).map(|frame| Action::Transmit { member: *number, frame }));
        }
    }

    fn negotiation(&self) -> Negotiation {
        if self.active.is_some_and(|active| selection::current_of(&self.members, active).next().is_some()) {
            if self.has_enough() { Negotiation::Negotiated } else { Negotiation::TooFewLinks }
        } else if self.config.fallback && self.is_alone() {
            Negotiation::Fallback
        } else {
            Negotiation::Configured
        }
    }

    /// Returns true if no partner speaks LACP on any link that is up. Then a link that comes up must first
    /// detect a partner.
    fn is_alone(&self) -> bool {
        let was = self.negotiation == Negotiation::Fallback;
        let mut up = self.members.values().filter(|member| member.link.up).peekable();
        up.peek().is_some() && up.all(|member| member.is_given_up() || was && !member.is_current())
    }

    fn has_enough(&self) -> bool {
        self.links() >= self.config.min_links.max(1)
    }

    /// Returns the number of members in sync.
    fn links(&self) -> u16 {
        self.members.values().filter(|member| member.is_in_sync()).count().try_into().unwrap_or(u16::MAX)
    }

    /// Returns the state for display.
    pub fn status(&self) -> Status {
        Status {
            system: self.config.system,
            negotiation: self.negotiation,
            links: self.links(),
            min_links: self.config.min_links,
            aggregators: self.aggregators(),
            members: self.members.iter().map(|(number, member)| member_status(*number, member)).collect(),
        }
    }

    fn aggregators(&self) -> Vec<Aggregator> {
        let lag_of = |(number, member): (&u16, &Member)| selection::lag(*number, member);
        let lags: BTreeSet<Lag> = self.members.iter().filter_map(lag_of).collect();
        let aggregator = |lag: Lag| Aggregator {
            active: self.active == Some(lag),
            key: lag.key,
            partner: lag.partner,
            partner_key: lag.partner_key,
            individual: lag.alone.is_some(),
            speed_bps: selection::speed_bps(&self.members, lag),
            members: self
                .members
                .iter()
                .filter(|at| lag_of(*at) == Some(lag))
                .map(|(number, _)| *number)
                .collect(),
        };
        lags.into_iter().map(aggregator).collect()
    }
}

/// Reports a change of a member's mux to the bond at once, and to the partner with the next tick, so that
/// frames are accepted before the partner learns of it.
fn report_changes(now_ns: u64, number: u16, member: &mut Member, actions: &mut Vec<Action>) {
    member.show_mux();
    member.look_for_churn(now_ns);
    member.run_periodic(now_ns);
    let news = member.news().map(|(collecting, distributing)| Action::Member {
        member: number,
        collecting,
        distributing,
    });
    actions.extend(news);
    let report = |(notice, kept_back)| Action::Report { member: number, notice, kept_back };
    actions.extend(member.notices.pending.drain(..).map(report));
}

fn member_status(number: u16, member: &Member) -> MemberStatus {
    MemberStatus {
        member: number,
        link_up: member.link.up,
        speed_bps: member.link.speed_bps,
        held: member.held,
        receive: member.receive.name(),
        periodic: member.periodic.pace.name(),
        selected: member.selected,
        mux: member.mux.name(),
        actor_churn: member.actor_churn.name(),
        partner_churn: member.partner_churn.name(),
        actor: member.actor,
        partner: member.partner,
        counters: member.counters.clone(),
    }
}
