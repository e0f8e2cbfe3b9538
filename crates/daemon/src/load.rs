//! Bulk changes of entries: parsed on another thread, while the main thread continues with everything else.

use crate::config::{Plan, RunTime};
use std::sync::{Arc, PoisonError, RwLock};
use weir_program::change::{Change, ChangeError, Changes};

/// The maximum size of a text of changes in bytes.
const TEXT_MAX: u64 = 256 << 20;

/// The maximum length of a line in bytes: an incomplete line is kept until its end has arrived.
const LINE_MAX: usize = 1 << 20;

/// The maximum number of changes in a text: all are in memory before the first one is made.
const CHANGES_MAX: usize = 1 << 20;

/// The maximum number of entries in a page, which a worker collects between two breaths.
pub const PAGE_MAX: u32 = 256;

/// The names that a text of changes may use: those of the running program, without its entries.
pub struct Vocabulary {
    generation: u64,
    plan: Arc<Plan>,
}

/// The current vocabulary, for the threads that parse texts.
#[derive(Clone, Default)]
pub struct Published(Arc<RwLock<Option<Arc<Vocabulary>>>>);

impl Published {
    /// Replaces the vocabulary.
    pub fn set(&self, generation: u64, plan: &Arc<Plan>) {
        let new = Arc::new(Vocabulary { generation, plan: plan.clone() });
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(new);
    }

    /// Returns the vocabulary, if the daemon has started.
    pub fn get(&self) -> Option<Arc<Vocabulary>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Changes that were parsed, and the line of each.
#[derive(Clone)]
pub struct Read {
    pub generation: u64,
    pub changes: Changes,
    pub lines: Arc<Vec<u32>>,
}

/// Why a text of changes is refused.
#[derive(Debug, PartialEq, Eq)]
pub enum TextRefusal {
    /// The text exceeds a limit, which the sentence names.
    TooLarge(String),
    /// The text cannot be read, or its changes cannot be made; the sentence names the line.
    Wrong(String),
}

/// Parses changes, a piece of the text at a time. Text that has arrived is kept in memory only in the form of
/// changes.
pub struct ChangeParser<'a> {
    vocabulary: &'a Vocabulary,
    reader: RunTime<'a>,
    changes: Vec<Change>,
    lines: Vec<u32>,
    line: u32,
    /// Bytes that have arrived.
    bytes: u64,
    /// The start of an incomplete line.
    rest: Vec<u8>,
}

impl Vocabulary {
    /// Begins to parse a text.
    pub fn reader(&self) -> ChangeParser<'_> {
        let reader = RunTime::new(&self.plan.program, &self.plan.attachments);
        ChangeParser {
            vocabulary: self,
            reader,
            changes: Vec::new(),
            lines: Vec::new(),
            line: 0,
            bytes: 0,
            rest: Vec::new(),
        }
    }
}

impl ChangeParser<'_> {
    /// Parses a piece.
    ///
    /// # Errors
    /// The error names the line and the problem.
    pub fn piece(&mut self, piece: &[u8]) -> Result<(), TextRefusal> {
        self.bytes += piece.len() as u64;
        admits(self.bytes)?;
        let mut lines = piece.split(|&byte| byte == b'\n');
        let last = lines.next_back().unwrap_or_default();
        for line in lines {
            if self.rest.is_empty() {
                self.read_line(line)?;
            } else {
                self.keep(line)?;
                let whole = std::mem::take(&mut self.rest);
                self.read_line(&whole)?;
            }
        }
        self.keep(last)
    }

    /// Appends to the incomplete line.
    fn keep(&mut self, part: &[u8]) -> Result<(), TextRefusal> {
        if self.rest.len() + part.len() > LINE_MAX {
            let (line, most) = (self.line + 1, LINE_MAX >> 20);
            let why =
                format!("line {line}: it has more than {most} MiB, the limit: write one change per line");
            return Err(TextRefusal::TooLarge(why));
        }
        self.rest.extend(part);
        Ok(())
    }

    fn read_line(&mut self, line: &[u8]) -> Result<(), TextRefusal> {
        self.line += 1;
        let number = self.line;
        let wrong = |why: &str| TextRefusal::Wrong(format!("line {number}: {why}"));
        let text = std::str::from_utf8(line).map_err(|_| wrong("this is not UTF-8"))?;
        let Some(change) = self.reader.line(text) else { return Ok(()) };
        if self.lines.len() == CHANGES_MAX {
            return Err(too_large(&format!("line {number}: the text has more than {CHANGES_MAX} changes")));
        }
        self.changes.push(change.map_err(|report| wrong(report.to_string().trim_end()))?);
        self.lines.push(number);
        Ok(())
    }

    /// Returns all changes.
    ///
    /// # Errors
    /// The error names the line and the problem.
    pub fn end(mut self) -> Result<Read, TextRefusal> {
        let rest = std::mem::take(&mut self.rest);
        self.read_line(&rest)?;
        let lines = Arc::new(self.lines);
        let changes = Changes::new(self.changes);
        let changes = changes.map_err(|why| TextRefusal::Wrong(at_line(&why, &lines)))?;
        Ok(Read { generation: self.vocabulary.generation, changes, lines })
    }
}

/// Refuses texts of more bytes than the limit.
///
/// # Errors
/// The error names the limit.
pub fn admits(bytes: u64) -> Result<(), TextRefusal> {
    if bytes <= TEXT_MAX {
        Ok(())
    } else {
        Err(too_large(&format!("the text has more than {} MiB", TEXT_MAX >> 20)))
    }
}

/// Refuses a text as too large, and says what to do.
fn too_large(what: &str) -> TextRefusal {
    let advice = "send it in several parts, each of which takes effect completely or not at all";
    TextRefusal::TooLarge(format!("{what}, the limit: {advice}"))
}

/// Says which line was refused, and why.
pub fn at_line(why: &ChangeError, lines: &[u32]) -> String {
    match why {
        ChangeError::At { index, why } => match lines.get(*index) {
            Some(line) => format!("line {line}: {why}; nothing was changed"),
            None => why.to_string(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use weir_app::edits;

    const PROGRAM: &str = "\
ports: { p0: { mem: ~ } }
root: fast
pipes:
  fast: { type: basic, match: { udp.dport: per_entry }, forward: p0, miss: drop }
";

    fn vocabulary() -> Vocabulary {
        let source = config::ConfigSource::new("t", PROGRAM);
        let loaded = config::read(&source, &[], &config::Nics::default(), &*edits::none(&[]));
        let plan = loaded.plan.unwrap_or_else(|| panic!("{}", loaded.report));
        Vocabulary { generation: 1, plan: Arc::new(plan) }
    }

    fn why(result: Result<(), TextRefusal>) -> String {
        match result {
            Err(TextRefusal::TooLarge(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_text_in_pieces_is_read_line_by_line() {
        let vocabulary = vocabulary();
        let mut parser = vocabulary.reader();
        let text = "add fast { match: { udp.dport: 53 } }\n\nremove fast { match: { udp.dport: 54 } }";
        text.as_bytes().chunks(7).for_each(|piece| parser.piece(piece).unwrap());
        assert_eq!(*parser.end().map(|read| read.lines).ok().unwrap(), [1, 3]);
    }

    #[test]
    fn what_a_text_holds_in_memory_is_limited() {
        let vocabulary = vocabulary();
        let line = b"add fast { match: { udp.dport: 53 } }\n";

        let mut parser = vocabulary.reader();
        parser.bytes = TEXT_MAX - line.len() as u64;
        parser.piece(line).unwrap();
        let said = why(parser.piece(b"#"));
        assert!(said.starts_with("the text has more than 256 MiB, the limit: send it in several"), "{said}");

        let mut parser = vocabulary.reader();
        parser.lines = vec![0; CHANGES_MAX - 1];
        parser.piece(line).unwrap();
        parser.piece(b"# This is no change.\n").unwrap();
        let said = why(parser.piece(line));
        assert!(said.starts_with("line 3: the text has more than 1048576 changes, the limit"), "{said}");

        let mut parser = vocabulary.reader();
        parser.piece(line).unwrap();
        parser.piece(&vec![b'#'; LINE_MAX]).unwrap();
        let said = why(parser.piece(b"#"));
        assert_eq!(said, "line 2: it has more than 1 MiB, the limit: write one change per line");
    }
}
