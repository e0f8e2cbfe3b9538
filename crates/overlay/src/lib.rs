//! A cache in front of a container overlay. See README.md.
//!
//! The app defines what is wanted ([`Overlay`]) and shows what is published on the [`Board`]. The agent has a
//! thread that loads the programs ([`bpf`]) and tracks what flows depend on.

mod agent;
mod app;
mod board;
pub mod bpf;
mod cleanup;
mod doctor;
mod explain;
mod pages;
#[cfg(test)]
mod tests;
mod text;
mod yaml;

pub use agent::read_messages;
pub use board::{Board, Event, FlowRow, FlowsPage, FlowsWanted, Told, Translated};
pub use explain::Pair;

use weir_app::kind::{Argument, Kind, Verb, View};

/// The kind of app with the key `overlay`.
pub const KIND: Kind = Kind {
    key: "overlay",
    help: "A cache in front of a container overlay.",
    keys: yaml::KEYS,
    pipes: &[],
    read: yaml::read,
    one: None,
    table: None,
    views: &[View { word: "", request: "show", text: text::show }],
    pages: pages::PAGES,
    agent: Some(agent::create),
    tools: &[cleanup::CLEANUP],
    about: "The flows between pods that skip the kernel's overlay, and what is left of one",
    verbs: &[
        Verb {
            name: "flows",
            about: "List the flows that are known",
            arguments: &[],
            whole: false,
            flags: &[],
            text: text::flows,
        },
        Verb {
            name: "explain",
            about: "Say which way the next frame of a flow takes, and why",
            arguments: &[
                argument(
                    "LOCAL",
                    "The pod of this node and its port, as 10.244.1.5:40000 or [fd00::5]:40000",
                ),
                argument("REMOTE", "Whom it talks to, as the pod sees it: 10.244.2.7:80"),
                argument("PROTOCOL", "tcp or udp"),
            ],
            whole: false,
            flags: &[],
            text: explain::text,
        },
    ],
    http: None,
    foreign: &[],
    edits: None,
};

const fn argument(name: &'static str, help: &'static str) -> Argument {
    Argument { name, help, number: false }
}

/// How changes of nftables rules affect known flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Their next frames pass through the rules.
    Strict,
    /// They continue until the kernel sees one of their frames again.
    Connection,
}

/// An overlay, and the size and lifetime of its cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// Its name.
    pub name: String,
    /// The kernel's VXLAN device.
    pub tunnel: String,
    /// The kernel's interface through which encapsulated frames leave and arrive.
    pub uplink: String,
    /// The bridge whose ports are the pods' interfaces, if there is one.
    pub bridge: Option<String>,
    /// The prefix of the names of pods' interfaces, if there is no bridge.
    pub pods: Option<String>,
    /// The bits of `skb->mark` that belong to the overlay; they are adjacent.
    pub mark: u32,
    /// The maximum number of flows that are kept.
    pub flows: u32,
    /// How long a direction of a flow continues without a frame on the kernel's path, in nanoseconds.
    pub refresh_ns: u64,
    /// How new rules affect flows.
    pub policy: Policy,
    /// How long an unused flow is kept, in nanoseconds.
    pub idle_ns: u64,
}

/// Returns the name under which the flows of an overlay are measured and shown, like those of pipes.
#[must_use]
pub fn flows_of(overlay: &str) -> String {
    weir_app::kind::flow_table(KIND.key, overlay)
}

/// An overlay, and the board that it publishes to.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What is wanted.
    pub overlay: Overlay,
    /// Where its state is published.
    pub board: Board,
}
