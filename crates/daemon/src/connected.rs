//! The state of a connected client, shared by its connection and the code that answers it.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a watching client may take to read the data sent to it: longer than the pause between comments.
pub const WATCH_PATIENCE: Duration = Duration::from_secs(60);

/// What a connection's client is doing.
pub struct ConnectedClient {
    state: AtomicU8,
    /// When the connection is closed, whatever its state.
    until: Mutex<Instant>,
}

impl ConnectedClient {
    /// Creates the state of a client that has connected, and that has this long for its first request.
    pub fn new(life: Duration) -> ConnectedClient {
        let until = Mutex::new(Instant::now() + life);
        ConnectedClient { state: AtomicU8::new(READING), until }
    }

    /// Notes that the request is complete.
    pub fn note_asked(&self, patience: Duration) {
        self.set(ANSWERING, patience);
    }

    /// Notes that a watching client reads the data sent to it. Its connection is not closed to make room for
    /// others.
    pub fn note_watching(&self) {
        self.set(ANSWERING, WATCH_PATIENCE);
    }

    /// Sets what the client is doing, and how long it may take.
    pub fn set(&self, state: u8, patience: Duration) {
        self.state.store(state, Ordering::Relaxed);
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + patience;
    }

    /// Returns whether the client is doing this.
    pub fn is(&self, state: u8) -> bool {
        self.state.load(Ordering::Relaxed) == state
    }

    /// Returns when the connection is closed.
    pub fn until(&self) -> Instant {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// States of a connection.
pub const READING: u8 = 0;
pub const ANSWERING: u8 = 1;
pub const WRITING: u8 = 2;
