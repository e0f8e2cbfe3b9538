//! The control socket: a request is one line of JSON, its answer another. The socket's mode lets its owner in and nobody
//! else; a second daemon on the same socket is refused, a dead one's socket is taken over.

use super::Daemon;
use crate::config::Plan;
use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A request at most: an entry with many values, a packet in hex.
const REQUEST_MAX: u64 = 1 << 20;

/// A client that neither writes nor reads for so long is left.
const PATIENCE: Duration = Duration::from_secs(2);

/// The socket, removed when dropped.
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens on `path`.
    pub fn bind(path: &Path) -> Result<Listener> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
        }
        if let Ok(there) = std::fs::symlink_metadata(path) {
            if !there.file_type().is_socket() {
                bail!("{} is there and is not a socket: give weir another path (--socket)", path.display());
            }
            if UnixStream::connect(path).is_ok() {
                bail!(
                    "a weir answers on {} already: stop it, or give this one another socket (--socket)",
                    path.display()
                );
            }
            std::fs::remove_file(path).with_context(|| format!("{} is stale and cannot be removed", path.display()))?;
        }
        let listener = UnixListener::bind(path).with_context(|| {
            format!("cannot listen on {}: run as root, or give another socket (--socket)", path.display())
        })?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Listener { listener, path: path.into() })
    }

    /// Serves whoever asks within `pause`; false when somebody asked the daemon to stop.
    pub fn serve(&self, daemon: &mut Daemon, load: &impl Fn() -> Result<Plan>, pause: Duration) -> Result<bool> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) };
        let mut wait = [PollFd::new(&self.listener, PollFlags::IN)];
        let _ = poll(&mut wait, Some(&timeout));
        while let Ok((stream, _)) = self.listener.accept() {
            // A client's trouble is its own.
            if let Ok(false) = serve_one(&stream, daemon, load) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn serve_one(stream: &UnixStream, daemon: &mut Daemon, load: &impl Fn() -> Result<Plan>) -> Result<bool> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(REQUEST_MAX)).read_line(&mut line)?;
    let request: Result<Value, _> = serde_json::from_str(&line);
    let answer = match &request {
        Ok(request) => daemon.answer(request, load).unwrap_or_else(|error| json!({ "error": format!("{error:#}") })),
        Err(_) => json!({ "error": "a request is one line of JSON" }),
    };
    let mut stream = stream;
    stream.write_all(format!("{answer}\n").as_bytes())?;
    Ok(request.is_err() || request.is_ok_and(|request| request["command"] != "stop"))
}

/// Asks the daemon on `path`.
pub fn ask(path: &Path, request: &Value) -> Result<Value> {
    let mut stream = UnixStream::connect(path).with_context(|| {
        format!("no weir answers on {}: is it running, and is this its socket (--socket)?", path.display())
    })?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let answer: Value = serde_json::from_str(&line).context("the daemon's answer is cut short")?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => bail!("{error}"),
        None => Ok(answer),
    }
}
