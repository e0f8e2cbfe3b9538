//! The network of the lab: three nodes with two pods each, as in a VXLAN container network.
//!
//! ```text
//!  pod p11 --- cni0 --- routing, nftables, connection tracking --- vx0 --- up0 === switch === other nodes
//!  pod p12 ---/                      node n1                      VXLAN 42
//! ```
//!
//! Node `n` has the pods 10.244.n.11 and 10.244.n.12, also known as fd00:244:n::11 and fd00:244:n::12. The
//! tunnel's forwarding and neighbour entries are permanent, as an agent of the container network would write
//! them. The nftables rules let pods start flows to the ports of the lab, let established flows continue, and
//! drop all others.

use anyhow::{Context, Result};
use weir_bed::{Namespace, Run, Switch, cable};

/// Nodes.
pub const NODES: usize = 3;
/// Pods per node.
pub const PODS: usize = 2;
/// The port that pods answer on.
pub const PORT: u16 = 5001;
/// A port that is open only after [`Cluster::open`].
pub const OTHER_PORT: u16 = 5002;
/// The VXLAN device of a node.
pub const TUNNEL: &str = "vx0";
/// The interface to the other nodes.
pub const UPLINK: &str = "up0";
/// The bridge of a node's pods.
pub const BRIDGE: &str = "cni0";
/// The gateway in the routes of pods without a bridge.
const GATEWAY: &str = "169.254.1.1";
/// The address of a service, which no host has.
pub const SERVICE: &str = "10.96.0.9";

/// Settings for a host with IPv6 that sends nothing on its own.
const IPV6: [(&str, u32); 4] = [
    ("ipv6/conf/default/router_solicitations", 0),
    ("ipv6/conf/default/accept_dad", 0),
    ("ipv6/conf/default/disable_ipv6", 0),
    ("ipv6/conf/all/disable_ipv6", 0),
];

const POLICY: &str = "
table inet guard {
    chain deny { }
    chain forward {
        type filter hook forward priority 0; policy drop;
        jump deny
        ct state established,related accept
        meta l4proto ipv6-icmp accept
        ct state invalid drop
        tcp dport 5001 ct state new accept
        udp dport 5001 ct state new accept
    }
}
";

/// What the uplinks of nodes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum UplinkKind {
    /// An interface without anything below it.
    #[default]
    Plain,
    /// A VLAN device (module `8021q`).
    Vlan,
    /// A bond of two links, one of which is active (module `bonding`).
    Bond,
}

/// The kind of tunnels between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TunnelKind {
    /// VXLAN.
    #[default]
    Vxlan,
    /// Geneve (module `geneve`). Such a device has a single remote node, so only the first two nodes reach
    /// each other.
    Geneve,
}

/// What is below the container network.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Underlay {
    /// What the nodes' uplinks are.
    #[arg(long, value_enum, default_value_t)]
    pub uplink: UplinkKind,
    /// The kind of tunnels between the nodes.
    #[arg(long, value_enum, default_value_t)]
    pub tunnel: TunnelKind,
}

/// The namespaces of the lab.
pub struct Cluster {
    /// The nodes, `n1` to `n3`.
    pub nodes: Vec<Namespace>,
    /// The pods of each node.
    pub pods: Vec<Vec<Namespace>>,
    /// The switch between them.
    pub switch: Switch,
    underlay: Underlay,
}

/// Returns the underlay address of a node, numbered from 0.
pub fn node(at: usize) -> String {
    format!("10.98.0.{}", at + 1)
}

/// Returns the address of a pod, numbered from 0.
pub fn pod(node: usize, at: usize) -> String {
    format!("10.244.{}.{}", node + 1, at + 11)
}

/// The same for IPv6.
pub fn node_6(at: usize) -> String {
    format!("fd98::{}", at + 1)
}

/// The same for IPv6.
pub fn pod_6(node: usize, at: usize) -> String {
    format!("fd00:244:{}::{}", node + 1, at + 11)
}

/// The MAC address of a node's VXLAN device.
pub fn tunnel_mac(at: usize) -> String {
    format!("02:98:00:00:01:{:02x}", at + 1)
}

impl Cluster {
    /// Creates the network; `run` removes it. The names of its namespaces start with `prefix`, so that
    /// several networks can coexist.
    ///
    /// # Errors
    /// A command of `ip`, `bridge` or `nft` fails.
    pub fn build(run: &Run, prefix: &str, underlay: Underlay) -> Result<Cluster> {
        let named = |name: String| run.namespace(&format!("{prefix}{name}"));
        let nodes = (1..=NODES).map(|node| named(format!("n{node}"))).collect::<Result<Vec<_>>>()?;
        let of = |node: usize| (1..=PODS).map(|pod| named(format!("p{node}{pod}"))).collect::<Result<_>>();
        let pods = (1..=NODES).map(of).collect::<Result<Vec<Vec<_>>>>()?;
        for one in nodes.iter().chain(pods.iter().flatten()) {
            one.set(&IPV6)?;
        }
        let switch = Switch::create(run, &format!("{prefix}switch"))?;
        let topology = Cluster { nodes, pods, switch, underlay };
        for at in 0..NODES {
            topology.node(at)?;
        }
        for at in 0..NODES {
            topology.tunnel(at, false)?;
        }
        Ok(topology)
    }

    fn node(&self, at: usize) -> Result<()> {
        let (node, number) = (&self.nodes[at], at + 1);
        let mac = format!("02:98:00:00:00:{number:02x}");
        match self.underlay.uplink {
            UplinkKind::Plain => self.switch.plug(&port(at, 0), None, &node.end(UPLINK).mac(mac))?,
            UplinkKind::Vlan => {
                self.switch.plug(&port(at, 0), None, &node.end("port0").mac(mac))?;
                node.ip(&format!("link add link port0 name {UPLINK} type vlan id 7\n"))
                    .context("the kernel's module `8021q` is needed")?;
            }
            UplinkKind::Bond => {
                node.ip(&format!("link add {UPLINK} address {mac} type bond mode active-backup miimon 20\n"))
                    .context("the kernel's module `bonding` is needed")?;
                for (link, name) in ["port0", "port1"].into_iter().enumerate() {
                    self.switch.plug(&port(at, link), None, &node.end(name))?;
                    node.ip(&format!("link set {name} down\nlink set {name} master {UPLINK}\n"))?;
                }
            }
        }
        node.ip(&format!(
            "link set {UPLINK} up\naddress add {}/24 dev {UPLINK}\naddress add {}/64 dev {UPLINK} nodad\n",
            self::node(at),
            node_6(at)
        ))?;
        node.ip(&format!(
            "link add {BRIDGE} address 02:98:00:00:02:{number:02x} type bridge\n\
             address add 10.244.{number}.1/24 dev {BRIDGE}\nlink set {BRIDGE} up\n\
             address add fd00:244:{number}::1/64 dev {BRIDGE} nodad\n"
        ))?;
        node.set(&[("ipv4/ip_forward", 1), ("ipv6/conf/all/forwarding", 1)])?;
        node.set(&[("bridge/bridge-nf-call-iptables", 1), ("bridge/bridge-nf-call-ip6tables", 1)])?;
        node.input("nft", &["-f", "-"], POLICY)?;
        node.set(&[("netfilter/nf_conntrack_tcp_be_liberal", 1)])?;
        for (number, pod) in self.pods[at].iter().enumerate() {
            plug(node, pod, at, number)?;
        }
        Ok(())
    }

    /// Makes tunnels between nodes use IPv4, or IPv6 with the kernel's checksums.
    pub fn underlay(&self, is_six: bool) -> Result<()> {
        (0..NODES).try_for_each(|at| {
            self.nodes[at].ip(&format!("link del {TUNNEL}\n"))?;
            self.tunnel(at, is_six)
        })
    }

    fn tunnel(&self, at: usize, is_six: bool) -> Result<()> {
        let address = |at| if is_six { node_6(at) } else { self::node(at) };
        let (node, local) = (&self.nodes[at], address(at));
        let (mtu, checks) = if is_six { (1430, "") } else { (1450, "noudpcsum") };
        let only = usize::from(at == 0);
        let (device, others): (String, Vec<usize>) = match self.underlay.tunnel {
            TunnelKind::Vxlan => (
                format!("vxlan id 42 local {local} dstport 4789 dev {UPLINK} nolearning {checks}"),
                (0..NODES).filter(|other| *other != at).collect(),
            ),
            TunnelKind::Geneve => (format!("geneve id 42 remote {} dstport 6081", address(only)), vec![only]),
        };
        node.ip(&format!(
            "link add {TUNNEL} address {} mtu {mtu} type {device}\n\
             address add 10.244.{}.0/32 dev {TUNNEL}\nlink set {TUNNEL} up\n",
            tunnel_mac(at),
            at + 1
        ))?;
        for other in others {
            let (net, mac) = (other + 1, tunnel_mac(other));
            node.ip(&format!(
                "route add 10.244.{net}.0/24 via 10.244.{net}.0 dev {TUNNEL} onlink\n\
                 neighbour add 10.244.{net}.0 lladdr {mac} dev {TUNNEL} nud permanent\n\
                 route add fd00:244:{net}::/64 via fd00:244:{net}::ffff dev {TUNNEL} onlink\n\
                 neighbour add fd00:244:{net}::ffff lladdr {mac} dev {TUNNEL} nud permanent\n"
            ))?;
            if self.underlay.tunnel == TunnelKind::Vxlan {
                node.bridge(&format!("fdb add {mac} dev {TUNNEL} dst {}\n", address(other)))?;
            }
        }
        Ok(())
    }

    /// Adds a rule in front of the others of a node, for forwarded packets.
    pub fn deny(&self, at: usize, rule: &str) -> Result<()> {
        let lines = format!("add rule inet guard deny {rule}\n");
        self.nodes[at].input("nft", &["-f", "-"], &lines)
    }

    /// Maps a service's port 80 to a pod by NAT at a node, as kube-proxy does; with `masquerade`, the pod
    /// sees an address of the node.
    pub fn serve(&self, at: usize, pod: &str, masquerade: bool) -> Result<()> {
        let behind =
            if masquerade { format!("ip daddr {pod} ct status dnat masquerade") } else { String::new() };
        let rules = format!(
            "table ip service\ndelete table ip service\ntable ip service {{\n\
             chain before {{ type nat hook prerouting priority -100;\n\
             ip daddr {SERVICE} meta l4proto {{ tcp, udp }} th dport 80 dnat to {pod}:{PORT}\n}}\n\
             chain behind {{ type nat hook postrouting priority 100;\n{behind}\n}}\n}}\n"
        );
        self.nodes[at].input("nft", &["-f", "-"], &rules)
    }

    /// Allows new flows to a port, at all nodes.
    pub fn open(&self, port: u16) -> Result<()> {
        let rules = format!(
            "add rule inet guard forward tcp dport {port} ct state new accept\n\
             add rule inet guard forward udp dport {port} ct state new accept\n"
        );
        self.nodes.iter().try_for_each(|node| node.input("nft", &["-f", "-"], &rules))
    }

    /// Takes the pods of a node off the bridge: each is behind its own interface, which answers ARP for all
    /// addresses, and has a route.
    pub fn without_bridge(&self, at: usize) -> Result<()> {
        let node = &self.nodes[at];
        // An interface answers for addresses that are routed through another interface.
        node.ip(&format!(
            "address del 10.244.{}.1/24 dev {BRIDGE}\nroute add {GATEWAY}/32 dev {UPLINK}\n",
            at + 1
        ))?;
        for (number, pod) in self.pods[at].iter().enumerate() {
            let (port, address) = (format!("vp{}", number + 1), self::pod(at, number));
            node.ip(&format!(
                "link set {port} nomaster\nlink set {port} address ee:ee:ee:ee:ee:ee\n\
                 route add {address}/32 dev {port}\n"
            ))?;
            node.set(&[
                (&format!("ipv4/conf/{port}/proxy_arp"), 1),
                (&format!("ipv4/neigh/{port}/proxy_delay"), 0),
            ])?;
            pod.ip(&format!(
                "address flush dev eth0\naddress add {address}/32 dev eth0\n\
                 route add {GATEWAY}/32 dev eth0\nroute add default via {GATEWAY} dev eth0\n"
            ))?;
        }
        Ok(())
    }

    /// Removes the added rules.
    pub fn allow(&self, at: usize) -> Result<()> {
        self.nodes[at].input("nft", &["-f", "-"], "flush chain inet guard deny\n")
    }
}

/// The switch's end of a node's link, both numbered from 0.
pub fn port(node: usize, link: usize) -> String {
    format!("{}{}", ["f", "g"][link], node + 1)
}

/// The MAC address of a pod.
pub fn pod_mac(node: usize, at: usize) -> String {
    format!("02:98:00:01:{:02x}:{:02x}", node + 1, at + 11)
}

/// Plugs a pod into its node's bridge.
fn plug(node: &Namespace, pod: &Namespace, at: usize, number: usize) -> Result<()> {
    let port = format!("vp{}", number + 1);
    let eth0 = pod.end("eth0").mac(pod_mac(at, number)).mtu(1450);
    let eth0 = eth0.address(format!("{}/24", self::pod(at, number)));
    let eth0 = eth0.address(format!("{}/64", pod_6(at, number)));
    cable(None, &node.end(&port).mtu(1450), &eth0)?;
    node.ip(&format!("link set {port} master {BRIDGE}\n"))?;
    let net = at + 1;
    pod.ip(&format!("route add default via 10.244.{net}.1\nroute add default via fd00:244:{net}::1\n"))
}
