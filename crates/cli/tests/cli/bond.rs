//! Bonds from the operator's side: what is shown, what commands do, what a reload keeps, and bonds in
//! replays.

use super::folder::Folder;
use super::running::{Daemon, free_address};
use super::{CommandOutput, recorded, weir};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use weir_packet::craft::Recipe;
use weir_port::pcap::Writer;

const PORTS: &str = "\
ports:
  p0: { pcap: { out: p0.pcap } }
  p1: { pcap: { out: p1.pcap } }
  p2: { pcap: { out: p2.pcap } }
  p3: { pcap: { out: p3.pcap } }
";

fn config(bond: &str) -> String {
    format!("{PORTS}apps: [{{ bond: {{ name: bond0, {bond} }} }}]\n")
}

const TWO: &str = "mode: static, members: [p1, p2], inside: p0";

/// The `n`th flow from inside.
fn flow(n: u16) -> String {
    format!("src=10.0.0.1 dst=192.0.2.1 sport={} dport=80", 1000 + n)
}

fn send(daemon: &Daemon, flows: std::ops::Range<u16>) {
    let flows: Vec<String> = flows.map(flow).collect();
    daemon.receive(&flows.iter().map(String::as_str).collect::<Vec<_>>());
}

fn bond(daemon: &Daemon) -> Value {
    daemon.weir(&["show", "bond", "bond0", "--json"]).good().json()["bond"][0].clone()
}

/// The member that owns each bucket.
fn table(daemon: &Daemon) -> Vec<String> {
    let answer = daemon.weir(&["show", "bond", "buckets", "--json"]).good().json();
    let buckets = answer["bond"][0]["buckets"].as_array().unwrap().clone();
    buckets.iter().map(|bucket| bucket["member"].as_str().unwrap().to_string()).collect()
}

fn transmitted(daemon: &Daemon) -> BTreeMap<String, u64> {
    let ports = daemon.show("ports");
    let one =
        |port: &Value| (port["name"].as_str().unwrap().to_string(), port["transmitted"].as_u64().unwrap());
    ports.as_array().unwrap().iter().map(one).collect()
}

/// Waits until no move is pending and every bucket of the group is where the bond wants it.
fn settled(daemon: &mut Daemon) {
    daemon.wait_for("moves", |daemon| {
        let bond = bond(daemon);
        let wanted: Vec<u64> =
            bond["members"].as_array().unwrap().iter().map(|one| one["buckets"].as_u64().unwrap()).collect();
        let groups = daemon.show("groups");
        let targets = groups[0]["targets"].as_array().unwrap();
        let held: Vec<u64> = targets.iter().map(|one| one["buckets"].as_u64().unwrap()).collect();
        bond["waiting"] == 0 && wanted == held
    });
}

/// Stops the daemon, asserting that every frame is accounted for and that `sent` of them left through the
/// members.
fn end(mut daemon: Daemon, sent: usize) {
    daemon.weir(&["stop"]).good();
    assert_eq!(daemon.end().code(), Some(0));
    let said = daemon.log();
    assert!(said.ends_with("every frame is accounted for\n"), "{said}");
    let folder = daemon.into_folder();
    let left: usize =
        ["p1", "p2", "p3"].map(|port| recorded(&folder.file(&format!("{port}.pcap"))).len()).iter().sum();
    assert_eq!(left, sent);
}

#[test]
fn a_bond_is_shown_for_people_and_programs() {
    let mut daemon = Daemon::start(&config(TWO));
    settled(&mut daemon);
    send(&daemon, 0..200);
    let said = daemon.weir(&["show", "bond"]).good().out;
    for part in [
        "bond0\n",
        "  mode            static\n",
        "  buckets         256\n",
        "  next rebalance  in ",
        " 0 waiting\n",
        "  member  state    LACP  buckets  packets  bytes   share\n",
        "  p1      enabled  -         128",
        " buckets  to p2  a member is available\n",
    ] {
        assert!(said.contains(part), "no `{part}` in\n{said}");
    }
    let shown = bond(&daemon);
    let sum = |key: &str| -> u64 {
        shown["members"].as_array().unwrap().iter().map(|member| member[key].as_u64().unwrap()).sum()
    };
    assert_eq!((sum("buckets"), sum("packets")), (256, 200));
    let transmitted = transmitted(&daemon);
    assert_eq!(shown["members"][0]["packets"], transmitted["p1"], "nothing has moved since");
    assert!(transmitted["p1"] > 50 && transmitted["p2"] > 50, "{transmitted:?}");
    let lines = daemon.weir(&["show", "bond", "buckets", "bond0"]).good().out;
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["bucket", "member", "packets", "bytes"]);
    assert_eq!(lines.len(), 2 + 256);
    let packets =
        lines[2..].iter().map(|line| line.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap());
    assert_eq!(packets.sum::<u64>(), 200);
    // The table of apps has no room for such detail.
    let apps = daemon.weir(&["show", "apps"]).good().out;
    assert!(apps.contains("bond0") && !apps.contains("disabled_by_operator"), "{apps}");
    end(daemon, 200);
}

#[test]
fn what_is_no_bond_is_told() {
    let daemon = Daemon::start(
        &config(TWO).replace("apps: [", "apps: [{ external: { name: slow, socket: slow.sock } }, "),
    );
    daemon.weir(&["show", "bond", "bond1"]).refused(1, &["there is no bond `bond1`; there is bond0"]);
    daemon.weir(&["show", "bond", "slow"]).refused(1, &["there is no bond `slow`; there is bond0"]);
    daemon
        .weir(&["bond", "disable", "bond1", "p1"])
        .refused(1, &["there is no bond `bond1`; there is bond0"]);
    daemon.weir(&["bond", "rebalance", "slow"]).refused(1, &["there is no bond `slow`; there is bond0"]);
    for words in
        [&["disable", "bond0", "p0"][..], &["set-active", "bond0", "p0"], &["migrate", "bond0", "1", "p0"]]
    {
        daemon
            .weir(&[&["bond"], words].concat())
            .refused(1, &["bond `bond0` has no member `p0`; its members are p1, p2"]);
    }
    daemon
        .weir(&["bond", "migrate", "bond0", "256", "p1"])
        .refused(1, &["there is no bucket 256: buckets are numbered 0 to 255"]);
    daemon.weir(&["bond", "set-active", "bond0", "p1"]).refused(1, &["mode static has no active member"]);
    assert_eq!(daemon.weir(&["bond", "migrate", "bond0", "x", "p1"]).code, Some(2));
    assert_eq!(daemon.weir(&["bond", "dance", "bond0"]).code, Some(2));
    daemon.weir(&["show", "bond", "bond0", "p1"]).refused(2, &["show bond buckets NAME"]);
    daemon.weir(&["show", "ports", "bond0"]).refused(2, &["`show ports` takes no further words"]);
    let none = Daemon::start(super::TWO);
    assert_eq!(none.weir(&["show", "bond"]).good().out, "no bond runs\n");
    none.weir(&["show", "bond", "bond0"]).refused(1, &["there is no bond `bond0`: no bond app is running"]);
}

#[test]
fn a_member_is_taken_out_and_comes_back_and_nothing_is_lost() {
    let mut daemon = Daemon::start(&config(TWO));
    settled(&mut daemon);
    send(&daemon, 0..100);
    let before = table(&daemon);
    let said = daemon.weir(&["bond", "disable", "bond0", "p1"]).good().out;
    assert_eq!(said, "p1 is being drained: its buckets move when they are idle, within 1000 ms\n");
    settled(&mut daemon);
    assert!(daemon.weir(&["show", "bond"]).good().out.contains("disabled: by the operator"));
    daemon.wait_for_log("bond0: p1: disabled, by the operator\n");
    let counted = transmitted(&daemon);
    send(&daemon, 0..100);
    assert_eq!(transmitted(&daemon)["p1"], counted["p1"], "it is out of use");
    daemon.weir(&["bond", "migrate", "bond0", "0", "p1"]).refused(1, &["p1 is not enabled"]);
    let done = daemon.weir(&["bond", "enable", "bond0", "p1", "--json"]).good().json();
    assert_eq!(done, json!({ "done": true, "said": "p1 may be used again" }));
    settled(&mut daemon);
    assert_eq!(table(&daemon), before, "as it was");
    // Move one bucket by hand.
    let other = if before[7] == "p1" { "p2" } else { "p1" };
    let said = daemon.weir(&["bond", "migrate", "bond0", "7", other]).good().out;
    assert_eq!(said, format!("bucket 7 moves to {other} when it is idle, within 1000 ms\n"));
    settled(&mut daemon);
    let mut wanted = before.clone();
    wanted[7] = other.to_string();
    assert_eq!(table(&daemon), wanted);
    assert!(
        daemon
            .weir(&["show", "bond"])
            .good()
            .out
            .contains(&format!("bucket 7     to {other}  the operator's word"))
    );
    end(daemon, 200);
}

#[test]
fn a_rebalance_can_be_tried_first() {
    let mut daemon =
        Daemon::start(&config("mode: static, members: [p1, p2], inside: p0, rebalance: never, buckets: 4"));
    settled(&mut daemon);
    let before = table(&daemon);
    // Two heavy flows share a member, so one of them should move.
    let packet = |n: u16| format!("{} payload={}", flow(n), "00".repeat(1400));
    let bytes = |daemon: &Daemon| -> Vec<u64> {
        let answer = daemon.weir(&["show", "bond", "buckets", "--json"]).good().json();
        let buckets = answer["bond"][0]["buckets"].as_array().unwrap().clone();
        buckets.iter().map(|bucket| bucket["bytes"].as_u64().unwrap()).collect()
    };
    let mut heavy: BTreeMap<usize, u16> = BTreeMap::new();
    for n in 0..100 {
        let counted = bytes(&daemon);
        daemon.receive(&[&flow(n)]);
        let bucket = bytes(&daemon).iter().zip(counted).position(|(now, before)| *now > before).unwrap();
        if before[bucket] == "p1" {
            heavy.insert(bucket, n);
        }
        if heavy.len() == 2 {
            break;
        }
    }
    assert_eq!(heavy.len(), 2);
    for n in heavy.values() {
        (0..100).for_each(|_| daemon.receive(&[&packet(*n)]));
    }
    let said = daemon.weir(&["bond", "rebalance", "--dry-run", "bond0"]).good().out;
    assert!(
        said.starts_with("1 bucket would move\n")
            && said.contains("  p1    p2  ")
            && said.contains("load before"),
        "{said}"
    );
    assert_eq!(table(&daemon), before, "nothing has moved");
    let plan = daemon.weir(&["bond", "rebalance", "bond0", "--json"]).good().json();
    assert_eq!((&plan["moves"][0]["from"], &plan["moves"][0]["to"]), (&json!("p1"), &json!("p2")), "{plan}");
    settled(&mut daemon);
    assert_eq!(table(&daemon).iter().filter(|member| *member == "p2").count(), 3);
    daemon.wait_for_log("bond0: rebalanced: 1 buckets move\n");
}

#[test]
fn the_active_member_is_chosen_by_hand() {
    let mut daemon = Daemon::start(&config(
        "mode: active_backup, members: [p1, p2], inside: p0, primary: p1, reselect: failure",
    ));
    settled(&mut daemon);
    send(&daemon, 0..20);
    assert_eq!(transmitted(&daemon)["p1"], 20);
    assert_eq!(daemon.weir(&["bond", "set-active", "bond0", "p2"]).good().out, "p2 is active\n");
    settled(&mut daemon);
    assert!(daemon.weir(&["show", "bond"]).good().out.contains("  active          p2\n"));
    send(&daemon, 0..20);
    daemon.wait_for("20 frames", |daemon| transmitted(daemon)["p2"] >= 20);
    daemon
        .weir(&["bond", "migrate", "bond0", "0", "p1"])
        .refused(1, &["in mode active_backup, buckets cannot be moved manually"]);
    let plan = daemon.weir(&["bond", "rebalance", "bond0"]).good().out;
    assert_eq!(plan, "nothing moves: mode active_backup does not balance by load\n");
}

/// Without a partner nothing is sent, and the output says why.
#[test]
fn lacp_without_a_partner_is_shown_member_by_member() {
    let mut daemon = Daemon::start(&config(
        "mode: balance_tcp, members: [p1, p2], inside: p0, lacp: { rate: fast, system_id: 02:00:00:00:00:77 \
            }",
    ));
    daemon.wait_for("the partner to be given up", |daemon| {
        bond(daemon)["members"][1]["lacp"]["defaulted"] == 1
    });
    let said = daemon.weir(&["show", "bond", "bond0"]).good().out;
    for part in [
        "  LACP            configured, 0 links in sync (needed: 1)\n",
        "  system          02:00:00:00:00:77 priority 32768\n",
        "disabled: LACP does not let it send  no partner ",
        "\n  LACP of p1: receive machine defaulted, mux detached, sends ",
        "    actor    02:00:00:00:00:77 priority 32768, key 1, port 1 priority 32768\n",
        "             state activity timeout aggregation ",
        "    partner  00:00:00:00:00:00 priority 0, key 0, port 0 priority 0\n",
        "    LACPDUs  0 received, ",
        "defaulted 1 times\n",
    ] {
        assert!(said.contains(part), "no `{part}` in\n{said}");
    }
    send(&daemon, 0..10);
    assert_eq!(daemon.show("ledger")["dropped"], json!({ "no_target": 10 }));
}

/// A reload adds one member and removes another; the bond keeps its state, and no frame is lost.
#[test]
fn a_reload_keeps_the_bond() {
    let mut daemon = Daemon::start(&config(TWO));
    settled(&mut daemon);
    send(&daemon, 0..60);
    daemon.weir(&["bond", "disable", "bond0", "p2"]).good();
    settled(&mut daemon);
    daemon.folder.write("weir.yaml", config("mode: static, members: [p3, p1, p2], inside: p0"));
    daemon.weir(&["reload"]).good();
    settled(&mut daemon);
    let shown = bond(&daemon);
    let names: Vec<&str> =
        shown["members"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["p3", "p1", "p2"]);
    assert_eq!(shown["members"][2]["disabled_by_operator"], true, "the operator's word outlives a reload");
    assert_eq!((&shown["members"][0]["buckets"], &shown["members"][2]["buckets"]), (&json!(128), &json!(0)));
    let packets = |bond: &Value| -> u64 {
        bond["members"].as_array().unwrap().iter().map(|member| member["packets"].as_u64().unwrap()).sum()
    };
    assert_eq!(packets(&shown), 60, "counters of buckets go on");
    send(&daemon, 0..60);
    daemon.weir(&["bond", "enable", "bond0", "p2"]).good();
    settled(&mut daemon);
    let before = table(&daemon);
    assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), 3);
    // p1 is removed: its buckets move, and no others.
    daemon.folder.write("weir.yaml", config("mode: static, members: [p2, p3], inside: p0"));
    daemon.weir(&["reload"]).good();
    settled(&mut daemon);
    for (old, new) in before.iter().zip(table(&daemon)) {
        assert!(if old == "p1" { ["p2", "p3"].contains(&new.as_str()) } else { *old == new }, "{old} {new}");
    }
    send(&daemon, 0..60);
    assert_eq!(packets(&bond(&daemon)), 180);
    // A member that is not a port: nothing changes.
    daemon.folder.write("weir.yaml", config("mode: static, members: [p2, p9], inside: p0"));
    let said = daemon.weir(&["reload"]);
    assert!(said.code == Some(1) && said.err.contains("there is no port `p9`"), "{}", said.err);
    assert_eq!(table(&daemon).len(), 256);
    end(daemon, 180);
}

/// A member and its port are added by one reload and removed by another.
#[test]
fn a_members_port_comes_and_goes_with_it() {
    let config = |third: &str, members: &str| {
        let bond = format!("mode: static, members: {members}, inside: p0");
        config(&bond).replace("  p3: { pcap: { out: p3.pcap } }\n", third)
    };
    let two = config("", "[p1, p2]");
    let mut daemon = Daemon::start(&two);
    settled(&mut daemon);
    send(&daemon, 0..60);
    for turn in ["first", "second"] {
        let third = format!("  p4: {{ pcap: {{ out: {turn}.pcap }} }}\n");
        daemon.folder.write("weir.yaml", config(&third, "[p4, p1, p2]"));
        assert!(daemon.weir(&["reload"]).good().out.contains("port p4 opened"));
        settled(&mut daemon);
        assert_eq!(bond(&daemon)["members"][0]["buckets"], 85, "a third of 256");
        send(&daemon, 0..60);
        assert!(transmitted(&daemon)["p4"] > 5, "{:?}", transmitted(&daemon));
        daemon.folder.write("weir.yaml", &two);
        assert!(daemon.weir(&["reload"]).good().out.contains("port p4 closed"));
        settled(&mut daemon);
        send(&daemon, 0..60);
    }
    let ledger = daemon.show("ledger");
    assert_eq!((&ledger["transmitted"], &ledger["dropped"]), (&json!(300), &json!({})), "{ledger}");
}

#[test]
fn metrics_have_the_bond() {
    let address = free_address();
    let mut daemon = Daemon::start(&format!("metrics: {address}\n{}", config(TWO)));
    settled(&mut daemon);
    send(&daemon, 0..5);
    daemon.weir(&["bond", "disable", "bond0", "p1"]).good();
    settled(&mut daemon);
    bond(&daemon);
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    let value = |name: &str| -> u64 {
        let start = format!("weir_app_{name}_total{{app=\"bond0\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no {name} in\n{metrics}")).parse().unwrap()
    };
    assert_eq!((value("punted"), value("injected"), value("refused")), (0, 0, 0));
    assert!(value("buckets_moved") >= 256 && value("moves_ordered") >= 256, "{metrics}");
    assert!(value("buckets_moved_busy") <= value("buckets_moved"), "{metrics}");
    assert!(metrics.contains("weir_ledger_balanced 1"), "{metrics}");
}

/// Writes a recording of frames with times in milliseconds.
fn record_at(path: &Path, frames: &[(u64, String)]) {
    let mut writer = Writer::new(File::create(path).unwrap()).unwrap();
    for (at_ms, recipe) in frames {
        let bytes = recipe.parse::<Recipe>().unwrap_or_else(|error| panic!("{error}")).build();
        writer.write(at_ms * 1_000_000, bytes.len() as u32, &bytes).unwrap();
    }
    writer.flush().unwrap();
}

/// Replays an example with these frames as input. What each of `ports` transmits is recorded in `PORT.pcap`.
fn replay_example(
    folder: &Folder,
    name: &str,
    input: &[(&str, Vec<(u64, String)>)],
    ports: &[&str],
) -> CommandOutput {
    let file = format!("{}/../../configs/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let mut arguments = vec!["replay".to_string(), file];
    for (port, frames) in input {
        record_at(&folder.file(&format!("{port}-in.pcap")), frames);
        arguments.push(format!("{port}={port}-in.pcap"));
    }
    arguments.extend(ports.iter().map(|port| format!("-o{port}={port}.pcap")));
    arguments.push("--json".to_string());
    weir(folder.path(), &arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn the_bond_of_the_examples_spreads_flows_and_takes_them_in() {
    let folder = Folder::new();
    let inside: Vec<(u64, String)> = (0..256).map(|n| (10 + u64::from(n), flow(n))).collect();
    let outside = |n: u16| vec![(400, format!("src=192.0.2.1 dst=10.0.0.1 sport=80 dport={}", 1000 + n))];
    let input = [("p0", inside), ("p1", outside(1)), ("p2", outside(2))];
    let json = replay_example(&folder, "bond", &input, &["p0", "p1", "p2"]).good().json();
    assert_eq!((&json["frames"]["transmitted"], &json["balances"]), (&258.into(), &true.into()), "{json}");
    let [inside, first, second] =
        ["p0", "p1", "p2"].map(|port| recorded(&folder.file(&format!("{port}.pcap"))));
    assert_eq!((inside.len(), first.len() + second.len()), (2, 256));
    // 5 sigma for 256 flows over two members.
    assert!(first.len() >= 88 && second.len() >= 88, "{} {}", first.len(), second.len());
}

/// A station inside keeps its member, a broadcast is accepted once, and reflected frames are dropped.
#[test]
fn the_slb_bond_of_the_examples_needs_nothing_of_the_switch() {
    let folder = Folder::new();
    let from = |n: u64, at: u64| {
        (at, format!("eth.src=02:00:00:00:01:{n:02x} src=10.0.0.1 dst=192.0.2.1 sport={at}"))
    };
    let inside: Vec<(u64, String)> =
        (0..100).flat_map(|n| (0..3).map(move |again| from(n, 1000 + 10 * n + again))).collect();
    let broadcast = "eth.src=02:00:00:00:09:01 eth.dst=ff:ff:ff:ff:ff:ff src=192.0.2.1 dst=192.0.2.255";
    let back = "eth.src=02:00:00:00:01:00 src=10.0.0.1 dst=192.0.2.1 sport=7";
    let outside = vec![(3000, broadcast.to_string()), (3001, back.to_string())];
    let input = [("p0", inside), ("p1", outside.clone()), ("p2", outside)];
    let json = replay_example(&folder, "bond-slb", &input, &["p0", "p1", "p2"]).good().json();
    assert_eq!(json["balances"], true, "{json}");
    let sources = |port: &str| -> BTreeMap<String, usize> {
        let mut sources = BTreeMap::new();
        for frame in recorded(&folder.file(&format!("{port}.pcap"))) {
            let source = frame
                .split(' ')
                .find(|word| word.starts_with("eth.src="))
                .unwrap_or("the default")
                .to_string();
            *sources.entry(source).or_default() += 1;
        }
        sources
    };
    let (first, second) = (sources("p1"), sources("p2"));
    assert_eq!(first.len() + second.len(), 100, "every address is on one link");
    assert!(first.values().chain(second.values()).all(|count| *count == 3));
    assert!(first.len() >= 25 && second.len() >= 25, "{} {}", first.len(), second.len());
    assert_eq!(sources("p0"), BTreeMap::from([("eth.src=02:00:00:00:09:01".to_string(), 1)]));
}

/// No partner speaks LACP in a recording, so after three seconds one link is used without it.
#[test]
fn the_load_balancer_of_the_examples_stands_on_its_bond() {
    let folder = Folder::new();
    let query =
        |n: u64| (5000 + n, format!("src=198.51.100.7 dst=10.0.0.53 proto=udp sport={} dport=53", 2000 + n));
    let queries: Vec<(u64, String)> = [(0, "src=198.51.100.7 dst=10.0.0.53 dport=53".to_string())]
        .into_iter()
        .chain((0..300).map(query))
        .collect();
    let input = [("p1", queries.clone()), ("p2", queries)];
    let json = replay_example(&folder, "lb-over-bond", &input, &["p1", "p2"]).good().json();
    assert_eq!(json["balances"], true, "{json}");
    let balanced = |port: &str| -> Vec<String> {
        let frames = recorded(&folder.file(&format!("{port}.pcap")));
        frames.into_iter().filter(|frame| frame.contains("dst=10.0.0.53")).collect()
    };
    assert_eq!((balanced("p1").len(), balanced("p2").len()), (300, 0), "{json}");
    let counters = json["counters"].as_array().unwrap();
    for counter in counters {
        // 5 sigma for 300 queries over three back ends.
        assert!(counter["packets"].as_u64().unwrap() >= 59, "{counters:?}");
    }
    let lacp = recorded(&folder.file("p2.pcap"));
    assert!(lacp.len() > 3, "LACPDUs go out by both: {lacp:?}");
}
