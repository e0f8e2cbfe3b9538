//! The bytes of a recording, counted so that every error can state its offset.

use super::{Problem, ReadError};
use std::io::{self, BufRead, BufReader, Read};

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

/// Bytes that are read at once: a system call for some hundred frames.
const BUFFER: usize = 256 << 10;

pub(super) struct Source<R> {
    input: BufReader<R>,
    pub(super) offset: u64,
    pub(super) order: Order,
}

impl<R: Read> Source<R> {
    pub(super) fn new(input: R) -> Source<R> {
        Source { input: BufReader::with_capacity(BUFFER, input), offset: 0, order: Order::Little }
    }

    /// Returns an error about what begins `back` bytes before the current position.
    pub(super) fn wrong<T>(&self, back: u64, problem: Problem) -> Result<T, ReadError> {
        Err(ReadError { offset: self.offset.saturating_sub(back), problem })
    }

    /// Reads a piece that may be absent. Returns false at the end of the file.
    #[inline]
    pub(super) fn next(&mut self, bytes: &mut [u8], what: &'static str) -> Result<bool, ReadError> {
        if let Some(whole) = self.input.buffer().get(..bytes.len()) {
            bytes.copy_from_slice(whole);
            self.input.consume(bytes.len());
            self.offset += bytes.len() as u64;
            return Ok(true);
        }
        self.next_slowly(bytes, what)
    }

    fn next_slowly(&mut self, bytes: &mut [u8], what: &'static str) -> Result<bool, ReadError> {
        let mut there = 0;
        while there < bytes.len() {
            match self.input.read(&mut bytes[there..]) {
                Ok(0) => break,
                Ok(count) => there += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.wrong(0, Problem::Io(error)),
            }
        }
        if there == 0 && !bytes.is_empty() {
            return Ok(false);
        }
        if there < bytes.len() {
            return self.wrong(0, Problem::Ends { what, wanted: bytes.len(), there });
        }
        self.offset += there as u64;
        Ok(true)
    }

    /// Reads a piece that must be present.
    pub(super) fn piece<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], ReadError> {
        let mut bytes = [0; N];
        if self.next(&mut bytes, what)? {
            return Ok(bytes);
        }
        self.wrong(0, Problem::Ends { what, wanted: N, there: 0 })
    }

    /// Replaces `bytes` by the next `wanted` bytes. It grows as bytes are read, not by the claimed length.
    pub(super) fn fill(
        &mut self,
        bytes: &mut Vec<u8>,
        wanted: u32,
        what: &'static str,
    ) -> Result<(), ReadError> {
        bytes.clear();
        if let Some(whole) = self.input.buffer().get(..wanted as usize) {
            bytes.extend_from_slice(whole);
            self.input.consume(wanted as usize);
            self.offset += u64::from(wanted);
            return Ok(());
        }
        match self.input.by_ref().take(u64::from(wanted)).read_to_end(bytes) {
            Err(error) => return self.wrong(0, Problem::Io(error)),
            Ok(there) if there < wanted as usize => {
                return self.wrong(0, Problem::Ends { what, wanted: wanted as usize, there });
            }
            Ok(_) => {}
        }
        self.offset += u64::from(wanted);
        Ok(())
    }

    /// Skips `wanted` bytes.
    pub(super) fn skip(&mut self, wanted: u32, what: &'static str) -> Result<(), ReadError> {
        match io::copy(&mut self.input.by_ref().take(u64::from(wanted)), &mut io::sink()) {
            Err(error) => return self.wrong(0, Problem::Io(error)),
            Ok(there) if there < u64::from(wanted) => {
                return self.wrong(0, Problem::Ends { what, wanted: wanted as usize, there: there as usize });
            }
            Ok(_) => {}
        }
        self.offset += u64::from(wanted);
        Ok(())
    }
}
