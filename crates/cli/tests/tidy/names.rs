//! Type names: few types share a name, so that a name in an error message or in a search identifies the type.

use crate::Offence;
use crate::source;
use std::collections::BTreeMap;

/// How many types of the workspace, tests and rigs included, may share a name.
const SAME_NAME_MAX: usize = 3;

/// Returns the definitions of each name that more types share than allowed.
pub fn shared_too_often() -> Vec<Offence> {
    let mut definitions: BTreeMap<String, Vec<(String, usize)>> = BTreeMap::new();
    for file in source::files(&["rs"]) {
        for (line, text) in (1..).zip(source::code(&file.text).lines()) {
            if let Some(name) = defined(text) {
                definitions.entry(name.to_owned()).or_default().push((file.path.clone(), line));
            }
        }
    }
    definitions.retain(|_, places| places.len() > SAME_NAME_MAX);
    let offences = definitions.iter().flat_map(|(name, places)| {
        let advice = format!(
            "{} types are called `{name}`, and {SAME_NAME_MAX} may be; a more specific name says which it is",
            places.len(),
        );
        places.iter().map(move |(path, line)| Offence {
            path: path.clone(),
            line: *line,
            advice: advice.clone(),
        })
    });
    offences.collect()
}

/// Returns the name of the type or trait that a line of code defines. Associated types do not count: a trait
/// chooses their names. They are indented, as no alias of ours is outside functions.
fn defined(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub") || *word == "unsafe");
    let keyword = words.next()?;
    let is_alias = keyword == "type" && !line.starts_with(' ');
    if !is_alias && !["struct", "enum", "union", "trait"].contains(&keyword) {
        return None;
    }
    let name = words.next()?;
    let end = name.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(name.len());
    name.starts_with(char::is_uppercase).then_some(&name[..end])
}

#[test]
fn finds_definitions() {
    assert_eq!(defined("    pub(super) struct Row<'a> {"), Some("Row"));
    assert_eq!(defined("pub type Row = u32;"), Some("Row"));
    assert_eq!(defined("    pub unsafe trait Stored: Copy {"), Some("Stored"));
    assert_eq!(defined("    type Item = u32;"), None);
    assert_eq!(defined("    union => struct"), None);
}
