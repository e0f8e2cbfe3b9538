//! Changes of entries at run time, over the control socket: entries in the syntax of a pipe's `entries`, one
//! at a time or one per line.

use crate::attachment::Attachments;
use crate::diagnostic::{Report, Span};
use crate::entry::{Counters, EntryReader};
use crate::flow;
use crate::group_names::GroupNames;
use crate::plain_entry::PlainEntries;
use crate::raw::{self, Node};
use crate::section::position;
use weir_program::change::{Change, EntryKey};
use weir_program::{Entry, PipeId, Program};

/// The beginning of a text.
const START: Span = Span { line: 1, column: 1, length: 1, file: 0 };

/// Reads entries of a running program. It can be reused for many entries.
pub struct RunTime<'a> {
    program: &'a Program,
    attachments: &'a Attachments,
    counters: Counters,
    names: GroupNames<'a>,
    /// The pipe of the previous line, and the reader for its plainest entries: the next line is mostly for
    /// the same pipe.
    last: Option<(PipeId, Option<PlainEntries<'a>>)>,
    only_trees: bool,
}

impl<'a> RunTime<'a> {
    /// Reads entries of this program.
    #[must_use]
    pub fn new(program: &'a Program, attachments: &'a Attachments) -> RunTime<'a> {
        let (counters, names) = (Counters::new(program.counters.clone(), false), GroupNames::new(program));
        RunTime { program, attachments, counters, names, last: None, only_trees: false }
    }

    /// Reads every entry through its tree, as [`RunTime::new`] does with entries that are not plain: the slow
    /// and obvious way, which tests compare with the fast one.
    #[must_use]
    pub fn by_trees(program: &'a Program, attachments: &'a Attachments) -> RunTime<'a> {
        RunTime { only_trees: true, ..RunTime::new(program, attachments) }
    }

    /// Reads a change of an entry: `verb` is `add`, `update` or `remove`, and `text` is the entry or, to
    /// remove it, what identifies it.
    ///
    /// # Errors
    /// The error has everything that is wrong with the text.
    pub fn change(&mut self, verb: &str, pipe: &str, text: &str) -> Result<Change, Report> {
        match verb {
            "add" => self.entry(pipe, text).map(|(pipe, entry)| Change::Add { pipe, entry }),
            "update" => self.entry(pipe, text).map(|(pipe, entry)| Change::Update { pipe, entry }),
            "remove" => self.key(pipe, text).map(|(pipe, key)| Change::Remove { pipe, key }),
            other => {
                let mut report = Report::new("entry", text);
                let message = format!("unknown change `{other}`: use `add`, `update` or `remove`");
                report.error(Span::default(), message);
                Err(report)
            }
        }
    }

    /// Reads a line `VERB PIPE ENTRY`; `None` if the line is empty or a comment.
    ///
    /// # Errors
    /// The error has everything that is wrong with the text.
    pub fn line(&mut self, line: &str) -> Option<Result<Change, Report>> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let mut words = line.splitn(3, ' ');
        let [verb, pipe, entry] = [(); 3].map(|()| words.next().unwrap_or_default());
        if !["add", "update", "remove"].contains(&verb) || entry.is_empty() {
            let mut report = Report::new("entry", line);
            let message =
                "this is not a change: write `add PIPE ENTRY`, `update PIPE ENTRY` or `remove PIPE ENTRY`";
            report.error(Span { length: verb.len().max(1) as u32, ..START }, message);
            return Some(Err(report));
        }
        Some(self.change(verb, pipe, entry.trim_start()))
    }

    /// Reads an entry and checks that it fits its pipe. Whether the graph of pipes admits it is checked by
    /// `weir_program::check::Shape`.
    fn entry(&mut self, pipe: &str, text: &str) -> Result<(PipeId, Entry), Report> {
        let program = self.program;
        if let Some((id, plain, names)) = self.plain(pipe)
            && let Some((entry, _)) = plain.entry(text, 0, names)
            && weir_program::check::check_entry(program, id, &entry).is_empty()
        {
            return Ok((id, Entry { run_time: true, ..entry }));
        }
        self.entry_by_tree(pipe, text)
    }

    /// Reads any entry through its tree; reports what is wrong with the entry.
    fn entry_by_tree(&mut self, pipe: &str, text: &str) -> Result<(PipeId, Entry), Report> {
        let program = self.program;
        let (pipe, entry, mut report) = self.read(pipe, text, |reader, node| {
            let entry = reader.read(node)?;
            Some(Entry { run_time: true, ..entry })
        })?;
        for finding in weir_program::check::check_entry(program, pipe, &entry) {
            report.error(report.span_of(entry.origin), finding.to_string());
        }
        if report.errors() > 0 {
            return Err(report);
        }
        Ok((pipe, Entry { origin: Default::default(), ..entry }))
    }

    /// Reads what identifies an entry in its pipe: `{ match: { ... } }`, for ACL with its `priority`.
    fn key(&mut self, pipe: &str, text: &str) -> Result<(PipeId, EntryKey), Report> {
        if let Some((id, plain, _)) = self.plain(pipe)
            && let Some(key) = plain.key(text, 0)
        {
            return Ok((id, key));
        }
        self.key_by_tree(pipe, text)
    }

    fn key_by_tree(&mut self, pipe: &str, text: &str) -> Result<(PipeId, EntryKey), Report> {
        self.read(pipe, text, |reader, node| reader.read_key(node)).map(|(pipe, key, _)| (pipe, key))
    }

    /// Returns the reader for the plainest entries of a pipe, if it has any.
    fn plain(&mut self, name: &str) -> Option<(PipeId, &PlainEntries<'a>, &mut GroupNames<'a>)> {
        let program = self.program;
        if self.only_trees {
            return None;
        }
        if self.last.as_ref().is_none_or(|(id, _)| program.pipes[id.index()].name != name) {
            let at = program.pipes.iter().position(|pipe| pipe.name == name)?;
            self.last = Some((PipeId(at as u16), PlainEntries::of(program, &program.pipes[at])));
        }
        let (id, plain) = self.last.as_ref()?;
        Some((*id, plain.as_ref()?, &mut self.names))
    }

    fn read<T>(
        &mut self,
        name: &str,
        text: &str,
        read: impl FnOnce(&mut EntryReader, &Node) -> Option<T>,
    ) -> Result<(PipeId, T, Report), Report> {
        let RunTime { program, attachments, counters, names: group_names, .. } = self;
        let (program, attachments) = (*program, *attachments);
        let mut report = Report::new("entry", text);
        let names = || program.pipes.iter().map(|pipe| pipe.name.as_str());
        let at = names().position(|known| known == name);
        let at = at.or_else(|| position("there is no pipe", (name, Span::default()), names(), &mut report));
        let Some(at) = at else { return Err(report) };
        let node = flow::mapping(text, 0, START).or_else(|| raw::parse(text, &mut report));
        let Some(node) = node else { return Err(report) };
        let pipe = &program.pipes[at];
        let entry = read(
            &mut EntryReader {
                program,
                names: group_names,
                attachments,
                pipe,
                counters,
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
}

/// Reads a single entry, like [`RunTime`].
///
/// # Errors
/// The error has everything that is wrong with the text.
pub fn entry(
    program: &Program,
    attachments: &Attachments,
    pipe: &str,
    text: &str,
) -> Result<(PipeId, Entry), Report> {
    RunTime::new(program, attachments).entry(pipe, text)
}

/// Reads what identifies a single entry, like [`RunTime`].
///
/// # Errors
/// The error has everything that is wrong with the text.
pub fn entry_key(
    program: &Program,
    attachments: &Attachments,
    pipe: &str,
    text: &str,
) -> Result<(PipeId, EntryKey), Report> {
    RunTime::new(program, attachments).key(pipe, text)
}
