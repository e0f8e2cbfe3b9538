//! Carries out the checks of servers that apps ask for: a thread with a runtime of its own, for all apps. It
//! sends and receives through the kernel's sockets, so checks take the host's routes.
//!
//! Promises: every check is answered once, with a bad outcome if it cannot be carried out. At most
//! [`AT_ONCE`] are under way, each ends by its own deadline, and the others wait in order; an app has at most
//! one of each server here, which bounds them. Nothing that a server sends is kept beyond [`ANSWER_MAX`]
//! bytes.

mod dns;
mod http;
mod icmp;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;

use super::doorbell::Doorbell;
use ::apps::check::{Ask, Check, CheckId, Outcome};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

/// How many checks are under way at once: each has a descriptor, of which a process may have no more than
/// 1024.
const AT_ONCE: usize = 256;

/// How many may wait for their turn.
const WAITING: usize = 65_536;

/// How much of an answer is read.
const ANSWER_MAX: usize = 65_536;

/// A check that has ended.
pub struct Checked {
    /// The name of the app that asked for it.
    pub app: Arc<str>,
    pub id: CheckId,
    pub outcome: Outcome,
}

/// A check that is to be made.
struct Order {
    app: Arc<str>,
    id: CheckId,
    check: Arc<Check>,
}

/// The thread, if an app has asked for a check yet.
pub struct Checks {
    doorbell: Doorbell,
    thread: Option<Thread>,
}

struct Thread {
    orders: mpsc::Sender<Order>,
    ended: Receiver<Checked>,
}

impl Checks {
    /// Makes none yet; `doorbell` wakes the main thread when one has ended.
    pub fn new(doorbell: Doorbell) -> Checks {
        Checks { doorbell, thread: None }
    }

    /// Has a check made.
    ///
    /// # Errors
    /// Says in a few words why it cannot be made.
    pub fn make(&mut self, app: &str, id: CheckId, check: Arc<Check>) -> Outcome {
        if self.thread.as_ref().is_none_or(|thread| thread.orders.is_closed()) {
            let thread = Thread::start(self.doorbell.clone());
            self.thread = Some(thread.map_err(|error| format!("weir has no thread for checks: {error}"))?);
        }
        let order = Order { app: app.into(), id, check };
        let sent = self.thread.as_ref().map(|thread| thread.orders.try_send(order));
        if sent.is_some_and(|sent| sent.is_ok()) {
            Ok(())
        } else {
            Err("weir has too many checks".to_string())
        }
    }

    /// Returns a check that has ended, if there is one.
    pub fn take(&self) -> Option<Checked> {
        self.thread.as_ref()?.ended.try_recv().ok()
    }
}

impl Thread {
    fn start(doorbell: Doorbell) -> io::Result<Thread> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (orders, waiting) = mpsc::channel(WAITING);
        let (tell, ended) = channel();
        let run = move || runtime.block_on(serve(waiting, &tell, &doorbell));
        // It ends when nobody can give it orders any more.
        std::thread::Builder::new().name("weir-checks".into()).spawn(run)?;
        Ok(Thread { orders, ended })
    }
}

async fn serve(mut orders: mpsc::Receiver<Order>, tell: &Sender<Checked>, doorbell: &Doorbell) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    while let Some(Order { app, id, check }) = orders.recv().await {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let (tell, doorbell) = (tell.clone(), doorbell.clone());
        tokio::spawn(async move {
            let outcome = outcome(&check).await;
            drop(place);
            let _ = tell.send(Checked { app, id, outcome });
            doorbell.ring();
        });
    }
}

/// Makes a check.
async fn outcome(check: &Check) -> Outcome {
    let whole = Duration::from_nanos(check.timeout_ns);
    timeout(whole, ask(check)).await.unwrap_or_else(|_| Err(format!("no answer in {whole:?}")))
}

async fn ask(check: &Check) -> Outcome {
    let server = SocketAddr::new(check.address, check.port);
    match &check.ask {
        Ask::Tcp => connect(server).await.map(drop),
        Ask::Tls(name) => tls::shake(connect(server).await?, server, name.as_deref()).await.map(drop),
        Ask::Http(request) => http::ask(server, request).await,
        Ask::Dns(name, rcode) => dns::ask(server, name, *rcode).await,
        Ask::Udp(payload, expect) => datagram(server, payload, expect).await,
        Ask::Icmp => icmp::ask(check.address).await,
    }
}

/// Opens a TCP connection. It is reset when it is dropped, so that no side keeps it in TIME_WAIT.
async fn connect(server: SocketAddr) -> Result<TcpStream, String> {
    let stream = TcpStream::connect(server).await.map_err(|error| said(&error))?;
    // A connection to a local port that nobody listens to may have been given the same port, and meet itself.
    if stream.local_addr().ok() == stream.peer_addr().ok() {
        return Err("connection refused".to_string());
    }
    stream.set_zero_linger().map_err(|error| said(&error))?;
    Ok(stream)
}

/// Opens a UDP socket that hears of nobody but the server.
async fn open(server: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    Ok(socket)
}

async fn datagram(server: SocketAddr, payload: &[u8], expect: &[u8]) -> Outcome {
    let answer = exchange(server, payload).await.map_err(|error| said(&error))?;
    let is_there = expect.is_empty() || answer.windows(expect.len()).any(|window| window == expect);
    if is_there { Ok(()) } else { Err("the answer is not what is expected".to_string()) }
}

async fn exchange(server: SocketAddr, payload: &[u8]) -> io::Result<Vec<u8>> {
    let socket = open(server).await?;
    socket.send(payload).await?;
    let mut answer = vec![0; ANSWER_MAX];
    let length = socket.recv(&mut answer).await?;
    answer.truncate(length);
    Ok(answer)
}

/// Says what went wrong, without the number that the standard library adds.
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
