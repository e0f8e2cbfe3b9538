//! The kernel handles frames of a real interface: queries over a switch to real servers, with changes and
//! reloads in between. Needs root; skipped without, except in CI.
//!
//! ```text
//!  client --------- switch --+-- b1, b2: the VIP
//!  weir: eth0, eth1 ---+
//! ```
//! A veth delivers what XDP sends only to a peer that receives with NAPI, as one with an XDP program does. So
//! the switch's ends of weir's cables have a program that passes everything.

mod changes;
mod flows;
mod in_place;
mod nat;
mod share;
#[path = "../spaces/mod.rs"]
mod spaces;

use aya::maps::loaded_maps;
use aya::programs::loaded_programs;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use serde_json::Value;
use spaces::{PATIENCE, Spaces};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_bpf::{AttachMode, XdpErrors, XdpTake};

const VIP: &str = "10.7.0.53";
const CLIENT: &str = "02:00:00:00:07:01";
const IN: &str = "02:00:00:00:07:02";
const OUT: &str = "02:00:00:00:07:fe";
const B1: &str = "02:00:00:00:07:03";
const B2: &str = "02:00:00:00:07:04";
const CLIENTS: [&str; 3] = ["10.7.0.100", "10.7.0.101", "10.7.0.102"];
const QUERIES: u64 = 400;

/// Bytes of packets that may wait in a socket: thousands of queries.
const SOCKET_BUFFER: usize = 4 << 20;

/// What the host's own server answers, where a back end answers its number.
const HOST: u8 = 0;

const BACK_OUT: &str = "
metrics: 127.0.0.1:9105
ports:
  p0: { xdp: eth0, take: [{ dst: 10.7.0.53 }], kernel: require, root: choose }
pipes:
  choose:
    type: basic
    match: { ipv4.dst: 10.7.0.53, ipv4.src: per_entry }
    monitor: { counter: per_entry }
    action: [{ set: { eth.dst: per_entry, eth.src: 02:00:00:00:07:02 } }]
    forward: in_port
    miss: drop
    entries:
      - { match: { ipv4.src: 10.7.0.100 }, set: { eth.dst: 02:00:00:00:07:03 }, counter: even }
      - { match: { ipv4.src: 10.7.0.101 }, set: { eth.dst: 02:00:00:00:07:04 }, counter: odd }
";

const TUNNEL: &str = "
ports:
  p0: { xdp: eth0, take: [{ dst: 10.7.0.53 }], kernel: require, root: tunnel }
  p1: { xdp: eth1, kernel: require }
pipes:
  tunnel:
    type: basic
    match: { ipv4.dst: per_entry }
    action:
      - encap_ipip: { eth.dst: 02:00:00:00:07:03, eth.src: 02:00:00:00:07:fe, src: 10.7.0.2, dst: per_entry }
    forward: p1
    miss: drop
    entries: [{ match: { ipv4.dst: 10.7.0.53 }, encap_ipip: { dst: 10.7.0.3 } }]
";

/// The namespaces, and the programs at the switch's ends of weir's cables.
pub(crate) struct Network {
    spaces: Spaces,
    passing: Vec<XdpTake>,
}

pub(crate) fn build(name: &str) -> Option<Network> {
    let spaces = Spaces::build(name, &["switch", "client", "weir", "b1", "b2"])?;
    spaces.switch("switch", &[("client", CLIENT), ("weir", IN), ("b1", B1), ("b2", B2)]);
    spaces.cable(("weir", "eth1"), ("switch", "out"), OUT);
    spaces.ip("switch", "link set out master br0");
    spaces.ip("client", &CLIENTS.map(|client| format!("addr add {client}/24 dev eth0")).join("\n"));
    // If a worker is late, segments are not sent again, and so not counted twice.
    spaces.ip("client", &format!("route add {VIP}/32 dev eth0 rto_min 30s"));
    spaces.ip("client", &format!("neigh add {VIP} lladdr {IN} dev eth0 nud permanent"));
    for (number, role) in [(HOST, "weir"), (1, "b1"), (2, "b2")] {
        spaces.ip(role, &format!("addr add 10.7.0.{}/24 dev eth0\naddr add {VIP}/32 dev lo", number + 2));
        // Packets that wait for the address of a neighbour are overtaken once it is known.
        let known = |client| format!("neigh add {client} lladdr {CLIENT} dev eth0 nud permanent\n");
        spaces.ip(role, &CLIENTS.map(known).concat());
        answer_queries(&spaces, role, VIP, number);
    }
    // A veth puts packets into a queue of the processor at hand. One queue for all keeps them in order.
    for (role, ends) in
        [("switch", "client weir b1 b2 out"), ("client", "eth0"), ("b1", "eth0"), ("b2", "eth0")]
    {
        let one = format!("for end in {ends}; do echo 1 > /sys/class/net/$end/queues/rx-0/rps_cpus; done");
        assert!(spaces.command(role, "sh").args(["-ec", &one]).status().unwrap().success());
    }
    let passing = ["weir", "out"].map(|end| spaces.within("switch", || pass_all(end)));
    Some(Network { spaces, passing: passing.into() })
}

/// Answers queries to an address with this number and the query.
fn answer_queries(spaces: &Spaces, role: &str, address: &str, number: u8) {
    let server = spaces.within(role, || UdpSocket::bind((address, 53)).unwrap());
    set_socket_recv_buffer_size_force(&server, SOCKET_BUFFER).unwrap();
    std::thread::spawn(move || {
        let mut query = [0; 64];
        while let Ok((length, from)) = server.recv_from(&mut query) {
            let _ = server.send_to(&[&[number], &query[..length]].concat(), from);
        }
    });
}

/// Attaches a program that takes nothing.
fn pass_all(interface: &str) -> XdpTake {
    let links = weir_netlink::links().unwrap();
    let link = links.iter().find(|link| link.name == interface).expect("an end of a cable");
    let mut program = XdpTake::load(1).unwrap();
    program.attach(link.index, AttachMode::Native).unwrap();
    program
}

impl Network {
    fn client(&self, which: usize) -> UdpSocket {
        let socket = self.spaces.within("client", || UdpSocket::bind((CLIENTS[which], 0)).unwrap());
        socket.set_read_timeout(Some(PATIENCE / 10)).unwrap();
        set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER).unwrap();
        socket
    }

    /// Sends a query and returns who answered.
    fn query(&self, client: &UdpSocket, number: u64) -> u8 {
        query(client, number).unwrap_or_else(|| panic!("query {number} is lost: {}", self.spaces.log()))
    }

    /// Sends queries, each of which this back end has to answer.
    fn queries(&self, client: &UdpSocket, answers: u8) {
        for number in 0..QUERIES {
            assert_eq!(self.query(client, number), answers, "query {number}");
        }
    }

    fn show(&self, what: &str) -> Value {
        self.spaces.show(what).expect("weir answers")[what].clone()
    }

    /// Sends queries that get no answer. A veth has room for 256 packets, so each batch is received before
    /// the next is sent.
    fn send_unanswered(&self, client: &UdpSocket) {
        /// How many are sent at a time.
        const BATCH: usize = 100;
        let received = || self.show("ledger")["received"].as_u64().unwrap();
        let before = received();
        for first in (0..QUERIES).step_by(BATCH) {
            let end = (first + BATCH as u64).min(QUERIES);
            for number in first..end {
                client.send_to(&number.to_be_bytes(), (VIP, 53)).unwrap();
            }
            self.spaces.until_is("queries that weir has received", received, before + end);
        }
    }

    /// Waits until the kernel runs the program for the first port.
    fn until_it_runs(&self) {
        let runs = || (self.spaces.show("kernel")?["kernel"][0]["runs"] == true).then_some(());
        self.spaces.until("the kernel runs the program", runs);
    }

    fn change(&self, words: &[&str]) {
        assert!(self.spaces.ask(words).is_some(), "{words:?}: {}", self.spaces.log());
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.show("counters");
        let counter = counters.as_array().unwrap().iter().find(|one| one["name"] == name);
        counter.expect("it is configured")["packets"].as_u64().unwrap()
    }

    /// Returns the id of the XDP program at weir's first interface.
    fn program(&self) -> Option<u32> {
        let links = self.spaces.within("weir", || weir_netlink::links().unwrap());
        links.iter().find(|link| link.name == "eth0")?.xdp_program
    }

    fn metrics(&self) -> String {
        let mut stream = self.spaces.within("weir", || TcpStream::connect("127.0.0.1:9105").unwrap());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Checks that every query was received and sent on, and nothing was dropped.
    fn assert_all_counted(&self, queries: u64, out: usize) {
        let ledger = self.show("ledger");
        assert_eq!((&ledger["received"], &ledger["transmitted"]), (&queries.into(), &queries.into()));
        assert!(self.show("drops").as_array().unwrap().is_empty(), "{ledger}");
        let ports = self.show("ports");
        assert_eq!(ports[0]["received"], queries, "{ports}");
        assert_eq!(ports[out]["transmitted"], queries, "{ports}");
        assert_eq!(self.spaces.ask(&["show"]).unwrap()["balances"], true);
    }
}

#[test]
fn queries_that_the_kernel_sends_back_are_all_answered_and_counted() {
    let Some(mut network) = build("kb") else { return };
    network.spaces.weir("weir", BACK_OUT);
    network.until_it_runs();
    let clients = [network.client(0), network.client(1)];
    network.queries(&clients[0], 1);
    network.queries(&clients[1], 2);
    let kernel = network.show("kernel");
    assert_eq!(kernel[0]["decided"], 2 * QUERIES, "{kernel}");
    assert_eq!(["even", "odd"].map(|name| network.counter(name)), [QUERIES; 2]);
    network.assert_all_counted(2 * QUERIES, 0);
    let packet = format!("src={} dst={VIP} proto=udp dport=53", CLIENTS[0]);
    let explained = network.spaces.ask(&["explain", "--live", "--packet", &packet]).unwrap();
    assert_eq!(explained["runs"]["in"], "kernel", "{explained}");
    let metrics = network.metrics();
    for line in ["weir_kernel_runs{port=\"p0\"} 1", "weir_kernel_decided_total{port=\"p0\"} 800"] {
        assert!(metrics.lines().any(|one| one == line), "no `{line}` in\n{metrics}");
    }

    // A change of an entry takes effect at once.
    let entry = format!("{{ match: {{ ipv4.src: 10.7.0.100 }}, set: {{ eth.dst: {B2} }}, counter: even }}");
    network.change(&["entry", "update", "choose", &entry]);
    network.queries(&clients[0], 2);
    network.assert_all_counted(3 * QUERIES, 0);
    let kernel = network.show("kernel");
    assert_eq!(kernel[0]["decided"], 3 * QUERIES, "{kernel}");

    let sent = under_traffic(&mut network, &clients[1], |network| network.change(&["reload"]));
    assert!(sent > 0);
    network.assert_all_counted(3 * QUERIES + sent, 0);
    assert_eq!(network.counter("odd"), QUERIES + sent);

    // No entry has the third client, and `show drops` says whose queries were dropped.
    network.send_unanswered(&network.client(2));
    network.spaces.until("the queries are dropped", || {
        let drops = network.show("drops");
        let (worst, all) = (&drops[0]["flows"][0], (&drops[0]["reason"], &drops[0]["frames"]));
        let flow = worst["flow"].as_str().unwrap_or_default();
        let named = flow.starts_with("udp 10.7.0.102:") && worst["frames"] == QUERIES;
        (named && all == (&"miss".into(), &QUERIES.into())).then_some(())
    });

    // However weir ends, the host gets its frames again, and nothing of weir stays in the kernel.
    let program = network.program().expect("weir's program is attached");
    assert!(XdpTake::is_program(program));
    let process = network.spaces.process(0).to_string();
    let [programs, maps] = ["prog_id", "map_id"].map(|kind| held(&process, kind));
    assert!(programs.contains(&program) && maps.len() > 1, "{programs:?} {maps:?}");
    assert!(Command::new("kill").args(["-9", &process]).status().unwrap().success());
    network.spaces.until("the interface has no program", || network.program().is_none().then_some(()));
    let left = || still_loaded(&programs, &maps);
    network.spaces.until_is("what weir has left in the kernel", left, [""; 0]);
    network.queries(&clients[0], HOST);
}

/// Returns those programs and maps with these IDs that are still in the kernel, with the processes that have
/// descriptors of them.
fn still_loaded(programs: &BTreeSet<u32>, maps: &BTreeSet<u32>) -> Vec<String> {
    let programs = loaded_programs().flatten().filter(|one| programs.contains(&one.id()));
    let maps = loaded_maps().flatten().filter(|one| maps.contains(&one.id()));
    let programs = programs.map(|one| (one.id(), "prog_id", one.name_as_str().map(str::to_string)));
    let maps = maps.map(|one| (one.id(), "map_id", one.name_as_str().map(str::to_string)));
    let left: Vec<_> = programs.chain(maps).collect();
    left.into_iter().map(|(id, kind, name)| format!("{kind} {id} {name:?} {:?}", holders(id, kind))).collect()
}

/// Returns the names of the processes that have a descriptor of this program or map.
fn holders(id: u32, kind: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let names = processes.filter_map(|entry| entry.file_name().into_string().ok());
    let holders = names.filter(|process| held(process, kind).contains(&id));
    holders
        .map(|process| {
            let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
            format!("{process} {}", name.trim())
        })
        .collect()
}

/// Returns the IDs of the kernel's programs or maps of which a process has descriptors.
fn held(process: &str, kind: &str) -> BTreeSet<u32> {
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fdinfo")).into_iter().flatten().flatten();
    let texts = descriptors.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    let id = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(':'))?;
        line.trim().parse().ok()
    };
    texts.filter_map(id).collect()
}

/// Sends queries, each of which must be answered, while weir is changed three times. Returns how many.
fn under_traffic(network: &mut Network, client: &UdpSocket, change: impl Fn(&mut Network)) -> u64 {
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut sent = 0;
            while !ends.load(Ordering::Relaxed) {
                assert_eq!(query(client, sent), Some(2), "query {sent}");
                sent += 1;
            }
            sent
        });
        for _ in 0..3 {
            change(network);
            network.until_it_runs();
        }
        ends.store(true, Ordering::Relaxed);
        traffic.join().unwrap()
    })
}

/// Sends a query and returns who answered, if anything did.
fn query(client: &UdpSocket, number: u64) -> Option<u8> {
    client.send_to(&number.to_be_bytes(), (VIP, 53)).unwrap();
    let mut answer = [0; 9];
    client.recv_from(&mut answer).ok()?;
    assert_eq!(answer[1..], number.to_be_bytes());
    Some(answer[0])
}

#[test]
fn successors_take_over_from_the_kernel_and_lose_no_query() {
    let Some(mut network) = build("ks") else { return };
    network.spaces.weir("weir", BACK_OUT);
    network.until_it_runs();
    let client = network.client(1);
    let sent = under_traffic(&mut network, &client, |network| network.spaces.take_over("weir"));
    assert!(sent > 0);
    // The last one decides frames in the kernel, too, and its ledger has begun with it.
    network.queries(&client, 2);
    let kernel = network.show("kernel");
    assert!(kernel[0]["decided"].as_u64() >= Some(QUERIES), "{kernel}");
    assert!(network.show("drops").as_array().unwrap().is_empty());
    assert_eq!(network.spaces.ask(&["show"]).unwrap()["balances"], true);
}

#[test]
fn queries_that_the_kernel_encapsulates_leave_through_another_port() {
    let Some(mut network) = build("kt") else { return };
    network.spaces.decap("b1", &["--from", "10.7.0.0/24", "--to", "10.7.0.3"]);
    network.spaces.weir("weir", TUNNEL);
    network.until_it_runs();
    let client = network.client(0);
    network.queries(&client, 1);
    let kernel = network.show("kernel");
    assert_eq!(kernel[0]["decided"], QUERIES, "{kernel}");
    network.assert_all_counted(QUERIES, 1);
    // A reload refuses what the kernel can never do, and the program keeps running.
    let recorded = TUNNEL.replace("root: tunnel }", "root: tunnel, trace: out.pcap }");
    std::fs::write(network.spaces.folder().join("weir.yaml"), recorded).unwrap();
    assert!(network.spaces.ask(&["reload"]).is_none());
    assert_eq!(network.query(&client, QUERIES), 1);
    let kernel = network.show("kernel");
    assert_eq!(kernel[0]["decided"], QUERIES + 1, "{kernel}");
    let counts = network.spaces.end();
    assert_eq!(counts[0]["ipip"], QUERIES + 1, "{counts:?}");
}

#[test]
fn what_the_kernel_fails_to_send_is_in_the_ledger() {
    for (name, text, out) in [("kf", BACK_OUT, (0, "eth0")), ("kg", TUNNEL, (1, "eth1"))] {
        let Some(mut network) = build(name) else { return };
        network.spaces.weir("weir", text);
        network.until_it_runs();
        // Without a program, the switch's ends do not receive what XDP sends.
        network.passing.clear();
        // The kernel detaches them in a thread of its own.
        let links = |role| network.spaces.within(role, || weir_netlink::links().unwrap());
        let are_detached = || links("switch").iter().all(|link| link.xdp_program.is_none()).then_some(());
        network.spaces.until("the switch's ends have no program", are_detached);
        assert_unsent_are_counted(&network, out);
    }
}

/// Checks that queries that weir should have sent by an interface are in its ledger, and are not counted for
/// other interfaces: that of another namespace with the same index, and one that has received none.
fn assert_unsent_are_counted(network: &Network, (port, out): (u32, &str)) {
    let roles = ["weir", "b1"];
    let errors = roles.map(|role| network.spaces.within(role, || XdpErrors::attach().unwrap()));
    let index = |role, name| {
        let links = network.spaces.within(role, || weir_netlink::links().unwrap());
        links.iter().find(|link| link.name == name).expect("the end of a cable").index
    };
    let (from, to) = (index("weir", "eth0"), index("weir", out));
    assert_eq!(from, index("b1", "eth0"));
    network.send_unanswered(&network.client(0));
    let kernel = network.show("kernel");
    assert_eq!(kernel[0]["decided"], QUERIES, "the engine's frames are sent in another way: {kernel}");
    let dropped = || {
        let drops = network.show("drops");
        let rows = drops.as_array().unwrap().iter();
        rows.map(|one| format!("{} {}", one["reason"].as_str().unwrap(), one["frames"])).collect::<Vec<_>>()
    };
    network.spaces.until_is("dropped frames", dropped, [format!("transmit_full {QUERIES}")]);
    // Some kernels refuse to redirect to an interface that others try to send by.
    let lost = |errors: &XdpErrors, from| errors.take_unsent(from, to) + errors.take_unredirected(from, port);
    assert_eq!(errors.each_ref().map(|errors| lost(errors, from)), [QUERIES, 0]);
    assert_eq!(lost(&errors[0], index("weir", "eth1")), 0);
    let ledger = network.show("ledger");
    assert_eq!((&ledger["received"], &ledger["transmitted"]), (&QUERIES.into(), &0.into()), "{ledger}");
    let ports = network.show("ports");
    assert!(ports.as_array().unwrap().iter().all(|port| port["transmitted"] == 0), "{ports}");
    assert_eq!(network.spaces.ask(&["show"]).unwrap()["balances"], true);
}
