//! Whether the bond's rate depends on the number of flows: its program on memory ports, with nothing else
//! changing.
//!
//! Recordings of many flows do not fit into any cache. Here 64 frames are in the cache however many flows
//! there are, and the fields that identify a flow are patched into them. A bond has 256 buckets, so it must
//! cost the same with 1 flow as with 500 000; a flow table in front shows its cache misses.

use crate::engine::mpps;
use crate::scenarios::{Scenario, bond};

/// Numbers of flows.
const FLOWS: [u32; 2] = [1, 500_000];

/// A line of results.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Flatness {
    flows: u32,
    /// Whether a FLOW pipe is in front, with a live entry for every flow.
    flow_table: bool,
    mpps: f64,
    mpps_min: f64,
    mpps_max: f64,
}

/// Runs the measurement.
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
