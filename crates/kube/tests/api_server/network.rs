//! A node's network, with clients, the node and servers at one switch, and the outcome of each request of the
//! clients.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use weir_bed::{Namespace, Run, Switch};

/// The port of all servers, TCP and UDP.
pub const PORT: u16 = 80;
/// How long a request may take before it has failed: long enough for several retransmissions.
const LOST: Duration = Duration::from_secs(5);
/// The pause of a client after each request.
const PAUSE: Duration = Duration::from_millis(10);
/// How often a server checks whether it should end.
const LOOK: Duration = Duration::from_millis(500);
/// How many source ports a UDP client uses in turn; also the first of these of the first client.
const SOURCES: u16 = 10_000;

/// The namespaces.
pub struct ClusterNetwork {
    pub node: Namespace,
    servers: Namespace,
    clients: Namespace,
    /// Dropped last, because it removes the namespaces.
    _run: Run,
}

impl ClusterNetwork {
    /// The MAC address to which all packets for servers are sent.
    pub const SERVERS_MAC: &str = "02:00:00:00:00:11";

    pub fn build() -> ClusterNetwork {
        let run = Run::begin(false).unwrap();
        let [node, servers, clients] = ["n", "s", "c"].map(|role| run.namespace(role).unwrap());
        let switch = Switch::create(&run, "sw").unwrap();
        let ends = [
            ("n", &node, "02:00:00:00:00:01", "10.1.255.254/16"),
            ("s", &servers, ClusterNetwork::SERVERS_MAC, "10.1.254.1/16"),
            ("c", &clients, "02:00:00:00:00:21", "10.1.254.2/16"),
        ];
        for (port, space, mac, address) in ends {
            switch.plug(port, None, &space.end("eth0").mac(mac).address(address)).unwrap();
            let off = ["tx", "off", "gso", "off", "tso", "off", "gro", "off"];
            space.output("ethtool", &[&["-K", "eth0"], &off[..]].concat()).unwrap();
            switch.namespace().output("ethtool", &[&["-K", port], &off[..]].concat()).unwrap();
        }
        // weir answers ARP for the addresses of services.
        clients.ip("route add 192.0.2.0/24 dev eth0\nroute add 10.200.0.0/16 dev eth0\n").unwrap();
        ClusterNetwork { node, servers, clients, _run: run }
    }

    /// Starts servers with these addresses.
    pub fn serve(&self, addresses: &[Ipv4Addr]) -> Vec<PodServer> {
        let line = |ip: &Ipv4Addr| format!("address add {ip}/16 dev eth0\n");
        self.servers.ip(&addresses.iter().map(line).collect::<String>()).unwrap();
        self.servers.within(|| addresses.iter().map(|ip| PodServer::start(*ip)).collect())
    }

    /// Ends servers, and removes their addresses, as when pods are gone.
    pub fn end(&self, servers: Vec<PodServer>) {
        let line = |one: &PodServer| format!("address del {}/16 dev eth0\n", one.address);
        let lines: String = servers.iter().map(line).collect();
        servers.iter().for_each(|one| one.is_over.store(true, Ordering::Relaxed));
        servers.into_iter().for_each(PodServer::end);
        self.servers.ip(&lines).unwrap();
    }

    /// Starts clients of a service, one for each protocol, which send requests until they are dropped. No
    /// other clients may have the same number.
    pub fn ask(&self, name: &'static str, vip: Ipv4Addr, number: u16) -> ServiceClients {
        let first = SOURCES * (number + 1);
        let is_over = Arc::new(AtomicBool::new(false));
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let target = SocketAddr::from((vip, PORT));
        let client = |protocol: &'static str, ask: fn(SocketAddr, u16) -> RequestOutcome| {
            let (is_over, outcomes) = (is_over.clone(), outcomes.clone());
            let file = self.clients.name().to_string();
            thread::spawn(move || {
                Namespace::existing(&file).enter().unwrap();
                let mut ports = (first..first + SOURCES).cycle();
                while !is_over.load(Ordering::Relaxed) {
                    let (begun, source) = (Instant::now(), ports.next().unwrap());
                    let outcome = ask(target, source);
                    let asked = ClientRequest { protocol, begun, ended: Instant::now(), outcome };
                    outcomes.lock().unwrap().push(asked);
                    thread::sleep(PAUSE);
                }
            })
        };
        let threads = vec![client("tcp", ask_tcp), client("udp", ask_udp)];
        ServiceClients { name, is_over, outcomes, threads }
    }
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestOutcome {
    /// A server with this address has answered.
    Answered(IpAddr),
    /// It was rejected at once: there is no server.
    Refused,
    /// It failed in another way, for this reason.
    Failed(String),
}

/// A request.
#[derive(Clone, Debug)]
pub struct ClientRequest {
    pub protocol: &'static str,
    pub begun: Instant,
    pub ended: Instant,
    pub outcome: RequestOutcome,
}

/// The clients of a service.
pub struct ServiceClients {
    pub name: &'static str,
    is_over: Arc<AtomicBool>,
    outcomes: Arc<Mutex<Vec<ClientRequest>>>,
    threads: Vec<JoinHandle<()>>,
}

impl ServiceClients {
    /// Returns the requests that have ended since the last call.
    pub fn take(&self) -> Vec<ClientRequest> {
        std::mem::take(&mut *self.outcomes.lock().unwrap())
    }
}

impl Drop for ServiceClients {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|one| drop(one.join()));
    }
}

fn outcome(result: std::io::Result<String>) -> RequestOutcome {
    match result {
        Ok(line) => match line.trim().parse() {
            Ok(address) => RequestOutcome::Answered(address),
            Err(_) => RequestOutcome::Failed(format!("the answer is `{line}`")),
        },
        Err(why) if why.kind() == ErrorKind::ConnectionRefused => RequestOutcome::Refused,
        Err(why) => RequestOutcome::Failed(why.to_string()),
    }
}

/// Asks over TCP, from a port that the kernel chooses: a port may be used again at once, because the SYN of a
/// new connection begins a new flow, at any server.
fn ask_tcp(target: SocketAddr, _: u16) -> RequestOutcome {
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&target, LOST)?;
        stream.set_read_timeout(Some(LOST))?;
        stream.write_all(b"who?\n")?;
        let mut line = String::new();
        stream.read_to_string(&mut line)?;
        Ok(line)
    };
    outcome(ask())
}

/// Asks over UDP, from a port that was not used lately: a request from such a port would continue the flow,
/// at a server that may be terminating.
fn ask_udp(target: SocketAddr, source: u16) -> RequestOutcome {
    let ask = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, source))?;
        socket.set_read_timeout(Some(LOST))?;
        socket.connect(target)?;
        socket.send(b"who?\n")?;
        let mut answer = [0; 64];
        let length = socket.recv(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
    };
    outcome(ask())
}

/// A server, which answers requests with its address.
pub struct PodServer {
    pub address: Ipv4Addr,
    is_over: Arc<AtomicBool>,
    listener: TcpListener,
    threads: Vec<JoinHandle<()>>,
}

impl PodServer {
    fn start(address: Ipv4Addr) -> PodServer {
        let listener = TcpListener::bind((address, PORT)).unwrap();
        let socket = UdpSocket::bind((address, PORT)).unwrap();
        socket.set_read_timeout(Some(LOOK)).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let (accepts, over) = (listener.try_clone().unwrap(), is_over.clone());
        let tcp = thread::spawn(move || {
            // It ends when the listener is shut down.
            for stream in accepts.incoming().map_while(Result::ok) {
                // A client may be gone.
                let _ = answer(stream, address);
            }
        });
        let udp = thread::spawn(move || {
            let mut request = [0; 64];
            while !over.load(Ordering::Relaxed) {
                if let Ok((_, client)) = socket.recv_from(&mut request) {
                    let _ = socket.send_to(address.to_string().as_bytes(), client);
                }
            }
        });
        PodServer { address, is_over, listener, threads: vec![tcp, udp] }
    }

    /// Ends it, after `is_over` has been set.
    fn end(self) {
        // This wakes the thread that accepts connections.
        let _ = TcpStream::from(OwnedFd::from(self.listener)).shutdown(Shutdown::Both);
        self.threads.into_iter().for_each(|one| one.join().unwrap());
    }
}

fn answer(stream: TcpStream, address: Ipv4Addr) -> std::io::Result<()> {
    stream.set_read_timeout(Some(LOST))?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    write!(&stream, "{address}")
}
