//! Exact counts beside the estimates: every flow with its counts, as long as memory allows.
//!
//! One map of flows answers everything: addresses, ports, pairs and sizes are derived from it when a report
//! is created. If a map would exceed its memory, exact counting ends permanently, because partial counts
//! would be useless.

use crate::keys::{FLOWS, Keys};
use std::collections::HashMap;
use weir_sketch::Exact;

/// Bytes per flow: key, counts, and the free space that a map keeps, in each of up to three maps.
const FLOW_BYTES: usize = 3 * 128;

/// The flows of the current interval, of the previous one, and of everything.
#[derive(Clone, Debug, Default)]
pub(crate) struct Truth {
    pub(crate) interval: Exact<5>,
    pub(crate) before: Exact<5>,
    pub(crate) all: Exact<5>,
    flows_max: usize,
    memory: usize,
    /// Why counting ended.
    pub(crate) ended: Option<String>,
}

impl Truth {
    /// Creates exact counts with this memory limit; `None` if the limit is 0.
    pub(crate) fn new(memory: usize) -> Option<Truth> {
        let flows_max = memory / FLOW_BYTES;
        (memory > 0).then(|| Truth { flows_max, memory, ..Truth::default() })
    }

    /// Counts packets of a 5-tuple.
    pub(crate) fn add(&mut self, update: &weir_sketch::Update<5>) {
        if self.ended.is_some() {
            return;
        }
        self.interval.add(update);
        self.all.add(update);
        if self.all.len() > self.flows_max {
            self.end(format!(
                "exact counting stopped after {} flows, all that fit into {} MiB: allow more memory",
                self.flows_max,
                self.memory >> 20
            ));
        }
    }

    /// Ends counting, and frees its memory.
    pub(crate) fn end(&mut self, why: String) {
        *self = Truth { ended: Some(why), ..Truth::default() };
    }

    /// Called when an interval has ended.
    pub(crate) fn close(&mut self) {
        self.before = std::mem::take(&mut self.interval);
    }
}

/// Exact counts of keys of one kind, by index, derived from those of 5-tuples.
pub(crate) fn by_kind(tuples: &Exact<5>, keys: &Keys, place: usize) -> Exact<5> {
    let mut exact = Exact::default();
    for (tuple, count) in tuples.iter() {
        let key = keys.of(place, tuple);
        exact.add(&weir_sketch::Update { key, packets: count.packets, bytes: count.bytes, note: () });
    }
    exact
}

/// The number of flows for each number of packets, sorted by the number of packets.
pub(crate) fn sizes(tuples: &Exact<5>, keys: &Keys) -> Vec<(u64, f64)> {
    by_kind(tuples, keys, FLOWS).distribution()
}

/// How many destinations each source has.
pub(crate) fn spreads(tuples: &Exact<5>, keys: &Keys) -> HashMap<[u64; 5], u64> {
    let mut pairs: Vec<[[u64; 5]; 2]> =
        tuples.iter().map(|(tuple, _)| [keys.of(crate::keys::SOURCES, tuple), keys.pair(tuple)]).collect();
    pairs.sort_unstable();
    pairs.dedup();
    let mut spreads = HashMap::new();
    for [source, _] in pairs {
        *spreads.entry(source).or_default() += 1;
    }
    spreads
}
