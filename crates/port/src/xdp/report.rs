//! The interfaces of this network namespace and the obstacles to opening a port on them: `weir ports`.

use std::io;

use weir_netlink::{Link, XdpFeatures, links, xdp_features};
use weir_packet::CHUNK_MIN;

use super::Mode;
use super::ethtool::{Ethtool, Offloads};
use super::far::Namespaces;
use super::spread::{Spread, judge};

/// Bytes of a chunk that are not available to the packet: the kernel's headroom, an Ethernet header, two VLAN
/// tags.
const NOT_PACKET: u32 = 256 + 14 + 2 * 4;

/// The largest `mtu` of a configuration.
const MTU_MAX: u32 = 9216;

/// The properties of an interface that matter to a port.
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
    /// How frames that arrive are spread over the receive queues.
    pub spread: Spread,
    /// Obstacles to a port, each a sentence that says what to do.
    pub obstacles: Vec<String>,
    /// Whether the attached XDP program belongs to a weir process.
    pub is_taken: bool,
    /// Whether the offloads of the other end of a veth could not be inspected.
    pub is_far_unknown: bool,
}

impl InterfaceReport {
    /// Returns the obstacles to a port that may already be running, not counting the program that takes its
    /// frames.
    pub fn obstacles_of_running(&self) -> impl Iterator<Item = &String> {
        self.obstacles.iter().filter(|obstacle| !(self.is_taken && obstacle.starts_with(ATTACHED)))
    }

    /// Returns the obstacles without the advice about the other end of a veth that cannot be inspected.
    pub fn obstacles_of_near_end(&self) -> impl Iterator<Item = &String> {
        self.obstacles_of_running().filter(|obstacle| !obstacle.starts_with(FAR_UNKNOWN))
    }
}

/// Returns all interfaces of this thread's network namespace.
///
/// # Errors
/// Returns the errors of netlink.
pub fn interfaces() -> io::Result<Vec<InterfaceReport>> {
    with_chunk(CHUNK_MIN, |_| true)
}

/// Returns the interfaces whose names are wanted, with the obstacles to ports whose chunks have this size in
/// bytes.
fn with_chunk(chunk: usize, is_wanted: impl Fn(&str) -> bool) -> io::Result<Vec<InterfaceReport>> {
    let (links, features) = (links()?, xdp_features());
    let asked =
        InterfaceQuery { ethtool: Ethtool::open()?, namespaces: Namespaces::default(), chunk: chunk as u32 };
    Ok(links
        .iter()
        .filter(|link| is_wanted(&link.name))
        .map(|link| {
            let peer = links.iter().find(|other| Some(other.index) == link.peer);
            let known = features
                .iter()
                .find(|(index, _)| *index == link.index)
                .map(|(_, known)| *known)
                .unwrap_or_default();
            report(link, peer, known, &asked)
        })
        .collect())
}

/// Returns the obstacles, other than an attached program, to a port with chunks of this size in bytes on an
/// interface.
#[must_use]
pub fn obstacles(interface: &str, chunk: usize) -> Vec<String> {
    let own = with_chunk(chunk, |name| name == interface).unwrap_or_default().into_iter();
    own.flat_map(|report| report.obstacles).filter(|obstacle| !obstacle.starts_with(ATTACHED)).collect()
}

/// The query about interfaces.
struct InterfaceQuery {
    ethtool: Ethtool,
    namespaces: Namespaces,
    /// The size of chunks, in bytes.
    chunk: u32,
}

/// The beginning of the message about an attached program.
const ATTACHED: &str = "an XDP program is attached";

/// The beginning of the advice about the other end of a veth that cannot be inspected.
const FAR_UNKNOWN: &str = "the other end of veth";

fn report(
    link: &Link,
    peer: Option<&Link>,
    features: XdpFeatures,
    asked: &InterfaceQuery,
) -> InterfaceReport {
    let ethtool = &asked.ethtool;
    let in_use = ethtool.queues(&link.name).map(|queues| (queues.rx, queues.tx));
    let (rx_queues, tx_queues) = in_use.unwrap_or((link.rx_queues, link.tx_queues));
    let is_taken = link.xdp_program.is_some_and(weir_bpf::XdpTake::is_program);
    let mut obstacles = own_obstacles(link, is_taken, ethtool, asked.chunk);
    let mut is_far_unknown = false;
    if let Some(peer) = peer {
        obstacles.extend(incomplete(&peer.name, "", ethtool.offloads(&peer.name)));
        obstacles.extend(peer_obstacles(link, rx_queues, peer, ethtool));
    } else if let Some(far) = link.far.and_then(|far| asked.namespaces.find(far)) {
        let within = format!("nsenter --net={} ", far.namespace.display());
        obstacles.extend(incomplete(&far.name, &within, far.offloads));
    } else if link.kind == "veth" {
        is_far_unknown = true;
        obstacles.push(format!(
            "{FAR_UNKNOWN} {} is in another network namespace, which cannot be inspected from here: run \
             `ethtool -K PEER tx off txvlan off tx-vlan-stag-hw-insert off` there, or frames sent by that \
             namespace arrive without an L4 checksum (counted as `checksums_wrong` in `weir show ports`) \
             and with hidden VLAN tags",
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
        is_taken,
        is_far_unknown,
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

fn own_obstacles(link: &Link, is_taken: bool, ethtool: &Ethtool, chunk: u32) -> Vec<String> {
    let name = &link.name;
    let mut obstacles = Vec::new();
    if link.xdp {
        let owner = if is_taken { "another weir takes its frames" } else { "`bpftool net` shows its owner" };
        obstacles.push(format!("{ATTACHED} to {name}: {owner}; stop that first"));
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
    // Only hardware strips tags, and only virtual interfaces have a kind.
    if link.kind.is_empty() {
        obstacles.extend(stripped(name, ethtool.strips_tags(name)));
    }
    obstacles
}

/// Explains that the NIC strips VLAN tags, and gives the command that stops it.
fn stripped(name: &str, [tags, service_tags]: [bool; 2]) -> Option<String> {
    let flags = [(tags, " rxvlan off"), (service_tags, " rx-vlan-stag-hw-parse off")];
    let flags: String = flags.into_iter().filter(|(is_on, _)| *is_on).map(|(_, flag)| flag).collect();
    (!flags.is_empty())
        .then(|| format!("the NIC strips VLAN tags before weir sees the frames: `ethtool -K {name}{flags}`"))
}

/// Explains what is missing in frames that the other end of a veth sends, and gives the command that fixes
/// it.
fn incomplete(far: &str, within: &str, offloads: Offloads) -> Option<String> {
    let flags = [
        (offloads.checksum, " tx off"),
        (offloads.vlan, " txvlan off"),
        (offloads.service_vlan, " tx-vlan-stag-hw-insert off"),
    ];
    let flags: String = flags.into_iter().filter(|(is_on, _)| *is_on).map(|(_, flag)| flag).collect();
    let checksum = "without an L4 checksum (counted as `checksums_wrong` in `weir show ports`)";
    let tags = "with VLAN tags that XDP does not see";
    let what = match (offloads.checksum, offloads.vlan || offloads.service_vlan) {
        (true, true) => format!("{checksum} and {tags}"),
        (true, false) => checksum.to_string(),
        (false, true) => tags.to_string(),
        (false, false) => return None,
    };
    Some(format!("frames sent on {far} arrive {what}: `{within}ethtool -K {far}{flags}`"))
}

fn peer_obstacles(link: &Link, rx_queues: u32, peer: &Link, ethtool: &Ethtool) -> Vec<String> {
    let mut obstacles = Vec::new();
    let far = &peer.name;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_that_the_nic_takes_out_are_named_with_their_flags() {
        let said = |tags| stripped("eth0", tags).unwrap_or_default();
        assert_eq!(said([false, false]), "");
        assert!(said([true, false]).ends_with("`ethtool -K eth0 rxvlan off`"), "{}", said([true, false]));
        let all = said([true, true]);
        assert!(all.ends_with("`ethtool -K eth0 rxvlan off rx-vlan-stag-hw-parse off`"), "{all}");
    }

    #[test]
    fn advice_names_every_flag_that_is_on_and_no_other() {
        let said = |checksum, vlan, service_vlan| {
            incomplete("f0", "", Offloads { checksum, vlan, service_vlan }).unwrap_or_default()
        };
        assert_eq!(said(false, false, false), "");
        let all = said(true, true, true);
        assert!(all.ends_with("`ethtool -K f0 tx off txvlan off tx-vlan-stag-hw-insert off`"), "{all}");
        let tags = said(false, false, true);
        assert!(tags.ends_with("`ethtool -K f0 tx-vlan-stag-hw-insert off`"), "{tags}");
        assert!(!tags.contains("checksum") && !said(true, false, false).contains("tags"));
    }
}
