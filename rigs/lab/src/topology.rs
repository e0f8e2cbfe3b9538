//! The network of the lab: a client, three back ends and the weir node around one switch.
//!
//! ```text
//!  client ----+               +---- b1  (VIP on lo, not announced)
//!             |    bridge     +---- b2
//!  weir   ----+   "switch"    +---- b3
//! ```
//!
//! The weir node has one interface ("one-armed"): a query arrives and leaves through the same interface, with
//! new MAC addresses, and the back end replies to the client directly. The VIP is on that interface too, so
//! the node's kernel answers ARP and ping for it. Every query comes from a different client address
//! (clients.rs); all of these are local to `client`.

use anyhow::Result;

use super::namespace::Namespace;
use super::run::Run;

/// Address of the service.
pub const VIP: &str = "10.77.0.53";
/// The range of client addresses, used one after another.
pub const CLIENTS: &str = "10.77.128.0/17";
/// Number of client addresses.
pub const CLIENTS_COUNT: u32 = 1 << 15;
/// Role of the weir node, which is also the name of its interface at the switch.
pub const WEIR_ROLE: &str = "weir";
/// The interface of every host in the lab; its peer is an interface of the switch.
pub const INTERFACE: &str = "eth0";

const CLIENT: &str = "10.77.0.1";
const CLIENT_MAC: &str = "02:77:00:00:00:01";
/// Address of the weir node.
pub const WEIR: &str = "10.77.0.2";
const WEIR_MAC: &str = "02:77:00:00:00:02";
const BACK_ENDS: [(&str, &str, &str); 3] = [
    ("b1", "10.77.0.11", "02:77:00:00:00:11"),
    ("b2", "10.77.0.12", "02:77:00:00:00:12"),
    ("b3", "10.77.0.13", "02:77:00:00:00:13"),
];

/// A host with a name server.
pub struct BackEnd {
    /// Its name, also in weir's configuration.
    pub name: &'static str,
    /// Its own address, besides the VIP.
    pub address: &'static str,
    /// The MAC address that weir writes into frames for it.
    pub mac: &'static str,
    /// Its namespace.
    pub namespace: Namespace,
}

/// The namespaces of the lab.
pub struct Topology {
    /// The bridge; its interfaces are named after the hosts' roles.
    pub switch: Namespace,
    /// Where dnsperf runs.
    pub client: Namespace,
    /// Where weir runs.
    pub weir: Namespace,
    /// Where the name servers run.
    pub back_ends: Vec<BackEnd>,
}

impl Topology {
    /// Creates the network, with one queue per worker on the weir node; `run` removes it.
    pub fn build(run: &Run, workers: u32) -> Result<Topology> {
        let switch = run.namespace("switch")?;
        switch.ip("link add switch type bridge stp_state 0 mcast_snooping 0\nlink set switch up\n")?;
        let client = run.namespace("client")?;
        cable(&switch, "client", &client, (CLIENT, CLIENT_MAC), 1)?;
        let weir = run.namespace(WEIR_ROLE)?;
        cable(&switch, WEIR_ROLE, &weir, (WEIR, WEIR_MAC), workers)?;
        weir.ip(&format!("address add {VIP}/32 dev {INTERFACE}\nroute add {CLIENTS} via {CLIENT}\n"))?;
        let back_ends =
            BACK_ENDS.iter().map(|&host| back_end(run, &switch, host)).collect::<Result<Vec<_>>>()?;
        wire_client(&client, &back_ends)?;
        Ok(Topology { switch, client, weir, back_ends })
    }
}

/// Connects a host by a veth with `queues` queues: `eth0` in the host, an interface named after its role in
/// the switch.
///
/// # Errors
/// A command of `ip`, `bridge` or `ethtool` fails.
pub fn cable(
    switch: &Namespace,
    role: &str,
    host: &Namespace,
    (address, mac): (&str, &str),
    queues: u32,
) -> Result<()> {
    let sizes = format!("numtxqueues {queues} numrxqueues {queues}");
    switch.ip(&format!(
        "link add name {role} {sizes} type veth peer name {INTERFACE} address {mac} {sizes} netns {}\n\
         link set {role} master switch up\n",
        host.name()
    ))?;
    host.ip(&format!("link set {INTERFACE} up\naddress add {address}/24 dev {INTERFACE}\n"))?;
    host.checksum_in_software(INTERFACE)?;
    // With a static entry, the switch never floods frames to other hosts. The switch may already have learnt
    // it, hence `replace`.
    switch.bridge(&format!("fdb replace {mac} dev {role} master static\n"))
}

/// Adds the VIP as local but unannounced: the host answers ARP only for addresses of the receiving interface,
/// and uses only those in its requests.
fn back_end(
    run: &Run,
    switch: &Namespace,
    (name, address, mac): (&'static str, &'static str, &'static str),
) -> Result<BackEnd> {
    let namespace = run.namespace(name)?;
    cable(switch, name, &namespace, (address, mac), 1)?;
    let silence = |interface| {
        [(format!("ipv4/conf/{interface}/arp_ignore"), 1), (format!("ipv4/conf/{interface}/arp_announce"), 2)]
    };
    let silence: Vec<(String, u32)> = ["all", INTERFACE].into_iter().flat_map(silence).collect();
    namespace.set(&silence.iter().map(|(path, value)| (path.as_str(), *value)).collect::<Vec<_>>())?;
    namespace.ip(&format!(
        "address add {VIP}/32 dev lo\n\
         route add {CLIENTS} via {CLIENT}\n\
         neighbour add {CLIENT} lladdr {CLIENT_MAC} dev {INTERFACE} nud permanent\n"
    ))?;
    Ok(BackEnd { name, address, mac, namespace })
}

/// Makes every client address local. The VIP's MAC address is left to ARP, because the weir node must answer
/// for it.
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
