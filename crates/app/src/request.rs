//! Requests to apps: JSON objects whose `do` names a view's request or a verb.

use crate::kind::Verb;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Returns the request for the words of a command: what to do, the verb's arguments, and flags.
#[must_use]
pub fn from_words(verbs: &[Verb], words: &[&str]) -> Value {
    let (name, mut words) = words.split_first().map_or(("", [].iter()), |(name, rest)| (*name, rest.iter()));
    let number = |word: &str| word.parse::<u64>().map_or_else(|_| json!(word), Value::from);
    let mut fields = Map::from_iter([("do".to_string(), json!(name))]);
    let arguments = verbs.iter().find(|verb| verb.name == name).map_or(&[][..], |verb| verb.arguments);
    for (argument, word) in arguments.iter().zip(words.by_ref()) {
        let value = if argument.number { number(word) } else { json!(word) };
        fields.insert(argument.name.to_ascii_lowercase(), value);
    }
    while let Some(word) = words.next() {
        let value = match *word {
            "from" => number(words.next().unwrap_or(&"")),
            _flag => json!(true),
        };
        fields.insert(word.replace('-', "_"), value);
    }
    Value::Object(fields)
}

/// Reads a request to an app with these verbs. Clients of earlier versions, and operators with `weir app`,
/// send words.
///
/// # Errors
/// The error names the request and the field.
pub fn read<T: DeserializeOwned>(verbs: &[Verb], sent: &Value) -> Result<T, String> {
    let words = sent.as_str().map(|words| words.split_whitespace().collect::<Vec<_>>());
    let request = words.map_or_else(|| sent.clone(), |words| from_words(verbs, &words));
    weir_control::read("do", request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Argument;

    #[test]
    fn words_become_fields() {
        const ARGUMENTS: &[Argument] = &[
            Argument { name: "BUCKET", help: "", number: true },
            Argument { name: "MEMBER", help: "", number: false },
        ];
        let text = |_: &Value, _: &[&str]| String::new();
        let verbs = [Verb { name: "move", about: "", arguments: ARGUMENTS, whole: false, flags: &[], text }];
        for (words, fields) in [
            ("move 7 p2", json!({ "do": "move", "bucket": 7, "member": "p2" })),
            ("move x p2 dry-run", json!({ "do": "move", "bucket": "x", "member": "p2", "dry_run": true })),
            ("move", json!({ "do": "move" })),
            ("flows from 5", json!({ "do": "flows", "from": 5 })),
            ("flows from", json!({ "do": "flows", "from": "" })),
            ("", json!({ "do": "" })),
        ] {
            let words: Vec<&str> = words.split_whitespace().collect();
            assert_eq!(from_words(&verbs, &words), fields);
        }
    }
}
