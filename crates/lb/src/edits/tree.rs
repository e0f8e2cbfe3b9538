//! The document's tree, as edits see it.

use crate::sources::is_template;
use serde_json::Value;
use weir_config::Span;
use weir_config::raw::{Kind, Node};

/// The app's key.
const KEY: &str = crate::NAME;

/// Returns a node as JSON; scalars become strings, as they were spelled.
#[must_use]
pub fn json(node: &Node) -> Value {
    match &node.kind {
        Kind::Null | Kind::Lines(_) => Value::Null,
        Kind::Scalar(text) => Value::from(text.clone()),
        Kind::List(list) => list.iter().map(json).collect(),
        Kind::Map(map) => {
            let pair = |(key, value): &(Node, Node)| match &key.kind {
                Kind::Scalar(key) => Some((key.clone(), json(value))),
                _ => None,
            };
            Value::Object(map.iter().filter_map(pair).collect())
        }
    }
}

/// Returns a value with numbers and booleans as strings, as if it had been read from a file.
#[must_use]
pub fn canonical(value: &Value) -> Value {
    match value {
        Value::Null | Value::String(_) => value.clone(),
        Value::Bool(_) | Value::Number(_) => Value::from(value.to_string()),
        Value::Array(list) => list.iter().map(canonical).collect(),
        Value::Object(map) => {
            Value::Object(map.iter().map(|(key, value)| (key.clone(), canonical(value))).collect())
        }
    }
}

/// Returns a value as a node at this place, and appends its text, which has no line breaks.
pub fn node(value: &Value, at: Span, text: &mut String) -> Node {
    let mut column = at.column;
    write(value, at, &mut column, text)
}

fn write(value: &Value, line: Span, column: &mut u32, text: &mut String) -> Node {
    let first = *column;
    let kind = match value {
        Value::Null => {
            put("null", column, text);
            Kind::Null
        }
        Value::Bool(_) | Value::Number(_) => {
            let spelled = value.to_string();
            put(&spelled, column, text);
            Kind::Scalar(spelled)
        }
        Value::String(string) => {
            put(&value.to_string(), column, text);
            Kind::Scalar(string.clone())
        }
        Value::Array(list) => {
            put("[", column, text);
            let mut nodes = Vec::with_capacity(list.len());
            for (at, one) in list.iter().enumerate() {
                put(if at > 0 { "," } else { "" }, column, text);
                nodes.push(write(one, line, column, text));
            }
            put("]", column, text);
            Kind::List(nodes)
        }
        Value::Object(map) => {
            put("{", column, text);
            let mut pairs = Vec::with_capacity(map.len());
            for (at, (key, one)) in map.iter().enumerate() {
                put(if at > 0 { "," } else { "" }, column, text);
                let key = write(&Value::from(key.as_str()), line, column, text);
                put(":", column, text);
                pairs.push((key, write(one, line, column, text)));
            }
            put("}", column, text);
            Kind::Map(pairs)
        }
    };
    let length = match kind {
        Kind::Map(_) | Kind::List(_) => 1,
        Kind::Null | Kind::Scalar(_) | Kind::Lines(_) => *column - first,
    };
    Node { span: Span { column: first, length, ..line }, kind }
}

fn put(part: &str, column: &mut u32, text: &mut String) {
    text.push_str(part);
    *column += part.chars().count() as u32;
}

/// Returns the value of a key of a mapping.
pub fn value<'a>(node: &'a Node, key: &str) -> Option<&'a Node> {
    let Kind::Map(pairs) = &node.kind else { return None };
    pairs.iter().find(|(word, _)| word.is(key)).map(|(_, value)| value)
}

pub fn value_mut<'a>(node: &'a mut Node, key: &str) -> Option<&'a mut Node> {
    let Kind::Map(pairs) = &mut node.kind else { return None };
    pairs.iter_mut().find(|(word, _)| word.is(key)).map(|(_, value)| value)
}

/// Returns the `name` of a mapping.
pub fn name(node: &Node) -> Option<&str> {
    match &value(node, "name")?.kind {
        Kind::Scalar(name) => Some(name),
        _ => None,
    }
}

/// The pools of an item.
pub fn pools(item: &Node) -> Vec<(&str, &Node)> {
    let Some(Node { kind: Kind::Map(pools), .. }) = value(item, "pools") else { return Vec::new() };
    pools.iter().filter_map(|(key, list)| Some((scalar(key)?, list))).collect()
}

pub fn pools_mut(item: &mut Node) -> Vec<(String, &mut Node)> {
    let Some(Node { kind: Kind::Map(pools), .. }) = value_mut(item, "pools") else { return Vec::new() };
    pools.iter_mut().filter_map(|(key, list)| Some((scalar(key)?.to_string(), list))).collect()
}

fn scalar(node: &Node) -> Option<&str> {
    if let Kind::Scalar(text) = &node.kind { Some(text) } else { None }
}

/// Returns the app's items in a document, except templates, which sources fill in.
pub fn items(document: &Node) -> impl Iterator<Item = &Node> {
    let apps = value(document, "apps").map(|apps| match &apps.kind {
        Kind::List(list) => list.as_slice(),
        _ => &[],
    });
    apps.unwrap_or_default().iter().flat_map(own)
}

fn own(item: &Node) -> Vec<&Node> {
    match &item.kind {
        Kind::Map(map) => {
            let own = map.iter().filter(|(key, node)| key.is(KEY) && !is_template(node));
            own.map(|(_, node)| node).collect()
        }
        _ => Vec::new(),
    }
}

/// Passes each of the app's items in a document to `take`, except templates.
pub fn each_item(document: &mut Node, take: &mut dyn FnMut(&mut Node)) {
    let Some(Node { kind: Kind::List(apps), .. }) = value_mut(document, "apps") else { return };
    for item in apps {
        let Kind::Map(map) = &mut item.kind else { continue };
        let own = map.iter_mut().filter(|(key, node)| key.is(KEY) && !is_template(node));
        own.for_each(|(_, node)| take(node));
    }
}

/// Appends an item of the app.
pub fn append(document: &mut Node, node: Node) {
    let Some(Node { kind: Kind::List(apps), .. }) = value_mut(document, "apps") else { return };
    let span = node.span;
    let key = Node { span, kind: Kind::Scalar(KEY.to_string()) };
    apps.push(Node { span, kind: Kind::Map(vec![(key, node)]) });
}

/// Returns the path of the field at this position in an edit's line, or of the field that `message` says is
/// missing there.
pub fn field(edit: &Value, at: Span, message: &str) -> Option<String> {
    let first = Span { line: at.line, column: 1, length: 1, file: at.file };
    let node = node(edit, first, &mut String::new());
    let mut path = Vec::new();
    find(&node, at.column, &mut path);
    let missing = message.strip_prefix('`').and_then(|rest| rest.split_once('`'));
    if let Some((word, _)) = missing.filter(|(_, rest)| rest.starts_with(" is missing")) {
        path.push(word.to_string());
    }
    (!path.is_empty()).then(|| path.join("."))
}

/// Finds the node, or the key, that begins at a column.
fn find(node: &Node, column: u32, path: &mut Vec<String>) -> bool {
    if node.span.column == column {
        return true;
    }
    match &node.kind {
        Kind::List(list) => {
            list.iter().enumerate().any(|(at, one)| within(at.to_string(), one, column, path))
        }
        Kind::Map(map) => map.iter().any(|(key, value)| {
            let word = scalar(key).unwrap_or_default().to_string();
            if key.span.column == column {
                path.push(word);
                return true;
            }
            within(word, value, column, path)
        }),
        _ => false,
    }
}

fn within(word: String, node: &Node, column: u32, path: &mut Vec<String>) -> bool {
    path.push(word);
    let found = find(node, column, path);
    if !found {
        path.pop();
    }
    found
}
