//! News of interfaces, and of the host's addresses. The kernel sends a netlink message when one appears,
//! changes or disappears, so nothing is polled. The message is only a trigger: what counts is the full list
//! that is read afterwards, so lost, repeated or outdated messages do no harm.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use weir_netlink::{Groups, Link, Monitor, NetlinkEvent, Object, Read, links};

use super::XdpInterface;

/// Follows the interfaces and addresses of the network namespace in which it was opened.
pub struct LinkMonitor {
    monitor: Monitor,
    /// Indices that disappeared since the list was last read, and whether they moved to another namespace.
    gone: BTreeMap<u32, bool>,
    /// Whether an address was, or may have been, added or removed.
    addresses: bool,
}

/// All interfaces at one moment.
pub struct InterfaceList {
    all: Vec<Link>,
    /// Interfaces that disappeared before the list was read, and whether each moved to another namespace. A
    /// listed interface with the same index is a different one, or has lost its sockets.
    gone: BTreeMap<u32, bool>,
}

impl LinkMonitor {
    /// Starts listening.
    ///
    /// # Errors
    /// Returns the errors of netlink.
    pub fn open() -> io::Result<LinkMonitor> {
        let monitor = Monitor::open(Groups::LINKS)?;
        Ok(LinkMonitor { monitor, gone: BTreeMap::new(), addresses: false })
    }

    /// Reads the messages that have arrived. Returns true if one of them concerns an interface of
    /// `ours` (by index or name), or if messages were lost.
    pub fn has_news<'a>(&mut self, ours: impl Iterator<Item = &'a XdpInterface> + Clone) -> bool {
        let mut news = false;
        let read = self.monitor.read(|kind, body| {
            let NetlinkEvent { exists, object } = NetlinkEvent::parse(kind, body);
            match object {
                Object::Link(link) => {
                    news |= ours.clone().any(|one| one.is(&link));
                    if !exists {
                        self.gone.insert(link.index, link.moved);
                    }
                }
                Object::Address(_) => self.addresses = true,
                _ => {}
            }
        });
        self.addresses |= read == Read::Lost;
        news || read == Read::Lost
    }

    /// Returns whether addresses of the host may have changed since the last call, as far as messages were
    /// read.
    pub fn addresses_changed(&mut self) -> bool {
        std::mem::take(&mut self.addresses)
    }

    /// Reads the list of all interfaces.
    ///
    /// # Errors
    /// Returns the errors of netlink.
    pub fn links(&mut self) -> io::Result<InterfaceList> {
        let all = links()?;
        Ok(InterfaceList { all, gone: std::mem::take(&mut self.gone) })
    }
}

impl AsFd for LinkMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }
}

impl InterfaceList {
    /// Returns the present state of an interface to which weir's program is attached; `None` if it is gone,
    /// was gone in the meantime, or has lost the program.
    pub(super) fn attached(&self, index: u32) -> Option<&Link> {
        let is_it = |link: &&Link| link.index == index && link.xdp && !self.gone.contains_key(&index);
        self.all.iter().find(is_it)
    }

    /// Returns whether an interface that disappeared is in another namespace now.
    pub(super) fn has_moved(&self, index: u32) -> bool {
        self.gone.get(&index).is_some_and(|moved| *moved)
    }

    /// Returns the interface with this name. If there is none, returns the interface that has the last name
    /// of `before`, in case `before` was renamed, or its index and MAC address, in case it came back under
    /// another name.
    pub(super) fn found(&self, name: &str, before: &Link) -> Option<&Link> {
        let named = |name: &str| self.all.iter().find(|link| link.is_called(name));
        let same = |link: &&Link| link.index == before.index && link.mac == before.mac;
        named(name).or_else(|| named(&before.name)).or_else(|| self.all.iter().find(same))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(index: u32, name: &str, mac: u8, xdp: bool) -> Link {
        Link { index, name: name.into(), mac: [2, 0, 0, 0, 0, mac], xdp, ..Link::default() }
    }

    #[test]
    fn an_interface_is_the_same_as_long_as_it_keeps_index_and_program() {
        let mut links =
            InterfaceList { all: vec![one(5, "w9", 1, true), one(6, "w1", 2, false)], gone: [].into() };
        assert_eq!(links.attached(5).map(|link| link.name.as_str()), Some("w9"), "it was renamed");
        assert_eq!((links.attached(6), links.attached(7)), (None, None));
        links.gone.insert(5, true);
        assert_eq!(links.attached(5), None, "it was gone, and its sockets are dead");
        assert_eq!((links.has_moved(5), links.has_moved(6)), (true, false));
    }

    #[test]
    fn an_interface_is_found_by_its_name_and_else_as_the_one_it_was() {
        let links =
            InterfaceList { all: vec![one(5, "w9", 1, false), one(6, "w1", 2, false)], gone: [].into() };
        let index = |name, before| links.found(name, &before).map(|link| link.index);
        assert_eq!(index("w1", one(5, "w1", 1, false)), Some(6));
        assert_eq!(index("w0", one(5, "w0", 1, false)), Some(5), "under another name");
        assert_eq!(index("w0", one(5, "w0", 3, false)), None, "another interface reuses its index");
        assert_eq!(index("w0", one(4, "w9", 3, false)), Some(5), "it was renamed, and is recreated");
    }

    #[test]
    fn there_is_no_news_of_what_nobody_asked_for() {
        let mut monitor = LinkMonitor::open().unwrap();
        assert!(!monitor.has_news(std::iter::empty()));
        assert!(monitor.links().unwrap().all.iter().any(|link| link.name == "lo"));
    }
}
