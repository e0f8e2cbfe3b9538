//! Measurements of a running daemon: what it shows, what it sends to an IPFIX collector, and that nothing is
//! lost across reloads.

use super::running::Daemon;
use super::{TWO, weir};
use serde_json::Value;
use std::collections::HashMap;
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
    // An interval may have ended between the first packet and the last.
    daemon.wait_for("all packets in intervals that have ended", |daemon| {
        let history = daemon.weir(&["show", "measure", "history", "edge", "--json"]).good().json();
        let rows = history["measure"][0]["history"].as_array().unwrap().clone();
        rows.iter().filter_map(|row| row["packets"].as_u64()).sum::<u64>() == 4
    });
    // By the time that the command runs, an interval without packets may have ended.
    daemon.wait_for("an interval with a flow", |daemon| {
        daemon.receive(&[ONE]);
        let text = daemon.weir(&["show", "measure", "edge"]).good().out;
        assert!(text.contains("measurement edge\n"), "{text}");
        text.contains("192.0.2.2")
    });
}

/// The contents of an IPv4 record.
#[derive(Clone, Debug, Default, PartialEq)]
struct Ipv4Record {
    octets: u64,
    packets: u64,
    bytes: u64,
    /// The names of where it was sent, where it came from, and where it was observed.
    names: [String; 3],
    flags: u8,
    class: u8,
    vlan: u16,
}

/// Receives records until they have `packets` packets in total.
fn received(collector: &UdpSocket, packets: u64) -> Vec<Ipv4Record> {
    let (mut all, mut names, mut bytes) = (Vec::<Ipv4Record>::new(), HashMap::new(), [0; 2048]);
    while all.iter().map(|one| one.packets).sum::<u64>() < packets {
        let length = collector.recv(&mut bytes).unwrap();
        let message = &bytes[..length];
        assert_eq!((&message[..2], &message[12..16]), (&[0, 10][..], &[0, 0, 0, 7][..]));
        let mut at = 16;
        while at < length {
            let number = |at: usize| usize::from(u16::from_be_bytes([message[at], message[at + 1]]));
            let (set, body) = (number(at), &message[at + 4..at + number(at + 2)]);
            at += number(at + 2);
            match set {
                256 => all.extend(body.chunks(76).map(|record| read(record, &names))),
                // Domain, number and name.
                260 => names.extend(body.chunks(72).map(|one| {
                    let name = String::from_utf8(one[8..].to_vec()).unwrap();
                    (big(&one[4..8]), name.trim_end_matches('\0').to_string())
                })),
                _ => {}
            }
        }
    }
    all
}

fn big(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Two addresses, ICMP, two ports, the protocol, octets, packets, two times, bytes, the reason, egress,
/// ingress, the observation point, flags, class and VLAN.
fn read(record: &[u8], names: &HashMap<u64, String>) -> Ipv4Record {
    let name = |bytes: &[u8]| names.get(&big(bytes)).cloned().unwrap_or_default();
    Ipv4Record {
        octets: big(&record[15..23]),
        packets: big(&record[23..31]),
        bytes: big(&record[47..55]),
        names: [name(&record[56..60]), name(&record[60..64]), name(&record[64..72])],
        flags: record[72],
        class: record[73],
        vlan: big(&record[74..76]) as u16,
    }
}

fn collector() -> (UdpSocket, String) {
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    collector.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let to = collector.local_addr().unwrap();
    (collector, format!("ipfix: {{ to: \"{to}\", domain: 7 }}"))
}

#[test]
fn flow_records_come_by_ipfix_and_add_up() {
    let (collector, ipfix) = collector();
    let mut daemon = Daemon::start(&measured(&format!(", {ipfix}")));
    daemon.receive(&[ONE, ONE, ONE, OTHER]);
    let all = received(&collector, 4);
    assert_eq!((all.iter().map(|one| one.packets).sum::<u64>(), all.len() >= 2), (4, true));
    for one in &all {
        // 28 bytes of IP and UDP, in frames of 42.
        assert_eq!((one.octets, one.bytes), (28 * one.packets, 42 * one.packets), "{one:?}");
        assert_eq!(one.names, ["", "p0", "measure/edge/p0"]);
    }
    drop(daemon.weir(&["stop"]).good());
    assert_eq!(daemon.end().code(), Some(0));
    daemon.wait_for_log("none lost");
}

/// Frames with padding and tags, through flows that are kept and through sums.
#[test]
fn octets_are_those_of_ip_in_padded_and_tagged_frames() {
    for flows in ["", ", flows: 64"] {
        let (collector, ipfix) = collector();
        let daemon = Daemon::start(&measured(&format!("{flows}, {ipfix}")));
        let padding = "00".repeat(6);
        let tcp = "src=192.0.2.2 dst=10.0.0.53 proto=tcp dport=80 dscp=46";
        let padded = format!("{tcp} sport=1 flags=S trailer={padding}");
        let tagged = format!("{tcp} sport=1 flags=A vlan=5 trailer=0000");
        let twice = "src=192.0.2.2 dst=10.0.0.53 proto=udp sport=3 dport=80 vlan=9 second_vlan=5 len=1022";
        daemon.receive(&[&padded, &tagged, twice]);
        let mut all = received(&collector, 3);
        all.sort_by_key(|one| one.octets);
        let sum = |of: fn(&Ipv4Record) -> u64| all.iter().map(of).sum::<u64>();
        assert_eq!(
            (sum(|one| one.octets), sum(|one| one.bytes)),
            (40 + 40 + 1000, 60 + 60 + 1022),
            "{all:?}"
        );
        let (last, first) = all.split_last().unwrap();
        assert_eq!((last.octets, last.vlan, last.flags, last.class), (1000, 9, 0, 0));
        // One record, unless an interval ended between both packets.
        assert_eq!(first.iter().fold(0, |flags, one| flags | one.flags), 0x12);
        assert!(first.iter().all(|one| one.class == 46 << 2), "{all:?}");
    }
}

/// A service that keeps no flows.
fn stateless(more: &str, pipe: &str, ipfix: &str) -> String {
    format!(
        "ports: {{ p0: {{ pcap: {{}} }} }}
apps:
  - lb:
      name: web
      port: p0
      {more}
      service: {{ vip: 10.0.0.80, protocol: tcp, port: 80 }}
      back_ends:
        - {{ name: b1, mac: 02:00:00:00:00:11 }}
        - {{ name: b2, mac: 02:00:00:00:00:12 }}
  - measure: {{ name: edge, pipe: {pipe}, interval: 200ms, {ipfix} }}
"
    )
}

#[test]
fn records_of_services_without_flows_name_service_and_back_end() {
    for (more, pipe) in [("by: source", "lb/source/v4"), ("stateless: true", "lb/hash")] {
        let (collector, ipfix) = collector();
        let daemon = Daemon::start(&stateless(more, pipe, &ipfix));
        let packet = |n: u8| {
            format!("eth.dst=02:00:00:00:00:fe src=192.0.2.{n} dst=10.0.0.80 proto=tcp sport=4000 dport=80")
        };
        let packets: Vec<String> = (1..=40).map(packet).collect();
        daemon.receive(&packets.iter().map(String::as_str).collect::<Vec<_>>());
        let all = received(&collector, 40);
        let of =
            |name: &str| all.iter().filter(|one| one.names[0] == name).map(|one| one.packets).sum::<u64>();
        let [b1, b2] = ["b1", "b2"].map(|name| daemon.count(&format!("lb/web/{name}")));
        assert_eq!([of("lb/web/b1"), of("lb/web/b2")], [b1, b2], "{more}: {all:?}");
        assert!(b1 > 5 && b2 > 5 && b1 + b2 == 40, "{b1} and {b2}");
        assert!(all.iter().all(|one| one.names[2] == pipe), "{all:?}");
        assert_eq!(daemon.show("flows"), serde_json::json!([]));
    }
}

/// Services with different ways of assigning flows have different pipes.
#[test]
fn one_measurement_has_the_records_of_several_pipes() {
    let (collector, ipfix) = collector();
    let service = |name: &str, port: u16, more: &str| {
        let vip = format!("{{ vip: 10.0.0.80, protocol: udp, port: {port} }}");
        let back_end = |n: u8| format!("{{ name: b{n}, mac: 02:00:00:00:00:1{n} }}");
        let back_ends = [1, 2].map(back_end).join(", ");
        format!("  - lb: {{ name: {name}, port: p0, {more}, service: {vip}, back_ends: [{back_ends}] }}\n")
    };
    let services = service("web", 80, "by: source") + &service("api", 81, "stateless: true");
    let measure = format!("{{ name: log, pipe: [lb/source/v4, lb/hash], interval: 200ms, {ipfix} }}");
    let daemon = Daemon::start(&format!(
        "ports: {{ p0: {{ pcap: {{}} }} }}\napps:\n{services}  - measure: {measure}\n"
    ));
    let packet = |n: u8| {
        let port = 80 + n % 2;
        format!("eth.dst=02:00:00:00:00:fe src=192.0.2.{n} dst=10.0.0.80 proto=udp sport=4000 dport={port}")
    };
    let packets: Vec<String> = (1..=40).map(packet).collect();
    daemon.receive(&packets.iter().map(String::as_str).collect::<Vec<_>>());
    let all = received(&collector, 40);
    for (service, pipe) in [("web", "lb/source/v4"), ("api", "lb/hash")] {
        for back_end in ["b1", "b2"] {
            let target = format!("lb/{service}/{back_end}");
            let own = all.iter().filter(|one| one.names[0] == target);
            let packets: u64 = own.clone().map(|one| one.packets).sum();
            assert_eq!(packets, daemon.count(&target), "{target}: {all:?}");
            assert!(packets > 0 && own.clone().all(|one| one.names[2] == pipe), "{target}: {all:?}");
        }
    }
}

/// Counts that a measurement has collected still show in the flow.
#[test]
fn show_flows_has_the_packets_that_were_collected() {
    let mut daemon = Daemon::start(&measured(", flows: 64"));
    daemon.receive(&[ONE, ONE, ONE]);
    daemon.wait_for("an interval", |daemon| !shown(daemon)["last"].is_null());
    daemon.receive(&[ONE]);
    let flows = daemon.show("flows").as_array().unwrap().clone();
    assert_eq!((flows.len(), &flows[0]["packets"], &flows[0]["bytes"]), (1, &4.into(), &(4 * 42).into()));
}

/// If built without the feature, weir says which build has it.
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
        ("interval: 1ms", "`interval` is out of range"),
        ("pipe: balance", "`port` or `pipe`, not both"),
        ("pipe: [balance]", "`port` or `pipe`, not both"),
        ("overlay: pods", "`port` is not for a measured `overlay`"),
        ("ipfix: { to: nowhere }", "is not an address and port"),
        ("ipfix: {}", "`to` is missing"),
        ("parquet: {}", "`directory` is missing"),
        ("parquet: { directory: x, rotate: 1ms }", "`rotate` is out of range"),
        ("memory: 12", "`memory` must be a whole number"),
        ("idle_timeout: 5s", "`idle_timeout` has no effect unless flows are kept"),
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
    for (pipes, words) in [
        ("[]", "write at least one name"),
        ("[balance, balance]", "pipe `balance` is already measured"),
        ("[balance, balanse]", "`balanse`"),
    ] {
        folder.write("weir.yaml", basic.replace("pipe: balance }", &format!("pipe: {pipes} }}")));
        let said = weir(folder.path(), &["check", "weir.yaml"]);
        assert!(said.code != Some(0) && said.err.contains(words), "{words}: {}", said.err);
    }
    folder.write("weir.yaml", basic.replace("pipe: balance }", "port: [] }"));
    let said = weir(folder.path(), &["check", "weir.yaml"]);
    assert!(said.code != Some(0) && said.err.contains("write at least one name"), "{}", said.err);
    // A pipe that sums packets up must be configured with a definition of a flow; a FLOW pipe has its own.
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

/// Port 1 has no listener: what is not sent is counted as lost, and the measurement continues.
#[test]
fn a_collector_that_is_away_is_said_and_what_it_misses_is_counted() {
    let mut daemon = Daemon::start(&measured(", ipfix: { to: \"127.0.0.1:1\", over: tcp }"));
    daemon.receive(&[ONE, OTHER]);
    daemon.wait_for("a loss that is counted", |daemon| {
        let shown = daemon.weir(&["show", "measure", "edge"]).good().out;
        shown.contains("2 lost; the collector is unreachable")
    });
}
