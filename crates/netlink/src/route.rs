//! Routes (linux/rtnetlink.h).

use super::message::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Request, attribute, family_and_octets, find};
use super::message::{read_ip, word};
use super::rtm::{RTM_DELROUTE, RTM_GETROUTE, RTM_NEWROUTE};
use super::socket::{Protocol, change, dump, get};
use super::{AF_INET, AF_INET6};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;

/// The number of the table does not fit here, and is in an attribute.
const RT_TABLE_COMPAT: u8 = 252;
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
    /// Packets leave through this interface, to this next hop.
    Hop(u32, IpAddr),
    /// The address is one of this host, or of a group.
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

/// A route in a table of its own that leads to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceRoute {
    /// The first address of the prefix.
    pub address: IpAddr,
    /// The length of the prefix in bits.
    pub prefix: u8,
    /// The route's metric: of several routes to one prefix, the kernel prefers the one with the lowest
    /// metric.
    pub metric: u32,
    /// The number of the routing table: 254 is the main table.
    pub table: u32,
    /// Which program the route belongs to (rtnetlink(7): `rtm_protocol`).
    pub protocol: u8,
    /// The index of the device; 0 if the route has no device.
    pub device: u32,
}

impl DeviceRoute {
    /// Adds the route, unless the table already has a route to this prefix with this metric.
    ///
    /// # Errors
    /// Returns the kernel's error: `AlreadyExists` if there is such a route, which another
    /// program may have added.
    pub fn add(&self) -> io::Result<()> {
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        change(Protocol::Route, Request { kind: RTM_NEWROUTE, flags, body: &self.body() })
    }

    /// Removes it.
    ///
    /// # Errors
    /// Returns the kernel's error. Without such a route this is ESRCH.
    pub fn remove(&self) -> io::Result<()> {
        change(Protocol::Route, Request { kind: RTM_DELROUTE, flags: 0, body: &self.body() })
    }

    fn body(&self) -> Vec<u8> {
        let (family, octets) = family_and_octets(self.address);
        let scope = if self.address.is_ipv4() { RT_SCOPE_LINK } else { RT_SCOPE_UNIVERSE };
        let mut body =
            vec![family, self.prefix, 0, 0, RT_TABLE_COMPAT, self.protocol, scope, RTN_UNICAST, 0, 0, 0, 0];
        body.extend(attribute(RTA_DST, &octets));
        body.extend(attribute(RTA_OIF, &self.device.to_ne_bytes()));
        body.extend(attribute(RTA_PRIORITY, &self.metric.to_ne_bytes()));
        body.extend(attribute(RTA_TABLE, &self.table.to_ne_bytes()));
        body
    }

    /// Parses the body of a message.
    fn parse(body: &[u8]) -> Option<DeviceRoute> {
        let attributes = body.get(HEADER..)?;
        let any = match body[0] {
            AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => return None,
        };
        let number = |kind: u16| find(attributes, kind).map(word);
        Some(DeviceRoute {
            address: find(attributes, RTA_DST).map_or(Some(any), read_ip)?,
            prefix: body[1],
            metric: number(RTA_PRIORITY).unwrap_or_default(),
            table: number(RTA_TABLE).unwrap_or_else(|| body[4].into()),
            protocol: body[5],
            device: number(RTA_OIF).unwrap_or_default(),
        })
    }
}

/// Returns the routes in a table. The kernel lists those of all tables, which takes a second or so where
/// there are a million.
///
/// # Errors
/// Returns the kernel's error.
pub fn routes_in(table: u32) -> io::Result<Vec<DeviceRoute>> {
    let mut all = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let routes = dump(Protocol::Route, RTM_GETROUTE, &[family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
        let routes = routes.iter().filter(|(kind, _)| *kind == RTM_NEWROUTE);
        all.extend(routes.filter_map(|(_, body)| DeviceRoute::parse(body)).filter(|one| one.table == table));
    }
    Ok(all)
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
    fn a_route_of_a_table_is_read_as_it_was_written_or_not_at_all() {
        for (address, prefix) in [("192.0.2.80", 32), ("2001:db8::", 64)] {
            let address = address.parse().unwrap();
            let route = DeviceRoute { address, prefix, metric: 100, table: 1850, protocol: 185, device: 7 };
            let body = route.body();
            assert_eq!(DeviceRoute::parse(&body), Some(route));
            let parsed = (0..body.len()).filter_map(|length| DeviceRoute::parse(&body[..length]));
            assert!(parsed.into_iter().all(|parsed| parsed != route), "the table is the last attribute");
        }
        let default = [AF_INET, 0, 0, 0, 7, 3, 0, RTN_UNICAST, 0, 0, 0, 0];
        let parsed = DeviceRoute::parse(&default).unwrap();
        assert_eq!((parsed.address, parsed.table), (Ipv4Addr::UNSPECIFIED.into(), 7));
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
