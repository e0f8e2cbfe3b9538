//! Where frames leave a worker: its ports, the rings to the apps, and the pools to which memory returns.

use super::dropped_flows::DroppedFlows;
use super::waiting::Injected;
use crate::batch::BatchOutcome;
use crate::pipes::flow::IdleSegment;
use crate::ring::{CARRIER_BYTES, CarrierSender};
use weir_packet::{BATCH, Batch, Bits, DropReason, Frame, Ledger, Pool, PoolId, Pools, Port};
use weir_program::{AppId, PortId};

/// The outcome of an attempt to send a frame.
pub(super) enum Sent {
    Yes,
    /// There is no room for the frame now.
    NotNow,
    Never(DropReason),
}

/// Ports, rings and memory, and the ledger of the frames that left through them.
pub(super) struct Outbox {
    pub ports: Vec<Box<dyn Port>>,
    /// The pool that came with each port, if any.
    pub own_pools: Vec<Option<PoolId>>,
    pub pools: Pools,
    pub ledger: Ledger,
    /// Which flows the dropped frames belong to.
    pub dropped_flows: DroppedFlows,
    /// Rings to the apps, by app number.
    pub punts: Vec<CarrierSender>,
    /// Frames copied because a port requires another pool's memory.
    pub pool_copies: u64,
    /// Copies for an app that were not made because its ring had no room.
    pub tee_missed: u64,
    /// Set when the control plane has something to process.
    pub signal: bool,
    /// Frames that are being sent as copies.
    originals: Box<Batch>,
}

impl Outbox {
    pub fn new(ports: Vec<Box<dyn Port>>, pools: Pools) -> Outbox {
        Outbox {
            own_pools: vec![None; ports.len()],
            ports,
            pools,
            ledger: Ledger::default(),
            dropped_flows: DroppedFlows::default(),
            punts: Vec::new(),
            pool_copies: 0,
            tee_missed: 0,
            signal: false,
            originals: Box::default(),
        }
    }

    /// Rings the doorbells of all ports.
    pub fn flush(&mut self) {
        self.ports.iter_mut().for_each(|port| port.flush(&mut self.pools));
    }

    /// Sends the frames of the batch as the engine's outcome says.
    pub fn deliver(&mut self, batch: &mut Batch, input: PortId, outcome: &mut BatchOutcome) {
        if outcome.dropped != 0 {
            self.drop_list(batch, outcome.dropped, |slot| outcome.reasons[slot]);
        }
        for (port, &list) in outcome.transmit.iter().enumerate() {
            if list & outcome.flooded != 0 {
                self.transmit_copies(batch, port, list, outcome);
            } else if list != 0 {
                self.transmit(batch, port, list);
            }
        }
        if outcome.kernel != 0 {
            self.pass_to_kernel(batch, input, outcome.kernel);
        }
        if !outcome.tees.is_empty() {
            self.punt_with_copies(batch, input, outcome);
        }
        for (app, &list) in outcome.apps.iter().enumerate() {
            self.punt(batch, (AppId(app as u16), input), list, |slot| outcome.limit(slot));
        }
        batch.clear();
    }

    fn transmit(&mut self, batch: &mut Batch, port: usize, list: u64) {
        // With a single pool there is nothing to check, and checking every frame costs five per cent in a
        // short program.
        let wanted = self.ports[port].pool().filter(|_| !self.pools.is_single());
        let list = wanted.map_or(list, |pool| self.move_to_pool(batch, pool, list));
        let accepted = self.ports[port].transmit(&mut self.pools, batch, list);
        if list & !accepted != 0 {
            let mut reasons = [DropReason::TransmitFull; BATCH];
            for slot in Bits(list & !accepted) {
                let refused = self.ports[port].refuses(batch.frame(slot).len());
                reasons[slot] = refused.unwrap_or(DropReason::TransmitFull);
            }
            self.drop_list(batch, list & !accepted, |slot| reasons[slot]);
        }
    }

    /// Sends copies of those frames in a port's list that a later port also sends, and the other frames
    /// themselves, all in order of arrival.
    fn transmit_copies(&mut self, batch: &mut Batch, port: usize, list: u64, outcome: &BatchOutcome) {
        let later = outcome.transmit[port + 1..].iter().fold(0, |all, list| all | list);
        let (mut sent, mut copied) = (list, list & outcome.flooded & later);
        for slot in Bits(copied) {
            self.ledger.copied += 1;
            match self.copy_for(port, batch.frame(slot)) {
                Ok(copy) => {
                    let original = std::mem::replace(batch.frame_mut(slot), copy);
                    *self.originals.frame_mut(slot) = original;
                }
                Err(reason) => {
                    self.ledger.drop_one(reason);
                    sent &= !(1 << slot);
                    copied &= !(1 << slot);
                }
            }
        }
        self.transmit(batch, port, sent);
        for slot in Bits(copied) {
            *batch.frame_mut(slot) = self.originals.take(slot);
        }
    }

    /// Copies a frame into memory that the port can send from.
    fn copy_for(&mut self, port: usize, frame: &Frame) -> Result<Frame, DropReason> {
        let pool = self.ports[port].pool().unwrap_or(frame.pool());
        self.frame_of(frame.bytes(), pool)
    }

    /// Passes copies of forwarded packets, and packets that are for apps, to the apps in order of arrival.
    fn punt_with_copies(&mut self, batch: &mut Batch, input: PortId, outcome: &mut BatchOutcome) {
        outcome.tees.sort();
        let punted = outcome.apps.iter().fold(0, |all, list| all | list);
        for slot in Bits(outcome.tees.slots() | punted) {
            for (app, bytes) in outcome.tees.of(slot) {
                let ring = self.punts.get_mut(app.index());
                let sent = u64::from(ring.is_some_and(|ring| ring.send(bytes, input, app)));
                self.ledger.copied += sent;
                self.ledger.to_app += sent;
                self.tee_missed += 1 - sent;
                self.signal |= sent != 0;
            }
            let own = outcome.apps.iter().position(|list| list & 1 << slot != 0);
            if let Some(app) = own {
                self.punt(batch, (AppId(app as u16), input), 1 << slot, |slot| outcome.limit(slot));
            }
        }
        outcome.apps.fill(0);
    }

    /// Passes the newest segment of an idle connection to its app, as a copy. Returns false if there is
    /// currently no room for it.
    pub fn forward_idle(&mut self, one: &IdleSegment) -> bool {
        let Some(ring) = self.punts.get_mut(one.app.index()) else { return true };
        let sent = u64::from(ring.send(one.bytes(), one.input(), one.app));
        self.ledger.copied += sent;
        self.ledger.to_app += sent;
        self.signal |= sent != 0;
        sent != 0
    }

    /// Copies frames that are in another pool's memory; frames that cannot be copied are dropped.
    fn move_to_pool(&mut self, batch: &mut Batch, pool: PoolId, list: u64) -> u64 {
        let mut moved = list;
        for slot in Bits(list) {
            if batch.frame(slot).pool() == pool {
                continue;
            }
            match self.frame_of(batch.frame(slot).bytes(), pool) {
                Ok(copy) => {
                    self.pool_copies += 1;
                    self.pools.give(std::mem::replace(batch.frame_mut(slot), copy));
                }
                Err(reason) => {
                    moved &= !(1 << slot);
                    self.drop_one(batch, slot, reason);
                }
            }
        }
        moved
    }

    fn pass_to_kernel(&mut self, batch: &mut Batch, input: PortId, list: u64) {
        let accepted = self.ports[input.index()].to_kernel(&mut self.pools, batch, list);
        self.drop_list(batch, list & !accepted, |_| DropReason::NoKernelPath);
    }

    fn punt(
        &mut self,
        batch: &mut Batch,
        (app, input): (AppId, PortId),
        list: u64,
        limit: impl Fn(usize) -> Option<u16>,
    ) {
        self.signal |= list != 0;
        for slot in Bits(list) {
            let frame = batch.take(slot);
            let ring = self.punts.get_mut(app.index());
            let (bytes, limit) = (frame.bytes(), limit(slot));
            // An app that answers a frame that is too long needs its beginning.
            let bytes = if limit.is_some() { &bytes[..bytes.len().min(CARRIER_BYTES)] } else { bytes };
            if ring.is_some_and(|ring| ring.send_limited(bytes, limit, input, app)) {
                self.ledger.to_app += 1;
            } else {
                let reason = not_sent(&frame, DropReason::AppFull);
                self.dropped_flows.add(reason, frame.bytes(), 1);
                self.ledger.drop_one(reason);
            }
            self.pools.give(frame);
        }
    }

    /// Drops every frame of the batch.
    pub fn drop_all(&mut self, batch: &mut Batch, reason: DropReason) {
        self.drop_list(batch, batch.mask(), |_| reason);
        batch.clear();
    }

    fn drop_list(&mut self, batch: &mut Batch, list: u64, reason: impl Fn(usize) -> DropReason) {
        self.dropped_flows.sample(batch, list, &reason);
        Bits(list).for_each(|slot| self.drop_one(batch, slot, reason(slot)));
    }

    fn drop_one(&mut self, batch: &mut Batch, slot: usize, reason: DropReason) {
        self.ledger.drop_one(reason);
        self.pools.give(batch.take(slot));
    }

    /// Adds a frame of these bytes to the batch, which is empty between two walks: in this pool's memory, or
    /// failing that in that of the first pool.
    pub fn originate(&mut self, batch: &mut Batch, bytes: &[u8], pool: Option<PoolId>) -> Injected {
        let pool = pool.unwrap_or(self.pools.first().id());
        let frame = self.frame_of(bytes, pool)?;
        batch.push(frame).map_err(|frame| {
            self.pools.give(frame);
            DropReason::PoolEmpty
        })
    }

    /// Builds a frame of these bytes in this pool's memory.
    fn frame_of(&mut self, bytes: &[u8], pool: PoolId) -> Result<Frame, DropReason> {
        let mut frame = self.pools.get_mut(pool).and_then(Pool::take).ok_or(DropReason::PoolEmpty)?;
        if frame.fill(bytes).is_err() {
            self.pools.give(frame);
            return Err(DropReason::Oversize);
        }
        Ok(frame)
    }

    /// Sends one frame if there is currently room for it.
    pub fn send(&mut self, batch: &mut Batch, bytes: &[u8], port: PortId) -> Sent {
        let at = port.index();
        let Some(wanted) = self.ports.get(at).map(|port| port.pool()) else {
            return Sent::Never(DropReason::Policy);
        };
        match self.originate(batch, bytes, wanted) {
            Ok(()) => {}
            Err(DropReason::PoolEmpty) => return Sent::NotNow,
            Err(reason) => return Sent::Never(reason),
        }
        if self.ports[at].transmit(&mut self.pools, batch, 1) != 0 {
            batch.clear();
            return Sent::Yes;
        }
        let frame = batch.take(0);
        let reason = self.ports[at].refuses(frame.len());
        self.pools.give(frame);
        batch.clear();
        reason.map_or(Sent::NotNow, Sent::Never)
    }
}

/// Returns why a ring did not accept a frame.
pub(super) fn not_sent(frame: &Frame, full: DropReason) -> DropReason {
    if frame.len() > CARRIER_BYTES { DropReason::Oversize } else { full }
}
