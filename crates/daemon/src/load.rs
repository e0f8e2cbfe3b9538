//! Bulk changes of entries: parsed on another thread, while the main thread continues with everything else.

use crate::config::{Plan, RunTime};
use std::sync::{Arc, PoisonError, RwLock};
use weir_program::change::{Change, ChangeError, Changes};

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

/// Parses changes, a piece of the text at a time.
pub struct ChangeParser<'a> {
    vocabulary: &'a Vocabulary,
    reader: RunTime<'a>,
    changes: Vec<Change>,
    lines: Vec<u32>,
    line: u32,
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
            rest: Vec::new(),
        }
    }
}

impl ChangeParser<'_> {
    /// Parses a piece.
    ///
    /// # Errors
    /// The error names the line and the problem.
    pub fn piece(&mut self, piece: &[u8]) -> Result<(), String> {
        let mut lines = piece.split(|&byte| byte == b'\n');
        let last = lines.next_back().unwrap_or_default();
        for line in lines {
            if self.rest.is_empty() {
                self.read_line(line)?;
            } else {
                self.rest.extend(line);
                let whole = std::mem::take(&mut self.rest);
                self.read_line(&whole)?;
            }
        }
        self.rest.extend(last);
        Ok(())
    }

    fn read_line(&mut self, line: &[u8]) -> Result<(), String> {
        self.line += 1;
        let number = self.line;
        let text = std::str::from_utf8(line).map_err(|_| format!("line {number}: this is not UTF-8"))?;
        let Some(change) = self.reader.line(text) else { return Ok(()) };
        self.changes
            .push(change.map_err(|report| format!("line {number}: {}", report.to_string().trim_end()))?);
        self.lines.push(number);
        Ok(())
    }

    /// Returns all changes.
    ///
    /// # Errors
    /// The error names the line and the problem.
    pub fn end(mut self) -> Result<Read, String> {
        let rest = std::mem::take(&mut self.rest);
        self.read_line(&rest)?;
        let lines = Arc::new(self.lines);
        let changes = Changes::new(self.changes).map_err(|why| at_line(&why, &lines))?;
        Ok(Read { generation: self.vocabulary.generation, changes, lines })
    }
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
