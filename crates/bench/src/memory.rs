//! `weir bench memory`: what an entry costs, as the growth of the process's resident memory over live
//! entries, the tables filled to the capacity they were made for.

use super::scenarios::{basic1m, flow1m, shuffled};
use anyhow::{Context, Result};
use engine::batch::Engine;
use engine::program::PortId;
use packet::Port;
use packet::{Batch, Pools, TableHash};
use port::{Generator, Stream};

/// Entries of each kind.
const ENTRIES: u32 = 1 << 20;

/// One line of results.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// Kind of entry.
    pub name: &'static str,
    /// Live entries.
    pub entries: u32,
    /// Resident bytes for each.
    pub bytes: f64,
}

/// Measures both kinds.
pub fn run() -> Result<Vec<Row>> {
    Ok(vec![flows()?, basic()?])
}

/// 40-byte keys, learnt from packets.
fn flows() -> Result<Row> {
    let scenario = flow1m();
    let mut pools = Pools::region(512);
    let pool = pools.first().id();
    let mut port =
        Generator::new("in", &mut pools, pool, Stream::udp(64, shuffled(ENTRIES)), u64::from(ENTRIES));
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

/// 16-byte keys, from the configuration.
fn basic() -> Result<Row> {
    let scenario = basic1m();
    let before = resident()?;
    let engine = Engine::new(&scenario.program, TableHash::new([1, 2]))?;
    let bytes = (resident()? - before) as f64 / f64::from(ENTRIES);
    drop(engine);
    Ok(Row { name: "basic, 16 B key", entries: ENTRIES, bytes })
}

/// Resident bytes of this process.
fn resident() -> Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").context("/proc is not mounted")?;
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).context("statm")?;
    Ok(pages * rustix::param::page_size() as u64)
}
