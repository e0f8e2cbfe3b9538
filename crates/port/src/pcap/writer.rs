//! A writer of classic pcap with nanoseconds, little endian on every machine: equal frames make equal files.

use super::{LINK_ETHERNET, NS_PER_S, RECORD_MAX};
use std::io::{self, BufWriter, Write};

/// A recording being written. It buffers its output, and writes the rest when flushed or dropped.
pub struct Writer<W: Write> {
    output: BufWriter<W>,
}

impl<W: Write> Writer<W> {
    /// Bytes in the header of a file.
    pub const HEADER: u64 = 24;
    /// Bytes in front of each record's data.
    pub const RECORD_HEADER: u64 = 16;

    /// Writes the header.
    ///
    /// # Errors
    /// Returns the errors of the output.
    pub fn new(output: W) -> io::Result<Writer<W>> {
        let mut output = BufWriter::new(output);
        let version = 4 << 16 | 2u32;
        for word in [0xa1b2_3c4d, version, 0, 0, RECORD_MAX, u32::from(LINK_ETHERNET)] {
            output.write_all(&word.to_le_bytes())?;
        }
        Ok(Writer { output })
    }

    /// Writes the bytes `bytes` of a frame of `length` bytes; at most [`RECORD_MAX`] are kept. A time after
    /// the year 2106, where the format ends, becomes its last second.
    ///
    /// # Errors
    /// Returns the errors of the output.
    pub fn write(&mut self, time_ns: u64, length: u32, bytes: &[u8]) -> io::Result<()> {
        let kept = &bytes[..bytes.len().min(RECORD_MAX as usize)];
        let seconds = u32::try_from(time_ns / NS_PER_S).unwrap_or(u32::MAX);
        let part = (time_ns % NS_PER_S) as u32;
        let mut header = [0; 16];
        for (place, word) in header.chunks_exact_mut(4).zip([seconds, part, kept.len() as u32, length]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        self.output.write_all(&header)?;
        self.output.write_all(kept)
    }

    /// Writes everything that is buffered.
    ///
    /// # Errors
    /// Returns the errors of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}
