//! Reads names: from the text of a file, in YAML or JSON, and from the body of a request.

use super::{NameTable, NameTableBuilder, RawName, WrongName};
use serde_json::{Map, Value};
use weir_config::raw::{self, Node};
use weir_config::section::{Section, list, text};
use weir_config::{Key, Report, Shape};

/// The keys of a file of names.
const FILE: &[Key] = weir_config::keys! {
    needed "names": Shape::List(&Shape::Map(NAME)), "the names of addresses";
};

/// The keys of a name.
const NAME: &[Key] = weir_config::keys! {
    needed "address": Shape::Text, "the address or prefix that has the name";
    needed "name": Shape::Text, "the name";
    "namespace": Shape::Text, "the namespace that the name belongs to";
    "kind": Shape::Text, "pod, service, node or other";
    "node": Shape::Text, "the node that it runs on";
};

/// The maximum number of errors that are reported: further ones are usually the same mistake.
const ERRORS_MAX: usize = 10;

/// Reads the text of a file with this name.
///
/// # Errors
/// Returns all errors, each with its position.
pub fn read_file(file: &str, text: String) -> Result<NameTable, String> {
    let mut report = Report::new(file, text);
    let whole = report.text();
    let mut builder = NameTableBuilder::default();
    if let Some(document) = raw::parse(&whole, &mut report) {
        let section = Section::read(&document, FILE, &mut report);
        let names = section.needed("names", &mut report);
        for one in names.map_or(&[][..], |node| list(node, "names", &mut report)) {
            add(one, &mut builder, &mut report);
            if report.errors() >= ERRORS_MAX {
                break;
            }
        }
    }
    if report.errors() > 0 {
        return Err(report.to_string().trim_end().to_string());
    }
    Ok(builder.build())
}

fn add(node: &Node, builder: &mut NameTableBuilder, report: &mut Report) {
    let before = report.errors();
    let section = Section::read(node, NAME, report);
    let needed = ["address", "name"].map(|key| {
        let node = section.needed(key, report)?;
        text(node, &format!("a {key}"), report)
    });
    let [namespace, kind, node_name] =
        ["namespace", "kind", "node"].map(|key| text(section.get(key)?, &format!("a {key}"), report));
    let [Some(address), Some(name)] = needed else { return };
    if report.errors() > before {
        return;
    }
    let raw = RawName { address, name, namespace, kind, node: node_name };
    if let Err(WrongName { field, why, first }) = builder.add(&raw, node.span.line) {
        let span = section.get(field).unwrap_or(node).span;
        match first {
            Some(line) => report.error_help(span, why, format!("remove this one, or that of line {line}")),
            None => report.error(span, why),
        }
    }
}

/// Reads the body of a request, `{ "names": [...] }`.
///
/// # Errors
/// A sentence that begins with the place of the field, as a JSON pointer.
pub fn read_set(body: &Value) -> Result<NameTable, String> {
    let expected = || "the body is not an object `{ \"names\": [...] }`".to_string();
    let object = body.as_object().ok_or_else(expected)?;
    if let Some(other) = object.keys().find(|key| *key != "names") {
        return Err(format!("/{}: there is no such field", other.escape_debug()));
    }
    let names = object.get("names").and_then(Value::as_array).ok_or_else(expected)?;
    let mut builder = NameTableBuilder::default();
    for (at, one) in (0..).zip(names) {
        let place = |field: &str| format!("/names/{at}/{}", field.escape_debug());
        let object = one.as_object().ok_or_else(|| format!("/names/{at}: this is not an object"))?;
        let raw = raw_name(object).map_err(|(field, why)| format!("{}: {why}", place(field)))?;
        builder.add(&raw, at).map_err(|WrongName { field, why, first }| {
            let also = first.map_or(String::new(), |first| format!(" (at /names/{first})"));
            format!("{}: {why}{also}", place(field))
        })?;
    }
    Ok(builder.build())
}

/// Returns the fields of a name; the error has the field and what is wrong.
fn raw_name(object: &Map<String, Value>) -> Result<RawName<'_>, (&str, &'static str)> {
    let mut raw = RawName::default();
    let [mut address, mut name] = [None; 2];
    for (field, value) in object {
        let text = match value {
            Value::Null => continue,
            Value::String(text) => Some(text.as_str()),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                return Err((field.as_str(), "this is not a string"));
            }
        };
        match field.as_str() {
            "address" => address = text,
            "name" => name = text,
            "namespace" => raw.namespace = text,
            "kind" => raw.kind = text,
            "node" => raw.node = text,
            _ => return Err((field.as_str(), "there is no such field")),
        }
    }
    raw.address = address.ok_or(("address", "it is missing"))?;
    raw.name = name.ok_or(("name", "it is missing"))?;
    Ok(raw)
}
