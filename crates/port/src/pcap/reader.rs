//! A reader of both formats, record by record.
//!
//! Promises: the reader never panics, whatever the bytes; it holds one record; after an error it is at its
//! end, so iterating yields the valid records and then at most one error. Costs: [`Reader::lend`] copies only
//! records that begin in one buffer and end in the next. It allocates nothing once it has seen the largest of
//! these.

use super::classic::Classic;
use super::ng::Section;
use super::source::Source;
use super::{LINK_ETHERNET, Problem, ReadError};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};

/// One recorded frame, with its time and its length on the wire.
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
}

/// One recorded frame, whose bytes belong to the reader.
#[derive(Clone, Copy, Debug)]
pub struct Lent<'a> {
    /// The link type of the recording; Ethernet is 1.
    pub link: u16,
    /// Time of the recording, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Length of the frame on the wire in bytes, without FCS; never less than that of `bytes`.
    pub length: u32,
    /// The bytes that were recorded.
    pub bytes: &'a [u8],
}

/// The metadata of a record.
pub(super) struct Stamp {
    pub(super) link: u16,
    pub(super) time_ns: u64,
    /// The length on the wire, as claimed.
    pub(super) length: u32,
    /// The number of bytes of frame check sequence in that length.
    pub(super) fcs: u32,
}

/// The link types that a reader reads.
#[derive(Clone, Copy, Debug)]
pub struct Links {
    /// Returns true for the number of a link type that is read.
    pub has: fn(u16) -> bool,
    /// The message if no packet has such a link type.
    pub said: &'static str,
}

impl Links {
    /// Reads only Ethernet frames, which is what programs run on.
    pub const ETHERNET: Links = Links {
        has: |number| number == LINK_ETHERNET,
        said: "only Ethernet (1); record on one Ethernet interface",
    };
}

/// Packets of other link types that a reader skipped.
#[derive(Clone, Debug, Default)]
pub(super) struct Skipped {
    /// The number of packets of each link type, and their bytes.
    counts: BTreeMap<u16, [u64; 2]>,
    /// The link type and the offset of the first skipped packet.
    first: Option<(u16, u64)>,
}

impl Skipped {
    pub(super) fn count(&mut self, link: u16, offset: u64) {
        self.counts.entry(link).or_default()[0] += 1;
        self.first.get_or_insert((link, offset));
    }

    pub(super) fn count_bytes(&mut self, link: u16, length: u32) {
        self.counts.entry(link).or_default()[1] += u64::from(length);
    }
}

/// Bytes that are read at once: one system call for a few hundred frames.
const BUFFER: usize = 256 << 10;

/// A recording being read.
pub struct Reader<R> {
    source: Source<R>,
    links: Links,
    format: Format,
    /// Records returned.
    read: u64,
    over: bool,
}

enum Format {
    Classic(Classic),
    Ng(Section),
}

impl<R: Read> Reader<BufReader<R>> {
    /// Reads the header of a file of Ethernet, whose bytes the reader buffers.
    ///
    /// # Errors
    /// The input does not begin with the header of a recording that weir can read.
    pub fn open(input: R) -> Result<Reader<BufReader<R>>, ReadError> {
        Reader::open_of(BufReader::with_capacity(BUFFER, input), Links::ETHERNET)
    }
}

impl<R: BufRead> Reader<R> {
    /// Reads the header of a file of any of these link types.
    ///
    /// # Errors
    /// As for [`Reader::open`].
    pub fn open_of(input: R, links: Links) -> Result<Reader<R>, ReadError> {
        let mut source = Source::new(input);
        let Some(magic) = source.next("the magic number")? else {
            return source.wrong(0, Problem::Empty);
        };
        let format = if let Some((order, ns_per_unit)) = Classic::recognise(magic) {
            source.order = order;
            Format::Classic(Classic::open(&mut source, ns_per_unit, links)?)
        } else if Section::recognise(magic) {
            Format::Ng(Section::open(&mut source, links)?)
        } else {
            return source.wrong(4, Problem::Unknown(magic));
        };
        Ok(Reader { source, links, format, read: 0, over: false })
    }

    /// Reads the next record and lends it. Returns `None` at the end of the recording.
    ///
    /// # Errors
    /// The file is invalid here, or none of its packets has a link type that is read. The reader is then at
    /// its end.
    #[inline]
    pub fn lend(&mut self) -> Result<Option<Lent<'_>>, ReadError> {
        if self.over {
            return Ok(None);
        }
        self.over = true;
        self.source.release();
        let stamp = match &mut self.format {
            Format::Classic(classic) => classic.read(&mut self.source)?,
            Format::Ng(section) => section.read(&mut self.source)?,
        };
        let Some(Stamp { link, time_ns, length, fcs }) = stamp else {
            return self.end().map(|()| None);
        };
        self.over = false;
        self.read += 1;
        let bytes = self.source.held()?;
        let length = length.max(bytes.len() as u32).saturating_sub(fcs);
        Ok(Some(Lent { link, time_ns, length, bytes: &bytes[..bytes.len().min(length as usize)] }))
    }

    /// Checks at the end of the file that it had packets of a link type that is read: otherwise it does not
    /// count as a recording.
    fn end(&self) -> Result<(), ReadError> {
        match self.first_skipped() {
            Some((number, offset)) if self.read == 0 => {
                Err(ReadError { offset, problem: Problem::Link { number, read: self.links.said } })
            }
            _ => Ok(()),
        }
    }

    /// Reads the next record into `record`. Returns false at the end of the recording; `record` is then
    /// unchanged.
    ///
    /// # Errors
    /// As for [`Reader::lend`].
    pub fn read(&mut self, record: &mut Record) -> Result<bool, ReadError> {
        let Some(Lent { time_ns, length, bytes, .. }) = self.lend()? else { return Ok(false) };
        (record.time_ns, record.length) = (time_ns, length);
        record.bytes.clear();
        record.bytes.extend_from_slice(bytes);
        Ok(true)
    }

    /// Returns the number of the latest record in its file, counted from 1 like Wireshark, which counts
    /// skipped packets too.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.read + self.skipped().map(|(_, [packets, _])| packets).sum::<u64>()
    }

    /// Iterates over the link types of packets that were skipped, with their number and their bytes.
    pub fn skipped(&self) -> impl Iterator<Item = (u16, [u64; 2])> + '_ {
        let skipped = match &self.format {
            Format::Classic(_) => None,
            Format::Ng(section) => Some(&section.skipped),
        };
        skipped.into_iter().flat_map(|skipped| skipped.counts.iter().map(|(link, counts)| (*link, *counts)))
    }

    fn first_skipped(&self) -> Option<(u16, u64)> {
        match &self.format {
            Format::Classic(_) => None,
            Format::Ng(section) => section.skipped.first,
        }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
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
