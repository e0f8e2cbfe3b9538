//! Checks that follow the service's own path, with real servers in namespaces: a working server without the
//! VIP is up according to a check of its own address, and down according to one of this kind until it has the
//! VIP. Needs root; skipped without, except in CI.
//!
//! ```text
//!  weir ----- switch ----- server, which listens on all its addresses
//! ```

mod spaces;

use serde_json::Value;
use spaces::Spaces;
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};

const ROLES: [&str; 3] = ["switch", "weir", "server"];
const WEIR_MAC: &str = "02:00:00:00:03:fe";
const SERVER_MAC: &str = "02:00:00:00:03:02";
/// One of each IP version.
const WEIR: [&str; 2] = ["10.3.0.254", "fd03::fe"];
const FROM: [&str; 2] = ["10.3.0.9", "fd03::9"];
const SERVER: [&str; 2] = ["10.3.0.2", "fd03::2"];
const VIP: [&str; 2] = ["203.0.113.80", "2001:db8:80::1"];

/// Builds the network; `None` without root.
fn network(name: &str) -> Option<Spaces> {
    let spaces = Spaces::build(name, &ROLES)?;
    spaces.switch("switch", &[("weir", WEIR_MAC), ("server", SERVER_MAC)]);
    spaces.addresses("weir", "eth0", WEIR);
    spaces.addresses("server", "eth0", SERVER);
    Some(spaces)
}

impl Spaces {
    /// Listens on all addresses of the server with TCP and HTTP on port 80, and on the VIP with UDP, whether
    /// the server has it or not, because the answer to a datagram must come from there.
    fn serve(&self) {
        self.set("server", &["net.ipv4.ip_nonlocal_bind=1"]);
        let open = || (TcpListener::bind("[::]:80").unwrap(), UdpSocket::bind((VIP[0], 53)).unwrap());
        let (web, names) = self.within("server", open);
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
    fn balance(&mut self, back_end: &str, services: &[(&str, usize, &str, u16, &str)]) {
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
        self.weir("weir", &text);
    }

    /// Returns service, health and reason of every back end, once weir answers.
    fn health(&self) -> Option<Vec<[String; 3]>> {
        let shown = self.show("backends")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let row = |row: &Value| [&row["service"], &row["health"], &row["reason"]].map(text);
        Some(shown["backends"].as_array()?.iter().map(row).collect())
    }

    /// Waits until the services named `plain` are up, and all others as wanted.
    fn wait(&self, wanted: &str) -> Vec<[String; 3]> {
        self.until(&format!("services are {wanted}"), || {
            let found = self.health().unwrap_or_default();
            let is_good = |[service, health, _]: &[String; 3]| {
                health == if service.starts_with("plain") { "up" } else { wanted }
            };
            (!found.is_empty() && found.iter().all(is_good)).then_some(found)
        })
    }

    /// Starts `weir decap` on the server.
    fn start_decap(&mut self, outer: usize) {
        self.decap("server", &["--vni", "42", "--from", WEIR[outer], "--to", SERVER[outer]]);
    }

    fn vips(&self, verb: &str) {
        for vip in VIP {
            self.ip("server", &format!("addr {verb} {vip} dev lo"));
        }
    }
}

/// Both kinds of TCP checks, for each IP version.
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
fn finds_out(
    bed: &mut Spaces,
    back_end: &str,
    services: &[(&'static str, usize, &'static str, u16, String)],
) {
    bed.serve();
    let services = services
        .iter()
        .map(|(name, family, protocol, port, check)| (*name, *family, *protocol, *port, check.as_str()));
    bed.balance(back_end, &services.collect::<Vec<_>>());
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
    let Some(mut bed) = network("l") else { return };
    let mut services = services(&via());
    let own = |check: &str| format!("{check}, {}", via());
    services.extend([
        ("http", 0, "tcp", 8080, own("type: http, body: fine, port: 80")),
        ("ping4", 0, "tcp", 8081, own("type: icmp")),
        ("ping6", 1, "tcp", 8081, own("type: icmp")),
        ("udp", 0, "udp", 53, own("type: udp, payload: ping, expect: PING")),
    ]);
    // A neighbour, whose entry is written once it is resolved.
    finds_out(&mut bed, "weight: 1", &services);
    // The host is not involved.
    let host = bed.ip("weir", "link show") + &bed.ip("weir", "rule show") + &bed.ip("weir", "addr show");
    assert!(!host.contains("tun") && !host.contains(FROM[0]) && !host.contains(VIP[0]), "{host}");
}

#[test]
fn l2_of_a_fixed_address() {
    let Some(mut bed) = network("m") else { return };
    finds_out(&mut bed, &format!("mac: \"{SERVER_MAC}\""), &services(&via()));
}

/// A tunnel over each IP version, in beds with these names.
fn over_each_version(mode: &str, names: [&str; 2]) {
    for (outer, name) in names.into_iter().enumerate() {
        let Some(mut bed) = network(name) else { return };
        bed.start_decap(outer);
        finds_out(&mut bed, &format!("mode: {mode}, ip: \"{}\"", SERVER[outer]), &services(&via()));
    }
}

#[test]
fn ip_in_ip() {
    over_each_version("ipip", ["i", "j"]);
}

#[test]
fn gre() {
    over_each_version("gre", ["r", "s"]);
}

#[test]
fn gue() {
    let Some(mut bed) = network("g") else { return };
    bed.start_decap(0);
    finds_out(&mut bed, &format!("mode: gue, ip: \"{}\"", SERVER[0]), &services(&via()));
}

#[test]
fn vxlan() {
    let Some(mut bed) = network("v") else { return };
    bed.start_decap(1);
    let back_end = format!("mode: vxlan, ip: \"{}\", vni: 42, inner_mac: \"{SERVER_MAC}\"", SERVER[1]);
    finds_out(&mut bed, &back_end, &services(&via()));
}
