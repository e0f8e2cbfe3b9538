//! Maintains the caches of `overlay` apps: a thread for each, which loads the eBPF programs, learns from
//! netlink what has changed, and invalidates what depends on it. It is independent of the main thread.
//!
//! Promises: no frame waits for the thread. While it is stuck, and after the process has ended for whatever
//! reason, frames take the kernel's path: the programs work only as long as the thread extends their lease,
//! and they and the nftables rule disappear with the process.

mod change;
mod epochs;
mod giver;
mod keeper;
pub mod left;
mod news;
mod others;
pub mod rule;
mod table;
mod telling;
mod translation;
mod world;

use super::clock::Clock;
use super::collector::{Collector, RING};
use anyhow::{Context, Result};
use giver::Giver;
use keeper::Keeper;
pub use keeper::needed_settings;
use news::Source;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
pub use table::Table;
use weir_app::kind::Apps;
use weir_overlay::{Overlay, Wanted};
use world::{Parts, Pods, World};

/// The threads of all overlay apps.
#[derive(Default)]
pub struct Kept(Vec<Keep>);

/// The thread of one app.
struct Keep {
    overlay: Overlay,
    stop: Arc<AtomicBool>,
    /// How often its flows export their counts.
    period_ms: Arc<AtomicU64>,
    table: Table,
    thread: Option<JoinHandle<()>>,
}

impl Kept {
    /// Keeps overlays that are unchanged, and starts and stops others. Threads start with the caller's
    /// privileges.
    pub fn follow(&mut self, apps: &Apps, clock: Clock, collector: &Collector) -> Result<()> {
        let wanted = apps.wanted::<weir_overlay::Wanted>();
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
            self.0.push(Keep::start(one, clock, collector)?);
        }
        let measured: Vec<_> =
            apps.wanted::<weir_measure::Measurement>().into_iter().filter_map(|one| one.overlay).collect();
        for keep in &self.0 {
            let of = measured.iter().find(|of| of.name == keep.overlay.name);
            keep.period_ms.store(of.map_or(0, |of| of.flush_ms), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the readers of each overlay's flows.
    pub fn tables(&self) -> Vec<Table> {
        self.0.iter().map(|keep| keep.table.clone()).collect()
    }
}

impl Keep {
    fn start(wanted: Wanted, clock: Clock, collector: &Collector) -> Result<Keep> {
        let (stop, period_ms) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (overlay, seen) = (wanted.overlay.clone(), stop.clone());
        let (deltas, ring) = weir_engine::ring::deltas(0, RING);
        collector.read_pods(ring)?;
        let giver = Giver::new(deltas, clock, overlay.idle_ns, period_ms.clone());
        let table = Table::new(&overlay.name, clock);
        let shown = table.clone();
        let thread = std::thread::Builder::new()
            .name("weir-overlay".into())
            .spawn(move || Keeper::new(wanted, seen, giver, shown).run())
            .context("a thread for an overlay")?;
        Ok(Keep { overlay, stop, period_ms, table, thread: Some(thread) })
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

/// The state of an overlay's thread, without its sockets and programs, for fuzzers.
pub struct Reading(World);

impl Reading {
    /// Creates a state that knows a tunnel, an uplink and a bridge.
    pub fn new() -> Reading {
        Reading(World::new(Parts { tunnel: 2, uplink: 3, pods: Pods::Bridge(4) }, Vec::new()))
    }

    /// Takes a message of either kind of netlink, and parses its body as a tuple.
    pub fn take(&mut self, kind: u16, body: &[u8]) {
        for source in [Source::Route, Source::Filter] {
            self.0.take(source, kind, body, &mut Vec::new());
        }
        let _ = translation::read(body);
    }
}
