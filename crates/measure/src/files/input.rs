//! The input of `weir measure`: a file or standard input, compressed or not, read ahead by a thread.
//!
//! The thread reads and decompresses while the main thread counts. A few buffers of a mebibyte circulate
//! between the two, so that memory does not depend on the file.

use anyhow::{Context, Result};
use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Bytes of a buffer.
const BUFFER: usize = 1 << 20;

/// The number of buffers that circulate between the two threads.
const BUFFERS: usize = 4;

/// How long the counting thread waits before it checks whether it was interrupted.
const PATIENCE: Duration = Duration::from_millis(100);

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packed {
    Not,
    Gzip,
    Zstd,
}

impl Packed {
    fn recognise(start: &[u8]) -> Packed {
        match start {
            [0x1f, 0x8b, ..] => Packed::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Packed::Zstd,
            _ => Packed::Not,
        }
    }
}

/// Bytes as they are on disk, counted.
struct Counted {
    input: Box<dyn Read + Send>,
    count: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(bytes)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// The frames of a zstd file, one after the other.
struct Zstd<R: BufRead> {
    /// `None` after the last frame.
    frame: Option<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>,
}

impl<R: BufRead> Zstd<R> {
    fn new(input: R) -> io::Result<Zstd<R>> {
        Ok(Zstd { frame: Some(StreamingDecoder::new(input).map_err(io::Error::other)?) })
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while let Some(frame) = &mut self.frame {
            let read = frame.read(bytes)?;
            if read > 0 || bytes.is_empty() {
                return Ok(read);
            }
            let Some(frame) = self.frame.take() else { break };
            let mut input = frame.into_inner();
            if !input.fill_buf()?.is_empty() {
                self.frame = Some(StreamingDecoder::new(input).map_err(io::Error::other)?);
            }
        }
        Ok(0)
    }
}

/// A buffer that circulates between both threads.
#[derive(Default)]
struct Buffer {
    /// [`BUFFER`] bytes, or none before it is first filled.
    bytes: Box<[u8]>,
    /// The number of bytes that were read into the buffer.
    filled: usize,
}

/// A file that is read ahead.
pub struct Input {
    full: Receiver<io::Result<Buffer>>,
    empty: SyncSender<Buffer>,
    current: Buffer,
    at: usize,
    stop: Arc<AtomicBool>,
    is_over: bool,
}

impl Input {
    /// Opens a file, or standard input for `-`. Bytes that are read from the file, before decompression, are
    /// counted in `count`. When `stop` becomes true, the file ends.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, or if its compressed data is corrupt at the start.
    pub fn open(path: &Path, count: Arc<AtomicU64>, stop: Arc<AtomicBool>) -> Result<Input> {
        let input: Box<dyn Read + Send> = match path.as_os_str() == "-" {
            true => Box::new(io::stdin()),
            // Bounded: a buffer at a time, for as long as the user waits.
            false => Box::new(File::open(path).context("cannot be opened")?),
        };
        let input = Counted { input, count };
        let (full_sender, full) = sync_channel(BUFFERS);
        let (empty, empty_receiver) = sync_channel(BUFFERS);
        let read = move || match unpack(input) {
            Ok(input) => read_ahead(input, &full_sender, &empty_receiver),
            // If this fails, the reader is gone.
            Err(error) => _ = full_sender.send(Err(error)),
        };
        std::thread::Builder::new().name("weir-read-ahead".into()).spawn(read)?;
        Ok(Input { full, empty, current: Buffer::default(), at: 0, stop, is_over: false })
    }

    /// Swaps in the next buffer, which is empty at the end of the file.
    fn turn(&mut self) -> io::Result<()> {
        let used = std::mem::take(&mut self.current);
        self.at = 0;
        // A thread that has ended needs no buffers.
        let _ = self.empty.try_send(used);
        while !self.is_over {
            match self.full.recv_timeout(PATIENCE) {
                Ok(Ok(next)) => {
                    self.current = next;
                    return Ok(());
                }
                Ok(Err(error)) => {
                    self.is_over = true;
                    return Err(error);
                }
                Err(RecvTimeoutError::Timeout) if !self.stop.load(Ordering::Relaxed) => (),
                Err(_) => self.is_over = true,
            }
        }
        Ok(())
    }
}

impl BufRead for Input {
    #[inline]
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.current.filled {
            self.turn()?;
        }
        Ok(&self.current.bytes[self.at..self.current.filled])
    }

    #[inline]
    fn consume(&mut self, count: usize) {
        self.at += count;
    }
}

impl Read for Input {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let ahead = self.fill_buf()?;
        let count = bytes.len().min(ahead.len());
        bytes[..count].copy_from_slice(&ahead[..count]);
        self.consume(count);
        Ok(count)
    }
}

/// Adds the decompression that the first bytes indicate.
fn unpack(input: Counted) -> io::Result<Box<dyn Read>> {
    let mut input = BufReader::with_capacity(BUFFER, input);
    Ok(match Packed::recognise(input.fill_buf()?) {
        Packed::Not => Box::new(input),
        Packed::Gzip => Box::new(MultiGzDecoder::new(input)),
        Packed::Zstd => Box::new(Zstd::new(input)?),
    })
}

/// Runs on the thread: fills buffers until the file ends or the reader is gone.
fn read_ahead(mut input: Box<dyn Read>, full: &SyncSender<io::Result<Buffer>>, empty: &Receiver<Buffer>) {
    loop {
        let mut buffer = empty.try_recv().unwrap_or_default();
        if buffer.bytes.is_empty() {
            buffer.bytes = vec![0; BUFFER].into();
        }
        let next = loop {
            match input.read(&mut buffer.bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                other => break other,
            }
        };
        let next = match next {
            Ok(0) => return,
            Ok(filled) => Ok(Buffer { filled, ..buffer }),
            Err(error) => Err(error),
        };
        let is_over = next.is_err();
        if full.send(next).is_err() || is_over {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn unpacked(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let path = std::env::temp_dir().join(format!("weir-input-{}-{:p}", std::process::id(), bytes));
        std::fs::write(&path, bytes)?;
        let (count, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut input = Input::open(&path, count.clone(), stop).unwrap();
        let mut out = Vec::new();
        let result = input.read_to_end(&mut out);
        std::fs::remove_file(&path)?;
        result?;
        assert_eq!(count.load(Ordering::Relaxed), bytes.len() as u64);
        Ok(out)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn what_is_packed_is_unpacked_also_in_several_pieces() {
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| ((at >> 7) ^ (at * 31)) as u8).collect();
        assert!(unpacked(&bytes).unwrap() == bytes);
        assert!(unpacked(&gzip(&bytes)).unwrap() == bytes);
        assert!(unpacked(&zstd(&bytes)).unwrap() == bytes);
        let (one, other) = bytes.split_at(1_000_000);
        assert!(unpacked(&[gzip(one), gzip(other)].concat()).unwrap() == bytes);
        assert!(unpacked(&[zstd(one), zstd(other)].concat()).unwrap() == bytes);
        assert!(unpacked(&[]).unwrap().is_empty());
    }

    #[test]
    fn a_packed_file_that_is_cut_is_an_error() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|at| ((at >> 7) ^ (at * 31)) as u8).collect();
        for packed in [gzip(&bytes), zstd(&bytes)] {
            assert!(unpacked(&packed[..packed.len() - 20]).is_err());
        }
        assert!(unpacked(&[0x28, 0xb5, 0x2f, 0xfd]).is_err());
    }
}
