//! The YAML document exactly as the user typed it: a tree in which every node knows its place.
//!
//! It is a tree rather than structs with `deny_unknown_fields`, because serde stops at the first error, and
//! values with several shapes (`untagged`) lose their places. Reporting all errors at once, each with a
//! caret, is worth more than derived structs. [`crate::section`] checks keys and shapes.

use crate::diagnostic::{Report, Span};
use crate::lines::{self, Lines, Of, Run};
use crate::node;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{DuplicateKeyPolicy, Error, Location, MessageFormatter, Spanned, UserMessageFormatter};
use std::sync::Arc;

/// The largest depth of nesting; the format itself needs nine levels.
const DEPTH_MAX: usize = 64;
/// The largest number of nodes: about three million entries.
const NODES_MAX: usize = 1 << 26;

/// A node of the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its place.
    pub span: Span,
    /// Its contents.
    pub kind: Kind,
}

/// Contents of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No value: `key:` alone, `~`, `null`.
    Null,
    /// A word or number as spelled, without quotes.
    Scalar(String),
    /// A list.
    List(Vec<Node>),
    /// Keys and values in source order, including duplicate keys.
    Map(Vec<(Node, Node)>),
    /// Elements of a list of entries, one per line, which are read on demand.
    Lines(Lines),
}

impl Node {
    /// Names the kind of node, for error messages.
    #[must_use]
    pub fn what(&self) -> &'static str {
        match self.kind {
            Kind::Null => "nothing",
            Kind::Scalar(_) => "a single value",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a mapping",
            Kind::Lines(_) => "a list of mappings",
        }
    }

    /// Returns true if the node is this word.
    #[must_use]
    pub fn is(&self, word: &str) -> bool {
        matches!(&self.kind, Kind::Scalar(text) if text == word)
    }
}

/// Parses the text of the report, leaving long lists of entries to be read line by line, and replaces
/// references with the node's values. `None` if it is not YAML; the report then has the error.
#[must_use]
pub fn document(report: &mut Report) -> Option<Node> {
    let text = report.text();
    if !node::has_references(&text) {
        return with_lines(&text, &lines::runs(&text, |_| true), report);
    }
    let text = Arc::new(node::masked(&text, report));
    let runs = lines::runs(&text, |line| !node::has_masked(line));
    let mut document = with_lines(&text, &runs, report)?;
    node::substitute(&mut document, report);
    Some(document)
}

fn with_lines(text: &Arc<String>, runs: &[Run], report: &mut Report) -> Option<Node> {
    if runs.is_empty() {
        return parse(text, report);
    }
    let mut document = parse(&lines::without(text, runs), report)?;
    put_back(&mut document, text, runs);
    Some(document)
}

/// Puts runs of lines back in place of their placeholders.
fn put_back(node: &mut Node, text: &Arc<String>, runs: &[Run]) {
    match &mut node.kind {
        Kind::List(list) => {
            for one in list {
                let run = runs.binary_search_by_key(&one.span.line, |run| run.line);
                match run {
                    Ok(at) if one.is(lines::MARK) => {
                        let at = &runs[at];
                        let first = Span { line: at.line, column: 1, ..one.span };
                        one.kind = Kind::Lines(Lines::of(text.clone(), at.range.clone(), first));
                    }
                    _ => put_back(one, text, runs),
                }
            }
        }
        Kind::Map(map) => {
            let is_run = |key: &Node| {
                let at = runs.binary_search_by_key(&key.span.line, |run| run.line).ok()?;
                (runs[at].of == Of::Groups && key.is(lines::MARK)).then_some(&runs[at])
            };
            let mut all = Vec::with_capacity(map.len());
            for (key, mut value) in std::mem::take(map) {
                match is_run(&key) {
                    Some(run) => {
                        let first = Span { line: run.line, column: 1, ..key.span };
                        all.extend(lines::groups(&text[run.range.clone()], first));
                    }
                    None => {
                        put_back(&mut value, text, runs);
                        all.push((key, value));
                    }
                }
            }
            *map = all;
        }
        Kind::Null | Kind::Scalar(_) | Kind::Lines(_) => {}
    }
}

/// Parses YAML (which includes JSON). `None` if it is not YAML; the report then has the error.
#[must_use]
pub fn parse(text: &str, report: &mut Report) -> Option<Node> {
    parse_part(text, Span { line: 1, column: 1, ..Span::default() }, report)
}

/// Parses a part of a text that begins at the position `at`.
#[must_use]
pub fn parse_part(text: &str, at: Span, report: &mut Report) -> Option<Node> {
    let budget = serde_saphyr::budget! {
        max_depth: DEPTH_MAX, max_nodes: NODES_MAX, max_events: 2 * NODES_MAX,
            max_total_scalar_bytes: usize::MAX / 4,
    };
    let options = serde_saphyr::options! {
        budget: budget, duplicate_keys: DuplicateKeyPolicy::PassThrough, with_snippet: false,
    };
    match serde_saphyr::from_str_with_options::<Spanned<Typed>>(text, options) {
        Ok(typed) => Some(node_of(typed, text, at)),
        Err(error) => {
            report.error(error.location().map(|place| span(&place, at)).unwrap_or_default(), message(&error));
            None
        }
    }
}

/// Describes why a text could not be read, in the terms of YAML rather than of its parser.
fn message(error: &Error) -> String {
    match error.without_snippet() {
        Error::AliasError { error, .. } => message(error),
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => too_deep(),
        Error::Budget { breach: BudgetBreach::Documents { .. }, .. } | Error::MultipleDocuments { .. } => {
            "a second document begins here, but a file has only one: remove `---` or what follows".to_string()
        }
        Error::Budget {
            breach:
                BudgetBreach::Events { .. } | BudgetBreach::Nodes { .. } | BudgetBreach::ScalarBytes { .. },
            ..
        } => format!("this file is too large: the limit is {NODES_MAX} values"),
        Error::Budget { breach: BudgetBreach::SequenceUnbalanced, .. } => {
            "this is not YAML: a list or mapping ends here but never began".to_string()
        }
        Error::Budget { .. }
        | Error::AliasReplayCounterOverflow { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => {
            "anchors (`&name`) and aliases (`*name`) expand to too much here: write it out".to_string()
        }
        other => match UserMessageFormatter.format_message(other) {
            // The scanner's own limit of 255.
            deep if deep.contains("recursion limit") => too_deep(),
            message => format!("this is not YAML: {message}"),
        },
    }
}

fn too_deep() -> String {
    format!("this is nested too deeply: {DEPTH_MAX} levels at most")
}

/// The values as serde delivers them: numbers and booleans are already resolved; their spelling is taken from
/// the text.
enum Typed {
    Null,
    Spelt,
    Text(String),
    List(Vec<Spanned<Typed>>),
    Map(Vec<(Spanned<Typed>, Spanned<Typed>)>),
}

fn node_of(typed: Spanned<Typed>, text: &str, at: Span) -> Node {
    let kind = match typed.value {
        Typed::Null => Kind::Null,
        Typed::Spelt => Kind::Scalar(spelling(&typed.defined, text)),
        Typed::Text(text) => Kind::Scalar(text),
        Typed::List(list) => Kind::List(list.into_iter().map(|one| node_of(one, text, at)).collect()),
        Typed::Map(map) => {
            let both = |(key, value)| (node_of(key, text, at), node_of(value, text, at));
            Kind::Map(map.into_iter().map(both).collect())
        }
    };
    Node { span: span(&typed.referenced, at), kind }
}

/// Returns a place in a text that begins at `first`.
fn span(at: &Location, first: Span) -> Span {
    let (line, column, length) = (at.line() as u32, at.column() as u32, at.span().len().max(1) as u32);
    let before = if line == 1 { first.column - 1 } else { 0 };
    Span { line: first.line - 1 + line, column: before + column, length, file: first.file }
}

fn spelling(at: &Location, text: &str) -> String {
    let bytes = at.span().byte_offset().zip(at.span().byte_len());
    let slice = bytes.and_then(|(start, length)| text.get(start as usize..(start + length) as usize));
    slice.unwrap_or_default().trim().to_string()
}

impl<'de> Deserialize<'de> for Typed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Typed, D::Error> {
        deserializer.deserialize_any(Whatever)
    }
}

struct Whatever;

/// Visits values whose spelling is taken from the text.
macro_rules! spelt {
    ($($name:ident $type:ty),*) => {$(
        fn $name<E>(self, _: $type) -> Result<Typed, E> {
            Ok(Typed::Spelt)
        }
    )*};
}

impl<'de> Visitor<'de> for Whatever {
    type Value = Typed;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("YAML")
    }

    spelt!(visit_bool bool, visit_u64 u64, visit_i64 i64, visit_u128 u128, visit_i128 i128, visit_f64 f64);

    fn visit_str<E>(self, text: &str) -> Result<Typed, E> {
        Ok(Typed::Text(text.to_string()))
    }

    fn visit_unit<E>(self) -> Result<Typed, E> {
        Ok(Typed::Null)
    }

    fn visit_none<E>(self) -> Result<Typed, E> {
        Ok(Typed::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Typed, A::Error> {
        let mut list = Vec::new();
        while let Some(one) = access.next_element()? {
            list.push(one);
        }
        Ok(Typed::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Typed, A::Error> {
        let mut map = Vec::new();
        while let Some(pair) = access.next_entry()? {
            map.push(pair);
        }
        Ok(Typed::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Option<Node>, Report) {
        let mut report = Report::new("t", text);
        (parse(text, &mut report), report)
    }

    #[test]
    fn spellings_and_places_are_kept() {
        let (node, _) = read("a: [0x10, 02:00:00:00:00:01, 1_000, yes, \"é x\", ~]\n");
        let Kind::Map(map) = node.unwrap().kind else { panic!() };
        let Kind::List(list) = &map[0].1.kind else { panic!() };
        let scalar = |text: &str| Kind::Scalar(text.to_string());
        let kinds: Vec<Kind> = list.iter().map(|node| node.kind.clone()).collect();
        assert_eq!(
            kinds,
            [
                scalar("0x10"),
                scalar("02:00:00:00:00:01"),
                scalar("1_000"),
                scalar("yes"),
                scalar("é x"),
                Kind::Null
            ]
        );
        assert_eq!(list[1].span, Span { line: 1, column: 11, length: 17, file: 0 });
    }

    #[test]
    fn what_is_no_yaml_is_told_with_its_place() {
        let (node, report) = read("a: 1\n b: 2\n");
        assert_eq!(node, None);
        assert!(report.to_string().starts_with("t:2:3: error: this is not YAML: "), "{report}");
    }

    #[test]
    fn deep_nesting_is_refused() {
        let (node, report) = read(&"[".repeat(10_000));
        assert_eq!((node, report.errors()), (None, 1));
        assert!(report.to_string().contains("nested too deeply: 64 levels at most"), "{report}");
    }

    #[test]
    fn what_the_parser_refuses_is_said_without_its_own_words() {
        let doubling: String =
            (1..40).map(|at| format!("a{at}: &a{at} [*a{}, *a{}]\n", at - 1, at - 1)).collect();
        let anchors = format!("a0: &a0 x\n{doubling}");
        let many: String = (0..60_000).map(|at| format!("- &a{at} x\n")).collect();
        for (text, said) in [
            (anchors.as_str(), "expand to too much"),
            (many.as_str(), "expand to too much"),
            ("a: 1\n---\nb: 2\n", "a second document begins here"),
            ("a: *b\n", "not YAML"),
            ("a: !!binary \"?\"\n", "not YAML"),
        ] {
            let (node, report) = read(text);
            let report = report.to_string();
            assert_eq!(node, None, "{said}");
            assert!(report.contains(said), "{report}");
            for word in ["Breach", "breached", "RecordedAnchor", "Options", "from_str", " { ", "serde"] {
                assert!(!report.lines().next().unwrap_or_default().contains(word), "{report}");
            }
        }
    }
}
