//! Path MTU discovery by real kernels, through every tunnel to a back end with `weir decap`: a client's
//! upload learns from weir what fits the tunnel, and a back end's download learns from a router behind weir
//! what fits the client's link, by an ICMP error that only weir can deliver. Needs root; skipped without,
//! except in CI.
//!
//! ```text
//!  client ----- router ----- switch ----- weir
//!                              +--------- server, which has the VIPs and answers directly
//! ```

mod spaces;

use rustix::net::sockopt::{Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::sockopt::{set_ip_mtu_discover, set_ipv6_mtu_discover};
use spaces::{PATIENCE, Spaces};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

const ROLES: [&str; 5] = ["client", "router", "switch", "weir", "server"];
const WEIR_MAC: &str = "02:00:00:00:03:fe";
const SERVER_MAC: &str = "02:00:00:00:03:02";
/// One of each IP version.
const CLIENT: [&str; 2] = ["10.1.0.1", "fd01::1"];
const WEIR: [&str; 2] = ["10.3.0.254", "fd03::fe"];
const SERVER: [&str; 2] = ["10.3.0.2", "fd03::2"];
const VIP: [&str; 2] = ["203.0.113.80", "2001:db8:80::1"];
const LENGTH: usize = 1 << 20;
/// The MTU of the client's link, for downloads; its own end does not know it.
const NARROW: usize = 1400;

/// Builds the network; `None` without root.
fn network(name: &str) -> Option<Spaces> {
    let spaces = Spaces::build(name, &ROLES)?;
    spaces.set("router", &["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
    spaces.cable(("client", "eth0"), ("router", "client"), "02:00:00:00:01:01");
    let stations = [("router", "02:00:00:00:03:01"), ("weir", WEIR_MAC), ("server", SERVER_MAC)];
    spaces.switch("switch", &stations);
    spaces.addresses("client", "eth0", CLIENT);
    spaces.addresses("router", "client", ["10.1.0.254", "fd01::fe"]);
    spaces.addresses("router", "eth0", ["10.3.0.1", "fd03::1"]);
    spaces.addresses("weir", "eth0", WEIR);
    spaces.addresses("server", "eth0", SERVER);
    let all = |role: &str, via: [&str; 2]| {
        spaces.ip(role, &format!("route add default via {}\n-6 route add default via {}", via[0], via[1]));
    };
    all("client", ["10.1.0.254", "fd01::fe"]);
    all("weir", ["10.3.0.1", "fd03::1"]);
    all("server", ["10.3.0.1", "fd03::1"]);
    for (vip, weir) in VIP.iter().zip(WEIR) {
        spaces.ip("router", &format!("route add {vip} via {weir}"));
        spaces.ip("server", &format!("addr add {vip} dev lo"));
    }
    Some(spaces)
}

impl Spaces {
    /// Starts weir with a service over one back end, with additional keys.
    fn balance(&mut self, back_end: &str, more: &str) {
        let text = format!(
            "ports: {{ p0: {{ xdp: eth0 }} }}\napps:\n  - lb:\n      name: web\n      port: p0\n      \
             service: {{ vip: [{}, \"{}\"], protocol: both, port: 80 }}\n      source: [{}, \"{}\"]\n      \
             {more}back_ends: [{{ name: b, mac: \"{SERVER_MAC}\", {back_end} }}]\n",
            VIP[0], VIP[1], WEIR[0], WEIR[1]
        );
        self.weir("weir", &text);
    }

    /// Starts `weir decap` on the server.
    fn start_decap(&mut self, outer: usize) {
        self.decap("server", &["--vni", "42", "--from", WEIR[outer], "--to", SERVER[outer]]);
    }

    /// Returns the path MTU that a kernel has learned towards an address.
    fn learnt(&self, role: &str, to: &str, from: &str) -> Option<usize> {
        let output =
            Command::new("ip").args(["-n", self.name(role), "route", "get", to, "from", from]).output();
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

    /// Sends datagrams with Don't Fragment set until the kernel has learned the MTU, then the longest that
    /// fits.
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
        // An error of an earlier one is reported by the next.
        while client.send(&too_long).is_ok() {
            assert!(Instant::now() < until, "the kernel does not learn the MTU");
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
}

/// The sum of a counter of the app.
fn counted(bed: &Spaces, name: &str) -> u64 {
    let apps = bed.show("apps").expect("weir runs");
    let found = apps.to_string();
    let at = found.find(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{found}"));
    let digits = found[at + name.len() + 3..].chars().take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().unwrap()
}

/// The overhead of a tunnel in 1500 bytes, over IPv4 and over IPv6.
fn discovers(mode: &str, more: &str, takes: [usize; 2]) {
    for (outer, takes) in takes.into_iter().enumerate() {
        let Some(mut bed) = network(&format!("{mode}{outer}")) else { return };
        bed.start_decap(outer);
        bed.balance(&format!("mode: {mode}, ip: \"{}\"{more}", SERVER[outer]), "");
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
        // Behind the router is a narrow link, of which the client is unaware.
        bed.ip("router", &format!("link set client mtu {NARROW}"));
        for family in [0, 1] {
            bed.transfer(family, true);
            let learnt = bed.learnt("server", CLIENT[family], VIP[family]);
            assert_eq!(learnt, Some(NARROW), "{mode} over {outer}, to clients {family}");
        }
        bed.end();
    }
}

/// Even without a tunnel, the path may be narrower than that of the clients.
#[test]
fn a_narrow_way_without_a_tunnel() {
    let Some(mut bed) = network("l2") else { return };
    bed.balance("mode: l2", &format!("mtu: {NARROW}\n      "));
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
