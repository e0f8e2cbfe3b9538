//! Changes to the back ends of the API's services, which the running program follows in place.

use super::lb_api::service;
use super::lb_control::{controlled, http};
use super::running::Daemon;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// Pseudo-random numbers, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
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

/// The state of a daemon, without counts and in an order that does not depend on earlier changes.
fn state(daemon: &Daemon, address: SocketAddr) -> Value {
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
    let services = http(address, "GET", "/v1/services", "").1;
    json!({ "groups": groups, "back_ends": back_ends, "entries": entries, "rings": daemon.show("rings"),
        "services": services })
}

/// Changes a list of back ends: adds or removes one, changes a weight or an address, or replaces the list.
fn change(numbers: &mut Numbers, back_ends: &mut Vec<Value>) {
    let new = |number: usize, mac: usize| {
        let mac = format!("02:00:00:00:02:{mac:02x}");
        json!({ "name": format!("b{number}"), "mac": mac, "weight": 1 })
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
        }
        _ => *back_ends = (0..numbers.below(14)).map(|one| new(one + 40, one)).collect(),
    }
}

#[test]
fn any_changes_in_place_lead_to_what_a_reload_leads_to() {
    let (daemon, address) = controlled();
    let mut numbers = Numbers(7);
    let named = |at: usize| service(&format!("s{at}"), &format!("10.0.1.{at}"), &[("b0", 1), ("b1", 2)]);
    let mut services: Vec<Value> = (1..6).map(named).collect();
    let all = |services: &[Value]| json!({ "services": services }).to_string();
    assert_eq!(http(address, "PUT", "/v1/services", &all(&services)).0, 200);
    let first = generation(&daemon);
    for step in 0..80 {
        let at = numbers.below(services.len());
        let mut next = services[at].clone();
        let mut back_ends = next["back_ends"].as_array().unwrap().clone();
        change(&mut numbers, &mut back_ends);
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

    let (other, its) = controlled();
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
    let (daemon, address) = controlled();
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
