//! The rules of this repository that a compiler does not check. Each failure names a file, a line and what to
//! do. There is no list of exceptions.

mod arrows;
mod cycles;
mod features;
mod house;
mod inputs;
mod lanes;
mod lengths;
mod links;
mod names;
mod namespaces;
mod sentences;
mod source;
mod words;

use std::fmt;

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offence {
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

fn assert_none(offences: &[Offence]) {
    let lines: Vec<String> = offences.iter().map(Offence::to_string).collect();
    assert!(lines.is_empty(), "{} to tidy:\n{}\n", lines.len(), lines.join("\n"));
}

#[test]
fn crates_depend_only_along_the_arrows() {
    assert_none(&arrows::offences());
}

#[test]
fn no_import_cycle_has_more_than_8_files() {
    assert_none(&cycles::offences());
}

#[test]
fn what_runs_features_names_none_of_them() {
    assert_none(&features::offences());
}

#[test]
fn make_test_runs_each_test_program_once() {
    assert_none(&lanes::offences());
}

#[test]
fn no_file_is_longer_than_700_lines() {
    assert_none(&lengths::long_files());
}

#[test]
fn no_function_is_longer_than_60_lines() {
    assert_none(&lengths::long_functions());
}

#[test]
fn no_line_is_longer_than_110_columns() {
    assert_none(&lengths::long_lines());
}

#[test]
fn no_file_is_named_after_nothing() {
    assert_none(&words::file_names());
}

#[test]
fn words_that_are_out_stay_out() {
    assert_none(&words::identifiers());
}

#[test]
fn few_types_share_a_name() {
    assert_none(&names::shared_too_often());
}

#[test]
fn house_words_become_fewer() {
    assert_none(&house::phrases());
}

#[test]
fn interfaces_are_not_read_from_sys() {
    assert_none(&namespaces::read_from_sys());
}

#[test]
fn whatever_is_read_has_a_largest_size() {
    assert_none(&inputs::read_without_limit());
}

#[test]
fn links_lead_somewhere() {
    assert_none(&links::broken());
}

#[test]
fn pages_that_are_named_exist() {
    assert_none(&links::named_pages());
}

#[test]
fn every_sentence_of_the_specification_names_a_test_that_exists() {
    assert_none(&sentences::without_test());
}

#[test]
fn sentences_that_are_cited_exist() {
    assert_none(&sentences::cited_in_vain());
}

#[test]
fn every_numbered_test_is_named_by_its_sentence() {
    assert_none(&sentences::without_sentence());
}
