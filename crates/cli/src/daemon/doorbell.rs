//! What wakes the main thread: workers that have given frames to apps or answered late, the metrics server.
//!
//! It is rung once a breath at most, and costs a system call only when it was not ringing already.

use anyhow::{Context, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A bell that any thread can ring.
#[derive(Clone)]
pub struct Doorbell(Arc<Bell>);

struct Bell {
    fd: OwnedFd,
    ringing: AtomicBool,
}

impl Doorbell {
    /// A bell.
    pub fn new() -> Result<Doorbell> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).context("eventfd")?;
        Ok(Doorbell(Arc::new(Bell { fd, ringing: AtomicBool::new(false) })))
    }

    /// Wakes the main thread. What it is to find must have been put there before.
    pub fn ring(&self) {
        if !self.0.ringing.swap(true, Ordering::AcqRel) {
            // A full counter wakes as well.
            let _ = rustix::io::write(&self.0.fd, &1u64.to_ne_bytes());
        }
    }

    /// Stops the ringing; then is the time to look at everything that may have rung.
    pub fn answer(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0.fd, &mut count);
        self.0.ringing.swap(false, Ordering::AcqRel);
    }

    /// Readable while it rings.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}
