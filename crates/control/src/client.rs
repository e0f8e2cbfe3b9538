//! A client of the control socket. An HTTP/1.1 request takes only a few lines, so no HTTP client is needed.

use crate::answer::Progress;
use crate::request::{self, Request};
use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long to wait for an answer: longer than the daemon itself waits for its parts.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often the daemon reports the progress of a reload, in seconds.
const PROGRESS_S: u64 = 1;

/// How long to wait for the answer to a text of changes, which may contain millions.
const CHANGES_PATIENCE: Duration = Duration::from_secs(600);

/// The largest answer in bytes.
const ANSWER_MAX: u64 = 256 << 20;

/// The number of bytes of a text that are sent at a time.
const PIECE: usize = 1 << 18;

/// Sends `request` to the daemon that listens on `path` and returns its answer.
///
/// # Errors
/// No daemon listens on the path, the daemon does not answer in time, or it answers with an error.
pub fn ask<A: DeserializeOwned>(path: &Path, request: &impl Serialize) -> Result<A> {
    let mut stream = connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let body = serde_json::to_string(request)?;
    let mut answer = Vec::new();
    stream
        .write_all(format!("{}{body}", head("/command", body.len())).as_bytes())
        .and_then(|()| receive(&stream, &mut answer))
        .context("the daemon did not answer")?;
    read(answer)
}

/// Sends a text of changes to the daemon that listens on `path`, and returns its answer. `sent` is called
/// from time to time with the number of bytes sent.
///
/// # Errors
/// As for [`ask`].
pub fn change<A: DeserializeOwned>(path: &Path, text: &[u8], mut sent: impl FnMut(usize)) -> Result<A> {
    let mut stream = connect(path)?;
    stream.set_read_timeout(Some(CHANGES_PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut done = stream.write_all(head("/changes", text.len()).as_bytes());
    for (at, piece) in text.chunks(PIECE).enumerate() {
        if done.is_err() {
            // The daemon may refuse the text before its end; its answer says why.
            break;
        }
        done = stream.write_all(piece);
        sent(at * PIECE + piece.len());
    }
    let mut answer = Vec::new();
    let come = receive(&stream, &mut answer);
    if answer.is_empty() {
        done.and(come).context("the daemon did not answer")?;
    }
    read(answer)
}

fn head(target: &str, length: usize) -> String {
    format!("POST {target} HTTP/1.1\r\nHost: weir\r\nContent-Length: {length}\r\n\r\n")
}

/// Receives an answer. If this fails, `answer` holds the bytes that have arrived.
fn receive(stream: &UnixStream, answer: &mut Vec<u8>) -> io::Result<()> {
    // Bounded: by `take`.
    stream.take(ANSWER_MAX + 1).read_to_end(answer)?;
    if answer.len() as u64 > ANSWER_MAX {
        return Err(io::Error::other(format!("it has more than {ANSWER_MAX} bytes, the limit")));
    }
    Ok(())
}

fn read<A: DeserializeOwned>(answer: Vec<u8>) -> Result<A> {
    let answer = String::from_utf8(answer).context("the daemon's answer is not text")?;
    let (_, body) = answer.split_once("\r\n\r\n").context("the daemon's answer is incomplete")?;
    let answer: Value = serde_json::from_str(body).context("the daemon's answer is incomplete")?;
    if let Some(error) = answer.get("error").and_then(Value::as_str) {
        bail!("{error}");
    }
    serde_json::from_value(answer).context("cannot parse the daemon's answer")
}

/// Asks the daemon for a reload and waits until it ends, as long as the daemon reports progress. Calls
/// `progress` about once a second with the report.
///
/// # Errors
/// As for [`ask`]; or the reload failed, and the old program keeps running.
pub fn reload(path: &Path, mut progress: impl FnMut(&Progress)) -> Result<Value> {
    let mut request = request::Reload { reload: None, wait_s: Some(PROGRESS_S) };
    loop {
        let answer: Value = ask(path, &Request::Reload(request.clone()))?;
        let Some(number) = answer.get("reload").and_then(Value::as_u64) else { return Ok(answer) };
        progress(&serde_json::from_value(answer).context("cannot parse the daemon's answer")?);
        request.reload = Some(number);
    }
}

fn connect(path: &Path) -> Result<UnixStream> {
    UnixStream::connect(path).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => anyhow!(
            "permission denied for {}: only its owner may use it, so run this as root (sudo) or as the user \
             that runs weir",
            path.display()
        ),
        _ => anyhow!(error).context(format!(
            "no weir daemon is listening on {}: is it running, and is this its socket (--socket)?",
            path.display()
        )),
    })
}
