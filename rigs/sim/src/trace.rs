//! The outcome of every flow, for other programs: bench/ns3 runs the same flows through another simulator.

use crate::run::Run;
use crate::scenario::Scenario;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// The first line. Times are in ns from the start of the run, hosts are numbered leaf by leaf, and paths by
/// their index. `ended_ns` is empty if the flow has not finished, and a path is empty if no packet went that
/// way.
const HEAD: &str = "load,scheme,seed,flow,arrived_ns,from,to,bytes,path,path_back,ended_ns";

/// A file of flows.
pub struct Trace(BufWriter<File>);

impl Trace {
    /// Creates the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(file: &Path) -> Result<Trace> {
        let created = File::create(file).with_context(|| format!("{} cannot be written", file.display()))?;
        let mut trace = Trace(BufWriter::new(created));
        writeln!(trace.0, "{HEAD}")?;
        Ok(trace)
    }

    /// Adds the flows of a finished run. A path is that of the last packet.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, scenario: &Scenario, run: &Run) -> Result<()> {
        let Scenario { percent, contender, seed, .. } = scenario;
        for (number, transfer) in run.transfers().iter().enumerate() {
            let or_empty = |value: Option<u64>| value.map_or(String::new(), |value| value.to_string());
            let [path, back] = transfer.paths().map(|path| or_empty(path.map(u64::from)));
            let (from, to, bytes) = (transfer.from, transfer.to, transfer.bytes);
            let (arrived, ended) = (transfer.arrived_at, or_empty(transfer.ended_at));
            writeln!(
                self.0,
                "{percent},{contender},{seed},{number},{arrived},{from},{to},{bytes},{path},{back},{ended}"
            )?;
        }
        Ok(())
    }

    /// Finishes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn end(mut self) -> Result<()> {
        self.0.flush().context("the trace cannot be written")
    }
}
