//! Measures the composition of traffic. See README.md.
//!
//! The app writes a pipe in front of the destination of a port's frames, or marks a configured pipe as
//! measured. The flows' counts are added up by the agent, on the collector's thread: the app only defines the
//! measurement ([`Measurement`]) and shows the results that the agent has published on the
//! [`MeasurePublisher`].

mod board;
mod http;
mod pages;
#[cfg(test)]
mod tests;
mod text;
mod yaml;

pub use board::{Export, HISTORY, KEPT, KeptInterval, MeasurePublisher, MeasurementReport, Sum};
pub(crate) use yaml::measurements;
pub use yaml::read_with;

use crate::{LiveSolution, Seed, Settings, agent};
use http::ReadMeasurement;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use weir_app::http::HttpControl;
use weir_app::kind::{Kind, View};

/// The kind of app with the key `measure`.
pub const KIND: Kind = Kind {
    key: "measure",
    help: "A measurement of the flows of a port or a pipe.",
    keys: yaml::KEYS,
    pipes: &[],
    read: yaml::read,
    one: None,
    tables: &[],
    views: &[
        View { word: "", request: "interval", text: text::interval },
        View { word: "history", request: "history", text: text::history },
    ],
    pages: pages::PAGES,
    agent: Some(agent::create),
    tools: &[],
    command: Some(&crate::command::COMMAND),
    about: "Analyse recordings: flows, sources, destinations, ports, sizes, changes",
    verbs: &[],
    http: Some(&HTTP),
    foreign: &[],
    edits: None,
};

/// Access to measurements over HTTP.
const HTTP: HttpControl = HttpControl {
    list: |apps, route, names| {
        let read = |Measurement { name, interval_ms, seed, board, .. }: Measurement| ReadMeasurement {
            name,
            interval_ms,
            seeded: seed.is_some(),
            board,
        };
        http::list(&measurements(apps).into_iter().map(read).collect::<Vec<_>>(), route, names)
    },
    ..http::HTTP
};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Its name.
    pub name: String,
    /// The pipes that are measured.
    pub pipes: Vec<String>,
    /// The overlay that is measured instead of pipes.
    pub overlay: Option<OfOverlay>,
    /// How long an interval is, in milliseconds.
    pub interval_ms: u64,
    /// What is measured.
    pub settings: Settings,
    /// The seed that it shares with the measurements of other nodes, if its intervals can be merged with
    /// theirs.
    pub seed: Option<Seed>,
    /// The solution of Agg-Evict's paper that counts flows too, if one is configured.
    pub solution: Option<LiveSolution>,
    /// Where records are exported to.
    pub ipfix: Option<Ipfix>,
    /// The files to which records are written.
    pub parquet: Option<Parquet>,
    /// Where results are published.
    pub board: MeasurePublisher,
}

/// An overlay whose flows are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfOverlay {
    /// The name of the app.
    pub name: String,
    /// How often the overlay's flows report their counts, in milliseconds.
    pub flush_ms: u64,
}

impl Measurement {
    /// Returns how many threads report that flows have delivered their counts, if there are `workers`
    /// workers.
    #[must_use]
    pub fn givers(&self, workers: usize) -> usize {
        if self.overlay.is_some() { 1 } else { workers }
    }
}

/// An IPFIX collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipfix {
    /// Its address.
    pub to: SocketAddr,
    /// Whether to use TCP instead of UDP.
    pub tcp: bool,
    /// The observation domain.
    pub domain: u32,
}

/// A folder of Parquet files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parquet {
    /// The folder, which must exist.
    pub directory: PathBuf,
    /// How long records go to the same file.
    pub rotate: Duration,
    /// The approximate maximum size of a file, in bytes.
    pub rotate_bytes: u64,
}
