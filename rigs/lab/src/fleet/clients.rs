//! The clients of the lab: long-lived connections, each of which sends a request now and then, and short
//! connections with one request each.
//!
//! All of them run in one process in the clients' namespace (`weir lab fleet-clients`), which writes its
//! counts to a file and ends when its standard input is closed. A long-lived connection is broken if it is
//! reset or closed, if an answer takes longer than [`ANSWER`], or if another back end answers. It is not
//! replaced, so that each connection counts once. The time of each answer is recorded, to find the first
//! packet that took another route.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use rustix::net::sockopt::{Timeout, set_socket_reuseaddr, set_socket_timeout};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use serde_json::{Value, json};

use super::network::{Addresses, Family, FleetNetwork};
use crate::{Interrupt, weir};
use weir_bed::{Run, Started};

/// How often counts are written.
const SAY: Duration = Duration::from_millis(50);
/// How long an answer may take: lost segments are retransmitted after 0.2 s, 0.6 s, 1.4 s and so on, and a
/// lost SYN after 1 s, 3 s and 7 s.
const ANSWER: Duration = Duration::from_secs(10);
/// How long it may take until all connections are established.
const ESTABLISHED: Duration = Duration::from_secs(30);
/// How long requests may be in flight when clients end: a connect and an answer may each take as long as an
/// answer may.
const END: Duration = Duration::from_secs(30);
/// Source ports of short connections, used one after another.
const PORTS: std::ops::Range<u16> = 1024..60_000;
/// Threads that make short connections, and thus the most that can be open at a time.
pub const AT_ONCE: u32 = 16;
/// The most faults whose reasons are kept.
const FAULTS_MAX: usize = 1000;
/// The most bytes of an answer.
const ANSWER_MAX: usize = 4096;

/// The options of `weir lab fleet-clients`.
#[derive(clap::Args)]
pub struct FleetClientOptions {
    /// The file to write counts to.
    log: PathBuf,
    /// The address of the service.
    service: SocketAddr,
    /// Long-lived connections.
    #[arg(long)]
    connections: u16,
    /// The source port of the first of them; the others follow.
    #[arg(long)]
    first_port: u16,
    /// Milliseconds between two requests of a connection.
    #[arg(long)]
    pause_ms: u64,
    /// Short connections per second.
    #[arg(long)]
    rate: u32,
    /// How many source ports of short connections were used before.
    #[arg(long)]
    used: u64,
    /// How many times slower this machine is than usual.
    #[arg(long, default_value_t = 1)]
    slowdown: u32,
}

/// Returns the time in microseconds since 1970, which all processes share.
pub fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64)
}

/// A broken connection, or a failed request.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientFault {
    /// The source port.
    pub port: u16,
    /// The back end of a connection; empty for a request.
    pub back_end: String,
    /// When the request began and when it failed.
    pub sent_us: u64,
    pub failed_us: u64,
    /// What happened.
    pub reason: String,
}

impl ClientFault {
    fn json(&self) -> Value {
        json!([self.port, self.back_end, self.sent_us, self.failed_us, self.reason])
    }

    fn read(value: &Value) -> Option<ClientFault> {
        let [port, back_end, sent_us, failed_us, reason] = value.as_array()?.as_slice() else { return None };
        Some(ClientFault {
            port: u16::try_from(port.as_u64()?).ok()?,
            back_end: back_end.as_str()?.to_owned(),
            sent_us: sent_us.as_u64()?,
            failed_us: failed_us.as_u64()?,
            reason: reason.as_str()?.to_owned(),
        })
    }
}

/// The counts of all clients.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientCounts {
    /// Requests of both kinds that were answered or have failed.
    pub requests: u64,
    /// Short connections.
    pub short: u64,
    /// Short connections whose request failed, and why.
    pub failures: u64,
    pub failed: Vec<ClientFault>,
    /// Long-lived connections that broke.
    pub broken: Vec<ClientFault>,
    /// For each answer to a long-lived connection: when the request was sent, when it was answered, and the
    /// connection's source port.
    pub answers: Vec<(u64, u64, u16)>,
}

impl ClientCounts {
    fn json(&self) -> Value {
        let faults = |of: &[ClientFault]| of.iter().map(ClientFault::json).collect::<Vec<_>>();
        json!({
            "requests": self.requests, "short": self.short, "failures": self.failures,
            "failed": faults(&self.failed), "broken": faults(&self.broken), "answers": self.answers,
        })
    }

    fn read(value: &Value) -> Option<ClientCounts> {
        let faults = |key: &str| -> Option<Vec<ClientFault>> {
            value[key].as_array()?.iter().map(ClientFault::read).collect()
        };
        let answer = |value: &Value| {
            let port = u16::try_from(value[2].as_u64()?).ok()?;
            Some((value[0].as_u64()?, value[1].as_u64()?, port))
        };
        Some(ClientCounts {
            requests: value["requests"].as_u64()?,
            short: value["short"].as_u64()?,
            failures: value["failures"].as_u64()?,
            failed: faults("failed")?,
            broken: faults("broken")?,
            answers: value["answers"].as_array()?.iter().map(answer).collect::<Option<_>>()?,
        })
    }
}

/// State shared by all threads.
struct ClientState {
    service: SocketAddr,
    counts: Mutex<ClientCounts>,
    established: AtomicU64,
    /// Short connections so far.
    ports: AtomicU64,
    stop: AtomicBool,
    pause: Duration,
    answer: Duration,
}

impl ClientState {
    fn count(&self, change: impl FnOnce(&mut ClientCounts)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn addresses(&self) -> &'static Addresses {
        Family::of(self.service.ip()).addresses()
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn connect(&self, from: SocketAddr) -> std::io::Result<TcpStream> {
        let family = match from {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = socket(family, SocketType::STREAM, None)?;
        set_socket_reuseaddr(&socket, true)?;
        // The former also limits the time of the connect.
        set_socket_timeout(&socket, Timeout::Send, Some(self.answer))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(self.answer))?;
        bind(&socket, &from)?;
        connect(&socket, &self.service)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Establishes a connection and uses it until it breaks or clients end.
    fn long(&self, port: u16) {
        let from = source(self.addresses().long, port);
        let (mut stream, back_end) = loop {
            if self.stops() {
                return;
            }
            let asked = self.connect(from).and_then(|mut stream| {
                let name = ask(&mut stream, "keep-alive")?;
                Ok((stream, name))
            });
            match asked {
                Ok(asked) => break asked,
                Err(_) => thread::sleep(self.pause),
            }
        };
        self.established.fetch_add(1, Ordering::Relaxed);
        // Connections do not send at the same time.
        thread::sleep(self.pause * u32::from(port % 64) / 64);
        while !self.stops() {
            let sent_us = now_us();
            let name = ask(&mut stream, "keep-alive");
            let reason = match name {
                Ok(name) if name == back_end => {
                    self.count(|counts| {
                        counts.requests += 1;
                        counts.answers.push((sent_us, now_us(), port));
                    });
                    thread::sleep(self.pause);
                    continue;
                }
                Ok(name) => format!("{name} answered"),
                Err(error) => reason(&error),
            };
            let fault = ClientFault { port, back_end, sent_us, failed_us: now_us(), reason };
            self.count(|counts| {
                counts.requests += 1;
                counts.broken.push(fault);
            });
            return;
        }
    }

    /// Opens a connection for each request, `interval` apart.
    fn short(&self, interval: Duration) {
        let mut next = SystemTime::now();
        let sources = &self.addresses().short;
        while !self.stops() {
            let number = self.ports.fetch_add(1, Ordering::Relaxed);
            let ports = u64::from(PORTS.end - PORTS.start);
            let port = PORTS.start + (number % ports) as u16;
            let from = source(sources[(number / ports) as usize % sources.len()], port);
            let sent_us = now_us();
            let asked = self.connect(from).and_then(|mut stream| ask(&mut stream, "close"));
            self.count(|counts| {
                counts.requests += 1;
                counts.short += 1;
                if let Err(error) = asked {
                    counts.failures += 1;
                    let reason = reason(&error);
                    if counts.failed.len() < FAULTS_MAX {
                        let (back_end, failed_us) = (String::new(), now_us());
                        counts.failed.push(ClientFault { port, back_end, sent_us, failed_us, reason });
                    }
                }
            });
            next += interval;
            match next.duration_since(SystemTime::now()) {
                Ok(left) => thread::sleep(left),
                // Too slow for the rate: do not catch up later.
                Err(_) => next = SystemTime::now(),
            }
        }
    }
}

fn source(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse::<IpAddr>().expect("a constant address"), port)
}

fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer".to_owned(),
        _ => error.to_string(),
    }
}

/// Sends a request and returns the body of its answer, a back end's name.
fn ask(stream: &mut TcpStream, connection: &str) -> std::io::Result<String> {
    stream
        .write_all(format!("GET / HTTP/1.1\r\nHost: fleet\r\nConnection: {connection}\r\n\r\n").as_bytes())?;
    let (mut answer, mut part) = (Vec::new(), [0; 1024]);
    loop {
        let length = stream.read(&mut part)?;
        answer.extend_from_slice(&part[..length]);
        if let Some(body) = body(&answer) {
            return Ok(body);
        }
        if length == 0 || answer.len() > ANSWER_MAX {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Returns the body of a complete answer with the status 200.
fn body(answer: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(answer).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length =
        head.lines().find_map(|line| line.strip_prefix("Content-Length: "))?.parse::<usize>().ok()?;
    let whole = head.starts_with("HTTP/1.1 200 ") && body.len() >= length;
    whole.then(|| body.trim_end().to_owned())
}

/// Runs the clients.
pub fn run_end(options: &FleetClientOptions) -> Result<()> {
    let shared = Arc::new(ClientState {
        service: options.service,
        counts: Mutex::default(),
        established: AtomicU64::new(0),
        ports: AtomicU64::new(options.used),
        stop: AtomicBool::new(false),
        pause: Duration::from_millis(options.pause_ms) * options.slowdown,
        answer: ANSWER * options.slowdown,
    });
    let own = shared.clone();
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        own.stop.store(true, Ordering::Relaxed);
    });
    let mut threads = Vec::new();
    for at in 0..options.connections {
        let (own, port) = (shared.clone(), options.first_port + at);
        threads.push(thread::spawn(move || own.long(port)));
    }
    let interval = Duration::from_secs(1) * AT_ONCE * options.slowdown / options.rate.max(1);
    for at in 0..AT_ONCE {
        let own = shared.clone();
        threads.push(thread::spawn(move || {
            thread::sleep(interval * at / AT_ONCE);
            own.short(interval);
        }));
    }
    while !shared.stops() {
        let established = shared.established.load(Ordering::Relaxed);
        let short = shared.counts.lock().unwrap_or_else(PoisonError::into_inner).short;
        write(&options.log, &json!({ "established": established, "short": short }))?;
        thread::sleep(SAY);
    }
    for thread in threads {
        if thread.join().is_err() {
            bail!("a thread of a client panicked");
        }
    }
    let counts = shared.counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
    write(&options.log, &json!({ "ended": counts.json() }))
}

fn write(log: &Path, value: &Value) -> Result<()> {
    let next = log.with_extension("next");
    fs::write(&next, value.to_string())?;
    fs::rename(next, log).context("counts cannot be written")
}

/// Running clients.
pub struct FleetClients {
    process: Started,
    log: PathBuf,
    /// The source ports of long-lived connections.
    pub ports: std::ops::Range<u16>,
}

/// How much clients do.
#[derive(Clone, Copy)]
pub struct ClientLoad {
    pub connections: u16,
    pub rate: u32,
    pub pause_ms: u64,
}

impl FleetClients {
    /// The name of the process.
    const NAME: &str = "clients";

    /// Starts clients, whose long-lived connections have ports from `first_port`; `used` ports of short ones
    /// were used before. Waits until all connections are established.
    pub fn start(
        run: &mut Run,
        network: &FleetNetwork,
        load: ClientLoad,
        (first_port, used): (u16, u64),
        interrupt: &Interrupt,
    ) -> Result<FleetClients> {
        let log = run.folder().join("clients.json");
        let _ = fs::remove_file(&log);
        let ClientLoad { connections, rate, pause_ms } = load;
        let vip: IpAddr = network.addresses().vip.parse()?;
        let service = SocketAddr::new(vip, 80).to_string();
        let mut command = network.clients.command(&weir::program()?);
        command.args(["lab", "fleet-clients"]).arg(&log).arg(&service);
        let options = [
            ("--connections", connections.to_string()),
            ("--first-port", first_port.to_string()),
            ("--pause-ms", pause_ms.to_string()),
            ("--rate", rate.to_string()),
            ("--used", used.to_string()),
            ("--slowdown", interrupt.slowdown().to_string()),
        ];
        for (name, value) in options {
            command.args([name, &value]);
        }
        let process = run.start(Self::NAME, command.stdin(Stdio::piped()).stdout(Stdio::null()))?;
        let clients = FleetClients { process, log, ports: first_port..first_port + connections };
        let established = || Ok(clients.read()["established"].as_u64() == Some(u64::from(connections)));
        if !interrupt.wait(ESTABLISHED, established)? {
            bail!(
                "clients get no answers: of {connections} connections, {} are established; {}",
                clients.read()["established"],
                run.last_words(Self::NAME)
            );
        }
        Ok(clients)
    }

    /// Returns how many short connections there were so far.
    pub fn short(&self) -> u64 {
        self.read()["short"].as_u64().unwrap_or_default()
    }

    /// Stops the clients, and returns their counts.
    pub fn end(self, run: &mut Run, interrupt: &Interrupt) -> Result<ClientCounts> {
        drop(run.child(self.process).stdin.take());
        let mut ended = false;
        interrupt.wait(END, || {
            ended = run.child(self.process).try_wait()?.is_some();
            Ok(ended)
        })?;
        let counts = ClientCounts::read(&self.read()["ended"]).filter(|_| ended);
        counts.with_context(|| format!("clients have not ended: {}", run.last_words(Self::NAME)))
    }

    fn read(&self) -> Value {
        // Bounded: this program has written it.
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_they_were_written() {
        let fault = ClientFault {
            port: 20_001,
            back_end: "b1".into(),
            sent_us: 7,
            failed_us: 8,
            reason: "Connection reset by peer (os error 104)".into(),
        };
        let counts = ClientCounts {
            requests: 9,
            short: 5,
            failures: 1,
            failed: vec![ClientFault { back_end: String::new(), ..fault.clone() }],
            broken: vec![fault],
            answers: vec![(1, 2, 20_000)],
        };
        assert_eq!(ClientCounts::read(&counts.json()), Some(counts));
        assert_eq!(ClientCounts::read(&json!({ "requests": 9 })), None);
    }

    #[test]
    fn only_a_complete_answer_with_the_status_200_names_a_back_end() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nb1\n";
        assert_eq!(body(answer).as_deref(), Some("b1"));
        for length in 0..answer.len() {
            assert_eq!(body(&answer[..length]), None, "{length}");
        }
        assert_eq!(body(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nb1\n"), None);
    }
}
