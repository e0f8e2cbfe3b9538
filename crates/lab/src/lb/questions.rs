//! The clients of the lab: flows that ask back ends for their names, and notice when another one answers.
//!
//! A question is `id.server` in the class CHAOS (RFC 4892), which a name server answers with its identity. A
//! flow over TCP asks all its questions over one connection (RFC 7766), and one over UDP from one port, for
//! as long as the lab runs; others ask once and are replaced. All run in one process in the client's
//! namespace (`weir lab questions`), which writes what it has counted into a file and ends when its standard
//! input is closed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::namespace::Namespace;
use crate::run::Run;
use crate::weir;

/// How often counts are written.
const SAY: Duration = Duration::from_millis(20);
/// How long an answer over UDP may take.
const UDP_ANSWER: Duration = Duration::from_millis(500);
/// How long an answer over TCP may take: retransmissions of what was lost need a second at most.
const TCP_ANSWER: Duration = Duration::from_secs(4);
/// Source ports of UDP flows that ask once, one after the other: the kernel would choose a port again while
/// the load balancer still knows the flow that had it. No port here is one that the kernel chooses.
const PORTS: std::ops::Range<u16> = 1024..32_768;
/// The length of a query's header, and of an answer's.
const HEADER: usize = 12;
/// `id.server`, type TXT, class CHAOS.
const QUESTION: &[u8] = b"\x02id\x06server\x00\x00\x10\x00\x03";

/// The options of `weir lab questions`.
#[derive(clap::Args)]
pub struct Options {
    /// The address of the service, which is offered over TCP and UDP.
    address: SocketAddr,
    /// Flows of each protocol that stay.
    #[arg(long, default_value_t = 16)]
    flows: u32,
    /// Flows of each protocol that ask once and are replaced.
    #[arg(long, default_value_t = 2)]
    short: u32,
    /// Milliseconds between two questions of a flow.
    #[arg(long, default_value_t = 20)]
    pause_ms: u64,
    /// The file of its counts.
    log: PathBuf,
}

/// Flows by the name of a back end.
pub type ByName = BTreeMap<String, u64>;

/// What the flows have counted.
#[derive(Clone, Default)]
pub struct Counts {
    pub requests: u64,
    /// Requests without an answer.
    pub failures: u64,
    /// Flows whose first answer came from there.
    pub began: ByName,
    /// Connections that broke, by the back end that they had.
    pub broken: ByName,
    /// Flows to which another back end answered than the one they had, by the latter.
    pub moved: ByName,
}

impl Counts {
    /// Returns what was counted since `before`.
    pub fn since(&self, before: &Counts) -> Counts {
        let less = |now: &ByName, then: &ByName| {
            let one = |(name, count): (&String, &u64)| {
                (name.clone(), count.saturating_sub(then.get(name).copied().unwrap_or_default()))
            };
            now.iter().map(one).filter(|(_, count)| *count > 0).collect()
        };
        Counts {
            requests: self.requests.saturating_sub(before.requests),
            failures: self.failures.saturating_sub(before.failures),
            began: less(&self.began, &before.began),
            broken: less(&self.broken, &before.broken),
            moved: less(&self.moved, &before.moved),
        }
    }

    fn write(&self, log: &Path) -> Result<()> {
        let text = json!({
            "requests": self.requests, "failures": self.failures,
            "began": self.began, "broken": self.broken, "moved": self.moved,
        });
        let next = log.with_extension("next");
        fs::write(&next, text.to_string())?;
        fs::rename(next, log).context("counts cannot be written")
    }

    fn read(log: &Path) -> Option<Counts> {
        let value: Value = serde_json::from_str(&fs::read_to_string(log).ok()?).ok()?;
        let by_name = |key: &str| {
            let entries = value[key].as_object().into_iter().flatten();
            entries.map(|(name, count)| (name.clone(), count.as_u64().unwrap_or_default())).collect()
        };
        Some(Counts {
            requests: value["requests"].as_u64()?,
            failures: value["failures"].as_u64()?,
            began: by_name("began"),
            broken: by_name("broken"),
            moved: by_name("moved"),
        })
    }
}

/// What all flows share.
struct Shared {
    counts: Mutex<Counts>,
    stop: AtomicBool,
    /// How many UDP flows that ask once there were.
    ports: AtomicU16,
    address: SocketAddr,
    pause: Duration,
}

impl Shared {
    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
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
    fn answered(&self, back_end: &mut Option<String>, name: String) {
        self.count(|counts| {
            counts.requests += 1;
            match back_end.as_ref() {
                None => *counts.began.entry(name.clone()).or_default() += 1,
                Some(before) if *before != name => *counts.moved.entry(before.clone()).or_default() += 1,
                Some(_) => {}
            }
        });
        *back_end = Some(name);
    }

    /// Counts a request that was not answered.
    fn failed(&self) {
        self.count(|counts| {
            counts.requests += 1;
            counts.failures += 1;
        });
    }
}

/// Runs the clients.
pub fn run_end(options: &Options) -> Result<()> {
    let shared = Arc::new(Shared {
        counts: Mutex::default(),
        stop: AtomicBool::new(false),
        ports: AtomicU16::new(0),
        address: options.address,
        pause: Duration::from_millis(options.pause_ms),
    });
    let own = shared.clone();
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        own.stop.store(true, Ordering::Relaxed);
    });
    for (count, stays) in [(options.flows, true), (options.short, false)] {
        for _ in 0..count {
            for flow in [tcp_flow, udp_flow] {
                let own = shared.clone();
                thread::spawn(move || {
                    while !own.stops() {
                        flow(&own, stays);
                        thread::sleep(own.pause);
                    }
                });
            }
        }
    }
    while !shared.stops() {
        let counts = shared.counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        counts.write(&options.log)?;
        thread::sleep(SAY);
    }
    Ok(())
}

/// A connection: until it breaks, or for one question.
fn tcp_flow(shared: &Shared, stays: bool) {
    let mut back_end = None;
    let connect = || -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&shared.address, TCP_ANSWER)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TCP_ANSWER))?;
        Ok(stream)
    };
    let Ok(mut stream) = connect() else {
        shared.failed();
        return;
    };
    for id in (0..=u16::MAX).cycle() {
        if shared.stops() {
            return;
        }
        let Ok(name) = ask_by_tcp(&mut stream, id) else {
            shared.failed();
            if let Some(name) = back_end {
                shared.count(|counts| *counts.broken.entry(name).or_default() += 1);
            }
            return;
        };
        shared.answered(&mut back_end, name);
        if !stays {
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

/// A port that asks: until the lab ends, or for one question.
fn udp_flow(shared: &Shared, stays: bool) {
    let mut back_end = None;
    let open = || -> std::io::Result<UdpSocket> {
        let socket = UdpSocket::bind(("0.0.0.0", shared.port(stays)))?;
        socket.connect(shared.address)?;
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
        match ask_by_udp(&socket, id) {
            Ok(name) => shared.answered(&mut back_end, name),
            Err(_) => shared.failed(),
        }
        if !stays {
            return;
        }
        thread::sleep(shared.pause);
    }
}

fn ask_by_udp(socket: &UdpSocket, id: u16) -> std::io::Result<String> {
    socket.send(&query(id))?;
    let deadline = Instant::now() + UDP_ANSWER;
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
pub struct Questions(PathBuf);

impl Questions {
    /// Starts them; they ask until the run ends.
    pub fn start(run: &mut Run, client: &Namespace, address: &str, flows: u32) -> Result<Questions> {
        let log = run.folder().join("questions.json");
        let mut command = client.command(&weir::program()?);
        command.args(["lab", "questions", address, "--flows", &flows.to_string()]).arg(&log);
        run.start("questions", command.stdin(Stdio::piped()).stdout(Stdio::null()))?;
        Ok(Questions(log))
    }

    /// Returns what they have counted; nothing before they are at work.
    pub fn counts(&self) -> Counts {
        Counts::read(&self.0).unwrap_or_default()
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
        let before = Counts { requests: 5, began: by(&[("b1", 2), ("b2", 1)]), ..Counts::default() };
        let now = Counts { requests: 9, began: by(&[("b1", 2), ("b2", 4)]), ..Counts::default() };
        let since = now.since(&before);
        assert_eq!((since.requests, since.began), (4, by(&[("b2", 3)])));
    }
}
