//! The load balancer: services and their back ends. See README.md.

mod actions;
mod agent;
mod amend;
mod announce;
mod announce_yaml;
mod answers;
mod app;
mod back_ends;
mod bits;
mod changes;
mod choosers;
mod clients;
mod collisions;
mod edits;
mod expiry;
pub mod health;
mod http;
mod import;
mod names;
mod neighbours;
mod owned;
mod pipes;
mod pools;
mod probes;
mod problems;
mod requests;
mod rings;
mod service;
mod sources;
mod specs;
mod state;
mod tables;
#[cfg(test)]
mod tests;
mod verbs;
mod vlan;
mod widths;
mod yaml;

pub use announce::{Announce, Announced, Answered, IcmpEcho, Pinged, Routing, Source, Speaker, Unasked};
pub use app::{FLOWS, Lb};
use names::REJECT;
pub use names::{NAME, TOO_LONG};
pub use neighbours::{Neighbours, Way};
pub use probes::Probe;
pub use problems::Problem;
pub use service::{
    ALL_PORTS, Address, BITS_MAX, BackEnd, By, MTU, Mode, Mss, Service, SourceMac, State, timeouts,
};
pub use sources::SourceBoards;
pub use specs::{API, ServiceOwner, Spec, Specs, Tag};
pub use state::Place;

use weir_app::kind::Kind;
use weir_app::page::{Column, Holds, Page, column, table};

/// The kind of app with the key `lb`.
pub const KIND: Kind = Kind {
    key: "lb",
    help: "A service balanced over back ends, or settings that services share.",
    keys: yaml::SERVICE,
    pipes: &[(NAME, "the load balancer's pipe")],
    read: yaml::read,
    one: Some((NAME, "service")),
    tables: &["backends", "sources"],
    views: &[],
    pages: &[PAGE],
    agent: Some(agent::create),
    tools: &[],
    command: None,
    about: "List, add, remove and drain back ends and services, and change weights",
    verbs: verbs::VERBS,
    http: Some(&http::HTTP),
    foreign: import::FOREIGN,
    edits: Some(edits::read),
};

/// The back ends of every service, with their current traffic.
const BACK_ENDS: &[Column] = &[
    column("service", "service", Holds::Name),
    column("back end", "name", Holds::Name),
    column("state", "state", Holds::Text),
    column("weight", "weight", Holds::Number),
    column("health", "health", Holds::Text),
    column("packets/s", "packets", Holds::Rate),
    column("bit/s", "bytes", Holds::BitRate),
    column("share", "packets", Holds::Share),
    column("flows", "flows", Holds::Number),
    column("new/s", "flows_begun", Holds::Rate),
    column("packets", "packets", Holds::Total),
    column("mode", "mode", Holds::Text),
    column("address", "address", Holds::Text),
    column("mac", "mac", Holds::Text),
    column("reason", "reason", Holds::Sentence),
];

/// The page of all services.
const PAGE: Page = Page {
    title: "lb",
    sections: &["backends"],
    requests: &[],
    parts: |answer| vec![table("back ends", &answer["backends"], BACK_ENDS)],
};
