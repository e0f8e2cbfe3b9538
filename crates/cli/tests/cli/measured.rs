//! Measurements of a running daemon: what it shows, what it sends to an IPFIX collector, and that nothing is
//! lost over reloads.

use super::running::Daemon;
use super::{TWO, weir};
use serde_json::Value;
use std::net::UdpSocket;
use std::time::Duration;

const ONE: &str = "src=192.0.2.2 dst=10.0.0.53 dport=53";
const OTHER: &str = "src=192.0.2.3 dst=10.0.0.53 dport=53";

/// [`TWO`], with its first port measured in intervals of 200 ms.
fn measured(more: &str) -> String {
    format!("{TWO}\napps:\n  - measure: {{ name: edge, port: p0, interval: 200ms{more} }}\n")
}

fn shown(daemon: &Daemon) -> Value {
    daemon.weir(&["show", "measure", "edge", "--json"]).good().json()["measure"][0].clone()
}

#[test]
fn an_interval_is_shown_with_its_flows() {
    let mut daemon = Daemon::start(&measured(""));
    daemon.receive(&[ONE, ONE, ONE, OTHER]);
    daemon.wait_for("the packets", |daemon| shown(daemon)["packets"] == 4);
    daemon.wait_for("an interval", |daemon| !shown(daemon)["last"].is_null());
    let history = daemon.weir(&["show", "measure", "history", "edge", "--json"]).good().json();
    let rows = history["measure"][0]["history"].as_array().unwrap().clone();
    assert_eq!(rows.iter().filter_map(|row| row["packets"].as_u64()).sum::<u64>(), 4, "{history}");
    let text = daemon.weir(&["show", "measure", "edge"]).good().out;
    assert!(text.contains("measurement edge\n") && text.contains("192.0.2."), "{text}");
}

#[test]
fn flow_records_come_by_ipfix_and_add_up() {
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    collector.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let to = collector.local_addr().unwrap();
    let mut daemon = Daemon::start(&measured(&format!(", ipfix: {{ to: \"{to}\", domain: 7 }}")));
    daemon.receive(&[ONE, ONE, ONE, OTHER]);
    let (mut packets, mut records, mut bytes) = (0, 0, [0; 2048]);
    while packets < 4 {
        let length = collector.recv(&mut bytes).unwrap();
        let message = &bytes[..length];
        assert_eq!((&message[..2], &message[12..16]), (&[0, 10][..], &[0, 0, 0, 7][..]));
        let mut at = 16;
        while at < length {
            let number = |at: usize| usize::from(u16::from_be_bytes([message[at], message[at + 1]]));
            let (set, end) = (number(at), at + number(at + 2));
            // The template of IPv4: two addresses, two ports, the protocol, octets, packets, ...
            for record in message[at + 4..end].chunks(58).filter(|_| set == 256) {
                packets += u64::from_be_bytes(record[21..29].try_into().unwrap());
                records += 1;
            }
            at = end;
        }
    }
    assert_eq!((packets, records >= 2), (4, true));
    drop(daemon.weir(&["stop"]).good());
    assert_eq!(daemon.end().code(), Some(0));
    assert!(daemon.log().contains("none lost"), "{}", daemon.log());
}

/// Built without the feature, weir says which build has it.
#[test]
fn flow_records_are_written_to_files_that_are_whole_when_it_has_stopped() {
    let folder = super::folder::Folder::new();
    let files = format!(", parquet: {{ directory: {} }}", folder.path().display());
    if cfg!(not(feature = "parquet")) {
        folder.write("weir.yaml", measured(&files));
        let said = weir(folder.path(), &["check", "weir.yaml"]);
        assert!(said.code != Some(0) && said.err.contains("`--features parquet`"), "{}", said.err);
        return;
    }
    let mut daemon = Daemon::start(&measured(&files));
    daemon.receive(&[ONE, ONE, ONE, OTHER]);
    daemon.wait_for("the packets", |daemon| shown(daemon)["packets"] == 4);
    assert_eq!(shown(&daemon)["parquet"]["works"], true);
    drop(daemon.weir(&["stop"]).good());
    assert_eq!(daemon.end().code(), Some(0));
    let written: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|one| one.unwrap().path()).collect();
    assert!(
        matches!(&written[..], [one] if one.extension().is_some_and(|end| end == "parquet")),
        "{written:?}"
    );
    let bytes = std::fs::read(&written[0]).unwrap();
    assert_eq!((&bytes[..4], &bytes[bytes.len() - 4..]), (&b"PAR1"[..], &b"PAR1"[..]));
}

#[test]
fn a_measurement_goes_on_over_a_reload_and_ends_with_it() {
    let mut daemon = Daemon::start(&measured(""));
    daemon.receive(&[ONE, ONE]);
    daemon.wait_for("the packets", |daemon| shown(daemon)["packets"] == 2);
    drop(daemon.weir(&["reload"]).good());
    daemon.receive(&[ONE, OTHER]);
    daemon.wait_for("the other packets", |daemon| shown(daemon)["packets"] == 4);
    daemon.folder.write("weir.yaml", TWO);
    drop(daemon.weir(&["reload"]).good());
    assert_ne!(daemon.weir(&["show", "measure", "edge"]).code, Some(0));
    let account = &daemon.weir(&["show", "deltas", "--json"]).good().json()["flow_account"];
    assert_eq!(account["lost"], 0, "{account}");
}

#[test]
fn mistakes_are_shown_where_they_are() {
    let folder = super::folder::Folder::new();
    for (more, words) in [
        ("interval: 200ms, flush: 70ms", "`flush` must divide the interval"),
        ("interval: 1ms", "`interval` cannot be this"),
        ("pipe: balance", "`port` or `pipe`, not both"),
        ("overlay: pods", "`port` is not for a measured `overlay`"),
        ("ipfix: { to: nowhere }", "is not an address and port"),
        ("ipfix: {}", "`to` is missing"),
        ("parquet: {}", "`directory` is missing"),
        ("parquet: { directory: x, rotate: 1ms }", "`rotate` cannot be this"),
        ("memory: 12", "`memory` is a whole number"),
        ("idle_timeout: 5s", "`idle_timeout` means nothing without flows that are kept"),
    ] {
        folder.write("weir.yaml", measured("").replace("interval: 200ms", more));
        let said = weir(folder.path(), &["check", "weir.yaml"]);
        assert!(said.code != Some(0) && said.err.contains(words), "{words}: {}", said.err);
    }
    let basic = format!("{TWO}\napps:\n  - measure: {{ name: edge, pipe: balance }}\n");
    folder.write("weir.yaml", basic.clone());
    let said = weir(folder.path(), &["check", "weir.yaml"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    folder.write("weir.yaml", basic.replace("pipe: balance }", "pipe: balance, flush_packets: 9 }"));
    let said = weir(folder.path(), &["check", "weir.yaml"]);
    assert!(said.err.contains("`balance` keeps no flows"), "{}", said.err);
    // A pipe that sums packets up is told what a flow is; a FLOW pipe knows.
    folder.write("weir.yaml", basic.replace("pipe: balance }", "pipe: balance, key: inner }"));
    let said = weir(folder.path(), &["check", "weir.yaml"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    folder.write("weir.yaml", basic.replace("pipe: balance }", "pipe: balance, flows: 9 }"));
    let said = weir(folder.path(), &["check", "weir.yaml"]);
    assert!(said.err.contains("`flows` is for a measured `port`"), "{}", said.err);
    let flow =
        "  kept: { type: flow, learn: default, forward: p1, miss: drop, entries: [{ match: default }] }";
    let flow =
        basic.replace("pipes:\n", &format!("pipes:\n{flow}\n")).replace("pipe: balance }", "pipe: kept }");
    folder.write("weir.yaml", flow.clone());
    let said = weir(folder.path(), &["check", "weir.yaml"]);
    assert!(!said.err.contains("error"), "{}", said.err);
    folder.write("weir.yaml", flow.replace("pipe: kept }", "pipe: kept, flush_packets: 9 }"));
    let said = weir(folder.path(), &["check", "weir.yaml"]);
    assert!(!said.err.contains("error"), "{}", said.err);
    folder.write("weir.yaml", flow.replace("pipe: kept }", "pipe: kept, key: inner }"));
    let said = weir(folder.path(), &["check", "weir.yaml"]);
    assert!(said.err.contains("FLOW pipe `kept` has its own `key`"), "{}", said.err);
}

/// Nobody listens on port 1: what is not sent is counted as lost, and the measurement goes on.
#[test]
fn a_collector_that_is_away_is_said_and_what_it_misses_is_counted() {
    let mut daemon = Daemon::start(&measured(", ipfix: { to: \"127.0.0.1:1\", over: tcp }"));
    daemon.receive(&[ONE, OTHER]);
    daemon.wait_for("a loss that is counted", |daemon| {
        let shown = daemon.weir(&["show", "measure", "edge"]).good().out;
        shown.contains("2 lost; the collector is away")
    });
}
