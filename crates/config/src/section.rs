//! Mappings, lists and simple values of the raw tree: their shapes, their keys, their ranges.

use crate::diagnostic::{Report, Span, suggestion};
use crate::raw::{Kind, Node};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A mapping whose keys are known.
pub struct Section<'a> {
    /// Where it stands.
    pub span: Span,
    entries: Vec<(&'a str, &'a Node)>,
}

impl<'a> Section<'a> {
    /// The mapping `node`, with the keys `known` and no others. What it is not is told; what is left can be used.
    #[must_use]
    pub fn of(node: &'a Node, known: &[&str], report: &mut Report) -> Section<'a> {
        let mut section = Section { span: node.span, entries: Vec::new() };
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

    /// The same, told of at the name of what it describes.
    #[must_use]
    pub fn at(self, span: Span) -> Section<'a> {
        Section { span, ..self }
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&'a Node> {
        self.entries.iter().find(|(name, _)| *name == key).map(|(_, node)| *node)
    }

    /// The value of a key that must be there.
    #[must_use]
    pub fn need(&self, key: &str, what: &str, report: &mut Report) -> Option<&'a Node> {
        let node = self.get(key);
        if node.is_none() {
            report.error(self.span, format!("`{key}` is missing: {what}"));
        }
        node
    }
}

/// Keys and values of a mapping; keys that are no words, and keys that are there twice, are told.
#[must_use]
pub fn pairs<'a>(node: &'a Node, report: &mut Report) -> Vec<(&'a str, Span, &'a Node)> {
    let Kind::Map(map) = &node.kind else {
        report.error(node.span, format!("a mapping (`key: value`) is wanted here, not {}", node.what()));
        return Vec::new();
    };
    let mut seen = std::collections::HashSet::new();
    let mut list = Vec::with_capacity(map.len());
    for (key, value) in map {
        match &key.kind {
            Kind::Scalar(name) if seen.insert(name.as_str()) => list.push((name.as_str(), key.span, value)),
            Kind::Scalar(name) => report.error(key.span, format!("`{name}` is here twice")),
            _ => report.error(key.span, format!("a key is a word, not {}", key.what())),
        }
    }
    list
}

/// The nodes of a list; `what` is what it lists.
#[must_use]
pub fn list<'a>(node: &'a Node, what: &str, report: &mut Report) -> &'a [Node] {
    match &node.kind {
        Kind::List(list) => list,
        _ => {
            report.error(node.span, format!("a list of {what} is wanted here, not {}", node.what()));
            &[]
        }
    }
}

/// A single value, as it was spelt.
#[must_use]
pub fn text<'a>(node: &'a Node, what: &str, report: &mut Report) -> Option<&'a str> {
    match &node.kind {
        Kind::Scalar(text) => Some(text),
        _ => {
            report.error(node.span, format!("{what} is wanted here, not {}", node.what()));
            None
        }
    }
}

/// A whole number within a range.
#[must_use]
pub fn number(node: &Node, what: &str, range: RangeInclusive<u64>, report: &mut Report) -> Option<u64> {
    let text = text(node, what, report)?;
    match crate::value::number(text).and_then(|number| u64::try_from(number).ok()) {
        Some(number) if range.contains(&number) => Some(number),
        _ => {
            let (least, most) = range.into_inner();
            let limits = if most == u64::MAX { format!("from {least}") } else { format!("from {least} to {most}") };
            report.error(node.span, format!("{what} is a whole number {limits}, not `{text}`"));
            None
        }
    }
}

/// One of a few words.
#[must_use]
pub fn choice<T: Copy>(node: &Node, what: &str, choices: &[(&str, T)], report: &mut Report) -> Option<T> {
    let text = text(node, what, report)?;
    let chosen = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    if chosen.is_none() {
        let names = choices.iter().map(|(name, _)| *name);
        report.error_help(node.span, format!("{what} cannot be `{text}`"), suggestion(text, names));
    }
    chosen
}

/// `true` or `false`.
#[must_use]
pub fn boolean(node: &Node, what: &str, report: &mut Report) -> Option<bool> {
    choice(node, what, &[("true", true), ("false", false)], report)
}

/// Anything that reads itself from text, such as an address.
#[must_use]
pub fn parsed<T: FromStr>(node: &Node, what: &str, report: &mut Report) -> Option<T> {
    let text = text(node, what, report)?;
    let parsed = text.parse().ok();
    if parsed.is_none() {
        report.error(node.span, format!("`{text}` is not {what}"));
    }
    parsed
}

/// A time with its unit, in nanoseconds: `500ms`, `30s`, `5m`, `2h`, `1d`; `never` is 0.
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

/// A name that somebody gives to something.
#[must_use]
pub fn name<'a>(name: &'a str, span: Span, report: &mut Report) -> Option<&'a str> {
    let good = |one: char| one.is_ascii_alphanumeric() || "_-.".contains(one);
    let help = "letters, digits, `_`, `-` and `.`, a letter or digit first, 64 at most";
    if name.is_empty() || name.len() > 64 || !name.chars().all(good) || name.starts_with(['-', '.']) {
        report.error_help(span, format!("`{name}` cannot be a name"), help);
        return None;
    }
    if crate::forward::RESERVED.contains(&name) {
        report.error(span, format!("`{name}` is a word of the language, not a name"));
        return None;
    }
    Some(name)
}
