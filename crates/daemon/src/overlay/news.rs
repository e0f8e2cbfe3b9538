//! Notifications of the kernel: netlink sockets for links, neighbours, routes, nftables rules and
//! connections.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use std::io;
use weir_port::netlink::{attributes, messages};

/// Groups of rtnetlink(7), as bits: links, neighbours; addresses, routes and rules of IPv4 and IPv6; next
/// hops.
const ROUTE_GROUPS: u32 = 1 | 4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 0x4_0000 | 1 << 31;
/// Groups of nfnetlink: ended connections, and nftables.
const FILTER_GROUPS: u32 = 1 << 2 | 1 << 6;

/// Receive buffer in the kernel, in bytes: messages beyond it are lost, and then everything is invalidated.
/// Labs set the variable to make messages get lost.
const ROOM: usize = 1 << 20;
const ROOM_VARIABLE: &str = "WEIR_NETLINK_ROOM";

/// Datagrams read per iteration; the kernel may produce them faster than we read.
const DATAGRAMS_MAX: usize = 4096;

/// One of the two sockets.
struct Socket {
    fd: OwnedFd,
}

/// The sockets.
pub struct News {
    route: Socket,
    filter: Socket,
    buffer: Vec<u8>,
}

/// Where a message came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Route,
    Filter,
}

/// The result of reading; later variants are worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Read {
    /// All pending messages.
    All,
    /// There may be more.
    More,
    /// Messages were lost.
    Lost,
}

impl News {
    /// Opens the sockets, which receive everything that happens from now on.
    pub fn open() -> io::Result<News> {
        Ok(News {
            route: Socket::open(None, ROUTE_GROUPS)?,
            filter: Socket::open(Some(NETFILTER), FILTER_GROUPS)?,
            buffer: vec![0; 65536],
        })
    }

    /// Returns the descriptors that become readable when there is news.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.route.fd.as_fd(), self.filter.fd.as_fd()]
    }

    /// Reads messages, and passes each to `take`: its source, its type and its body.
    pub fn read(&mut self, mut take: impl FnMut(Source, u16, &[u8])) -> Read {
        let mut all = Read::All;
        for (socket, source) in [(&self.route, Source::Route), (&self.filter, Source::Filter)] {
            let read = socket.read(&mut self.buffer, |kind, body| take(source, kind, body));
            all = all.max(read);
        }
        all
    }
}

impl Socket {
    fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<Socket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        let room = std::env::var(ROOM_VARIABLE).ok().and_then(|room| room.parse().ok());
        set_socket_recv_buffer_size(&fd, room.unwrap_or(ROOM))?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Socket { fd })
    }

    fn read(&self, buffer: &mut [u8], mut take: impl FnMut(u16, &[u8])) -> Read {
        let mut lost = false;
        for _ in 0..DATAGRAMS_MAX {
            match recv(&self.fd, &mut *buffer, RecvFlags::empty()) {
                Ok((length, _)) => messages(&buffer[..length]).for_each(|(kind, body)| take(kind, body)),
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => lost = true,
                Err(_) if lost => return Read::Lost,
                Err(_) => return Read::All,
            }
        }
        if lost { Read::Lost } else { Read::More }
    }
}

/// Returns the value of an attribute.
pub fn attribute(body: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(body).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}
