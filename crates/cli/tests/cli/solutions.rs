//! `weir measure --solution` and `weir bench measure` with the parameters of Agg-Evict's paper: the nine
//! solutions on a recording, compared with counts that are made here; and what they do not have is refused.

use super::folder::Folder;
use super::running::Daemon;
use super::{CommandOutput, TWO, record, weir};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

/// Source and destination of a flow.
type FlowPair = (u64, u64);

/// The packets of a flow in one of two intervals. Sources have as many destinations as their number says;
/// most flows have a packet or two, some have 20, and one in each interval has hundreds.
fn packets((source, destination): FlowPair, interval: u64) -> u64 {
    match (source, destination, interval) {
        (39, 2, 0) | (40, 1, 1) => 500,
        _ if (source + destination).is_multiple_of(13) => 20,
        _ => 1 + destination % 2,
    }
}

fn flows() -> impl Iterator<Item = FlowPair> {
    (1..=40).flat_map(|source| (1..=source).map(move |destination| (source, destination)))
}

fn count(interval: u64) -> u64 {
    flows().map(|flow| packets(flow, interval)).sum()
}

fn key((source, destination): FlowPair) -> String {
    format!("tcp 10.0.0.{source}:{} > 192.0.2.{destination}:443", 1000 + source)
}

/// Records both intervals, a packet every millisecond, in rounds over all flows. Returns the length of the
/// first one as an argument.
fn prepared(folder: &Folder) -> String {
    let mut frames = Vec::new();
    for interval in 0..2 {
        for round in 0..500 {
            for flow in flows().filter(|flow| round < packets(*flow, interval)) {
                let (source, destination) = flow;
                frames.push(format!(
                    "src=10.0.0.{source} dst=192.0.2.{destination} proto=tcp sport={} dport=443",
                    1000 + source
                ));
            }
        }
    }
    record(&folder.file("in.pcap"), &frames.iter().map(String::as_str).collect::<Vec<_>>());
    format!("--interval={}ms", count(0))
}

/// Checks a list against the truth: the exact values of its rows, and how many there are to find.
fn check_list(list: &Value, what: &str, truth: &HashMap<String, i64>) {
    let least = list["least"].as_i64().expect("a threshold");
    let expected = truth.values().filter(|value| value.abs() >= least).count();
    assert_eq!(list["exact"], expected, "{what}: {list}");
    for row in list["rows"].as_array().expect("rows") {
        let exact = truth.get(row["key"].as_str().unwrap()).copied().unwrap_or(0);
        assert_eq!(row["exact"].as_f64(), Some(exact as f64), "{what}: {row}");
    }
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no {key}: {value}"))
}

fn check_heavy(name: &str, answer: &Value, sizes: &HashMap<FlowPair, u64>) {
    let truth = sizes.iter().map(|(flow, packets)| (key(*flow), packets.cast_signed())).collect();
    check_list(answer, name, &truth);
    let first = &answer["rows"][0];
    assert_eq!(first["key"], key((40, 1)), "{name}: {answer}");
    assert!(number(first, "packets") >= 495.0, "{name}: {first}");
    // Space-Saving of 10 KiB remembers fewer flows than there are.
    let least = if name == "space_saving" { 0.3 } else { 0.97 };
    assert!(number(answer, "f1") >= least, "{name}: {answer}");
}

fn check_entropy(name: &str, answer: &Value, sizes: &HashMap<FlowPair, u64>) {
    let all: u64 = sizes.values().sum();
    let share = |packets: &u64| *packets as f64 / all as f64;
    let entropy: f64 = sizes.values().map(|packets| -share(packets) * share(packets).log2()).sum();
    assert!((number(answer, "exact") - entropy).abs() < 1e-9, "{name}: {answer}, {entropy}");
    assert!(number(answer, "error") <= 0.1, "{name}: {answer}");
}

/// Checks all answers of a solution about the second interval.
fn check(name: &str, answers: &Value) {
    let sizes: HashMap<FlowPair, u64> = flows().map(|flow| (flow, packets(flow, 1))).collect();
    let change = |flow| packets(flow, 1).cast_signed() - packets(flow, 0).cast_signed();
    let queries: Vec<&str> = answers.as_object().unwrap().keys().map(String::as_str).collect();
    assert!(!queries.is_empty(), "{name}");
    for query in queries {
        let answer = &answers[query];
        match query {
            "heavy_hitters" => check_heavy(name, answer, &sizes),
            "changes" if name == "reversible" => {
                let mut truth: HashMap<String, i64> = HashMap::new();
                for flow in flows() {
                    *truth.entry(format!("10.0.0.{}", flow.0)).or_default() += change(flow);
                }
                check_list(answer, name, &truth);
                assert!(number(answer, "f1") >= 0.9, "{name}: {answer}");
            }
            "changes" => {
                check_list(answer, name, &flows().map(|flow| (key(flow), change(flow))).collect());
                assert!(number(answer, "f1") >= 0.9, "{name}: {answer}");
            }
            "spreaders" => {
                let truth = (1..=40).map(|source| (format!("10.0.0.{source}"), source)).collect();
                check_list(answer, name, &truth);
                assert!(number(answer, "f1") >= 0.7, "{name}: {answer}");
            }
            "cardinality" => {
                assert_eq!(number(answer, "exact"), sizes.len() as f64, "{name}");
                let most = if matches!(name, "flajolet_martin" | "univmon") { 0.3 } else { 0.01 };
                assert!(number(answer, "error") <= most, "{name}: {answer}");
            }
            "entropy" => check_entropy(name, answer, &sizes),
            "distribution" => {
                let mut truth: BTreeMap<u64, f64> = BTreeMap::new();
                sizes.values().for_each(|packets| *truth.entry(*packets).or_default() += 1.0);
                for row in answer["rows"].as_array().unwrap() {
                    let exact = truth.get(&row["packets"].as_u64().unwrap()).copied().unwrap_or(0.0);
                    assert_eq!(row["exact"], exact, "{name}: {row}");
                }
                assert!(number(answer, "wmre") <= 0.1, "{name}: {answer}");
            }
            "decoded" => assert_eq!((&answer["is_exact"], &answer["flows"]), (&true.into(), &820.into())),
            other => panic!("{name} answers {other}"),
        }
    }
}

/// The solutions, and the queries that each answers.
const NINE: [(&str, &[&str]); 9] = [
    ("univmon", &["heavy_hitters", "cardinality", "entropy", "changes"]),
    ("two_level", &["spreaders"]),
    ("space_saving", &["heavy_hitters"]),
    ("reversible", &["changes"]),
    ("flow_radar", &["decoded", "heavy_hitters", "cardinality", "distribution", "entropy", "changes"]),
    ("linear_counting", &["cardinality"]),
    ("count_min", &["heavy_hitters"]),
    ("flajolet_martin", &["cardinality"]),
    ("mrac", &["cardinality", "distribution", "entropy"]),
];

/// Solutions whose state does not depend on how packets were aggregated.
const SAME: [&str; 6] =
    ["flow_radar", "flajolet_martin", "linear_counting", "mrac", "reversible", "two_level"];

fn solve(folder: &Folder, name: &str, arguments: &[&str]) -> CommandOutput {
    weir(folder.path(), &[&["measure", "in.pcap", "--json", "--solution", name], arguments].concat())
}

#[test]
fn the_nine_solutions_answer_what_the_recording_holds() {
    let folder = Folder::new();
    let interval = prepared(&folder);
    for (name, queries) in NINE {
        let alone = solve(&folder, name, &[&interval, "--aggregator", "none"]).good().json();
        assert_eq!((&alone["packets"], &alone["aggregator"]), (&(count(0) + count(1)).into(), &Value::Null));
        let intervals = alone["intervals"].as_array().unwrap();
        assert_eq!((intervals.len(), &intervals[1]["packets"]), (2, &count(1).into()));
        let answers = &intervals[1]["answers"];
        let named: Vec<&String> = answers.as_object().unwrap().keys().collect();
        assert!(
            queries.len() == named.len() && queries.iter().all(|one| answers.get(one).is_some()),
            "{name}"
        );
        check(name, answers);
        for aggregator in [&["grr", "--kvs", "4"][..], &["lru", "--kvs", "4", "--no-simd"]] {
            let more = [&[&interval, "--always-on", "--aggregator"], aggregator].concat();
            let aggregated = solve(&folder, name, &more).good().json();
            let front = &aggregated["aggregator"];
            assert_eq!((&front["kvs"], &front["bypassed"]), (&4.into(), &0.into()), "{name}");
            assert_eq!(front["simd"], aggregator.len() == 3, "{name}");
            assert!(number(front, "hits") > 0.0 && number(front, "evictions") > 0.0, "{name}: {front}");
            let answers = &aggregated["intervals"][1]["answers"];
            check(name, answers);
            if SAME.contains(&name) {
                assert_eq!(answers, &intervals[1]["answers"], "{name} {aggregator:?}");
            }
        }
    }
    let text = weir(folder.path(), &["measure", "in.pcap", "--solution", "flow_radar", "--key", "source"]);
    let text = text.good().out;
    assert!(text.contains("cardinality 40.000  exactly 40.000, error 0.00 %"), "{text}");
}

/// Nine measurements of one port, each with another solution and another way to it.
#[test]
fn the_nine_solutions_are_keys_of_the_app() {
    let ways = [
        "",
        ", aggregator: none",
        ", aggregator: grr, kvs: 4, always_on: true",
        ", aggregator: lru, simd: false",
    ];
    let mut text = format!("{TWO}\napps:\n");
    for ((name, _), way) in NINE.iter().zip(ways.iter().cycle()) {
        text +=
            &format!("  - measure: {{ name: {name}, port: p0, interval: 500ms, solution: {name}{way} }}\n");
    }
    let mut daemon = Daemon::start(&text);
    let frame = |source: u64| format!("src=192.0.2.{source} dst=10.0.0.53 dport=53");
    daemon.receive(&[1, 1, 1, 2].map(frame).each_ref().map(String::as_str));
    let solution = |daemon: &Daemon, name: &str| {
        let shown = daemon.weir(&["show", "measure", name, "--json"]).good().json();
        shown["measure"][0]["solution"].clone()
    };
    for ((name, queries), way) in NINE.iter().zip(ways.iter().cycle()) {
        daemon.wait_for(name, |daemon| !solution(daemon, name).is_null());
        let found = solution(&daemon, name);
        assert_eq!((&found["solution"], &found["key"]), (&(*name).into(), &"5-tuple".into()));
        assert_eq!(found["aggregator"].is_null(), way.contains("none"), "{found}");
        let answers = &found["answers"];
        // In the first interval there are no changes.
        let mut named = queries.iter().filter(|query| **query != "changes");
        assert!(named.all(|query| answers.get(query).is_some()), "{name}: {found}");
        // The frames may have arrived in two intervals.
        let packets = found["packets"].as_u64().unwrap();
        assert!(packets <= 4, "{found}");
        let exact = &answers["cardinality"]["exact"];
        assert!(exact.is_null() || (packets == 4) <= (exact == 2.0), "{name}: {found}");
        let first = &answers["heavy_hitters"]["rows"][0];
        assert_eq!(first["packets"], first["exact"], "{name}: {found}");
        assert!(first.is_null() || first["key"].as_str().unwrap().starts_with("udp 192.0.2."), "{found}");
    }
    let shown = daemon.weir(&["show", "measure", "flow_radar"]).good().out;
    assert!(shown.contains("  flow_radar, ") && shown.contains("cardinality "), "{shown}");
}

#[test]
fn keys_of_a_solution_that_it_does_not_have_are_shown() {
    let folder = Folder::new();
    let refused = |keys: &str, parts: &[&str]| {
        let text = format!("{TWO}\napps: [{{ measure: {{ name: edge, port: p0, {keys} }} }}]\n");
        folder.write("weir.yaml", &text);
        let checked = weir(folder.path(), &["check", "weir.yaml"]);
        assert_eq!(checked.code, Some(2), "{}{}", checked.out, checked.err);
        parts.iter().for_each(|part| assert!(checked.err.contains(part), "no `{part}` in {}", checked.err));
    };
    refused("kvs: 4", &["`kvs` has no effect without a `solution`"]);
    refused("solution: flowradar", &["`solution: flowradar` cannot be used", "count_min, flow_radar", "^"]);
    refused("solution: mrac, aggregator: none, kvs: 4", &["`kvs` cannot be used", "grr, lru"]);
    refused(
        "solution: two_level, flow: source",
        &["`flow: source` cannot be used", "5-tuple, 4-tuple, pair"],
    );
    refused("solution: mrac, spread: 5", &["`spread` cannot be used", "two_level"]);
}

/// A solution that costs less than a look-up is not aggregated, and all of its packets are counted.
#[test]
fn an_aggregator_that_does_not_pay_is_off() {
    let folder = Folder::new();
    prepared(&folder);
    let json = solve(&folder, "mrac", &["--aggregator", "grr"]).good().json();
    assert_eq!(json["aggregator"]["bypassed"], json["packets"]);
    assert_eq!(json["answers"]["cardinality"]["exact"], 820.0);
    let json = solve(&folder, "univmon", &["--aggregator", "grr"]).good().json();
    assert_eq!(json["aggregator"]["bypassed"], 0);
}

#[test]
fn what_a_solution_does_not_have_is_refused_with_what_does() {
    let folder = Folder::new();
    prepared(&folder);
    let solved = |name: &str, arguments: &[&str], parts: &[&str]| {
        solve(&folder, name, arguments).refused(2, parts);
    };
    solved("flowradar", &[], &["--solution flowradar", "count_min, flow_radar", "univmon"]);
    solved("mrac", &["--aggregator", "fifo"], &["expected grr, lru, second_chance, min_count, or none"]);
    solved(
        "mrac",
        &["--aggregator", "none", "--kvs", "4"],
        &["`--kvs`: this is about an aggregator", "grr, lru"],
    );
    solved("mrac", &["--kvs", "0"], &["`--kvs 0`: an aggregator has 1 to "]);
    solved("two_level", &["--key", "source"], &["a source and a destination", "5-tuple, 4-tuple, pair"]);
    solved("reversible", &["--key", "dport", "--interval", "1s"], &["needs a source", "pair, source"]);
    solved("reversible", &[], &["reversible", "add `--interval`"]);
    solved("mrac", &["--spread", "5"], &["`--spread`: mrac does not count", "an option of two_level"]);
    let bench = |arguments: &[&str], parts: &[&str]| {
        let said = weir(folder.path(), &[&["bench", "measure", "--quick"], arguments].concat());
        assert_eq!(said.code, Some(2), "{}{}", said.out, said.err);
        parts.iter().for_each(|part| assert!(said.err.contains(part), "no `{part}` in {}", said.err));
    };
    bench(&["--solution", "flowradar"], &["possible values", "flow_radar"]);
    bench(&["--key", "5"], &["expected one of 4, 8, 12, 13, 37"]);
    bench(&["--aggregator", "fifo"], &["expected one of grr, lru"]);
    bench(&["--kvs", "0"], &["expected a number of KV arrays from 1 to"]);
    bench(&["--batch", "0"], &["expected a number of packets from 1 to"]);
    bench(&["--key", "13,4", "--solution", "two_level"], &["two_level", "has the keys 8, 12, 13, 37"]);
    bench(&["--kvs", "4", "--in-path"], &["cannot be used with"]);
    bench(&["--trace", "absent"], &["cannot read absent"]);
}

/// Every combination of the paper's parameters has a row with the parameters in it, and plots.
#[test]
fn the_parameters_of_the_paper_are_options_of_the_bench() {
    let folder = Folder::new();
    prepared(&folder);
    let line = "bench measure --quick --json --trace in.pcap --solution mrac,two_level --kvs 1,64 \
                --aggregator grr,lru --key 4,13,37 --batch 8,32 --svg plots --always-on";
    let json = weir(folder.path(), &line.split_whitespace().collect::<Vec<_>>());
    // Two-Level was named with keys that have no destination.
    assert_eq!(json.code, Some(2));
    let line = line.replace("4,13,37", "8,13,37");
    let json = weir(folder.path(), &line.split_whitespace().collect::<Vec<_>>()).good().json();
    let rows = json["solutions"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 2 * 2 * 3 * 2);
    assert_eq!(json["packets"], count(0) + count(1));
    for row in rows {
        assert!([1, 64].map(Value::from).contains(&row["kvs"]), "{row}");
        assert_eq!(
            (&row["traffic"], &row["skew"], &row["bypassed"]),
            (&"trace".into(), &Value::Null, &0.0.into())
        );
        assert!(number(row, "pure_ns") > 0.0 && number(row, "aggregated_ns") > 0.0, "{row}");
    }
    // More arrays evict less.
    let evictions = |kvs: u64| -> f64 {
        let with = rows.iter().filter(|row| row["kvs"] == kvs);
        with.map(|row| number(row, "evictions")).sum()
    };
    assert!(evictions(64) < evictions(1), "{rows:?}");
    // A text trace, whose first line is not a packet.
    let packets: String =
        (0..500).map(|at| format!("{} 167772162 {at} 80 6\n", 167_772_161 + at % 9)).collect();
    std::fs::write(folder.file("trace.dat"), format!("500\n{packets}1 2 0 0 1\n")).unwrap();
    let line = "bench measure --quick --json --trace trace.dat --solution mrac --key 4";
    let json = weir(folder.path(), &line.split_whitespace().collect::<Vec<_>>()).good().json();
    assert_eq!((&json["packets"], &json["unflowed"]), (&500.into(), &1.into()));
    std::fs::write(folder.file("trace.dat"), format!("500\n{packets}1 2 0 70000 6\n")).unwrap();
    weir(folder.path(), &line.split_whitespace().collect::<Vec<_>>())
        .refused(2, &["trace.dat: line 502: expected destination port as a number", "found `70000`"]);
    let plots = ["kvs", "keys", "batch"].map(|name| folder.file(&format!("plots/{name}.svg")).exists());
    assert_eq!(plots, [true; 3]);
}
