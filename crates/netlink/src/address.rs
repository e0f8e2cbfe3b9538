//! IP addresses of the host (linux/if_addr.h).

use super::message::{NLM_F_CREATE, NLM_F_REPLACE, Request, attribute, family_and_octets, find};
use super::message::{read_ip, word};
use super::rtm::{RTM_GETADDR, RTM_NEWADDR};
use super::socket::{Protocol, change, dump};
use super::{AF_INET, AF_INET6, AF_UNSPEC};
use std::io;
use std::net::IpAddr;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// `struct ifaddrmsg`.
const HEADER: usize = 8;

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The index of the interface that has the address.
    pub index: u32,
    /// The length of the on-link prefix in bits.
    pub prefix: u8,
    /// The address that the host has on this interface.
    pub local: IpAddr,
    /// The other end of a point-to-point link; otherwise the same as `local`.
    pub peer: IpAddr,
}

impl Address {
    /// Parses the body of a message.
    pub(crate) fn parse(body: &[u8]) -> Option<Address> {
        let attributes = body.get(HEADER..)?;
        let (local, peer) = (find(attributes, IFA_LOCAL), find(attributes, IFA_ADDRESS));
        let local = match body[0] {
            AF_INET => local?,
            AF_INET6 => local.or(peer)?,
            _ => return None,
        };
        let (local, peer) = (read_ip(local)?, read_ip(peer.unwrap_or(local))?);
        Some(Address { index: word(&body[4..]), prefix: body[1], local, peer })
    }
}

/// Returns all IP addresses of this host.
///
/// # Errors
/// Returns the kernel's error.
pub fn addresses() -> io::Result<Vec<IpAddr>> {
    let answers = dump(Protocol::Route, RTM_GETADDR, &[AF_UNSPEC, 0, 0, 0, 0, 0, 0, 0])?;
    Ok(answers.iter().filter_map(|(_, body)| Some(Address::parse(body)?.local)).collect())
}

/// Adds an address to an interface that has no other host on its link, so duplicate address detection is
/// skipped.
///
/// # Errors
/// Returns the kernel's error.
pub fn add_address(index: u32, address: IpAddr) -> io::Result<()> {
    const IFA_F_NODAD: u8 = 0x02;
    let (family, octets) = family_and_octets(address);
    let mut body = vec![family, octets.len() as u8 * 8, IFA_F_NODAD, 0];
    body.extend(index.to_ne_bytes());
    body.extend(attribute(IFA_LOCAL, &octets));
    body.extend(attribute(IFA_ADDRESS, &octets));
    let flags = NLM_F_CREATE | NLM_F_REPLACE;
    change(Protocol::Route, Request { kind: RTM_NEWADDR, flags, body: &body })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn addresses_are_read_whole_or_not_at_all() {
        assert!(addresses().unwrap().contains(&Ipv4Addr::LOCALHOST.into()));
        let local = |body: &[u8]| Address::parse(body).map(|address| address.local);
        let body = [2, 24, 0, 0, 1, 0, 0, 0, 8, 0, 1, 0, 10, 0, 0, 9, 8, 0, 2, 0, 10, 0, 0, 1];
        assert_eq!(local(&body), Some([10, 0, 0, 1].into()));
        let six = [&[10, 64, 0, 0, 1, 0, 0, 0, 20, 0, 1, 0, 0xfe, 0x80][..], &[0; 13], &[1]].concat();
        assert_eq!(local(&six), Some(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into()));
        assert!((0..body.len() - 1).all(|length| local(&body[..length]).is_none()));
        assert!((0..six.len() - 1).all(|length| local(&six[..length]).is_none()));
    }
}
