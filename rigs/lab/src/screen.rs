//! The output of a running lab: on a terminal a table that is redrawn in place, elsewhere one line per
//! second.
//!
//! With `--json`, all of it goes to standard error, because standard output is reserved for programs.

use anyhow::{Context, Result};
use std::fmt::Display;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::time::{Duration, Instant};

const REDRAW: Duration = Duration::from_millis(200);
const LINE: Duration = Duration::from_secs(1);

/// Prints a line, usually for a program that reads it. Unlike `println!`, it does not panic.
///
/// # Errors
/// Standard output cannot be written to.
pub fn line(text: impl Display) -> Result<()> {
    writeln!(stdout(), "{text}").context("standard output cannot be written to")
}

/// The screen of a running lab.
pub struct Screen {
    out: Box<dyn Write>,
    terminal: bool,
    drawn: usize,
    last: Option<Instant>,
}

impl Screen {
    /// Uses standard output, or standard error if the former is reserved for JSON.
    pub fn new(json: bool) -> Screen {
        let (out, terminal): (Box<dyn Write>, bool) = if json {
            (Box::new(stderr()), stderr().is_terminal())
        } else {
            (Box::new(stdout()), stdout().is_terminal())
        };
        Screen { out, terminal, drawn: 0, last: None }
    }

    /// Returns true if the next [`Screen::live`] would be shown.
    pub fn is_due(&self) -> bool {
        let interval = if self.terminal { REDRAW } else { LINE };
        self.last.is_none_or(|last| last.elapsed() >= interval)
    }

    /// Prints a permanent line. A closed screen does not stop the lab.
    pub fn say(&mut self, line: &str) {
        self.drawn = 0;
        self.last = None;
        let _ = writeln!(self.out, "{line}");
        let _ = self.out.flush();
    }

    /// Replaces the lines drawn last.
    pub fn live(&mut self, lines: &[String]) {
        self.last = Some(Instant::now());
        if !self.terminal {
            let words: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
            let _ = writeln!(self.out, "{}", words.join("  "));
            return;
        }
        if self.drawn > 0 {
            let _ = write!(self.out, "\x1b[{}A", self.drawn);
        }
        for line in lines {
            let _ = writeln!(self.out, "\x1b[2K{line}");
        }
        let _ = self.out.flush();
        self.drawn = lines.len();
    }
}
