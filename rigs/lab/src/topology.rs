//! The network of the lab: a client, three back ends and two nodes with weir around one switch.
//!
//! ```text
//!  client ----+               +---- b1  (VIPs on lo, not announced)
//!  engine ----+    bridge     +---- b2
//!  kernel ----+   "switch"    +---- b3
//! ```
//!
//! On one node, weir's workers handle the queries, which they receive through AF_XDP; on the other, the
//! kernel does. Each has one interface ("one-armed"): a query arrives and leaves through the same interface,
//! with new MAC addresses, and the back end replies to the client directly. The node's VIP is on that
//! interface too, so the node's kernel answers ARP and ping for it. Every query comes from a different client
//! address (clients.rs); all of these are local to `client`.

use anyhow::Result;
use weir_bed::{Namespace, Run, Switch};
use weir_bpf::XdpTake;

use super::kernel;
use super::page::NodePage;

/// Addresses of the service, one for each node.
pub const VIPS: [&str; 2] = ["10.77.0.53", "10.77.0.54"];
/// The range of client addresses, used one after another.
pub const CLIENTS: &str = "10.77.128.0/17";
/// Number of client addresses.
pub const CLIENTS_COUNT: u32 = 1 << 15;
/// The interface of every host in the lab; its peer is an interface of the switch.
pub const INTERFACE: &str = "eth0";

const CLIENT: &str = "10.77.0.1";
const CLIENT_MAC: &str = "02:77:00:00:00:01";
const NODES: [(Executor, &str, &str); 2] = [
    (Executor::Engine, "10.77.0.2", "02:77:00:00:00:02"),
    (Executor::Kernel, "10.77.0.3", "02:77:00:00:00:03"),
];
const BACK_ENDS: [(&str, &str, &str); 3] = [
    ("b1", "10.77.0.11", "02:77:00:00:00:11"),
    ("b2", "10.77.0.12", "02:77:00:00:00:12"),
    ("b3", "10.77.0.13", "02:77:00:00:00:13"),
];

/// The executor that handles the queries that arrive at a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Executor {
    /// A worker, through AF_XDP.
    Engine,
    /// The program in the kernel.
    Kernel,
}

impl Executor {
    /// Returns its name, which is also that of its node's interface at the switch.
    pub fn name(self) -> &'static str {
        match self {
            Executor::Engine => "engine",
            Executor::Kernel => "kernel",
        }
    }
}

/// A host with weir.
pub struct WeirNode {
    /// The executor that handles the node's queries.
    pub executor: Executor,
    /// The address of the node's service.
    pub vip: &'static str,
    /// Its namespace.
    pub namespace: Namespace,
    /// Its web page, if the lab is kept.
    pub page: Option<NodePage>,
    /// A program at the switch's end of the node's cable, where the kernel's executor sends frames.
    _passing: Option<XdpTake>,
}

/// A host with a name server.
pub struct BackEnd {
    /// The back end's name, also in weir's configuration.
    pub name: &'static str,
    /// The back end's own address, besides the VIPs.
    pub address: &'static str,
    /// The MAC address that weir writes into frames for it.
    pub mac: &'static str,
    /// Its namespace.
    pub namespace: Namespace,
}

/// The namespaces of the lab.
pub struct Topology {
    /// The switch; its interfaces are named after the hosts' roles.
    pub switch: Switch,
    /// Where dnsperf runs.
    pub client: Namespace,
    /// Where weir runs.
    pub nodes: Vec<WeirNode>,
    /// Where the name servers run.
    pub back_ends: Vec<BackEnd>,
}

impl Topology {
    /// Creates the network, with one queue per worker on weir's nodes; `run` removes it.
    pub fn build(run: &Run, workers: u32) -> Result<Topology> {
        let switch = Switch::create(run, "switch")?;
        let client = host(run, &switch, ("client", CLIENT, CLIENT_MAC), 1)?;
        let nodes = NODES.iter().zip(VIPS);
        let nodes = nodes.map(|(&one, vip)| node(run, &switch, one, vip, workers)).collect::<Result<_>>()?;
        let back_ends =
            BACK_ENDS.iter().map(|&host| back_end(run, &switch, host)).collect::<Result<Vec<_>>>()?;
        wire_client(&client, &back_ends)?;
        Ok(Topology { switch, client, nodes, back_ends })
    }
}

/// Connects a host, given its role, address and MAC address, by `queues` queues.
fn host(
    run: &Run,
    switch: &Switch,
    (role, address, mac): (&str, &str, &str),
    queues: u32,
) -> Result<Namespace> {
    let host = run.namespace(role)?;
    switch.plug(role, Some(queues), &host.end(INTERFACE).mac(mac).address(format!("{address}/24")))?;
    host.checksum_in_software(INTERFACE)?;
    Ok(host)
}

fn node(
    run: &Run,
    switch: &Switch,
    (executor, address, mac): (Executor, &'static str, &'static str),
    vip: &'static str,
    workers: u32,
) -> Result<WeirNode> {
    let namespace = host(run, switch, (executor.name(), address, mac), workers)?;
    namespace.ip(&format!("address add {vip}/32 dev {INTERFACE}\nroute add {CLIENTS} via {CLIENT}\n"))?;
    let passing = match executor {
        Executor::Engine => None,
        Executor::Kernel => Some(kernel::pass_all(switch.namespace(), executor.name())?),
    };
    Ok(WeirNode { executor, vip, namespace, page: None, _passing: passing })
}

/// Adds the VIPs as local but unannounced: the host answers ARP only for addresses of the receiving
/// interface, and uses only those in its requests.
fn back_end(
    run: &Run,
    switch: &Switch,
    (name, address, mac): (&'static str, &'static str, &'static str),
) -> Result<BackEnd> {
    let namespace = host(run, switch, (name, address, mac), 1)?;
    let silence = |interface| {
        [(format!("ipv4/conf/{interface}/arp_ignore"), 1), (format!("ipv4/conf/{interface}/arp_announce"), 2)]
    };
    let silence: Vec<(String, u32)> = ["all", INTERFACE].into_iter().flat_map(silence).collect();
    namespace.set(&silence.iter().map(|(path, value)| (path.as_str(), *value)).collect::<Vec<_>>())?;
    let [vip, other] = VIPS;
    namespace.ip(&format!(
        "address add {vip}/32 dev lo\n\
         address add {other}/32 dev lo\n\
         route add {CLIENTS} via {CLIENT}\n\
         neighbour add {CLIENT} lladdr {CLIENT_MAC} dev {INTERFACE} nud permanent\n"
    ))?;
    Ok(BackEnd { name, address, mac, namespace })
}

/// Makes every client address local. The VIPs' MAC addresses are left to ARP, because weir's nodes must
/// answer for them.
fn wire_client(client: &Namespace, back_ends: &[BackEnd]) -> Result<()> {
    let mut lines = format!("route add local {CLIENTS} dev lo\n");
    for back_end in back_ends {
        lines += &format!(
            "neighbour add {} lladdr {} dev {INTERFACE} nud permanent\n",
            back_end.address, back_end.mac
        );
    }
    client.ip(&lines)
}
