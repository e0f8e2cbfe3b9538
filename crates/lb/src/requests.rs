//! The requests in JSON: the values of their `do`, and the other fields that each may have.

use serde_json::{Map, Value, json};
use weir_config::sets::WEIGHT_MAX;

const NAMES: &[&str] = &["service", "back_end"];
const OWNED: &[&str] = &["service", "pool", "back_end"];

/// The verb of the request that sets services.
pub const PUT: &str = "put";

/// The key of a service's status, which clients may send back and which is ignored.
pub const STATUS: &str = "status";

/// The beginning of a refusal because another owner has the service, or its address.
pub const CONFLICT: &str = "conflict: ";

/// The beginning of a refusal because a condition is not met.
pub const STALE: &str = "precondition failed: ";

/// The verbs that edit.
const EDITS: [&str; 6] = ["add", "remove", "reset", PUT, EXPECT, DRY_RUN];

/// Returns true for a request that edits the configuration, or is a condition for that.
#[must_use]
pub fn is_edit(request: &Value) -> bool {
    request["do"].as_str().is_some_and(|word| EDITS.contains(&word))
}

/// The condition that a service, or all services if none is named, has one of these tags, or is absent.
pub const EXPECT: &str = "expect";

/// The condition that nothing is changed.
pub const DRY_RUN: &str = "dry_run";

/// Returns true for a condition of the other requests in its list.
pub fn is_condition(request: &Value) -> bool {
    [EXPECT, DRY_RUN].iter().any(|verb| request["do"] == *verb)
}

/// Each request and its fields.
const REQUESTS: [(&str, &[&str]); 11] = [
    ("drain", NAMES),
    ("maintenance", NAMES),
    ("enable", NAMES),
    ("weight", &["service", "back_end", "weight"]),
    ("add", OWNED),
    ("remove", OWNED),
    (PUT, &["service", "services", "source"]),
    (EXPECT, &["service", "etags", "absent"]),
    (DRY_RUN, &[]),
    ("reset", &[]),
    ("list", &[]),
];

/// Returns the verb of a request, after checking that it has no unknown fields.
///
/// # Errors
/// There is no such request, or the request has no such field.
pub fn verb(request: &Value) -> Result<&'static str, String> {
    let fields = request.as_object().ok_or("a request is an object with `do`")?;
    let word = request["do"].as_str().ok_or("`do` is missing, or not a string")?;
    let (verb, known) = REQUESTS
        .iter()
        .find(|(verb, _)| *verb == word)
        .ok_or_else(|| format!("`do` is {}, not `{word}`", REQUESTS.map(|(verb, _)| verb).join(", ")))?;
    match fields.keys().find(|field| *field != "do" && !known.contains(&field.as_str())) {
        Some(unknown) if known.is_empty() => {
            Err(format!("there is no field `{unknown}`: `{verb}` has no other fields"))
        }
        Some(unknown) => Err(format!("there is no field `{unknown}`: `{verb}` has {}", known.join(", "))),
        None => Ok(verb),
    }
}

/// Returns the schema of the requests that a list may have.
pub fn schema() -> Value {
    let one = |(verb, fields): &(&str, &[&str])| {
        let properties = fields.iter().map(|field| (field.to_string(), schema_of(field)));
        let mut properties: Map<String, Value> = properties.collect();
        properties.insert("do".to_string(), json!({ "const": verb }));
        json!({
            "type": "object", "required": ["do"], "properties": properties, "additionalProperties": false,
        })
    };
    let all: Vec<Value> = REQUESTS.iter().filter(|(verb, _)| *verb != "list").map(one).collect();
    json!({ "type": "array", "items": { "anyOf": all } })
}

/// Returns the schema of a field. Services and back ends are names, or mappings as in the file.
pub fn schema_of(field: &str) -> Value {
    match field {
        "etags" => json!({ "type": "array", "items": { "type": "string" } }),
        "absent" => json!({ "type": "boolean" }),
        "services" => json!({ "type": "array", "items": { "type": "object" } }),
        "weight" => json!({ "type": "integer", "minimum": 0, "maximum": WEIGHT_MAX }),
        _named => json!({ "type": ["string", "object"] }),
    }
}
