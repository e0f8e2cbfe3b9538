//! weir beside features of Debian's kernel that other kernels may lack: IPVS, whose services are imported,
//! tunnel devices on back ends, and VLAN devices as ports. A test is skipped if the running kernel lacks its
//! feature; under Debian's own kernel, it fails instead. Needs root.
//!
//! ```text
//!  client ----- router ----- switch --+-- weir, ipvs
//!                                     +-- b1, b2, b3: the VIP, they answer directly
//! ```

mod spaces;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use spaces::{PATIENCE, Spaces};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;

const ROLES: [&str; 8] = ["client", "router", "switch", "weir", "ipvs", "b1", "b2", "b3"];
const BACK_ENDS: [&str; 3] = ["b1", "b2", "b3"];
const VIP: &str = "203.0.113.80";
const WEIR: &str = "10.3.0.254";
const IPVS: &str = "10.3.0.253";
/// The ports of two services: one keeps its clients at their back ends, the other one shares by weight.
const PERSISTENT: u16 = 80;
const WEIGHTED: u16 = 81;
/// The connections to the service that shares by weight, and how many of them each back end gets.
const CONNECTIONS: usize = 24;
const SHARES: [usize; 3] = [12, 6, 6];
/// The last bytes of clients' addresses: of clients that begin before b1 drains, while it does, and
/// afterwards.
const CLIENTS: [std::ops::Range<u8>; 3] = [1..25, 25..41, 41..65];
/// The MTU of the link to the client, which only the router's end of that link has.
const NARROW: usize = 1400;
/// The length of an answer that takes several segments.
const LONG: usize = 50_000;

/// Builds the network; `None` without root. Each back end answers a byte with its name, but an exclamation
/// mark with [`LONG`] bytes.
fn network(name: &str) -> Option<Spaces> {
    let spaces = Spaces::build(name, &ROLES)?;
    spaces.set("router", &["net.ipv4.ip_forward=1"]);
    spaces.cable(("client", "eth0"), ("router", "client"), "02:00:00:00:01:01");
    let macs: Vec<String> = (1..=6).map(|at| format!("02:00:00:00:03:0{at}")).collect();
    let stations =
        ["router", "weir", "ipvs", "b1", "b2", "b3"].into_iter().zip(macs.iter().map(String::as_str));
    spaces.switch("switch", &stations.collect::<Vec<_>>());
    let mut addresses = String::new();
    for client in 1..CLIENTS[2].end {
        addresses += &format!("addr add 10.1.0.{client}/24 dev eth0\n");
    }
    spaces.at("client").ip(&format!("{addresses}route add default via 10.1.0.254\n")).unwrap();
    spaces.ip("router", "addr add 10.1.0.254/24 dev client\naddr add 10.3.0.1/24 dev eth0");
    for (role, address) in [("weir", WEIR), ("ipvs", IPVS)] {
        spaces.ip(role, &format!("addr add {address}/24 dev eth0\nroute add default via 10.3.0.1"));
    }
    spaces.ip("ipvs", &format!("addr add {VIP}/32 dev lo"));
    for (at, role) in (11..).zip(BACK_ENDS) {
        spaces.set(role, &["net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0"]);
        spaces.ip(role, &format!("addr add 10.3.0.{at}/24 dev eth0\nroute add default via 10.3.0.1"));
        spaces.ip(role, &format!("addr add {VIP}/32 dev lo"));
        for port in [PERSISTENT, WEIGHTED] {
            let listener = spaces.within(role, || TcpListener::bind((VIP, port)).unwrap());
            std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| serve(stream, role)));
        }
    }
    Some(spaces)
}

/// Ends with the test's process.
fn serve(mut stream: TcpStream, role: &'static str) {
    std::thread::spawn(move || {
        let mut byte = [0];
        while stream.read(&mut byte).is_ok_and(|length| length == 1) {
            let answer = if byte == *b"!" { vec![b'!'; LONG] } else { role.as_bytes().to_vec() };
            if stream.write_all(&answer).is_err() {
                break;
            }
        }
    });
}

/// A client's connection, and the back end that has it.
struct ClientConnection {
    client: u8,
    stream: TcpStream,
    back_end: String,
}

impl ClientConnection {
    /// Asks which back end serves it now.
    fn ask(&mut self) -> String {
        self.stream.write_all(b"?").unwrap();
        let mut name = [0; 2];
        let read = self.stream.read_exact(&mut name);
        read.unwrap_or_else(|error| panic!("client {}'s connection is broken: {error}", self.client));
        String::from_utf8(name.to_vec()).unwrap()
    }

    /// Receives a long answer.
    fn download(&mut self) {
        self.stream.write_all(b"!").unwrap();
        let mut bytes = vec![0; LONG];
        self.stream.read_exact(&mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == b'!'));
    }
}

impl Spaces {
    /// Makes the router send packets for the VIP to this balancer.
    fn route_to(&self, balancer: &str) {
        self.ip("router", &format!("route replace {VIP}/32 via {balancer}"));
    }

    fn connect(&self, client: u8, port: u16) -> ClientConnection {
        let stream = self.within("client", || {
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            for which in [Timeout::Send, Timeout::Recv] {
                set_socket_timeout(&socket, which, Some(PATIENCE)).unwrap();
            }
            bind(&socket, &SocketAddr::from((Ipv4Addr::new(10, 1, 0, client), 0))).unwrap();
            let vip = SocketAddr::new(VIP.parse().unwrap(), port);
            connect(&socket, &vip).unwrap_or_else(|error| panic!("client {client}: {error}: {}", self.log()));
            TcpStream::from(socket)
        });
        let mut connection = ClientConnection { client, stream, back_end: String::new() };
        connection.back_end = connection.ask();
        connection
    }

    /// Connects each of these clients.
    fn connect_all(&self, clients: impl Iterator<Item = u8>, port: u16) -> Vec<ClientConnection> {
        clients.map(|client| self.connect(client, port)).collect()
    }

    /// The path MTU that a back end has learned towards a client.
    fn learnt(&self, back_end: &str, client: u8) -> Option<usize> {
        let text = self.ip(back_end, &format!("route get 10.1.0.{client} from {VIP}"));
        text.split_whitespace().skip_while(|word| *word != "mtu").nth(1)?.parse().ok()
    }

    fn ipvsadm(&self, words: &str) -> String {
        self.at("ipvs").output("ipvsadm", &words.split(' ').collect::<Vec<_>>()).unwrap()
    }

    /// Writes weir's configuration: the services of IPVS as they are now.
    fn import(&self) -> String {
        std::fs::write(self.folder().join("ipvs.rules"), self.ipvsadm("-S -n")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["import", "ipvs", "ipvs.rules", "--in", "eth0"]).current_dir(self.folder());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn reload(&self, text: &str) {
        std::fs::write(self.folder().join("weir.yaml"), text).unwrap();
        self.ask(&["reload"]).unwrap_or_else(|| panic!("weir does not reload: {}", self.log()));
    }
}

/// The back ends of connections.
fn set(connections: &[ClientConnection]) -> BTreeSet<&str> {
    connections.iter().map(|one| one.back_end.as_str()).collect()
}

fn shares(connections: &[ClientConnection]) -> [usize; 3] {
    BACK_ENDS.map(|role| connections.iter().filter(|one| one.back_end == role).count())
}

/// Asserts that connections are still at the back ends where they began.
fn stay(connections: &mut [ClientConnection], when: &str) {
    for connection in connections {
        assert_eq!(connection.ask(), connection.back_end, "client {}, {when}", connection.client);
    }
}

/// Checks what IPVS does with the services, and what weir must do after importing them. `weigh` sets the
/// weight of b1 in the service that keeps clients at their back ends.
fn balances(spaces: &mut Spaces, balancer: &str, mut weigh: impl FnMut(&mut Spaces, u32)) {
    spaces.route_to(balancer);
    let all = BTreeSet::from(BACK_ENDS);
    let mut first = spaces.connect_all(CLIENTS[0].clone(), PERSISTENT);
    assert_eq!(set(&first), all, "{balancer}: every back end has clients");
    for before in &first {
        let again = spaces.connect(before.client, PERSISTENT);
        assert_eq!(again.back_end, before.back_end, "{balancer}: client {} stays", before.client);
    }
    let weighted = spaces.connect_all((0..CONNECTIONS).map(|_| 1), WEIGHTED);
    assert_eq!(shares(&weighted), SHARES, "{balancer}: by weights");

    // The router asks back ends for smaller packets with an ICMP error, which is addressed to the VIP.
    spaces.ip("router", &format!("link set client mtu {NARROW}"));
    for role in BACK_ENDS {
        let connection = first.iter_mut().find(|one| one.back_end == role).unwrap();
        assert_eq!(spaces.learnt(role, connection.client), None, "{balancer}: {role} knows nothing yet");
        connection.download();
        assert_eq!(spaces.learnt(role, connection.client), Some(NARROW), "{balancer}: {role}");
        spaces.ip(role, "route flush cache");
    }
    spaces.ip("router", "link set client mtu 1500");

    weigh(spaces, 0);
    stay(&mut first, &format!("{balancer}: while b1 drains"));
    let meanwhile = spaces.connect_all(CLIENTS[1].clone(), PERSISTENT);
    assert_eq!(set(&meanwhile), BTreeSet::from(["b2", "b3"]), "{balancer}: b1 gets no new client");
    let client_of = |role: &str| first.iter().find(|one| one.back_end == role).unwrap().client;
    let (moved, stays) = (client_of("b1"), client_of("b2"));
    let returned = spaces.connect(moved, PERSISTENT);
    assert_ne!(returned.back_end, "b1", "{balancer}: b1 gets no new connection of its client");
    assert_eq!(spaces.connect(stays, PERSISTENT).back_end, "b2", "{balancer}: other clients stay");
    stay(&mut first, &format!("{balancer}: after that"));

    weigh(spaces, 1);
    let later = spaces.connect_all(CLIENTS[2].clone(), PERSISTENT);
    assert_eq!(set(&later), all, "{balancer}: b1 is back");
    let again = spaces.connect(moved, PERSISTENT).back_end;
    assert_eq!(again, returned.back_end, "{balancer}: a client that moved stays there");
    stay(&mut first, &format!("{balancer}: at the end"));
}

#[test]
fn imported_services_do_what_ipvs_does() {
    let Some(mut spaces) = network("iv") else { return };
    let start = format!("-A -t {VIP}:{PERSISTENT} -s rr -p 300");
    if spaces.at("ipvs").output("ipvsadm", &start.split(' ').collect::<Vec<_>>()).is_err() {
        return weir_bed::kernel_lacks("IPVS, or there is no ipvsadm");
    }
    spaces.ipvsadm(&format!("-A -t {VIP}:{WEIGHTED} -s wrr"));
    for (at, weight) in (11..).zip([2, 1, 1]) {
        spaces.ipvsadm(&format!("-a -t {VIP}:{PERSISTENT} -r 10.3.0.{at} -g -w 1"));
        spaces.ipvsadm(&format!("-a -t {VIP}:{WEIGHTED} -r 10.3.0.{at} -g -w {weight}"));
    }
    let edit = |spaces: &Spaces, weight: u32| {
        spaces.ipvsadm(&format!("-e -t {VIP}:{PERSISTENT} -r 10.3.0.11 -g -w {weight}"));
    };
    // By default, a client that returns to a back end of weight 0 stays there: docs/coming-from/ipvs.md.
    spaces.route_to(IPVS);
    let known = spaces.connect_all(1..4, PERSISTENT);
    let client = known.iter().find(|one| one.back_end == "b1").unwrap().client;
    edit(&spaces, 0);
    assert_eq!(spaces.connect(client, PERSISTENT).back_end, "b1");
    edit(&spaces, 1);
    spaces.set("ipvs", &["net.ipv4.vs.expire_quiescent_template=1"]);

    balances(&mut spaces, IPVS, |spaces, weight| edit(spaces, weight));
    let text = spaces.import();
    spaces.weir("weir", &text);
    balances(&mut spaces, WEIR, |spaces, weight| {
        edit(spaces, weight);
        let text = spaces.import();
        spaces.reload(&text);
    });
    spaces.end();
    println!("the same as the kernel: IPVS");
}

/// A tunnel from weir, and the kernel's device on a back end that decapsulates it.
struct Ending {
    /// The keys of the back end.
    keys: &'static str,
    /// A command of `ip` that must run first.
    before: Option<&'static str>,
    /// Arguments of `ip link add tunnel`.
    device: &'static str,
}

const ENDINGS: [Ending; 6] = [
    Ending {
        keys: "mode: ipip, ip: 10.3.0.11",
        before: None,
        device: "type ipip local 10.3.0.11 remote 10.3.0.254",
    },
    Ending {
        keys: "mode: gre, ip: 10.3.0.11",
        before: None,
        device: "type gre local 10.3.0.11 remote 10.3.0.254",
    },
    Ending {
        keys: "mode: gue, ip: 10.3.0.11",
        before: Some("fou add port 6080 gue"),
        device: "type ipip local 10.3.0.11 remote 10.3.0.254 encap gue encap-sport auto encap-dport 6080",
    },
    Ending {
        keys: "mode: gue1, ip: 10.3.0.11",
        before: Some("fou add port 6080 gue"),
        device: "type ipip local 10.3.0.11 remote 10.3.0.254 encap gue encap-sport auto encap-dport 6080",
    },
    Ending {
        keys: "mode: ipip, ip: \"fd03::11\"",
        before: None,
        device: "type ip6tnl local fd03::11 remote fd03::fe mode any encaplimit none",
    },
    Ending {
        keys: "mode: vxlan, ip: 10.3.0.11, vni: 42, inner_mac: \"02:00:00:00:00:42\"",
        before: None,
        device: "address 02:00:00:00:00:42 type vxlan id 42 local 10.3.0.11 remote 10.3.0.254 dstport 4789 \
                 nolearning",
    },
];

#[test]
fn back_ends_end_tunnels_with_the_kernels_devices() {
    let Some(mut spaces) = network("ke") else { return };
    spaces.ip("weir", "addr add fd03::fe/64 dev eth0");
    spaces.ip("b1", "addr add fd03::11/64 dev eth0");
    spaces.route_to(WEIR);
    let mut runs = false;
    for ending in &ENDINGS {
        let line = format!("link add tunnel {}", ending.device);
        let lines: Vec<&str> = ending.before.into_iter().chain([line.as_str()]).collect();
        // The port of the previous tunnel may still be open.
        let _ = spaces.at("b1").ip("fou del port 6080\n");
        if !lines.iter().all(|line| spaces.at("b1").ip(&format!("{line}\n")).is_ok()) {
            weir_bed::kernel_lacks(ending.device);
            continue;
        }
        spaces.ip("b1", "link set tunnel up");
        let text = format!(
            "ports: {{ p0: {{ xdp: eth0 }} }}\napps:\n  - lb:\n      name: web\n      port: p0\n      \
             service: {{ vip: {VIP}, protocol: tcp, port: {PERSISTENT} }}\n      \
             source: [{WEIR}, \"fd03::fe\"]\n      back_ends: [{{ name: b1, {} }}]\n",
            ending.keys
        );
        if runs {
            spaces.reload(&text);
        } else {
            spaces.weir("weir", &text);
            runs = true;
        }
        for mut connection in spaces.connect_all(1..5, PERSISTENT) {
            assert_eq!(connection.back_end, "b1", "{}", ending.keys);
            connection.download();
        }
        let statistics = spaces.ip("b1", "-s -o link show tunnel");
        let received = statistics.split("RX:").nth(1).and_then(|rest| rest.split('\\').nth(1));
        let packets = received.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        assert!(packets > Some(12_u64), "{}: packets come out of the device: {statistics}", ending.keys);
        spaces.ip("b1", "link del tunnel");
        println!("the same as the kernel: the end of a tunnel, {}", ending.keys);
    }
    spaces.end();
}

/// Two hosts, each in a VLAN of one cable, between which weir forwards.
#[test]
fn vlan_devices_are_ports() {
    let Some(mut spaces) = Spaces::build("kv", &["weir", "trunk", "left", "right"]) else { return };
    spaces.cable(("weir", "eth0"), ("trunk", "eth0"), "02:00:00:00:09:fe");
    for (vlan, role, address) in [(10, "left", "10.9.0.1"), (20, "right", "10.9.0.2")] {
        let line = format!("link add link eth0 name eth0.{vlan} type vlan id {vlan}\n");
        if spaces.at("weir").ip(&line).is_err() {
            return weir_bed::kernel_lacks("VLAN devices");
        }
        spaces.ip("weir", &format!("link set eth0.{vlan} up"));
        let host = spaces.name(role);
        spaces.ip("trunk", &format!("link add link eth0 name v{vlan} type vlan id {vlan}"));
        spaces.ip("trunk", &format!("link set v{vlan} netns {host}"));
        spaces.ip(role, &format!("addr add {address}/24 dev v{vlan}\nlink set v{vlan} up"));
    }
    // The hosts address each other, not weir.
    let text = "ports:\n  left: { xdp: eth0.10, take: all, promisc: true, root: out }\n  \
                right: { xdp: eth0.20, take: all, promisc: true, root: back }\npipes:\n  \
                out: { type: basic, forward: right, miss: drop, entries: [{}] }\n  \
                back: { type: basic, forward: left, miss: drop, entries: [{}] }\n";
    spaces.weir("weir", text);
    let server = SocketAddr::from(([10, 9, 0, 2], WEIGHTED));
    let listener = spaces.within("right", || TcpListener::bind(server).unwrap());
    std::thread::spawn(move || serve(listener.accept().unwrap().0, "ri"));
    let stream = spaces.within("left", || TcpStream::connect_timeout(&server, PATIENCE).unwrap());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut connection = ClientConnection { client: 1, stream, back_end: String::new() };
    assert_eq!(connection.ask(), "ri");
    connection.download();
    let ports = spaces.show("ports").unwrap();
    for port in ports["ports"].as_array().unwrap() {
        let counts = ["received", "transmitted"].map(|name| port[name].as_u64().unwrap());
        assert!(counts.iter().all(|count| *count > 5), "every frame passes weir: {port}");
    }
    spaces.end();
    println!("the same as the kernel: VLAN devices as ports");
}
