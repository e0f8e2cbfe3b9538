//! Links with an instance of LACP at each end, on a common virtual clock.

use crate::lacp::*;
use std::collections::BTreeMap;
use weir_packet::random::Random;

pub const MS: u64 = 1_000_000;
pub const SEC: u64 = 1_000 * MS;
const LATENCY_NS: u64 = MS / 10;

/// A bond, and its actions so far.
pub struct BondEnd {
    pub lacp: Lacp,
    config: Config,
    settings: BTreeMap<u16, Settings>,
    /// Collecting and distributing.
    pub used: BTreeMap<u16, (bool, bool)>,
    pub changes: Vec<(u64, u16, bool, bool)>,
    pub negotiation: Negotiation,
    pub reports: Vec<(u64, u16, Notice)>,
    pub sent: Vec<(u64, u16, Vec<u8>)>,
}

impl BondEnd {
    fn new(config: Config) -> BondEnd {
        BondEnd {
            lacp: Lacp::new(config.clone()),
            config,
            settings: BTreeMap::new(),
            used: BTreeMap::new(),
            changes: Vec::new(),
            negotiation: Negotiation::Configured,
            reports: Vec::new(),
            sent: Vec::new(),
        }
    }

    /// Returns the LACPDUs sent by `member`, with their times.
    pub fn pdus(&self, member: u16) -> Vec<(u64, LacpPdu)> {
        let of_member = self.sent.iter().filter(|(_, by, _)| *by == member);
        let pdu = |(at, _, frame): &(u64, u16, Vec<u8>)| match parse(frame) {
            Ok(Pdu::Lacp(pdu)) => Some((*at, pdu)),
            _ => None,
        };
        of_member.filter_map(pdu).collect()
    }
}

/// A link between two members, each given as an end and a member number.
pub struct WireLink {
    ends: [(usize, u16); 2],
    /// Whether frames sent by the first end, and by the second, are lost.
    pub lost: [bool; 2],
    pub loss_percent: u64,
}

/// All ends and links, and the time.
pub struct Net {
    pub now: u64,
    pub ends: Vec<BondEnd>,
    pub links: Vec<WireLink>,
    flying: Vec<(u64, usize, u16, Vec<u8>)>,
    dice: Random,
}

/// A fast, active bond of the system whose address ends in this byte.
pub fn config(system: u8) -> Config {
    Config {
        system: System { priority: 65534, mac: [2, 0, 0, 0, 0, system] },
        key: 1,
        active: true,
        rate: Rate::Fast,
        min_links: 1,
        policy: Policy::Stable,
        fallback: false,
    }
}

/// A member with its member number as port number.
pub fn settings(member: u16) -> Settings {
    let mac = [2, 1, 0, 0, 0, member as u8];
    Settings { mac, port: member.try_into().unwrap(), priority: 255, key: None }
}

impl Net {
    pub fn new(configs: &[Config]) -> Net {
        let ends = configs.iter().cloned().map(BondEnd::new).collect();
        Net { now: 0, ends, links: Vec::new(), flying: Vec::new(), dice: Random::new(1) }
    }

    /// Two bonds with `links` links: member n of one is connected to member n of the other.
    pub fn pair(a: Config, b: Config, links: u16) -> Net {
        let mut net = Net::new(&[a, b]);
        for member in 1..=links {
            net.connect((0, settings(member)), (1, settings(member)));
        }
        net
    }

    /// Adds a member to two bonds, and the link between them.
    pub fn connect(&mut self, (a, of_a): (usize, Settings), (b, of_b): (usize, Settings)) {
        let ends = [(a, of_a.port.get()), (b, of_b.port.get())];
        self.links.push(WireLink { ends, lost: [false; 2], loss_percent: 0 });
        self.add(a, of_a);
        self.add(b, of_b);
    }

    /// Adds a member whose link is up.
    pub fn add(&mut self, end: usize, settings: Settings) {
        let member = settings.port.get();
        self.ends[end].settings.insert(member, settings);
        self.step(end, Event::Add { member, settings });
        self.carrier(end, member, true);
    }

    pub fn carrier(&mut self, end: usize, member: u16, up: bool) {
        self.step(end, Event::Link { member, up, speed_bps: Some(10_000_000_000) });
    }

    /// Makes a link lose all frames, including those in flight, or none.
    pub fn cut(&mut self, link: usize, lost: bool) {
        self.links[link].lost = [lost; 2];
        let ends = self.links[link].ends;
        self.flying.retain(|(_, end, member, _)| !lost || !ends.contains(&(*end, *member)));
    }

    /// Restarts an end without any state.
    pub fn restart(&mut self, end: usize, config: Config) {
        let before = std::mem::replace(&mut self.ends[end], BondEnd::new(config));
        for settings in before.settings.into_values() {
            self.add(end, settings);
        }
    }

    /// Another process takes over from an end, after a pause.
    pub fn succeed(&mut self, end: usize, config: Config, pause_ns: u64) {
        let heard = self.ends[end].lacp.last_pdus();
        self.now += pause_ns;
        let before = std::mem::replace(&mut self.ends[end], BondEnd::new(config));
        heard.iter().for_each(|(member, pdu)| self.ends[end].lacp.resume(*member, pdu));
        for settings in before.settings.into_values() {
            self.add(end, settings);
        }
    }

    pub fn reconfigure(&mut self, end: usize, change: impl FnOnce(&mut Config)) {
        change(&mut self.ends[end].config);
        let config = self.ends[end].config.clone();
        self.step(end, Event::Reconfigure(&config));
    }

    /// Passes an event to an end, followed by the tick that it asks for.
    pub fn step(&mut self, end: usize, event: Event<'_>) {
        self.handle(end, event);
        if self.ends[end].lacp.wake_ns().is_some_and(|wake| wake <= self.now) {
            self.handle(end, Event::Tick);
        }
    }

    pub fn handle(&mut self, end: usize, event: Event<'_>) {
        let mut actions = Vec::new();
        self.ends[end].lacp.step(self.now, event, &mut actions);
        for action in actions {
            self.carry_out(end, action);
        }
    }

    fn carry_out(&mut self, end: usize, action: Action) {
        let now = self.now;
        let at = &mut self.ends[end];
        match action {
            Action::Transmit { member, frame } => {
                assert_eq!(frame[6..12], at.settings[&member].mac, "a frame's source is its member's");
                at.sent.push((now, member, frame.clone()));
                self.transmit(end, member, frame);
            }
            Action::Member { member, collecting, distributing } => {
                let before = at.used.insert(member, (collecting, distributing)).unwrap_or_default();
                assert_ne!(before, (collecting, distributing), "only changes are reported");
                at.changes.push((now, member, collecting, distributing));
            }
            Action::Negotiation(negotiation) => {
                assert_ne!(at.negotiation, negotiation, "only changes are reported");
                at.negotiation = negotiation;
            }
            Action::Report { member, notice, .. } => at.reports.push((now, member, notice)),
        }
    }

    fn transmit(&mut self, end: usize, member: u16, frame: Vec<u8>) {
        let Some(link) = self.links.iter().find(|link| link.ends.contains(&(end, member))) else { return };
        let side = usize::from(link.ends[1] == (end, member));
        let drawn = self.dice.below(100);
        if link.lost[side] || drawn < link.loss_percent {
            return;
        }
        let (to, port) = link.ends[1 - side];
        self.flying.push((self.now + LATENCY_NS, to, port, frame));
    }

    /// Advances the time from one event to the next.
    pub fn run(&mut self, ns: u64) {
        let until = self.now + ns;
        loop {
            let wakes = self.ends.iter().filter_map(|end| end.lacp.wake_ns());
            let next = wakes.chain(self.flying.iter().map(|frame| frame.0)).min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.now = self.now.max(next);
            self.deliver();
            for end in 0..self.ends.len() {
                self.handle(end, Event::Tick);
                assert!(
                    self.ends[end].lacp.wake_ns().is_none_or(|wake| wake > self.now),
                    "a tick does what is due"
                );
            }
        }
        self.now = until;
    }

    fn deliver(&mut self) {
        let now = self.now;
        let (due, later) = std::mem::take(&mut self.flying).into_iter().partition(|frame| frame.0 <= now);
        self.flying = later;
        for (_, end, member, frame) in due {
            self.handle(end, Event::Pdu { member, bytes: &frame });
        }
    }

    /// Runs until `done` holds, at most `ns`. Returns how long it took.
    pub fn run_until(&mut self, ns: u64, done: impl Fn(&Net) -> bool) -> Option<u64> {
        let start = self.now;
        while !done(self) {
            if self.now - start >= ns {
                return None;
            }
            self.run(MS);
        }
        Some(self.now - start)
    }

    pub fn status(&self, end: usize, member: u16) -> MemberStatus {
        let status = self.ends[end].lacp.status();
        status.members.into_iter().find(|at| at.member == member).unwrap()
    }

    /// Returns the states of receive and mux machine.
    pub fn states(&self, end: usize, member: u16) -> (&'static str, &'static str) {
        let status = self.status(end, member);
        (status.receive, status.mux)
    }

    /// Returns true if the member receives and sends frames.
    pub fn works(&self, end: usize, member: u16) -> bool {
        self.ends[end].used.get(&member) == Some(&(true, true))
    }

    /// Returns true if the link works in both directions.
    pub fn link_works(&self, link: usize) -> bool {
        self.links[link].ends.iter().all(|(end, member)| self.works(*end, *member))
    }

    pub fn all_work(&self) -> bool {
        (0..self.links.len()).all(|link| self.link_works(link))
    }
}
