//! Ports that a reload has removed, while they are being closed: a frame may still be on its way out, and the
//! kernel takes milliseconds to close a socket; the other ports must not wait for this.
//!
//! Guarantees: frames that such a port still held are counted as `port_removed`; its counts stay in the
//! ledger; the pool that came with the port is freed once the last of the pool's frames has returned.

use super::Worker;
use super::report::add_port;
use std::any::Any;
use std::sync::mpsc::Sender;
use weir_packet::{DropReason, Leave, PoolId, Pools, Port, PortStatistics};

/// Takes things that are slow to drop, and drops them on another thread.
pub type Disposal = Sender<Box<dyn Any + Send>>;

/// A port, and the pool that came with it.
pub(super) struct Leaver {
    pub port: Box<dyn Port>,
    pub pool: Option<PoolId>,
}

/// Removed ports, and pools without a port.
#[derive(Default)]
pub(super) struct Leaving {
    ports: Vec<Leaver>,
    pools: Vec<PoolId>,
    pub disposal: Option<Disposal>,
}

impl Leaving {
    /// Returns true if nothing is being closed.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.pools.is_empty()
    }

    /// Adds a port that the program no longer has.
    pub fn add(&mut self, leaver: Leaver) {
        self.ports.push(leaver);
    }

    /// Returns the counts of the ports that are being closed.
    pub fn statistics(&self) -> impl Iterator<Item = PortStatistics> + '_ {
        self.ports.iter().map(|leaver| leaver.port.statistics())
    }

    /// Takes the ports, to close them at once.
    pub fn take(&mut self) -> Vec<Leaver> {
        std::mem::take(&mut self.ports)
    }

    pub(super) fn dispose(&self, burden: Box<dyn Any + Send>) {
        // Without such a thread, it is dropped here.
        let _ = self.disposal.as_ref().map(|disposal| disposal.send(burden));
    }

    /// Frees the pools whose frames have all returned.
    fn free_pools(&mut self, pools: &mut Pools) {
        for id in std::mem::take(&mut self.pools) {
            match pools.remove_idle(id) {
                Some(pool) => self.dispose(Box::new(pool)),
                None => self.pools.push(id),
            }
        }
    }
}

impl Worker {
    /// Continues closing removed ports.
    pub(super) fn mind_leaving(&mut self) {
        if self.leaving.is_empty() {
            return;
        }
        for mut leaver in self.leaving.take() {
            match leaver.port.leave(&mut self.outbox.pools) {
                Leave::Later => self.leaving.add(leaver),
                Leave::Give(burden) => {
                    self.leaving.dispose(burden);
                    self.leaving.add(leaver);
                }
                Leave::Closed(dropped) => {
                    let ledger = &mut self.outbox.ledger;
                    ledger.dropped[DropReason::PortRemoved as usize] += dropped;
                    add_port(ledger, &leaver.port.statistics());
                    self.leaving.pools.extend(leaver.pool);
                    self.leaving.dispose(Box::new(leaver.port));
                }
            }
        }
        self.leaving.free_pools(&mut self.outbox.pools);
    }

    /// Closes removed ports at once, because the worker stops.
    pub(super) fn close_leaving(&mut self) {
        for mut leaver in self.leaving.take() {
            let ledger = &mut self.outbox.ledger;
            ledger.dropped[DropReason::PortRemoved as usize] += leaver.port.close(&mut self.outbox.pools);
            add_port(ledger, &leaver.port.statistics());
        }
    }
}
