//! Banned words: names that say nothing, and names that had a second meaning.

use crate::Offence;
use crate::source::{code, files, line_of, paths};
use std::path::Path;

/// File names that would hold anything.
const FILE_NAMES: [&str; 7] = ["util", "utils", "common", "helper", "helpers", "manager", "misc"];

/// Banned identifiers, and the places where they are banned: an operation has a stage, but a daemon does not.
const IDENTIFIERS: [(&str, &str); 7] = [
    ("Heard", "crates/"),
    ("Outlet", "crates/"),
    ("Stage", "crates/daemon/"),
    ("happen", "crates/"),
    ("go_dark_or_light", "crates/"),
    ("lit", "crates/"),
    ("came_back", "crates/"),
];

/// Returns files and directories with a name that says nothing.
pub fn file_names() -> Vec<Offence> {
    let mut offences = Vec::new();
    for path in paths() {
        let mut parts = Path::new(&path).components().map(|part| part.as_os_str().to_string_lossy());
        let named = |part: &str| FILE_NAMES.contains(&part.split('.').next().unwrap_or_default());
        if parts.any(|part| named(&part)) {
            let advice =
                "the name does not say what is inside: name it by a noun of what it knows".to_string();
            offences.push(Offence { path, line: 1, advice });
        }
    }
    offences
}

/// Returns the uses of banned identifiers. Comments and strings may use the words.
pub fn identifiers() -> Vec<Offence> {
    let mut offences = Vec::new();
    for file in files(&["rs"]) {
        let code = code(&file.text);
        for (word, _) in IDENTIFIERS.into_iter().filter(|(_, below)| file.path.starts_with(below)) {
            for (at, _) in code.match_indices(word) {
                let joins = |beside: Option<char>| {
                    beside.is_some_and(|beside| beside.is_alphanumeric() || beside == '_')
                };
                if joins(code[..at].chars().next_back()) || joins(code[at + word.len()..].chars().next()) {
                    continue;
                }
                let advice = format!("`{word}` is out: say what it is in the terms of the field");
                offences.push(Offence { path: file.path.clone(), line: line_of(&code, at), advice });
            }
        }
    }
    offences
}
