//! The load balancer: services and their back ends. See README.md.

mod app;
pub mod health;
mod service;
#[cfg(test)]
mod tests;
mod yaml;

pub use app::{Lb, NAME, spread};
pub use service::{BITS_MAX, BackEnd, By, Problem, Service, SourceMac};
pub use yaml::xenoflow;

use crate::kind::Kind;
use crate::page::{Column, Holds, Page, column, table};

/// The kind of app with the key `lb`.
pub const KIND: Kind = Kind {
    key: "lb",
    help: "A service that is balanced over back ends.",
    keys: yaml::SERVICE,
    pipes: &[(NAME, "the load balancer's pipe")],
    read: yaml::read,
    one: Some((NAME, "service")),
    table: Some("backends"),
    views: &[],
    pages: &[PAGE],
    about: "Drain back ends, and change their weights",
    verbs: health::VERBS,
};

/// The back ends of every service, with what each gets now.
const BACK_ENDS: &[Column] = &[
    column("service", "service", Holds::Name),
    column("back end", "name", Holds::Name),
    column("weight", "weight", Holds::Number),
    column("health", "health", Holds::Text),
    column("packets/s", "packets", Holds::Rate),
    column("bit/s", "bytes", Holds::BitRate),
    column("share", "packets", Holds::Share),
    column("packets", "packets", Holds::Total),
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
