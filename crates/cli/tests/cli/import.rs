//! Configurations imported from other systems are valid and run.

use super::folder::Folder;
use super::running::Daemon;
use super::weir;
use serde_json::json;
use std::process::{Child, Command, Stdio};

/// Services without back ends, in each system's format.
const EMPTY: [(&str, &str); 6] = [
    ("ipvs", "-A -t 10.0.0.80:80 -s rr\n"),
    ("ipvs", "-A -t 10.0.0.80:80 -s wlc -p 300\n"),
    ("ipvs", "-A -t 10.0.0.80:80 -s sh\n-A -u 10.0.0.80:80 -s mh\n"),
    ("katran", "-A -t 10.0.0.80:80 -vf NO_SPORT\n-A -u 10.0.0.80:443 -vf QUIC_VIP\n"),
    ("katran", "-A -t 10.0.0.80:80\n-a -t 10.0.0.80:80 -r 10.0.1.1\n-d -t 10.0.0.80:80 -r 10.0.1.1\n"),
    (
        "glb",
        r#"{ "tables": [ { "name": "empty", "hash_key": "12345678901234561234567890123456",
            "seed": "34567890123456783456789012345678",
            "binds": [{ "ip": "10.0.0.80", "proto": "tcp", "port": 80 }], "backends": [] } ] }"#,
    ),
];

const SYN: &str = "eth.dst=02:00:00:00:00:fe src=192.0.2.7 dst=10.0.0.80 proto=tcp sport=9 dport=80 flags=S";

#[test]
fn services_without_back_ends_are_imported_checked_and_run_until_they_get_some() {
    for (system, text) in EMPTY {
        let folder = Folder::new();
        folder.write("other", text);
        let imported = weir(folder.path(), &["import", system, "other", "--in", "p0"]);
        assert_eq!(imported.code, Some(0), "{text}: {}", imported.err);
        let config = imported.out.replace("  in: { xdp: p0 }", "  p0: { mem: ~ }");
        folder.write("weir.yaml", config.replace("port: in\n", "port: p0\n"));
        let checked = weir(folder.path(), &["check", "weir.yaml"]);
        assert_eq!(checked.code, Some(0), "{text}: {}", checked.err);
        assert!(checked.err.contains("has no targets"), "{text}: {}", checked.err);
        let daemon = Daemon::start_in(folder);
        daemon.receive(&[SYN]);
        let ledger = daemon.show("ledger");
        assert_eq!(ledger["dropped"], json!({ "no_target": 1 }), "{text}: {ledger}");
        let services = daemon.weir(&["lb", "list", "--json"]).good().json();
        let name =
            services["services"][0]["name"].as_str().unwrap_or_else(|| panic!("{services}")).to_string();
        let back_end = "{ name: b1, mac: 02:00:00:00:00:11, address: 10.0.1.1 }";
        drop(daemon.weir(&["lb", "add", &name, back_end]).good());
        daemon.receive(&[SYN]);
        assert_eq!(daemon.count(&format!("lb/{name}/b1")), 1, "{text}");
        assert_eq!(daemon.show("ledger")["held"], 0);
    }
}

/// Runs what `weir import xenoflow` writes with these options, for two back ends, on a memory port.
fn xenoflow(options: &[&str]) -> Daemon {
    let folder = Folder::new();
    folder.write(
        "backends.json",
        r#"{"backends":[{"name":"b1","mac_address":"02:00:00:00:00:11"},
            {"name":"b2","mac_address":"02:00:00:00:00:12","weight":3}]}"#,
    );
    let command = [&["import", "xenoflow", "backends.json", "--vip", "10.0.0.80"], options].concat();
    let yaml = weir(folder.path(), &command).good().out;
    let ports = yaml.lines().find(|line| line.starts_with("  in: ")).unwrap_or_else(|| panic!("{yaml}"));
    let root = if ports.contains("root: balance") { ", root: balance" } else { "" };
    let yaml = yaml.replace(ports, &format!("  p0: {{ mem: ~{root} }}")).replace("port: in\n", "port: p0\n");
    folder.write("weir.yaml", yaml);
    Daemon::start_in(folder)
}

/// Packets to the VIP from as many sources.
fn from_sources(count: u8, more: &str) -> Vec<String> {
    let packet =
        |last| format!("eth.dst=02:00:00:00:00:fe src=192.0.2.{last} dst=10.0.0.80 sport=9 dport=80 {more}");
    (0..count).map(packet).collect()
}

fn receive(daemon: &Daemon, packets: &[String]) {
    daemon.receive(&packets.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn only_udp_is_balanced_as_by_xenoflow_if_that_is_wanted() {
    for (by, counter) in [("src/0.0.0.3", ""), ("source", ""), ("service", "lb/balance/")] {
        let options = if by == "service" { &["--service"][..] } else { &["--by", by][..] };
        for udp_only in [false, true] {
            let more = if udp_only { &["--udp-only"][..] } else { &[] };
            let daemon = xenoflow(&[options, more].concat());
            receive(&daemon, &from_sources(8, "proto=udp"));
            receive(&daemon, &from_sources(8, "proto=tcp flags=S"));
            let count = ["b1", "b2"].map(|name| daemon.count(&format!("{counter}{name}")));
            let all = if udp_only { 8 } else { 16 };
            assert_eq!(count.iter().sum::<u64>(), all, "{by}: {}", daemon.show("ledger"));
        }
    }
}

/// XenoFlow's rule has no weights that could change; the service has, with the same shares.
#[test]
fn back_ends_of_xenoflow_become_a_service_with_weights_that_change_at_run_time() {
    let daemon = xenoflow(&["--service"]);
    let packets = from_sources(200, "proto=udp");
    let counts = |daemon: &Daemon| ["b1", "b2"].map(|name| daemon.count(&format!("lb/balance/{name}")));
    receive(&daemon, &packets);
    let [one, three] = counts(&daemon);
    assert!(one + three == 200 && (25..=75).contains(&one), "a quarter is the share of b1: {one}, {three}");
    receive(&daemon, &packets);
    assert_eq!(counts(&daemon), [2 * one, 2 * three], "a known source keeps its back end");
    daemon.weir(&["weight", "lb/balance", "b2", "0"]).good();
    receive(&daemon, &packets);
    assert_eq!(counts(&daemon), [2 * one + 200, 2 * three], "b2 is drained");
}

/// The database server of an Open vSwitch, without a switch; stopped when dropped.
struct Database {
    server: Child,
    remote: String,
}

impl Database {
    fn start(folder: &Folder) -> Database {
        let file = |name: &str| folder.file(name).display().to_string();
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        let made = Command::new("ovsdb-tool").args(["create", &file("conf.db"), schema]).status().unwrap();
        assert!(made.success());
        let mut server = Command::new("ovsdb-server");
        server.args([&file("conf.db"), &format!("--remote=punix:{}", file("db.sock")), "-vconsole:off"]);
        server.arg(format!("--unixctl={}", file("db.ctl"))).stdin(Stdio::null());
        let server = server.spawn().expect("Debian's openvswitch-switch is installed");
        // Whatever connects waits until the server listens.
        let database = Database { server, remote: format!("--db=unix:{}", file("db.sock")) };
        database.vsctl(&["init"]);
        database
    }

    fn vsctl(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("ovs-vsctl");
        command.args([&self.remote, "--no-wait", "--timeout=30", "--retry"]).args(arguments);
        let done = command.output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The tables are those that Debian's ovs-vsctl prints.
#[test]
fn a_bond_of_open_vswitch_is_imported_and_checked() {
    let folder = Folder::new();
    let database = Database::start(&folder);
    database.vsctl(&["add-br", "br0", "--", "add-port", "br0", "vif1"]);
    let settings = "bond_mode=balance-tcp lacp=passive bond_downdelay=40 other_config:lb-output-action=true \
                    other_config:lacp-time=fast other_config:bond-rebalance-interval=0";
    let bond = ["add-bond", "br0", "bond0", "eth1", "eth2"];
    database.vsctl(&[&bond[..], &settings.split_whitespace().collect::<Vec<_>>()].concat());
    // Without LACP, this mode sends nothing in Open vSwitch, and weir refuses it.
    database.vsctl(&["add-bond", "br0", "bond1", "eth3", "eth4", "bond_mode=balance-tcp"]);
    let tables = "--format=json list bridge -- list port -- list interface";
    folder.write("ovs.json", database.vsctl(&tables.split_whitespace().collect::<Vec<_>>()));

    let imported = weir(folder.path(), &["import", "ovs", "ovs.json", "--bond", "bond0", "--inside", "vif1"]);
    assert_eq!((imported.code, imported.err.as_str()), (Some(0), ""), "{}", imported.out);
    for line in [
        "mode: balance_tcp",
        "members: [eth1, eth2]",
        "inside: vif1",
        "lacp: { mode: passive, rate: fast }",
        "downdelay: 40ms",
        "rebalance: never",
    ] {
        assert!(imported.out.contains(line), "{line}: {}", imported.out);
    }
    folder.write("weir.yaml", imported.out);
    let checked = weir(folder.path(), &["check", "weir.yaml"]);
    assert_eq!(checked.code, Some(0), "{}", checked.err);

    let both = weir(folder.path(), &["import", "ovs", "ovs.json"]);
    assert_eq!(both.code, Some(1), "{}", both.err);
    assert!(
        both.err.contains("bond `bond1` is a comment") && both.out.contains("  #  - bond:"),
        "{}",
        both.err
    );
}
