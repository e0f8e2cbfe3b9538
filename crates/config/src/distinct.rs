//! The files that a run reads and writes, compared by identity rather than by name: a hard link or a symbolic
//! link to an input is that input. They are compared before any of them is opened for writing, because
//! opening truncates.

use crate::outfile;
use anyhow::{Result, bail};
use std::ffi::OsString;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A file of a run.
pub struct Use {
    /// The file's purpose, such as `the input of port p0`.
    pub what: String,
    /// Its path.
    pub path: PathBuf,
}

impl Use {
    /// Returns a file.
    #[must_use]
    pub fn new(what: String, path: &Path) -> Use {
        Use { what, path: path.to_path_buf() }
    }
}

/// What a path refers to.
#[derive(PartialEq, Eq)]
enum Identity {
    /// The device and inode of a file.
    There(u64, u64),
    /// The device and inode of the folder in which a file will be created, and its name.
    New(u64, u64, OsString),
}

/// Checks that no file is both read and written, or written twice.
///
/// # Errors
/// Fails if two uses are of the same file; the message names both.
pub fn distinct(read: &[Use], written: &[Use]) -> Result<()> {
    let known = |one: &'_ Use| identity(&one.path);
    for (at, one) in written.iter().enumerate() {
        let Some(own) = known(one) else { continue };
        let mut others = read.iter().chain(&written[..at]);
        if let Some(other) = others.find(|other| known(other).as_ref() == Some(&own)) {
            bail!(
                "{}, {}, is the same file as {}, {}: give it its own file (nothing was written)",
                one.path.display(),
                one.what,
                other.path.display(),
                other.what
            );
        }
    }
    Ok(())
}

/// Returns what a path refers to; `None` for devices such as /dev/null, which may be shared freely, and for
/// anything that cannot be opened anyway.
fn identity(path: &Path) -> Option<Identity> {
    if let Ok(there) = path.metadata() {
        let kind = there.file_type();
        let shared = kind.is_char_device() || kind.is_block_device();
        return (!shared).then(|| Identity::There(there.dev(), there.ino()));
    }
    let path = outfile::target(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = folder.metadata().ok()?;
    Some(Identity::New(folder.dev(), folder.ino(), path.file_name()?.to_os_string()))
}
