//! The thread on which reloads read, check and compile.

use anyhow::{Context, Result};
use std::sync::mpsc::{SendError, Sender, channel};
use weir_app::priority;

/// The thread that compiles programs. All reloads share it, because the allocator keeps memory per thread,
/// and more of it whenever a thread starts before the previous one has quite ended.
#[derive(Default)]
pub struct Workshop(Option<Sender<Work>>);

/// A piece of work for the thread.
type Work = Box<dyn FnOnce() + Send>;

impl Workshop {
    /// Hands work to the thread, starting it if there is none or if it has panicked.
    pub fn take_on(&mut self, work: Work) -> Result<()> {
        let work = match &self.0 {
            Some(thread) => match thread.send(work) {
                Ok(()) => return Ok(()),
                Err(SendError(work)) => work,
            },
            None => work,
        };
        let (thread, all) = channel::<Work>();
        let run = move || {
            // This thread must not take time from a worker that the kernel has placed on the same core.
            priority::patient();
            all.into_iter().for_each(|work| work());
        };
        std::thread::Builder::new().name("weir-reload".into()).spawn(run).context("no thread for it")?;
        let _ = thread.send(work);
        self.0 = Some(thread);
        Ok(())
    }
}
