//! Labs: weir in network namespaces, with real programs around it and the kernel as witness.
//!
//! A lab does the real job on one machine: no mock, no recording, no network card. It uses Debian's own tools
//! (`ip`, `ethtool`, `nsd`, `nginx`, `dnsperf`, `wrk`, `curl`, `iperf3`, Open vSwitch), each as a process,
//! because the people who read a lab know these commands, and because a process with threads cannot enter a
//! namespace.
//!
//! Promises: a lab ends in bounded time; it fails if a frame or a query is unaccounted for, or if it has
//! shown nothing (`premise`); it leaves nothing behind, even if it is interrupted or killed (`run.rs`).
//!
//! This crate is a library, and a feature of the binary, so that a packaged daemon can be built without it.
//! `bench` uses its processes, namespaces and daemons.

#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod bond;
mod clients;
mod command;
mod daemon;
mod dns;
mod dnsperf;
mod fleet;
pub mod kernel;
mod latency;
mod lb;
pub mod nsd;
pub mod overlay;
pub mod ovs;
mod page;
pub mod path;
mod phase;
pub mod premise;
mod reloads;
mod report;
pub mod screen;
mod session;
mod share;
pub mod spread;
mod stream;
mod topology;
mod verdict;
pub mod weir;
mod witness;

pub use command::{Lab, perform};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Exit code that a shell reports for a program ended by SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Polling interval of [`Interrupt::wait`].
const POLL: Duration = Duration::from_millis(10);

/// The error of a lab that was ended by a signal.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// A flag set by SIGINT and SIGTERM, which every loop of a lab or bench checks. The flag also knows how slow
/// the machine is, because everything that waits needs both.
#[derive(Clone)]
pub struct Interrupt {
    flag: Arc<AtomicBool>,
    slowdown: u32,
}

impl Interrupt {
    /// Installs handlers for both signals.
    pub fn on_signals() -> Result<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, Arc::clone(&flag)).context("cannot handle signals")?;
        }
        Ok(Interrupt { flag, slowdown: 1 })
    }

    /// Returns the same interrupt with time limits `factor` times as long.
    #[must_use]
    pub fn slowed_down_by(self, factor: u32) -> Interrupt {
        Interrupt { slowdown: factor, ..self }
    }

    /// Returns how many times slower this machine is than usual.
    #[must_use]
    pub fn slowdown(&self) -> u32 {
        self.slowdown
    }

    /// Scales a time limit to this machine.
    #[must_use]
    pub fn limit(&self, limit: Duration) -> Duration {
        limit * self.slowdown
    }

    /// Sleeps for `time`. Fails if the lab is interrupted.
    pub fn sleep(&self, time: Duration) -> Result<(), Interrupted> {
        std::thread::sleep(time);
        if self.flag.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
    }

    /// Waits until `is_so` returns true; returns false if that takes longer than `limit`, scaled to this
    /// machine.
    pub fn wait(&self, limit: Duration, mut is_so: impl FnMut() -> Result<bool>) -> Result<bool> {
        let deadline = Instant::now() + self.limit(limit);
        while !is_so()? {
            if Instant::now() > deadline {
                return Ok(false);
            }
            self.sleep(POLL)?;
        }
        Ok(true)
    }
}
