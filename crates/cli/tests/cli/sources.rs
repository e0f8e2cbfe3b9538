//! Sources of services: a file of Kubernetes objects, and DNS.

use super::folder::Folder;
use super::running::Daemon;
use super::weir;
use serde_json::{Value, json};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A configuration with a service in the file, and a source.
fn config(source: &str) -> String {
    format!(
        "state: state
ports: {{ p0: {{ pcap: {{}} }} }}
apps:
  - lb:
      name: own
      port: p0
      service: {{ vip: 10.0.0.80, protocol: tcp, port: 80 }}
      back_ends: [{{ name: b1, mac: 02:00:00:00:00:11 }}]
  - lb: {{ port: p0, fail: reject, {source} }}
"
    )
}

const FILE: &str = "name: k, from: { kubernetes: state.json, each: { mac: 02:00:00:00:00:12 } }";

/// Services with one port and one endpoint each.
fn objects(count: usize, endpoint: &str) -> String {
    let address = |at: usize| format!("10.9.{}.{}", at / 250, at % 250 + 1);
    let service = |at| {
        json!({ "metadata": { "name": format!("s{at}") },
            "spec": { "clusterIP": address(at), "ports": [{ "port": 80 }] } })
    };
    let slice = |at| {
        json!({ "metadata": { "labels": { "kubernetes.io/service-name": format!("s{at}") } },
            "addressType": "IPv4", "ports": [{ "port": 80 }], "endpoints": [{ "addresses": [endpoint] }] })
    };
    let services: Vec<Value> = (0..count).map(service).collect();
    let endpoints: Vec<Value> = (0..count).map(slice).collect();
    json!({ "services": services, "endpoints": endpoints }).to_string()
}

/// Replaces a file as a whole.
fn replace(daemon: &Daemon, name: &str, text: &str) {
    daemon.folder.write("new", text);
    std::fs::rename(daemon.folder.file("new"), daemon.folder.file(name)).unwrap();
}

fn back_ends(daemon: &Daemon) -> Vec<String> {
    let table = daemon.show("backends");
    let row = |row: &Value| format!("{}/{}", row["service"].as_str().unwrap(), row["name"].as_str().unwrap());
    table.as_array().unwrap().iter().map(row).collect()
}

/// Waits until the back ends after that of the file's own service are these.
fn has(daemon: &mut Daemon, expected: &[&str]) {
    let expected: Vec<String> = expected.iter().map(|one| (*one).to_string()).collect();
    daemon.wait_for(&format!("{expected:?}"), |daemon| back_ends(daemon)[1..] == expected);
}

fn source(daemon: &Daemon) -> Value {
    daemon.show("sources")[0].clone()
}

#[test]
fn a_file_of_kubernetes_objects_is_followed_and_what_is_wrong_changes_nothing() {
    let folder = Folder::new();
    folder.write("weir.yaml", config(FILE));
    folder.write("state.json", objects(2, "10.1.0.1"));
    let mut daemon = Daemon::start_in(folder);
    let two = ["default.s0.80-tcp/10.1.0.1_80", "default.s1.80-tcp/10.1.0.1_80"];
    has(&mut daemon, &two);
    let row = source(&daemon);
    assert_eq!((&row["name"], &row["state"], &row["services"]), (&json!("k"), &json!("ok"), &json!(2)));
    daemon.wait_for_log("2 services added");
    // An endpoint is replaced, and a service removed.
    replace(&daemon, "state.json", &objects(1, "10.1.0.2"));
    has(&mut daemon, &["default.s0.80-tcp/10.1.0.2_80"]);
    // Garbage and a removed file change nothing.
    replace(&daemon, "state.json", "{\"services\": [");
    daemon.wait_for("a failure", |daemon| source(daemon)["state"] == "failing");
    assert!(source(&daemon)["reason"].as_str().unwrap().contains("this is not JSON"));
    let doctor = daemon.weir(&["doctor", "weir.yaml"]).out;
    assert!(doctor.contains("state.json is failing: this is not JSON"), "{doctor}");
    has(&mut daemon, &["default.s0.80-tcp/10.1.0.2_80"]);
    std::fs::remove_file(daemon.folder.file("state.json")).unwrap();
    daemon.wait_for("it is gone", |daemon| {
        source(daemon)["reason"].as_str().unwrap_or_default().contains("No such file")
    });
    has(&mut daemon, &["default.s0.80-tcp/10.1.0.2_80"]);
    // A conflict with the file is refused, and both are named.
    replace(&daemon, "state.json", &objects(2, "10.1.0.1").replace("10.9.0.1", "10.0.0.80"));
    daemon.wait_for("a refusal", |daemon| source(daemon)["state"] == "refused");
    let reason = source(&daemon)["reason"].as_str().unwrap().to_string();
    assert!(reason.contains("default.s0.80-tcp") && reason.contains("weir.yaml:5"), "{reason}");
    daemon.wait_for_log("is refused: ");
    has(&mut daemon, &["default.s0.80-tcp/10.1.0.2_80"]);
    // A reload keeps the services; without the source, they go.
    replace(&daemon, "state.json", &objects(2, "10.1.0.1"));
    has(&mut daemon, &two);
    daemon.weir(&["reload"]).good();
    has(&mut daemon, &two);
    daemon.folder.write("weir.yaml", config(FILE).lines().take(8).collect::<Vec<_>>().join("\n"));
    daemon.weir(&["reload"]).good();
    has(&mut daemon, &[]);
}

#[test]
fn a_file_with_a_thousand_services_follows_a_change() {
    let folder = Folder::new();
    folder.write("weir.yaml", config(FILE));
    folder.write("state.json", objects(1000, "10.1.0.1"));
    let mut daemon = Daemon::start_in(folder);
    let all = |daemon: &Daemon, endpoint: &str| {
        let listed = back_ends(daemon);
        listed.len() == 1001 && listed[1..].iter().all(|row| row.ends_with(&format!("/{endpoint}_80")))
    };
    daemon.wait_for("all services", |daemon| all(daemon, "10.1.0.1"));
    for endpoint in ["10.1.0.2", "10.1.0.3", "10.1.0.4"] {
        replace(&daemon, "state.json", &objects(1000, endpoint));
        let begun = Instant::now();
        daemon.wait_for(endpoint, |daemon| all(daemon, endpoint));
        let took = begun.elapsed();
        eprintln!("1000 services followed a change after {took:?}");
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}

#[test]
fn mistakes_in_a_source_are_found_by_check() {
    let folder = Folder::new();
    for (source, said) in [
        ("name: k, from: {}", "a source is one of `kubernetes` and `dns`"),
        ("from: { kubernetes: f }", "`name` is missing"),
        ("name: k, from: { kubernetes: f, min_ttl: 1s }", "`min_ttl` is of a source with `dns`"),
        ("name: k, from: { kubernetes: f, each: { mode: nta } }", "nta"),
        ("name: k, from: { kubernetes: f, each: { weight: 3 } }", "the source says this of each back end"),
        ("name: k, from: { kubernetes: f }, scheduler: x", "scheduler"),
        ("name: k, from: { dns: a b }, service: { vip: 10.0.0.1, protocol: tcp, port: 1 }", "no name in DNS"),
        ("name: k, from: { dns: a.test }", "`service` is missing"),
        ("name: k, from: { kubernetes: f }, back_ends: []", "the source says `back_ends`"),
    ] {
        folder.write("weir.yaml", config(source));
        let checked = weir(folder.path(), &["check", "weir.yaml"]);
        assert!(checked.code == Some(2) && checked.err.contains(said), "{source}: {}", checked.err);
        assert!(checked.err.contains("weir.yaml:9:"), "{source}: {}", checked.err);
    }
}

/// How the server of a test answers.
#[derive(Clone)]
enum Replies {
    /// With these records: owner (empty: the question's name), type, TTL, data.
    Records(Vec<(&'static str, u16, u32, Vec<u8>)>),
    /// With this code, such as 2 (SERVFAIL) or 3 (NXDOMAIN).
    Code(u8),
    /// With nothing.
    Silence,
    /// With bytes that are no message.
    Garbage,
}

/// A DNS server that says what a test wants.
struct LyingServer {
    address: std::net::SocketAddr,
    answers: Arc<Mutex<Replies>>,
    asked: Arc<AtomicUsize>,
}

fn wire_name(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(label.len() as u8);
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes
}

impl LyingServer {
    fn start(answers: Replies) -> LyingServer {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let (answers, asked) = (Arc::new(Mutex::new(answers)), Arc::new(AtomicUsize::new(0)));
        let (now, count) = (answers.clone(), asked.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                count.fetch_add(1, Ordering::Relaxed);
                let answers = now.lock().unwrap().clone();
                if let Some(answer) = answer(&buffer[..length], &answers) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        LyingServer { address, answers, asked }
    }

    fn says(&self, answers: Replies) {
        *self.answers.lock().unwrap() = answers;
    }
}

fn answer(question: &[u8], answers: &Replies) -> Option<Vec<u8>> {
    let end = 12 + question[12..].iter().position(|byte| *byte == 0)? + 1;
    let kind = u16::from_be_bytes([*question.get(end)?, *question.get(end + 1)?]);
    let (code, records) = match answers {
        Replies::Records(records) => (0, records.clone()),
        Replies::Code(code) => (*code, Vec::new()),
        Replies::Silence => return None,
        Replies::Garbage => return Some(vec![0xff; 40]),
    };
    let records: Vec<_> = records.into_iter().filter(|(_, of, ..)| *of == kind || *of == 5).collect();
    let mut message = question[..2].to_vec();
    message.extend([0x85, 0x80 | code, 0, 1, (records.len() >> 8) as u8, records.len() as u8, 0, 0, 0, 0]);
    message.extend(&question[12..end + 4]);
    for (owner, kind, ttl, data) in records {
        match owner {
            "" => message.extend([0xc0, 12]),
            owner => message.extend(wire_name(owner)),
        }
        message.extend(kind.to_be_bytes());
        message.extend([0, 1]);
        message.extend(ttl.to_be_bytes());
        message.extend((data.len() as u16).to_be_bytes());
        message.extend(data);
    }
    Some(message)
}

fn a(address: [u8; 4], ttl: u32) -> (&'static str, u16, u32, Vec<u8>) {
    ("", 1, ttl, address.to_vec())
}

fn dns(server: &LyingServer, more: &str) -> String {
    config(&format!(
        "name: web, service: {{ vip: 10.0.0.90, protocol: udp, port: 53 }}, from: {{ dns: web.example.com, \
         servers: [\"{}\"], min_ttl: 100ms, timeout: 300ms, each: {{ mac: 02:00:00:00:00:12 }}{more} }}",
        server.address
    ))
}

#[test]
fn addresses_in_dns_are_followed_and_a_server_that_fails_or_lies_changes_nothing() {
    let server = LyingServer::start(Replies::Records(vec![a([10, 1, 0, 1], 0), a([10, 1, 0, 2], 0)]));
    let folder = Folder::new();
    folder.write("weir.yaml", dns(&server, ""));
    let mut daemon = Daemon::start_in(folder);
    has(&mut daemon, &["web/10.1.0.1", "web/10.1.0.2"]);
    let many = (0..3000_u16).map(|at| a([10, 2, (at >> 8) as u8, at as u8], 0)).collect();
    let other = vec![("evil.test", 1, 0, vec![10, 6, 6, 6])];
    let looping = vec![("", 5, 0, wire_name("web.example.com"))];
    let local = vec![a([127, 0, 0, 1], 0), a([0, 0, 0, 0], 0), a([224, 0, 0, 1], 0)];
    for answers in [
        Replies::Code(2),
        Replies::Code(3),
        Replies::Records(Vec::new()),
        Replies::Silence,
        Replies::Garbage,
        Replies::Records(many),
        Replies::Records(other),
        Replies::Records(looping),
        Replies::Records(local),
    ] {
        server.says(Replies::Records(vec![a([10, 1, 0, 1], 0), a([10, 1, 0, 2], 0)]));
        daemon.wait_for("it is well", |daemon| source(daemon)["state"] == "ok");
        server.says(answers);
        daemon.wait_for("a failure", |daemon| source(daemon)["state"] == "failing");
        assert!(!source(&daemon)["reason"].as_str().unwrap().is_empty());
        has(&mut daemon, &["web/10.1.0.1", "web/10.1.0.2"]);
    }
    let line = "source web (web.example.com.) cannot be read: ";
    daemon.wait_for_log(line);
    server.says(Replies::Records(vec![a([10, 1, 0, 3], 0)]));
    has(&mut daemon, &["web/10.1.0.3"]);
    // TTL 0 does not make it ask without a pause.
    let (begun, before) = (Instant::now(), server.asked.load(Ordering::Relaxed));
    std::thread::sleep(Duration::from_secs(1));
    let asked = server.asked.load(Ordering::Relaxed) - before;
    let most = (24.0 * begun.elapsed().as_secs_f64()).ceil() as usize;
    assert!(asked <= most, "{asked} questions in {:?}", begun.elapsed());
    daemon.wait_for("another question", |_| server.asked.load(Ordering::Relaxed) > before);
}

#[test]
fn a_ttl_is_obeyed_within_limits() {
    let [kept, absurd] =
        [2, u32::MAX].map(|ttl| LyingServer::start(Replies::Records(vec![a([10, 1, 0, 1], ttl)])));
    let folder = Folder::new();
    // A question that is asked again, because the answer took too long, would count as a later one.
    let dns = |server: &LyingServer| dns(server, "").replace("timeout: 300ms", "timeout: 20s");
    let other = dns(&absurd).lines().last().unwrap().replace("name: web", "name: far");
    let other = other.replace("10.0.0.90", "10.0.0.91").replace("min_ttl", "max_ttl: 300ms, min_ttl");
    folder.write("weir.yaml", format!("{}{other}\n", dns(&kept)));
    // Before the first question, so that a stall does not shorten the time.
    let begun = Instant::now();
    let mut daemon = Daemon::start_in(folder);
    has(&mut daemon, &["far/10.1.0.1", "web/10.1.0.1"]);
    let first = kept.asked.load(Ordering::Relaxed);
    daemon.wait_for("three more questions", |_| kept.asked.load(Ordering::Relaxed) >= first + 3);
    // Up to a tenth of the time earlier.
    assert!(begun.elapsed() > 3 * Duration::from_millis(1800), "{:?}", begun.elapsed());
    // A longer TTL than `max_ttl` does not count.
    daemon.wait_for("more questions", |_| absurd.asked.load(Ordering::Relaxed) >= 5);
}

#[test]
fn an_empty_answer_removes_all_back_ends_only_if_configured() {
    let server = LyingServer::start(Replies::Records(vec![a([10, 1, 0, 1], 0)]));
    let folder = Folder::new();
    folder.write("weir.yaml", dns(&server, ", empty_after: 3"));
    let mut daemon = Daemon::start_in(folder);
    daemon.wait_for("a back end", |daemon| back_ends(daemon).len() == 2);
    server.says(Replies::Code(3));
    daemon.wait_for("no back end", |daemon| back_ends(daemon).len() == 1);
    assert!(source(&daemon)["errors"].as_u64().unwrap() >= 2);
    server.says(Replies::Records(vec![a([10, 1, 0, 4], 0)]));
    daemon.wait_for("a back end", |daemon| back_ends(daemon).len() == 2);
}

/// Three sources, of which the second wants the address of the first. The others are in use.
#[test]
fn a_source_that_is_refused_keeps_no_other_from_being_used() {
    let server = LyingServer::start(Replies::Records(vec![a([10, 1, 0, 1], 0)]));
    let folder = Folder::new();
    let mut text = config("persist: true").replace("port: p0, fail: reject, persist", "persist");
    for (name, vip) in [("a", "10.9.0.1"), ("b", "10.9.0.1"), ("c", "10.9.0.3")] {
        text += &format!(
            "  - lb: {{ name: {name}, port: p0, service: {{ vip: {vip}, protocol: udp, port: 53 }}, from: {{ \
             dns: {name}.example.com, servers: [\"{}\"], min_ttl: 100ms, each: {{ mac: 02:00:00:00:00:12 }} \
             }} }}\n",
            server.address
        );
    }
    folder.write("weir.yaml", text);
    let mut daemon = Daemon::start_in(folder);
    has(&mut daemon, &["a/10.1.0.1", "c/10.1.0.1"]);
    daemon.wait_for("a refusal", |daemon| daemon.show("sources")[1]["state"] == "refused");
    let rows = daemon.show("sources");
    assert_eq!([&rows[0]["state"], &rows[2]["state"]], ["ok", "ok"], "{rows}");
    let reason = rows[1]["reason"].as_str().unwrap();
    assert!(reason.contains("`b` (of source `dns:b`") && reason.contains("source `dns:a`"), "{reason}");
    // A change of the others goes through.
    server.says(Replies::Records(vec![a([10, 1, 0, 2], 0)]));
    has(&mut daemon, &["a/10.1.0.2", "c/10.1.0.2"]);
    daemon.wait_for_log("source b (b.example.com.) is ref");
}

#[test]
fn srv_records_say_port_weight_and_priority() {
    let srv = |priority: u16, weight: u16, port: u16, target: &str| {
        let mut data = [priority, weight, port].iter().flat_map(|one| one.to_be_bytes()).collect::<Vec<u8>>();
        data.extend(wire_name(target));
        ("", 33, 0, data)
    };
    let records = vec![
        srv(10, 30, 8080, "one.example.com"),
        srv(10, 0, 8081, "two.example.com"),
        srv(20, 9, 8082, "later.example.com"),
        a([10, 1, 0, 1], 0),
    ];
    let server = LyingServer::start(Replies::Records(records));
    let folder = Folder::new();
    folder
        .write("weir.yaml", dns(&server, ", records: srv").replace("each: { mac", "each: { mode: nat, mac"));
    let mut daemon = Daemon::start_in(folder);
    let weighs = |daemon: &mut Daemon, expected: [u64; 3]| {
        daemon.wait_for(&format!("{expected:?}"), |daemon| {
            let table = daemon.show("backends");
            let rows = &table.as_array().unwrap()[1..];
            rows.iter().map(|row| row["weight"].as_u64().unwrap()).eq(expected)
        });
    };
    weighs(&mut daemon, [30, 1, 0]);
    let table = daemon.show("backends");
    let row = |at: usize| format!("{} {}", table[at]["name"], table[at]["address"]);
    assert_eq!(row(1), "\"10.1.0.1_8080\" \"10.1.0.1:8080\"");
    assert_eq!(row(2), "\"10.1.0.1_8081\" \"10.1.0.1:8081\"");
    // The next priority is used only while nothing of the lowest serves.
    daemon.weir(&["lb", "drain", "web", "10.1.0.1_8081"]).good();
    daemon.weir(&["lb", "drain", "web", "10.1.0.1_8080"]).good();
    weighs(&mut daemon, [0, 0, 9]);
    let why = "no server of priority 10 serves, so those of priority 20 are used";
    assert!(source(&daemon)["reason"].as_str().unwrap().contains(why), "{}", source(&daemon));
    daemon.wait_for_log(&format!("source dns:web: {why}"));
    daemon.weir(&["lb", "enable", "web", "10.1.0.1_8081"]).good();
    weighs(&mut daemon, [30, 1, 0]);
    daemon.wait_for("a line of the log", |daemon| {
        daemon.log().contains("source dns:web: servers of priority 10 serve again")
    });
    // DNS says that there is no such service, which is no failure.
    server.says(Replies::Records(vec![srv(0, 0, 0, "")]));
    has(&mut daemon, &[]);
    daemon.wait_for("the reason", |daemon| {
        let row = source(daemon);
        row["state"] == "ok" && row["reason"].as_str().unwrap().contains("there is no such service")
    });
}

#[test]
fn a_thousand_names_in_dns_follow_a_change() {
    let server = LyingServer::start(Replies::Records(vec![a([10, 1, 0, 1], 0)]));
    let folder = Folder::new();
    let mut text = config("persist: true").replace("port: p0, fail: reject, persist", "persist");
    for at in 0..1000 {
        text += &format!(
            "  - lb: {{ name: s{at}, port: p0, service: {{ vip: 10.9.{}.{}, protocol: udp, port: 53 }}, \
             from: {{ dns: s{at}.example.com, servers: [\"{}\"], min_ttl: 500ms, \
             each: {{ mac: 02:00:00:00:00:12 }} }} }}\n",
            at / 250,
            at % 250 + 1,
            server.address
        );
    }
    folder.write("weir.yaml", text);
    let mut daemon = Daemon::start_in(folder);
    let all = |daemon: &Daemon, address: &str| {
        let listed = back_ends(daemon);
        listed.len() == 1001 && listed[1..].iter().all(|row| row.ends_with(address))
    };
    daemon.wait_for("all services", |daemon| all(daemon, "/10.1.0.1"));
    for last in [2, 3, 4] {
        server.says(Replies::Records(vec![a([10, 1, 0, last], 0)]));
        let begun = Instant::now();
        daemon.wait_for("a change", |daemon| all(daemon, &format!("/10.1.0.{last}")));
        let took = begun.elapsed();
        eprintln!("1000 names followed a change after {took:?}");
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
    // Names that change together are changed together: each reload is one for many of them.
    let reloads = daemon.log().matches(" sources: ").count() + daemon.log().matches(" source dns:").count();
    assert!((4..100).contains(&reloads), "{reloads} reloads");
}
