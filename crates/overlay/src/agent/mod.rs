//! Maintains the caches of overlays: a thread for each, which loads the eBPF programs, learns from netlink
//! what has changed, and invalidates what depends on it. It is independent of the main thread.
//!
//! Promises: no frame waits for the thread. While it is stuck, and after the process has ended for whatever
//! reason, frames take the kernel's path: the programs work only as long as the thread extends their lease,
//! and they and the nftables rule disappear with the process.

mod change;
mod epochs;
mod giver;
mod keeper;
mod left;
mod news;
mod others;
mod reporter;
pub mod rule;
mod table;
mod translation;
mod world;

pub use keeper::needed_settings;
pub use left::Left;

use crate::yaml::overlays;
use crate::{Overlay, Wanted, doctor};
use anyhow::{Context, Result};
use giver::Giver;
use keeper::Keeper;
use news::MessageSource;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use table::Table;
use weir_app::agent::{Agent, FlowTable, Host};
use weir_app::doctor::{Examined, Finding};
use weir_app::kind::Apps;
use world::{Parts, Pods, World};

/// Returns the agent of overlay apps.
pub fn create() -> Box<dyn Agent> {
    Box::<Kept>::default()
}

/// The threads of all overlay apps.
#[derive(Default)]
struct Kept(Vec<Keep>);

/// The thread of one app.
struct Keep {
    overlay: Overlay,
    stop: Arc<AtomicBool>,
    table: Arc<Table>,
    thread: Option<JoinHandle<()>>,
}

impl Agent for Kept {
    fn findings(&self, examined: &Examined<'_>) -> Vec<Finding> {
        doctor::findings(examined)
    }

    fn follow(&mut self, apps: &Apps, host: &Host<'_>) -> Result<()> {
        let mut before = std::mem::take(&mut self.0);
        let mut new = Vec::new();
        for one in overlays(apps) {
            match before.iter().position(|old| old.overlay == one.overlay) {
                Some(at) => self.0.push(before.swap_remove(at)),
                None => new.push(one),
            }
        }
        // Two caches at one uplink would both mark frames.
        drop(before);
        for one in new {
            self.0.push(Keep::start(one, host)?);
        }
        Ok(())
    }

    fn flow_tables(&self) -> Vec<Arc<dyn FlowTable>> {
        self.0.iter().map(|keep| -> Arc<dyn FlowTable> { keep.table.clone() }).collect()
    }
}

impl Keep {
    fn start(wanted: Wanted, host: &Host<'_>) -> Result<Keep> {
        let stop = Arc::new(AtomicBool::new(false));
        let (overlay, seen) = (wanted.overlay.clone(), stop.clone());
        let table = Arc::new(Table::new(&overlay.name, host.clock));
        let giver = Giver::new((host.open_ring)()?, host.clock, overlay.idle_ns, table.clone());
        let shown = table.clone();
        let thread = std::thread::Builder::new()
            .name("weir-overlay".into())
            .spawn(move || Keeper::new(wanted, seen, giver, shown).run())
            .context("a thread for an overlay")?;
        Ok(Keep { overlay, stop, table, thread: Some(thread) })
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The panic message has been printed; the programs are gone with the thread.
            let _ = thread.join();
        }
    }
}

/// Reads messages of either kind of netlink, and their bodies as tuples, like the thread of an overlay that
/// knows a tunnel, an uplink and a bridge. For fuzzers.
pub fn read_messages<'a>(messages: impl Iterator<Item = (u16, &'a [u8])>) {
    let mut world = World::new(Parts { tunnel: 2, uplink: 3, pods: Pods::Bridge(4) }, Vec::new());
    for (kind, body) in messages {
        for source in [MessageSource::Route, MessageSource::Filter] {
            world.take(source, kind, body, &mut Vec::new());
        }
        let _ = translation::read(body);
    }
}
