//! What the app answers from the published state.

use super::{FlowRow, FlowsPage, FlowsWanted, Overlay, OverlayReport, Policy, pages, text};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use weir_app::page::Part;
use weir_app::task::{Publisher, TaskApp, Wanted};
use weir_app::{Action, App, Event, RequestId, SampleValue};

fn app(policy: Policy) -> TaskApp<Overlay> {
    let task = Overlay {
        name: "pods".into(),
        tunnel: "vx0".into(),
        uplink: "up0".into(),
        bridge: Some("cni0".into()),
        pods: None,
        mark: 0xff00_0000,
        flows: 64,
        refresh_ns: None,
        policy,
        idle_ns: 30_000_000_000,
    };
    TaskApp::new(Wanted { task, board: Publisher::default() })
}

fn report() -> OverlayReport {
    OverlayReport {
        refresh_ns: Some(5_000_000_000),
        pods: vec!["vp1".into()],
        nodes: vec![[10, 0, 1, 2].into()],
        frames: [
            vec![("seen", 10), ("fast", 6), ("dropped", 0), ("control", 2), ("unknown", 2)],
            vec![("seen", 3), ("fast", 0), ("dropped", 0), ("not_tunnel", 3)],
        ],
        entries: vec![("overlay_learnt_sent", 1)],
        causes: BTreeMap::from([("route", 2)]),
    }
}

fn asked(app: &mut TaskApp<Overlay>, request: &str) -> Vec<Action> {
    let mut actions = Vec::new();
    app.step(0, Event::Request { id: RequestId(1), request: &json!(request) }, &mut actions);
    actions
}

fn answer(actions: &[Action]) -> Value {
    let [Action::Answer { answer: Ok(answer), .. }] = actions else { panic!("{actions:?}") };
    answer.clone()
}

#[test]
fn what_was_told_is_shown() {
    let mut app = app(Policy::Strict);
    app.board().report = report();
    app.board().note(5, "the programs are active".into());
    let shown = answer(&asked(&mut app, "show"));
    // Three of four eligible frames: those that close a connection are not eligible.
    assert_eq!(shown["hit_ratio"], json!({ "sent": 0.75 }));
    // Every word is documented, and none is null.
    assert_eq!(weir_app::shown::undocumented(&shown, include_str!("../README.md")), Vec::<String>::new());
    let text = text::show(&shown);
    assert!(text.contains("10 frames, 6 fast, hit ratio 75.0 %") && text.contains("route"), "{text}");
    assert!(text.contains("refresh: 5000 ms"), "{text}");
    assert!(text.contains("hit ratio -") && text.contains("10.0.1.2"), "{text}");
    assert_eq!(app.counts(), [("overlay_learnt_sent", 1)]);
    let samples = app.samples();
    let all: u64 = samples
        .iter()
        .filter(|one| one.name == "overlay_frames")
        .map(|one| if let SampleValue::Count(count) = one.value { count } else { 0 })
        .sum();
    assert_eq!(all, 13, "each frame once");
    let running = |app: &TaskApp<Overlay>| app.samples().into_iter().find(|one| one.name == "running");
    assert_eq!(running(&app).map(|one| one.value), Some(SampleValue::Gauge(1.0)));
    app.board().obstacle = Some("no such device".into());
    assert_eq!(running(&app).map(|one| one.value), Some(SampleValue::Gauge(0.0)));
    app.board().obstacle = None;
    assert!(matches!(asked(&mut app, "wrong")[..], [Action::Answer { answer: Err(_), .. }]));
    let parts = (pages::PAGES[0].parts)(&json!({ "answers": [[shown]] }));
    let [Part::Facts(_), Part::Table(frames), Part::Table(changes)] = &parts[..] else { panic!("{parts:?}") };
    assert_eq!((frames.rows.len(), changes.rows.len()), (4, 2), "{parts:?}");
}

#[test]
fn flows_are_asked_for_and_waited_for() {
    let mut app = app(Policy::Strict);
    assert_eq!(asked(&mut app, "flows"), []);
    assert_eq!(asked(&mut app, "flows from 7"), []);
    let wanted = std::mem::take(&mut app.board().queries);
    let [(first, FlowsWanted::From(0)), (second, FlowsWanted::From(7))] = wanted[..] else {
        panic!("{wanted:?}")
    };
    let mut actions = Vec::new();
    app.step(app.wake_ns().unwrap(), Event::Tick, &mut actions);
    assert_eq!(actions, []);
    let rows = vec![FlowRow {
        addresses: [[10, 244, 1, 5].into(), [10, 244, 2, 7].into()],
        ports: [40_000, 5001],
        protocol: 6,
        node: [10, 0, 1, 2].into(),
        pod: "vp1".into(),
        peer: None,
        known: [true, false],
        usable: [true; 2],
        stamps: [[0; 3]; 2],
        stamps_now: [[0; 3]; 2],
        age_ns: [0; 2],
        translated: [None; 2],
        packets: [7, 0],
        bytes: [700, 0],
        idle_ns: 0,
    }];
    let page = FlowsPage { rows, next: Some(7), refresh_ns: 5_000_000_000 };
    app.board().read = vec![(second, FlowsPage::default()), (first, page)];
    app.step(app.wake_ns().unwrap(), Event::Tick, &mut actions);
    assert_eq!(actions.len(), 2);
    let last = answer(&actions[..1]);
    assert_eq!(last, json!({ "name": last["name"], "count": 0, "flows": [] }), "there is no next page");
    let shown = answer(&actions[1..]);
    assert_eq!(shown["next"], 7);
    let text = text::flows(&shown, &[]);
    assert!(text.contains("10.244.1.5:40000 -> 10.244.2.7:5001") && text.ends_with("1 flows\n"), "{text}");
    assert!(text.contains("sent known (7 packets") && text.contains("received - (0"), "{text}");
    assert_eq!(app.wake_ns(), None);

    asked(&mut app, "flows");
    actions.clear();
    app.step(u64::MAX / 2, Event::Tick, &mut actions);
    assert!(matches!(actions[..], [Action::Answer { answer: Err(_), .. }]), "not for ever");
    assert_eq!(app.board().queries, []);
}

#[test]
fn a_wrong_request_is_answered_with_its_name_and_the_field() {
    let mut app = app(Policy::Strict);
    for (wrong, part) in [
        ("list", "there is no request `list`: show, flows, explain"),
        ("flows of 7", "request `flows`: unknown field `of`"),
        ("flows from -1", "request `flows`, field `from`: invalid type"),
        ("explain 1.2.3.4:5", "request `explain`: missing field `remote`"),
        ("explain 1.2.3.4:5 5.6.7.8:9 tcp 6", "request `explain`: unknown field `6`"),
        ("explain 1.2.3.4:5 5.6.7.8:9 sctp", "`sctp` is not `tcp` or `udp`"),
    ] {
        let answers = asked(&mut app, wrong);
        let [Action::Answer { answer: Err(why), .. }] = &answers[..] else { panic!("{answers:?}") };
        assert!(why.starts_with(part), "{wrong}: {why}");
    }
    assert_eq!(asked(&mut app, "explain 10.244.1.5:40000 10.244.2.7:80 tcp"), []);
    assert!(matches!(app.board().queries[..], [(_, FlowsWanted::One(_))]));
}

#[test]
fn a_successor_keeps_the_board_if_nothing_has_changed() {
    let old = app(Policy::Strict);
    old.board().report = report();
    for (policy, nodes) in [(Policy::Strict, 1), (Policy::Connection, 0)] {
        let mut new = app(policy);
        new.inherit(Box::new(old.clone()));
        assert_eq!(new.board().report.nodes.len(), nodes);
    }
}
