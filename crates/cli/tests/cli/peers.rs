//! Nodes of a fleet compared: checksums of running daemons, `weir doctor --peers` and `weir plan --fleet`.

use super::lb_control::{http_as, with_token};
use super::running::Daemon;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

const CONFIG: &str = "hash_seed: 7
ports: { p0: { pcap: {} } }
nat_pools: { out: { addresses: POOL } }
apps:
  - lb: { flows: 4096 }
  - lb:
      name: web
      port: p0
      service: { vip: 10.0.0.80, protocol: tcp, port: 80 }
      size: 251
      back_ends:
        - { name: b1, mac: 02:00:00:00:00:11 }
        - { name: b2, mac: 02:00:00:00:00:12 }
  - lb:
      name: far
      port: p0
      service: { vip: 10.0.0.81, protocol: tcp, port: 80 }
      nat_pool: out
      back_ends: [{ name: c1, mode: full_nat, ip: 10.0.1.1, mac: 02:00:00:00:00:21 }]
";

/// A node with control over HTTP, and its URL.
fn node(pool: &str, change: (&str, &str)) -> (Daemon, String) {
    let (folder, address) = with_token();
    let config = CONFIG.replace("POOL", pool).replace(change.0, change.1);
    folder.write("weir.yaml", format!("control: {{ listen: \"{address}\", token: token }}\n{config}"));
    (Daemon::start_in(folder), format!("http://{address}"))
}

/// Returns the level and the sentence of each finding about a peer.
fn doctor(daemon: &Daemon, peers: &[&str]) -> Vec<(String, String, String)> {
    let peers = peers.join(",");
    let said = daemon.weir(&["doctor", "--peers", &peers, "--token", "token", "--json"]);
    let checks = said.json()["checks"].as_array().unwrap_or_else(|| panic!("{}", said.err)).clone();
    let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_string();
    let of = |one: &Value| (text(one, "check"), text(one, "level"), text(one, "says"));
    checks.iter().filter(|one| text(one, "check").starts_with("peer")).map(of).collect()
}

#[track_caller]
fn has(found: &[(String, String, String)], check: &str, level: &str, words: &str) {
    let is_it = |one: &&(String, String, String)| one.0 == check && one.1 == level && one.2.contains(words);
    assert!(found.iter().any(|one| is_it(&one)), "no {level} {check} `{words}` in {found:#?}");
}

#[test]
fn equal_nodes_have_equal_checksums_and_what_differs_is_named() {
    let (one, _) = node("10.9.0.0/30", ("", ""));
    let (two, two_at) = node("10.9.0.4/30", ("", ""));
    let sums = |daemon: &Daemon| daemon.weir(&["ring", "--checksum", "--json"]).good().json();
    let (ours, theirs) = (sums(&one), sums(&two));
    assert_eq!(ours, theirs, "pools are values of the node");
    assert_eq!(ours["configured"], ours["effective"]);
    let file = one.weir_file(&["ring", "--checksum", "weir.yaml", "--json"]);
    assert_eq!(file["configured"], ours["configured"]);
    let number = i64::from_str_radix(ours["configured"].as_str().unwrap(), 16).unwrap();
    let metrics = one.metrics();
    assert!(metrics.contains(&format!("weir_ring_checksum{{ring=\"configured\"}} {number}\n")), "{metrics}");
    assert!(metrics.contains("weir_service_ring_checksum{service=\"web\",ring=\"effective\"}"), "{metrics}");
    let found = doctor(&one, &[&two_at]);
    has(&found, "peer", "ok", "the version of this node");
    has(&found, "peer_ring", "ok", ours["configured"].as_str().unwrap());
    has(&found, "peer_health", "ok", "agrees");
    has(&found, "peer_nat_pool", "ok", "other addresses");
    // Draining changes the effective ring only, a weight both.
    two.weir(&["lb", "drain", "web", "b1"]).good();
    let drained = sums(&two);
    assert_eq!(drained["configured"], ours["configured"]);
    assert_ne!(drained["effective"], ours["effective"]);
    let found = doctor(&one, &[&two_at]);
    has(&found, "peer_ring", "ok", "chooses the same");
    has(&found, "peer_health", "warning", "b1 of web is unchecked here and draining there");
    two.weir(&["lb", "enable", "web", "b1"]).good();
    assert_eq!(sums(&two), ours);
    two.weir(&["lb", "weight", "web", "b1", "3"]).good();
    let found = doctor(&one, &[&two_at]);
    has(&found, "peer_ring", "fault", "web: b1 has weight 1 here and 3 there");
    // Another file.
    let (three, three_at) = node("10.9.0.2/32", ("size: 251", "size: 509"));
    let found = doctor(&one, &[&three_at]);
    has(&found, "peer_ring", "fault", "web: `size` is 251 here and 509 there");
    has(&found, "peer_nat_pool", "fault", "10.9.0.2/32 is in `out` here and in `out` there");
    let (four, four_at) = node("10.9.0.8/30", ("hash_seed: 7", "hash_seed: 8"));
    has(&doctor(&one, &[&four_at]), "peer_ring", "fault", "another `hash_seed`");
    drop((three, four));
}

#[test]
fn a_peer_that_lies_is_gone_or_refuses_gets_a_sentence() {
    let (one, one_at) = node("10.9.0.0/30", ("", ""));
    let garbage = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n[\"\x1b[2J";
    let (_unused, free) = with_token();
    let (lies, gone) = (peer(garbage.to_string()), format!("http://{free}"));
    let found = doctor(&one, &[&lies, &gone]);
    assert_eq!(found.len(), 2, "{found:?}");
    has(&found, "peer", "fault", "not a node's state");
    has(&found, "peer", "fault", "cannot be reached");
    assert!(!found.iter().any(|one| one.2.contains('\x1b')), "{found:?}");
    one.folder.write("token", "another-token-another-token-another");
    has(&doctor(&one, &[&one_at]), "peer", "fault", "refuses the token");
    one.weir(&["doctor", "--peers", "10.0.0.1:1", "--token", "token"]).refused(2, &["is not a URL"]);
    one.weir(&["doctor", "--peers", &one_at]).refused(2, &["need a token"]);
    one.folder.write("peers", format!("# nodes\n{lies}\nx\n"));
    one.weir(&["doctor", "--peers", "@peers", "--token", "token"]).refused(2, &["peers:3: `x` is not a URL"]);
    // Without the token, the path reveals nothing.
    let address: SocketAddr = one_at.trim_start_matches("http://").parse().unwrap();
    let (status, answer) = http_as("Bearer x", address, ("GET", "/v1/node"), "");
    assert!(status == 401 && !answer.to_string().contains("ring"), "{answer}");
}

/// Answers every connection with these bytes, or keeps it open without an answer if there are none.
fn peer(bytes: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            if bytes.is_empty() {
                kept.push(stream);
                continue;
            }
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(bytes.as_bytes());
        }
    });
    url
}

#[test]
fn a_peer_with_another_version_or_that_stalls_gets_a_sentence() {
    let (one, _) = node("10.9.0.0/30", ("", ""));
    let shown = one.show("node");
    let answering = |node: &Value| {
        let body = node.to_string();
        peer(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
    };
    // It has fields that this version does not know, and lacks others.
    let mut newer = shown.clone();
    newer["version"] = json!("99.0.0");
    newer["zone"] = json!({ "name": "eu-1" });
    newer["rings"]["version"] = json!("weir-ring-99");
    newer.as_object_mut().unwrap().remove("nat_pools");
    let found = doctor(&one, &[&answering(&newer), &peer(String::new())]);
    has(&found, "peer", "warning", "it runs weir 99.0.0");
    has(&found, "peer_ring", "warning", "cannot be compared: run the same weir");
    has(&found, "peer", "fault", "in time");
    assert!(!found.iter().any(|one| one.0 == "peer_ring" && one.1 == "fault"), "{found:?}");
    // Only the version differs.
    let mut older = shown.clone();
    older["version"] = json!("0.0.1");
    let found = doctor(&one, &[&answering(&older)]);
    has(&found, "peer", "warning", "it runs weir 0.0.1");
    has(&found, "peer_ring", "ok", "chooses the same");
}

/// Over TLS: a peer whose certificate is not from the authority does not get the token.
#[cfg(feature = "tls")]
#[test]
fn peers_are_asked_over_tls() {
    use super::folder::Folder;
    use super::lb_control::certificate;
    let (one, _) = node("10.9.0.0/30", ("", ""));
    let other = Folder::new();
    if !(certificate(&one.folder) && certificate(&other)) {
        return;
    }
    std::fs::copy(other.file("cert.pem"), one.folder.file("other.pem")).unwrap();
    let (folder, address) = with_token();
    for file in ["cert.pem", "key.pem"] {
        std::fs::copy(one.folder.file(file), folder.file(file)).unwrap();
    }
    let tls = "tls: { certificate: cert.pem, key: key.pem }";
    let config = CONFIG.replace("POOL", "10.9.0.4/30");
    folder.write("weir.yaml", format!("control: {{ listen: \"{address}\", token: token, {tls} }}\n{config}"));
    let _two = Daemon::start_in(folder);
    let url = format!("https://{address}");
    let ask = |more: &[&str]| {
        let said = one.weir(&[&["doctor", "--peers", &url, "--token", "token", "--json"], more].concat());
        let checks = said.json()["checks"].as_array().unwrap().clone();
        let peer = checks.iter().find(|check| check["check"] == "peer").unwrap().clone();
        format!("{} {}", peer["level"], peer["says"])
    };
    assert!(ask(&["--authorities", "cert.pem"]).contains("\"ok\" \"it answers, with the version of this"));
    let wrong = ask(&["--authorities", "other.pem"]);
    assert!(wrong.contains("fault") && wrong.contains("certificate"), "{wrong}");
    let none = ask(&[]);
    assert!(none.contains("fault") && none.contains("--authorities"), "{none}");
    // Plain HTTP to a peer that wants TLS.
    let found = doctor(&one, &[&url.replace("https", "http")]);
    assert!(found.len() == 1 && found[0].1 == "fault", "{found:?}");
}

#[test]
fn a_plan_of_the_fleet_counts_the_flows_of_nodes() {
    let (one, one_at) = node("10.9.0.0/30", ("", ""));
    let (two, two_at) = node("10.9.0.4/30", ("", ""));
    let packet = |vip: &str, port: u16| {
        format!("eth.dst=02:00:00:00:00:fe src=192.0.2.9 dst={vip} proto=tcp sport={port} dport=80")
    };
    for port in 0..30 {
        one.receive(&[&packet("10.0.0.81", 1000 + port), &packet("10.0.0.80", 1000 + port)]);
    }
    (0..10).for_each(|port| two.receive(&[&packet("10.0.0.81", 2000 + port)]));
    let peers = format!("{one_at},{two_at}");
    let plan = |more: &[&str]| -> Value {
        let arguments =
            [&["plan", "weir.yaml", "--fleet", "--peers", &peers, "--token", "token", "--json"], more]
                .concat();
        one.weir_file(&arguments)
    };
    let of = |plan: &Value, name: &str| {
        let all = plan["services"].as_array().unwrap();
        let row = all.iter().find(|one| one["name"] == name).unwrap();
        json!([row["mode"], row["flows"], row["broken"]])
    };
    let leaves = plan(&["--remove", "1", "--at", "2"]);
    assert_eq!(of(&leaves, "far"), json!(["full_nat", 40, 10]));
    assert_eq!(of(&leaves, "web"), json!(["l2", 30, 0]));
    assert_eq!(leaves["broken"], 10);
    assert_eq!(plan(&["--remove", "1", "--at", "1"])["broken"], 30);
    assert_eq!(plan(&["--remove", "1", "--resilient"])["broken"], 20, "the mean of both");
    // A third of the first node's flows and two thirds of the second's.
    assert_eq!(plan(&["--add", "1", "--at", "3"])["broken"], 17);
    assert_eq!(plan(&["--add", "1", "--resilient"])["broken"], 0);
}
