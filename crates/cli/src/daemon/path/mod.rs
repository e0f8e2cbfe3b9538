//! Watches the paths of tunnels for `path` apps: a thread for each, which probes remote nodes, decides which
//! paths are used (crate path), and tells the eBPF programs. It needs nothing of the main thread, so a slow
//! reload moves no path.
//!
//! Promises: frames never wait for the thread, except new flows of DOCA-AR, whose method that is. If it is
//! stuck, frames go on by the paths that were usable last. When the process ends, however it does, the
//! programs are gone.

mod doca;
mod node;
mod prober;
mod telling;
mod turns;
mod uplink;
mod wire;

pub use wire::local_addresses;

use anyhow::{Context, Result};
use prober::Prober;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use weir_path::{Fabric, Wanted};

/// The threads of all path apps.
#[derive(Default)]
pub struct Watched(Vec<Watch>);

/// A thread.
struct Watch {
    fabric: Fabric,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watched {
    /// Goes on with tunnels that are as they were, and begins and ends others. Threads begin with the
    /// caller's privileges.
    pub fn follow(&mut self, wanted: Vec<Wanted>) -> Result<()> {
        let mut before = std::mem::take(&mut self.0);
        let mut new = Vec::new();
        for one in wanted {
            match before.iter().position(|old| old.fabric == one.fabric) {
                Some(at) => self.0.push(before.swap_remove(at)),
                None => new.push(one),
            }
        }
        // Two programs at one uplink would both set ports.
        drop(before);
        for one in new {
            self.0.push(Watch::start(one)?);
        }
        Ok(())
    }
}

impl Watch {
    fn start(wanted: Wanted) -> Result<Watch> {
        let stop = Arc::new(AtomicBool::new(false));
        let (fabric, seen) = (wanted.fabric.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("weir-path".into())
            .spawn(move || Prober::new(wanted, seen).run())
            .context("a thread for paths")?;
        Ok(Watch { fabric, stop, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has been printed; the programs are gone with the thread.
            let _ = thread.join();
        }
    }
}
