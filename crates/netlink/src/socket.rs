//! Requests, and their answers.

use super::message::{NLM_F_ACK, NLM_F_DUMP, NLMSG_DONE, NLMSG_ERROR, Request, messages, word};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::retry_on_intr;
use rustix::net::netlink::{GENERIC, NETFILTER, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{bind, recv, sendto, socket_with};
use std::io;

/// More than the kernel puts in a datagram, in bytes.
pub(crate) const DATAGRAM_MAX: usize = 64 << 10;

/// Type and body of a message.
pub type Message = (u16, Vec<u8>);

/// A protocol of netlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes, neighbours (rtnetlink(7)).
    Route,
    /// Connection tracking and nftables.
    Netfilter,
    /// Families with numbers that the kernel assigns.
    Generic,
}

/// A socket for requests, which wait for their answers.
pub struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Protocol {
    /// Opens a socket that receives notifications of these groups, as bits.
    pub(crate) fn open(self, flags: SocketFlags, groups: u32) -> io::Result<OwnedFd> {
        let protocol = match self {
            Protocol::Route => None,
            Protocol::Netfilter => Some(NETFILTER),
            Protocol::Generic => Some(GENERIC),
        };
        let fd =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, flags | SocketFlags::CLOEXEC, protocol)?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(fd)
    }
}

impl Socket {
    /// Opens a socket.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn open(protocol: Protocol) -> io::Result<Socket> {
        let fd = protocol.open(SocketFlags::empty(), 0)?;
        Ok(Socket { fd, buffer: vec![0; DATAGRAM_MAX] })
    }

    /// Sends encoded requests, and waits until all requests with `NLM_F_ACK` have been acknowledged.
    ///
    /// # Errors
    /// Returns the kernel's error about the first request that fails.
    pub fn commit(&mut self, requests: &[u8]) -> io::Result<()> {
        const FLAGS_AT: usize = 6;
        let (mut rest, mut missing) = (requests, 0);
        while rest.len() >= 16 {
            missing += usize::from(rest[FLAGS_AT] & NLM_F_ACK as u8 != 0);
            rest = rest.get(word(rest) as usize..).unwrap_or_default();
        }
        self.send(requests)?;
        while missing > 0 {
            self.receive(|kind, _| missing -= usize::from(kind == NLMSG_ERROR))?;
        }
        Ok(())
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        sendto(self.fd.as_fd(), bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    /// Passes the messages of the next datagram to `take`. An error message with code 0 is an
    /// acknowledgement; any other one ends the request.
    fn receive(&mut self, mut take: impl FnMut(u16, &[u8])) -> io::Result<()> {
        let (length, _) = retry_on_intr(|| recv(&self.fd, &mut self.buffer[..], RecvFlags::empty()))?;
        for (kind, body) in messages(&self.buffer[..length]) {
            let error = if kind == NLMSG_ERROR { word(body).cast_signed() } else { 0 };
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error.wrapping_neg()));
            }
            take(kind, body);
        }
        Ok(())
    }
}

/// Returns all objects of a kind.
///
/// # Errors
/// Returns the kernel's error.
pub fn dump(protocol: Protocol, kind: u16, body: &[u8]) -> io::Result<Vec<Message>> {
    let mut socket = Socket::open(protocol)?;
    socket.send(&Request { kind, flags: NLM_F_DUMP, body }.encode())?;
    let (mut all, mut is_done) = (Vec::new(), false);
    while !is_done {
        socket.receive(|kind, body| match kind {
            NLMSG_DONE => is_done = true,
            kind => all.push((kind, body.to_vec())),
        })?;
    }
    Ok(all)
}

/// Returns one object: the type and the body of the kernel's first answer.
///
/// # Errors
/// Returns the kernel's error: usually, there is no such object.
pub fn get(protocol: Protocol, kind: u16, body: &[u8]) -> io::Result<Message> {
    let mut socket = Socket::open(protocol)?;
    socket.send(&Request { kind, flags: 0, body }.encode())?;
    let mut first = None;
    socket.receive(|kind, body| first = first.take().or_else(|| Some((kind, body.to_vec()))))?;
    first.ok_or(io::ErrorKind::InvalidData.into())
}

/// Creates, changes or removes an object.
///
/// # Errors
/// Returns the kernel's error.
pub fn change(protocol: Protocol, request: Request<'_>) -> io::Result<()> {
    let flags = request.flags | NLM_F_ACK;
    Socket::open(protocol)?.commit(&Request { flags, ..request }.encode())
}
