//! Routes that lead other hosts to the addresses of services. An app decides for each of its services whether
//! its addresses should be announced ([`Action::Announce`](crate::Action::Announce)); the daemon writes the
//! routes, and combines the wishes of several services with the same address.

use std::fmt;
use std::net::IpAddr;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    /// The first address.
    pub address: IpAddr,
    /// The length of the prefix in bits.
    pub length: u8,
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// Whether the addresses of a service should be announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteWish {
    /// The addresses should be announced.
    Announce {
        /// Whether other nodes should be preferred, because this one has lost back ends.
        degraded: bool,
    },
    /// Whether they should is not known yet, for this reason. An announcement stays as it is, but none is
    /// begun.
    Keep(String),
    /// The addresses must not be announced, for this reason.
    Withhold(String),
}
