//! The collector: a thread that reads the flow deltas of all workers, each from a ring of its own, and adds
//! them up by reason. Measurement will stand here: what is made of deltas costs the workers nothing.
//!
//! Promises: a worker never waits for the collector. If it does not keep up, its rings fill, and then counts
//! stay in the flows and flows in the tables. When all workers have stopped, it reads what is left and ends.

use anyhow::{Result, anyhow};
use engine::delta::{DeltaReason, FlowDelta};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Deltas that fit between a worker and the collector: a mebibyte, and 10 ms at 1.6 million deltas a second.
pub const RING: usize = 16_384;

/// The shortest and the longest pause when there is nothing to read. A wake-up every 64 ms costs nothing that
/// could be measured, and the pause shrinks as soon as there are deltas.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(64)];

/// What deltas of one reason add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Number of deltas.
    pub deltas: u64,
    /// Their packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What all deltas add up to, by reason, in the order of [`DeltaReason::ALL`].
pub type Totals = [Sum; DeltaReason::ALL.len()];

/// A running collector.
pub struct Collector {
    totals: Arc<Mutex<Totals>>,
    rings: SyncSender<Receiver<FlowDelta>>,
    thread: JoinHandle<()>,
}

impl Collector {
    /// Starts the thread, which reads no rings yet.
    pub fn start() -> Result<Collector> {
        let totals = Arc::new(Mutex::new(Totals::default()));
        let (rings, new) = sync_channel(1);
        let mut reader = Reader { rings: Vec::new(), new: Some(new), totals: totals.clone() };
        let thread = std::thread::Builder::new().name("weir-collector".into()).spawn(move || reader.run())?;
        Ok(Collector { totals, rings, thread })
    }

    /// Lets it read a worker's ring, until the worker drops its end.
    pub fn read(&self, ring: Receiver<FlowDelta>) -> Result<()> {
        self.rings.send(ring).map_err(|_| anyhow!("the collector has ended"))
    }

    /// Returns what has been read so far.
    pub fn totals(&self) -> Totals {
        *self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the rings of all workers, which must have stopped, are read, and returns the totals.
    pub fn finish(self) -> Result<Totals> {
        drop(self.rings);
        self.thread.join().map_err(|_| anyhow!("the collector panicked"))?;
        Ok(*self.totals.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Adds up totals over reasons.
pub fn over_reasons(totals: &Totals) -> Sum {
    totals.iter().fold(Sum::default(), |sum, one| Sum {
        deltas: sum.deltas + one.deltas,
        packets: sum.packets + one.packets,
        bytes: sum.bytes + one.bytes,
    })
}

/// What runs on the thread.
struct Reader {
    rings: Vec<Receiver<FlowDelta>>,
    /// Brings more rings; `None` when there will be none.
    new: Option<Receiver<Receiver<FlowDelta>>>,
    totals: Arc<Mutex<Totals>>,
}

impl Reader {
    fn run(&mut self) {
        let [shortest, longest] = PAUSES;
        let mut pause = shortest;
        loop {
            self.take_new();
            let mut sums = Totals::default();
            let read = self.read(&mut sums);
            if read != 0 {
                let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
                for (total, sum) in totals.iter_mut().zip(&sums) {
                    total.deltas += sum.deltas;
                    total.packets += sum.packets;
                    total.bytes += sum.bytes;
                }
            } else if self.new.is_none() && self.rings.is_empty() {
                return;
            }
            pause = if read == 0 { (pause * 2).min(longest) } else { shortest };
            if read < RING {
                std::thread::sleep(pause);
            }
        }
    }

    fn take_new(&mut self) {
        while let Some(new) = &self.new {
            match new.try_recv() {
                Ok(ring) => self.rings.push(ring),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => self.new = None,
            }
        }
    }

    /// Reads up to a ring's capacity from each worker, and forgets the rings of workers that have ended.
    /// Returns the number of deltas.
    fn read(&mut self, sums: &mut Totals) -> usize {
        let mut read = 0;
        self.rings.retain(|ring| {
            for _ in 0..RING {
                match ring.try_recv() {
                    Ok(delta) => {
                        read += 1;
                        let sum = &mut sums[delta.reason() as usize];
                        sum.deltas += 1;
                        sum.packets += delta.packets();
                        sum.bytes += delta.bytes();
                    }
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => return false,
                }
            }
            true
        });
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::delta::Belonging;
    use packet::FlowKey;

    fn delta(packets: u64, reason: DeltaReason) -> FlowDelta {
        let of = Belonging { generation: 1, pipe: 0, target: 0 };
        FlowDelta::new(FlowKey([0; 5]), (packets, 100 * packets), (0, 0), of, reason)
    }

    #[test]
    fn all_rings_are_read_to_their_end_and_added_up_by_reason() {
        let collector = Collector::start().unwrap();
        let workers: Vec<_> = (0..3)
            .map(|source| {
                let (mut sender, ring) = engine::ring::deltas(source, 8);
                collector.read(ring).unwrap();
                std::thread::spawn(move || {
                    for packets in 0..1_000 {
                        let reason = DeltaReason::ALL[packets as usize % DeltaReason::ALL.len()];
                        while !sender.send(delta(packets, reason)) {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        let totals = collector.finish().unwrap();
        let all = over_reasons(&totals);
        assert_eq!((all.deltas, all.packets, all.bytes), (3_000, 3 * 499_500, 300 * 499_500));
        assert_eq!(totals[DeltaReason::First as usize].deltas, 3 * 166);
    }

    #[test]
    fn a_collector_without_workers_ends() {
        assert_eq!(Collector::start().unwrap().finish().unwrap(), Totals::default());
    }
}
