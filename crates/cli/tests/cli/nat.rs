//! Source NAT between real kernels, as in configs/source-nat.yaml; and NAT pools that cannot work.

use super::folder::Folder;
use super::running::Daemon;
use super::weir;
use super::wire::{Wire, sh};
use serde_json::json;

const CONFIG: &str = include_str!("../../../../configs/source-nat.yaml");

/// A host behind weir (in the third namespace, 10.0.0.2), and one outside (the far one, 10.0.1.2). Both
/// interfaces of weir have two queues, and the queue on which a response arrives is independent of its
/// worker.
pub fn wire(name: &str) -> Option<Wire> {
    let wire = Wire::new(name, 0)?;
    (0..2).for_each(|pair| wire.add_wide(pair, pair as u8, 2));
    let Wire { far, third, .. } = &wire;
    for line in [
        format!("ip -n {far} link set f0 netns {third}"),
        format!("ip -n {third} addr add 10.0.0.2/24 dev f0"),
        format!("ip -n {third} link set f0 up"),
        format!("ip -n {third} route add default via 10.0.0.1"),
        format!("ip -n {far} link set lo up"),
        format!("ip -n {far} route add 192.0.2.8/29 via 10.0.1.1"),
        format!("ip -n {far} neigh replace 10.0.1.1 lladdr 02:00:00:00:01:01 dev f1 nud permanent"),
        format!("ip -n {third} neigh replace 10.0.0.1 lladdr 02:00:00:00:00:00 dev f0 nud permanent"),
    ] {
        sh(&line);
    }
    Some(wire)
}

/// The configuration there, for two workers.
pub fn config() -> String {
    let config = CONFIG
        .replace("xdp: eth1", "xdp: w0")
        .replace("xdp: eth0", "xdp: w1")
        .replace("eth.src: 02:00:00:00:00:01", "eth.src: 02:00:00:00:01:01")
        .replace("eth.dst: 02:00:00:00:00:fe", "eth.dst: 02:00:00:00:11:00");
    format!("workers: 2\n{config}")
}

#[test]
fn a_host_behind_weir_talks_to_the_world_by_an_address_of_the_pool() {
    let Some(wire) = wire("nat") else { return };
    let folder = Folder::new();
    folder.write("weir.yaml", config());
    let mut daemon = Daemon::start_in_namespace(folder, &wire.weir);
    // The server outside: the metrics of another daemon, which wants to read a request and sends pages.
    let folder = Folder::new();
    folder.write("weir.yaml", "ports: { p0: { mem: ~ } }\nmetrics: 10.0.1.2:9105\n");
    let _server = Daemon::start_in_namespace(folder, &wire.far);
    let ask = "exec 3<>/dev/tcp/10.0.1.2/9105 && printf \"GET /metrics HTTP/1.0\\r\\n\\r\\n\" >&3 && cat <&3";
    for _ in 0..20 {
        let page = sh(&format!("ip netns exec {} timeout 20 bash -c '{ask}'", wire.third));
        assert!(page.contains("weir_ledger_balanced") && page.contains("# EOF"), "{page}");
    }
    // A port without a listener: the response is an ICMP error, which returns to the sender.
    let refused = "exec 3<>/dev/udp/10.0.1.2/9; for i in 1 2 3 4 5 6 7 8 9 10; do echo hello >&3 || exit 7; \
        read -t 1 <&3; done";
    let line = format!("ip netns exec {} timeout 20 bash -c '{refused}' 2>&1; echo $?", wire.third);
    let said = sh(&line);
    assert!(said.contains("refused"), "{said}");
    daemon.wait_for("flows of both directions", |daemon| {
        let flows = daemon.show("flows");
        let flows = flows.as_array().into_iter().flatten();
        let bound = flows.filter(|flow| flow["nat"].as_str().is_some_and(|nat| nat.starts_with("192.0.2.")));
        bound.count() >= 42
    });
    let pool = &daemon.show("nat_pools")[0];
    assert_eq!((&pool["addresses"], &pool["ports"]), (&json!("192.0.2.8/29"), &json!("1024-65535")));
    let count = |what: &str| pool[what].as_u64().unwrap_or_default();
    assert!(count("used") >= 21, "{pool}");
    assert_eq!(count("used") + count("free"), 8 * 64_512);
    // The next binding of a new flow is known to its worker, whatever others have taken.
    let next = "src=10.0.0.2 dst=10.0.1.2 proto=udp sport=4000 dport=53";
    let said = daemon.weir(&["explain", "--live", "--port", "inside", "--packet", next]).good().out;
    assert!(said.contains("would be learnt") && !said.contains("BUG"), "{said}");
    let ledger = daemon.show("ledger");
    assert_eq!((&ledger["dropped"], &ledger["held"]), (&json!({}), &json!(0)), "{ledger}");
}

/// Services of three kinds, whose flows are assigned to workers by different keys.
const BALANCING: &str = "\
workers: 2
ports: { p0: { xdp: w0 }, p1: { xdp: w1 } }
nat_pools: { pool: { addresses: 10.0.1.200 } }
apps:
  - lb: { flows: 4096 }
  - lb:
      name: nat
      port: p0
      out: p1
      service: { vip: 10.0.9.1, protocol: both, port: all }
      back_ends: [{ name: b1, mode: nat, ip: 10.0.1.2, mac: 02:00:00:00:11:00 }]
  - lb:
      name: full
      port: p0
      out: p1
      service: { vip: 10.0.9.2, protocol: both, port: all }
      nat_pool: pool
      back_ends: [{ name: b1, mode: full_nat, ip: 10.0.1.3, mac: 02:00:00:00:11:00 }]
  - lb:
      name: kept
      port: p0
      service: { vip: 10.0.9.3, protocol: both, port: 53 }
      back_ends: [{ name: b1, mac: 02:00:00:00:10:00 }]
";

#[test]
fn balanced_connections_come_back_to_the_worker_of_their_flow_whatever_is_translated() {
    let Some(wire) = wire("balanced") else { return };
    for line in [
        format!("ip -n {} addr add 10.0.1.3/24 dev f1", wire.far),
        format!("ip -n {} route add 10.0.0.0/24 via 10.0.1.1", wire.far),
    ] {
        sh(&line);
    }
    let folder = Folder::new();
    folder.write("weir.yaml", BALANCING);
    let daemon = Daemon::start_in_namespace(folder, &wire.weir);
    let folder = Folder::new();
    folder.write("weir.yaml", "ports: { p0: { mem: ~ } }\nmetrics: 0.0.0.0:9105\n");
    let _server = Daemon::start_in_namespace(folder, &wire.far);
    for vip in ["10.0.9.1", "10.0.9.2"] {
        let ask = format!(
            "exec 3<>/dev/tcp/{vip}/9105 && printf \"GET /metrics HTTP/1.0\\r\\n\\r\\n\" >&3 && cat <&3"
        );
        for _ in 0..20 {
            let page = sh(&format!("ip netns exec {} timeout 20 bash -c '{ask}'", wire.third));
            assert!(page.contains("weir_ledger_balanced") && page.contains("# EOF"), "{page}");
        }
        // The back end's ICMP error returns to the sender.
        let refused = format!(
            "exec 3<>/dev/udp/{vip}/9; for i in 1 2 3 4 5 6 7 8 9 10; do echo hello >&3 || exit 7; \
             read -t 1 <&3; done"
        );
        let line = format!("ip netns exec {} timeout 20 bash -c '{refused}' 2>&1; echo $?", wire.third);
        let said = sh(&line);
        assert!(said.contains("refused"), "{vip}: {said}");
    }
    // The back end has resolved the pool's address by ARP: the host does not have it.
    let (exe, file) = (env!("CARGO_BIN_EXE_weir"), daemon.folder.file("weir.yaml"));
    let said = sh(&format!("ip netns exec {} {exe} doctor {} || true", wire.weir, file.display()));
    let line = said.lines().find(|line| line.contains(" pool: ")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.starts_with("ok") && line.contains("weir answers ARP"), "{line}");
    // The owner of a packet's flow is found by that worker's lookup in the tables.
    for vip in ["10.0.9.1", "10.0.9.2", "10.0.9.3"] {
        let next = format!("eth.dst=02:00:00:00:00:00 src=10.0.0.2 dst={vip} proto=udp sport=4000 dport=53");
        let said = daemon.weir(&["explain", "--live", "--port", "p0", "--packet", &next]).good().out;
        assert!(said.contains("would be learnt") && !said.contains("BUG"), "{said}");
    }
    let ledger = daemon.show("ledger");
    assert_eq!((&ledger["dropped"], &ledger["held"]), (&json!({}), &json!(0)), "{ledger}");
}

/// Back ends behind translation whose health is checked, one of each IP version.
const CHECKED: &str = "\
ports: { p0: { xdp: w0 }, p1: { xdp: w1 } }
apps:
  - lb:
      name: four
      port: p0
      out: p1
      service: { vip: 10.0.9.1, protocol: udp, port: 53 }
      check: { type: icmp, interval: 50ms, timeout: 1s, rise: 1, fall: 1 }
      back_ends: [{ name: b4, mode: nat, ip: 10.0.1.2, mac: 02:00:00:00:11:00 }]
  - lb:
      name: six
      port: p0
      out: p1
      service: { vip: \"2001:db8:9::1\", protocol: udp, port: 53 }
      check: { type: icmp, interval: 50ms, timeout: 1s, rise: 1, fall: 1 }
      back_ends: [{ name: b6, mode: nat, ip: \"2001:db8:1::2\", mac: 02:00:00:00:11:00 }]
";

/// Frames from such back ends to the host itself are left to it: responses to checks, and neighbour
/// advertisements.
#[test]
fn what_a_back_end_sends_to_the_host_itself_stays_with_the_host_whatever_addresses_that_gets() {
    let Some(wire) = Wire::new("checked", 2) else { return };
    for netns in [&wire.weir, &wire.far] {
        sh(&format!("ip netns exec {netns} sysctl -qw net.ipv6.conf.all.disable_ipv6=0"));
    }
    sh(&format!("ip -n {} addr add 2001:db8:1::2/64 dev f1 nodad", wire.far));
    wire.ip("addr del 10.0.1.1/24 dev w1");
    wire.ip("addr add 10.0.1.5/24 dev w1");
    let folder = Folder::new();
    folder.write("weir.yaml", CHECKED);
    let mut daemon = Daemon::start_in_namespace(folder, &wire.weir);
    let is = |daemon: &Daemon, name: &str, state: &str| {
        let rows = daemon.show("backends");
        let row = rows.as_array().into_iter().flatten().find(|row| row["name"] == name);
        row.is_some_and(|row| row["health"] == state)
    };
    // The host has an address for the one and none for the other.
    daemon.wait_for("an answer", |daemon| is(daemon, "b4", "up") && is(daemon, "b6", "down"));
    wire.ip("addr add 2001:db8:1::1/64 dev w1 nodad");
    daemon.wait_for("an answer to the new address", |daemon| is(daemon, "b6", "up"));
    wire.ip("addr del 10.0.1.5/24 dev w1");
    daemon.wait_for("no answer", |daemon| is(daemon, "b4", "down"));
    wire.ip("addr add 10.0.1.6/24 dev w1");
    daemon.wait_for("an answer to another address", |daemon| is(daemon, "b4", "up"));
    let ledger = daemon.show("ledger");
    assert_eq!((&ledger["dropped"], &ledger["held"]), (&json!({}), &json!(0)), "{ledger}");
}

#[test]
fn nat_pools_that_cannot_work_have_a_line_and_a_caret() {
    let folder = Folder::new();
    let pool = "{ addresses: 192.0.2.8/29 }";
    for (with, under, why) in [
        ("{ addresses: 192.0.2.8/29, ports: 2000-1000 }", "2000-1000", "is empty"),
        ("{ addresses: 192.0.2.8/29, ports: 1024-1080 }", "192.0.2.8/29", "at least 64"),
        ("{ addresses: 192.0.2.9/29 }", "192.0.2.9/29", "did you mean `192.0.2.8`"),
        ("{ addresses: [192.0.2.8, \"2001:db8::1\"] }", "[", "IPv4 and IPv6"),
        ("{ ports: 1024-65535 }", "world", "`addresses` is missing"),
        ("{ addresses: 192.0.2.8/29 }\n  more: { addresses: 192.0.2.15 }", "192.0.2.15", "shares"),
    ] {
        assert!(CONFIG.contains(pool));
        folder.write("nat.yaml", CONFIG.replace(pool, with));
        let said = weir(folder.path(), &["check", "nat.yaml"]);
        assert_eq!(said.code, Some(2), "{with}: {}", said.err);
        let lines: Vec<&str> = said.err.lines().collect();
        let at = lines.iter().position(|line| line.contains("error: ") && line.contains(why));
        let at = at.unwrap_or_else(|| panic!("no `{why}` in {}", said.err));
        let (text, caret) = (lines[at + 1], lines[at + 2]);
        assert_eq!(caret.find('^'), text.find(under), "{with}: {}", said.err);
    }
    let cases = [
        ("addresses: 192.0.2.8/29", "addresses: \"2001:db8::/120\"", "ipv6.src"),
        ("nat_pool: world }", "nat_pool: word }", "there is no NAT pool `word`"),
        (", nat_pool: world }", " }", "`{ per_flow: nat_pool }` is for a pipe with"),
        ("reverse: true, ", "", "needs `reverse: true`"),
        ("action: back", "action: to, set: { eth.dst: 02:00:00:00:00:fd }", "need an action without it"),
    ];
    for (from, to, why) in cases {
        assert!(CONFIG.contains(from), "{from}");
        folder.write("nat.yaml", CONFIG.replacen(from, to, 1));
        let said = weir(folder.path(), &["check", "nat.yaml"]);
        assert!(said.code == Some(2) && said.err.contains(why), "no `{why}` in {}", said.err);
    }
}
