//! The findings of `weir doctor` about interfaces and about the needs of overlays. Needs root.

use super::folder::Folder;
use super::running::Daemon;
use super::wire::{Wire, sh};
use serde_json::Value;
use std::fs::File;
use std::os::fd::AsRawFd;

const PORT: &str = "root: all
ports: { p0: { xdp: w0, queues: [0], take: all } }
pipes: { all: { type: basic, match: { udp.dport: 1 }, forward: p0, miss: drop, entries: [{}] } }
";

/// Returns the result of a check: level and sentence.
pub fn says(wire: &Wire, folder: &Folder, check: &str, of: &str) -> (String, String) {
    let (exe, path) = (env!("CARGO_BIN_EXE_weir"), folder.path().display());
    let command =
        format!("cd {path}; ip netns exec {} {exe} doctor weir.yaml --socket weir.sock --json", wire.weir);
    let said = sh(&format!("{command} || true"));
    let last = said.lines().last().unwrap_or_default();
    let found: Value = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {said}"));
    let is_it = |one: &&Value| one["check"] == check && one["of"] == of;
    let all = found["checks"].as_array().unwrap_or_else(|| panic!("{said}"));
    let one = all.iter().find(is_it).unwrap_or_else(|| panic!("no {check} of {of}: {said}"));
    [&one["level"], &one["says"]].map(|part| part.as_str().unwrap().to_string()).into()
}

pub fn is(said: (String, String), level: &str, words: &str) {
    assert!(said.0 == level && said.1.contains(words), "{level}, {words}: {said:?}");
}

#[test]
fn the_program_of_a_running_weir_is_not_in_its_own_way() {
    let Some(wire) = Wire::new("own", 1) else { return };
    wire.far("ethtool -K f0 tx-vlan-stag-hw-insert off");
    let folder = Folder::new();
    folder.write("weir.yaml", PORT);
    let daemon = Daemon::start_in_namespace(folder, &wire.weir);
    is(says(&wire, &daemon.folder, "xdp", "w0"), "ok", "a running weir takes its frames");
    let ports = sh(&format!("ip netns exec {} {} ports", wire.weir, env!("CARGO_BIN_EXE_weir")));
    assert!(ports.contains("an XDP program is attached to w0: another weir takes its frames"), "{ports}");
}

/// The peer is in a namespace without a name or a process.
#[test]
fn advice_about_an_end_that_cannot_be_seen_stops_when_checksums_are_right() {
    let Some(wire) = Wire::new("unseen", 1) else { return };
    let far = File::open(format!("/run/netns/{}", wire.far)).unwrap();
    let inside = format!("nsenter --net=/proc/{}/fd/{}", std::process::id(), far.as_raw_fd());
    sh(&format!("ip netns del {}", wire.far));
    let folder = Folder::new();
    folder.write("weir.yaml", PORT);
    let mut daemon = Daemon::start_in_namespace(folder, &wire.weir);
    is(says(&wire, &daemon.folder, "xdp", "w0"), "warning", "which cannot be inspected from here");
    sh(&format!("{inside} ip neigh replace 10.0.0.1 lladdr 02:00:00:00:00:00 dev f0"));
    let sent = "import socket\nsocket.socket(2, 2).sendto(b\"x\", (\"10.0.0.1\", 1))";
    sh(&format!("{inside} python3 -c '{sent}'"));
    let sampled = |daemon: &mut Daemon| daemon.show("ports")[0]["extra"]["checksums_sampled"] != 0;
    daemon.wait_for("a sample", sampled);
    is(says(&wire, &daemon.folder, "xdp", "w0"), "ok", "sampled frames had correct checksums");
}

#[test]
fn what_an_overlay_needs_is_looked_at() {
    let Some(wire) = Wire::new("needs", 1) else { return };
    sh(&format!("ip netns exec {} sysctl -qw net.ipv6.conf.all.disable_ipv6=0", wire.weir));
    for (vx, options) in
        [("vx4", "id 4 dstport 4789 local 10.0.0.1"), ("vx6", "id 6 dstport 4790 local fd00::1")]
    {
        wire.ip(&format!("link add {vx} type vxlan dev w0 {options}"));
    }
    wire.ip("link add br0 type bridge");
    let folder = Folder::new();
    let app = |tunnel: &str| {
        format!("apps: [{{ overlay: {{ name: pods, tunnel: {tunnel}, uplink: w0, bridge: br0 }} }}]\n")
    };
    let set = |name: &str, value: u32| {
        sh(&format!("ip netns exec {} sysctl -qw {name}={value}", wire.weir));
    };
    folder.write("weir.yaml", app("vx4"));
    let liberal = "net.netfilter.nf_conntrack_tcp_be_liberal";
    // Rules that use it make a namespace track connections.
    sh(&format!("ip netns exec {} nft add table inet t", wire.weir));
    set(liberal, 0);
    is(says(&wire, &folder, "sysctl", liberal), "fault", &format!("`sysctl -w {liberal}=1`"));
    set(liberal, 1);
    is(says(&wire, &folder, "sysctl", liberal), "ok", "");
    is(says(&wire, &folder, "checksums", "vx4"), "warning", "`ethtool -K vx4 tx-checksum-ip-generic off`");
    sh(&format!("ip netns exec {} ethtool -K vx4 tx-checksum-ip-generic off", wire.weir));
    is(says(&wire, &folder, "checksums", "vx4"), "ok", "before encapsulation");
    folder.write("weir.yaml", app("vx6"));
    let forwarding = "net.ipv6.conf.all.forwarding";
    is(says(&wire, &folder, "sysctl", forwarding), "fault", &format!("`sysctl -w {forwarding}=1`"));
    set(forwarding, 1);
    is(says(&wire, &folder, "sysctl", forwarding), "ok", "");
}
