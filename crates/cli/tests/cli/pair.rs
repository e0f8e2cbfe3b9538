//! Two nodes without a router that speaks BGP: weir and Debian's keepalived on both, configured as in
//! packaging/, and clients that send packets for the VIP to the address that keepalived moves.

use super::announce::inside;
use super::folder::Folder;
use super::routes::{Other, TcpServer, repository, until};
use super::running::Daemon;
use super::wire::sh;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use weir_bed::{Namespace, Run};

const VIP: &str = "203.0.113.80";
/// What keepalived moves.
const ADDRESS: &str = "10.0.0.7";
/// Where back ends are checked.
const CHECKED: &str = "10.0.0.20:8080";
/// How long an answer may take; failing over and one retransmission take less.
const ANSWER: Duration = Duration::from_secs(30);

const CONFIG: &str = "\
ports: { p0: { xdp: eth0 } }
apps:
  - lb:
      name: web
      port: p0
      announce: route
      service: { vip: 203.0.113.80, protocol: tcp, port: 80 }
      size: 251
      check: { type: tcp, port: 8080, interval: 50ms, timeout: 5s, rise: 1, fall: 1, jitter: 0% }
      back_ends:
        - { name: b1, mac: 02:00:00:00:20:00, address: 10.0.0.20 }
";

/// A client whose interfaces are a bridge, two nodes and a back end.
struct NodePair {
    client: Namespace,
    nodes: [Namespace; 2],
    back_end: Namespace,
    folders: [Folder; 2],
    _run: Run,
}

impl NodePair {
    fn new() -> Option<NodePair> {
        let run = Run::of_test("pair")?;
        let [client, back_end] = ["c", "b"].map(|role| run.namespace(role).unwrap());
        let nodes = ["m", "n"].map(|role| run.namespace(role).unwrap());
        let name = client.name();
        sh(&format!("ip -n {name} link add br0 type bridge && ip -n {name} addr add 10.0.0.9/24 dev br0"));
        sh(&format!("ip -n {name} link set br0 up && ip -n {name} route add {VIP} via {ADDRESS}"));
        sh(&format!("ip netns exec {name} ethtool -K br0 tx off"));
        for (at, (host, address)) in
            [(&nodes[0], "10.0.0.5"), (&nodes[1], "10.0.0.6"), (&back_end, "10.0.0.20")]
                .into_iter()
                .enumerate()
        {
            let (host, last) = (host.name(), ["05", "06", "20"][at]);
            let one = "numtxqueues 1 numrxqueues 1";
            sh(&format!(
                "ip -n {name} link add l{at} {one} type veth peer name eth0 netns {host} {one} \
                 address 02:00:00:00:{last}:00"
            ));
            sh(&format!("ip -n {name} link set l{at} master br0 up"));
            sh(&format!("ip -n {host} addr add {address}/24 dev eth0 && ip -n {host} link set eth0 up"));
            sh(&format!("ip netns exec {name} ethtool -K l{at} tx off"));
            sh(&format!("ip netns exec {host} ethtool -K eth0 tx off"));
        }
        sh(&format!("ip -n {0} link set lo up && ip -n {0} addr add {VIP}/32 dev lo", back_end.name()));
        Some(NodePair { client, nodes, back_end, folders: [Folder::new(), Folder::new()], _run: run })
    }

    fn weir(&self, node: usize) -> Daemon {
        let folder = Folder::new();
        folder.write("weir.yaml", CONFIG);
        Daemon::start_in_namespace(folder, self.nodes[node].name())
    }

    /// Starts keepalived as packaging/ configures it, which asks the weir in this folder.
    fn keepalived(&self, node: usize, weir: &Daemon) -> Other {
        let text =
            std::fs::read_to_string(repository().join("packaging/keepalived/keepalived.conf")).unwrap();
        let socket = self.socket(node);
        assert_eq!(text.matches("/run/weir/weir.sock").count(), 1);
        self.follow(node, weir);
        let folder = &self.folders[node];
        folder.write("keepalived.conf", text.replace("/run/weir/weir.sock", &socket));
        let path = |name: &str| folder.file(name).display().to_string();
        let line = format!(
            "keepalived --dont-fork --log-console --vrrp --use-file={} --pid={} --vrrp_pid={}",
            path("keepalived.conf"),
            path("pid"),
            path("vrrp.pid")
        );
        Other::start(self.nodes[node].name(), &line, &folder.file("keepalived.log"))
    }

    /// The path of the node's control socket, which leads to that of the running weir.
    fn socket(&self, node: usize) -> String {
        self.folders[node].file("weir.sock").display().to_string()
    }

    fn follow(&self, node: usize, weir: &Daemon) {
        let socket = weir.folder.file("weir.sock");
        sh(&format!("ln -sfn {} {}", socket.display(), self.socket(node)));
    }

    fn has_address(&self, node: usize) -> bool {
        sh(&format!("ip -n {} addr show dev eth0", self.nodes[node].name())).contains(&format!("{ADDRESS}/"))
    }

    fn holders(&self) -> [bool; 2] {
        [0, 1].map(|node| self.has_address(node))
    }

    #[track_caller]
    fn wait_for(&self, holders: [bool; 2]) {
        until("the address", || (self.holders() == holders).then_some(()));
    }

    /// Waits until one node has the address, and returns which.
    fn active(&self) -> usize {
        until("an active node", || match self.holders() {
            [true, false] => Some(0),
            [false, true] => Some(1),
            [false, false] | [true, true] => None,
        })
    }

    fn connect(&self) -> TcpStream {
        let stream = inside(self.client.name(), || TcpStream::connect((VIP, 80)).unwrap());
        stream.set_read_timeout(Some(ANSWER)).unwrap();
        stream
    }
}

/// Sends a request over a connection that is already open, and over a new one.
#[track_caller]
fn ask(pair: &NodePair, open: &mut TcpStream) {
    let mut answer = [0; 4];
    for stream in [open, &mut pair.connect()] {
        stream.write_all(b"ping").unwrap();
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"ping");
    }
}

/// Echoes what clients send until the process ends.
fn echo(namespace: &str) {
    let listener = inside(namespace, || TcpListener::bind((VIP, 80)).unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    if stream.write_all(&bytes[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

#[test]
fn keepalived_moves_the_address_of_a_pair_to_the_node_that_is_ready() {
    let Some(pair) = NodePair::new() else { return };
    echo(pair.back_end.name());
    let serve = || TcpServer::start(pair.back_end.name(), CHECKED);
    let server = serve();
    let mut weirs = [0, 1].map(|node| pair.weir(node));
    let _keepalived = [0, 1].map(|node| pair.keepalived(node, &weirs[node]));
    let first = pair.active();
    let second = 1 - first;
    let only = |node: usize| [node == 0, node == 1];
    let mut open = pair.connect();
    ask(&pair, &mut open);
    // A node that is drained serves until the other one does.
    weirs[first].weir(&["drain", "--quiet", "200ms"]).good();
    pair.wait_for(only(second));
    ask(&pair, &mut open);
    weirs[first].weir(&["undrain"]).good();
    weirs[first].wait_for("readiness", |weir| weir.show("routes")[0]["announced"] == true);
    // A node whose weir dies. Nothing resets connections meanwhile, because no host has the VIP.
    weirs[second].signal(Signal::KILL);
    assert!(!weirs[second].end().success());
    pair.wait_for(only(first));
    ask(&pair, &mut open);
    weirs[second] = pair.weir(second);
    pair.follow(second, &weirs[second]);
    weirs[second].wait_for("readiness", |weir| weir.show("routes")[0]["announced"] == true);
    // A node that does not reach the back end.
    let node = pair.nodes[first].name();
    sh(&format!("ip -n {node} route add unreachable 10.0.0.20/32"));
    pair.wait_for(only(second));
    ask(&pair, &mut open);
    sh(&format!("ip -n {node} route del unreachable 10.0.0.20/32"));
    // No back end serves.
    drop(server);
    pair.wait_for([false; 2]);
    let _server = serve();
    pair.active();
    ask(&pair, &mut open);
}
