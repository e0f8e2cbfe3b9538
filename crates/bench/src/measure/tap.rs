//! The aggregator alone, for programs that keep no flows: a port whose frames are summed up as they arrive,
//! and leave for the collector as flow deltas, by the ring that those of flow tables take.
//!
//! It is a wrapper of the port rather than a part of the engine, so that a program which is not measured has
//! nothing of it. It therefore reads the headers itself, which the engine reads again: what is measured is
//! more than what a hook behind the engine's own parse would cost.

use super::round::SEED;
use engine::delta::{Belonging, DeltaReason, FlowDelta, NO_DELTA_TARGET};
use engine::ring::DeltaSender;
use packet::{
    Batch, Bits, Depth, DropReason, FlowKey, Headers, KeySource, PoolId, Pools, Port, PortStatistics,
    TunnelPorts, parse_into,
};
use sketch::{Aggregator, Evicted, Gate, Policy, Update};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Breaths for each row that is emptied: with rows of sixteen keys and 64 packets to a breath, all of them
/// within about 20 million packets.
const SWEEP_EVERY: u32 = 256;

/// Deltas that wait for room in the ring; what is evicted beyond them is lost, and counted.
const WAITING_MAX: usize = 4096;

/// A port that counts what it receives.
pub struct Tap<P> {
    port: P,
    aggregator: Aggregator<5>,
    headers: Headers,
    updates: Vec<Update<5>>,
    out: Vec<Evicted<5>>,
    deltas: DeltaSender,
    breaths: u32,
    lost: Arc<AtomicU64>,
}

impl<P: Port> Tap<P> {
    /// Wraps a port. `lost` counts packets that the ring had no room for.
    pub fn new(port: P, deltas: DeltaSender, lost: Arc<AtomicU64>) -> Tap<P> {
        let gate = Gate::default();
        Tap {
            port,
            aggregator: Aggregator::with_bytes(super::AGGREGATOR, Policy::SecondChance, gate, &SEED)
                .expect("it is larger than a row"),
            headers: Headers::default(),
            updates: Vec::with_capacity(packet::BATCH),
            out: Vec::with_capacity(WAITING_MAX + 2 * packet::BATCH),
            deltas,
            breaths: 0,
            lost,
        }
    }

    fn count(&mut self, batch: &Batch, arrived: u64) {
        self.updates.clear();
        let tunnels = TunnelPorts::default();
        for slot in Bits(arrived) {
            let bytes = batch.frame(slot).bytes();
            if parse_into(bytes, Depth::L4, &tunnels, &mut self.headers).is_err() {
                continue;
            }
            if let Some(key) = FlowKey::of(bytes, &self.headers, KeySource::Outer) {
                self.updates.push(Update::packet(key.0, bytes.len() as u64));
            }
        }
        self.aggregator.add(&self.updates, &mut self.out);
        self.give();
    }

    /// Sends what was evicted, as far as the ring has room.
    fn give(&mut self) {
        let of = Belonging { generation: 0, pipe: 0, target: NO_DELTA_TARGET };
        let mut sent = 0;
        for one in &self.out {
            let counts = (one.packets, one.bytes);
            let delta = FlowDelta::new(FlowKey(one.item.key), counts, (0, 0), of, DeltaReason::Evicted);
            if !self.deltas.send(delta) {
                break;
            }
            sent += 1;
        }
        if self.out.len() - sent > WAITING_MAX {
            let lost: u64 = self.out.drain(sent + WAITING_MAX..).map(|one| one.packets).sum();
            self.lost.fetch_add(lost, Ordering::Relaxed);
        }
        self.out.drain(..sent);
    }
}

impl<P: Port> Port for Tap<P> {
    fn name(&self) -> &str {
        self.port.name()
    }

    fn pool(&self) -> Option<PoolId> {
        self.port.pool()
    }

    fn receive(&mut self, pools: &mut Pools, batch: &mut Batch) {
        let before = batch.mask();
        self.port.receive(pools, batch);
        let arrived = batch.mask() & !before;
        if arrived != 0 {
            self.count(batch, arrived);
        }
    }

    fn transmit(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        self.port.transmit(pools, batch, list)
    }

    fn refuses(&self, length: usize) -> Option<DropReason> {
        self.port.refuses(length)
    }

    fn flush(&mut self, pools: &mut Pools) {
        self.port.flush(pools);
        self.breaths += 1;
        if self.breaths.is_multiple_of(SWEEP_EVERY) {
            self.aggregator.sweep(1, &mut self.out);
            self.give();
        }
    }

    fn statistics(&self) -> PortStatistics {
        self.port.statistics()
    }

    fn mode(&self) -> String {
        self.port.mode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::shuffled;
    use port::{Generator, Stream};

    /// What has left by the ring, waits for room in it, was lost for want of room, and is still held adds up
    /// to what has arrived; also with a ring that is too short.
    #[test]
    fn no_packet_is_forgotten() {
        const FLOWS: u32 = 100_000;
        for room in [1 << 18, 1000] {
            let mut pools = Pools::region(256);
            let pool = pools.first().id();
            let stream = Stream::udp(64, shuffled(FLOWS));
            let port = Generator::new("in", &mut pools, pool, stream, u64::from(2 * FLOWS));
            let (deltas, ring) = engine::ring::deltas(0, room);
            let lost = Arc::new(AtomicU64::new(0));
            let (mut tap, mut batch) = (Tap::new(port, deltas, Arc::clone(&lost)), Batch::new());
            let mut arrived = 0;
            loop {
                tap.receive(&mut pools, &mut batch);
                arrived += batch.len() as u64;
                let list = batch.mask();
                tap.transmit(&mut pools, &mut batch, list);
                batch.clear();
                tap.flush(&mut pools);
                if list == 0 {
                    break;
                }
            }
            assert_eq!(arrived, u64::from(2 * FLOWS));
            let left: u64 = ring.try_iter().map(|delta| delta.packets()).sum();
            let waiting: u64 = tap.out.iter().map(|one| one.packets).sum();
            let mut held = 0;
            tap.aggregator.flush(|one| held += one.packets);
            let lost = lost.load(Ordering::Relaxed);
            assert_eq!(left + waiting + held + lost, arrived);
            assert_eq!(lost > 0, room == 1000, "{lost}");
        }
    }
}
