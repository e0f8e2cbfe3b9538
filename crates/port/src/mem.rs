//! A port made of queues in memory. Tests put frames on its wire and inspect what it sent.
//!
//! Promises: frames keep their order; nothing is lost (while the pool is empty, frames wait on the wire and
//! `starved` counts it); a frame larger than a chunk is received, dropped and counted as `oversize`. The port
//! is not fast, because it copies every frame into a `Vec` behind a lock. Benches use [`crate::Generator`].
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_packet::{Batch, Bits, PoolId, Pools, Port, PortStatistics};

/// State shared by both ends.
#[derive(Debug)]
struct Queues {
    arriving: VecDeque<Vec<u8>>,
    left: VecDeque<Vec<u8>>,
    kernel: VecDeque<Vec<u8>>,
    transmit_room: usize,
    ended: bool,
}

/// The test's end of a [`MemPort`].
#[derive(Clone, Debug)]
pub struct MemWire(Arc<Mutex<Queues>>);

impl MemWire {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        // A panic in another test thread leaves the queues consistent, because every push and pop is a single
        // step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a frame on the wire, where the port will receive it.
    pub fn push(&self, bytes: &[u8]) {
        self.queues().arriving.push_back(bytes.to_vec());
    }

    /// Takes the oldest frame that the port transmitted.
    #[must_use]
    pub fn pop(&self) -> Option<Vec<u8>> {
        self.queues().left.pop_front()
    }

    /// Takes the oldest frame that the port passed to the host's stack.
    #[must_use]
    pub fn pop_kernel(&self) -> Option<Vec<u8>> {
        self.queues().kernel.pop_front()
    }

    /// Returns the number of frames waiting to be received.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queues().arriving.len()
    }

    /// Makes the port refuse to transmit while `frames` frames wait to be popped, like a full transmit queue.
    pub fn limit_transmit(&self, frames: usize) {
        self.queues().transmit_room = frames;
    }

    /// Ends the input: the port is exhausted once it has received the frames that wait.
    pub fn end(&self) {
        self.queues().ended = true;
    }
}

/// The worker's end of the wire.
#[derive(Debug)]
pub struct MemPort {
    name: String,
    pool: PoolId,
    wire: MemWire,
    statistics: PortStatistics,
}

impl MemPort {
    /// Creates a port that receives into `pool` and transmits frames of any pool, and its wire.
    #[must_use]
    pub fn new(name: &str, pool: PoolId) -> (MemPort, MemWire) {
        let queues = Queues {
            arriving: VecDeque::new(),
            left: VecDeque::new(),
            kernel: VecDeque::new(),
            transmit_room: usize::MAX,
            ended: false,
        };
        let wire = MemWire(Arc::new(Mutex::new(queues)));
        let port = MemPort {
            name: name.to_owned(),
            pool,
            wire: wire.clone(),
            statistics: PortStatistics::default(),
        };
        (port, wire)
    }
}

impl Port for MemPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn pool(&self) -> Option<PoolId> {
        None
    }

    fn receive(&mut self, pools: &mut Pools, batch: &mut Batch) {
        let mut queues = self.wire.queues();
        let pool = pools.get_mut(self.pool).expect("a port is opened on a pool of its worker");
        while batch.space() > 0
            && let Some(bytes) = queues.arriving.front()
        {
            let Some(mut frame) = pool.take() else {
                self.statistics.starved += 1;
                return;
            };
            self.statistics.received += 1;
            self.statistics.received_bytes += bytes.len() as u64;
            if frame.fill(bytes).is_ok() {
                batch.push(frame).expect("the loop checked for space");
            } else {
                pool.give(frame);
                self.statistics.oversize += 1;
            }
            queues.arriving.pop_front();
        }
    }

    fn transmit(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        let mut queues = self.wire.queues();
        let mut accepted = 0;
        for slot in Bits(list) {
            if queues.left.len() >= queues.transmit_room {
                break;
            }
            let frame = batch.take(slot);
            queues.left.push_back(frame.bytes().to_vec());
            self.statistics.transmitted += 1;
            self.statistics.transmitted_bytes += frame.len() as u64;
            pools.give(frame);
            accepted |= 1 << slot;
        }
        accepted
    }

    fn flush(&mut self, _pools: &mut Pools) {}

    fn statistics(&self) -> PortStatistics {
        self.statistics
    }

    fn mode(&self) -> String {
        "mem".to_owned()
    }

    fn exhausted(&self) -> bool {
        let queues = self.wire.queues();
        queues.ended && queues.arriving.is_empty()
    }

    fn has_kernel_path(&self) -> bool {
        true
    }

    fn to_kernel(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        let mut queues = self.wire.queues();
        for slot in Bits(list) {
            let frame = batch.take(slot);
            queues.kernel.push_back(frame.bytes().to_vec());
            self.statistics.to_kernel += 1;
            pools.give(frame);
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(chunks: u32) -> (Pools, MemPort, MemWire) {
        let mut pools = Pools::region(chunks);
        let (port, wire) = MemPort::new("p", pools.first().id());
        (pools, port, wire)
    }

    #[test]
    fn frames_pass_in_order_and_return_to_the_pool() {
        let (mut pools, mut port, wire) = open(8);
        for byte in 0..5 {
            wire.push(&[byte; 60]);
        }
        let mut batch = Batch::new();
        port.receive(&mut pools, &mut batch);
        assert_eq!(batch.len(), 5);
        assert_eq!(port.transmit(&mut pools, &mut batch, 0b10101), 0b10101);
        assert_eq!(port.to_kernel(&mut pools, &mut batch, 0b01010), 0b01010);
        batch.clear();
        assert_eq!([wire.pop(), wire.pop()], [Some(vec![0; 60]), Some(vec![2; 60])]);
        assert_eq!(wire.pop_kernel(), Some(vec![1; 60]));
        assert_eq!(pools.first().available(), 8);
        let PortStatistics { received, transmitted, to_kernel, .. } = port.statistics();
        assert_eq!((received, transmitted, to_kernel), (5, 3, 2));
    }

    #[test]
    fn an_empty_pool_keeps_frames_waiting_on_the_wire() {
        let (mut pools, mut port, wire) = open(1);
        wire.push(b"one");
        wire.push(b"two");
        wire.end();
        let mut batch = Batch::new();
        port.receive(&mut pools, &mut batch);
        assert_eq!((batch.len(), wire.waiting(), port.statistics().starved), (1, 1, 1));
        assert!(!port.exhausted());
        port.transmit(&mut pools, &mut batch, 1);
        batch.clear();
        port.receive(&mut pools, &mut batch);
        assert!(port.exhausted());
        assert_eq!(batch.frame(0).bytes(), b"two");
        pools.give(batch.take(0));
    }

    #[test]
    fn an_oversize_frame_is_received_and_dropped() {
        let (mut pools, mut port, wire) = open(1);
        wire.push(&[0; 2000]);
        wire.push(&[]);
        let mut batch = Batch::new();
        port.receive(&mut pools, &mut batch);
        let statistics = port.statistics();
        assert_eq!((batch.len(), statistics.received, statistics.oversize), (1, 2, 1));
        assert!(batch.frame(0).is_empty());
        pools.give(batch.take(0));
    }

    #[test]
    fn a_full_wire_refuses_and_the_frames_stay() {
        let (mut pools, mut port, wire) = open(4);
        (0..4).for_each(|byte| wire.push(&[byte]));
        wire.limit_transmit(3);
        let mut batch = Batch::new();
        port.receive(&mut pools, &mut batch);
        assert_eq!(port.transmit(&mut pools, &mut batch, 0b1111), 0b0111);
        assert_eq!(batch.frame(3).bytes(), [3]);
        pools.give(batch.take(3));
    }
}
