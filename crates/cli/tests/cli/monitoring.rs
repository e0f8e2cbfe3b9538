//! The alerts and the dashboard in `monitoring/`: live daemons with all kinds of apps answer their
//! expressions, and the commands and pages that they name exist.

use super::announce::inside;
use super::folder::Folder;
use super::prometheus::{
    Prometheus, alerts, dashboard, documented, expressions, is_installed, is_of_kube, path, promtool_accepts,
    read,
};
use super::running::Daemon;
use super::weir;
use super::wire::{Wire, sh};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

/// A node, whose number is OWN; that of the other node is OTHER. Three cables connect the two. Their ends at
/// this node are called E0 to E2: E0 is the underlay of tunnels, E1 is a port, and E2 serves metrics.
const NODE: &str = "\
metrics: 10.0.2.OWN:9105
ports:
  x0: { xdp: E1, kernel: require }
  p0: { pcap: {} }
  p1: { pcap: {} }
  p2: { pcap: {} }
  p3: { pcap: {} }
  p4: { pcap: {} }
nat_pools: { outside: { addresses: [198.51.100.OWN], ports: 1024-65535 } }
apps:
  - lb:
      name: web
      port: x0
      announce: route
      service: { vip: 10.9.0.80, protocol: tcp, port: 80 }
      by: 5-tuple
      size: 251
      check: { type: tcp, interval: 1s }
      back_ends: [{ name: b1, mac: 02:00:00:00:00:11, address: 10.0.2.1 }]
  - lb:
      name: cluster
      port: x0
      from: { kubernetes: services.json, each: { mode: full_nat } }
      nat_pool: outside
  - bond: { name: bond0, mode: static, members: [p1, p2], inside: p0 }
  - bond: { name: bond1, mode: balance_tcp, members: [p3, p4], lacp: {}, root: nothing }
  - path: { name: fabric, uplink: E0, peers: [10.0.0.OTHER] }
  - path: { name: unmodified, uplink: E2, peers: [10.0.2.OTHER], tunnel: geneve, scheme: one_sided }
  - overlay: { name: pods, tunnel: vx0, uplink: E0, bridge: cni0 }
  - measure: { name: edge, port: p0, interval: 1s, ipfix: { to: \"10.0.2.OTHER:4739\" } }
  - external: { name: own, socket: own.sock }
pipes: { nothing: { type: basic, match: {}, forward: drop, miss: drop } }
";

/// A path app at a port, which cannot be combined with `lb`.
const GATEWAY: &str = "\
metrics: 10.0.2.2:9106
ports: { p0: { pcap: {} }, p1: { pcap: {} } }
apps:
  - path:
      { name: tunnel, port: p0, input: p1, ports: [50000, 50001], local: 192.0.2.1, peers: [192.0.2.2],
        mac: 02:00:00:00:00:01, next_hop: 02:00:00:00:00:fe }
";

/// The warnings of promtool about names that are already published, and predate its rules.
const OPINIONS: [&str; 2] = ["should not have \"quantile\" label", "should not include type 'counter'"];

/// Starts a daemon in a namespace.
fn start(netns: &str, config: &str) -> Daemon {
    let folder = Folder::new();
    folder.write("weir.yaml", config);
    folder.write("services.json", "{ \"services\": [], \"endpoints\": [] }");
    Daemon::start_in_namespace(folder, netns)
}

/// Starts one of the two nodes.
fn node(netns: &str, end: char, own: u8) -> Daemon {
    let other = 3 - own;
    let tunnel = format!("type vxlan id 42 dstport 4789 local 10.0.0.{own} remote 10.0.0.{other} noudpcsum");
    for line in [
        format!("ip -n {netns} link add vx0 {tunnel}"),
        format!("ip -n {netns} link set vx0 up"),
        format!("ip -n {netns} link add cni0 type bridge"),
        format!("ip -n {netns} link set cni0 up"),
        format!("ip -n {netns} addr add 10.244.{own}.1/24 dev cni0"),
        format!("ip netns exec {netns} sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=1"),
    ] {
        sh(&line);
    }
    let config = NODE.replace("OWN", &own.to_string()).replace("OTHER", &other.to_string());
    let named = |config: String, cable: u8| config.replace(&format!("E{cable}"), &format!("{end}{cable}"));
    start(netns, &(0..3).fold(config, named))
}

/// Every metric is documented, and every documented one is exported; every expression of the alerts and of
/// the dashboard has an answer. Those about weir-kube are tested with it, in `crates/kube/tests`.
#[test]
fn live_daemons_export_what_alerts_and_dashboard_ask_for() {
    let Some(wire) = Wire::new("mo", 3) else { return };
    let (weir, far) = (&wire.weir, &wire.far);
    let nodes = [node(weir, 'w', 1), node(far, 'f', 2)];
    let gateway = start(far, GATEWAY);
    sh(&format!("ip -n {far} route add 10.9.0.80 via 10.0.1.1"));
    let flow = |sport: u16| format!("src=10.0.0.1 dst=192.0.2.1 proto=udp sport={sport} dport=53");
    let traffic = || {
        (1..5).for_each(|sport| nodes[0].receive(&[&flow(sport)]));
        // A new connection, which the kernel leaves to a worker once it handles frames.
        inside(far, || {
            let _ = TcpStream::connect_timeout(&"10.9.0.80:80".parse().unwrap(), Duration::from_millis(50));
        });
    };
    let daemons = nodes.iter().chain([&gateway]);
    for daemon in daemons {
        let metrics = daemon.metrics();
        assert!(!metrics.contains("not described"), "{metrics}");
        promtool_accepts(&metrics, &OPINIONS);
    }
    if !is_installed("prometheus") {
        return;
    }
    let expressions: Vec<_> = expressions().into_iter().filter(|one| !is_of_kube(&one.text)).collect();
    assert!(expressions.len() > 70, "{}", expressions.len());
    let mut pages = documented("docs/reference/metrics.md");
    pages.retain(|name| !is_of_kube(name));
    inside(weir, || {
        let targets = ["10.0.2.1:9105", "10.0.2.2:9105", "10.0.2.2:9106"];
        let prometheus = Prometheus::start(&[("weir", &targets)]);
        prometheus.assert_answers(expressions, &pages, traffic);
    });
}

/// Panels have unique numbers, do not overlap, and use the selected data source.
#[test]
fn the_dashboard_is_valid() {
    let dashboard = dashboard();
    let (mut seen, mut taken) = (BTreeSet::new(), BTreeSet::new());
    let uses_the_variable = |place: &Value| place["datasource"]["uid"] == "${datasource}";
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(seen.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let [x, y, width, height] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        assert!(x + width <= 24 && width > 0 && height > 0, "{panel}");
        let cells = (x..x + width).flat_map(|x| (y..y + height).map(move |y| (x, y)));
        cells.for_each(|cell| assert!(taken.insert(cell), "two panels at {cell:?}: {panel}"));
        if panel["type"] == "row" {
            continue;
        }
        let targets = panel["targets"].as_array().unwrap();
        let names: BTreeSet<&str> = targets.iter().map(|one| one["refId"].as_str().unwrap()).collect();
        assert!(!targets.is_empty() && names.len() == targets.len(), "{panel}");
        assert!(uses_the_variable(panel) && targets.iter().all(uses_the_variable), "{panel}");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{panel}");
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let (sources, others): (Vec<&Value>, Vec<&Value>) =
        variables.iter().partition(|one| one["type"] == "datasource");
    assert!(sources.len() == 1 && sources[0]["name"] == "datasource", "{sources:?}");
    assert!(others.into_iter().all(uses_the_variable), "{variables:?}");
}

/// Returns the anchor of a heading, as GitHub writes it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|one| one.is_alphanumeric() || [' ', '-', '_'].contains(one));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Returns whether this is a command of weir, with `show` followed by something that can be shown.
fn exists(command: &str) -> bool {
    let is_name = |word: &&str| {
        word.chars().all(|one| one.is_ascii_lowercase() || "-_".contains(one)) && !word.starts_with('-')
    };
    let words: Vec<&str> = command.split(' ').skip(1).take_while(is_name).collect();
    let run = |words: &[&str]| weir(path("").as_path(), &[words, &["--help"]].concat());
    match words[..] {
        ["show", what] => {
            let values = run(&["show"]).good().out;
            let values = values.split_once("possible values: ").unwrap().1.split(']').next().unwrap();
            values.split(", ").any(|value| value == what)
        }
        _ => run(&words).code == Some(0),
    }
}

#[test]
fn each_alert_says_what_to_do() {
    assert!(exists("weir show ports") && exists("weir lb enable web b1") && exists("weir show --json"));
    assert!(!exists("weir show porks") && !exists("weir lb enabel web b1"));
    let tests: Value = serde_saphyr::from_str(&read("monitoring/weir.rules.test.yml")).unwrap();
    let expectations = tests["tests"].as_array().unwrap().iter();
    let expectations: String = expectations.map(|test| test["promql_expr_test"].to_string()).collect();
    for alert in alerts() {
        let text = |key: &str| alert["annotations"][key].as_str().unwrap_or_else(|| panic!("{key}: {alert}"));
        let severity = alert["labels"]["severity"].as_str().unwrap();
        assert!(["info", "warning", "critical"].contains(&severity), "{alert}");
        // Without `for`, an alert lasts as long as the range of its expression.
        let is_steady = alert["for"].is_string() || alert["expr"].as_str().unwrap().contains("[15m]");
        assert!(is_steady && !text("summary").is_empty(), "{alert}");
        let commands: Vec<&str> = text("description")
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|code| code.starts_with("weir "))
            .collect();
        assert!(!commands.is_empty(), "no command of weir: {alert}");
        let wrong: Vec<&&str> = commands.iter().filter(|command| !exists(command)).collect();
        assert!(wrong.is_empty(), "{wrong:?}: {alert}");
        let page = text("runbook_url").strip_prefix("https://github.com/weir-net/weir/blob/main/").unwrap();
        let (page, heading) = page.split_once('#').unwrap();
        let page = read(page);
        let mut headings = page.lines().filter(|line| line.starts_with('#'));
        let has = headings.any(|line| anchor(line.trim_start_matches('#').trim()) == heading);
        assert!(has, "the page has no heading #{heading}: {alert}");
        let name = alert["alert"].as_str().unwrap();
        assert!(expectations.contains(&format!("\\\"{name}\\\"")), "no test of {name}");
    }
}

/// The alerts fire when they should, and do not when they should not.
#[test]
fn promtool_accepts_the_alerts_and_their_tests() {
    if !is_installed("promtool") {
        return;
    }
    for what in [["check", "rules", "weir.rules.yml"], ["test", "rules", "weir.rules.test.yml"]] {
        let output = Command::new("promtool").args(what).current_dir(path("monitoring")).output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{what:?}: {said}");
    }
}
