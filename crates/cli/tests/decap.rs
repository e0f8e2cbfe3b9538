//! `weir decap` on a back end whose kernel has the service's address and no tunnel device: two network
//! namespaces, real TCP connections through a tunnel, responses that are returned directly. Needs root;
//! skipped without, except in CI.
//!
//! The tunnel's other end is the kernel's own VXLAN device, and for the other tunnels frames built by the
//! test.

mod spaces;

use spaces::{PATIENCE, Spaces};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::{Duration, Instant};
use weir_packet::craft::Recipe;

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
const VIP: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 80);

/// Two namespaces, with `weir decap` in that of the back end.
fn build(name: &str, more: &[&str]) -> Option<Spaces> {
    let mut spaces = Spaces::build(name, &["c", "s"])?;
    spaces.ip("c", &format!("link add eth0 type veth peer name eth0 netns {}", spaces.name("s")));
    for (role, address) in [("c", CLIENT), ("s", HOST)] {
        spaces.ip(role, &format!("addr add {address}/24 dev eth0\nlink set eth0 up"));
    }
    spaces.ip("s", &format!("addr add {VIP}/32 dev lo"));
    let host = HOST.to_string();
    spaces.decap("s", &[&["--from", "10.1.0.0/24", "--to", &host], more].concat());
    Some(spaces)
}

/// The kernel's own device encapsulates, with segments of many packets (GSO), transparently to TCP.
#[test]
fn tcp_goes_through_the_kernels_vxlan() {
    let Some(mut bed) = build("dv", &["--vni", "42"]) else { return };
    bed.ip(
        "c",
        &format!(
            "link add vx0 mtu 1450 type vxlan id 42 dstport 4789 local {CLIENT} remote {HOST} nolearning\n\
             link set vx0 up\n\
             route add {VIP}/32 dev vx0 src {CLIENT}\n\
             neigh add {VIP} lladdr 02:00:00:00:00:99 dev vx0 nud permanent"
        ),
    );
    const LENGTH: usize = 4 << 20;
    let listener = bed.within("s", || TcpListener::bind((VIP, 80)).unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut received = vec![0; LENGTH];
        stream.read_exact(&mut received).unwrap();
        stream.write_all(b"all here").unwrap();
        received
    });
    let sent: Vec<u8> = (0..LENGTH).map(|at| (at / 7) as u8).collect();
    let answer = bed.within("c", || {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from((VIP, 80)), PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&sent).unwrap();
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).unwrap();
        answer
    });
    assert_eq!(&answer, b"all here");
    assert!(server.join().unwrap() == sent, "every byte arrives");
    let counts = bed.end().remove(0);
    assert!(counts["vxlan"].as_u64() > Some(4), "{counts}");
    let others = counts.as_object().unwrap().iter().filter(|(name, _)| *name != "vxlan");
    assert!(others.into_iter().all(|(_, count)| *count == 0), "{counts}");
}

/// Sends IPv4 packets without a tunnel device.
fn raw() -> OwnedFd {
    use rustix::net::{AddressFamily, SocketType, ipproto, socket};
    socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW)).unwrap()
}

/// An outer IPv4 packet; the kernel writes its length, identification and checksum.
fn outer(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
    packet.extend(CLIENT.octets());
    packet.extend(HOST.octets());
    packet.extend(payload);
    packet
}

fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut datagram = [50_000_u16.to_be_bytes(), port.to_be_bytes()].concat();
    datagram.extend((8 + payload.len() as u16).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    datagram
}

#[test]
fn datagrams_come_out_of_every_tunnel_until_it_ends() {
    let Some(mut bed) = build("dt", &[]) else { return };
    let (client, address) = bed.within("c", || {
        let socket = UdpSocket::bind((CLIENT, 0)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    });
    let server = bed.within("s", || UdpSocket::bind((VIP, 53)).unwrap());
    server.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let recipe = format!("src={CLIENT} dst={VIP} proto=udp sport={} dport=53", address.port());
    let inner = recipe.parse::<Recipe>().unwrap().build()[14..].to_vec();
    let raw = bed.within("c", raw);
    let send = |packet: &[u8]| {
        let to = SocketAddr::from((HOST, 0));
        rustix::net::sendto(&raw, packet, rustix::net::SendFlags::empty(), &to).unwrap();
    };
    let gue = [&[0, 4, 0, 0][..], &inner].concat();
    let gre = [&[0, 0, 8, 0][..], &inner].concat();
    let forms = [
        ("ipip", outer(4, &inner)),
        ("gue", outer(17, &udp(6080, &gue))),
        ("gue", outer(17, &udp(6080, &inner))),
        ("gre", outer(47, &gre)),
    ];
    let mut buffer = [0; 2048];
    for ((name, packet), host) in forms.iter().zip(100..) {
        // If a load balancer's source is a prefix, each flow has a different source address within it.
        let mut packet = packet.clone();
        packet[12..16].copy_from_slice(&[10, 1, 0, host]);
        send(&packet);
        let until = Instant::now() + PATIENCE;
        // The kernel may have to resolve the neighbour first.
        let from = loop {
            match server.recv_from(&mut buffer) {
                Ok((_, from)) => break from,
                Err(error) => assert!(Instant::now() < until, "{name}: {error}"),
            }
        };
        assert_eq!(from, address, "{name}: from the client itself");
        server.send_to(name.as_bytes(), from).unwrap();
        let (length, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from), (name.as_bytes(), SocketAddr::from((VIP, 53))));
    }
    let counts = bed.end().remove(0);
    assert_eq!((&counts["ipip"], &counts["gue"], &counts["gre"]), (&1.into(), &2.into(), &1.into()));
    // Without it, nothing comes out.
    send(&forms[0].1);
    assert!(server.recv_from(&mut buffer).is_err());
}

#[test]
fn what_is_wrong_is_refused() {
    let said = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_weir")).arg("decap").args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, why) = said(&["eth0", "--from", "10.0.0.0/40", "--to", "10.0.0.1"]);
    assert_eq!(code, Some(2));
    assert!(why.contains("--from 10.0.0.0/40 is not an address or a prefix"), "{why}");
    let (code, why) = said(&["eth0", "--from", "10.0.0.0/8", "--to", "224.0.0.1"]);
    assert_eq!(code, Some(2));
    assert!(why.contains("is not a host address"), "{why}");
    let (code, why) = said(&["eth0", "--from", "10.0.0.0/8", "--to", "10.0.0.1", "--gue-port", "4789"]);
    assert_eq!(code, Some(2));
    assert!(why.contains("must be different"), "{why}");
    let (code, why) = said(&["no-such-dev", "--from", "10.0.0.0/8", "--to", "10.0.0.1"]);
    assert_eq!(code, Some(1));
    assert!(why.contains("there is no interface no-such-dev"), "{why}");
}
