//! The configuration: one YAML file, read in two steps. `raw` is exactly what was typed; `plan` is what it means, with
//! names resolved, ranges checked and the program checked. Both tell everything that is wrong at once, into a report
//! that knows where it was written.
//!
//! `docs/configuration.md` describes every key.

mod plan;
#[cfg(test)]
mod tests;

pub use ::config::entry::{write as write_entry, write_key};
pub use ::config::forward::write as write_forward;
pub use ::config::ports::{Fault, PortConfig, PortKind, Take, Xdp, XdpMode};
pub use ::config::value::{duration, mac, masked, write as write_value, write_mac, write_masked};
pub use ::config::{Diagnostic, Report, Span, entry, entry_key};
pub use plan::{Plan, SOCKET, Workers};

use ::config::raw;

/// A text that was read: what it means, if it can be run, and what is wrong with it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it means; `None` if there are errors.
    pub plan: Option<Plan>,
    /// Errors and warnings.
    pub report: Report,
}

/// Reads a configuration; `file` is what the report calls it.
#[must_use]
pub fn read(file: &str, text: &str) -> Loaded {
    let mut report = Report::new(file, text);
    let plan = raw::parse(text, &mut report).and_then(|document| plan::plan(&document, &mut report));
    Loaded { plan, report }
}

/// The JSON Schema (draft 2020-12) of a configuration.
#[must_use]
pub fn schema() -> serde_json::Value {
    ::config::schema::document(plan::KEYS)
}
