//! Reads typed requests from JSON that clients have sent; an error is a sentence that names the field.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// How many fields, from the first, are searched for the one that causes an error.
const FIELDS: usize = 16;

/// Reads a request: an object in which `tag` names the request.
///
/// # Errors
/// The error names the request and the field.
pub fn read<T: DeserializeOwned>(tag: &str, value: Value) -> Result<T, String> {
    let Value::Object(mut fields) = value else { return Err("a request is a JSON object".to_string()) };
    let name = fields.shift_remove(tag).ok_or_else(|| format!("the request needs `{tag}`"))?;
    let word = name.as_str().ok_or_else(|| format!("`{tag}` is a word"))?.to_string();
    // The tag comes first, so that any number of leading fields forms a request, too.
    let fields: Map<String, Value> = [(tag.to_string(), name)].into_iter().chain(fields).collect();
    let first = |count: usize| -> Result<T, String> {
        let some = fields.iter().take(count).map(|(name, value)| (name.clone(), value.clone()));
        T::deserialize(Value::Object(some.collect())).map_err(|error| error.to_string())
    };
    first(fields.len()).map_err(|why| {
        let unknown = why.strip_prefix(&format!("unknown variant `{word}`, expected "));
        if let Some(known) = unknown {
            let known = known.trim_start_matches("one of ").replace('`', "");
            let noun = if tag == "do" { "request" } else { tag };
            return format!("there is no {noun} `{word}`: {known}");
        }
        // Errors about values do not name the field: it is the field with which the error first appears.
        let is_cause = |count: &usize| first(*count).is_err_and(|other| other == why);
        let names_it = ["missing", "unknown"].iter().any(|word| why.starts_with(word));
        let at = if names_it { None } else { (2..=FIELDS).find(is_cause) };
        let place = at.and_then(|count| fields.keys().nth(count - 1));
        let place = place.map(|name| format!(", field `{name}`")).unwrap_or_default();
        format!("request `{word}`{place}: {why}")
    })
}
