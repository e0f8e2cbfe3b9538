//! Notifications. To follow the kernel's state, open the monitor first, then read the state with the dumps of
//! this crate, so that no change is missed in between. After [`Read::Lost`] the state is unknown: read it
//! again in the same way.

use super::message::messages;
use super::socket::{DATAGRAM_MAX, Protocol};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{RecvFlags, SocketFlags, recv};
use std::io;

/// Upper bound on the datagrams of one call; the kernel may produce them faster than they are read.
const DATAGRAMS_MAX: usize = 4096;

/// A set of multicast groups of one protocol, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    protocol: Protocol,
    bits: u32,
}

impl Groups {
    /// Links, and addresses (RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR of linux/rtnetlink.h).
    pub const LINKS: Groups = Groups::of(Protocol::Route, &[1, 5, 9]);
    /// Everything that determines where packets go: links and addresses as in [`Groups::LINKS`], neighbours
    /// and forwarding tables, routes and rules of IPv4 and IPv6, next hops (RTNLGRP_NEIGH,
    /// RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV4_RULE, RTNLGRP_IPV6_ROUTE, RTNLGRP_IPV6_RULE, RTNLGRP_NEXTHOP).
    pub const ROUTING: Groups = Groups::of(Protocol::Route, &[1, 5, 9, 3, 7, 8, 11, 19, 32]);
    /// Ended connections, and nftables (NFNLGRP_CONNTRACK_DESTROY and NFNLGRP_NFTABLES of
    /// linux/netfilter/nfnetlink.h).
    pub const NETFILTER: Groups = Groups::of(Protocol::Netfilter, &[3, 7]);

    const fn of(protocol: Protocol, numbers: &[u32]) -> Groups {
        let (mut bits, mut at) = (0, 0);
        while at < numbers.len() {
            bits |= 1 << (numbers[at] - 1);
            at += 1;
        }
        Groups { protocol, bits }
    }
}

/// A subscription to notifications about the network namespace in which it was opened.
pub struct Monitor {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

/// The result of reading; later variants are worse.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Read {
    /// All pending messages were read.
    All,
    /// There may be more.
    More,
    /// The kernel has dropped messages because the socket's buffer was full.
    Lost,
}

impl Monitor {
    /// Subscribes to everything that happens from now on, with the system's default buffer.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn open(groups: Groups) -> io::Result<Monitor> {
        let fd = groups.protocol.open(SocketFlags::NONBLOCK, groups.bits)?;
        Ok(Monitor { fd, buffer: vec![0; DATAGRAM_MAX] })
    }

    /// Subscribes with a buffer of this size in bytes in the kernel.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn with_buffer(groups: Groups, size: usize) -> io::Result<Monitor> {
        let monitor = Monitor::open(groups)?;
        set_socket_recv_buffer_size(&monitor.fd, size)?;
        Ok(monitor)
    }

    /// Passes the type and the body of each pending message to `take`.
    pub fn read(&mut self, mut take: impl FnMut(u16, &[u8])) -> Read {
        let mut lost = false;
        for _ in 0..DATAGRAMS_MAX {
            match recv(&self.fd, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((length, _)) => messages(&self.buffer[..length]).for_each(|(kind, body)| take(kind, body)),
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => lost = true,
                Err(_) if lost => return Read::Lost,
                Err(_) => return Read::All,
            }
        }
        if lost { Read::Lost } else { Read::More }
    }
}

impl AsFd for Monitor {
    /// The descriptor that becomes readable when messages are pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_the_bits_of_their_numbers() {
        assert_eq!(Groups::LINKS.bits, 1 | 0x10 | 0x100);
        assert_eq!(Groups::ROUTING.bits, 1 | 4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 0x4_0000 | 1 << 31);
        assert_eq!(Groups::NETFILTER.bits, 1 << 2 | 1 << 6);
    }
}
