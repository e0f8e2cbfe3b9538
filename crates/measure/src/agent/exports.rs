//! Where a measurement's flow records go: to a collector, to files, or both.

use super::exporter::Exporter;
use super::ipfix::Sender;
use crate::export::Given;
use crate::{Export, Ipfix, Measurement, Parquet};

/// The exports of a measurement: by IPFIX, and to Parquet files.
#[derive(Default)]
pub struct Exports([Option<Exporter>; 2]);

impl Exports {
    /// Starts the configured exports.
    pub fn start(wanted: &Measurement) -> Exports {
        Exports([by_ipfix(wanted.ipfix), to_files(&wanted.name, wanted.parquet.as_ref())])
    }

    /// Keeps exports that are unchanged, starts new ones, and lets the others end.
    pub fn succeed(mut self, before: &Measurement, wanted: &Measurement) -> Exports {
        self.flush();
        let Exports([ipfix, parquet]) = self;
        let ipfix = if before.ipfix == wanted.ipfix { ipfix } else { by_ipfix(wanted.ipfix) };
        let parquet = match &wanted.parquet {
            same if *same == before.parquet => parquet,
            other => to_files(&wanted.name, other.as_ref()),
        };
        Exports([ipfix, parquet])
    }

    /// Passes a record to all exports.
    pub fn give(&mut self, given: impl Fn() -> Given) {
        self.0.iter_mut().flatten().for_each(|exporter| exporter.give(given()));
    }

    /// Passes collected records on. Returns the fates of all records.
    pub fn flush(&mut self) -> [Option<Export>; 2] {
        self.0.each_mut().map(|one| {
            let exporter = one.as_mut()?;
            exporter.flush();
            Some(exporter.tally())
        })
    }

    /// Waits until everything is sent, up to a short deadline.
    pub fn finish(self) {
        self.0.into_iter().flatten().for_each(Exporter::finish);
    }
}

fn by_ipfix(to: Option<Ipfix>) -> Option<Exporter> {
    to.map(|to| Exporter::start("ipfix", |tally| Sender::new(to, tally)))
}

#[cfg(feature = "parquet")]
fn to_files(name: &str, to: Option<&Parquet>) -> Option<Exporter> {
    to.map(|to| Exporter::start("parquet", |tally| super::parquet::Files::new(name, to.clone(), tally)))
}

/// Without the feature `parquet`, the configuration refuses exports to files.
#[cfg(not(feature = "parquet"))]
fn to_files(_: &str, _: Option<&Parquet>) -> Option<Exporter> {
    None
}
