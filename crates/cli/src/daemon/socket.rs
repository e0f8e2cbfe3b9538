//! The control socket: a request is one line of JSON, its answer another. The socket's mode lets its owner in and nobody
//! else; a second daemon on the same socket is refused, a dead one's socket is taken over.
//!
//! Clients are served as far as they have come, and nobody waits for them: neither other clients nor apps.

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

/// A request at most: an entry with many values, a packet in hex.
const REQUEST_MAX: usize = 1 << 20;

/// A client that neither writes nor reads for so long is left.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long the answer to a request may be awaited.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// Clients served at a time; others wait to be accepted.
const CLIENTS_MAX: usize = 64;

/// The socket, removed when dropped, and who is connected.
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    clients: Vec<Client>,
}

/// Somebody who asks.
struct Client {
    stream: UnixStream,
    state: State,
    /// When it is left, unless something happens before.
    until: Instant,
    /// Once it has its answer, the daemon stops.
    last: bool,
}

/// How far a client has come.
enum State {
    /// It has written so much of its request.
    Asking(Vec<u8>),
    /// The answer is being made.
    Waiting(Later),
    /// So many bytes of the answer have been written.
    Told(Vec<u8>, usize),
    Done,
}

impl Control {
    /// Listens on `path`.
    pub fn bind(path: &Path) -> Result<Control> {
        claim(path, |path| UnixStream::connect(path).is_ok(), "--socket")?;
        let listener = UnixListener::bind(path).with_context(|| {
            format!("cannot listen on {}: run as root, or give another socket (--socket)", path.display())
        })?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Control { listener, path: path.into(), clients: Vec::new() })
    }

    /// What to wait for.
    pub fn waits(&self) -> impl Iterator<Item = PollFd<'_>> {
        let accepting = (self.clients.len() < CLIENTS_MAX).then(|| PollFd::new(&self.listener, PollFlags::IN));
        accepting.into_iter().chain(self.clients.iter().map(Client::wait))
    }

    /// When the next client is left.
    pub fn deadline(&self) -> Option<Instant> {
        self.clients.iter().map(|client| client.until).min()
    }

    /// Serves everybody as far as they have come; false when somebody asked the daemon to stop.
    pub fn serve(&mut self, daemon: &mut Daemon, load: &impl Fn() -> Result<Plan>) -> bool {
        while self.clients.len() < CLIENTS_MAX
            && let Ok((stream, _)) = self.listener.accept()
        {
            // A client's trouble is its own.
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
            // It is woken when the answer is there; that the client has gone is told unasked.
            State::Waiting(_) | State::Done => PollFlags::empty(),
        };
        PollFd::new(&self.stream, flags)
    }

    /// Goes on from where it is until there is something to wait for.
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

    /// Reads on; a whole line is answered.
    fn read(&mut self, mut line: Vec<u8>, daemon: &mut Daemon, load: &impl Fn() -> Result<Plan>) -> (State, bool) {
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
        self.until = Instant::now() + if matches!(reply, Ok(Reply::Later(_))) { ANSWER_PATIENCE } else { PATIENCE };
        match reply {
            Ok(Reply::Now(answer)) => told(Ok(answer)),
            Ok(Reply::Later(later)) => State::Waiting(later),
            Err(error) => told(Err(error)),
        }
    }

    /// Is the answer there?
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
