//! Requests and answers between pods. Each answer carries the name of its sender, so that a request that
//! reached the wrong pod is detected.
//!
//! Both ends are processes in namespaces (`weir lab talk`). Each periodically writes its counts to a file.
//! The asking end stops when its standard input is closed, and then waits for answers in flight.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use weir_netlink::{Protocol, Request, change};

use crate::{Interrupt, weir};
use weir_bed::Namespace;
use weir_bed::{Run, Started};

/// Minimum bytes of a request and of its answer: its length, the name of the answering end, and when the
/// request was sent.
const MESSAGE: usize = 64;
/// Where a request says when it was sent, in milliseconds of CLOCK_MONOTONIC.
const SENT_AT: std::ops::Range<usize> = 16..24;
/// How often counts are written.
const SAY: Duration = Duration::from_millis(20);
/// Size of the socket buffer in bytes.
const BUFFER: usize = 8 << 20;
/// Requests sent at once: more would not fit the receiver's buffer.
const AT_ONCE: usize = 32;
/// How long answers may be in flight when an asking end stops. It waits only while some are missing, so this
/// is longer than an answering end may have to wait for a processor.
const IN_FLIGHT: Duration = Duration::from_secs(2);
/// How long a flow that sends one request at a time waits for an answer.
const SETTLE: Duration = Duration::from_millis(500);
/// How long a process may take to start or end.
const PATIENCE: Duration = Duration::from_secs(20);

/// One end, in its own process.
#[derive(clap::Subcommand)]
pub enum TalkEnd {
    /// Answers requests by UDP and TCP with its name, until it is killed.
    Answer {
        /// The address to listen on.
        address: SocketAddr,
        /// The end's name, a number.
        name: u64,
        /// The file to write counts to.
        log: PathBuf,
    },
    /// Asks until standard input is closed.
    Ask {
        /// The address to ask.
        address: SocketAddr,
        /// Use TCP rather than UDP.
        #[arg(long)]
        tcp: bool,
        /// Number of concurrent flows.
        #[arg(long, default_value_t = 1)]
        flows: u32,
        /// Milliseconds between two requests of a flow; 0 sends the next request as soon as the answer
        /// arrives.
        #[arg(long, default_value_t = 0)]
        pause_ms: u64,
        /// How many times slower this machine is than usual.
        #[arg(long, default_value_t = 1)]
        slowdown: u32,
        /// Bytes of a request and of its answer.
        #[arg(long, default_value_t = MESSAGE)]
        size: usize,
        /// The file to write counts to.
        log: PathBuf,
    },
    /// Flushes connection tracking in its network namespace.
    Forget,
}

/// The counts of an end.
#[derive(Default)]
struct TalkCounts {
    sent: AtomicU64,
    answered: AtomicU64,
    /// When the last request was answered, in milliseconds of CLOCK_MONOTONIC.
    last_ms: AtomicU64,
    /// When the request was sent that was sent last among those that were answered.
    asked_ms: AtomicU64,
    /// Flows that broke.
    broken: AtomicU64,
    /// The name of the last end that answered.
    name: AtomicU64,
    stop: AtomicBool,
}

impl TalkCounts {
    fn write(&self, log: &Path, ended: bool) -> Result<()> {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let text = json!({
            "sent": of(&self.sent), "answered": of(&self.answered), "broken": of(&self.broken),
            "last_ms": of(&self.last_ms), "asked_ms": of(&self.asked_ms), "name": of(&self.name),
            "ended": ended,
        });
        let next = log.with_extension("next");
        fs::write(&next, text.to_string())?;
        fs::rename(next, log).context("counts cannot be written")
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn count_answer(&self, request: &[u8]) {
        self.count_sent_at(request);
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.last_ms.store(now_ms(), Ordering::Relaxed);
    }

    /// Counts when a request was sent, which its answer says as well.
    fn count_sent_at(&self, message: &[u8]) {
        if let Some(time) = message.get(SENT_AT).and_then(|time| time.try_into().ok()) {
            self.asked_ms.fetch_max(u64::from_be_bytes(time), Ordering::Relaxed);
        }
    }
}

/// Writes into a request that it is sent now.
fn stamp(request: &mut [u8]) {
    request[SENT_AT].copy_from_slice(&now_ms().to_be_bytes());
}

/// The time, in milliseconds of CLOCK_MONOTONIC, which is the same in all processes.
pub fn now_ms() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Runs one end.
pub fn run_end(end: &TalkEnd) -> Result<()> {
    match end {
        TalkEnd::Answer { address, name, log } => answer(*address, *name, log),
        TalkEnd::Ask { address, tcp, flows, pause_ms, slowdown, size, log } => {
            let pause = Duration::from_millis(*pause_ms) * *slowdown;
            let asking = Asking { address: *address, pause, slowdown: *slowdown, size: *size };
            ask(asking, *tcp, *flows, log)
        }
        TalkEnd::Forget => forget_connections(),
    }
}

/// Does what `conntrack --flush` does.
fn forget_connections() -> Result<()> {
    /// NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE.
    const DELETE: u16 = 1 << 8 | 2;
    let all = Request { kind: DELETE, flags: 0, body: &[0; 4] };
    change(Protocol::Netfilter, all).context("connection tracking does not forget")
}

/// The parameters of an asking end.
#[derive(Clone, Copy)]
struct Asking {
    address: SocketAddr,
    pause: Duration,
    slowdown: u32,
    size: usize,
}

impl Asking {
    /// Returns a socket of the address's IP version, connected to it.
    fn socket(&self) -> Result<UdpSocket> {
        let any: IpAddr =
            if self.address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(self.address)?;
        Ok(socket)
    }

    /// Returns a request, which starts with its length.
    fn request(&self) -> Vec<u8> {
        let mut message = vec![0; self.size.max(MESSAGE)];
        let length = message.len() as u64;
        message[..8].copy_from_slice(&length.to_be_bytes());
        message
    }
}

fn answer(address: SocketAddr, name: u64, log: &Path) -> Result<()> {
    let counts = Arc::new(TalkCounts::default());
    let (udp, tcp) = (UdpSocket::bind(address)?, TcpListener::bind(address)?);
    // Exceed the kernel's limit, so that nothing is lost while this process is not scheduled.
    set_socket_recv_buffer_size_force(&udp, BUFFER)?;
    let own = counts.clone();
    thread::spawn(move || {
        let mut message = [0; 2048];
        while let Ok((length, from)) = udp.recv_from(&mut message) {
            own.count_answer(&message[..length]);
            message[8..16].copy_from_slice(&name.to_be_bytes());
            let _ = udp.send_to(&message[..length.max(MESSAGE)], from);
        }
    });
    let own = counts.clone();
    thread::spawn(move || {
        for stream in tcp.incoming().flatten() {
            let own = own.clone();
            thread::spawn(move || answer_stream(stream, name, &own));
        }
    });
    loop {
        counts.write(log, false)?;
        thread::sleep(SAY);
    }
}

fn answer_stream(mut stream: TcpStream, name: u64, counts: &TalkCounts) {
    let _ = stream.set_nodelay(true);
    let mut message = vec![0; MESSAGE];
    while stream.read_exact(&mut message[..MESSAGE]).is_ok() {
        let length = message.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes)) as usize;
        message.resize(length.clamp(MESSAGE, 1 << 20), 0);
        if stream.read_exact(&mut message[MESSAGE..]).is_err() {
            return;
        }
        counts.count_answer(&message);
        message[8..16].copy_from_slice(&name.to_be_bytes());
        if stream.write_all(&message).is_err() {
            return;
        }
    }
}

fn ask(asking: Asking, tcp: bool, flows: u32, log: &Path) -> Result<()> {
    let counts = Arc::new(TalkCounts::default());
    let own = counts.clone();
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        own.stop.store(true, Ordering::Relaxed);
    });
    let mut threads = Vec::new();
    if !tcp && !asking.pause.is_zero() {
        let own = counts.clone();
        threads.push(thread::spawn(move || ask_all(asking, flows, &own)));
    } else {
        for _ in 0..flows {
            let own = counts.clone();
            threads.push(thread::spawn(move || match tcp {
                true => ask_stream(asking, &own),
                false => ask_at_once(asking, &own),
            }));
        }
    }
    while !counts.stops() {
        counts.write(log, false)?;
        thread::sleep(SAY);
    }
    for thread in threads {
        if !matches!(thread.join(), Ok(Ok(()))) {
            counts.broken.fetch_add(1, Ordering::Relaxed);
        }
    }
    counts.write(log, true)
}

fn take(message: &[u8], counts: &TalkCounts) {
    counts.count_sent_at(message);
    counts.answered.fetch_add(1, Ordering::Relaxed);
    if let Some(name) = message.get(8..16).and_then(|name| name.try_into().ok()) {
        counts.name.store(u64::from_be_bytes(name), Ordering::Relaxed);
    }
}

/// Runs UDP flows that ask whether or not they are answered.
fn ask_all(asking: Asking, flows: u32, counts: &TalkCounts) -> Result<()> {
    let open = |_| -> Result<UdpSocket> {
        let socket = asking.socket()?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let sockets: Vec<UdpSocket> = (0..flows).map(open).collect::<Result<_>>()?;
    let (mut request, mut message) = (asking.request(), vec![0; asking.size.max(MESSAGE)]);
    let drain = |message: &mut [u8]| {
        for socket in &sockets {
            while let Ok(length) = socket.recv(&mut *message) {
                take(&message[..length], counts);
            }
        }
    };
    while !counts.stops() {
        for some in sockets.chunks(AT_ONCE) {
            for socket in some {
                // A request that is refused for a moment, for example because a route is missing, counts as
                // lost.
                stamp(&mut request);
                let _ = socket.send(&request);
                counts.sent.fetch_add(1, Ordering::Relaxed);
            }
            thread::sleep(asking.pause.mul_f64(some.len() as f64 / sockets.len() as f64));
        }
        drain(&mut message);
    }
    let until = Instant::now() + IN_FLIGHT * asking.slowdown;
    let is_complete = || counts.answered.load(Ordering::Relaxed) >= counts.sent.load(Ordering::Relaxed);
    while Instant::now() < until && !is_complete() {
        thread::sleep(SAY);
        drain(&mut message);
    }
    Ok(())
}

/// Runs a UDP flow that sends the next request as soon as it is answered.
fn ask_at_once(asking: Asking, counts: &TalkCounts) -> Result<()> {
    let socket = asking.socket()?;
    socket.set_read_timeout(Some(SETTLE * asking.slowdown))?;
    let (mut request, mut message) = (asking.request(), vec![0; asking.size.max(MESSAGE)]);
    while !counts.stops() {
        stamp(&mut request);
        socket.send(&request)?;
        counts.sent.fetch_add(1, Ordering::Relaxed);
        if let Ok(length) = socket.recv(&mut message) {
            take(&message[..length], counts);
        }
    }
    Ok(())
}

/// Runs a TCP flow.
fn ask_stream(asking: Asking, counts: &TalkCounts) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&asking.address, PATIENCE * asking.slowdown)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE * asking.slowdown))?;
    let (mut request, mut message) = (asking.request(), vec![0; asking.size.max(MESSAGE)]);
    while !counts.stops() {
        stamp(&mut request);
        stream.write_all(&request)?;
        counts.sent.fetch_add(1, Ordering::Relaxed);
        stream.read_exact(&mut message)?;
        take(&message, counts);
        if !asking.pause.is_zero() {
            thread::sleep(asking.pause);
        }
    }
    Ok(())
}

/// A moment, and how many requests an end had counted as answered.
#[derive(Clone, Copy)]
pub struct Moment {
    at_ms: u64,
    answered: u64,
}

/// A running end.
pub struct Talk {
    process: Started,
    log: PathBuf,
}

impl Talk {
    /// Starts an answering end in a namespace. Names must be unique, because each has its own file.
    pub fn answer(run: &mut Run, at: &Namespace, address: &str, name: u64) -> Result<Talk> {
        let log = run.folder().join(format!("answer-{name}.json"));
        if log.exists() {
            bail!("{} belongs to another responder", log.display());
        }
        let mut command = at.command(&weir::program()?);
        command.args(["lab", "talk", "answer", address, &name.to_string()]).arg(&log).stdout(Stdio::null());
        let process = run.start(&format!("answer-{name}"), &mut command)?;
        Ok(Talk { process, log })
    }

    /// Starts an asking end; `role` must be unique.
    pub fn ask(run: &mut Run, role: &str, at: &Namespace, arguments: &[&str]) -> Result<Talk> {
        let log = run.folder().join(format!("{role}.json"));
        let mut command = at.command(&weir::program()?);
        command.args(["lab", "talk", "ask"]).args(arguments).arg(&log);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let process = run.start(role, &mut command)?;
        Ok(Talk { process, log })
    }

    /// Returns the end's counts; `Null` before it has written any.
    pub fn counts(&self) -> Value {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Returns one of the end's counts.
    pub fn of(&self, count: &str) -> u64 {
        self.counts()[count].as_u64().unwrap_or_default()
    }

    /// Returns the present moment, for [`Talk::answered_since`].
    pub fn now(&self) -> Moment {
        Moment { at_ms: now_ms(), answered: self.of("answered") }
    }

    /// Returns how many requests were answered that were sent after a moment: 0, unless there was one. Those
    /// that were sent before do not count, although they may wait until the end gets a processor.
    pub fn answered_since(&self, then: Moment) -> u64 {
        let counts = self.counts();
        let of = |count: &str| counts[count].as_u64().unwrap_or_default();
        if of("asked_ms") < then.at_ms { 0 } else { of("answered").saturating_sub(then.answered).max(1) }
    }

    /// Waits until the end has started.
    pub fn started(&self, interrupt: &Interrupt) -> Result<()> {
        if !interrupt.wait(PATIENCE, || Ok(!self.counts().is_null()))? {
            bail!("{} did not start", self.log.display());
        }
        Ok(())
    }

    /// Ends an answering end; another end may then use its address.
    pub fn stop(&self, run: &mut Run) -> Result<()> {
        run.stop(self.process).map(drop)
    }

    /// Ends an asking end, and returns its counts.
    pub fn end(&self, run: &mut Run, interrupt: &Interrupt) -> Result<Value> {
        drop(run.child(self.process).stdin.take());
        if !interrupt.wait(PATIENCE + PATIENCE, || Ok(self.counts()["ended"] == true))? {
            bail!("{} did not end", self.log.display());
        }
        Ok(self.counts())
    }
}
