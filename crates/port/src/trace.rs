//! A wrapper that records the frames passing through another port, with one recording per direction.
//!
//! Promises: traffic is the same as without the wrapper. The wrapper records frames that passed, not frames
//! that the inner port refused. A recording has at most `limit_bytes` bytes; it ends with the first frame
//! that does not fit, or with an error of its output, and later frames are counted (`.._left_out`). Outputs
//! are buffered for half a second while the port is flushed, and should be files, because an output that
//! blocks would block the worker.
#![forbid(unsafe_code)]

use crate::pcap::Writer;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use weir_packet::{BATCH, Batch, Bits, DropReason, Leave, PoolId, Pools, Port, PortStatistics, Remark};

/// Initial capacity of a copy, in bytes: few frames are larger.
const FRAME_USUAL: usize = 2048;

/// Outputs of a [`TracePort`]. A direction without output is not recorded.
#[derive(Default)]
pub struct Taps {
    /// The recording of frames that the port received.
    pub received: Option<Box<dyn Write + Send>>,
    /// The recording of frames that the port transmitted.
    pub transmitted: Option<Box<dyn Write + Send>>,
    /// The recording of frames that were passed to the host's stack.
    pub to_kernel: Option<Box<dyn Write + Send>>,
    /// The largest size of each recording in bytes, including its header.
    pub limit_bytes: u64,
    /// The number of nanoseconds to add to the worker's time to obtain nanoseconds since 1970.
    pub base_ns: u64,
}

/// One recording.
#[derive(Default)]
struct Tap {
    writer: Option<Writer<Box<dyn Write + Send>>>,
    left_bytes: u64,
    recorded: u64,
    left_out: u64,
    error: Option<io::Error>,
}

impl Tap {
    fn new(output: Option<Box<dyn Write + Send>>, limit_bytes: u64) -> io::Result<Tap> {
        let header = Writer::<Vec<u8>>::HEADER;
        let writer = output.filter(|_| limit_bytes >= header).map(Writer::new).transpose()?;
        Ok(Tap { writer, left_bytes: limit_bytes.saturating_sub(header), ..Tap::default() })
    }

    fn record(&mut self, time_ns: u64, bytes: &[u8]) {
        let needed = Writer::<Vec<u8>>::RECORD_HEADER + bytes.len() as u64;
        if needed > self.left_bytes {
            self.end();
        }
        let Some(writer) = &mut self.writer else {
            self.left_out += 1;
            return;
        };
        self.left_bytes -= needed;
        self.recorded += 1;
        if writer.write(time_ns, bytes.len() as u32, bytes).is_err() {
            self.end();
        }
    }

    /// Writes frames that have been buffered for a while.
    fn settle(&mut self, now_ns: u64) {
        if self.writer.as_mut().is_some_and(|writer| writer.settle(now_ns).is_err()) {
            self.end();
        }
    }

    /// Ends the recording and writes the buffered frames. Frames that cannot be written count as not
    /// recorded.
    fn end(&mut self) {
        let Some(mut writer) = self.writer.take() else { return };
        if let Err(error) = writer.flush() {
            self.recorded -= writer.lost();
            self.left_out += writer.lost();
            self.error = Some(error);
        }
    }
}

/// Copies of the frames offered to the inner port, because it takes the frames themselves.
struct Offered {
    slots: Vec<(usize, usize)>,
    bytes: Vec<u8>,
}

impl Offered {
    fn copy(&mut self, batch: &Batch, list: u64) {
        self.slots.clear();
        self.bytes.clear();
        for slot in Bits(list) {
            self.bytes.extend_from_slice(batch.frame(slot).bytes());
            self.slots.push((slot, self.bytes.len()));
        }
    }

    fn record(&self, tap: &mut Tap, time_ns: u64, accepted: u64) {
        let mut start = 0;
        for &(slot, end) in &self.slots {
            if accepted >> slot & 1 == 1 {
                tap.record(time_ns, &self.bytes[start..end]);
            }
            start = end;
        }
    }
}

/// The recordings of a port, with their headers written.
pub struct Recording {
    received: Tap,
    transmitted: Tap,
    to_kernel: Tap,
    base_ns: u64,
}

impl Recording {
    /// Writes the headers.
    ///
    /// # Errors
    /// Returns the errors of the outputs.
    pub fn begin(taps: Taps) -> io::Result<Recording> {
        Ok(Recording {
            received: Tap::new(taps.received, taps.limit_bytes)?,
            transmitted: Tap::new(taps.transmitted, taps.limit_bytes)?,
            to_kernel: Tap::new(taps.to_kernel, taps.limit_bytes)?,
            base_ns: taps.base_ns,
        })
    }

    fn end(&mut self) {
        for tap in [&mut self.received, &mut self.transmitted, &mut self.to_kernel] {
            tap.end();
        }
    }
}

/// A port whose frames are recorded.
pub struct TracePort {
    inner: Box<dyn Port>,
    taps: Recording,
    offered: Offered,
    now_ns: u64,
}

impl TracePort {
    /// Wraps `inner` and writes the headers of the recordings.
    ///
    /// # Errors
    /// Returns the errors of the outputs.
    pub fn new(inner: Box<dyn Port>, taps: Taps) -> io::Result<TracePort> {
        Ok(TracePort::with(inner, Recording::begin(taps)?))
    }

    /// Wraps `inner`, and continues recordings that have already begun.
    #[must_use]
    pub fn with(inner: Box<dyn Port>, taps: Recording) -> TracePort {
        TracePort {
            inner,
            taps,
            offered: Offered {
                slots: Vec::with_capacity(BATCH),
                bytes: Vec::with_capacity(BATCH * FRAME_USUAL),
            },
            now_ns: 0,
        }
    }

    /// Ends the recordings and returns the port inside.
    #[must_use]
    pub fn into_inner(mut self) -> Box<dyn Port> {
        self.taps.end();
        self.inner
    }

    /// Changes the port inside.
    #[must_use]
    pub(crate) fn map(mut self, change: impl FnOnce(Box<dyn Port>) -> Box<dyn Port>) -> TracePort {
        self.inner = change(self.inner);
        self
    }

    fn errors(&self) -> impl Iterator<Item = &io::Error> {
        let Recording { received, transmitted, to_kernel, .. } = &self.taps;
        [received, transmitted, to_kernel].into_iter().filter_map(|tap| tap.error.as_ref())
    }

    fn time_ns(&self) -> u64 {
        self.taps.base_ns.saturating_add(self.now_ns)
    }
}

impl Port for TracePort {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn pool(&self) -> Option<PoolId> {
        self.inner.pool()
    }

    fn receive(&mut self, pools: &mut Pools, batch: &mut Batch) {
        let before = batch.len();
        self.inner.receive(pools, batch);
        let time_ns = self.time_ns();
        for frame in &batch.frames()[before..] {
            self.taps.received.record(time_ns, frame.bytes());
        }
    }

    fn transmit(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        self.offered.copy(batch, list);
        let accepted = self.inner.transmit(pools, batch, list);
        let time_ns = self.time_ns();
        self.offered.record(&mut self.taps.transmitted, time_ns, accepted);
        accepted
    }

    fn flush(&mut self, pools: &mut Pools) {
        for tap in [&mut self.taps.received, &mut self.taps.transmitted, &mut self.taps.to_kernel] {
            tap.settle(self.now_ns);
        }
        self.inner.flush(pools);
    }

    fn statistics(&self) -> PortStatistics {
        self.inner.statistics()
    }

    fn extra_statistics(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.inner.extra_statistics();
        all.extend([
            ("trace_received", self.taps.received.recorded),
            ("trace_received_left_out", self.taps.received.left_out),
            ("trace_transmitted", self.taps.transmitted.recorded),
            ("trace_transmitted_left_out", self.taps.transmitted.left_out),
            ("trace_to_kernel", self.taps.to_kernel.recorded),
            ("trace_to_kernel_left_out", self.taps.to_kernel.left_out),
            ("trace_errors", self.errors().count() as u64),
        ]);
        all
    }

    fn refuses(&self, length: usize) -> Option<DropReason> {
        self.inner.refuses(length)
    }

    fn remarks(&self) -> Vec<Remark> {
        let remark = |error| Remark { text: format!("cannot write its trace: {error}"), is_error: true };
        self.inner.remarks().into_iter().chain(self.errors().map(remark)).collect()
    }

    fn mode(&self) -> String {
        format!("{} with trace", self.inner.mode())
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.inner.readiness()
    }

    fn exhausted(&self) -> bool {
        self.inner.exhausted()
    }

    fn has_kernel_path(&self) -> bool {
        self.inner.has_kernel_path()
    }

    fn to_kernel(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        self.offered.copy(batch, list);
        let accepted = self.inner.to_kernel(pools, batch, list);
        let time_ns = self.time_ns();
        self.offered.record(&mut self.taps.to_kernel, time_ns, accepted);
        accepted
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        self.inner.next_arrival_ns()
    }

    fn set_time(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.inner.set_time(now_ns);
    }

    fn close(&mut self, pools: &mut Pools) -> u64 {
        self.taps.end();
        self.inner.close(pools)
    }

    fn leave(&mut self, pools: &mut Pools) -> Leave {
        let leave = self.inner.leave(pools);
        if matches!(leave, Leave::Closed(_)) {
            self.taps.end();
        }
        leave
    }
}
