//! The bytes of a recording, counted so that every error can state its offset.
//!
//! The data of a record are not copied: they are held where the input has buffered them, until the next
//! record is read. Only data that do not end in the buffer in which they begin are assembled elsewhere. Bytes
//! that were read therefore stay in the input's buffer until all of it has been read.

use super::{Problem, ReadError};
use std::io::{self, BufRead};
use std::ops::Range;

/// Byte order of numbers: a recording keeps the order of the machine that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

impl Order {
    pub(super) fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Order::Little => u16::from_le_bytes(bytes),
            Order::Big => u16::from_be_bytes(bytes),
        }
    }

    pub(super) fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        }
    }

    /// Reads a header that consists of 32-bit numbers only.
    pub(super) fn words<const N: usize>(self, bytes: &[u8]) -> [u32; N] {
        debug_assert_eq!(bytes.len(), N * 4);
        std::array::from_fn(|i| self.u32(bytes[i * 4..i * 4 + 4].try_into().expect("4 bytes")))
    }

    /// Returns the two halves of a word in file order.
    pub(super) fn halves(self, bytes: [u8; 4]) -> [u16; 2] {
        [self.u16([bytes[0], bytes[1]]), self.u16([bytes[2], bytes[3]])]
    }
}

/// The data of a record.
#[derive(Debug, Default)]
enum RecordData {
    /// There is no data.
    #[default]
    Nothing,
    /// In the input's buffer.
    Here(Range<usize>),
    /// Assembled.
    Together,
}

/// An input being read.
pub(super) struct Source<R> {
    input: R,
    /// The number of bytes in the input's buffer.
    there: usize,
    /// How many of these have been read.
    at: usize,
    held: RecordData,
    /// Data that began in one buffer and ended in another.
    together: Vec<u8>,
    pub(super) offset: u64,
    pub(super) order: Order,
}

impl<R: BufRead> Source<R> {
    pub(super) fn new(input: R) -> Source<R> {
        let (held, together) = Default::default();
        Source { input, there: 0, at: 0, held, together, offset: 0, order: Order::Little }
    }

    /// Returns an error that refers to `back` bytes before the current position.
    pub(super) fn wrong<T>(&self, back: u64, problem: Problem) -> Result<T, ReadError> {
        Err(ReadError { offset: self.offset.saturating_sub(back), problem })
    }

    /// Returns the buffered bytes that were not read. Fills the buffer if there are none; at the end of the
    /// file, the result is empty.
    #[inline]
    fn ahead(&mut self) -> Result<&[u8], ReadError> {
        if self.at == self.there {
            self.turn()?;
        }
        let unread = self.at..self.there;
        if unread.is_empty() { Ok(&[]) } else { Ok(&self.buffer()?[unread]) }
    }

    /// Returns the buffer. It must not be empty, because the input would then read from the file.
    #[inline]
    fn buffer(&mut self) -> Result<&[u8], ReadError> {
        let offset = self.offset;
        self.input.fill_buf().map_err(|error| ReadError { offset, problem: Problem::Io(error) })
    }

    /// Refills the buffer after everything in it was read.
    #[cold]
    fn turn(&mut self) -> Result<(), ReadError> {
        if let RecordData::Here(place) = &self.held {
            let place = place.clone();
            let mut together = std::mem::take(&mut self.together);
            together.clear();
            together.extend_from_slice(&self.buffer()?[place]);
            (self.together, self.held) = (together, RecordData::Together);
        }
        self.input.consume(self.at);
        (self.at, self.there) = (0, 0);
        self.there = loop {
            match self.input.fill_buf() {
                Ok(bytes) => break bytes.len(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.wrong(0, Problem::Io(error)),
            }
        };
        Ok(())
    }

    /// Reads a piece that may be absent: `None` at the end of the file.
    #[inline]
    pub(super) fn next<const N: usize>(&mut self, what: &'static str) -> Result<Option<[u8; N]>, ReadError> {
        let Some(bytes) = self.ahead()?.first_chunk().copied() else {
            return self.next_together(what);
        };
        self.at += N;
        self.offset += N as u64;
        Ok(Some(bytes))
    }

    #[cold]
    fn next_together<const N: usize>(&mut self, what: &'static str) -> Result<Option<[u8; N]>, ReadError> {
        let mut bytes = [0; N];
        let mut there = 0;
        while there < N {
            let ahead = self.ahead()?;
            let count = ahead.len().min(N - there);
            if count == 0 {
                break;
            }
            bytes[there..there + count].copy_from_slice(&ahead[..count]);
            self.at += count;
            there += count;
        }
        if there == 0 {
            return Ok(None);
        }
        self.must_be(there, N, what)?;
        self.offset += N as u64;
        Ok(Some(bytes))
    }

    fn must_be(&self, there: usize, wanted: usize, what: &'static str) -> Result<(), ReadError> {
        if there < wanted { self.wrong(0, Problem::Ends { what, wanted, there }) } else { Ok(()) }
    }

    /// Reads a piece that must be present.
    #[inline]
    pub(super) fn piece<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], ReadError> {
        match self.next(what)? {
            Some(bytes) => Ok(bytes),
            None => self.wrong(0, Problem::Ends { what, wanted: N, there: 0 }),
        }
    }

    /// Reads the next `wanted` bytes and holds them until other bytes are held. Memory for assembled data
    /// grows with the bytes that are read, whatever length the file claims.
    #[inline]
    pub(super) fn hold(&mut self, wanted: u32, what: &'static str) -> Result<(), ReadError> {
        let wanted = wanted as usize;
        self.held = RecordData::Nothing;
        if wanted == 0 {
            return Ok(());
        }
        let ahead = self.ahead()?;
        if ahead.len() < wanted {
            return self.hold_together(wanted, what);
        }
        // The bytes that follow are read next, and another CPU has written them.
        if let Some(next) = ahead.get(wanted) {
            weir_packet::prefetch(next);
        }
        self.held = RecordData::Here(self.at..self.at + wanted);
        self.at += wanted;
        self.offset += wanted as u64;
        Ok(())
    }

    #[cold]
    fn hold_together(&mut self, wanted: usize, what: &'static str) -> Result<(), ReadError> {
        let mut together = std::mem::take(&mut self.together);
        together.clear();
        while together.len() < wanted {
            let ahead = self.ahead()?;
            let count = ahead.len().min(wanted - together.len());
            if count == 0 {
                break;
            }
            together.extend_from_slice(&ahead[..count]);
            self.at += count;
        }
        self.must_be(together.len(), wanted, what)?;
        (self.together, self.held) = (together, RecordData::Together);
        self.offset += wanted as u64;
        Ok(())
    }

    /// Returns the bytes that are held.
    #[inline]
    pub(super) fn held(&mut self) -> Result<&[u8], ReadError> {
        match &self.held {
            RecordData::Nothing => Ok(&[]),
            RecordData::Together => Ok(&self.together),
            RecordData::Here(place) => {
                let place = place.clone();
                Ok(&self.buffer()?[place])
            }
        }
    }

    /// Releases the held bytes.
    #[inline]
    pub(super) fn release(&mut self) {
        self.held = RecordData::Nothing;
    }

    /// Skips `wanted` bytes.
    #[inline]
    pub(super) fn skip(&mut self, wanted: u32, what: &'static str) -> Result<(), ReadError> {
        let wanted = wanted as usize;
        let mut there = 0;
        while there < wanted {
            let count = self.ahead()?.len().min(wanted - there);
            if count == 0 {
                break;
            }
            self.at += count;
            there += count;
        }
        self.must_be(there, wanted, what)?;
        self.offset += wanted as u64;
        Ok(())
    }
}
