//! An idle connection of two real kernels: with `idle: reset`, both ends are reset when its flow expires,
//! although the back end responds to its clients directly. Needs root; skipped without, except in CI.
//!
//! ```text
//!  client ----- switch ----- weir
//!                 +--------- server, which has the VIPs
//! ```

mod spaces;

use spaces::{PATIENCE, Spaces};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

const WEIR_MAC: &str = "02:00:00:00:03:fe";
const SERVER_MAC: &str = "02:00:00:00:03:02";
/// One of each IP version.
const CLIENT: [&str; 2] = ["10.3.0.1", "fd03::1"];
const WEIR: [&str; 2] = ["10.3.0.254", "fd03::fe"];
const SERVER: [&str; 2] = ["10.3.0.2", "fd03::2"];
const VIP: [&str; 2] = ["203.0.113.80", "2001:db8:80::1"];

fn build(mode: &str, keys: &str) -> Option<Spaces> {
    let mut spaces = Spaces::build(&format!("idle{mode}"), &["client", "switch", "weir", "server"])?;
    let stations = [("client", "02:00:00:00:03:01"), ("weir", WEIR_MAC), ("server", SERVER_MAC)];
    spaces.switch("switch", &stations);
    for (role, addresses) in [("client", CLIENT), ("weir", WEIR), ("server", SERVER)] {
        spaces.addresses(role, "eth0", addresses);
    }
    for (vip, weir) in VIP.iter().zip(WEIR) {
        spaces.ip("client", &format!("route add {vip} via {weir}"));
        spaces.ip("server", &format!("addr add {vip} dev lo"));
    }
    if mode == "ipip" {
        spaces.decap("server", &["--from", WEIR[0], "--to", SERVER[0]]);
    }
    let text = format!(
        "ports: {{ p0: {{ xdp: eth0 }} }}\napps:\n  - lb: {{ flows: 1024 }}\n  - lb:\n      name: web\n      \
         port: p0\n      service: {{ vip: [{}, \"{}\"], protocol: tcp, port: 80 }}\n      \
         timeouts: {{ tcp_established: 3s }}\n      idle: reset\n      source: {}\n      \
         back_ends: [{{ name: b, mac: \"{SERVER_MAC}\", {keys} }}]\n",
        VIP[0], VIP[1], WEIR[0]
    );
    spaces.weir("weir", &text);
    Some(spaces)
}

/// Connects, sends data in both directions, and waits. Returns how each end learns that the connection has
/// ended.
fn wait_at_both_ends(spaces: &Spaces, vip: SocketAddr) -> [ErrorKind; 2] {
    let listener = spaces.within("server", || TcpListener::bind(vip).unwrap());
    let mut client = spaces.within("client", || TcpStream::connect_timeout(&vip, PATIENCE).unwrap());
    let mut server = listener.accept().unwrap().0;
    let mut word = [0; 4];
    client.write_all(b"ping").unwrap();
    server.read_exact(&mut word).unwrap();
    server.write_all(b"pong").unwrap();
    client.read_exact(&mut word).unwrap();
    [client, server].map(|mut end| {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        end.read(&mut word).expect_err("no more data arrives").kind()
    })
}

fn both_ends_are_reset(mode: &str, keys: &str) {
    let Some(mut spaces) = build(mode, keys) else { return };
    for (at, vip) in VIP.into_iter().enumerate() {
        let learnt = wait_at_both_ends(&spaces, SocketAddr::new(vip.parse().unwrap(), 80));
        assert_eq!(learnt, [ErrorKind::ConnectionReset; 2], "{mode}, {vip}");
        let wanted = format!("\"idle_connections_reset\":{}", at + 1);
        let is_counted = || spaces.show("apps")?.to_string().contains(&wanted).then_some(());
        spaces.until(&wanted, is_counted);
    }
    spaces.end();
}

#[test]
fn both_ends_of_an_idle_connection_are_reset_directly() {
    both_ends_are_reset("l2", "mode: l2");
}

#[test]
fn both_ends_of_an_idle_connection_are_reset_through_a_tunnel() {
    both_ends_are_reset("ipip", &format!("mode: ipip, ip: {}", SERVER[0]));
}
