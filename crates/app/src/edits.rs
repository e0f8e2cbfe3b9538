//! Changes of a configuration at run time, which an app requests ([`Action::Configure`](crate::Action)).
//!
//! They are kept beside the file and applied to the parsed file before anything else reads it. Only the kind
//! of app that accepts such requests knows what an edit is; everything else stores the edits, passes them on
//! and applies them.

use crate::kind::Kind;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::sync::Arc;
use weir_config::Report;
use weir_config::raw::Node;

/// Edits of a configuration, in the order in which they were requested.
pub trait Edits: Debug + Send + Sync {
    /// Returns the number of edits.
    fn count(&self) -> usize;

    /// Returns them for a file or another process, in the form that [`Kind::edits`] reads.
    fn json(&self) -> Value;

    /// Applies the edits to a document. Returns those that are still valid, and for each of the others the
    /// reason why it is discarded.
    fn apply(&self, document: &mut Node, report: &mut Report) -> (Arc<dyn Edits>, Vec<String>);

    /// Returns the edits after further requests, given a document without edits.
    ///
    /// # Errors
    /// The error names the request that is wrong, and its field.
    fn request(&self, document: &Node, requests: &[Value]) -> Result<Arc<dyn Edits>, String>;

    /// Describes in one sentence what is wrong with a configuration, naming the field if it was edited.
    fn explain(&self, report: &Report) -> String;
}

/// Reads edits; `None` if the value is something else.
pub type ReadEdits = fn(&Value) -> Option<Arc<dyn Edits>>;

/// Reads the output of [`Edits::json`], possibly from another version of weir. `None` if it is not that.
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

    fn request(&self, _: &Node, _: &[Value]) -> Result<Arc<dyn Edits>, String> {
        Err("no kind of app can be configured at run time".to_string())
    }

    fn explain(&self, report: &Report) -> String {
        report.to_string()
    }
}
