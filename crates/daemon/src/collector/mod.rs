//! The collector: a thread that reads the flow deltas of all workers, each from its own ring, adds them up by
//! reason, and passes them on to the readers of agents. Processing deltas costs the workers nothing.
//!
//! Promises: neither a worker nor the main thread ever waits for the collector. If the collector does not
//! keep up, its rings fill, and then counts stay in the flows and flows in the tables; if that lasts, readers
//! give up parts of their work ([`pressure`]). When all workers have stopped, the collector reads what is
//! left and ends.

mod pressure;

use anyhow::{Result, anyhow};
use pressure::Pressure;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::warn;
use weir_app::agent::DeltaReader;
use weir_app::clock::Clock;
use weir_app::{priority, privileges};
use weir_engine::delta::{DeltaReason, FlowDelta};
use weir_engine::ring::{DeltaSender, deltas};

/// Capacity of the ring between a worker and the collector, in deltas: a mebibyte, and 10 ms at 1.6 million
/// deltas per second.
pub const RING: usize = 16_384;

/// The shortest and the longest pause when there is nothing to read. A wake-up every 64 ms has no measurable
/// cost, and the pause shrinks as soon as there are deltas.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(64)];

/// The sum of deltas of one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// The number of deltas.
    pub deltas: u64,
    /// The packets in these deltas.
    pub packets: u64,
    /// The bytes of these packets.
    pub bytes: u64,
}

impl Sum {
    fn add(&mut self, delta: &FlowDelta) {
        self.deltas += 1;
        self.packets += delta.packets();
        self.bytes += delta.bytes();
    }
}

/// The sums of all deltas, by reason, in the order of [`DeltaReason::ALL`].
pub type Totals = [Sum; DeltaReason::ALL.len()];

/// A ring to be read.
struct Ring {
    deltas: Receiver<FlowDelta>,
    /// Whether its deltas are from the program's flows, which are added up by reason.
    of_program: bool,
}

/// A running collector.
pub struct Collector {
    totals: Arc<Mutex<Totals>>,
    rings: Sender<Ring>,
    thread: JoinHandle<()>,
}

impl Collector {
    /// Starts the thread, which reads no rings yet. `clock` is the workers' clock.
    pub fn start(clock: Clock, readers: Vec<Box<dyn DeltaReader>>) -> Result<Collector> {
        let totals = Arc::new(Mutex::new(Totals::default()));
        let (rings, new) = channel();
        let collecting = Collecting {
            rings: Vec::new(),
            new: Some(new),
            totals: totals.clone(),
            clock,
            deltas: Vec::new(),
            readers,
            pressure: Pressure::default(),
        };
        let run = move || {
            // This thread starts while the daemon still has all its privileges.
            if let Err(error) = privileges::drop_all() {
                warn!("the collector cannot give up its privileges: {error}");
            }
            collecting.run();
        };
        let thread = std::thread::Builder::new().name("weir-collector".into()).spawn(run)?;
        Ok(Collector { totals, rings, thread })
    }

    /// Opens a worker's ring, which is read until the worker drops its end.
    pub fn open(&self, worker: u8) -> Result<DeltaSender> {
        let (sender, deltas) = deltas(worker, RING);
        self.add(Ring { deltas, of_program: true })?;
        Ok(sender)
    }

    /// Opens a ring for flows outside of pipes, which is read until that end is dropped.
    pub fn open_outside(&self) -> Result<DeltaSender> {
        let (sender, deltas) = deltas(0, RING);
        self.add(Ring { deltas, of_program: false })?;
        Ok(sender)
    }

    fn add(&self, ring: Ring) -> Result<()> {
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

/// The state of the thread.
struct Collecting {
    rings: Vec<Ring>,
    /// Delivers new rings; `None` when no more rings can arrive.
    new: Option<Receiver<Ring>>,
    totals: Arc<Mutex<Totals>>,
    clock: Clock,
    /// Deltas that have been read but not yet passed on.
    deltas: Vec<FlowDelta>,
    readers: Vec<Box<dyn DeltaReader>>,
    pressure: Pressure,
}

impl Collecting {
    fn run(mut self) {
        priority::ordinary();
        let [shortest, longest] = PAUSES;
        let mut pause = shortest;
        loop {
            self.take_rings();
            let now_ns = self.clock.now_ns();
            let is_reading: Vec<bool> =
                self.readers.iter_mut().map(|reader| reader.is_reading(now_ns)).collect();
            let mut sums = Totals::default();
            let (read, full) = self.read(&mut sums, is_reading.contains(&true));
            if read != 0 {
                let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
                for (total, sum) in totals.iter_mut().zip(&sums) {
                    total.deltas += sum.deltas;
                    total.packets += sum.packets;
                    total.bytes += sum.bytes;
                }
            } else if self.new.is_none() && self.rings.is_empty() {
                self.readers.drain(..).for_each(|reader| reader.finish(now_ns));
                return;
            }
            for (reader, _) in self.readers.iter_mut().zip(is_reading).filter(|(_, is_reading)| *is_reading) {
                reader.read(&self.deltas, self.clock.now_ns());
            }
            self.deltas.clear();
            if self.pressure.is_too_high(full) {
                self.readers.iter_mut().any(|reader| reader.shed());
            }
            pause = if read == 0 { (pause * 2).min(longest) } else { shortest };
            if !full {
                std::thread::sleep(pause);
            }
        }
    }

    fn take_rings(&mut self) {
        while let Some(new) = &self.new {
            match new.try_recv() {
                Ok(ring) => self.rings.push(ring),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => self.new = None,
            }
        }
    }

    /// Reads up to a ring's capacity from each worker, and forgets the rings of workers that have ended.
    /// Returns the number of deltas, and whether a ring was full.
    fn read(&mut self, sums: &mut Totals, keeps: bool) -> (usize, bool) {
        let (mut read, mut full) = (0, false);
        let Collecting { rings, deltas, .. } = self;
        rings.retain(|ring| {
            for _ in 0..RING {
                match ring.deltas.try_recv() {
                    Ok(delta) => {
                        read += 1;
                        if ring.of_program {
                            sums[delta.reason() as usize].add(&delta);
                        }
                        if keeps {
                            deltas.push(delta);
                        }
                    }
                    Err(TryRecvError::Empty) => return true,
                    Err(TryRecvError::Disconnected) => return false,
                }
            }
            full = true;
            true
        });
        (read, full)
    }
}

#[cfg(test)]
mod tests;
