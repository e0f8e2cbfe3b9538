//! The interfaces of this process's network namespace, for those who read a configuration. They are read by
//! netlink: /sys shows the namespace in which it was mounted, which may be another.

use crate::config::{Nic, Nics};
use weir_port::xdp::{Ethtool, Link, links};

/// Returns the interfaces that are there now. Without netlink nothing is known of them, as of interfaces that
/// do not exist.
pub fn present() -> Nics {
    let ethtool = Ethtool::open().ok();
    links().unwrap_or_default().iter().map(|link| nic(link, ethtool.as_ref())).collect()
}

/// Returns what a configuration must know of an interface.
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
    }
}
