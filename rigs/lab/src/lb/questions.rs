//! The persistent clients of the lab: flows that ask back ends for their names, and notice when a different
//! one answers.
//!
//! A question is `id.server` in the class CHAOS (RFC 4892), which a name server answers with its identity. A
//! persistent flow asks all its questions over one connection (TCP, RFC 7766) or from one port (UDP) for as
//! long as the lab runs; short flows ask once and are replaced. All flows run in one process in the client's
//! namespace (`weir lab questions`), which writes its counts to a file and exits when its standard input is
//! closed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::network::{Host, VIPS};
use crate::overlay::talk::now_ms;
use crate::weir;
use weir_bed::{Run, Started};

/// How often counts are written.
const SAY: Duration = Duration::from_millis(20);
/// How long an answer over UDP may take.
pub(super) const UDP_ANSWER: Duration = Duration::from_secs(2);
/// How long an answer over TCP may take: lost segments are retransmitted after 0.2 s, 0.6 s, 1.4 s and so on.
const TCP_ANSWER: Duration = Duration::from_secs(10);
/// Source ports of short UDP flows, used one after another: the kernel could reuse a port while the load
/// balancer still has a flow for it. This range excludes the kernel's ephemeral ports.
const PORTS: std::ops::Range<u16> = 1024..32_768;
/// The length of a query's header, and of an answer's.
const HEADER: usize = 12;
/// `id.server`, type TXT, class CHAOS.
const QUESTION: &[u8] = b"\x02id\x06server\x00\x00\x10\x00\x03";

/// The options of `weir lab questions`.
#[derive(clap::Args)]
pub struct QuestionOptions {
    /// The file to write counts to.
    log: PathBuf,
    /// The addresses of the service, which is offered over TCP and UDP.
    #[arg(required = true)]
    addresses: Vec<SocketAddr>,
    /// Persistent flows per protocol and address.
    #[arg(long, default_value_t = 8)]
    flows: u32,
    /// Short flows per protocol and address, which ask once and are replaced.
    #[arg(long, default_value_t = 2)]
    short: u32,
    /// Milliseconds between two questions of a flow.
    #[arg(long, default_value_t = 80)]
    pause_ms: u64,
    /// How many times slower this machine is than usual.
    #[arg(long, default_value_t = 1)]
    slowdown: u32,
}

/// Number of flows by back-end name.
pub type ByName = BTreeMap<String, u64>;

/// The counts of all flows.
#[derive(Clone, Default)]
pub struct FlowCounts {
    pub requests: u64,
    /// Requests without an answer.
    pub failures: u64,
    /// Flows whose first answer came from a back end.
    pub began: ByName,
    /// Connections that broke, by their back end.
    pub broken: ByName,
    /// The number of flows whose back end has changed, by their previous back end.
    pub moved: ByName,
    /// Persistent flows that currently have a back end.
    pub held: ByName,
}

impl FlowCounts {
    /// Adds the counts of others.
    pub fn add(&mut self, other: &FlowCounts) {
        self.requests += other.requests;
        self.failures += other.failures;
        let FlowCounts { began, broken, moved, held, .. } = self;
        let all =
            [(began, &other.began), (broken, &other.broken), (moved, &other.moved), (held, &other.held)];
        for (sum, more) in all {
            more.iter().for_each(|(name, count)| *sum.entry(name.clone()).or_default() += count);
        }
    }

    /// Returns the counts since `before`, and the flows currently held.
    pub fn since(&self, before: &FlowCounts) -> FlowCounts {
        let less = |now: &ByName, then: &ByName| {
            let one = |(name, count): (&String, &u64)| {
                (name.clone(), count.saturating_sub(then.get(name).copied().unwrap_or_default()))
            };
            now.iter().map(one).filter(|(_, count)| *count > 0).collect()
        };
        FlowCounts {
            requests: self.requests.saturating_sub(before.requests),
            failures: self.failures.saturating_sub(before.failures),
            began: less(&self.began, &before.began),
            broken: less(&self.broken, &before.broken),
            moved: less(&self.moved, &before.moved),
            held: self.held.clone(),
        }
    }

    /// Writes the counts, which include all questions asked before `counted_ms`.
    fn write(&self, log: &Path, counted_ms: u64) -> Result<()> {
        let text = json!({
            "counted_ms": counted_ms,
            "requests": self.requests, "failures": self.failures,
            "began": self.began, "broken": self.broken, "moved": self.moved, "held": self.held,
        });
        let next = log.with_extension("next");
        fs::write(&next, text.to_string())?;
        fs::rename(next, log).context("counts cannot be written")
    }

    fn read(log: &Path) -> Option<FlowCounts> {
        let value: Value = serde_json::from_str(&fs::read_to_string(log).ok()?).ok()?;
        let by_name = |key: &str| {
            let entries = value[key].as_object().into_iter().flatten();
            entries.map(|(name, count)| (name.clone(), count.as_u64().unwrap_or_default())).collect()
        };
        Some(FlowCounts {
            requests: value["requests"].as_u64()?,
            failures: value["failures"].as_u64()?,
            began: by_name("began"),
            broken: by_name("broken"),
            moved: by_name("moved"),
            held: by_name("held"),
        })
    }
}

/// State shared by all flows.
struct QuestionState {
    counts: Mutex<FlowCounts>,
    /// When each question was asked that is not counted yet, by its number.
    asked: Mutex<BTreeMap<u64, u64>>,
    /// Number of questions so far.
    questions: AtomicU64,
    stop: AtomicBool,
    /// Number of short UDP flows so far.
    ports: AtomicU16,
    pause: Duration,
    udp_answer: Duration,
    tcp_answer: Duration,
}

impl QuestionState {
    fn count(&self, change: impl FnOnce(&mut FlowCounts)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Notes that a question is asked. It must have been counted when the returned value is dropped.
    fn asks(&self) -> AskedQuestion<'_> {
        let number = self.questions.fetch_add(1, Ordering::Relaxed);
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).insert(number, now_ms());
        AskedQuestion { state: self, number }
    }

    /// Returns the time before which all questions were asked that are counted by now.
    fn counted_ms(&self) -> u64 {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.values().min().copied().unwrap_or_else(now_ms)
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns the source port of the next UDP flow; 0 lets the kernel choose.
    fn port(&self, stays: bool) -> u16 {
        if stays {
            return 0;
        }
        let range = PORTS.end - PORTS.start;
        PORTS.start + self.ports.fetch_add(1, Ordering::Relaxed) % range
    }

    /// Counts a request of a flow that was answered by `name`.
    fn answered(&self, flow: &mut Flow, name: String) {
        self.count(|counts| {
            counts.requests += 1;
            match flow.back_end.as_ref() {
                Some(before) if *before == name => return,
                Some(before) => *counts.moved.entry(before.clone()).or_default() += 1,
                None => *counts.began.entry(name.clone()).or_default() += 1,
            }
            if flow.stays {
                *counts.held.entry(name.clone()).or_default() += 1;
                flow.leaves(counts);
            }
        });
        flow.back_end = Some(name);
    }

    /// Counts a connection that broke.
    fn broke(&self, flow: &mut Flow) {
        let Some(name) = flow.back_end.clone() else { return };
        self.count(|counts| {
            *counts.broken.entry(name).or_default() += 1;
            if flow.stays {
                flow.leaves(counts);
            }
        });
        flow.back_end = None;
    }

    /// Counts a request that was not answered.
    fn failed(&self) {
        self.count(|counts| {
            counts.requests += 1;
            counts.failures += 1;
        });
    }
}

/// A question that is not counted yet.
struct AskedQuestion<'a> {
    state: &'a QuestionState,
    number: u64,
}

impl Drop for AskedQuestion<'_> {
    fn drop(&mut self) {
        self.state.asked.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

/// A TCP connection or a UDP port.
struct Flow {
    address: SocketAddr,
    stays: bool,
    back_end: Option<String>,
}

impl Flow {
    /// Removes the flow from its previous back end.
    fn leaves(&self, counts: &mut FlowCounts) {
        if let Some(held) = self.back_end.as_ref().and_then(|name| counts.held.get_mut(name)) {
            *held = held.saturating_sub(1);
        }
    }
}

/// Runs the clients.
pub fn run_end(options: &QuestionOptions) -> Result<()> {
    let shared = Arc::new(QuestionState {
        counts: Mutex::default(),
        asked: Mutex::default(),
        questions: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        ports: AtomicU16::new(0),
        pause: Duration::from_millis(options.pause_ms) * options.slowdown,
        udp_answer: UDP_ANSWER * options.slowdown,
        tcp_answer: TCP_ANSWER * options.slowdown,
    });
    let own = shared.clone();
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        own.stop.store(true, Ordering::Relaxed);
    });
    for (count, stays) in [(options.flows, true), (options.short, false)] {
        for (_, address) in (0..count).flat_map(|_| options.addresses.iter().enumerate()) {
            for ask in [tcp_flow, udp_flow] {
                let (own, address) = (shared.clone(), *address);
                thread::spawn(move || {
                    while !own.stops() {
                        ask(&own, Flow { address, stays, back_end: None });
                        thread::sleep(own.pause);
                    }
                });
            }
        }
    }
    while !shared.stops() {
        // In this order: what is counted in between is in the counts, too.
        let counted_ms = shared.counted_ms();
        let counts = shared.counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        counts.write(&options.log, counted_ms)?;
        thread::sleep(SAY);
    }
    Ok(())
}

/// Runs a TCP flow until its connection breaks, or for one question.
fn tcp_flow(shared: &QuestionState, mut flow: Flow) {
    let connect = || -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&flow.address, shared.tcp_answer)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(shared.tcp_answer))?;
        Ok(stream)
    };
    // To connect is part of the first question.
    let mut first = Some(shared.asks());
    let Ok(mut stream) = connect() else {
        shared.failed();
        return;
    };
    for id in (0..=u16::MAX).cycle() {
        if shared.stops() {
            return;
        }
        let asked = first.take().unwrap_or_else(|| shared.asks());
        let Ok(name) = ask_by_tcp(&mut stream, id) else {
            shared.failed();
            shared.broke(&mut flow);
            return;
        };
        shared.answered(&mut flow, name);
        drop(asked);
        if !flow.stays {
            return;
        }
        thread::sleep(shared.pause);
    }
}

fn ask_by_tcp(stream: &mut TcpStream, id: u16) -> std::io::Result<String> {
    let query = query(id);
    let length = u16::try_from(query.len()).unwrap_or_default();
    stream.write_all(&[&length.to_be_bytes(), query.as_slice()].concat())?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer)?;
    identity(&answer, id).ok_or_else(|| ErrorKind::InvalidData.into())
}

/// Runs a UDP flow until the lab ends, or for one question.
fn udp_flow(shared: &QuestionState, mut flow: Flow) {
    let any: IpAddr =
        if flow.address.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let open = || -> std::io::Result<UdpSocket> {
        let socket = UdpSocket::bind((any, shared.port(flow.stays)))?;
        socket.connect(flow.address)?;
        Ok(socket)
    };
    let Ok(socket) = open() else {
        shared.failed();
        return;
    };
    for id in (0..=u16::MAX).cycle() {
        if shared.stops() {
            return;
        }
        let asked = shared.asks();
        match ask_by_udp(&socket, id, shared.udp_answer) {
            Ok(name) => shared.answered(&mut flow, name),
            Err(_) => shared.failed(),
        }
        drop(asked);
        if !flow.stays {
            return;
        }
        thread::sleep(shared.pause);
    }
}

fn ask_by_udp(socket: &UdpSocket, id: u16, patience: Duration) -> std::io::Result<String> {
    socket.send(&query(id))?;
    let deadline = Instant::now() + patience;
    let mut answer = [0; 512];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        let length = socket.recv(&mut answer)?;
        // An answer to an earlier question comes too late.
        if let Some(name) = identity(&answer[..length], id) {
            return Ok(name);
        }
    }
}

fn query(id: u16) -> Vec<u8> {
    let head = [id, 0, 1, 0, 0, 0].map(u16::to_be_bytes).concat();
    [head.as_slice(), QUESTION].concat()
}

/// Returns the identity in the first record of an answer to the question with this id.
fn identity(answer: &[u8], id: u16) -> Option<String> {
    let of = answer.get(..2)?;
    if of != id.to_be_bytes() || answer.get(HEADER..HEADER + QUESTION.len())? != QUESTION {
        return None;
    }
    let record = answer.get(HEADER + QUESTION.len()..)?;
    // The owner's name: a pointer to the question, or the name again.
    let name = if record.first()? & 0xc0 == 0xc0 { 2 } else { QUESTION.len() - 4 };
    // Then type, class, TTL and length, and a string with its length.
    let text = record.get(name + 10..)?;
    let length = usize::from(*text.first()?);
    String::from_utf8(text.get(1..1 + length)?.to_vec()).ok()
}

/// Running clients.
pub struct Questions {
    process: Started,
    log: PathBuf,
}

impl Questions {
    /// Starts `flows` flows of each kind, which ask until they are stopped, on a machine that is `slowdown`
    /// times slower than usual.
    pub fn start(run: &mut Run, client: &Host, (flows, slowdown): (u32, u32)) -> Result<Questions> {
        let name = format!("questions-{}", client.name);
        let log = run.folder().join(format!("{name}.json"));
        // Remove the counts of previous clients.
        let _ = fs::remove_file(&log);
        let mut command = client.namespace.command(&weir::program()?);
        command.args(["lab", "questions", "--flows", &flows.to_string()]);
        command.args(["--slowdown", &slowdown.to_string()]).arg(&log);
        let [v4, v6] = VIPS;
        command.args([format!("{v4}:53"), format!("[{v6}]:53")]);
        let process = run.start(&name, command.stdin(Stdio::piped()).stdout(Stdio::null()))?;
        Ok(Questions { process, log })
    }

    /// Stops the clients.
    pub fn stop(self, run: &mut Run) -> Result<()> {
        run.stop(self.process).map(drop)
    }

    /// Returns the counts; empty before the clients have started.
    pub fn counts(&self) -> FlowCounts {
        FlowCounts::read(&self.log).unwrap_or_default()
    }

    /// Returns the time, in milliseconds of CLOCK_MONOTONIC, before which all questions were asked that are
    /// in the counts.
    pub fn counted_ms(&self) -> u64 {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let counts: Value = serde_json::from_str(&text).unwrap_or_default();
        counts["counted_ms"].as_u64().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: u16, owner: &[u8], text: &[u8]) -> Vec<u8> {
        let mut answer = query(id);
        answer[7] = 1;
        answer.extend_from_slice(owner);
        answer.extend_from_slice(b"\x00\x10\x00\x03\x00\x00\x00\x00\x00\x03");
        answer.push(text.len() as u8);
        answer.extend_from_slice(text);
        answer
    }

    #[test]
    fn an_answer_tells_who_gave_it() {
        let whole = &QUESTION[..QUESTION.len() - 4];
        for owner in [b"\xc0\x0c".as_slice(), whole] {
            assert_eq!(identity(&answer(7, owner, b"b1"), 7).as_deref(), Some("b1"));
        }
    }

    #[test]
    fn an_answer_that_is_cut_or_to_another_question_tells_nothing() {
        let answer = answer(7, b"\xc0\x0c", b"b1");
        assert_eq!(identity(&answer, 8), None);
        for length in 0..answer.len() {
            assert_eq!(identity(&answer[..length], 7), None, "{length}");
        }
        assert_eq!(identity(&query(7), 7), None);
    }

    #[test]
    fn only_what_has_changed_is_counted_since() {
        let by = |pairs: &[(&str, u64)]| pairs.iter().map(|&(name, count)| (name.into(), count)).collect();
        let before = FlowCounts { requests: 5, began: by(&[("b1", 2), ("b2", 1)]), ..FlowCounts::default() };
        let now = FlowCounts { requests: 9, began: by(&[("b1", 2), ("b2", 4)]), ..FlowCounts::default() };
        let since = now.since(&before);
        assert_eq!((since.requests, since.began), (4, by(&[("b2", 3)])));
    }
}
