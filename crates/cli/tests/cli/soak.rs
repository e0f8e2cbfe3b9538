//! A long-running daemon under constant change: `make soak`, for SOAK_SECONDS (600). Ports are added and
//! removed by reloads, an interface disappears and returns, links go down, clients change entries and weights
//! and query everything, while two streams of packets pass. At the end its memory has not grown, every frame
//! is accounted for, and the stream through the permanent ports has lost nothing. Needs root.

use super::folder::Folder;
use super::ports::{THIRD, TWO, arrived, balances, send, write};
use super::running::Daemon;
use super::wire::Wire;
use serde_json::{Value, json};
use std::time::Duration;

/// Packets per second from p0 to p1, which must all arrive, and from p1 to p3, whose interface comes and
/// goes.
const RATE: u32 = 2000;
const RATE_BESIDE: u32 = 200;

/// How much more memory the last third of the time may use than the second: 2 %.
const GROWTH_MAX: f64 = 1.02;

/// Run-time entries that clients add in each turn; half of them survive two reloads.
const ENTRIES: u32 = 40;

fn config(turn: u32, third: bool) -> String {
    let fourth = "  p3: { xdp: w3, queues: [0], take: [{ dst: 10.0.3.1, protocol: udp }], root: ways }\n";
    let ports = fourth.to_string() + if third { THIRD } else { "" };
    let ways =
        TWO.replace("miss: drop }", "miss: drop, entries: [{ match: { udp.dport: 7777 }, forward: p3 }] }");
    let groups = "groups: { web: { fill: maglev, size: 65537, targets: { b1: p1, b2: p1 } } }";
    // A pipe that comes and goes.
    let other = format!(
        "other{}: {{ type: basic, match: {{ ipv4.ttl: per_entry }}, forward: p1, miss: drop }}",
        turn % 3
    );
    ways.replace("pipes:\n", &format!("{ports}{groups}\npipes:\n  {other}\n"))
}

/// The resident memory of a process, in KiB.
fn resident_kib(daemon: &Daemon) -> u64 {
    let pid = daemon.pid().as_raw_nonzero();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn done(daemon: &Daemon, request: &Value) {
    assert_eq!(daemon.ask(request), json!({ "done": true }), "{request}");
}

/// Clients change entries and a weight.
fn change(daemon: &Daemon, turn: u32) {
    let entry = |what: &str, turn: u32, number: u32| {
        let port = 10_000 + turn % 500 * ENTRIES + number;
        let entry = format!("{{ match: {{ udp.dport: {port} }}, forward: p3 }}");
        done(daemon, &json!({ "command": "entry", "do": what, "pipe": "ways", "entry": entry }));
    };
    (0..ENTRIES).for_each(|number| entry("add", turn, number));
    (0..ENTRIES / 2).for_each(|number| entry("remove", turn, number));
    if let Some(before) = turn.checked_sub(1) {
        (ENTRIES / 2..ENTRIES).for_each(|number| entry("remove", before, number));
    }
    done(daemon, &json!({ "command": "weight", "group": "web", "target": "b1", "weight": 1 + turn % 7 }));
}

fn reload(daemon: &Daemon, config: &str) {
    write(daemon, config);
    daemon.weir(&["reload"]).good();
}

/// The means of the second and the last third.
fn thirds(samples: &[u64]) -> (f64, f64) {
    let third = samples.len() / 3;
    let mean = |part: &[u64]| part.iter().sum::<u64>() as f64 / part.len() as f64;
    (mean(&samples[third..2 * third]), mean(&samples[2 * third..]))
}

/// The interface of p3 disappears and returns, and so does its link.
fn disturb(wire: &Wire, turn: u32) {
    match turn % 4 {
        0 => wire.ip("link del w3"),
        1 => wire.add(3, 0),
        2 => wire.ip("link set w3 down"),
        _ => wire.ip("link set w3 up"),
    }
}

/// Does everything that can happen to a daemon, once. Returns how many packets were sent to p2.
fn one_turn(daemon: &mut Daemon, wire: &Wire, turn: u32) -> u64 {
    change(daemon, turn);
    // p2 is opened, and closed again because p9 cannot be.
    let broken = config(turn, true).replace("groups:", "  p9: { pcap: { in: nothing.pcap } }\ngroups:");
    write(daemon, &broken);
    daemon.weir(&["reload"]).refused(1, &["port `p9`", "nothing.pcap"]);
    reload(daemon, &config(turn, true));
    assert!(send(wire, "10.0.2.1", 50, 1000).wait().unwrap().success());
    let has_all = |port: &Value| port["name"] == "p2" && port["received"] == 50;
    daemon.wait_for("p2", |daemon| daemon.show("ports").as_array().unwrap().iter().any(has_all));
    disturb(wire, turn);
    reload(daemon, &config(turn + 1, false));
    let ways = daemon.ask(&json!({ "command": "show", "what": "entries", "pipe": "ways" }));
    assert_eq!(ways["entries"].as_array().unwrap().len() as u32, 1 + ENTRIES / 2, "turn {turn}");
    for what in ["all", "pipes", "groups", "flows", "workers"] {
        assert!(daemon.ask(&json!({ "command": "show", "what": what }))["error"].is_null());
    }
    balances(daemon);
    // Until the socket of p2 is closed and its memory freed.
    std::thread::sleep(Duration::from_millis(200));
    50
}

#[test]
#[ignore = "takes ten minutes: make soak"]
fn soak() {
    let seconds = std::env::var("SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(600);
    let Some(wire) = Wire::new("soak", 4) else { return };
    let folder = Folder::new();
    folder.write("weir.yaml", config(0, false));
    let mut daemon = Daemon::start_in_namespace(folder, &wire.weir);
    // The kernels have nothing to say to each other there, so that only the stream arrives at f1.
    for pair in [0, 1] {
        let mac = format!("02:00:00:00:0{pair}:00");
        wire.far(&format!("ip neigh replace 10.0.{pair}.1 lladdr {mac} dev f{pair} nud permanent"));
    }
    let before = arrived(&wire, 1);
    let mut stream = send(&wire, "10.0.0.1", seconds * RATE, RATE);
    let mut beside = send(&wire, "10.0.1.1", seconds * RATE_BESIDE, RATE_BESIDE);
    let (mut sent, mut memory) = (u64::from(seconds * RATE), Vec::new());
    while stream.try_wait().unwrap().is_none() {
        sent += one_turn(&mut daemon, &wire, memory.len() as u32);
        memory.push(resident_kib(&daemon));
    }
    assert!(beside.wait().unwrap().success());
    daemon.wait_for("the last packets", |_| arrived(&wire, 1) - before >= sent);
    assert_eq!(arrived(&wire, 1) - before, sent, "of the stream, none is lost and none is doubled");
    let account = daemon.ask(&json!({ "command": "show", "what": "deltas" }))["flow_account"].clone();
    let all = json!(sent);
    assert_eq!((&account["met"], &account["live"]), (&all, &all), "every flow continues: {account}");
    let shown = balances(&daemon);
    let (second, last) = thirds(&memory);
    println!("{} turns, generation {}; {sent} packets, none lost", memory.len(), shown["generation"]);
    println!("memory {:.1} MiB, then {:.1} MiB; {}", second / 1024.0, last / 1024.0, shown["ledger"]);
    println!("{}", daemon.weir(&["show", "workers"]).good().out);
    assert!(memory.len() >= 9, "{} turns tell nothing about memory: more seconds", memory.len());
    assert!(last <= second * GROWTH_MAX, "its memory grows: {memory:?} KiB");
    daemon.weir(&["stop"]).good();
    assert!(daemon.end().success());
    let log = daemon.log();
    assert!(log.contains("every frame is accounted for") && log.contains("none lost"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}
