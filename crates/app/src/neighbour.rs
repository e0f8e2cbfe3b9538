//! Neighbours: the MAC addresses behind IP addresses, which an app asks for ([`crate::Action::Resolve`]) and
//! whoever drives it finds out and follows ([`crate::Event::Neighbour`]).

use std::net::IpAddr;
use std::sync::Arc;

/// A MAC address.
pub type Mac = [u8; 6];

/// An address whose MAC address is wanted: its own, or that of the router towards it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hop {
    /// The name of the port through which frames are sent there.
    pub port: Arc<str>,
    /// The address.
    pub address: IpAddr,
}

/// What was found: the MAC address, or a few words that say why there is none.
pub type Found = Result<Mac, String>;
