//! Conventions shared by answers to `weir show`: times are given as ages, and unknown values are left out.

use crate::page::{items, word};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::fmt::Write;

const NS_PER_MS: u64 = 1_000_000;

/// The age of an event in milliseconds; both times are on the same clock.
#[must_use]
pub fn ago_ms(now_ns: u64, at_ns: u64) -> u64 {
    now_ns.saturating_sub(at_ns) / NS_PER_MS
}

/// Events, each with when it happened and a sentence, with their ages.
#[must_use]
pub fn events<'a>(now_ns: u64, events: impl IntoIterator<Item = &'a (u64, String)>) -> Value {
    let one = |(at_ns, what): &(u64, String)| json!({ "ago_ms": ago_ms(now_ns, *at_ns), "what": what });
    events.into_iter().map(one).collect()
}

/// The latest of these events, as lines of text.
#[must_use]
pub fn latest(events: &Value) -> String {
    const LINES: usize = 8;
    let (events, mut text) = (items(events), String::new());
    for event in &events[events.len().saturating_sub(LINES)..] {
        let ago = seconds(event["ago_ms"].as_u64().unwrap_or_default());
        let _ = writeln!(text, "  {ago} ago: {}", word(&event["what"]));
    }
    text
}

/// Reads an answer. Fields that another version lacks have their default, and an answer that cannot be read
/// is empty.
#[must_use]
pub fn read<T: DeserializeOwned + Default>(answer: &Value) -> T {
    T::deserialize(answer).unwrap_or_default()
}

/// Converts an answer to text.
#[must_use]
pub fn as_text<T: DeserializeOwned>(answer: &Value, text: impl FnOnce(&T) -> String) -> String {
    T::deserialize(answer)
        .map_or_else(|why| format!("the answer cannot be read: {why}\n"), |read| text(&read))
}

/// Formats a duration for humans, as `20 ms` or `1.5 s`.
#[must_use]
pub fn seconds(milliseconds: u64) -> String {
    if milliseconds < 1000 {
        format!("{milliseconds} ms")
    } else {
        format!("{:.1} s", milliseconds as f64 / 1000.0)
    }
}

/// Removes fields that are `null`, at any depth.
#[must_use]
pub fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let known = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(known.map(|(name, value)| (name, without_nulls(value))).collect::<Map<_, _>>())
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

/// Returns the fields of an answer that a documentation page fails to mention.
#[must_use]
pub fn undocumented(answer: &Value, page: &str) -> Vec<String> {
    let mut missing = Vec::new();
    match answer {
        Value::Object(fields) => {
            for (name, value) in fields {
                if !page.contains(&format!("`{name}`")) {
                    missing.push(name.clone());
                }
                missing.extend(undocumented(value, page));
            }
        }
        Value::Array(items) => missing.extend(items.iter().flat_map(|one| undocumented(one, page))),
        Value::Null => missing.push("a null".to_string()),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_left_out_however_deep() {
        let answer = json!({ "a": null, "b": [{ "c": null, "d": 1 }], "e": { "f": null } });
        assert_eq!(without_nulls(answer), json!({ "b": [{ "d": 1 }], "e": {} }));
    }

    #[test]
    fn times_are_how_long_ago() {
        assert_eq!((ago_ms(5_000_000, 2_000_000), ago_ms(1, 2)), (3, 0));
        assert_eq!((seconds(999), seconds(1500)), ("999 ms".to_string(), "1.5 s".to_string()));
    }
}
