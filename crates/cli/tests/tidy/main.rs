//! The rules of this repository that a compiler does not check. Each failure names a file, a line and what to
//! do.
//!
//! `allowed.txt` lists today's offences, counted by rule and directory. It may only shrink: the test also
//! fails when there are fewer offences than the list allows, so that the list is shortened with them.

mod allowed;
mod arrows;
mod lengths;
mod sentences;
mod source;
mod words;

use std::fmt;

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offence {
    /// The rule's name, as in `allowed.txt`.
    pub rule: &'static str,
    /// The file, relative to the root of the repository.
    pub path: String,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong and what to do about it.
    pub advice: String,
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.advice)
    }
}

#[test]
fn crates_depend_only_along_the_arrows() {
    allowed::assert("arrow", arrows::offences());
}

#[test]
fn no_file_is_longer_than_700_lines() {
    allowed::assert("file", lengths::long_files());
}

#[test]
fn no_function_is_longer_than_60_lines() {
    allowed::assert("function", lengths::long_functions());
}

#[test]
fn no_line_is_longer_than_110_columns() {
    allowed::assert("column", lengths::long_lines());
}

#[test]
fn no_file_is_named_after_nothing() {
    allowed::assert("name", words::file_names());
}

#[test]
fn words_that_are_out_stay_out() {
    allowed::assert("word", words::identifiers());
}

#[test]
fn every_sentence_of_pipes_md_names_a_test_that_exists() {
    allowed::assert("sentence", sentences::without_test());
}

#[test]
fn every_numbered_test_is_named_by_its_sentence() {
    allowed::assert("sentence", sentences::without_sentence());
}
