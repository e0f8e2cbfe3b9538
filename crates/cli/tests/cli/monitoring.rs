//! The alerts and the dashboard in `monitoring/`: the metrics they use exist, and installed tools accept
//! them.

use super::running::Daemon;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A service with a check and a NAT pool, so that every family that depends on the configuration exists.
const CONFIG: &str = "\
ports:
  p0: { pcap: {} }
nat_pools:
  outside: { addresses: [198.51.100.1], ports: 1024-65535 }
apps:
  - lb:
      name: web
      port: p0
      service: { vip: 10.0.0.80, protocol: tcp, port: 80 }
      by: 5-tuple
      size: 251
      check: { type: tcp, interval: 1h }
      back_ends: [{ name: b1, mac: 02:00:00:00:00:11, address: 127.0.0.1 }]
";

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../monitoring").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(file(name)).unwrap()
}

/// Our metrics in an expression.
fn metrics(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|one: char| !one.is_ascii_alphanumeric() && one != '_');
    words.filter(|word| word.starts_with("weir_")).map(str::to_string).collect()
}

/// Our metrics in all expressions of the dashboard.
fn of_dashboard(value: &Value) -> BTreeSet<String> {
    match value {
        Value::Object(object) => {
            let own = ["expr", "definition"].iter().filter_map(|key| object.get(*key)?.as_str());
            own.flat_map(metrics).chain(object.values().flat_map(of_dashboard)).collect()
        }
        Value::Array(items) => items.iter().flat_map(of_dashboard).collect(),
        _ => BTreeSet::new(),
    }
}

/// The metrics of a daemon that has seen a connection.
fn exposition() -> String {
    let mut daemon = Daemon::start(CONFIG);
    daemon.receive(&["eth.dst=02:00:00:00:00:fe src=192.0.2.1 dst=10.0.0.80 proto=tcp sport=4000 dport=80"]);
    daemon.wait_for("a flow", |daemon| daemon.show("backends")[0]["flows_begun"] == 1);
    daemon.metrics()
}

#[test]
fn every_metric_that_is_asked_for_exists() {
    let dashboard: Value = serde_json::from_str(&read("weir-dashboard.json")).unwrap();
    let rules = read("weir.rules.yml");
    let expressions = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let of_rules: BTreeSet<String> = expressions.flat_map(metrics).collect();
    let asked: BTreeSet<String> = of_dashboard(&dashboard).union(&of_rules).cloned().collect();
    assert!(of_rules.len() > 10 && asked.len() > 20, "{asked:?}");
    let text = exposition();
    let exposed = |metric: &str| {
        text.lines()
            .any(|line| line.starts_with(&format!("{metric}{{")) || line.starts_with(&format!("{metric} ")))
    };
    let missing: Vec<&String> = asked.iter().filter(|metric| !exposed(metric)).collect();
    assert!(missing.is_empty(), "{missing:?} are not in\n{text}");
}

#[test]
fn panels_have_numbers_and_places_of_their_own() {
    let dashboard: Value = serde_json::from_str(&read("weir-dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut seen = BTreeSet::new();
    for panel in panels {
        assert!(seen.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let at = &panel["gridPos"];
        assert!(at["x"].as_u64().unwrap() + at["w"].as_u64().unwrap() <= 24, "{panel}");
        let is_row = panel["type"] == "row";
        assert!(is_row || panel["targets"].as_array().is_some_and(|targets| !targets.is_empty()), "{panel}");
    }
}

/// The warnings of promtool about names that are already published, and predate its rules.
const OPINIONS: [&str; 2] = ["should not have \"quantile\" label", "should not include type 'counter'"];

/// Runs `promtool check`, if it is installed: it must succeed, or only warn.
fn promtool(what: &[&str], input: Stdio) {
    let Ok(output) = Command::new("promtool").arg("check").args(what).stdin(input).output() else {
        eprintln!("skipped: promtool is not installed");
        return;
    };
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let is_opinion = |line: &str| line.is_empty() || OPINIONS.iter().any(|opinion| line.contains(opinion));
    // promtool exits with 3 if it would prefer something else, and with 1 if it cannot parse the input.
    let is_good = output.status.success() || output.status.code() == Some(3) && said.lines().all(is_opinion);
    assert!(is_good, "{}: {said}", output.status);
}

/// promtool parses expressions; without it, only names are checked.
#[test]
fn promtool_accepts_the_rules() {
    promtool(&["rules", file("weir.rules.yml").to_str().unwrap()], Stdio::null());
}

/// promtool only parses the older text format, in which the name of a counter's family includes `_total`,
/// too, and nothing marks the end. Its opinions about names and help are the same.
#[test]
fn promtool_accepts_the_metrics() {
    let text = exposition();
    let body = text.split_once("\r\n\r\n").map_or(&*text, |(_, body)| body);
    let counters: Vec<&str> =
        body.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    assert!(counters.len() > 10, "{body}");
    let older = |line: &str| {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(kind), Some(name), Some(rest)) if counters.contains(&name) => {
                format!("# {kind} {name}_total {rest}\n")
            }
            _ => format!("{line}\n"),
        }
    };
    let older: String = body.lines().filter(|line| *line != "# EOF").map(older).collect();
    let path = std::env::temp_dir().join(format!("weir-metrics-{}", std::process::id()));
    std::fs::write(&path, older).unwrap();
    let input = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    promtool(&["metrics"], input.into());
}
