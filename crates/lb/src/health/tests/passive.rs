//! Passive checks: unanswered new flows take a back end out before its active check fails.

use super::app::{HealthRig, MS, health};
use crate::health::{Fail, Health, LbApp, Passive};
use std::sync::Arc;
use weir_app::{App, Event, Level};
use weir_program::census::Flows;

const PASSIVE: Passive = Passive { unanswered: 5, share: 500, within_ns: 2000 * MS, for_ns: 10_000 * MS };
const NONE: [u16; 0] = [];
/// How often a flow begins at each back end.
const STEP_MS: u64 = 100;
/// How long a client waits before it retransmits a SYN (RFC 6298 section 2.1).
const REPEATS_MS: u64 = 1000;

/// A service with checks at this interval.
fn passive(servers: &[u8], interval_ms: u64) -> Health {
    let mut health = health(&[("web", servers)], Fail::All);
    let guarded = Arc::make_mut(&mut health.services[0]);
    guarded.passive = Some(PASSIVE);
    for (.., watch) in &mut guarded.back_ends {
        watch.as_mut().unwrap().times.interval_ns = interval_ms * MS;
    }
    health
}

/// Clients begin a flow at every back end with a weight, and retransmit the SYNs to those that do not answer.
struct World {
    rig: HealthRig,
    now_ms: u64,
    /// By back end: when unanswered flows began.
    silent: Vec<Vec<u64>>,
}

impl World {
    fn new(health: Health) -> World {
        let count = health.services[0].back_ends.len();
        let mut rig = HealthRig::new(health);
        rig.flows = vec![Flows::default(); count];
        World { rig, now_ms: 0, silent: vec![Vec::new(); count] }
    }

    /// Advances time while these back ends answer no new flow.
    fn run(&mut self, until_ms: u64, dead: &[usize]) {
        while self.now_ms < until_ms {
            self.now_ms += STEP_MS;
            let out: Vec<u16> = self.rig.changed().iter().map(|(target, _)| *target).collect();
            for at in 0..self.silent.len() {
                let due = |began: &u64| began + REPEATS_MS <= self.now_ms;
                let repeated = self.silent[at].iter().filter(|began| due(began)).count() as u64;
                let now_ms = self.now_ms;
                self.silent[at].retain(|began| began + REPEATS_MS > now_ms);
                self.rig.flows[at].unanswered += repeated;
                if !out.contains(&(at as u16)) {
                    self.rig.flows[at].begun += 1;
                    self.silent[at].extend(dead.contains(&at).then_some(self.now_ms));
                }
            }
            self.rig.run(self.now_ms);
        }
    }

    fn is_out(&self) -> Vec<u16> {
        self.rig.changed().iter().filter(|(_, weight)| *weight == 0).map(|(target, _)| *target).collect()
    }
}

#[test]
fn a_back_end_that_answers_nobody_loses_new_flows_before_its_check_fails() {
    let mut world = World::new(passive(&[1, 2, 3], 60_000));
    world.run(4000, &[]);
    assert_eq!(world.is_out(), NONE);
    world.run(7000, &[1]);
    assert_eq!(world.is_out(), [1], "within 3 s");
    let (state, why) = world.rig.condition("b2");
    assert_eq!(state, "suspect");
    assert!(why.ends_with("new flows within 2000 ms got no answer"), "{why}");
    let at =
        world.rig.said.iter().position(|said| said.starts_with("b2 of web gets no new flows: ")).unwrap();
    assert_eq!(world.rig.levels[at], Level::Warning);
    // When the time is over, it is tried again, and found to be dead again.
    let (mut tried, mut out) = (false, 0);
    for now_ms in (7000..20_000).step_by(STEP_MS as usize) {
        world.run(now_ms, &[1]);
        tried |= world.is_out().is_empty();
        out += u64::from(!world.is_out().is_empty());
    }
    assert!(tried && world.is_out() == [1], "{:?}", world.is_out());
    assert!(out * STEP_MS >= 10_000, "{out}");
    // The back end answers again.
    world.run(40_000, &[]);
    assert_eq!((world.is_out(), world.rig.condition("b2").0), (vec![], "up".to_string()));
    assert!(world.rig.said.contains(&"b2 of web may get new flows again".to_string()));
}

#[test]
fn good_checks_end_it_early() {
    let mut world = World::new(passive(&[1, 2, 3], 1000));
    world.run(4000, &[]);
    world.run(7000, &[1]);
    assert_eq!(world.is_out(), [1]);
    world.run(9500, &[]);
    assert_eq!(world.is_out(), NONE, "two good checks");
}

#[test]
fn an_operator_ends_it() {
    let mut world = World::new(passive(&[1, 2], 60_000));
    world.run(4000, &[]);
    world.run(7000, &[1]);
    assert_eq!(world.is_out(), [1]);
    world.rig.request("enable web b2").unwrap();
    assert_eq!(world.is_out(), NONE);
}

/// If no back end answers, the evidence says nothing about single back ends; otherwise the last one that
/// works is kept.
#[test]
fn the_last_one_that_answers_stays() {
    let mut world = World::new(passive(&[1, 2, 3], 60_000));
    world.run(4000, &[]);
    world.run(9000, &[0, 1, 2]);
    assert_eq!(world.is_out(), NONE, "all are alike");
    let mut world = World::new(passive(&[1, 2, 3], 60_000));
    world.run(4000, &[]);
    let mut most = 0;
    for now_ms in (4000..9500).step_by(STEP_MS as usize) {
        let before = world.is_out().len();
        world.run(now_ms, &[0, 1]);
        most = most.max(world.is_out().len() - before);
    }
    assert_eq!((world.is_out(), most), (vec![0, 1], 1), "one after the other");
    world.run(12_000, &[0, 1, 2]);
    assert_eq!(world.is_out(), [0, 1]);
}

#[test]
fn few_flows_and_few_of_many_prove_nothing() {
    let mut world = World::new(passive(&[1, 2], 60_000));
    world.run(4000, &[]);
    world.rig.flows[1].unanswered += 4;
    world.run(8000, &[]);
    assert_eq!(world.is_out(), NONE, "four flows");
    world.rig.flows[1].begun += 100;
    world.rig.flows[1].unanswered += 40;
    world.run(12_000, &[]);
    assert_eq!(world.is_out(), NONE, "a third of them");
    world.rig.flows[1].unanswered += 90;
    world.run(12_600, &[]);
    assert_eq!(world.is_out(), [1]);
}

/// An unanswered SYN proves less than a failed check.
#[test]
fn a_suspect_gets_flows_when_no_other_is_up() {
    let mut world = World::new(passive(&[1, 2], 60_000));
    world.run(4000, &[]);
    world.run(7000, &[1]);
    world.rig.request("maintenance web b1").unwrap();
    assert_eq!(world.is_out(), [0], "b2 is suspect and gets flows");
    assert_eq!(world.rig.condition("b2").0, "suspect");
}

#[test]
fn a_reload_keeps_it() {
    let mut world = World::new(passive(&[1, 2], 60_000));
    world.run(4000, &[]);
    world.run(7000, &[1]);
    let next = |health: Health, old: LbApp| {
        let mut rig = HealthRig::new(passive(&[], 60_000));
        let program = super::app::program(&health);
        rig.app = LbApp::new(health);
        rig.app.inherit(Box::new(old));
        rig.app.bind(&program);
        rig.now_ns = 7000 * MS;
        rig.step(Event::Start);
        rig
    };
    let mut rig = next(passive(&[1, 2], 60_000), world.rig.app);
    assert_eq!((rig.changed(), rig.condition("b2").0), (vec![(1, 0)], "suspect".to_string()));
    rig.run(20_000);
    assert_eq!(rig.changed(), []);
    let mut without = passive(&[1, 2], 60_000);
    Arc::make_mut(&mut without.services[0]).passive = None;
    let mut world = World::new(passive(&[1, 2], 60_000));
    world.run(4000, &[]);
    world.run(7000, &[1]);
    assert_eq!(next(without, world.rig.app).changed(), [], "without passive checks it is forgotten");
}
