//! The main thread's end of the HTTP server: it answers requests, one between two rounds of the apps.
//!
//! The control socket's mode admits only its owner. A second daemon on the same socket is refused; a dead
//! one's socket is taken over.

use super::Daemon;
use super::answer::{BulkChange, Later, Reply};
use super::claim::claim;
use super::doorbell::Doorbell;
use super::http::{Answer, Asked, Listeners, Question, Server, ServerParts};
use super::inherited::{Inherited, METRICS};
use super::observer::ScenePublisher;
use super::rest::Ready;
use super::takeover::PendingHandover;
use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use weir_control::Request;

/// How often workers are checked for being too late with changes. Their answers are handled at once.
const LOOK: Duration = Duration::from_secs(1);

/// How long a killed daemon may take to exit, with all its ports. Its socket still accepts meanwhile.
const GOING: Duration = Duration::from_secs(5);

/// How long a living daemon may take to answer a request that it refuses.
const ANSWERS: Duration = Duration::from_millis(500);

/// How long the main thread pauses between states that it publishes for the last answers.
const LAST_PAUSE: Duration = Duration::from_millis(1);

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// The desired limit of file descriptors: two listeners full of connections, and ports.
const DESCRIPTORS: u64 = 4096;

/// The socket, which is removed when dropped unless another process created it, and the clients' requests.
pub struct Control {
    /// The file to remove: the socket's path, and the identity of the file.
    made: Option<(PathBuf, FileId)>,
    inherited: Inherited,
    listeners: Option<Listeners>,
    server: Option<Server>,
    asked: Option<mpsc::Receiver<Asked>>,
    waiting: Vec<Waiting>,
}

/// The device and inode of a file.
type FileId = (u64, u64);

/// A request whose answer is not available yet.
struct Waiting {
    later: Later,
    answer: oneshot::Sender<Answer>,
    until: Instant,
}

impl Control {
    /// Listens on `path`, for metrics and for control over HTTP, using inherited sockets where they exist;
    /// clients are not answered yet.
    pub fn bind(
        path: &Path,
        metrics: Option<SocketAddr>,
        rest: Option<Ready>,
        inherited: Inherited,
    ) -> Result<Control> {
        let (socket, made) = match inherited.unix(path)? {
            Some(socket) => (socket, None),
            None => (listen_on(path)?, file_id(path).map(|file| (path.to_path_buf(), file))),
        };
        let mut control =
            Control { made, inherited, listeners: None, server: None, asked: None, waiting: Vec::new() };
        let metrics = metrics.map(|address| match control.inherited.tcp(METRICS, address)? {
            Some(listener) => Ok(listener),
            None => {
                TcpListener::bind(address).with_context(|| format!("metrics: cannot listen on {address}"))
            }
        });
        let rest = rest.map(|rest| rest.bind(&control.inherited)).transpose()?;
        control.listeners = Some(Listeners { socket, metrics: metrics.transpose()?, rest });
        Ok(control)
    }

    /// Answers the clients that are connected, for a second at most, and accepts no more. Answers show the
    /// state of the main thread, which continues to publish it meanwhile; requests to change something are
    /// refused.
    pub fn answer_last(&mut self, daemon: &Daemon) {
        (self.asked, self.waiting) = (None, Vec::new());
        let Some(mut server) = self.server.take() else { return };
        server.stop();
        while !server.has_ended() {
            daemon.publish();
            std::thread::sleep(LAST_PAUSE);
        }
    }

    /// Stops answering clients. Returns the sockets that other processes created, which a successor continues
    /// to use.
    pub fn end(mut self) -> Inherited {
        std::mem::take(&mut self.inherited)
    }

    /// Starts answering.
    pub fn start(&mut self, doorbell: Doorbell, board: ScenePublisher, known: ServerParts) -> Result<()> {
        allow_descriptors();
        let listeners = self.listeners.take().context("started already")?;
        let (server, asked) = Server::start(listeners, doorbell, board, known)?;
        (self.server, self.asked) = (Some(server), Some(asked));
        Ok(())
    }

    /// Returns the number of requests whose answer has not arrived yet.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns when the next thing is due: now, if a request is pending.
    pub fn deadline(&self) -> Option<Instant> {
        let waits = self.asked.as_ref().is_some_and(|asked| !asked.is_empty());
        self.waiting.iter().map(|one| one.until).chain(waits.then(Instant::now)).min()
    }

    /// Answers the next request, and those whose answer has arrived. Returns false if the daemon should stop.
    pub fn serve(&mut self, daemon: &mut Daemon) -> bool {
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting.extend(waiting.into_iter().filter_map(|one| one.look(daemon)));
        let Some(asked) = self.asked.as_mut().and_then(|asked| asked.try_recv().ok()) else { return true };
        let Asked { question, answer } = asked;
        match question {
            _ if answer.is_closed() => {}
            // Observers answer these.
            Question::Metrics | Question::Health | Question::Ready | Question::Listed(..) => {}
            Question::Beat(_) | Question::Configuration => {}
            Question::Reconcile(orders) => {
                let asked = daemon.handover.as_ref().map_or(Ok(()), PendingHandover::refuse);
                match asked.and_then(|()| daemon.reconcile(orders)) {
                    Ok(id) => self.wait(Later::App(id), answer, daemon),
                    Err(error) => reply(answer, Err(error)),
                }
            }
            Question::Changes(read) => match daemon.handover.as_ref().map_or(Ok(()), PendingHandover::refuse)
            {
                Ok(()) => self.wait(Later::Load(BulkChange::new(read)), answer, daemon),
                Err(error) => reply(answer, Err(error)),
            },
            Question::Command(request) => match daemon.answer(&request) {
                Ok(Reply::Later(later)) => self.wait(later, answer, daemon),
                Ok(Reply::Now(now)) => {
                    reply(answer, Ok(now));
                    return request != Request::Stop {};
                }
                Err(error) => reply(answer, Err(error)),
            },
        }
        true
    }

    /// Answers a request once `later` has the answer.
    fn wait(&mut self, later: Later, answer: oneshot::Sender<Answer>, daemon: &mut Daemon) {
        let until = Instant::now() + later.patience();
        let one = Waiting { later, answer, until };
        self.waiting.extend(one.look(daemon));
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Requests that still wait get no answer.
        (self.asked, self.server) = (None, None);
        // Another process may listen at the path by now.
        let own = self.made.as_ref().filter(|(path, file)| file_id(path) == Some(*file));
        let _ = own.map(|(path, _)| std::fs::remove_file(path));
    }
}

impl Waiting {
    /// Answers if the answer is available or takes too long; forgets the request if the client is gone.
    fn look(mut self, daemon: &mut Daemon) -> Option<Waiting> {
        if let Some(answer) = self.later.take(daemon) {
            // Its contents are dropped first; the thread that asked frees the rest.
            drop(self.later);
            reply(self.answer, answer);
        } else if self.later.outlives_client() {
            return Some(Waiting { until: Instant::now() + LOOK, ..self });
        } else if self.answer.is_closed() {
            self.later.forget(daemon);
        } else if Instant::now() < self.until {
            return Some(self);
        } else {
            self.later.forget(daemon);
            reply(self.answer, self.later.too_late(daemon));
        }
        None
    }
}

/// Returns the identity of the file at a path, if there is one.
fn file_id(path: &Path) -> Option<FileId> {
    let there = std::fs::symlink_metadata(path).ok()?;
    Some((there.dev(), there.ino()))
}

/// Creates the control socket, to which only its owner can connect.
fn listen_on(path: &Path) -> Result<UnixListener> {
    claim(path, answers, "--socket")?;
    let context =
        || format!("cannot listen on {}: run as root, or choose another socket (--socket)", path.display());
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).with_context(context)?;
    bind(&socket, &SocketAddrUnix::new(path).with_context(context)?).with_context(context)?;
    // No client can connect before the socket listens.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).with_context(context)?;
    listen(&socket, BACKLOG).with_context(context)?;
    Ok(UnixListener::from(socket))
}

fn reply(to: oneshot::Sender<Answer>, answer: Result<Value>) {
    // The client may be gone.
    let _ = to.send(answer.map(|value| format!("{value}\n")).map_err(|error| format!("{error:#}")));
}

/// Returns true if a daemon answers on the path. A killed daemon still accepts connections until all its
/// memory and ports are released, so a successful connect is not enough. A daemon that exists but does not
/// answer, such as a stopped process, counts.
fn answers(path: &Path) -> bool {
    let until = Instant::now() + GOING;
    while Instant::now() < until {
        let Ok(mut stream) = UnixStream::connect(path) else { return false };
        let asked = stream
            .set_read_timeout(Some(ANSWERS))
            .and_then(|()| stream.write_all(b"GET / HTTP/1.1\r\nHost: weir\r\n\r\n"))
            .and_then(|()| stream.read(&mut [0; 16]));
        if asked.is_ok_and(|count| count > 0) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Raises the limit of file descriptors, as far as allowed. If it stays low, slow clients are dropped
/// earlier.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let allowed = limit.maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    if limit.current.is_some_and(|current| current < allowed) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), maximum: limit.maximum });
    }
}
