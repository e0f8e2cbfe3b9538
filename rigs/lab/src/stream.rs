//! A paced stream of numbered UDP packets in many flows, which reveals losses, reordering and the duration of
//! outages.
//!
//! Sender and receiver are separate processes (`weir lab stream`), because they run in different network
//! namespaces. Each logs what it sent or received, and when. Both logs are evaluated here afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{Interrupt, screen, weir};
use weir_bed::Namespace;
use weir_bed::{Run, Started};

/// Number of flows: enough for every member to carry some, and so few that each has a packet every few
/// milliseconds.
const FLOWS: u32 = 16;

const PORT: u16 = 9000;
/// Source port of the first flow.
const SOURCE_PORT: u16 = 20_000;
/// Bytes of a packet after its UDP header.
const PAYLOAD: usize = 64;
/// Size of the receive buffer in bytes: packets must not be lost while the receiver is not scheduled.
const BUFFER: usize = 8 << 20;
/// A sender that was not scheduled for longer skips the packets it missed instead of sending them in one
/// burst.
const LATE: Duration = Duration::from_millis(20);
/// How often both ends report their progress.
const SAY: Duration = Duration::from_millis(200);
/// How long packets may be in flight.
const SETTLE: Duration = Duration::from_millis(300);
/// How long the processes may take to start or end.
const PATIENCE: Duration = Duration::from_secs(30);

/// One end of a stream, in its own process.
#[derive(clap::Subcommand)]
pub enum StreamEnd {
    /// Sends until standard input is closed.
    Send {
        /// The address to send to.
        address: SocketAddr,
        /// Packets per second.
        rate: u32,
        /// The file that logs when each packet was sent.
        log: PathBuf,
    },
    /// Receives until standard input is closed.
    Receive {
        /// The address to receive on.
        address: SocketAddr,
        /// The file that logs which packets arrived.
        log: PathBuf,
    },
}

/// Runs one end.
pub fn run_end(end: &StreamEnd) -> Result<()> {
    match end {
        StreamEnd::Send { address, rate, log } => send(*address, *rate, log),
        StreamEnd::Receive { address, log } => receive(*address, log),
    }
}

fn send(address: SocketAddr, rate: u32, log: &Path) -> Result<()> {
    let open = |flow: u32| -> Result<UdpSocket> {
        let socket = UdpSocket::bind(("0.0.0.0", SOURCE_PORT + flow as u16))?;
        socket.set_nonblocking(true)?;
        socket.connect(address)?;
        Ok(socket)
    };
    let sockets = (0..FLOWS).map(open).collect::<Result<Vec<_>>>()?;
    let ended = end_of_input();
    screen::line(0)?;
    let interval = Duration::from_secs(1) / rate.max(1);
    let (start, mut due, mut said) = (Instant::now(), Instant::now(), Instant::now());
    let mut sent: Vec<u64> = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let now = Instant::now();
        if now > due + LATE {
            due = now;
        }
        while due <= now {
            let number = sent.len() as u32;
            let mut payload = [0; PAYLOAD];
            payload[..4].copy_from_slice(&number.to_le_bytes());
            sent.push(start.elapsed().as_nanos() as u64);
            // A packet that the host itself refuses counts as lost, like any other.
            let _ = sockets[(number % FLOWS) as usize].send(&payload);
            due += interval;
        }
        if said.elapsed() > SAY {
            said = Instant::now();
            screen::line(sent.len())?;
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    let bytes: Vec<u8> = sent.iter().flat_map(|at| at.to_le_bytes()).collect();
    fs::write(log, bytes).context("the log cannot be written")
}

fn receive(address: SocketAddr, log: &Path) -> Result<()> {
    let socket = UdpSocket::bind(address)?;
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER)
        .context("cannot enlarge the receive buffer")?;
    socket.set_read_timeout(Some(SAY / 4))?;
    let ended = end_of_input();
    screen::line(0)?;
    let (mut numbers, mut said): (Vec<u32>, Instant) = (Vec::new(), Instant::now());
    let mut payload = [0; PAYLOAD];
    while !ended.load(Ordering::Relaxed) {
        if let Ok(PAYLOAD) = socket.recv(&mut payload) {
            numbers.push(u32::from_le_bytes([payload[0], payload[1], payload[2], payload[3]]));
        }
        if said.elapsed() > SAY {
            said = Instant::now();
            screen::line(numbers.len())?;
        }
    }
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    fs::write(log, bytes).context("the log cannot be written")
}

/// Returns a flag that is set when standard input is closed.
fn end_of_input() -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ended);
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        flag.store(true, Ordering::Relaxed);
    });
    ended
}

/// A running stream.
pub struct RunningStream {
    sender: Process,
    receiver: Process,
}

struct Process {
    started: Started,
    /// The process ends when this is dropped.
    input: ChildStdin,
    /// Its progress.
    count: Arc<AtomicU64>,
    log: PathBuf,
}

impl RunningStream {
    /// Starts a stream with `rate` packets per second from one host to the address of another.
    pub fn start(
        run: &mut Run,
        (from, to): (&Namespace, (&Namespace, &str)),
        rate: u32,
        interrupt: &Interrupt,
    ) -> Result<RunningStream> {
        let (to, address) = to;
        let address = format!("{address}:{PORT}");
        let program = weir::program()?;
        let mut command = to.command(&program);
        command.args(["lab", "stream", "receive", &address]);
        let receiver = Process::start(run, "receiver", &mut command)?;
        receiver.wait_until_it_counts(run, "receiver", interrupt)?;
        let mut command = from.command(&program);
        command.args(["lab", "stream", "send", &address, &rate.to_string()]);
        let sender = Process::start(run, "sender", &mut command)?;
        // On a busy machine, a phase could end before the sender has started.
        sender.wait_until_it_counts(run, "sender", interrupt)?;
        Ok(RunningStream { sender, receiver })
    }

    /// Returns the numbers of packets sent and received so far.
    pub fn counts(&self) -> (u64, u64) {
        let count = |process: &Process| match process.count.load(Ordering::Relaxed) {
            NOTHING => 0,
            count => count,
        };
        (count(&self.sender), count(&self.receiver))
    }

    /// Stops the stream and returns its result.
    pub fn finish(self, run: &mut Run, interrupt: &Interrupt) -> Result<Tally> {
        let (sent, received) = self.end(run, interrupt)?;
        Ok(Tally::of(&sent, &received))
    }

    /// Stops the stream. Returns when each packet was sent, in nanoseconds, and the numbers of those that
    /// arrived, in order.
    pub fn end(self, run: &mut Run, interrupt: &Interrupt) -> Result<(Vec<u64>, Vec<u32>)> {
        let sent = self.sender.end(run, interrupt)?;
        interrupt.sleep(interrupt.limit(SETTLE))?;
        let received = self.receiver.end(run, interrupt)?;
        let sent: Vec<u64> = sent.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let received: Vec<u32> =
            received.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        Ok((sent, received))
    }
}

/// The final part of a stream, in which every continuing flow must have a packet that arrives.
const TAIL: Duration = Duration::from_millis(500);

/// The count of a process that has not printed a line yet.
const NOTHING: u64 = u64::MAX;

impl Process {
    fn start(run: &mut Run, name: &str, command: &mut std::process::Command) -> Result<Process> {
        let log = run.folder().join(format!("{name}.packets"));
        let _ = fs::remove_file(&log);
        let started = run.start(name, command.arg(&log).stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let child = run.child(started);
        let (input, lines) = (child.stdin.take().context("stdin")?, child.stdout.take().context("stdout")?);
        Ok(Process { started, input, count: counts(lines), log })
    }

    fn wait_until_it_counts(&self, run: &mut Run, name: &str, interrupt: &Interrupt) -> Result<()> {
        let counts = || self.count.load(Ordering::Relaxed) != NOTHING;
        let starts =
            interrupt.wait(PATIENCE, || Ok(counts() || run.child(self.started).try_wait()?.is_some()))?;
        if !starts || !counts() {
            bail!("the stream's {name} does not start: {}", run.last_words(name));
        }
        Ok(())
    }

    /// Ends the process and returns its log.
    fn end(self, run: &mut Run, interrupt: &Interrupt) -> Result<Vec<u8>> {
        drop(self.input);
        if !interrupt.wait(PATIENCE, || Ok(run.child(self.started).try_wait()?.is_some()))? {
            bail!("an end of the stream does not end");
        }
        fs::read(&self.log).with_context(|| format!("{} was not written", self.log.display()))
    }
}

/// Returns the number on the last line printed so far.
fn counts(lines: ChildStdout) -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(NOTHING));
    let last = Arc::clone(&count);
    std::thread::spawn(move || {
        for line in BufReader::new(lines).lines().map_while(Result::ok) {
            last.store(line.parse().unwrap_or(NOTHING), Ordering::Relaxed);
        }
    });
    count
}

/// The result of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Packets sent.
    pub sent: u64,
    /// Packets that never arrived.
    pub lost: u64,
    /// Packets that arrived after a later one of their flow (RFC 4737 §3).
    pub reordered: u64,
    /// Copies of packets that had arrived before.
    pub duplicated: u64,
    /// From the first lost packet to the packet with which the last flow resumed; `None` if nothing was lost.
    pub outage_ms: Option<f64>,
    /// Whether every flow resumed: at least one of the packets that it sent after its last loss, or in the
    /// last [`TAIL`], arrived.
    pub back: bool,
}

impl Tally {
    /// Evaluates the send times of packets, by number, and the numbers of the packets that arrived, in order.
    /// Flow `n` consists of the packets whose number modulo the number of flows is `n`.
    pub fn of(sent: &[u64], received: &[u32]) -> Tally {
        let mut came = vec![false; sent.len()];
        let mut latest: BTreeMap<u32, u32> = BTreeMap::new();
        let (mut reordered, mut duplicated) = (0, 0);
        for &number in received.iter().filter(|number| (**number as usize) < sent.len()) {
            if std::mem::replace(&mut came[number as usize], true) {
                duplicated += 1;
                continue;
            }
            let latest = latest.entry(number % FLOWS).or_insert(number);
            reordered += u64::from(number < *latest);
            *latest = number.max(*latest);
        }
        let lost: Vec<usize> = (0..sent.len()).filter(|&number| !came[number]).collect();
        let (all, lost_count) = (sent.len() as u64, lost.len() as u64);
        let mut tally = Tally { sent: all, lost: lost_count, reordered, duplicated, ..Tally::default() };
        let last_lost: BTreeMap<usize, usize> =
            lost.iter().map(|&number| (number % FLOWS as usize, number)).collect();
        let again = |lost: usize| (lost..sent.len()).step_by(FLOWS as usize).find(|&number| came[number]);
        let returns: Vec<Option<usize>> = last_lost.values().map(|&lost| again(lost)).collect();
        // On an overloaded machine, the very last packets may be lost for lack of time.
        let end = sent.last().map_or(0, |last| last.saturating_sub(TAIL.as_nanos() as u64));
        let tail = sent.partition_point(|&at| at < end);
        let goes_on =
            |flow: usize| (tail..sent.len()).any(|number| number % FLOWS as usize == flow && came[number]);
        tally.back =
            last_lost.keys().zip(&returns).all(|(&flow, returned)| returned.is_some() || goes_on(flow));
        if let (Some(&first), Some(&end)) = (lost.first(), returns.iter().flatten().max()) {
            tally.outage_ms = Some((sent[end] - sent[first]) as f64 / 1e6);
        }
        tally
    }

    /// Adds another stream, except for its outage.
    pub fn add(&mut self, other: &Tally) {
        self.sent += other.sent;
        self.lost += other.lost;
        self.reordered += other.reordered;
        self.duplicated += other.duplicated;
        self.back &= other.back;
    }
}

/// Returns the outage of each flow that lost packets, in milliseconds: from its first lost packet to the
/// first packet that arrived after it. If none arrived, the outage lasts until the end of the stream.
pub fn outages_ms(sent: &[u64], received: &[u32]) -> Vec<f64> {
    let mut came = vec![false; sent.len()];
    for &number in received.iter().filter(|number| (**number as usize) < sent.len()) {
        came[number as usize] = true;
    }
    let end = sent.last().copied().unwrap_or_default();
    let outage = |flow: u32| {
        let mut numbers = (flow as usize..sent.len()).step_by(FLOWS as usize);
        let lost = numbers.by_ref().find(|number| !came[*number])?;
        let again = numbers.find(|number| came[*number]).map_or(end, |number| sent[number]);
        Some((again - sent[lost]) as f64 / 1e6)
    };
    (0..FLOWS).filter_map(outage).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flow_has_an_outage_of_its_own() {
        // Flow 3 loses 3 and 19, flow 4 loses 20; flow 5 ends with its first packet lost.
        let gone = |number: u32| [3, 19, 20].contains(&number) || number % FLOWS == 5;
        let received: Vec<u32> = (0..100).filter(|&number| !gone(number)).collect();
        assert_eq!(outages_ms(&times(100), &received), [32.0, 16.0, 94.0]);
        assert!(outages_ms(&[], &[]).is_empty());
    }

    fn times(packets: u64) -> Vec<u64> {
        (0..packets).map(|number| number * 1_000_000).collect()
    }

    #[test]
    fn a_stream_that_comes_whole_and_in_order_has_no_outage() {
        let tally = Tally::of(&times(200), &(0..200).collect::<Vec<u32>>());
        assert_eq!(tally, Tally { sent: 200, back: true, ..Tally::default() });
    }

    #[test]
    fn flows_may_overtake_each_other_but_not_themselves() {
        let other_flows = Tally::of(&times(130), &(0..130).rev().collect::<Vec<u32>>());
        // Two flows have nine packets, fourteen have eight.
        assert_eq!(other_flows.reordered, 2 * 8 + 14 * 7);
        let swapped = Tally::of(&times(3), &[1, 0, 2]);
        assert_eq!((swapped.reordered, swapped.lost), (0, 0));
    }

    #[test]
    fn an_outage_lasts_from_the_first_lost_packet_until_every_flow_is_back() {
        // Flows 3 and 4 lose their packets 3, 4 and 19; then 20 and 35 arrive.
        let received: Vec<u32> = (0..200).filter(|number| ![3, 4, 19].contains(number)).collect();
        let tally = Tally::of(&times(200), &received);
        assert_eq!((tally.lost, tally.outage_ms, tally.back), (3, Some(32.0), true));
        let received: Vec<u32> = (0..200).filter(|number| number % 16 != 5).collect();
        let tally = Tally::of(&times(200), &received);
        assert!(!tally.back && tally.lost == 13, "{tally:?}");
        // The same flow resumes, and loses its last two packets; or its packets arrive in the first half
        // only.
        let ends = |last: u32| move |number: &u32| number % 16 != 5 || *number < last;
        let received: Vec<u32> = (0..2000).filter(ends(1960)).collect();
        assert!(Tally::of(&times(2000), &received).back);
        let received: Vec<u32> = (0..2000).filter(ends(1400)).collect();
        assert!(!Tally::of(&times(2000), &received).back);
    }

    #[test]
    fn a_copy_is_duplicated_and_not_reordered() {
        let tally = Tally::of(&times(40), &(0..40).chain([3, 39]).collect::<Vec<u32>>());
        assert_eq!((tally.duplicated, tally.reordered, tally.lost), (2, 0, 0));
    }

    #[test]
    fn numbers_that_were_never_sent_are_not_counted() {
        assert_eq!(Tally::of(&times(2), &[0, 9, 1]).sent, 2);
    }
}
