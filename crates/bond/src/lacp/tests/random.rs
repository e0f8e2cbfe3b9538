//! Random events in random order. A member sends only while its link is up and the last accepted PDU
//! announces that the partner is in sync with it and receives frames.

use super::wire::{SEC, config, settings};
use crate::lacp::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Happening {
    Add(u16, u16),
    Remove(u16),
    Hold(u16, bool),
    Link(u16, bool, Option<u64>),
    /// A PDU of one of three systems, with one of two keys and these state bits, that does or does not know
    /// us.
    Speak {
        member: u16,
        system: u8,
        key: u16,
        port: u16,
        state: u8,
        knows: bool,
    },
    /// Random bytes, with or without a valid header.
    Bytes(u16, bool, Vec<u8>),
    Wait(u64),
    Tick,
    Reconfigure(Config),
}

fn member() -> impl Strategy<Value = u16> {
    1u16..6
}

fn happening() -> impl Strategy<Value = Happening> {
    let bytes = prop::collection::vec(any::<u8>(), 0..140);
    let speak = (member(), 1u8..5, 1u16..3, 1u16..3, any::<u8>(), any::<bool>());
    let usual = prop_oneof![
        8 => Just((0x3f, true)),
        1 => prop::sample::select(vec![0x07, 0x0f, 0x1f, 0x3b, 0x3e]).prop_map(|state| (state, true)),
        1 => Just((0x3f, false)),
    ];
    prop_oneof![
        1 => (member(), 1u16..4).prop_map(|(member, key)| Happening::Add(member, key)),
        1 => member().prop_map(Happening::Remove),
        1 => (member(), any::<bool>()).prop_map(|(member, held)| Happening::Hold(member, held)),
        2 => (member(), any::<bool>(), prop::option::of(any::<u64>()))
            .prop_map(|(member, up, speed)| Happening::Link(member, up, speed)),
        // Mostly a consistent partner, because a random one would never get in sync.
        12 => (member(), usual).prop_map(|(member, (state, knows))| {
            Happening::Speak { member, system: 2, key: 1, port: member, state, knows }
        }),
        4 => speak.prop_map(|(member, system, key, port, state, knows)| {
            Happening::Speak { member, system, key, port, state, knows }
        }),
        2 => (member(), any::<bool>(), bytes).prop_map(|(member, header, bytes)| Happening::Bytes(member,
            header, bytes)),
        6 => prop_oneof![0u64..3 * SEC, 0u64..100 * SEC].prop_map(Happening::Wait),
        4 => Just(Happening::Tick),
        1 => configuration().prop_map(Happening::Reconfigure),
    ]
}

prop_compose! {
    fn configuration()(
        own in 1u8..3, active: bool, fast: bool, min_links in 0u16..4, policy in 0..3, fallback: bool,
            key in 1u16..3,
    ) -> Config {
        let rate = if fast { Rate::Fast } else { Rate::Slow };
        let policy = [Policy::Stable, Policy::Bandwidth, Policy::Count][policy as usize];
        Config { key, active, rate, min_links, policy, fallback, ..config(own) }
    }
}

/// The test's own record of events, independent of the code under test.
struct Witness {
    lacp: Lacp,
    config: Config,
    now: u64,
    up: BTreeMap<u16, bool>,
    /// The last PDU accepted on each member, and its time.
    heard: BTreeMap<u16, (u64, LacpPdu)>,
    used: BTreeMap<u16, (bool, bool)>,
    sent: BTreeMap<u16, Vec<u64>>,
    ever: bool,
}

impl Witness {
    fn new(config: Config) -> Witness {
        let mut witness = Witness {
            lacp: Lacp::new(config.clone()),
            config,
            now: 0,
            up: BTreeMap::new(),
            heard: BTreeMap::new(),
            used: BTreeMap::new(),
            sent: BTreeMap::new(),
            ever: false,
        };
        for member in 1..4 {
            witness.step(Event::Add { member, settings: settings(member) });
            witness.apply(&Happening::Link(member, true, None));
        }
        witness
    }

    fn apply(&mut self, happening: &Happening) {
        match happening {
            Happening::Add(member, key) => {
                let settings = Settings { key: Some(*key), ..settings(*member) };
                self.step(Event::Add { member: *member, settings });
            }
            Happening::Remove(member) => {
                self.step(Event::Remove { member: *member });
                self.up.remove(member);
                // Its farewell does not count against the limit, and a re-added member has sent nothing yet.
                self.sent.remove(member);
                assert_ne!(self.used.insert(*member, (false, false)), Some((true, true)), "said so");
            }
            Happening::Hold(member, held) => self.step(Event::Hold { member: *member, held: *held }),
            Happening::Link(member, up, speed_bps) => {
                self.up.insert(*member, *up);
                self.step(Event::Link { member: *member, up: *up, speed_bps: *speed_bps });
            }
            Happening::Speak { .. } => self.speak(happening),
            Happening::Bytes(member, header, bytes) => self.babble(*member, *header, bytes),
            Happening::Tick => self.step(Event::Tick),
            Happening::Wait(ns) => self.wait(*ns),
            Happening::Reconfigure(config) => {
                self.config = config.clone();
                self.step(Event::Reconfigure(config));
            }
        }
    }

    fn speak(&mut self, happening: &Happening) {
        let Happening::Speak { member, system, key, port, state, knows } = *happening else { unreachable!() };
        let status = self.lacp.status();
        let Some(at) = status.members.iter().find(|at| at.member == member) else { return };
        let partner = if knows { at.actor } else { Info::default() };
        let port = Port { priority: 1, number: port };
        let actor = Info { system: config(system).system, key, port, state: State(state) };
        self.receive(member, LacpPdu { actor, partner, collector_delay: 0 });
    }

    fn receive(&mut self, member: u16, pdu: LacpPdu) {
        if self.up.get(&member) == Some(&true) && pdu.actor.system.mac != self.config.system.mac {
            self.heard.insert(member, (self.now, pdu));
        }
        self.step(Event::Pdu { member, bytes: &pdu.frame([2; 6]) });
    }

    fn babble(&mut self, member: u16, header: bool, bytes: &[u8]) {
        let mut frame = Marker { port: 0, system: [0; 6], transaction: 0 }.question([2; 6]);
        frame.truncate(14);
        frame.extend(bytes);
        // Random bytes may be a valid LACPDU.
        match parse(&frame) {
            Ok(Pdu::Lacp(pdu)) if header => self.receive(member, pdu),
            _ => self.step(Event::Pdu { member, bytes: if header { &frame } else { bytes } }),
        }
    }

    fn wait(&mut self, ns: u64) {
        let until = self.now + ns;
        while let Some(wake) = self.lacp.wake_ns().filter(|wake| *wake <= until) {
            self.now = self.now.max(wake);
            self.step(Event::Tick);
            assert!(self.lacp.wake_ns().is_none_or(|wake| wake > self.now));
        }
        self.now = until;
    }

    fn step(&mut self, event: Event<'_>) {
        let mut actions = Vec::new();
        self.lacp.step(self.now, event, &mut actions);
        for action in actions {
            match action {
                Action::Member { member, collecting, distributing } => {
                    self.used.insert(member, (collecting, distributing));
                    self.ever |= distributing;
                }
                Action::Transmit { member, frame } => self.note_sent(member, &frame),
                Action::Report { .. } | Action::Negotiation(_) => {}
            }
        }
        self.check();
    }

    fn note_sent(&mut self, member: u16, frame: &[u8]) {
        let Ok(Pdu::Lacp(pdu)) = parse(frame) else { return };
        assert!(pdu.actor.port.number != 0);
        let times = self.sent.entry(member).or_default();
        times.push(self.now);
        if let [.., first, _, _, last] = times[..] {
            assert!(last - first >= SEC, "four LACPDUs within a second");
        }
    }

    fn check(&self) {
        for (member, (collecting, distributing)) in &self.used {
            assert!(*collecting || !distributing);
            if !collecting {
                continue;
            }
            assert_eq!(self.up.get(member), Some(&true));
            let (at, pdu) = &self.heard[member];
            assert!(pdu.actor.state.has(State::SYNC));
            assert!(!distributing || pdu.actor.state.has(State::COLLECTING));
            let known = pdu.partner.is_same_port(&self.status(*member).actor);
            assert!(known || !pdu.actor.state.has(State::AGGREGATION));
            // Ticks are punctual in this test.
            assert!(self.now - at <= 90 * SEC + 90 * SEC);
            assert_ne!(pdu.actor.system.mac, self.config.system.mac);
        }
        self.check_aggregator();
    }

    fn status(&self, member: u16) -> MemberStatus {
        self.lacp.status().members.into_iter().find(|at| at.member == member).unwrap()
    }

    /// Checks that all members in use have the same partner, and that there are enough of them.
    fn check_aggregator(&self) {
        let used = |at: &&MemberStatus| self.used.get(&at.member).is_some_and(|used| used.0);
        let status = self.lacp.status();
        let used: Vec<&MemberStatus> = status.members.iter().filter(used).collect();
        let lag = |at: &MemberStatus| (at.actor.key, at.partner.system, at.partner.key);
        assert!(used.windows(2).all(|pair| lag(pair[0]) == lag(pair[1])));
        assert!(used.is_empty() || used.len() >= usize::from(self.config.min_links));
        assert!(used.iter().all(|at| !at.held && at.selected));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn nothing_is_sent_to_who_does_not_take_it(
        config in configuration(), happenings in prop::collection::vec(happening(), 0..200),
    ) {
        let mut witness = Witness::new(config);
        for happening in &happenings {
            witness.apply(happening);
        }
    }
}

/// Checks that the property above is not vacuous: random histories do bring members into use.
#[test]
fn random_histories_reach_distributing() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let histories = prop::collection::vec(happening(), 200);
    let reached = (0..40).filter(|_| {
        let mut witness = Witness::new(config(1));
        let history = histories.new_tree(&mut runner).unwrap().current();
        history.iter().for_each(|happening| witness.apply(happening));
        witness.ever
    });
    assert!(reached.count() >= 20);
}
