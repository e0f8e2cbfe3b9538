//! What systemd is told, and the unit that has it run weir.

use super::folder::Folder;
use super::running::Daemon;
use super::wire::Wire;
use super::{TWO, weir};
use rustix::process::Signal;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const UNIT: &str = "configs/weir.service";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A socket as systemd has one, and a daemon that was told of it.
fn told(watchdog_usec: Option<u32>) -> (UnixDatagram, Daemon, Folder) {
    let folder = Folder::new();
    let path = folder.file("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.env("NOTIFY_SOCKET", path);
    command.env_remove("WATCHDOG_PID").env_remove("WATCHDOG_USEC");
    if let Some(usec) = watchdog_usec {
        command.env("WATCHDOG_USEC", usec.to_string());
    }
    (socket, Daemon::start_as(command, TWO), folder)
}

fn next(socket: &UnixDatagram) -> String {
    let mut text = [0; 256];
    let count = socket.recv(&mut text).expect("a message");
    String::from_utf8(text[..count].to_vec()).unwrap()
}

#[test]
fn systemd_is_told_of_start_reload_and_stop() {
    let (socket, mut daemon, _folder) = told(None);
    assert_eq!(next(&socket), "READY=1");
    let reloads = |daemon: &Daemon, how: &str, answer: i32| match how {
        "signal" => daemon.signal(Signal::HUP),
        _ => assert_eq!(daemon.weir(&["reload"]).code, Some(answer)),
    };
    for (config, answer) in [(TWO, 0), ("ports: [", 1)] {
        daemon.folder.write("weir.yaml", config);
        for how in ["signal", "command"] {
            reloads(&daemon, how, answer);
            let reloading = next(&socket);
            let usec = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=");
            assert!(usec.is_some_and(|usec| usec.parse::<u64>().is_ok_and(|usec| usec > 0)), "{reloading}");
            assert_eq!(next(&socket), "READY=1");
        }
    }
    daemon.signal(Signal::TERM);
    assert_eq!(next(&socket), "STOPPING=1");
    assert_eq!(daemon.end().code(), Some(0));
}

#[test]
fn the_watchdog_is_told_that_the_daemon_lives() {
    let (socket, daemon, _folder) = told(Some(400_000));
    assert_eq!(next(&socket), "READY=1");
    (0..5).for_each(|_| assert_eq!(next(&socket), "WATCHDOG=1"));
    // A daemon that stands still is silent; one message may have been on its way.
    daemon.signal(Signal::STOP);
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    while socket.recv(&mut [0; 256]).is_ok() {}
    daemon.signal(Signal::CONT);
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(next(&socket), "WATCHDOG=1");
}

/// The queue of the socket is full, as when systemd is stuck: the daemon works, and tells it later.
#[test]
fn a_systemd_that_does_not_read_costs_nothing() {
    let (socket, mut daemon, folder) = told(Some(4000));
    assert_eq!(next(&socket), "READY=1");
    let full = UnixDatagram::unbound().unwrap();
    full.set_nonblocking(true).unwrap();
    while full.send_to(b"x", folder.file("notify")).is_ok() {}
    daemon.weir(&["reload"]).good();
    daemon.weir(&["show", "ledger"]).good();
    let mut seen = Vec::new();
    while !seen.contains(&"READY=1".to_string()) || seen.last().is_none_or(|last| last != "WATCHDOG=1") {
        seen.push(next(&socket));
    }
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().code(), Some(0));
}

/// The values of a setting of the unit, in order.
fn settings(unit: &str, name: &str) -> Vec<String> {
    let prefix = format!("{name}=");
    unit.lines().filter_map(|line| line.strip_prefix(&prefix)).map(str::to_string).collect()
}

#[test]
fn the_unit_starts_what_weir_understands() {
    let unit = std::fs::read_to_string(repository().join(UNIT)).unwrap();
    for key in ["ExecStart", "ExecReload"] {
        let command = settings(&unit, key).pop().unwrap();
        let words: Vec<&str> = command.split_whitespace().collect();
        let help = weir(Path::new("/"), &[words[1], "--help"]).good().out;
        let options = words.iter().filter(|word| word.starts_with("--"));
        options.for_each(|option| assert!(help.contains(option), "{key}: {option} is not in {help}"));
        assert!(words[0].ends_with("/weir") && (words[1] != "run" || words.len() > 2), "{key}: {command}");
    }
    assert_eq!(settings(&unit, "Type"), ["notify"]);
    // What the daemon keeps is what the unit allows.
    let kept = std::fs::read_to_string(repository().join("crates/cli/src/daemon/privileges.rs")).unwrap();
    let kept = kept.split_once("const KEPT").unwrap().1.split_once(';').unwrap().0;
    let kept = kept.split("CapabilitySet::").skip(1).filter_map(|rest| rest.split([')', '\n']).next());
    let mut kept: Vec<String> = kept.map(|name| format!("CAP_{name}")).collect();
    let allowed = settings(&unit, "CapabilityBoundingSet").pop().unwrap();
    let mut allowed: Vec<&str> = allowed.split_whitespace().collect();
    kept.sort();
    allowed.sort();
    assert_eq!(kept, allowed);
}

/// Needs root: XDP ports open, and the file is read again, with nothing but what the unit allows.
#[test]
fn the_unit_allows_what_xdp_ports_need() {
    let Some(wire) = Wire::new("unit", 1) else { return };
    let unit = std::fs::read_to_string(repository().join(UNIT)).unwrap();
    let allowed = settings(&unit, "CapabilityBoundingSet").pop().unwrap().to_lowercase();
    let bounding = format!("--bounding-set=-all,{}", allowed.replace("cap_", "+").replace(' ', ","));
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &wire.weir, "setpriv", &bounding, env!("CARGO_BIN_EXE_weir")]);
    let config = |port: u16| {
        format!(
            "root: all
ports:
  p0: {{ xdp: w0, queues: [0], take: [{{ dst: 10.0.0.1, protocol: udp, dport: {port} }}] }}
pipes: {{ all: {{ type: basic, forward: drop, miss: drop }} }}
"
        )
    };
    let mut daemon = Daemon::start_as(command, &config(7777));
    daemon.folder.write("weir.yaml", config(7778));
    daemon.weir(&["reload"]).good();
    wire.far("bash -c 'echo hello >/dev/udp/10.0.0.1/7778'");
    daemon.wait_for("a frame", |daemon| daemon.show("ledger")["received"] == 1);
}

#[test]
fn systemd_understands_the_unit() {
    let folder = Folder::new();
    let unit = std::fs::read_to_string(repository().join(UNIT)).unwrap();
    let unit = unit.replace("/usr/local/bin/weir", env!("CARGO_BIN_EXE_weir"));
    let path = folder.write("weir.service", unit);
    let Ok(said) = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output() else {
        return println!("skipped: there is no systemd-analyze");
    };
    // Of other units of this machine, it complains as well.
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("weir.service")).collect();
    assert!(ours.is_empty(), "{ours:?}");
}
