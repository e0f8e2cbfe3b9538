//! The progress of a long measurement: one line on a terminal, rewritten repeatedly.

use std::io::{IsTerminal, Write, stderr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The minimum duration of a measurement whose progress is shown.
const QUIET: Duration = Duration::from_millis(700);

/// Interval between two updates.
const PAUSE: Duration = Duration::from_millis(250);

/// Characters of the bar.
const BAR: usize = 30;

/// The progress line.
pub struct Progress {
    /// Bytes read so far.
    pub read: Arc<AtomicU64>,
    /// Total bytes; `None` if a file's size is unknown.
    all: Option<u64>,
    began: Instant,
    next: Instant,
    is_shown: bool,
    is_wanted: bool,
}

impl Progress {
    /// Starts the display for these files.
    pub fn new(files: &[PathBuf]) -> Progress {
        let size = |path: &PathBuf| {
            let about = std::fs::metadata(path).ok().filter(|about| about.is_file());
            about.map(|about| about.len())
        };
        let began = Instant::now();
        Progress {
            read: Arc::default(),
            all: files.iter().map(size).sum(),
            began,
            next: began + QUIET,
            is_shown: false,
            is_wanted: stderr().is_terminal(),
        }
    }

    /// Shows the progress, if an update is due.
    pub fn show(&mut self, packets: u64) {
        if !self.is_wanted || Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + PAUSE;
        self.is_shown = true;
        let (read, took) = (self.read.load(Ordering::Relaxed), self.began.elapsed());
        Progress::rewrite(&line(read, self.all, packets, took));
    }

    /// Replaces the line. If that fails, there is nowhere to report it.
    fn rewrite(text: &str) {
        let _ = write!(stderr(), "\r{text}\x1b[K");
    }

    /// Erases the line.
    pub fn end(&self) {
        if self.is_shown {
            Progress::rewrite("");
        }
    }
}

fn line(read: u64, all: Option<u64>, packets: u64, took: Duration) -> String {
    let rate = read as f64 / took.as_secs_f64().max(1e-3);
    let pace =
        format!("{:.0} MB, {:.2} M packets, {:.0} MB/s", read as f64 / 1e6, packets as f64 / 1e6, rate / 1e6);
    let Some(all) = all.filter(|all| *all > 0) else { return pace };
    let share = (read as f64 / all as f64).min(1.0);
    let full = (share * BAR as f64) as usize;
    let bar = format!("{}{}", "#".repeat(full), "-".repeat(BAR - full));
    let left = all.saturating_sub(read) as f64 / rate.max(1.0);
    format!("[{bar}] {:3.0} %  {pace}, {left:.0} s left", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_share_pace_and_what_is_left() {
        let took = Duration::from_secs(2);
        let half = line(500_000_000, Some(1_000_000_000), 1_000_000, took);
        assert!(half.starts_with("[###############---------------]  50 %"), "{half}");
        assert!(half.ends_with("500 MB, 1.00 M packets, 250 MB/s, 2 s left"), "{half}");
        assert!(!line(5, None, 1, took).contains('['));
        assert!(line(7, Some(5), 1, took).contains("100 %"));
    }
}
