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
mod refresh;
mod reporter;
pub mod rule;
mod table;
mod translation;
mod world;

pub use keeper::{kind_of, needed_settings};
pub use left::Left;

use crate::yaml::overlays;
use crate::{Overlay, doctor};
use anyhow::Result;
use giver::Giver;
use keeper::Keeper;
use news::MessageSource;
use std::sync::Arc;
use table::Table;
use weir_app::agent::{Agent, FlowTable, Host};
use weir_app::doctor::{Examined, Finding};
use weir_app::kind::Apps;
use weir_app::task::TaskThreads;
use world::{Parts, Pods, World};

/// Returns the agent of overlay apps.
pub fn create() -> Box<dyn Agent> {
    Box::<Keepers>::default()
}

/// The threads of all overlay apps, and the tables of their flows.
#[derive(Default)]
struct Keepers(TaskThreads<Overlay, Arc<Table>>);

impl Agent for Keepers {
    fn findings(&self, examined: &Examined<'_>) -> Vec<Finding> {
        doctor::findings(examined)
    }

    fn follow(&mut self, apps: &Apps, host: &Host<'_>) -> Result<()> {
        self.0.follow(overlays(apps), |wanted, stop| {
            let table = Arc::new(Table::new(&wanted.task.name, host.clock));
            let giver = Giver::new((host.open_ring)()?, host.clock, wanted.task.idle_ns, table.clone());
            let shown = table.clone();
            Ok((table, Box::new(move || Keeper::new(wanted, stop, giver, shown).run())))
        })
    }

    fn flow_tables(&self) -> Vec<Arc<dyn FlowTable>> {
        self.0.shared().map(|table| table.clone() as Arc<dyn FlowTable>).collect()
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
