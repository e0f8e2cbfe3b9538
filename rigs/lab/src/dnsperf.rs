//! The load: Debian's dnsperf, open loop.
//!
//! Open loop means that each query is sent on schedule, whether or not earlier ones were answered. A closed
//! loop slows down along with the system it measures, which hides the effect on clients. Hence `-Q` (the
//! rate), with enough outstanding queries allowed. Each answer is a line of `-v`; lines are counted as they
//! arrive, so memory does not grow with the duration.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ChildStdout, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::latency::Latency;
use weir_bed::Namespace;
use weir_bed::{Run, Started};

/// Sockets of dnsperf. Its receivers poll every socket in turn, so more of them would take CPU time from weir
/// and the servers.
pub const SOCKETS: u32 = 256;
/// Number of senders and of receivers: the core count of the smallest machine.
const THREADS: &str = "2";
/// The number of seconds without an answer after which a query counts as lost, unless the machine is slow.
const TIMEOUT_S: u32 = 3;
/// How much longer than its timeout dnsperf may take to exit on a slow machine.
const GRACE: Duration = Duration::from_secs(10);

/// Parameters of a load.
#[derive(Clone, Copy)]
pub struct LoadParameters {
    /// Queries per second.
    pub rate: u32,
    /// Duration of the load.
    pub seconds: u32,
    /// How much slower this machine is than others.
    pub slowdown: u32,
}

/// Results so far.
#[derive(Default)]
pub struct Tally {
    /// Queries answered with NOERROR.
    pub answered: u64,
    /// Queries answered with another code.
    pub refused: u64,
    /// Queries not answered in time.
    pub lost: u64,
    /// Latencies of all answers.
    pub latency: Latency,
}

impl Tally {
    /// Counts a line of `dnsperf -v`: `> NOERROR name type 0.000123` or `> T name type`. Other lines are
    /// ignored.
    fn count(&mut self, line: &str) {
        let Some(line) = line.strip_prefix("> ") else { return };
        if line.starts_with("T ") || line.starts_with("I ") {
            self.lost += 1;
            return;
        }
        if line.starts_with("NOERROR ") {
            self.answered += 1;
        } else {
            self.refused += 1;
        }
        if let Some(us) = line.rsplit(' ').next().and_then(microseconds) {
            self.latency.add(us);
        }
    }
}

/// Result of a load.
pub struct LoadResult {
    /// Queries sent, according to dnsperf's summary.
    pub sent: u64,
    /// Answers and losses.
    pub tally: Tally,
}

/// A running dnsperf.
pub struct Load {
    process: Started,
    tally: Arc<Mutex<Tally>>,
    reader: JoinHandle<Option<u64>>,
    started: Instant,
    deadline: Instant,
}

impl Load {
    /// Starts a load.
    pub fn start(
        run: &mut Run,
        client: &Namespace,
        server: &str,
        plan: LoadParameters,
        queries: &Path,
    ) -> Result<Load> {
        let mut command = client.command("dnsperf");
        command
            .args(["-v", "-s", server, "-T", THREADS, "-q", "65536", "-d"])
            .arg(queries)
            .stdout(Stdio::piped());
        let timeout_s = TIMEOUT_S * plan.slowdown;
        for (flag, value) in [("-c", SOCKETS), ("-Q", plan.rate), ("-l", plan.seconds), ("-t", timeout_s)] {
            command.arg(flag).arg(value.to_string());
        }
        let process = run.start("dnsperf", &mut command)?;
        let lines = run.child(process).stdout.take().context("no pipe from dnsperf")?;
        let tally = Arc::new(Mutex::new(Tally::default()));
        let counted = Arc::clone(&tally);
        let reader = std::thread::spawn(move || read(lines, &counted));
        let started = Instant::now();
        let deadline =
            started + Duration::from_secs(u64::from(plan.seconds + timeout_s)) + GRACE * plan.slowdown;
        Ok(Load { process, tally, reader, started, deadline })
    }

    /// Returns how long the load has been running.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the results so far.
    pub fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the load has ended. Fails if it is overdue.
    pub fn ended(&self, run: &mut Run) -> Result<bool> {
        if run.child(self.process).try_wait()?.is_some() {
            return Ok(true);
        }
        if Instant::now() > self.deadline {
            bail!("dnsperf did not end in time");
        }
        Ok(false)
    }

    /// Returns the result of a load that has ended.
    pub fn outcome(self, run: &Run) -> Result<LoadResult> {
        let Ok(sent) = self.reader.join() else { bail!("the thread that reads dnsperf's lines panicked") };
        let sent =
            sent.with_context(|| format!("dnsperf printed no summary: {}", run.last_words("dnsperf")))?;
        let tally = std::mem::take(&mut *self.tally.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(LoadResult { sent, tally })
    }
}

/// Counts lines to the end of the input. Returns the number of queries sent, from the summary.
fn read(lines: ChildStdout, tally: &Mutex<Tally>) -> Option<u64> {
    let mut sent = None;
    let mut lines = BufReader::with_capacity(1 << 16, lines);
    let mut line = String::new();
    while lines.read_line(&mut line).is_ok_and(|length| length > 0) {
        if let Some(count) = line.trim_start().strip_prefix("Queries sent:") {
            sent = count.trim().parse().ok();
        } else {
            tally.lock().unwrap_or_else(PoisonError::into_inner).count(line.trim_end());
        }
        line.clear();
    }
    sent
}

/// `12.000345` -> 12 000 345.
fn microseconds(seconds: &str) -> Option<u64> {
    let (whole, fraction) = seconds.split_once('.')?;
    if fraction.len() != 6 {
        return None;
    }
    Some(whole.parse::<u64>().ok()?.checked_mul(1_000_000)? + fraction.parse::<u64>().ok()?)
}

/// Sends `server` the query in the file `query`, and returns true if it answers within a second.
pub fn answers(client: &Namespace, server: &str, query: &Path) -> bool {
    let query = query.to_string_lossy();
    let arguments = ["-s", server, "-d", &query, "-c", "1", "-n", "1", "-l", "1", "-t", "1"];
    client.output("dnsperf", &arguments).is_ok_and(|text| text.contains("(100.00%)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_dnsperf_are_counted() {
        let mut tally = Tally::default();
        let lines =
            ["> NOERROR h1.weir.test A 0.000123", "> SERVFAIL h1.weir.test A 1.000000", "> T h2.weir.test A"];
        lines.iter().for_each(|line| tally.count(line));
        ["", ">", "> ", "Statistics:", "> T", "> NOERROR x 1.5"].iter().for_each(|line| tally.count(line));
        assert_eq!((tally.answered, tally.lost), (2, 1));
        assert_eq!(tally.latency.percentile(50), 123);
    }

    #[test]
    fn seconds_have_six_digits_after_the_point() {
        assert_eq!(microseconds("12.000345"), Some(12_000_345));
        assert_eq!(microseconds("0.1"), None);
        assert_eq!(microseconds("99999999999999999999.000000"), None);
    }
}
