//! The text of the configuration: YAML is read into a tree with places ([`raw`]), its shapes and values are
//! checked, and ports, pipes, groups, entries and forwards are read into a [`weir_program::Program`]. All
//! errors go into a [`Report`], each with a line and a caret.
//!
//! No app is known here: an app reads its own section with [`section`] and [`value`].
//! `docs/reference/configuration.md` describes every key.

mod action;
pub mod affinity;
pub mod attachment;
mod conflicts;
mod diagnostic;
pub mod distinct;
pub mod entry;
pub mod fills;
mod flow;
pub mod forward;
pub mod group_names;
pub mod infile;
mod key;
pub mod lines;
pub mod nat;
pub mod nic;
pub mod node;
pub mod outfile;
pub mod pipes;
mod plain_entry;
pub mod ports;
pub mod program;
pub mod quic;
pub mod raw;
mod run_time;
pub mod schema;
mod secret;
pub mod section;
pub mod sets;
pub mod socket;
mod take;
pub mod tunnels;
pub mod value;

pub use diagnostic::{Diagnostic, Report, Span, nearest, suggestion};
pub use key::{Key, Shape};
pub use run_time::{RunTime, entry, entry_key};
pub use secret::hidden;
pub use take::{Frames, IpRule, TakeRule};
