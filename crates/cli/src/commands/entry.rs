//! `weir entry`: entries of the running program, one or many at a time.

use super::BadInput;
use super::show::Connection;
use crate::output;
use anyhow::{Context, Result};
use clap::Subcommand;
use serde_json::Value;
use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weir_config::infile;
use weir_control::answer::Lines;
use weir_control::{Request, change};

/// How often a long load reports its progress.
const NEWS: Duration = Duration::from_millis(500);

/// Arguments of `weir entry`.
#[derive(Subcommand)]
pub enum EntryCommand {
    /// Add an entry.
    Add(One),
    /// Replace an entry, except for what it matches.
    Update(One),
    /// Remove an entry.
    Remove(One),
    /// Make all changes in a file, or none: lines of `add PIPE ENTRY`, `update PIPE ENTRY` or
    /// `remove PIPE ENTRY`; empty lines and lines that begin with `#` are ignored.
    Load(LoadArguments),
    /// Print a pipe's entries that were added at run time, as lines that `weir entry load` reads.
    List(List),
}

/// An entry.
#[derive(clap::Args)]
pub struct One {
    /// The name of the pipe.
    pipe: String,
    /// The entry, as in a pipe's `entries`; to remove one, only its `match` (and `priority`).
    entry: String,
    #[command(flatten)]
    connection: Connection,
}

/// A file of changes.
#[derive(clap::Args)]
pub struct LoadArguments {
    /// The file; `-` is standard input.
    file: PathBuf,
    #[command(flatten)]
    connection: Connection,
}

/// What to list.
#[derive(clap::Args)]
pub struct List {
    /// The name of the pipe.
    pipe: String,
    /// Print the configured entries, too.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Runs `weir entry`.
pub fn run(arguments: &EntryCommand) -> Result<ExitCode> {
    match arguments {
        EntryCommand::Add(one) => one.ask("add"),
        EntryCommand::Update(one) => one.ask("update"),
        EntryCommand::Remove(one) => one.ask("remove"),
        EntryCommand::Load(load) => load.run(),
        EntryCommand::List(list) => list.run(),
    }
}

impl One {
    fn ask(&self, verb: &str) -> Result<ExitCode> {
        let (verb, pipe, entry) = (verb.to_string(), self.pipe.clone(), self.entry.clone());
        let request = Request::Entry(weir_control::Entry { verb, pipe, entry });
        self.connection.ask(&request, |_| "done\n".to_string())
    }
}

impl LoadArguments {
    fn run(&self) -> Result<ExitCode> {
        let text = read(&self.file)?;
        let (start, mut reported) = (Instant::now(), Instant::now());
        let talks = stderr().is_terminal() && !self.connection.is_json();
        let answer: Result<Value> = change(&self.connection.path(), &text, |sent| {
            if talks && reported.elapsed() >= NEWS {
                reported = Instant::now();
                output::complain(format_args!("\r{} % read", sent * 100 / text.len().max(1)));
            }
        });
        if talks && start.elapsed() >= NEWS {
            output::complain("\r          \r");
        }
        let answer = answer.with_context(|| self.file.display().to_string())?;
        if self.connection.is_json() {
            output::line(answer)?;
        } else {
            output::line(format_args!("{} changes done in {:.2?}", answer["done"], start.elapsed()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn read(file: &Path) -> Result<Vec<u8>> {
    let text = if file == Path::new("-") { infile::read_stdin() } else { infile::read(file) };
    Ok(text.map_err(|error| BadInput(format!("{}: {error}", file.display())))?)
}

impl List {
    fn run(&self) -> Result<ExitCode> {
        let mut next = Some(0);
        while let Some(from) = next {
            let request = weir_control::Entries { pipe: self.pipe.clone(), from, all: self.all };
            let page: Lines = self.connection.answer(&Request::Entries(request))?;
            for line in page.entries {
                if self.connection.is_json() {
                    output::line(Value::from(line))?;
                } else {
                    output::line(line)?;
                }
            }
            next = page.next;
        }
        Ok(ExitCode::SUCCESS)
    }
}
