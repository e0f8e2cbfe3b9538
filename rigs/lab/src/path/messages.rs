//! Concurrent messages over TCP, each over its own connection, and the time that each of them takes.
//!
//! The time of a flow is from its `connect` until the receiver closes the connection, which it does when it
//! has read everything. iperf prints the same time in its summary, but including its own startup.
//!
//! Sender and receiver are processes in namespaces (`weir lab messages`) that live for many runs: the sender
//! reads a line `FLOWS BYTES` for each run, and prints the flows' times in nanoseconds. On a line `connect
//! MS`, it opens and closes connections, one after another, for that time, and prints their number.

use std::io::{self, BufRead, BufReader, Lines, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::net::sockopt::{set_socket_linger, set_tcp_congestion};

use super::topology::{INNER_B, Topology};
use crate::{Interrupt, screen, weir};
use weir_bed::{Run, Started};

/// How long a flow may take: retransmission timers double from 0.2 s. A flow that takes longer is aborted,
/// and counts with this time.
pub const LIMIT: Duration = Duration::from_secs(20);
/// How long the processes may take to start.
const START: Duration = Duration::from_secs(60);
const PORT: u16 = 9001;
/// The congestion control of flows. A kernel's default may be BBR, which does not slow down for a full queue.
const CONGESTION_CONTROL: &str = "cubic";
/// Bytes written at once.
const CHUNK: usize = 64 << 10;

/// One end of the messages, in its own process.
#[derive(clap::Subcommand)]
pub enum MessageEnd {
    /// Sends the messages that each line of standard input requests, until it is closed.
    Send {
        /// The address to connect to.
        address: SocketAddr,
    },
    /// Receives, until standard input is closed.
    Receive {
        /// The address to listen on.
        address: SocketAddr,
    },
}

/// Runs one end.
pub fn run_end(end: &MessageEnd) -> Result<()> {
    match end {
        MessageEnd::Send { address } => send(*address),
        MessageEnd::Receive { address } => receive(*address),
    }
}

fn send(address: SocketAddr) -> Result<()> {
    screen::line("ready")?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (flows, bytes) = line.split_once(' ').context("a line is `FLOWS BYTES` or `connect MS`")?;
        if flows == "connect" {
            screen::line(connections(address, Duration::from_millis(bytes.parse()?))?)?;
            continue;
        }
        let times = flow_times(address, flows.parse()?, bytes.parse()?)?;
        let times: Vec<String> = times.iter().map(u64::to_string).collect();
        screen::line(times.join(" "))?;
    }
    Ok(())
}

/// Sends a message of `bytes` over each of `flows` connections at once and returns their times in
/// nanoseconds.
fn flow_times(address: SocketAddr, flows: usize, bytes: usize) -> Result<Vec<u64>> {
    let together = Barrier::new(flows);
    let one = || -> Result<u64> {
        together.wait();
        let start = Instant::now();
        match flow(address, bytes, start + LIMIT) {
            Err(error) if is_timeout(&error) => Ok(LIMIT.as_nanos() as u64),
            ended => Ok(ended.map(|()| start.elapsed().min(LIMIT).as_nanos() as u64)?),
        }
    };
    thread::scope(|scope| {
        let flows: Vec<_> = (0..flows).map(|_| scope.spawn(one)).collect();
        flows.into_iter().map(|flow| flow.join().expect("a flow does not panic")).collect()
    })
}

/// Sends a message over its own connection, and waits until the receiver has closed it. When `until` has
/// passed, the connection is reset: it must not disturb the next ones.
fn flow(address: SocketAddr, bytes: usize, until: Instant) -> io::Result<()> {
    let left = || until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let mut stream = TcpStream::connect_timeout(&address, left())?;
    set_tcp_congestion(&stream, CONGESTION_CONTROL)?;
    set_socket_linger(&stream, Some(Duration::ZERO))?;
    let chunk = [0; CHUNK];
    let mut unsent = bytes;
    while unsent > 0 {
        stream.set_write_timeout(Some(left()))?;
        unsent -= stream.write(&chunk[..unsent.min(CHUNK)])?;
    }
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(left()))?;
    stream.read_to_end(&mut Vec::new()).map(drop)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

/// Repeatedly opens a connection, sends a byte, and waits until the receiver has closed it. Returns the
/// number of connections.
fn connections(address: SocketAddr, time: Duration) -> Result<u64> {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < time {
        flow_times(address, 1, 1)?;
        count += 1;
    }
    Ok(count)
}

fn receive(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address)?;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(io::Result::ok) {
            thread::spawn(move || drain(stream));
        }
    });
    screen::line("ready")?;
    let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
    Ok(())
}

fn drain(mut stream: TcpStream) {
    let _ = stream.set_read_timeout(Some(LIMIT));
    let mut chunk = vec![0; CHUNK];
    while stream.read(&mut chunk).is_ok_and(|bytes| bytes > 0) {}
}

/// Running processes.
pub struct Messages {
    sender: Process,
    /// Ends when this value is dropped.
    _receiver: Process,
}

struct Process {
    started: Started,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Messages {
    /// Starts both ends: from host a to host b, through the tunnel.
    pub fn start(run: &mut Run, topology: &Topology) -> Result<Messages> {
        let (program, to) = (weir::program()?, format!("{INNER_B}:{PORT}"));
        let mut command = topology.b.preferred(&program);
        let receiver = Process::start(run, "receiver", command.args(["lab", "messages", "receive", &to]))?;
        let mut command = topology.a.preferred(&program);
        let sender = Process::start(run, "sender", command.args(["lab", "messages", "send", &to]))?;
        Ok(Messages { sender, _receiver: receiver })
    }

    /// Opens and closes connections for `time`, and returns their number.
    pub fn connect(&mut self, run: &mut Run, time: Duration) -> Result<u64> {
        writeln!(self.sender.input, "connect {}", time.as_millis()).context("the sender has ended")?;
        Ok(self.sender.line(run)?.parse()?)
    }

    /// Starts sending a message of `bytes` over each of `flows` connections.
    pub fn begin(&mut self, flows: usize, bytes: usize) -> Result<()> {
        writeln!(self.sender.input, "{flows} {bytes}").context("the sender has ended")
    }

    /// Waits for the end of the messages that were started last, and returns how many milliseconds each took.
    pub fn end(&mut self, run: &mut Run, interrupt: &Interrupt) -> Result<Vec<f64>> {
        let line = self.sender.line(run)?;
        interrupt.sleep(Duration::ZERO)?;
        line.split(' ').map(|time| Ok(time.parse::<u64>()? as f64 / 1e6)).collect()
    }
}

impl Process {
    fn start(run: &mut Run, name: &str, command: &mut std::process::Command) -> Result<Process> {
        let started = run.start(name, command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let child = run.child(started);
        let (input, output) = (child.stdin.take().context("stdin")?, child.stdout.take().context("stdout")?);
        let mut process = Process { started, input, lines: BufReader::new(output).lines() };
        let start = Instant::now();
        if process.line(run)? != "ready" || start.elapsed() > START {
            bail!("{name} does not start: {}", run.last_words(name));
        }
        Ok(process)
    }

    /// Returns the next line of the sender's output.
    fn line(&mut self, run: &mut Run) -> Result<String> {
        match self.lines.next() {
            Some(line) => Ok(line?),
            None => {
                let status = run.child(self.started).wait()?;
                let (one, other) = (run.last_words("sender"), run.last_words("receiver"));
                bail!("an end of the messages has ended ({status}): {one}{other}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_end_when_the_receiver_has_everything() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let receiver = thread::spawn(move || {
            let bytes = |stream: std::io::Result<TcpStream>| {
                let mut all = Vec::new();
                stream.unwrap().read_to_end(&mut all).unwrap();
                all.len()
            };
            listener.incoming().take(3).map(bytes).collect::<Vec<_>>()
        });
        let times = flow_times(address, 3, 100_000).unwrap();
        assert_eq!(receiver.join().unwrap(), [100_000; 3]);
        assert!(times.len() == 3 && times.iter().all(|&time| time > 0), "{times:?}");
    }

    #[test]
    fn a_flow_that_takes_too_long_is_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let until = Instant::now() + Duration::from_millis(100);
        let error = flow(address, 100_000_000, until).unwrap_err();
        assert!(is_timeout(&error), "{error}");
        let (mut stream, _) = listener.accept().unwrap();
        let error = stream.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
