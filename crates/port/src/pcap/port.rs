//! The port for replay: it receives a recording as virtual time passes, and records what it transmits.
//!
//! Promises: frames are received in the order of the file, each once its time has come; a frame whose time
//! goes backwards arrives with the one before it. The machine's clock is never used. A frame larger than a
//! chunk is received, dropped and counted as `oversize`: `received` includes it, the batch never sees it, and
//! the worker balances it by `oversize` in the ledger. A frame that was recorded only in part is received as
//! that part and counted as `truncated`. While the pool is empty, the frame waits (`starved`). At an error in
//! the recording the port is exhausted, and `read_errors` and the port's mode report it. After a write error
//! the port refuses frames (`write_errors`), like a port whose link is down; without an output file it counts
//! frames and frees them.

use super::{ReadError, Reader, Record, Writer};
use packet::{Batch, Bits, PoolId, Pools, Port, PortStatistics};
use std::io::{self, Read, Write};

/// Inputs and outputs of a [`PcapPort`]; each may be absent.
#[derive(Default)]
pub struct Files {
    /// The recording to receive.
    pub input: Option<Box<dyn Read + Send>>,
    /// Where transmitted frames are recorded.
    pub output: Option<Box<dyn Write + Send>>,
    /// Where frames for the host's stack are recorded. Without it, the port has no kernel path.
    pub kernel: Option<Box<dyn Write + Send>>,
}

/// The recording being received, one record ahead.
struct Input {
    reader: Reader<Box<dyn Read + Send>>,
    record: Record,
    waiting: bool,
}

/// A recording being written, until a write fails.
struct Output {
    writer: Writer<Box<dyn Write + Send>>,
    failed: bool,
}

/// A port that receives one recording and writes others.
pub struct PcapPort {
    name: String,
    pool: PoolId,
    input: Option<Input>,
    output: Option<Output>,
    kernel: Option<Output>,
    /// The recording's time at virtual time 0.
    base_ns: u64,
    now_ns: u64,
    /// When the latest frame was received, or will be.
    arrival_ns: u64,
    statistics: PortStatistics,
    truncated: u64,
    read_error: Option<ReadError>,
    write_errors: u64,
}

impl PcapPort {
    /// Creates a port that receives into `pool`. Reads up to the first record and writes the headers. Virtual
    /// time 0 is the time of the first record.
    ///
    /// # Errors
    /// The input is not a recording (the error's source is a [`ReadError`]), or an output cannot be written.
    /// A recording with an error in its first record opens, and is exhausted.
    pub fn open(name: &str, pool: PoolId, files: Files) -> io::Result<PcapPort> {
        let mut port = PcapPort {
            name: name.to_owned(),
            pool,
            input: None,
            output: files.output.map(Output::new).transpose()?,
            kernel: files.kernel.map(Output::new).transpose()?,
            base_ns: 0,
            now_ns: 0,
            arrival_ns: 0,
            statistics: PortStatistics::default(),
            truncated: 0,
            read_error: None,
            write_errors: 0,
        };
        if let Some(input) = files.input {
            let reader =
                Reader::open(input).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            port.input = Some(Input { reader, record: Record::default(), waiting: false });
            port.read_ahead();
            port.set_base(port.first_ns().unwrap_or(0));
        }
        Ok(port)
    }

    /// Returns when the next frame was recorded, in nanoseconds since 1970. Ports that are replayed together
    /// use the smallest of theirs as base, so that the time between their frames is kept.
    #[must_use]
    pub fn first_ns(&self) -> Option<u64> {
        self.waiting().map(|record| record.time_ns)
    }

    /// Makes virtual time 0 the time `base_ns` of the recording. Must be called before anything is received.
    pub fn set_base(&mut self, base_ns: u64) {
        self.base_ns = base_ns;
        self.arrival_ns = 0;
        self.schedule();
    }

    /// Returns the error that ended the recording early.
    #[must_use]
    pub fn read_error(&self) -> Option<&ReadError> {
        self.read_error.as_ref()
    }

    fn waiting(&self) -> Option<&Record> {
        self.input.as_ref().filter(|input| input.waiting).map(|input| &input.record)
    }

    fn read_ahead(&mut self) {
        let Some(input) = &mut self.input else { return };
        match input.reader.read(&mut input.record) {
            Ok(more) => input.waiting = more,
            Err(error) => {
                input.waiting = false;
                self.read_error = Some(error);
            }
        }
        self.schedule();
    }

    /// Sets the arrival time of the waiting record: never before that of the previous one.
    fn schedule(&mut self) {
        if let Some(time_ns) = self.first_ns() {
            self.arrival_ns = self.arrival_ns.max(time_ns.saturating_sub(self.base_ns));
        }
    }

    /// Receives the waiting record. Returns false if there is no free frame for it.
    fn receive_one(&mut self, pools: &mut Pools, batch: &mut Batch) -> bool {
        let pool = pools.get_mut(self.pool).expect("a port is opened on a pool of its worker");
        let Some(mut frame) = pool.take() else {
            self.statistics.starved += 1;
            return false;
        };
        let record = &self.input.as_ref().expect("the caller saw a record waiting").record;
        self.statistics.received += 1;
        self.statistics.received_bytes += record.bytes.len() as u64;
        self.truncated += u64::from(record.is_truncated());
        if frame.fill(&record.bytes).is_ok() {
            batch.push(frame).expect("the caller looked for space");
        } else {
            pool.give(frame);
            self.statistics.oversize += 1;
        }
        self.read_ahead();
        true
    }
}

impl Output {
    fn new(output: Box<dyn Write + Send>) -> io::Result<Output> {
        Ok(Output { writer: Writer::new(output)?, failed: false })
    }
}

/// Writes the frames of `list` and returns them to their pools, until a write fails. Returns the mask of
/// frames written, and their bytes.
fn write(
    output: &mut Option<Output>,
    time_ns: u64,
    pools: &mut Pools,
    batch: &mut Batch,
    list: u64,
) -> (u64, u64) {
    let (mut accepted, mut bytes) = (0, 0);
    for slot in Bits(list) {
        if let Some(output) = output {
            let frame = batch.frame(slot);
            output.failed =
                output.failed || output.writer.write(time_ns, frame.len() as u32, frame.bytes()).is_err();
            if output.failed {
                break;
            }
        }
        let frame = batch.take(slot);
        bytes += frame.len() as u64;
        pools.give(frame);
        accepted |= 1 << slot;
    }
    (accepted, bytes)
}

impl Port for PcapPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn pool(&self) -> Option<PoolId> {
        None
    }

    fn receive(&mut self, pools: &mut Pools, batch: &mut Batch) {
        while batch.space() > 0 && self.next_arrival_ns().is_some_and(|arrival_ns| arrival_ns <= self.now_ns)
        {
            if !self.receive_one(pools, batch) {
                return;
            }
        }
    }

    fn transmit(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        let time_ns = self.base_ns.saturating_add(self.now_ns);
        let (accepted, bytes) = write(&mut self.output, time_ns, pools, batch, list);
        self.write_errors += u64::from(accepted != list);
        self.statistics.transmitted += u64::from(accepted.count_ones());
        self.statistics.transmitted_bytes += bytes;
        accepted
    }

    fn flush(&mut self, _pools: &mut Pools) {}

    fn statistics(&self) -> PortStatistics {
        self.statistics
    }

    fn extra_statistics(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("truncated", self.truncated),
            ("read_errors", u64::from(self.read_error.is_some())),
            ("write_errors", self.write_errors),
        ]
    }

    fn mode(&self) -> String {
        match &self.read_error {
            None => "pcap".to_owned(),
            Some(error) => format!("pcap, cut short at {error}"),
        }
    }

    fn exhausted(&self) -> bool {
        self.waiting().is_none()
    }

    fn has_kernel_path(&self) -> bool {
        self.kernel.is_some()
    }

    fn to_kernel(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        if self.kernel.is_none() {
            return 0;
        }
        let time_ns = self.base_ns.saturating_add(self.now_ns);
        let (accepted, _) = write(&mut self.kernel, time_ns, pools, batch, list);
        self.write_errors += u64::from(accepted != list);
        self.statistics.to_kernel += u64::from(accepted.count_ones());
        accepted
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        self.waiting().map(|_| self.arrival_ns)
    }

    fn set_time(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    fn close(&mut self, _pools: &mut Pools) -> u64 {
        for output in [self.output.take(), self.kernel.take()].into_iter().flatten() {
            let mut output = output;
            self.write_errors += u64::from(!output.failed && output.writer.flush().is_err());
        }
        self.input = None;
        0
    }
}
