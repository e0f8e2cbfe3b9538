//! DNS as a source of services, with a real name server: Debian's nsd.

use super::folder::Folder;
use super::running::{Daemon, free_address};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use std::fmt::Write;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A name server with one zone.
struct NameServer {
    folder: PathBuf,
    address: SocketAddr,
    child: Child,
}

impl NameServer {
    fn start(folder: &Folder, records: &str) -> NameServer {
        let path = folder.file("nsd");
        std::fs::create_dir_all(&path).unwrap();
        let address = free_address();
        let at = path.display();
        let config = format!(
            "server:\n  ip-address: 127.0.0.1\n  port: {}\n  server-count: 1\n  username: \"\"\n  database: \
             \"\"\n  zonesdir: \"{at}\"\n  pidfile: \"{at}/nsd.pid\"\n  xfrdfile: \"{at}/xfrd.state\"\n  \
             xfrdir: \"{at}\"\n  zonelistfile: \"{at}/zone.list\"\n  rrl-ratelimit: 0\n  \
             xfrd-reload-timeout: 0\nremote-control:\n  control-enable: no\nzone:\n  name: \
             \"example.com\"\n  zonefile: \"zone\"\n",
            address.port()
        );
        std::fs::write(path.join("nsd.conf"), config).unwrap();
        write_zone(&path, records);
        let child = spawn(&path);
        NameServer { folder: path, address, child }
    }

    /// Changes the zone.
    fn serves(&self, records: &str) {
        write_zone(&self.folder, records);
        rustix::process::kill_process(self.pid(), Signal::HUP).unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Signals all of its processes.
    fn signal(&self, signal: Signal) {
        kill_process_group(self.pid(), signal).unwrap();
    }

    fn stop(&mut self) {
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.wait();
    }

    fn start_again(&mut self, records: &str) {
        write_zone(&self.folder, records);
        self.child = spawn(&self.folder);
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn spawn(folder: &std::path::Path) -> Child {
    let mut command = Command::new("/usr/sbin/nsd");
    command.arg("-d").arg("-c").arg(folder.join("nsd.conf")).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("nsd is installed")
}

fn write_zone(folder: &std::path::Path, records: &str) {
    let head =
        "$ORIGIN example.com.\n$TTL 1\n@ SOA ns hostmaster 1 3600 900 86400 1\n@ NS ns\nns A 127.0.0.1\n";
    std::fs::write(folder.join("new"), format!("{head}{records}")).unwrap();
    std::fs::rename(folder.join("new"), folder.join("zone")).unwrap();
}

/// Services of an IPv4 and an IPv6 address, and one of SRV records.
fn config(server: SocketAddr) -> String {
    let times = format!("servers: [\"{server}\"], min_ttl: 100ms, timeout: 1s");
    let from = |name: &str, more: &str| format!("from: {{ dns: {name}.example.com, {times}{more} }}");
    let service = |name: &str, vip: &str, from: String| {
        let address = format!("vip: \"{vip}\", protocol: tcp, port: 80");
        format!("  - lb: {{ name: {name}, port: p0, fail: reject, service: {{ {address} }}, {from} }}\n")
    };
    let each = ", each: { mac: 02:00:00:00:00:12 }";
    [
        "state: state\nports: { p0: { pcap: {} } }\napps:\n".to_string(),
        service("four", "10.0.0.90", from("web", each)),
        service("six", "2001:db8::90", from("web", each)),
        service(
            "srv",
            "10.0.0.91",
            from("_http._tcp", ", records: srv, each: { mode: nat, mac: 02:00:00:00:00:13 }"),
        ),
    ]
    .concat()
}

/// Returns the back ends of a service, with their weights.
fn back_ends(daemon: &Daemon, service: &str) -> Vec<String> {
    let table = daemon.show("backends");
    let rows = table.as_array().unwrap().iter().filter(|row| row["service"] == service);
    rows.map(|row| format!("{} {}", row["name"].as_str().unwrap(), row["weight"])).collect()
}

#[track_caller]
fn has(daemon: &mut Daemon, service: &str, expected: &[&str]) {
    daemon.wait_for(&format!("{service}: {expected:?}"), |daemon| back_ends(daemon, service) == expected);
}

fn source(daemon: &Daemon, name: &str) -> Value {
    let rows = daemon.show("sources");
    rows.as_array().unwrap().iter().find(|row| row["name"] == name).cloned().unwrap()
}

/// Waits until a source is in a state, for a reason that has these words.
#[track_caller]
fn is(daemon: &mut Daemon, name: &str, state: &str, words: &str) {
    daemon.wait_for(&format!("{name} {state}: {words}"), |daemon| {
        let row = source(daemon, name);
        row["state"] == state && row["reason"].as_str().unwrap().contains(words)
    });
}

const SRV: &str =
    "_http._tcp SRV 10 3 8080 one\n_http._tcp SRV 10 0 8081 two\n_http._tcp SRV 20 1 8082 two\n";
const SRV_BACK_ENDS: [&str; 3] = ["10.1.0.3_8080 3", "10.1.0.4_8081 1", "10.1.0.4_8082 0"];

/// The records of a zone with this address.
fn zone(first: &str) -> String {
    let web = format!("web A {first}\nweb A 10.1.0.2\nweb AAAA 2001:db8:1::1\n");
    format!("{web}{SRV}one A 10.1.0.3\ntwo A 10.1.0.4\n")
}

/// Waits until there are the back ends of `zone`.
#[track_caller]
fn is_as_in_the_zone(daemon: &mut Daemon, first: &str) {
    has(daemon, "four", &[&format!("{first} 1"), "10.1.0.2 1"]);
    has(daemon, "six", &["2001-db8-1--1 1"]);
    has(daemon, "srv", &SRV_BACK_ENDS);
}

#[test]
fn a_zone_of_a_real_server_is_followed() {
    let folder = Folder::new();
    let server = NameServer::start(&folder, &zone("10.1.0.1"));
    folder.write("weir.yaml", config(server.address));
    let mut daemon = Daemon::start_in(folder);
    is_as_in_the_zone(&mut daemon, "10.1.0.1");
    // An address changes, and a target.
    server.serves(&zone("10.1.0.7").replace("one A 10.1.0.3", "one CNAME three\nthree A 10.1.0.5"));
    has(&mut daemon, "four", &["10.1.0.2 1", "10.1.0.7 1"]);
    has(&mut daemon, "srv", &["10.1.0.4_8081 1", "10.1.0.4_8082 0", "10.1.0.5_8080 3"]);
    // Names that are gone change nothing, whether others are below them (no data) or not (NXDOMAIN).
    server.serves("sub.web A 10.1.0.9\n");
    is(&mut daemon, "four", "failing", "web.example.com. has no records");
    is(&mut daemon, "srv", "failing", "_http._tcp.example.com. has no records");
    has(&mut daemon, "four", &["10.1.0.2 1", "10.1.0.7 1"]);
    // Thousands of records need TCP.
    let mut many = zone("10.1.0.1");
    for at in 0..3000 {
        writeln!(many, "web A 10.2.{}.{}", at / 250, at % 250 + 1).unwrap();
    }
    for at in 0..300 {
        writeln!(many, "_http._tcp SRV 10 1 8080 t{at}\nt{at} A 10.3.{}.{}", at / 250, at % 250 + 1).unwrap();
    }
    server.serves(&many);
    daemon.wait_for("all addresses", |daemon| back_ends(daemon, "four").len() == 3002);
    is(&mut daemon, "srv", "ok", "targets are left out: weir looks up 256");
    server.serves(&zone("10.1.0.1"));
    is_as_in_the_zone(&mut daemon, "10.1.0.1");
}

#[test]
fn a_real_server_that_stalls_or_is_down_changes_nothing() {
    let folder = Folder::new();
    let mut server = NameServer::start(&folder, &zone("10.1.0.1"));
    folder.write("weir.yaml", config(server.address));
    let mut daemon = Daemon::start_in(folder);
    is_as_in_the_zone(&mut daemon, "10.1.0.1");
    server.signal(Signal::STOP);
    for name in ["four", "six", "srv"] {
        is(&mut daemon, name, "failing", "");
    }
    let reason = source(&daemon, "four")["reason"].as_str().unwrap().to_string();
    assert!(reason.contains("no answer about web.example.com.") || reason.contains("timed out"), "{reason}");
    let doctor = daemon.weir(&["doctor", "weir.yaml"]).out;
    assert!(doctor.contains("web.example.com. is failing: "), "{doctor}");
    is_as_in_the_zone(&mut daemon, "10.1.0.1");
    server.signal(Signal::CONT);
    is(&mut daemon, "four", "ok", "");
    server.stop();
    is(&mut daemon, "four", "failing", "");
    let line = "source four (web.example.com.) cannot be read: ";
    daemon.wait_for("lines of the log", |daemon| daemon.log().matches(line).count() >= 2);
    is_as_in_the_zone(&mut daemon, "10.1.0.1");
    // A daemon that starts without the server has services without back ends.
    daemon.signal(Signal::TERM);
    daemon.end();
    let mut daemon = Daemon::start_in(daemon.into_folder());
    daemon.wait_for("a service without back ends", |daemon| {
        let list = json!({ "command": "app", "app": "lb", "request": { "do": "list" } });
        let all = daemon.ask(&list);
        all["services"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == "four"))
    });
    assert!(back_ends(&daemon, "four").is_empty());
    server.start_again(&zone("10.1.0.8"));
    has(&mut daemon, "four", &["10.1.0.2 1", "10.1.0.8 1"]);
}

#[test]
fn a_thousand_names_of_a_real_server_follow_a_change_and_fail_together() {
    let names =
        |last: u8| (0..1000).fold(String::new(), |zone, at| zone + &format!("s{at} 0 A 10.1.0.{last}\n"));
    let folder = Folder::new();
    let mut server = NameServer::start(&folder, &names(1));
    let mut text = "state: state\nports: { p0: { pcap: {} } }\napps:\n".to_string();
    for at in 0..1000 {
        let from = format!(
            "dns: s{at}.example.com, servers: [\"{}\"], min_ttl: 500ms, timeout: 2s, each: {{ mac: \
             02:00:00:00:00:12 }}",
            server.address
        );
        let vip = format!("vip: 10.9.{}.{}, protocol: udp, port: 53", at / 250, at % 250 + 1);
        writeln!(text, "  - lb: {{ name: s{at}, port: p0, service: {{ {vip} }}, from: {{ {from} }} }}")
            .unwrap();
    }
    folder.write("weir.yaml", text);
    let mut daemon = Daemon::start_in(folder);
    let all = |daemon: &Daemon, last: u8| {
        let table = daemon.show("backends");
        let rows = table.as_array().unwrap();
        rows.len() == 1000 && rows.iter().all(|row| row["name"] == format!("10.1.0.{last}"))
    };
    daemon.wait_for("all services", |daemon| all(daemon, 1));
    for last in [2, 3, 4, 5, 6] {
        let begun = Instant::now();
        server.serves(&names(last));
        daemon.wait_for("a change", |daemon| all(daemon, last));
        eprintln!("1000 names in nsd followed a change after {:?}, with its reload", begun.elapsed());
    }
    let reloads = daemon.log().matches("was changed at run time").count();
    assert!((6..100).contains(&reloads), "{reloads} reloads");
    server.stop();
    daemon.wait_for_log("more sources are now failing: see");
    assert!(all(&daemon, 6));
}
