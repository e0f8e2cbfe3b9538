//! Entries written one per line, in a file of their own or as a long list in the configuration. They are read
//! a line at a time and kept only as entries, because the tree of a million lines would take a gigabyte.
//!
//! A line is an entry in the form that `weir entry add` takes, `{ match: { ... }, ... }`, with or without the
//! dash of a list. Empty lines and comments are skipped.

use crate::diagnostic::{Report, Span};
use crate::raw::{self, Kind, Node};
use crate::{flow, infile};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The number of errors after which the rest of a list is not read; further errors are usually one mistake
/// repeated.
const ERRORS_MAX: usize = 100;

/// Lines of a text, each with an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lines {
    text: Arc<String>,
    range: Range<usize>,
    /// The place of the first character.
    at: Span,
}

impl Lines {
    /// Selects lines of a text: the bytes in `range`, whose first byte is at the place `at`.
    #[must_use]
    pub fn of(text: Arc<String>, range: Range<usize>, at: Span) -> Lines {
        Lines { text, range, at }
    }

    /// Selects all lines of a text that was read from `file`, and registers it with the report.
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
        let bytes = match infile::read(&whole) {
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

    /// Reads one line after the other. Lines that are not YAML are reported and skipped; after too many
    /// errors, all remaining lines are skipped.
    pub fn each(&self, report: &mut Report, take: impl FnMut(&Node, &mut Report)) {
        self.each_unless(|_, _| false, report, take);
    }

    /// Does the same as [`Lines::each`], except for the lines that `plain` handles. `plain` receives the
    /// line, the byte at which its entry begins, and the position of its first character.
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
                report.error(at, "too many errors: the rest of these entries was not checked");
                return;
            }
            at.line += 1;
        }
    }
}

/// Returns the byte at which the entry of a line starts, after a dash; `None` if the line has none.
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
    // Only spaces and a dash precede it, one byte each.
    raw::parse_part(&line[from..], Span { column: at.column + from as u32, ..at }, report)
}

/// A run of configuration lines that are hidden from the YAML parser.
#[derive(Debug)]
pub struct Run {
    /// The first line, counted from 1; a placeholder replaces it.
    pub line: u32,
    /// The bytes from the start of the first line to the end of the last, without its line break.
    pub range: Range<usize>,
    /// What the run contains.
    pub of: Of,
}

/// What a run contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Elements of a list of entries.
    Entries,
    /// Groups: `name: { ... }`.
    Groups,
}

/// The minimum number of lines in a run; shorter runs are left to the YAML parser.
const RUN_LEAST: u32 = 64;

/// The placeholder that the YAML parser finds instead of a run.
pub const MARK: &str = "0";

/// Finds the runs in a configuration, in order. Lines that are not `plain` are left to the YAML parser.
#[must_use]
pub fn runs(text: &str, plain: impl Fn(&str) -> bool) -> Vec<Run> {
    let mut all = entry_runs(text, &plain);
    all.extend(group_runs(text, &plain));
    all.sort_by_key(|run| run.line);
    all
}

/// Finds long lists of groups: after an unindented line `groups:`, lines of equal indentation with a name and
/// one plain mapping each.
fn group_runs(text: &str, plain: &impl Fn(&str) -> bool) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    // Whether the lines are groups, and their indentation.
    let (mut inside, mut indent_of) = (false, 0);
    let mut run: Option<Run> = None;
    let mut start = 0;
    let mut next = 1;
    for (number, whole) in (1..).zip(text.split('\n')) {
        let line = whole.strip_suffix('\r').unwrap_or(whole);
        let end = start + line.len();
        let rest = line.trim_start_matches(' ');
        let indent = line.len() - rest.len();
        let blank = rest.is_empty() || rest.starts_with('#');
        if inside && indent_of == 0 && !blank {
            indent_of = indent;
        }
        let is_group = inside && indent > 0 && indent == indent_of;
        if is_group && named_at(line).is_some_and(|from| flow::is_mapping(line, from)) && plain(line) {
            let of = Of::Groups;
            run.get_or_insert(Run { line: number, range: start..end, of }).range.end = end;
        } else {
            keep(run.take(), number, &mut runs);
            if !blank && indent == 0 {
                let behind = rest.strip_prefix("groups:").map(|behind| behind.trim_start_matches(' '));
                inside = behind.is_some_and(|behind| behind.is_empty() || behind.starts_with('#'));
                indent_of = 0;
            }
        }
        start += whole.len() + 1;
        next = number + 1;
    }
    keep(run, next, &mut runs);
    runs
}

/// Returns the byte at which the mapping after the name in a line begins, if the name is a plain word.
fn named_at(line: &str) -> Option<usize> {
    let rest = line.trim_start_matches(' ');
    let (name, behind) = rest.split_once(": ")?;
    let mut bytes = name.bytes();
    let starts = bytes.next().is_some_and(|first| first.is_ascii_alphanumeric() || first == b'_');
    let is_word = starts && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
    let plain = is_word && name.len() < 1000 && !name.eq_ignore_ascii_case("null");
    (plain && behind.starts_with('{')).then(|| line.len() - behind.len())
}

/// Reads the names and the contents of a run of groups. `at` is the place of its first character.
#[must_use]
pub fn groups(lines: &str, at: Span) -> Vec<(Node, Node)> {
    let one = |(line, number): (&str, u32)| {
        let at = Span { line: number, ..at };
        let from = named_at(line)?;
        let indent = line.len() - line.trim_start_matches(' ').len();
        let name = line[indent..from - 2].to_string();
        let span = Span { column: at.column + indent as u32, length: name.len() as u32, ..at };
        Some((Node { span, kind: Kind::Scalar(name) }, flow::mapping(line, from, at)?))
    };
    lines.lines().zip(at.line..).filter_map(one).collect()
}

/// Finds long lists of entries in a configuration: after a line `entries:`, lines of equal indentation with
/// one plain mapping each.
fn entry_runs(text: &str, plain: &impl Fn(&str) -> bool) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    // The indentation of `entries:` while inside its list, and that of the list.
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
        if member && rest.starts_with("- {") && flow::is_mapping(line, indent + 2) && plain(line) {
            let of = Of::Entries;
            run.get_or_insert(Run { line: number, range: start..end, of }).range.end = end;
        } else {
            keep(run.take(), number, &mut runs);
            let blank = rest.is_empty() || rest.starts_with('#');
            // All deeper lines belong to the list.
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

/// Returns the text with a placeholder for each run, and everything else in place.
#[must_use]
pub fn without(text: &str, runs: &[Run]) -> String {
    let mut short = String::new();
    let mut end = 0;
    for run in runs {
        let lines = &text[run.range.clone()];
        let indent = lines.len() - lines.trim_start_matches(' ').len();
        short.push_str(&text[end..run.range.start + indent]);
        let [before, behind] = match run.of {
            Of::Entries => ["- ", ""],
            Of::Groups => ["", ": 0"],
        };
        short.extend([before, MARK, behind]);
        short.extend(lines.bytes().filter(|byte| *byte == b'\n').map(|_| '\n'));
        end = run.range.end;
    }
    short.push_str(&text[end..]);
    short
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// The nodes of a list, including those of its lines.
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
    fn a_long_list_of_groups_is_read_as_yaml_is() {
        let group =
            |at: u32| format!("  g{at}: {{ number: {at}, targets: {{ a: p0, b: {{ weight: {at} }} }} }}");
        let lines = |range: Range<u32>| range.map(group).collect::<Vec<_>>().join("\n");
        let end = "\npipes:\n  q: { type: basic }\n";
        let whole = format!("groups:   # many\n{}{end}", lines(0..200));
        let third = group(3);
        let cases = [
            (whole.clone(), 1),
            (whole.replace('\n', "\r\n"), 1),
            (whole.trim_end_matches(end).to_string(), 1),
            (format!("a: 1\n{whole}"), 1),
            (whole.replace(&group(100), &format!("\n  # half\n{}", group(100))), 2),
            (whole.replace(&group(100), "  half:\n    targets: { a: p0 }"), 2),
            (whole.replace(&third, "  g3: { targets:\n    { a: p0 } }"), 1),
            (whole.replace(&third, "  'g3': { targets: {} }"), 1),
            (whole.replace(&third, "  g3: &a { targets: {} }"), 1),
            (whole.replace(&third, "  null: { targets: {} }"), 1),
            (whole.replace(&third, &group(4)), 1),
            (whole.replace("groups:", "meters:"), 0),
            (whole.replace("groups:   # many", "a:\n groups:"), 0),
            (format!("groups:\n{}\n", lines(0..63)), 0),
        ];
        for (text, expected) in cases {
            assert_eq!(runs(&text, |_| true).len(), expected, "{text}");
            let (mut report, mut slow) = (Report::new("t", &*text), Report::new("t", &*text));
            assert_eq!(raw::document(&mut report), raw::parse(&text, &mut slow), "{report}{slow}");
            assert_eq!((report.errors(), slow.errors()), (0, 0), "{text}");
        }
    }

    #[test]
    fn only_a_list_of_entries_is_read_in_lines() {
        let other = text(200).replace("entries:", "members:");
        assert!(runs(&other, |_| true).is_empty());
        let deeper = text(200).replace("entries:   # many\n", "entries:\n      - a:\n");
        assert!(runs(&deeper.replace("      - {", "        - {"), |_| true).is_empty());
        assert!(runs(&text(200).replace("entries:   # many", "entries: x"), |_| true).is_empty());
        assert_eq!(runs(&text(200), |_| true).iter().map(|run| run.line).collect::<Vec<_>>(), [4]);
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
