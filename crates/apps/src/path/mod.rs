//! The paths of VXLAN tunnels that the kernel sends, and of those that weir sends ([`port`]). See README.md.
//!
//! For the kernel's, the app says what is wanted ([`Fabric`]) and shows what has been told on the [`Board`].
//! A thread of the daemon probes, chooses and tells (`cli/src/daemon/path/`); two eBPF programs give frames
//! their source ports.

mod app;
mod board;
mod exchange;
mod pages;
pub mod port;
#[cfg(test)]
mod tests;
mod text;
mod yaml;

pub use board::{Board, Event, FlowRow, NodeTold, PathTold, Told};
pub use exchange::{Between, Claim, Exchange, Form, Member, Shared};

use crate::kind::{Argument, Kind, Verb, View};
use ::path::scheme::Scheme;
use ::path::wire::Secret;
use std::net::IpAddr;

/// The kind of app with the key `path`.
pub const KIND: Kind = Kind {
    key: "path",
    help: "The paths of VXLAN tunnels.",
    keys: yaml::KEYS,
    pipes: &[],
    read: yaml::read,
    one: None,
    table: None,
    views: &[View { word: "", request: "show", text: text::show }],
    pages: pages::PAGES,
    about: "List the flows of tunnels with their paths",
    verbs: &[Verb {
        name: "conntrack",
        about: "List flows with their paths",
        arguments: NO_ARGUMENTS,
        whole: false,
        flags: &[],
        text: text::conntrack,
    }],
};

const NO_ARGUMENTS: &[Argument] = &[];

/// Tunnels to be watched, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// Its name.
    pub name: String,
    /// The kernel's interface by which encapsulated frames leave.
    pub uplink: String,
    /// Underlay addresses of remote nodes.
    pub peers: Vec<IpAddr>,
    /// Our own underlay address; that of the route to the peer if there is none.
    pub local: Option<IpAddr>,
    /// How a path is chosen: ECMP, DOCA-AR or adaptive.
    pub scheme: Scheme,
    /// The UDP port of VXLAN.
    pub vxlan_port: u16,
    /// The first and the last source port that may be used.
    pub sources: [u16; 2],
    /// The DSCP of the data, and so of probes.
    pub dscp: u8,
    /// The rate of one path, in bits per second.
    pub rate: u64,
    /// Flows that are kept.
    pub flows: u32,
    /// How often each path of a peer in use is probed, in nanoseconds.
    pub probe_ns: u64,
    /// How often those of others are.
    pub idle_ns: u64,
    /// How often paths are discovered anew.
    pub discover_ns: u64,
    /// Probes of a peer that are answered, per second.
    pub answers: u32,
    /// What authenticates probes; `None` if nothing is configured.
    pub secret: Option<Secret>,
}

/// Tunnels, and where what is known of them goes.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What is wanted.
    pub fabric: Fabric,
    /// Where results go.
    pub board: Board,
}
