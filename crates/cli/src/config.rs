//! The configuration, with apps of the kinds in this build.

#[cfg(test)]
mod tests;

pub use weir_daemon::config::*;

use crate::kinds::KINDS;
use std::sync::Arc;
use weir_app::edits::{self, Edits};

/// Reads a configuration without information about interfaces. `file` is the name used in the report.
#[must_use]
pub fn read(file: &str, text: &str) -> Loaded {
    read_knowing(file, text, &Nics::default())
}

/// Reads a configuration, given information about interfaces.
#[must_use]
pub fn read_knowing(file: &str, text: &str, nics: &Nics) -> Loaded {
    read_edited(file, Arc::new(text.to_string()), nics, &*edits::none(KINDS))
}

/// The same, with changes made at run time, and without copying the text.
#[must_use]
pub fn read_edited(file: &str, text: Arc<String>, nics: &Nics, edits: &dyn Edits) -> Loaded {
    weir_daemon::config::read(file, text, KINDS, nics, edits)
}

/// The JSON Schema (draft 2020-12) of a configuration.
#[must_use]
pub fn schema() -> serde_json::Value {
    weir_daemon::config::schema(KINDS)
}
