//! Fragments between real kernels: a client sends datagrams above the MTU through weir to two back ends, one
//! by `l2`, one by `ipip` with `weir decap`, which put them together and answer directly. Needs root; skipped
//! without, except in CI.
//!
//! ```text
//!  client --- switch --- weir (XDP)
//!              |   |
//!             b1   b2
//! ```

use rustix::process::geteuid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
/// How long an answer may take before the question is repeated.
const TURN: Duration = Duration::from_millis(500);
const PORT: u16 = 5300;
const VIPS: [&str; 2] = ["203.0.113.80", "fd00:80::1"];
const WEIR_MAC: &str = "02:00:00:00:00:01";
const ROLES: [&str; 4] = ["c", "w", "b1", "b2"];

/// Namespaces and what runs there; nothing is left of them, however the test ends.
struct Bed {
    prefix: String,
    folder: PathBuf,
    children: Vec<Child>,
}

impl Bed {
    /// Builds it; `None` without root.
    fn build() -> Option<Bed> {
        assert!(geteuid().is_root() || std::env::var_os("CI").is_none(), "CI runs as root");
        if !geteuid().is_root() {
            eprintln!("skipped: needs root");
            return None;
        }
        let prefix = format!("wf{}", std::process::id());
        let folder = std::env::temp_dir().join(&prefix);
        std::fs::create_dir_all(&folder).unwrap();
        let bed = Bed { prefix, folder, children: Vec::new() };
        for role in ROLES.into_iter().chain(["n"]) {
            run(Command::new("ip").args(["netns", "add", &bed.name(role)]));
        }
        bed.ip("n", "link add br0 mtu 1600 type bridge\nlink set br0 up");
        for (at, role) in ROLES.into_iter().enumerate() {
            let there = bed.name(role);
            let number = at + 1;
            bed.ip("n", &format!("link add {role} type veth peer name eth0 netns {there}"));
            bed.ip("n", &format!("link set {role} mtu 1600 master br0 up"));
            let mtu = if role == "c" { 1500 } else { 1600 };
            bed.ip(
                role,
                &format!(
                    "link set lo up\n\
                     link set eth0 mtu {mtu} address 02:00:00:00:00:0{at}\n\
                     addr add 10.1.0.{number}/24 dev eth0\n\
                     addr add fd00:1::{number}/64 dev eth0 nodad\n\
                     link set eth0 up"
                ),
            );
            // A checksum that the sender leaves to an interface is none for weir.
            run(Command::new("ip").args(["netns", "exec", &there, "ethtool", "-K", "eth0", "tx", "off"]));
        }
        for vip in VIPS {
            let length = if vip.contains(':') { 128 } else { 32 };
            bed.ip("c", &format!("route add {vip}/{length} dev eth0"));
            bed.ip("c", &format!("neigh add {vip} lladdr {WEIR_MAC} dev eth0 nud permanent"));
            for back_end in ["b1", "b2"] {
                let nodad = if vip.contains(':') { " nodad" } else { "" };
                bed.ip(back_end, &format!("addr add {vip}/{length} dev lo{nodad}"));
            }
        }
        Some(bed)
    }

    fn name(&self, role: &str) -> String {
        format!("{}-{role}", self.prefix)
    }

    fn ip(&self, role: &str, lines: &str) {
        for line in lines.lines() {
            run(Command::new("ip").arg("-n").arg(self.name(role)).args(line.split(' ')));
        }
    }

    fn weir(&self, role: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(role), env!("CARGO_BIN_EXE_weir")]).args(arguments);
        command.stdin(Stdio::null()).current_dir(&self.folder);
        command
    }

    /// Starts `weir decap` on the second back end, and waits until it is attached.
    fn decap(&mut self) {
        let mut command = self.weir("b2", &["decap", "eth0", "--json", "--from", "10.1.0.0/24"]);
        command.args(["--from", "fd00:1::/64", "--to", "10.1.0.4", "--to", "fd00:1::4"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        self.children.push(child);
        assert_eq!(line, "{\"attached\":\"eth0\"}\n");
    }

    /// Starts the load balancer and waits until it answers.
    fn balance(&mut self, config: &str) {
        std::fs::write(self.folder.join("weir.yaml"), config).unwrap();
        let log = File::create(self.folder.join("stderr")).unwrap();
        let mut command = self.weir("w", &["run", "weir.yaml", "--socket", "weir.sock"]);
        self.children.push(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        let until = Instant::now() + PATIENCE;
        while self.show("ledger").is_none() {
            assert!(Instant::now() < until, "{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("stderr")).unwrap_or_default()
    }

    fn show(&self, what: &str) -> Option<Value> {
        let output = self.weir("w", &["show", what, "--json", "--socket", "weir.sock"]).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        serde_json::from_str::<Value>(text.lines().last()?).ok().filter(|_| output.status.success())
    }

    /// Opens a socket on a thread in a namespace.
    fn socket(&self, role: &str, address: SocketAddr) -> UdpSocket {
        let file = File::open(format!("/run/netns/{}", self.name(role))).unwrap();
        std::thread::scope(|scope| {
            let inside = move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                UdpSocket::bind(address).unwrap()
            };
            scope.spawn(inside).join().unwrap()
        })
    }

    /// Has a back end answer on the service's address with its name, and the length of what came if every
    /// byte of it is right. The thread ends with the test's process.
    fn serve(&self, role: &'static str, vip: IpAddr) {
        let socket = self.socket(role, (vip, PORT).into());
        std::thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                if buffer[..length] == payload(length) {
                    let _ = socket.send_to(format!("{role} {length}").as_bytes(), from);
                }
            }
        });
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        for role in ROLES.into_iter().chain(["n"]) {
            let _ = Command::new("ip").args(["netns", "del", &self.name(role)]).status();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 3 % 251) as u8).collect()
}

/// Sends a datagram of this length until it is answered. Returns who answered.
fn ask(socket: &UdpSocket, to: SocketAddr, length: usize, told: &dyn Fn() -> String) -> String {
    let until = Instant::now() + PATIENCE;
    let mut answer = [0; 64];
    loop {
        assert!(Instant::now() < until, "no answer to {length} bytes to {to}: {}", told());
        socket.send_to(&payload(length), to).unwrap();
        while let Ok((count, _)) = socket.recv_from(&mut answer) {
            let text = String::from_utf8_lossy(&answer[..count]);
            if let Some((name, of)) = text.split_once(' ')
                && of == length.to_string()
            {
                return name.to_string();
            }
        }
    }
}

fn config() -> String {
    let service = |name: &str, vip: &str, ip: &str| {
        format!(
            "\
  - lb:
      name: {name}
      port: p0
      service: {{ vip: \"{vip}\", protocol: udp, port: {PORT} }}
      source: [10.1.0.2, \"fd00:1::2\"]
      back_ends:
        - {{ name: b1, mac: 02:00:00:00:00:02 }}
        - {{ name: b2, mac: 02:00:00:00:00:03, mode: ipip, ip: \"{ip}\" }}
"
        )
    };
    let both = [service("four", VIPS[0], "10.1.0.4"), service("six", VIPS[1], "fd00:1::4")];
    format!("ports:\n  p0: {{ xdp: eth0 }}\napps:\n{}", both.concat())
}

#[test]
fn datagrams_above_the_mtu_reach_the_back_end_of_the_whole_ones() {
    let Some(mut bed) = Bed::build() else { return };
    bed.decap();
    bed.balance(&config());
    for vip in VIPS {
        let vip: IpAddr = vip.parse().unwrap();
        bed.serve("b1", vip);
        bed.serve("b2", vip);
        let any = if vip.is_ipv4() { "10.1.0.1" } else { "fd00:1::1" };
        let told = || format!("{:?} {:?}\n{}", bed.show("ledger"), bed.show("pipes"), bed.log());
        let mut answered = std::collections::BTreeMap::new();
        for _ in 0..16 {
            let socket = bed.socket("c", (any.parse::<IpAddr>().unwrap(), 0).into());
            socket.set_read_timeout(Some(TURN)).unwrap();
            let to = (vip, PORT).into();
            // The flow begins with a fragmented datagram, or with a whole one.
            let lengths = if answered.len() % 2 == 0 { [4000, 100, 9000] } else { [100, 4000, 9000] };
            let who = lengths.map(|length| ask(&socket, to, length, &told));
            assert!(who.iter().all(|one| *one == who[0]), "{who:?}: {}", told());
            *answered.entry(who[0].clone()).or_insert(0) += 1;
        }
        assert_eq!(answered.len(), 2, "16 flows on one of two back ends: {answered:?}");
    }
}
