//! Reads recordings, and measures them.
//!
//! A thread reads ahead ([`input`]), and the calling thread finds flows and counts. An error in a file ends
//! that file: packets before it are kept, and the error is part of the result.

mod input;
mod progress;

use crate::export::Given;
use crate::{Link, Measured, Recording, Seed, Settings, Summary};
use anyhow::{Result, anyhow};
use input::Input;
use progress::Progress;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_port::pcap::{Links, Problem, ReadError, Reader};

/// The link types that are read.
const LINKS: Links = Links {
    has: |number| Link::of(number).is_some(),
    said: "Ethernet, IP (RAW), BSD loopbacks and Linux's `any` (LINUX_SLL, LINUX_SLL2)",
};

/// Frames between two checks of the clock and of user input.
const STRIDE: u64 = 4096;

/// A file that was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileReport {
    /// The name of the file, as it was given.
    pub file: String,
    /// Its packets, including skipped ones.
    pub packets: u64,
    /// The reason why the rest of the file was not read.
    pub error: Option<String>,
}

/// The outcome of a measurement.
pub struct MeasureOutcome {
    /// The answers to all queries.
    pub measured: Measured,
    /// The state that can be saved and merged.
    pub summary: Summary,
    /// The files that were read, in this order.
    pub files: Vec<FileReport>,
    /// Whether the measurement was interrupted before all files were read.
    pub is_interrupted: bool,
}

/// What takes the packets of recordings.
pub trait Packets {
    /// Takes a packet: when it was recorded, on which link type, the recorded part, and its bytes on the
    /// wire.
    fn packet(&mut self, time_ns: u64, link: Link, bytes: &[u8], length: u32);

    /// Takes packets that were skipped, of which only the number and bytes are known.
    fn skipped(&mut self, reason: String, packets: u64, bytes: u64);
}

impl Packets for Recording<'_> {
    #[inline]
    fn packet(&mut self, time_ns: u64, link: Link, bytes: &[u8], length: u32) {
        self.add(time_ns, link, bytes, length);
    }

    fn skipped(&mut self, reason: String, packets: u64, bytes: u64) {
        self.add_skipped(reason, packets, bytes);
    }
}

/// Measures recordings in sequence; `-` is standard input. `stop` ends it early. Reports every flow to
/// `flows`.
///
/// # Errors
/// Fails if none of the files has a readable start.
pub fn measure(
    files: &[PathBuf],
    settings: &Settings,
    seed: Seed,
    interval_ns: Option<u64>,
    stop: &Arc<AtomicBool>,
    flows: Option<&mut dyn FnMut(Given)>,
) -> Result<MeasureOutcome> {
    let mut recording = Recording::new(settings, seed, interval_ns);
    if let Some(give) = flows {
        recording = recording.giving(give);
    }
    let files = read_packets(files, &mut recording, stop)?;
    let (measured, summary) = recording.end();
    Ok(MeasureOutcome { measured, summary, files, is_interrupted: stop.load(Ordering::Relaxed) })
}

/// Gives the packets of recordings to `packets`, in sequence; `-` is standard input. `stop` ends it early.
///
/// # Errors
/// Fails if none of the files has a readable start.
pub fn read_packets(
    files: &[PathBuf],
    packets: &mut impl Packets,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<FileReport>> {
    let mut progress = Progress::new(files);
    let mut reports = Vec::new();
    let mut is_read = false;
    for path in files {
        let mut report = FileReport { file: path.display().to_string(), packets: 0, error: None };
        let result = file(path, packets, &mut progress, stop, &mut report.packets);
        is_read |= report.packets > 0 || result.is_ok();
        report.error = result.err().map(|error| format!("{error:#}"));
        reports.push(report);
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    progress.end();
    if !is_read {
        let errors: Vec<String> = reports.iter().map(said).collect();
        return Err(anyhow!("{}", errors.join("; ")));
    }
    Ok(reports)
}

/// Describes the error in a file, and states how many packets were kept.
pub fn said(report: &FileReport) -> String {
    let error = report.error.as_deref().unwrap_or_default();
    match report.packets {
        0 => format!("{}: {error}", report.file),
        packets => format!("{}: {error}; the {packets} packets before that are counted", report.file),
    }
}

/// Reads one file; `count` is also set if there is an error.
fn file(
    path: &Path,
    packets: &mut impl Packets,
    progress: &mut Progress,
    stop: &Arc<AtomicBool>,
    count: &mut u64,
) -> Result<()> {
    let input = Input::open(path, progress.read.clone(), stop.clone())?;
    let mut reader = Reader::open_of(input, LINKS)?;
    let result = loop {
        match reader.lend() {
            Ok(Some(frame)) => {
                let link = Link::of(frame.link).unwrap_or(Link::Ethernet);
                packets.packet(frame.time_ns, link, frame.bytes, frame.length);
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
        *count += 1;
        if count.is_multiple_of(STRIDE) {
            progress.show(*count);
            if stop.load(Ordering::Relaxed) {
                break Ok(());
            }
        }
    };
    for (link, [skipped, bytes]) in reader.skipped() {
        packets.skipped(format!("link_type_{link}"), skipped, bytes);
        *count += skipped;
    }
    match result {
        // If the user ends the measurement, the recording is cut at an arbitrary place.
        Err(ReadError { problem: Problem::Ends { .. }, .. }) if stop.load(Ordering::Relaxed) => Ok(()),
        other => Ok(other?),
    }
}
