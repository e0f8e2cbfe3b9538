//! Checks that go the service's own way, with real servers in namespaces: a server that works and lacks the
//! VIP is up by a check of its own address and down by one of this kind, until it has the VIP. Needs root;
//! skipped without, except in CI.
//!
//! ```text
//!  weir ----- switch ----- server, which listens on all its addresses
//! ```

use rustix::process::{Pid, Signal, geteuid, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const ROLES: [&str; 3] = ["switch", "weir", "server"];
const WEIR_MAC: &str = "02:00:00:00:03:fe";
const SERVER_MAC: &str = "02:00:00:00:03:02";
/// Of each version of IP.
const WEIR: [&str; 2] = ["10.3.0.254", "fd03::fe"];
const FROM: [&str; 2] = ["10.3.0.9", "fd03::9"];
const SERVER: [&str; 2] = ["10.3.0.2", "fd03::2"];
const VIP: [&str; 2] = ["203.0.113.80", "2001:db8:80::1"];

/// The namespaces and what runs there; nothing is left of them, however the test ends.
struct Bed {
    prefix: String,
    folder: PathBuf,
    running: Vec<Child>,
}

impl Bed {
    /// Builds it; `None` without root.
    fn build(name: &str) -> Option<Bed> {
        assert!(geteuid().is_root() || std::env::var_os("CI").is_none(), "CI runs as root");
        if !geteuid().is_root() {
            eprintln!("skipped: needs root");
            return None;
        }
        let prefix = format!("wc{}{name}", std::process::id());
        let folder = std::env::temp_dir().join(&prefix);
        std::fs::create_dir_all(&folder).unwrap();
        let bed = Bed { prefix, folder, running: Vec::new() };
        for role in ROLES {
            assert!(Command::new("ip").args(["netns", "add", &bed.name(role)]).status().unwrap().success());
            let dad = ["net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0"];
            assert!(bed.run(role, "sysctl", &[&["-qw"], &dad[..]].concat()).status.success());
            bed.ip(role, "link set lo up");
        }
        bed.ip("switch", "link add br0 type bridge stp_state 0 mcast_snooping 0\nlink set br0 up");
        for (at, (role, mac)) in [("weir", WEIR_MAC), ("server", SERVER_MAC)].into_iter().enumerate() {
            let peer = bed.name("switch");
            bed.ip(role, &format!("link add eth0 address {mac} type veth peer name {role} netns {peer}"));
            for (role, interface) in [(role, "eth0"), ("switch", role)] {
                bed.ip(role, &format!("link set {interface} up"));
                // Segments and checksums are made where they are made on a wire.
                let off = ["-K", interface, "tx", "off", "gso", "off", "tso", "off", "gro", "off"];
                assert!(bed.run(role, "ethtool", &off).status.success());
            }
            bed.ip("switch", &format!("link set {role} master br0"));
            for (address, length) in [WEIR, SERVER][at].iter().zip([24, 64]) {
                bed.ip(role, &format!("addr add {address}/{length} dev eth0"));
            }
        }
        Some(bed)
    }

    fn name(&self, role: &str) -> String {
        format!("{}{role}", self.prefix)
    }

    fn command(&self, role: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(role), program]).stdin(Stdio::null());
        command
    }

    fn run(&self, role: &str, program: &str, arguments: &[&str]) -> Output {
        self.command(role, program).args(arguments).output().unwrap()
    }

    fn ip(&self, role: &str, lines: &str) -> String {
        let mut said = String::new();
        for line in lines.lines() {
            let output = Command::new("ip").arg("-n").arg(self.name(role)).args(line.split(' ')).output();
            let output = output.unwrap();
            let why = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "ip -n {role} {line}: {why}");
            said += &String::from_utf8_lossy(&output.stdout);
        }
        said
    }

    /// Listens on all addresses of the server: TCP and HTTP on port 80; and UDP on the VIP, whether the
    /// server has it or not, because the answer to a datagram must come from there.
    fn serve(&self) {
        assert!(self.run("server", "sysctl", &["-qw", "net.ipv4.ip_nonlocal_bind=1"]).status.success());
        let file = File::open(format!("/run/netns/{}", self.name("server"))).unwrap();
        let open = move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            (TcpListener::bind("[::]:80").unwrap(), UdpSocket::bind((VIP[0], 53)).unwrap())
        };
        let (web, names) = std::thread::spawn(open).join().unwrap();
        std::thread::spawn(move || {
            for mut stream in web.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut request = [0; 512];
                    if stream.read(&mut request).is_ok_and(|length| length > 0) {
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine");
                    }
                });
            }
        });
        std::thread::spawn(move || {
            let mut datagram = [0; 512];
            while let Ok((length, from)) = names.recv_from(&mut datagram) {
                let _ = names.send_to(&datagram[..length].to_ascii_uppercase(), from);
            }
        });
    }

    /// Starts weir with services over one back end: name, position of the VIP, protocol, port, check.
    fn weir(&mut self, back_end: &str, services: &[(&str, usize, &str, u16, &str)]) {
        let mut text = "ports: { p0: { xdp: eth0 } }\napps:\n".to_string();
        for (name, family, protocol, port, check) in services {
            text += &format!(
                "  - lb:\n      name: {name}\n      port: p0\n      service: {{ vip: \"{}\", protocol: \
                 {protocol}, port: {port} }}\n      source: [{}, \"{}\"]\n      check: {{ {check}, interval: \
                 100ms, timeout: 2s, rise: 1, fall: 1 }}\n      back_ends: [{{ name: b, address: \"{}\", \
                 {back_end} }}]\n",
                VIP[*family], WEIR[0], WEIR[1], SERVER[*family]
            );
        }
        let (file, log) = (self.folder.join("weir.yaml"), self.folder.join("weir.log"));
        std::fs::write(&file, &text).unwrap();
        let mut command = self.command("weir", env!("CARGO_BIN_EXE_weir"));
        command.arg("run").arg(&file).arg("--socket").arg(self.socket()).stdout(Stdio::null());
        let child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
        self.running.push(child);
        let until = Instant::now() + PATIENCE;
        while self.health().is_none() {
            assert!(Instant::now() < until, "weir does not answer: {}\n{text}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("weir.log")).unwrap_or_default()
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("weir.sock")
    }

    /// Returns service, health and reason of every back end, once weir answers.
    fn health(&self) -> Option<Vec<[String; 3]>> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["show", "backends", "--json", "--socket"]).arg(self.socket());
        let output = command.output().unwrap();
        let shown: Value = serde_json::from_slice(&output.stdout).ok()?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let row = |row: &Value| [&row["service"], &row["health"], &row["reason"]].map(text);
        Some(shown["backends"].as_array()?.iter().map(row).collect())
    }

    /// Waits until the services that are called `plain` are up, and all others as wanted.
    fn wait(&self, wanted: &str) -> Vec<[String; 3]> {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = self.health().unwrap_or_default();
            let is_good = |[service, health, _]: &[String; 3]| {
                health == if service.starts_with("plain") { "up" } else { wanted }
            };
            if !found.is_empty() && found.iter().all(is_good) {
                return found;
            }
            assert!(Instant::now() < until, "wanted {wanted}: {found:?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Starts `weir decap` on the server, and waits until it is attached.
    fn decap(&mut self, outer: usize) {
        let mut command = self.command("server", env!("CARGO_BIN_EXE_weir"));
        command.args(["decap", "eth0", "--json", "--vni", "42"]);
        command.args(["--from", WEIR[outer], "--to", SERVER[outer]]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "{\"attached\":\"eth0\"}\n");
        self.running.push(child);
    }

    fn vips(&self, verb: &str) {
        for vip in VIP {
            self.ip("server", &format!("addr {verb} {vip} dev lo"));
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for mut child in self.running.drain(..) {
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            let _ = child.wait();
        }
        for role in ROLES {
            let _ = Command::new("ip").args(["netns", "del", &self.name(role)]).status();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Both kinds of TCP checks, for each version of IP.
fn services(via: &str) -> Vec<(&'static str, usize, &'static str, u16, String)> {
    let own = format!("type: tcp, {via}");
    let plain = "type: tcp, port: 80".to_string();
    vec![
        ("plain4", 0, "tcp", 8000, plain.clone()),
        ("plain6", 1, "tcp", 8000, plain),
        ("own4", 0, "tcp", 80, own.clone()),
        ("own6", 1, "tcp", 80, own),
    ]
}

fn via() -> String {
    format!("via: service, from: [{}, \"{}\"]", FROM[0], FROM[1])
}

/// A back end is down while it lacks the VIP, up with it, and down without it again.
fn finds_out(bed: &mut Bed, back_end: &str, services: &[(&'static str, usize, &'static str, u16, String)]) {
    bed.serve();
    let services = services
        .iter()
        .map(|(name, family, protocol, port, check)| (*name, *family, *protocol, *port, check.as_str()));
    bed.weir(back_end, &services.collect::<Vec<_>>());
    for [service, _, reason] in bed.wait("down") {
        assert!(service.starts_with("plain") == reason.is_empty(), "{service}: {reason}");
    }
    bed.vips("add");
    bed.wait("up");
    bed.vips("del");
    bed.wait("down");
}

#[test]
fn l2_with_every_kind_of_check() {
    let Some(mut bed) = Bed::build("l") else { return };
    let mut services = services(&via());
    let own = |check: &str| format!("{check}, {}", via());
    services.extend([
        ("http", 0, "tcp", 8080, own("type: http, body: fine, port: 80")),
        ("ping4", 0, "tcp", 8081, own("type: icmp")),
        ("ping6", 1, "tcp", 8081, own("type: icmp")),
        ("udp", 0, "udp", 53, own("type: udp, payload: ping, expect: PING")),
    ]);
    // A neighbour, whose entry is written when it is found.
    finds_out(&mut bed, "weight: 1", &services);
    // The host has no part in it.
    let host = bed.ip("weir", "link show") + &bed.ip("weir", "rule show") + &bed.ip("weir", "addr show");
    assert!(!host.contains("tun") && !host.contains(FROM[0]) && !host.contains(VIP[0]), "{host}");
}

#[test]
fn l2_of_a_fixed_address() {
    let Some(mut bed) = Bed::build("m") else { return };
    finds_out(&mut bed, &format!("mac: \"{SERVER_MAC}\""), &services(&via()));
}

#[test]
fn ip_in_ip_over_each_version() {
    for (outer, name) in [(0, "i"), (1, "j")] {
        let Some(mut bed) = Bed::build(name) else { return };
        bed.decap(outer);
        finds_out(&mut bed, &format!("mode: ipip, ip: \"{}\"", SERVER[outer]), &services(&via()));
    }
}

#[test]
fn gue() {
    let Some(mut bed) = Bed::build("g") else { return };
    bed.decap(0);
    finds_out(&mut bed, &format!("mode: gue, ip: \"{}\"", SERVER[0]), &services(&via()));
}

#[test]
fn vxlan() {
    let Some(mut bed) = Bed::build("v") else { return };
    bed.decap(1);
    let back_end = format!("mode: vxlan, ip: \"{}\", vni: 42, inner_mac: \"{SERVER_MAC}\"", SERVER[1]);
    finds_out(&mut bed, &back_end, &services(&via()));
}
