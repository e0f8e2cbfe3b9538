//! Watches the paths of tunnels: a thread for each app at an uplink, which probes remote nodes, decides which
//! paths are used, and updates the eBPF programs. It is independent of the main thread, so a slow reload
//! moves no path.
//!
//! Promises: frames never wait for the thread, except new flows of DOCA-AR, where waiting is the method. If
//! it is stuck, frames keep using the last usable paths. When the process ends, for whatever reason, the
//! programs are removed.

mod doca;
mod node;
mod prober;
mod reporter;
mod turns;
mod uplink;
mod wire;

use crate::yaml::fabrics;
use crate::{Fabric, Wanted, doctor};
use anyhow::{Context, Result};
use prober::Prober;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use weir_app::agent::{Agent, Host};
use weir_app::doctor::{Examined, Finding};
use weir_app::kind::Apps;

/// Returns the agent of path apps.
pub fn create() -> Box<dyn Agent> {
    Box::<Watched>::default()
}

/// The threads of all path apps.
#[derive(Default)]
struct Watched(Vec<Watch>);

/// The thread of one app.
struct Watch {
    fabric: Fabric,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agent for Watched {
    fn findings(&self, examined: &Examined<'_>) -> Vec<Finding> {
        doctor::findings(examined)
    }

    fn follow(&mut self, apps: &Apps, _: &Host<'_>) -> Result<()> {
        let mut before = std::mem::take(&mut self.0);
        let mut new = Vec::new();
        for one in fabrics(apps) {
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
            // The panic message has been printed; the programs are gone with the thread.
            let _ = thread.join();
        }
    }
}
