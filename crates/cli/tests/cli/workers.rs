//! A reload changes the number of workers: flows stay with their targets, and nothing is lost or counted
//! twice.

use super::folder::Folder;
use super::ports::{TrafficInTurns, arrived, balances, write};
use super::running::Daemon;
use super::wire::{Wire, sh};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Flows are pinned to one of two ports, by the current buckets.
const PINNING: &str = "\
groups: { web: { fill: maglev, size: 251, targets: { b1: p1, b2: p2 } } }
pipes:
  flows:
    type: flow
    learn: { pin: web }
    capacity: 4096
    monitor: { counter: met }
    forward: per_entry
    miss: drop
    entries:
      - { match: { target: b1 }, forward: p1 }
      - { match: { target: b2 }, forward: p2 }
  ways: { type: basic, match: { udp.dport: per_entry }, forward: per_entry, miss: drop }
";

/// Returns the configuration with `workers` workers and the text `ports`.
fn config(workers: usize, ports: &str) -> String {
    format!("workers: {workers}\n{ports}{PINNING}")
}

/// Returns what each flow was decided for.
fn decisions(daemon: &Daemon) -> BTreeMap<String, String> {
    let shown = daemon.weir(&["show", "flows", "--limit", "100000", "--json"]).good().json();
    let text = |flow: &Value, key: &str| flow[key].as_str().unwrap().to_string();
    let flows = shown["flows"].as_array().unwrap();
    let all: BTreeMap<_, _> = flows.iter().map(|flow| (text(flow, "flow"), text(flow, "decision"))).collect();
    assert_eq!((all.len(), shown["live"].as_u64().unwrap() as usize), (flows.len(), flows.len()));
    all
}

/// Returns everything that must never decrease, by name.
fn sums(shown: &Value) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    let mut note = |name: String, value: &Value| _ = sums.insert(name, value.as_u64().unwrap());
    for key in ["received", "originated", "transmitted"] {
        note(format!("ledger {key}"), &shown["ledger"][key]);
    }
    for port in shown["ports"].as_array().unwrap() {
        for key in ["received", "transmitted", "transmitted_bytes"] {
            note(format!("port {} {key}", port["name"]), &port[key]);
        }
    }
    for pipe in shown["pipes"].as_array().unwrap() {
        note(format!("pipe {} hits", pipe["name"]), &pipe["hits"]);
    }
    note("counter".into(), &shown["counters"][0]["packets"]);
    note("met".into(), &shown["flow_account"]["met"]);
    note("breaths".into(), &shown["breaths"]);
    sums
}

#[test]
fn a_reload_changes_the_number_of_workers_and_nothing_shown_falls() {
    const PORTS: &str = "ports: { p0: { mem: , root: flows }, p1: { mem: }, p2: { mem: } }\n";
    let mut daemon = Daemon::start(&config(1, PORTS));
    let inject = |daemon: &Daemon, sport: u32| {
        let packet = format!("src=10.0.0.2 dst=10.0.0.1 proto=udp sport={sport} dport=7777");
        let request = json!({ "command": "inject", "packet": packet, "input": "p0" });
        assert_eq!(daemon.ask(&request), json!({ "done": true }));
    };
    (1..=200).for_each(|sport| inject(&daemon, sport));
    daemon.weir(&["entry", "add", "ways", "{ match: { udp.dport: 53 }, forward: p2 }"]).good();
    let mut before = decisions(&daemon);
    let mut last = sums(&balances(&daemon));
    for (turn, workers) in [2, 4, 1, 3, 2, 1].into_iter().enumerate() {
        // New flows go to one target only; existing ones stay where they are.
        let text = config(workers, PORTS).replace("b2: p2 }", "b2: { forward: p2, weight: 0 } }");
        write(&daemon, &text);
        let said = daemon.weir(&["reload"]).good();
        let noun = if workers == 1 { "worker" } else { "workers" };
        assert!(said.out.contains(&format!("; {workers} {noun} now, ")), "{}", said.out);
        assert!(!said.out.contains(", 0 flows moved"), "{}", said.out);
        let shown = balances(&daemon);
        assert_eq!(shown["workers"], workers);
        assert_eq!(daemon.show("workers").as_array().unwrap().len(), workers);
        let now = sums(&shown);
        for (name, count) in &last {
            assert!(now[name] >= *count, "{name}: {} < {count}", now[name]);
        }
        assert_eq!(decisions(&daemon), before);
        (1..=200 + 10 * turn as u32 + 10).for_each(|sport| inject(&daemon, sport));
        let after = decisions(&daemon);
        assert!(before.iter().all(|(flow, decision)| after[flow] == *decision));
        assert_eq!(after.len(), before.len() + 10);
        // Run-time entries exist on every worker, and changes go to all of them.
        let entry = format!("{{ match: {{ udp.dport: {} }}, forward: p1 }}", 100 + turn);
        daemon.weir(&["entry", "add", "ways", &entry]).good();
        let ways = daemon.ask(&json!({ "command": "show", "what": "entries", "pipe": "ways" }));
        assert_eq!(ways["entries"].as_array().unwrap().len(), 2 + turn);
        (before, last) = (after, sums(&balances(&daemon)));
        assert_eq!(last["ledger originated"], last["counter"]);
        assert_eq!(last["pipe \"flows\" hits"], last["met"]);
    }
    daemon.weir(&["stop"]).good();
    assert!(daemon.end().success());
    let log = daemon.log();
    assert!(log.contains("every frame is accounted for") && log.contains("none lost"), "{log}");
}

/// Returns the line of the ports: p0 with these queues.
fn ports(queues: &str) -> String {
    format!(
        "ports:
  p0: {{ xdp: w0, queues: {queues}, take: [{{ dst: 10.0.0.1, protocol: udp, dport: 7777 }}], root: flows }}
  p1: {{ xdp: w1, queues: {queues}, take: [{{ dst: 10.0.1.1, protocol: udp, dport: 7777 }}], root: ways }}
  p2: {{ xdp: w2, queues: {queues}, take: [{{ dst: 10.0.2.1, protocol: udp, dport: 7777 }}], root: ways }}
"
    )
}

#[test]
fn workers_come_and_go_under_traffic_and_pinned_flows_stay() {
    const PACKETS: u32 = 12_000;
    let Some(wire) = Wire::new("workers", 0) else { return };
    (0..3).for_each(|pair| wire.add_wide(pair, 0, 4));
    // The far end transmits on as many queues as weir has sockets on.
    let spread = |queues: u32| sh(&format!("ip netns exec {} ethtool -L f0 tx {queues}", wire.far));
    spread(1);
    let folder = Folder::new();
    folder.write("weir.yaml", config(1, &ports("[0]")));
    let mut daemon = Daemon::start_in_namespace(folder, &wire.weir);
    let before = [1, 2].map(|pair| arrived(&wire, pair));
    let mut traffic = TrafficInTurns::start(&wire, PACKETS);
    daemon.wait_for("flows", |daemon| daemon.show("ledger")["transmitted"].as_u64() > Some(100));
    let (first, mut turns) = (decisions(&daemon), 0);
    assert_eq!(first.len(), 50);
    let reload = |daemon: &Daemon, workers: usize, queues: &str| {
        write(
            daemon,
            &config(workers, &ports(queues)).replace("b2: p2 }", "b2: { forward: p2, weight: 0 } }"),
        );
        daemon.weir(&["reload"])
    };
    while !traffic.is_over(turns) {
        turns += 1;
        for (workers, queues) in [(2, "[0, 1]"), (4, "all")] {
            reload(&daemon, workers, queues).good();
            spread(workers as u32);
        }
        // What cannot be done changes nothing.
        reload(&daemon, 3, "all").refused(1, &["nothing was changed", "w0 has 4 queue(s)", "3 worker(s)"]);
        reload(&daemon, 2, "[1, 0]").refused(1, &["restart", "`queues` or `mode` of port `p0`"]);
        assert_eq!(daemon.show("workers").as_array().unwrap().len(), 4);
        spread(1);
        // Packets in flight to the other queues arrive before these are closed.
        std::thread::sleep(std::time::Duration::from_millis(50));
        reload(&daemon, 1, "[0]").good();
        assert_eq!(decisions(&daemon), first);
    }
    let is_quiet = |daemon: &mut Daemon| {
        let ledger = daemon.show("ledger");
        ledger["received"] == ledger["transmitted"] && ledger["held"] == 0
    };
    daemon.wait_for("all packets", is_quiet);
    let shown = balances(&daemon);
    let (ledger, received) = (&shown["ledger"], shown["ledger"]["received"].as_u64().unwrap());
    assert_eq!(ledger["transmitted"], received, "{ledger}");
    // To change its queues, the far end drops carrier for a moment.
    assert!(received > traffic.sent * 3 / 4, "{received} of {}", traffic.sent);
    let all: u64 = [1, 2].into_iter().zip(before).map(|(pair, before)| arrived(&wire, pair) - before).sum();
    assert_eq!(all, received);
    assert_eq!(shown["ports"][0]["lost_before"], 0);
    assert_eq!(shown["flow_account"]["met"], received, "{}", shown["flow_account"]);
    daemon.weir(&["stop"]).good();
    daemon.end();
    let log = daemon.log();
    assert!(log.contains("every frame is accounted for") && log.contains("none lost"), "{log}");
}
