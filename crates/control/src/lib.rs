//! The client of the control socket: a request is one line of JSON, the answer another.
//!
//! It is a crate because both the commands of `weir` and the labs ask a running daemon, and neither needs the other.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long an answer may take: longer than the daemon itself waits for a part of it.
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
    let answer: Value = serde_json::from_str(&line).context("the daemon's answer is cut short")?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => bail!("{error}"),
        None => Ok(answer),
    }
}
