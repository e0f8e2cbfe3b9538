//! A cache in front of a container overlay. See README.md.
//!
//! The app holds the configuration ([`Overlay`]) and shows the state that is published on its board. The
//! agent has a thread that loads the programs ([`bpf`]) and tracks what flows depend on.

mod agent;
mod app;
mod board;
pub mod bpf;
mod cleanup;
mod cni;
mod doctor;
mod explain;
mod pages;
#[cfg(test)]
mod tests;
mod text;
mod wanted;
mod yaml;

pub use agent::read_messages;
pub use board::{FlowRow, FlowsPage, FlowsWanted, OverlayReport, Translated};
pub use explain::Pair;
pub use wanted::{Overlay, Policy, flows_of};

use weir_app::kind::{Argument, Kind, Verb, View};

/// The kind of app with the key `overlay`.
pub const KIND: Kind = Kind {
    key: wanted::KEY,
    help: "A cache in front of a container overlay.",
    keys: yaml::KEYS,
    pipes: &[],
    read: yaml::read,
    one: None,
    tables: &[],
    views: &[View { word: "", request: "show", text: text::show }],
    pages: pages::PAGES,
    agent: Some(agent::create),
    tools: &[cleanup::CLEANUP],
    command: None,
    about: "Show the flows between pods that bypass the kernel's overlay, and explain one",
    verbs: &[
        Verb {
            name: "flows",
            about: "List the known flows",
            arguments: &[],
            whole: false,
            flags: &[],
            text: text::flows,
        },
        Verb {
            name: "explain",
            about: "Explain which path the next frame of a flow takes",
            arguments: &[
                argument(
                    "LOCAL",
                    "The pod on this node and its port, such as 10.244.1.5:40000 or [fd00::5]:40000",
                ),
                argument("REMOTE", "Its remote end as the pod sees it, such as 10.244.2.7:80"),
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
