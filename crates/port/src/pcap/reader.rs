//! A reader of both formats, record by record.
//!
//! Promises: it never panics, whatever the bytes; it holds one record; after an error it is at its end, so
//! iterating yields the valid records and then at most one error. Costs: one copy of the data, and no
//! allocation once the record passed to [`Reader::read`] has grown to the size of the largest.

use super::classic::Classic;
use super::ng::Section;
use super::source::Source;
use super::{Problem, ReadError};
use std::io::Read;

/// One recorded frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Time of the recording, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Length of the frame on the wire in bytes, without FCS; never less than that of `bytes`.
    pub length: u32,
    /// The bytes that were recorded.
    pub bytes: Vec<u8>,
}

impl Record {
    /// Returns true if only the front of the frame was recorded.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        (self.bytes.len() as u64) < u64::from(self.length)
    }

    /// Sets the wire length to the claimed one and removes the FCS.
    pub(super) fn set_length(&mut self, claimed: u32, fcs: u32) {
        let length = claimed.max(self.bytes.len() as u32).saturating_sub(fcs);
        self.length = length;
        self.bytes.truncate(length as usize);
    }
}

/// A recording being read. The reader buffers its input.
pub struct Reader<R> {
    source: Source<R>,
    format: Format,
    over: bool,
}

enum Format {
    Classic(Classic),
    Ng(Section),
}

impl<R: Read> Reader<R> {
    /// Reads the header of the file.
    ///
    /// # Errors
    /// It is not the header of a recording that weir can read.
    pub fn open(input: R) -> Result<Reader<R>, ReadError> {
        let mut source = Source::new(input);
        let mut magic = [0; 4];
        if !source.next(&mut magic, "the magic number")? {
            return source.wrong(0, Problem::Empty);
        }
        let format = if let Some((order, ns_per_unit)) = Classic::recognise(magic) {
            source.order = order;
            Format::Classic(Classic::open(&mut source, ns_per_unit)?)
        } else if Section::recognise(magic) {
            Format::Ng(Section::open(&mut source)?)
        } else {
            return source.wrong(4, Problem::Unknown(magic));
        };
        Ok(Reader { source, format, over: false })
    }

    /// Reads the next record into `record`. Returns false at the end of the recording.
    ///
    /// # Errors
    /// The file is invalid here. `record` is then meaningless, and the reader is at its end.
    pub fn read(&mut self, record: &mut Record) -> Result<bool, ReadError> {
        if self.over {
            return Ok(false);
        }
        let result = match &mut self.format {
            Format::Classic(classic) => classic.read(&mut self.source, record),
            Format::Ng(section) => section.read(&mut self.source, record),
        };
        self.over = !matches!(result, Ok(true));
        result
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Record, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut record = Record::default();
        match self.read(&mut record) {
            Ok(true) => Some(Ok(record)),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }
}
