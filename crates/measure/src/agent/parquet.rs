//! Writes records to Parquet files, one after the other.
//!
//! A file gets its name when it is complete ([`FlowFile`]); only then do its records count as sent. If
//! writing fails (a full disk, a missing folder), the file's records are lost, and the next file is tried
//! after a pause ([`PAUSES`]).

use super::exporter::{Counts, Destination, PAUSES};
use crate::Parquet;
use crate::export::FlowFile;
use crate::export::Given;
use anyhow::{Error, Result};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The minimum rows of a row group, and bytes of a file for each row of a group: small files have small
/// groups.
const GROUP_LEAST: u64 = 1024;
const GROUP_SHARE: u64 = 64;

/// The files of a measurement.
pub struct Files {
    name: String,
    to: Parquet,
    tally: Arc<Counts>,
    file: Option<Open>,
    /// The time before which no file is created, and the pause after the next failure.
    down: (Instant, Duration),
}

/// A file that is being written.
struct Open {
    file: FlowFile,
    until: Instant,
}

impl Destination for Files {
    fn send(&mut self, batch: Vec<Given>) {
        if self.file.is_none() && !self.open() {
            self.tally.lost(batch.len() as u64);
            return;
        }
        let Some(Open { file, .. }) = &mut self.file else { return };
        let all = file.rows() + batch.len() as u64;
        match batch.into_iter().try_for_each(|given| file.add(given)) {
            Err(error) => {
                self.file = None;
                self.fails(all, &error);
            }
            Ok(()) if file.bytes() >= self.to.rotate_bytes => self.close(),
            Ok(()) => (),
        }
    }

    fn due(&self) -> Option<Instant> {
        self.file.as_ref().map(|open| open.until)
    }

    fn tend(&mut self) {
        if self.due().is_some_and(|due| due <= Instant::now()) {
            self.close();
        }
    }

    fn end(&mut self) {
        self.close();
    }
}

impl Files {
    /// Creates an instance without a file: the first record opens the first file. `name` is that of the
    /// measurement.
    pub fn new(name: &str, to: Parquet, tally: Arc<Counts>) -> Files {
        Files { name: name.to_string(), to, tally, file: None, down: (Instant::now(), PAUSES[0]) }
    }

    /// Opens the next file, if that is due. Returns false if no file is open.
    fn open(&mut self) -> bool {
        if Instant::now() < self.down.0 {
            return false;
        }
        match self.create() {
            Ok(file) => self.file = Some(Open { file, until: Instant::now() + self.to.rotate }),
            Err(error) => self.fails(0, &error),
        }
        self.file.is_some()
    }

    /// Creates a file whose name contains the current time, in milliseconds since 1970.
    fn create(&self) -> Result<FlowFile> {
        let mut now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let rows = (self.to.rotate_bytes / GROUP_SHARE).max(GROUP_LEAST) as usize;
        loop {
            let path = self.to.directory.join(format!("{}-{now_ms}.parquet", self.name));
            if !path.exists() {
                return FlowFile::create(&path, rows);
            }
            now_ms += 1;
        }
    }

    /// Finishes the open file.
    fn close(&mut self) {
        let Some(Open { file, .. }) = self.file.take() else { return };
        let rows = file.rows();
        match file.finish() {
            Ok(()) => {
                self.tally.sent(rows);
                self.tally.works(self.to.directory.display());
                self.down = (Instant::now(), PAUSES[0]);
            }
            Err(error) => self.fails(rows, &error),
        }
    }

    /// Notes that a file with `rows` records was lost.
    fn fails(&mut self, rows: u64, error: &Error) {
        let (_, pause) = self.down;
        self.down = (Instant::now() + pause, (pause * 2).min(PAUSES[1]));
        self.tally.lost(rows);
        self.tally.fails(format_args!("{error:#}"), self.to.directory.display());
    }
}

#[cfg(test)]
mod tests;
