//! The configuration, with apps of the kinds in this build.

#[cfg(test)]
mod tests;

pub use weir_daemon::config::*;

use crate::kinds::KINDS;
use weir_app::edits::{self, Edits};

/// Reads a configuration without information about interfaces. `file` is the name used in the report.
#[must_use]
pub fn read(file: &str, text: &str) -> Loaded {
    read_knowing(file, text, &Nics::default())
}

/// Reads a configuration, given information about interfaces.
#[must_use]
pub fn read_knowing(file: &str, text: &str, nics: &Nics) -> Loaded {
    read_edited(&ConfigSource::new(file, text), nics, &*edits::none(KINDS))
}

/// Reads a configuration with changes made at run time and values of the node.
#[must_use]
pub fn read_edited(source: &ConfigSource, nics: &Nics, edits: &dyn Edits) -> Loaded {
    weir_daemon::config::read(source, KINDS, nics, edits)
}

/// The JSON Schema (draft 2020-12) of a configuration.
#[must_use]
pub fn schema() -> serde_json::Value {
    weir_daemon::config::schema(KINDS)
}
