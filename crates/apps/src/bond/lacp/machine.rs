//! A bond's LACP: its members, and the order in which their machines run.

use super::config::{Config, Settings};
use super::lacpdu::{Pdu, parse};
use super::member::{Link, Member};
use super::notice::Notice;
use super::refusal::Refusal;
use super::selection::{self, Lag};
use super::status::{Aggregator, MemberStatus, Status};
use std::collections::{BTreeMap, BTreeSet};

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The bond has a new member, with its link down; or a member has other settings and starts anew.
    Add {
        /// Its number.
        member: u16,
        /// What it has for itself.
        settings: Settings,
    },
    /// A member has left. Its partner is told.
    Remove {
        /// Which.
        member: u16,
    },
    /// The operator keeps a member out of the bond, or lets it in again. LACP goes on, and says so to the partner.
    Hold {
        /// Which.
        member: u16,
        /// Keep it out?
        held: bool,
    },
    /// A link changed, or is as it was.
    Link {
        /// Whose.
        member: u16,
        /// Is it up?
        up: bool,
        /// Its speed, if known.
        speed_bps: Option<u64>,
    },
    /// A frame of a slow protocol came in, from its destination address on.
    Pdu {
        /// Where.
        member: u16,
        /// Any bytes.
        bytes: &'a [u8],
    },
    /// Time has passed. Only now are silent partners given up, and LACPDUs sent. So whoever is late hands over the PDUs
    /// that wait, and then ticks: they are in time, and all of them are answered by one.
    Tick,
    /// The bond's settings are these now.
    Reconfigure(&'a Config),
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a frame.
    Transmit {
        /// Where.
        member: u16,
        /// Without frame check sequence.
        frame: Vec<u8>,
    },
    /// What may be done with a member has changed.
    Member {
        /// Which.
        member: u16,
        /// Take frames from it? When this ends with the link up, the partner hears of it up to 1 s later (no more than
        /// three LACPDUs are sent in a second): what it sends until then may be taken.
        collecting: bool,
        /// Send frames by it?
        distributing: bool,
    },
    /// How far the bond has come has changed.
    Negotiation(Negotiation),
    /// Something to tell an operator. A flood of PDUs is not one of these.
    Report {
        /// Whose link it is about.
        member: u16,
        /// What.
        notice: Notice,
        /// How many of its kind were kept back before it.
        kept_back: u64,
    },
}

/// How far a bond has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Negotiation {
    /// No partner in use has spoken, or all have fallen silent.
    #[default]
    Configured,
    /// There is a partner, but fewer members than `min_links` are in sync, or none.
    TooFewLinks,
    /// The bond works.
    Negotiated,
    /// Nobody speaks LACP on any link that is up, and the bond is to work without.
    Fallback,
}

/// LACP of one bond.
#[derive(Clone, Debug)]
pub struct Lacp {
    config: Config,
    members: BTreeMap<u16, Member>,
    active: Option<Lag>,
    negotiation: Negotiation,
}

impl Lacp {
    /// LACP of a bond without members. `config` has no [`Config::problem`].
    pub fn new(config: Config) -> Lacp {
        Lacp { config, members: BTreeMap::new(), active: None, negotiation: Negotiation::default() }
    }

    /// Adds to `actions` what is to be done at `now_ns` because of `event`. Time never goes back.
    pub fn step(&mut self, now_ns: u64, event: Event<'_>, actions: &mut Vec<Action>) {
        match event {
            Event::Add { member, settings } => self.add(now_ns, member, settings),
            Event::Remove { member } => self.remove(now_ns, member, actions),
            Event::Reconfigure(config) => self.reconfigure(now_ns, config),
            Event::Tick => self.members.values_mut().for_each(|member| member.time_out(now_ns)),
            Event::Pdu { member, bytes } => self.receive(now_ns, member, bytes, actions),
            Event::Hold { member, held } => self.member(member, |member| member.held = held),
            Event::Link { member, up, speed_bps } => {
                self.member(member, |member| member.set_link(now_ns, Link { up, speed_bps }));
            }
        }
        self.settle(now_ns);
        self.tell(now_ns, actions);
        if matches!(event, Event::Tick) {
            self.transmit(now_ns, actions);
        }
    }

    /// When it must be stepped with [`Event::Tick`] at the latest; a time that has passed means at once. To be asked again
    /// after each step.
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
            member.told = before.told;
        }
        self.members.insert(number, member);
    }

    fn remove(&mut self, now_ns: u64, number: u16, actions: &mut Vec<Action>) {
        let Some(mut member) = self.members.remove(&number) else { return };
        member.selected = false;
        while member.run_mux(now_ns, false) {}
        tell(now_ns, number, &mut member, actions);
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
            Ok(Pdu::Lacp(pdu)) => member.hear(now_ns, &pdu),
            Ok(Pdu::Marker(marker)) => {
                let answer = member.answer(now_ns, &marker);
                actions.extend(answer.map(|frame| Action::Transmit { member: number, frame }));
            }
            Ok(Pdu::MarkerResponse(_)) => member.counters.marker_responses_received += 1,
        }
    }

    /// Runs selection and mux until nothing changes any more: each member goes down to detached once and up again.
    fn settle(&mut self, now_ns: u64) {
        loop {
            let enough = self.has_enough();
            let mut changed = false;
            for member in self.members.values_mut() {
                changed |= member.run_mux(now_ns, enough);
            }
            self.active = selection::choose(&self.config, &self.members, self.active);
            changed |= selection::select(now_ns, &mut self.members, self.active);
            if !changed {
                return;
            }
        }
    }

    fn tell(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        for (number, member) in &mut self.members {
            tell(now_ns, *number, member, actions);
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

    /// Does nobody speak LACP on any link that is up? Once that is so, a link that comes up has yet to show somebody.
    fn is_alone(&self) -> bool {
        let was = self.negotiation == Negotiation::Fallback;
        let mut up = self.members.values().filter(|member| member.link.up).peekable();
        up.peek().is_some() && up.all(|member| member.is_given_up() || was && !member.is_current())
    }

    fn has_enough(&self) -> bool {
        self.links() >= self.config.min_links.max(1)
    }

    /// Members in sync.
    fn links(&self) -> u16 {
        self.members.values().filter(|member| member.is_in_sync()).count().try_into().unwrap_or(u16::MAX)
    }

    /// All there is to show.
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
            members: self.members.iter().filter(|at| lag_of(*at) == Some(lag)).map(|(number, _)| *number).collect(),
        };
        lags.into_iter().map(aggregator).collect()
    }
}

/// What a member's mux has come to, said to the bond at once, and to the partner with the next tick: frames are taken
/// before it hears so.
fn tell(now_ns: u64, number: u16, member: &mut Member, actions: &mut Vec<Action>) {
    member.show_mux();
    member.look_for_churn(now_ns);
    member.run_periodic(now_ns);
    let news =
        member.news().map(|(collecting, distributing)| Action::Member { member: number, collecting, distributing });
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
