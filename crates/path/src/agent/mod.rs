//! Watches the paths of tunnels: a thread for each app at an uplink, which probes remote nodes, decides which
//! paths are used, and updates the eBPF programs. It is independent of the main thread, so a slow reload
//! moves no path.
//!
//! Promises: frames never wait for the thread, except new flows of DOCA-AR, where waiting is the method. If
//! it is stuck, frames keep using the last usable paths. When the process ends, for whatever reason, the
//! programs are removed.

mod aging;
mod doca;
mod node;
mod prober;
mod reporter;
mod turns;
mod uplink;
mod wire;

use crate::yaml::fabrics;
use crate::{Fabric, doctor};
use anyhow::Result;
use prober::Prober;
use weir_app::agent::{Agent, Host};
use weir_app::doctor::{Examined, Finding};
use weir_app::kind::Apps;
use weir_app::task::TaskThreads;

/// Returns the agent of path apps.
pub fn create() -> Box<dyn Agent> {
    Box::<Probers>::default()
}

/// The threads of all path apps.
#[derive(Default)]
struct Probers(TaskThreads<Fabric>);

impl Agent for Probers {
    fn findings(&self, examined: &Examined<'_>) -> Vec<Finding> {
        doctor::findings(examined)
    }

    fn follow(&mut self, apps: &Apps, _: &Host<'_>) -> Result<()> {
        self.0
            .follow(fabrics(apps), |wanted, stop| Ok(((), Box::new(move || Prober::new(wanted, stop).run()))))
    }
}
