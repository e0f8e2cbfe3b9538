//! Two pages are a specification: every numbered sentence names the tests that check it, every numbered test
//! belongs to a sentence, and sentences that comments and pages cite exist.

use crate::Offence;
use crate::source::{code, files, line_of, read};

/// The pages of the specification, by the name under which text cites their sentences, as in "pipes.md F5".
const PAGES: [(&str, &str); 2] =
    [("pipes.md ", "docs/reference/pipes.md"), ("changes.md ", "docs/reference/changes.md")];

/// The tests of the specification; their names begin with the number of a sentence.
const TESTS: &str = "crates/engine/tests/";

/// A numbered sentence: its line, its number in lower case, and the tests it names.
struct Sentence {
    line: usize,
    number: String,
    tests: Vec<String>,
}

/// Returns the sentences that name no test or a test that does not exist.
pub fn without_test() -> Vec<Offence> {
    let functions: Vec<String> = functions("").into_iter().map(|(name, ..)| name).collect();
    let mut offences = Vec::new();
    for (path, sentence) in specification() {
        let number = sentence.number.to_uppercase();
        let mut offend = |advice: String| {
            offences.push(Offence { path: path.to_string(), line: sentence.line, advice });
        };
        if sentence.tests.is_empty() {
            offend(format!("sentence {number} names no test: write one and name it"));
        }
        for test in &sentence.tests {
            if !functions.contains(test) {
                offend(format!(
                    "sentence {number} names the test `{test}`, which does not exist: correct the name"
                ));
            }
        }
    }
    offences
}

/// Returns the numbered tests that no sentence names.
pub fn without_sentence() -> Vec<Offence> {
    let sentences = specification();
    let mut offences = Vec::new();
    for (name, path, line) in functions(TESTS) {
        let number = name.split('_').next().unwrap_or_default();
        if is_number(number) && !sentences.iter().any(|(_, sentence)| sentence.tests.contains(&name)) {
            let advice =
                format!("no sentence of the specification names `{name}`: name it in sentence {number}");
            offences.push(Offence { path, line, advice });
        }
    }
    offences
}

/// Returns the places that cite a sentence which does not exist.
pub fn cited_in_vain() -> Vec<Offence> {
    let sentences = specification();
    let mut offences = Vec::new();
    for file in files(&["rs", "c", "h", "md"]) {
        for (at, page, number) in cited(&file.text) {
            if !sentences.iter().any(|(path, one)| *path == page && one.number == number) {
                let number = number.to_uppercase();
                let advice = format!("{page} has no sentence {number}: correct the page or the number");
                offences.push(Offence { path: file.path.clone(), line: line_of(&file.text, at), advice });
            }
        }
    }
    offences
}

/// Returns the sentences that a text cites: where, the page, and the number in lower case.
fn cited(text: &str) -> Vec<(usize, &'static str, String)> {
    let mut found = Vec::new();
    for (name, page) in PAGES {
        for (at, _) in text.match_indices(name) {
            let rest = &text[at + name.len()..];
            let number = rest.split(|part: char| !part.is_alphanumeric()).next().unwrap_or_default();
            let is_sentence = number.starts_with(|first: char| first.is_ascii_uppercase());
            let number = number.to_lowercase();
            if is_sentence && is_number(&number) {
                found.push((at, page, number));
            }
        }
    }
    found
}

/// Returns the numbered sentences of the specification, each with its page.
fn specification() -> Vec<(&'static str, Sentence)> {
    let pages = PAGES
        .into_iter()
        .flat_map(|(_, page)| sentences(&read(page)).into_iter().map(move |sentence| (page, sentence)));
    pages.collect()
}

/// Returns true for a letter followed by digits.
fn is_number(word: &str) -> bool {
    let mut chars = word.chars();
    chars.next().is_some_and(|first| first.is_ascii_lowercase())
        && word.len() > 1
        && chars.all(|digit| digit.is_ascii_digit())
}

/// Returns the numbered sentences of a page: list items that begin with a bold number. A sentence names its
/// tests in parentheses at its end.
fn sentences(page: &str) -> Vec<Sentence> {
    let mut sentences: Vec<Sentence> = Vec::new();
    let (mut text, mut open) = (String::new(), false);
    for (at, line) in page.lines().chain([""]).enumerate() {
        let number =
            line.strip_prefix("- **").and_then(|rest| rest.split_once("**")).map(|(number, _)| number);
        let number = number.map(str::to_lowercase).filter(|number| is_number(number));
        if number.is_some() || !line.starts_with("  ") {
            if let Some(sentence) = sentences.last_mut().filter(|_| open) {
                sentence.tests = tests(&text);
            }
            (text, open) = (String::new(), number.is_some());
        }
        text += line;
        sentences.extend(number.map(|number| Sentence { line: at + 1, number, tests: Vec::new() }));
    }
    sentences
}

/// Returns the tests named at the end of a sentence.
fn tests(text: &str) -> Vec<String> {
    let names = text.rsplit_once("(`").map_or("", |(_, names)| names);
    names.split(['`', ')']).filter(|name| is_test_name(name)).map(str::to_string).collect()
}

/// Returns true for a name such as `f1_what_no_pipe_reads_is_not_checked`.
fn is_test_name(name: &str) -> bool {
    name.contains('_')
        && name.chars().all(|part| part.is_ascii_lowercase() || part.is_ascii_digit() || part == '_')
}

/// Returns the functions of Rust files below a directory, each with its path and line.
fn functions(below: &str) -> Vec<(String, String, usize)> {
    let mut functions = Vec::new();
    for file in files(&["rs"]).into_iter().filter(|file| file.path.starts_with(below)) {
        let code = code(&file.text);
        for (at, _) in code.match_indices("fn ") {
            let name = code[at + 3..].split(|part: char| !part.is_alphanumeric() && part != '_').next();
            functions.push((name.unwrap_or_default().to_string(), file.path.clone(), line_of(&code, at)));
        }
    }
    functions
}

#[test]
fn sentences_are_found_with_their_tests() {
    let page =
        "- **F1** One, (`a_field`)\n  and a (`f1_test`,\n  `f1_other`).\n\n- **bold** no\n- **A12** Two.\n";
    let found: Vec<_> = sentences(page).into_iter().map(|one| (one.line, one.number, one.tests)).collect();
    let tests = vec!["f1_test".to_string(), "f1_other".to_string()];
    assert_eq!(found, [(1, "f1".to_string(), tests), (6, "a12".to_string(), Vec::new())]);
    let numbers: Vec<_> =
        cited("(pipes.md F5, changes.md S10) pipes.md says").into_iter().map(|it| it.2).collect();
    assert_eq!(numbers, ["f5", "s10"]);
}
