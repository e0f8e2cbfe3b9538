//! Notifications of the kernel about links, neighbours, routes, nftables rules and connections.

use rustix::fd::{AsFd, BorrowedFd};
use std::io;
use weir_netlink::{Groups, Monitor, Read};

/// Receive buffer in the kernel, in bytes: messages beyond it are lost, and then everything is invalidated.
/// Labs set the variable so that messages get lost.
const ROOM: usize = 1 << 20;
const ROOM_VARIABLE: &str = "WEIR_NETLINK_ROOM";

/// The two subscriptions.
pub struct KernelSubscriptions {
    route: Monitor,
    filter: Monitor,
}

/// Where a message came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageSource {
    Route,
    Filter,
}

impl KernelSubscriptions {
    /// Subscribes to everything that happens from now on.
    pub fn open() -> io::Result<KernelSubscriptions> {
        let room = std::env::var(ROOM_VARIABLE).ok().and_then(|room| room.parse().ok()).unwrap_or(ROOM);
        Ok(KernelSubscriptions {
            route: Monitor::with_buffer(Groups::ROUTING, room)?,
            filter: Monitor::with_buffer(Groups::NETFILTER, room)?,
        })
    }

    /// Returns the descriptors that become readable when there is news.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.route.as_fd(), self.filter.as_fd()]
    }

    /// Reads messages, and passes each to `take`: its source, its type and its body. Returns the worse of the
    /// two results.
    pub fn read(&mut self, mut take: impl FnMut(MessageSource, u16, &[u8])) -> Read {
        let route = self.route.read(|kind, body| take(MessageSource::Route, kind, body));
        route.max(self.filter.read(|kind, body| take(MessageSource::Filter, kind, body)))
    }
}
