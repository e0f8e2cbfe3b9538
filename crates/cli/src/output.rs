//! The output of commands. Standard output may be a pipe whose reader is gone, or a file on a full disk, so
//! nothing here panics. If the reader is gone, a command ends like any other: silently, by SIGPIPE. Any other
//! failure is an error with an exit code.
//!
//! The daemon does not print; it has a log ([`weir_daemon`]).

use crate::commands::{BadInput, bad_input};
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::SIGPIPE;
use signal_hook::low_level::emulate_default_handler;
use std::fmt::Display;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::process::ExitCode;

/// Prints text as it is.
///
/// # Errors
/// Fails if standard output cannot be written to.
pub fn print(text: impl Display) -> Result<()> {
    write!(stdout(), "{text}").context("standard output cannot be written to")
}

/// Prints a line.
///
/// # Errors
/// Fails if standard output cannot be written to.
pub fn line(text: impl Display) -> Result<()> {
    writeln!(stdout(), "{text}").context("standard output cannot be written to")
}

/// Flushes what has been printed so far.
///
/// # Errors
/// Fails if standard output cannot be written to.
pub fn flush() -> Result<()> {
    stdout().flush().context("standard output cannot be written to")
}

/// Prints to standard error. If that fails, there is nowhere left to report it.
pub fn complain(text: impl Display) {
    let _ = write!(stderr(), "{text}");
}

/// Ends a command: flushes what it printed, reports its error, and returns its exit code.
pub fn end(result: Result<ExitCode>) -> ExitCode {
    match result.and_then(|code| flush().map(|()| code)) {
        Ok(code) => code,
        Err(error) => {
            if is_broken_pipe(&error) && nobody_reads() {
                // Only returns if the signal cannot be raised.
                let _ = emulate_default_handler(SIGPIPE);
            }
            complain(format_args!("weir: {error:#}\n"));
            if error.is::<BadInput>() { bad_input() } else { ExitCode::FAILURE }
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    causes.any(|cause| cause.kind() == ErrorKind::BrokenPipe)
}

/// Returns true if standard output is broken, rather than a socket.
fn nobody_reads() -> bool {
    let out = stdout();
    let mut wait = [PollFd::new(&out, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut wait, Some(&at_once)).is_ok() && wait[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}
