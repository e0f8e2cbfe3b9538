//! Minds the caches of `overlay` apps: a thread for each, which loads the eBPF programs, learns from netlink
//! what has changed, and makes void what depends on it. It needs nothing of the main thread.
//!
//! Promises: no frame waits for the thread. While it is stuck, and after the process has ended, however it
//! does, frames take the kernel's way: the programs work only as long as the thread extends their lease, and
//! they and the rule of nftables are gone with the process.

mod change;
mod epochs;
mod keeper;
pub mod left;
mod news;
mod rule;
mod telling;
mod translation;
mod world;

use ::apps::overlay::{Overlay, Wanted};
use anyhow::{Context, Result};
use keeper::Keeper;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The threads of all overlay apps.
#[derive(Default)]
pub struct Kept(Vec<Keep>);

/// A thread.
struct Keep {
    overlay: Overlay,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Kept {
    /// Goes on with overlays that are as they were, and begins and ends others. Threads begin with the
    /// caller's privileges.
    pub fn follow(&mut self, wanted: Vec<Wanted>) -> Result<()> {
        let mut before = std::mem::take(&mut self.0);
        let mut new = Vec::new();
        for one in wanted {
            match before.iter().position(|old| old.overlay == one.overlay) {
                Some(at) => self.0.push(before.swap_remove(at)),
                None => new.push(one),
            }
        }
        // Two caches at one uplink would both mark frames.
        drop(before);
        for one in new {
            self.0.push(Keep::start(one)?);
        }
        Ok(())
    }
}

impl Keep {
    fn start(wanted: Wanted) -> Result<Keep> {
        let stop = Arc::new(AtomicBool::new(false));
        let (overlay, seen) = (wanted.overlay.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("weir-overlay".into())
            .spawn(move || Keeper::new(wanted, seen).run())
            .context("a thread for an overlay")?;
        Ok(Keep { overlay, stop, thread: Some(thread) })
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has been printed; the programs are gone with the thread.
            let _ = thread.join();
        }
    }
}
