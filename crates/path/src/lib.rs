//! Which path a flow takes to a remote node: the code shared by the simulator, the agent and the apps, and
//! these themselves, for the paths of tunnels sent by the kernel (`agent`, with its programs in [`bpf`]) and
//! of tunnels sent by weir ([`port`]). See README.md.
//!
//! A fabric with ECMP chooses a path by a hash that covers the UDP source port of the tunnel, so a source
//! port identifies a path. [`survey`] evaluates probes with increasing TTL, and [`discovery`] derives one
//! port for each distinct path ([`known`]); [`probing`] decides when to probe which paths; [`paths::Paths`]
//! turns the fate of the probes into a delay, a loss, a state and a weight for every path; [`flow::Flow`]
//! places the packets of a flow according to a [`scheme::Scheme`] (the simulator uses it; the kernel's
//! programs have a copy in C); [`buckets`] does the same for flows without state, with a table of buckets.
//!
//! Nothing outside of `agent`, [`bpf`] and `doctor` does I/O, has a thread or reads a clock: time is a `u64`
//! in nanoseconds that the caller passes and that never decreases (`CLOCK_MONOTONIC`), and randomness comes
//! from a seeded [`weir_packet::random::Random`]. Equal calls give equal answers.
//!
//! The state of a remote node is meant to be shared by all nodes behind the same last hop (a leaf switch):
//! they share their paths, but not the ports that lead along them.

mod agent;
mod app;
mod board;
pub mod bpf;
pub mod buckets;
pub mod covariation;
pub mod delay;
pub mod discovery;
mod doctor;
mod exchange;
mod fabric;
pub mod flow;
pub mod icmp;
pub mod known;
pub mod loss;
mod pages;
pub mod paths;
pub mod port;
pub mod probing;
pub mod scheme;
pub mod settings;
pub mod survey;
#[cfg(test)]
mod tests;
mod text;
pub mod tunnel;
pub mod wire;
mod yaml;

pub use board::{FlowRow, FlowsPage, NodeReport, ObservedReport, PathReport, PathsReport};
pub use exchange::{Between, Claim, Exchange, Form, Shared, SurveyMember};
pub use fabric::Fabric;
pub use yaml::fabrics;

use weir_app::kind::{Argument, Kind, Verb, View};
use weir_app::shown::as_text;

/// The kind of app with the key `path`.
pub const KIND: Kind = Kind {
    key: "path",
    help: "The paths of VXLAN, Geneve and GUE tunnels.",
    keys: yaml::KEYS,
    pipes: &[],
    read: yaml::read,
    one: None,
    tables: &[],
    views: &[View { word: "", request: "show", text: text::show }],
    pages: pages::PAGES,
    agent: Some(agent::create),
    tools: &[],
    command: None,
    about: "List the flows of tunnels with their paths",
    verbs: &[Verb {
        name: "conntrack",
        about: "List flows with their paths",
        arguments: NO_ARGUMENTS,
        whole: false,
        flags: &[],
        text: |answer, _| as_text(answer, text::conntrack),
    }],
    http: None,
    foreign: &[],
    edits: None,
};

const NO_ARGUMENTS: &[Argument] = &[];
