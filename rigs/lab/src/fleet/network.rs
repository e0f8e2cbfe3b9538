//! The network: clients behind a router, nodes and back ends on one link with it.
//!
//! ```text
//!                           bridge "switch"
//!  clients ---- router ----+---- n1 to n8, each with weir and BIRD
//!                          +---- b1 to b8  (VIP on lo, not announced)
//! ```
//!
//! The router spreads packets to the VIP over the nodes, by addresses and ports. A node has one interface
//! ("one-armed") and does not have the VIP. Back ends answer clients through the router; where weir
//! translates only the destination (`nat`), they answer through the node that sent them the connection's last
//! packet: they remember its MAC address in the mark of the connection.

use std::fmt::Write;

use anyhow::Result;

use super::configuration::FleetMode;
use crate::topology::INTERFACE;
use weir_bed::{Namespace, Run, Switch, cable};

/// The service's address.
pub const VIP: &str = "192.0.2.80";
/// The router's address on the link of nodes and back ends.
pub const ROUTER: &str = "10.90.0.1";
/// The router's interface towards clients.
const CLIENTS_INTERFACE: &str = "clients";
/// The router's address on the link of clients.
const ROUTER_FOR_CLIENTS: &str = "10.91.0.1";
/// The source address of long-lived connections. Ports are used once, so that no node has a flow of an
/// earlier connection from the same port.
pub const LONG: &str = "10.91.0.10";
/// The source addresses of short connections.
pub const SHORT: [&str; 4] = ["10.91.0.11", "10.91.0.12", "10.91.0.13", "10.91.0.14"];
/// The outer source addresses of tunnelled flows. No host has these addresses.
pub const SOURCES: &str = "10.92.0.0/24";
/// The names of nodes and back ends.
const NODES: [&str; 8] = ["n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"];
const BACK_ENDS: [&str; 8] = ["b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8"];
/// The first of the routing tables of a back end that lead through a node.
const TABLES: usize = 100;

/// The router hashes these fields of a packet: both addresses, the protocol and both ports. Policy 1 is meant
/// to do the same, but uses the hash that a packet already has, and one from a socket on this machine has the
/// socket's random number, which changes when a segment is retransmitted.
const OF_FIELDS: u32 = 3;
const FIVE_TUPLE: u32 = 0x37;

/// A host on the link.
pub struct FleetHost {
    /// Its name, which is also that of its port at the switch.
    pub name: &'static str,
    /// Its address.
    pub address: String,
    /// The MAC address of its interface.
    pub mac: String,
    /// Its namespace.
    pub namespace: Namespace,
}

impl FleetHost {
    fn join(run: &Run, switch: &Switch, name: &'static str, number: usize) -> Result<FleetHost> {
        let namespace = run.namespace(name)?;
        let (address, mac) = (format!("10.90.0.{number}"), format!("02:90:00:00:00:{number:02x}"));
        let end = namespace.end(INTERFACE).mac(&mac).address(format!("{address}/16"));
        switch.plug(name, Some(1), &end)?;
        namespace.checksum_in_software(INTERFACE)?;
        Ok(FleetHost { name, address, mac, namespace })
    }
}

/// The namespaces of the lab.
pub struct FleetNetwork {
    pub clients: Namespace,
    pub router: Namespace,
    pub nodes: Vec<FleetHost>,
    pub back_ends: Vec<FleetHost>,
    switch: Switch,
}

impl FleetNetwork {
    /// Creates the network; `run` removes it.
    pub fn build(run: &Run, (nodes, back_ends): (usize, usize), mode: FleetMode) -> Result<FleetNetwork> {
        let switch = Switch::create(run, "switch")?;
        let router = FleetHost::join(run, &switch, "router", 1)?.namespace;
        let clients = run.namespace("clients")?;
        let mut end = clients.end(INTERFACE);
        for address in SHORT.iter().chain([&LONG]) {
            end = end.address(format!("{address}/24"));
        }
        cable(None, &router.end(CLIENTS_INTERFACE).address(format!("{ROUTER_FOR_CLIENTS}/24")), &end)?;
        clients.checksum_in_software(INTERFACE)?;
        clients.ip(&format!("route add default via {ROUTER_FOR_CLIENTS}\n"))?;
        router.checksum_in_software(CLIENTS_INTERFACE)?;
        router.set(&[
            ("ipv4/ip_forward", 1),
            ("ipv4/fib_multipath_hash_policy", OF_FIELDS),
            ("ipv4/fib_multipath_hash_fields", FIVE_TUPLE),
            ("ipv4/conf/all/send_redirects", 0),
            (&format!("ipv4/conf/{INTERFACE}/send_redirects"), 0),
        ])?;
        let join = |names: &[&'static str], first: usize| -> Result<Vec<FleetHost>> {
            names
                .iter()
                .enumerate()
                .map(|(at, name)| FleetHost::join(run, &switch, name, first + at))
                .collect()
        };
        let nodes = join(&NODES[..nodes], 11)?;
        let back_ends = join(&BACK_ENDS[..back_ends], 101)?;
        for host in nodes.iter().chain(&back_ends) {
            host.namespace.ip(&format!("route add default via {ROUTER}\n"))?;
        }
        let network = FleetNetwork { clients, router, nodes, back_ends, switch };
        network.back_ends.iter().try_for_each(|host| network.prepare(host, mode))?;
        Ok(network)
    }

    /// Gives a back end what the mode needs.
    fn prepare(&self, host: &FleetHost, mode: FleetMode) -> Result<()> {
        match mode {
            FleetMode::L2 | FleetMode::Ipip => {
                host.namespace.set(&[("ipv4/conf/all/arp_ignore", 1), ("ipv4/conf/all/arp_announce", 2)])?;
                host.namespace.ip(&format!("address add {VIP}/32 dev lo\n"))
            }
            FleetMode::Nat => self.answer_through_the_last_node(host),
            FleetMode::FullNat => {
                let route = |(at, node): (usize, &FleetHost)| {
                    format!("route add {} via {}\n", pool(at), node.address)
                };
                host.namespace.ip(&self.nodes.iter().enumerate().map(route).collect::<String>())
            }
        }
    }

    /// Makes a back end answer each connection through the node from which its last packet came.
    fn answer_through_the_last_node(&self, host: &FleetHost) -> Result<()> {
        let (mut marks, mut routes) = (String::new(), String::new());
        for (at, node) in self.nodes.iter().enumerate() {
            let mark = TABLES + at;
            let _ = writeln!(marks, "    ether saddr {} ct mark set {mark}", node.mac);
            let _ = writeln!(routes, "rule add fwmark {mark} table {mark}");
            let _ = writeln!(routes, "route add default via {} dev {INTERFACE} table {mark}", node.address);
        }
        host.namespace.ip(&routes)?;
        let chains = format!(
            "table ip last_node {{\n  chain from {{\n    type filter hook prerouting priority mangle;\n\
             {marks}  }}\n  chain to {{\n    type route hook output priority mangle;\n    \
             meta mark set ct mark\n  }}\n}}\n"
        );
        host.namespace.input("nft", &["-f", "-"], &chains)
    }

    /// Sets the link of a node up or down, at the switch.
    pub fn set_link(&self, node: usize, up: bool) -> Result<()> {
        let word = if up { "up" } else { "down" };
        self.switch.namespace().ip(&format!("link set {} {word}\n", self.nodes[node].name))
    }
}

/// Returns a node's addresses for `full_nat`; replies to them are routed to it.
pub fn pool(node: usize) -> String {
    format!("10.93.0.{}/30", 4 * node)
}
