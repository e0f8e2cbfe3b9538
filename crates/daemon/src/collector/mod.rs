//! The collector: a thread that reads the flow deltas of all workers, each from its own ring, adds them up by
//! reason, and runs the measurements of `measure` apps. Processing deltas costs the workers nothing.
//!
//! Promises: neither a worker nor the main thread ever waits for the collector. If it does not keep up, its
//! rings fill, and then counts stay in the flows and flows in the tables; if that lasts, it gives up parts of
//! measurements in a documented order ([`pressure`]). When all workers have stopped, it reads what is left
//! and ends.

mod exporter;
mod exports;
mod ipfix;
mod measuring;
mod names;
#[cfg(feature = "parquet")]
mod parquet;
mod pressure;

use super::clock::Clock;
use super::{priority, privileges};
use anyhow::{Result, anyhow};
use measuring::{Measuring, Times};
use names::{Names, ProgramNames};
use pressure::Pressure;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};
use tracing::warn;
use weir_engine::delta::{Belonging, DeltaReason, FlowDelta, NO_DELTA_TARGET};
use weir_measure::Measurement;
use weir_program::Program;

/// Capacity of the ring between a worker and the collector, in deltas: a mebibyte, and 10 ms at 1.6 million
/// deltas per second.
pub const RING: usize = 16_384;

/// The shortest and the longest pause when there is nothing to read. A wake-up every 64 ms has no measurable
/// cost, and the pause shrinks as soon as there are deltas.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(64)];

/// The program id of deltas of flows between pods, which belong to no program; numbers of pipes are lower.
pub const OF_PODS: Belonging = Belonging { generation: 0, pipe: u16::MAX, target: NO_DELTA_TARGET };

/// The sum of deltas of one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Number of deltas.
    pub deltas: u64,
    /// Their packets.
    pub packets: u64,
    /// Their bytes.
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

/// Messages from the main thread to the collector.
enum News {
    /// A ring of a worker or of an overlay's thread.
    Ring(Ring),
    /// A program, to which workers switch after this.
    Program(Plan),
}

/// A ring to be read.
struct Ring {
    deltas: Receiver<FlowDelta>,
    /// Whether its deltas are from the program's flows, which are added up by reason.
    of_program: bool,
}

/// What the collector must know about a program.
struct Plan {
    generation: u64,
    workers: usize,
    names: ProgramNames,
    measurements: Vec<Measurement>,
}

/// A running collector.
pub struct Collector {
    totals: Arc<Mutex<Totals>>,
    news: Sender<News>,
    thread: JoinHandle<()>,
}

impl Collector {
    /// Starts the thread, which reads no rings yet. `clock` is the workers' clock.
    pub fn start(clock: Clock) -> Result<Collector> {
        let totals = Arc::new(Mutex::new(Totals::default()));
        let (news, new) = channel();
        let mut reader = Reader::new(new, totals.clone(), clock);
        let run = move || {
            // It starts while the daemon still has all its privileges.
            if let Err(error) = privileges::drop_all() {
                warn!("the collector cannot give up its privileges: {error}");
            }
            reader.run();
        };
        let thread = std::thread::Builder::new().name("weir-collector".into()).spawn(run)?;
        Ok(Collector { totals, news, thread })
    }

    /// Adds a worker's ring, which is read until the worker drops its end.
    pub fn read(&self, ring: Receiver<FlowDelta>) -> Result<()> {
        self.tell(News::Ring(Ring { deltas: ring, of_program: true }))
    }

    /// Adds the ring of an overlay's thread, which is read until that end is dropped.
    pub fn read_pods(&self, ring: Receiver<FlowDelta>) -> Result<()> {
        self.tell(News::Ring(Ring { deltas: ring, of_program: false }))
    }

    /// Defines the meaning of deltas of a generation of the program, and what is measured from now on. Must
    /// be called before a worker runs that program.
    pub fn follow(
        &self,
        generation: u64,
        program: &Program,
        workers: usize,
        measurements: Vec<Measurement>,
    ) -> Result<()> {
        let names = ProgramNames::of(program);
        self.tell(News::Program(Plan { generation, workers, names, measurements }))
    }

    fn tell(&self, news: News) -> Result<()> {
        self.news.send(news).map_err(|_| anyhow!("the collector has ended"))
    }

    /// Returns what has been read so far.
    pub fn totals(&self) -> Totals {
        *self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the rings of all workers, which must have stopped, are read, and returns the totals.
    pub fn finish(self) -> Result<Totals> {
        drop(self.news);
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
struct Reader {
    rings: Vec<Ring>,
    /// `None` when no more messages can arrive.
    news: Option<Receiver<News>>,
    totals: Arc<Mutex<Totals>>,
    clock: Clock,
    times: Times,
    /// Deltas that have been read but not yet measured.
    deltas: Vec<FlowDelta>,
    names: Names,
    measured: Vec<Measuring>,
    pressure: Pressure,
}

impl Reader {
    fn new(news: Receiver<News>, totals: Arc<Mutex<Totals>>, clock: Clock) -> Reader {
        Reader {
            rings: Vec::new(),
            news: Some(news),
            totals,
            clock,
            times: Times::default(),
            deltas: Vec::new(),
            names: Names::default(),
            measured: Vec::new(),
            pressure: Pressure::default(),
        }
    }

    fn run(&mut self) {
        priority::ordinary();
        let [shortest, longest] = PAUSES;
        let mut pause = shortest;
        loop {
            self.take_news();
            let mut sums = Totals::default();
            let (read, full) = self.read(&mut sums);
            if read != 0 {
                let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
                for (total, sum) in totals.iter_mut().zip(&sums) {
                    total.deltas += sum.deltas;
                    total.packets += sum.packets;
                    total.bytes += sum.bytes;
                }
            } else if self.news.is_none() && self.rings.is_empty() {
                let times = self.times();
                self.measured.drain(..).for_each(|one| one.finish(&times).finish());
                return;
            }
            self.measure();
            if self.pressure.is_too_high(full) {
                self.shed();
            }
            pause = if read == 0 { (pause * 2).min(longest) } else { shortest };
            if !full {
                std::thread::sleep(pause);
            }
        }
    }

    fn take_news(&mut self) {
        while let Some(news) = &self.news {
            match news.try_recv() {
                Ok(News::Ring(ring)) => self.rings.push(ring),
                Ok(News::Program(plan)) => self.follow(plan),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => self.news = None,
            }
        }
    }

    /// Keeps measurements that are unchanged, and starts and ends others.
    fn follow(&mut self, plan: Plan) {
        let Plan { generation, workers, names, measurements } = plan;
        let mut before = std::mem::take(&mut self.measured);
        for one in measurements {
            let old = before.iter().position(|old| old.name() == one.name);
            let old = old.map(|at| before.swap_remove(at));
            let next = match old {
                Some(old) => old.succeed(one, workers),
                None => Measuring::new(one, workers),
            };
            self.measured.push(next);
        }
        self.names.set(generation, names, &self.measured);
        let times = self.times();
        // Their exports end by themselves; do not wait here.
        before.into_iter().for_each(|gone| drop(gone.finish(&times)));
    }

    /// Reads up to a ring's capacity from each worker, and forgets the rings of workers that have ended.
    /// Returns the number of deltas, and whether a ring was full.
    fn read(&mut self, sums: &mut Totals) -> (usize, bool) {
        let (mut read, mut full) = (0, false);
        let Reader { rings, deltas, measured, .. } = self;
        let keeps = !measured.is_empty();
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

    /// Measures the deltas that were read.
    fn measure(&mut self) {
        if self.measured.is_empty() {
            return;
        }
        let times = self.times();
        let mut deltas = std::mem::take(&mut self.deltas);
        for delta in &deltas {
            if !self.names.knows(delta.of()) {
                // The program was announced before a worker ran it, so the message is there by now.
                self.take_news();
            }
            let Some((measured, named)) = self.names.find(delta) else { continue };
            if let Some(measuring) = self.measured.get_mut(measured) {
                measuring.take(delta, &named, &times);
            }
        }
        deltas.clear();
        self.deltas = deltas;
        self.measured.iter_mut().for_each(|one| one.turn(&times));
    }

    /// Gives up the next part of a measurement.
    fn shed(&mut self) {
        if let Some((name, part)) = self.measured.iter_mut().find_map(Measuring::shed) {
            warn!(
                "measurement {name} gives up {}: flows give their counts faster than it adds them up",
                part.word()
            );
        }
    }

    fn times(&mut self) -> Times {
        self.times = self.times.at(self.clock.now_ns(), SystemTime::now());
        self.times
    }
}

#[cfg(test)]
mod tests;
