//! An export of flow records on its own thread, so that a destination that is down or slow delays nothing
//! else. Records that do not fit into the bounded queue to the thread are lost and counted.

use crate::Export;
use crate::export::Given;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tracing::{info, warn};
use weir_app::priority;

/// Batches that may be queued for the thread.
const BATCHES: usize = 64;
/// Records per batch.
pub const BATCH: usize = 1024;
/// How long the shutdown of an exporter may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The shortest and the longest pause before a failed operation is retried; each pause is twice as long as
/// the previous one.
pub const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];

/// The collector's end of an exporter.
pub struct Exporter {
    batch: Vec<Given>,
    batches: SyncSender<Vec<Given>>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
    tally: Arc<Counts>,
}

/// A destination, which runs on the thread.
pub trait Destination: Send + 'static {
    /// Sends records, or counts them as lost.
    fn send(&mut self, batch: Vec<Given>);

    /// Returns the latest time at which [`Destination::tend`] must be called next.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Does time-driven work.
    fn tend(&mut self) {}

    /// Called when there will be no more records.
    fn end(&mut self) {}
}

impl Exporter {
    /// Starts the thread, which ends once the exporter has been dropped and everything has been sent. If it
    /// cannot be started, all records are lost.
    pub fn start<O: Destination>(name: &str, destination: impl FnOnce(Arc<Counts>) -> O) -> Exporter {
        let (batches, receiver) = sync_channel(BATCHES);
        let (end, ended) = sync_channel(0);
        let tally = Arc::new(Counts::default());
        let mut destination = destination(tally.clone());
        let run = move || {
            priority::ordinary();
            run(&mut destination, &receiver);
            drop(end);
        };
        if let Err(error) = std::thread::Builder::new().name(format!("weir-{name}")).spawn(run) {
            warn!("no thread to export flow records by {name}: {error}");
        }
        Exporter { batch: Vec::new(), batches, ended, tally }
    }

    /// Gives a record to be sent.
    pub fn give(&mut self, given: Given) {
        self.batch.push(given);
        if self.batch.len() == BATCH {
            self.flush();
        }
    }

    /// Passes the records collected so far to the thread; they are lost if the thread is far behind.
    pub fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let batch = std::mem::take(&mut self.batch);
        let records = batch.len() as u64;
        if self.batches.try_send(batch).is_err() {
            self.tally.lost(records);
        }
    }

    /// Waits until everything is sent, up to a short deadline.
    pub fn finish(mut self) {
        self.flush();
        let Exporter { batches, ended, .. } = self;
        drop(batches);
        let _ = ended.recv_timeout(PATIENCE);
    }

    /// Returns the fates of the records.
    pub fn tally(&self) -> Export {
        self.tally.export()
    }
}

fn run(destination: &mut impl Destination, batches: &Receiver<Vec<Given>>) {
    loop {
        let batch = match destination.due() {
            Some(due) => batches.recv_timeout(due.saturating_duration_since(Instant::now())),
            None => batches.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match batch {
            Ok(batch) => destination.send(batch),
            Err(RecvTimeoutError::Timeout) => (),
            Err(RecvTimeoutError::Disconnected) => return destination.end(),
        }
        destination.tend();
    }
}

/// The fates of records.
#[derive(Debug)]
pub struct Counts {
    sent: AtomicU64,
    lost: AtomicU64,
    works: AtomicBool,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts { sent: AtomicU64::new(0), lost: AtomicU64::new(0), works: AtomicBool::new(true) }
    }
}

impl Counts {
    /// Counts records that were sent.
    pub fn sent(&self, records: u64) {
        self.sent.fetch_add(records, Ordering::Relaxed);
    }

    /// Counts records that were lost.
    pub fn lost(&self, records: u64) {
        self.lost.fetch_add(records, Ordering::Relaxed);
    }

    /// Records a failure; logs it if there was none before.
    pub fn fails(&self, error: impl std::fmt::Display, to: impl std::fmt::Display) {
        if self.works.swap(false, Ordering::Relaxed) {
            warn!("flow records for {to} are being lost: {error}");
        }
    }

    /// Records a success; logs it if there was a failure before.
    pub fn works(&self, to: impl std::fmt::Display) {
        if !self.works.swap(true, Ordering::Relaxed) {
            info!("flow records are sent to {to} again");
        }
    }

    /// Returns the counts and whether the last attempt succeeded.
    pub fn export(&self) -> Export {
        Export {
            sent: self.sent.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            works: self.works.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FlowRecord;
    use crate::export::End;
    use weir_packet::{FlowKey, Observed};

    fn given(n: u64) -> Given {
        let record = FlowRecord {
            key: FlowKey([n; 5]),
            packets: 1,
            bytes: 100,
            first_ns: 1_000_000,
            last_ns: 2_000_000,
            observed: Observed::default(),
        };
        Given { record, end: End::Active, target: None, ingress: None, point: None, names: [None, None] }
    }

    #[test]
    fn an_exporter_whose_thread_is_far_behind_loses_records_and_counts_them() {
        let (batches, held) = sync_channel(1);
        let (_, ended) = sync_channel(0);
        let mut exporter = Exporter { batch: Vec::new(), batches, ended, tally: Arc::default() };
        (0..3 * BATCH as u64).for_each(|n| exporter.give(given(n)));
        assert_eq!((exporter.tally().lost, held.try_iter().flatten().count()), (2 * BATCH as u64, BATCH));
    }

    #[test]
    fn its_end_waits_until_all_is_sent() {
        struct Slow(Arc<Counts>);
        impl Destination for Slow {
            fn send(&mut self, batch: Vec<Given>) {
                std::thread::yield_now();
                self.0.sent(batch.len() as u64);
            }
            fn end(&mut self) {
                self.0.sent(1);
            }
        }
        let mut exporter = Exporter::start("test", Slow);
        let tally = exporter.tally.clone();
        (0..5_000).for_each(|n| exporter.give(given(n)));
        exporter.finish();
        assert_eq!(tally.export(), Export { sent: 5_001, lost: 0, works: true });
    }
}
