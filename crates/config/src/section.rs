//! Mappings, lists and simple values of the raw tree: checks their shapes, keys and ranges.

use crate::diagnostic::{Report, Span, suggestion};
use crate::key::{Key, Shape};
use crate::raw::{Kind, Node};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A mapping with known keys.
pub struct Section<'a> {
    /// Its place.
    pub span: Span,
    keys: &'a [Key],
    entries: Vec<(&'a str, &'a Node)>,
}

impl<'a> Section<'a> {
    /// Reads the mapping `node` with the keys of a table; other keys are reported and left out.
    #[must_use]
    pub fn read(node: &'a Node, keys: &'a [Key], report: &mut Report) -> Section<'a> {
        let words: Vec<&str> = keys.iter().map(|key| key.word).collect();
        Section { keys, ..Section::of(node, &words, report) }
    }

    /// Like [`Section::read`], for keys from another table, such as those of operations.
    #[must_use]
    pub fn of(node: &'a Node, known: &[&str], report: &mut Report) -> Section<'a> {
        let mut section = Section { span: node.span, keys: &[], entries: Vec::new() };
        for (key, span, value) in pairs(node, report) {
            if known.contains(&key) {
                section.entries.push((key, value));
            } else {
                report.error_help(
                    span,
                    format!("there is no key `{key}` here"),
                    suggestion(key, known.iter().copied()),
                );
            }
        }
        section
    }

    /// Returns the same section; errors about the whole section are shown at `span`.
    #[must_use]
    pub fn at(self, span: Span) -> Section<'a> {
        Section { span, ..self }
    }

    /// Returns the value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&'a Node> {
        self.entries.iter().find(|(name, _)| *name == key).map(|(_, node)| *node)
    }

    /// Returns the value of a required key; `what` describes it in the error if it is missing.
    #[must_use]
    pub fn need(&self, key: &str, what: &str, report: &mut Report) -> Option<&'a Node> {
        let node = self.get(key);
        if node.is_none() {
            report.error(self.span, format!("`{key}` is missing: {what}"));
        }
        node
    }

    /// Returns the value of a required key; the table describes it in the error if it is missing.
    #[must_use]
    pub fn needed(&self, key: &str, report: &mut Report) -> Option<&'a Node> {
        self.need(key, self.key(key).help, report)
    }

    /// Returns a whole number in the range given by the table, or its default; `None` if there is an error,
    /// which is reported.
    #[must_use]
    pub fn number(&self, key: &str, report: &mut Report) -> Option<u64> {
        let known = self.key(key);
        let Shape::Number(least, most) = known.shape else { panic!("`{key}` is not a number") };
        match self.get(key) {
            Some(node) => number(node, &format!("`{key}`"), least..=most, report),
            None => known.default.and_then(crate::value::number).map(|number| number as u64),
        }
    }

    /// Returns one of a few words, or the default of the table; `None` if there is an error, which is
    /// reported.
    #[must_use]
    pub fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)], report: &mut Report) -> Option<T> {
        match self.get(key) {
            Some(node) => choice(node, &format!("`{key}`"), choices, report),
            None => {
                choices.iter().find(|(word, _)| self.key(key).default == Some(word)).map(|(_, value)| *value)
            }
        }
    }

    /// Returns `true` or `false`; the default is `false`.
    #[must_use]
    pub fn boolean(&self, key: &str, report: &mut Report) -> bool {
        self.get(key).and_then(|node| boolean(node, &format!("`{key}`"), report)).unwrap_or_default()
    }

    /// Returns a time in nanoseconds, or the default of the table, or 0.
    #[must_use]
    pub fn time(&self, key: &str, report: &mut Report) -> u64 {
        let default = self.key(key).default.and_then(crate::value::duration).unwrap_or_default();
        self.get(key)
            .map_or(Some(default), |node| duration(node, &format!("`{key}`"), report))
            .unwrap_or(default)
    }

    fn key(&self, word: &str) -> &'a Key {
        self.keys.iter().find(|key| key.word == word).unwrap_or_else(|| panic!("no table has `{word}`"))
    }
}

/// The maximum number of keys of a mapping that are compared with each other one by one.
const FEW_KEYS: usize = 16;

/// Returns the keys and values of a mapping. Keys that are not words, and duplicate keys, are reported.
#[must_use]
pub fn pairs<'a>(node: &'a Node, report: &mut Report) -> Vec<(&'a str, Span, &'a Node)> {
    let Kind::Map(map) = &node.kind else {
        report.error(node.span, format!("expected a mapping (`key: value`), found {}", node.what()));
        return Vec::new();
    };
    // A set costs more than it saves if there are few keys, as in the entries of a long list.
    let mut seen = (map.len() > FEW_KEYS).then(std::collections::HashSet::new);
    let mut list: Vec<(&str, Span, &Node)> = Vec::with_capacity(map.len());
    for (key, value) in map {
        let mut is_new = |name: &'a str| match &mut seen {
            Some(seen) => seen.insert(name),
            None => list.iter().all(|(other, ..)| *other != name),
        };
        match &key.kind {
            Kind::Scalar(name) if is_new(name) => list.push((name.as_str(), key.span, value)),
            Kind::Scalar(name) => report.error(key.span, format!("`{name}` appears twice")),
            _ => report.error(key.span, format!("a key is a word, not {}", key.what())),
        }
    }
    list
}

/// Returns the nodes of a list; `what` describes its elements in errors.
#[must_use]
pub fn list<'a>(node: &'a Node, what: &str, report: &mut Report) -> &'a [Node] {
    match &node.kind {
        Kind::List(list) => list,
        _ => {
            report.error(node.span, format!("expected a list of {what}, found {}", node.what()));
            &[]
        }
    }
}

/// Returns a single value as it was spelled.
#[must_use]
pub fn text<'a>(node: &'a Node, what: &str, report: &mut Report) -> Option<&'a str> {
    match &node.kind {
        Kind::Scalar(text) => Some(text),
        _ => {
            report.error(node.span, format!("expected {what}, found {}", node.what()));
            None
        }
    }
}

/// Reads a whole number within a range.
#[must_use]
pub fn number(node: &Node, what: &str, range: RangeInclusive<u64>, report: &mut Report) -> Option<u64> {
    let text = text(node, what, report)?;
    match crate::value::number(text).and_then(|number| u64::try_from(number).ok()) {
        Some(number) if range.contains(&number) => Some(number),
        _ => {
            let (least, most) = range.into_inner();
            let limits =
                if most == u64::MAX { format!("from {least}") } else { format!("from {least} to {most}") };
            report.error(node.span, format!("{what} must be a whole number {limits}, not `{text}`"));
            None
        }
    }
}

/// Reads one of a few words.
#[must_use]
pub fn choice<T: Copy>(node: &Node, what: &str, choices: &[(&str, T)], report: &mut Report) -> Option<T> {
    let text = text(node, what, report)?;
    let words = choices.iter().map(|(word, _)| *word);
    let at = position(format_args!("{what} cannot be"), (text, node.span), words, report);
    at.map(|at| choices[at].1)
}

/// Returns the index of a name; an unknown name is reported as not being a `what`, with suggestions.
pub fn position<'n>(
    what: impl Display,
    (name, span): (&str, Span),
    names: impl Iterator<Item = &'n str> + Clone,
    report: &mut Report,
) -> Option<usize> {
    let at = names.clone().position(|one| one == name);
    if at.is_none() {
        report.error_help(span, format!("{what} `{name}`"), suggestion(name, names));
    }
    at
}

/// Returns the index of the thing of a kind that a node names.
pub fn named<'n>(
    kind: &str,
    node: &Node,
    names: impl Iterator<Item = &'n str> + Clone,
    report: &mut Report,
) -> Option<usize> {
    let name = text(node, &format!("the name of a {kind}"), report)?;
    position(format_args!("there is no {kind}"), (name, node.span), names, report)
}

/// Returns the words of a choice.
#[must_use]
pub fn words<T>(choices: &[(&'static str, T)]) -> Vec<&'static str> {
    choices.iter().map(|(word, _)| *word).collect()
}

/// Reads `true` or `false`.
#[must_use]
pub fn boolean(node: &Node, what: &str, report: &mut Report) -> Option<bool> {
    choice(node, what, &[("true", true), ("false", false)], report)
}

/// Reads a value of any type that can be parsed from text, such as an address.
#[must_use]
pub fn parsed<T: FromStr>(node: &Node, what: &str, report: &mut Report) -> Option<T> {
    let text = text(node, what, report)?;
    let parsed = text.parse().ok();
    if parsed.is_none() {
        report.error(node.span, format!("`{text}` is not {what}"));
    }
    parsed
}

/// Reads a time with its unit, in nanoseconds: `500ms`, `30s`, `5m`, `2h`, `1d`; `never` is 0.
#[must_use]
pub fn duration(node: &Node, what: &str, report: &mut Report) -> Option<u64> {
    let text = text(node, what, report)?;
    let nanoseconds = crate::value::duration(text);
    if nanoseconds.is_none() {
        report.error_help(
            node.span,
            format!("{what} cannot be `{text}`"),
            "write a number and its unit: us, ms, s, m, h, d",
        );
    }
    nanoseconds
}

/// The largest length of a name in bytes.
pub const NAME_MAX: usize = 64;

/// Checks a name given by the user.
#[must_use]
pub fn name<'a>(name: &'a str, span: Span, report: &mut Report) -> Option<&'a str> {
    let good = |one: char| one.is_ascii_alphanumeric() || "_-.".contains(one);
    let help = "use at most 64 letters, digits, `_`, `-` and `.`, starting with a letter or digit";
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(good) || name.starts_with(['-', '.']) {
        report.error_help(span, format!("`{name}` cannot be a name"), help);
        return None;
    }
    if crate::forward::RESERVED.contains(&name) {
        report.error(span, format!("`{name}` is a reserved word, not a name"));
        return None;
    }
    Some(name)
}
