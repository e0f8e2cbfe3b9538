//! Paths of Unix sockets: the socket of a live daemon is respected, that of a dead one is taken over, and
//! other files are never removed.

use anyhow::{Context, Result, bail};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Makes `path` available for a socket. `answers` returns whether a process listens there, and `other` says
/// how to use another path.
pub fn claim(path: &Path, answers: impl Fn(&Path) -> bool, other: &str) -> Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    }
    let Ok(there) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !there.file_type().is_socket() {
        bail!("{} exists and is not a socket: give weir another path ({other})", path.display());
    }
    if answers(path) {
        bail!(
            "another weir is already listening on {}: stop it, or give this one another socket ({other})",
            path.display()
        );
    }
    std::fs::remove_file(path).with_context(|| format!("{} is stale and cannot be removed", path.display()))
}
