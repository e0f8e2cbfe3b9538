//! A daemon takes over from another: connections through it continue, and neither leaves anything behind.

use super::folder::Folder;
use super::nat;
use super::ports::{arrived, send};
use super::routes::until;
use super::running::Daemon;
use super::weir;
use super::wire::{Wire, sh};
use rustix::process::Signal;
use serde_json::json;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

/// Opens a connection, waits for a file, and then asks for a page.
const CLIENT: &str = "exec 3<>/dev/tcp/10.0.1.2/9105 && touch open && \
    until [ -e go ]; do sleep 0.02; done && printf \"GET /metrics HTTP/1.0\\r\\n\\r\\n\" >&3 && cat <&3";

/// Waits until the interface has no program: the kernel may detach that of a killed process later, in another
/// thread.
#[track_caller]
fn until_there_is_no_program(wire: &Wire) {
    let show = format!("ip -n {} -d link show w0", wire.weir);
    until("no program", || (!sh(&show).contains("xdp")).then_some(()));
}

#[test]
fn a_connection_behind_nat_goes_on_and_the_pool_with_it() {
    let Some(wire) = nat::wire("over") else { return };
    let folder = Folder::new();
    folder.write("weir.yaml", nat::config());
    let mut daemon = Daemon::start_in_namespace(folder, &wire.weir);
    let far = Folder::new();
    far.write("weir.yaml", "ports: { p0: { mem: ~ } }\nmetrics: 10.0.1.2:9105\n");
    let _server = Daemon::start_in_namespace(far, &wire.far);
    let mut client = Command::new("ip");
    client.args(["netns", "exec", &wire.third, "timeout", "60", "bash", "-c", CLIENT]);
    client.current_dir(daemon.folder.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let client = client.spawn().expect("bash runs"); // `timeout` ends it if this test fails.
    daemon.wait_for("a connection", |daemon| daemon.folder.file("open").exists());
    let bindings = |daemon: &Daemon| {
        let flows = daemon.show("flows");
        let flows = flows.as_array().into_iter().flatten();
        let bound = flows.filter(|flow| flow["nat"].is_string());
        let mut all: Vec<String> = bound.map(|flow| format!("{} {}", flow["flow"], flow["nat"])).collect();
        all.sort();
        all
    };
    let before = bindings(&daemon);
    assert_eq!(before.len(), 2, "{before:?}");
    let mac = "{ match: { flow: \"tcp 10.0.0.7:1 > 10.0.1.2:80\" }, action: back, forward: inside }";
    daemon.weir(&["entry", "add", "nat", mac]).good();
    let ended = daemon.succeed_in_namespace(&wire.weir);
    assert!(ended.success(), "{}", daemon.log());
    daemon.wait_for_log("none lost");
    daemon.wait_for_log("accounted for");
    assert_eq!(bindings(&daemon), before);
    assert_eq!(daemon.show("nat_pools")[0]["used"], json!(1));
    let listed = daemon.weir(&["entry", "list", "nat"]).good().out;
    assert!(listed.contains("10.0.0.7"), "{listed}");
    daemon.folder.write("go", "");
    let page = client.wait_with_output().expect("bash ends");
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    assert!(page.contains("# EOF"), "the connection did not survive: {page}");
    // The third daemon in a row.
    assert!(daemon.succeed_in_namespace(&wire.weir).success());
    assert_eq!(daemon.show("ports").as_array().map(Vec::len), Some(2));
    drop(daemon);
    until_there_is_no_program(&wire);
}

#[test]
fn a_successor_that_cannot_run_leaves_the_old_daemon_as_it_was() {
    let Some(wire) = nat::wire("oops") else { return };
    let folder = Folder::new();
    folder.write("weir.yaml", nat::config());
    let daemon = Daemon::start_in_namespace(folder, &wire.weir);
    let path = daemon.folder.path();
    let run = |file: &str, more: &str| {
        let exe = env!("CARGO_BIN_EXE_weir");
        let line = format!("cd {} && {exe} run {file} --takeover {more} 2>&1", path.display());
        let output = Command::new("ip").args(["netns", "exec", &wire.weir, "sh", "-c", &line]).output();
        let output = output.expect("weir runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    // There is no daemon to take over from.
    let (code, said) = run("weir.yaml", "--socket nobody.sock");
    assert!(code == Some(1) && said.contains("refuses to hand over"), "{said}");
    // An interface that does not exist.
    daemon.folder.write("other.yaml", nat::config().replace("xdp: w0", "xdp: w9"));
    let (code, said) = run("other.yaml", "--socket weir.sock");
    assert!(code == Some(1) && said.contains("w9"), "{said}");
    let mut daemon = daemon;
    daemon.wait_for_log("did not take over");
    assert_eq!(daemon.show("ports").as_array().map(Vec::len), Some(2));
    assert!(daemon.succeed_in_namespace(&wire.weir).success(), "the next one can");
}

#[test]
fn ports_that_are_no_interfaces_are_not_handed_over() {
    let daemon = Daemon::start("ports: { p0: { mem: ~ } }\n");
    let said = weir(daemon.folder.path(), &["run", "weir.yaml", "--takeover", "--socket", "weir.sock"]);
    assert!(said.code == Some(1) && said.err.contains("`p0` is not one"), "{}", said.err);
}

/// Both workers receive, a flow may belong to the other worker, and everything leaves through p1.
const BOTH: &str = "\
workers: 2
ports:
  p0: { xdp: w0, take: [{ dst: 10.0.0.1, protocol: udp, dport: 7777 }], root: flows }
  p1: { xdp: w1, take: [{ dst: 10.0.1.1, protocol: udp, dport: 7777 }] }
pipes:
  flows:
    type: flow
    learn: default
    capacity: 1024
    forward: p1
    miss: drop
    entries: [{ match: default }]
";

/// Packets per second, during successive takeovers.
const RATE: u32 = 4000;

/// Lets `count` daemons take over, one after the other, while two workers carry packets. Each packet must
/// arrive, and each daemon must report that none was dropped.
fn takeovers_with_two_workers(count: u32) {
    let Some(wire) = Wire::new("both", 0) else { return };
    (0..2).for_each(|pair| wire.add_wide(pair, 0, 2));
    let folder = Folder::new();
    folder.write("weir.yaml", BOTH);
    let mut daemon = Daemon::start_in_namespace(folder, &wire.weir);
    let (before, mut sent) = (arrived(&wire, 1), 0);
    let both_receive = |daemon: &Daemon| {
        let workers = daemon.show("workers");
        workers.as_array().unwrap().iter().all(|worker| worker["received"].as_u64() > Some(0))
    };
    for turn in 0..count {
        // A separate stream for each takeover ends after it, however slow the machine is.
        let mut stream = send(&wire, "10.0.0.1", 2 * RATE, RATE);
        daemon.wait_for("packets at both workers", |daemon| both_receive(daemon));
        assert!(daemon.succeed_in_namespace(&wire.weir).success(), "{}", daemon.log());
        assert!(stream.wait().unwrap().success());
        sent += u64::from(2 * RATE);
        let log = daemon.log();
        assert!(log.contains("taken over; 0 frames were dropped in the meantime"), "turn {turn}: {log}");
        assert!(log.contains("every frame is accounted for"), "turn {turn}: {log}");
    }
    daemon.wait_for("the last packets", |_| arrived(&wire, 1) - before >= sent);
    assert_eq!(arrived(&wire, 1) - before, sent);
    println!("{count} takeovers with two workers: {sent} packets, 0 lost");
}

#[test]
fn takeovers_with_two_workers_lose_nothing() {
    takeovers_with_two_workers(3);
}

/// `make test-long`.
#[test]
#[ignore = "takes minutes"]
fn a_hundred_takeovers_with_two_workers_lose_nothing() {
    takeovers_with_two_workers(100);
}

/// Sends `go` to the daemon that hands over, and nothing after that.
const SILENT: &str = "
import json, socket, struct, subprocess, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind('silent.sock')
listener.listen()
control = socket.socket(socket.AF_UNIX)
control.connect('weir.sock')
body = json.dumps({'command': 'hand_over', 'socket': 'silent.sock'}).encode()
head = b'POST /command HTTP/1.1\\r\\nHost: weir\\r\\nContent-Length: %d\\r\\n\\r\\n'
control.sendall(head % len(body) + body)
wire, _ = listener.accept()
stream = wire.makefile('rb')
while True:
    head, more = struct.unpack('<II', stream.read(8))
    said = json.loads(stream.read(head))
    stream.read(more)
    if said['say'] == 'ready': break
go = json.dumps({'say': 'go', 'sockets': []}).encode()
wire.sendall(struct.pack('<II', len(go), 0) + go)
time.sleep(120)
";

/// The daemon does not wait forever, and leaves no process that holds its interfaces.
#[test]
fn a_successor_that_falls_silent_is_ended() {
    let Some(wire) = nat::wire("mute") else { return };
    let folder = Folder::new();
    folder.write("weir.yaml", nat::config());
    let mut daemon = Daemon::start_in_namespace(folder, &wire.weir);
    let mut silent = Command::new("python3");
    silent.args(["-c", SILENT]).current_dir(daemon.folder.path()).stdin(Stdio::null());
    let mut silent = silent.spawn().expect("python3 runs");
    assert_eq!(daemon.end().code(), Some(1), "{}", daemon.log());
    assert_eq!(silent.wait().unwrap().signal(), Some(9));
    daemon.wait_for_log("has not taken over");
    until_there_is_no_program(&wire);
}

#[test]
fn a_control_socket_of_another_process_is_not_removed() {
    let mut daemon = Daemon::start("ports: { p0: { mem: ~ } }\n");
    let path = daemon.folder.file("weir.sock");
    std::fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().code(), Some(0));
    assert!(path.exists(), "the other one's socket");
}
