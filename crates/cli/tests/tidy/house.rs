//! Phrases at which native readers stop. Each has a maximum number of uses in comments, messages and
//! documents. This number may only fall: a change that removes some uses lowers it.

use crate::Offence;
use crate::source::files;

/// Phrases, in lower case, and how often each may be used.
const PHRASES: &[(&str, usize)] = &[
    ("told", 0),
    ("so many", 0),
    ("anew", 5),
    ("whoever", 0),
    ("nobody", 28),
    ("stands for", 0),
    ("goes on", 0),
];

/// This file names them all.
const LIST: &str = "crates/cli/tests/tidy/house.rs";

/// Returns the phrases that are used more often than they may be. Concurrent changes may each lower the
/// number, so fewer uses than the number are allowed.
pub fn phrases() -> Vec<Offence> {
    let mut counts = vec![0; PHRASES.len()];
    for file in files(&["rs", "c", "h", "md"]).into_iter().filter(|file| file.path != LIST) {
        let text = file.text.to_lowercase();
        for (count, (phrase, _)) in counts.iter_mut().zip(PHRASES) {
            *count += uses(&text, phrase);
        }
    }
    let found = PHRASES.iter().zip(counts).filter(|((_, most), count)| count > most);
    found
        .map(|((phrase, most), count)| {
            let advice =
                format!("`{phrase}` is used {count} times, not {most} at most: rewrite the sentence");
            Offence { path: LIST.to_string(), line: 1, advice }
        })
        .collect()
}

/// Returns how often a phrase occurs in a text as whole words.
fn uses(text: &str, phrase: &str) -> usize {
    let joins = |beside: Option<char>| beside.is_some_and(|one| one.is_alphanumeric() || one == '_');
    let is_whole = |at: usize| {
        !joins(text[..at].chars().next_back()) && !joins(text[at + phrase.len()..].chars().next())
    };
    text.match_indices(phrase).filter(|(at, _)| is_whole(*at)).count()
}

#[test]
fn whole_words_are_counted() {
    assert_eq!(uses("he told it; untold, told_by", "told"), 1);
    assert_eq!(uses("so many, and so manyfold", "so many"), 1);
}
