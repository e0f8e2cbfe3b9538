//! The daemon's log: `tracing`, with time and level, to standard error.
//!
//! The log's reader may be slow, stuck or gone, and the disk may be full. None of this may affect the daemon:
//! a line is put into a bounded queue, or counted as lost if the queue is full, and a thread writes the
//! lines. Losses are reported when there is room again. tracing-appender would do nearly the same, but prints
//! an error of its own when it cannot end in time, and so waits for the stuck reader.
//!
//! Repeated messages, such as those of a flapping link, get a few lines at once and then one now and then,
//! which says how many were suppressed (`repeated.rs`): other hosts may control how often they occur.
//!
//! If standard error is the journal's, a line starts with its priority instead (`sd-daemon(3)`), because the
//! journal adds the time itself. The journal's own protocol is not used, because sending on its socket may
//! block.

mod repeated;

use anyhow::{Context, Result};
use repeated::Repeated;
use rustix::fs::fstat;
use std::fmt;
use std::io::{Write, stderr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;
use weir_app::privileges;

/// Lines that may be queued for writing: the events of a large bond whose links all go down.
const LINES: usize = 1024;

/// How long the daemon waits at its end for the last lines to be written.
const PATIENCE: Duration = Duration::from_secs(5);

/// Lines lost since the start.
static LOST: AtomicU64 = AtomicU64::new(0);

/// The running log; when dropped, it waits briefly for the last lines to be written.
pub struct Log(SyncSender<LogMessage>);

/// A message to the writing thread.
enum LogMessage {
    Text(Vec<u8>),
    /// Answer once all earlier lines have been written.
    End(SyncSender<()>),
}

impl Log {
    /// Starts the log. There is one per process.
    ///
    /// # Errors
    /// Fails if no thread can be started, or if the log has already been started.
    pub fn start(level: Level) -> Result<Log> {
        let (lines, queue) = sync_channel(LINES);
        std::thread::Builder::new().name("weir-log".into()).spawn(move || write_all(&queue))?;
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .event_format(Format { journal: is_journal(), repeated: Mutex::default() })
            .with_writer(Lines(lines.clone()))
            .finish();
        tracing::subscriber::set_global_default(subscriber).context("the log")?;
        Ok(Log(lines))
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let until = Instant::now() + PATIENCE;
        let (answer, written) = sync_channel(1);
        while let Err(TrySendError::Full(_)) = self.0.try_send(LogMessage::End(answer.clone())) {
            if Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

/// Returns the number of lines lost since the start.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Writes lines until the process ends.
fn write_all(queue: &Receiver<LogMessage>) {
    // This thread starts before the daemon has dropped its privileges, and needs none.
    if let Err(error) = privileges::drop_all() {
        let _ = writeln!(stderr(), "weir: cannot drop the privileges of the log thread: {error}");
    }
    let mut reported = 0;
    while let Ok(line) = queue.recv() {
        match line {
            LogMessage::Text(text) => write_line(&text, &mut reported),
            LogMessage::End(answer) => {
                let _ = answer.try_send(());
            }
        }
    }
}

/// Writes a line. Afterwards reports how many were lost before it, if that has not been reported.
fn write_line(text: &[u8], reported: &mut u64) {
    if stderr().write_all(text).is_err() {
        LOST.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let lost = lost();
    if lost > *reported && writeln!(stderr(), "weir: {} log lines were lost here", lost - *reported).is_ok() {
        *reported = lost;
    }
}

/// The sending end of the queue, as required by `tracing`.
struct Lines(SyncSender<LogMessage>);

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Lines;

    fn make_writer(&'a self) -> &'a Lines {
        self
    }
}

impl Write for &Lines {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        // A suppressed event has no text.
        if !text.is_empty() && self.0.try_send(LogMessage::Text(text.to_vec())).is_err() {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The format of a line.
struct Format {
    journal: bool,
    repeated: Mutex<Repeated>,
}

impl<S, N> FormatEvent<S, N> for Format
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut message = Message(String::new());
        event.record(&mut message);
        let level = *event.metadata().level();
        if level <= Level::INFO {
            let mut repeated = self.repeated.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(kept_back) = repeated.take(&message.0, Instant::now()) else { return Ok(()) };
            if kept_back > 0 {
                message.0 += &format!(" ({kept_back} similar ones before)");
            }
        }
        if self.journal {
            // Every line of a message is a journal entry.
            return message.0.lines().try_for_each(|line| writeln!(writer, "<{}>{line}", priority(level)));
        }
        SystemTime.format_time(&mut writer)?;
        writeln!(writer, " {level:>5} {}", message.0)
    }
}

/// The text of an event. Names of back ends or LACP systems come from elsewhere, so control characters are
/// escaped.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() != "message" {
            return;
        }
        for letter in format!("{value:?}").trim_end().chars() {
            match letter {
                '\n' => self.0.push(letter),
                letter if letter.is_control() => self.0.extend(letter.escape_default()),
                letter => self.0.push(letter),
            }
        }
    }
}

/// Returns the priority of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Returns true if standard error is connected to the journal: systemd says which file that is.
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    fstat(stderr()).is_ok_and(|file| stream == format!("{}:{}", file.st_dev, file.st_ino))
}
