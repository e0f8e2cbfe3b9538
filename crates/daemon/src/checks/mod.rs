//! Runs the health checks that apps request: one thread with its own runtime, for all apps. It sends and
//! receives through the kernel's sockets, so checks follow the host's routes. Another such thread is in a
//! separate network namespace, for checks that follow a service's path (`namespace.rs`).
//!
//! Promises: every check is answered once, with a bad outcome if it cannot be run. At most [`AT_ONCE`] checks
//! per thread are in flight, each of which ends by its own deadline; other checks wait in order. An app has
//! at most one check per server here, which bounds their number. No more than [`ANSWER_MAX`] bytes of a
//! server's answer are kept.

mod dns;
mod http;
mod icmp;
mod namespace;
mod parting;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod witness;

pub use namespace::Sent;

use super::doorbell::Doorbell;
use namespace::{Namespace, Way};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use weir_app::check::{Ask, Check, CheckId, Close, Outcome};
use weir_app::privileges;
use weir_packet::{PROTOCOL_TCP, PROTOCOL_UDP};
use witness::WitnessSockets;

/// How many checks may be in flight: each has a descriptor, and a process may be limited to 1024.
const AT_ONCE: usize = 256;

/// The maximum number of queued checks.
const WAITING: usize = 65_536;

/// The maximum number of bytes of an answer that are read.
const ANSWER_MAX: usize = 65_536;

/// A check that has ended.
pub struct Checked {
    /// The name of the app that requested it.
    pub app: Arc<str>,
    pub id: CheckId,
    pub outcome: Outcome,
}

/// A check to be run.
struct QueuedCheck {
    app: Arc<str>,
    id: CheckId,
    check: Arc<Check>,
}

/// The thread, once an app has requested a check.
pub struct Checks {
    doorbell: Doorbell,
    thread: Option<Thread>,
    /// For checks that follow a service's own path, or why they are unavailable.
    inside: Result<CheckNamespace, String>,
}

/// The thread in a separate network namespace.
struct CheckNamespace {
    thread: Thread,
    namespace: Arc<Namespace>,
    sent: Receiver<Sent>,
}

struct Thread {
    orders: mpsc::Sender<QueuedCheck>,
    ended: Receiver<Checked>,
}

impl Checks {
    /// Creates an idle set; `doorbell` wakes the main thread when a check has ended.
    pub fn new(doorbell: Doorbell) -> Checks {
        let inside = Err("weir has no network namespace for `via: service` checks".to_string());
        Checks { doorbell, thread: None, inside }
    }

    /// Creates the namespace for checks that follow a service's own path, with privileges that weir drops
    /// afterwards. Without it, such checks fail.
    pub fn prepare(&mut self) {
        self.inside = CheckNamespace::start(self.doorbell.clone())
            .map_err(|error| format!("weir has no network namespace for `via: service` checks: {error}"));
    }

    /// Starts a check.
    ///
    /// # Errors
    /// The error says in a few words why the check cannot be started.
    pub fn make(&mut self, app: &str, id: CheckId, check: Arc<Check>) -> Outcome {
        let order = QueuedCheck { app: app.into(), id, check };
        if order.check.via.is_some() {
            return self.inside.as_ref().map_err(String::clone)?.thread.take(order);
        }
        if self.thread.as_ref().is_none_or(|thread| thread.orders.is_closed()) {
            let thread = start(self.doorbell.clone());
            self.thread = Some(thread.map_err(|error| format!("weir has no thread for checks: {error}"))?);
        }
        self.thread.as_ref().map_or_else(|| Err(String::new()), |thread| thread.take(order))
    }

    /// Returns a check that has ended, if any.
    pub fn take(&self) -> Option<Checked> {
        let inside = self.inside.as_ref().ok().map(|inside| &inside.thread);
        self.thread.iter().chain(inside).find_map(|thread| thread.ended.try_recv().ok())
    }

    /// Returns a packet that a check sends on a service's own path, if any.
    pub fn take_sent(&self) -> Option<Sent> {
        self.inside.as_ref().ok()?.sent.try_recv().ok()
    }

    /// Delivers a packet to the sockets of checks that follow a service's own path.
    pub fn deliver(&self, packet: &[u8]) {
        if let Ok(inside) = &self.inside {
            inside.namespace.deliver(packet);
        }
    }
}

impl Thread {
    /// Queues a check.
    fn take(&self, order: QueuedCheck) -> Outcome {
        self.orders.try_send(order).map_err(|_| "weir has too many checks".to_string())
    }
}

/// Starts the thread whose checks follow the host's routes.
fn start(doorbell: Doorbell) -> io::Result<Thread> {
    let runtime = runtime()?;
    let (orders, waiting) = mpsc::channel(WAITING);
    let (outcomes, ended) = channel();
    let run = move || runtime.block_on(serve(waiting, &outcomes, &doorbell, None));
    // The thread ends when all senders of orders are gone.
    std::thread::Builder::new().name("weir-checks".into()).spawn(run)?;
    Ok(Thread { orders, ended })
}

impl CheckNamespace {
    /// Starts the thread, and waits until its namespace exists.
    fn start(doorbell: Doorbell) -> io::Result<CheckNamespace> {
        let (orders, waiting) = mpsc::channel(WAITING);
        let (outcomes, ended) = channel();
        let (ready, made) = channel();
        let run = move || {
            let prepare = || -> io::Result<_> {
                let (namespace, sent) = Namespace::create(doorbell.clone())?;
                privileges::keep(privileges::DAEMON)?;
                Ok((runtime()?, Arc::new(namespace), sent))
            };
            match prepare() {
                Ok((runtime, namespace, sent)) => {
                    let _ = ready.send(Ok((namespace.clone(), sent)));
                    runtime.block_on(serve(waiting, &outcomes, &doorbell, Some(namespace)));
                }
                Err(error) => _ = ready.send(Err(error)),
            }
        };
        std::thread::Builder::new().name("weir-checks-via".into()).spawn(run)?;
        let (namespace, sent) = made.recv().map_err(|_| io::Error::other("its thread has ended"))??;
        Ok(CheckNamespace { thread: Thread { orders, ended }, namespace, sent })
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

async fn serve(
    mut orders: mpsc::Receiver<QueuedCheck>,
    outcomes: &Sender<Checked>,
    doorbell: &Doorbell,
    namespace: Option<Arc<Namespace>>,
) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    if let Some(namespace) = namespace.clone() {
        tokio::spawn(async move { namespace.listen().await });
    }
    while let Some(QueuedCheck { app, id, check }) = orders.recv().await {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let (outcomes, doorbell, namespace) = (outcomes.clone(), doorbell.clone(), namespace.clone());
        tokio::spawn(async move {
            let outcome = outcome(&app, &check, namespace.as_deref()).await;
            drop(place);
            let _ = outcomes.send(Checked { app, id, outcome });
            doorbell.ring();
        });
    }
}

/// Runs a check.
async fn outcome(app: &Arc<str>, check: &Arc<Check>, namespace: Option<&Namespace>) -> Outcome {
    let whole = Duration::from_nanos(check.timeout_ns);
    let all = async {
        let (Some(via), Some(namespace)) = (&check.via, namespace) else {
            let at = SocketAddr::new(check.address, check.port);
            return ask(&check.ask, Server { at, way: None, close: check.close }).await;
        };
        for (from, vip) in &via.ways {
            let way = namespace.way(*from, (app, check))?;
            let server = Server { at: SocketAddr::new(*vip, check.port), way: Some(way), close: check.close };
            ask(&check.ask, server).await.map_err(|why| of_vip(*vip, via.ways.len(), why))?;
        }
        Ok(())
    };
    timeout(whole, all).await.unwrap_or_else(|_| Err(format!("no answer in {whole:?}")))
}

/// Adds to `why` which of several VIPs is meant.
fn of_vip(vip: IpAddr, count: usize, why: String) -> String {
    if count > 1 { format!("{vip}: {why}") } else { why }
}

/// The address of a server, how packets reach it if not by the host's routes, and how connections to it are
/// closed.
#[derive(Clone, Copy)]
struct Server<'a> {
    at: SocketAddr,
    way: Option<Way<'a>>,
    close: Close,
}

impl Server<'_> {
    /// Returns the address and port to which a socket is bound before it connects.
    fn own(&self) -> SocketAddr {
        let any = if self.at.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        SocketAddr::new(self.way.map_or(any, |way| way.from()), 0)
    }

    /// Registers how the packets of a socket are recognised: by protocol, and port or identifier.
    fn note(&self, protocol: u8, port: u16) {
        self.way.iter().for_each(|way| way.note(protocol, port));
    }
}

async fn ask(what: &Ask, server: Server<'_>) -> Outcome {
    match what {
        Ask::Tcp => connect(server).await.map(|stream| server.part(stream)),
        Ask::Tls(name) => {
            let stream = tls::shake(connect(server).await?, server, name.as_deref()).await?;
            server.part(stream);
            Ok(())
        }
        Ask::Http(request) => http::ask(server, request).await,
        Ask::Dns(name, rcode) => dns::ask(server, name, *rcode).await,
        Ask::Udp(payload, expect) => datagram(server, payload, expect).await,
        Ask::Icmp => icmp::ask(server).await,
    }
}

/// Opens a TCP connection. If so configured, it is reset when dropped.
async fn connect(server: Server<'_>) -> Result<TcpStream, String> {
    let stream = try_connect(server).await.map_err(|error| said(&error))?;
    // A connection to a local port without a listener may have been assigned that same port, and connect to
    // itself.
    if stream.local_addr().ok() == stream.peer_addr().ok() {
        return Err("connection refused".to_string());
    }
    if server.close == Close::Reset {
        stream.set_zero_linger().map_err(|error| said(&error))?;
    }
    Ok(stream)
}

async fn try_connect(server: Server<'_>) -> io::Result<TcpStream> {
    if server.way.is_none() {
        return TcpStream::connect(server.at).await;
    }
    let socket = if server.at.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.bind(server.own())?;
    server.note(PROTOCOL_TCP, socket.local_addr()?.port());
    socket.connect(server.at).await
}

/// Opens UDP sockets to the server.
async fn open(server: Server<'_>) -> io::Result<WitnessSockets> {
    let socket = UdpSocket::bind(server.own()).await?;
    server.note(PROTOCOL_UDP, socket.local_addr()?.port());
    WitnessSockets::of_port(socket, server.at).await
}

async fn datagram(server: Server<'_>, payload: &[u8], expect: &[u8]) -> Outcome {
    let sockets = open(server).await.map_err(|error| said(&error))?;
    sockets.send(payload).await?;
    let answer = sockets.receive(|_| true).await?;
    let is_there = expect.is_empty() || answer.windows(expect.len()).any(|window| window == expect);
    if is_there { Ok(()) } else { Err("the answer does not contain what is expected".to_string()) }
}

/// Describes what went wrong, without the error number that the standard library adds.
fn said(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_string(),
        io::ErrorKind::ConnectionReset => "connection reset".to_string(),
        io::ErrorKind::HostUnreachable => "no route to the host".to_string(),
        io::ErrorKind::NetworkUnreachable => "no route to its network".to_string(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
