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
use std::net::IpAddr;

use anyhow::{Context, Result};

use super::configuration::FleetMode;
use crate::topology::INTERFACE;
use weir_bed::{Namespace, Run, Switch, cable};

/// The version of IP of the service, its clients and its back ends. BGP sessions are over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Family {
    /// IPv4.
    #[value(name = "4")]
    V4,
    /// IPv6.
    #[value(name = "6")]
    V6,
}

/// The addresses of the lab, of one version of IP.
pub struct Addresses {
    /// The service's address.
    pub vip: &'static str,
    /// The router's address on the link of nodes and back ends.
    router: &'static str,
    /// The router's address on the link of clients.
    router_for_clients: &'static str,
    /// The source address of long-lived connections. Ports are used once, so that no node has a flow of an
    /// earlier connection from the same port.
    pub long: &'static str,
    /// The source addresses of short connections.
    pub short: [&'static str; 4],
    /// The outer source addresses of tunnelled flows. No host has these addresses.
    pub sources: &'static str,
    /// What the number of a host follows, and the length of the prefix.
    hosts: (&'static str, u8),
    /// The length of the prefix of clients, and that of an address alone.
    lengths: [u8; 2],
}

const V4: Addresses = Addresses {
    vip: "192.0.2.80",
    router: ROUTER,
    router_for_clients: "10.91.0.1",
    long: "10.91.0.10",
    short: ["10.91.0.11", "10.91.0.12", "10.91.0.13", "10.91.0.14"],
    sources: "10.92.0.0/24",
    hosts: ("10.90.0.", 16),
    lengths: [24, 32],
};
const V6: Addresses = Addresses {
    vip: "2001:db8:f::80",
    router: "fd90::1",
    router_for_clients: "fd91::1",
    long: "fd91::10",
    short: ["fd91::11", "fd91::12", "fd91::13", "fd91::14"],
    sources: "fd92::/64",
    hosts: ("fd90::", 64),
    lengths: [64, 128],
};

impl Family {
    /// Its addresses.
    pub fn addresses(self) -> &'static Addresses {
        match self {
            Family::V4 => &V4,
            Family::V6 => &V6,
        }
    }

    /// The family of this address.
    pub fn of(address: IpAddr) -> Family {
        match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// Its number.
    pub fn number(self) -> u8 {
        match self {
            Family::V4 => 4,
            Family::V6 => 6,
        }
    }

    /// nft's name of it.
    pub fn nft(self) -> &'static str {
        match self {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }

    /// The router's hash of packets: the values under /proc/sys/net.
    fn hash(self) -> [(String, u32); 2] {
        let version = self.number();
        [
            (format!("ipv{version}/fib_multipath_hash_policy"), OF_FIELDS),
            (format!("ipv{version}/fib_multipath_hash_fields"), FIVE_TUPLE),
        ]
    }
}

impl Addresses {
    /// The VIP as a prefix.
    pub fn vip_alone(&self) -> String {
        format!("{}/{}", self.vip, self.lengths[1])
    }
}

/// The router's IPv4 address on the link of nodes and back ends.
pub const ROUTER: &str = "10.90.0.1";
/// The router's interface towards clients.
const CLIENTS_INTERFACE: &str = "clients";
/// The names of nodes and back ends.
const NODES: [&str; 8] = ["n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"];
const BACK_ENDS: [&str; 8] = ["b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8"];
/// Counts requests at a back end: SYNs to the service that are not from a check of a node.
const REQUESTS: &str = "requests";
/// The router's table of packets that bypass nodes.
const BYPASS: u32 = 202;
/// The first of the routing tables of a back end that lead through a node.
const TABLES: usize = 100;

/// The router hashes these fields of a packet: both addresses, the protocol and both ports. Policy 1 is meant
/// to do the same, but uses the hash that a packet already has, and one from a socket on this machine has the
/// socket's random number, which changes when a segment is retransmitted.
const OF_FIELDS: u32 = 3;
const FIVE_TUPLE: u32 = 0x37;

/// IPv6, which namespaces do not have otherwise, without DAD.
const IPV6: [(&str, u32); 3] = [
    ("ipv6/conf/default/accept_dad", 0),
    ("ipv6/conf/default/disable_ipv6", 0),
    ("ipv6/conf/all/disable_ipv6", 0),
];

/// A host on the link.
pub struct FleetHost {
    /// Its name, which is also that of its port at the switch.
    pub name: &'static str,
    /// Its address in the family of the service.
    pub address: String,
    /// Its IPv4 address, for BGP.
    pub v4: String,
    /// The MAC address of its interface.
    pub mac: String,
    /// Its namespace.
    pub namespace: Namespace,
}

impl FleetHost {
    fn join(
        run: &Run,
        switch: &Switch,
        family: Family,
        (name, number): (&'static str, usize),
    ) -> Result<FleetHost> {
        let namespace = run.namespace(name)?;
        let mac = format!("02:90:00:00:00:{number:02x}");
        let of = |family: Family| {
            let (hosts, length) = family.addresses().hosts;
            (format!("{hosts}{number}"), length)
        };
        let (v4, length) = of(Family::V4);
        let mut end = namespace.end(INTERFACE).mac(&mac).address(format!("{v4}/{length}"));
        let (address, length) = of(family);
        if family == Family::V6 {
            namespace.set(&IPV6)?;
            end = end.address(format!("{address}/{length}"));
        }
        switch.plug(name, Some(1), &end)?;
        namespace.checksum_in_software(INTERFACE)?;
        Ok(FleetHost { name, address, v4, mac, namespace })
    }
}

/// The namespaces of the lab.
pub struct FleetNetwork {
    pub family: Family,
    pub clients: Namespace,
    pub router: Namespace,
    pub nodes: Vec<FleetHost>,
    pub back_ends: Vec<FleetHost>,
    switch: Switch,
}

impl FleetNetwork {
    /// Creates the network; `run` removes it.
    pub fn build(
        run: &Run,
        (nodes, back_ends): (usize, usize),
        (mode, family): (FleetMode, Family),
    ) -> Result<FleetNetwork> {
        let its = family.addresses();
        let switch = Switch::create(run, "switch")?;
        let router = FleetHost::join(run, &switch, family, ("router", 1))?.namespace;
        let clients = run.namespace("clients")?;
        if family == Family::V6 {
            clients.set(&IPV6)?;
        }
        let [length, _] = its.lengths;
        let mut end = clients.end(INTERFACE);
        for address in its.short.iter().chain([&its.long]) {
            end = end.address(format!("{address}/{length}"));
        }
        let gateway = router.end(CLIENTS_INTERFACE).address(format!("{}/{length}", its.router_for_clients));
        cable(None, &gateway, &end)?;
        clients.checksum_in_software(INTERFACE)?;
        clients.ip(&format!("route add default via {}\n", its.router_for_clients))?;
        router.checksum_in_software(CLIENTS_INTERFACE)?;
        router.set(&[
            ("ipv4/ip_forward", 1),
            ("ipv4/conf/all/send_redirects", 0),
            (&format!("ipv4/conf/{INTERFACE}/send_redirects"), 0),
        ])?;
        if family == Family::V6 {
            router.set(&[("ipv6/conf/all/forwarding", 1)])?;
        }
        let hash = family.hash();
        router.set(&hash.each_ref().map(|(path, value)| (path.as_str(), *value)))?;
        let join = |names: &[&'static str], first: usize| -> Result<Vec<FleetHost>> {
            let hosts = names.iter().enumerate();
            hosts.map(|(at, name)| FleetHost::join(run, &switch, family, (name, first + at))).collect()
        };
        let nodes = join(&NODES[..nodes], 11)?;
        let back_ends = join(&BACK_ENDS[..back_ends], 101)?;
        for host in nodes.iter().chain(&back_ends) {
            host.namespace.ip(&format!("route add default via {}\n", its.router))?;
        }
        let network = FleetNetwork { family, clients, router, nodes, back_ends, switch };
        network.back_ends.iter().try_for_each(|host| network.prepare(host, mode))?;
        Ok(network)
    }

    /// Returns the addresses of the service's family.
    pub fn addresses(&self) -> &'static Addresses {
        self.family.addresses()
    }

    /// Asks the router for routes of the service's family, by commands of `ip`.
    pub fn ask_router(&self, lines: &str) -> Result<String> {
        ask(&self.router, self.family, lines)
    }

    /// Gives a back end what the mode needs, and counts requests there.
    fn prepare(&self, host: &FleetHost, mode: FleetMode) -> Result<()> {
        let (hosts, length) = self.addresses().hosts;
        let ip = self.family.nft();
        let count = format!(
            "table {ip} {REQUESTS} {{\n  chain input {{\n    type filter hook input priority filter;\n    \
             tcp dport 80 tcp flags & (syn | ack) == syn {ip} saddr != {hosts}0/{length} counter\n  \
             }}\n}}\n"
        );
        host.namespace.input("nft", &["-f", "-"], &count)?;
        match mode {
            FleetMode::L2 | FleetMode::Ipip => {
                host.namespace.set(&[("ipv4/conf/all/arp_ignore", 1), ("ipv4/conf/all/arp_announce", 2)])?;
                host.namespace.ip(&format!("address add {} dev lo\n", self.addresses().vip_alone()))
            }
            FleetMode::Nat => self.answer_through_the_last_node(host),
            FleetMode::FullNat => {
                let route = |(at, node): (usize, &FleetHost)| {
                    format!("route add {} via {}\n", pool(self.family, at), node.address)
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
        ask(&host.namespace, self.family, &routes)?;
        let ip = self.family.nft();
        let chains = format!(
            "table {ip} last_node {{\n  chain from {{\n    type filter hook prerouting priority mangle;\n\
             {marks}  }}\n  chain to {{\n    type route hook output priority mangle;\n    \
             meta mark set ct mark\n  }}\n}}\n"
        );
        host.namespace.input("nft", &["-f", "-"], &chains)
    }

    /// Returns how many requests a back end has got so far, answered or not.
    pub fn requests_at(&self, back_end: usize) -> Result<u64> {
        let ip = self.family.nft();
        let text = self.back_ends[back_end].namespace.output("nft", &["list", "table", ip, REQUESTS])?;
        let count =
            text.split_once("counter packets ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        count.with_context(|| format!("nft has no counter: {text}"))
    }

    /// Makes the router send the short connections from one address to a back end, past all nodes.
    pub fn bypass_nodes(&self, back_end: usize) -> Result<()> {
        let (its, host) = (self.addresses(), &self.back_ends[back_end]);
        self.ask_router(&format!(
            "route add {} via {} dev {INTERFACE} table {BYPASS}\nrule add pref 50 from {} lookup {BYPASS}\n",
            its.vip_alone(),
            host.address,
            its.short[0]
        ))
        .map(drop)
    }

    /// Sets the link of a node up or down, at the switch.
    pub fn set_link(&self, node: usize, up: bool) -> Result<()> {
        let word = if up { "up" } else { "down" };
        self.switch.namespace().ip(&format!("link set {} {word}\n", self.nodes[node].name))
    }
}

/// Runs commands of `ip` that are about this family, and returns their output.
pub fn ask(namespace: &Namespace, family: Family, lines: &str) -> Result<String> {
    match family {
        Family::V4 => namespace.ask_ip(lines),
        Family::V6 => namespace.ask_ip6(lines),
    }
}

/// Returns a node's addresses for `full_nat`; replies to them are routed to it.
pub fn pool(family: Family, node: usize) -> String {
    match family {
        Family::V4 => format!("10.93.0.{}/30", 4 * node),
        Family::V6 => format!("fd93::{:x}/126", 4 * node),
    }
}
