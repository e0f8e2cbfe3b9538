//! Notifications to systemd, and the unit by which it runs weir.

use super::folder::Folder;
use super::running::Daemon;
use super::wire::Wire;
use super::{TWO, weir};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub const UNIT: &str = "configs/weir.service";
const DECAP: &str = "weir-decap.service";
const SOCKETS: [&str; 3] = ["weir.socket", "weir-metrics.socket", "weir-control.socket"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A socket like systemd's, and a daemon configured to use it.
fn notified(watchdog_usec: Option<u32>) -> (UnixDatagram, Daemon, Folder) {
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
    let (socket, mut daemon, _folder) = notified(None);
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
    let (socket, daemon, _folder) = notified(Some(400_000));
    assert_eq!(next(&socket), "READY=1");
    (0..5).for_each(|_| assert_eq!(next(&socket), "WATCHDOG=1"));
    // A stopped daemon is silent; one message may have been in flight.
    daemon.signal(Signal::STOP);
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    while socket.recv(&mut [0; 256]).is_ok() {}
    daemon.signal(Signal::CONT);
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(next(&socket), "WATCHDOG=1");
}

/// The queue of the socket is full, as when systemd is stuck: the daemon works, and notifies it later.
#[test]
fn a_systemd_that_does_not_read_costs_nothing() {
    let (socket, mut daemon, folder) = notified(Some(4000));
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
    // Also those whose failure systemd ignores (`-`), which would go unnoticed.
    let commands: Vec<(&str, &str)> = unit
        .lines()
        .filter_map(|line| line.strip_prefix("Exec")?.split_once('='))
        .map(|(key, command)| (key, command.trim_start_matches('-')))
        .collect();
    assert!(["Start", "Reload"].iter().all(|key| commands.iter().any(|(one, _)| one == key)), "{commands:?}");
    for (key, command) in commands {
        let words: Vec<&str> = command.split_whitespace().collect();
        let help = weir(Path::new("/"), &[words[1], "--help"]).good().out;
        let options = words.iter().filter(|word| word.starts_with("--"));
        options.for_each(|option| assert!(help.contains(option), "{key}: {option} is not in {help}"));
        assert!(words[0] == "/usr/bin/weir" && (words[1] != "run" || words.len() > 2), "{key}: {command}");
    }
    assert_eq!(settings(&unit, "Type"), ["notify"]);
    // The daemon keeps exactly what the unit allows.
    let kept = std::fs::read_to_string(repository().join("crates/app/src/privileges.rs")).unwrap();
    let kept = kept.split_once("const DAEMON").unwrap().1.split_once(';').unwrap().0;
    let kept = kept.split("CapabilitySet::").skip(1).filter_map(|rest| rest.split([')', '\n']).next());
    let mut kept: Vec<String> = kept.map(|name| format!("CAP_{name}")).collect();
    kept.sort();
    for key in ["CapabilityBoundingSet", "AmbientCapabilities"] {
        let allowed = settings(&unit, key).pop().unwrap();
        let mut allowed: Vec<&str> = allowed.split_whitespace().collect();
        allowed.sort();
        assert_eq!(kept, allowed, "{key}");
    }
}

/// Needs root: XDP ports open, and the file is reread, with only what the unit allows.
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

/// Needs root: without the drop-in, the unit cannot run checks that follow a service's own path.
#[test]
fn without_the_drop_in_checks_of_a_services_way_are_an_error() {
    if !weir_bed::is_root() {
        return;
    }
    let unit = std::fs::read_to_string(repository().join(UNIT)).unwrap();
    let allowed = settings(&unit, "CapabilityBoundingSet").pop().unwrap().to_lowercase();
    let allowed = allowed.replace("cap_", "+").replace(' ', ",");
    let folder = Folder::new();
    let run = |via: &str, with: &str, command: &str| {
        let check = format!("check: {{ type: tcp{via} }}");
        let service = "service: { vip: 10.9.1.80, protocol: tcp, port: 80 }";
        let back_ends = "back_ends: [{ name: b, mac: \"02:00:00:00:00:11\", address: 10.9.1.11 }]";
        folder.write(
            "lb.yaml",
            format!(
                "ports: {{ p0: {{ xdp: weir-none, mac: \"02:00:00:00:00:01\" }} }}\napps:\n  - lb: {{ name: \
                 web, port: p0, {service}, {check}, {back_ends} }}\n"
            ),
        );
        let bounding = format!("--bounding-set=-all,{allowed}{with}");
        let ran = Command::new("setpriv")
            .args([&bounding, env!("CARGO_BIN_EXE_weir"), command])
            .arg(folder.file("lb.yaml"))
            .output()
            .unwrap();
        let said = [ran.stdout, ran.stderr].concat();
        (ran.status.code(), String::from_utf8(said).unwrap())
    };
    let via = ", via: service, from: 10.9.1.9";
    for (command, code) in [("check", 2), ("doctor", 1)] {
        let (status, said) = run(via, "", command);
        assert_eq!(status, Some(code), "{said}");
        assert!(said.contains("`via: service` needs CAP_SYS_ADMIN"), "{said}");
        for (via, with) in [(via, ",+sys_admin"), ("", "")] {
            let (_, said) = run(via, with, command);
            assert!(!said.contains("CAP_SYS_ADMIN"), "{said}");
        }
    }
}

/// Plays systemd: opens sockets, passes them from descriptor 3 on, and becomes the program. Its arguments are
/// the names, the addresses, and the program with its arguments.
const PASSES: &str = "
import os, socket, sys
names, addresses = sys.argv[1], sys.argv[2].split(',')
opened = []
for address in addresses:
    if ':' not in address:
        one = socket.socket(socket.AF_UNIX)
        one.bind(address)
    else:
        host, port = address.rsplit(':', 1)
        one = socket.socket()
        one.bind((host, int(port)))
        print(one.getsockname()[1], flush=True)
    one.listen()
    opened.append(os.dup(one.detach()))
# None of them is in the way of another.
opened = [os.dup2(one, 100 + at) for at, one in enumerate(opened)]
for at, one in enumerate(opened):
    os.dup2(one, 3 + at)
    os.close(one)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(opened)), LISTEN_FDNAMES=names)
os.execvp(sys.argv[3], sys.argv[3:])
";

/// Addresses without a listener: `metrics` and `control` of the configuration, whose sockets systemd has
/// opened.
const SERVED: &str = "\
metrics: 127.0.0.1:1
control: { listen: 127.0.0.1:2, token: token }
ports: { p0: { pcap: {} } }
";

/// Asks an address over HTTP, and returns the status line.
fn status_of(port: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap_or_default().to_string()
}

/// Sockets that systemd has opened are used, each for what its name says, and are left to it at the end.
#[test]
fn sockets_that_systemd_opened_are_used() {
    let folder = Folder::new();
    folder.write("weir.yaml", SERVED);
    folder.write("token", "0123456789abcdef0123456789abcdef\n");
    std::fs::set_permissions(folder.file("token"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let path = folder.file("weir.sock");
    let mut command = Command::new("python3");
    command.args(["-c", PASSES, "control:socket:metrics"]);
    command.arg(format!("127.0.0.1:0,{},127.0.0.1:0", path.display()));
    command.args([env!("CARGO_BIN_EXE_weir"), "run", "weir.yaml", "--socket", "weir.sock"]);
    command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = Killed(command.spawn().expect("python3 runs"));
    let mut said = BufReader::new(child.0.stdout.take().unwrap());
    let mut port = || {
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        line.trim().to_string()
    };
    let (control, metrics) = (port(), port());
    // Clients that connect wait until weir is ready.
    weir(folder.path(), &["show", "ledger", "--socket", "weir.sock"]).good();
    assert!(status_of(&metrics, "/metrics").contains(" 200 "));
    assert!(status_of(&metrics, "/v1/services").contains(" 404 "), "that is at the other one");
    assert!(status_of(&control, "/v1/services").contains(" 401 "), "without the token");
    weir(folder.path(), &["stop", "--socket", "weir.sock"]).good();
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
    assert!(path.exists(), "the socket is systemd's");
}

/// Needs root. Sockets that systemd has opened outlive the daemon to which they were passed.
#[test]
fn a_successor_gets_the_sockets_that_systemd_opened() {
    let Some(wire) = Wire::new("passed", 1) else { return };
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &wire.weir, "python3", "-c", PASSES, "socket:metrics"]);
    command.args(["weir.sock,127.0.0.1:9105", env!("CARGO_BIN_EXE_weir")]);
    wire.ip("link set lo up");
    let config = "metrics: 127.0.0.1:1\nroot: all\n\
        ports: { p0: { xdp: w0, queues: [0], take: [{ dst: 10.0.0.1, protocol: udp, dport: 7777 }] } }\n\
        pipes: { all: { type: basic, forward: drop, miss: drop } }\n";
    let mut daemon = Daemon::start_as(command, config);
    let scrape = || {
        let ask = "exec 3<>/dev/tcp/127.0.0.1/9105; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3";
        let mut ip = Command::new("ip");
        ip.args(["netns", "exec", &wire.weir, "timeout", "60", "bash", "-c", ask]);
        let output = ip.output().expect("bash runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(scrape().contains("# EOF"), "{}", scrape());
    for successor in ["first", "second"] {
        assert!(daemon.succeed_in_namespace(&wire.weir).success(), "the {successor}");
        assert!(scrape().contains("# EOF"), "the {successor}: {}", scrape());
    }
    assert!(daemon.folder.file("weir.sock").exists());
}

/// A process that shares a listener can make it blocking, which must not stop answers or SIGTERM.
#[test]
fn a_listener_that_another_process_makes_block_is_served() {
    let folder = Folder::new();
    folder.write("weir.yaml", "ports: { p0: { pcap: {} } }\n");
    // The child becomes weir, and the parent, which has the socket too, makes it blocking again and again.
    let shared = PASSES.replace(
        "os.environ.update(",
        "child = os.fork()
if child:
    import time
    for _ in range(3000):
        os.set_blocking(3, True)
        time.sleep(0.01)
        if os.waitpid(child, os.WNOHANG)[0]: sys.exit(0)
    os.kill(child, 9)
    sys.exit(3)
os.environ.update(",
    );
    let mut command = Command::new("python3");
    command.args(["-c", &shared, "socket", "weir.sock", env!("CARGO_BIN_EXE_weir"), "run", "weir.yaml"]);
    command.args(["--socket", "weir.sock"]).current_dir(folder.path()).stdin(Stdio::null());
    let mut child = Killed(command.spawn().expect("python3 runs"));
    // The file is there a moment before the socket listens.
    while UnixStream::connect(folder.file("weir.sock")).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..5 {
        weir(folder.path(), &["show", "ledger", "--socket", "weir.sock"]).good();
        std::thread::sleep(Duration::from_millis(30));
    }
    weir(folder.path(), &["stop", "--socket", "weir.sock"]).good();
    assert_eq!(child.0.wait().unwrap().code(), Some(0), "it did not end");
}

/// A child that does not outlive a test that fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn sockets_for_another_process_are_left_alone_and_wrong_ones_refused() {
    let folder = Folder::new();
    folder.write("weir.yaml", TWO);
    let run = |names: &str, address: &str| {
        let mut command = Command::new("timeout");
        command.args(["60", "python3", "-c", PASSES, names, address, env!("CARGO_BIN_EXE_weir"), "run"]);
        command.args(["weir.yaml", "--socket", "weir.sock"]).current_dir(folder.path());
        let output = command.output().expect("python3 runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run("socket", "127.0.0.1:0");
    assert!(code == Some(1) && said.contains("`socket` is not a Unix stream socket"), "{said}");
    let (code, said) = run("socket", &folder.file("other.sock").display().to_string());
    assert!(code == Some(1) && said.contains("other.sock, but `socket` says weir.sock"), "{said}");
    let (code, said) = run("socket:metrics", &folder.file("third.sock").display().to_string());
    assert!(code == Some(1) && said.contains("LISTEN_FDNAMES has 2 names, but LISTEN_FDS is 1"), "{said}");
    // Notifications for another process are not for this one.
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.envs([("LISTEN_PID", "1"), ("LISTEN_FDS", "7"), ("LISTEN_FDNAMES", "socket")]);
    Daemon::start_as(command, TWO).weir(&["show", "ledger"]).good();
}

#[test]
fn systemd_understands_the_unit() {
    let folder = Folder::new();
    let unit = std::fs::read_to_string(repository().join(UNIT)).unwrap();
    let unit = unit.replace("/usr/bin/weir", env!("CARGO_BIN_EXE_weir"));
    let mut paths = vec![folder.write("weir.service", unit)];
    let decap = std::fs::read_to_string(repository().join("packaging").join(DECAP)).unwrap();
    paths.push(folder.write(DECAP, decap.replace("/usr/bin/weir", env!("CARGO_BIN_EXE_weir"))));
    for name in SOCKETS {
        let unit = std::fs::read_to_string(repository().join("packaging").join(name)).unwrap();
        assert_eq!(settings(&unit, "Service"), ["weir.service"]);
        paths.push(folder.write(name, unit));
    }
    let Ok(said) = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&paths).output() else {
        return println!("skipped: there is no systemd-analyze");
    };
    // systemd-analyze also complains about other units of this machine.
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    let is_ours =
        |line: &&str| SOCKETS.iter().chain(&["weir.service", DECAP]).any(|name| line.contains(name));
    let ours: Vec<&str> = said.lines().filter(is_ours).collect();
    assert!(ours.is_empty(), "{ours:?}");
}
