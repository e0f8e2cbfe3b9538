//! Wakes the main thread, for workers that have passed frames to apps or answered late, and for the HTTP
//! server.
//!
//! The doorbell is rung at most once per breath, and costs a system call only if it is not already ringing.

use anyhow::{Context, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A doorbell that any thread can ring.
#[derive(Clone)]
pub struct Doorbell(Arc<Bell>);

struct Bell {
    fd: OwnedFd,
    ringing: AtomicBool,
}

impl Doorbell {
    /// Creates a doorbell.
    pub fn new() -> Result<Doorbell> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).context("eventfd")?;
        Ok(Doorbell(Arc::new(Bell { fd, ringing: AtomicBool::new(false) })))
    }

    /// Wakes the main thread. The work for it must be visible before.
    pub fn ring(&self) {
        if !self.0.ringing.swap(true, Ordering::AcqRel) {
            // A full counter wakes the reader, too.
            let _ = rustix::io::write(&self.0.fd, &1u64.to_ne_bytes());
        }
    }

    /// Stops the ringing. Afterwards, every source that may have rung must be checked.
    pub fn answer(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0.fd, &mut count);
        self.0.ringing.swap(false, Ordering::AcqRel);
    }

    /// Returns a descriptor that is readable while the doorbell rings.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}
