//! Fragments between real kernels: a client sends datagrams above the MTU through weir to two back ends, one
//! by `l2`, one by `ipip` with `weir decap`. They reassemble them and respond directly. Needs root; skipped
//! without, except in CI.
//!
//! ```text
//!  client --- switch --- weir (XDP)
//!              |   |
//!             b1   b2
//! ```

mod spaces;

use spaces::{PATIENCE, Spaces};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// How long to wait for an answer before the request is repeated.
const TURN: Duration = Duration::from_millis(500);
const PORT: u16 = 5300;
const VIPS: [&str; 2] = ["203.0.113.80", "fd00:80::1"];
const WEIR_MAC: &str = "02:00:00:00:00:01";
const ROLES: [&str; 5] = ["c", "w", "b1", "b2", "n"];

/// Builds the network; `None` without root.
fn network() -> Option<Spaces> {
    let spaces = Spaces::build("fr", &ROLES)?;
    let stations = ["c", "w", "b1", "b2"];
    let macs: Vec<String> = (0..4).map(|at| format!("02:00:00:00:00:0{at}")).collect();
    let pairs: Vec<(&str, &str)> = stations.into_iter().zip(macs.iter().map(String::as_str)).collect();
    spaces.switch("n", &pairs);
    spaces.ip("n", "link set br0 mtu 1600");
    for (number, role) in (1..).zip(stations) {
        spaces.ip("n", &format!("link set {role} mtu 1600"));
        spaces.ip(role, &format!("link set eth0 mtu {}", if role == "c" { 1500 } else { 1600 }));
        spaces.addresses(role, "eth0", [&format!("10.1.0.{number}"), &format!("fd00:1::{number}")]);
    }
    for vip in VIPS {
        spaces.ip("c", &format!("route add {vip} dev eth0"));
        spaces.ip("c", &format!("neigh add {vip} lladdr {WEIR_MAC} dev eth0 nud permanent"));
        for back_end in ["b1", "b2"] {
            spaces.ip(back_end, &format!("addr add {vip} dev lo"));
        }
    }
    Some(spaces)
}

impl Spaces {
    /// Starts `weir decap` on the second back end.
    fn start_decap(&mut self) {
        let from = ["--from", "10.1.0.0/24", "--from", "fd00:1::/64"];
        self.decap("b2", &[&from[..], &["--to", "10.1.0.4", "--to", "fd00:1::4"]].concat());
    }

    /// Opens a socket on a thread in a namespace.
    fn socket(&self, role: &str, address: SocketAddr) -> UdpSocket {
        self.within(role, || UdpSocket::bind(address).unwrap())
    }

    /// Makes a back end answer on the service's address with its name, and the length of what it received if
    /// every byte is correct. The thread ends with the test's process.
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

fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 3 % 251) as u8).collect()
}

/// Sends a datagram of this length until it is answered. Returns which back end answered.
fn ask(socket: &UdpSocket, to: SocketAddr, length: usize, diagnosis: &dyn Fn() -> String) -> String {
    let until = Instant::now() + PATIENCE;
    let mut answer = [0; 64];
    loop {
        assert!(Instant::now() < until, "no answer to {length} bytes to {to}: {}", diagnosis());
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
    let Some(mut bed) = network() else { return };
    bed.start_decap();
    bed.weir("w", &config());
    for vip in VIPS {
        let vip: IpAddr = vip.parse().unwrap();
        bed.serve("b1", vip);
        bed.serve("b2", vip);
        let any = if vip.is_ipv4() { "10.1.0.1" } else { "fd00:1::1" };
        let diagnosis = || format!("{:?} {:?}\n{}", bed.show("ledger"), bed.show("pipes"), bed.log());
        let mut answered = std::collections::BTreeMap::new();
        for _ in 0..16 {
            let socket = bed.socket("c", (any.parse::<IpAddr>().unwrap(), 0).into());
            socket.set_read_timeout(Some(TURN)).unwrap();
            let to = (vip, PORT).into();
            // The flow begins with a fragmented datagram, or with a whole one.
            let lengths = if answered.len() % 2 == 0 { [4000, 100, 9000] } else { [100, 4000, 9000] };
            let who = lengths.map(|length| ask(&socket, to, length, &diagnosis));
            assert!(who.iter().all(|one| *one == who[0]), "{who:?}: {}", diagnosis());
            *answered.entry(who[0].clone()).or_insert(0) += 1;
        }
        assert_eq!(answered.len(), 2, "16 flows on one of two back ends: {answered:?}");
    }
}
