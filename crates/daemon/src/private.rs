//! Files that hold a secret, or that weir trusts as its own: tokens, the private key, the saved state.
//! `weir check` and `weir run` refuse the same files.

use crate::config::Plan;
use anyhow::{Result, bail};
use rustix::fs::OFlags;
use rustix::process::geteuid;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Opens a private file, without waiting for the writer of a FIFO.
///
/// # Errors
/// Fails if the file cannot be read, or if users other than this one and root could have written or read it.
pub fn open(path: &Path) -> Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    // Bounded: by those who read it.
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// Opens a private file; `None` if there is no such file.
///
/// # Errors
/// The same.
pub fn open_if_there(path: &Path) -> Result<Option<File>> {
    match open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn check(about: &Metadata) -> Result<()> {
    if !about.is_file() {
        bail!("it is not a regular file");
    }
    let (owner, own) = (about.uid(), geteuid().as_raw());
    if owner != own && owner != 0 {
        bail!("it belongs to user {owner}, but weir runs as user {own}: `chown` it");
    }
    if about.mode() & 0o077 != 0 {
        bail!("users other than its owner can read or write it: `chmod 600` it");
    }
    Ok(())
}

/// Returns what is wrong with the existing private files of a plan; missing files may be created later.
pub fn problems(plan: &Plan) -> Vec<String> {
    let files = of(plan).into_iter().filter_map(|(what, path)| {
        let wrong = path.metadata().ok().and_then(|about| check(&about).err())?;
        Some(format!("{what} {} cannot be used: {wrong}", path.display()))
    });
    files.collect()
}

/// The folder, unless the configuration or systemd names another.
const FOLDER: &str = "/var/lib/weir";

/// Returns the path of the file for the state that survives a restart, which is named after the control
/// socket.
pub fn state_file(plan: &Plan) -> PathBuf {
    // systemd may name several folders.
    let folders = std::env::var("STATE_DIRECTORY").ok();
    let folders = folders.as_deref().and_then(|all| all.split(':').next()).filter(|one| !one.is_empty());
    let folder = plan.state.clone().unwrap_or_else(|| folders.unwrap_or(FOLDER).into());
    let name = plan.socket.file_stem().unwrap_or_default();
    folder.join(name).with_extension("json")
}

fn of(plan: &Plan) -> Vec<(&'static str, PathBuf)> {
    let mut files = Vec::new();
    if let Some(control) = &plan.control {
        files.push(("the token", control.token.clone()));
        files.extend(control.view_token.iter().map(|file| ("the read-only token", file.clone())));
        files.extend(control.tls.iter().map(|(_, key)| ("the private key", key.clone())));
    }
    if plan.apps.persist() {
        files.push(("the saved state", state_file(plan)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown};

    #[test]
    fn files_of_others_and_open_ones_are_refused() {
        let path = std::env::temp_dir().join(format!("weir-private-{}", std::process::id()));
        std::fs::write(&path, "secret").unwrap();
        let set = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o601] {
            set(mode);
            assert!(open(&path).unwrap_err().to_string().contains("chmod 600"), "{mode:o}");
        }
        set(0o600);
        assert!(open(&path).is_ok());
        if geteuid().is_root() {
            chown(&path, Some(12345), None).unwrap();
            assert!(open(&path).unwrap_err().to_string().contains("belongs to user 12345"));
        }
        std::fs::remove_file(&path).unwrap();
        assert!(open_if_there(&path).unwrap().is_none());
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        assert!(open(&path).unwrap_err().to_string().contains("regular"));
        std::fs::remove_file(&path).unwrap();
    }
}
