//! The network of the lab: two hosts with a VXLAN tunnel between them, two routers, and four parallel links,
//! among which a hash of the outer 5-tuple selects. It is the network of DOCA-AR's measurements on a smaller
//! scale.
//!
//! ```text
//!  host a --- r1 == p0, p1, p2, p3 == r2 --- host b      VXLAN 42 between a and b
//!    from --- r1              r2 --- to                  the elephant, which a route keeps on p0
//! ```
//!
//! A token bucket limits every router link and host uplink to the same rate; congestion occurs in its queue
//! of [`QUEUE_PACKETS`]. All neighbour entries are permanent, so that no ARP exchange is part of a
//! measurement. Segmentation offload is off where the tunnels start, so that the token bucket sees frames.

use std::path::Path;

use anyhow::Result;
use weir_bed::{Namespace, Run, cable};

/// The parallel links, `p0` to `p3` at both routers.
pub const LINKS: usize = 4;
/// Underlay addresses of the hosts, the ends of the tunnel.
pub const A: &str = "10.99.1.1";
pub const B: &str = "10.99.2.1";
/// Overlay addresses of the hosts.
pub const INNER_A: &str = "192.168.42.1";
pub const INNER_B: &str = "192.168.42.2";
/// The address that the elephant sends to.
pub const ELEPHANT: &str = "10.98.2.1";
/// The interface through which a host's encapsulated frames leave.
pub const UPLINK: &str = "up0";
/// The VXLAN interface of a host.
pub const TUNNEL: &str = "vxlan42";
/// The UDP port of the tunnel.
pub const PORT: u16 = 4789;
/// Maximum queue length of a router's link in packets: 7 ms at 200 Mbit/s.
const QUEUE_PACKETS: u32 = 128;
/// Maximum queue length of a host's uplink in packets, as in Linux's default queue: a host does not drop its
/// own packets.
const UPLINK_PACKETS: u32 = 1000;
/// Burst size of a link: ten frames.
const BURST_BYTES: u32 = 16_000;
const INNER_MAC_A: &str = "02:42:00:00:00:01";
const INNER_MAC_B: &str = "02:42:00:00:00:02";

/// The namespaces of the lab.
pub struct Topology {
    /// The host whose flows are measured.
    pub a: Namespace,
    /// The host that the flows go to.
    pub b: Namespace,
    /// The router at a.
    pub r1: Namespace,
    /// The router at b.
    pub r2: Namespace,
    /// The elephant's source.
    pub from: Namespace,
    /// The elephant's destination.
    pub to: Namespace,
    /// Mbit/s of the topology's links.
    pub rate_mbit: u32,
}

/// An end of a link: namespace, interface, and the numbers of its address: net, link and host.
type NodePlace<'a> = (&'a Namespace, &'a str, [u8; 3]);

/// Returns true if routers can have different hash seeds. Debian 12's kernel has no such setting, and the lab
/// works without it.
pub fn has_seeds() -> bool {
    Path::new("/proc/sys/net/ipv4/fib_multipath_hash_seed").exists()
}

impl Topology {
    /// Creates the network, whose links carry `rate_mbit` Mbit/s; `run` removes it.
    pub fn build(run: &Run, rate_mbit: u32) -> Result<Topology> {
        let topology = Topology {
            a: run.namespace("a")?,
            b: run.namespace("b")?,
            r1: run.namespace("r1")?,
            r2: run.namespace("r2")?,
            from: run.namespace("from")?,
            to: run.namespace("to")?,
            rate_mbit,
        };
        topology.cables()?;
        topology.routes()?;
        topology.shape()?;
        tunnel(&topology.a, (A, B), (INNER_A, INNER_MAC_A), (INNER_B, INNER_MAC_B))?;
        tunnel(&topology.b, (B, A), (INNER_B, INNER_MAC_B), (INNER_A, INNER_MAC_A))?;
        Ok(topology)
    }

    fn cables(&self) -> Result<()> {
        let Topology { a, b, r1, r2, from, to, .. } = self;
        link((a, UPLINK, [99, 1, 1]), (r1, "a", [99, 1, 254]))?;
        link((b, UPLINK, [99, 2, 1]), (r2, "b", [99, 2, 254]))?;
        link((from, UPLINK, [98, 1, 1]), (r1, "from", [98, 1, 254]))?;
        link((to, UPLINK, [98, 2, 1]), (r2, "to", [98, 2, 254]))?;
        for number in 0..LINKS as u8 {
            let name = format!("p{number}");
            link((r1, &name, [97, number, 1]), (r2, &name, [97, number, 2]))?;
        }
        Ok(())
    }

    fn routes(&self) -> Result<()> {
        for (host, gateway) in
            [(&self.a, "99.1"), (&self.b, "99.2"), (&self.from, "98.1"), (&self.to, "98.2")]
        {
            host.ip(&format!("route add default via 10.{gateway}.254 dev {UPLINK}\n"))?;
        }
        for host in [&self.a, &self.b] {
            host.set(&[("ipv4/tcp_no_metrics_save", 1), ("core/txrehash", 0)])?;
        }
        // Each router has a different hash seed, so that the choices of one do not determine those of the
        // next.
        for (router, seed, (hosts, other), far) in
            [(&self.r1, 1, ("99.2", "98.2"), 2), (&self.r2, 2, ("99.1", "98.1"), 1)]
        {
            router.set(&[
                ("ipv4/ip_forward", 1),
                ("ipv4/fib_multipath_hash_policy", 1),
                // A hop is identified by the address of the link on which the packet arrived.
                ("ipv4/icmp_errors_use_inbound_ifaddr", 1),
            ])?;
            if has_seeds() {
                router.set(&[("ipv4/fib_multipath_hash_seed", seed)])?;
            }
            let hops: String =
                (0..LINKS).map(|link| format!(" nexthop via 10.97.{link}.{far} dev p{link}")).collect();
            router.ip(&format!(
                "route add 10.{hosts}.0/24{hops}\nroute add 10.{other}.0/24 via 10.97.0.{far} dev p0\n"
            ))?;
        }
        Ok(())
    }

    fn shape(&self) -> Result<()> {
        for link in 0..LINKS {
            shape(&self.r1, &format!("p{link}"), self.rate_mbit, QUEUE_PACKETS)?;
            shape(&self.r2, &format!("p{link}"), self.rate_mbit, QUEUE_PACKETS)?;
        }
        shape(&self.a, UPLINK, self.rate_mbit, UPLINK_PACKETS)?;
        shape(&self.b, UPLINK, self.rate_mbit, UPLINK_PACKETS)
    }

    /// Returns the ends of a stream: the host that sends, and the one that receives with its inner address.
    pub fn ends(&self) -> (&Namespace, (&Namespace, &'static str)) {
        (&self.a, (&self.b, INNER_B))
    }

    /// Sets whether the kernel of a and b gives a TCP flow another hash, and so another outer source port,
    /// when its retransmission timer expires.
    pub fn set_rehash(&self, on: bool) -> Result<()> {
        [&self.a, &self.b].into_iter().try_for_each(|host| host.set(&[("core/txrehash", u32::from(on))]))
    }

    /// Sets whether routers send each host one ICMP message a second, as they do by default, or any number.
    pub fn set_icmp_limits(&self, on: bool) -> Result<()> {
        let limit_ms = if on { 1000 } else { 0 };
        [&self.r1, &self.r2]
            .into_iter()
            .try_for_each(|router| router.set(&[("ipv4/icmp_ratelimit", limit_ms)]))
    }

    /// Makes both routers silently drop packets that would leave through a link; the routers' own routes do
    /// not notice.
    pub fn blackhole(&self, link: usize) -> Result<()> {
        let rules = format!(
            "add table netdev lab\n\
             add chain netdev lab out {{ type filter hook egress device \"p{link}\" priority 0; }}\n\
             add rule netdev lab out drop\n"
        );
        [&self.r1, &self.r2].into_iter().try_for_each(|router| router.input("nft", &["-f", "-"], &rules))
    }

    /// Removes the blackholes.
    pub fn mend(&self) -> Result<()> {
        let delete =
            |router: &Namespace| router.output("nft", &["delete", "table", "netdev", "lab"]).map(drop);
        [&self.r1, &self.r2].into_iter().try_for_each(delete)
    }
}

fn address([net, link, host]: [u8; 3]) -> String {
    format!("10.{net}.{link}.{host}")
}

fn mac([net, link, host]: [u8; 3]) -> String {
    format!("02:{net}:00:00:{link:02x}:{host:02x}")
}

/// Connects two interfaces with one queue at each end, which know each other's MAC address.
fn link(here: NodePlace<'_>, there: NodePlace<'_>) -> Result<()> {
    let [one, other] = [here, there].map(|(namespace, interface, numbers)| {
        namespace.end(interface).mac(mac(numbers)).address(format!("{}/24", address(numbers)))
    });
    cable(Some(1), &one, &other)?;
    for ((namespace, interface, _), (.., peer)) in [(here, there), (there, here)] {
        let (address, mac) = (address(peer), mac(peer));
        namespace.ip(&format!("neighbour add {address} lladdr {mac} dev {interface} nud permanent\n"))?;
    }
    Ok(())
}

fn shape(namespace: &Namespace, interface: &str, rate_mbit: u32, packets: u32) -> Result<()> {
    let (rate, burst) = (format!("{rate_mbit}mbit"), BURST_BYTES.to_string());
    let bytes = (packets * 1600).to_string();
    let add = ["qdisc", "add", "dev", interface];
    let tokens = ["root", "handle", "1:", "tbf", "rate", &rate, "burst", &burst, "limit", &bytes];
    namespace.output("tc", &[&add[..], &tokens].concat())?;
    // The queue is limited in packets, much like a switch's cells: a queue limited in bytes can have room for
    // a SYN when it has none for a full frame.
    let packets = packets.to_string();
    let queue = ["parent", "1:1", "handle", "10:", "pfifo", "limit", &packets];
    namespace.output("tc", &[&add[..], &queue].concat()).map(drop)
}

/// Creates a host's end of the tunnel.
fn tunnel(
    host: &Namespace,
    (local, remote): (&str, &str),
    (address, mac): (&str, &str),
    (peer, peer_mac): (&str, &str),
) -> Result<()> {
    host.ip(&format!(
        "link add name {TUNNEL} address {mac} type vxlan id 42 local {local} dstport {PORT} dev {UPLINK} \
         nolearning noudpcsum\n\
         link set {TUNNEL} up\n\
         address add {address}/24 dev {TUNNEL}\n\
         neighbour add {peer} lladdr {peer_mac} dev {TUNNEL} nud permanent\n"
    ))?;
    host.bridge(&format!("fdb add {peer_mac} dev {TUNNEL} dst {remote}\n"))?;
    host.output("ethtool", &["-K", TUNNEL, "tso", "off", "gso", "off", "gro", "off"]).map(drop)
}
