//! Reads recordings of either format, record after record.
//!
//! Promises: never panics, whatever the bytes; holds one record; after an error it is at its end, so an iteration
//! yields the good records, then at most one error. Costs: one copy of the data, no allocation once the record passed
//! to [`Reader::read`] has grown to the longest.

use super::classic::Classic;
use super::ng::Section;
use super::source::Source;
use super::{Problem, ReadError};
use std::io::Read;

/// One recorded frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// When, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Bytes the frame had on the wire, without FCS; never fewer than `bytes`.
    pub length: u32,
    /// The bytes that were kept.
    pub bytes: Vec<u8>,
}

impl Record {
    /// True when the recording kept only the front of the frame.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        (self.bytes.len() as u64) < u64::from(self.length)
    }

    /// Sets the wire length from what the file says, and takes the FCS off.
    pub(super) fn set_length(&mut self, claimed: u32, fcs: u32) {
        let length = claimed.max(self.bytes.len() as u32).saturating_sub(fcs);
        self.length = length;
        self.bytes.truncate(length as usize);
    }
}

/// A recording that is being read. It buffers its input itself.
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
    /// Reads the file's header.
    ///
    /// # Errors
    /// When it is not that of a recording weir can read.
    pub fn open(input: R) -> Result<Reader<R>, ReadError> {
        let mut source = Source::new(input);
        let mut magic = [0; 4];
        if !source.next(&mut magic, "the file's first number")? {
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

    /// Reads the next record into `record`; false at the end of the recording.
    ///
    /// # Errors
    /// When the file is wrong here; `record` then means nothing, and the reader is at its end.
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
