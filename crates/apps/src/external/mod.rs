//! Packet in, packet out, for a program outside weir. See README.md.

mod app;
mod datagram;
#[cfg(test)]
mod tests;
mod yaml;

pub use app::{CLIENTS_MAX, External};
pub use datagram::{Datagram, HEADER_BYTES, Kind, Problem, VERSION};

use crate::kind::Kind as AppKind;

/// `external` under `apps`.
pub const KIND: AppKind = AppKind {
    key: "external",
    help: "Packets for a program outside weir, and from it.",
    keys: yaml::KEYS,
    pipes: &[],
    read: yaml::read,
    table: None,
    views: &[],
    about: "",
    verbs: &[],
};
