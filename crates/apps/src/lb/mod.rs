//! The load balancer: services and their back ends. See README.md.

mod app;
mod service;
#[cfg(test)]
mod tests;
mod yaml;

pub use app::{Lb, NAME, spread};
pub use service::{BITS_MAX, BackEnd, By, Problem, Service, SourceMac};
pub use yaml::xenoflow;

use crate::kind::Kind;

/// The kind of app with the key `lb`.
pub const KIND: Kind = Kind {
    key: "lb",
    help: "A service that is balanced over back ends.",
    keys: yaml::SERVICE,
    pipes: &[(NAME, "the load balancer's pipe")],
    read: yaml::read,
    table: Some("backends"),
    views: &[],
    about: "",
    verbs: &[],
};
