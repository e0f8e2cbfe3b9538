//! The contents of a message about an object of rtnetlink: a notification, or an element of a dump.

use super::address::Address;
use super::link::Link;
use super::message::word;
use super::neighbour::{Forwarding, Neighbour};
use super::route::Route;
use super::rtm::*;
use super::{AF_BRIDGE, AF_INET, AF_INET6};

/// What a message reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetlinkEvent {
    /// Whether the object exists; otherwise it was removed.
    pub exists: bool,
    /// The object in its present state, or in its last one.
    pub object: Object,
}

/// An object of rtnetlink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A link.
    Link(Link),
    /// The bridge port with this index has another state, for example through the spanning tree.
    BridgePort(u32),
    /// An IP address of the host; `None` if it cannot be parsed.
    Address(Option<Address>),
    /// A neighbour.
    Neighbour(Neighbour),
    /// An entry of a forwarding table.
    Forwarding(Forwarding),
    /// A route of IPv4 or IPv6.
    Route(Route),
    /// A routing rule of IPv4 or IPv6.
    Rule,
    /// A next hop that routes refer to.
    NextHop,
    /// Something else, or a message that cannot be parsed.
    Other,
}

impl NetlinkEvent {
    /// Parses a message of rtnetlink.
    #[must_use]
    pub fn parse(kind: u16, body: &[u8]) -> NetlinkEvent {
        // The message types of each kind of object begin at a multiple of four, with the type for a new
        // object (RTM_FAM).
        NetlinkEvent { exists: kind.is_multiple_of(4), object: object(kind, body).unwrap_or(Object::Other) }
    }
}

fn object(kind: u16, body: &[u8]) -> Option<Object> {
    let family = *body.first()?;
    let is_ip = matches!(family, AF_INET | AF_INET6);
    Some(match kind {
        RTM_NEWLINK if family == AF_BRIDGE => Object::BridgePort(word(body.get(4..)?)),
        RTM_NEWLINK | RTM_DELLINK => Object::Link(Link::parse(body)?),
        RTM_NEWADDR | RTM_DELADDR => Object::Address(Address::parse(body)),
        RTM_NEWNEIGH | RTM_DELNEIGH if family == AF_BRIDGE => Object::Forwarding(Forwarding::parse(body)?),
        RTM_NEWNEIGH | RTM_DELNEIGH if is_ip => Object::Neighbour(Neighbour::parse(body)?),
        RTM_NEWROUTE | RTM_DELROUTE if is_ip => Object::Route(Route::parse(body)?),
        RTM_NEWRULE | RTM_DELRULE if is_ip => Object::Rule,
        RTM_NEWNEXTHOP | RTM_DELNEXTHOP => Object::NextHop,
        _ => return None,
    })
}
