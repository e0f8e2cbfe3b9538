//! Files that weir writes. Every output of every command is opened here. weir writes to whatever a path leads
//! to, such as a device, a FIFO or the target of a symbolic link. Only regular files are ever replaced.

use anyhow::{Context, Result, bail};
use rustix::fs::OFlags;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The number of symbolic links that are followed: the kernel's limit.
const LINKS_MAX: usize = 40;

/// Permissions of a file that everyone may read, before the process's mask.
pub const PUBLIC: u32 = 0o666;

/// Permissions of a file for its owner only.
pub const PRIVATE: u32 = 0o600;

/// Opens a file for writing and empties it. Opening a FIFO waits for its reader, as with other commands.
///
/// # Errors
/// Fails if the file cannot be opened; the message names it.
pub fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| unwritable(path))
}

/// Opens a file in the same way for a daemon, which never waits for a reader: neither on opening, nor when
/// the FIFO is full.
///
/// # Errors
/// Fails if the file cannot be opened, or is a FIFO without a reader; the message names it.
pub fn create_without_waiting(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
    match options.open(path) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {
            bail!("{}: no process reads from this FIFO or device", unwritable(path))
        }
        opened => opened.with_context(|| unwritable(path)),
    }
}

/// Writes a file.
///
/// # Errors
/// Fails if the file cannot be written; the message names it.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    create(path)?.write_all(bytes).with_context(|| unwritable(path))
}

fn unwritable(path: &Path) -> String {
    format!("{} cannot be written", path.display())
}

/// A file that appears under its name only when it is complete and on disk.
#[derive(Debug)]
pub struct Whole {
    /// Where the file is written, and its final name. `None` if that name is something other than a regular
    /// file, which is written to directly.
    places: Option<(PathBuf, PathBuf)>,
}

impl Whole {
    /// Begins a file with these permissions.
    ///
    /// # Errors
    /// Fails if the file cannot be created.
    pub fn begin(path: &Path, mode: u32) -> io::Result<(File, Whole)> {
        let path = target(path);
        if !is_replaceable(&path)? {
            return Ok((OpenOptions::new().write(true).open(path)?, Whole { places: None }));
        }
        let mut part: OsString = path.clone().into();
        part.push(".part");
        let part = PathBuf::from(part);
        if part.symlink_metadata().is_ok() && is_replaceable(&part)? {
            fs::remove_file(&part)?;
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&part)?;
        Ok((file, Whole { places: Some((part, path)) }))
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// Fails if the file cannot be written or renamed; the file is then removed.
    pub fn finish(mut self, file: &File) -> io::Result<()> {
        let Some((part, path)) = &self.places else { return Ok(()) };
        file.sync_all()?;
        if !is_replaceable(path)? {
            return Err(io::Error::other("something other than a regular file now has its name"));
        }
        fs::rename(part, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_path_buf();
        self.places = None;
        // Bounded: nothing is read.
        File::open(folder)?.sync_all()
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        if let Some((part, _)) = &self.places {
            // If it cannot be removed, the error that was already reported explains why.
            let _ = fs::remove_file(part);
        }
    }
}

/// Renames a regular file.
///
/// # Errors
/// Fails if the path is anything else, which is left unchanged, or if the file cannot be renamed.
pub fn move_aside(path: &Path, aside: &Path) -> io::Result<()> {
    for one in [path, aside] {
        if !is_replaceable(one)? {
            return Err(io::Error::other(format!("{} is not a regular file", one.display())));
        }
    }
    fs::rename(path, aside)
}

/// Returns true if this name does not exist, or is a regular file.
fn is_replaceable(path: &Path) -> io::Result<bool> {
    match path.symlink_metadata() {
        Ok(about) => Ok(about.is_file()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Returns the target of a path after following symbolic links, whether or not it exists.
pub fn target(path: &Path) -> PathBuf {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        let Ok(target) = path.read_link() else { break };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    path
}
