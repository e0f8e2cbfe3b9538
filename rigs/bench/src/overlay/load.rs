//! Requests, answers and streams between two pods, or two nodes: both ends of the measurements of `weir bench
//! overlay`, as `weir bench overlay-end`.
//!
//! Each end is a process in a namespace, with all its threads pinned to one processor. If both ends share a
//! processor, the time of a transaction equals its total processor time. With two, waking an idle virtual
//! processor can take longer than the network does, and says more about the hypervisor than about the path.

use std::io::{BufRead, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::{Value, json};
use weir_lab::screen::line;

/// The first port, for TCP and for UDP requests: each flow has its own, so that no two share a socket.
pub const PORT: u16 = 5001;
/// Maximum number of concurrent flows in a row of requests.
pub const FLOWS_MAX: u16 = 32;
/// The port that counts the packets of a stream.
const STREAM_PORT: u16 = 5100;
/// The first port of churn, and the number of ports and of sockets, each pair of which is a flow.
const CHURN_PORT: u16 = 5200;
const CHURN_SOCKETS: u16 = 256;
/// The flows of churn.
pub const CHURN_FLOWS: u32 = CHURN_SOCKETS as u32 * CHURN_SOCKETS as u32;
/// The first source port of churn, below the kernel's ephemeral ports.
const CHURN_SOURCE: u16 = 20_000;
/// The last port.
pub const PORT_LAST: u16 = CHURN_PORT + CHURN_SOCKETS - 1;

/// Warm-up time, in which flows are learnt and nothing is counted.
const WARM: Duration = Duration::from_millis(50);
/// How long an answer may take before it counts as lost.
const PATIENCE: Duration = Duration::from_millis(200);
/// Bytes per packet of a stream.
const SMALL: usize = 64;
/// Bytes written at once.
const CHUNK: usize = 128 << 10;
/// Size of the socket buffer in bytes.
const BUFFER: usize = 8 << 20;
/// Churn requests in flight at once.
const WINDOW: u16 = 32;
/// Packets of a stream between two clock checks.
const BURST: u32 = 64;

/// One end, in its own process.
#[derive(clap::Args)]
pub struct LoadEnd {
    /// The processor for all its threads.
    #[arg(long)]
    cpu: usize,
    #[command(subcommand)]
    role: Role,
}

#[derive(clap::Subcommand)]
enum Role {
    /// Answers until it is killed.
    Answer,
    /// Reads orders from standard input, one `TEST FLOWS MILLISECONDS` per line, and prints the result of
    /// each.
    Ask {
        /// The address to ask.
        address: Ipv4Addr,
    },
    /// Loads the programs of mode `oncache` for a node and prints `ready`; they are removed when the process
    /// ends.
    Cache(super::oncache::OnCacheOptions),
}

/// Runs an end.
pub fn run(end: &LoadEnd) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(end.cpu);
    sched_setaffinity(None, &set).with_context(|| format!("processor {} cannot be used", end.cpu))?;
    match &end.role {
        Role::Answer => answer(),
        Role::Ask { address } => run_orders(*address, end.cpu),
        Role::Cache(options) => super::oncache::run(options),
    }
}

fn any(port: u16) -> (Ipv4Addr, u16) {
    (Ipv4Addr::UNSPECIFIED, port)
}

fn answer() -> Result<()> {
    let listener = TcpListener::bind(any(PORT))?;
    for port in PORT..PORT + FLOWS_MAX {
        let socket = UdpSocket::bind(any(port))?;
        thread::spawn(move || answer_datagrams(&socket));
    }
    let stream = UdpSocket::bind(any(STREAM_PORT))?;
    set_socket_recv_buffer_size_force(&stream, BUFFER)?;
    thread::spawn(move || count_datagrams(&stream));
    let open = |at| -> Result<UdpSocket> {
        let socket = UdpSocket::bind(any(CHURN_PORT + at))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let sockets = (0..CHURN_SOCKETS).map(open).collect::<Result<Vec<_>>>()?;
    thread::spawn(move || answer_many(&sockets));
    line("ready")?;
    for stream in listener.incoming() {
        let stream = stream?;
        thread::spawn(move || answer_stream(stream));
    }
    Ok(())
}

fn answer_datagrams(socket: &UdpSocket) {
    let mut message = [0; 2048];
    while let Ok((length, from)) = socket.recv_from(&mut message) {
        let _ = socket.send_to(&message[..length], from);
    }
}

/// Counts packets; a packet of one byte asks for the count.
fn count_datagrams(socket: &UdpSocket) {
    let (mut message, mut count) = ([0; 2048], 0_u64);
    while let Ok((length, from)) = socket.recv_from(&mut message) {
        if length != 1 {
            count += 1;
        } else {
            let _ = socket.send_to(&count.to_be_bytes(), from);
        }
    }
}

fn answer_many(sockets: &[UdpSocket]) {
    let mut message = [0; 2048];
    let mut waits: Vec<PollFd<'_>> =
        sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
    while poll(&mut waits, None).is_ok() {
        for (socket, _) in sockets.iter().zip(&waits).filter(|(_, wait)| !wait.revents().is_empty()) {
            while let Ok((length, from)) = socket.recv_from(&mut message) {
                let _ = socket.send_to(&message[..length], from);
            }
        }
    }
}

/// Serves a connection. The first byte announces either one-byte requests, or a stream whose bytes are
/// counted.
fn answer_stream(mut stream: TcpStream) -> Option<()> {
    let mut first = [0];
    let _ = stream.set_nodelay(true);
    stream.read_exact(&mut first).ok()?;
    if first == [b'r'] {
        loop {
            stream.read_exact(&mut first).ok()?;
            stream.write_all(&first).ok()?;
        }
    }
    let (mut chunk, mut count) = (vec![0; 2 * CHUNK], 0_u64);
    loop {
        match stream.read(&mut chunk).ok()? {
            0 => return stream.write_all(&count.to_be_bytes()).ok(),
            length => count += length as u64,
        }
    }
}

/// Executes orders until there are no more.
fn run_orders(address: Ipv4Addr, cpu: usize) -> Result<()> {
    let mut flows_of_churn = Churn::new(address)?;
    for order in std::io::stdin().lock().lines() {
        let order = order?;
        let words: Vec<&str> = order.split_whitespace().collect();
        let [test, flows, milliseconds] = words[..] else { bail!("no order: {order}") };
        let (flows, time) = (flows.parse()?, Duration::from_millis(milliseconds.parse()?));
        let answer = match test {
            "tcp_rr" => transactions(flows, time, |_| ask_stream(address)),
            "udp_rr" => transactions(flows, time, |at| ask_datagram(address, at)),
            "tcp_stream" => stream_bytes(address, time),
            "udp_stream" => stream_packets(address, time, cpu, false),
            "udp_one_way" => stream_packets(address, time, cpu, true),
            "churn" => flows_of_churn.transactions(time),
            "some" => some(address, flows, milliseconds.parse()?),
            "some_one_way" => some_one_way(address, flows, milliseconds.parse()?),
            _ => bail!("no such test: {test}"),
        };
        line(answer.with_context(|| order.clone())?)?;
    }
    Ok(())
}

/// Returns the result of an order: a count and a duration.
fn came(count: u64, time: Duration) -> Value {
    json!({ "count": count, "ns": time.as_nanos() as u64 })
}

/// Counts transactions of flows, each in its own thread.
fn transactions<T: FnMut() -> Result<bool>>(
    flows: u16,
    time: Duration,
    open: impl Fn(u16) -> Result<T> + Sync,
) -> Result<Value> {
    if flows > FLOWS_MAX {
        bail!("{flows} flows are too many");
    }
    let begin = Instant::now() + WARM;
    let flow = |at| -> Result<u64> {
        let (mut transaction, mut count) = (open(at)?, 0);
        loop {
            let answered = transaction()?;
            let now = Instant::now();
            if now >= begin + time {
                return Ok(count);
            }
            count += u64::from(answered && now >= begin);
        }
    };
    let flow = &flow;
    let count = thread::scope(|scope| {
        let threads: Vec<_> = (0..flows).map(|at| scope.spawn(move || flow(at))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<u64>>| {
            thread.join().unwrap_or_else(|_| bail!("a flow's thread has ended"))
        };
        threads.into_iter().map(join).sum::<Result<u64>>()
    })?;
    Ok(came(count, time))
}

fn ask_stream(address: Ipv4Addr) -> Result<impl FnMut() -> Result<bool>> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((address, PORT)), PATIENCE * 10)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE * 10))?;
    stream.write_all(b"r")?;
    Ok(move || {
        stream.write_all(&[0])?;
        stream.read_exact(&mut [0])?;
        Ok(true)
    })
}

fn ask_datagram(address: Ipv4Addr, at: u16) -> Result<impl FnMut() -> Result<bool>> {
    let socket = connected(address, PORT + at)?;
    let mut message = [0; 16];
    Ok(move || {
        socket.send(&[0])?;
        Ok(socket.recv(&mut message).is_ok())
    })
}

fn connected(address: Ipv4Addr, port: u16) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(any(0))?;
    socket.connect((address, port))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Counts bytes that arrived over one connection.
fn stream_bytes(address: Ipv4Addr, time: Duration) -> Result<Value> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((address, PORT)), PATIENCE * 10)?;
    stream.write_all(b"s")?;
    let (chunk, begin) = (vec![0; CHUNK], Instant::now());
    while begin.elapsed() < time {
        stream.write_all(&chunk)?;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut count = [0; 8];
    stream.read_exact(&mut count)?;
    Ok(came(u64::from_be_bytes(count), begin.elapsed()))
}

/// Asks how many packets of streams have arrived.
fn arrived(socket: &UdpSocket) -> Result<u64> {
    let mut count = [0; 8];
    for _ in 0..10 {
        socket.send(&[0])?;
        if socket.recv(&mut count).is_ok() {
            return Ok(u64::from_be_bytes(count));
        }
    }
    bail!("no count of arrived packets")
}

/// Counts the 64-byte packets of one flow that arrived, and the nanoseconds that the processor spent in
/// softirqs meanwhile. A one-way flow is never answered, so it is never established.
fn stream_packets(address: Ipv4Addr, time: Duration, cpu: usize, one_way: bool) -> Result<Value> {
    let (asking, other) = (connected(address, STREAM_PORT)?, connected(address, STREAM_PORT)?);
    let socket = if one_way { &other } else { &asking };
    let arrived = || arrived(&asking);
    // Both directions are learnt from these packets.
    for _ in 0..10 {
        arrived()?;
        thread::sleep(WARM / 10);
    }
    let (count, before, begin) = (arrived()?, softirq_ns(cpu)?, Instant::now());
    while begin.elapsed() < time {
        for _ in 0..BURST {
            socket.send(&[0; SMALL])?;
        }
    }
    // The packets that wait at the socket are read first.
    let count = arrived()? - count;
    let mut answer = came(count, begin.elapsed());
    answer["softirq_ns"] = json!(softirq_ns(cpu)? - before);
    Ok(answer)
}

/// Returns the time that a processor has spent in softirqs.
fn softirq_ns(cpu: usize) -> Result<u64> {
    /// The index of that time in a line of /proc/stat, which counts in hundredths of a second.
    const SOFTIRQ: usize = 7;
    const TICK_NS: u64 = 10_000_000;
    let text = std::fs::read_to_string("/proc/stat")?;
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let name = format!("cpu{cpu}");
    let found = words
        .filter(|words| words.first() == Some(&name.as_str()))
        .find_map(|words| words.get(SOFTIRQ).and_then(|ticks| ticks.parse::<u64>().ok()));
    found.map(|ticks| ticks * TICK_NS).context("/proc/stat does not have the processor")
}

/// 65 536 flows that take turns: every socket with every port. They persist across orders, because creating
/// them costs connection tracking more than anything that is measured.
struct Churn {
    address: Ipv4Addr,
    sockets: Vec<UdpSocket>,
    /// The next window: its socket, and its first port.
    next: (usize, u16),
}

impl Churn {
    fn new(address: Ipv4Addr) -> Result<Churn> {
        let open = |at| -> Result<UdpSocket> {
            let socket = UdpSocket::bind(any(CHURN_SOURCE + at))?;
            socket.set_read_timeout(Some(PATIENCE))?;
            Ok(socket)
        };
        let sockets = (0..CHURN_SOCKETS).map(open).collect::<Result<Vec<_>>>()?;
        Ok(Churn { address, sockets, next: (0, 0) })
    }

    /// Counts transactions, after each flow has had one: while other arms had their turns, the flows were
    /// idle.
    fn transactions(&mut self, time: Duration) -> Result<Value> {
        let (mut count, mut lost) = (0, 0);
        for _ in 0..CHURN_FLOWS / u32::from(WINDOW) {
            let answered = self.window()?;
            if answered == 0 {
                bail!("none of {WINDOW} requests was answered");
            }
            lost += u64::from(WINDOW) - answered;
        }
        let begin = Instant::now();
        while begin.elapsed() < time {
            let answered = self.window()?;
            count += answered;
            lost += u64::from(WINDOW) - answered;
        }
        let mut answer = came(count, begin.elapsed());
        answer["lost"] = json!(lost);
        Ok(answer)
    }

    /// Sends the requests of the next window, and returns how many were answered.
    fn window(&mut self) -> Result<u64> {
        let (socket, first) = (&self.sockets[self.next.0], self.next.1);
        for at in first..first + WINDOW {
            socket.send_to(&[0], (self.address, CHURN_PORT + at))?;
        }
        let answered = (0..WINDOW).filter(|_| socket.recv(&mut [0; 16]).is_ok()).count();
        self.next.0 = (self.next.0 + 1) % self.sockets.len();
        if self.next.0 == 0 {
            self.next.1 = (first + WINDOW) % CHURN_SOCKETS;
        }
        Ok(answered as u64)
    }
}

/// Sends `packets` packets of a length, each after the answer to the previous one. The same number of short
/// packets is sent first, from which the flow is learnt.
fn some(address: Ipv4Addr, packets: u16, length: usize) -> Result<Value> {
    let socket = connected(address, PORT)?;
    let (mut count, begin, mut message) = (0, Instant::now(), [0; 2048]);
    for length in [1, length] {
        count = 0;
        for _ in 0..packets {
            socket.send(&vec![0; length])?;
            count += u64::from(socket.recv(&mut message).is_ok());
        }
    }
    Ok(came(count, begin.elapsed()))
}

/// Sends `packets` packets of a length in a flow that is never answered.
fn some_one_way(address: Ipv4Addr, packets: u16, length: usize) -> Result<Value> {
    let (asking, socket) = (connected(address, STREAM_PORT)?, connected(address, STREAM_PORT)?);
    let (count, begin) = (arrived(&asking)?, Instant::now());
    for _ in 0..packets {
        socket.send(&vec![0; length])?;
    }
    Ok(came(arrived(&asking)? - count, begin.elapsed()))
}
