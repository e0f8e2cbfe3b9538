//! A writer of classic pcap with nanoseconds, little endian on every machine: equal frames make equal files.
//!
//! Records are collected and written many at a time. If that fails (the disk is full), the writer knows how
//! many records did not reach the output, so that they are not counted as recorded.

use super::{LINK_ETHERNET, NS_PER_S, RECORD_MAX};
use std::io::{self, Write};

/// Bytes collected before they are written: few system calls, and still in the second-level cache.
const BUFFER: usize = 64 << 10;

/// The longest time that records are collected while [`Writer::settle`] is called: half of the second after
/// which a frame can be read in the recording.
const COLLECT_NS: u64 = 500_000_000;

/// A recording being written. Collected records are written when the writer is flushed or dropped.
pub struct Writer<W: Write> {
    output: W,
    buffer: Vec<u8>,
    /// Where each collected record ends in the buffer.
    ends: Vec<usize>,
    /// When [`Writer::settle`] first saw the records that are collected now.
    since_ns: Option<u64>,
    lost: u64,
    error: Option<io::Error>,
}

impl<W: Write> Writer<W> {
    /// Bytes in the header of a file.
    pub const HEADER: u64 = 24;
    /// Bytes before each record's data.
    pub const RECORD_HEADER: u64 = 16;

    /// Creates a writer and begins with the header.
    ///
    /// # Errors
    /// Returns the errors of the output.
    pub fn new(output: W) -> io::Result<Writer<W>> {
        let mut buffer = Vec::with_capacity(BUFFER);
        let version = 4 << 16 | 2u32;
        for word in [0xa1b2_3c4d, version, 0, 0, RECORD_MAX, u32::from(LINK_ETHERNET)] {
            buffer.extend_from_slice(&word.to_le_bytes());
        }
        let ends = Vec::with_capacity(BUFFER / Self::RECORD_HEADER as usize);
        Ok(Writer { output, buffer, ends, since_ns: None, lost: 0, error: None })
    }

    /// Writes the bytes `bytes` of a frame of `length` bytes; at most [`RECORD_MAX`] are kept. A time after
    /// the year 2106, where the format ends, becomes its last second.
    ///
    /// # Errors
    /// Returns the errors of the output, which may be about earlier records. After an error nothing more is
    /// written, because a record may be half written and no record after it could be read.
    pub fn write(&mut self, time_ns: u64, length: u32, bytes: &[u8]) -> io::Result<()> {
        let kept = &bytes[..bytes.len().min(RECORD_MAX as usize)];
        let needed = Self::RECORD_HEADER as usize + kept.len();
        let room = if self.buffer.len() + needed > BUFFER { self.drain() } else { self.ended() };
        if room.is_err() {
            self.lost += 1;
            return room;
        }
        let seconds = u32::try_from(time_ns / NS_PER_S).unwrap_or(u32::MAX);
        let part = (time_ns % NS_PER_S) as u32;
        for word in [seconds, part, kept.len() as u32, length] {
            self.buffer.extend_from_slice(&word.to_le_bytes());
        }
        self.buffer.extend_from_slice(kept);
        self.ends.push(self.buffer.len());
        Ok(())
    }

    /// Writes everything that was collected.
    ///
    /// # Errors
    /// Returns the errors of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.drain()?;
        self.output.flush()
    }

    /// Writes the collected records if they have waited for long enough, so that a recording can be read
    /// while it is written, and survives a crash. `now_ns` comes from a clock that also advances without
    /// records.
    ///
    /// # Errors
    /// Returns the errors of the output.
    pub fn settle(&mut self, now_ns: u64) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) < COLLECT_NS { Ok(()) } else { self.flush() }
    }

    /// Returns how many records did not reach the output because of an error.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the error that ended the recording.
    #[must_use]
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    fn ended(&self) -> io::Result<()> {
        self.error.as_ref().map_or(Ok(()), |error| Err(same(error)))
    }

    fn drain(&mut self) -> io::Result<()> {
        self.ended()?;
        let mut written = 0;
        while written < self.buffer.len() {
            let error = match self.output.write(&self.buffer[written..]) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(count) => {
                    written += count;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            self.lost += self.ends.iter().filter(|end| **end > written).count() as u64;
            self.error = Some(same(&error));
            break;
        }
        self.buffer.clear();
        self.ends.clear();
        self.since_ns = None;
        self.ended()
    }
}

impl<W: Write> Drop for Writer<W> {
    fn drop(&mut self) {
        // An error cannot be reported here; callers that need it flush first.
        let _ = self.drain();
    }
}

/// Returns an equal error; `io::Error` cannot be cloned.
fn same(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    #[derive(Clone, Default)]
    struct SharedBuffer(Rc<RefCell<Vec<u8>>>);

    impl Write for SharedBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_collected_is_written_within_a_second() {
        let output = SharedBuffer::default();
        let written = || output.0.borrow().len();
        let mut writer = Writer::new(output.clone()).unwrap();
        writer.settle(10).unwrap();
        writer.write(0, 60, &[0; 60]).unwrap();
        writer.settle(COLLECT_NS + 9).unwrap();
        assert_eq!(written(), 0, "many records are written at a time");
        writer.settle(COLLECT_NS + 10).unwrap();
        assert_eq!(written(), 24 + 16 + 60);
        writer.write(0, 60, &[0; 60]).unwrap();
        writer.settle(COLLECT_NS + 11).unwrap();
        assert_eq!(written(), 24 + 16 + 60, "the next have their own time");
        writer.settle(2 * COLLECT_NS + 11).unwrap();
        assert_eq!(written(), 24 + 2 * (16 + 60));
    }
}
