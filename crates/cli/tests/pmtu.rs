//! Path MTU discovery by real kernels, through every tunnel to a back end with `weir decap`: a client's
//! upload learns from weir what fits the tunnel, and a back end's download learns from a router behind weir's
//! back what fits the client's link, by an ICMP error that only weir can bring it. Needs root; skipped
//! without, except in CI.
//!
//! ```text
//!  client ----- router ----- switch ----- weir
//!                              +--------- server, which has the VIPs and answers directly
//! ```

use rustix::net::sockopt::{Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::sockopt::{set_ip_mtu_discover, set_ipv6_mtu_discover};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
const ROLES: [&str; 5] = ["client", "router", "switch", "weir", "server"];
const WEIR_MAC: &str = "02:00:00:00:03:fe";
const SERVER_MAC: &str = "02:00:00:00:03:02";
/// Of each version of IP.
const CLIENT: [&str; 2] = ["10.1.0.1", "fd01::1"];
const WEIR: [&str; 2] = ["10.3.0.254", "fd03::fe"];
const SERVER: [&str; 2] = ["10.3.0.2", "fd03::2"];
const VIP: [&str; 2] = ["203.0.113.80", "2001:db8:80::1"];
const LENGTH: usize = 1 << 20;
/// The MTU of the client's link, for downloads; its own end does not know.
const NARROW: usize = 1400;

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
        let prefix = format!("wp{}{name}", std::process::id());
        let folder = std::env::temp_dir().join(&prefix);
        std::fs::create_dir_all(&folder).unwrap();
        let bed = Bed { prefix, folder, running: Vec::new() };
        for role in ROLES {
            assert!(Command::new("ip").args(["netns", "add", &bed.name(role)]).status().unwrap().success());
            bed.set(role, &["net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0"]);
            bed.ip(role, "link set lo up");
        }
        bed.set("router", &["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
        bed.ip("switch", "link add br0 type bridge stp_state 0 mcast_snooping 0\nlink set br0 up");
        bed.cable("client", "eth0", ("router", "client"), "02:00:00:00:01:01");
        bed.cable("router", "eth0", ("switch", "router"), "02:00:00:00:03:01");
        bed.cable("weir", "eth0", ("switch", "weir"), WEIR_MAC);
        bed.cable("server", "eth0", ("switch", "server"), SERVER_MAC);
        for port in ["router", "weir", "server"] {
            bed.ip("switch", &format!("link set {port} master br0"));
        }
        bed.addresses();
        Some(bed)
    }

    fn addresses(&self) {
        for (role, interface, addresses) in [
            ("client", "eth0", CLIENT),
            ("router", "client", ["10.1.0.254", "fd01::fe"]),
            ("router", "eth0", ["10.3.0.1", "fd03::1"]),
            ("weir", "eth0", WEIR),
            ("server", "eth0", SERVER),
        ] {
            for (address, length) in addresses.iter().zip([24, 64]) {
                self.ip(role, &format!("addr add {address}/{length} dev {interface}"));
            }
        }
        let all = |role: &str, via: [&str; 2]| {
            self.ip(role, &format!("route add default via {}\n-6 route add default via {}", via[0], via[1]));
        };
        all("client", ["10.1.0.254", "fd01::fe"]);
        all("weir", ["10.3.0.1", "fd03::1"]);
        all("server", ["10.3.0.1", "fd03::1"]);
        for (vip, weir) in VIP.iter().zip(WEIR) {
            self.ip("router", &format!("route add {vip} via {weir}"));
            self.ip("server", &format!("addr add {vip} dev lo"));
        }
    }

    /// Connects two namespaces.
    fn cable(&self, role: &str, interface: &str, (other, end): (&str, &str), mac: &str) {
        let peer = self.name(other);
        let link = format!("link add {interface} address {mac} type veth peer name {end} netns {peer}");
        self.ip(role, &link);
        for (role, interface) in [(role, interface), (other, end)] {
            self.ip(role, &format!("link set {interface} up"));
            // Segments and checksums are made where they are made on a wire.
            let off = ["-K", interface, "tx", "off", "gso", "off", "tso", "off", "gro", "off"];
            assert!(self.run(role, "ethtool", &off).status.success());
        }
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

    fn set(&self, role: &str, values: &[&str]) {
        let output = self.run(role, "sysctl", &[&["-qw"], values].concat());
        assert!(output.status.success(), "{values:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn ip(&self, role: &str, lines: &str) {
        for line in lines.lines() {
            let output = Command::new("ip").arg("-n").arg(self.name(role)).args(line.split(' ')).output();
            let output = output.unwrap();
            let why = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "ip -n {role} {line}: {why}");
        }
    }

    /// Starts weir with a service, with more keys, over one back end, and waits until it answers.
    fn weir(&mut self, back_end: &str, more: &str) {
        let text = format!(
            "ports: {{ p0: {{ xdp: eth0 }} }}\napps:\n  - lb:\n      name: web\n      port: p0\n      \
             service: {{ vip: [{}, \"{}\"], protocol: both, port: 80 }}\n      source: [{}, \"{}\"]\n      \
             {more}back_ends: [{{ name: b, mac: \"{SERVER_MAC}\", {back_end} }}]\n",
            VIP[0], VIP[1], WEIR[0], WEIR[1]
        );
        let (file, log) = (self.folder.join("weir.yaml"), self.folder.join("weir.log"));
        std::fs::write(&file, &text).unwrap();
        let mut command = self.command("weir", env!("CARGO_BIN_EXE_weir"));
        command.arg("run").arg(&file).arg("--socket").arg(self.socket()).stdout(Stdio::null());
        let child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
        self.running.push(child);
        let until = Instant::now() + PATIENCE;
        while self.show("apps").is_none() {
            let told = std::fs::read_to_string(&log).unwrap_or_default();
            assert!(Instant::now() < until, "weir does not answer: {told}\n{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("weir.sock")
    }

    /// Returns what `weir show` says, once it answers.
    fn show(&self, what: &str) -> Option<Value> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output = command.args(["show", what, "--json", "--socket"]).arg(self.socket()).output().unwrap();
        serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
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

    /// Does something on a thread in a namespace.
    fn within<T: Send>(&self, role: &str, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.name(role))).unwrap();
        std::thread::scope(|scope| {
            let inside = move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                work()
            };
            scope.spawn(inside).join().unwrap()
        })
    }

    /// The MTU that a kernel has learnt for the way to an address.
    fn learnt(&self, role: &str, to: &str, from: &str) -> Option<usize> {
        let output =
            Command::new("ip").args(["-n", &self.name(role), "route", "get", to, "from", from]).output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let mut words = text.split_whitespace().skip_while(|word| *word != "mtu");
        words.nth(1).and_then(|mtu| mtu.parse().ok())
    }

    /// Sends a megabyte over a TCP connection, in either direction, and checks every byte.
    fn transfer(&self, family: usize, is_download: bool) {
        let vip = SocketAddr::new(VIP[family].parse().unwrap(), 80);
        let listener = self.within("server", || TcpListener::bind(vip).unwrap());
        let bytes: Vec<u8> = (0..LENGTH).map(|at| (at / 7) as u8).collect();
        let sent = bytes.clone();
        let work = move |mut stream: TcpStream, sends: bool| {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            if sends {
                stream.write_all(&sent).unwrap();
                let mut end = [0; 4];
                stream.read_exact(&mut end).unwrap();
                assert_eq!(&end, b"done");
                return Vec::new();
            }
            let mut received = vec![0; LENGTH];
            stream.read_exact(&mut received).unwrap();
            stream.write_all(b"done").unwrap();
            received
        };
        let at_server = work.clone();
        let server = std::thread::spawn(move || at_server(listener.accept().unwrap().0, is_download));
        let received =
            self.within("client", || work(TcpStream::connect_timeout(&vip, PATIENCE).unwrap(), !is_download));
        let at_server = server.join().unwrap();
        assert!(if is_download { received } else { at_server } == bytes, "every byte arrives");
    }

    /// Sends datagrams that may not be fragmented until the kernel knows better, then the longest that fits.
    fn datagrams(&self, family: usize, fits: usize) {
        let headers = [28, 48][family];
        let vip = SocketAddr::new(VIP[family].parse().unwrap(), 80);
        let server = self.within("server", || UdpSocket::bind(vip).unwrap());
        server.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let client = self.within("client", || {
            let client = UdpSocket::bind(SocketAddr::new(CLIENT[family].parse().unwrap(), 0)).unwrap();
            match family {
                0 => set_ip_mtu_discover(&client, Ipv4PathMtuDiscovery::DO).unwrap(),
                _ => set_ipv6_mtu_discover(&client, Ipv6PathMtuDiscovery::DO).unwrap(),
            }
            client.connect(vip).unwrap();
            client
        });
        let too_long = vec![1; 1500 - headers];
        let until = Instant::now() + PATIENCE;
        // An error of an earlier one is told by the next.
        while client.send(&too_long).is_ok() {
            assert!(Instant::now() < until, "the kernel is not told");
            std::thread::sleep(Duration::from_millis(50));
        }
        let longest = vec![2; fits - headers];
        let mut buffer = vec![0; 2048];
        loop {
            let _ = client.send(&longest);
            match server.recv(&mut buffer) {
                Ok(length) => break assert_eq!(buffer[..length], longest, "and no longer one"),
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        }
        assert!(client.send(&vec![3; fits - headers + 1]).is_err(), "one byte more does not fit");
    }

    /// Ends weir and decap.
    fn end(&mut self) {
        for mut child in self.running.drain(..) {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for mut child in self.running.drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
        for role in ROLES {
            let _ = Command::new("ip").args(["netns", "del", &self.name(role)]).status();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The sum of a counter of the app.
fn counted(bed: &Bed, name: &str) -> u64 {
    let apps = bed.show("apps").expect("weir runs");
    let found = apps.to_string();
    let at = found.find(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{found}"));
    let digits = found[at + name.len() + 3..].chars().take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().unwrap()
}

/// What a tunnel takes of 1500 bytes, over IPv4 and over IPv6.
fn discovers(mode: &str, more: &str, takes: [usize; 2]) {
    for (outer, takes) in takes.into_iter().enumerate() {
        let Some(mut bed) = Bed::build(&format!("{mode}{outer}")) else { return };
        bed.decap(outer);
        bed.weir(&format!("mode: {mode}, ip: \"{}\"{more}", SERVER[outer]), "");
        for family in [0, 1] {
            let (fits, what) = (1500 - takes, format!("{mode} over {outer}, clients {family}"));
            assert_eq!(bed.learnt("client", VIP[family], CLIENT[family]), None, "{what}: nothing is known");
            let before = counted(&bed, "too_big_sent");
            bed.transfer(family, false);
            assert_eq!(bed.learnt("client", VIP[family], CLIENT[family]), Some(fits), "{what}");
            assert!(counted(&bed, "too_big_sent") > before, "{what}");
            bed.ip("client", if family == 0 { "route flush cache" } else { "-6 route flush cache" });
            bed.datagrams(family, fits);
        }
        // Behind the router is a narrow link, of which the client does not know.
        bed.ip("router", &format!("link set client mtu {NARROW}"));
        for family in [0, 1] {
            bed.transfer(family, true);
            let learnt = bed.learnt("server", CLIENT[family], VIP[family]);
            assert_eq!(learnt, Some(NARROW), "{mode} over {outer}, to clients {family}");
        }
        bed.end();
    }
}

/// Without a tunnel, the way may be narrower than that of the clients all the same.
#[test]
fn a_narrow_way_without_a_tunnel() {
    let Some(mut bed) = Bed::build("l2") else { return };
    bed.weir("mode: l2", &format!("mtu: {NARROW}\n      "));
    for family in [0, 1] {
        bed.transfer(family, false);
        assert_eq!(bed.learnt("client", VIP[family], CLIENT[family]), Some(NARROW), "{family}");
        bed.ip("client", if family == 0 { "route flush cache" } else { "-6 route flush cache" });
        bed.datagrams(family, NARROW);
    }
    assert!(counted(&bed, "too_big_sent") >= 4);
    bed.end();
}

#[test]
fn ip_in_ip() {
    discovers("ipip", "", [20, 40]);
}

#[test]
fn gue() {
    discovers("gue", "", [32, 52]);
}

#[test]
fn gre() {
    discovers("gre", "", [24, 44]);
}

#[test]
fn vxlan() {
    discovers("vxlan", &format!(", vni: 42, inner_mac: \"{SERVER_MAC}\""), [50, 70]);
}
