//! What the app answers from the published state.

use super::{Fabric, FlowRow, FlowsPage, NodeReport, PathReport, PathsReport, text};
use crate::fabric::Reflect;
use crate::scheme::Scheme;
use crate::tunnel::PathTunnel;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr};
use weir_app::task::{EVENTS, Publisher, TaskApp, Wanted};
use weir_app::{Action, App, Event, RequestId, SampleValue};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 1));

fn app() -> TaskApp<Fabric> {
    let task = Fabric {
        name: "fabric".into(),
        uplinks: vec!["up0".into()],
        peers: vec![PEER],
        local: None,
        scheme: Scheme::Adaptive,
        reflect: Reflect::Weir,
        tunnel: PathTunnel::VXLAN,
        sources: [49_152, 65_535],
        dscp: 0,
        rate: 10_000_000_000,
        flows: 10,
        idle_timeout_ns: 10_000_000_000,
        probe_ns: 10_000_000,
        idle_ns: 1_000_000_000,
        discover_ns: 15_000_000_000,
        answers: 5000,
        secret: None,
    };
    TaskApp::new(Wanted { task, board: Publisher::default() })
}

fn report() -> PathsReport {
    let hops = vec![None, Some([10, 9, 1, 2].into())];
    let path = PathReport {
        port: 50_001,
        hops,
        state: "good".into(),
        queue_ns: 1500,
        lost: 1,
        probes: 200,
        bytes: 4200,
        ..PathReport::default()
    };
    let node = NodeReport {
        address: PEER,
        uplink: None,
        state: "1 path".into(),
        large_bytes: 1500,
        paths: vec![path],
    };
    PathsReport { nodes: vec![node], counts: vec![("path_steered", 3)] }
}

fn asked(app: &mut TaskApp<Fabric>, request: &str) -> Vec<Action> {
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
    let mut app = app();
    assert!(text::show(&answer(&asked(&mut app, "show"))).contains("without `key`"));
    app.board().report = report();
    app.board().note(5, "path 0 to 10.0.2.1 is good".into());
    let shown = answer(&asked(&mut app, "show"));
    let path = &shown["nodes"][0]["paths"][0];
    assert_eq!((&path["hops"], &path["queue_us"]), (&json!(["*", "10.9.1.2"]), &json!(1.5)));
    assert_eq!(path["loss"], json!(0.005));
    let text = text::show(&shown);
    assert!(text.contains("* 10.9.1.2") && text.contains("path 0 to 10.0.2.1 is good"), "{text}");
    assert_eq!(app.counts(), [("path_steered", 3)]);
    // Every word is documented, and none is null.
    let page = include_str!("../README.md");
    assert_eq!(weir_app::shown::undocumented(&shown, page), Vec::<String>::new());
    let states = ["new", "good", "congested", "grey", "failed", "returning"];
    assert!(states.iter().all(|state| page.contains(&format!("`{state}`"))));
    let samples = app.samples();
    let bytes = samples.iter().find(|one| one.name == "path_bytes").unwrap();
    assert_eq!(bytes.labels, [("peer", PEER.to_string()), ("path", "0".to_string())]);
    assert_eq!(bytes.value, SampleValue::Count(4200));
    assert!(matches!(asked(&mut app, "wrong")[..], [Action::Answer { answer: Err(_), .. }]));
}

#[test]
fn flows_are_asked_for_a_page_at_a_time_and_waited_for() {
    let mut app = app();
    assert_eq!(asked(&mut app, "conntrack"), []);
    let mut second = Vec::new();
    let request = Event::Request { id: RequestId(2), request: &json!("conntrack from 7") };
    app.step(0, request, &mut second);
    assert_eq!(app.board().queries, [(RequestId(1), 0), (RequestId(2), 7)]);
    let mut actions = Vec::new();
    app.step(app.wake_ns().unwrap(), Event::Tick, &mut actions);
    assert_eq!(actions, []);
    let rows = vec![FlowRow {
        peer: PEER,
        uplink: None,
        vni: 42,
        source: [192, 168, 0, 1].into(),
        destination: [192, 168, 0, 2].into(),
        sport: 40_000,
        dport: 5001,
        protocol: 6,
        path: 3,
        port: 50_003,
        packets: 7,
        bytes: 700,
        moves: 1,
        idle_ms: 12,
        state: "open".into(),
        decision: "after_gap".into(),
    }];
    let page = FlowsPage { rows, next: Some(9) };
    app.board().read = vec![(RequestId(2), Ok(FlowsPage::default())), (RequestId(1), Ok(page))];
    app.step(app.wake_ns().unwrap(), Event::Tick, &mut actions);
    let last = answer(&actions[..1]);
    assert_eq!(last, json!({ "name": last["name"], "count": 0, "flows": [] }), "there is no next page");
    let shown = answer(&actions[1..]);
    assert_eq!(shown["next"], 9);
    let text = (super::KIND.verbs[0].text)(&shown, &[]);
    assert!(text.contains("192.168.0.1:40000 -> 192.168.0.2:5001") && text.ends_with("1 flows\n"), "{text}");
    assert!(text.contains("port 50003, after_gap: 7 packets") && text.contains("idle for 12 ms"), "{text}");
    let page = include_str!("../README.md");
    assert_eq!(weir_app::shown::undocumented(&shown["flows"], page), Vec::<String>::new());
    assert_eq!(app.wake_ns(), None);
    assert!(matches!(asked(&mut app, "conntrack to 7")[..], [Action::Answer { answer: Err(_), .. }]));
}

#[test]
fn two_hundred_nodes_are_shown_within_bounds() {
    let mut app = app();
    let path = report().nodes[0].paths[0].clone();
    let node = |at: u32| NodeReport {
        address: IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + at)),
        uplink: None,
        state: "16 paths".into(),
        large_bytes: 1500,
        paths: vec![path.clone(); 16],
    };
    app.board().report = PathsReport { nodes: (0..200).map(node).collect(), counts: Vec::new() };
    (0..10_000).for_each(|at| app.board().note(at, format!("path 0 to 10.0.0.1 is failed: event {at}")));
    let shown = answer(&asked(&mut app, "show"));
    assert_eq!(shown["events"].as_array().map(Vec::len), Some(EVENTS));
    // The control socket allows larger answers, and a terminal can scroll: each node has one line, plus one
    // for each path.
    assert!(shown.to_string().len() < 3_000_000, "{}", shown.to_string().len());
    assert_eq!(text::show(&shown).lines().count(), 2 + 200 * 18 + 8);
    assert_eq!(app.samples().len(), 200 * 16 * 9 + 1);
}
