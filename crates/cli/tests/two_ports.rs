//! Both ports of weir at one learning switch, with the command of XenoFlow's thesis (its figure 7.1). Needs
//! root; skipped without, except in CI.
//!
//! ```text
//!  client --------- switch --+-- b1, b2: the VIP
//!  weir: eth0, eth1 ---+
//! ```

mod spaces;

use spaces::{PATIENCE, Spaces};
use std::net::UdpSocket;

const ROLES: [&str; 5] = ["switch", "client", "weir", "b1", "b2"];
const VIP: &str = "10.7.0.53";
const IN: &str = "02:00:00:00:07:02";
const BACK_ENDS: &str = r#"{"backends":[{"name":"b1","mac_address":"02:00:00:00:07:03"},
    {"name":"b2","mac_address":"02:00:00:00:07:04"}]}"#;
const QUERIES: u16 = 20_000;

/// What every query asks: the IPv4 address of `h1.weir.test` (RFC 1035 §4.1.2).
const QUESTION: &[u8] = b"\x02h1\x04weir\x04test\0\0\x01\0\x01";

/// A DNS query with this identifier.
fn query(id: u16) -> Vec<u8> {
    // Recursion desired, one question.
    let head = [id, 0x0100, 1, 0, 0, 0].map(u16::to_be_bytes).concat();
    [&head[..], QUESTION].concat()
}

/// Its answer. The record is the address of the back end that answers, so the client knows which one it was.
fn answer(id: u16, back_end: u8) -> Vec<u8> {
    // An answer with authority, one question, one record.
    let head = [id, 0x8500, 1, 1, 0, 0].map(u16::to_be_bytes).concat();
    // The name is that of the question; type A, class IN, no time to live, four bytes.
    let record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 10, 7, 0, back_end];
    [&head[..], QUESTION, &record].concat()
}

fn build() -> Option<Spaces> {
    let spaces = Spaces::build("tp", &ROLES)?;
    let stations = [("client", "02:00:00:00:07:01"), ("weir", IN), ("b1", "02:00:00:00:07:03")];
    spaces.switch("switch", &[&stations[..], &[("b2", "02:00:00:00:07:04")]].concat());
    spaces.cable(("weir", "eth1"), ("switch", "out"), "02:00:00:00:07:fe");
    spaces.ip("switch", "link set out master br0");
    // Even clients go to one back end, odd ones to the other.
    spaces.ip("client", "addr add 10.7.0.100/24 dev eth0\naddr add 10.7.0.101/24 dev eth0");
    spaces.ip("client", &format!("route add {VIP}/32 dev eth0"));
    spaces.ip("client", &format!("neigh add {VIP} lladdr {IN} dev eth0 nud permanent"));
    for (at, role) in (3..).zip(["b1", "b2"]) {
        spaces.ip(role, &format!("addr add 10.7.0.{at}/24 dev eth0\naddr add {VIP}/32 dev lo"));
        let server = spaces.within(role, || UdpSocket::bind((VIP, 53)).unwrap());
        std::thread::spawn(move || {
            let mut asked = [0; 512];
            while let Ok((length, from)) = server.recv_from(&mut asked) {
                let id = u16::from_be_bytes([asked[0], asked[1]]);
                // What is no longer a query gets no answer, and counts as lost.
                if asked[..length] == query(id) {
                    let _ = server.send_to(&answer(id, at), from);
                }
            }
        });
    }
    Some(spaces)
}

#[test]
fn no_query_is_lost_and_the_switch_learns_nothing_wrong() {
    let Some(mut spaces) = build() else { return };
    let arguments = ["--in", "eth0", "--out", "eth1", "--vip", VIP];
    spaces.weir_with("weir", "backends.json", BACK_ENDS, &arguments);
    let clients = ["10.7.0.100", "10.7.0.101"].map(|address| {
        let socket = spaces.within("client", || UdpSocket::bind((address, 0)).unwrap());
        socket.set_read_timeout(Some(PATIENCE / 10)).unwrap();
        socket
    });
    for number in 0..QUERIES {
        let odd = number % 2;
        let client = &clients[usize::from(odd)];
        client.send_to(&query(number), (VIP, 53)).unwrap();
        let mut answered = [0; 512];
        let Ok((length, _)) = client.recv_from(&mut answered) else {
            panic!("query {number} is lost: {}", spaces.log());
        };
        assert_eq!(answered[..length], answer(number, 3 + odd as u8), "query {number}");
    }
    spaces.end();
    let stations = spaces.command("switch", "bridge").args(["fdb", "get", IN, "br", "br0"]).output().unwrap();
    let station = String::from_utf8(stations.stdout).unwrap();
    // The switch has learned the address at the right port, or not at all yet.
    assert!(!station.contains("dev out "), "eth0 is where it was: {station}");
}
