//! A client of the control socket: a request is one line of JSON, and so is the answer.
//!
//! This is a crate because both the commands of `weir` and the labs talk to a running daemon, and neither
//! needs the other.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long to wait for an answer: longer than the daemon itself waits for parts of it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends `request` to the daemon that listens on `path` and returns its answer.
///
/// # Errors
/// No daemon listens there, it does not answer in time, or it answers with an error.
pub fn ask(path: &Path, request: &Value) -> Result<Value> {
    let mut stream = UnixStream::connect(path).with_context(|| {
        format!("no weir answers on {}: is it running, and is this its socket (--socket)?", path.display())
    })?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let answer: Value = serde_json::from_str(&line).context("the daemon's answer is incomplete")?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => bail!("{error}"),
        None => Ok(answer),
    }
}
