//! The interfaces of this process's network namespace, for reading configurations. They are read over
//! netlink: /sys shows the namespace in which it was mounted, which may be a different one.

use crate::config::{Nic, Nics};
use weir_netlink::{Link, links};
use weir_port::xdp::Ethtool;

/// Returns the interfaces that exist now. Without netlink nothing is known about them, as if they did not
/// exist.
pub fn present() -> Nics {
    let ethtool = Ethtool::open().ok();
    links().unwrap_or_default().iter().map(|link| nic(link, ethtool.as_ref())).collect()
}

/// Returns what a configuration must know about an interface.
pub fn nic(link: &Link, ethtool: Option<&Ethtool>) -> Nic {
    let queues = ethtool.and_then(|ethtool| ethtool.queues(&link.name));
    Nic {
        index: link.index,
        name: link.name.clone(),
        alternatives: link.alternatives.clone(),
        mac: link.mac,
        mtu: link.mtu,
        rx_queues: queues.map_or(link.rx_queues, |queues| queues.rx),
        paired: queues.is_some_and(|queues| queues.paired),
        veth: link.kind == "veth",
    }
}
