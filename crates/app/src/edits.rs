//! Changes of a configuration at run time, which an app requests ([`Action::Configure`](crate::Action)).
//!
//! Changes are kept beside the file and applied to the parsed file before anything else reads it. Only the
//! kind of app that accepts such requests knows what an edit is; all other code stores the edits, passes them
//! on and applies them.

use crate::kind::{Apps, Kind};
use crate::neighbour::{Hop, Mac};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Debug;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use weir_config::Report;
use weir_config::attachment::Attachments;
use weir_config::ports::PortConfig;
use weir_config::raw::Node;
use weir_program::change::Change;
use weir_program::{CounterId, GroupId, Program, Target};

/// The result of requests for edits.
#[derive(Debug)]
pub struct Requested {
    /// The edits from now on.
    pub edits: Arc<dyn Edits>,
    /// Whether the edits differ from the earlier ones.
    pub changed: bool,
    /// Whether nothing may be changed, because the requester only wants to know what would happen.
    pub dry_run: bool,
    /// What changes, as an object.
    pub summary: Value,
}

/// The configuration that is running.
#[derive(Clone, Copy)]
pub struct RunningConfig<'a> {
    /// Its program, without entries.
    pub program: &'a Program,
    /// The apps of the running configuration.
    pub apps: &'a Apps,
    /// The objects to which apps are attached.
    pub attachments: &'a Attachments,
    /// The ports, indexed by [`PortId`](weir_program::PortId).
    pub ports: &'a [PortConfig],
    /// The path of the daemon's control socket.
    pub control: &'a Path,
    /// Looks up which of these neighbours the host knows already.
    pub neighbours: &'a dyn Fn(Vec<Hop>) -> HashMap<Hop, Mac>,
}

/// The result of requests that change nothing but targets of groups, so that the running program can be
/// changed in place, at a cost that does not depend on its size.
#[derive(Debug)]
pub struct Amended {
    /// The edits from now on.
    pub edits: Arc<dyn Edits>,
    /// What changes, as an object.
    pub summary: Value,
    /// All apps as they are configured from now on.
    pub apps: Apps,
    /// The groups that change.
    pub groups: Vec<AmendedGroup>,
    /// Counters that are given names, and then start from 0.
    pub counters: Vec<(CounterId, String)>,
    /// Whether ports must now take a different set of frames from the kernel.
    pub takes: bool,
}

/// A group whose targets change.
#[derive(Debug)]
pub struct AmendedGroup {
    /// The number of the group in the running program.
    pub group: GroupId,
    /// Its targets, in as many places as before. A target that stays keeps its place.
    pub targets: Vec<Target>,
    /// The number of its buckets.
    pub size: u32,
    /// Entries that are added or updated before packets are sent to the new targets.
    pub before: Vec<Change>,
    /// Entries that are removed once packets are no longer sent to the old targets.
    pub after: Vec<Change>,
}

/// Edits of a configuration, in the order in which they were requested.
pub trait Edits: Debug + Send + Sync {
    /// Returns the number of edits.
    fn count(&self) -> usize;

    /// Returns the edits for a file or another process, in the form that [`Kind::edits`] reads.
    fn json(&self) -> Value;

    /// Writes the output of [`Edits::json`] as text.
    ///
    /// # Errors
    /// Returns the error of `out`.
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        Ok(serde_json::to_writer(out, &self.json())?)
    }

    /// Applies the edits to a document. Returns the edits that are still valid, and for each of the others
    /// the reason why it is discarded.
    fn apply(&self, document: &mut Node, report: &mut Report) -> (Arc<dyn Edits>, Vec<String>);

    /// Returns the edits after further requests, given a document without edits, and the apps that run, which
    /// were read from that document with these edits.
    ///
    /// # Errors
    /// The error names the request that is wrong, and its field.
    fn request(&self, document: &Node, apps: &Apps, requests: &[Value]) -> Result<Requested, String>;

    /// Returns how to carry out requests in place; `None` if that is not possible, or if the requests are
    /// wrong. [`Edits::request`] then says what is wrong, or returns edits with which the whole configuration
    /// is read again.
    fn amend(&self, running: &RunningConfig<'_>, requests: &[Value]) -> Option<Amended> {
        let _ = (running, requests);
        None
    }

    /// Describes in one sentence what is wrong with a configuration that `requests` have led to, naming the
    /// field if it was edited.
    fn explain(&self, report: &Report, requests: &[Value]) -> String;
}

/// Reads edits; `None` if the value is something else.
pub type ReadEdits = fn(&Value) -> Option<Arc<dyn Edits>>;

/// Reads the output of [`Edits::json`], possibly from another version of weir. `None` if the value is
/// something else.
#[must_use]
pub fn read(kinds: &[Kind], value: &Value) -> Option<Arc<dyn Edits>> {
    match kinds.iter().find_map(|kind| kind.edits) {
        Some(read) => read(value),
        None => value.as_array()?.is_empty().then(|| Arc::new(NoEdits) as Arc<dyn Edits>),
    }
}

/// Returns an empty list for a configuration with apps of these kinds.
#[must_use]
pub fn none(kinds: &[Kind]) -> Arc<dyn Edits> {
    read(kinds, &json!([])).expect("an empty list selects every kind")
}

/// Edits where no kind of app accepts any.
#[derive(Debug)]
struct NoEdits;

impl Edits for NoEdits {
    fn count(&self) -> usize {
        0
    }

    fn json(&self) -> Value {
        json!([])
    }

    fn apply(&self, _: &mut Node, _: &mut Report) -> (Arc<dyn Edits>, Vec<String>) {
        (Arc::new(NoEdits), Vec::new())
    }

    fn request(&self, _: &Node, _: &Apps, _: &[Value]) -> Result<Requested, String> {
        Err("no kind of app can be configured at run time".to_string())
    }

    fn explain(&self, report: &Report, _: &[Value]) -> String {
        report.to_string()
    }
}
