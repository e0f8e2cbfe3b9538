//! The elephant: one flow of full-sized UDP packets at a constant rate, which does not slow down when packets
//! are lost. It is a process in a namespace (`weir lab elephant`), held while a measurement does without.

use std::net::{SocketAddr, UdpSocket};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::topology::{ELEPHANT, Topology};
use crate::run::{Run, Started};
use crate::weir;

/// Bytes of a packet behind its UDP header, and of the frame around it.
const PAYLOAD: usize = 1400;
const FRAME: usize = PAYLOAD + 8 + 20 + 14;
/// Packets are sent in groups so far apart: with longer pauses, other flows would find room in a full queue.
const STEP: Duration = Duration::from_micros(100);
/// After a longer pause, what should have been sent is not made up for.
const LATE: Duration = Duration::from_millis(50);
/// Nobody listens there; its host drops the packets.
const PORT: u16 = 9;

/// The options of the process.
#[derive(clap::Args)]
pub struct Options {
    /// The address to send to.
    address: SocketAddr,
    /// Bits per second, Ethernet headers included.
    rate_bps: u64,
}

/// Sends until the process is ended.
pub fn run(options: &Options) -> Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(options.address)?;
    let gap = Duration::from_secs_f64(8.0 * FRAME as f64 / options.rate_bps as f64);
    let mut due = Instant::now();
    loop {
        let now = Instant::now();
        if now > due + LATE {
            due = now;
        }
        while due <= now {
            // The receiver's port is closed, which its host may say: no reason to stop.
            let _ = socket.send(&[0; PAYLOAD]);
            due += gap;
        }
        std::thread::sleep(STEP);
    }
}

/// A running elephant.
pub struct Elephant(Started);

impl Elephant {
    /// Starts it with so many Mbit/s, held.
    pub fn start(run: &mut Run, topology: &Topology, rate_mbit: u32) -> Result<Elephant> {
        let (to, rate) = (format!("{ELEPHANT}:{PORT}"), u64::from(rate_mbit) * 1_000_000);
        // It must not wait for what else runs on this machine: a late elephant comes in bursts, which are
        // lost.
        let mut command = topology.from.command("chrt");
        command.args(["--fifo", "1", &weir::program()?]);
        command.args(["lab", "elephant", &to, &rate.to_string()]).stdout(Stdio::null());
        let elephant = Elephant(run.start("elephant", &mut command)?);
        elephant.hold(run);
        Ok(elephant)
    }

    /// Has it send.
    pub fn go_on(&self, run: &mut Run) {
        run.go_on(self.0);
    }

    /// Has it stop sending.
    pub fn hold(&self, run: &mut Run) {
        run.hold(self.0);
    }
}
