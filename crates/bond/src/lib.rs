//! The bond: several ports that act as one. See README.md.

mod admission;
mod aggregation;
mod announcements;
mod answer;
mod app;
pub mod assignment;
mod balance;
mod buckets;
mod config;
mod elephants;
mod entries;
mod import;
pub mod lacp;
mod learnt;
pub mod links;
mod members;
mod pages;
mod pipes;
pub mod rebalance;
mod reload;
mod requests;
mod show;
mod stations;
#[cfg(test)]
mod tests;
mod text;
mod traffic;
mod yaml;

pub use app::BondApp;
pub use config::{
    BUCKETS, BUCKETS_MAX, Bond, ConfigProblem, ELEPHANTS_MAX, Inward, LEARNT_MAX, MEMBERS_MAX, Member, Mode,
    Probe, problems,
};
use pipes::KEY;
pub use pipes::Names;
pub use yaml::Bonds;

use weir_app::kind::Kind;

/// The kind of app with the key `bond`.
pub const KIND: Kind = Kind {
    key: KEY,
    help: "Several ports that act as one.",
    keys: yaml::KEYS,
    pipes: &[],
    read: yaml::read,
    one: None,
    tables: &[],
    views: text::VIEWS,
    pages: pages::PAGES,
    agent: None,
    tools: &[],
    command: None,
    about: "Move the buckets of a bond; disable and enable its members",
    verbs: text::VERBS,
    http: None,
    foreign: &[import::OVS],
    edits: None,
};
