//! Links, which are the interfaces of a network namespace (linux/if_link.h).
//!
//! /sys/class/net would not do: it shows the namespace in which /sys was mounted, which differs after
//! `setns`.

use super::message::{Request, attribute, attributes, find, text, word};
use super::rtm::{RTM_GETLINK, RTM_NEWLINK, RTM_SETLINK};
use super::socket::{Protocol, change, dump};
use super::{AF_UNSPEC, Mac};
use std::io;
use std::net::IpAddr;

const IFF_UP: u32 = 1;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_CARRIER: u16 = 33;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP: u16 = 43;
const IFLA_NEW_NETNSID: u16 = 45;
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;

const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;

const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;

const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_PORT_RANGE: u16 = 10;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_VXLAN_GROUP6: u16 = 16;
const IFLA_VXLAN_LOCAL6: u16 = 17;
const IFLA_VXLAN_UDP_ZERO_CSUM6_TX: u16 = 19;
const IFLA_VXLAN_UDP_ZERO_CSUM6_RX: u16 = 20;
const IFLA_VXLAN_COLLECT_METADATA: u16 = 25;
const IFLA_VXLAN_LABEL_POLICY: u16 = 32;
const VXLAN_LABEL_INHERIT: u32 = 1;

const IFLA_GENEVE_ID: u16 = 1;
const IFLA_GENEVE_REMOTE: u16 = 2;
const IFLA_GENEVE_PORT: u16 = 5;
const IFLA_GENEVE_COLLECT_METADATA: u16 = 6;
const IFLA_GENEVE_REMOTE6: u16 = 7;
const IFLA_GENEVE_UDP_ZERO_CSUM6_TX: u16 = 9;
const IFLA_GENEVE_UDP_ZERO_CSUM6_RX: u16 = 10;
const IFLA_GENEVE_INNER_PROTO_INHERIT: u16 = 14;
const IFLA_GENEVE_PORT_RANGE: u16 = 15;

/// `struct ifinfomsg`.
const HEADER: usize = 16;

/// A network interface, as the kernel describes it (rtnetlink(7): `RTM_NEWLINK`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// The link's index, which it keeps when it is renamed.
    pub index: u32,
    /// The name of the link, at most 15 bytes.
    pub name: String,
    /// The link's alternative names (`ip link property add ... altname`).
    pub alternatives: Vec<String>,
    /// The link's MAC address; zero if it has none.
    pub mac: Mac,
    /// The link's MTU, in bytes.
    pub mtu: u32,
    /// Whether the link is administratively up (`IFF_UP`).
    pub up: bool,
    /// Whether the link has carrier.
    pub carrier: bool,
    /// The maximum number of receive queues; `ethtool -L` changes how many are in use.
    pub rx_queues: u32,
    /// The maximum number of transmit queues.
    pub tx_queues: u32,
    /// `veth`, `bond`, ...; empty for hardware.
    pub kind: String,
    /// Index of a veth's other end, if it is in this namespace.
    pub peer: Option<u32>,
    /// The lower interface, for example of a VLAN; 0 if there is none in this namespace.
    pub below: u32,
    /// The bridge or bond of which the link is a port; 0 if there is none.
    pub master: u32,
    /// The number, in this namespace, of the other namespace that contains the lower interface or the other
    /// end.
    pub namespace: Option<u32>,
    /// A veth's other end in another namespace: the number of that namespace in this one, and the index in
    /// that namespace.
    pub far: Option<(u32, u32)>,
    /// The settings of a VXLAN device.
    pub vxlan: Option<Vxlan>,
    /// The settings of a Geneve device.
    pub geneve: Option<Geneve>,
    /// In a message that the link is gone: whether the link was moved to another namespace.
    pub moved: bool,
    /// Whether an XDP program is attached.
    pub xdp: bool,
    /// The kernel's ID of that program.
    pub xdp_program: Option<u32>,
}

/// The settings of a VXLAN device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vxlan {
    /// The VXLAN network identifier, 24 bits.
    pub vni: u32,
    /// The UDP port to which encapsulated frames are sent, usually 4789.
    pub port: u16,
    /// The range of source ports; zeros mean the kernel's default.
    pub sources: [u16; 2],
    /// Whether the destination is taken from each frame's metadata.
    pub external: bool,
    /// Whether the nodes have IPv6 addresses.
    pub is_six: bool,
    /// Whether UDP over IPv6 is sent with checksum 0, and whether it is accepted.
    pub zero_checks: [bool; 2],
    /// Whether the device copies the flow label of packets.
    pub copies_label: bool,
}

/// The settings of a Geneve device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geneve {
    /// The virtual network identifier, 24 bits.
    pub vni: u32,
    /// The UDP port to which encapsulated frames are sent, usually 6081.
    pub port: u16,
    /// The remote node; `None` if the destination is taken from each frame's metadata.
    pub remote: Option<IpAddr>,
    /// The range of source ports: the first, and the one after the last.
    pub sources: [u16; 2],
    /// Whether UDP over IPv6 is sent with checksum 0, and whether it is accepted.
    pub zero_checks: [bool; 2],
    /// Whether the device carries packets without Ethernet headers.
    pub is_bare: bool,
}

impl Link {
    /// Returns whether `name` is one of the link's names.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.alternatives.iter().any(|one| one == name)
    }

    /// Parses the body of a message. A bridge or IPv6 reports its relation to a link in messages of the same
    /// types, under its own address family: for example, a message that a link leaves a bridge does not mean
    /// that the link is gone.
    pub(crate) fn parse(body: &[u8]) -> Option<Link> {
        let attributes_of = body.get(HEADER..)?;
        if body[0] != AF_UNSPEC {
            return None;
        }
        let up = word(&body[8..]) & IFF_UP != 0;
        let mut link = Link { index: word(&body[4..]), up, ..Link::default() };
        for (kind, value) in attributes(attributes_of) {
            link.set(kind, value);
        }
        let other =
            if link.kind == "veth" || link.namespace.is_some() { std::mem::take(&mut link.below) } else { 0 };
        if link.kind == "veth" {
            link.far = link.namespace.map(|namespace| (namespace, other));
            link.peer = Some(other).filter(|index| link.far.is_none() && *index != 0);
        }
        Some(link)
    }

    fn set(&mut self, kind: u16, value: &[u8]) {
        match kind {
            IFLA_ADDRESS => self.mac = value.try_into().unwrap_or_default(),
            IFLA_IFNAME => self.name = text(value),
            IFLA_MTU => self.mtu = word(value),
            IFLA_LINK => self.below = word(value),
            IFLA_MASTER => self.master = word(value),
            IFLA_NEW_NETNSID => self.moved = true,
            IFLA_LINKINFO => {
                self.kind = find(value, IFLA_INFO_KIND).map(text).unwrap_or_default();
                let data = |kind| find(value, IFLA_INFO_DATA).filter(|_| self.kind == kind);
                (self.vxlan, self.geneve) =
                    (data("vxlan").map(Vxlan::parse), data("geneve").map(Geneve::parse));
            }
            IFLA_PROP_LIST => {
                let names = attributes(value).filter(|(kind, _)| *kind == IFLA_ALT_IFNAME);
                self.alternatives = names.map(|(_, name)| text(name)).collect();
            }
            IFLA_NUM_TX_QUEUES => self.tx_queues = word(value),
            IFLA_NUM_RX_QUEUES => self.rx_queues = word(value),
            IFLA_CARRIER => self.carrier = value == [1],
            IFLA_LINK_NETNSID => self.namespace = Some(word(value)),
            IFLA_XDP => {
                self.xdp = find(value, IFLA_XDP_ATTACHED).is_some_and(|mode| mode != [0]);
                self.xdp_program = find(value, IFLA_XDP_PROG_ID).map(word);
            }
            _ => {}
        }
    }
}

impl Vxlan {
    /// Parses IFLA_INFO_DATA.
    fn parse(data: &[u8]) -> Vxlan {
        let mut vxlan = Vxlan::default();
        for (kind, value) in attributes(data) {
            match kind {
                IFLA_VXLAN_ID => vxlan.vni = word(value),
                IFLA_VXLAN_PORT_RANGE => {
                    vxlan.sources = ports(value);
                }
                IFLA_VXLAN_PORT => vxlan.port = port(value),
                IFLA_VXLAN_GROUP6 | IFLA_VXLAN_LOCAL6 => vxlan.is_six = true,
                IFLA_VXLAN_UDP_ZERO_CSUM6_TX => vxlan.zero_checks[0] = value != [0],
                IFLA_VXLAN_UDP_ZERO_CSUM6_RX => vxlan.zero_checks[1] = value != [0],
                IFLA_VXLAN_COLLECT_METADATA => vxlan.external = value != [0],
                IFLA_VXLAN_LABEL_POLICY => vxlan.copies_label = word(value) == VXLAN_LABEL_INHERIT,
                _ => {}
            }
        }
        vxlan
    }
}

impl Geneve {
    /// Parses IFLA_INFO_DATA.
    fn parse(data: &[u8]) -> Geneve {
        // Kernels without ranges (before Linux 6.15) use these ports.
        let sources = [1, u16::MAX];
        let mut geneve =
            Geneve { vni: 0, port: 0, remote: None, sources, zero_checks: [false; 2], is_bare: false };
        let mut external = false;
        for (kind, value) in attributes(data) {
            match kind {
                IFLA_GENEVE_ID => geneve.vni = word(value),
                IFLA_GENEVE_REMOTE => geneve.remote = value.first_chunk::<4>().map(|to| IpAddr::from(*to)),
                IFLA_GENEVE_REMOTE6 => geneve.remote = value.first_chunk::<16>().map(|to| IpAddr::from(*to)),
                IFLA_GENEVE_PORT => geneve.port = port(value),
                IFLA_GENEVE_PORT_RANGE => geneve.sources = ports(value),
                IFLA_GENEVE_UDP_ZERO_CSUM6_TX => geneve.zero_checks[0] = value != [0],
                IFLA_GENEVE_UDP_ZERO_CSUM6_RX => geneve.zero_checks[1] = value != [0],
                // Flags without a value.
                IFLA_GENEVE_COLLECT_METADATA => external = true,
                IFLA_GENEVE_INNER_PROTO_INHERIT => geneve.is_bare = true,
                _ => {}
            }
        }
        geneve.remote = geneve.remote.filter(|_| !external);
        geneve
    }
}

/// Reads a port in network order.
fn port(value: &[u8]) -> u16 {
    value.first_chunk().map_or(0, |two| u16::from_be_bytes(*two))
}

/// Reads a range of ports: `struct ifla_vxlan_port_range`, `struct ifla_geneve_port_range`.
fn ports(value: &[u8]) -> [u16; 2] {
    [port(value), port(value.get(2..).unwrap_or_default())]
}

/// Returns all links of this thread's network namespace.
///
/// # Errors
/// Returns the kernel's error.
pub fn links() -> io::Result<Vec<Link>> {
    let answers = dump(Protocol::Route, RTM_GETLINK, &[0; HEADER])?;
    let links = answers.iter().filter(|(kind, _)| *kind == RTM_NEWLINK);
    Ok(links.filter_map(|(_, body)| Link::parse(body)).collect())
}

/// Sets a link administratively up.
///
/// # Errors
/// Returns the kernel's error.
pub fn set_up(index: u32) -> io::Result<()> {
    let body = [0, index, IFF_UP, IFF_UP].map(u32::to_ne_bytes);
    change(Protocol::Route, Request { kind: RTM_SETLINK, flags: 0, body: body.as_flattened() })
}

/// Sets an interface up such that it drops all packets that the host sends through it, instead of queueing
/// them for a reader.
///
/// # Errors
/// Returns the kernel's error.
pub fn set_up_without_queue(index: u32) -> io::Result<()> {
    let mut body = [0, index, IFF_UP, IFF_UP].map(u32::to_ne_bytes).as_flattened().to_vec();
    body.extend(attribute(IFLA_TXQLEN, &0_u32.to_ne_bytes()));
    change(Protocol::Route, Request { kind: RTM_SETLINK, flags: 0, body: &body })
}

#[cfg(test)]
mod tests {
    use super::super::message::{attribute, nested};
    use super::*;

    fn body(attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![0; HEADER];
        body[4] = 5;
        body.extend(attributes.concat());
        body
    }

    #[test]
    fn the_loopback_interface_is_found() {
        let links = links().unwrap();
        let loopback = links.iter().find(|link| link.name == "lo").unwrap();
        assert_eq!((loopback.index, loopback.mac, loopback.kind.as_str()), (1, [0; 6], ""));
        assert!(loopback.mtu > 0 && loopback.rx_queues > 0);
    }

    #[test]
    fn alternative_names_and_a_move_are_read() {
        let name = attribute(IFLA_IFNAME, b"eth0\0");
        let others = ["up\0", "lan\0"].map(|name| attribute(IFLA_ALT_IFNAME, name.as_bytes()));
        let moved = attribute(IFLA_NEW_NETNSID, &[1, 0, 0, 0]);
        let plain = Link::parse(&body(std::slice::from_ref(&name))).unwrap();
        assert!(plain.is_called("eth0") && !plain.is_called("up") && !plain.moved);
        let named = Link::parse(&body(&[name, nested(IFLA_PROP_LIST, &others), moved])).unwrap();
        assert_eq!(
            (named.index, named.name.as_str(), named.alternatives.join(" ").as_str()),
            (5, "eth0", "up lan")
        );
        assert!(["eth0", "up", "lan"].iter().all(|name| named.is_called(name)) && !named.is_called("eth1"));
        assert!(named.moved);
    }

    #[test]
    fn the_other_end_of_a_veth_is_here_or_in_another_namespace() {
        let of = |kind: &[u8]| nested(IFLA_LINKINFO, &[attribute(IFLA_INFO_KIND, kind)]);
        let below = attribute(IFLA_LINK, &9_u32.to_ne_bytes());
        let namespace = attribute(IFLA_LINK_NETNSID, &3_u32.to_ne_bytes());
        let read = |attributes: &[Vec<u8>]| {
            let link = Link::parse(&body(attributes)).unwrap();
            (link.peer, link.far, link.below)
        };
        assert_eq!(read(&[of(b"veth\0"), below.clone()]), (Some(9), None, 0));
        assert_eq!(read(&[of(b"veth\0"), below.clone(), namespace.clone()]), (None, Some((3, 9)), 0));
        assert_eq!(read(&[of(b"vlan\0"), below.clone()]), (None, None, 9));
        assert_eq!(read(&[of(b"vlan\0"), below, namespace]), (None, None, 0));
    }

    #[test]
    fn the_settings_of_a_vxlan_device_are_read() {
        let settings = [
            attribute(IFLA_VXLAN_ID, &42_u32.to_ne_bytes()),
            attribute(IFLA_VXLAN_PORT, &4789_u16.to_be_bytes()),
            attribute(IFLA_VXLAN_PORT_RANGE, &[0x80, 0, 0x90, 0]),
            attribute(IFLA_VXLAN_UDP_ZERO_CSUM6_RX, &[1]),
            attribute(IFLA_VXLAN_LOCAL6, &[0; 16]),
        ];
        let info = [attribute(IFLA_INFO_KIND, b"vxlan\0"), nested(IFLA_INFO_DATA, &settings)];
        let link = Link::parse(&body(&[nested(IFLA_LINKINFO, &info)])).unwrap();
        let vxlan = Vxlan {
            vni: 42,
            port: 4789,
            sources: [0x8000, 0x9000],
            is_six: true,
            zero_checks: [false, true],
            ..Vxlan::default()
        };
        assert_eq!(link.vxlan, Some(vxlan));
    }

    #[test]
    fn the_settings_of_a_geneve_device_are_read() {
        let read = |settings: &[Vec<u8>]| {
            let info = [attribute(IFLA_INFO_KIND, b"geneve\0"), nested(IFLA_INFO_DATA, settings)];
            Link::parse(&body(&[nested(IFLA_LINKINFO, &info)])).unwrap().geneve.unwrap()
        };
        let remote = attribute(IFLA_GENEVE_REMOTE, &[10, 0, 1, 2]);
        let settings = [
            attribute(IFLA_GENEVE_ID, &42_u32.to_ne_bytes()),
            attribute(IFLA_GENEVE_PORT, &6081_u16.to_be_bytes()),
            attribute(IFLA_GENEVE_UDP_ZERO_CSUM6_TX, &[0]),
            attribute(IFLA_GENEVE_UDP_ZERO_CSUM6_RX, &[1]),
            remote.clone(),
        ];
        let geneve = Geneve {
            vni: 42,
            port: 6081,
            remote: Some(IpAddr::from([10, 0, 1, 2])),
            sources: [1, u16::MAX],
            zero_checks: [false, true],
            is_bare: false,
        };
        assert_eq!(read(&settings), geneve);
        let range = attribute(IFLA_GENEVE_PORT_RANGE, &[0x80, 0, 0x90, 0]);
        let six = attribute(IFLA_GENEVE_REMOTE6, &[7; 16]);
        let other = read(&[range, six, attribute(IFLA_GENEVE_INNER_PROTO_INHERIT, &[])]);
        assert_eq!((other.sources, other.remote), ([0x8000, 0x9000], Some(IpAddr::from([7; 16]))));
        assert!(other.is_bare);
        assert_eq!(read(&[attribute(IFLA_GENEVE_COLLECT_METADATA, &[]), remote]).remote, None);
    }

    #[test]
    fn the_report_of_a_bridge_about_its_port_is_not_about_the_link() {
        let mut body = body(&[]);
        assert_eq!(Link::parse(&body).map(|link| link.index), Some(5));
        body[0] = crate::AF_BRIDGE;
        assert!(Link::parse(&body).is_none());
    }
}
