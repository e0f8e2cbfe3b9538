//! One line of YAML in flow style, such as `{ match: { ipv4.dst: 10.0.0.1 }, set: { vid: 7 } }`.
//!
//! There may be millions of entries, and a YAML parser takes 100 000 instructions for each. This module reads
//! the plain lines that make up such lists, much faster, and refuses everything else. Refused lines are left
//! to the YAML parser, which alone decides what is YAML. So whatever this module accepts, it must read
//! exactly as the YAML parser does; the tests compare them.

use crate::diagnostic::Span;
use crate::raw::{Kind, Node};

/// The largest depth of nesting that is read here.
const DEPTH_MAX: usize = 8;
/// The maximum length of a key in characters: YAML's own limit is 1024, including the colon.
const KEY_MAX: usize = 1000;

/// What to build from the parts of a line.
trait Make {
    /// A part.
    type Part;
    fn scalar(span: Span, text: &str) -> Self::Part;
    fn list(span: Span, parts: Vec<Self::Part>) -> Self::Part;
    fn map(span: Span, pairs: Vec<(Self::Part, Self::Part)>) -> Self::Part;
}

/// Builds nodes.
struct Nodes;

impl Make for Nodes {
    type Part = Node;

    fn scalar(span: Span, text: &str) -> Node {
        Node { span, kind: Kind::Scalar(text.to_string()) }
    }

    fn list(span: Span, parts: Vec<Node>) -> Node {
        Node { span, kind: Kind::List(parts) }
    }

    fn map(span: Span, pairs: Vec<(Node, Node)>) -> Node {
        Node { span, kind: Kind::Map(pairs) }
    }
}

/// Builds nothing.
struct Nothing;

impl Make for Nothing {
    type Part = ();

    fn scalar(_: Span, _: &str) {}

    fn list(_: Span, _: Vec<()>) {}

    fn map(_: Span, _: Vec<((), ())>) {}
}

/// Reads the mapping in `line` from byte `from` on. `at` is the place of the line's first character. `None`
/// if the line is not plain enough for this reader.
pub fn mapping(line: &str, from: usize, at: Span) -> Option<Node> {
    read::<Nodes>(line, from, at)
}

/// Returns true if [`mapping`] can read the line.
pub fn is_mapping(line: &str, from: usize) -> bool {
    read::<Nothing>(line, from, Span::default()).is_some()
}

/// The maximum number of parts in a line that [`items`] reads.
pub const ITEMS_MAX: usize = 24;

/// A part of a line whose mapping contains values and mappings of values: a key, the mapping that contains
/// it, and its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Item<'a> {
    /// The key of the inner mapping; empty for the line's own.
    pub section: &'a str,
    /// The key.
    pub key: &'a str,
    /// The value; `None` if it is a mapping, whose parts follow.
    pub text: Option<&'a str>,
    /// The byte at which the value begins.
    pub at: usize,
}

/// Reads the parts of a mapping, and returns their number. `None` if [`mapping`] does not read the line, or
/// if it has lists, deeper mappings, too many parts, or a duplicate key.
pub fn items<'a>(line: &'a str, from: usize, parts: &mut [Item<'a>; ITEMS_MAX]) -> Option<usize> {
    if !line.is_ascii() {
        return None;
    }
    let mut flow = FlowReader { line, bytes: line.as_bytes(), at: from, first: Span::default() };
    if flow.peek()? != b'{' {
        return None;
    }
    let mut count = 0;
    flow.items("", line, &mut |part| {
        let is_new = |other: &Item<'_>| other.key != part.key || other.section != part.section;
        if !parts[..count].iter().all(is_new) {
            return None;
        }
        *parts.get_mut(count)? = part;
        count += 1;
        Some(())
    })?;
    flow.ends().then_some(count)
}

fn read<M: Make>(line: &str, from: usize, first: Span) -> Option<M::Part> {
    // Then a column is a byte.
    if !line.is_ascii() {
        return None;
    }
    let mut flow = FlowReader { line, bytes: line.as_bytes(), at: from, first };
    if flow.peek()? != b'{' {
        return None;
    }
    let map = flow.map::<M>(0)?;
    flow.ends().then_some(map)
}

struct FlowReader<'a> {
    line: &'a str,
    bytes: &'a [u8],
    at: usize,
    first: Span,
}

impl FlowReader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_spaces(&mut self) {
        while self.peek() == Some(b' ') {
            self.at += 1;
        }
    }

    fn span(&self, start: usize, end: usize) -> Span {
        let Span { line, column, file, .. } = self.first;
        Span { line, column: column + start as u32, length: (end - start).max(1) as u32, file }
    }

    /// Whether nothing or a comment follows.
    fn ends(&mut self) -> bool {
        let before = self.at;
        self.skip_spaces();
        let rest = &self.bytes[self.at..];
        let comment = rest.first() == Some(&b'#') && self.at > before;
        (rest.is_empty() || comment) && rest.iter().all(|byte| (b' '..=b'~').contains(byte))
    }

    fn value<M: Make>(&mut self, depth: usize) -> Option<M::Part> {
        match self.peek()? {
            b'{' => self.map::<M>(depth + 1),
            b'[' => self.list::<M>(depth + 1),
            b'"' => self.quoted::<M>(),
            _ => {
                let (start, end) = self.plain()?;
                Some(M::scalar(self.span(start, end), &self.line[start..end]))
            }
        }
    }

    /// Reads `{ key: value, ... }`. The mapping's place is that of its opening bracket.
    fn map<M: Make>(&mut self, depth: usize) -> Option<M::Part> {
        let start = self.open(depth)?;
        let mut pairs = Vec::new();
        loop {
            self.skip_spaces();
            if self.peek()? == b'}' {
                break;
            }
            let (from, to) = self.key()?;
            let key = M::scalar(self.span(from, to), &self.line[from..to]);
            pairs.push((key, self.value::<M>(depth)?));
            self.comma(b'}')?;
        }
        self.at += 1;
        Some(M::map(self.span(start, start + 1), pairs))
    }

    /// Reads a key and the separator before its value. Returns where the key starts and ends.
    fn key(&mut self) -> Option<(usize, usize)> {
        let (from, to) = self.plain()?;
        if self.peek()? != b':' || to - from > KEY_MAX || &self.line[from..to] == "<<" {
            return None;
        }
        self.at += 1;
        if self.peek()? != b' ' {
            return None;
        }
        self.skip_spaces();
        Some((from, to))
    }

    /// Reads the parts of a mapping, and of those inside the line's own.
    fn items<'a>(
        &mut self,
        section: &'a str,
        line: &'a str,
        take: &mut impl FnMut(Item<'a>) -> Option<()>,
    ) -> Option<()> {
        self.at += 1;
        loop {
            self.skip_spaces();
            if self.peek()? == b'}' {
                break;
            }
            let (from, to) = self.key()?;
            let (key, at) = (&line[from..to], self.at);
            match self.peek()? {
                b'{' if section.is_empty() => {
                    take(Item { section, key, text: None, at })?;
                    self.items(key, line, take)?;
                }
                b'{' | b'[' => return None,
                _ => {
                    let (from, to) = if self.peek()? == b'"' { self.inside_quotes()? } else { self.plain()? };
                    take(Item { section, key, text: Some(&line[from..to]), at })?;
                }
            }
            self.comma(b'}')?;
        }
        self.at += 1;
        Some(())
    }

    /// Reads `[value, ...]`.
    fn list<M: Make>(&mut self, depth: usize) -> Option<M::Part> {
        let start = self.open(depth)?;
        let mut parts = Vec::new();
        loop {
            self.skip_spaces();
            if self.peek()? == b']' {
                break;
            }
            parts.push(self.value::<M>(depth)?);
            self.comma(b']')?;
        }
        self.at += 1;
        Some(M::list(self.span(start, start + 1), parts))
    }

    fn open(&mut self, depth: usize) -> Option<usize> {
        self.at += 1;
        (depth < DEPTH_MAX).then_some(self.at - 1)
    }

    /// Skips the comma after a value; it is optional before the bracket `end`.
    fn comma(&mut self, end: u8) -> Option<()> {
        self.skip_spaces();
        match self.peek()? {
            b',' => self.at += 1,
            other if other == end => {}
            _ => return None,
        }
        Some(())
    }

    /// Reads `"text"` without escapes.
    fn quoted<M: Make>(&mut self) -> Option<M::Part> {
        let (start, end) = self.inside_quotes()?;
        Some(M::scalar(self.span(start - 1, end + 1), &self.line[start..end]))
    }

    /// Reads `"text"` without escapes. Returns where the text inside the quotes starts and ends.
    fn inside_quotes(&mut self) -> Option<(usize, usize)> {
        let start = self.at;
        let inside = self.bytes[start + 1..].iter();
        let length = inside.take_while(|&&byte| byte != b'"' && byte != b'\\').count();
        let end = start + 1 + length;
        let text = &self.line[start + 1..end];
        if self.bytes.get(end) != Some(&b'"') || !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return None;
        }
        self.at = end + 1;
        Some((start + 1, end))
    }

    /// Reads an unquoted word or number up to its delimiter. Returns where it starts and ends.
    fn plain(&mut self) -> Option<(usize, usize)> {
        let start = self.at;
        if !self.peek()?.is_ascii_alphanumeric() {
            return None;
        }
        loop {
            match self.peek()? {
                b',' | b'{' | b'}' | b'[' | b']' => break,
                b':' if matches!(self.bytes.get(self.at + 1)?, b' ' | b',' | b'{' | b'}' | b'[' | b']') => {
                    break;
                }
                b'#' if self.bytes[self.at - 1] == b' ' => return None,
                b' '..=b'~' => self.at += 1,
                _ => return None,
            }
        }
        let text = self.line[start..self.at].trim_end_matches(' ');
        let is_null = text.eq_ignore_ascii_case("null");
        (!is_null).then_some((start, start + text.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::Report;
    use crate::raw;

    /// Lines that this reader accepts, and lines that it leaves to YAML.
    const PLAIN: &[&str] = &[
        "{}",
        "{ }",
        "{ match: { ipv4.dst: 10.0.0.1 }, set: { eth.dst: 02:00:00:00:00:01 } }",
        "{match: {udp.dport: 53},counter: a b  c , priority: 0x10}   # why",
        "{ match: { ipv6.dst: \"::1\", ipv4.src: 10.0.0.0/8 }, set: [{ vid: 1 }, { vid: 2 }], }",
        "{ a: fe80::1, b: 1_000, c: yes, d: 1e3, e: -, f: x:y, g: \" \", h: [], i: {} }",
        "{ a: 1-2, b: 1.0, c: no, d: .5, e: 0o7, f: 2020-01-01, g: true, h: inf, i: a#b, j: a'b }",
        "{ match: default, match: { flow: \"udp 10.0.0.1:53 > 10.0.0.2:4000\" } }",
        "{ a b: c d, e: f}",
        "{ y: n, Nul: x, k: nullx, l: 0xFFFFFFFFFFFFFFFFFFFF }",
    ];
    const OTHERS: &[&str] = &[
        "",
        "a",
        "- {}",
        "{ a }",
        "{ a: }",
        "{ a: ~ }",
        "{ a: null }",
        "{ ~: a }",
        "{ a: *b }",
        "{ a: &b c }",
        "{ a: !!str 1 }",
        "{ a: 'b' }",
        "{ a: \"\\n\" }",
        "{ \"a\": b }",
        "{ a: \"b\"c }",
        "{ a: b",
        "{ a: b }}",
        "{ a: b } c",
        "{ a: b }#c",
        "{ a: b #c }",
        "{ a: [b: c] }",
        "{ a:b }",
        "{ a:\tb }",
        "{ a: é }",
        "{ <<: { a: b } }",
        "{ a: b,, c: d }",
        "{ ? a: b }",
        "{ a: b: c }",
        "{ a: b\u{7f} }",
    ];

    /// Checks that the parts of a line are those of its mapping, if it is flat enough.
    fn parts_are_those_of(line: &str, mapping: Option<&Node>) {
        let mut parts = [Item::default(); ITEMS_MAX];
        let Some(count) = items(line, 0, &mut parts) else { return };
        let Some(Node { kind: Kind::Map(map), .. }) = mapping else { panic!("{line}: {mapping:?}") };
        let text = |node: &Node| if let Kind::Scalar(text) = &node.kind { Some(text.clone()) } else { None };
        let mut wanted = Vec::new();
        for (key, value) in map {
            let (key, at) = (text(key).unwrap(), value.span.column as usize - 1);
            wanted.push((String::new(), key.clone(), text(value), at));
            let inside = if let Kind::Map(inside) = &value.kind { inside.as_slice() } else { &[] };
            let part = |(of, value): &(Node, Node)| {
                (key.clone(), text(of).unwrap(), text(value), value.span.column as usize - 1)
            };
            wanted.extend(inside.iter().map(part));
        }
        let own = |part: &Item<'_>| {
            (part.section.to_string(), part.key.to_string(), part.text.map(str::to_string), part.at)
        };
        assert_eq!(parts[..count].iter().map(own).collect::<Vec<_>>(), wanted, "{line}");
    }

    fn same_as_yaml(line: &str) -> bool {
        let start = Span { line: 1, column: 1, ..Span::default() };
        parts_are_those_of(line, mapping(line, 0, start).as_ref());
        let Some(read) = mapping(line, 0, Span { line: 1, column: 1, ..Span::default() }) else {
            assert!(!is_mapping(line, 0), "{line}");
            return false;
        };
        assert!(is_mapping(line, 0), "{line}");
        let mut report = Report::new("t", line);
        assert_eq!(Some(read), raw::parse(line, &mut report), "{line}\n{report}");
        true
    }

    #[test]
    fn plain_lines_are_read_as_yaml_is() {
        for line in PLAIN {
            assert!(same_as_yaml(line) || line.contains("d: .5") || line.contains("e: -"), "{line}");
        }
    }

    #[test]
    fn other_lines_are_left_to_yaml() {
        for line in OTHERS {
            assert!(!same_as_yaml(line), "{line}");
        }
    }

    #[test]
    fn lines_that_are_nearly_plain_are_read_as_yaml_is_or_not_at_all() {
        // One character inserted, removed or replaced anywhere.
        let mut read = 0;
        for line in PLAIN {
            for at in 0..line.len() {
                let less = format!("{}{}", &line[..at], &line[at + 1..]);
                read += usize::from(same_as_yaml(&less));
                for other in "{}[],: #\"'&*!|>%@`~?-0a\t".chars() {
                    let more = format!("{}{other}{}", &line[..at], &line[at..]);
                    let instead = format!("{}{other}{}", &line[..at], &line[at + 1..]);
                    read += usize::from(same_as_yaml(&more)) + usize::from(same_as_yaml(&instead));
                }
            }
        }
        assert!(read > 1000, "{read}");
    }
}
