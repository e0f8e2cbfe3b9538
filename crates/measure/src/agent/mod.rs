//! Measures flows: reads the flow deltas of all workers and of flow tables outside of pipes, on the
//! collector's thread, runs the measurements of `measure` apps, and exports flow records from threads of
//! their own. Processing deltas costs the workers nothing.
//!
//! Promises: neither a worker nor the main thread ever waits for a measurement. If deltas arrive faster than
//! they are measured, measurements give up parts, one at a time, in the order of [`Query::shed_order`]; exact
//! totals and the numbers of flows, sources and destinations stay. A part that was given up returns with the
//! next change of the measurement's configuration. At the end, everything that was delivered is measured.
//!
//! [`Query::shed_order`]: crate::Query::shed_order

mod exporter;
mod exports;
mod ipfix;
mod measuring;
mod names;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(test)]
mod tests;

use crate::Measurement;
use crate::app::measurements;
use measuring::{Measuring, Times};
use names::{PipeNames, ProgramNames};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::SystemTime;
use tracing::warn;
use weir_app::agent::{Agent, DeltaReader, FlowTable, Next};
use weir_app::names::NamesBoard;
use weir_engine::delta::FlowDelta;

/// The facts about a program that the collector needs.
struct CollectorPlan {
    generation: u64,
    workers: usize,
    names: ProgramNames,
    measurements: Vec<Measurement>,
    /// The names of addresses.
    addresses: NamesBoard,
}

/// Returns the agent of measurements.
pub fn create() -> Box<dyn Agent> {
    let (plans, new) = channel();
    Box::new(Measurer { plans, reader: Some(Reader::new(new)), periods: Vec::new() })
}

/// The main thread's side.
struct Measurer {
    plans: Sender<CollectorPlan>,
    reader: Option<Reader>,
    /// How often flow tables outside of pipes export their counts, in milliseconds, by name.
    periods: Vec<(String, u64)>,
}

impl Agent for Measurer {
    fn reader(&mut self) -> Option<Box<dyn DeltaReader>> {
        self.reader.take().map(|reader| -> Box<dyn DeltaReader> { Box::new(reader) })
    }

    fn prepare(&mut self, next: &Next<'_>) {
        let Next { apps, program, generation, workers, names } = *next;
        let measurements = measurements(apps);
        let period = |one: &Measurement| Some((one.pipes.first()?.clone(), one.overlay.as_ref()?.flush_ms));
        self.periods = measurements.iter().filter_map(period).collect();
        let (names, addresses) = (ProgramNames::of(program), names.clone());
        let plan = CollectorPlan { generation, workers, names, measurements, addresses };
        // If the collector has ended early, that is reported when the daemon stops.
        let _ = self.plans.send(plan);
    }

    fn follow_tables(&mut self, tables: &[Arc<dyn FlowTable>]) {
        for table in tables {
            let period = self.periods.iter().find(|(name, _)| name == table.name());
            table.export_every(period.map_or(0, |(_, period_ms)| *period_ms));
        }
    }
}

/// The collector's side.
struct Reader {
    plans: Receiver<CollectorPlan>,
    times: Times,
    names: PipeNames,
    measured: Vec<Measuring>,
    /// The names of addresses.
    addresses: NamesBoard,
}

impl Reader {
    fn new(plans: Receiver<CollectorPlan>) -> Reader {
        Reader {
            plans,
            times: Times::default(),
            names: PipeNames::default(),
            measured: Vec::new(),
            addresses: NamesBoard::default(),
        }
    }

    fn take_plans(&mut self) {
        while let Ok(plan) = self.plans.try_recv() {
            self.follow(plan);
        }
    }

    /// Keeps measurements that are unchanged, and starts and ends others.
    fn follow(&mut self, plan: CollectorPlan) {
        let CollectorPlan { generation, workers, names, measurements, addresses } = plan;
        self.addresses = addresses;
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
        // Their exports end on their own threads, so there is no need to wait here.
        before.into_iter().for_each(|gone| drop(gone.finish(&self.times)));
    }

    /// Follows the wall clock.
    fn set_times(&mut self, now_ns: u64) {
        self.times = self.times.at(now_ns, SystemTime::now());
    }
}

impl DeltaReader for Reader {
    fn is_reading(&mut self, now_ns: u64) -> bool {
        self.set_times(now_ns);
        self.take_plans();
        !self.measured.is_empty()
    }

    fn read(&mut self, deltas: &[FlowDelta], now_ns: u64) {
        self.set_times(now_ns);
        let addresses = self.addresses.names();
        self.measured.iter_mut().for_each(|one| one.set_names(&addresses));
        for delta in deltas {
            if !self.names.knows(delta.of()) {
                // The plan was sent before any worker ran its program, so it has arrived by now.
                self.take_plans();
            }
            let Some((measured, named)) = self.names.find(delta) else { continue };
            if let Some(measuring) = self.measured.get_mut(measured) {
                measuring.take(delta, &named, &self.times);
            }
        }
        self.measured.iter_mut().for_each(|one| one.turn(&self.times));
    }

    fn shed(&mut self) -> bool {
        let shed = self.measured.iter_mut().find_map(Measuring::shed);
        if let Some((name, part)) = &shed {
            warn!(
                "measurement {name} gives up {part}: flows report their counts faster than it can add them up"
            );
        }
        shed.is_some()
    }

    fn finish(mut self: Box<Self>, now_ns: u64) {
        self.set_times(now_ns);
        self.take_plans();
        self.measured.drain(..).for_each(|one| one.finish(&self.times).finish());
    }
}
