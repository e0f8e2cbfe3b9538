//! Sends records to an IPFIX collector.
//!
//! Records that cannot be sent are counted and discarded: over UDP, the collector sees the gap in the
//! sequence numbers; over TCP, a new connection starts at 0. A TCP collector that is down is retried after
//! [`PAUSES`], each pause twice as long as the one before.

use super::exporter::{Counts, Destination, PAUSES};
use crate::Ipfix;
use crate::export::Given;
use crate::export::ipfix::Encoder;
use rustix::net::{RecvFlags, recv};
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes of a message: over UDP it fits an Ethernet packet (RFC 7011 section 10.3.3), and over TCP there is
/// no reason for larger ones.
const MESSAGE: usize = 1400;
/// How often templates are sent over UDP: after this time, and after a number of messages.
const TEMPLATES_AFTER: Duration = Duration::from_secs(60);
const TEMPLATES_EVERY: u32 = 500;
/// Timeout for opening a connection, and for sending a message.
const PATIENCE: Duration = Duration::from_secs(2);

/// The connection to a collector, and what was sent.
pub struct Sender {
    to: Ipfix,
    tally: Arc<Counts>,
    encoder: Encoder,
    line: CollectorConnection,
    /// Messages since the templates were last sent, and when that was.
    announced: (u32, Instant),
}

/// The connection to the collector.
enum CollectorConnection {
    Udp(UdpSocket),
    Tcp(TcpStream),
    /// There is no connection, and none is attempted before this time. The duration is the pause after the
    /// next failure.
    Down(Instant, Duration),
}

impl Destination for Sender {
    fn send(&mut self, batch: Vec<Given>) {
        self.send_all(&batch);
    }
}

impl Sender {
    /// Creates a sender that has not sent anything.
    pub fn new(to: Ipfix, tally: Arc<Counts>) -> Sender {
        let line = CollectorConnection::Down(Instant::now(), PAUSES[0]);
        Sender { to, tally, encoder: Encoder::new(to.domain, MESSAGE), line, announced: (0, Instant::now()) }
    }

    fn send_all(&mut self, batch: &[Given]) {
        if !self.is_open() {
            self.tally.lost(batch.len() as u64);
            return;
        }
        let (messages, since) = self.announced;
        if !self.to.tcp && (messages >= TEMPLATES_EVERY || since.elapsed() >= TEMPLATES_AFTER) {
            self.encoder.announce();
            self.announced = (0, Instant::now());
        }
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as u32);
        let Sender { encoder, line, tally, announced, .. } = self;
        let mut failed = None;
        let mut send = |message: &[u8], records: u32| {
            announced.0 += 1;
            // After a failure, the rest of the batch is lost with the connection.
            let sent = if failed.is_some() { Ok(false) } else { line.send(message).map(|()| true) };
            let count = if matches!(sent, Ok(true)) { Counts::sent } else { Counts::lost };
            count(tally, u64::from(records));
            failed = failed.take().or(sent.err());
        };
        batch.iter().for_each(|given| encoder.add(given, now_s, &mut send));
        encoder.finish(now_s, &mut send);
        match failed {
            Some(error) => self.failed(&error),
            None => self.tally.works(self.to.to),
        }
    }

    /// Whether there is a connection to the collector; opens one if an attempt is due.
    fn is_open(&mut self) -> bool {
        if let CollectorConnection::Tcp(stream) = &self.line
            && is_closed(stream)
        {
            self.failed(&std::io::ErrorKind::ConnectionReset.into());
        }
        let CollectorConnection::Down(from, _) = self.line else { return true };
        if Instant::now() < from {
            return false;
        }
        match CollectorConnection::open(self.to) {
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

    /// Records a failure. A connection is closed; with datagrams, only the failed one is lost.
    fn failed(&mut self, error: &std::io::Error) {
        let pause = match self.line {
            CollectorConnection::Udp(_) => None,
            CollectorConnection::Tcp(_) => Some(PAUSES[0]),
            CollectorConnection::Down(_, pause) => Some(pause),
        };
        if let Some(pause) = pause {
            self.line = CollectorConnection::Down(Instant::now() + pause, (pause * 2).min(PAUSES[1]));
        }
        self.tally.fails(error, self.to.to);
    }
}

impl CollectorConnection {
    fn open(to: Ipfix) -> std::io::Result<CollectorConnection> {
        if to.tcp {
            let stream = TcpStream::connect_timeout(&to.to, PATIENCE)?;
            stream.set_write_timeout(Some(PATIENCE))?;
            return Ok(CollectorConnection::Tcp(stream));
        }
        let any: SocketAddr = match to.to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(to.to)?;
        Ok(CollectorConnection::Udp(socket))
    }

    fn send(&mut self, message: &[u8]) -> std::io::Result<()> {
        match self {
            CollectorConnection::Udp(socket) => socket.send(message).map(drop),
            CollectorConnection::Tcp(stream) => stream.write_all(message),
            CollectorConnection::Down(..) => Err(std::io::ErrorKind::NotConnected.into()),
        }
    }
}

/// Whether the other end has closed a connection; it sends nothing otherwise.
fn is_closed(stream: &TcpStream) -> bool {
    let mut byte = [0];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    !matches!(recv(stream, &mut byte, flags), Err(rustix::io::Errno::AGAIN))
}

#[cfg(test)]
mod tests;
