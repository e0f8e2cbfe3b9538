//! The control socket: a request is one line of JSON, and so is its answer. The socket's mode admits only its
//! owner. A second daemon on the same socket is refused; a dead one's socket is taken over.
//!
//! Clients are served as far as possible without waiting for any of them, so they delay neither each other
//! nor apps.

use super::Daemon;
use super::answer::{Later, Reply};
use super::app_socket::hung_up;
use super::claim::claim;
use crate::config::Plan;
use anyhow::{Context, Result, anyhow};
use rustix::event::{PollFd, PollFlags};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The largest size of a request in bytes: an entry with many values, or a packet in hex.
const REQUEST_MAX: usize = 1 << 20;

/// How long a client may neither write nor read before it is disconnected.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a request may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// The largest number of clients served at a time; others wait to be accepted.
const CLIENTS_MAX: usize = 64;

/// The socket, which is removed when dropped, and its clients.
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    clients: Vec<Client>,
}

/// A client.
struct Client {
    stream: UnixStream,
    state: State,
    /// When it is disconnected, unless something happens before.
    until: Instant,
    /// Whether the daemon stops once the client has its answer.
    last: bool,
}

/// State of a client.
enum State {
    /// This much of its request has been read.
    Asking(Vec<u8>),
    /// The answer is not there yet.
    Waiting(Later),
    /// This many bytes of the answer have been written.
    Told(Vec<u8>, usize),
    Done,
}

impl Control {
    /// Starts listening on `path`.
    pub fn bind(path: &Path) -> Result<Control> {
        claim(path, |path| UnixStream::connect(path).is_ok(), "--socket")?;
        let listener = UnixListener::bind(path).with_context(|| {
            format!("cannot listen on {}: run as root, or give another socket (--socket)", path.display())
        })?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Control { listener, path: path.into(), clients: Vec::new() })
    }

    /// Returns what to wait for.
    pub fn waits(&self) -> impl Iterator<Item = PollFd<'_>> {
        let accepting =
            (self.clients.len() < CLIENTS_MAX).then(|| PollFd::new(&self.listener, PollFlags::IN));
        accepting.into_iter().chain(self.clients.iter().map(Client::wait))
    }

    /// Returns when the next client is to be disconnected.
    pub fn deadline(&self) -> Option<Instant> {
        self.clients.iter().map(|client| client.until).min()
    }

    /// Serves all clients as far as possible. Returns false if one asked the daemon to stop.
    pub fn serve(&mut self, daemon: &mut Daemon, load: &impl Fn() -> Result<Plan>) -> bool {
        while self.clients.len() < CLIENTS_MAX
            && let Ok((stream, _)) = self.listener.accept()
        {
            // Errors of a client concern nobody else.
            if stream.set_nonblocking(true).is_ok() {
                self.clients.push(Client::new(stream));
            }
        }
        for client in &mut self.clients {
            client.serve(daemon, load);
        }
        let stop = self.clients.iter().any(|client| client.last && matches!(client.state, State::Done));
        self.clients.retain(|client| !matches!(client.state, State::Done));
        !stop
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Client {
    fn new(stream: UnixStream) -> Client {
        Client { stream, state: State::Asking(Vec::new()), until: Instant::now() + PATIENCE, last: false }
    }

    fn wait(&self) -> PollFd<'_> {
        let flags = match self.state {
            State::Asking(_) => PollFlags::IN,
            State::Told(..) => PollFlags::OUT,
            // The client is served when the answer is there; poll reports a hang-up in any case.
            State::Waiting(_) | State::Done => PollFlags::empty(),
        };
        PollFd::new(&self.stream, flags)
    }

    /// Continues until there is something to wait for.
    fn serve(&mut self, daemon: &mut Daemon, load: &impl Fn() -> Result<Plan>) {
        let mut goes_on = true;
        while goes_on {
            let state = std::mem::replace(&mut self.state, State::Done);
            (self.state, goes_on) = match state {
                State::Asking(line) => self.read(line, daemon, load),
                State::Waiting(later) => self.look(later, daemon),
                State::Told(bytes, written) => self.write(bytes, written),
                State::Done => (State::Done, false),
            };
        }
        if Instant::now() >= self.until {
            self.state = State::Done;
        }
    }

    /// Reads more of the request, and answers it once the line is complete.
    fn read(
        &mut self,
        mut line: Vec<u8>,
        daemon: &mut Daemon,
        load: &impl Fn() -> Result<Plan>,
    ) -> (State, bool) {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(count) => {
                line.extend(&buffer[..count]);
                self.until = Instant::now() + PATIENCE;
                if count == 0 || line.contains(&b'\n') || line.len() > REQUEST_MAX {
                    return (self.obey(&line, daemon, load), true);
                }
                (State::Asking(line), true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => (State::Asking(line), false),
            Err(error) if error.kind() == ErrorKind::Interrupted => (State::Asking(line), true),
            Err(_) => (State::Done, false),
        }
    }

    fn obey(&mut self, line: &[u8], daemon: &mut Daemon, load: &impl Fn() -> Result<Plan>) -> State {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let Ok(request) = serde_json::from_slice::<Value>(line) else {
            return told(Err(anyhow!("a request is one line of JSON")));
        };
        self.last = request["command"] == "stop";
        let reply = daemon.answer(&request, load);
        self.until =
            Instant::now() + if matches!(reply, Ok(Reply::Later(_))) { ANSWER_PATIENCE } else { PATIENCE };
        match reply {
            Ok(Reply::Now(answer)) => told(Ok(answer)),
            Ok(Reply::Later(later)) => State::Waiting(later),
            Err(error) => told(Err(error)),
        }
    }

    /// Checks whether the answer is there.
    fn look(&mut self, later: Later, daemon: &mut Daemon) -> (State, bool) {
        match later.take(daemon) {
            Some(answer) => {
                self.until = Instant::now() + PATIENCE;
                (told(answer), true)
            }
            None if hung_up(&self.stream) => {
                later.forget(daemon);
                (State::Done, false)
            }
            None if Instant::now() < self.until => (State::Waiting(later), false),
            None => {
                later.forget(daemon);
                self.until = Instant::now() + PATIENCE;
                (told(Err(anyhow!("{}", later.too_late()))), true)
            }
        }
    }

    fn write(&mut self, bytes: Vec<u8>, written: usize) -> (State, bool) {
        match self.stream.write(&bytes[written..]) {
            Ok(0) => (State::Done, false),
            Ok(count) if written + count == bytes.len() => (State::Done, false),
            Ok(count) => {
                self.until = Instant::now() + PATIENCE;
                (State::Told(bytes, written + count), true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => (State::Told(bytes, written), false),
            Err(error) if error.kind() == ErrorKind::Interrupted => (State::Told(bytes, written), true),
            Err(_) => (State::Done, false),
        }
    }
}

fn told(answer: Result<Value>) -> State {
    let answer = answer.unwrap_or_else(|error| json!({ "error": format!("{error:#}") }));
    State::Told(format!("{answer}\n").into_bytes(), 0)
}
