//! Neighbours: the MAC addresses behind IP addresses, which an app requests ([`crate::Action::Resolve`]) and
//! its driver resolves and tracks ([`crate::Event::Neighbour`]).

use std::net::IpAddr;
use std::sync::Arc;

/// A MAC address, in the order of transmission.
pub type Mac = [u8; 6];

/// An address to resolve to a MAC address: a neighbour's own, or that of the router towards it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hop {
    /// The name of the port through which frames are sent to the address.
    pub port: Arc<str>,
    /// The IPv4 or IPv6 address to resolve, which must be reachable without a router.
    pub address: IpAddr,
}

/// The result: the MAC address, or a few words on why there is none.
pub type Found = Result<Mac, String>;
