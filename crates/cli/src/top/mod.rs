//! `weir top`: a live view of the running daemon in a terminal, also over SSH.
//!
//! ```text
//! keys, signals --+                         +-> question -> asker (thread) -> daemon
//!                 +-> main loop -> view ----+
//! answers --------+        |                +-> draw -> cells that changed -> terminal
//! ```
//! The main loop waits for keys, signals and answers at once, and never blocks on the daemon.

mod asker;
mod draw;
mod keys;
mod pages;
mod parts;
mod terminal;
#[cfg(test)]
mod tests;
mod view;

use anyhow::{Context, Result, bail};
use asker::Asker;
use keys::Key;
use ratatui_core::terminal::Terminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::low_level::emulate_default_handler;
use std::io::{IsTerminal, Read, stdin, stdout};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use terminal::{Drawn, Modes};
use view::{View, Wish};
use weir_control::{Request, answer};
use weir_daemon::Doorbell;

/// How often the screen is redrawn if nothing happens, because it shows how long an answer has been
/// outstanding.
const TICK: Duration = Duration::from_secs(1);

/// How long to wait for the rest of a key's sequence before an escape byte counts as the Escape key.
const SEQUENCE: Duration = Duration::from_millis(50);

/// Shows the daemon behind `socket` until the operator quits or a signal ends it.
///
/// # Errors
/// Fails if there is no terminal or it goes away, or if no daemon answers at the start.
pub fn run(socket: PathBuf, interval: Duration) -> Result<ExitCode> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        bail!("`weir top` needs a terminal; `weir show` prints the same as text");
    }
    // Errors at the start are better reported in plain text.
    let _: answer::Shown = weir_control::ask(&socket, &Request::show("generation"))?;
    let signals = Signals::take()?;
    let doorbell = Doorbell::new()?;
    let asker = Asker::start(socket, doorbell.clone())?;
    let handle = || -> Result<OwnedFd> { Ok(stdout().as_fd().try_clone_to_owned()?) };
    let modes = Modes::enter(handle()?).context("the terminal")?;
    let screen = Terminal::new(Drawn::on(handle()?)).context("the terminal")?;
    let view = View::new(interval, Instant::now());
    let mut top = Top { signals, doorbell, asker, modes, screen, view, pending: Vec::new() };
    let signal = top.run();
    top.modes.leave();
    if let Some(signal) = signal? {
        // Only returns if the signal cannot be raised.
        emulate_default_handler(signal)?;
    }
    Ok(ExitCode::SUCCESS)
}

struct Top {
    signals: Signals,
    doorbell: Doorbell,
    asker: Asker,
    modes: Modes,
    screen: Terminal<Drawn>,
    view: View,
    /// Bytes of an incomplete key.
    pending: Vec<u8>,
}

impl Top {
    /// Runs until the operator quits; returns nothing, or the signal that ends it.
    fn run(&mut self) -> Result<Option<i32>> {
        loop {
            if let Some(question) = self.view.question(Instant::now()) {
                self.asker.ask(question)?;
            }
            let view = &mut self.view;
            self.screen
                .draw(|frame| draw::draw(view, Instant::now(), frame.area(), frame.buffer_mut()))
                .context("the terminal has gone")?;
            let pressed = self.wait()?;
            if let Some(signal) = self.signals.ending() {
                return Ok(Some(signal));
            }
            while let Ok(answer) = self.asker.answers.try_recv() {
                self.view.show(answer);
            }
            for key in pressed {
                match self.view.press(key, Instant::now()) {
                    Wish::Show => {}
                    Wish::Redraw => self.screen.clear()?,
                    Wish::Suspend => self.suspend()?,
                    Wish::Quit => return Ok(None),
                }
            }
        }
    }

    /// Waits for something to do. Returns the keys pressed.
    fn wait(&mut self) -> Result<Vec<Key>> {
        let now = Instant::now();
        let mut patience = self.view.due().map_or(TICK, |due| due.saturating_duration_since(now)).min(TICK);
        if !self.pending.is_empty() {
            patience = patience.min(SEQUENCE);
        }
        let input = stdin();
        let mut fds = [
            PollFd::new(&input, PollFlags::IN),
            PollFd::from_borrowed_fd(self.signals.pipe.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.doorbell.fd(), PollFlags::IN),
        ];
        let patience =
            Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        match poll(&mut fds, Some(&patience)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [input_ready, _, rings] = [0, 1, 2].map(|at| !fds[at].revents().is_empty());
        self.signals.clear();
        if rings {
            self.doorbell.answer();
        }
        if !input_ready {
            // The sequence was not continued, so it was the Escape key.
            let alone = !std::mem::take(&mut self.pending).is_empty();
            return Ok(if alone { vec![Key::Escape] } else { Vec::new() });
        }
        let mut bytes = [0; 256];
        let count = rustix::io::read(&input, &mut bytes).context("the terminal has gone")?;
        if count == 0 {
            bail!("the terminal has gone");
        }
        self.pending.extend(&bytes[..count]);
        Ok(keys::take(&mut self.pending))
    }

    /// Restores the terminal and stops, until a shell's `fg` or `bg` continues it.
    fn suspend(&mut self) -> Result<()> {
        self.modes.leave();
        kill_process(getpid(), Signal::STOP)?;
        self.modes.enter_again(stdout().as_fd().try_clone_to_owned()?)?;
        Ok(self.screen.clear()?)
    }
}

/// The terminating signals, and a pipe that wakes the loop for them and when the terminal is resized.
struct Signals {
    ending: Arc<AtomicUsize>,
    pipe: UnixStream,
}

impl Signals {
    fn take() -> Result<Signals> {
        let (pipe, end) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        let ending = Arc::new(AtomicUsize::new(0));
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            // The signal is recorded first, so that the woken thread finds it.
            signal_hook::flag::register_usize(signal, ending.clone(), signal as usize)?;
            signal_hook::low_level::pipe::register(signal, end.try_clone()?)?;
        }
        signal_hook::low_level::pipe::register(SIGWINCH, end)?;
        Ok(Signals { ending, pipe })
    }

    /// Returns the terminating signal, if one has arrived.
    fn ending(&self) -> Option<i32> {
        i32::try_from(self.ending.load(Ordering::Relaxed)).ok().filter(|signal| *signal != 0)
    }

    fn clear(&self) {
        while (&self.pipe).read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
    }
}
