//! Services and back ends that are added and removed while the daemon runs, and what survives a restart.

use super::folder::Folder;
use super::running::{Daemon, free_address};
use rustix::process::Signal;
use serde_json::{Map, Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

pub const CONFIG: &str = "\
state: state
ports: { p0: { pcap: {} } }
apps:
  - lb:
      name: web
      port: p0
      service: { vip: 10.0.0.80, protocol: tcp, port: 80 }
      size: 251
      back_ends:
        - { name: b1, mac: 02:00:00:00:00:11 }
        - { name: b2, mac: 02:00:00:00:00:12 }
  - lb: { persist: true }
";

fn packets() -> Vec<String> {
    let packet = |at| {
        let port = 4000 + at;
        format!("eth.dst=02:00:00:00:00:fe src=192.0.2.1 dst=10.0.0.80 proto=tcp sport={port} dport=80")
    };
    (0..48).map(packet).collect()
}

fn send(daemon: &Daemon) {
    daemon.receive(&packets().iter().map(String::as_str).collect::<Vec<_>>());
}

fn count(daemon: &Daemon, back_end: &str) -> u64 {
    daemon.count(&format!("lb/web/{back_end}"))
}

/// Back ends of all services, with weight and health.
fn list(daemon: &Daemon) -> Vec<String> {
    let answer = daemon.ask(&json!({ "command": "app", "app": "lb", "request": { "do": "list" } }));
    let services = answer["services"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let of = |service: &Value| {
        let name = service["name"].as_str().unwrap().to_string();
        let row = |one: &Value| {
            format!(
                "{name}/{} {} {}",
                one["name"].as_str().unwrap(),
                one["weight"],
                one["health"].as_str().unwrap()
            )
        };
        service["back_ends"].as_array().unwrap().iter().map(row).collect::<Vec<_>>()
    };
    services.iter().flat_map(of).collect()
}

fn ask(daemon: &Daemon, request: Value) -> Value {
    daemon.ask(&json!({ "command": "app", "app": "lb", "request": request }))
}

fn back_end(name: &str, mac: &str) -> Value {
    json!({ "name": name, "mac": mac, "weight": 1 })
}

#[test]
fn back_ends_and_services_come_and_go_and_no_flow_moves() {
    let mut daemon = Daemon::start(CONFIG);
    send(&daemon);
    let before = [count(&daemon, "b1"), count(&daemon, "b2")];
    assert_eq!(before.iter().sum::<u64>(), 48);
    let said =
        daemon.weir(&["lb", "add", "web", "{ name: b3, mac: 02:00:00:00:00:13, weight: 9 }"]).good().out;
    assert_eq!(said, "b3 was added to web\n");
    // Flows stay where they are, and new ones go to the new back end.
    send(&daemon);
    assert_eq!([count(&daemon, "b1"), count(&daemon, "b2")], before.map(|count| 2 * count));
    assert_eq!(count(&daemon, "b3"), 0);
    daemon.weir(&["lb", "weight", "web", "b2", "3"]).good();
    // A list is carried out as a whole, and in order.
    let all = json!([
        { "do": "add", "service": "web", "back_end": back_end("b4", "02:00:00:00:00:14") },
        { "do": "drain", "service": "web", "back_end": "b4" },
        { "do": "weight", "service": "web", "back_end": "b1", "weight": 7 },
        { "do": "remove", "service": "web", "back_end": "b3" },
        { "do": "add", "service": { "name": "dns", "port": "p0",
            "back_ends": [back_end("d1", "02:00:00:00:00:21")],
            "service": { "vip": "10.0.0.53", "protocol": "udp", "port": 53 } } },
    ]);
    assert_eq!(ask(&daemon, all), json!({ "done": 5 }));
    let now = ["web/b1 7 unchecked", "web/b2 3 unchecked", "web/b4 1 draining", "dns/d1 1 unchecked"];
    assert_eq!(list(&daemon), now);
    send(&daemon);
    assert_eq!([count(&daemon, "b1"), count(&daemon, "b2")], before.map(|count| 3 * count));
    // A reload keeps everything.
    daemon.weir(&["reload"]).good();
    assert_eq!(list(&daemon), now);
    let table = daemon.weir(&["lb", "list"]).good().out;
    assert!(table.starts_with("service  back end") && table.contains("dns      d1"), "{table}");
    // The successor of a killed daemon has the same state, because it finds the saved file.
    let mode =
        || std::os::unix::fs::MetadataExt::mode(&daemon.folder.file("state/weir.json").metadata().unwrap());
    assert_eq!(mode() & 0o777, 0o600);
    daemon.signal(Signal::KILL);
    daemon.end();
    let mut daemon = Daemon::start_in(daemon.into_folder());
    assert_eq!(list(&daemon), now);
    daemon.wait_for_log("restored 2 run-time changes");
    // The file is edited: it takes precedence there.
    let edited = CONFIG.replace("name: b2,", "name: b2, weight: 5,");
    daemon.folder.write("weir.yaml", edited.replace("- lb: { per", "- lb: { flows: 4096, per"));
    daemon.weir(&["reload"]).good();
    assert_eq!(list(&daemon)[1], "web/b2 5 unchecked");
    assert_eq!(daemon.weir(&["lb", "remove-service", "dns"]).good().out, "service dns was removed\n");
    assert_eq!(daemon.weir(&["lb", "reset"]).good().out, "all run-time changes are discarded\n");
    assert_eq!(list(&daemon), ["web/b1 1 unchecked", "web/b2 5 unchecked"]);
    // An unreadable file is set aside.
    daemon.signal(Signal::TERM);
    daemon.end();
    let folder = daemon.into_folder();
    folder.write("state/weir.json", "{ \"version\": 1, \"edits\": 7 }");
    let daemon = Daemon::start_in(folder);
    assert_eq!(list(&daemon).len(), 2);
    daemon.wait_for_log("cannot be used: `edits` is not in weir's format");
    assert!(daemon.folder.file("state/weir.json.refused").exists());
}

/// Returns the weight of b2 of web, as each of four views shows it.
fn weights(daemon: &Daemon, metrics: SocketAddr) -> [u64; 4] {
    let listed = list(daemon).iter().find_map(|row| row.strip_prefix("web/b2 ").map(str::to_string));
    let listed = listed.unwrap().split(' ').next().unwrap().parse().unwrap();
    let group = daemon.show("groups").as_array().unwrap().iter().find(|one| one["name"] == "lb/web").cloned();
    let in_group = group.unwrap()["targets"][1]["weight"].as_u64().unwrap();
    let shown = daemon.show("backends").as_array().unwrap()[1]["weight"].as_u64().unwrap();
    let mut stream = TcpStream::connect(metrics).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    let of = "weir_app_backend_weight{app=\"lb\",service=\"web\",back_end=\"b2\"}";
    let line = metrics.lines().find(|line| line.starts_with(of));
    let metric = line.unwrap_or_else(|| panic!("{metrics}")).rsplit(' ').next().unwrap();
    [listed, in_group, shown, metric.parse::<f64>().unwrap() as u64]
}

#[test]
fn a_weight_is_the_same_by_whichever_way_it_is_set_and_shown() {
    let metrics = free_address();
    let config = format!("metrics: {metrics}\n{CONFIG}");
    let daemon = Daemon::start(&config);
    daemon.weir(&["weight", "lb/web", "b2", "3"]).good();
    assert_eq!(weights(&daemon, metrics), [3; 4]);
    daemon.weir(&["lb", "weight", "web", "b2", "5"]).good();
    assert_eq!(weights(&daemon, metrics), [5; 4]);
    daemon.weir(&["weight", "lb/web", "b9", "5"]).refused(1, &["no back end `b9`"]);
    daemon.weir(&["reload"]).good();
    assert_eq!(weights(&daemon, metrics), [5; 4]);
    assert!(!daemon.log().contains("discarded"), "{}", daemon.log());
    // The file says something else: it takes precedence, and the log says so.
    daemon.folder.write("weir.yaml", config.replace("name: b2,", "name: b2, weight: 7,"));
    daemon.weir(&["reload"]).good();
    assert_eq!(weights(&daemon, metrics), [7; 4]);
    let forgotten = "the weight 5 of b2 of web, set at run time, is discarded: the file now says 7";
    daemon.wait_for_log(forgotten);
}

/// With `slow_start`, the group has ten times the weight, so that it can rise in steps.
#[test]
fn a_weight_that_rises_in_steps_is_shown_as_it_is_written() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = free_address();
    let check =
        format!("check: {{ type: tcp, port: {}, slow_start: 1h }}", server.local_addr().unwrap().port());
    let config = CONFIG.replace("size: 251", &format!("size: 251\n      {check}"));
    let config = config.replace(
        " }\n        - { name: b2,",
        ", address: 127.0.0.1 }\n        - { name: b2, address: 127.0.0.1,",
    );
    let daemon = Daemon::start(&format!("metrics: {metrics}\n{config}"));
    assert_eq!(weights(&daemon, metrics), [1; 4]);
    daemon.weir(&["weight", "lb/web", "b2", "3"]).good();
    assert_eq!(weights(&daemon, metrics), [3; 4]);
}

#[test]
fn a_weight_of_a_group_without_an_app_that_a_reload_discards_is_logged() {
    let config = "ports: { p0: { mem: ~ }, p1: { mem: ~ } }
groups: { web: { fill: wants, size: 4, targets: { b0: p0, b1: p1 } } }
root: hash
pipes: { hash: { type: hash, hash: 5-tuple, group: web, forward: web, miss: drop } }
";
    let daemon = Daemon::start(config);
    daemon.weir(&["weight", "web", "b1", "3"]).good();
    daemon.weir(&["reload"]).good();
    let forgotten = "the weight 3 of web/b1, set at run time, is discarded: the file now says 1";
    daemon.wait_for_log(forgotten);
    assert_eq!(daemon.show("groups")[0]["targets"][1]["weight"], 1);
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_half_applied() {
    let daemon = Daemon::start(&CONFIG.replace("persist: true", "flows: 4096"));
    let before = list(&daemon);
    let add = |more: Value| {
        let mut back_end = back_end("b9", "02:00:00:00:00:19");
        more.as_object().unwrap().iter().for_each(|(key, value)| back_end[key] = value.clone());
        json!({ "do": "add", "service": "web", "back_end": back_end })
    };
    for (request, parts) in [
        (add(json!({ "mac": "x" })), vec!["back end `b9` of service `web`", "field `mac`", "`x`"]),
        (add(json!({ "mca": "x" })), vec!["field `mca`", "there is no key `mca`"]),
        (add(json!({ "weight": 65_536 })), vec!["field `weight`", "65535"]),
        (add(json!({ "mode": "ipip" })), vec!["field `ip`", "`ip` is missing"]),
        (add(json!({ "mode": "l2", "port": 8080 })), vec!["`port` has no effect in `mode: l2`"]),
        (
            json!({ "do": "add", "service": "web", "back_end": { "name": "b9" } }),
            vec!["needs `mac`", "or `ip`"],
        ),
        (
            json!([add(json!({})), { "do": "weight", "service": "web", "back_end": "b9", "weight": 70_000 }]),
            vec!["request 1", "from 0 to 65535"],
        ),
        (
            json!([add(json!({})), { "do": "drain", "service": "web", "back_end": "b8" }]),
            vec!["request 1", "no back end `b8`"],
        ),
        (
            json!({ "do": "add", "service": { "name": "two", "port": "p0",
                "back_ends": [back_end("x", "02:00:00:00:00:01")],
                "service": { "vip": "10.0.0.80", "protocol": "tcp", "port": 80 } } }),
            vec!["has this address"],
        ),
        (json!([{ "do": "list" }]), vec!["cannot be part of a list"]),
        (json!(7), vec!["a request is an object"]),
    ] {
        let answer = ask(&daemon, request.clone());
        let why = answer["error"].as_str().unwrap_or_else(|| panic!("{request}: {answer}"));
        assert!(parts.iter().all(|part| why.contains(part)), "{request}: {why}");
        assert_eq!(list(&daemon), before, "{request}");
    }
}

#[test]
fn the_last_service_may_go_and_another_come() {
    let daemon = Daemon::start(CONFIG);
    daemon.weir(&["lb", "add", "web", "{ name: b9, mac"]).refused(1, &["not YAML"]);
    daemon.weir(&["lb", "add", "web", "b9"]).refused(1, &["expected a mapping"]);
    daemon.weir(&["lb", "remove", "api", "b9"]).refused(1, &["there is no service `api`"]);
    daemon.weir(&["lb", "remove-service", "web"]).good();
    assert_eq!(list(&daemon), Vec::<String>::new());
    let web = "{ name: api, port: p0, service: { vip: 10.0.0.81, protocol: tcp, port: 80 }, \
        back_ends: [{ name: a1, mac: 02:00:00:00:00:31 }] }";
    assert_eq!(daemon.weir(&["lb", "add-service", web]).good().out, "service api was added\n");
    assert_eq!(list(&daemon), ["api/a1 1 unchecked"]);
}

/// With or without `persist`.
#[test]
fn a_successor_goes_on_with_what_was_changed() {
    let Some(wire) = super::nat::wire("lbc") else { return };
    let folder = Folder::new();
    let config = CONFIG.replace("ports: { p0: { pcap: {} } }", "workers: 2\nports: { p0: { xdp: w0 } }");
    folder.write("weir.yaml", config.replace("persist: true", "flows: 4096"));
    let mut daemon = Daemon::start_in_namespace(folder, &wire.weir);
    daemon.weir(&["lb", "add", "web", "{ name: b3, mac: 02:00:00:00:00:13 }"]).good();
    daemon.weir(&["lb", "remove", "web", "b1"]).good();
    daemon.weir(&["lb", "drain", "web", "b3"]).good();
    daemon.weir(&["lb", "weight", "web", "b2", "4"]).good();
    let now = ["web/b2 4 unchecked", "web/b3 1 draining"];
    assert_eq!(list(&daemon), now);
    assert!(daemon.succeed_in_namespace(&wire.weir).success(), "{}", daemon.log());
    assert_eq!(list(&daemon), now);
    assert!(!daemon.folder.file("state").exists());
}

pub const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A folder with a token, and an address without a listener.
pub fn with_token() -> (Folder, SocketAddr) {
    let folder = Folder::new();
    folder.write("token", TOKEN);
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(folder.file("token"), private).unwrap();
    (folder, free_address())
}

/// A daemon with control over HTTP, and its address.
pub fn controlled() -> (Daemon, SocketAddr) {
    let (folder, address) = with_token();
    folder.write("weir.yaml", format!("control: {{ listen: \"{address}\", token: token }}\n{CONFIG}"));
    (Daemon::start_in(folder), address)
}

/// Sends a request with the token. Returns the status and the body.
pub fn http(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, Value) {
    http_as(&format!("Bearer {TOKEN}"), address, (method, path), body)
}

/// Sends a head with the token, and nothing else, not even the body that it may announce. Returns the answer.
pub fn raw(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    // The end of the stream ends a request whose answer is still due, so it is only sent for a body that is
    // cut off.
    let is_whole = !head.contains("Content-Length") || head.contains("Content-Length: 0\r\n");
    let head = format!("{head}Host: w\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    if !is_whole {
        stream.shutdown(std::net::Shutdown::Write).unwrap();
    }
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// Sends a request with this `Authorization`. Returns the status and the body.
pub fn http_as(who: &str, address: SocketAddr, (method, path): (&str, &str), body: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: w\r\nAuthorization: {who}\r\nContent-Length: {length}\r\n"
    );
    // An excessive length is enough for a refusal.
    let body = if length > 1 << 20 { "" } else { body };
    let _ = stream.write_all(format!("{head}\r\n{body}").as_bytes());
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    let status = text.get(9..12).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("{method} {path}: `{text}`"));
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{method} {path}: {error}: {text}")))
}

/// Requests that are refused; nothing changes.
fn refuses(daemon: &Daemon, address: SocketAddr, (back_ends, b3): (&str, &str)) {
    let before = list(daemon);
    let large = "x".repeat(1 << 21);
    for (method, path, body, status, part) in [
        ("POST", back_ends, "{\"name\": ", 400, "the body is not JSON"),
        ("POST", back_ends, "7", 400, "the body is an object"),
        ("POST", back_ends, r#"{"name": "b4", "mac": "x"}"#, 400, "field `mac`"),
        ("POST", back_ends, r#"{"name": "b4", "mac": "02:00:00:00:00:14", "x": 1}"#, 400, "field `x`"),
        ("POST", back_ends, r#"{"name": "b1", "mac": "02:00:00:00:00:14"}"#, 400, "already"),
        ("POST", back_ends, &large, 413, "1 MiB"),
        ("PATCH", b3, r#"{"weight": -1}"#, 400, "a weight is a number"),
        ("PATCH", b3, r#"{"weight": 2, "wait": 1}"#, 400, "no field `wait`"),
        (
            "POST",
            "/v1/changes",
            r#"[{"do": "remove", "service": "web", "back_end": "b3"}, {"do": "fly"}]"#,
            400,
            "request 1",
        ),
        (
            "POST",
            "/v1/pools/p/back_ends",
            r#"{"name": "b4", "mac": "02:00:00:00:00:14"}"#,
            404,
            "no pool `p`",
        ),
        ("GET", "/v1/services/api", "", 404, "no such service"),
        ("DELETE", "/v1/services/web/back_ends/b9", "", 404, "has no back end `b9`"),
        ("GET", "/v1/other", "", 404, "unknown path"),
        ("PATCH", "/v1/services", "", 405, "does not support this method"),
        ("POST", "/v1/node", "{}", 405, "does not support this method"),
        ("DELETE", "/v1/watch", "", 405, "does not support this method"),
    ] {
        let (said, answer) = http(address, method, path, body);
        let why = answer["error"].as_str().unwrap_or_default();
        assert!(said == status && why.contains(part), "{method} {path}: {said} {answer}");
        assert_eq!(list(daemon), before, "{method} {path} {answer}");
    }
}

#[test]
fn control_over_http_is_for_those_with_the_token() {
    let (daemon, address) = controlled();
    // Connections that send nothing, or stop in the middle, delay no others.
    let _silent = TcpStream::connect(address).unwrap();
    let mut cut = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /v1/services HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 50\r\n\r\n{{"
    );
    cut.write_all(head.as_bytes()).unwrap();
    let back_ends = "/v1/services/web/back_ends";
    let (status, answer) = http(address, "POST", back_ends, r#"{"name": "b3", "mac": "02:00:00:00:00:13"}"#);
    assert_eq!((status, answer), (201, json!({ "done": 1 })));
    let b3 = "/v1/services/web/back_ends/b3";
    assert_eq!(http(address, "GET", b3, "").1["weight"], json!(1));
    assert_eq!(
        http(address, "PATCH", b3, r#"{"weight": 4, "state": "draining"}"#),
        (200, json!({ "done": 2 }))
    );
    assert_eq!(list(&daemon)[2], "web/b3 4 draining");
    refuses(&daemon, address, (back_ends, b3));
    assert_eq!(http(address, "DELETE", b3, ""), (200, json!({ "done": 1 })));
    let whole = r#"[{"do": "drain", "service": "web", "back_end": "b1"},
        {"do": "weight", "service": "web", "back_end": "b2", "weight": 3}]"#;
    assert_eq!(http(address, "POST", "/v1/changes", whole), (200, json!({ "done": 2 })));
    assert_eq!(http(address, "DELETE", "/v1/changes", "").0, 200);
    assert_eq!(list(&daemon), ["web/b1 1 unchecked", "web/b2 1 unchecked"]);
    // Nothing is allowed without the token, and clients without it are throttled; a client with the token is
    // not.
    let wrong = || http_as("Bearer 0123", address, ("GET", "/v1/services"), "").0;
    assert_eq!(wrong(), 401);
    // More than ten in a second, which 40 in sequence may not be on a busy machine.
    let many = || -> Vec<u16> {
        std::thread::scope(|scope| {
            let asking: Vec<_> = (0..40).map(|_| scope.spawn(wrong)).collect();
            asking.into_iter().map(|one| one.join().unwrap()).collect()
        })
    };
    assert!((0..3).any(|_| many().contains(&429)), "no client is throttled");
    assert_eq!(http(address, "GET", "/v1/services", "").0, 200);
    let refused = daemon.metrics().lines().find_map(|line| {
        line.strip_prefix("weir_control_refused_total ").and_then(|count| count.parse::<u64>().ok())
    });
    assert!(refused.is_some_and(|count| count >= 41), "{refused:?}");
}

/// A schema that allows no fields which it does not name.
fn strict(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let mut fields: Map<String, Value> =
                fields.iter().map(|(name, value)| (name.clone(), strict(value))).collect();
            if fields.contains_key("properties") {
                fields.insert("additionalProperties".to_string(), json!(false));
            }
            Value::Object(fields)
        }
        Value::Array(items) => items.iter().map(strict).collect(),
        other => other.clone(),
    }
}

/// Returns a body for a schema, given the service of the file, another one, and a set of services.
fn body_of<'a>(method: &str, schema: Option<&str>, [own, service, set]: [&'a str; 3]) -> &'a str {
    match schema {
        None => "",
        Some("Service") if method == "put" => own,
        Some("Service") => service,
        Some("ServiceSet") => set,
        Some("BackEnd") => r#"{"name": "b7", "mac": "02:00:00:00:00:17"}"#,
        Some("Patch") => r#"{"state": "draining"}"#,
        Some("NameSet") => r#"{"names": [{"address": "192.0.2.1", "name": "client", "kind": "other"}]}"#,
        Some(_) => r#"[{"do": "drain", "service": "web", "back_end": "b1"}]"#,
    }
}

/// Every path answers as described, even without the token.
#[test]
fn the_description_is_true() {
    let (_daemon, address) = controlled();
    let (status, description) = http_as("Bearer x", address, ("GET", "/openapi.json"), "");
    assert_eq!((status, &description["openapi"]), (200, &json!("3.1.0")));
    let service = r#"{"name": "api", "port": "p0",
        "service": {"vip": "10.0.0.81", "protocol": "tcp", "port": 80}, 
        "back_ends": [{"name": "a1", "mac": "02:00:00:00:00:31"}]}"#;
    let schemas = &description["components"]["schemas"];
    let validator = jsonschema::draft202012::new(&schemas["Service"]).expect("a schema");
    assert!(validator.is_valid(&serde_json::from_str(service).unwrap()));
    let set = format!(r#"{{"services": [{service}]}}"#);
    let mut asked = 0;
    let mut paths: Vec<_> = description["paths"].as_object().unwrap().iter().collect();
    paths.sort_by(|one, two| two.0.cmp(one.0));
    // In this order, everything exists at the moment when it is removed.
    for method in ["post", "put", "get", "patch", "delete"] {
        for (path, operations) in &paths {
            let is_other = ["/openapi.json", "/v1/live", "/v1/watch"].contains(&path.as_str());
            let Some(operation) = operations.get(method).filter(|_| !is_other) else {
                continue;
            };
            // A service that belongs to the file may only be set to what it is.
            let own = http(address, "GET", "/v1/services/web", "").1.to_string();
            let schema = operation["requestBody"].pointer("/content/application~1json/schema/$ref");
            let schema = schema.map(|schema| schema.as_str().unwrap().rsplit('/').next().unwrap());
            let body = body_of(method, schema, [&own, service, &set]);
            let real = path.replace("{service}", "web").replace("{back_end}", "b7").replace("{pool}", "none");
            let mut real = real.replace("{measurement}", "none").replace("{start_ns}", "0");
            if real == "/v1/explain" {
                real += "?packet=src%3D192.0.2.1";
            }
            let (status, answer) = http(address, &method.to_uppercase(), &real, body);
            let described = &operation["responses"][status.to_string()];
            let schema = described.pointer("/content/application~1json/schema/$ref");
            let schema = schema.and_then(Value::as_str).and_then(|name| description.pointer(&name[1..]));
            let validator = jsonschema::draft202012::new(&strict(schema.expect("it is described")));
            assert!(validator.unwrap().is_valid(&answer), "{method} {real}: {status} {answer}");
            let adds = method == "post" && real != "/v1/changes";
            let wanted = match (real.contains("/none"), adds) {
                (true, _) => 404,
                (false, true) => 201,
                (false, false) => 200,
            };
            assert_eq!(status, wanted, "{method} {real}: {answer}");
            let unknown =
                http_as("Bearer x", address, (method.to_uppercase().as_str(), real.as_str()), body).0;
            assert!([401, 429].contains(&unknown), "{method} {real}: {unknown}");
            asked += 1;
        }
    }
    assert_eq!(asked, 26);
}

/// Makes a certificate for 127.0.0.1, cert.pem, and its key. Returns false without openssl.
#[cfg(feature = "tls")]
pub fn certificate(folder: &Folder) -> bool {
    let request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem"];
    let names = ["-subj", "/CN=weir", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1"];
    // By default it would be the certificate of an authority, which rustls does not accept from a server.
    let names = [&names[..], &["-addext", "basicConstraints=critical,CA:FALSE"]].concat();
    let mut command = std::process::Command::new("openssl");
    let Ok(made) = command.args(request).args(names).current_dir(folder.path()).output() else {
        assert!(std::env::var_os("CI").is_none(), "CI has openssl");
        eprintln!("skipped: openssl is not installed");
        return false;
    };
    assert!(made.status.success(), "{made:?}");
    true
}

/// Over TLS, with `openssl s_client` as the client, which verifies the certificate; anything but a handshake
/// gets nothing.
#[cfg(feature = "tls")]
#[test]
fn control_over_tls() {
    use std::process::{Command, Stdio};
    let (folder, address) = with_token();
    if !certificate(&folder) {
        return;
    }
    let tls = "tls: { certificate: cert.pem, key: key.pem }";
    folder.write("weir.yaml", format!("control: {{ listen: \"{address}\", token: token, {tls} }}\n{CONFIG}"));
    let daemon = Daemon::start_in(folder);
    let ask = |token: &str, version: &str| {
        let server = address.to_string();
        let verified = ["-CAfile", "cert.pem", "-verify_ip", "127.0.0.1", "-verify_return_error"];
        let client = ["s_client", "-connect", &server, version, "-quiet", "-ign_eof"];
        let mut command = Command::new("openssl");
        command.args(client).args(verified).current_dir(daemon.folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut client = command.spawn().unwrap();
        let head = "POST /v1/services/web/back_ends HTTP/1.1\r\nHost: w\r\nConnection: close\r\n";
        let name = &version[4..];
        let body = format!("{{\"name\": \"{name}\", \"mac\": \"02:00:00:00:00:19\"}}");
        let rest = format!("Authorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        client.stdin.take().unwrap().write_all(format!("{head}{rest}").as_bytes()).unwrap();
        let output = client.wait_with_output().unwrap();
        assert!(output.status.success(), "{version}: {output:?}");
        String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_string()
    };
    assert!(ask(&TOKEN.replace('0', "x"), "-tls1_3").contains(" 401 "));
    assert!(ask(TOKEN, "-tls1_3").contains(" 201 "));
    assert!(ask(TOKEN, "-tls1_2").contains(" 201 "));
    let now = list(&daemon);
    assert!(
        ["web/1_3 1", "web/1_2 1"].iter().all(|one| now.iter().any(|has| has.starts_with(one))),
        "{now:?}"
    );
    let mut plain = TcpStream::connect(address).unwrap();
    plain.write_all(b"GET /openapi.json HTTP/1.1\r\nHost: w\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
}

/// The saved state is on a full disk.
#[test]
fn a_change_that_a_restart_would_forget_fails() {
    let folder = Folder::new();
    folder.write("weir.yaml", CONFIG);
    std::fs::create_dir(folder.file("state")).unwrap();
    std::os::unix::fs::symlink("/dev/full", folder.file("state/weir.json")).unwrap();
    let daemon = Daemon::start_in(folder);
    for _ in 0..2 {
        let words = ["the change is in effect but will not survive a restart", "No space left on device"];
        daemon.weir(&["lb", "drain", "web", "b1"]).refused(1, &words);
    }
    assert_eq!(list(&daemon)[0], "web/b1 1 draining");
    assert!(daemon.folder.file("state/weir.json").is_symlink());
}

#[test]
fn a_token_that_others_can_read_is_refused() {
    let folder = Folder::new();
    folder.write("weir.yaml", format!("control: {{ listen: 127.0.0.1:0, token: token }}\n{CONFIG}"));
    let run = || super::weir(folder.path(), &["run", "weir.yaml", "--socket", "weir.sock"]);
    run().refused(1, &["token", "cannot be used"]);
    folder.write("token", TOKEN);
    let mode = |mode| {
        std::fs::set_permissions(folder.file("token"), std::os::unix::fs::PermissionsExt::from_mode(mode))
    };
    mode(0o644).unwrap();
    run().refused(1, &["chmod 600"]);
    super::weir(folder.path(), &["check", "weir.yaml"]).refused(2, &["the token token", "chmod 600"]);
    mode(0o600).unwrap();
    // The same applies to the read-only token.
    folder.write("view", TOKEN.replace('0', "1"));
    std::fs::set_permissions(folder.file("view"), std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .unwrap();
    let control = "control: { listen: 127.0.0.1:0, token: token, view_token: view }";
    folder.write("viewed.yaml", format!("{control}\n{CONFIG}"));
    let viewed = |command: &[&str]| super::weir(folder.path(), command);
    viewed(&["run", "viewed.yaml", "--socket", "weir.sock"]).refused(1, &["view", "chmod 600"]);
    viewed(&["check", "viewed.yaml"]).refused(2, &["the read-only token view", "chmod 600"]);
    folder.write("token", "short");
    run().refused(1, &["32 to 4096"]);
    folder.write("weir.yaml", format!("control: {{ listen: 10.0.0.1:9106, token: token }}\n{CONFIG}"));
    let said = super::weir(folder.path(), &["check", "weir.yaml"]);
    assert!(said.code == Some(2) && said.err.contains("10.0.0.1 is not a loopback address"), "{}", said.err);
}
