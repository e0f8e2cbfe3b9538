//! The sockets of probes: one that sends whole IPv4 packets, one that receives ICMP.

use port::netlink;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, RawProtocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{recv, sendto, socket_with};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

/// IPPROTO_RAW: what is sent begins with the IP header.
const RAW: RawProtocol = match RawProtocol::new(255) {
    Some(raw) => raw,
    None => unreachable!(),
};

/// More than what a router quotes, in bytes.
const ICMP_MAX: usize = 576;

const TIME_EXCEEDED: u8 = 11;
const UDP: u8 = 17;

/// A router says that a probe of ours has met its last hop there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The router.
    pub router: Ipv4Addr,
    /// Where the probe was going.
    pub to: Ipv4Addr,
    /// The probe's source port.
    pub port: u16,
    /// The probe's IP identification.
    pub id: u16,
}

/// The sockets.
pub struct Wire {
    out: OwnedFd,
    icmp: OwnedFd,
}

impl Wire {
    /// Opens the sockets, which needs CAP_NET_RAW.
    pub fn open() -> io::Result<Wire> {
        let open = |protocol| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(protocol))
        };
        Ok(Wire { out: open(Protocol::from_raw(RAW))?, icmp: open(rustix::net::ipproto::ICMP)? })
    }

    /// Sends an IPv4 packet. The kernel fills in its checksum.
    pub fn send(&self, packet: &[u8], to: Ipv4Addr) -> io::Result<()> {
        sendto(&self.out, packet, SendFlags::empty(), &SocketAddrV4::new(to, 0))?;
        Ok(())
    }

    /// Returns the next message of a router about a UDP packet.
    pub fn expired(&self) -> Option<Expired> {
        let mut buffer = [0; ICMP_MAX];
        loop {
            match recv(&self.icmp, &mut buffer, RecvFlags::TRUNC) {
                Ok((length, _)) => {
                    if let found @ Some(_) = expired(&buffer[..length.min(ICMP_MAX)]) {
                        return found;
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }
}

/// Reads an ICMP message in its IP packet: time exceeded, about a UDP packet, of which it quotes the IP
/// header and 8 bytes at least (RFC 792).
fn expired(packet: &[u8]) -> Option<Expired> {
    let address =
        |bytes: &[u8], at: usize| bytes.get(at..)?.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets));
    let header = |packet: &[u8]| {
        let length = usize::from(packet.first()? & 15) * 4;
        (packet.first()? >> 4 == 4 && length >= 20).then_some(length)
    };
    let icmp = packet.get(header(packet)?..)?;
    if icmp.first() != Some(&TIME_EXCEEDED) || icmp.get(1) != Some(&0) {
        return None;
    }
    let quoted = icmp.get(8..)?;
    let udp = quoted.get(header(quoted)?..)?;
    let half =
        |bytes: &[u8], at: usize| bytes.get(at..)?.first_chunk::<2>().map(|two| u16::from_be_bytes(*two));
    (quoted.get(9) == Some(&UDP)).then_some(())?;
    Some(Expired {
        router: address(packet, 12)?,
        to: address(quoted, 16)?,
        port: half(udp, 0)?,
        id: half(quoted, 4)?,
    })
}

/// Returns all IPv4 addresses of this host (RTM_GETADDR, rtnetlink(7)).
pub fn local_addresses() -> io::Result<Vec<Ipv4Addr>> {
    const RTM_GETADDR: u16 = 22;
    const AF_INET: u8 = 2;
    let answers = netlink::dump(None, RTM_GETADDR, &[AF_INET, 0, 0, 0, 0, 0, 0, 0])?;
    Ok(answers.iter().filter_map(|(_, body)| local_address(body)).collect())
}

/// Reads the address in a message of type RTM_NEWADDR: a header of 8 bytes, and attributes.
fn local_address(body: &[u8]) -> Option<Ipv4Addr> {
    const IFA_LOCAL: u16 = 2;
    let (_, value) = netlink::attributes(body.get(8..)?).find(|(kind, _)| *kind == IFA_LOCAL)?;
    value.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets))
}

/// Returns the source address of the route to a node.
pub fn source_to(address: Ipv4Addr, port: u16) -> io::Result<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect((address, port))?;
    match socket.local_addr()?.ip() {
        std::net::IpAddr::V4(source) => Ok(source),
        std::net::IpAddr::V6(_) => Err(io::ErrorKind::AddrNotAvailable.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 56, 0, 0, 0, 0, 64, 1, 0, 0, 10, 9, 1, 2, 10, 0, 1, 1];
        packet.extend([TIME_EXCEEDED, 0, 0, 0, 0, 0, 0, 0]);
        packet.extend([0x45, 0, 0, 84, 2, 7, 0x40, 0, 1, UDP, 0, 0, 10, 0, 1, 1, 10, 0, 2, 1]);
        packet.extend([0xc3, 0x51, 0x12, 0xb5, 0, 64, 0, 0]);
        packet
    }

    #[test]
    fn a_router_names_itself_and_the_probe() {
        let [router, to] = [[10, 9, 1, 2], [10, 0, 2, 1]].map(Ipv4Addr::from);
        assert_eq!(expired(&message()), Some(Expired { router, to, port: 50_001, id: 0x0207 }));
    }

    #[test]
    fn all_addresses_of_the_host_are_its_own() {
        assert!(local_addresses().unwrap().contains(&Ipv4Addr::LOCALHOST));
        let body = [2, 24, 0, 0, 1, 0, 0, 0, 8, 0, 1, 0, 10, 0, 0, 9, 8, 0, 2, 0, 10, 0, 0, 1];
        assert_eq!(local_address(&body), Some([10, 0, 0, 1].into()));
        assert!((0..body.len() - 1).all(|length| local_address(&body[..length]).is_none()));
    }

    #[test]
    fn what_is_cut_short_or_something_else_says_nothing() {
        let whole = message();
        assert!((0..whole.len() - 6).all(|length| expired(&whole[..length]).is_none()));
        for (at, value) in [(20, 3), (21, 1), (0, 0x65), (28, 0x41), (37, 6)] {
            let mut other = whole.clone();
            other[at] = value;
            assert_eq!(expired(&other), None, "byte {at}");
        }
    }
}
