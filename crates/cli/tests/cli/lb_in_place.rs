//! Changes to the back ends of the API's services, which the running program follows in place.

use super::folder::Folder;
use super::lb_api::service;
use super::lb_control::{CONFIG, http, with_token};
use super::running::{Daemon, free_address};
use super::wire::Wire;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};

/// Pseudo-random numbers, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

/// How packets are sent to the back ends of services, by number of the service. Those of the last two have
/// the same addresses, but different ports.
const MODES: [&str; 6] = ["l2", "full_nat", "ipip", "full_nat", "nat", "nat 8081"];

/// A daemon with a pool of addresses and this number of workers, whose services can be changed over HTTP.
fn pooled(workers: usize) -> (Daemon, SocketAddr) {
    let (folder, address) = with_token();
    let config = CONFIG.replace("pcap: {}", "mem: ~");
    assert_ne!(config, CONFIG);
    folder.write(
        "weir.yaml",
        format!(
            "control: {{ listen: \"{address}\", token: token }}
workers: {workers}
nat_pools: {{ out: {{ addresses: 192.0.2.0/28 }} }}
{config}"
        ),
    );
    (Daemon::start_in(folder), address)
}

/// A service whose back ends get packets in this mode.
fn service_of(mode: &str, name: &str, vip: &str, back_ends: &[(&str, u32)]) -> Value {
    let mut service = service(name, vip, back_ends);
    for (at, one) in service["back_ends"].as_array_mut().unwrap().iter_mut().enumerate() {
        enter(mode, one, at);
    }
    match mode {
        "full_nat" => service["nat_pool"] = json!("out"),
        "ipip" => {
            service["source"] = json!("10.0.0.9");
            service["source_mac"] = json!("02:00:00:00:00:fe");
        }
        _ => {}
    }
    service
}

/// Lets a back end get packets in this mode.
fn enter(mode: &str, back_end: &mut Value, number: usize) {
    if mode == "l2" {
        return;
    }
    let (mode, port) = mode.split_once(' ').unwrap_or((mode, "8080"));
    back_end["mode"] = json!(mode);
    back_end["ip"] = json!(format!("10.9.0.{}", number + 1));
    if mode == "nat" || mode == "full_nat" && number % 2 == 1 {
        back_end["port"] = json!(port);
    }
}

fn put(address: SocketAddr, service: &Value) -> (u16, Value) {
    let path = format!("/v1/services/{}", service["name"].as_str().unwrap());
    http(address, "PUT", &path, &service.to_string())
}

/// The number of the program, which every reload increases.
fn generation(daemon: &Daemon) -> u64 {
    daemon.ask(&json!({ "command": "show" }))["generation"].as_u64().unwrap()
}

/// The state of a daemon, in an order that does not depend on earlier changes.
fn state(daemon: &Daemon, address: SocketAddr) -> Value {
    let mut state = program(daemon);
    state["services"] = http(address, "GET", "/v1/services", "").1;
    state
}

/// The program of a daemon and its back ends, without counts.
fn program(daemon: &Daemon) -> Value {
    let sorted = |mut list: Vec<Value>| {
        list.sort_by_key(Value::to_string);
        list
    };
    let mut groups = daemon.show("groups");
    for group in groups.as_array_mut().unwrap() {
        group["targets"] = sorted(group["targets"].as_array().unwrap().clone()).into();
    }
    let mut back_ends = daemon.show("backends");
    for row in back_ends.as_array_mut().unwrap() {
        let row = row.as_object_mut().unwrap();
        row.retain(|key, _| {
            let kept = ["service", "name", "mode", "mac", "address", "weight", "state", "health"];
            kept.contains(&key.as_str())
        });
    }
    let entries = daemon.weir(&["show", "entries", "--json"]).good().json()["entries"].clone();
    let entry = |one: &Value| json!([one["pipe"], one["entry"]]);
    let entries = sorted(entries.as_array().unwrap().iter().map(entry).collect());
    json!({ "groups": groups, "back_ends": back_ends, "entries": entries, "rings": daemon.show("rings") })
}

/// Changes a list of back ends: adds or removes one, changes a weight or an address, or replaces the list.
fn change(mode: &str, numbers: &mut Numbers, back_ends: &mut Vec<Value>) {
    let new = |number: usize, mac: usize| {
        let mac = format!("02:00:00:00:02:{mac:02x}");
        let mut one = json!({ "name": format!("b{number}"), "mac": mac, "weight": 1 });
        enter(mode, &mut one, number);
        one
    };
    let at = numbers.below(back_ends.len().max(1));
    match numbers.below(6) {
        0 | 1 => {
            let number = numbers.below(40);
            if !back_ends.iter().any(|one| one["name"] == format!("b{number}")) {
                back_ends.insert(at, new(number, number));
            }
        }
        2 if !back_ends.is_empty() => drop(back_ends.remove(at)),
        3 if !back_ends.is_empty() => back_ends[at]["weight"] = json!(numbers.below(4)),
        4 if !back_ends.is_empty() => {
            back_ends[at]["mac"] = json!(format!("02:00:00:00:03:{:02x}", numbers.below(256)));
            // None has the same address and another mode.
            enter(mode, &mut back_ends[at], 100 + numbers.below(100));
        }
        _ => *back_ends = (0..numbers.below(14)).map(|one| new(one + 40, one)).collect(),
    }
}

#[test]
fn any_changes_in_place_lead_to_what_a_reload_leads_to() {
    let (daemon, address) = pooled(1);
    let mut numbers = Numbers(7);
    let named = |at: usize| {
        let vip = format!("10.0.1.{at}");
        service_of(MODES[at - 1], &format!("s{at}"), &vip, &[("b0", 1), ("b1", 2)])
    };
    let mut services: Vec<Value> = (1..7).map(named).collect();
    let all = |services: &[Value]| json!({ "services": services }).to_string();
    assert_eq!(http(address, "PUT", "/v1/services", &all(&services)).0, 200);
    let first = generation(&daemon);
    for step in 0..80 {
        let at = numbers.below(services.len());
        let mut next = services[at].clone();
        let mut back_ends = next["back_ends"].as_array().unwrap().clone();
        change(MODES[at], &mut numbers, &mut back_ends);
        next["back_ends"] = back_ends.into();
        if step % 10 == 3 {
            // A wrong request changes nothing, and does not affect the next one.
            let before = state(&daemon, address);
            let mut wrong = next.clone();
            wrong["back_ends"] = json!([{ "name": "b0", "mac": "02:00:00:00:00:99" }, { "name": "b0" }]);
            let (status, answer) = put(address, &wrong);
            assert_eq!(status, 400, "{answer}");
            assert_eq!(state(&daemon, address), before);
        }
        let (status, answer) = put(address, &next);
        assert_eq!(status, 200, "{answer}");
        services[at] = next;
        if step == 40 {
            daemon.weir(&["reload"]).good();
        }
    }
    let reloads = generation(&daemon) - first;
    assert!((2..16).contains(&reloads), "{reloads} reloads for 80 changes");

    let (other, its) = pooled(1);
    assert_eq!(http(its, "PUT", "/v1/services", &all(&services)).0, 200);
    let (now, wanted) = (state(&daemon, address), state(&other, its));
    for part in ["groups", "back_ends", "entries", "rings", "services"] {
        assert_eq!(now[part], wanted[part], "{part}");
    }
    // A reload also finds nothing to change.
    daemon.weir(&["reload"]).good();
    assert_eq!(state(&daemon, address), wanted);
}

#[test]
fn flows_of_back_ends_that_stay_are_kept_and_new_ones_get_their_share() {
    let (daemon, address) = pooled(1);
    let count = |name: &str| daemon.count(&format!("lb/a/{name}"));
    let packet = |port: u32| {
        format!("eth.dst=02:00:00:00:00:fe src=192.0.2.1 dst=10.0.1.1 proto=tcp sport={port} dport=80")
    };
    let send = |from: u32| {
        let packets: Vec<String> = (from..from + 48).map(packet).collect();
        daemon.receive(&packets.iter().map(String::as_str).collect::<Vec<_>>());
    };
    assert_eq!(put(address, &service("a", "10.0.1.1", &[("x", 1), ("y", 1)])).0, 200);
    let before = generation(&daemon);
    send(4000);
    let (x, y) = (count("x"), count("y"));
    assert_eq!(x + y, 48);

    // The number of buckets and the order of the list change as well.
    assert_eq!(put(address, &service("a", "10.0.1.1", &[("z", 20), ("w", 20), ("y", 1), ("x", 1)])).0, 200);
    assert_eq!(generation(&daemon), before);
    send(4000);
    assert_eq!([count("x"), count("y"), count("z"), count("w")], [2 * x, 2 * y, 0, 0]);
    send(8000);
    assert!(count("z") > 0 && count("w") > 0);

    // The flows of a removed back end go to the others, and the packets that it has had stay in its counts.
    assert_eq!(put(address, &service("a", "10.0.1.1", &[("z", 1), ("w", 1), ("x", 1)])).0, 200);
    let sum = || ["x", "y", "z", "w"].into_iter().map(count).sum::<u64>();
    let (all, gone) = (sum(), count("y"));
    send(4000);
    assert_eq!((sum(), count("y")), (all + 48, gone));

    // A new back end takes its place, and counts from 0: only the flows that begin with it.
    assert_eq!(put(address, &service("a", "10.0.1.1", &[("z", 0), ("w", 0), ("x", 0), ("v", 1)])).0, 200);
    assert_eq!(generation(&daemon), before);
    send(12_000);
    let rows = daemon.show("backends");
    let row = rows.as_array().unwrap().iter().find(|row| row["name"] == "v").unwrap();
    assert_eq!((&row["packets"], &row["flows"], &row["flows_begun"]), (&json!(48), &json!(48), &json!(48)));
}

/// Flows by name, with the decision and the address of the pool of each.
fn flows(daemon: &Daemon) -> BTreeMap<String, (String, String)> {
    let shown = daemon.weir(&["show", "flows", "--limit", "100000", "--json"]).good().json();
    let text = |flow: &Value, key: &str| flow[key].as_str().unwrap_or_default().to_string();
    let row = |flow: &Value| (text(flow, "flow"), (text(flow, "decision"), text(flow, "nat")));
    shown["flows"].as_array().unwrap().iter().map(row).collect()
}

/// Packets of flows to a service, from this source port on.
fn packets(vip: &str, from: u32, count: u32) -> Vec<String> {
    let packet = |port: u32| {
        format!("eth.dst=02:00:00:00:00:fe src=192.0.2.101 dst={vip} proto=tcp sport={port} dport=80")
    };
    (from..from + count).map(packet).collect()
}

fn send(daemon: &Daemon, packets: &[String]) {
    daemon.receive(&packets.iter().map(String::as_str).collect::<Vec<_>>());
}

/// The answers to translated flows: a packet of each flow to an address of the pool.
fn answers(flows: &BTreeMap<String, (String, String)>) -> Vec<String> {
    let bound: BTreeSet<&str> = flows.values().map(|(_, nat)| nat.as_str()).collect();
    let ends = |name: &str| -> Option<String> {
        let (from, to) = name.strip_prefix("tcp ")?.split_once(" > ")?;
        let ((src, sport), (dst, dport)) = (from.split_once(':')?, to.split_once(':')?);
        let ends = format!("src={src} dst={dst} proto=tcp sport={sport} dport={dport}");
        bound.contains(to).then(|| format!("eth.dst=02:00:00:00:00:fe {ends}"))
    };
    flows.keys().filter_map(|name| ends(name)).collect()
}

#[test]
fn translated_flows_keep_their_back_end_and_their_address_of_the_pool_and_answers_return() {
    for workers in [1, 2] {
        let (daemon, address) = pooled(workers);
        let of = |name: &str, vip: &str, back_ends: &[(&str, u32)]| {
            let mut service = service_of("full_nat", name, vip, back_ends);
            for one in service["back_ends"].as_array_mut().unwrap() {
                let number = usize::from(one["name"].as_str().unwrap().as_bytes()[0]);
                (one["ip"], one["port"]) = (json!(format!("10.9.0.{number}")), json!("8080"));
                one["mac"] = json!(format!("02:00:00:00:02:{number:02x}"));
            }
            service
        };
        let a = |back_ends: &[(&str, u32)]| put(address, &of("a", "10.0.1.1", back_ends)).0;
        // Another service shares the pool, the table of flows, and a back end.
        assert_eq!(put(address, &of("b", "10.0.1.2", &[("x", 1), ("t", 1)])).0, 200);
        assert_eq!(a(&[("x", 1), ("y", 1)]), 200);
        let first = generation(&daemon);
        let clients = [packets("10.0.1.1", 4000, 48), packets("10.0.1.2", 5000, 24)].concat();
        send(&daemon, &clients);
        let before = flows(&daemon);
        assert_eq!((before.len(), answers(&before).len()), (144, 72), "{before:?}");
        let returned = || daemon.count("lb/answers");
        send(&daemon, &answers(&before));
        assert_eq!(returned(), 72);

        assert_eq!(a(&[("z", 9), ("y", 1), ("w", 9), ("x", 1)]), 200);
        send(&daemon, &clients);
        send(&daemon, &answers(&before));
        assert_eq!((flows(&daemon), returned()), (before.clone(), 144));
        send(&daemon, &packets("10.0.1.1", 6000, 48));
        let count = |name: &str| daemon.count(&format!("lb/a/{name}"));
        assert!(count("z") > 0 && count("w") > 0);

        // Draining keeps flows. Without a back end, its flows end, as after a reload; all others stay.
        let mut drained = of("a", "10.0.1.1", &[("z", 9), ("y", 1), ("w", 9), ("x", 1)]);
        drained["back_ends"][1]["state"] = json!("draining");
        assert_eq!(put(address, &drained).0, 200);
        let (y, full) = (count("y"), flows(&daemon));
        send(&daemon, &packets("10.0.1.1", 7000, 48));
        assert_eq!(count("y"), y);
        let now = flows(&daemon);
        assert!(full.iter().all(|(name, flow)| now.get(name) == Some(flow)));
        assert_eq!(a(&[("x", 1), ("w", 9), ("z", 9)]), 200);
        send(&daemon, &clients);
        let after = flows(&daemon);
        let of_y =
            |name: &str, decision: &str| decision.contains("to y of lb/a") || name.contains("10.9.0.121:");
        for (name, flow) in now.iter().filter(|(name, flow)| !of_y(name, &flow.0)) {
            assert_eq!(after.get(name), Some(flow), "{name}");
        }
        assert_eq!(generation(&daemon), first);
        let ledger = daemon.show("ledger");
        assert_eq!(ledger["held"], 0, "{ledger}");
    }
}

/// Returns whether the group of service `a` follows the health of its back ends, which is shown first.
fn follows(daemon: &Daemon, health: &BTreeMap<String, String>) -> bool {
    let groups = daemon.show("groups");
    let group = groups.as_array().unwrap().iter().find(|group| group["name"] == "lb/a").unwrap();
    let targets = group["targets"].as_array().unwrap();
    targets.iter().all(|target| {
        health
            .get(target["name"].as_str().unwrap())
            .is_none_or(|one| (one == "up") == (target["weight"] != 0))
    })
}

#[test]
fn checked_back_ends_come_and_go_and_only_those_that_are_up_get_new_flows() {
    let (mut daemon, address) = pooled(1);
    // A server that answers, and a port where none does.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let up = server.local_addr().unwrap().port();
    // Connections that are not accepted would fill its queue in a few seconds, and checks would fail.
    std::thread::spawn(move || server.incoming().for_each(drop));
    let none = free_address().port();
    let of = |back_ends: &[(&str, u16)]| {
        let list: Vec<(&str, u32)> = back_ends.iter().map(|(name, _)| (*name, 1)).collect();
        let mut service = service("a", "10.0.1.1", &list);
        service["check"] =
            json!({ "type": "tcp", "interval": "50ms", "timeout": "1s", "rise": 1, "fall": 1 });
        for (one, (_, port)) in service["back_ends"].as_array_mut().unwrap().iter_mut().zip(back_ends) {
            (one["address"], one["check"]) = (json!("127.0.0.1"), json!({ "port": port }));
        }
        service
    };
    let health = |daemon: &Daemon| -> BTreeMap<String, String> {
        let rows = daemon.show("backends");
        let of_a = rows.as_array().unwrap().iter().filter(|row| row["service"] == "a").cloned();
        let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_string();
        of_a.map(|row| (text(&row, "name"), text(&row, "health"))).collect()
    };
    let wait = |daemon: &mut Daemon, all: &[(&str, &str)]| {
        let wanted: BTreeMap<_, _> =
            all.iter().map(|(name, health)| (name.to_string(), health.to_string())).collect();
        daemon.wait_for("outcomes of checks", |daemon| health(daemon) == wanted && follows(daemon, &wanted));
    };
    assert_eq!(put(address, &of(&[("x", up)])).0, 200);
    let first = generation(&daemon);
    wait(&mut daemon, &[("x", "up")]);
    send(&daemon, &packets("10.0.1.1", 4000, 16));
    assert_eq!(daemon.count("lb/a/x"), 16);
    // A back end that is down gets nothing, and the one that stays keeps its health and its flows.
    assert_eq!(put(address, &of(&[("bad", none), ("x", up)])).0, 200);
    assert_eq!(health(&daemon)["x"], "up");
    wait(&mut daemon, &[("bad", "down"), ("x", "up")]);
    send(&daemon, &packets("10.0.1.1", 4000, 32));
    assert_eq!((daemon.count("lb/a/x"), daemon.count("lb/a/bad")), (48, 0));
    // It stays down when another back end is added, and its place is free once it is removed.
    assert_eq!(put(address, &of(&[("y", up), ("bad", none), ("x", up)])).0, 200);
    assert_eq!(health(&daemon)["bad"], "down");
    wait(&mut daemon, &[("bad", "down"), ("x", "up"), ("y", "up")]);
    send(&daemon, &packets("10.0.1.1", 8000, 48));
    assert_eq!(daemon.count("lb/a/bad"), 0);
    assert!(daemon.count("lb/a/y") > 0);
    assert_eq!(put(address, &of(&[("y", up)])).0, 200);
    wait(&mut daemon, &[("y", "up")]);
    let servers = |daemon: &Daemon| {
        let apps = daemon.show("apps");
        apps.as_array().unwrap().iter().find(|app| app["name"] == "lb").unwrap()["checked"].clone()
    };
    assert_eq!(servers(&daemon), 1, "back ends with the same check share a server");
    assert_eq!(generation(&daemon), first);
}

/// A service after a number of changes: two back ends stay, and the others are added and removed.
fn changed(name: &str, vip: &str, step: usize) -> Value {
    let mode = if name == "a" { "full_nat" } else { "l2" };
    let mut service = service_of(mode, name, vip, &[("s0", 1), ("s1", 1)]);
    let others = (0..step % 3).map(|at| {
        let number = 10 + (step + at) % 7;
        let mac = format!("02:00:00:00:02:{number:02x}");
        let mut one = json!({ "name": format!("n{number}"), "mac": mac, "weight": 0 });
        enter(mode, &mut one, number);
        one
    });
    let others: Vec<Value> = others.collect();
    service["back_ends"].as_array_mut().unwrap().extend(others);
    service
}

#[test]
fn concurrent_changes_of_services_and_reloads_lose_no_flow_and_no_change() {
    let (daemon, address) = pooled(2);
    let both = [("a", "10.0.1.1"), ("b", "10.0.1.2")];
    for (name, vip) in both {
        assert_eq!(put(address, &changed(name, vip, 0)).0, 200);
    }
    let clients = [packets("10.0.1.1", 4000, 32), packets("10.0.1.2", 5000, 32)].concat();
    send(&daemon, &clients);
    let before = flows(&daemon);
    assert_eq!(before.len(), 96, "{before:?}");
    let first = generation(&daemon);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changing = both.map(|(name, vip)| {
            scope.spawn(move || {
                for step in 1..40 {
                    let (status, answer) = put(address, &changed(name, vip, step));
                    assert_eq!(status, 200, "{answer}");
                }
            })
        });
        let reloading = scope.spawn(|| {
            let mut reloads = 0;
            while !ends.load(Ordering::Relaxed) || reloads == 0 {
                daemon.weir(&["reload"]).good();
                reloads += 1;
            }
            reloads
        });
        let sending = scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                send(&daemon, &clients);
            }
        });
        for one in changing {
            one.join().unwrap();
        }
        ends.store(true, Ordering::Relaxed);
        sending.join().unwrap();
        let reloads: u64 = reloading.join().unwrap();
        // The others were made in place.
        assert!(generation(&daemon) - first < reloads + 20, "{reloads} reloads");
    });
    send(&daemon, &clients);
    assert_eq!(flows(&daemon), before);
    let (other, its) = pooled(2);
    let last: Vec<Value> = both.iter().map(|(name, vip)| changed(name, vip, 39)).collect();
    assert_eq!(http(its, "PUT", "/v1/services", &json!({ "services": last }).to_string()).0, 200);
    daemon.weir(&["reload"]).good();
    let (now, wanted) = (state(&daemon, address), state(&other, its));
    for part in ["groups", "back_ends", "entries", "rings", "services"] {
        assert_eq!(now[part], wanted[part], "{part}");
    }
}

/// Tells the host the MAC address of a back end, given the last byte of its address.
fn know(wire: &Wire, last: u8, mac: &str) {
    let mac = format!("02:00:00:00:{mac}:{last:02}");
    wire.ip(&format!("neigh replace 10.0.0.{last} lladdr {mac} dev w0 nud permanent"));
}

/// Sets the back ends of a service, which have no MAC addresses, by the last bytes of their addresses.
fn put_resolved(daemon: &Daemon, (name, mode): (&str, &str), lasts: &[u8]) {
    let back_end =
        |last: &u8| json!({ "name": format!("b{last}"), "mode": mode, "ip": format!("10.0.0.{last}") });
    let mut service = service(name, if name == "a" { "10.0.9.1" } else { "10.0.9.2" }, &[]);
    service["back_ends"] = lasts.iter().map(back_end).collect();
    if mode == "full_nat" {
        service["nat_pool"] = json!("out");
    }
    let request = json!({ "do": "put", "service": service });
    let answer = daemon.ask(&json!({ "command": "app", "app": "lb", "request": request }));
    assert!(answer.get("error").is_none(), "{answer}");
}

/// The MAC address and the health of a back end.
fn row(daemon: &Daemon, service: &str, name: &str) -> [String; 2] {
    let rows = daemon.show("backends");
    let is_it = |row: &&Value| row["service"] == service && row["name"] == name;
    let row = rows.as_array().unwrap().iter().find(is_it);
    let row = row.unwrap_or_else(|| panic!("no {name} in {rows}"));
    [&row["mac"], &row["health"]].map(|text| text.as_str().unwrap().to_string())
}

/// The row of a back end with this MAC address.
fn up(mac: &str) -> [String; 2] {
    [format!("02:00:00:00:{mac}"), "unchecked".to_string()]
}

/// Packets counted for back ends of `a`.
fn counts(daemon: &Daemon, lasts: &[u8]) -> Vec<u64> {
    lasts.iter().map(|last| daemon.count(&format!("lb/a/b{last}"))).collect()
}

/// Packets to `a` that arrive at the interface.
fn send_to_a(daemon: &Daemon, from: u32) {
    let packet = |port: u32| {
        format!("eth.dst=02:00:00:00:00:00 src=192.0.2.1 dst=10.0.9.1 proto=tcp sport={port} dport=80")
    };
    send(daemon, &(from..from + 64).map(packet).collect::<Vec<_>>());
}

const A: (&str, &str) = ("a", "full_nat");
const B: (&str, &str) = ("b", "nat");

#[test]
fn back_ends_without_a_mac_address_are_resolved_in_place() {
    let Some(wire) = Wire::new("inplace", 1) else { return };
    (11..13).for_each(|last| know(&wire, last, "aa"));
    let folder = Folder::new();
    let config = "nat_pools: { out: { addresses: 10.0.0.128/28 } }
ports: { p0: { xdp: w0 } }
apps: [{ lb: { flows: 4096 } }]
";
    folder.write("weir.yaml", config);
    let mut daemon = Daemon::start_in_namespace(folder, &wire.weir);
    put_resolved(&daemon, B, &[12]);
    put_resolved(&daemon, A, &[11]);
    let first = generation(&daemon);
    assert_eq!(row(&daemon, "a", "b11"), up("aa:11"));
    send_to_a(&daemon, 4000);
    assert_eq!(counts(&daemon, &[11]), [64]);
    let before = flows(&daemon);

    // The host knows the address of one: it gets flows at once. The other is down until it is found.
    put_resolved(&daemon, A, &[12, 13, 11]);
    assert_eq!(row(&daemon, "a", "b12"), up("aa:12"));
    assert_eq!(row(&daemon, "a", "b13"), ["", "down"]);
    send_to_a(&daemon, 4000);
    assert_eq!((flows(&daemon), counts(&daemon, &[11])), (before, vec![128]));
    send_to_a(&daemon, 5000);
    let [b11, b12, b13] = counts(&daemon, &[11, 12, 13])[..] else { panic!() };
    assert_eq!((b11 + b12, b12 > 0, b13), (192, true, 0));
    know(&wire, 13, "aa");
    daemon.wait_for("the neighbour", |daemon| row(daemon, "a", "b13") == up("aa:13"));
    send_to_a(&daemon, 6000);
    assert!(counts(&daemon, &[13]) > vec![0]);

    neighbours_are_followed_while_others_come_and_go(&wire, &mut daemon);
    assert_eq!(generation(&daemon), first, "{}", daemon.log());
    // A reload leads to the same program.
    let now = program(&daemon);
    daemon.weir(&["reload"]).good();
    assert_eq!(program(&daemon), now);
}

fn neighbours_are_followed_while_others_come_and_go(wire: &Wire, daemon: &mut Daemon) {
    put_resolved(daemon, A, &[13, 12]);
    put_resolved(daemon, B, &[11, 12]);
    know(wire, 13, "bb");
    daemon.wait_for("its new address", |daemon| row(daemon, "a", "b13") == up("bb:13"));
    know(wire, 12, "cc");
    for service in ["a", "b"] {
        daemon.wait_for("its new address", |daemon| row(daemon, service, "b12") == up("cc:12"));
    }
    assert_eq!(row(daemon, "b", "b11"), up("aa:11"));
    // The place of a hop that is gone is taken by another one.
    put_resolved(daemon, B, &[12]);
    put_resolved(daemon, A, &[14, 13, 12]);
    assert_eq!(row(daemon, "a", "b14"), ["", "down"]);
    put_resolved(daemon, A, &[11, 14, 13, 12]);
    assert_eq!(row(daemon, "a", "b11"), up("aa:11"));
    know(wire, 14, "aa");
    daemon.wait_for("the neighbour", |daemon| row(daemon, "a", "b14") == up("aa:14"));
    put_resolved(daemon, B, &[12, 14]);
}
