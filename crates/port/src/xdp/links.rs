//! The kernel's view of the interfaces in this network namespace, read through netlink.
//!
//! /sys/class/net would not do: it shows the namespace in which /sys was mounted, which differs after
//! `setns`.

use std::io;

use rustix::net::netlink::GENERIC;

use crate::netlink::{attributes, dump, talk, text, word};

/// Messages about an interface: it exists, or it is gone.
pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;

/// An interface as reported by RTM_GETLINK.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its index, which it keeps when it is renamed.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its alternative names (`ip link property add ... altname`).
    pub alternatives: Vec<String>,
    /// Its MAC address; zero if it has none.
    pub mac: [u8; 6],
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// Whether it is administratively up (`IFF_UP`).
    pub up: bool,
    /// Whether it has carrier.
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
    /// The bridge or bond of which it is a port; 0 if there is none.
    pub master: u32,
    /// A veth's other end in another namespace: that namespace's number here, and the index there.
    pub far: Option<(u32, u32)>,
    /// In a message that it is gone: whether it was moved to another namespace.
    pub moved: bool,
    /// Whether an XDP program is attached.
    pub xdp: bool,
    /// The kernel's ID of that program.
    pub xdp_program: Option<u32>,
}

impl Link {
    /// Returns whether this is one of its names.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.alternatives.iter().any(|one| one == name)
    }
}

/// Returns all interfaces of this thread's network namespace.
///
/// # Errors
/// Returns the errors of netlink.
pub fn links() -> io::Result<Vec<Link>> {
    const RTM_GETLINK: u16 = 18;
    let answers = dump(None, RTM_GETLINK, &[0; IFINFO])?;
    Ok(answers.iter().filter(|(kind, _)| *kind == RTM_NEWLINK).filter_map(|(_, body)| link(body)).collect())
}

/// Returns what the netlink family `netdev` reports about drivers, by interface index. Empty on kernels
/// before 6.3.
pub(super) fn xdp_features() -> Vec<(u32, XdpFeatures)> {
    let answers =
        netdev_family().and_then(|family| dump(Some(GENERIC), family, &NETDEV_DEV_GET)).unwrap_or_default();
    answers.iter().filter_map(|(_, body)| device(body.get(4..)?)).collect()
}

/// Bits of `enum netdev_xdp_act`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct XdpFeatures(u64);

impl XdpFeatures {
    /// Native XDP with redirection, which AF_XDP needs.
    pub(super) fn native(self) -> bool {
        self.0 & 3 == 3
    }

    /// Zero-copy AF_XDP.
    pub(super) fn zero_copy(self) -> bool {
        self.0 & 8 != 0
    }
}

/// `struct ifinfomsg`.
const IFINFO: usize = 16;

/// Reads the body of a message about an interface. A bridge or IPv6 reports its relation to an interface in
/// messages of the same types, under its own address family: a message that an interface leaves a bridge does
/// not mean that the interface is gone.
pub(super) fn link(body: &[u8]) -> Option<Link> {
    const IFF_UP: u32 = 1;
    const IFLA_ADDRESS: u16 = 1;
    const IFLA_IFNAME: u16 = 3;
    const IFLA_MTU: u16 = 4;
    const IFLA_LINK: u16 = 5;
    const IFLA_MASTER: u16 = 10;
    const IFLA_LINKINFO: u16 = 18;
    const IFLA_NUM_TX_QUEUES: u16 = 31;
    const IFLA_NUM_RX_QUEUES: u16 = 32;
    const IFLA_CARRIER: u16 = 33;
    const IFLA_LINK_NETNSID: u16 = 37;
    const IFLA_XDP: u16 = 43;
    const IFLA_NEW_NETNSID: u16 = 45;
    const IFLA_PROP_LIST: u16 = 52;
    const IFLA_ALT_IFNAME: u16 = 53;
    const AF_UNSPEC: u8 = 0;
    if *body.first()? != AF_UNSPEC {
        return None;
    }
    let mut link = Link { index: word(body.get(4..)?), ..Link::default() };
    link.up = word(body.get(8..)?) & IFF_UP != 0;
    let mut elsewhere = None;
    for (kind, value) in attributes(body.get(IFINFO..)?) {
        match kind {
            IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
            IFLA_IFNAME => link.name = text(value),
            IFLA_MTU => link.mtu = word(value),
            IFLA_LINK => link.below = word(value),
            IFLA_MASTER => link.master = word(value),
            IFLA_NEW_NETNSID => link.moved = true,
            IFLA_LINKINFO => {
                link.kind =
                    attributes(value).find(|(kind, _)| *kind == 1).map(|(_, v)| text(v)).unwrap_or_default()
            }
            IFLA_PROP_LIST => {
                let names = attributes(value).filter(|(kind, _)| *kind == IFLA_ALT_IFNAME);
                link.alternatives = names.map(|(_, name)| text(name)).collect();
            }
            IFLA_NUM_TX_QUEUES => link.tx_queues = word(value),
            IFLA_NUM_RX_QUEUES => link.rx_queues = word(value),
            IFLA_CARRIER => link.carrier = value == [1],
            IFLA_LINK_NETNSID => elsewhere = Some(word(value)),
            IFLA_XDP => (link.xdp, link.xdp_program) = xdp_program(value),
            _ => {}
        }
    }
    if let Some(namespace) = elsewhere {
        let index = std::mem::take(&mut link.below);
        link.far = Some((namespace, index)).filter(|_| link.kind == "veth");
    }
    if link.kind == "veth" {
        link.peer = Some(std::mem::take(&mut link.below)).filter(|index| *index != 0);
    }
    Some(link)
}

/// Returns whether an XDP program is attached, and its ID.
fn xdp_program(value: &[u8]) -> (bool, Option<u32>) {
    const IFLA_XDP_ATTACHED: u16 = 2;
    const IFLA_XDP_PROG_ID: u16 = 4;
    let is_attached = attributes(value).any(|(kind, mode)| kind == IFLA_XDP_ATTACHED && mode != [0]);
    (is_attached, attributes(value).find(|(kind, _)| *kind == IFLA_XDP_PROG_ID).map(|(_, id)| word(id)))
}

/// Reads the body of a message about an interface or a device, for fuzzers.
pub fn read_link(body: &[u8]) {
    let _ = (link(body), device(body));
}

/// `NETDEV_CMD_DEV_GET`, version 1.
const NETDEV_DEV_GET: [u8; 4] = [1, 1, 0, 0];

fn netdev_family() -> io::Result<u16> {
    const GENL_ID_CTRL: u16 = 0x10;
    // CTRL_CMD_GETFAMILY, version 1; then CTRL_ATTR_FAMILY_NAME, 11 bytes long, padded to 12.
    let mut question = vec![3, 1, 0, 0];
    question.extend(11_u16.to_ne_bytes());
    question.extend(2_u16.to_ne_bytes());
    question.extend(b"netdev\0\0");
    let answers = talk(Some(GENERIC), GENL_ID_CTRL, 0, &question)?;
    let id = answers.iter().find_map(|(_, body)| attributes(body.get(4..)?).find(|(kind, _)| *kind == 1));
    id.and_then(|(_, value)| value.try_into().ok().map(u16::from_ne_bytes))
        .ok_or(io::ErrorKind::NotFound.into())
}

fn device(body: &[u8]) -> Option<(u32, XdpFeatures)> {
    let find = |wanted| attributes(body).find(move |(kind, _)| *kind == wanted).map(|(_, value)| value);
    let features = find(3)?.try_into().ok().map(u64::from_ne_bytes)?;
    Some((word(find(1)?), XdpFeatures(features)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found() {
        let links = links().unwrap();
        let loopback = links.iter().find(|link| link.name == "lo").unwrap();
        assert_eq!((loopback.index, loopback.mac, loopback.kind.as_str()), (1, [0; 6], ""));
        assert!(loopback.mtu > 0 && loopback.rx_queues > 0);
    }

    #[test]
    fn alternative_names_and_a_move_are_read() {
        let mut body = vec![0; IFINFO];
        body[4] = 5;
        body.extend([9, 0, 3, 0]);
        body.extend(*b"eth0\0\0\0\0");
        let before = body.len();
        body.extend([20, 0, 52, 0x80, 7, 0, 53, 0]);
        body.extend(*b"up\0\0");
        body.extend([8, 0, 53, 0]);
        body.extend(*b"lan\0");
        let named = link(&body).unwrap();
        assert_eq!((named.name.as_str(), named.alternatives.join(" ")), ("eth0", "up lan".to_string()));
        assert!(["eth0", "up", "lan"].iter().all(|name| named.is_called(name)) && !named.is_called("eth1"));
        assert!(link(&body[..before]).is_some_and(|link| !link.is_called("up") && !link.moved));
        body.extend([8, 0, 45, 0, 1, 0, 0, 0]);
        assert!(link(&body).unwrap().moved);
    }

    #[test]
    fn what_a_bridge_says_of_an_interface_is_not_about_the_interface() {
        let mut body = [0; IFINFO];
        body[4] = 5;
        assert_eq!(link(&body).map(|link| link.index), Some(5));
        const AF_BRIDGE: u8 = 7;
        body[0] = AF_BRIDGE;
        assert!(link(&body).is_none());
    }
}
