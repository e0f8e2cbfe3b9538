//! Errors in a configuration and their places: all errors are reported at once, each with its line and a
//! caret.

use crate::node::{NodeFile, NodeValue, Substituted};
use crate::secret::hidden;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use weir_program::Origin;
use weir_program::check::Severity;

/// The maximum number of diagnostics printed; further ones are usually one mistake repeated.
const PRINTED_MAX: usize = 100;
/// Characters of a source line shown on each side of the caret.
const AROUND: usize = 80;

/// A run of characters in the text. Lines and columns count from 1, columns in characters; line 0 means no
/// place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The number of the line, from 1; 0 means no place.
    pub line: u32,
    /// The column of the first character, from 1, in characters.
    pub column: u32,
    /// The number of characters, all on the same line.
    pub length: u32,
    /// The file: 0 is the configuration; [`Report::add_file`] adds others.
    pub file: u16,
}

/// A problem with a text: its severity, its place, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Whether the text must be refused (error) or not (warning).
    pub severity: Severity,
    /// The place in the text that the caret marks.
    pub span: Span,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
}

/// All problems with a text.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Names and texts of the files that contain places; the first is the configuration.
    files: Vec<(String, Arc<String>)>,
    diagnostics: Vec<Diagnostic>,
    errors: usize,
    origins: Vec<Span>,
    /// The node's file, until the file is read.
    pub(crate) node: Option<Box<NodeFile>>,
    /// The values of the node in the configuration.
    pub(crate) substituted: Option<Box<Substituted>>,
}

impl Report {
    /// Creates an empty report about `text`, which was read from `file`.
    #[must_use]
    pub fn new(file: &str, text: impl Into<String>) -> Report {
        Report::about(file, Arc::new(text.into()))
    }

    /// Creates an empty report about a shared text.
    #[must_use]
    pub fn about(file: &str, text: Arc<String>) -> Report {
        Report { files: vec![(file.to_string(), text)], ..Report::default() }
    }

    /// Registers another file, and returns its number for [`Span::file`].
    pub fn add_file(&mut self, file: &str, text: Arc<String>) -> u16 {
        // There cannot be more files than numbers, because each is named by a pipe.
        let number = u16::try_from(self.files.len()).unwrap_or(u16::MAX);
        self.files.push((file.to_string(), text));
        number
    }

    /// Sets the text of a file that was added before its text was known.
    pub fn set_text(&mut self, file: u16, text: Arc<String>) {
        if let Some((_, before)) = self.files.get_mut(usize::from(file)) {
            *before = text;
        }
    }

    /// Returns the name of the configuration's file.
    #[must_use]
    pub fn file(&self) -> &str {
        self.name_of(0)
    }

    /// Returns the text of the configuration.
    #[must_use]
    pub fn text(&self) -> Arc<String> {
        self.files.first().map(|(_, text)| text.clone()).unwrap_or_default()
    }

    /// Returns the name of the file with this number.
    #[must_use]
    pub fn name_of(&self, file: u16) -> &str {
        self.files.get(usize::from(file)).map_or("", |(name, _)| name)
    }

    /// Reports that the file is not valid UTF-8 after byte `good`.
    #[must_use]
    pub fn not_utf8(file: &str, bytes: &[u8], good: usize) -> Report {
        let mut report = Report::default();
        report.add_not_utf8(file, bytes, good);
        report
    }

    /// Adds a file, and reports that it is not valid UTF-8 after byte `good`.
    pub fn add_not_utf8(&mut self, file: &str, bytes: &[u8], good: usize) {
        let before = String::from_utf8_lossy(&bytes[..good]);
        let line = before.matches('\n').count() as u32 + 1;
        let column = before.chars().rev().take_while(|&one| one != '\n').count() as u32 + 1;
        let file = self.add_file(file, Arc::new(String::from_utf8_lossy(bytes).into_owned()));
        let message =
            format!("this is not UTF-8: byte {:#04x}", bytes.get(good).copied().unwrap_or_default());
        self.error_help(Span { line, column, length: 1, file }, message, "save the file as UTF-8");
    }

    /// Adds an error.
    pub fn error(&mut self, span: Span, message: impl Into<String>) {
        self.push(Severity::Error, span, message.into(), None);
    }

    /// Adds an error and what to do about it.
    pub fn error_help(&mut self, span: Span, message: impl Into<String>, help: impl Into<String>) {
        self.push(Severity::Error, span, message.into(), Some(help.into()));
    }

    /// Adds a warning.
    pub fn warning(&mut self, span: Span, message: impl Into<String>) {
        self.push(Severity::Warning, span, message.into(), None);
    }

    /// Adds a warning with advice on how to avoid it.
    pub fn warning_help(&mut self, span: Span, message: impl Into<String>, help: impl Into<String>) {
        self.push(Severity::Warning, span, message.into(), Some(help.into()));
    }

    /// Adds the warnings about another file, from which this configuration was made.
    pub fn add_warnings_of(&mut self, other: &Report) {
        if other.warnings() == 0 {
            return;
        }
        let file = self.add_file(other.file(), other.text());
        let warnings = other.diagnostics.iter().filter(|one| one.severity == Severity::Warning);
        self.diagnostics
            .extend(warnings.map(|one| Diagnostic { span: Span { file, ..one.span }, ..one.clone() }));
    }

    fn push(&mut self, severity: Severity, span: Span, message: String, help: Option<String>) {
        let message = message + &self.of_node(span);
        let diagnostic = Diagnostic { severity, span, message, help };
        if self.diagnostics.len() > PRINTED_MAX || !self.diagnostics.contains(&diagnostic) {
            self.errors += usize::from(severity == Severity::Error);
            self.diagnostics.push(diagnostic);
        }
    }

    /// Returns text about the values of the node at a place, and where they come from.
    fn of_node(&self, span: Span) -> String {
        let one = |one: &NodeValue| {
            let shown = one.shown();
            let value = shown.split_once('=').map_or("", |(_, value)| value);
            format!(
                "`${{NODE.{}}}` is `{value}`: {}:{}",
                one.name,
                self.name_of(one.span.file),
                one.span.line
            )
        };
        let values = self.substituted.as_ref().map(|done| done.at(span)).unwrap_or_default();
        match &*values {
            [] => String::new(),
            values => format!(" ({})", values.iter().map(|value| one(value)).collect::<Vec<_>>().join(", ")),
        }
    }

    /// Returns the values of the node to which the configuration refers, by name.
    pub fn node_values(&self) -> impl Iterator<Item = &NodeValue> {
        self.substituted.iter().flat_map(|done| done.values.values())
    }

    /// Creates a mark that refers to `span`.
    pub fn origin(&mut self, span: Span) -> Origin {
        self.origins.push(span);
        Origin(self.origins.len() as u32)
    }

    /// Returns the mark that [`Report::origin`] will create next.
    #[must_use]
    pub fn next_origin(&self) -> Origin {
        Origin(self.origins.len() as u32 + 1)
    }

    /// Returns the place of a mark.
    #[must_use]
    pub fn span_of(&self, origin: Origin) -> Span {
        let at = (origin.0 as usize).checked_sub(1);
        at.and_then(|at| self.origins.get(at)).copied().unwrap_or_default()
    }

    /// Returns the place of a mark as `file:line`.
    #[must_use]
    pub fn place(&self, origin: Origin) -> String {
        let span = self.span_of(origin);
        format!("{}:{}", self.name_of(span.file), span.line)
    }

    /// Returns the number of errors.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// Returns the number of warnings.
    #[must_use]
    pub fn warnings(&self) -> usize {
        self.diagnostics.len() - self.errors()
    }

    /// Returns all diagnostics, in the order of the text.
    #[must_use]
    pub fn diagnostics(&self) -> Vec<&Diagnostic> {
        let mut list: Vec<&Diagnostic> = self.diagnostics.iter().collect();
        list.sort_by_key(|one| (one.span.line == 0, one.span.file, one.span.line, one.span.column));
        list
    }

    /// Returns the diagnostics as a JSON array.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        let one = |one: &Diagnostic| {
            serde_json::json!({
                "severity": severity(one.severity), "file": self.name_of(one.span.file),
                "line": one.span.line, "column": one.span.column,
                "message": one.message, "help": one.help,
            })
        };
        self.diagnostics().into_iter().map(one).collect()
    }

    /// Returns the lines that diagnostics refer to, by file and line number. Makes one pass over each text,
    /// because texts may be long.
    fn lines(&self, all: &[&Diagnostic]) -> BTreeMap<(u16, u32), &str> {
        let wanted: BTreeSet<(u16, u32)> = all.iter().map(|one| (one.span.file, one.span.line)).collect();
        let mut lines = BTreeMap::new();
        for (file, (_, text)) in (0..).zip(&self.files) {
            let last = wanted.range((file, 0)..=(file, u32::MAX)).next_back().map_or(0, |(_, line)| *line);
            let numbered = (1..=last).zip(text.lines()).map(|(number, line)| ((file, number), line));
            lines.extend(numbered.filter(|(place, _)| wanted.contains(place)));
        }
        lines
    }

    fn draw(&self, out: &mut String, one: &Diagnostic, line: Option<&str>) {
        let file = self.name_of(one.span.file);
        let severity = severity(one.severity);
        let help = one.help.as_deref().unwrap_or_default();
        let Some(line) = line else {
            let _ = writeln!(
                out,
                "{file}: {severity}: {}{}{help}",
                one.message,
                if help.is_empty() { "" } else { "; " }
            );
            return;
        };
        let _ = writeln!(out, "{file}:{}:{}: {severity}: {}", one.span.line, one.span.column, one.message);
        let window = LineExcerpt::of(line, one.span);
        let _ = writeln!(out, "{:>5} | {}", one.span.line, window.text);
        let _ = writeln!(out, "      | {}{} {help}", window.indent, "^".repeat(window.carets));
        while out.ends_with([' ', '\n']) {
            out.pop();
        }
        out.push('\n');
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = self.diagnostics();
        let mut out = String::new();
        let printed = &all[..all.len().min(PRINTED_MAX)];
        let lines = self.lines(printed);
        for one in printed {
            self.draw(&mut out, one, lines.get(&(one.span.file, one.span.line)).copied());
        }
        if all.len() > PRINTED_MAX {
            let _ = writeln!(out, "... and {} more", all.len() - PRINTED_MAX);
        }
        f.write_str(&out)
    }
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

/// The part of a line that is shown.
struct LineExcerpt {
    text: String,
    indent: String,
    carets: usize,
}

impl LineExcerpt {
    fn of(line: &str, span: Span) -> LineExcerpt {
        let characters: Vec<char> = hidden(line).chars().collect();
        let at = (span.column as usize).saturating_sub(1).min(characters.len());
        let start = if characters.len() > 2 * AROUND { at.saturating_sub(AROUND) } else { 0 };
        let end = characters.len().min(start + 2 * AROUND);
        let shown = |range: &[char]| {
            range.iter().map(|&one| if one.is_control() { ' ' } else { one }).collect::<String>()
        };
        let carets = (span.length as usize).clamp(1, (end.saturating_sub(at)).max(1));
        LineExcerpt { text: shown(&characters[start..end]), indent: " ".repeat(at - start), carets }
    }
}

/// Returns the name in `known` that is closest to what was typed, if it is close enough to be plausible.
#[must_use]
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (typed.chars().count() / 3).max(1);
    let near = known
        .into_iter()
        .map(|name| (distance(typed, name), name))
        .filter(|(distance, _)| *distance <= allowed);
    near.min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

/// Returns `did you mean ...`, or a list of the known names.
#[must_use]
pub fn suggestion<'a>(typed: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    if let Some(name) = nearest(typed, known.clone()) {
        return format!("did you mean `{name}`?");
    }
    let names: Vec<&str> = known.into_iter().collect();
    match names.len() {
        0 => "there is none".to_string(),
        1..=24 => format!("there is: {}", names.join(", ")),
        _ => "see docs/reference/configuration.md".to_string(),
    }
}

/// Damerau-Levenshtein distance without repeated edits: two swapped letters are one mistake.
fn distance(one: &str, other: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        rows[i][0] = i;
        for j in 1..=b.len() {
            let substituted = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = substituted.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_suggested() {
        let fields = ["ipv4.src", "ipv4.dst", "ipv6.src"];
        assert_eq!(nearest("ipv4.scr", fields), Some("ipv4.src"));
        assert_eq!(nearest("ip4.dst", fields), Some("ipv4.dst"));
        assert_eq!(nearest("bananas", fields), None);
        assert_eq!(suggestion("x", ["alpha", "beta"]), "there is: alpha, beta");
    }

    #[test]
    fn a_caret_stands_under_the_culprit() {
        let mut report = Report::new("a.yaml", "workers: 1\nmatch: { ipv4.scr: 1 }\n");
        let span = Span { line: 2, column: 10, length: 8, file: 0 };
        report.error_help(span, "no field `ipv4.scr`", "did you mean `ipv4.src`?");
        let expected = "a.yaml:2:10: error: no field `ipv4.scr`\n    2 | match: { ipv4.scr: 1 }\n      \
            |          ^^^^^^^^ did you mean `ipv4.src`?\n";
        assert_eq!(report.to_string(), expected);
    }

    #[test]
    fn a_secret_in_the_line_of_an_error_is_not_printed() {
        let key = "0123456789abcdef0123456789abcdef";
        let mut report = Report::new("a.yaml", format!("path: {{ key: {key}, prot: 1 }}\n"));
        report.error(Span { line: 1, column: 46, length: 4, file: 0 }, "no key `prot`");
        let said = report.to_string();
        assert!(!said.contains(&key[..8]) && said.contains("prot: 1"), "{said}");
    }

    #[test]
    fn long_lines_are_cut_and_places_outside_the_text_do_no_harm() {
        let mut report = Report::new("a", "x".repeat(1000));
        report.error(Span { line: 1, column: 500, length: 9000, file: 0 }, "long");
        report.error(Span { line: 1, column: 9000, length: 1, file: 0 }, "beyond");
        report.error(Span { line: 9, column: 1, length: 1, file: 0 }, "no such line");
        assert!(report.to_string().lines().all(|line| line.len() < 200));
    }
}
