//! `weir overlay cleanup`: removes what overlays have left behind on this node, without a daemon to ask.

use crate::agent::Left;
use anyhow::Result;
use serde_json::json;
use weir_app::kind::{Outcome, Tool};

pub(crate) const CLEANUP: Tool = Tool {
    name: "cleanup",
    about: "Remove the remains of an overlay from this node when no daemon is running",
    json: "ok, removed[], left[], refused",
    run: cleanup,
};

/// Removes everything that can be removed. Fails if something remains, for example because a process holds
/// it.
fn cleanup() -> Result<Outcome> {
    let found = Left::look()?;
    let refused = found.belongs_to();
    let (mut removed, mut left) = (Vec::new(), found.sentences());
    if refused.is_none() {
        removed = found.remove()?;
        left = Left::look()?.sentences();
    }
    let ok = refused.is_none() && left.is_empty();
    let json = json!({ "ok": ok, "removed": removed, "left": left, "refused": refused });
    let mut lines = Vec::new();
    if refused.is_none() {
        lines.extend(removed.into_iter().chain(left));
        if lines.is_empty() {
            lines.push("no remains of an overlay were found".to_string());
        }
    }
    Ok(Outcome { ok, complaint: refused, lines, json })
}
