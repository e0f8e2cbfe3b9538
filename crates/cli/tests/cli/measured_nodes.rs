//! `weir measure --from`: one measurement of several running nodes.

use super::folder::Folder;
use super::lb_control::{http, with_token};
use super::running::Daemon;
use super::{CommandOutput, TWO, weir};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

const SEED: &str = "00112233445566778899aabbccddeeff";

/// A node whose first port is measured in intervals of a second.
fn node(folder: Folder, more: &str, seed: &str) -> Daemon {
    let measure = format!("{{ name: edge, port: p0, interval: 1s, top: 5{seed} }}");
    folder.write("weir.yaml", format!("{more}{TWO}\napps:\n  - measure: {measure}\n"));
    Daemon::start_in(folder)
}

fn seeded(seed: &str) -> String {
    format!(", seed: {seed}")
}

fn socket(daemon: &Daemon) -> String {
    format!("unix:{}", daemon.folder.file("weir.sock").display())
}

/// Runs `weir measure` with much patience, because nodes in tests are slow.
fn measure(folder: &Folder, arguments: &[&str]) -> CommandOutput {
    weir(folder.path(), &[&["measure", "--patience", "20s"], arguments].concat())
}

fn flow(source: u8) -> String {
    format!("src=192.0.2.{source} dst=10.0.0.53 sport=4000 dport=53")
}

/// Waits until a node has had two intervals: the first ones of several nodes may be different ones.
fn has_two_intervals(daemon: &mut Daemon) {
    daemon.wait_for("two intervals", |daemon| {
        let shown = daemon.weir(&["show", "measure", "edge", "--json"]).good().json();
        shown["measure"][0]["intervals"].as_u64() >= Some(2)
    });
}

/// The packets of each flow in the top lists of these intervals, into which all flows fit.
fn by_flow(intervals: &[Value]) -> HashMap<String, u64> {
    let mut all = HashMap::new();
    for row in intervals.iter().flat_map(|one| one["top"].as_array().unwrap()) {
        assert_eq!(row["bound"], 0, "{row}");
        *all.entry(row["key"].as_str().unwrap().to_string()).or_default() += row["packets"].as_u64().unwrap();
    }
    all
}

/// Starts `weir measure --from` that prints every interval.
fn watch(folder: &Folder, urls: &[&str]) -> Child {
    // A test suite in the background of a shell ignores SIGINT, which its children inherit.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_weir"), "measure", "--json", "--watch"]);
    command.args(["--patience", "20s", "--token", "token", "--from"]).args(urls);
    command.current_dir(folder.path()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weir runs")
}

fn packets(one: &Value) -> u64 {
    one["packets"].as_u64().unwrap()
}

/// Checks that intervals follow each other and that each has the packets of its nodes. Returns the packets of
/// each node, and those in no flow.
fn account(intervals: &[Value]) -> ([u64; 3], u64) {
    let (mut unflowed, mut of_nodes) = (0, [0; 3]);
    for (at, one) in intervals.iter().enumerate() {
        let start_ns = one["start_ns"].as_u64().unwrap();
        assert_eq!(start_ns, intervals[0]["start_ns"].as_u64().unwrap() + at as u64 * 1_000_000_000);
        assert_eq!((start_ns % 1_000_000_000, &one["interval_ms"]), (0, &json!(1000)));
        let nodes = one["nodes"].as_array().unwrap();
        assert_eq!(packets(one), nodes.iter().map(packets).sum::<u64>(), "{one}");
        of_nodes.iter_mut().zip(nodes).for_each(|(sum, one)| *sum += packets(one));
        for row in one["unflowed"].as_array().unwrap() {
            assert_eq!(row["reason"], "no_key");
            unflowed += packets(row);
        }
    }
    (of_nodes, unflowed)
}

#[test]
fn intervals_of_three_nodes_are_merged_and_every_packet_is_in_the_account() {
    let (folder, address) = with_token();
    let control = format!("control: {{ listen: \"{address}\", token: token }}\n");
    let mut first = node(folder, &control, &seeded(SEED));
    let [mut second, mut third] = [(); 2].map(|()| node(Folder::new(), "", &seeded(SEED)));
    [&mut first, &mut second, &mut third].into_iter().for_each(has_two_intervals);
    let urls = [&format!("http://{address}"), &socket(&second), &socket(&third)];
    let mut child = watch(&first.folder, &urls.map(String::as_str));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let mut intervals = vec![next()];
    assert_eq!(packets(&intervals[0]), 0);
    let frames: Vec<String> = (0..12).map(|n| flow(1 + n % 4)).collect();
    for (daemon, count) in [(&first, 12), (&second, 8), (&third, 4)] {
        daemon.receive(&frames[..count].iter().map(String::as_str).collect::<Vec<_>>());
        daemon.receive(&["arp=request"]);
    }
    while intervals.iter().map(packets).sum::<u64>() < 27 && intervals.len() < 60 {
        intervals.push(next());
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut noise = String::new();
    child.stderr.take().unwrap().read_to_string(&mut noise).unwrap();
    assert_eq!((child.wait().unwrap().code(), noise.as_str()), (Some(0), ""));
    assert_eq!(account(&intervals), ([13, 9, 5], 3));
    let flows = by_flow(&intervals);
    assert_eq!((flows.len(), flows.values().all(|packets| *packets == 6)), (4, true), "{flows:?}");
}

#[test]
fn one_interval_is_printed_and_a_node_that_is_gone_is_named() {
    let (folder, address) = with_token();
    let control = format!("control: {{ listen: \"{address}\", token: token }}\n");
    let mut first = node(folder, &control, &seeded(SEED));
    let mut second = node(Folder::new(), "", &seeded(SEED));
    [&mut first, &mut second].into_iter().for_each(has_two_intervals);
    let (url, gone) = (format!("http://{address}"), socket(&second));
    let arguments = ["--token", "token", "--from", &url, &gone];
    let text = measure(&first.folder, &arguments).good().out;
    assert!(text.starts_with("1 s from ") && text.contains(" UTC, 2 of 2 nodes\n"), "{text}");
    assert!(text.contains(&format!("\n  {url}  0 packets\n")) && !text.contains("missing"), "{text}");
    second.signal(Signal::KILL);
    second.end();
    let said = measure(&first.folder, &[&["--json"], &arguments[..]].concat());
    assert!(said.code == Some(1) && said.err.contains("cannot be reached"), "{}", said.err);
    let nodes = said.json()["nodes"].clone();
    assert_eq!((&nodes[0]["merged"], &nodes[1]["merged"]), (&json!(true), &json!(false)));
    assert!(nodes[1]["why"].as_str().unwrap().contains("cannot be reached"), "{nodes}");
    let (status, description) = http(address, "GET", "/openapi.json", "");
    let interval = &description["paths"]["/v1/measurements/{measurement}/intervals/{start_ns}"];
    assert!(status == 200 && interval["get"]["responses"]["200"].is_object(), "{description}");
    assert_eq!(http(address, "GET", "/v1/measurements/edge", "").1["seeded"], true);
    assert_eq!(http(address, "GET", "/v1/measurements/edge/intervals/5", "").0, 404);
    assert_eq!(http(address, "DELETE", "/v1/measurements/edge", "").0, 405);
}

#[test]
fn nodes_that_cannot_be_merged_are_named_with_the_reason() {
    let mut usual = node(Folder::new(), "", &seeded(SEED));
    let mut same = node(Folder::new(), "", &seeded(&SEED.to_uppercase()));
    let mut other = node(Folder::new(), "", &seeded("1234"));
    let none = node(Folder::new(), "", "");
    let slow = node(Folder::new(), "", ", seed: 7");
    slow.folder
        .write("weir.yaml", format!("{TWO}\napps:\n  - measure: {{ name: edge, port: p0, seed: 7 }}\n"));
    slow.weir(&["reload"]).good();
    [&mut usual, &mut same, &mut other].into_iter().for_each(has_two_intervals);
    let all = [&usual, &same, &other, &none, &slow].map(socket);
    let urls: Vec<&str> = all.iter().map(String::as_str).collect();
    let said = measure(&usual.folder, &[&["--from"], &urls[..]].concat());
    assert_eq!(said.code, Some(1), "{}", said.err);
    let mut errors = said.err.lines();
    for (url, why) in [
        (&all[2], "it has another `seed` than most others"),
        (&all[3], "it has the measurement edge without a `seed`"),
        (&all[4], "it has intervals of 5000 ms, most others of 1000 ms"),
    ] {
        let line = errors.next().unwrap_or_default();
        assert!(line.starts_with(&format!("weir: {url}: {why}")), "{line}, not {why}");
    }
    assert!(said.out.contains("2 of 5 nodes") && errors.next().is_none(), "{}{}", said.out, said.err);
}

/// Over TLS with a token; a node that accepts connections and never answers is named, and so is one whose
/// certificate is of another authority.
#[cfg(feature = "tls")]
#[test]
fn nodes_are_asked_over_tls_and_one_that_stalls_is_named() {
    use super::lb_control::certificate;
    let (folder, address) = with_token();
    let other = Folder::new();
    if !(certificate(&folder) && certificate(&other)) {
        return;
    }
    std::fs::copy(other.file("cert.pem"), folder.file("other.pem")).unwrap();
    let tls = "tls: { certificate: cert.pem, key: key.pem }";
    let control = format!("control: {{ listen: \"{address}\", token: token, {tls} }}\n");
    let mut daemon = node(folder, &control, &seeded(SEED));
    daemon.wait_for("an interval", |daemon| {
        let shown = daemon.weir(&["show", "measure", "edge", "--json"]).good().json();
        shown["measure"][0]["intervals"].as_u64() >= Some(1)
    });
    let stalled = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let urls = [address, stalled.local_addr().unwrap()].map(|address| format!("https://{address}"));
    let ask = |authorities: &str| {
        let arguments = ["measure", "--patience", "5s", "--token", "token", "--authorities", authorities];
        let from = ["--from", &urls[0], &urls[1]];
        weir(daemon.folder.path(), &[&arguments[..], &from].concat())
    };
    let said = ask("cert.pem");
    assert!(said.code == Some(1) && said.out.contains("1 of 2 nodes"), "{}{}", said.out, said.err);
    let missing = format!("weir: {}: it does not answer", urls[1]);
    assert!(said.err.starts_with(&missing) && said.err.lines().count() == 1, "{}", said.err);
    let said = ask("other.pem");
    assert!(said.code == Some(1) && said.err.contains("certificate"), "{}", said.err);
}

#[test]
fn mistakes_about_nodes_are_said() {
    let folder = Folder::new();
    for (arguments, code, words) in [
        (&["--from", "10.0.0.5:9106"][..], 2, "is not a URL such as"),
        (&["--from", "http://10.0.0.5:9106"], 2, "--token FILE"),
        (&["--from", "unix:/nowhere/weir.sock"], 1, "cannot be reached"),
        (&["--from", "unix:/nowhere/weir.sock", "--name", "edge", "a.pcap"], 2, "cannot be used with"),
        (&["--watch", "a.pcap"], 2, "cannot be used with"),
    ] {
        let said = weir(folder.path(), &[&["measure"], arguments].concat());
        assert!(said.code == Some(code) && said.err.contains(words), "{:?} {}", said.code, said.err);
    }
    for (more, words) in [
        ("seed: xyz", "is not up to 32 hexadecimal digits"),
        ("interval: 7s, seed: 12ab", "would not coincide"),
    ] {
        folder.write("weir.yaml", format!("{TWO}\napps:\n  - measure: {{ name: e, port: p0, {more} }}\n"));
        let said = weir(folder.path(), &["check", "weir.yaml"]);
        assert!(said.code == Some(2) && said.err.contains(words), "{}", said.err);
    }
}
