//! Entries written one on a line: in a file of their own, or as a long list in the configuration. They are
//! read a line at a time and kept only as entries, because the tree of a million lines would take a gigabyte.
//!
//! A line is an entry as `weir entry add` takes it, `{ match: { ... }, ... }`, with or without the dash of a
//! list. Empty lines and comments are skipped.

use crate::diagnostic::{Report, Span};
use crate::flow;
use crate::raw::{self, Node};
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Errors in a list after which the rest of it is not read; they are usually one mistake repeated.
const ERRORS_MAX: usize = 100;

/// Lines of a text, with an entry each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lines {
    text: Arc<String>,
    range: Range<usize>,
    /// The place of the first character.
    at: Span,
}

impl Lines {
    /// Takes lines of a text: the bytes in `range`, of which the first stands at the place `at`.
    #[must_use]
    pub fn of(text: Arc<String>, range: Range<usize>, at: Span) -> Lines {
        Lines { text, range, at }
    }

    /// Takes all lines of a text that was read from `file`, and makes it known to the report.
    #[must_use]
    pub fn of_file(file: &str, text: String, report: &mut Report) -> Lines {
        let text = Arc::new(text);
        let at = Span { line: 1, column: 1, length: 1, file: report.add_file(file, text.clone()) };
        Lines { range: 0..text.len(), text, at }
    }

    /// Reads the file at `path`, relative to the folder of the report's own file. Errors are reported at
    /// `span`, or in the file.
    pub fn open(path: &str, span: Span, report: &mut Report) -> Option<Lines> {
        let folder = Path::new(report.file()).parent().unwrap_or(Path::new(""));
        let whole = folder.join(path);
        let bytes = match read(&whole) {
            Ok(bytes) => bytes,
            Err(why) => {
                report.error(span, format!("{} cannot be read: {why}", whole.display()));
                return None;
            }
        };
        let name = whole.display().to_string();
        match String::from_utf8(bytes) {
            Ok(text) => Some(Lines::of_file(&name, text, report)),
            Err(error) => {
                report.add_not_utf8(&name, error.as_bytes(), error.utf8_error().valid_up_to());
                None
            }
        }
    }

    /// Reads one line after the other. Lines that are not YAML are reported and left out, and after too many
    /// errors the rest.
    pub fn each(&self, report: &mut Report, take: impl FnMut(&Node, &mut Report)) {
        self.each_unless(|_, _| false, report, take);
    }

    /// The same, without the lines that `plain` takes: it gets the line, the byte at which its entry begins,
    /// and the place of its first character.
    pub fn each_unless(
        &self,
        mut plain: impl FnMut((&str, usize, Span), &mut Report) -> bool,
        report: &mut Report,
        mut take: impl FnMut(&Node, &mut Report),
    ) {
        let enough = report.errors() + ERRORS_MAX;
        let mut at = self.at;
        for line in self.text[self.range.clone()].lines() {
            if let Some(from) = entry_in(line)
                && !plain((line, from, at), report)
                && let Some(node) = node(line, from, at, report)
            {
                take(&node, report);
            }
            if report.errors() >= enough {
                report.error(at, "there are too many errors: the rest of these entries was not read");
                return;
            }
            at.line += 1;
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe or a device might never end.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    fs::read(path)
}

/// Returns the byte at which the entry of a line starts, behind a dash; `None` if the line has none.
fn entry_in(line: &str) -> Option<usize> {
    let text = line.trim_start_matches(' ');
    if text.is_empty() || text.starts_with('#') {
        return None;
    }
    let text = text.strip_prefix("- ").unwrap_or(text).trim_start_matches(' ');
    Some(line.len() - text.len())
}

fn node(line: &str, from: usize, at: Span, report: &mut Report) -> Option<Node> {
    if let Some(node) = flow::mapping(line, from, at) {
        return Some(node);
    }
    // Spaces and a dash are before it: a byte each.
    raw::parse_part(&line[from..], Span { column: at.column + from as u32, ..at }, report)
}

/// A run of lines of the configuration that are left out of what the YAML parser reads.
#[derive(Debug)]
pub struct Run {
    /// The first line, counted from 1; a mark stands there instead.
    pub line: u32,
    /// The bytes from the start of the first line to the end of the last, without its line break.
    pub range: Range<usize>,
}

/// Runs shorter than this are left to the YAML parser.
const RUN_LEAST: u32 = 64;

/// What the YAML parser finds instead of a run.
pub const MARK: &str = "0";

/// Finds the long lists of entries in a configuration: behind a line `entries:`, lines of equal indentation
/// with one plain mapping each.
#[must_use]
pub fn runs(text: &str) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    // The indentation of `entries:`, as long as its list lasts, and that of the list.
    let mut list: Option<(usize, Option<usize>)> = None;
    let mut run: Option<Run> = None;
    let mut start = 0;
    for (number, whole) in (1..).zip(text.split('\n')) {
        let line = whole.strip_suffix('\r').unwrap_or(whole);
        let end = start + line.len();
        let indent = line.len() - line.trim_start_matches(' ').len();
        let rest = &line[indent..];
        let member = list.is_some_and(|(key, item)| item.map_or(indent >= key, |item| item == indent));
        if member && rest.starts_with("- ") {
            list = list.map(|(key, _)| (key, Some(indent)));
        }
        if member && rest.starts_with("- {") && flow::is_mapping(line, indent + 2) {
            run.get_or_insert(Run { line: number, range: start..end }).range.end = end;
        } else {
            keep(run.take(), number, &mut runs);
            let blank = rest.is_empty() || rest.starts_with('#');
            // Whatever is written deeper belongs to the list.
            let inside = list.is_some_and(|(_, item)| item.is_some_and(|item| indent > item));
            if !(blank || inside || member && rest.starts_with("- ")) {
                let key = rest.strip_prefix("entries:").map(|behind| behind.trim_start_matches(' '));
                let opens = key.is_some_and(|behind| behind.is_empty() || behind.starts_with('#'));
                list = opens.then_some((indent, None));
            }
        }
        start += whole.len() + 1;
    }
    let lines = text.split('\n').count() as u32;
    keep(run, lines + 1, &mut runs);
    runs
}

/// Keeps a run that ends before the line `next` if it is long enough.
fn keep(run: Option<Run>, next: u32, runs: &mut Vec<Run>) {
    runs.extend(run.filter(|run| next - run.line >= RUN_LEAST));
}

/// Returns the text with a mark instead of each run, and everything else in its place.
#[must_use]
pub fn without(text: &str, runs: &[Run]) -> String {
    let mut short = String::new();
    let mut end = 0;
    for run in runs {
        let lines = &text[run.range.clone()];
        let indent = lines.len() - lines.trim_start_matches(' ').len();
        short.push_str(&text[end..run.range.start + indent]);
        short.push_str("- ");
        short.push_str(MARK);
        short.extend(lines.bytes().filter(|byte| *byte == b'\n').map(|_| '\n'));
        end = run.range.end;
    }
    short.push_str(&text[end..]);
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::Kind;

    const HEAD: &str = "pipes:\n  p:\n    entries:   # many\n";

    fn entry(at: u32) -> String {
        format!("      - {{ match: {{ udp.dport: {at} }}, set: {{ vid: {} }} }}", at % 7)
    }

    fn text(count: u32) -> String {
        let entries: Vec<String> = (0..count).map(entry).collect();
        format!("{HEAD}{}\n  q: {{ type: basic }}\n", entries.join("\n"))
    }

    fn entries(document: &Node) -> &[Node] {
        let mut node = document;
        for key in ["pipes", "p", "entries"] {
            let Kind::Map(map) = &node.kind else { panic!("{node:?}") };
            node = &map.iter().find(|(name, _)| name.is(key)).unwrap().1;
        }
        let Kind::List(list) = &node.kind else { panic!("{node:?}") };
        list
    }

    /// The nodes of a list, with those of its lines.
    fn all(document: &Node, report: &mut Report) -> Vec<Node> {
        let mut nodes = Vec::new();
        for node in entries(document) {
            match &node.kind {
                Kind::Lines(lines) => lines.each(report, |node, _| nodes.push(node.clone())),
                _ => nodes.push(node.clone()),
            }
        }
        nodes
    }

    fn same_as_yaml(text: &str) -> Vec<Node> {
        let mut report = Report::new("t", text);
        let slow = raw::parse(text, &mut report).unwrap();
        let fast = raw::document(&mut report).unwrap();
        assert_eq!(all(&fast, &mut report), entries(&slow), "{report}");
        let Kind::Map(map) = &fast.kind else { panic!() };
        let Kind::Map(slow) = &slow.kind else { panic!() };
        assert_eq!(map.len(), slow.len());
        entries(&fast).to_vec()
    }

    #[test]
    fn a_long_list_is_read_as_yaml_is_and_in_lines() {
        assert_eq!(same_as_yaml(&text(200)).len(), 1);
        assert_eq!(same_as_yaml(&text(63)).len(), 63);
        let comment = text(200).replace(&entry(100), "\n  # half\n      - { match: { udp.dport: 100 } }");
        assert_eq!(same_as_yaml(&comment).len(), 2);
        let over_two_lines = text(200).replace(&entry(100), "      - { a: b,\n        c: d }");
        assert_eq!(same_as_yaml(&over_two_lines).len(), 3);
        let block = text(200).replace(&entry(100), "      - match:\n          udp.dport: 3");
        assert_eq!(same_as_yaml(&block).len(), 3);
        let anchor = text(200).replace(&entry(100), "      - &a { b: c }");
        assert_eq!(same_as_yaml(&anchor).len(), 3);
        assert_eq!(same_as_yaml(&text(200).replace('\n', "\r\n")).len(), 1);
        assert_eq!(same_as_yaml(text(200).trim_end_matches("\n  q: { type: basic }\n")).len(), 1);
        let flat = text(200).replace("      - {", "    - {");
        assert_eq!(same_as_yaml(&flat).len(), 1);
    }

    #[test]
    fn only_a_list_of_entries_is_read_in_lines() {
        let other = text(200).replace("entries:", "members:");
        assert!(runs(&other).is_empty());
        let deeper = text(200).replace("entries:   # many\n", "entries:\n      - a:\n");
        assert!(runs(&deeper.replace("      - {", "        - {")).is_empty());
        assert!(runs(&text(200).replace("entries:   # many", "entries: x")).is_empty());
        assert_eq!(runs(&text(200)).iter().map(|run| run.line).collect::<Vec<_>>(), [4]);
    }

    #[test]
    fn a_file_is_read_with_or_without_dashes_and_its_errors_have_places() {
        let file =
            "# back ends\n\n{ a: b }\n- { a: b }\n  -   { a: b }   # a\n{ a: 'b' }\r\n{ a: ~, b: ] }\n";
        let mut report = Report::new("main.yaml", "entries: { file: f }\n");
        let lines = Lines::of_file("f", file.to_string(), &mut report);
        let mut places = Vec::new();
        lines.each(&mut report, |node, _| places.push((node.span.line, node.span.column)));
        assert_eq!(places, [(3, 1), (4, 3), (5, 7), (6, 1)]);
        let said = report.to_string();
        assert!(said.starts_with("f:7:1: error: this is not YAML"), "{said}");
        assert!(said.contains("    7 | { a: ~, b: ] }"), "{said}");
    }

    #[test]
    fn after_too_many_errors_the_rest_is_not_read() {
        let mut report = Report::new("t", "");
        let lines = Lines::of_file("f", "{ a: ] }\n".repeat(100_000), &mut report);
        lines.each(&mut report, |_, _| panic!("no line is YAML"));
        assert_eq!(report.errors(), ERRORS_MAX + 1);
    }
}
