//! The daemon on recordings: what it shows, what can be changed while it runs, how it starts and stops.

use super::folder::Folder;
use super::running::{Daemon, free_address};
use super::{TWO, weir};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// [`TWO`] with a group and a FLOW pipe after it.
fn program() -> String {
    TWO.replace(
        "forward: p1\n    miss: drop\n    entries",
        "forward: flows\n    miss: drop\n    capacity: 3\n    entries",
    )
    .replace("pipes:\n", "groups:\n  web: { fill: wants, size: 4, targets: { b1: p1, b2: p1 } }\npipes:\n")
        + "  flows:
    type: flow
    learn: { pin: web }
    forward: p1
    miss: drop
    entries: [{ match: { target: b1 } }, { match: { target: b2 } }]
"
}

const EVEN: &str = "src=192.0.2.2 dst=10.0.0.53 dport=53";
const ODD: &str = "src=192.0.2.3 dst=10.0.0.53 dport=53";
const OTHER: &str = "src=192.0.2.3 dst=10.0.0.54 dport=53";

#[test]
fn everything_is_shown_for_people_and_programs() {
    let daemon = Daemon::start(&program());
    daemon.receive(&[EVEN, ODD, ODD, OTHER]);
    for (what, parts) in [
        ("ports", &["p0", "p1", "transmitted"][..]),
        ("pipes", &["balance", "basic", "flow", "misses", "capacity_per_worker"]),
        ("entries", &["{ match: { ipv4.src: 0.0.0.1 }", "run_time"]),
        ("backends", &["none"]),
        ("flows", &["udp 192.0.2.3:1000 > 10.0.0.53:53", "live", "pinned to b"]),
        ("deltas", &["aged", "stopped", "met", "unflowed", "lost"]),
        ("groups", &["web", "b1"]),
        ("counters", &["even", "odd"]),
        ("drops", &["miss", "No entry of a pipe matched"]),
        ("ledger", &["received", "originated", "transmitted"]),
        ("all", &["generation", "ledger", "balance"]),
    ] {
        let said = daemon.weir(&["show", what]).good();
        for part in parts {
            assert!(said.out.contains(part), "show {what}: no `{part}` in\n{}", said.out);
        }
        let json = daemon.weir(&["show", what, "--json"]).good().json();
        assert!(what == "all" || !json[what].is_null(), "{json}");
    }
    let ledger = daemon.show("ledger");
    assert_eq!((&ledger["originated"], &ledger["transmitted"]), (&4.into(), &3.into()), "{ledger}");
    assert_eq!(ledger["dropped"], json!({ "miss": 1 }));
    assert_eq!((daemon.count("even"), daemon.count("odd")), (1, 2));
    let entries = daemon.weir(&["show", "entries", "--pipe", "balance", "--json"]).good().json();
    assert_eq!(entries["entries"].as_array().map(Vec::len), Some(2));
    let flows = daemon.weir(&["show", "flows", "--limit", "1", "--json"]).good().json();
    assert_eq!((flows["live"].clone(), flows["flows"].as_array().map(Vec::len)), (json!(2), Some(1)));
    daemon.weir(&["show", "entries", "--pipe", "blaance"]).refused(1, &["`blaance`", "balance"]);
    assert_eq!(daemon.weir(&["show", "nonsense"]).code, Some(2));
}

#[test]
fn entries_come_change_and_go_while_it_runs() {
    let daemon = Daemon::start(
        &TWO.replace("per_entry/0.0.0.1", "per_entry/0.0.0.3")
            .replace("miss: drop", "miss: drop\n    capacity: 3"),
    );
    let entry = |what: &str, entry: &str| daemon.weir(&["entry", what, "balance", entry]);
    daemon.receive(&["src=192.0.2.2 dst=10.0.0.53"]);
    assert_eq!((daemon.count("even"), daemon.count("odd")), (0, 0));
    entry("add", "{ match: { ipv4.src: 0.0.0.2 }, set: { eth.dst: 02:00:00:00:00:12 }, counter: even }")
        .good();
    daemon.receive(&["src=192.0.2.2 dst=10.0.0.53"]);
    assert_eq!((daemon.count("even"), daemon.count("odd")), (1, 0));
    entry("update", "{ match: { ipv4.src: 0.0.0.2 }, set: { eth.dst: 02:00:00:00:00:12 }, counter: odd }")
        .good();
    daemon.receive(&["src=192.0.2.2 dst=10.0.0.53"]);
    assert_eq!((daemon.count("even"), daemon.count("odd")), (1, 1));
    let entries = daemon.show("entries");
    let run_time: Vec<&Value> =
        entries.as_array().unwrap().iter().filter(|one| one["run_time"] == true).collect();
    assert_eq!((run_time.len(), &run_time[0]["packets"]), (1, &2.into()), "{entries}");
    // The same entry twice, one too many, one that fits no pipe, and something that is not an entry.
    entry("add", "{ match: { ipv4.src: 0.0.0.2 }, set: { eth.dst: 02:00:00:00:00:12 }, counter: odd }")
        .refused(1, &["already"]);
    entry("add", "{ match: { ipv4.src: 0.0.0.3 }, set: { eth.dst: 02:00:00:00:00:12 }, counter: odd }")
        .refused(1, &["full"]);
    entry("remove", "{ match: { ipv4.src: 0.0.0.3 } }").refused(1, &["`balance` has no entry with this key"]);
    let said =
        entry("add", "{ match: { ipv4.src: 0.0.0.7 }, set: { eth.dst: 02:00:00:00:00:12 }, counter: odd }");
    assert!(
        said.code == Some(1) && said.err.contains("did you mean") && said.err.contains('^'),
        "{}",
        said.err
    );
    daemon.weir(&["entry", "remove", "blaance", "{}"]).refused(1, &["`blaance`", "`balance`"]);
    entry("remove", "{ match: { ipv4.src: 0.0.0.2 } }").good();
    daemon.receive(&["src=192.0.2.2 dst=10.0.0.53"]);
    assert_eq!((daemon.count("even"), daemon.count("odd")), (1, 1));
}

#[test]
fn weights_move_buckets_while_it_runs() {
    let daemon = Daemon::start(&program());
    let buckets = || {
        let groups = daemon.show("groups");
        [0, 1].map(|at| groups[0]["targets"][at]["buckets"].as_u64().unwrap())
    };
    assert_eq!(buckets(), [2, 2]);
    daemon.weir(&["weight", "web", "b1", "0"]).good();
    assert_eq!(buckets(), [0, 4]);
    daemon.weir(&["weight", "web", "b1", "3"]).good();
    assert_eq!(buckets(), [3, 1]);
    daemon.weir(&["weight", "wbe", "b1", "3"]).refused(1, &["no group `wbe`"]);
    daemon.weir(&["weight", "web", "b9", "3"]).refused(1, &["no target `b9`"]);
    // Weights that are refused in the file, such as 65536, are refused here too.
    daemon.weir(&["weight", "web", "b1", "99999"]).refused(1, &["`web`", "0 to 65535", "99999"]);
    assert_eq!(buckets(), [3, 1]);
}

#[test]
fn a_reload_swaps_the_program_and_a_broken_file_leaves_the_old_one() {
    let daemon = Daemon::start(TWO);
    daemon.receive(&[EVEN, ODD]);
    // The same pipe with one entry changed: unchanged entries keep their counts.
    daemon.folder.write("weir.yaml", TWO.replace("02:00:00:00:00:11", "02:00:00:00:00:99"));
    let said = daemon.weir(&["reload"]).good();
    assert!(said.out.starts_with("generation 2: "), "{}", said.out);
    daemon.receive(&[ODD]);
    assert_eq!((daemon.count("even"), daemon.count("odd")), (1, 2));
    // Invalid: nothing changes, and the error says why.
    daemon.folder.write("weir.yaml", TWO.replace("forward: p1", "forward: p7"));
    let said = daemon.weir(&["reload"]);
    assert_eq!(said.code, Some(1));
    assert!(said.err.contains("weir.yaml:10:") && said.err.contains("`p7`"), "{}", said.err);
    assert_eq!(daemon.weir(&["show", "all", "--json"]).good().json()["generation"], 2);
    daemon.receive(&[ODD]);
    assert_eq!(daemon.count("odd"), 3);
    // Ports are added and removed.
    daemon
        .folder
        .write("weir.yaml", TWO.replace("  p1: { pcap: {} }", "  p1: { pcap: {} }\n  p2: { pcap: {} }"));
    let said = daemon.weir(&["reload"]).good();
    assert!(said.out.starts_with("generation 3: ") && said.out.contains("; port p2 opened"), "{}", said.out);
    // SIGHUP does the same as the command.
    daemon.folder.write("weir.yaml", TWO.replace("dst: 10.0.0.53", "dst: 10.0.0.54"));
    daemon.signal(Signal::HUP);
    daemon.wait_for_log("generation 4: ");
    daemon.wait_for_log("; port p2 closed");
    daemon.wait_for_log("pipe balance: 2 entries");
    daemon.receive(&[OTHER, ODD]);
    assert_eq!(daemon.count("odd"), 4, "counters that keep their names go on");
    daemon.folder.write("weir.yaml", "ports: [");
    daemon.signal(Signal::HUP);
    daemon.wait_for_log("not reloaded");
    let ledger = daemon.show("ledger");
    assert_eq!(
        (&ledger["originated"], &ledger["transmitted"], &ledger["dropped"]["miss"]),
        (&6.into(), &5.into(), &1.into())
    );
}

#[test]
fn a_reload_reads_the_values_of_the_node_again() {
    let folder = Folder::new();
    folder.write("weir.yaml", program().replace("02:00:00:00:00:11", "${NODE.mac}"));
    folder.write("node.yaml", "mac: 02:00:00:00:00:11\n");
    let daemon = Daemon::start_in(folder);
    let has = |mac: &str| daemon.weir(&["entry", "list", "balance", "--all"]).good().out.contains(mac);
    assert!(has("02:00:00:00:00:11"));
    daemon.folder.write("node.yaml", "mac: 02:00:00:00:00:77\n");
    daemon.weir(&["reload"]).good();
    assert!(has("02:00:00:00:00:77") && !has("02:00:00:00:00:11"));
    daemon.folder.write("node.yaml", "mac: nonsense\n");
    let said = daemon.weir(&["reload"]);
    assert!(said.err.contains("is `nonsense`: ") && said.err.contains("node.yaml:1"), "{}", said.err);
    assert!(has("02:00:00:00:00:77"));
}

#[test]
fn run_time_entries_survive_a_reload_that_keeps_their_pipe() {
    let daemon = Daemon::start(&TWO.replace("per_entry/0.0.0.1", "per_entry/0.0.0.3"));
    daemon
        .weir(&[
            "entry",
            "add",
            "balance",
            "{ match: { ipv4.src: 0.0.0.2 }, set: { eth.dst: 02:00:00:00:00:12 }, counter: even }",
        ])
        .good();
    daemon.weir(&["reload"]).good();
    daemon.receive(&["src=192.0.2.2 dst=10.0.0.53"]);
    assert_eq!(daemon.count("even"), 1);
}

#[test]
fn a_reload_that_reorders_ports_leaves_entries_with_their_ports() {
    let config = |ports: [&str; 2]| {
        format!(
            "ports: {{ {}: {{ mem: ~ }}, {}: {{ mem: ~ }} }}
root: by
pipes:
  by:
    type: basic
    match: {{ port: per_entry }}
    forward: in_port
    miss: drop
    entries: [{{ match: {{ port: p0 }} }}]
",
            ports[0], ports[1]
        )
    };
    let daemon = Daemon::start(&config(["p0", "p1"]));
    daemon.weir(&["entry", "add", "by", "{ match: { port: p1 } }"]).good();
    let receive = |port: &str| daemon.ask(&json!({ "command": "inject", "packet": EVEN, "input": port }));
    (0..2).for_each(|_| drop(receive("p0")));
    (0..3).for_each(|_| drop(receive("p1")));
    let counts = || -> Vec<(String, u64)> {
        let entries = daemon.show("entries");
        let one =
            |one: &Value| (one["entry"].as_str().unwrap().to_string(), one["packets"].as_u64().unwrap());
        let mut all: Vec<_> = entries.as_array().unwrap().iter().map(one).collect();
        all.sort();
        all
    };
    let entry = |port: &str, count| (format!("{{ match: {{ port: {port} }} }}"), count);
    assert_eq!(counts(), [entry("p0", 2), entry("p1", 3)]);
    daemon.folder.write("weir.yaml", config(["p1", "p0"]));
    daemon.weir(&["reload"]).good();
    assert_eq!(counts(), [entry("p0", 2), entry("p1", 3)]);
    receive("p1");
    assert_eq!(counts(), [entry("p0", 2), entry("p1", 4)]);
}

#[test]
fn explaining_live_agrees_and_counts_nothing() {
    let daemon = Daemon::start(&program());
    daemon.receive(&[EVEN, ODD, ODD]);
    daemon.weir(&["entry", "remove", "balance", "{ match: { ipv4.src: 0.0.0.0 } }"]).good();
    let all = || {
        ["entries", "pipes", "counters", "ledger", "flows", "groups", "ports"].map(|what| daemon.show(what))
    };
    let before = all();
    let explain = |packet: &str| daemon.weir(&["explain", "--live", "--packet", packet]).good().out;
    // An existing flow, one that would be learned, and an entry that was removed.
    let live = explain(ODD);
    assert!(live.contains("live, pinned") && live.contains("verdict transmit on p1"), "{live}");
    let new = explain("src=192.0.2.5 dst=10.0.0.53 dport=53");
    assert!(new.contains("would be learnt"), "{new}");
    let gone = explain(EVEN);
    assert!(
        gone.contains("nearest { match: { ipv4.src: 0.0.0.1 } }") && gone.contains("verdict drop (miss)"),
        "{gone}"
    );
    for packet in [ODD, EVEN, OTHER, "arp=request", "hex=00"] {
        let json = daemon.weir(&["explain", "--live", "--json", "--packet", packet]).good().json();
        assert_eq!(json["agrees"], true, "{json}");
    }
    assert_eq!(all(), before);
    daemon.weir(&["explain", "--live", "--port", "p9", "--packet", ODD]).refused(1, &["no port `p9`"]);
}

/// A service, 10.0.0.80:80, that is translated to 10.0.0.11:8080.
const TRANSLATED: &str = "\
ports:
  p0: { mem: ~ }
  p1: { mem: ~ }
groups:
  web: { fill: wants, size: 4, targets: { b1: p1, b2: p1 } }
root: nat
pipes:
  nat:
    type: flow
    learn: { pin: web, reverse: true }
    actions:
      to: [{ set: { ipv4.dst: per_flow, l4.dport: per_flow } }]
      back: [{ set: { ipv4.src: { per_flow: ipv4.dst }, l4.sport: { per_flow: l4.dport } } }]
    forward: p1
    miss: drop
    entries:
      - { match: { target: b1 }, action: to, set: { ipv4.dst: 10.0.0.11, l4.dport: 8080 } }
      - { match: { target: b2 }, action: to, set: { ipv4.dst: 10.0.0.11, l4.dport: 8080 } }
      - { match: default, action: back }
";

#[test]
fn a_flow_is_explained_with_the_values_that_it_keeps() {
    let daemon = Daemon::start(TRANSLATED);
    let request = "src=10.1.1.1 dst=10.0.0.80 proto=udp sport=4000 dport=80";
    let answer = "src=10.0.0.11 dst=10.1.1.1 proto=udp sport=8080 dport=4000";
    daemon.receive(&[request]);
    for target in ["b1", "b2"] {
        let moved = "action: to, set: { ipv4.dst: 10.0.0.12, l4.dport: 9090 }";
        let entry = format!("{{ match: {{ target: {target} }}, {moved} }}");
        daemon.weir(&["entry", "update", "nat", &entry]).good();
    }
    daemon.weir(&["weight", "web", "b1", "0"]).good();
    for (packet, change) in [
        (request, "ipv4.dst 10.0.0.80 -> 10.0.0.11"),
        (answer, "ipv4.src 10.0.0.11 -> 10.0.0.80"),
        ("src=10.1.1.2 dst=10.0.0.80 proto=udp sport=4000 dport=80", "ipv4.dst 10.0.0.80 -> 10.0.0.12"),
    ] {
        let json = daemon.weir(&["explain", "--live", "--json", "--packet", packet]).good().json();
        assert_eq!(json["agrees"], true, "{json}");
        assert!(json["text"].as_str().unwrap().contains(change), "{json}");
    }
}

/// A FLOW pipe whose flows stay with their first port, on two workers.
const TWO_WORKERS: &str = "workers: 2
ports:
  p0: { mem: ~ }
  p1: { mem: ~ }
groups:
  web: { fill: wants, size: 4, targets: { b0: p0, b1: p1 } }
root: flows
pipes:
  flows:
    type: flow
    learn: { pin: web }
    forward: per_entry
    miss: drop
    entries: [{ match: { target: b0 }, forward: p0 }, { match: { target: b1 }, forward: p1 }]
";

#[test]
fn with_several_workers_a_packet_is_explained_by_that_of_its_flow() {
    let daemon = Daemon::start(TWO_WORKERS);
    let flows: Vec<String> = (1..16)
        .map(|host| format!("src=192.0.2.{host} dst=10.0.0.53 proto=udp sport={host} dport=53"))
        .collect();
    daemon.receive(&flows.iter().map(String::as_str).collect::<Vec<_>>());
    let all = daemon.weir(&["show", "all", "--json"]).good().json();
    assert_eq!((&all["ledger"]["transmitted"], &all["handed_over"]), (&15.into(), &0.into()), "{all}");
    assert_eq!(all["kernel"][1]["obstacle"], "it is not an AF_XDP port", "{all}");
    // New flows would now go elsewhere, so a worker that does not know a flow would reveal that.
    daemon.weir(&["weight", "web", "b1", "0"]).good();
    let mut to = std::collections::BTreeSet::new();
    for packet in &flows {
        let json = daemon.weir(&["explain", "--live", "--json", "--packet", packet]).good().json();
        assert_eq!(json["agrees"], true, "{json}");
        let text = json["text"].as_str().unwrap();
        to.insert(text.lines().find(|line| line.contains("verdict")).unwrap().to_string());
    }
    assert_eq!(to.len(), 2, "flows stay with both ports: {to:?}");
}

#[test]
fn a_second_daemon_is_refused_and_a_dead_ones_socket_is_taken_over() {
    let mut daemon = Daemon::start(TWO);
    daemon.weir(&["run", "weir.yaml"]).refused(1, &["weir.sock", "already", "--socket"]);
    assert_eq!(daemon.weir(&["show", "ledger"]).good().code, Some(0), "the first one continues");
    daemon.signal(Signal::KILL);
    daemon.end();
    assert!(daemon.folder.file("weir.sock").exists(), "kill -9 leaves it behind");
    daemon.weir(&["show", "ledger"]).refused(1, &["no weir daemon is listening", "weir.sock"]);
    let folder = Folder::new();
    folder.write("weir.yaml", TWO);
    std::fs::rename(daemon.folder.file("weir.sock"), folder.file("weir.sock")).unwrap();
    let next = Daemon::start_in(folder);
    next.weir(&["show", "ledger"]).good();
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let folder = Folder::new();
    folder.write("weir.yaml", TWO);
    folder.write("precious.txt", "my novel");
    let said = weir(folder.path(), &["run", "weir.yaml", "--socket", "precious.txt"]);
    said.refused(1, &["precious.txt"]);
    assert_eq!(std::fs::read_to_string(folder.file("precious.txt")).unwrap(), "my novel");
}

#[test]
fn flows_give_their_counts_to_the_collector_when_they_end() {
    let learn = "learn: { pin: web }\n";
    let aging = format!("{learn}    monitor: {{ idle_timeout: 20ms }}\n");
    let mut daemon = Daemon::start(&program().replace(learn, &aging));
    daemon.receive(&[EVEN, ODD, ODD]);
    daemon.wait_for("the deltas of idle flows", |daemon| daemon.show("deltas")[0]["packets"] == 3);
    let account = &daemon.weir(&["show", "deltas", "--json"]).good().json()["flow_account"];
    let counts = ["met", "live", "deltas", "waiting", "lost"].map(|name| account[name].clone());
    assert_eq!(counts, [3, 0, 3, 0, 0].map(Value::from), "{account}");
    assert_eq!(daemon.show("deltas")[0]["reason"], "aged");
    drop(daemon.weir(&["stop"]).good());
    assert_eq!(daemon.end().code(), Some(0));
    daemon.wait_for_log("flows: 3 packets in ");
    daemon.wait_for_log("deltas; none lost");
}

#[test]
fn live_flows_give_their_counts_when_the_daemon_stops() {
    let mut daemon = Daemon::start(&program());
    daemon.receive(&[EVEN, ODD, ODD]);
    drop(daemon.weir(&["stop"]).good());
    assert_eq!(daemon.end().code(), Some(0));
    daemon.wait_for_log("flows: 3 packets in 2 deltas; none lost");
}

#[test]
fn it_stops_cleanly_when_told() {
    for stop in [Some(Signal::TERM), Some(Signal::INT), None] {
        let mut daemon = Daemon::start(&TWO.replace("p1: { pcap: {} }", "p1: { pcap: { out: out.pcap } }"));
        daemon.receive(&[EVEN, ODD]);
        match stop {
            Some(signal) => daemon.signal(signal),
            None => drop(daemon.weir(&["stop"]).good()),
        }
        assert_eq!(daemon.end().code(), Some(0));
        assert!(!daemon.folder.file("weir.sock").exists());
        assert!(
            daemon.log().ends_with("2 frames came, 2 went; every frame is accounted for\n"),
            "{}",
            daemon.log()
        );
        assert_eq!(super::recorded(&daemon.folder.file("out.pcap")).len(), 2);
    }
}

#[test]
fn requests_that_make_no_sense_are_answered() {
    let daemon = Daemon::start(TWO);
    for request in
        [json!({}), json!([1]), json!({ "command": "dance" }), json!({ "command": "inject", "hex": "0g" })]
    {
        let answer = daemon.ask(&request);
        assert!(answer["error"].is_string(), "{request}: {answer}");
    }
    let oversize = "00".repeat(5000);
    assert!(daemon.ask(&json!({ "command": "inject", "hex": oversize }))["error"].is_string());
    let ledger = daemon.show("ledger");
    assert_eq!((&ledger["originated"], &ledger["dropped"]), (&1.into(), &json!({ "oversize": 1 })));
}

#[test]
fn prometheus_reads_the_ledger() {
    let address = free_address();
    let daemon = Daemon::start(&format!("metrics: {address}\n{TWO}"));
    daemon.receive(&[EVEN, ODD, OTHER]);
    let get = |path: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let metrics = get("/metrics");
    assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n") && metrics.ends_with("# EOF\n"), "{metrics}");
    for line in [
        "weir_frames_total{fate=\"originated\"} 3",
        "weir_frames_total{fate=\"transmitted\"} 2",
        "weir_dropped_total{reason=\"miss\"} 1",
        "weir_counter_packets_total{counter=\"odd\"} 1",
        "weir_pipe_misses_total{pipe=\"balance\"} 1",
        "weir_port_transmitted_total{port=\"p1\"} 2",
        "weir_ledger_balanced 1",
    ] {
        assert!(metrics.contains(line), "no {line} in\n{metrics}");
    }
    assert!(get("/").starts_with("HTTP/1.1 404 "));
}

/// Not a timing test: a daemon that spins uses a whole core, one that sleeps next to nothing.
#[test]
fn an_idle_daemon_sleeps() {
    let daemon = Daemon::start(TWO);
    let ticks = || {
        let path = format!("/proc/{}/stat", daemon.pid().as_raw_nonzero());
        let stat = std::fs::read_to_string(path).unwrap();
        // Counted after the name, which may contain anything: utime and stime are fields 14 and 15 of the
        // whole line.
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let measured = || {
        let (start, before) = (Instant::now(), ticks());
        std::thread::sleep(Duration::from_secs(2));
        let share = (ticks() - before) as f64
            / rustix::param::clock_ticks_per_second() as f64
            / start.elapsed().as_secs_f64();
        println!("idle: {:.1} % of a core", share * 100.0);
        share
    };
    // On a busy machine, it may not have ended its start before the first measurement.
    let shares: Vec<f64> = (0..3).map(|_| measured()).collect();
    assert!(shares.iter().any(|share| *share < 0.05), "{shares:?} of a core");
}

/// Issue 9, 2.11: apps that need no frames need no ports.
#[test]
fn a_daemon_with_an_app_runs_without_ports() {
    let daemon = Daemon::start("apps: [{ external: { name: watcher, socket: watcher.sock } }]\n");
    daemon.wait_for_log("with 1 worker on no port");
    assert_eq!(daemon.show("ports"), json!([]));
    assert_eq!(daemon.show("apps")[0]["name"], "watcher");
    let explained = daemon.weir(&["explain", "--live", "--packet", "dport=53"]);
    explained.refused(1, &["no port on which a packet could arrive"]);
    let answer = daemon.ask(&json!({ "command": "inject", "packet": "dport=53" }));
    assert!(answer["error"].as_str().unwrap().contains("not sent (policy)"), "{answer}");
    let all = daemon.weir(&["show", "--json"]).good().json();
    assert_eq!(all["balances"], true);
    daemon.weir(&["reload"]).good();
}

/// A client that is connected when the daemon ends is answered, although the main thread no longer serves
/// requests. On a busy machine, the request may arrive too late, which is after a second.
#[test]
fn who_is_connected_is_answered_when_the_daemon_ends() {
    let answers = (0..5).map(|_| {
        let mut daemon = Daemon::start(TWO);
        let mut client = UnixStream::connect(daemon.folder.file("weir.sock")).expect("it listens");
        // It is answered after the first client has been accepted.
        daemon.weir(&["show", "ledger"]).good();
        daemon.signal(Signal::TERM);
        std::thread::sleep(Duration::from_millis(50));
        let body = r#"{"command": "show", "what": "ledger"}"#;
        let head = format!("POST /command HTTP/1.1\r\nHost: weir\r\nContent-Length: {}\r\n\r\n", body.len());
        let mut answer = String::new();
        let sent = client.write_all(format!("{head}{body}").as_bytes());
        let _ = sent.and_then(|()| client.read_to_string(&mut answer));
        assert!(daemon.end().success());
        answer
    });
    let is_good = |answer: &String| answer.starts_with("HTTP/1.1 200") && answer.contains("\"ledger\"");
    assert!(answers.into_iter().any(|answer| is_good(&answer)));
}
