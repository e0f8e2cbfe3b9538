//! The sockets of probes: for each IP version one that sends whole packets, and one that receives ICMP.

use crate::icmp::{EchoReply, Expired, echoed, expired, expired6};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use rustix::net::{AddressFamily, Protocol, RawProtocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{recvfrom, sendto, socket_with};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// IPPROTO_RAW: packets include the IP header.
const RAW: RawProtocol = match RawProtocol::new(255) {
    Some(raw) => raw,
    None => unreachable!(),
};

/// The size of the receive buffer, in bytes: enough for an ICMP message. It quotes at most 576 bytes for
/// IPv4, and a whole probe for IPv6.
const ICMP_MAX: usize = 576;

/// A message from a router about one of our packets.
pub enum RouterMessage {
    /// The TTL of a probe has expired.
    Expired(Expired),
    /// The reply to an echo request.
    Reply(EchoReply),
}

/// The sockets of one IP version.
struct Pair {
    out: OwnedFd,
    icmp: OwnedFd,
}

impl Pair {
    fn open(family: AddressFamily, icmp: Protocol) -> io::Result<Pair> {
        let open = |protocol| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            socket_with(family, SocketType::RAW, flags, Some(protocol))
        };
        Ok(Pair { out: open(Protocol::from_raw(RAW))?, icmp: open(icmp)? })
    }

    /// Returns the next message that `read` recognises.
    fn message(
        &self,
        read: impl Fn(&[u8], Option<SocketAddr>) -> Option<RouterMessage>,
    ) -> Option<RouterMessage> {
        let mut buffer = [0; ICMP_MAX];
        loop {
            match recvfrom(&self.icmp, &mut buffer, RecvFlags::TRUNC) {
                Ok((length, _, from)) => {
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                    if let found @ Some(_) = read(&buffer[..length.min(ICMP_MAX)], from) {
                        return found;
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }
}

/// The sockets.
pub struct Wire {
    four: Pair,
    six: Option<Pair>,
}

impl Wire {
    /// Opens the sockets, which needs CAP_NET_RAW; those of IPv6 only if there is an IPv6 peer.
    pub fn open(has_six: bool) -> io::Result<Wire> {
        let four = Pair::open(AddressFamily::INET, rustix::net::ipproto::ICMP)?;
        // The kernel learns a smaller MTU for an address, not for one of the paths to it, so it must not
        // limit probes.
        set_ip_mtu_discover(&four.out, Ipv4PathMtuDiscovery::PROBE)?;
        let six = || -> io::Result<Pair> {
            let six = Pair::open(AddressFamily::INET6, rustix::net::ipproto::ICMPV6)?;
            set_ipv6_mtu_discover(&six.out, Ipv6PathMtuDiscovery::PROBE)?;
            Ok(six)
        };
        Ok(Wire { four, six: has_six.then(six).transpose()? })
    }

    /// Sends an IP packet. The kernel fills in the checksum of an IPv4 header.
    pub fn send(&self, packet: &[u8], to: IpAddr) -> io::Result<()> {
        let out = match to {
            IpAddr::V4(_) => &self.four.out,
            IpAddr::V6(_) => &self.six.as_ref().ok_or(io::ErrorKind::Unsupported)?.out,
        };
        sendto(out, packet, SendFlags::empty(), &SocketAddr::new(to, 0))?;
        Ok(())
    }

    /// Returns the next ICMP message of a router, about a UDP packet or an echo request.
    pub fn message(&self) -> Option<RouterMessage> {
        let six = || {
            let read = |icmp: &[u8], from: Option<SocketAddr>| expired6(icmp, from?.ip());
            self.six.as_ref()?.message(|icmp, from| read(icmp, from).map(RouterMessage::Expired))
        };
        let reply = |packet: &[u8]| echoed(packet).map(RouterMessage::Reply);
        let four = |packet: &[u8]| expired(packet).map(RouterMessage::Expired).or_else(|| reply(packet));
        self.four.message(|packet, _| four(packet)).or_else(six)
    }

    /// The descriptor that becomes readable when an ICMPv4 message has arrived.
    pub fn icmp(&self) -> BorrowedFd<'_> {
        self.four.icmp.as_fd()
    }
}

/// Returns all IP addresses of this host, except link-local ones.
pub fn local_addresses() -> io::Result<Vec<IpAddr>> {
    let is_of_link = |address: &IpAddr| matches!(address, IpAddr::V6(six) if six.is_unicast_link_local());
    Ok(weir_netlink::addresses()?.into_iter().filter(|address| !is_of_link(address)).collect())
}

/// Returns the source address of the route to a node.
pub fn source_to(address: IpAddr, port: u16) -> io::Result<IpAddr> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect((address, port))?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_of_the_host_are_its_own() {
        assert!(local_addresses().unwrap().contains(&Ipv4Addr::LOCALHOST.into()));
    }
}
