use super::*;
use crate::tests::records;
use crate::{Seed, Settings};

const SECOND_NS: u64 = 1_000_000_000;

/// A node that gives these answers: the list of measurements, and an interval.
struct FakeNode {
    url: &'static str,
    list: Result<Value, String>,
    interval: Value,
}

impl RemoteNode for FakeNode {
    fn url(&self) -> String {
        self.url.to_string()
    }

    fn get(&self, path: &str, _: Duration) -> Result<Value, String> {
        if path == MEASUREMENTS { self.list.clone() } else { Ok(self.interval.clone()) }
    }
}

fn settings() -> Settings {
    Settings { keys: 256, ..Settings::default() }
}

/// A node with an interval that began at `start_ns`.
fn node(url: &'static str, start_ns: u64, settings: &Settings, seed: u64) -> FakeNode {
    let mut summary = Summary::new(settings, Seed::new([seed, 1]));
    records(500, 1.0, 1000, start_ns % 97).iter().for_each(|record| summary.add(record));
    let file = summary.interval_file();
    let report = summary.close(start_ns, start_ns + SECOND_NS);
    let state = IntervalState {
        start_ns,
        end_ns: start_ns + SECOND_NS,
        packets: report.packets,
        bytes: report.bytes,
        ..IntervalState::default()
    };
    let one = MeasurementState {
        name: "edge".into(),
        interval_ms: 1000,
        seeded: true,
        now_ns: since_1970_ns(),
        intervals: vec![state],
    };
    let version = "1".to_string();
    let sketches = BASE64_STANDARD.encode(file);
    let key = report.top[0].names.addresses[0].unwrap();
    let name = NamedAddress { address: key.to_string(), name: "web-1".into(), ..NamedAddress::default() };
    let wrong = NamedAddress { name: "a\u{1b}[2J".into(), address: "10.9.9.9".into(), ..name.clone() };
    let names = vec![wrong, name];
    let interval = IntervalSketches { version, name: "edge".into(), start_ns, sketches, names };
    FakeNode { url, list: Ok(json!(Measurements { measurements: vec![one] })), interval: json!(interval) }
}

fn asked(nodes: Vec<FakeNode>) -> AskedNodes {
    let nodes = nodes.into_iter().map(|one| -> Box<dyn RemoteNode> { Box::new(one) });
    AskedNodes::new(nodes.collect(), None, Duration::from_millis(120))
}

/// The start of an interval that is complete.
fn last_ns() -> u64 {
    (since_1970_ns() / SECOND_NS - 2) * SECOND_NS
}

/// A good node, edited.
fn edited(url: &'static str, start_ns: u64, edit: impl Fn(&mut FakeNode)) -> FakeNode {
    let mut node = node(url, start_ns, &settings(), 7);
    edit(&mut node);
    node
}

/// Nodes that cannot be merged with those of [`edited`], and parts of the reasons.
fn bad_nodes(last_ns: u64) -> Vec<(FakeNode, &'static str)> {
    [unlike_nodes(last_ns), lying_nodes(last_ns)].into_iter().flatten().collect()
}

fn list(node: &mut FakeNode, key: &str, value: Value) {
    node.list.as_mut().unwrap()["measurements"][0][key] = value;
}

fn unlike_nodes(last_ns: u64) -> Vec<(FakeNode, &'static str)> {
    let usual = settings();
    let (pairs, sizes) = (Settings { flow: crate::KeyKind::Pair, ..settings() }, Settings::default());
    vec![
        (edited("away", last_ns, |one| one.list = Err("does not answer in time".into())), "does not answer"),
        (node("seed", last_ns, &usual, 8), "another `seed`"),
        (node("pairs", last_ns, &pairs, 7), "another kind of flows"),
        (node("sizes", last_ns, &sizes, 7), "another size"),
        (node("behind", last_ns - SECOND_NS, &usual, 7), "is behind: its last complete"),
        (node("set", last_ns - 400_000_000, &usual, 7), "begin 600 ms after"),
        (edited("slow", last_ns, |one| list(one, "interval_ms", json!(5000))), "intervals of 5000 ms"),
        (edited("plain", last_ns, |one| list(one, "seeded", json!(false))), "without a `seed`"),
        (edited("none", last_ns, |one| list(one, "intervals", json!([]))), "not completed an interval yet"),
        (
            edited("two", last_ns, |one| {
                let all = one.list.as_mut().unwrap()["measurements"].as_array_mut().unwrap();
                all.push(all[0].clone());
            }),
            "several measurements (edge, edge)",
        ),
        (edited("path", last_ns, |one| list(one, "name", json!("a/../b"))), "with an invalid name"),
    ]
}

fn lying_nodes(last_ns: u64) -> Vec<(FakeNode, &'static str)> {
    vec![
        (
            edited("lies", last_ns, |one| {
                one.list.as_mut().unwrap()["measurements"][0]["intervals"][0]["packets"] = json!(1);
            }),
            "contradicts itself",
        ),
        (
            edited("old", last_ns, |one| one.interval["sketches"] = json!("d2Vpci1zawoJAAAAAAAAAA==")),
            "version 9",
        ),
        (edited("text", last_ns, |one| one.interval["sketches"] = json!("?")), "not base64"),
        (
            edited("cut", last_ns, |one| {
                let text = one.interval["sketches"].as_str().unwrap();
                one.interval["sketches"] = json!(text[..text.len() / 8 * 4]);
            }),
            "damaged",
        ),
        (edited("other", last_ns, |one| one.interval = json!([1])), "not an interval"),
        (edited("number", last_ns, |one| one.list = Ok(json!({ "measurements": 7 }))), "not a list"),
        (edited("empty", last_ns, |one| one.list = Ok(json!({}))), "has no measurement"),
        (edited("times", last_ns, |one| list(one, "now_ns", json!(u64::MAX))), "times that are not possible"),
        (
            edited("end", last_ns, |one| {
                one.list.as_mut().unwrap()["measurements"][0]["intervals"][0]["start_ns"] = json!(u64::MAX);
            }),
            "times that are not possible",
        ),
    ]
}

#[test]
fn a_node_that_cannot_be_merged_is_named_and_the_rest_is_merged() {
    let last_ns = last_ns();
    let bad = bad_nodes(last_ns);
    let words: Vec<&str> = bad.iter().map(|(_, word)| *word).collect();
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let count = bad.len() + names.len();
    let all = bad.into_iter().map(|(node, _)| node).chain(names.map(|url| edited(url, last_ns, |_| ())));
    let nodes = asked(all.collect());
    let stop = AtomicBool::new(false);
    let agreed = nodes.agree(&stop).unwrap();
    assert_eq!((agreed.interval_ms, agreed.start_ns), (1000, last_ns));
    let mut merged = nodes.merge(agreed, &stop);
    let missing = merged.missing();
    assert_eq!(missing.len(), words.len(), "{missing:#?}");
    for ((url, why), word) in missing.iter().zip(words) {
        assert!(why.contains(word), "{url}: {why}");
    }
    let report = merged.report(None, 10);
    let of_one = merged.nodes[count - 1].1.as_ref().unwrap().packets;
    assert_eq!((report.packets, report.end_ns - report.start_ns), (8 * of_one, SECOND_NS));
    assert!(report.top[0].packets > 0 && report.shed.is_empty());
    assert_eq!(report.top[0].names.source_name.as_ref().unwrap().name, "web-1");
    let beside = merged.beside();
    assert_eq!(beside["nodes"].as_array().unwrap().len(), count);
    assert!(merged.head().contains("8 of 28 nodes") && merged.head().contains("away  missing: it does"));
}

#[test]
fn a_single_node_with_a_wrong_clock_does_not_decide_which_interval_it_is() {
    let (last_ns, usual) = (last_ns(), settings());
    let future = node("future", last_ns + 3600 * SECOND_NS, &usual, 7);
    let ahead = node("ahead", last_ns, &usual, 7);
    let nodes = asked(vec![future, ahead, node("b", last_ns - SECOND_NS, &usual, 7)]);
    let stop = AtomicBool::new(false);
    let agreed = nodes.agree(&stop).unwrap();
    assert_eq!(agreed.start_ns, last_ns);
    let missing = nodes.merge(agreed, &stop).missing();
    let [(future, why), (behind, _)] = &missing[..] else { panic!("{missing:?}") };
    assert!(future == "future" && why.contains("no interval at that time") && behind == "b", "{why}");
}

#[test]
fn changes_are_since_the_interval_before_of_the_same_nodes() {
    let (last_ns, usual) = (last_ns(), settings());
    let stop = AtomicBool::new(false);
    let merged = |start_ns: u64, urls: &[&'static str]| {
        let nodes = asked(urls.iter().map(|url| node(url, start_ns, &usual, 7)).collect());
        let agreed = nodes.agree(&stop).unwrap();
        nodes.merge(agreed, &stop)
    };
    let before = merged(last_ns - SECOND_NS, &["a", "b"]);
    let mut now = merged(last_ns, &["a", "b"]);
    assert!(before.is_before(&now) && before.is_of_same(&now));
    let report = now.report(Some(&before), 10);
    assert!(!report.changes.is_empty() && report.text(10).contains("\nChanges since the previous"));
    assert_eq!(now.report(None, 10).changes, []);
}

#[test]
fn without_any_answer_the_reasons_are_returned() {
    let mut away = node("away", last_ns(), &settings(), 7);
    away.list = Err("does not answer in time".to_string());
    let missing = asked(vec![away]).agree(&AtomicBool::new(false)).unwrap_err();
    assert_eq!(missing, [("away".to_string(), "does not answer in time".to_string())]);
}
