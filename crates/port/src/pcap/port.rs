//! The port for replay: it receives a recording as virtual time passes, and records the frames that it
//! transmits.
//!
//! Promises: frames are received in the order of the file, each once its time has come ([`super::clock`] says
//! when that is). The machine's clock is never used. A frame larger than a chunk is received, dropped and
//! counted as `oversize`: `received` includes it, the batch never sees it, and the worker balances it by
//! `oversize` in the ledger. A frame that was recorded only in part is received as that part and counted as
//! `truncated`. While the pool is empty, the frame waits (`starved`). At an error in the recording the port
//! is exhausted, and `read_errors` and the port's mode report it. Frames are accepted whether or not they can
//! be written: those that did not reach their file are `not_written` rather than `transmitted`, and a remark
//! gives the reason. Without an output file, frames are counted and freed.

use super::clock::{self, Clock};
use super::error::link;
use super::{Problem, RECORD_ALL, ReadError, Reader, Record, Writer};
use std::io::{self, BufReader, Read, Write};
use weir_packet::{Batch, Bits, PoolId, Pools, Port, PortStatistics, Remark};

/// Inputs and outputs of a [`PcapPort`]; each may be absent.
#[derive(Default)]
pub struct Files {
    /// The recording to receive.
    pub input: Option<Box<dyn Read + Send>>,
    /// Where transmitted frames are recorded.
    pub output: Option<Output>,
    /// Where frames for the host's stack are recorded. Without it, the port has no kernel path.
    pub kernel: Option<Output>,
}

/// A file to record to.
pub struct Output {
    /// The name of the file in remarks.
    pub name: String,
    /// The file. The port buffers its writes.
    pub file: Box<dyn Write + Send>,
}

/// The recording being received, read two records ahead, because only later records show whether a time is
/// odd.
struct Input {
    reader: Reader<BufReader<Box<dyn Read + Send>>>,
    /// The record that waits for its time, if there is one.
    record: Record,
    waiting: bool,
    next: Record,
    has_next: bool,
    clock: Clock,
}

/// A recording being written.
struct Recording {
    name: String,
    writer: Writer<Box<dyn Write + Send>>,
}

/// A port that receives one recording and writes others.
pub struct PcapPort {
    name: String,
    pool: PoolId,
    input: Option<Input>,
    output: Option<Recording>,
    kernel: Option<Recording>,
    /// The recording's time at virtual time 0.
    base_ns: u64,
    now_ns: u64,
    /// When the latest frame was received, or will be.
    arrival_ns: u64,
    statistics: PortStatistics,
    truncated: u64,
    read_error: Option<ReadError>,
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
            output: files.output.map(Recording::new).transpose()?,
            kernel: files.kernel.map(Recording::new).transpose()?,
            base_ns: 0,
            now_ns: 0,
            arrival_ns: 0,
            statistics: PortStatistics::default(),
            truncated: 0,
            read_error: None,
        };
        if let Some(input) = files.input {
            let reader =
                Reader::open(input).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let (record, next) = Default::default();
            let clock = Clock::default();
            port.input = Some(Input { reader, record, waiting: false, next, has_next: false, clock });
            port.read_next();
            port.read_ahead();
            port.set_base(port.first_ns().unwrap_or(0));
        }
        Ok(port)
    }

    /// Returns when the first frame was recorded, in nanoseconds since 1970; call this before anything is
    /// received. Ports that are replayed together use the earliest of their times as base, so that the time
    /// between their frames is kept.
    #[must_use]
    pub fn first_ns(&self) -> Option<u64> {
        let input = self.input.as_ref().filter(|input| input.waiting)?;
        Some(clock::first_ns(input.record.time_ns, input.next_ns()))
    }

    /// Makes virtual time 0 the time `base_ns` of the recording. Must be called before anything is received.
    pub fn set_base(&mut self, base_ns: u64) {
        self.base_ns = base_ns;
        if let Some(input) = &mut self.input {
            input.clock = Clock::new(base_ns);
        }
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

    /// Makes the next record the waiting one, and reads the one after it.
    fn read_ahead(&mut self) {
        let Some(input) = &mut self.input else { return };
        std::mem::swap(&mut input.record, &mut input.next);
        input.waiting = input.has_next;
        self.read_next();
    }

    fn read_next(&mut self) {
        let Some(input) = &mut self.input else { return };
        input.has_next = input.reader.read(&mut input.next).unwrap_or_else(|error| {
            self.read_error = Some(error);
            false
        });
    }

    /// Sets the arrival time of the waiting record.
    fn schedule(&mut self) {
        if let Some(input) = self.input.as_mut().filter(|input| input.waiting) {
            self.arrival_ns = input.clock.arrival_ns(input.record.time_ns, input.next_ns());
        }
    }

    fn recordings(&self) -> impl Iterator<Item = &Recording> {
        [&self.output, &self.kernel].into_iter().flatten()
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
        self.schedule();
        true
    }
}

impl Input {
    fn next_ns(&self) -> Option<u64> {
        self.has_next.then_some(self.next.time_ns)
    }
}

impl Recording {
    fn new(output: Output) -> io::Result<Recording> {
        Ok(Recording { name: output.name, writer: Writer::new(output.file)? })
    }

    fn remark(&self) -> Option<Remark> {
        let (name, lost) = (&self.name, self.writer.lost());
        let text = |error| format!("{name} cannot be written: {error}; {lost} frames are missing from it");
        self.writer.error().map(|error| Remark { text: text(error), is_error: true })
    }
}

/// Reports where a recording ended early.
fn ended(error: &ReadError) -> String {
    match error.problem {
        Problem::Link { .. } => format!("nothing to read: {error}"),
        _ => format!("truncated at {error}"),
    }
}

/// Writes the frames of `list` and returns them to their pools. Returns their bytes. The writer counts frames
/// that it cannot write.
fn write(
    recording: &mut Option<Recording>,
    time_ns: u64,
    pools: &mut Pools,
    batch: &mut Batch,
    list: u64,
) -> u64 {
    let mut bytes = 0;
    for slot in Bits(list) {
        let frame = batch.take(slot);
        if let Some(recording) = recording {
            let _ = recording.writer.write(time_ns, frame.len() as u32, frame.bytes());
        }
        bytes += frame.len() as u64;
        pools.give(frame);
    }
    bytes
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
        self.statistics.transmitted += u64::from(list.count_ones());
        self.statistics.transmitted_bytes += write(&mut self.output, time_ns, pools, batch, list);
        list
    }

    fn flush(&mut self, _pools: &mut Pools) {
        for recording in [&mut self.output, &mut self.kernel].into_iter().flatten() {
            // The writer keeps the error for the remarks.
            let _ = recording.writer.settle(self.now_ns);
        }
    }

    fn statistics(&self) -> PortStatistics {
        let lost = |one: &Option<Recording>| one.as_ref().map_or(0, |one| one.writer.lost());
        let (output, kernel) = (lost(&self.output), lost(&self.kernel));
        PortStatistics {
            transmitted: self.statistics.transmitted - output,
            to_kernel: self.statistics.to_kernel - kernel,
            not_written: output + kernel,
            ..self.statistics
        }
    }

    fn extra_statistics(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("truncated", self.truncated),
            ("read_errors", u64::from(self.read_error.is_some())),
            ("write_errors", self.recordings().filter(|one| one.writer.error().is_some()).count() as u64),
        ]
    }

    fn mode(&self) -> String {
        match &self.read_error {
            None => "pcap".to_owned(),
            Some(error) => format!("pcap, {}", ended(error)),
        }
    }

    fn remarks(&self) -> Vec<Remark> {
        let mut all = Vec::new();
        if let Some(input) = &self.input {
            let skipped = |(number, [packets, _]): (u16, [u64; 2])| {
                format!("packets skipped, of link type {number}{}: {packets}", link(number))
            };
            let notes = input.reader.skipped().map(skipped).chain(input.clock.remarks());
            all.extend(notes.map(|text| Remark { text, is_error: false }));
        }
        if self.truncated > 0 {
            let text = format!("frames recorded only partly: {}; {RECORD_ALL}", self.truncated);
            all.push(Remark { text, is_error: false });
        }
        let kept = |error| format!("{}; the packets before it are kept", ended(error));
        all.extend(self.read_error.iter().map(|error| Remark { text: kept(error), is_error: true }));
        all.extend(self.recordings().filter_map(Recording::remark));
        all
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
        write(&mut self.kernel, time_ns, pools, batch, list);
        self.statistics.to_kernel += u64::from(list.count_ones());
        list
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        self.waiting().map(|_| self.arrival_ns)
    }

    fn set_time(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    fn close(&mut self, _pools: &mut Pools) -> u64 {
        for recording in [&mut self.output, &mut self.kernel].into_iter().flatten() {
            // The writer keeps the error for the remarks.
            let _ = recording.writer.flush();
        }
        if let Some(input) = &mut self.input {
            (input.waiting, input.has_next) = (false, false);
        }
        0
    }
}
