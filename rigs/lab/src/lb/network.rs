//! The network: two clients, four back ends and the weir node around one switch, with IPv4 and IPv6.
//!
//! ```text
//!  client1 ---+               +---- b1  (VIPs on lo, not announced)
//!  client2 ---+    bridge     +---- b2
//!  weir ------+   "switch"    +---- b3
//!                             +---- b4
//! ```
//!
//! The weir node has one interface ("one-armed"). Its host has no VIP: weir announces the VIPs, and clients
//! resolve them on the link like the address of any other host. Clients and back ends are in different
//! networks, so that the route of a back end determines whether its replies go to clients directly or, where
//! weir translates addresses, back through weir.

use anyhow::Result;

use crate::topology::INTERFACE;
use weir_bed::{Namespace, Run, Switch};

/// IP versions, the indices of addresses.
pub const FAMILIES: [&str; 2] = ["v4", "v6"];
/// The services' addresses.
pub const VIPS: [&str; 2] = ["10.77.0.53", "fd77::53"];
/// Addresses of the weir node.
const WEIR: [&str; 2] = ["10.77.0.2", "fd77::2"];
/// The range of outer source addresses of tunnelled flows. No host has these addresses.
pub const SOURCES: [&str; 2] = ["10.79.0.0/24", "fd79::/64"];
/// The pool of source addresses for `full_nat`.
pub const POOLS: [&str; 2] = ["10.77.0.64/30", "fd77::6400/126"];
/// The networks of clients.
const CLIENTS: [&str; 2] = ["10.78.0.0/24", "fd78::/64"];
/// The networks of all other hosts.
const SERVERS: [&str; 2] = ["10.77.0.0/24", "fd77::/64"];
/// The MAC address that the first back end gets.
pub const MOVED: &str = "02:77:00:00:00:77";

/// IPv6 without DAD; a MAC address change is announced.
const IPV6: [(&str, u32); 4] = [
    ("ipv6/conf/default/accept_dad", 0),
    ("ipv6/conf/default/disable_ipv6", 0),
    ("ipv6/conf/all/disable_ipv6", 0),
    ("ipv6/conf/default/ndisc_notify", 1),
];
/// A back end answers ARP only for addresses of the receiving interface, uses only those in its own requests,
/// and announces a MAC address change.
const SILENCE: [(&str, u32); 3] =
    [("ipv4/conf/all/arp_ignore", 1), ("ipv4/conf/all/arp_announce", 2), ("ipv4/conf/all/arp_notify", 1)];

/// A host.
pub struct Host {
    pub name: &'static str,
    /// The host's addresses, by IP version.
    pub addresses: [String; 2],
    pub mac: String,
    pub namespace: Namespace,
}

impl Host {
    /// Connects a host, whose addresses contain this number, to the switch.
    fn join(run: &Run, switch: &Switch, name: &'static str, net: u8, number: u8) -> Result<Host> {
        let namespace = run.namespace(name)?;
        namespace.set(&IPV6)?;
        let addresses = [format!("10.{net}.0.{number}"), format!("fd{net}::{number}")];
        let mac = format!("02:{net}:00:00:00:{number:02}");
        let [v4, v6] = &addresses;
        let end = namespace.end(INTERFACE).mac(&mac).address(format!("{v4}/24")).address(format!("{v6}/64"));
        switch.plug(name, Some(1), &end)?;
        namespace.checksum_in_software(INTERFACE)?;
        Ok(Host { name, addresses, mac, namespace })
    }
}

/// The namespaces of the lab.
pub struct Network {
    pub clients: [Host; 2],
    pub weir: Host,
    pub back_ends: [Host; 4],
    _switch: Switch,
}

impl Network {
    /// Creates the network; `run` removes it.
    pub fn build(run: &Run) -> Result<Network> {
        let switch = Switch::create(run, "switch")?;
        let join = |name, net, number| Host::join(run, &switch, name, net, number);
        let clients = [join("client1", 78, 1)?, join("client2", 78, 2)?];
        let weir = join("weir", 77, 2)?;
        let back_ends = [join("b1", 77, 11)?, join("b2", 77, 12)?, join("b3", 77, 13)?, join("b4", 77, 14)?];
        for client in &clients {
            routes(&client.namespace, &SERVERS.map(on_link))?;
        }
        routes(&weir.namespace, &CLIENTS.map(on_link))?;
        for back_end in &back_ends {
            back_end.namespace.set(&SILENCE)?;
            let [v4, v6] = VIPS;
            back_end
                .namespace
                .ip(&format!("address add {v4}/32 dev lo\naddress add {v6}/128 dev lo nodad\n"))?;
            routes(&back_end.namespace, &[0, 1].map(|at| format!("{} via {}", POOLS[at], WEIR[at])))?;
        }
        let network = Network { clients, weir, back_ends, _switch: switch };
        network.answer_directly(|_| true)?;
        Ok(network)
    }

    /// Makes the back ends for which `directly` holds reply to clients directly, and the others through weir.
    pub fn answer_directly(&self, directly: impl Fn(usize) -> bool) -> Result<()> {
        for (number, back_end) in self.back_ends.iter().enumerate() {
            let way = |at: usize| match directly(number) {
                true => on_link(CLIENTS[at]),
                false => format!("{} via {}", CLIENTS[at], WEIR[at]),
            };
            routes(&back_end.namespace, &[0, 1].map(way))?;
        }
        Ok(())
    }

    /// Gives the interface of the first back end another MAC address, which it announces.
    pub fn move_mac(&mut self) -> Result<()> {
        let [host, ..] = &mut self.back_ends;
        host.namespace.ip(&format!("link set {INTERFACE} address {MOVED}\n"))?;
        host.mac = MOVED.to_owned();
        Ok(())
    }
}

fn on_link(network: &str) -> String {
    format!("{network} dev {INTERFACE}")
}

/// Adds or replaces routes.
fn routes(host: &Namespace, routes: &[String]) -> Result<()> {
    host.ip(&routes.iter().map(|route| format!("route replace {route}\n")).collect::<String>())
}
