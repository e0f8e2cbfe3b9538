//! Routes (linux/rtnetlink.h).

use super::message::{NLM_F_CREATE, NLM_F_REPLACE, Request, attribute, family_and_octets, find};
use super::message::{read_ip, word};
use super::rtm::{RTM_GETROUTE, RTM_NEWROUTE};
use super::socket::{Protocol, change, get};
use super::{AF_INET, AF_INET6};
use std::io;
use std::net::IpAddr;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;

const RT_TABLE_MAIN: u8 = 254;
const RT_TABLE_LOCAL: u8 = 255;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RTM_F_CLONED: u32 = 0x200;

/// `struct rtmsg`.
const HEADER: usize = 12;

/// A route that was added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Whether the route affects forwarded packets, that is, whether it is neither in the table of local
    /// addresses nor a cached exception.
    pub is_for_forwarding: bool,
    /// The prefix; `None` means the default route.
    pub destination: Option<IpAddr>,
}

/// Where the kernel would send packets for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// They leave by this interface, to this next hop.
    Hop(u32, IpAddr),
    /// It is an address of this host, or of a group.
    Local,
    /// No route leads there.
    Unreachable,
}

impl Route {
    /// Parses the body of a message.
    pub(crate) fn parse(body: &[u8]) -> Option<Route> {
        let attributes = body.get(HEADER..)?;
        let is_cloned = word(&body[8..]) & RTM_F_CLONED != 0;
        let destination = find(attributes, RTA_DST).and_then(read_ip);
        Some(Route { is_for_forwarding: body[4] != RT_TABLE_LOCAL && !is_cloned, destination })
    }
}

/// Looks up the route to an address, through an interface if one is given.
#[must_use]
pub fn route_to(address: IpAddr, through: Option<u32>) -> Destination {
    let (family, octets) = family_and_octets(address);
    let mut question = vec![family, octets.len() as u8 * 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    question.extend(attribute(RTA_DST, &octets));
    question.extend(through.iter().flat_map(|index| attribute(RTA_OIF, &index.to_ne_bytes())));
    let answer = get(Protocol::Route, RTM_GETROUTE, &question);
    answer.map_or(Destination::Unreachable, |(_, body)| destination(&body, address))
}

fn destination(body: &[u8], address: IpAddr) -> Destination {
    if body.get(7) != Some(&RTN_UNICAST) {
        return Destination::Local;
    }
    let attributes = body.get(HEADER..).unwrap_or_default();
    // RTA_VIA starts with the family of the next hop.
    let via = find(attributes, RTA_VIA).and_then(|value| value.get(2..));
    let gateway = find(attributes, RTA_GATEWAY).or(via).and_then(read_ip);
    let hop = |value| Destination::Hop(word(value), gateway.unwrap_or(address));
    find(attributes, RTA_OIF).map_or(Destination::Unreachable, hop)
}

/// Adds a route to everything of the IP version of `like`, through an interface.
///
/// # Errors
/// Returns the kernel's error.
pub fn add_default_route(like: IpAddr, index: u32) -> io::Result<()> {
    let (family, scope) =
        if like.is_ipv4() { (AF_INET, RT_SCOPE_LINK) } else { (AF_INET6, RT_SCOPE_UNIVERSE) };
    let mut body = vec![family, 0, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, scope, RTN_UNICAST, 0, 0, 0, 0];
    body.extend(attribute(RTA_OIF, &index.to_ne_bytes()));
    add(&body)
}

/// Adds a route that delivers packets for an address to this host.
///
/// # Errors
/// Returns the kernel's error.
pub fn add_local_route(address: IpAddr, index: u32) -> io::Result<()> {
    let (family, octets) = family_and_octets(address);
    let bits = octets.len() as u8 * 8;
    let mut body = vec![family, bits, 0, 0, RT_TABLE_LOCAL, RTPROT_STATIC, 0, RTN_LOCAL, 0, 0, 0, 0];
    body.extend(attribute(RTA_DST, &octets));
    body.extend(attribute(RTA_OIF, &index.to_ne_bytes()));
    add(&body)
}

fn add(body: &[u8]) -> io::Result<()> {
    let flags = NLM_F_CREATE | NLM_F_REPLACE;
    change(Protocol::Route, Request { kind: RTM_NEWROUTE, flags, body })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn the_route_to_this_host_is_local() {
        assert_eq!(route_to(Ipv4Addr::LOCALHOST.into(), None), Destination::Local);
    }

    #[test]
    fn the_next_hop_is_the_gateway_or_else_the_address_itself() {
        let address = Ipv4Addr::new(203, 0, 113, 7).into();
        let mut body = vec![AF_INET, 32, 0, 0, RT_TABLE_MAIN, 0, 0, RTN_UNICAST, 0, 0, 0, 0];
        assert_eq!(destination(&body, address), Destination::Unreachable, "no interface");
        body.extend(attribute(RTA_OIF, &7_u32.to_ne_bytes()));
        assert_eq!(destination(&body, address), Destination::Hop(7, address));
        let via = [&AF_INET6.to_ne_bytes()[..], &[0], &[0xfe, 0x80], &[0; 13], &[9]].concat();
        let six = [&body[..], &attribute(RTA_VIA, &via)].concat();
        assert_eq!(destination(&six, address), Destination::Hop(7, "fe80::9".parse().unwrap()));
        body.extend(attribute(RTA_GATEWAY, &[10, 0, 0, 1]));
        assert_eq!(destination(&body, address), Destination::Hop(7, [10, 0, 0, 1].into()));
    }
}
