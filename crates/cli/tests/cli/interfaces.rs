//! A daemon on real interfaces, and what can happen to them. Needs root.

use super::folder::Folder;
use super::running::Daemon;
use super::wire::{QUEUE, Wire, sh};
use serde_json::{Value, json};

/// A daemon in the wire's namespace.
fn daemon(wire: &Wire, config: &str) -> Daemon {
    let folder = Folder::new();
    folder.write("weir.yaml", config);
    Daemon::start_in_namespace(folder, &wire.weir)
}

/// Frames to w0 leave through w0 again.
const BACK: &str = "\
ports: { p0: { xdp: w0, queues: [0], take: [{ dst: 10.0.0.1, protocol: udp, dport: 7777 }], root: back } }
pipes: { back: { type: basic, forward: in_port, miss: drop } }
";

/// A frame that a port can never send must not be retried forever, or all later ones wait behind it.
#[test]
fn a_frame_without_an_ethernet_header_holds_up_nobody() {
    let Some(wire) = Wire::new("short", 1) else { return };
    let daemon = daemon(&wire, BACK);
    let inject = |hex: &str| daemon.ask(&json!({ "command": "inject", "hex": hex, "output": "p0" }));
    let refused = inject("0102030405060708090a0b0c0d")["error"].as_str().unwrap_or_default().to_string();
    assert!(refused.contains("malformed_ethernet"), "{refused}");
    assert_eq!(inject(&"02".repeat(60)), json!({ "done": true }));
    let ledger = daemon.show("ledger");
    assert_eq!((&ledger["transmitted"], &ledger["held"]), (&json!(1), &json!(0)));
    assert_eq!(ledger["dropped"], json!({ "malformed_ethernet": 1 }));
}

/// UDP to w0 leaves through w1, by a balancer that matches the port's own MAC address.
const FORWARD: &str = "\
ports:
  p0: { xdp: w0, queues: [0] }
  p1: { xdp: w1, queues: [0] }
apps:
  - lb:
      name: web
      port: p0
      out: p1
      by: source
      service: { vip: 10.0.0.1, protocol: udp, port: 7777 }
      back_ends: [{ name: b1, mac: 02:00:00:00:10:01 }]
";

/// The packet that `Running::send` sends, to w0 with this last byte of its MAC address.
fn packet(mac: u8) -> String {
    format!("eth.dst=02:00:00:00:00:{mac:02x} src=10.0.0.2 dst=10.0.0.1 proto=udp dport=7777")
}

impl Daemon {
    /// Sends a packet from the far end of w0 to w0.
    fn send(&self, wire: &Wire) {
        wire.far("bash -c 'echo hello >/dev/udp/10.0.0.1/7777'");
    }

    fn port(&self, name: &str) -> Value {
        let ports = self.show("ports");
        ports.as_array().unwrap().iter().find(|port| port["name"] == name).unwrap().clone()
    }

    fn wait_for_link(&mut self, port: &str, link: &str) {
        self.wait_for(link, |daemon| daemon.port(port)["link"] == link);
    }

    fn transmitted(&self) -> u64 {
        self.port("p1")["transmitted"].as_u64().unwrap()
    }

    /// Sends packets until one has been forwarded: a new interface may still lose some.
    fn forwards(&mut self, wire: &Wire) {
        let before = self.transmitted();
        self.wait_for("a packet through both ports", |daemon| {
            daemon.send(wire);
            daemon.transmitted() > before
        });
    }

    fn explained(&self, packet: &str) -> String {
        let answer = self.ask(&json!({ "command": "explain", "packet": packet, "port": "p0" }));
        answer["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_string()
    }

    fn dropped(&self, reason: &str) -> u64 {
        self.show("ledger")["dropped"][reason].as_u64().unwrap_or(0)
    }
}

/// The first line of `explain --live` reports XDP's decision, and agrees with what happens.
#[test]
fn explaining_live_begins_with_what_xdp_does() {
    let Some(wire) = Wire::new("xdp", 2) else { return };
    wire.add_wide(2, 0, 2);
    let two = FORWARD.replace("p1:", "p2: { xdp: w2, queues: [0], take: [{ dst: 10.0.2.1 }] }\n  p1:");
    let daemon = daemon(&wire, &two);
    let first = |packet: &str, port: &str| {
        let answer = daemon.ask(&json!({ "command": "explain", "packet": packet, "port": port }));
        let line = answer["text"].as_str().unwrap().lines().next().unwrap().to_string();
        (answer["xdp"]["verdict"].as_str().unwrap().to_string(), line, answer)
    };
    // The default destination is the port's own.
    let (verdict, line, answer) = first("src=10.0.0.2 dst=10.0.0.1 proto=udp dport=7777", "p0");
    assert_eq!((&*verdict, &*line), ("taken", "xdp     taken from w0, queue 0"));
    assert_eq!(answer["verdict"]["transmit"], "p1", "{answer}");
    let (verdict, line, _) = first("src=10.0.0.2 dst=10.0.0.1 proto=udp dport=22", "p0");
    assert!(verdict == "left" && line.starts_with("xdp     left to the host at w0: no rule"), "{line}");
    let (verdict, line, _) = first(&packet(9), "p0");
    assert!(
        verdict == "not_ours" && line.contains("its destination MAC address is not 02:00:00:00:00:00"),
        "{line}"
    );
    let (verdict, line, answer) = first("src=10.0.0.2 dst=10.0.2.1", "p2");
    assert!(verdict == "taken" && line.contains("on queue 0; on queue 1 it stays with the host"), "{line}");
    assert_eq!((&answer["xdp"]["queues"], &answer["xdp"]["other_queues"]), (&json!([0]), &json!([1])));
    let counted = ["p0", "p1", "p2"].map(|port| daemon.port(port)["received"].as_u64());
    assert_eq!(counted, [Some(0); 3], "explaining counts nothing");
}

/// The interface through which frames leave: frames to it are meanwhile dropped with an accurate reason.
#[test]
fn an_output_that_is_gone_drops_and_is_used_again_when_it_is_back() {
    let Some(wire) = Wire::new("output", 2) else { return };
    let mut daemon = daemon(&wire, FORWARD);
    daemon.forwards(&wire);
    assert_eq!(
        (&daemon.port("p1")["link"], &daemon.port("p1")["mode"]),
        (&json!("up"), &json!("native copy"))
    );
    wire.ip("link del w1");
    daemon.wait_for_link("p1", "gone");
    daemon.wait_for("the worker", |daemon| daemon.port("p1")["mode"] == "interface gone");
    let before = daemon.dropped("interface_gone");
    daemon.wait_for("drops", |daemon| {
        daemon.send(&wire);
        daemon.dropped("interface_gone") > before
    });
    assert_eq!(daemon.dropped("transmit_full"), 0);
    let explained = daemon.explained(&packet(0));
    assert!(
        explained.contains("interface w1 is gone: the frame is dropped as `interface_gone`"),
        "{explained}"
    );
    let injected = daemon.ask(&json!({ "command": "inject", "packet": "", "output": "p1" }));
    assert!(injected["error"].as_str().unwrap().contains("interface_gone"), "{injected}");
    daemon.weir(&["reload"]).good();
    wire.add(1, 0);
    daemon.wait_for_link("p1", "up");
    daemon.forwards(&wire);
    assert_eq!(daemon.port("p1")["mode"], "native copy");
    for line in ["port p1: interface w1 is gone;", "port p1: interface w1 is back and in use", "w1 is up"] {
        daemon.wait_for_log(line);
    }
    assert!(!daemon.explained(&packet(0)).contains("gone"));
    assert_eq!(daemon.weir(&["show", "--json"]).good().json()["balances"], true);
}

/// The interface on which frames arrive, with another MAC address: the program matches that from then on. A
/// reload meanwhile keeps the last one.
#[test]
fn an_input_that_is_made_anew_is_used_with_its_new_address() {
    let Some(wire) = Wire::new("input", 2) else { return };
    let mut daemon = daemon(&wire, FORWARD);
    daemon.forwards(&wire);
    let is_ours = |daemon: &Daemon, mac: u8| daemon.explained(&packet(mac)).contains("verdict transmit");
    assert_eq!((is_ours(&daemon, 0), is_ours(&daemon, 7)), (true, false));
    wire.ip("link del w0");
    daemon.wait_for_link("p0", "gone");
    daemon.weir(&["weight", "lb/web", "b1", "50"]).good();
    assert_eq!(daemon.weir(&["reload"]).code, Some(0));
    assert_eq!((is_ours(&daemon, 0), is_ours(&daemon, 7)), (true, false), "the last address is kept");
    wire.add(0, 7);
    daemon.wait_for_link("p0", "up");
    daemon.forwards(&wire);
    assert_eq!((is_ours(&daemon, 0), is_ours(&daemon, 7)), (false, true));
    daemon.wait_for_log("port p0: interface w0 has MAC address 02:00:00:00:00:07");
    daemon.wait_for_log("the program was rebuilt for the interface");
    assert_eq!(daemon.weir(&["show", "--json"]).good().json()["balances"], true);
}

/// Changes that do not remove the interface are followed without losing the port.
#[test]
fn an_interface_that_changes_is_followed() {
    let Some(wire) = Wire::new("changes", 2) else { return };
    let mut daemon = daemon(&wire, FORWARD);
    daemon.forwards(&wire);
    wire.ip("link set w1 down");
    daemon.wait_for_link("p1", "down");
    let explained = daemon.explained(&packet(0));
    assert!(explained.contains("interface w1 is down"), "{explained}");
    wire.ip("link set w1 name w9");
    wire.ip("link set w9 up");
    daemon.wait_for_link("p1", "up");
    wire.far("ip link set f1 down");
    daemon.wait_for_link("p1", "no carrier");
    wire.far("ip link set f1 up");
    daemon.wait_for_link("p1", "up");
    daemon.forwards(&wire);
    let long = json!({ "command": "inject", "hex": "02".repeat(1500), "output": "p1" });
    assert_eq!(daemon.ask(&long), json!({ "done": true }));
    wire.ip("link set w9 mtu 1000");
    daemon.wait_for_log("MTU 1000");
    assert!(daemon.ask(&long)["error"].as_str().unwrap().contains("oversize"));
    wire.ip("link set w0 address 02:00:00:00:00:09");
    // Linux announces a new address only if configured to.
    wire.far("ip neigh flush dev f0");
    daemon.wait_for("the MAC address", |daemon| daemon.explained(&packet(9)).contains("verdict transmit"));
    daemon.forwards(&wire);
    for line in ["w1 is down", "w9 was renamed from w1 to w9", "w9 is up", "w9 has no carrier"] {
        daemon.wait_for_log(&format!("port p1: interface {line}"));
    }
    assert_eq!(daemon.weir(&["show", "--json"]).good().json()["balances"], true);
}

/// Frames larger than a page arrive in pieces, are joined, and leave unchanged; all are accounted for.
#[test]
fn frames_of_mtu_9000_come_back_among_small_ones() {
    let Some(wire) = Wire::new("jumbo", 1) else { return };
    wire.ip("link set w0 mtu 9000");
    wire.far("ip link set f0 mtu 9000");
    let mut daemon = daemon(&wire, &format!("mtu: 9000\n{}", BACK.replace("miss: drop", "miss: in_port")));
    assert_eq!(daemon.port("p0")["mode"], "native copy");
    let frames = |daemon: &Daemon| daemon.port("p0")["transmitted"].as_u64().unwrap();
    let mut bytes = 0;
    for (number, length) in [8972, 10, 8900, 4000, 1000, 8972].into_iter().enumerate() {
        let one = format!("dd if=/dev/zero bs={length} count=1 status=none >/dev/udp/10.0.0.1/7777");
        wire.far(&format!("bash -c '{one}'"));
        daemon.wait_for("a frame", |daemon| frames(daemon) == number as u64 + 1);
        bytes += length + 42;
    }
    let port = daemon.port("p0");
    assert_eq!((&port["received"], &port["received_bytes"]), (&json!(6), &json!(bytes)));
    assert_eq!(port["transmitted_bytes"], json!(bytes));
    assert_eq!(port["extra"]["frames_joined"], json!(4), "{port}");
    let ledger = daemon.show("ledger");
    assert_eq!((&ledger["transmitted"], &ledger["dropped"]), (&json!(6), &json!({})));
    assert_eq!(daemon.weir(&["show", "--json"]).good().json()["balances"], true);
}

/// Changes that a reload cannot make are refused with a list of everything that needs a restart, and nothing
/// is changed; faults and recordings can be changed.
#[test]
fn a_reload_changes_faults_and_recordings_and_refuses_what_needs_a_restart() {
    let Some(wire) = Wire::new("reload", 2) else { return };
    let mut daemon = daemon(&wire, FORWARD);
    daemon.forwards(&wire);
    let reload = |daemon: &Daemon, port: &str, more: &str| {
        let text = FORWARD.replace("p0: { xdp: w0, queues: [0]", &format!("p0: {{ xdp: w0, {port}"));
        daemon.folder.write("weir.yaml", text + more);
        daemon.weir(&["reload"])
    };
    let wrong = reload(&daemon, "queues: all, mode: generic", "workers: [0]\nbusy: true\n");
    wrong.refused(
        1,
        &[
            "restart",
            "`workers` (1 to cores [0]: remaining workers keep their cores",
            "`busy`",
            "`queues` or `mode` of port `p0` (remove",
        ],
    );
    daemon.forwards(&wire);
    reload(&daemon, "queues: [0], fault: { loss: 100% }, trace: t.pcap", "").good();
    let before = daemon.transmitted();
    daemon.wait_for("lost packets", |daemon| {
        daemon.send(&wire);
        daemon.port("p0")["extra"]["receive_lost"].as_u64() > Some(2)
    });
    assert_eq!(daemon.transmitted(), before);
    reload(&daemon, "queues: [0], trace: t.pcap", "").good();
    daemon.forwards(&wire);
    reload(&daemon, "queues: [0]", "").good();
    daemon.forwards(&wire);
    assert_eq!(daemon.port("p0")["mode"], "native copy");
    let records =
        weir_port::pcap::Reader::open(std::fs::File::open(daemon.folder.file("t.in.pcap")).unwrap());
    assert!(records.unwrap().count() >= 1, "what the program saw while it was traced");
    assert_eq!(daemon.weir(&["show", "--json"]).good().json()["balances"], true);
}

/// A station in a VLAN, which resolves a station behind the gateway, and then requests 20 echoes of 1300
/// bytes from it. It uses a raw socket, because the kernel may lack VLAN devices; it gets the tag as
/// metadata.
const STATION: &str = r#"
import socket, struct, sys
vid, other = int(sys.argv[1]), socket.inet_aton(sys.argv[2])
own, mac = other[:3] + b"\x02", bytes([2, 0, 0, 0, 10, vid])
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.setsockopt(263, 8, 1)
wire.bind(("t0", 0))
wire.settimeout(0.2)
def send(to, kind, payload):
    wire.send(to + mac + struct.pack("!HHH", 0x8100, vid, kind) + payload.ljust(46, b"\0"))
def receive(kind):
    while True:
        frame, beside, _, _ = wire.recvmsg(4096, 256)
        tag = struct.unpack("IIIHHHH", beside[0][2])[5] if beside else 0
        if frame[:6] == mac and frame[12:14] == struct.pack("!H", kind) and tag & 0xfff == vid:
            return frame[14:]
def asked(to, kind, payload):
    for _ in range(50):
        send(to, kind, payload)
        try:
            return receive(kind)
        except socket.timeout:
            pass
    sys.exit("no answer to %x" % kind)
def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return total ^ 0xffff
reply = asked(b"\xff" * 6, 0x0806, struct.pack("!HHBBH", 1, 0x800, 6, 4, 1) + mac + own + bytes(6) + other)
assert reply[14:18] == other, reply
there = reply[8:14]
for number in range(20):
    echo = struct.pack("!BBHHH", 8, 0, 0, 7, number) + bytes(1300)
    echo = echo[:2] + struct.pack("!H", checksum(echo)) + echo[4:]
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(echo), 0, 0, 64, 1, 0) + own + other
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    answer = asked(there, 0x0800, head + echo)
    assert answer[20] == 0 and checksum(answer[20:20 + len(echo)]) == 0, answer
print("answered")
"#;

/// The example configuration, unmodified, between VLANs and the kernel's own tunnel devices.
#[test]
fn the_vxlan_gateway_connects_vlans_with_the_kernels_tunnels() {
    let Some(wire) = Wire::new("vxlan", 0) else { return };
    let Wire { weir, far, third, .. } = &wire;
    let ip = |netns: &str, lines: &[&str]| {
        lines.iter().for_each(|line| _ = sh(&format!("ip -n {netns} {line}")));
    };
    ip(
        weir,
        &[
            &format!(
                "link add eth0 address 02:00:00:00:01:02 {QUEUE} type veth \
                 peer name f0 address 02:00:00:00:01:01 {QUEUE} netns {far}"
            ),
            &format!("link add eth1 {QUEUE} type veth peer name t0 {QUEUE} netns {third}"),
            "addr add 192.0.2.2/24 dev eth0",
            "link set eth0 up",
            "link set eth1 up",
        ],
    );
    sh(&format!("ip netns exec {far} ethtool -K f0 tx off txvlan off"));
    sh(&format!("ip netns exec {third} ethtool -K t0 tx off txvlan off"));
    ip(third, &["link set t0 up"]);
    ip(far, &["link set f0 up", "addr add 192.0.2.10/24 dev f0", "addr add 192.0.2.20/24 dev f0"]);
    for vid in [10, 20] {
        ip(
            far,
            &[
                &format!(
                    "link add vx{vid} type vxlan id 50{vid} local 192.0.2.{vid} remote 192.0.2.2 dstport 4789"
                ),
                &format!("addr add 10.{vid}.0.1/24 dev vx{vid}"),
                &format!("link set vx{vid} up"),
            ],
        );
    }
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/vxlan-gateway.yaml");
    let mut daemon = daemon(&wire, &std::fs::read_to_string(example).unwrap());
    let promiscuous = || sh(&format!("ip -d -n {weir} link show eth1")).contains("promiscuity 1");
    assert!(promiscuous(), "while it runs");
    let folder = Folder::new();
    let station = folder.write("station.py", STATION);
    for vid in ["10", "20"] {
        let run = format!("ip netns exec {third} python3 {} {vid} 10.{vid}.0.1", station.display());
        assert_eq!(sh(&run), "answered\n");
    }
    assert_eq!(daemon.weir(&["show", "--json"]).good().json()["balances"], true);
    let advice = format!("nsenter --net=/run/netns/{third} ethtool -K t0 tx-vlan-stag-hw-insert off");
    daemon.wait_for_log(&advice);
    let log = daemon.log();
    assert!(!log.contains("tx off"), "what was done is not said again: {log}");
    daemon.signal(rustix::process::Signal::KILL);
    daemon.end();
    daemon.wait_for("it is as before, however it ends", |_| !promiscuous());
}
