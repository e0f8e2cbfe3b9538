//! The order in which a node leaves: it withdraws its routes first, still serves whatever routers send to it,
//! and only then reports what is left, or closes its ports.

use super::announce::inside;
use super::routes::{Bed, Other, TcpServer, VIP, repository, until};
use super::running::Daemon;
use super::systemd::UNIT;
use super::wire::sh;
use rustix::process::Signal;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

/// How many connections stay open.
const LONG: usize = 4;
/// How long a client waits for an answer.
const ANSWER: Duration = Duration::from_secs(30);
/// A daemon that is stopped without a drain still forwards for 200 ms after it has withdrawn its routes. The
/// other half of that time is for a busy machine.
const FAREWELL: Duration = Duration::from_millis(100);

/// Clients are behind p1. The back end is the router, behind p0.
const CONFIG: &str = "\
ports: { p0: { xdp: w0 }, p1: { xdp: w1 } }
apps:
  - lb:
      name: web
      port: p1
      out: p0
      announce: route
      service: { vip: [203.0.113.80, \"2001:db8:f::80\"], protocol: tcp, port: 80 }
      size: 251
      check: { type: tcp, port: 8080, interval: 50ms, timeout: 5s, rise: 1, fall: 1, jitter: 0% }
      back_ends:
        - { name: b1, mac: 02:00:00:00:10:00, address: 10.0.0.2 }
";

/// Sets up a node, its router and clients. What the clients send reaches the node even if the router has no
/// route to the VIP, as with a router that has not heard of a withdrawal. The back end answers through the
/// node's host.
fn bed(name: &str) -> Option<(Bed, TcpServer)> {
    let bed = Bed::new(name)?;
    bed.wire.add(1, 0);
    let (weir, far, third) = (&bed.wire.weir, &bed.wire.far, &bed.wire.third);
    for line in [
        format!("ip -n {far} link set f1 netns {third}"),
        format!("ip -n {third} addr add 10.0.1.2/24 dev f1"),
        format!("ip -n {third} link set f1 up"),
        format!("ip netns exec {third} ethtool -K f1 tx off txvlan off"),
        format!("ip -n {third} route add {VIP} via 10.0.1.1"),
        format!("ip -n {far} addr add {VIP}/32 dev lo"),
        format!("ip -n {far} route add 10.0.1.0/24 via 10.0.0.1"),
        format!("ip netns exec {weir} sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0"),
        format!("ip netns exec {weir} sysctl -qw net.ipv4.conf.w0.rp_filter=0"),
    ] {
        sh(&line);
    }
    let checked = bed.serve();
    Some((bed, checked))
}

/// Lets the back end return every byte that it gets.
fn echo<'s>(scope: &'s Scope<'s, '_>, bed: &Bed, ends: &'s AtomicBool) {
    let listener = inside(&bed.wire.far, || TcpListener::bind(format!("{VIP}:80")).unwrap());
    listener.set_nonblocking(true).unwrap();
    let answer = |mut stream: TcpStream| {
        stream.set_nonblocking(false).unwrap();
        // A client's end may not arrive.
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut byte = [0];
        while !ends.load(Ordering::Relaxed) {
            match stream.read(&mut byte) {
                Ok(1) if stream.write_all(&byte).is_ok() => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(_) | Err(_) => return,
            }
        }
    };
    scope.spawn(move || {
        while !ends.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => drop(scope.spawn(move || answer(stream))),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    });
}

fn connect(bed: &Bed) -> std::io::Result<TcpStream> {
    inside(&bed.wire.third, || {
        let stream = TcpStream::connect_timeout(&format!("{VIP}:80").parse().unwrap(), ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        Ok(stream)
    })
}

/// Sends a byte, which must come back.
fn ask(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"?")?;
    answer(stream)
}

/// Receives a byte.
fn answer(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.read_exact(&mut [0])
}

/// Ends threads, even if the test fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Clients that use connections of before and new ones.
#[derive(Default)]
struct Clients {
    /// In each round, all connections that stay and a new one get an answer.
    rounds: AtomicU64,
    pause: AtomicBool,
    ends: AtomicBool,
}

impl Clients {
    /// Asks until the end, except in a pause.
    fn run(&self, bed: &Bed) {
        let mut long: Vec<_> = (0..LONG).map(|_| connect(bed).unwrap()).collect();
        while !self.ends.load(Ordering::Relaxed) {
            if !self.pause.load(Ordering::Relaxed) {
                let served = long.iter_mut().try_for_each(ask).and_then(|()| ask(&mut connect(bed)?));
                // At the end of the test the back end ends, too, so this request may have failed.
                if self.ends.load(Ordering::Relaxed) {
                    return;
                }
                served.expect("a node that runs refuses nothing");
                self.rounds.fetch_add(1, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until a round has ended that began after this call.
    #[track_caller]
    fn are_served(&self) {
        self.pause.store(false, Ordering::Relaxed);
        let now = self.rounds.load(Ordering::Relaxed);
        until("answers", || (self.rounds.load(Ordering::Relaxed) >= now + 2).then_some(()));
    }
}

/// A `weir drain` that runs.
struct Draining {
    process: Other,
    output: PathBuf,
}

impl Draining {
    fn start(bed: &Bed, daemon: &Daemon, arguments: &str) -> Draining {
        let output = daemon.folder.file("drained");
        let (weir, socket) = (env!("CARGO_BIN_EXE_weir"), daemon.folder.file("weir.sock"));
        let line = format!("{weir} {arguments} --socket {}", socket.display());
        Draining { process: Other::start(&bed.wire.weir, &line, &output), output }
    }

    /// Waits until it ends, and returns what it said.
    fn end(mut self) -> String {
        until("the end of weir drain", || self.process.has_ended().then_some(()));
        std::fs::read_to_string(&self.output).unwrap()
    }
}

#[test]
fn a_node_withdraws_its_routes_before_it_waits_reports_or_stops() {
    let Some((bed, _checked)) = bed("leave") else { return };
    let mut daemon = bed.start(CONFIG);
    bed.wait_for_vips(true);
    let clients = Clients::default();
    std::thread::scope(|scope| {
        let _ending = Ending(&clients.ends);
        echo(scope, &bed, &clients.ends);
        scope.spawn(|| clients.run(&bed));
        clients.are_served();
        let mut draining = Draining::start(&bed, &daemon, "drain --timeout 60s --quiet 4s --json");
        bed.wait_for_vips(false);
        clients.are_served();
        assert!(!draining.process.has_ended(), "it waits while packets arrive");
        clients.pause.store(true, Ordering::Relaxed);
        let said: serde_json::Value = serde_json::from_str(&draining.end()).unwrap();
        assert!(said["quiet"] == true && said["withdrawn"] == 2, "{said}");
        assert!(said["packets"].as_u64() > Some(0) && said["flows"].as_u64() >= Some(LONG as u64), "{said}");
        // Connections that were left still work, and so do new ones.
        clients.are_served();
        assert_eq!(bed.vips_at_router(), [false; 2]);
        daemon.weir(&["undrain"]).good();
        bed.wait_for_vips(true);
        clients.are_served();
        // What systemd does to stop the unit: this command, and then SIGTERM.
        let unit = std::fs::read_to_string(repository().join(UNIT)).unwrap();
        let stop = unit.lines().find_map(|line| line.strip_prefix("ExecStop=-/usr/bin/weir "));
        let draining = Draining::start(&bed, &daemon, stop.expect("the unit drains"));
        bed.wait_for_vips(false);
        clients.are_served();
        clients.pause.store(true, Ordering::Relaxed);
        let said = draining.end();
        assert!(said.contains("2 VIPs withdrawn") && said.contains("flows are left"), "{said}");
        clients.are_served();
    });
    daemon.signal(Signal::TERM);
    assert!(daemon.end().success(), "{}", daemon.log());
    let log = daemon.log();
    let withdrawn = format!("{VIP}/32 is no longer announced: the node is draining");
    let at = [&withdrawn, "the node is no longer draining", &withdrawn, "weir stops: "];
    let found = at.iter().try_fold(log.as_str(), |rest, sentence| Some(rest.split_once(*sentence)?.1));
    assert!(found.is_some(), "{at:?} in this order: {log}");
}

/// Without a drain, a packet that was sent while there was a route is still forwarded.
#[test]
fn a_node_that_is_stopped_withdraws_its_routes_before_its_ports_close() {
    let Some((bed, _checked)) = bed("stop") else { return };
    let mut daemon = bed.start(CONFIG);
    bed.wait_for_vips(true);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ending = Ending(&ends);
        echo(scope, &bed, &ends);
        let mut stream = connect(&bed).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let table = format!("ip -n {} route show table 1850 2>/dev/null || true", bed.wire.weir);
        let (mut turns, begun) = (0, Instant::now());
        loop {
            if turns == 3 {
                daemon.signal(Signal::TERM);
            }
            turns += 1;
            let looked = Instant::now();
            let is_announced = sh(&table).contains(VIP);
            let written = stream.write_all(b"?");
            // Only by now, the packet is on its way, however long this thread had to wait for a processor.
            let sent = looked.elapsed();
            if written.and_then(|()| answer(&mut stream)).is_err() {
                assert!(!is_announced || sent > FAREWELL, "lost after {turns} turns, with a route");
                break;
            }
            assert!(begun.elapsed() < ANSWER, "it does not stop");
        }
        assert!(turns > 3, "it was served before");
    });
    assert!(daemon.end().success(), "{}", daemon.log());
}
