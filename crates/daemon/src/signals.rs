//! SIGHUP, SIGTERM and SIGINT: flags for the main thread, and a pipe that wakes it.

use anyhow::Result;
use rustix::fd::{AsFd, BorrowedFd};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The signals received.
pub struct Signals {
    reload: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    pipe: UnixStream,
}

impl Signals {
    /// Installs the handlers.
    pub fn take() -> Result<Signals> {
        let (pipe, end) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        let signals = Signals { reload: Arc::default(), stop: Arc::default(), pipe };
        for (signal, flag) in [(SIGHUP, &signals.reload), (SIGTERM, &signals.stop), (SIGINT, &signals.stop)] {
            // The flag is set first, so that a woken thread finds it set.
            signal_hook::flag::register(signal, flag.clone())?;
            signal_hook::low_level::pipe::register(signal, end.try_clone()?)?;
        }
        Ok(signals)
    }

    /// Returns true if the daemon should stop.
    pub fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns true if the daemon should reload its configuration, and clears the flag.
    pub fn take_reload(&self) -> bool {
        while (&self.pipe).read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        self.reload.swap(false, Ordering::Relaxed)
    }

    /// Returns a descriptor that is readable when a signal was received.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}
