//! Messages between two daemons: a JSON object, bytes, and file descriptors.

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The maximum length of a message's JSON text, and of its bytes.
const HEAD_MAX: usize = 64 << 20;
const BYTES_MAX: usize = 64 << 20;

/// The maximum number of file descriptors of a message: the kernel's limit.
pub const DESCRIPTORS_MAX: usize = 253;

/// How long the other side may take for a message.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A connection to the other daemon.
pub struct Wire(UnixStream);

/// A message between the running daemon and the one that takes over.
pub struct Message {
    /// The content of the message, as JSON.
    pub head: Value,
    /// Arbitrary bytes, such as records of flows.
    pub bytes: Vec<u8>,
    /// Open files that the receiver gets, such as sockets and memory (SCM_RIGHTS).
    pub descriptors: Vec<OwnedFd>,
}

impl Message {
    /// Whether this is the message with the word `word`.
    pub fn is(&self, word: &str) -> bool {
        self.head["say"] == word
    }
}

impl Wire {
    /// Wraps a connection.
    ///
    /// # Errors
    /// Fails if the socket refuses timeouts.
    pub fn new(stream: UnixStream) -> Result<Wire> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Wire(stream))
    }

    /// Returns the process at the other end, if it has called `listen`.
    pub fn peer(&self) -> Option<Pid> {
        socket_peercred(&self.0).ok().map(|peer| peer.pid)
    }

    /// Changes how long the other side may take for a message.
    pub fn set_patience(&self, patience: Duration) -> Result<()> {
        self.0.set_read_timeout(Some(patience))?;
        Ok(self.0.set_write_timeout(Some(patience))?)
    }

    /// Kills the process at the other end, unless it has closed the connection.
    pub fn kill_peer(&self) {
        let mut closed = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let is_there = poll(&mut closed, Some(&Timespec::default())) == Ok(0);
        if let Some(peer) = self.peer().filter(|_| is_there) {
            let _ = kill_process(peer, Signal::KILL);
        }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// Fails if the other side is gone or does not read, or if there are more than [`DESCRIPTORS_MAX`]
    /// descriptors.
    pub fn send(&mut self, head: &Value, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        let head = head.to_string();
        let lengths = [head.len() as u32, bytes.len() as u32].map(u32::to_le_bytes).concat();
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            bail!("more than {} interfaces cannot be handed over", DESCRIPTORS_MAX / 2);
        }
        let sent = sendmsg(&self.0, &[IoSlice::new(&lengths)], &mut ancillary, SendFlags::NOSIGNAL);
        let sent = sent.context("the other daemon is not listening")?;
        self.0
            .write_all(&lengths[sent..])
            .and_then(|()| self.0.write_all(head.as_bytes()))
            .and_then(|()| self.0.write_all(bytes))
            .context("the other daemon is not listening")
    }

    /// Receives a message.
    ///
    /// # Errors
    /// Fails if the other side is gone, is silent for too long, or sends something that is not a message.
    pub fn receive(&mut self) -> Result<Message> {
        let context = "the other daemon has ended or does not answer";
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut lengths = [0; 8];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(&self.0, &mut [IoSliceMut::new(&mut lengths)], &mut ancillary, flags);
        let got = got.context(context)?.bytes;
        if got == 0 {
            bail!("the other daemon has ended");
        }
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                descriptors.extend(files);
            }
        }
        self.0.read_exact(&mut lengths[got..]).context(context)?;
        let length = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| lengths[at + byte])) as usize;
        let (head, bytes) = (length(0), length(4));
        if head > HEAD_MAX || bytes > BYTES_MAX {
            bail!("this daemon does not understand the other's message");
        }
        let mut text = vec![0; head];
        self.0.read_exact(&mut text).context(context)?;
        let head = self::head(&text)?;
        let mut all = vec![0; bytes];
        self.0.read_exact(&mut all).context(context)?;
        Ok(Message { head, bytes: all, descriptors })
    }
}

/// Reads the JSON object of a message.
///
/// # Errors
/// Fails if the text is not JSON.
pub fn head(text: &[u8]) -> Result<Value> {
    serde_json::from_slice(text).context("the other daemon's message is not JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::fd::AsFd;

    fn pair() -> (Wire, Wire) {
        let (one, other) = UnixStream::pair().unwrap();
        (Wire::new(one).unwrap(), Wire::new(other).unwrap())
    }

    #[test]
    fn messages_arrive_with_their_bytes_and_descriptors() {
        let (mut one, mut other) = pair();
        let mut file = tempfile();
        file.write_all(b"seen by both").unwrap();
        one.send(&json!({ "say": "end" }), b"abc", &[file.as_fd(), file.as_fd()]).unwrap();
        one.send(&json!({ "say": "done" }), &[], &[]).unwrap();
        let first = other.receive().unwrap();
        assert!(first.is("end") && first.bytes == b"abc" && first.descriptors.len() == 2);
        let second = other.receive().unwrap();
        assert!(second.is("done") && second.bytes.is_empty() && second.descriptors.is_empty());
    }

    #[test]
    fn what_is_no_message_is_an_error_and_needs_no_memory() {
        let (one, mut other) = pair();
        let mut raw = one.0;
        raw.write_all(&[0xff; 8]).unwrap();
        assert!(other.receive().is_err());
        let (one, mut other) = pair();
        let mut raw = one.0;
        raw.write_all(&[2, 0, 0, 0, 0, 0, 0, 0, b'{', b'{']).unwrap();
        assert!(other.receive().is_err());
        drop(raw);
        assert!(other.receive().is_err(), "it has ended");
    }

    fn tempfile() -> std::fs::File {
        rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
    }
}
