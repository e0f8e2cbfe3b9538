//! The sockets of probes: for each IP version one that sends whole packets, and one that receives ICMP.

use crate::icmp::{EchoReply, Expired, echoed, expired, expired6};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use rustix::net::{AddressFamily, Protocol, RawProtocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{recvfrom, sendto, socket_with};
use socket2::SockRef;
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
        Ok(Pair { out: out(family)?, icmp: raw(family, icmp)? })
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

fn raw(family: AddressFamily, protocol: Protocol) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(socket_with(family, SocketType::RAW, flags, Some(protocol))?)
}

/// Opens a socket that sends whole packets. The kernel learns a smaller MTU for an address, not for one of
/// the paths to it, so it must not limit probes.
fn out(family: AddressFamily) -> io::Result<OwnedFd> {
    let out = raw(family, Protocol::from_raw(RAW))?;
    if family == AddressFamily::INET {
        set_ip_mtu_discover(&out, Ipv4PathMtuDiscovery::PROBE)?;
    } else {
        set_ipv6_mtu_discover(&out, Ipv6PathMtuDiscovery::PROBE)?;
    }
    Ok(out)
}

/// The sockets.
pub struct Wire {
    four: Pair,
    six: Option<Pair>,
    /// If there are several uplinks: for each that exists, a socket for IPv4 that sends only through it and,
    /// if there is an IPv6 peer, one for IPv6. With a single uplink, routes decide.
    bound: Vec<Option<[Option<OwnedFd>; 2]>>,
}

impl Wire {
    /// Opens the sockets, which needs CAP_NET_RAW; those of IPv6 only if there is an IPv6 peer.
    pub fn open(has_six: bool, uplinks: usize) -> io::Result<Wire> {
        let four = Pair::open(AddressFamily::INET, rustix::net::ipproto::ICMP)?;
        let six = has_six.then(|| Pair::open(AddressFamily::INET6, rustix::net::ipproto::ICMPV6));
        let bound = (0..if uplinks > 1 { uplinks } else { 0 }).map(|_| None).collect();
        Ok(Wire { four, six: six.transpose()?, bound })
    }

    /// Opens the sockets of one of several uplinks, whose interface has appeared.
    pub fn bind(&mut self, uplink: usize, interface: &str) -> io::Result<()> {
        let Some(place) = self.bound.get_mut(uplink) else { return Ok(()) };
        *place = None;
        let open = |family| -> io::Result<OwnedFd> {
            let out = out(family)?;
            SockRef::from(&out).bind_device(Some(interface.as_bytes()))?;
            Ok(out)
        };
        let six = self.six.as_ref().map(|_| open(AddressFamily::INET6)).transpose()?;
        *place = Some([Some(open(AddressFamily::INET)?), six]);
        Ok(())
    }

    /// Sends an IP packet, through this uplink if there are several. The kernel fills in the checksum of an
    /// IPv4 header.
    pub fn send(&self, packet: &[u8], to: IpAddr, uplink: usize) -> io::Result<()> {
        let out = match (self.bound.get(uplink), to) {
            (Some(bound), to) => {
                let bound = bound.as_ref().ok_or(io::ErrorKind::NotConnected)?;
                bound[usize::from(to.is_ipv6())].as_ref().ok_or(io::ErrorKind::Unsupported)?
            }
            (None, IpAddr::V4(_)) => &self.four.out,
            (None, IpAddr::V6(_)) => &self.six.as_ref().ok_or(io::ErrorKind::Unsupported)?.out,
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
