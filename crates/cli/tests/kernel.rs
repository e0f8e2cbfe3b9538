//! The program in the kernel, between real clients and servers. Needs root; skipped without, except in CI.
//!
//! ```text
//!  client --------- switch ------ b1, b2: the VIP
//!  weir: eth0 ---+
//! ```

mod spaces;

use rustix::process::{Pid, Signal, kill_process};
use spaces::{PATIENCE, Spaces};
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_bpf::{AttachMode, XdpTake};

const ROLES: [&str; 5] = ["switch", "client", "weir", "b1", "b2"];
const STATIONS: [(&str, &str); 4] = [
    ("client", "02:00:00:00:07:01"),
    ("weir", "02:00:00:00:07:02"),
    ("b1", "02:00:00:00:07:03"),
    ("b2", "02:00:00:00:07:04"),
];
const VIP: &str = "10.7.0.53";
const CLIENTS: [&str; 2] = ["10.7.0.100", "10.7.0.101"];
const QUERIES: u64 = 200;

/// Even clients go to b1, odd ones to b2.
const PROGRAM: &str = "
ports:
  eth0: { xdp: eth0, root: balance, take: [{ dst: 10.7.0.53 }], kernel: require }
pipes:
  balance:
    type: basic
    match: { ipv4.dst: 10.7.0.53, ipv4.src: per_entry/0.0.0.1 }
    monitor: { counter: per_entry }
    action: [{ set: { eth.src: { mac_of: eth0 } } }, { set: { eth.dst: per_entry } }]
    forward: eth0
    miss: drop
    entries:
      - { match: { ipv4.src: 0.0.0.0 }, set: { eth.dst: 02:00:00:00:07:03 }, counter: b1 }
      - { match: { ipv4.src: 0.0.0.1 }, set: { eth.dst: 02:00:00:00:07:04 }, counter: b2 }
";

/// A bed with servers that send queries back and count them.
struct Bed {
    spaces: Spaces,
    clients: Vec<UdpSocket>,
    served: [Arc<AtomicU64>; 2],
    /// A veth receives what its peer sends from XDP only if it has a program itself: this one passes all.
    _passes: XdpTake,
}

impl Bed {
    fn build(name: &str) -> Option<Bed> {
        let spaces = Spaces::build(name, &ROLES)?;
        spaces.switch("switch", &STATIONS);
        let passes = spaces.within("switch", || {
            let links = weir_netlink::links().unwrap();
            let end = links.into_iter().find(|link| link.is_called("weir")).unwrap();
            let mut program = XdpTake::load(1).unwrap();
            program.attach(end.index, AttachMode::Native).unwrap();
            program
        });
        for client in CLIENTS {
            spaces.ip("client", &format!("addr add {client}/24 dev eth0"));
        }
        spaces.ip("client", &format!("route add {VIP}/32 dev eth0"));
        spaces.ip("client", &format!("neigh add {VIP} lladdr {} dev eth0 nud permanent", STATIONS[1].1));
        let served = [("b1", 3), ("b2", 4)].map(|(role, at)| {
            spaces.ip(role, &format!("addr add 10.7.0.{at}/24 dev eth0\naddr add {VIP}/32 dev lo"));
            let socket = spaces.within(role, || UdpSocket::bind((VIP, 53)).unwrap());
            serve(socket)
        });
        let clients = CLIENTS.map(|client| {
            let socket = spaces.within("client", || UdpSocket::bind((client, 0)).unwrap());
            socket.set_read_timeout(Some(PATIENCE / 10)).unwrap();
            socket
        });
        Some(Bed { spaces, clients: clients.into(), served, _passes: passes })
    }

    /// Sends queries, alternately from both clients, each of which must be answered.
    fn query(&self, queries: u64) {
        for number in 0..queries {
            let client = &self.clients[number as usize % 2];
            client.send_to(&number.to_be_bytes(), (VIP, 53)).unwrap();
            let mut answer = [0; 8];
            let answered = client.recv_from(&mut answer);
            assert!(answered.is_ok(), "query {number} is lost: {}", self.spaces.log());
            assert_eq!(u64::from_be_bytes(answer), number);
        }
    }

    fn wait_for_kernel(&self) {
        self.spaces.until("the kernel decides frames", || {
            let kernel = self.spaces.show("kernel")?;
            (kernel["kernel"][0]["runs"] == true).then_some(())
        });
    }

    /// The frames that the kernel has decided.
    fn decided(&self) -> u64 {
        self.spaces.show("kernel").unwrap()["kernel"][0]["decided"].as_u64().unwrap()
    }

    fn served(&self) -> [u64; 2] {
        self.served.each_ref().map(|served| served.load(Ordering::Relaxed))
    }
}

fn serve(socket: UdpSocket) -> Arc<AtomicU64> {
    let served = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&served);
    std::thread::spawn(move || {
        let mut query = [0; 64];
        while let Ok((length, from)) = socket.recv_from(&mut query) {
            count.fetch_add(1, Ordering::Relaxed);
            let _ = socket.send_to(&query[..length], from);
        }
    });
    served
}

#[test]
fn the_kernel_decides_and_counts_what_the_engine_would() {
    let Some(mut bed) = Bed::build("kc") else { return };
    bed.spaces.weir("weir", PROGRAM);
    bed.wait_for_kernel();
    bed.query(QUERIES);
    assert_eq!(bed.served(), [QUERIES / 2; 2]);
    assert_eq!(bed.decided(), QUERIES, "{}", bed.spaces.log());
    let shown = bed.spaces.show("all").unwrap();
    for counter in shown["counters"].as_array().unwrap() {
        assert_eq!(counter["packets"], QUERIES / 2, "{counter}");
    }
    let port = &shown["ports"][0];
    // Ethernet, IPv4, UDP and eight bytes.
    let bytes = QUERIES * (14 + 20 + 8 + 8);
    let counts = ["received", "transmitted", "received_bytes", "transmitted_bytes"].map(|name| &port[name]);
    assert_eq!(counts, [QUERIES, QUERIES, bytes, bytes].map(serde_json::Value::from).each_ref());
    assert_eq!(shown["pipes"][0]["hits"], QUERIES);
    assert_eq!(shown["balances"], true);
    // A change of an entry reaches the kernel's table.
    let entry = "{ match: { ipv4.src: 0.0.0.1 }, set: { eth.dst: 02:00:00:00:07:03 }, counter: b2 }";
    bed.spaces.ask(&["entry", "update", "balance", entry]).expect("the entry is updated");
    bed.query(QUERIES);
    assert_eq!(bed.served(), [QUERIES / 2 + QUERIES, QUERIES / 2]);
    assert_eq!(bed.decided(), 2 * QUERIES);
    bed.spaces.end();
    assert!(bed.spaces.log().contains(&format!("{0} frames came, {0} went", 2 * QUERIES)));
}

#[test]
fn reloads_under_traffic_lose_nothing_and_a_killed_process_leaves_nothing() {
    let Some(mut bed) = Bed::build("kr") else { return };
    bed.spaces.weir("weir", PROGRAM);
    bed.wait_for_kernel();
    std::thread::scope(|scope| {
        let reloads = scope.spawn(|| {
            for turn in 0..5 {
                let text = format!("{PROGRAM}# {turn}\n");
                std::fs::write(bed.spaces.folder().join("weir.yaml"), text).unwrap();
                bed.spaces.ask(&["reload"]).expect("a reload");
                bed.wait_for_kernel();
            }
        });
        while !reloads.is_finished() {
            bed.query(20);
        }
    });
    bed.query(QUERIES);
    let (shown, [b1, b2]) = (bed.spaces.show("all").unwrap(), bed.served());
    assert_eq!(shown["ledger"]["received"], b1 + b2);
    assert_eq!(shown["ledger"]["transmitted"], b1 + b2);
    assert!(bed.decided() >= QUERIES, "those after the last reload, at least");
    let pid = bed.spaces.process(0);
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    bed.spaces.until("the interface has no program any more", || {
        let link = bed.spaces.ip("weir", "-d link show dev eth0");
        (!link.contains("prog/xdp")).then_some(())
    });
}
