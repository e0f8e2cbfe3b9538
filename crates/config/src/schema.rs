//! The JSON Schema (draft 2020-12) of the configuration, which editors use for completion and validation. The
//! schema is built from the tables with which the configuration is read ([`crate::key`]), so that neither can
//! know a word that the other does not.
//!
//! A schema checks shapes, words and ranges. `weir check` verifies everything that depends on the rest of the
//! file (does a name exist, does a graph end).

use crate::key::{Key, Shape};
use crate::section::NAME_MAX;
use serde_json::{Map, Value, json};

/// The spelling of a number that is not a JSON number.
pub const NUMBER: &str = "(0[xX][0-9a-fA-F_]+|[0-9][0-9_]*)";
/// The spelling of a MAC address.
pub const MAC: &str = "([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}";
/// The spelling of an IPv4 address.
pub const IPV4: &str = "([0-9]{1,3}\\.){3}[0-9]{1,3}";
/// The spelling of an IPv6 address, and slightly more.
pub const IPV6: &str = "[0-9a-fA-F]*:[0-9a-fA-F:]*:[0-9a-fA-F:.]*";

/// A schema under construction: definitions that others refer to.
#[derive(Default)]
pub struct Schema {
    definitions: Map<String, Value>,
}

/// The schema of a file whose top level has these keys. `define` adds the definitions that they refer to by
/// [`Shape::Given`].
#[must_use]
pub fn document(keys: &[Key], define: impl FnOnce(&mut Schema)) -> Value {
    let mut schema = Schema::default();
    let mut document = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "weir",
        "description": "The packet data plane of a host, from one file.",
    });
    let whole = schema.map(keys);
    define(&mut schema);
    let own = document.as_object_mut().expect("a mapping");
    own.extend(whole.as_object().cloned().unwrap_or_default());
    own.insert("$defs".to_string(), Value::Object(schema.definitions));
    document
}

impl Schema {
    /// A mapping with these keys and no others.
    pub fn map(&mut self, keys: &[Key]) -> Value {
        let properties: Map<_, _> = keys.iter().map(|key| (key.word.to_string(), self.key(key))).collect();
        let needed: Vec<&str> =
            keys.iter().filter(|key| key.needed && key.only.is_none()).map(|key| key.word).collect();
        let mut map = json!({ "type": "object", "properties": properties, "additionalProperties": false });
        if !needed.is_empty() {
            map["required"] = json!(needed);
        }
        map
    }

    /// The value of a key, with its description.
    fn key(&mut self, key: &Key) -> Value {
        let mut value = self.shape(&key.shape);
        let mut help = format!("{}{}.", key.help[..1].to_uppercase(), &key.help[1..]);
        if let Some(kind) = key.only {
            help.push_str(&format!(" Only {kind}."));
        }
        if let Some(default) = key.default {
            help.push_str(&format!(" Default: {default}."));
            value["default"] = typed(default);
        }
        value["description"] = json!(help);
        value
    }

    /// What a value may be.
    pub fn shape(&mut self, shape: &Shape) -> Value {
        match *shape {
            Shape::Boolean => json!({ "type": "boolean" }),
            Shape::Number(least, most) => self.number(least, most),
            Shape::Numbers(of) => one_of(of),
            Shape::Words(words) => json!({ "enum": words() }),
            Shape::Text | Shape::Name => json!({ "type": ["string", "number"] }),
            Shape::Time => text("never|[0-9][0-9_]* *(ns|us|ms|s|m|h|d)"),
            Shape::Mac => text(MAC),
            Shape::Ip => text(&format!("{IPV4}|{IPV6}")),
            Shape::Ipv4 => text(IPV4),
            Shape::Prefix => text(&format!("({IPV4}|{IPV6})(/[0-9]+)?")),
            Shape::Endpoint => text(&format!("({IPV4}|\\[{IPV6}\\]):[0-9]+")),
            Shape::Share => {
                json!({ "anyOf": [{ "type": "number", "minimum": 0, "maximum": 1 }, text("[0-9.]+ *%?")] })
            }
            Shape::Nothing => json!({ "type": "null" }),
            Shape::List(of) => json!({ "type": "array", "items": self.shape(of) }),
            Shape::Named(of) => self.named(of),
            Shape::Map(keys) => self.map(keys),
            Shape::Overrides(keys) => {
                let mut map = self.map(keys);
                map.as_object_mut().map(|map| map.remove("required"));
                map
            }
            Shape::Either(shapes) => {
                json!({ "anyOf": shapes.iter().map(|shape| self.shape(shape)).collect::<Vec<_>>() })
            }
            Shape::Defined(name, make) => self.define(name, make),
            Shape::Given(name) => reference(name),
        }
    }

    /// A reference to a definition, which is created on first use.
    pub fn define(&mut self, name: &str, make: impl FnOnce(&mut Schema) -> Value) -> Value {
        if !self.definitions.contains_key(name) {
            // Reserved before it is created, because it may refer to itself.
            self.definitions.insert(name.to_string(), Value::Null);
            let made = make(self);
            self.definitions.insert(name.to_string(), made);
        }
        reference(name)
    }

    fn number(&mut self, least: u64, most: u64) -> Value {
        json!({ "anyOf": [{ "type": "integer", "minimum": least, "maximum": most }, text(NUMBER)] })
    }

    fn named(&mut self, of: &Shape) -> Value {
        let name = format!("^[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{}}}$", NAME_MAX - 1);
        json!({
            "type": "object",
            "propertyNames": { "pattern": name, "not": { "enum": crate::forward::RESERVED } },
            "additionalProperties": self.shape(of),
        })
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/$defs/{name}") })
}

/// A text that matches this pattern as a whole, or has a value of the node, which the schema cannot know.
#[must_use]
pub fn text(pattern: &str) -> Value {
    json!({ "type": "string", "pattern": format!("^({pattern})$|\\$\\{{NODE\\.[A-Za-z0-9_.-]+\\}}") })
}

fn one_of(numbers: &[u16]) -> Value {
    let spelt: Vec<String> = numbers.iter().map(|number| format!("{number:#06x}")).collect();
    json!({ "anyOf": [{ "enum": numbers }, { "enum": spelt }] })
}

/// A value as YAML reads it.
pub(crate) fn typed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| json!(text))
}
