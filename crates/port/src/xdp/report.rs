//! The interfaces of this network namespace and the obstacles to a port on them: `weir ports`.

use std::io;

use packet::CHUNK_MIN;

use super::Mode;
use super::ethtool::Ethtool;
use super::links::{Link, XdpFeatures, links, xdp_features};
use super::spread::{Spread, judge};

/// Bytes of a chunk that are not for the packet: the kernel's headroom, an Ethernet header, two VLAN tags.
const NOT_PACKET: u32 = 256 + 14 + 2 * 4;

/// The largest `mtu` of a configuration.
const MTU_MAX: u32 = 9216;

/// An interface, as far as it matters to a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceReport {
    /// Name of the interface.
    pub name: String,
    /// Its index in this network namespace.
    pub index: u32,
    /// Its driver (`mlx5_core`, `veth`); empty if it has none.
    pub driver: String,
    /// Receive queues in use; each can be a port.
    pub rx_queues: u32,
    /// Transmit queues in use.
    pub tx_queues: u32,
    /// MTU in bytes: the largest packet, without Ethernet header.
    pub mtu: u32,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// The NUMA node of its device, if it has one.
    pub numa_node: Option<u32>,
    /// Whether the link has carrier.
    pub carrier: bool,
    /// The modes that the driver claims to support, best first. (Zero-copy may still fail for lack of
    /// queues.)
    pub modes: Vec<Mode>,
    /// How its frames are spread over the receive queues.
    pub spread: Spread,
    /// Obstacles to a port, each a sentence that says what to do.
    pub obstacles: Vec<String>,
}

/// Returns all interfaces of this thread's network namespace.
///
/// # Errors
/// Returns the errors of netlink.
pub fn interfaces() -> io::Result<Vec<InterfaceReport>> {
    with_chunk(CHUNK_MIN)
}

/// The same for ports whose chunks have this size, in bytes.
fn with_chunk(chunk: usize) -> io::Result<Vec<InterfaceReport>> {
    let (links, features, ethtool) = (links()?, xdp_features(), Ethtool::open()?);
    Ok(links
        .iter()
        .map(|link| {
            let peer = links.iter().find(|other| Some(other.index) == link.peer);
            let known = features
                .iter()
                .find(|(index, _)| *index == link.index)
                .map(|(_, known)| *known)
                .unwrap_or_default();
            report(link, peer, known, (&ethtool, chunk as u32))
        })
        .collect())
}

/// Returns the obstacles to a port on an interface whose chunks have this size, in bytes, besides a program
/// that is attached there.
#[must_use]
pub fn obstacles(interface: &str, chunk: usize) -> Vec<String> {
    let all = with_chunk(chunk).unwrap_or_default();
    let own = all.into_iter().filter(|report| report.name == interface);
    own.flat_map(|report| report.obstacles).filter(|obstacle| !obstacle.starts_with(ATTACHED)).collect()
}

/// How the obstacle of an attached program begins.
const ATTACHED: &str = "an XDP program is attached";

fn report(
    link: &Link,
    peer: Option<&Link>,
    features: XdpFeatures,
    (ethtool, chunk): (&Ethtool, u32),
) -> InterfaceReport {
    let in_use = ethtool.queues(&link.name).map(|queues| (queues.rx, queues.tx));
    let (rx_queues, tx_queues) = in_use.unwrap_or((link.rx_queues, link.tx_queues));
    let mut obstacles = own_obstacles(link, ethtool, chunk);
    if let Some(peer) = peer {
        obstacles.extend(peer_obstacles(link, rx_queues, peer, ethtool));
    } else if link.kind == "veth" {
        obstacles.push(format!(
            "the other end of veth {} is in another network namespace: run `ethtool -K PEER tx off txvlan \
                off` there, \
             or frames sent by that namespace arrive without L4 checksum",
            link.name
        ));
    }
    InterfaceReport {
        name: link.name.clone(),
        index: link.index,
        driver: ethtool.driver(&link.name).unwrap_or_else(|| link.kind.clone()),
        rx_queues,
        tx_queues,
        mtu: link.mtu,
        mac: link.mac,
        numa_node: crate::numa::node(&link.name),
        carrier: link.carrier,
        modes: modes(features),
        spread: judge(rx_queues, ethtool.rss(&link.name)),
        obstacles,
    }
}

fn modes(features: XdpFeatures) -> Vec<Mode> {
    let mut modes = Vec::new();
    if features.native() && features.zero_copy() {
        modes.push(Mode::NativeZeroCopy);
    }
    if features.native() {
        modes.push(Mode::NativeCopy);
    }
    modes.push(Mode::GenericCopy);
    modes
}

fn own_obstacles(link: &Link, ethtool: &Ethtool, chunk: u32) -> Vec<String> {
    let name = &link.name;
    let mut obstacles = Vec::new();
    if link.xdp {
        obstacles
            .push(format!("{ATTACHED} to {name} already: `bpftool net` shows its owner; stop that first"));
    }
    let most = chunk - NOT_PACKET;
    if link.mtu > most && name != "lo" {
        obstacles.push(format!(
            "frames of MTU {} do not fit into a chunk and are dropped: `ip link set {name} mtu {most}` or \
                less, or `mtu: {}` in the configuration ({} at most)",
            link.mtu,
            link.mtu.min(MTU_MAX),
            MTU_MAX
        ));
    }
    if ethtool.large_receive_offload(name) {
        obstacles.push(format!("the NIC merges frames before weir sees them: `ethtool -K {name} lro off`"));
    }
    obstacles
}

fn peer_obstacles(link: &Link, rx_queues: u32, peer: &Link, ethtool: &Ethtool) -> Vec<String> {
    let mut obstacles = Vec::new();
    let far = &peer.name;
    if ethtool.tx_checksum_offload(far) {
        obstacles.push(format!(
            "frames sent by the host on {far} arrive without L4 checksum: `ethtool -K {far} tx off`"
        ));
    }
    if ethtool.tx_vlan_offload(far) {
        obstacles.push(format!(
            "VLAN tags sent by the host on {far} are hidden from XDP: `ethtool -K {far} txvlan off`"
        ));
    }
    let far_queues = ethtool.queues(far).map_or(peer.tx_queues, |queues| queues.tx);
    if rx_queues < far_queues {
        obstacles.push(format!(
            "{} has {rx_queues} receive queues but its peer {far} has {far_queues} transmit queues, so \
                native XDP \
             is refused: `ethtool -L {} rx {far_queues}` or `ethtool -L {far} tx {rx_queues}`",
            link.name, link.name
        ));
    }
    obstacles
}
