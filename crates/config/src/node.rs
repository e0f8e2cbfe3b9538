//! Values that differ from node to node, such as an interface's name: a configuration that nodes share refers
//! to them as `${NODE.name}`, and a small file on each node, a flat mapping, has them.
//!
//! References are replaced in the values of the parsed tree, whose positions stay those of the shared file.
//! In YAML, a brace cannot be part of a plain value inside `{ ... }`. So the parser gets a copy of the text
//! in which references have parentheses instead ([`masked`]), which has no effect on positions.

use crate::diagnostic::{Report, Span, suggestion};
use crate::raw::{self, Kind, Node};
use crate::secret::hidden;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

/// How a reference begins.
const REFERENCE: &str = "${NODE.";
/// How a reference begins in a masked text.
const MASKED: &str = "$(NODE.";

/// The largest size of a node's file, in bytes.
pub const FILE_MAX: usize = 64 << 10;
/// The maximum length of a value, in bytes.
const VALUE_MAX: usize = 256;
/// The characters of a value beside letters and digits: those of addresses, paths and devices' options.
const VALUE_MARKS: &str = "._:/@%+=,-";

/// The name of a node's file in the folder of the configuration, unless another one is given.
pub const FILE: &str = "node.yaml";

/// A node's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFile {
    /// The file's name, as it is shown.
    pub name: String,
    /// The file's text; `None` if there is no such file.
    pub text: Option<Arc<String>>,
}

/// A configuration as it was read: its own file, and the node's file, if there is one or one is needed.
#[derive(Clone, Debug, Default)]
pub struct ConfigSource {
    /// The name of the configuration's file, as it is shown.
    pub file: String,
    /// Its text.
    pub text: Arc<String>,
    /// The node's file.
    pub node: Option<NodeFile>,
}

impl ConfigSource {
    /// Describes a configuration without a node's file.
    #[must_use]
    pub fn new(file: &str, text: impl Into<String>) -> ConfigSource {
        ConfigSource { file: file.to_string(), text: Arc::new(text.into()), node: None }
    }

    /// Creates an empty report about the configuration, from which [`raw::document`] reads the configuration.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut report = Report::about(&self.file, self.text.clone());
        report.node = self.node.clone().map(Box::new);
        report
    }
}

/// A value of the node that the configuration refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeValue {
    /// Its name.
    pub name: String,
    /// The value, as spelled.
    pub value: String,
    /// The value's place in the node's file.
    pub span: Span,
}

impl NodeValue {
    /// Returns `name=value`, without a secret.
    #[must_use]
    pub fn shown(&self) -> String {
        let line = format!("{}: {}", self.name, self.value);
        let shown = hidden(&line).chars().skip(self.name.chars().count() + 2).collect::<String>();
        format!("{}={shown}", self.name)
    }
}

/// The values of the node that have replaced references, and where.
#[derive(Clone, Debug, Default)]
pub(crate) struct Substituted {
    /// The values that are in use, by name.
    pub values: BTreeMap<String, NodeValue>,
    /// The names that the values on a line refer to, with their columns, by file and line.
    places: BTreeMap<(u16, u32), Vec<(u32, String)>>,
}

impl Substituted {
    /// Returns the values that the text at a place comes from: those of this very value, or else those of its
    /// line.
    pub(crate) fn at(&self, span: Span) -> Vec<&NodeValue> {
        let Some(line) = self.places.get(&(span.file, span.line)) else { return Vec::new() };
        let exact: Vec<&String> =
            line.iter().filter(|(column, _)| *column == span.column).map(|(_, name)| name).collect();
        let names = if exact.is_empty() { line.iter().map(|(_, name)| name).collect() } else { exact };
        names.into_iter().filter_map(|name| self.values.get(name)).collect()
    }
}

/// Returns whether a text refers to values of the node.
#[must_use]
pub fn has_references(text: &str) -> bool {
    text.contains(REFERENCE)
}

/// Returns whether a masked text refers to values of the node.
pub(crate) fn has_masked(text: &str) -> bool {
    text.contains(MASKED)
}

/// Returns the length of the name at the start of a text.
fn name_length(text: &str) -> usize {
    text.bytes().take_while(|&byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte)).count()
}

/// Returns the next complete reference in a text, whose opening is `open` and which ends with `close`: where
/// it begins, its name, and where it ends.
fn next<'a>(text: &'a str, open: &str, close: u8) -> Option<(usize, &'a str, usize)> {
    let mut from = 0;
    while let Some(at) = text[from..].find(open).map(|at| at + from) {
        let name = at + open.len();
        let end = name + name_length(&text[name..]);
        if end > name && text.as_bytes().get(end) == Some(&close) {
            return Some((at, &text[name..end], end + 1));
        }
        from = name;
    }
    None
}

/// Returns a text of the same length with `$(NODE.name)` in place of `${NODE.name}`. A text that already has
/// the former is an error.
pub(crate) fn masked(text: &str, report: &mut Report) -> String {
    if let Some(at) = text.find(MASKED) {
        let before = &text[..at];
        let line = before.matches('\n').count() as u32 + 1;
        let column = before.chars().rev().take_while(|&one| one != '\n').count() as u32 + 1;
        let span = Span { line, column, length: MASKED.len() as u32, file: 0 };
        report.error_help(span, "a value of the node has braces around its name", "write `${NODE.name}`");
    }
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((at, name, end)) = next(rest, REFERENCE, b'}') {
        masked.push_str(&rest[..at]);
        masked.extend([MASKED, name, ")"]);
        rest = &rest[end..];
    }
    masked + rest
}

/// Replaces the references in a document that was parsed from a masked text.
pub(crate) fn substitute(document: &mut Node, report: &mut Report) {
    let before = report.errors();
    let (known, missing) = match report.node.take() {
        Some(file) if file.text.is_some() => (read(&file, report), None),
        Some(file) => (HashMap::new(), Some(format!("there is no file {}", file.name))),
        None => (HashMap::new(), Some("there are no values of a node here".to_string())),
    };
    let broken = report.errors() > before;
    let mut walk = Substitution { known: &known, missing, broken, done: Substituted::default(), report };
    walk.node(document);
    let Substitution { done, .. } = walk;
    let unused = known.values().filter(|one| !done.values.contains_key(&one.name));
    let mut unused: Vec<&NodeValue> = unused.collect();
    unused.sort_by_key(|one| one.span);
    for one in unused {
        report.warning(one.span, format!("nothing refers to `{}`: `${{NODE.{}}}`", one.name, one.name));
    }
    report.substituted = Some(Box::new(done));
}

/// Reads a node's file.
fn read(file: &NodeFile, report: &mut Report) -> HashMap<String, NodeValue> {
    let text = file.text.clone().unwrap_or_default();
    let number = report.add_file(&file.name, text.clone());
    let whole = Span { line: 1, column: 1, length: 1, file: number };
    if text.len() > FILE_MAX {
        report.error(whole, format!("a node's file has at most {} KiB", FILE_MAX >> 10));
        return HashMap::new();
    }
    let pairs = match raw::parse_part(&text, whole, report).map(|node| node.kind) {
        Some(Kind::Map(pairs)) => pairs,
        Some(Kind::Null) | None => return HashMap::new(),
        Some(_) => {
            report.error_help(whole, "a node's file is a mapping", "write `name: value`, one per line");
            return HashMap::new();
        }
    };
    let mut known: HashMap<String, NodeValue> = HashMap::new();
    for (key, value) in pairs {
        let Kind::Scalar(name) = key.kind else {
            report.error(key.span, "the name of a value is a word");
            continue;
        };
        if name.is_empty() || name_length(&name) != name.len() {
            report.error(key.span, "the name of a value consists of letters, digits and . _ -");
            continue;
        }
        let Kind::Scalar(spelled) = &value.kind else {
            let message = format!("`{name}` is {}, but must be a single value", value.what());
            report.error(value.span, message);
            continue;
        };
        let fits = |one: char| one.is_ascii_alphanumeric() || VALUE_MARKS.contains(one);
        if spelled.is_empty() || spelled.len() > VALUE_MAX || !spelled.chars().all(fits) {
            let marks: Vec<String> = VALUE_MARKS.chars().map(String::from).collect();
            let message =
                format!("a value of the node has 1 to {VALUE_MAX} letters, digits and {}", marks.join(" "));
            report.error(value.span, message);
            continue;
        }
        let one = NodeValue { name: name.clone(), value: spelled.clone(), span: value.span };
        if let Some(first) = known.insert(name, one) {
            let message = format!("`{}` already has a value, in line {}", first.name, first.span.line);
            report.error(key.span, message);
        }
    }
    known
}

struct Substitution<'a> {
    known: &'a HashMap<String, NodeValue>,
    /// Why there are no values.
    missing: Option<String>,
    /// Whether the node's file has errors, in which case absent values are not reported as further errors.
    broken: bool,
    done: Substituted,
    report: &'a mut Report,
}

impl Substitution<'_> {
    fn node(&mut self, node: &mut Node) {
        match &mut node.kind {
            Kind::Scalar(text) if has_masked(text) => *text = self.value(text, node.span),
            Kind::Scalar(text) if has_references(text) => {
                let message = "this is not the name of a value of the node";
                self.report.error_help(node.span, message, "write `${NODE.name}`");
            }
            Kind::List(list) => list.iter_mut().for_each(|one| self.node(one)),
            Kind::Map(pairs) => {
                for (key, value) in pairs {
                    if matches!(&key.kind, Kind::Scalar(text) if has_masked(text) || has_references(text)) {
                        let message = "a key cannot differ from node to node";
                        self.report.error_help(key.span, message, "only values can be `${NODE.name}`");
                    }
                    self.node(value);
                }
            }
            // Lines with references are never among these.
            Kind::Null | Kind::Scalar(_) | Kind::Lines(_) => {}
        }
    }

    /// Returns a value with all references replaced.
    fn value(&mut self, text: &str, span: Span) -> String {
        let mut whole = String::new();
        let mut rest = text;
        while let Some((at, name, end)) = next(rest, MASKED, b')') {
            whole.push_str(&rest[..at]);
            match self.known.get(name) {
                Some(one) => {
                    whole.push_str(&one.value);
                    self.done.values.entry(name.to_string()).or_insert_with(|| one.clone());
                    let line = self.done.places.entry((span.file, span.line)).or_default();
                    line.push((span.column, name.to_string()));
                }
                None if self.broken => {}
                None => self.unknown(name, span),
            }
            rest = &rest[end..];
        }
        whole + rest
    }

    fn unknown(&mut self, name: &str, span: Span) {
        if let Some(missing) = &self.missing {
            let message = format!("`${{NODE.{name}}}` has no value: {missing}");
            let help = format!("write `{name}: value` into it, or name another file with --node");
            return self.report.error_help(span, message, help);
        }
        let mut names: Vec<&str> = self.known.keys().map(String::as_str).collect();
        names.sort_unstable();
        let message = format!("the node's file has no value `{name}`");
        self.report.error_help(span, message, suggestion(name, names));
    }
}

/// Returns a configuration's text with the values of the node in place of references: what another node would
/// need if it had no file.
#[must_use]
pub fn resolved(text: &str, values: &[NodeValue]) -> String {
    let known: HashMap<&str, &str> = values.iter().map(|one| (&*one.name, &*one.value)).collect();
    let mut whole = String::new();
    let mut rest = text;
    while let Some((at, name, end)) = next(rest, REFERENCE, b'}') {
        let behind = rest[end..].chars().next();
        let alone = rest[..at].chars().next_back().or(whole.chars().next_back()).is_none_or(opens)
            && behind.is_none_or(closes);
        whole.push_str(&rest[..at]);
        match known.get(name) {
            Some(value) if alone && !is_plain(value) => whole.extend(["\"", value, "\""]),
            Some(value) => whole.push_str(value),
            None => whole.push_str(&rest[at..end]),
        }
        rest = &rest[end..];
    }
    whole + rest
}

fn opens(before: char) -> bool {
    before.is_whitespace() || "[{,".contains(before)
}

fn closes(behind: char) -> bool {
    behind.is_whitespace() || "]},".contains(behind)
}

/// Returns whether YAML reads a value as it is, without quotes.
fn is_plain(value: &str) -> bool {
    let ends = |one: Option<char>| one.is_some_and(|one| one.is_ascii_alphanumeric());
    let is_word = ends(value.chars().next()) && ends(value.chars().next_back()) && !value.contains(',');
    is_word && !value.eq_ignore_ascii_case("null")
}

/// Returns the path of the node's file for a configuration, unless another one is given.
#[must_use]
pub fn beside(configuration: &Path) -> std::path::PathBuf {
    configuration.with_file_name(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_with(text: &str, node: Option<&str>) -> (Option<Node>, Report) {
        let node = NodeFile { name: "node.yaml".into(), text: node.map(|text| Arc::new(text.to_string())) };
        let mut report = ConfigSource { node: Some(node), ..ConfigSource::new("weir.yaml", text) }.report();
        (raw::document(&mut report), report)
    }

    fn plain(text: &str) -> Node {
        let mut report = Report::new("weir.yaml", text);
        raw::document(&mut report).unwrap_or_else(|| panic!("{report}"))
    }

    /// Drops places, which differ between a text and its resolved form.
    fn contents(node: &Node) -> String {
        match &node.kind {
            Kind::Null => "~".into(),
            Kind::Scalar(text) => format!("{text:?}"),
            Kind::List(list) => format!("{:?}", list.iter().map(contents).collect::<Vec<_>>()),
            Kind::Map(map) => {
                let pair = |(key, value): &(Node, Node)| (contents(key), contents(value));
                format!("{:?}", map.iter().map(pair).collect::<Vec<_>>())
            }
            Kind::Lines(_) => panic!("these lists are short"),
        }
    }

    const NODE: &str =
        "eth: ens1f0 # the uplink\nsource: 192.0.2.7\nmac: 02:00:00:00:00:07\nsix: \"fd00::\"\n";

    #[test]
    fn values_replace_references_in_every_style_and_print_as_the_same_document() {
        let text = "a: ${NODE.eth}\n\
            b: { x: ${NODE.source}, y: [${NODE.mac}, \"${NODE.six}\", ${NODE.six}] }\n\
            c: '${NODE.six}/64'\nd: vlan-${NODE.eth}.7 # ${NODE.eth}\n${x}: $y\n";
        let (document, report) = read_with(text, Some(NODE));
        let document = document.unwrap_or_else(|| panic!("{report}"));
        assert_eq!((report.errors(), report.warnings()), (0, 0), "{report}");
        let expected = "a: ens1f0\nb: { x: 192.0.2.7, y: [02:00:00:00:00:07, \"fd00::\", \"fd00::\"] }\n\
            c: 'fd00::/64'\nd: vlan-ens1f0.7\n${x}: $y\n";
        assert_eq!(contents(&document), contents(&plain(expected)));
        let values: Vec<NodeValue> = report.node_values().cloned().collect();
        let printed = resolved(text, &values);
        assert!(
            printed.contains("# ens1f0") && printed.contains("[02:00:00:00:00:07, \"fd00::\""),
            "{printed}"
        );
        assert_eq!(contents(&plain(&printed)), contents(&document), "{printed}");
    }

    #[test]
    fn carets_point_into_the_shared_file_and_messages_name_the_nodes_line() {
        let (_, mut report) = read_with("port: { xdp: { interface: ${NODE.eth} } }\n", Some("\neth: ens1\n"));
        let span = Span { line: 1, column: 27, length: 11, file: 0 };
        report.error(span, "there is no interface `ens1`");
        report.error(Span { column: 9, length: 3, ..span }, "elsewhere on the line");
        let said = report.to_string();
        let expected = "weir.yaml:1:27: error: there is no interface `ens1` \
            (`${NODE.eth}` is `ens1`: node.yaml:2)\n    1 | port: { xdp: { interface: ${NODE.eth} } }\n      \
            |                           ^^^^^^^^^^^\n";
        assert!(said.contains(expected), "{said}");
        assert!(said.contains("elsewhere on the line (`${NODE.eth}`"), "{said}");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let long = format!("x: {}\n", "a".repeat(257));
        for (text, node, said) in [
            ("a: ${NODE.et}\n", Some(NODE), "weir.yaml:1:4: error: the node's file has no value `et`"),
            ("a: ${NODE.et}\n", Some(NODE), "did you mean `eth`?"),
            ("a: ${NODE.eth}\n", None, "`${NODE.eth}` has no value: there is no file node.yaml"),
            ("a: ${NODE.eth\n", Some(NODE), "this is not the name of a value"),
            (
                "a: $(NODE.eth) # ${NODE.eth}\n",
                Some(NODE),
                "weir.yaml:1:4: error: a value of the node has braces",
            ),
            ("${NODE.eth}: 1\n", Some(NODE), "a key cannot differ"),
            ("a: ${NODE.eth}\n", Some("eth: [1]\n"), "node.yaml:1:6: error: `eth` is a list"),
            ("a: ${NODE.eth}\n", Some("eth:\n"), "node.yaml:1:4: error: `eth` is nothing"),
            ("a: ${NODE.eth}\n", Some("eth: a b\n"), "has 1 to 256 letters"),
            ("a: ${NODE.x}\n", Some(&*long), "has 1 to 256 letters"),
            ("a: ${NODE.eth}\n", Some("eth: a\neth: b\n"), "node.yaml:2:1: error: `eth` already has a value"),
            ("a: ${NODE.eth}\n", Some("e/h: a\n"), "the name of a value consists of"),
            ("a: ${NODE.eth}\n", Some("- a\n"), "a node's file is a mapping"),
            ("a: ${NODE.eth}\n", Some("a: b: c\n"), "node.yaml:1:"),
        ] {
            let (_, report) = read_with(text, node);
            assert!(report.errors() > 0 && report.to_string().contains(said), "{text}{node:?}: {report}");
        }
        let (_, report) = read_with("a: ${NODE.eth}\n", Some(NODE));
        let said = report.to_string();
        assert_eq!((report.errors(), report.warnings()), (0, 3), "{said}");
        assert!(said.contains("node.yaml:2:9: warning: nothing refers to `source`"), "{said}");
        let (_, report) = read_with("a: ${NODE.eth}\n", Some(&format!("eth: a #{}", " ".repeat(FILE_MAX))));
        assert!(report.to_string().contains("a node's file has at most 64 KiB"), "{report}");
    }

    #[test]
    fn a_secret_of_the_node_is_not_shown() {
        let secret = "0123456789abcdef0123456789abcdef";
        let (_, mut report) = read_with("key: ${NODE.key}\n", Some(&format!("key: {secret}\n")));
        report.error(Span { line: 1, column: 6, length: 1, file: 0 }, "wrong");
        assert!(!report.to_string().contains("0123"), "{report}");
        assert!(report.node_values().all(|one| !one.shown().contains("0123")));
    }

    #[test]
    fn a_long_list_with_references_is_read_as_a_short_one_is() {
        let entry = |at: u32| match at {
            7 | 57 => format!(
                "- {{ match: {{ udp.dport: {at} }}, set: {{ to: \"${{NODE.eth}}\", b: a${{NODE.eth}} }} }}"
            ),
            _ => format!("- {{ match: {{ udp.dport: {at} }}, set: {{ to: ens1f0 }} }}"),
        };
        let text: String = format!("entries:\n{}\n", (0..200).map(entry).collect::<Vec<_>>().join("\n"));
        let (document, mut report) = read_with(&text, Some("eth: ens1f0\n"));
        let Kind::Map(map) = document.unwrap().kind else { panic!() };
        let Kind::List(list) = &map[0].1.kind else { panic!() };
        let (mut values, mut runs) = (Vec::new(), 0);
        for one in list {
            match &one.kind {
                Kind::Lines(lines) => {
                    runs += 1;
                    lines.each(&mut report, |node, _| values.push(contents(node)));
                }
                _ => values.push(contents(one)),
            }
        }
        let resolved = text.replace("${NODE.eth}", "ens1f0").replace("entries:", "others:");
        let Kind::Map(map) = plain(&resolved).kind else { panic!() };
        let Kind::List(list) = &map[0].1.kind else { panic!() };
        assert_eq!(values, list.iter().map(contents).collect::<Vec<_>>(), "{report}");
        assert_eq!((runs, report.errors()), (1, 0));
    }
}
