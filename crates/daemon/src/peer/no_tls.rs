//! TLS in a weir that was built without it.

use super::Timed;
use std::path::Path;

/// Refuses.
pub fn wrap(_: Timed, _: &str, _: Option<&Path>) -> Result<Timed, String> {
    Err("needs TLS, and this weir was built without it".to_string())
}
