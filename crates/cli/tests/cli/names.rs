//! Which interface a name refers to: one in the process's own network namespace, whatever its current name.
//! Needs root.

use super::CommandOutput;
use super::folder::Folder;
use super::running::Daemon;
use super::wire::{Wire, sh};
use std::process::Command;

/// UDP to w0 is balanced by an app that matches the interface's MAC address.
fn web(back_end: &str) -> String {
    format!(
        "ports: {{ p0: {{ xdp: w0, queues: [0] }} }}
apps:
  - lb:
      name: web
      port: p0
      by: source
      service: {{ vip: 10.0.0.1, protocol: udp, port: 7777 }}
      back_ends: [{{ name: b1, {back_end} }}]
"
    )
}

/// Runs weir in the namespace with this namespace's /sys, as after `setns`.
fn weir(wire: &Wire, arguments: &[&str]) -> CommandOutput {
    let net = format!("--net=/run/netns/{}", wire.weir);
    let mut command = Command::new("nsenter");
    CommandOutput::of(command.args([&net, env!("CARGO_BIN_EXE_weir")]).args(arguments).output().unwrap())
}

#[test]
fn an_interface_is_looked_up_in_the_namespace_of_the_process() {
    let Some(wire) = Wire::new("own", 1) else { return };
    let folder = Folder::new();
    let file = folder.write("weir.yaml", web("mac: 02:00:00:00:10:01")).display().to_string();
    let checked = weir(&wire, &["check", &file]).good();
    assert!(!checked.err.contains("no interface"), "{}", checked.err);
    let verdict = |mac: &str| {
        let packet = format!("eth.dst={mac} src=10.0.0.2 dst=10.0.0.1 proto=udp dport=7777");
        weir(&wire, &["explain", &file, "--packet", &packet]).good().out
    };
    let (own, other) = (verdict("02:00:00:00:00:00"), verdict("02:00:00:00:00:09"));
    assert!(own.contains("verdict transmit") && !other.contains("verdict transmit"), "{own}\n{other}");
}

/// A station behind w0 is the back end, and is resolved by the kernel.
const RESOLVED: &str = "ip: 10.0.0.2";

/// Longer than the limit for a name that is not an alternative one.
const LONG: &str = "the-uplink-of-rack-17";

fn start(wire: &Wire) -> Daemon {
    let folder = Folder::new();
    folder.write("weir.yaml", web(RESOLVED));
    let mut daemon = Daemon::start_in_namespace(folder, &wire.weir);
    forwards(wire, &mut daemon);
    daemon
}

/// Sends packets until one has been forwarded.
fn forwards(wire: &Wire, daemon: &mut Daemon) {
    let sent = |daemon: &Daemon| daemon.show("ledger")["transmitted"].as_u64().unwrap();
    let before = sent(daemon);
    daemon.wait_for("a packet to the back end", |daemon| {
        wire.far("bash -c 'echo hello >/dev/udp/10.0.0.1/7777'");
        sent(daemon) > before
    });
}

fn says(daemon: &mut Daemon, line: &str) {
    daemon.wait_for(line, |daemon| daemon.log().contains(line));
}

fn reload(daemon: &Daemon, name: &str) -> CommandOutput {
    daemon.folder.write("weir.yaml", web(RESOLVED).replace("xdp: w0", &format!("xdp: {name}")));
    daemon.weir(&["reload"])
}

#[test]
fn a_renamed_interface_is_the_same_for_everybody() {
    let Some(wire) = Wire::new("renamed", 1) else { return };
    let mut daemon = start(&wire);
    ["down", "name up0"].iter().for_each(|to| wire.ip(&format!("link set w0 {to}")));
    wire.ip("link set up0 up");
    says(&mut daemon, "port p0: interface up0 was renamed from w0 to up0");
    // Long enough for routes and neighbours to be reread.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    forwards(&wire, &mut daemon);
    reload(&daemon, "w0").good();
    forwards(&wire, &mut daemon);
    reload(&daemon, "up0").good();
    forwards(&wire, &mut daemon);
    wire.ip(&format!("link property add dev up0 altname {LONG}"));
    let said = reload(&daemon, LONG).good();
    assert!(!said.out.contains("opened"), "{}", said.out);
    forwards(&wire, &mut daemon);
    let twice = web(RESOLVED).replace("ports: {", &format!("ports: {{ p1: {{ xdp: {LONG} }},"));
    let file = daemon.folder.write("twice.yaml", twice.replace("w0", "up0")).display().to_string();
    let said = weir(&wire, &["check", &file]);
    assert!(
        said.code == Some(2) && said.err.contains("interface `up0` is already port `p1`"),
        "{}",
        said.err
    );
    assert!(daemon.succeed_in_namespace(&wire.weir).success(), "{}", daemon.log());
    forwards(&wire, &mut daemon);
    // The name now refers to another interface.
    wire.add(1, 0);
    wire.ip("link set w1 down");
    wire.ip("link set w1 name w0");
    wire.ip("link set w0 up");
    let said = reload(&daemon, "w0").good();
    assert!(said.out.contains("port p0 opened; port p0 closed"), "{}", said.out);
    let log = daemon.log();
    assert!(!log.contains("there is no interface"), "{log}");
}

#[test]
fn an_interface_that_leaves_for_another_namespace_is_gone_until_it_is_back() {
    let Some(wire) = Wire::new("moved", 1) else { return };
    let mut daemon = start(&wire);
    let state = |daemon: &Daemon| daemon.show("ports")[0]["link"].as_str().unwrap().to_string();
    wire.ip(&format!("link set w0 netns {}", wire.third));
    says(&mut daemon, "port p0: interface w0 has moved to another network namespace");
    assert_eq!(state(&daemon), "gone");
    sh(&format!("ip -n {} link set w0 netns {}", wire.third, wire.weir));
    wire.ip("addr add 10.0.0.1/24 dev w0");
    wire.ip("link set w0 up");
    daemon.wait_for("the interface", |daemon| state(daemon) == "up");
    forwards(&wire, &mut daemon);
    assert_eq!(daemon.weir(&["show", "--json"]).good().json()["balances"], true);
}

/// The far end leaves checksums to hardware that a veth does not have.
#[test]
fn wrong_checksums_are_counted_and_the_advice_ends_when_it_was_followed() {
    let Some(wire) = Wire::new("checksums", 1) else { return };
    wire.far("ethtool -K f0 tx on");
    let mut daemon = start(&wire);
    let counted = |daemon: &Daemon, name: &str| daemon.show("ports")[0]["extra"][name].as_u64().unwrap();
    // The first frame is sampled.
    assert_eq!((counted(&daemon, "checksums_sampled"), counted(&daemon, "checksums_wrong")), (1, 1));
    let shown = daemon.weir(&["show", "ports"]).good().out;
    assert!(shown.contains("checksums_wrong"), "{shown}");
    let metrics = daemon.metrics();
    for name in ["sampled", "wrong"] {
        let line = format!("weir_port_checksums_{name}_total{{port=\"p0\"}} 1");
        assert!(metrics.contains(&line), "no {line} in {metrics}");
    }
    let ports = || sh(&format!("ip netns exec {} {} ports", wire.weir, env!("CARGO_BIN_EXE_weir")));
    let far = format!("`nsenter --net=/run/netns/{} ethtool -K f0", wire.far);
    let said = ports();
    assert!(said.contains(&format!("{far} tx off tx-vlan-stag-hw-insert off`")), "{said}");
    daemon.wait_for_log(&far);
    wire.far("ethtool -K f0 tx off tx-vlan-stag-hw-insert off");
    assert!(!ports().contains("ethtool -K"), "{}", ports());
    let sent = "import socket\nfor _ in range(256): socket.socket(2, 2).sendto(b\"x\", (\"10.0.0.1\", 7777))";
    wire.far(&format!("python3 -c '{sent}'"));
    daemon.wait_for("the next sample", |daemon| counted(daemon, "checksums_sampled") == 2);
    assert_eq!(counted(&daemon, "checksums_wrong"), 1);
}

/// Frames arrive on both queues, of which weir has one.
#[test]
fn what_arrives_on_other_queues_is_counted_and_warned_of() {
    let Some(wire) = Wire::new("queues", 0) else { return };
    wire.add_wide(0, 0, 2);
    let (folder, two) = (Folder::new(), web(RESOLVED).replace("queues: [0]", "queues: [1]"));
    let file = folder.write("weir.yaml", two).display().to_string();
    let said = weir(&wire, &["check", &file]);
    let remedy = "`ethtool -X w0 weight 0 1`, or `queues: all` and `workers: 2`";
    assert!(said.err.contains("w0 has 2 receive queues") && said.err.contains(remedy), "{}", said.err);
    let file = folder.write("weir.yaml", web(RESOLVED)).display().to_string();
    let said = weir(&wire, &["check", &file]);
    assert!(said.err.contains("`ethtool -L w0 rx 1`, or `queues: all`"), "{}", said.err);
    let mut daemon = Daemon::start_in_namespace(folder, &wire.weir);
    daemon.wait_for_log("`ethtool -L w0 rx 1`");
    let counted = |daemon: &Daemon, name: &str| {
        let port = &daemon.show("ports")[0];
        port["extra"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {port}"))
    };
    // A veth spreads flows over queues by a hash: some of these are on each.
    let flows = "for port in $(seq 7700 7763); do echo x >/dev/udp/10.0.0.1/$port; done";
    wire.far(&format!("bash -c '{flows}'"));
    daemon.wait_for("frames", |daemon| counted(daemon, "xdp_passed") >= 63);
    let send = "import socket; [socket.socket(2, 2).sendto(b\"x\", (\"10.0.0.1\", 7777)) for _ in range(64)]";
    wire.far(&format!("python3 -c '{send}'"));
    daemon.wait_for("64 frames", |daemon| {
        counted(daemon, "xdp_taken") + counted(daemon, "xdp_redirect_failed") == 64
    });
    assert!(counted(&daemon, "xdp_redirect_failed") > 0 && counted(&daemon, "xdp_taken") > 0);
}
