//! Entries added at run time over the control socket, in the syntax of a pipe's `entries`.

use crate::attachment::Attachments;
use crate::diagnostic::{Report, Span};
use crate::entry::{Counters, EntryReader};
use crate::group_names::GroupNames;
use crate::raw::{self, Node};
use crate::section::position;
use engine::change::EntryKey;
use engine::program::{Entry, PipeId, Program};

/// Reads an entry and checks that it fits its pipe. Whether the graph of pipes admits it is checked by
/// `engine::check::Shape`.
///
/// # Errors
/// Returns everything that is wrong with it.
pub fn entry(
    program: &Program,
    attachments: &Attachments,
    pipe: &str,
    text: &str,
) -> Result<(PipeId, Entry), Report> {
    run_time((program, attachments), pipe, text, |reader, node| {
        let entry = reader.read(node)?;
        Some(Entry { run_time: true, ..entry })
    })
    .and_then(|(pipe, entry, mut report)| {
        for finding in engine::check::check_entry(program, pipe, &entry) {
            report.error(report.span_of(entry.origin), finding.to_string());
        }
        if report.errors() > 0 {
            Err(report)
        } else {
            Ok((pipe, Entry { origin: Default::default(), ..entry }))
        }
    })
}

/// Reads what identifies an entry in its pipe: `{ match: { ... } }`, for ACL with its `priority`.
///
/// # Errors
/// Returns everything that is wrong with it.
pub fn entry_key(
    program: &Program,
    attachments: &Attachments,
    pipe: &str,
    text: &str,
) -> Result<(PipeId, EntryKey), Report> {
    run_time((program, attachments), pipe, text, |reader, node| reader.read_key(node))
        .map(|(pipe, key, _)| (pipe, key))
}

fn run_time<T>(
    (program, attachments): (&Program, &Attachments),
    name: &str,
    text: &str,
    read: impl FnOnce(&mut EntryReader, &Node) -> Option<T>,
) -> Result<(PipeId, T, Report), Report> {
    let mut report = Report::new("entry", text);
    let names = program.pipes.iter().map(|pipe| pipe.name.as_str());
    let at = position("there is no pipe", (name, Span::default()), names, &mut report);
    let Some(at) = at else { return Err(report) };
    let Some(node) = raw::parse(text, &mut report) else { return Err(report) };
    let mut counters = Counters::new(program.counters.clone(), false);
    let pipe = &program.pipes[at];
    let entry = read(
        &mut EntryReader {
            program,
            names: &mut GroupNames::new(program),
            attachments,
            pipe,
            counters: &mut counters,
            sure: true,
            run_time: true,
            report: &mut report,
        },
        &node,
    );
    match entry {
        Some(entry) if report.errors() == 0 => Ok((PipeId(at as u16), entry, report)),
        _ => Err(report),
    }
}
