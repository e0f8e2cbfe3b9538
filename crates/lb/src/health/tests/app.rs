//! The app, driven by hand.

use crate::health::{Fail, Guarded, Health, HealthPublisher, LbApp, Times, Watch};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use weir_app::check::{Ask, Check, CheckId, Outcome};
use weir_app::{Action, App, Event, Level, RequestId};
use weir_program::builder::ProgramBuilder;
use weir_program::census::Flows;
use weir_program::change::Change;
use weir_program::{Fill, Forward, Group, Program, Target};

pub(super) const MS: u64 = 1_000_000;

fn watch(server: u8) -> Watch {
    let address = Ipv4Addr::new(10, 0, 0, server).into();
    let check = Arc::new(Check {
        address,
        port: 80,
        ask: Ask::Tcp,
        timeout_ns: 500 * MS,
        via: None,
        close: Default::default(),
    });
    let times = Times { interval_ns: 1000 * MS, jitter: 0, rise: 2, fall: 3, slow_start_ns: 0 };
    Watch { check, times, drains: false }
}

/// Services whose back ends are the servers with these numbers.
pub(super) fn health(services: &[(&str, &[u8])], fail: Fail) -> Health {
    let one = |(name, servers): &(&str, &[u8])| Guarded {
        name: (*name).to_string(),
        fail,
        passive: None,
        is_announced: true,
        routed: None,
        back_ends: servers.iter().map(|server| (format!("b{server}"), 5, Some(watch(*server)))).collect(),
    };
    Health { services: services.iter().map(one).map(Arc::new).collect(), ..Health::default() }
}

pub(super) fn program(health: &Health) -> Program {
    let mut program = ProgramBuilder::new();
    for service in &health.services {
        let target = |(name, weight, _): &(String, u32, Option<Watch>)| {
            Target::new(name, Forward::Drop).weight(*weight)
        };
        let group = Group::new(format!("lb/{}", service.name), Fill::Maglev, 251);
        let _ = program.group(group.targets(service.back_ends.iter().map(target)));
    }
    program.build()
}

/// The app, the servers with their condition, and the weights of the groups.
pub(super) struct HealthRig {
    pub app: LbApp,
    pub now_ns: u64,
    pub broken: Vec<u8>,
    weights: BTreeMap<(u16, u16), u32>,
    asked: Vec<(u64, u8)>,
    pub said: Vec<String>,
    pub levels: Vec<Level>,
    /// The events for clients that watch.
    pub published: Vec<(&'static str, Value)>,
    /// The flows of the targets of every group.
    pub flows: Vec<Flows>,
}

impl HealthRig {
    pub fn new(health: Health) -> HealthRig {
        let program = program(&health);
        let mut app = LbApp::new(health);
        app.bind(&program);
        let mut rig = HealthRig {
            app,
            now_ns: 0,
            broken: Vec::new(),
            weights: BTreeMap::new(),
            asked: Vec::new(),
            said: Vec::new(),
            levels: Vec::new(),
            published: Vec::new(),
            flows: Vec::new(),
        };
        rig.step(Event::Start);
        rig
    }

    pub fn step(&mut self, event: Event<'_>) -> Vec<Action> {
        let mut actions = Vec::new();
        self.app.step(self.now_ns, event, &mut actions);
        let mut others = Vec::new();
        for action in actions {
            match action {
                Action::Check { id, check } => {
                    let std::net::IpAddr::V4(address) = check.address else { unreachable!() };
                    let server = address.octets()[3];
                    self.asked.push((self.now_ns, server));
                    let outcome: Outcome =
                        if self.broken.contains(&server) { Err("refused".to_string()) } else { Ok(()) };
                    others.extend(self.step(Event::Checked { id, outcome: &outcome }));
                }
                Action::Change(Change::SetWeight { group, target, weight }) => {
                    self.weights.insert((group.0, target), weight);
                }
                Action::Change(Change::SetWeights { group, weights }) => {
                    self.weights.extend(weights.iter().map(|(target, weight)| ((group.0, *target), *weight)));
                }
                Action::Say(level, text) => {
                    self.said.push(text);
                    self.levels.push(level);
                }
                Action::ReadFlows(group) => {
                    let flows = self.flows.clone();
                    others.extend(self.step(Event::Flows { group, flows: &flows }));
                }
                Action::Publish { event, data, .. } => self.published.push((event, data)),
                other => others.push(other),
            }
        }
        others
    }

    /// Advances time, with a tick whenever the app wants one.
    pub fn run(&mut self, until_ms: u64) {
        while let Some(wake_ns) = self.app.wake_ns().filter(|wake_ns| *wake_ns <= until_ms * MS) {
            self.now_ns = self.now_ns.max(wake_ns);
            self.step(Event::Tick);
        }
        self.now_ns = until_ms * MS;
    }

    pub fn request(&mut self, words: &str) -> Result<Value, String> {
        self.ask(&json!(words))
    }

    fn ask(&mut self, request: &Value) -> Result<Value, String> {
        let actions = self.step(Event::Request { id: RequestId(1), request });
        match actions.as_slice() {
            [Action::Answer { answer, .. }] => answer.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// The weights of the first service's back ends that are not as configured.
    pub fn changed(&self) -> Vec<(u16, u32)> {
        let own = self.weights.iter().filter(|((group, _), weight)| *group == 0 && **weight != 5);
        own.map(|((_, target), weight)| (*target, *weight)).collect()
    }

    pub fn condition(&self, back_end: &str) -> (String, String) {
        let condition = self.app_board().of("web", back_end);
        (condition.health.to_string(), condition.reason)
    }

    fn app_board(&self) -> HealthPublisher {
        self.app.board()
    }
}

#[test]
fn a_back_end_that_dies_loses_its_weight_and_gets_it_back() {
    let mut rig = HealthRig::new(health(&[("web", &[1, 2, 3])], Fail::All));
    assert_eq!(rig.condition("b1"), ("unknown".into(), "no check has finished yet".into()));
    rig.run(2000);
    assert_eq!(rig.changed(), []);
    assert_eq!(rig.condition("b1"), ("up".into(), String::new()));
    rig.broken.push(2);
    rig.run(3900);
    assert_eq!(rig.changed(), [], "two bad checks are not three");
    rig.run(6000);
    assert_eq!(rig.changed(), [(1, 0)]);
    assert_eq!(rig.condition("b2"), ("down".into(), "refused".into()));
    assert_eq!(App::first_weights(&rig.app), [("lb/web".to_string(), "b2".to_string(), 0)]);
    rig.broken.clear();
    rig.run(9000);
    assert_eq!(rig.changed(), []);
    let transitions: Vec<&String> = rig.said.iter().filter(|said| said.contains("b2")).collect();
    assert_eq!(transitions, ["b2 of web is up", "b2 of web is down: refused", "b2 of web is up"]);
}

/// With `fail: drain`, a failed check, such as an answer of 503, breaks no connections.
#[test]
fn a_check_that_only_drains_ends_no_flow() {
    let mut drains = health(&[("web", &[1, 2])], Fail::All);
    for (.., watch) in &mut Arc::make_mut(&mut drains.services[0]).back_ends {
        watch.as_mut().unwrap().drains = true;
    }
    let mut rig = HealthRig::new(drains);
    rig.run(2000);
    rig.broken.push(1);
    rig.run(8000);
    assert_eq!(rig.changed(), [(0, 0)]);
    assert_eq!(rig.condition("b1"), ("draining".into(), "refused".into()));
    assert!(rig.said.contains(&"b1 of web gets no new flows: refused".to_string()), "{:?}", rig.said);
    // If all of them fail, `fail` decides as usual.
    rig.broken.push(2);
    rig.run(20_000);
    assert_eq!(rig.changed(), []);
    rig.broken.clear();
    rig.run(30_000);
    assert_eq!((rig.changed(), rig.condition("b1").0), (vec![], "up".into()));
}

#[test]
fn servers_of_several_services_are_checked_once() {
    let mut rig = HealthRig::new(health(&[("web", &[1, 2]), ("api", &[1, 2])], Fail::Drop));
    rig.run(10_000);
    assert!((18..=20).contains(&rig.asked.len()), "{}", rig.asked.len());
    rig.broken.push(1);
    rig.run(15_000);
    let of_first: Vec<u32> = rig.weights.values().copied().collect();
    assert_eq!(of_first, [0, 0], "in both");
    rig.broken.push(2);
    rig.run(20_000);
    assert!(rig.weights.values().all(|weight| *weight == 0), "{:?}", rig.weights);
    assert!(rig.said.contains(&"web: no back end is up, its packets are dropped".to_string()));
    for (text, level) in rig.said.iter().zip(&rig.levels) {
        let expected = match text {
            text if text.contains("no back end is up") => Level::Error,
            text if text.contains("is down") => Level::Warning,
            _ => Level::Info,
        };
        assert_eq!(*level, expected, "{text}");
    }
}

#[test]
fn with_all_down_all_or_the_last_go_on() {
    for (fail, wanted) in
        [(Fail::All, vec![]), (Fail::Last, vec![(0, 0)]), (Fail::Drop, vec![(0, 0), (1, 0)])]
    {
        let mut rig = HealthRig::new(health(&[("web", &[1, 2])], fail));
        rig.run(2000);
        rig.broken.push(1);
        rig.run(8000);
        assert_eq!(rig.changed(), [(0, 0)]);
        rig.broken.push(2);
        rig.run(20_000);
        assert_eq!(rig.changed(), wanted, "{fail:?}");
        rig.broken.retain(|server| *server == 2);
        rig.run(30_000);
        assert_eq!(rig.changed(), [(1, 0)]);
    }
}

#[test]
fn an_operator_drains_maintains_and_weighs() {
    let mut rig = HealthRig::new(health(&[("web", &[1, 2])], Fail::All));
    rig.run(2000);
    assert_eq!(rig.request("drain web b1"), Ok(json!("b1 of web gets no new flows")));
    assert_eq!((rig.changed(), rig.condition("b1").0), (vec![(0, 0)], "draining".to_string()));
    rig.broken.push(2);
    rig.run(8000);
    assert_eq!(rig.changed(), [(0, 0)], "only b2 may get packets");
    rig.request("maintenance web b1").unwrap();
    let before = rig.asked.iter().filter(|(_, server)| *server == 1).count();
    rig.run(18_000);
    assert_eq!(rig.asked.iter().filter(|(_, server)| *server == 1).count(), before, "it is not checked");
    rig.request("enable web b1").unwrap();
    assert_eq!(rig.condition("b1").0, "down", "until it has been checked");
    rig.run(18_001);
    assert_eq!(rig.condition("b1").0, "up");
    assert_eq!(rig.changed(), [(1, 0)]);
    assert_eq!(rig.request("weight web b1 7"), Ok(json!("the weight of b1 of web is 7")));
    assert_eq!(rig.changed(), [(0, 7), (1, 0)]);
    for (bad, part) in [
        ("drain", "a request is"),
        ("drain api b1", "no service `api`; the services are web"),
        ("drain web b9", "no back end `b9`; its back ends are b1, b2"),
        ("weight web b1 x", "from 0 to 65535, not `x`"),
        ("drain web b1 5", "a request is"),
    ] {
        let why = rig.request(bad).unwrap_err();
        assert!(why.contains(part), "{bad}: {why}");
    }
}

#[test]
fn a_weight_rises_slowly() {
    let mut slow = health(&[("web", &[1, 2])], Fail::All);
    for (.., watch) in &mut Arc::make_mut(&mut slow.services[0]).back_ends {
        watch.as_mut().unwrap().times.slow_start_ns = 10_000 * MS;
    }
    // The program has scaled weights, because the builder multiplies them.
    let mut rig = HealthRig::new(slow);
    rig.broken.push(1);
    rig.run(8000);
    rig.broken.clear();
    rig.run(10_500);
    let mut seen = vec![rig.weights[&(0, 0)]];
    for second in 11..30 {
        rig.run(second * 1000 + 500);
        seen.push(rig.weights[&(0, 0)]);
    }
    seen.dedup();
    assert_eq!(seen.last(), Some(&50));
    assert!(seen.windows(2).all(|two| two[1] == two[0] + 5), "{seen:?}");
    assert_eq!(rig.condition("b1"), ("up".into(), String::new()));
}

#[test]
fn a_reload_keeps_what_is_known_and_wished() {
    let mut old = HealthRig::new(health(&[("web", &[1, 2])], Fail::All));
    old.broken.push(1);
    old.run(5000);
    old.request("drain web b2").unwrap();
    let new = health(&[("web", &[2, 1, 3])], Fail::All);
    let mut rig = HealthRig {
        app: LbApp::new(new.clone()),
        now_ns: old.now_ns,
        broken: vec![1],
        weights: BTreeMap::new(),
        asked: Vec::new(),
        said: Vec::new(),
        levels: Vec::new(),
        published: Vec::new(),
        flows: Vec::new(),
    };
    rig.app.inherit(Box::new(old.app));
    rig.app.bind(&program(&new));
    rig.step(Event::Start);
    assert_eq!(rig.changed(), [(0, 0), (1, 0)]);
    assert_eq!(rig.condition("b1"), ("down".into(), "refused".into()));
    assert_eq!(rig.condition("b2").0, "draining");
    assert_eq!(rig.condition("b3").0, "unknown");
    rig.run(5001);
    assert!(rig.asked.iter().all(|(_, server)| *server == 3), "the others are not due yet");
}

#[test]
fn an_outcome_that_nobody_waits_for_changes_nothing() {
    let mut rig = HealthRig::new(health(&[("web", &[1, 2])], Fail::All));
    rig.run(2000);
    let bad = Err("late".to_string());
    for id in 0..10 {
        assert_eq!(rig.step(Event::Checked { id: CheckId(id), outcome: &bad }), []);
    }
    assert_eq!((rig.changed(), rig.condition("b1").1), (vec![], String::new()));
}

#[test]
fn a_list_of_requests_is_carried_out_whole_or_not_at_all() {
    let mut rig = HealthRig::new(health(&[("web", &[1, 2, 3]), ("api", &[1])], Fail::All));
    rig.run(2000);
    let drain = |back_end: &str| json!({ "do": "drain", "service": "web", "back_end": back_end });
    let weight =
        |weight: Value| json!({ "do": "weight", "service": "web", "back_end": "b2", "weight": weight });
    for (bad, part) in [
        (json!([drain("b1"), drain("b9")]), "request 1: service `web` has no back end `b9`"),
        (json!([drain("b1"), weight(json!("x"))]), "request 1: `weight` is missing, or not a number"),
        (json!([drain("b1"), weight(json!(70_000))]), "request 1: a weight is a number from 0 to 65535"),
        (json!([drain("b1"), weight(json!(-1))]), "request 1: a weight is a number"),
        (json!([drain("b1"), { "do": "stop", "service": "web", "back_end": "b1" }]), "request 1: `do` is"),
        (json!([drain("b1"), { "do": "drain", "service": "web" }]), "request 1: `back_end` is missing"),
        (json!([drain("b1"), 5]), "request 1: a request is an object"),
        (json!({ "do": "drain", "service": "web", "back_end": "b1", "why": 1 }), "there is no field `why`"),
        (
            json!({ "do": "drain", "service": "web", "back_end": "b1", "weight": 1 }),
            "there is no field `weight`: `drain` has service, back_end",
        ),
        (json!(null), "a request is an object"),
    ] {
        let why = rig.ask(&bad).unwrap_err();
        assert!(why.contains(part), "{bad}: {why}");
        assert_eq!((rig.changed(), rig.condition("b1").0.as_str()), (vec![], "up"), "{bad}");
    }
    assert_eq!(rig.ask(&json!([drain("b1"), weight(json!(9))])), Ok(json!({ "done": 2 })));
    assert_eq!(rig.changed(), [(0, 0), (1, 9)]);
    let list = rig.ask(&json!({ "do": "list" })).unwrap();
    let first = json!({ "name": "b1", "weight": 5, "health": "draining", "reason": "" });
    assert_eq!((&list["services"][0]["back_ends"][0], &list["services"][1]["name"]), (&first, &json!("api")));
}
