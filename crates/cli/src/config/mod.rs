//! The configuration: one YAML file, read in two steps. The first reads exactly what was typed; the second
//! (`plan`) resolves names and checks ranges and the program. Both report every error at once, with its place
//! in the file.
//!
//! `docs/configuration.md` describes every key.

mod conflicts;
mod frames;
mod plan;
#[cfg(test)]
mod tests;

pub use ::config::attachment::Attachments;
pub use ::config::entry::{write as write_entry, write_key};
pub use ::config::forward::write as write_forward;
pub use ::config::ports::{Fault, LeaveRule, Macs, PortConfig, PortKind, Take, Xdp, XdpMode};
pub use ::config::value::{duration, mac, masked, write as write_value, write_mac, write_masked};
pub use ::config::{Diagnostic, Report, RunTime, Span, entry, entry_key};
pub use plan::{Plan, SOCKET, Workers};

use ::config::raw;
use std::sync::Arc;

/// The result of reading a configuration.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration; `None` if it has errors.
    pub plan: Option<Plan>,
    /// Errors and warnings.
    pub report: Report,
}

/// Reads a configuration. `file` is the name used in the report.
#[must_use]
pub fn read(file: &str, text: &str) -> Loaded {
    read_knowing(file, text, &Macs::new())
}

/// Reads a configuration, given the MAC addresses of some interfaces.
#[must_use]
pub fn read_knowing(file: &str, text: &str, macs: &Macs) -> Loaded {
    read_text(file, Arc::new(text.to_string()), macs)
}

/// The same for a text that is not copied.
#[must_use]
pub fn read_text(file: &str, text: Arc<String>, macs: &Macs) -> Loaded {
    let mut report = Report::about(file, text.clone());
    let plan = raw::document(&mut report).and_then(|document| plan::plan(&document, macs, &mut report));
    let source = (file.to_string(), text);
    Loaded { plan: plan.map(|plan| Plan { source, ..plan }), report }
}

/// The JSON Schema (draft 2020-12) of a configuration.
#[must_use]
pub fn schema() -> serde_json::Value {
    ::config::schema::document(plan::KEYS)
}
