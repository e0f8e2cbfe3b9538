//! Packet in, packet out, for a program outside weir. See README.md.

mod app;
mod datagram;
#[cfg(test)]
mod tests;
mod yaml;

pub use app::{CLIENTS_MAX, External};
pub use datagram::{Datagram, DatagramKind, HEADER_BYTES, Problem, VERSION};

use crate::kind::Kind as AppKind;
use crate::page::{Column, Holds, Page, column, table};

/// `external` under `apps`.
pub const KIND: AppKind = AppKind {
    key: "external",
    help: "Packets to and from a program outside weir.",
    keys: yaml::KEYS,
    pipes: &[],
    read: yaml::read,
    one: None,
    tables: &[],
    views: &[],
    pages: &[PAGE],
    agent: None,
    tools: &[],
    command: None,
    about: "",
    verbs: &[],
    http: None,
    foreign: &[],
    edits: None,
};

/// What each app has received and sent.
const APPS: &[Column] = &[
    column("app", "name", Holds::Name),
    column("clients", "clients", Holds::Number),
    column("punted/s", "punted", Holds::Rate).plotted("Punted to apps, packets/s"),
    column("injected/s", "injected", Holds::Rate).plotted("Injected by apps, packets/s"),
    column("refused/s", "refused", Holds::Rate),
    column("missed/s", "missed", Holds::Rate),
    column("unheard/s", "unheard", Holds::Rate),
    column("bad", "bad", Holds::Total),
    column("socket", "socket", Holds::Text),
];

/// The page of all external apps.
const PAGE: Page = Page {
    title: "external",
    sections: &[],
    requests: &[],
    parts: |answer| vec![table("apps", &answer["apps"], APPS)],
};
