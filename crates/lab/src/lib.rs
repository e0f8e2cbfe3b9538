//! Labs: weir in network namespaces, with real programs around it and the kernel as witness.
//!
//! A lab is the main job done for real on one machine: no mock, no capture, no network card. Everything in it is made by
//! Debian's own tools (`ip`, `ethtool`, `nsd`, `dnsperf`, `iperf3`, Open vSwitch), one process each, because a lab is read by
//! people who know these commands, and because namespaces cannot be entered from a process that has threads.
//!
//! What a lab promises: it ends in bounded time, it ends with failure when a frame or a query is unaccounted for, and it
//! leaves nothing behind, also when it is interrupted or was killed (`run.rs`).
//!
//! It is a library, and a feature of the binary, so that a packaged daemon can do without it. `bench` uses its processes,
//! namespaces and daemons.

mod bond;
mod clients;
mod command;
mod daemon;
mod dns;
mod dnsperf;
mod latency;
pub mod namespace;
mod nsd;
pub mod ovs;
mod reloads;
mod report;
pub mod run;
pub mod screen;
mod share;
pub mod spread;
mod topology;
mod verdict;
pub mod weir;
mod witness;

pub use command::{Lab, perform};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

/// What a shell reports for a program that SIGINT has ended.
pub const INTERRUPTED: u8 = 130;

/// What a lab returns when a signal ended it.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// Set by SIGINT and SIGTERM; every loop of a lab or bench asks for it.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From here on signals are heard.
    pub fn on_signals() -> Result<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&flag)).context("cannot handle signals")?;
        }
        Ok(Interrupt(flag))
    }

    /// Sleeps for `time`, unless the lab is interrupted: then that is the error.
    pub fn sleep(&self, time: Duration) -> Result<(), Interrupted> {
        std::thread::sleep(time);
        if self.0.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
    }
}
