//! The configuration: one YAML file, read in two steps. `raw` is exactly what was typed; `plan` is what it means, with
//! names resolved, ranges checked and the program checked. Both tell everything that is wrong at once, into a report
//! that knows where it was written.
//!
//! `docs/configuration.md` describes every key.

mod action;
mod apps;
mod bond;
mod diagnostic;
mod entry;
mod forward;
mod pipes;
mod plan;
mod ports;
mod raw;
mod section;
mod sets;
#[cfg(test)]
mod tests;
mod value;

pub use apps::Apps;
pub use diagnostic::{Diagnostic, Report, Span};
pub use entry::{write as write_entry, write_key};
pub use forward::write as write_forward;
pub use plan::{Plan, SOCKET, Workers};
pub use ports::{Fault, PortConfig, PortKind, Take, Xdp, XdpMode};
pub use value::{duration, mac, mac_value, masked, write as write_value, write_mac, write_masked};

use engine::change::EntryKey;
use engine::program::{Entry, PipeId, Program};
use entry::{Counters, EntryReader};
use raw::Node;

/// A text that was read: what it means, if it can be run, and what is wrong with it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it means; `None` if there are errors.
    pub plan: Option<Plan>,
    /// Errors and warnings.
    pub report: Report,
}

/// Reads a configuration; `file` is what the report calls it.
#[must_use]
pub fn read(file: &str, text: &str) -> Loaded {
    let mut report = Report::new(file, text);
    let plan = raw::parse(text, &mut report).and_then(|document| plan::plan(&document, &mut report));
    Loaded { plan, report }
}

/// Reads the back ends of XenoFlow's `backends.json`.
#[must_use]
pub fn xenoflow(text: &str, report: &mut Report) -> Vec<::apps::lb::BackEnd> {
    raw::parse(text, report).map(|document| apps::xenoflow(&document, report)).unwrap_or_default()
}

/// Reads an entry that comes at run time, in the syntax of a pipe's `entries`. It fits its pipe; whether the graph
/// admits it, `engine::check::Shape` says.
///
/// # Errors
/// Everything wrong with it.
pub fn entry(program: &Program, pipe: &str, text: &str) -> Result<(PipeId, Entry), Report> {
    run_time(program, pipe, text, |reader, node| {
        let entry = reader.read(node)?;
        Some(Entry { run_time: true, ..entry })
    })
    .and_then(|(pipe, entry, mut report)| {
        for finding in engine::check::check_entry(program, pipe, &entry) {
            report.error(report.span_of(entry.origin), finding.to_string());
        }
        if report.errors() > 0 { Err(report) } else { Ok((pipe, Entry { origin: Default::default(), ..entry })) }
    })
}

/// Reads what tells an entry from the others of its pipe: `{ match: { ... } }`, for ACL with its `priority`.
///
/// # Errors
/// Everything wrong with it.
pub fn entry_key(program: &Program, pipe: &str, text: &str) -> Result<(PipeId, EntryKey), Report> {
    run_time(program, pipe, text, |reader, node| reader.read_key(node)).map(|(pipe, key, _)| (pipe, key))
}

fn run_time<T>(
    program: &Program,
    name: &str,
    text: &str,
    read: impl FnOnce(&mut EntryReader, &Node) -> Option<T>,
) -> Result<(PipeId, T, Report), Report> {
    let mut report = Report::new("entry", text);
    let Some(id) = program.pipe_named(name) else {
        let names: Vec<&str> = program.pipes.iter().map(|pipe| pipe.name.as_str()).collect();
        report.error_help(Span::default(), format!("there is no pipe `{name}`"), diagnostic::suggestion(name, names));
        return Err(report);
    };
    let Some(node) = raw::parse(text, &mut report) else { return Err(report) };
    let mut counters = Counters::new(program.counters.clone(), false);
    let pipe = &program.pipes[id.index()];
    let entry = read(
        &mut EntryReader { program, pipe, counters: &mut counters, sure: true, run_time: true, report: &mut report },
        &node,
    );
    match entry {
        Some(entry) if report.errors() == 0 => Ok((id, entry, report)),
        _ => Err(report),
    }
}
