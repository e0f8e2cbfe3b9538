//! Netlink, the kernel's protocol for network configuration (netlink(7), rtnetlink(7)): the only place that
//! opens such sockets and parses such messages.
//!
//! - `message.rs`: messages and attributes as bytes, read and written.
//! - `socket.rs`: requests: [`get`] an object, [`dump`] all of a kind, [`change`] one.
//! - `monitor.rs`: [`Monitor`] receives notifications and says when some were lost.
//! - `event.rs`: [`NetlinkEvent`], the contents of a notification or of an element of a dump.
//! - `rtm.rs`: the types of messages.
//! - `link.rs`, `address.rs`, `neighbour.rs`, `route.rs`, `filter.rs`, `netdev.rs`, `namespace.rs`: one kind
//!   of object each: its parser, and the requests about it.
//!
//! Messages of netfilter are written and parsed by crate overlay, the only user, on top of `message.rs`.
//!
//! A message may be longer than expected, because kernels append attributes, but a parser never reads beyond
//! its input, and ignores attributes that it does not know.

mod address;
mod event;
mod filter;
mod link;
mod message;
mod monitor;
mod namespace;
mod neighbour;
mod netdev;
mod route;
pub mod rtm;
mod socket;

pub use address::{Address, add_address, addresses};
pub use event::{NetlinkEvent, Object};
pub use filter::{Filter, filters};
pub use link::{Geneve, Link, Vxlan, links, set_up, set_up_without_queue};
pub use message::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Request};
pub use message::{attribute, find, messages, nested, read_ip, text, word};
pub use monitor::{Groups, Monitor, Read};
pub use namespace::namespace_number;
pub use neighbour::{Forwarding, Neighbour, nud};
pub use neighbour::{forwarding_and_neighbours, neighbours, probe_neighbour, use_neighbour};
pub use netdev::{XdpFeatures, xdp_features};
pub use route::{Destination, DeviceRoute, Route, add_default_route, add_local_route, route_to, routes_in};
pub use socket::{Message, Protocol, Socket, change, dump, get};

/// A MAC address, in the order of transmission.
pub type Mac = [u8; 6];

/// No address family (linux/socket.h).
pub const AF_UNSPEC: u8 = 0;
/// The address family of IPv4 (linux/socket.h).
pub const AF_INET: u8 = 2;
/// The address family of forwarding tables and of ports of bridges (linux/socket.h).
pub const AF_BRIDGE: u8 = 7;
/// The address family of IPv6 (linux/socket.h).
pub const AF_INET6: u8 = 10;

/// Parses a body in every way, for fuzzers.
pub fn parse_all(kind: u16, body: &[u8]) {
    let _ = (NetlinkEvent::parse(kind, body), filter::Filter::parse(body), netdev::device(body));
}
