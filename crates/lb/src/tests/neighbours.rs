//! Back ends that are named by their IP address: the initial program, and the changes of the running app. The
//! interpreter and the engine get the same input and behave the same.

use super::flows::FlowRig;
use super::*;
use crate::health::{Fail, Guarded, Health, LbApp};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use weir_app::neighbour::{Found, Hop, Mac};
use weir_app::{Action, App, Event};
use weir_program::change::Change;
use weir_program::check::Severity;

fn hop(last: u8) -> Hop {
    Hop { port: "p0".into(), address: Ipv4Addr::new(10, 0, 1, last).into() }
}

fn mac(last: u8) -> Mac {
    [2, 0, 0, 0, 1, last]
}

/// A load balancer with one service of three back ends, which are named by their addresses.
fn balancer() -> Lb {
    let mut one = service("dns", By::FiveTuple);
    change(&mut one, |all| {
        for (back_end, at) in all.iter_mut().zip(0..) {
            (back_end.mac, back_end.resolve) = ([0; 6], Some(hop(at).address));
        }
    });
    let ports = [0, 1].map(|at| PortConfig::new(format!("p{at}"), PortKind::Mem));
    let back_ends = one.back_ends.iter().map(|one| (one.name.clone(), one.weight, None)).collect();
    let (is_announced, routed) = (true, None);
    let guarded = Arc::new(Guarded {
        name: "dns".into(),
        fail: Fail::All,
        passive: None,
        is_announced,
        routed,
        back_ends,
    });
    let neighbours = Neighbours::of(&[one.clone()], std::slice::from_ref(&guarded), &ports);
    let health = Health { services: vec![guarded], neighbours, ..Health::default() };
    let mut lb = Lb { services: vec![one], health, ..Lb::default() };
    lb.health.find(&lb.services, &program_of(lb.clone(), true));
    lb
}

/// The program of a load balancer, given these known addresses.
fn settled(lb: &Lb, known: &[u8]) -> Program {
    let mut program = program_of(lb.clone(), true);
    let known: HashMap<Hop, Mac> = known.iter().map(|last| (hop(*last), mac(*last))).collect();
    lb.settle(&known, &mut program);
    // A program without any known back end gets warnings only.
    assert!(check(&program).iter().all(|finding| finding.severity == Severity::Warning));
    program
}

/// The app with the engine and the interpreter of its program.
struct Both {
    app: LbApp,
    interpreter: Interpreter,
    engine: FlowRig,
    said: Vec<String>,
    resolved: Vec<Hop>,
    changes: usize,
    now_ns: u64,
}

impl Both {
    fn new(lb: &Lb, known: &[u8]) -> Both {
        let program = settled(lb, known);
        let mut app = LbApp::new(lb.health.clone());
        app.bind(&program);
        let engine = FlowRig::new(&program);
        // Both pick from the engine's buckets.
        let interpreter = interpreter(&program);
        let mut both =
            Both { app, interpreter, engine, said: Vec::new(), resolved: Vec::new(), changes: 0, now_ns: 0 };
        both.step(Event::Start);
        both
    }

    fn step(&mut self, event: Event<'_>) {
        let mut actions = Vec::new();
        self.app.step(self.now_ns, event, &mut actions);
        while let Some(wake_ns) = self.app.wake_ns() {
            self.now_ns = wake_ns;
            self.app.step(wake_ns, Event::Tick, &mut actions);
        }
        for action in actions {
            match action {
                Action::Change(change) => {
                    self.changes += 1;
                    if change.weights().is_none() {
                        self.interpreter.apply(&change).expect("it is possible");
                    }
                    self.engine.apply(vec![change]);
                }
                Action::Say(_, text) => self.said.push(text),
                Action::Resolve(hops) => self.resolved = hops.to_vec(),
                Action::Publish { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn met(&mut self, last: u8, found: Found) {
        self.step(Event::Neighbour { hop: &hop(last), found: &found });
    }

    /// The last bytes of the MAC addresses that new flows are sent to.
    fn sent_to(&mut self, flows: std::ops::Range<u16>) -> BTreeSet<u8> {
        flows.filter_map(|flow| self.engine.send(flow)).collect()
    }

    fn condition(&self, back_end: &str) -> (String, String) {
        let condition = self.app.board().of("dns", back_end);
        (condition.health.to_string(), condition.reason)
    }
}

#[test]
fn the_program_begins_with_those_that_are_known() {
    let lb = balancer();
    let program = settled(&lb, &[0, 2]);
    let weights: Vec<u32> = program.groups[0].targets.iter().map(|target| target.weight).collect();
    assert_eq!(weights, [1, 0, 1]);
    let mut both = Both::new(&lb, &[0, 2]);
    assert_eq!((both.changes, both.resolved.len()), (0, 3), "what the program already has is not a change");
    assert_eq!(both.sent_to(0..100), [0, 2].into());
    assert_eq!(both.condition("b0"), ("unchecked".into(), String::new()));
    let why = "no neighbour: 10.0.1.1 is being resolved";
    assert_eq!(both.condition("b1"), ("down".into(), why.into()));
}

#[test]
fn one_that_is_known_already_is_sent_what_one_with_a_mac_address_is_sent() {
    let lb = balancer();
    let fixed = Lb { services: vec![service("dns", By::FiveTuple)], ..Lb::default() };
    assert_eq!(settled(&lb, &[0, 1, 2]).pipes, program_of(fixed, true).pipes);
}

#[test]
fn one_that_is_found_gets_flows_and_one_that_is_lost_gives_them_away() {
    let mut both = Both::new(&balancer(), &[]);
    assert_eq!(both.sent_to(0..50), [].into(), "no neighbour is known, and nothing is sent");
    both.met(1, Ok(mac(1)));
    assert_eq!(both.sent_to(0..100), [1].into());
    both.met(0, Ok(mac(0)));
    assert_eq!(both.sent_to(100..300), [0, 1].into());
    let lost = "10.0.1.1 does not answer at eth0";
    both.met(1, Err(lost.to_string()));
    assert_eq!(both.condition("b1"), ("down".into(), format!("no neighbour: {lost}")));
    assert_eq!(both.sent_to(0..300), [0].into(), "its flows have moved, too");
    both.met(1, Ok(mac(1)));
    let said = [
        format!("10.0.1.1 at p0 is no longer a neighbour: {lost}"),
        "10.0.1.1 at p0 is 02:00:00:00:01:01".to_string(),
    ];
    assert_eq!(both.said, said, "the first resolution is not logged");
}

#[test]
fn a_mac_address_that_moves_takes_its_flows_along() {
    let mut both = Both::new(&balancer(), &[0, 1, 2]);
    let before: Vec<Option<u8>> = (0..60).map(|flow| both.engine.send(flow)).collect();
    both.met(1, Ok(mac(9)));
    assert_eq!(both.changes, 1, "its entry, and no bucket");
    let moved = |to: &Option<u8>| if *to == Some(1) { Some(9) } else { *to };
    let after: Vec<Option<u8>> = (0..60).map(|flow| both.engine.send(flow)).collect();
    assert_eq!(after, before.iter().map(moved).collect::<Vec<_>>());
    assert_eq!(both.said, ["10.0.1.1 at p0 has moved from 02:00:00:00:01:01 to 02:00:00:00:01:09"]);
    // Two stations that claim the address do not fill the log.
    for at in 0..20 {
        both.met(1, Ok([2, 0, 0, 0, 1, if at % 2 == 0 { 1 } else { 9 }]));
    }
    assert_eq!(both.said.len(), 4, "{:?}", both.said);
    both.now_ns += 60_000_000_000;
    both.met(1, Ok([2, 0, 0, 0, 1, 1]));
    let last = both.said.last().unwrap();
    assert!(both.said.len() == 5 && last.ends_with("02:00:00:00:01:01 (17 earlier changes)"), "{last}");
    both.met(1, Ok([2, 0, 0, 0, 1, 9]));
    // The interpreter, whose buckets are filled round robin, also knows about it.
    let client = |last| query(OURS, Ipv4Addr::new(192, 0, 2, last), VIP, 77, 0);
    let seen: BTreeSet<u8> =
        (0..60).filter_map(|last| chosen(&mut both.interpreter, &client(last), PortId(0))).collect();
    assert_eq!(seen, [0, 2, 9].into());
}

#[test]
fn a_reload_and_another_process_begin_with_what_is_known() {
    let lb = balancer();
    let mut both = Both::new(&lb, &[]);
    both.met(0, Ok(mac(0)));
    both.met(2, Ok(mac(7)));
    assert_eq!(lb.known(), HashMap::from([(hop(0), mac(0)), (hop(2), mac(7))]));
    both.met(0, Err("gone".to_string()));
    assert_eq!(lb.known(), HashMap::from([(hop(2), mac(7))]), "not for lost neighbours");
    both.met(0, Ok(mac(0)));
    assert_eq!(lb.known().len(), 2);
    let state: Value = both.app.state().expect("neighbours");
    // Another process that could not ask any neighbour in time.
    let mut next = LbApp::new(balancer().health);
    next.bind(&settled(&lb, &[]));
    next.resume(&state);
    let mut actions = Vec::new();
    next.step(0, Event::Start, &mut actions);
    assert_eq!(next.app_known(), [true, false, true]);
    // A reload: the program has an outdated address.
    let reloaded = balancer();
    let program = settled(&reloaded, &[0, 2]);
    let mut heir = LbApp::new(reloaded.health);
    heir.inherit(Box::new(both.app));
    heir.bind(&program);
    actions.clear();
    heir.step(0, Event::Start, &mut actions);
    let changes: Vec<&Action> = actions.iter().filter(|one| matches!(one, Action::Change(_))).collect();
    assert!(matches!(changes[..], [Action::Change(Change::Update { .. })]), "{changes:?}");
}

#[test]
fn a_back_end_that_an_operator_takes_away_stays_away_when_it_is_found() {
    let mut both = Both::new(&balancer(), &[0]);
    let drain = Value::from("drain dns b1");
    let mut actions = Vec::new();
    both.app.step(0, Event::Request { id: weir_app::RequestId(1), request: &drain }, &mut actions);
    both.met(1, Ok(mac(1)));
    assert_eq!(both.condition("b1").0, "draining");
    assert_eq!(both.sent_to(0..100), [0].into());
}
