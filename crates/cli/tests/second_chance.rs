//! The GLB director's second chance, with real kernels: the balancer keeps no flows, and yet connections
//! survive a change of its table, because the back end that now gets their packets passes them on to the one
//! that has them. Needs root; skipped without, except in CI.
//!
//! ```text
//!  client ---+
//!  weir -----+-- switch --+-- b1, b2, b3: `weir decap --second-chance`, and the VIP
//! ```

mod spaces;

use spaces::{PATIENCE, Spaces};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

const ROLES: [&str; 6] = ["switch", "client", "weir", "b1", "b2", "b3"];
const WEIR_MAC: &str = "02:00:00:00:01:fe";
const BACK_ENDS: [&str; 3] = ["b1", "b2", "b3"];
/// One of each IP version.
const VIP: [&str; 2] = ["203.0.113.80", "fd00:80::1"];
const PORT: u16 = 80;

fn build(name: &str) -> Option<Spaces> {
    let mut spaces = Spaces::build(name, &ROLES)?;
    let macs: Vec<String> = (1..=5).map(|at| format!("02:00:00:00:01:0{at}")).collect();
    let mut stations: Vec<(&str, &str)> =
        ROLES[1..].iter().copied().zip(macs.iter().map(String::as_str)).collect();
    stations[1].1 = WEIR_MAC;
    spaces.switch("switch", &stations);
    for (at, role) in (1..).zip(&ROLES[1..]) {
        spaces.addresses(role, "eth0", [&format!("10.1.0.{at}"), &format!("fd00:1::{at}")]);
    }
    for vip in VIP {
        spaces.ip("client", &format!("route add {vip} dev eth0"));
        spaces.ip("client", &format!("neigh add {vip} lladdr {WEIR_MAC} dev eth0 nud permanent"));
        BACK_ENDS.iter().for_each(|role| _ = spaces.ip(role, &format!("addr add {vip} dev lo")));
    }
    for (at, role) in (3..).zip(BACK_ENDS) {
        let to = format!("10.1.0.{at}");
        let more = ["--from", "10.1.0.0/24", "--to", &to, "--gue-port", "19523", "--second-chance"];
        spaces.decap(role, &more);
        for vip in VIP {
            let listen = || TcpListener::bind(SocketAddr::new(vip.parse().unwrap(), PORT)).unwrap();
            let listener = spaces.within(role, listen);
            std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| echo(stream, role)));
        }
    }
    Some(spaces)
}

/// Answers every byte with the name of the back end; ends with the test's process.
fn echo(mut stream: TcpStream, role: &'static str) {
    std::thread::spawn(move || {
        let mut byte = [0];
        while stream.read(&mut byte).is_ok_and(|length| length == 1) {
            if stream.write_all(role.as_bytes()).is_err() {
                break;
            }
        }
    });
}

/// Asks which back end has a connection.
fn who(stream: &mut TcpStream) -> String {
    stream.write_all(b"?").unwrap();
    let mut name = [0; 2];
    stream.read_exact(&mut name).unwrap_or_else(|error| panic!("the connection is broken: {error}"));
    String::from_utf8(name.to_vec()).unwrap()
}

/// The shares of the back ends among connections.
fn shares(connections: &[String]) -> [usize; 3] {
    BACK_ENDS.map(|role| connections.iter().filter(|name| *name == role).count())
}

#[test]
fn connections_outlive_a_change_of_the_table_without_a_table_of_flows() {
    let Some(mut spaces) = build("sc") else { return };
    let back_end = |(at, name): (usize, &str)| {
        format!("        - {{ name: {name}, mac: \"02:00:00:00:01:0{at}\", mode: gue, ip: 10.1.0.{at} }}\n")
    };
    let back_ends: String = (3..).zip(BACK_ENDS).map(back_end).collect();
    let text = format!(
        "\
tunnels: {{ gue: {{ port: 19523 }} }}
ports: {{ p0: {{ xdp: eth0 }} }}
apps:
  - lb:
      name: web
      port: p0
      service: {{ vip: [{}, \"{}\"], protocol: tcp, port: {PORT} }}
      source: 10.1.0.2
      stateless: true
      scheduler: glb
      glb:
        seed: 34567890123456783456789012345678
        hash_key: 12345678901234561234567890123456
        hash_fields: [src_addr, src_port]
      back_ends:
{back_ends}",
        VIP[0], VIP[1]
    );
    spaces.weir("weir", &text);
    let connect = |family: usize| {
        let vip = SocketAddr::new(VIP[family].parse().unwrap(), PORT);
        let mut stream = spaces.within("client", || TcpStream::connect_timeout(&vip, PATIENCE).unwrap());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let name = who(&mut stream);
        (stream, name)
    };
    let (mut streams, had): (Vec<TcpStream>, Vec<String>) = (0..60).map(|at| connect(at % 2)).unzip();
    assert!(shares(&had).iter().all(|share| *share > 5), "{had:?}");
    let still = |streams: &mut [TcpStream]| streams.iter_mut().map(who).collect::<Vec<String>>();

    // b1 drains: new connections go elsewhere, its own continue via the second ones of their rows.
    spaces.ask(&["lb", "drain", "web", "b1"]).expect("weir drains it");
    let drained = || connect(0).1 != "b1" && connect(1).1 != "b1";
    spaces.until("b1 drains", || (0..10).all(|_| drained()).then_some(()));
    assert_eq!(still(&mut streams), had, "connections stay where they are");
    let (_more, new): (Vec<TcpStream>, Vec<String>) = (0..20).map(|at| connect(at % 2)).unzip();
    assert_eq!(shares(&new)[0], 0, "{new:?}");

    // b1 is back: connections that began in its rows meanwhile are at the second back ends.
    spaces.ask(&["lb", "enable", "web", "b1"]).expect("weir enables it");
    spaces.until("b1 is back", || (connect(0).1 == "b1").then_some(()));
    assert_eq!(still(&mut streams), had, "connections stay where they are");

    let counts = spaces.end();
    let passed: u64 = counts.iter().map(|one| one["passed_on"].as_u64().unwrap()).sum();
    assert!(passed >= had.iter().filter(|name| *name == "b1").count() as u64, "{counts:?}");
}
