//! Ports that a reload adds: opened on the compiling thread, since opening takes milliseconds and can be
//! refused, and closed again if the reload is refused after that.

use super::open;
use crate::config::{Plan, PortKind};
use anyhow::{Context, Result, bail};
use std::time::Duration;
use weir_engine::worker::Rewire;
use weir_packet::{Pools, Port};
use weir_port::XdpInterface;
use weir_port::xdp::{LinkMonitor, Remnant};

/// How often to check whether removed ports are closed, and the maximum number of checks.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSES: u32 = 400;

/// New ports, not yet given to any worker.
#[derive(Default)]
pub struct Added {
    /// Has listened to the kernel since before the first interface was attached; present if it was opened for
    /// these ports.
    pub monitor: Option<LinkMonitor>,
    /// The interfaces by the port's position in the new plan.
    pub interfaces: Vec<Option<XdpInterface>>,
    /// The queues of each worker, by the port's position in the new plan.
    queues: Vec<Vec<Option<Queue>>>,
}

/// A worker's queue of a port, and the pool that it was opened on.
struct Queue(Option<(Box<dyn Port>, Pools)>);

impl Drop for Queue {
    fn drop(&mut self) {
        if let Some((port, pools)) = &mut self.0 {
            port.close(pools);
        }
    }
}

impl Added {
    /// Opens the ports of `plan` that have no current position in `order`, with a queue for each of the
    /// current workers that stay.
    pub fn open(
        plan: &Plan,
        order: &[Option<usize>],
        remnants: &[Remnant],
        (present, now_ns): (usize, u64),
    ) -> Result<Added> {
        let is_new = |at: &usize| order[*at].is_none();
        let new: Vec<usize> = (0..plan.ports.len()).filter(is_new).collect();
        let mut added = Added::default();
        if new.iter().any(|&at| matches!(plan.ports[at].kind, PortKind::Xdp(_))) {
            added.monitor = Some(LinkMonitor::open().context("cannot watch interfaces")?);
            wait_for(remnants)?;
        }
        added.interfaces = plan.ports.iter().map(|_| None).collect();
        for &at in &new {
            added.interfaces[at] = open::attach_one(plan, at, false)?;
        }
        let workers = plan.workers.count();
        for worker in 0..workers.min(present) {
            added.queues.push(plan.ports.iter().map(|_| None).collect());
            for &at in &new {
                let (port, interface) =
                    (&plan.ports[at], added.interfaces[at].as_ref().map(XdpInterface::queues));
                let opened = open::alone(port, interface.as_ref(), (worker, workers), plan.chunk(), now_ns)?;
                added.queues[worker][at] = Some(Queue(Some(opened)));
            }
        }
        Ok(added)
    }

    /// Takes a worker's queue of the new plan's port number `at`.
    pub fn take(&mut self, worker: usize, at: usize) -> Option<Rewire> {
        let (port, mut pools) = self.queues.get_mut(worker)?.get_mut(at)?.take()?.0.take()?;
        Some(Rewire::New(port, pools.pop()))
    }
}

/// Waits until ports that were removed before have released their interfaces, which may be used again.
fn wait_for(remnants: &[Remnant]) -> Result<()> {
    for _ in 0..PAUSES {
        if !remnants.iter().any(Remnant::is_left) {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    bail!("ports removed by a reload are still being closed: try again");
}
