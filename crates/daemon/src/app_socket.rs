//! The socket of an app: a Unix socket of type SOCK_SEQPACKET whose clients are programs outside weir.
//!
//! Nothing here blocks: a client without room for a datagram misses it, and a client is read only when it has
//! sent something. The socket's mode admits only its owner.

use super::claim::claim;
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, send, socket_with,
};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use weir_app::ClientId;

/// The maximum number of clients waiting to be accepted.
const BACKLOG: i32 = 16;

/// The maximum number of connections, including those that the app will close.
const CONNECTIONS_MAX: usize = 64;

/// Datagrams read from one client before others have their turn.
const DATAGRAMS_PER_TURN: usize = 64;

/// The longest datagram: the longest frame that weir can carry, and a header. A longer one is truncated,
/// which its header reveals.
const DATAGRAM_MAX: usize = 16 * 1024;

/// An app's socket and its clients. The file is removed when the value is dropped.
pub struct AppSocket {
    /// Name of the app.
    pub app: String,
    path: PathBuf,
    listener: OwnedFd,
    clients: Vec<(ClientId, OwnedFd)>,
    next: u32,
}

/// What was received from a client.
pub enum Received {
    /// A datagram.
    Datagram(ClientId, Vec<u8>),
    /// The client has disconnected.
    Disconnected(ClientId),
}

impl AppSocket {
    /// Starts listening on `path` for the app.
    pub fn bind(app: &str, path: &Path) -> Result<AppSocket> {
        let context = || format!("app `{app}`: cannot listen on {}", path.display());
        claim(path, answers, "`socket`").with_context(|| format!("app `{app}`"))?;
        let listener = socket().with_context(context)?;
        bind(&listener, &SocketAddrUnix::new(path).with_context(context)?).with_context(context)?;
        let socket = AppSocket { app: app.into(), path: path.into(), listener, clients: Vec::new(), next: 0 };
        // No client can connect before the socket listens.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).with_context(context)?;
        listen(&socket.listener, BACKLOG).with_context(context)?;
        Ok(socket)
    }

    /// Returns true if this is the socket of this app on this path.
    pub fn is(&self, app: &str, path: &Path) -> bool {
        self.app == app && self.path == path
    }

    /// Returns the descriptors to wait for; this includes clients only while the app has room for what they
    /// send.
    pub fn waits<'a>(&'a self, has_room: bool) -> impl Iterator<Item = PollFd<'a>> {
        let accepting = (self.clients.len() < CONNECTIONS_MAX).then_some(&self.listener);
        let talking = self.clients.iter().map(|(_, fd)| fd).filter(move |_| has_room);
        accepting.into_iter().chain(talking).map(|fd| PollFd::new(fd, PollFlags::IN))
    }

    /// Accepts the next client, if one is waiting.
    pub fn accept(&mut self) -> Option<ClientId> {
        if self.clients.len() >= CONNECTIONS_MAX {
            return None;
        }
        let fd = accept_with(&self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC).ok()?;
        let client = ClientId(self.next);
        self.next += 1;
        self.clients.push((client, fd));
        Some(client)
    }

    /// Returns all clients, oldest first.
    pub fn clients(&self) -> Vec<ClientId> {
        self.clients.iter().map(|(client, _)| *client).collect()
    }

    /// Receives at most a few datagrams from a client.
    pub fn receive(&mut self, client: ClientId) -> Vec<Received> {
        let Some((_, fd)) = self.clients.iter().find(|(one, _)| *one == client) else { return Vec::new() };
        let mut said = Vec::new();
        let mut buffer = vec![0; DATAGRAM_MAX];
        for _ in 0..DATAGRAMS_PER_TURN {
            match recv(fd, &mut buffer[..], RecvFlags::DONTWAIT) {
                // An empty datagram looks like the end of the connection.
                Ok((_, 0)) if !hung_up(fd) => said.push(Received::Datagram(client, Vec::new())),
                Ok((_, length)) if length > 0 => {
                    said.push(Received::Datagram(client, buffer[..length].to_vec()))
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                Ok(_) | Err(_) => {
                    said.push(Received::Disconnected(client));
                    self.disconnect(client);
                    break;
                }
            }
        }
        said
    }

    /// Sends a datagram to a client. Returns false if the client has no room for it or is gone, which
    /// [`AppSocket::receive`] will report.
    pub fn send(&self, client: ClientId, bytes: &[u8]) -> bool {
        let fd = self.clients.iter().find(|(one, _)| *one == client);
        fd.is_some_and(|(_, fd)| send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok())
    }

    /// Disconnects a client. Returns false if it is already gone.
    pub fn disconnect(&mut self, client: ClientId) -> bool {
        let before = self.clients.len();
        self.clients.retain(|(one, _)| *one != client);
        self.clients.len() < before
    }
}

impl Drop for AppSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn socket() -> rustix::io::Result<OwnedFd> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )
}

/// Returns true if a process listens on the path. A socket of another type counts, and so does one that is
/// too busy to accept.
fn answers(path: &Path) -> bool {
    let tried = socket().and_then(|socket| connect(&socket, &SocketAddrUnix::new(path)?));
    !matches!(tried, Err(Errno::CONNREFUSED | Errno::NOENT))
}

/// Returns true if the other end is gone.
pub fn hung_up(fd: &impl AsFd) -> bool {
    let mut wait = [PollFd::new(fd, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut wait, Some(&at_once)).is_err() || wait[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}
