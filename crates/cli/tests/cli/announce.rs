//! VIPs that no host owns, between real kernels: weir answers ARP, neighbour discovery and ping for them, and
//! nothing resets their connections when it is killed.

use super::folder::Folder;
use super::running::Daemon;
use super::weir;
use super::wire::{Wire, sh};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

const VIP: &str = "10.0.0.80";
const VIP6: &str = "2001:db8::80";
/// Another VIP, which no host has heard of.
const OTHER: &str = "10.0.0.81";
const MAC: &str = "02:00:00:00:00:00";
const PATIENCE: Duration = Duration::from_secs(60);
/// The minimum number of connections that are open when weir is killed.
const CONNECTIONS: usize = 8;

const CONFIG: &str = "\
ports:
  p0: { xdp: w0 }
  p1: { xdp: w1 }
apps:
  - lb:
      name: web
      port: p0
      out: p1
      service: { vip: [10.0.0.80, 10.0.0.81], protocol: tcp, port: 80 }
      size: 251
      back_ends:
        - { name: b1, mode: nat, ip: 10.0.1.2, mac: 02:00:00:00:11:00 }
        - { name: b2, mode: nat, ip: 10.0.1.3, mac: 02:00:00:00:11:00 }
  - lb:
      name: six
      port: p0
      out: p1
      service: { vip: \"2001:db8::80\", protocol: tcp, port: 80 }
      back_ends:
        - { name: b1, mac: 02:00:00:00:11:00 }
";

/// A client (the far namespace, 10.0.0.2) and two back ends (the third, 10.0.1.2 and 10.0.1.3) with weir
/// between them, whose host has none of the VIPs and forwards nothing.
fn bed(name: &str) -> Option<Wire> {
    let wire = Wire::new(name, 2)?;
    let Wire { weir, far, third, .. } = &wire;
    for line in [
        format!("ip -n {far} link set f1 netns {third}"),
        format!("ip -n {third} addr add 10.0.1.2/24 dev f1"),
        format!("ip -n {third} addr add 10.0.1.3/24 dev f1"),
        format!("ip -n {third} link set f1 up"),
        format!("ip netns exec {third} ethtool -K f1 tx off txvlan off"),
        format!("ip -n {third} route add default via 10.0.1.1"),
        format!("ip -n {third} neigh replace 10.0.1.1 lladdr 02:00:00:00:01:00 dev f1 nud permanent"),
        format!("ip netns exec {weir} sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.disable_ipv6=0"),
        format!("ip netns exec {far} sysctl -qw net.ipv6.conf.all.disable_ipv6=0"),
        format!("ip -n {far} addr add 2001:db8::2/64 dev f0 nodad"),
    ] {
        sh(&line);
    }
    Some(wire)
}

fn start(wire: &Wire) -> Daemon {
    let folder = Folder::new();
    folder.write("weir.yaml", CONFIG);
    Daemon::start_in_namespace(folder, &wire.weir)
}

/// Runs something in a network namespace.
pub fn inside<T: Send>(netns: &str, work: impl FnOnce() -> T + Send) -> T {
    let namespace = File::open(format!("/run/netns/{netns}")).expect("the namespace is there");
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("root");
            work()
        });
        thread.join().expect("what is done inside does not panic")
    })
}

/// Waits until a condition holds.
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Pings an address once; returns whether an answer with the same data arrived.
fn ping(address: &str) -> bool {
    let address: IpAddr = address.parse().unwrap();
    let (family, protocol, kind) = match address {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128),
    };
    let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol)).expect("root");
    // A raw socket uses the same system calls as a UDP socket.
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let data = [0x17, 0x2a, 0x33, 0x44];
    let mut request = [&[kind, 0, 0, 0, 0, 1, 0, 2][..], &data].concat();
    if kind == 8 {
        let sum = !weir_packet::Sum::default().bytes(&request).fold();
        request[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    if socket.send_to(&request, SocketAddr::new(address, 0)).is_err() {
        return false;
    }
    let begun = Instant::now();
    let mut answer = [0; 256];
    while begun.elapsed() < Duration::from_secs(1) {
        let Ok((length, from)) = socket.recv_from(&mut answer) else { continue };
        let is_reply = answer[..length].windows(12).any(|window| {
            window[0] == if kind == 8 { 0 } else { 129 }
                && window[4..8] == [0, 1, 0, 2]
                && window[8..] == data
        });
        if is_reply && from.ip() == address {
            return true;
        }
    }
    false
}

/// Returns the client's neighbour entry.
fn neighbour(wire: &Wire, address: &str) -> String {
    sh(&format!("ip -n {} neigh show to {address} dev f0", wire.far))
}

#[test]
fn a_vip_that_no_host_owns_is_found_and_pinged() {
    let Some(wire) = bed("vip") else { return };
    // The client's entry is wrong until weir announces where the VIPs are.
    for vip in [VIP, VIP6] {
        let wrong = "lladdr 02:00:00:00:00:77 dev f0 nud stale";
        sh(&format!("ip -n {} neigh replace {vip} {wrong}", wire.far));
    }
    let daemon = start(&wire);
    for vip in [VIP, VIP6] {
        wait_for("an announcement", || neighbour(&wire, vip).contains(MAC));
    }
    // Addresses that were not announced are resolved by request.
    for vip in [VIP, VIP6] {
        sh(&format!("ip -n {} neigh flush to {vip} dev f0", wire.far));
    }
    for vip in [VIP, VIP6, OTHER] {
        wait_for(vip, || inside(&wire.far, || ping(vip)));
    }
    assert!([VIP, VIP6, OTHER].iter().all(|vip| neighbour(&wire, vip).contains(MAC)));
    // The host does not have them, and its neighbour is still reachable.
    let own = sh(&format!("ip -n {} addr show dev w0", wire.weir));
    assert!(![VIP, VIP6, OTHER].iter().any(|vip| own.contains(vip)), "{own}");
    wait_for("the host itself", || inside(&wire.far, || ping("10.0.0.1")));
    // The NIC lets solicitations through, and switches learn from MLD where to forward them.
    let groups = sh(&format!("ip -n {} maddr show dev w0", wire.weir));
    assert!(groups.contains("33:33:ff:00:00:80") && groups.contains("ff02::1:ff00:80"), "{groups}");
    for name in ["vips_announced", "questions_answered", "pings_answered"] {
        wait_for(name, || daemon.show("apps")[0][name].as_u64() >= Some(3));
    }
    assert!(!daemon.log().contains("weir announces"), "{}", daemon.log());
}

/// A server that sends the address to which a client has connected, and then echoes what the client sends.
fn serve(listener: &TcpListener) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { return };
        std::thread::spawn(move || {
            let own = stream.local_addr().map(|own| own.ip().to_string()).unwrap_or_default();
            let mut byte = [0];
            while stream.read(&mut byte).is_ok_and(|length| length == 1) {
                if byte[0] == b'!' {
                    let _ = stream.write_all(format!("{own}\n").as_bytes());
                }
            }
        });
    }
}

/// Asks which server is at the other end.
fn who(stream: &mut TcpStream) -> std::io::Result<String> {
    stream.write_all(b"!")?;
    answer(stream)
}

fn answer(stream: &mut TcpStream) -> std::io::Result<String> {
    let (mut line, mut byte) = (String::new(), [0]);
    while !line.ends_with('\n') {
        if stream.read(&mut byte)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        line.push(char::from(byte[0]));
    }
    Ok(line.trim().to_string())
}

/// Returns a TCP counter of a namespace.
fn tcp_count(netns: &str, name: &str) -> u64 {
    let text = sh(&format!("ip netns exec {netns} cat /proc/net/snmp"));
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs.find(|(one, _)| *one == name).unwrap().1.parse().unwrap()
}

/// Opens a connection to the VIP. Returns it with the server at the other end.
fn connect() -> (TcpStream, String) {
    let address: SocketAddr = format!("{VIP}:80").parse().unwrap();
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let who = who(&mut stream).unwrap();
    (stream, who)
}

/// Starts the server of both back ends.
fn serve_at(netns: &str) {
    let listener = inside(netns, || TcpListener::bind("0.0.0.0:80").unwrap());
    std::thread::spawn(move || serve(&listener));
}

#[test]
fn kill_9_shows_no_reset_and_connections_go_on_when_weir_is_back() {
    let Some(wire) = bed("kill9") else { return };
    let mut daemon = start(&wire);
    serve_at(&wire.third);
    let mut open: Vec<(TcpStream, String)> = Vec::new();
    inside(&wire.far, || {
        // Enough, and both back ends have some.
        let is_other = |all: &[(TcpStream, String)]| all.iter().any(|(_, who)| *who != all[0].1);
        while open.len() < CONNECTIONS || !is_other(&open) {
            assert!(open.len() < 100, "all go to {}", open[0].1);
            open.push(connect());
        }
    });

    daemon.signal(Signal::KILL);
    assert!(!daemon.end().success());
    let before = tcp_count(&wire.far, "RetransSegs");
    for (stream, _) in &mut open {
        stream.write_all(b"!").unwrap();
    }
    // Each has been retransmitted at least twice, and nothing has answered.
    wait_for("retransmissions", || tcp_count(&wire.far, "RetransSegs") >= before + 2 * open.len() as u64);
    for (stream, _) in &mut open {
        stream.set_nonblocking(true).unwrap();
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
        stream.set_nonblocking(false).unwrap();
    }
    assert_eq!(tcp_count(&wire.weir, "OutRsts"), 0);

    let daemon = start(&wire);
    for (stream, before) in &mut open {
        assert_eq!(&answer(stream).expect("the connection continues"), before);
        assert_eq!(&who(stream).expect("the connection continues"), before);
    }
    assert_eq!((tcp_count(&wire.weir, "OutRsts"), tcp_count(&wire.third, "OutRsts")), (0, 0));
    drop(daemon);
}

/// Why the host must not have a VIP: the test above would detect it.
#[test]
fn a_host_that_has_the_vip_resets_connections_when_weir_is_killed() {
    let Some(wire) = bed("reset") else { return };
    sh(&format!("ip -n {} addr add {VIP}/32 dev w0", wire.weir));
    let mut daemon = start(&wire);
    serve_at(&wire.third);
    let (mut stream, _) = inside(&wire.far, connect);
    daemon.signal(Signal::KILL);
    assert!(!daemon.end().success());
    let error = who(&mut stream).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

#[test]
fn a_host_that_has_a_vip_is_told_so() {
    let Some(wire) = bed("own") else { return };
    sh(&format!("ip -n {} addr add {VIP}/32 dev w0", wire.weir));
    let daemon = start(&wire);
    daemon.wait_for_log("weir announces 10.0.0.80: the host has this address");
    let log = daemon.log();
    assert!(!log.contains("10.0.0.81"), "{log}");
    let file = daemon.folder.file("weir.yaml");
    let exe = env!("CARGO_BIN_EXE_weir");
    let said = sh(&format!("ip netns exec {} {exe} doctor {} || true", wire.weir, file.display()));
    let line = said.lines().find(|line| line.contains("10.0.0.80")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.starts_with("warning") && line.contains("vip"), "{line}");
    // The VIP still answers pings.
    wait_for("an answer", || inside(&wire.far, || ping(VIP)));
}

/// A service with the given keys, on a port whose MAC address is known.
fn service(service: &str, keys: &str) -> String {
    format!(
        "ports: {{ p0: {{ mem: ~, mac: {MAC} }} }}\napps:\n  - lb:\n      name: web\n      port: p0\n      \
         service: {{ {service} }}\n{keys}      back_ends:\n        - {{ name: b1, mac: 02:00:00:00:11:00 }}\n"
    )
}

#[test]
fn check_says_what_is_not_announced() {
    let folder = Folder::new();
    let check = |config: String| {
        folder.write("lb.yaml", config);
        weir(folder.path(), &["check", "lb.yaml"])
    };
    let (tcp, udp) = ("vip: 10.0.0.80, protocol: tcp, port: 80", "vip: 10.0.0.80, protocol: udp, port: 80");
    for good in [
        service(tcp, ""),
        service(tcp, "      announce: arp\n      icmp_echo: forward\n"),
        service(udp, "      announce: none\n      icmp_echo: answer\n"),
        service("vip: 10.0.0.0/24, protocol: tcp, port: 80", ""),
    ] {
        check(good).good();
    }
    let under = |text: &str, with: &str, caret: &str| {
        let lines: Vec<&str> = text.lines().collect();
        let at = lines.iter().position(|line| line.contains(with)).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(lines[at + 2].find('^'), lines[at + 1].find(caret), "{text}");
    };
    let said = check(service(tcp, "      announce: none\n"));
    assert_eq!(said.code, Some(0), "{}", said.err);
    under(&said.err, "warning: if the host has 10.0.0.80", "none");
    // Requests for VIPs arrive on any queue.
    let queues = |interface: &str| {
        let port = format!("xdp: {interface}, queues: [0], mac");
        service(tcp, "").replace("mem: ~, mac", &port)
    };
    let said = check(queues("none0"));
    assert_eq!(said.code, Some(0), "{}", said.err);
    under(&said.err, "warning: port `p0` does not use all queues", "web");
    let said = check(queues("lo"));
    assert!(!said.err.contains("does not use all queues"), "it has one: {}", said.err);
    for (config, why, caret) in [
        (service(tcp, "      announce: maybe\n"), "`announce` cannot be", "maybe"),
        (
            service("vip: 10.0.0.0/24, protocol: udp, port: 53", "      announce: arp\n"),
            "no VIP that is a single address",
            "web",
        ),
        (
            service(tcp, "").replace("mac: 02:00:00:00:11:00", "ip: 10.0.0.9, vlan: 7"),
            "has a `vlan`, so it needs `mac`",
            "b1",
        ),
        (service(tcp, "").replace("name: b1,", "name: b1, vlan: 4095,"), "4094", "4095"),
        (
            service(tcp, "      icmp_echo: forward\n")
                .replace("name: b1,", "name: b1, mode: nat, ip: 10.0.0.9,"),
            "gets no pings",
            "b1",
        ),
    ] {
        let said = check(config);
        assert_eq!(said.code, Some(2), "{why}: {}", said.err);
        under(&said.err, why, caret);
    }
}
