//! Files that weir reads as a whole. None of them can make it wait forever or exhaust memory: a FIFO without
//! a writer, an endless device, or a file that is far too large. Other modules do not read files themselves,
//! unless a comment states their bounds (`crates/cli/tests/tidy/inputs.rs`).

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, stdin};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The largest size of a regular file in bytes: several million entries.
const FILE_MAX: u64 = 1 << 30;

/// The maximum number of bytes read from a FIFO or a device.
const STREAM_MAX: u64 = 64 << 20;

/// How long a FIFO or a device may take to deliver all of its content.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads a file.
///
/// # Errors
/// The file cannot be read, is too large, or takes too long.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_within(path, PATIENCE, [FILE_MAX, STREAM_MAX])
}

/// Reads standard input, which may take any amount of time.
///
/// # Errors
/// Standard input cannot be read, or is too large.
pub fn read_stdin() -> io::Result<Vec<u8>> {
    read_from(stdin().lock(), FILE_MAX)
}

/// Reads all of an open file, of at most `most` bytes.
///
/// # Errors
/// The file cannot be read, or is larger than `most`.
pub fn read_from(input: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes, the limit")));
    }
    Ok(bytes)
}

/// Opens a file that is read piece by piece. A FIFO without a writer becomes an error after a while.
///
/// # Errors
/// The file cannot be opened, or nothing writes to it.
pub fn open(path: &Path) -> io::Result<File> {
    open_within(path, PATIENCE)
}

fn open_within(path: &Path, patience: Duration) -> io::Result<File> {
    let file = open_at_once(path)?;
    if !file.metadata()?.is_file() && !is_ready(&file, Instant::now() + patience)? {
        return Err(io::Error::other(
            "it is not a regular file, and no data arrived: is anything writing to it?",
        ));
    }
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

fn open_at_once(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn read_within(path: &Path, patience: Duration, [file_max, stream_max]: [u64; 2]) -> io::Result<Vec<u8>> {
    let mut file = open_at_once(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return read_stream(&mut file, Instant::now() + patience, stream_max);
    }
    if about.len() > file_max {
        let says = format!("it has {} bytes, but the limit is {file_max}", about.len());
        return Err(io::Error::other(says));
    }
    read_from(file, file_max)
}

/// Waits until input is available, or until a deadline. Returns false on timeout.
fn is_ready(file: &File, until: Instant) -> io::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

fn read_stream(file: &mut File, until: Instant, most: u64) -> io::Result<Vec<u8>> {
    let (mut bytes, mut part) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        if !is_ready(file, until)? {
            let says = "it is not a regular file, and was not closed in time: is anything writing to it?";
            return Err(io::Error::other(says));
        }
        match file.read(&mut part) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        if bytes.len() as u64 > most {
            let says = format!("it is not a regular file, and has more than {most} bytes, the limit");
            return Err(io::Error::other(says));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_never_ends_is_not_waited_for_and_sizes_are_limited() {
        let path = std::env::temp_dir().join(format!("weir-infile-{}", std::process::id()));
        let said = |path: &Path| {
            let read = read_within(path, Duration::from_millis(1), [10, 1000]);
            read.map(|bytes| bytes.len()).map_err(|error| error.to_string())
        };
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        assert!(said(&path).unwrap_err().contains("is anything writing to it?"));
        let opened =
            |path: &Path| open_within(path, Duration::from_millis(1)).map_err(|error| error.to_string());
        assert!(opened(&path).unwrap_err().contains("is anything writing to it?"));
        let mut writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        writer.write_all(b"a").unwrap();
        let reader = opened(&path).unwrap();
        assert!(!fcntl_getfl(&reader).unwrap().contains(OFlags::NONBLOCK), "it is read in pieces");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "0123456789").unwrap();
        assert_eq!(said(&path), Ok(10));
        std::fs::write(&path, "0123456789a").unwrap();
        assert!(said(&path).unwrap_err().contains("it has 11 bytes, but the limit is 10"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(said(Path::new("/dev/null")), Ok(0));
        let endless = read_within(Path::new("/dev/zero"), PATIENCE, [10, 1000]).unwrap_err().to_string();
        assert!(endless.contains("more than 1000 bytes"), "{endless}");
    }
}
