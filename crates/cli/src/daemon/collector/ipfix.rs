//! Sends records to an IPFIX collector, on a thread of its own, so that a collector that is away or slow
//! disturbs nothing.
//!
//! Records that cannot be sent are counted and gone: the collector's sequence numbers show the gap over UDP;
//! over TCP a new connection begins at 0. A TCP collector that is away is tried again after
//! [`PAUSES`], each pause twice as long as the one before.

use ::apps::measure::{Export, Ipfix};
use measure::export::Given;
use measure::export::ipfix::Encoder;
use rustix::net::{RecvFlags, recv};
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::{info, warn};

/// Batches that may wait for the thread.
const BATCHES: usize = 64;
/// Records of a batch.
const BATCH: usize = 1024;
/// Bytes of a message: over UDP it fits a packet of Ethernet (RFC 7011 section 10.3.3), over TCP there is no
/// reason for a larger one.
const MESSAGE: usize = 1400;
/// How often templates are sent over UDP: after so much time, and after so many messages.
const TEMPLATES_AFTER: Duration = Duration::from_secs(60);
const TEMPLATES_EVERY: u32 = 500;
/// How long a connection may take to open, and a message to go.
const PATIENCE: Duration = Duration::from_secs(2);
/// The shortest and the longest pause before a TCP collector is tried again.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];

/// The collector's end of an exporter.
pub struct Exporter {
    batch: Vec<Given>,
    batches: SyncSender<Vec<Given>>,
    told: Arc<Counts>,
}

/// What became of records.
#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    lost: AtomicU64,
    works: AtomicBool,
}

impl Exporter {
    /// Starts the thread; it ends with the exporter, when all is sent. If there is no thread, all records
    /// are lost.
    pub fn start(to: Ipfix) -> Exporter {
        let (batches, receiver) = sync_channel(BATCHES);
        let told = Arc::new(Counts::default());
        told.works.store(true, Ordering::Relaxed);
        let mut sender = Sender::new(to, told.clone());
        let run = move || sender.run(&receiver);
        if let Err(error) = std::thread::Builder::new().name("weir-ipfix".into()).spawn(run) {
            warn!("no thread to send flow records to {}: {error}", to.to);
        }
        Exporter { batch: Vec::new(), batches, told }
    }

    /// Gives a record to be sent.
    pub fn give(&mut self, given: Given) {
        self.batch.push(given);
        if self.batch.len() == BATCH {
            self.flush();
        }
    }

    /// Hands the records given so far to the thread; they are lost if it is far behind.
    pub fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let batch = std::mem::take(&mut self.batch);
        let records = batch.len() as u64;
        if self.batches.try_send(batch).is_err() {
            self.told.lost.fetch_add(records, Ordering::Relaxed);
        }
    }

    /// Returns what has become of records.
    pub fn told(&self) -> Export {
        Export {
            sent: self.told.sent.load(Ordering::Relaxed),
            lost: self.told.lost.load(Ordering::Relaxed),
            works: self.told.works.load(Ordering::Relaxed),
        }
    }
}

/// What runs on the thread.
struct Sender {
    to: Ipfix,
    told: Arc<Counts>,
    encoder: Encoder,
    line: Line,
    /// Messages since the templates were sent, and when that was.
    announced: (u32, Instant),
}

/// The way to the collector.
enum Line {
    Udp(UdpSocket),
    Tcp(TcpStream),
    /// None before this time; the pause after the next failure.
    Down(Instant, Duration),
}

impl Sender {
    fn new(to: Ipfix, told: Arc<Counts>) -> Sender {
        let line = Line::Down(Instant::now(), PAUSES[0]);
        Sender { to, told, encoder: Encoder::new(to.domain, MESSAGE), line, announced: (0, Instant::now()) }
    }

    fn run(&mut self, batches: &Receiver<Vec<Given>>) {
        for batch in batches {
            self.send(&batch);
        }
    }

    fn send(&mut self, batch: &[Given]) {
        if !self.is_open() {
            self.told.lost.fetch_add(batch.len() as u64, Ordering::Relaxed);
            return;
        }
        let (messages, since) = self.announced;
        if !self.to.tcp && (messages >= TEMPLATES_EVERY || since.elapsed() >= TEMPLATES_AFTER) {
            self.encoder.announce();
            self.announced = (0, Instant::now());
        }
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as u32);
        let Sender { encoder, line, told, announced, .. } = self;
        let mut failed = None;
        let mut send = |message: &[u8], records: u32| {
            announced.0 += 1;
            // After a failure, the rest of the batch is lost with the connection.
            let sent = if failed.is_some() { Ok(false) } else { line.send(message).map(|()| true) };
            let count = if matches!(sent, Ok(true)) { &told.sent } else { &told.lost };
            count.fetch_add(u64::from(records), Ordering::Relaxed);
            failed = failed.take().or(sent.err());
        };
        batch.iter().for_each(|given| encoder.add(given, now_s, &mut send));
        encoder.finish(now_s, &mut send);
        match failed {
            Some(error) => self.failed(&error),
            None => self.works(),
        }
    }

    /// Whether there is a way to the collector; opens one if it is time.
    fn is_open(&mut self) -> bool {
        if let Line::Tcp(stream) = &self.line
            && is_closed(stream)
        {
            self.failed(&std::io::ErrorKind::ConnectionReset.into());
        }
        let Line::Down(from, _) = self.line else { return true };
        if Instant::now() < from {
            return false;
        }
        match Line::open(self.to) {
            Ok(line) => {
                self.line = line;
                self.encoder.restart();
                self.announced = (0, Instant::now());
                true
            }
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    /// Notes a failure. A connection is over; a datagram that could not be sent is lost alone.
    fn failed(&mut self, error: &std::io::Error) {
        let pause = match self.line {
            Line::Udp(_) => None,
            Line::Tcp(_) => Some(PAUSES[0]),
            Line::Down(_, pause) => Some(pause),
        };
        if let Some(pause) = pause {
            self.line = Line::Down(Instant::now() + pause, (pause * 2).min(PAUSES[1]));
        }
        if self.told.works.swap(false, Ordering::Relaxed) {
            warn!("flow records for {} are lost: {error}", self.to.to);
        }
    }

    fn works(&mut self) {
        if !self.told.works.swap(true, Ordering::Relaxed) {
            info!("flow records are sent to {} again", self.to.to);
        }
    }
}

impl Line {
    fn open(to: Ipfix) -> std::io::Result<Line> {
        if to.tcp {
            let stream = TcpStream::connect_timeout(&to.to, PATIENCE)?;
            stream.set_write_timeout(Some(PATIENCE))?;
            return Ok(Line::Tcp(stream));
        }
        let any: SocketAddr = match to.to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(to.to)?;
        Ok(Line::Udp(socket))
    }

    fn send(&mut self, message: &[u8]) -> std::io::Result<()> {
        match self {
            Line::Udp(socket) => socket.send(message).map(drop),
            Line::Tcp(stream) => stream.write_all(message),
            Line::Down(..) => Err(std::io::ErrorKind::NotConnected.into()),
        }
    }
}

/// Whether the other end has closed a connection: it has nothing to say otherwise.
fn is_closed(stream: &TcpStream) -> bool {
    let mut byte = [0];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    !matches!(recv(stream, &mut byte, flags), Err(rustix::io::Errno::AGAIN))
}

#[cfg(test)]
mod tests;
