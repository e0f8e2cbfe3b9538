//! Flatness: the bond's program on memory ports, varying only the number of flows.
//!
//! Recordings of many flows do not fit any cache. Here, 64 frames stay in the cache regardless of the number
//! of flows, and the fields that select a flow are written into them. A bond only looks up one of 256
//! buckets, so it must cost the same at 1 flow and at 500 000. With a flow table in front, the table's cache
//! misses show.

use crate::engine::mpps;
use crate::scenarios::{Scenario, bond};

/// Numbers of flows.
const FLOWS: [u32; 2] = [1, 500_000];

/// One line of results.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Flatness {
    flows: u32,
    /// Whether there is a FLOW pipe in front, with a live entry for every flow.
    flow_table: bool,
    mpps: f64,
    mpps_min: f64,
    mpps_max: f64,
}

/// Measures.
#[must_use]
pub fn run(mut progress: impl FnMut(&str)) -> Vec<Flatness> {
    let mut rows = Vec::new();
    progress("  flows  flow table   Mpps  (min - max)");
    for flow_table in [false, true] {
        for flows in FLOWS {
            let row = measure(&bond(flows, flow_table), flows, flow_table);
            let table = if flow_table { "yes" } else { "no" };
            progress(&format!(
                "{flows:>7}  {table:>10}  {:>5.2}  ({:.2} - {:.2})",
                row.mpps, row.mpps_min, row.mpps_max
            ));
            rows.push(row);
        }
    }
    rows
}

fn measure(scenario: &Scenario, flows: u32, flow_table: bool) -> Flatness {
    let rate = mpps(scenario);
    Flatness { flows, flow_table, mpps: rate.median, mpps_min: rate.min, mpps_max: rate.max }
}
