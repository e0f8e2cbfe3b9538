//! `weir bench memory`: the memory per entry, as the growth of the process's resident memory divided by live
//! entries. The tables are filled to their capacity.

use super::scenarios::{basic1m, flow1m, shuffled};
use anyhow::{Context, Result};
use engine::batch::Engine;
use engine::program::PortId;
use packet::Port;
use packet::{Batch, Pools, TableHash};
use port::{Generator, Stream};

/// Number of entries of each kind.
const ENTRIES: u32 = 1 << 20;

/// A line of results.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// Kind of entry.
    pub name: &'static str,
    /// Number of live entries.
    pub entries: u32,
    /// Resident bytes per entry.
    pub bytes: f64,
}

/// Measures both kinds of entries.
pub fn run() -> Result<Vec<Row>> {
    Ok(vec![flows()?, basic()?])
}

/// Measures flows: 40-byte keys, learnt from packets.
fn flows() -> Result<Row> {
    let scenario = flow1m();
    let mut pools = Pools::region(512);
    let pool = pools.first().id();
    let mut port = Generator::new("in", &mut pools, pool, Stream::udp(64, shuffled(ENTRIES)), u64::from(ENTRIES));
    let before = resident()?;
    let mut engine = Engine::new(&scenario.program, TableHash::new([1, 2]))?;
    let mut batch = Batch::new();
    loop {
        port.receive(&mut pools, &mut batch);
        if batch.is_empty() {
            break;
        }
        let list = batch.mask();
        engine.process(&mut batch, list, PortId(0), 1_000_000);
        port.transmit(&mut pools, &mut batch, list);
        batch.clear();
    }
    let live = engine.flows(engine::program::PipeId(0), 0).1 as u32;
    Ok(Row { name: "flow, 40 B key", entries: live, bytes: (resident()? - before) as f64 / f64::from(live) })
}

/// Measures entries of a BASIC pipe: 16-byte keys, configured.
fn basic() -> Result<Row> {
    let scenario = basic1m();
    let before = resident()?;
    let engine = Engine::new(&scenario.program, TableHash::new([1, 2]))?;
    let bytes = (resident()? - before) as f64 / f64::from(ENTRIES);
    drop(engine);
    Ok(Row { name: "basic, 16 B key", entries: ENTRIES, bytes })
}

/// Returns the resident bytes of this process.
fn resident() -> Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").context("/proc is not mounted")?;
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).context("statm")?;
    Ok(pages * rustix::param::page_size() as u64)
}
