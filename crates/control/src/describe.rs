//! Descriptions of answers as JSON Schema, made by [`answers!`](crate::answers) from the types themselves.

use serde_json::{Map, Value, json};

/// A type whose JSON has a schema.
pub trait Described {
    /// Returns its JSON Schema.
    fn schema() -> Value;
}

macro_rules! described {
    ($($schema:expr => $($type:ty),+;)*) => { $($(
        impl Described for $type {
            fn schema() -> Value {
                $schema
            }
        }
    )+)* };
}

described! {
    json!({ "type": "boolean" }) => bool;
    json!({ "type": "integer" }) => i64;
    json!({ "type": "integer", "minimum": 0 }) => u16, u32, u64, usize;
    json!({ "type": "number" }) => f64;
    json!({ "type": "string" }) => String;
    json!({ "type": "object" }) => Map<String, Value>;
    json!({}) => Value;
}

impl<T: Described> Described for Option<T> {
    fn schema() -> Value {
        json!({ "anyOf": [T::schema(), { "type": "null" }] })
    }
}

impl<T: Described> Described for Vec<T> {
    fn schema() -> Value {
        json!({ "type": "array", "items": T::schema() })
    }
}

impl<T: Described, const N: usize> Described for [T; N] {
    fn schema() -> Value {
        json!({ "type": "array", "items": T::schema(), "minItems": N, "maxItems": N })
    }
}

impl<A: Described, B: Described> Described for (A, B) {
    fn schema() -> Value {
        json!({ "type": "array", "prefixItems": [A::schema(), B::schema()], "minItems": 2, "maxItems": 2 })
    }
}

/// Returns the schema of a struct, given its description and, for each field, the name, the description, the
/// contents of `#[serde(...)]`, and the schema.
#[doc(hidden)]
#[must_use]
pub fn object(about: &str, fields: Vec<(&str, &str, &str, Value)>) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for (name, about, how, mut schema) in fields {
        if how == "flatten" {
            continue;
        }
        let name = name.trim_start_matches("r#");
        if !about.is_empty() {
            schema["description"] = json!(about.trim());
        }
        if how.is_empty() {
            required.push(name);
        }
        properties.insert(name.to_string(), schema);
    }
    let mut schema = json!({ "type": "object", "required": required, "properties": properties });
    if !about.is_empty() {
        schema["description"] = json!(about.trim());
    }
    schema
}
