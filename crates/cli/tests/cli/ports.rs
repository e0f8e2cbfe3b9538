//! Ports that are added and removed by reloads, in network namespaces, while others carry frames. Needs root.

use super::folder::Folder;
use super::running::Daemon;
use super::wire::Wire;
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};

/// Frames that arrive at p0, and at p2 if it exists, are counted in flows and leave through p1.
pub const TWO: &str = "\
ports:
  p0: { xdp: w0, queues: [0], take: [{ dst: 10.0.0.1, protocol: udp, dport: 7777 }], root: flows }
  p1: { xdp: w1, queues: [0], take: [{ dst: 10.0.1.1, protocol: udp, dport: 7777 }], root: ways }
pipes:
  flows:
    type: flow
    learn: default
    capacity: 1024
    forward: p1
    miss: drop
    entries: [{ match: default }]
  ways: { type: basic, match: { udp.dport: per_entry }, forward: per_entry, miss: drop }
";

/// The line of the third port; the others come before it and are unchanged.
pub const THIRD: &str =
    "  p2: { xdp: w2, queues: [0], take: [{ dst: 10.0.2.1, protocol: udp, dport: 7777 }], root: flows }\n";

/// Sends packets at a given rate per second to an address, from 50 ports in turn.
const SENDER: &str = "\
import socket, sys, time
to, count, rate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ends = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(50)]
for at, end in enumerate(ends): end.bind(('', 20000 + 100 * int(to.split('.')[2]) + at))
begin = time.monotonic()
for number in range(count):
    ends[number % 50].sendto(b'x' * 18, (to, 7777))
    ahead = number / rate - (time.monotonic() - begin)
    if ahead > 0.002: time.sleep(ahead)
";

/// Begins to send, at the far end.
pub fn send(wire: &Wire, to: &str, count: u32, rate: u32) -> Child {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &wire.far, "python3", "-c", SENDER]);
    command.args([to, &count.to_string(), &rate.to_string()]).stdin(Stdio::null());
    command.spawn().expect("python3 runs")
}

/// Packets to p0 while something is done in turns.
pub struct TrafficInTurns<'a> {
    wire: &'a Wire,
    stream: Child,
    packets: u32,
    /// How many there are.
    pub sent: u64,
}

impl TrafficInTurns<'_> {
    /// Begins to send this many.
    pub fn start(wire: &Wire, packets: u32) -> TrafficInTurns<'_> {
        let stream = send(wire, "10.0.0.1", packets, 2000);
        TrafficInTurns { wire, stream, packets, sent: packets.into() }
    }

    /// Whether they have been sent. A turn may take longer than that if the machine is busy: as many are sent
    /// again until there have been two.
    pub fn is_over(&mut self, turns: u32) -> bool {
        let has_ended = self.stream.try_wait().unwrap().is_some();
        if has_ended && turns < 2 {
            let sent = self.sent;
            *self = TrafficInTurns::start(self.wire, self.packets);
            self.sent += sent;
            return false;
        }
        has_ended
    }
}

/// Packets that have reached the far end of a pair.
pub fn arrived(wire: &Wire, pair: u32) -> u64 {
    let said = wire.far(&format!("cat /sys/class/net/f{pair}/statistics/rx_packets"));
    said.trim().parse().expect("a number")
}

/// Returns the configuration with these lines of ports.
pub fn with(third: &str) -> String {
    TWO.replace("pipes:\n", &format!("{third}pipes:\n"))
}

pub fn write(daemon: &Daemon, config: &str) {
    daemon.folder.write("weir.yaml", config);
}

pub fn balances(daemon: &Daemon) -> Value {
    let shown = daemon.weir(&["show", "--json"]).good().json();
    assert_eq!(shown["balances"], true, "{}", shown["ledger"]);
    shown
}

fn names(daemon: &Daemon) -> Vec<String> {
    let ports = daemon.show("ports");
    ports.as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap().to_string()).collect()
}

#[test]
fn a_port_comes_and_goes_under_traffic_and_the_others_lose_nothing() {
    const PACKETS: u32 = 12_000;
    let Some(wire) = Wire::new("ports", 3) else { return };
    let folder = Folder::new();
    folder.write("weir.yaml", TWO);
    let mut daemon = Daemon::start_in_namespace(folder, &wire.weir);
    let before = arrived(&wire, 1);
    let mut traffic = TrafficInTurns::start(&wire, PACKETS);
    daemon.wait_for("flows", |daemon| daemon.show("ledger")["transmitted"].as_u64() > Some(100));
    let (mut others, mut turns) = (0, 0);
    while !traffic.is_over(turns) {
        turns += 1;
        write(&daemon, &with(THIRD));
        let said = daemon.weir(&["reload"]).good();
        let flows = if turns == 1 { 50 } else { 100 };
        let kept = format!("1 entries and {flows} flows kept; port p2 opened");
        assert!(said.out.contains(&kept), "{}", said.out);
        assert_eq!(names(&daemon), ["p0", "p1", "p2"]);
        daemon.weir(&["entry", "add", "ways", "{ match: { udp.dport: 53 }, forward: p2 }"]).good();
        // The new port receives, and its frames leave through an old one.
        assert!(send(&wire, "10.0.2.1", 50, 1000).wait().unwrap().success());
        others += 50;
        let port = |daemon: &Daemon, at: usize| daemon.show("ports")[at].clone();
        daemon.wait_for("p2", |daemon| port(daemon, 2)["received"] == 50);
        assert_eq!(port(&daemon, 2)["mode"], "native copy");
        // A port that cannot be opened changes nothing, even though the file contains more changes.
        let broken = with("  p3: { xdp: w9 }\n").replace("capacity: 1024", "capacity: 512");
        write(&daemon, &broken);
        daemon.weir(&["reload"]).refused(1, &["nothing was changed", "port `p3`", "w9"]);
        assert_eq!(names(&daemon), ["p0", "p1", "p2"]);
        write(&daemon, TWO);
        let said = daemon.weir(&["reload"]).good();
        assert!(
            said.out.contains("pipe ways: 1 entries and 0 flows removed; port p2 closed"),
            "{}",
            said.out
        );
        assert_eq!(names(&daemon), ["p0", "p1"]);
        // Packets that arrive now are left to the kernel.
        assert!(send(&wire, "10.0.2.1", 10, 1000).wait().unwrap().success());
    }
    let all = traffic.sent + others;
    daemon.wait_for("all packets", |daemon| daemon.show("ledger")["transmitted"].as_u64() >= Some(all));
    let ledger = balances(&daemon)["ledger"].clone();
    assert_eq!((&ledger["received"], &ledger["transmitted"]), (&all.into(), &all.into()), "{ledger}");
    assert_eq!(arrived(&wire, 1) - before, all);
    assert_eq!(daemon.weir(&["show", "deltas", "--json"]).good().json()["flow_account"]["met"], all);
    daemon.weir(&["stop"]).good();
    daemon.end();
    let log = daemon.log();
    assert!(log.contains("every frame is accounted for") && log.contains("none lost"), "{log}");
}

/// Every worker opens its queue of a new port on memory of its own, and releases both when the port is
/// removed.
#[test]
fn two_workers_open_and_close_a_port() {
    let two = "workers: 2\n".to_string() + TWO;
    let two =
        two.replace("xdp: w0, queues: [0], take: [{ dst: 10.0.0.1, protocol: udp, dport: 7777 }]", "mem: ");
    let two =
        two.replace("xdp: w1, queues: [0], take: [{ dst: 10.0.1.1, protocol: udp, dport: 7777 }]", "mem: ");
    let mut daemon = Daemon::start(&two);
    for turn in 0..3_u32 {
        write(&daemon, &two.replace("pipes:\n", "  p2: { mem: , root: flows }\npipes:\n"));
        assert!(daemon.weir(&["reload"]).good().out.contains("; port p2 opened"));
        for sport in 1..=20 {
            let packet = format!("src=10.0.0.2 dst=10.0.0.1 proto=udp sport={sport} dport=7777");
            let inject = json!({ "command": "inject", "packet": packet, "input": "p2" });
            assert_eq!(daemon.ask(&inject), json!({ "done": true }));
            let out = json!({ "command": "inject", "packet": packet, "output": "p2" });
            assert_eq!(daemon.ask(&out), json!({ "done": true }));
        }
        write(&daemon, &two);
        assert!(daemon.weir(&["reload"]).good().out.contains("20 flows kept; port p2 closed"));
        let ledger = balances(&daemon)["ledger"].clone();
        assert_eq!(ledger["transmitted"], 40 * (turn + 1), "{ledger}");
    }
    daemon.weir(&["stop"]).good();
    assert!(daemon.end().success());
    daemon.wait_for_log("every frame is accounted for");
}
