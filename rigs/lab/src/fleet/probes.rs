//! Which node gets the packets of a connection: the router's kernel decides about a packet like those of the
//! connection, which a rule of nftables notes with its next hop, and drops.
//!
//! `ip route get` would need no packet, but for IPv6 it does not say what happens to one: with hash policy 3,
//! the kernel hashes the hash of a packet again, together with that of a packet inside, and does not do so
//! for a mere question (`rt6_multipath_custom_hash_skb` and `_fl6` of net/ipv6/route.c).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use weir_packet::craft::Recipe;

use super::network::{Family, FleetNetwork};

/// The table of nftables at the router, and its set of ports with their next hops.
const NFT: &str = "probes";
/// The TTLs that distinguish probes from other packets, and the marks that the router gives to them.
const TTLS: [u8; 2] = [77, 78];
const MARKS: [u32; 2] = [76, TRIAL_MARK];
/// The mark of probes for next hops that are not in use.
pub const TRIAL_MARK: u32 = 77;
/// How long the router may take to note all probes; lost ones are sent again.
const PATIENCE: Duration = Duration::from_secs(20);
/// The time between looking at what the router has noted.
const PAUSE: Duration = Duration::from_millis(5);

/// The next hops that are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHops {
    /// Those of all packets.
    InUse,
    /// Those of packets with [`TRIAL_MARK`].
    Trial,
}

/// Lets the router note probes.
pub fn prepare(network: &FleetNetwork) -> Result<()> {
    let (ip, ttl, kind) = match network.family {
        Family::V4 => ("ip", "ttl", "ipv4_addr"),
        Family::V6 => ("ip6", "hoplimit", "ipv6_addr"),
    };
    let ([used, trial], [used_mark, trial_mark]) = (TTLS, MARKS);
    let text = format!(
        "table {ip} {NFT} {{\n  set {NFT} {{ type inet_service . {kind}; flags dynamic; size 65535; }}\n  \
         chain arrive {{\n    type filter hook prerouting priority mangle;\n    \
         {ip} {ttl} {used} meta mark set {used_mark}\n    {ip} {ttl} {trial} meta mark set {trial_mark}\n  \
         }}\n  chain leave {{\n    type filter hook forward priority filter;\n    \
         meta mark {{ {used_mark}, {trial_mark} }} add @{NFT} {{ tcp sport . rt {ip} nexthop }} drop\n  \
         }}\n}}\n"
    );
    network.router.input("nft", &["-f", "-"], &text)
}

/// Returns the node to which the router sends the packets of the connection from each of these ports.
pub fn owners(network: &FleetNetwork, ports: Range<u16>, hops: NextHops) -> Result<BTreeMap<u16, usize>> {
    let ip = network.family.nft();
    network.router.input("nft", &["flush", "set", ip, NFT, NFT], "")?;
    let mut found = BTreeMap::new();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let missing: Vec<u16> = ports.clone().filter(|port| !found.contains_key(port)).collect();
        if missing.is_empty() {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("the router sends {} of {} probes nowhere", missing.len(), ports.len());
        }
        network.clients.within(|| send(network, &missing, hops))?;
        std::thread::sleep(PAUSE);
        let text = network.router.output("nft", &["list", "set", ip, NFT, NFT])?;
        for (port, hop) in noted(&text) {
            let node = network.nodes.iter().position(|node| node.address.parse() == Ok(hop));
            found.insert(port, node.with_context(|| format!("the next hop {hop} is no node"))?);
        }
    }
}

/// Sends a probe from each of these ports.
fn send(network: &FleetNetwork, ports: &[u16], hops: NextHops) -> Result<()> {
    let its = network.addresses();
    let family = match network.family {
        Family::V4 => AddressFamily::INET,
        Family::V6 => AddressFamily::INET6,
    };
    // With this protocol, packets have their own IP headers. System calls are those of a UDP socket.
    let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::RAW))?;
    let (socket, to) = (UdpSocket::from(socket), SocketAddr::new(its.vip.parse::<IpAddr>()?, 0));
    let [used, trial] = TTLS;
    let ttl = match hops {
        NextHops::InUse => used,
        NextHops::Trial => trial,
    };
    for port in ports {
        let recipe =
            format!("src={} dst={} proto=tcp sport={port} dport=80 ttl={ttl} flags=S", its.long, its.vip);
        let frame = recipe.parse::<Recipe>().map_err(|error| anyhow::anyhow!("{recipe}: {error}"))?.build();
        let packet = frame.get(ETHERNET..).unwrap_or_default();
        socket.send_to(packet, to).context("cannot send a probe")?;
    }
    Ok(())
}

/// The length of an Ethernet header.
const ETHERNET: usize = 14;

/// Reads the elements of a set: ports and next hops.
fn noted(text: &str) -> Vec<(u16, IpAddr)> {
    let Some((_, rest)) = text.split_once("elements = {") else { return Vec::new() };
    let elements = rest.split('}').next().unwrap_or_default().split(',');
    let element = |text: &str| {
        let (port, hop) = text.trim().split_once(" . ")?;
        Some((port.parse().ok()?, hop.parse().ok()?))
    };
    elements.filter_map(element).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_next_hops_are_read() {
        let text = "table ip6 probes {\n\tset probes {\n\t\ttype inet_service . ipv6_addr\n\t\telements = { \
                    10000 . fd90::11,\n\t\t\t     10001 . fd90::12 }\n\t}\n}\n";
        let [one, two] = ["fd90::11", "fd90::12"].map(|hop| hop.parse::<IpAddr>().unwrap());
        assert_eq!(noted(text), [(10_000, one), (10_001, two)]);
        assert_eq!(noted("table ip probes {\n\tset probes {\n\t}\n}\n"), []);
    }
}
