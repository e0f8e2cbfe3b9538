//! An output that a test can inspect after a port has taken it.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
pub struct Sink {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Bytes after which writing fails.
    limit: Option<usize>,
}

impl Sink {
    /// Creates an output that fails after `limit` bytes.
    pub fn failing(limit: usize) -> Sink {
        Sink { limit: Some(limit), ..Sink::default() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }

    pub fn boxed(&self) -> Option<Box<dyn Write + Send>> {
        Some(Box::new(self.clone()))
    }
}

impl Write for Sink {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let mut bytes = self.bytes.lock().unwrap();
        let room = self.limit.map_or(buffer.len(), |limit| limit.saturating_sub(bytes.len()));
        if room == 0 && !buffer.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let taken = &buffer[..buffer.len().min(room)];
        bytes.extend_from_slice(taken);
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
