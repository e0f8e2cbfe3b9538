//! The collector: a thread that reads the flow deltas of all workers, each from a ring of its own, adds them
//! up by reason, and measures what `measure` apps ask for. What is made of deltas costs the workers nothing.
//!
//! Promises: a worker never waits for the collector, and neither does the main thread. If it does not keep
//! up, its rings fill, and then counts stay in the flows and flows in the tables; if that lasts, it gives up
//! parts of measurements in a stated order ([`pressure`]). When all workers have stopped, it reads what is
//! left and ends.

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

/// Deltas that fit between a worker and the collector: a mebibyte, and 10 ms at 1.6 million deltas a second.
pub const RING: usize = 16_384;

/// The shortest and the longest pause when there is nothing to read. A wake-up every 64 ms costs nothing that
/// could be measured, and the pause shrinks as soon as there are deltas.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(64)];

/// What deltas of flows between pods belong to, which no program has; the largest number of a pipe is less.
pub const OF_PODS: Belonging = Belonging { generation: 0, pipe: u16::MAX, target: NO_DELTA_TARGET };

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

impl Sum {
    fn add(&mut self, delta: &FlowDelta) {
        self.deltas += 1;
        self.packets += delta.packets();
        self.bytes += delta.bytes();
    }
}

/// What all deltas add up to, by reason, in the order of [`DeltaReason::ALL`].
pub type Totals = [Sum; DeltaReason::ALL.len()];

/// What the main thread tells the collector.
enum News {
    /// A worker's ring, or that of who minds an overlay.
    Ring(Ring),
    /// A program, which workers take over after this.
    Program(Plan),
}

/// A ring to be read.
struct Ring {
    deltas: Receiver<FlowDelta>,
    /// Whether its deltas are of the program's flows, which are added up by reason.
    of_program: bool,
}

/// What the collector must know of a program.
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
    /// Starts the thread, which reads no rings yet. `clock` is that of the workers.
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

    /// Lets it read a worker's ring, until the worker drops its end.
    pub fn read(&self, ring: Receiver<FlowDelta>) -> Result<()> {
        self.tell(News::Ring(Ring { deltas: ring, of_program: true }))
    }

    /// Lets it read the ring of who minds an overlay, until that is dropped.
    pub fn read_pods(&self, ring: Receiver<FlowDelta>) -> Result<()> {
        self.tell(News::Ring(Ring { deltas: ring, of_program: false }))
    }

    /// Tells it what deltas of a generation of the program are about, and what is measured from now on. Must
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

/// What runs on the thread.
struct Reader {
    rings: Vec<Ring>,
    /// `None` when there will be no more news.
    news: Option<Receiver<News>>,
    totals: Arc<Mutex<Totals>>,
    clock: Clock,
    times: Times,
    /// Deltas that have been read and not been measured.
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

    /// Goes on with measurements that are as they were, and begins and ends others.
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
        // Their exports end by themselves: nobody waits here.
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

    /// Measures what has been read.
    fn measure(&mut self) {
        if self.measured.is_empty() {
            return;
        }
        let times = self.times();
        let mut deltas = std::mem::take(&mut self.deltas);
        for delta in &deltas {
            if !self.names.knows(delta.of()) {
                // The program was told before a worker ran it, so the news is there by now.
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
