//! The elephant: one flow of full-sized UDP packets at a constant rate, which does not slow down when packets
//! are lost. It is a process in a namespace (`weir lab elephant`), suspended while a measurement does not
//! need it.

use std::net::{SocketAddr, UdpSocket};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::topology::{ELEPHANT, Topology, UPLINK};
use crate::premise::premise;
use crate::weir;
use weir_bed::Namespace;
use weir_bed::{Run, Started};

/// Bytes of a packet after its UDP header, and of the whole frame.
const PAYLOAD: usize = 1400;
const FRAME: usize = PAYLOAD + 8 + 20 + 14;
/// Interval between groups of packets: with longer pauses, other flows would find room in a full queue.
const STEP: Duration = Duration::from_micros(100);
/// The longest pause (scaled on a slow machine) after which missed packets are still sent; after a longer
/// one, they are skipped.
const LATE: Duration = Duration::from_millis(50);
/// A port on which nothing listens; its host drops the packets.
const PORT: u16 = 9;

/// The options of the process.
#[derive(clap::Args)]
pub struct ElephantOptions {
    /// The address to send to.
    address: SocketAddr,
    /// Bits per second, including Ethernet headers.
    rate_bps: u64,
    /// How many times slower this machine is than usual.
    #[arg(long, default_value_t = 1)]
    slowdown: u32,
}

/// Sends until the process is killed.
pub fn run(options: &ElephantOptions) -> Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(options.address)?;
    let gap = Duration::from_secs_f64(8.0 * FRAME as f64 / options.rate_bps as f64);
    let mut due = Instant::now();
    loop {
        let now = Instant::now();
        if now > due + LATE * options.slowdown {
            due = now;
        }
        while due <= now {
            // The receiver's port is closed, so its host may send ICMP errors; ignore them.
            let _ = socket.send(&[0; PAYLOAD]);
            due += gap;
        }
        std::thread::sleep(STEP);
    }
}

/// The name of the elephant's process and of its log.
const NAME: &str = "elephant";

/// A running elephant.
pub struct Elephant {
    process: Started,
    /// The bits per second that fill a link.
    link_bps: f64,
    /// While the elephant sends: when it started, and the bytes sent up to then.
    since: Option<(Instant, u64)>,
}

impl Elephant {
    /// Starts the elephant, suspended, with `rate_mbit` Mbit/s, on a machine that is `slowdown` times slower
    /// than usual.
    pub fn start(run: &mut Run, topology: &Topology, rate_mbit: u32, slowdown: u32) -> Result<Elephant> {
        let (to, rate) = (format!("{ELEPHANT}:{PORT}"), u64::from(rate_mbit) * 1_000_000);
        // The elephant must not wait for other programs on this machine: a late elephant sends bursts, which
        // are lost.
        let mut command = topology.from.command("chrt");
        command.args(["--fifo", "1", &weir::program()?]);
        command.args(["lab", "elephant", &to, &rate.to_string()]);
        command.args(["--slowdown", &slowdown.to_string()]).stdout(Stdio::null());
        let process = run.start(NAME, &mut command)?;
        run.hold(process);
        Ok(Elephant { process, link_bps: f64::from(topology.rate_mbit) * 1e6, since: None })
    }

    /// Resumes sending.
    pub fn go_on(&mut self, run: &mut Run, topology: &Topology) -> Result<()> {
        // On an emulated machine, the reading takes a fraction of a second, during which the elephant sends
        // nothing.
        let before = sent(&topology.from)?;
        self.since = Some((Instant::now(), before));
        run.go_on(self.process);
        Ok(())
    }

    /// Suspends sending.
    ///
    /// # Errors
    /// The elephant has ended, or has sent too little to fill a link: the measurements in the meantime lacked
    /// the load that they claim.
    pub fn hold(&mut self, run: &mut Run, topology: &Topology) -> Result<()> {
        let Some((start, before)) = self.since.take() else { return Ok(()) };
        let (time, after) = (start.elapsed(), sent(&topology.from)?);
        run.hold(self.process);
        let ended = run.child(self.process).try_wait()?;
        premise(ended.is_none(), || {
            format!(
                "the elephant has ended, so the comparison has no load; it needs real-time scheduling \
                 (`chrt --fifo 1 true` must work):\n{}",
                run.last_words(NAME)
            )
        })?;
        fills(after.saturating_sub(before), time, self.link_bps)
    }
}

/// Fails if the elephant does not fill a link.
fn fills(bytes: u64, time: Duration, link_bps: f64) -> Result<()> {
    let rate = 8.0 * bytes as f64 / time.as_secs_f64();
    premise(rate >= link_bps, || {
        format!(
            "the elephant has sent {:.0} Mbit/s, which does not fill a link of {:.0} Mbit/s: this machine is \
             too busy or too slow for the comparison",
            rate / 1e6,
            link_bps / 1e6
        )
    })?;
    Ok(())
}

/// Returns the bytes that have left the elephant's namespace.
fn sent(from: &Namespace) -> Result<u64> {
    let file = format!("/sys/class/net/{UPLINK}/statistics/tx_bytes");
    let text = from.output("cat", &[&file])?;
    text.trim().parse().with_context(|| format!("{file}: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_elephant_that_leaves_room_on_its_link_is_refused() {
        let second = Duration::from_secs(1);
        assert!(fills(25_000_000, second, 200e6).is_ok());
        for bytes in [0, 24_000_000] {
            let error = fills(bytes, second, 200e6).unwrap_err().to_string();
            assert!(error.contains("does not fill a link of 200 Mbit/s"), "{error}");
        }
    }
}
