//! The threads that read, check and compile for reloads, and that prepare changes in place.

use anyhow::{Context, Result};
use std::sync::mpsc::{SendError, Sender, channel};
use weir_app::priority;

/// A thread that prepares programs. All reloads share one, because the allocator keeps memory per thread, and
/// more of it whenever a thread starts before the previous one has quite ended. Changes in place share
/// another thread.
#[derive(Default)]
pub struct Workshop(Option<Sender<Work>>);

/// A piece of work for the thread.
type Work = Box<dyn FnOnce() + Send>;

impl Workshop {
    /// Hands work to the thread, starting it if there is none or if it has panicked. Work that takes long
    /// runs at a lower priority, because it must not take time from a worker that the kernel has placed on
    /// the same core.
    pub fn take_on(&mut self, takes_long: bool, work: Work) -> Result<()> {
        let work = match &self.0 {
            Some(thread) => match thread.send(work) {
                Ok(()) => return Ok(()),
                Err(SendError(work)) => work,
            },
            None => work,
        };
        let (thread, all) = channel::<Work>();
        let run = move || {
            if takes_long {
                priority::patient()
            } else {
                priority::ordinary()
            }
            all.into_iter().for_each(|work| work());
        };
        let name = if takes_long { "weir-reload" } else { "weir-change" };
        std::thread::Builder::new().name(name.into()).spawn(run).context("no thread for it")?;
        let _ = thread.send(work);
        self.0 = Some(thread);
        Ok(())
    }
}
