//! Files that weir reads as a whole. None of them can make it wait forever or use up the memory: a FIFO
//! without a writer, an endless device, or a file that is far too large.

use anyhow::{Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The largest size of a regular file in bytes: several million entries.
const FILE_MAX: u64 = 1 << 30;

/// The largest size of what is read from a FIFO or a device.
const STREAM_MAX: u64 = 64 << 20;

/// How long a FIFO or a device may take to deliver all of it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads a file.
///
/// # Errors
/// It cannot be read, is too large, or takes too long.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    read_within(path, PATIENCE, [FILE_MAX, STREAM_MAX])
}

fn read_within(path: &Path, patience: Duration, [file_max, stream_max]: [u64; 2]) -> Result<Vec<u8>> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return read_stream(&mut file, Instant::now() + patience, stream_max);
    }
    if about.len() > file_max {
        bail!("it has {} bytes, and at most {file_max} are read", about.len());
    }
    let mut bytes = Vec::new();
    file.take(file_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > file_max {
        bail!("it has more than {file_max} bytes, the most that are read");
    }
    Ok(bytes)
}

fn read_stream(file: &mut File, until: Instant, most: u64) -> Result<Vec<u8>> {
    let (mut bytes, mut part) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let ready = match poll(&mut [PollFd::new(&*file, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => continue,
            ready => ready?,
        };
        if ready == 0 {
            bail!("it is not a regular file, and its end did not come in time: is anything writing to it?");
        }
        match file.read(&mut part) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
        if bytes.len() as u64 > most {
            bail!("it is not a regular file, and has more than {most} bytes, the most that are read");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_ends_is_not_waited_for_and_sizes_are_limited() {
        let path = std::env::temp_dir().join(format!("weir-infile-{}", std::process::id()));
        let said = |path: &Path| {
            let read = read_within(path, Duration::from_millis(1), [10, 1000]);
            read.map(|bytes| bytes.len()).map_err(|error| error.to_string())
        };
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        assert!(said(&path).unwrap_err().contains("is anything writing to it?"));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "0123456789").unwrap();
        assert_eq!(said(&path), Ok(10));
        std::fs::write(&path, "0123456789a").unwrap();
        assert!(said(&path).unwrap_err().contains("it has 11 bytes, and at most 10"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(said(Path::new("/dev/null")), Ok(0));
        let endless = read_within(Path::new("/dev/zero"), PATIENCE, [10, 1000]).unwrap_err().to_string();
        assert!(endless.contains("more than 1000 bytes"), "{endless}");
    }
}
