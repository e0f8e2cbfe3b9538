//! Simulates many clients with one host by constantly changing the source address of queries.
//!
//! Load balancing by 5-tuple is even over flows, not over packets. dnsperf's sockets alone would be only a
//! few hundred flows, for which the shares of three back ends differ by 10 % by chance. Therefore the route
//! to the server gets a new preferred source address every few milliseconds: before dnsperf uses a socket
//! again, its address has changed, and every query is a flow of its own.

use std::io::Write;
use std::process::{ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::dnsperf::SOCKETS;
use super::topology::{CLIENTS_COUNT, INTERFACE};
use weir_bed::Namespace;
use weir_bed::Run;

/// Shortest interval between changes. Routes could change faster, but each change takes CPU time from the
/// load.
const INTERVAL_MIN: Duration = Duration::from_millis(4);
const INTERVAL_MAX: Duration = Duration::from_millis(100);

/// Changes the client address until it is stopped.
pub struct Clients {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

impl Clients {
    /// Makes queries to `server`, `rate` per second, come from ever-changing addresses of `client`.
    pub fn start(run: &mut Run, client: &Namespace, server: &'static str, rate: u32) -> Result<Clients> {
        let mut command = client.command("ip");
        command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let ip = run.start("clients", &mut command)?;
        let mut lines = run.child(ip).stdin.take().context("no pipe to ip")?;
        change(&mut lines, server, 0)?;
        // Twice in the time that dnsperf takes to use all its sockets.
        let interval = Duration::from_secs_f64(f64::from(SOCKETS) / f64::from(rate.max(1)) / 2.0);
        let interval = interval.clamp(INTERVAL_MIN, INTERVAL_MAX);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut addresses = 1;
            while !stopped.load(Ordering::Relaxed) && change(&mut lines, server, addresses).is_ok() {
                addresses += 1;
                std::thread::sleep(interval);
            }
            addresses
        });
        Ok(Clients { stop, thread })
    }

    /// Stops, and returns how many addresses were used.
    pub fn stop(self) -> Result<u32> {
        self.stop.store(true, Ordering::Relaxed);
        let Ok(addresses) = self.thread.join() else {
            bail!("the thread that changes client addresses panicked")
        };
        Ok(addresses.min(CLIENTS_COUNT))
    }
}

fn change(lines: &mut ChildStdin, server: &str, number: u32) -> std::io::Result<()> {
    let number = number % CLIENTS_COUNT;
    let address = format!("10.77.{}.{}", 128 + number / 256, number % 256);
    lines.write_all(format!("route replace {server} dev {INTERFACE} src {address}\n").as_bytes())
}
